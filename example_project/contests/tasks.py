"""The job that makes a contest public."""

from django.utils import timezone
from django_delayq import delayed_task

from .models import Contest


@delayed_task(queue="contests")
def publish_contest(contest_id: int) -> None:
    now = timezone.now()
    # A job runs at least once, so the update names the old state and the new one: a second
    # run changes nothing, and neither does the run of a contest that was withdrawn.
    Contest.objects.filter(pk=contest_id, status=Contest.Status.SCHEDULED).update(
        status=Contest.Status.PUBLISHED, published_at=now
    )
