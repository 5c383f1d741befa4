"""The job that tells a trader about a trade."""

from django.utils import timezone
from django_delayq import delayed_task

from .gateway import send
from .models import Trade


@delayed_task(queue="notifications", on_commit=True)
def send_trade_message(trade_id: int) -> None:
    now = timezone.now()
    trade = Trade.objects.get(pk=trade_id)
    if trade.message_sent_at is not None:
        return
    # Raises when the gateway is down: the job is tried again, twice, and becomes a dead
    # letter then. Whoever dies between the next two lines sends twice; to send twice at
    # worst, or perhaps never, is the choice that every message leaves.
    send(trade.email, f"You traded {trade}.")
    Trade.objects.filter(pk=trade_id).update(message_sent_at=now)
