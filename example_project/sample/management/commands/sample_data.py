"""``manage.py sample_data``: life on the site, until Ctrl-C."""

import random
import time
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sample.visitors import Visitors


class Command(BaseCommand):
    help = (
        "Have visitors order, pay, trade, announce contests and offer elements, one thing at a"
        " time, until Ctrl-C. A few dozen things wait at once, and a periodic job deletes what is over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--period",
            type=float,
            default=0.8,
            metavar="SECONDS",
            help="time between two things that happen",
        )
        parser.add_argument(
            "--acts", type=int, metavar="NUMBER", help="end after as many things"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        period_s, left = options["period"], options["acts"]
        if not 0 <= period_s <= 3600:
            raise CommandError(f"--period {period_s!r}: give 0 to 3600 seconds")
        visitors = Visitors(random.Random())
        with suppress(KeyboardInterrupt):
            while left is None or left > 0:
                visitors.act()
                left = left and left - 1
                time.sleep(period_s)
