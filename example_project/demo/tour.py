"""A visitor's tour of the site, with a check of each result."""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from browser import Browser
from failure import Failure
from processes import Child
from report import Report

Shown = dict[str, Any]

#: That of the site's forms.
SITE_ZONE = ZoneInfo(os.environ.get("EXAMPLE_TIME_ZONE", "UTC"))
#: How long after its time a thing may happen: a slow machine is no failure of ours.
SLACK_S = 15.0
#: Between two looks at a page.
POLL_S = 0.05
#: Orders that are paid in the very moment of their deadline.
RACES = 12
#: Requests to pay are sent as long before the deadline, in s: some ms go by on the way.
AHEAD_S = (0.0, 0.06)
#: What the raw queue is given: data → ms.
ELEMENTS = {"a": 5000, "b": 1000, "c": 3000, "d": 200, "e": 2000}


class Tour:
    """`run` starts everything that takes a while, then watches one after the other."""

    def __init__(
        self, browser: Browser, children: list[Child], report: Report, minute_s: float
    ) -> None:
        self.browser = browser
        self.children = children
        self.report = report
        #: What settings.py promises.
        self.payment_s = 15 * minute_s
        self.message_s = 5 * minute_s
        self.retries_s = (minute_s, 2 * minute_s)

    def run(self) -> None:
        """Go through all of it.

        Raises:
            Failure: a step did not hold.
        """
        self.report.heading()
        self.switch_gateway(is_up=1)  # a run before this one may have left it broken
        unpaid = self.place_order()
        contested = [self.place_order() for _ in range(RACES)]
        contest = self.schedule_contest()
        trade = self.trade()
        elements = self.offer_elements()
        paid = self.pay_in_time()
        self.withdraw_contest()
        self.watch_elements(elements)
        self.watch_contest(contest)
        self.watch_message(trade)
        self.fail_and_retry()
        self.pay_at_the_deadline(contested)
        self.watch_unpaid(unpaid)
        self.watch_paid(paid)

    # Contests.

    def announce(self, title: str, seconds: int) -> Shown:
        # The browser's widget has no fractions of a second.
        publish_at = now().astimezone(SITE_ZONE) + timedelta(seconds=seconds + 1)
        contest = self.browser.submit(
            "/contests/", title=title, publish_at=f"{publish_at:%Y-%m-%dT%H:%M:%S}"
        )
        expect(contest["job"]["state"] == "scheduled", "it has a job", contest)
        return contest

    def schedule_contest(self) -> Shown:
        contest = self.announce("Autumn cup", 3)
        asked_s = seconds_until(contest["publish_at"])
        self.report.row("contest: scheduled by a view", asked_s=asked_s)
        return contest

    def withdraw_contest(self) -> None:
        contest = self.announce("Winter cup", 3600)
        page = f"/contests/{contest['id']}/"
        contest = self.browser.submit(page, f"{page}withdraw/")
        expect(contest["job"]["state"] == "cancelled", "its job is cancelled", contest)
        self.report.row("contest: another one withdrawn, its job cancelled")

    def watch_contest(self, contest: Shown) -> None:
        contest = self.wait_for(
            f"/contests/{contest['id']}/",
            lambda seen: seen["status"] == "published",
            "contest: published",
            seconds_until(contest["publish_at"]),
        )
        late_ms = contest["late_ms"]
        self.report.row("contest: published by the worker", late_ms=late_ms)

    # Orders.

    def place_order(self) -> Shown:
        order = self.browser.submit("/orders/", item="A pound of tea")
        expect(order["job"]["state"] == "scheduled", "it has a job", order)
        return order

    def pay_in_time(self) -> Shown:
        order = self.place_order()
        page = f"/orders/{order['id']}/"
        order = self.browser.submit(page, f"{page}pay/")
        expect(order["status"] == "paid", "it is paid", order)
        expect(order["job"]["state"] == "cancelled", "its job is cancelled", order)
        self.report.row("order: paid, its job cancelled", asked_s=self.payment_s)
        return order

    def pay_at_the_deadline(self, orders: list[Shown]) -> None:
        """Pay while the worker cancels: the page shows the true outcome, whichever is first."""
        told = {}
        token = self.browser.open("/orders/")
        for order in orders:
            left_s = seconds_until(order["pay_by"]) - random.uniform(*AHEAD_S)
            self.sleep("order: paid at the deadline", left_s)
            page = f"/orders/{order['id']}/"
            told[page] = self.browser.send(f"{page}pay/", token)["status"]
        for page, status in told.items():
            order = self.wait_for(page, is_over, "order: paid or cancelled")
            expect(
                order["status"] == status, f"it is {status}, as the page said", order
            )
        paid = list(told.values()).count("paid")
        cancelled = len(told) - paid
        self.report.row(
            f"order: {len(told)} paid at the deadline: {paid} in time, {cancelled} cancelled"
        )

    def watch_unpaid(self, order: Shown) -> None:
        wait_s = seconds_until(order["pay_by"])
        page = f"/orders/{order['id']}/"
        order = self.wait_for(page, is_over, "order: not paid", wait_s)
        expect(order["status"] == "cancelled", "it is cancelled", order)
        late_ms = order["late_ms"]
        self.report.row(
            "order: not paid, cancelled", asked_s=self.payment_s, late_ms=late_ms
        )

    def watch_paid(self, order: Shown) -> None:
        self.sleep("order: still paid", seconds_until(order["pay_by"]) + POLL_S)
        order = self.browser.look(f"/orders/{order['id']}/")
        expect(order["status"] == "paid", "it is paid", order)
        self.report.row("order: paid, and still paid after the deadline")

    # Trades.

    def trade(self) -> Shown:
        fields = {"symbol": "ACME", "quantity": 10, "email": "trader@example.com"}
        trade = self.browser.submit("/trades/", **fields)
        expect(trade["job"]["state"] == "scheduled", "it has a job", trade)
        return trade

    def watch_message(self, trade: Shown) -> None:
        page, due = f"/trades/{trade['id']}/", trade["job"]["start_time"]
        trade = self.wait_for(page, is_sent, "trade: message", seconds_until(due))
        late_ms = ms_between(due, trade["message_sent_at"])
        self.report.row("trade: message sent", asked_s=self.message_s, late_ms=late_ms)

    def fail_and_retry(self) -> None:
        with self.broken_gateway():
            trade = self.trade()
            page, wait_s = f"/trades/{trade['id']}/", self.message_s
            for attempt, retry_s in enumerate(self.retries_s, 1):
                self.wait_for(
                    page, has_failed(attempt), f"trade: attempt {attempt}", wait_s
                )
                self.report.row(
                    f"trade: gateway down, attempt {attempt} failed, again after",
                    asked_s=retry_s,
                )
                wait_s = retry_s
            trade = self.wait_for(page, is_dead, "trade: attempt 3", wait_s)
            expect(trade["job"]["attempts"] == 3, "it was tried three times", trade)
            why = trade["job"]["error"].removeprefix("GatewayDown: ")
            self.report.row(f"trade: attempt 3 failed, dead letter: {why}")
        token, sent = self.browser.open(page), now()
        self.browser.send(f"{page}send/", token)
        trade = self.wait_for(page, is_sent, "trade: retried")
        took_ms = ms_between(sent.isoformat(), trade["message_sent_at"])
        self.report.row(
            f"trade: gateway up, retried, message sent {took_ms:.0f} ms later"
        )

    @contextmanager
    def broken_gateway(self) -> Iterator[None]:
        self.switch_gateway(is_up=0)
        try:
            yield
        finally:
            self.switch_gateway(is_up=1)

    def switch_gateway(self, *, is_up: int) -> None:
        self.browser.submit("/trades/", "/trades/gateway/", is_up=is_up)

    # The raw queue.

    def offer_elements(self) -> list[str]:
        return [
            self.browser.send(f"/delays/?{urlencode({'data': data, 'expire': ms})}")[
                "id"
            ]
            for data, ms in ELEMENTS.items()
        ]

    def watch_elements(self, ids: list[str]) -> None:
        seen = self.wait_for(
            "/delays/",
            lambda seen: set(ids) <= {delay["id"] for delay in seen["delays"]},
            "raw queue: the last element",
            max(ELEMENTS.values()) / 1000,
        )
        received = [delay for delay in reversed(seen["delays"]) if delay["id"] in ids]
        for delay in received:
            self.report.row(
                f"raw queue: {delay['data']} received",
                asked_s=delay["asked_ms"] / 1000,
                late_ms=delay["late_ms"],
            )
        order = [delay["data"] for delay in received]
        in_time = sorted(ELEMENTS, key=ELEMENTS.__getitem__)
        times_ms = sorted(ELEMENTS.values())
        least_gap_ms = min(after - before for before, after in pairwise(times_ms))
        # A machine that stands still for longer than that has several due at once, and several threads take them.
        if all(delay["late_ms"] < least_gap_ms for delay in received):
            expect(order == in_time, f"they come in the order {in_time}", order)

    def wait_for(
        self,
        page: str,
        is_there: Callable[[Shown], bool],
        what: str,
        wait_s: float = 0.0,
    ) -> Shown:
        """From a given time on, look at a page until something is there; return what it shows."""
        due = time.monotonic() + wait_s
        self.sleep(what, wait_s)
        while not is_there(seen := self.browser.look(page)):
            late_s = time.monotonic() - due
            if late_s > SLACK_S:
                shown = json.dumps(seen, indent=2)
                raise Failure(
                    f"{what}: not {late_s:.0f} s after its time. {page} shows\n{shown}"
                )
            self.sleep(what, POLL_S)
        return seen

    def sleep(self, what: str, seconds: float) -> None:
        """Do nothing: asking for a page all the time would keep the worker waiting."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            for child in self.children:
                child.check()
            self.report.waiting(what, left_s)
            time.sleep(min(left_s, 0.1))


def is_over(order: Shown) -> bool:
    return bool(order["status"] != "new")


def is_sent(trade: Shown) -> bool:
    return trade["message_sent_at"] is not None


def is_dead(trade: Shown) -> bool:
    return bool(trade["job"]["state"] == "dead")


def has_failed(attempts: int) -> Callable[[Shown], bool]:
    return lambda trade: trade["job"].get("attempts", 0) >= attempts


def expect(holds: bool, claim: str, seen: object) -> None:
    if not holds:
        raise Failure(f"expected that {claim}, but: {json.dumps(seen, indent=2)}")


def now() -> datetime:
    return datetime.now(UTC)


def seconds_until(moment: str) -> float:
    return (datetime.fromisoformat(moment) - now()).total_seconds()


def ms_between(due: str, done: str) -> float:
    return (
        datetime.fromisoformat(done) - datetime.fromisoformat(due)
    ).total_seconds() * 1000
