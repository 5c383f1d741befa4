"""The claim loop of one worker process: one thread that asks for jobs, hands them out, and settles what ended.

Only this module decides when: each turn does what is due now, then waits. Its parts know how. The loop owns the
connection; everything else only wakes it: the alarm, channel messages, a change of a destination queue, a job's end. If
the server goes away, the loop waits, and settles what ended meanwhile when the server is back.
"""

from collections.abc import Callable

from redis.exceptions import RedisError

from django_delayq.clock import monotonic_ms
from django_delayq.core.worker_registry import ORDERED
from django_delayq.exceptions import DelayqError
from django_delayq.faults import fault_line
from django_delayq.logs import get_log
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.line import Line
from django_delayq.transport.plain_command import Command
from django_delayq.worker.claims import Claims
from django_delayq.worker.dispatch import SETTLE_AFTER_MS
from django_delayq.worker.parts import SELF, Parts
from django_delayq.worker.queue_state import QueueState
from django_delayq.worker.reports import ProgressReport, RegistryEntry
from django_delayq.worker.shutdown import leave

logger = get_log("django_delayq.worker")

#: In burst mode, the loop waits for jobs that are due this soon: a job just scheduled for now is due within a ms.
SOON_MS = 2.0
#: The server's clock, epoch us.
TIME = Command(("TIME",), lambda reply: int(reply[0]) * 1_000_000 + int(reply[1]))


