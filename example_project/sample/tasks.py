"""The job that keeps a site small on which something happens all day."""

from datetime import timedelta

from django.db.models import QuerySet
from django_delayq import State, delayed_task, every, find_jobs, periodic

from contests.models import Contest
from delays.models import Delay
from notifications.models import Trade
from orders.models import Order

#: Rows of each kind that stay; and dead letters, which wait for people.
KEPT, KEPT_DEAD = 200, 20


@periodic(every(timedelta(minutes=1)))
@delayed_task(queue="sample")
def prune() -> None:
    """Delete rows that are over, except the last of each kind."""
    for over in (
        Contest.objects.exclude(status=Contest.Status.SCHEDULED),
        Order.objects.exclude(status=Order.Status.NEW),
        Trade.objects.all(),
        Delay.objects.all(),
    ):
        _prune(over)
    dead = find_jobs(queue="notifications", state=State.DEAD)
    # The oldest come first.
    if (surplus := dead.count() - KEPT_DEAD) > 0:
        find_jobs(queue="notifications", state=State.DEAD, limit=surplus).discard()


def _prune(rows: QuerySet) -> None:
    beyond = rows.order_by("-pk").values_list("pk", flat=True)[KEPT : KEPT + 1]
    for newest in beyond:
        rows.filter(pk__lte=newest).delete()
