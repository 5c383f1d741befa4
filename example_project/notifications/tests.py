from datetime import timedelta

from django.core import mail
from django.test import TestCase
from django.utils import timezone
from django_delayq import get_job

from .gateway import GatewayDown
from .models import Gateway, Trade
from .tasks import send_trade_message


class TradeTests(TestCase):
    def trade(self):
        self.client.post(
            "/trades/", {"symbol": "ACME", "quantity": 10, "email": "t@example.com"}
        )
        return Trade.objects.get()

    def test_a_message_is_scheduled_5_minutes_after_a_trade(self):
        before = timezone.now()

        trade = self.trade()

        job = get_job(trade.job_id)
        self.assertEqual((job.task, job.args), (send_trade_message.name, [trade.pk]))
        wait = job.start_time - before
        self.assertGreaterEqual(wait, timedelta(minutes=5))
        self.assertLess(wait, timedelta(minutes=5, seconds=10))

    def test_the_job_sends_the_message_once(self):
        trade = self.trade()

        send_trade_message(trade.pk)
        send_trade_message(trade.pk)

        [message] = mail.outbox
        self.assertEqual(message.to, ["t@example.com"])
        self.assertEqual(message.body, "You traded 10 ACME.")
        self.assertContains(self.client.get(f"/trades/{trade.pk}/"), "sent")

    def test_a_gateway_that_is_down_is_an_error_and_nothing_is_sent(self):
        trade = self.trade()
        self.client.post("/trades/gateway/", {"is_up": "0"})

        with self.assertRaises(GatewayDown):
            send_trade_message(trade.pk)

        self.assertEqual(mail.outbox, [])
        trade.refresh_from_db()
        self.assertIsNone(trade.message_sent_at)

    def test_the_gateway_has_a_switch(self):
        self.assertContains(self.client.get("/trades/"), "Break it")
        self.client.post("/trades/gateway/", {"is_up": "0"})
        self.assertFalse(Gateway.get().is_up)
        self.assertContains(self.client.get("/trades/"), "Repair it")
        self.client.post("/trades/gateway/", {"is_up": "1"})
        self.assertTrue(Gateway.get().is_up)

    def test_a_message_can_be_sent_at_once(self):
        trade = self.trade()

        answer = self.client.post(f"/trades/{trade.pk}/send/", follow=True)

        self.assertContains(answer, "It runs now.")
        self.assertLess(
            get_job(trade.job_id).start_time, timezone.now() + timedelta(minutes=1)
        )

    def test_what_has_ended_is_not_sent_again(self):
        trade = self.trade()
        get_job(trade.job_id).cancel()

        answer = self.client.post(f"/trades/{trade.pk}/send/", follow=True)

        self.assertContains(answer, "has ended")
