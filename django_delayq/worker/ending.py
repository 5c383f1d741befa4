"""The way of a process to its end: it claims no more, lets what runs end, and gives back the rest."""

from collections.abc import Callable, Iterable

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.calls.line import Line
from django_delayq.calls.several import run_all
from django_delayq.clock import monotonic_ms
from django_delayq.delivery import claiming
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.logs import get_log
from django_delayq.worker.crew import Crew
from django_delayq.worker.ends import Ends
from django_delayq.worker.settlement import Settlement
from django_delayq.worker.suspects import Suspects

logger = get_log("django_delayq.worker")


class Ending:
    """Knows how far the process is on that way, and does the last of it.

    `retire` and `stop` may be called from any thread; all else belongs to the claim loop's.
    """

    def __init__(
        self, crew: Crew, ends: Ends, settlement: Settlement, suspects: Suspects
    ) -> None:
        self._crew = crew
        self._ends = ends
        self._settlement = settlement
        self._suspects = suspects
        #: It claims no more, and ends when all that was claimed has ended.
        self.is_retiring = False
        #: Since when it claims no more; None: it does.
        self.stop_ms: float | None = None
        self._grace_ms = 0.0

    def retire(self) -> None:
        """Claim no more, and end when all that was claimed has ended, however long that takes."""
        self.is_retiring = True

    def stop(self, grace_s: float) -> None:
        """Claim no more; give what runs so long to end, and give back the rest."""
        self._grace_ms = grace_s * 1000
        if self.stop_ms is None:
            self.stop_ms = monotonic_ms()

    @property
    def deadline_ms(self) -> float:
        """When the process ends, whatever still runs; infinite while it is not stopped."""
        return float("inf") if self.stop_ms is None else self.stop_ms + self._grace_ms

    def takes_no_more(self) -> bool:
        """Whether what runs is the last that this process runs."""
        left = self._crew.jobs_left
        return self.is_retiring or (left is not None and left <= 0)

    def return_queued(self) -> None:
        """Give back what was not begun."""
        self._settlement.give_back(self._crew.take_back())
        if (held := self._suspects.take_held()) is not None:
            self._settlement.give_back([held])

    def finish(self, before_giving_back: Callable[[], None]) -> None:
        """Settle, and give back what still runs: the process is about to end.

        Giving back comes last, because from then on another worker may run the same jobs: everything else that takes
        time belongs into ``before_giving_back``.

        Raises:
            redis.exceptions.RedisError, OSError: the server is not there; the leases end by themselves.
        """
        crew, settlement = self._crew, self._settlement
        self.return_queued()
        for attempt in crew.stuck:
            if attempt in crew.running and attempt.verdict is None:
                attempt.give_up()
                settlement.ended.append(attempt)
        hopeless = crew.hopeless()
        running = [
            attempt
            for attempt in crew.running
            if attempt.verdict is None and attempt not in hopeless
        ]
        self._ends.settle(force=True, is_last=True)
        for attempt in running:
            if attempt.verdict is None:
                attempt.give_back()
                attempt.log()
                settlement.ended.append(attempt)
        before_giving_back()
        if settlement:
            settlement.settle(force=True)


def leave(
    client: Redis, line: Line, queues: Iterable[DeliveryKeys], owner: bytes
) -> None:
    """Have the server forget the last requests of this process, which it would keep as long as their queues."""
    line.rest()
    calls = [claiming.leave(keys, owner=owner) for keys in queues]
    try:
        replies = run_all(client, calls)
    except (RedisError, OSError) as error:
        replies = [error]
    for reply in replies:
        if isinstance(reply, Exception):
            logger.info("a last request stays until it is swept: %s", reply)
