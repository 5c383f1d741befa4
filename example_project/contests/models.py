"""A contest that becomes public at its time."""

from django.db import models

from example.jobs import lateness_ms


class Contest(models.Model):
    class Status(models.TextChoices):
        SCHEDULED = "scheduled"
        PUBLISHED = "published"
        WITHDRAWN = "withdrawn"

    title = models.CharField(max_length=100)
    publish_at = models.DateTimeField()
    status = models.CharField(
        max_length=10, choices=Status, default=Status.SCHEDULED, editable=False
    )
    published_at = models.DateTimeField(null=True, editable=False)
    #: The job that publishes it.
    job_id = models.CharField(max_length=100, editable=False)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.title

    @property
    def late_ms(self) -> float | None:
        return lateness_ms(self.publish_at, self.published_at)
