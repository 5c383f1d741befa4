"""The job that makes a contest public."""

from django.utils import timezone
from django_delayq import delayed_task

from .models import Contest


# on_commit: a contest that was rolled back gets no job, and no job runs before its row
# can be seen.
@delayed_task(queue="contests", on_commit=True)
def publish_contest(contest_id: int) -> None:
    now = timezone.now()
    # A job runs at least once, so the update names the old state and the new one: a second
    # run changes nothing, and neither does the run of a contest that was withdrawn.
    Contest.objects.filter(pk=contest_id, status=Contest.Status.SCHEDULED).update(
        status=Contest.Status.PUBLISHED, published_at=now
    )
