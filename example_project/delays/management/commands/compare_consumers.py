"""``manage.py compare_consumers``: three ways to consume the same stream of elements, measured."""

import math
import random
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django_delayq import BlockingQueue, DelayedQueue
from django_delayq.embedded.embedded_server import ensure_server
from redis import Redis

from delays.consumers import CONSUMERS
from delays.measuring import LEASE_S, consume, consumer

#: From an element's offer to the first time at which it may be due.
LEAD_S = 0.5
#: Elements that are due at once when a consumer dies, how many of them it has handled by then,
#: and how long it takes for each. They are all offered before the first is due.
DUE_AT_DEATH, HANDLED_AT_DEATH, WORK_S, LEAD_AT_DEATH_S = 100, 10, 0.1, 2.0


class Row(NamedTuple):
    late_ms: list[float]
    requests_per_s: float
    commands_per_s: float
    lost: int


class Command(BaseCommand):
    help = (
        "Compare three ways to consume a BlockingQueue: how late, at what cost when nothing"
        " is due, and what is lost when the consumer is killed. Takes half a minute."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--elements", type=int, default=300, help="of the stream")
        parser.add_argument(
            "--seconds", type=float, default=3.0, help="of the stream, and of idleness"
        )
        parser.add_argument(
            "--consume", nargs=3, metavar=("WAY", "QUEUE", "URL"), help="be a consumer"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["consume"]:
            consume(*options["consume"])
            return
        self.elements, self.seconds = options["elements"], options["seconds"]
        if self.elements < 1 or not 0 < self.seconds < math.inf:
            raise CommandError("--elements is 1 or more, --seconds more than 0")
        with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            # A server of our own, or the site's jobs would be counted as well.
            self.url = ensure_server(Path(directory))
            rows = {way: self.measure(way) for way in CONSUMERS}
        self.progress("")
        self.show(rows)

    def measure(self, way: str) -> Row:
        with consumer(way, f"stream:{way}", self.url) as running:
            self.progress(f"{way}: idle for {self.seconds:g} s")
            time.sleep(LEAD_S)  # greetings of new connections are not idleness
            idle = self.count_commands()
            self.progress(f"{way}: {self.elements} elements within {self.seconds:g} s")
            with DelayedQueue(f"stream:{way}", connection=self.url) as queue:
                # The same stream for each.
                delays = random.Random(self.elements)
                for number in range(self.elements):
                    delay_s = LEAD_S + delays.random() * self.seconds
                    offer(queue, number, time.time() + delay_s)
                running.wait_until(
                    lambda: len(running.late_ms) == self.elements,
                    "every element was handled",
                )
        late_ms = sorted(running.late_ms.values())
        self.progress(f"{way}: killed with {DUE_AT_DEATH} elements due")
        return Row(late_ms, *idle, self.count_lost(way))

    def count_commands(self) -> tuple[float, float]:
        """Return how many requests the server gets a second, and how many commands it runs.

        A script is one request and many commands.
        """
        requests = commands = 0
        with Redis.from_url(self.url) as server, Redis.from_url(self.url) as marker:
            marker.ping()  # or its greeting would be counted
            with server.monitor() as monitor:
                timer = threading.Timer(self.seconds, marker.echo, ["the end"])
                timer.start()
                for seen in monitor.listen():
                    if seen["command"] == "ECHO the end":
                        break
                    commands += 1
                    requests += seen["client_type"] != "lua"
                timer.join()
        return requests / self.seconds, commands / self.seconds

    def count_lost(self, way: str) -> int:
        """Kill a consumer, let another take what is left, and count the elements that neither had."""
        name = f"death:{way}"
        with DelayedQueue(name, connection=self.url) as queue:
            with consumer(way, name, self.url) as running:
                due_s = time.time() + LEAD_AT_DEATH_S
                for number in range(DUE_AT_DEATH):
                    offer(queue, number, due_s, WORK_S)
                running.wait_until(
                    lambda: len(running.late_ms) >= HANDLED_AT_DEATH, "it was busy"
                )
                running.kill()
            had = set(running.late_ms)
            with BlockingQueue(name, connection=self.url) as rest:
                while (element := rest.poll(timeout=3 * LEASE_S)) is not None:
                    had.add(element["number"])
        return DUE_AT_DEATH - len(had)

    def progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r\033[K{text}", self.style.NOTICE, ending="")
            self.stderr.flush()

    def show(self, rows: dict[str, Row]) -> None:
        self.stdout.write(
            f"{'':26}{'late, ms':>21}{'idle, a second':>27}{'killed,':>14}\n"
            f"{'consumer':26}{'p50':>7}{'p99':>7}{'max':>7}{'requests':>15}{'commands':>12}"
            f"{f'lost of {DUE_AT_DEATH}':>14}\n{'─' * 88}"
        )
        for way, row in rows.items():
            self.stdout.write(
                f"{way:26}{share(row.late_ms, 0.5):7.1f}{share(row.late_ms, 0.99):7.1f}"
                f"{row.late_ms[-1]:7.1f}{row.requests_per_s:15.1f}"
                f"{row.commands_per_s:12.1f}{row.lost:14}"
            )
        self.stdout.write(
            "\nAn element that a consumer has taken is lost if the consumer dies. A worker with"
            " @queue_handler\nholds a lease until an element is handled, and loses none."
        )


def offer(queue: DelayedQueue, number: int, due_s: float, work_s: float = 0.0) -> None:
    due = datetime.fromtimestamp(due_s, UTC)
    queue.offer({"number": number, "due_ms": due_s * 1000, "work_s": work_s}, due)


def share(ordered: list[float], part: float) -> float:
    """Return the value that the given part of the values does not exceed."""
    return ordered[math.ceil(len(ordered) * part) - 1]
