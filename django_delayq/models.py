"""A model without a table: what gives jobs their permissions and their place in the admin.

Jobs live on the server. ``migrate`` makes a content type and four permissions of this, and nothing else: "view" to
see queues and jobs, "change" to run, move, pause and limit them, "delete" to cancel and discard them, "view encrypted"
to see what is encrypted of a job.
"""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy


class _NoRows(models.Manager["Job"]):
    """Empty without a query, so that code that walks through all models, such as dumpdata, needs no table."""

    def get_queryset(self) -> models.QuerySet["Job"]:
        return super().get_queryset().none()


class Job(models.Model):
    """One job, by its id alone, for the admin and its log. The handle to work with is `django_delayq.Job`."""

    id = models.CharField("id", primary_key=True, max_length=1024)

    #: What the admin's log calls it; "": its id.
    label = ""

    objects: ClassVar[models.Manager["Job"]] = _NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change", "delete")
        permissions = (("view_encrypted_job", "Can view what is encrypted of a job"),)
        verbose_name = gettext_lazy("job")
        verbose_name_plural = gettext_lazy("queues and jobs")

    def __str__(self) -> str:
        return self.label or str(self.pk)

    @classmethod
    def of_queue(cls, name: str) -> "Job":
        """Return what stands for a whole queue, in the admin's log and where somebody's rights on it are asked for."""
        return cls(id=f"{name}:")

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return str(self.pk).rpartition(":")[0]
