import threading
from datetime import timedelta
from unittest import mock

from django.db import connections, transaction
from django.test import Client, TestCase, TransactionTestCase
from django.utils import timezone
from django_delayq import State, get_job
from redis.exceptions import ConnectionError as RedisConnectionError

from .models import Order
from .tasks import cancel_unpaid_order

JSON = {"accept": "application/json"}


class OrderTests(TestCase):
    def order(self):
        self.client.post("/orders/", {"item": "Tea"})
        return Order.objects.get()

    def pay(self, order):
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post(f"/orders/{order.pk}/pay/", follow=True)

    def test_an_order_is_to_be_paid_within_15_minutes(self):
        before = timezone.now()

        order = self.order()

        self.assertGreaterEqual(order.pay_by, before + timedelta(minutes=15))
        job = get_job(order.job_id)
        self.assertEqual((job.task, job.args), (cancel_unpaid_order.name, [order.pk]))
        # In whole milliseconds, and never early.
        self.assertLess(job.start_time - order.pay_by, timedelta(milliseconds=1))
        self.assertGreaterEqual(job.start_time, order.pay_by)

    def test_an_unpaid_order_is_cancelled(self):
        order = self.order()

        cancel_unpaid_order(order.pk)

        order.refresh_from_db()
        self.assertEqual(order.status, "cancelled")
        self.assertContains(self.pay(order), "Too late")

    def test_paying_cancels_the_job(self):
        order = self.order()

        self.assertContains(self.pay(order), "Paid.")

        self.assertEqual(get_job(order.job_id).state, State.CANCELLED)

    def test_a_paid_order_stays_paid_though_the_job_runs(self):
        order = self.order()
        self.pay(order)

        cancel_unpaid_order(order.pk)

        order.refresh_from_db()
        self.assertEqual(order.status, "paid")

    def test_a_payment_counts_though_the_job_cannot_be_cancelled(self):
        order = self.order()

        down = RedisConnectionError("nobody is there")
        with mock.patch("example.jobs.get_job", side_effect=down):
            with self.assertLogs("django.test", "ERROR"):
                with self.captureOnCommitCallbacks(execute=True):
                    self.client.post(f"/orders/{order.pk}/pay/")

        order.refresh_from_db()
        self.assertEqual(order.status, "paid")

    def test_a_payment_that_is_rolled_back_leaves_the_deadline(self):
        order = self.order()

        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            self.client.post(f"/orders/{order.pk}/pay/")
            1 / 0  # noqa: B018

        self.assertEqual(get_job(order.job_id).state, State.SCHEDULED)


class RaceTests(TransactionTestCase):
    """Real threads, connections and commits."""

    def test_paying_at_the_deadline_has_one_winner(self):
        for _ in range(50):
            self.client.post("/orders/", {"item": "Tea"})
        orders = list(Order.objects.all())
        start = threading.Barrier(2, timeout=60)
        answers = {}

        def pay():
            client = Client()
            for order in orders:
                start.wait()
                answer = client.post(
                    f"/orders/{order.pk}/pay/", headers=JSON, follow=True
                )
                answers[order.pk] = answer.json()["status"]

        def cancel():
            for order in orders:
                start.wait()
                cancel_unpaid_order(order.pk)

        run_together(pay, cancel)

        # The order stays as the customer was told.
        self.assertEqual(
            answers, {order.pk: order.status for order in Order.objects.all()}
        )
        self.assertNotIn("new", answers.values())


def run_together(*functions):
    def run(function):
        try:
            function()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
