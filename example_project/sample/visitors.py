"""Visitors who never tire: they order, pay, trade, announce and offer, a little at a time.

Never more than a few dozen things wait at once, however long a minute is, and
`sample.tasks.prune` deletes what is over.
"""

import random
from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone

from contests import announcing
from contests.models import Contest
from delays.queue import offer
from notifications import trading
from notifications.models import Trade
from orders import ordering
from orders.models import Order

#: How much may wait before visitors hold back.
MOST_ORDERS = MOST_TRADES = MOST_CONTESTS = 24
#: When a contest is published: mostly while somebody watches.
SOON_S, LATER_S = (5, 60), (300, 3600)
#: How long an element of the raw queue may wait.
LONGEST_MS = 9000

#: What visitors order and announce, and nothing that a form of the site suggests.
ITEMS = (
    "Jasmine tea", "Two teacups", "A kettle", "Honey", "A tea cosy", "Biscuits",
    "A samovar", "Lemons", "A wooden spoon", "A box of matcha",
)  # fmt: skip
TITLES = (
    "Winter cup", "Night chess", "Sudoku sprint", "Haiku duel", "Sourdough contest",
    "Kite race", "Crossword derby", "Chess for two", "Pumpkin show", "Poetry slam",
)  # fmt: skip
SYMBOLS = ("ACME", "TEA", "KITE", "HONEY", "LEMON")
EMAILS = ("trader@example.com", "ada@example.com", "zoe@example.com")
#: Its messages fail three times and become dead letters.
NOBODY = "nobody@example.invalid"


class Visitors:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: What a visitor may do, and how often, compared with the rest.
        self._acts: dict[Callable[[], None], int] = {
            self.order: 8,
            self.pay: 6,
            self.trade: 5,
            self.announce: 4,
            self.withdraw: 1,
            self.offer: 6,
        }

    def act(self) -> None:
        """Do one thing, at random."""
        (chosen,) = self._chance.choices(list(self._acts), list(self._acts.values()))
        chosen()

    def order(self) -> None:
        if Order.objects.filter(status=Order.Status.NEW).count() < MOST_ORDERS:
            ordering.place(Order(item=self._chance.choice(ITEMS)))

    def pay(self) -> None:
        """Pay an order, but none that somebody placed on the site."""
        theirs = Order.objects.filter(status=Order.Status.NEW, item__in=ITEMS)
        new = list(theirs[:MOST_ORDERS])
        if new:
            ordering.pay(self._chance.choice(new))

    def trade(self) -> None:
        if Trade.objects.filter(message_sent_at=None).count() < MOST_TRADES:
            is_lost = self._chance.random() < 0.1
            trading.make(
                Trade(
                    symbol=self._chance.choice(SYMBOLS),
                    quantity=10 * self._chance.randint(1, 50),
                    email=NOBODY if is_lost else self._chance.choice(EMAILS),
                )
            )

    def announce(self) -> None:
        scheduled = Contest.objects.filter(status=Contest.Status.SCHEDULED)
        if scheduled.count() < MOST_CONTESTS:
            span = LATER_S if self._chance.random() < 0.2 else SOON_S
            publish_at = timezone.now() + timedelta(seconds=self._chance.randint(*span))
            announcing.announce(
                Contest(title=self._chance.choice(TITLES), publish_at=publish_at)
            )

    def withdraw(self) -> None:
        """Take back the contest that is furthest away, but none that somebody announced on the site."""
        theirs = Contest.objects.filter(
            status=Contest.Status.SCHEDULED, title__in=TITLES
        )
        if (last := theirs.order_by("-publish_at").first()) is not None:
            announcing.withdraw(last)

    def offer(self) -> None:
        offer(self._chance.choice("abcdefgh"), self._chance.randint(100, LONGEST_MS))
