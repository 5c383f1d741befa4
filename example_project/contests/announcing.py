"""Announce a contest: the row and its job, together or not at all."""

from django.db import transaction
from django_delayq import schedule

from example.jobs import cancel_job

from .models import Contest
from .tasks import publish_contest


def announce(contest: Contest) -> None:
    """Save a new contest and schedule its publication."""
    with transaction.atomic():
        contest.save()
        # The id is there at once; the job is sent with the commit.
        contest.job_id = schedule(publish_contest, contest.publish_at, contest.pk).id
        contest.save(update_fields=["job_id"])


def withdraw(contest: Contest) -> bool:
    """Take a contest back; returns False if it is over.

    The row decides, as for orders: a job that starts in this very moment finds it withdrawn.
    """
    scheduled = Contest.objects.filter(pk=contest.pk, status=Contest.Status.SCHEDULED)
    with transaction.atomic():
        is_withdrawn = scheduled.update(status=Contest.Status.WITHDRAWN) == 1
        if is_withdrawn:
            transaction.on_commit(lambda: cancel_job(contest.job_id), robust=True)
    return is_withdrawn
