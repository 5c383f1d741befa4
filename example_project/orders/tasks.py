"""The job that cancels an order nobody paid."""

from django_delayq import delayed_task

from .models import Order


@delayed_task(queue="orders")
def cancel_unpaid_order(order_id: int) -> None:
    # Paid in time, deleted, or cancelled by a run before this one: nothing to do.
    Order.objects.filter(pk=order_id).end(Order.Status.CANCELLED)
