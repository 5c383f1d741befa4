"""The job that makes a contest public."""

from django.utils import timezone
from django_delayq import delayed_task

from .models import Contest


# on_commit: no job for a contest that was rolled back, and none that runs before its row
# can be seen.
@delayed_task(queue="contests", on_commit=True)
def publish_contest(contest_id: int) -> None:
    now = timezone.now()
    # A job runs at least once, so it says from which state it leads to which: the second
    # run changes nothing, and neither does one whose contest was withdrawn meanwhile.
    Contest.objects.filter(pk=contest_id, status=Contest.Status.SCHEDULED).update(
        status=Contest.Status.PUBLISHED, published_at=now
    )
