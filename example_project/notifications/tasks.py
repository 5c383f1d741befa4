"""The job that notifies a trader of a trade."""

from django.utils import timezone
from django_delayq import delayed_task

from .gateway import send
from .models import Trade


@delayed_task(queue="notifications")
def send_trade_message(trade_id: int) -> None:
    now = timezone.now()
    trade = Trade.objects.filter(pk=trade_id, message_sent_at=None).first()
    if trade is None:
        return  # deleted, or told by a run before this one
    # Raises when the gateway is down: the job is tried twice more, and then becomes a dead
    # letter. A worker that dies between the next two lines causes a second message. Every
    # message leaves this choice: twice at worst, or perhaps never.
    send(trade.email, f"You traded {trade}.")
    Trade.objects.filter(pk=trade_id).update(message_sent_at=now)
