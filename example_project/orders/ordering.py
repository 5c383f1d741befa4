"""Place an order and pay it: the row and its job, together or not at all."""

from django.db import transaction
from django_delayq import schedule

from example.jobs import cancel_job

from .models import Order
from .tasks import cancel_unpaid_order


def place(order: Order) -> None:
    """Save a new order and schedule its cancellation."""
    with transaction.atomic():
        order.save()
        # The time that the customer sees, not a delay from now: the two would differ
        # by the duration of the transaction.
        order.job_id = schedule(cancel_unpaid_order, order.pay_by, order.pk).id
        order.save(update_fields=["job_id"])


def pay(order: Order) -> bool:
    """Take the money; returns False if the order was cancelled a moment ago.

    The row decides who was first, payment or deadline. The job is cancelled after the
    commit: if the payment is rolled back, the order still has its deadline.
    """
    with transaction.atomic():
        is_paid = Order.objects.filter(pk=order.pk).end(Order.Status.PAID) == 1
        if is_paid:
            transaction.on_commit(lambda: cancel_job(order.job_id), robust=True)
    return is_paid
