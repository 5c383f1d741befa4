import logging
import random
from io import StringIO
from unittest import mock

from django.core.management import CommandError, call_command
from django.test import TestCase, TransactionTestCase
from django.utils import timezone
from django_delayq import find_jobs

from contests.models import Contest
from delays.models import Delay
from notifications.gateway import AddressUnknown
from notifications.models import Trade
from notifications.tasks import send_trade_message
from orders.models import Order

from . import tasks
from .visitors import (
    MOST_CONTESTS,
    MOST_ORDERS,
    MOST_TRADES,
    NOBODY,
    Visitors,
)


class VisitorsTests(TransactionTestCase):
    """With real commits: the jobs are sent."""

    def setUp(self):
        self.visitors = Visitors(random.Random(7))

    def test_all_kinds_of_things_happen(self):
        for _ in range(150):
            self.visitors.act()

        orders = set(Order.objects.values_list("status", flat=True))
        contests = set(Contest.objects.values_list("status", flat=True))
        self.assertEqual(orders, {"new", "paid"})
        self.assertEqual(contests, {"scheduled", "withdrawn"})
        self.assertIn(NOBODY, Trade.objects.values_list("email", flat=True))
        self.assertGreater(find_jobs(queue="delays").count(), 0)

    def test_what_waits_is_bounded_though_nothing_is_ever_done(self):
        for _ in range(2 * MOST_ORDERS):
            self.visitors.order()
            self.visitors.trade()
            self.visitors.announce()

        self.assertEqual(Order.objects.count(), MOST_ORDERS)
        self.assertEqual(Trade.objects.count(), MOST_TRADES)
        self.assertEqual(Contest.objects.count(), MOST_CONTESTS)

    def test_some_messages_fail(self):
        trade = Trade.objects.create(symbol="TEA", quantity=1, email=NOBODY)

        with self.assertRaisesMessage(AddressUnknown, NOBODY):
            send_trade_message(trade.pk)

    def test_nobody_pays_or_withdraws_when_there_is_nothing(self):
        self.visitors.pay()
        self.visitors.withdraw()

        self.assertFalse(Order.objects.exists() or Contest.objects.exists())

    def test_what_others_ordered_and_announced_is_left_to_them(self):
        Order.objects.create(item="A pound of tea")
        Contest.objects.create(title="Polar marathon", publish_at=timezone.now())

        self.visitors.pay()
        self.visitors.withdraw()

        self.assertEqual(Order.objects.get().status, Order.Status.NEW)
        self.assertEqual(Contest.objects.get().status, Contest.Status.SCHEDULED)

    def test_the_command_ends_after_as_many_things(self):
        call_command("sample_data", acts=5, period=0)

        self.assertLessEqual(Order.objects.count(), 5)

    def test_a_period_that_is_none_is_refused(self):
        for period in (-1, float("nan"), float("inf")):
            with self.assertRaisesMessage(CommandError, "0 to 3600 seconds"):
                call_command("sample_data", period=period)


class PruneTests(TestCase):
    def test_the_last_rows_stay_and_so_does_what_is_not_over(self):
        now = timezone.now()
        first = Order.objects.create(item="first, and still new")
        orders = [Order(item=str(n), status="paid") for n in range(tasks.KEPT + 3)]
        Order.objects.bulk_create(orders)
        waiting = Contest.objects.create(title="waits", publish_at=now)

        tasks.prune()

        self.assertEqual(Order.objects.count(), tasks.KEPT + 1)
        self.assertTrue(Order.objects.filter(pk=first.pk).exists())
        self.assertTrue(Contest.objects.filter(pk=waiting.pk).exists())
        kept = Order.objects.filter(status="paid").order_by("pk")
        self.assertEqual(kept[0].item, "3")

    def test_little_is_left_alone(self):
        Delay.objects.create(
            element_id="12345678-1234-5678-1234-567812345678",
            data="a",
            asked_ms=1,
            actual_ms=1,
        )

        tasks.prune()

        self.assertEqual(Delay.objects.count(), 1)

    def test_a_message_about_a_trade_that_is_gone_is_not_sent(self):
        trade = Trade.objects.create(symbol="TEA", quantity=1)
        Trade.objects.all().delete()

        send_trade_message(trade.pk)


class PruneDeadTests(TransactionTestCase):
    """With a real worker."""

    def test_the_last_dead_letters_stay_for_people(self):
        logging.disable(logging.ERROR)  # nobody wants to read of these failures
        self.addCleanup(logging.disable, logging.NOTSET)
        self.die(1)
        others = self.die(2)

        with mock.patch.object(tasks, "KEPT_DEAD", 2):
            tasks.prune()

        self.assertEqual(
            {job.id for job in find_jobs(queue="notifications", state="dead")},
            {job.id for job in others},
        )

    def die(self, number):
        trade = Trade.objects.create(symbol="TEA", quantity=1, email=NOBODY)
        hopeless = send_trade_message.using(max_attempts=1)
        jobs = [hopeless.schedule(0, trade.pk) for _ in range(number)]
        with self.assertRaises(SystemExit):
            call_command(
                "delayq_worker", queue=["notifications"], burst=True, stdout=StringIO()
            )
        return jobs
