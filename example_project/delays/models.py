"""An element that came out of the queue again."""

from django.db import models


class Delay(models.Model):
    #: Made when it was offered: the same element delivered twice is one row.
    element_id = models.UUIDField(unique=True)
    data = models.CharField(max_length=200)
    asked_ms = models.PositiveBigIntegerField()
    actual_ms = models.FloatField()
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return (
            f"data={self.data} asked={self.asked_ms}ms actual={self.actual_ms:.1f}ms"
            f" late={self.late_ms:.1f}ms"
        )

    @property
    def late_ms(self) -> float:
        return self.actual_ms - self.asked_ms