class ClaimLoop:
    """Runs in the main thread of a worker process until it has to stop, or has nothing left to do."""

    def __init__(
        self,
        parts: Parts,
        *,
        watch: Callable[[str], None],
        revive: Callable[[], object] | None,
    ) -> None:
        """``watch`` has `destination_changed` called. ``revive`` starts the server if it is ours to start."""
        self._parts = parts
        self._is_burst = parts.options.is_burst
        self._revive = revive
        self.queues, self.alarm, self.dispatch = (
            parts.queues,
            parts.alarm,
            parts.dispatch,
        )
        self.ends, self.shutdown = parts.ends, parts.shutdown
        self.forwards = parts.forwards
        self._line, self._threads = parts.line, parts.dispatch.threads
        self._outage, self._suspects = parts.outage, parts.dispatch.suspects
        #: The server has refused this process from its start, and will not change its mind.
        self.is_refused = False
        self._settlement = self.ends.settlement
        self._claims = Claims(parts, watch)
        #: What tasks say of their progress.
        self.progress = ProgressReport(
            parts.line, parts.dispatch, lambda: self.alarm.wake(SELF)
        )
        self.ends.reports.add(self.progress)
        self._entry = RegistryEntry(
            parts.line,
            parts.owner,
            parts.queues,
            parts.dispatch,
            state=lambda: parts.shutdown.state,
            quiet=self._be_quiet,
            stop=self._be_dismissed,
        )
        self.ends.reports.add(self._entry)
        self._changes = own_clients.changes
        self._planner = self._claims.planner
        #: How many turns the loop has made. Other threads read it.
        self.turns = 0

    # From other threads.

    def destination_changed(self, queue: str) -> None:
        """Note that something was pushed to a queue's destination list, and that the watch of that list is used up."""
        self.queues[queue].is_watched = False
        self.alarm.wake(queue)

    def message_came(self, queue: str, message: bytes | None) -> None:
        """Note that something has changed on a queue, and what. None: a subscription stands, and what came before is lost."""
        if message is None or message == ORDERED:
            self._entry.due_ms = 0.0
        for part in self.queues[queue].parts:
            if part.wakes and (message is None or message in part.wakes):
                part.next_ms = 0.0
        self.alarm.wake(SELF if message == ORDERED else queue)

    def retire(self) -> None:
        """Claim no more, and end when everything that was claimed has ended, however long that takes."""
        self.shutdown.retire()
        self.alarm.wake(SELF)

    def stop(self, grace_s: float) -> None:
        """Claim no more; let running jobs end for up to ``grace_s``, and give back the rest."""
        self.shutdown.stop(grace_s)
        self.alarm.wake(SELF)

    # Orders.

    def _be_quiet(self) -> None:
        if self._is_burst:
            # Nothing else would end it.
            self.shutdown.retire()
        else:
            self.shutdown.quiet()

    def _be_dismissed(self) -> None:
        self.shutdown.is_dismissed = True
        self.stop(self._parts.options.worker.grace_s)

    # The loop.

    def run(self) -> None:
        """Work until it has to stop, or in burst mode until nothing is due."""
        while not self._is_over():
            try:
                self._turn()
            except (RedisError, OSError) as error:
                # The server is away, or answers but does not serve: it is loading, a replica in a failover, or forbids
                # it.
                self._wait_for_server(error)

    def _is_over(self) -> bool:
        dispatch, shutdown = self.dispatch, self.shutdown
        if shutdown.stop_ms is None:
            if not dispatch.stuck and not dispatch.inability:
                return False
            self.stop(self._parts.options.worker.grace_s)
        self._claims.take_under_way()
        self.dispatch.give_back_queued()
        return dispatch.is_beyond_waiting() or monotonic_ms() >= shutdown.deadline_ms

    def _turn(self) -> None:
        self.turns += 1
        self._forget_if_changed()
        shutdown, suspects = self.shutdown, self._suspects
        is_stalled = self._planner.give_back_stalled(monotonic_ms())
        if self.dispatch.waiting_async:
            self.dispatch.submit_found()
        if is_stalled or shutdown.stop_ms is not None or suspects.held is not None:
            self.ends.settle(force=True)
            if (suspect := suspects.take_held()) is not None:
                self.dispatch.begin(suspect)
        else:
            self.ends.tell()
        try:
            self._ask_time()
            is_progress = shutdown.stop_ms is None and self._claims.round()
        finally:
            self.ends.learn()
        if (
            shutdown.takes_no_more()
            and shutdown.stop_ms is None
            and len(self.dispatch.running) == self._settlement.count_refused()
        ):
            self.stop(self._parts.options.worker.grace_s)
        if shutdown.stop_ms is None:
            if is_progress or suspects.held is not None:
                self._threads.wake()
                # Else a queue that always has more would keep us from what falls due in the others.
                self._hear(0.0)
                return
            if self._is_burst and self._is_idle() and self._look_again():
                return
        elif self._is_over():
            # The last end has just been settled: nothing else would wake the loop.
            return
        self._wait()

    def _forget_if_changed(self) -> None:
        """If another server answers now, have everything read from it again, and sent to it what it has to know."""
        if (changes := own_clients.changes) == self._changes:
            return
        self._changes = changes
        self._entry.due_ms = 0.0
        for queue in self.queues.values():
            queue.forget()

    def _is_idle(self) -> bool:
        """Whether nothing runs in burst mode, and nothing is on its way to another queue."""
        if self.dispatch.running or self.forwards.is_busy:
            return False
        if self.forwards.has_stored():
            # What it stored may have gone to a queue of ours.
            self.dispatch.has_had_jobs = True
        return True

    def _ask_time(self) -> None:
        """Ask for the server's time if an alarm has rung early. That also wakes a server that has dozed off."""
        asking = [queue for queue in self.queues.values() if queue.is_asking]
        if not asking:
            return
        by_line: dict[Line, list[QueueState]] = {}
        for queue in asking:
            line = self._line.of(queue.settings.keys.queue.destination)
            by_line.setdefault(line, []).append(queue)
        for line, queues in by_line.items():
            sent_ms = monotonic_ms()
            try:
                now_us = line.ask(TIME).finish()
            except RedisError as error:
                if not is_of_node(error):
                    raise
                for queue in queues:
                    queue.is_asking = False
                    # Its claim meets the error, and sets it aside.
                    queue.expect_anything()
                continue
            now_ms = monotonic_ms()
            for queue in queues:
                queue.is_asking = False
                wait_us = max(0.0, queue.next_us - now_us)
                self.alarm.ring_in(queue.settings.name, wait_us, (sent_ms + now_ms) / 2)

    def _look_again(self) -> bool:
        """Look at every queue once more when nothing is left in burst mode, then stop.

        Returns False if there is still something to wait for.
        """
        queues = self.queues.values()
        soon_ms = max(monotonic_ms() + SOON_MS, self._suspects.put_off_until_ms)
        if any(
            queue.is_ready or queue.next_ms <= soon_ms or queue.is_held_back
            for queue in queues
        ):
            return False
        if not self.dispatch.has_had_jobs:
            self.shutdown.stop(0.0)
            return True
        # The last job may have scheduled another, whose message comes on another connection.
        self.dispatch.has_had_jobs = False
        for queue in queues:
            queue.is_ready = not queue.problem
        return True

    def _wait(self) -> None:
        if self._changes != own_clients.changes:
            return
        now_ms = monotonic_ms()
        ring_ms = self.alarm.next_ms()
        timeout_ms = float("inf")
        # Set before we look at what has ended, so that a job that ends later sees whether it has to wake us.
        is_short = any(queue.is_ready for queue in self.queues.values())
        self.dispatch.awake_ms = float("inf") if is_short else ring_ms
        if self.dispatch.queued():
            timeout_ms = SETTLE_AFTER_MS
        elif self._settlement.is_waiting:
            # Ends that can go out with the next claim need no write of their own.
            is_soon = not is_short and ring_ms - now_ms <= SETTLE_AFTER_MS
            timeout_ms = SETTLE_AFTER_MS if is_soon else 0.0
        elif (again_ms := self._settlement.next_ms()) is not None:
            timeout_ms = again_ms - now_ms
        is_claiming = self.shutdown.stop_ms is None
        until_ms = self._planner.look_ms if is_claiming else self.shutdown.deadline_ms
        timeout_ms = min(timeout_ms, until_ms - now_ms, self.ends.record_ms - now_ms)
        # Only now: a thread that wakes while we hold the interpreter would wait for us.
        self._threads.wake()
        self._hear(max(0.0, timeout_ms))
        self.dispatch.awake_ms = 0.0

    def _hear(self, timeout_ms: float) -> None:
        """Wait until the alarm rings, and note for which queues."""
        for name in self.alarm.wait(timeout_ms):
            if (queue := self.queues.get(name)) is None:
                continue
            # A busy loop may hear an early ring after the deadline: then it need not ask how long is left.
            is_early = name in self.alarm.early and queue.next_ms > monotonic_ms()
            if is_early and queue.next_us < float("inf"):
                queue.is_asking = True
            else:
                queue.expect_anything()

    def _wait_for_server(self, error: Exception) -> None:
        self._threads.wake()
        self._outage.note_error(error)
        if self._outage.is_hopeless:
            logger.error(
                "the server has refused every connection since this worker was started, so it ends: %s",
                fault_line(error),
            )
            self.is_refused = True
            self.stop(0.0)
            return
        for queue in self.queues.values():
            queue.expect_anything()
        if self._revive is not None:
            try:
                self._revive()
            except DelayqError as failure:
                logger.warning("%s", failure)
        until_ms = monotonic_ms() + self._outage.next_pause_ms()
        while (left_ms := until_ms - monotonic_ms()) > 0 and not self._is_over():
            self.alarm.wait(left_ms)

    # The end.

    def end(self, before_giving_back: Callable[[], None]) -> None:
        """Settle, give back what still runs, and leave; see `Shutdown.finish`."""
        self.shutdown.finish(before_giving_back)
        if self._is_burst:
            self._line.rest()
            for queue in self.queues.values():
                for part in queue.parts:
                    part.warn_of_left()
        keys = [queue.settings.keys for queue in self.queues.values()]
        leave(self._parts.client, self._line, keys, self._parts.owner)

    @property
    def has_problem(self) -> bool:
        """Whether a queue could not be served."""
        return (
            bool(self._settlement)
            or self.forwards.is_failing
            or any(
                queue.problem or queue.newer_format for queue in self.queues.values()
            )
        )
