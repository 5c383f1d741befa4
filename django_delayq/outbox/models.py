"""The tables of the outbox and of the inbox. Only the database's own clock writes their times, as epoch milliseconds."""

from django.db import models

from django_delayq.outbox.epoch import EpochMs


class OutboxRow(models.Model):
    """One job, until a worker knows that the server has it."""

    queue = models.CharField(max_length=1024)
    token = models.CharField(max_length=22)
    #: As `parse_delay` writes it. A relative one counts from ``written_ms``.
    start_time = models.CharField(max_length=20)
    #: Signed by whoever wrote the row.
    payload = models.BinaryField()
    #: What few jobs have: JSON, as `writing.Beside`; else empty.
    beside = models.BinaryField(default=b"")
    written_ms = models.BigIntegerField(db_default=EpochMs())

    class Meta:
        verbose_name = "job to be sent"
        verbose_name_plural = "jobs to be sent"

    def __str__(self) -> str:
        return f"{self.queue}:{self.token}"


class InboxRow(models.Model):
    """One job of a task with ``once`` that has run."""

    #: Its id, or what stands for a long one: `inbox.name_of`.
    job = models.CharField(max_length=255, primary_key=True)
    ran_ms = models.BigIntegerField(db_default=EpochMs(), db_index=True)

    class Meta:
        verbose_name = "job that has run"
        verbose_name_plural = "jobs that have run"

    def __str__(self) -> str:
        return self.job


class RelayClaim(models.Model):
    """The worker that relays, where the database cannot lock rows and skip those that others have locked."""

    name = models.CharField(max_length=20, primary_key=True)
    owner = models.CharField(max_length=22)
    until_ms = models.BigIntegerField()

    def __str__(self) -> str:
        return self.name
