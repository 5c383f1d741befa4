"""An order that is either paid in time or cancelled."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from example.jobs import lateness_ms


def payment_deadline() -> datetime:
    return timezone.now() + timedelta(seconds=settings.ORDER_PAYMENT_SECONDS)


class OrderQuerySet(models.QuerySet):
    def end(self, status: "Order.Status") -> int:
        """Make new orders paid or cancelled; returns how many of them were still new.

        One UPDATE with its condition: the second of two processes finds that the order is not
        new any more. To look first and then to save would let both win.
        """
        new = self.filter(status=Order.Status.NEW)
        return new.update(status=status, ended_at=timezone.now())


class Order(models.Model):
    class Status(models.TextChoices):
        NEW = "new"
        PAID = "paid"
        CANCELLED = "cancelled"

    item = models.CharField(max_length=100)
    pay_by = models.DateTimeField(default=payment_deadline, editable=False)
    status = models.CharField(
        max_length=10, choices=Status, default=Status.NEW, editable=False
    )
    #: When it was paid or cancelled.
    ended_at = models.DateTimeField(null=True, editable=False)
    #: The job that cancels it.
    job_id = models.CharField(max_length=100, editable=False)

    objects = OrderQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.item

    @property
    def late_ms(self) -> float | None:
        is_cancelled = self.status == Order.Status.CANCELLED
        return lateness_ms(self.pay_by, self.ended_at) if is_cancelled else None
