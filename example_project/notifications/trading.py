"""Trade: the row and the job of its message, together or not at all."""

from django.conf import settings
from django.db import transaction
from django_delayq import schedule

from .models import Trade
from .tasks import send_trade_message


def make(trade: Trade) -> None:
    """Save a new trade and schedule its message."""
    with transaction.atomic():
        trade.save()
        # The delay counts from the commit, by the server's clock.
        job = schedule(send_trade_message, settings.TRADE_MESSAGE_SECONDS, trade.pk)
        trade.job_id = job.id
        trade.save(update_fields=["job_id"])
