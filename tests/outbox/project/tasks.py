"""The job of an order."""

from django_delayq import Backoff, delayed_task
from tests.outbox.project.models import Effect


@delayed_task(
    once=True,
    outbox=True,
    # A busy database is no reason to give up.
    max_attempts=1_000,
    backoff=Backoff(base=0.05, factor=1.5, max=1.0),
)
def confirm(order: int) -> None:
    Effect.objects.create(order=order)
