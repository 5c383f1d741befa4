"""How a process ends: it claims no more, lets running jobs end, and gives back the rest."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.worker_registry import unregister
from django_delayq.jobs.workers import WorkerState
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.signals import heard
from django_delayq.transport.call import Call
from django_delayq.transport.line import Line
from django_delayq.transport.several import run_all
from django_delayq.worker import job_signals
from django_delayq.worker.dispatch import Dispatch
from django_delayq.worker.settle import Ends, log_end

logger = get_log("django_delayq.worker")

#: At the end, how long receivers get to hear of what no thread of a job could tell.
TELL_S = 1.0


class Shutdown:
    """Knows how far the process is on its way to the end, and takes the last step.

    `retire` and `stop` may be called from any thread; all else belongs to the claim loop's thread.
    """

    def __init__(self, dispatch: Dispatch, ends: Ends) -> None:
        self._dispatch = dispatch
        self._ends = ends
        self._settlement = ends.settlement
        #: The process claims no more, and ends when all that it claimed has ended.
        self.is_retiring = False
        #: The process claims no more, and goes on with what it has until it is stopped.
        self.is_quiet = False
        #: An order has stopped it, so no other process takes its place.
        self.is_dismissed = False
        #: When the process stopped claiming; None: it still claims.
        self.stop_ms: float | None = None
        self._grace_ms = 0.0

    def retire(self) -> None:
        """Claim no more, and end when everything that was claimed has ended, however long that takes."""
        self.is_retiring = True
        self._dispatch.stop.set()

    def quiet(self) -> None:
        """Claim no more, and run what was claimed; the jobs do not notice."""
        self.is_quiet = True

    def stop(self, grace_s: float) -> None:
        """Claim no more; let running jobs end for up to ``grace_s``, and give back the rest."""
        self._grace_ms = grace_s * 1000
        if self.stop_ms is None:
            self.stop_ms = monotonic_ms()
        self._dispatch.stop.set()

    @property
    def deadline_ms(self) -> float:
        """When the process ends, even if jobs still run; infinite until it is stopped."""
        return float("inf") if self.stop_ms is None else self.stop_ms + self._grace_ms

    def takes_no_more(self) -> bool:
        """Whether the process will run nothing beyond what it has now."""
        left = self._dispatch.jobs_left
        return self.is_retiring or (left is not None and left <= 0)

    @property
    def state(self) -> WorkerState:
        """Whether the process works, claims no more, or stops."""
        if self.stop_ms is not None or self.takes_no_more():
            return WorkerState.STOPPING
        return WorkerState.QUIET if self.is_quiet else WorkerState.WORKING

    def finish(self, before_giving_back: Callable[[], None]) -> None:
        """Settle, and give back the jobs that still run: the process is about to end.

        Giving back comes last, because another worker may then run the same jobs: everything else that takes time
        belongs in ``before_giving_back``.

        Raises:
            redis.exceptions.RedisError, OSError: the server is away; the leases end by themselves.
        """
        dispatch, settlement = self._dispatch, self._settlement
        dispatch.give_back_queued()
        for attempt in dispatch.stuck:
            if attempt in dispatch.running and attempt.verdict is None:
                attempt.give_up()
                if heard.attempts:
                    job_signals.signal_thread.call(
                        partial(job_signals.send_end, attempt),
                        size=len(attempt.leased.payload),
                    )
                settlement.ended.append(attempt)
        job_signals.signal_thread.drain(TELL_S)
        hopeless = dispatch.hopeless()
        running = [
            attempt
            for attempt in dispatch.running
            if attempt.verdict is None and attempt not in hopeless
        ]
        self._ends.settle(force=True, is_last=True)
        for attempt in running:
            if attempt.verdict is None:
                attempt.give_back()
                log_end(attempt)
                settlement.ended.append(attempt)
        before_giving_back()
        if settlement:
            settlement.settle(force=True)
        self._ends.record()
        job_signals.signal_thread.end(TELL_S)


def leave(
    client: Redis, line: Line, queues: Iterable[DeliveryKeys], owner: bytes
) -> None:
    """Have the server forget this process's last requests, which it would otherwise keep as long as their queues."""
    line.rest()
    calls: list[Call[Any]] = [claim_calls.leave(keys, owner=owner) for keys in queues]
    calls.append(unregister(get_settings().registry, owner.hex()))
    try:
        replies = run_all(client, calls)
    except (RedisError, OSError) as error:
        replies = [error]
    for reply in replies:
        if isinstance(reply, Exception):
            logger.info(
                "this process could not leave the list of workers; its entry will expire: %s",
                redact(str(reply)),
            )
