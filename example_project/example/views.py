"""The page on which the site opens: each idea, with its numbers of this moment."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_delayq import State, find_jobs
from redis.exceptions import RedisError

from contests.models import Contest
from delays.models import Delay
from lateness.figures import figures_of, last_jobs
from notifications.models import Gateway, Trade
from orders.models import Order

#: What is counted of the jobs, in the order of the page.
COUNTED = (State.SCHEDULED, State.RETRYING, State.DEAD)


def home(request: HttpRequest) -> HttpResponse:
    """Show what there is, and what is next."""
    contests, orders = Contest.Status, Order.Status
    scheduled = Contest.objects.filter(status=contests.SCHEDULED)
    new = Order.objects.filter(status=orders.NEW)
    waiting = Trade.objects.filter(message_sent_at=None)
    return render(
        request,
        "example/index.html",
        {
            "scheduled": scheduled.count(),
            "published": Contest.objects.filter(status=contests.PUBLISHED).count(),
            "next_contest": scheduled.order_by("publish_at").first(),
            "new": new.count(),
            "paid": Order.objects.filter(status=orders.PAID).count(),
            "cancelled": Order.objects.filter(status=orders.CANCELLED).count(),
            "next_order": new.order_by("pay_by").first(),
            "waiting": waiting.count(),
            "sent": Trade.objects.exclude(message_sent_at=None).count(),
            "gateway": Gateway.get(),
            "received": Delay.objects.count(),
            "last_delay": Delay.objects.first(),
            **jobs(),
        },
    )


def jobs() -> dict[str, Any]:
    """Ask the server for the jobs; if it does not answer, the page says so and shows the rest."""
    try:
        return {
            "figures": figures_of(last_jobs()),
            "counts": {state: find_jobs(state=state).count() for state in COUNTED},
        }
    except RedisError as error:
        return {"fault": error}
