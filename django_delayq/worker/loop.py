"""The claim loop of one worker process: one thread that asks for jobs, hands them out, and settles what ended.

It owns the connection. Everything else only wakes it: the alarm, channel messages, a change of a destination queue,
a job's end. A server that goes away is waited for; what ended meanwhile is settled when it is back.
"""

import logging
import os
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.client import Redis
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings, WorkerSettings
from django_delayq.delivery import operations
from django_delayq.delivery.operations import MAX_BATCH, Claimed, Mode, State
from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs.registry import all_tasks
from django_delayq.transfer.alarm import Alarm
from django_delayq.wire.call import Call, run, run_all
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.batch import BatchSizer
from django_delayq.worker.executors import LoopExecutor, ThreadExecutor

logger = logging.getLogger("django_delayq.worker")

#: A worker claims no more than it can start within this time, so that no job waits in one while another is idle.
AHEAD_MS = 10.0
#: Outcomes that are worth a call while jobs still wait in this process.
SETTLE_BATCH = 100
#: Outcomes wait no longer than this for others.
SETTLE_AFTER_MS = 5.0
#: Between attempts to reach a server that is away: from the first to the second of these, doubling.
BACKOFF_MS = (50.0, 1_000.0)
#: How often stale locators of a queue shared with Java are looked for.
SWEEP_EVERY_MS = 60_000.0

#: The alarm's key for everything that is no queue's.
_SELF = ""


class QueueState:
    """What the loop knows of one queue."""

    def __init__(self, settings: QueueSettings, weight: float) -> None:
        self.settings = settings
        self.weight = weight
        self.mode = Mode.SHARED if settings.is_shared else Mode.DIRECT
        #: There may be something to claim.
        self.is_ready = True
        #: The reply to the last claim was lost: ask with the same request, for the same leases.
        self.open_request: bytes | None = None
        #: When it was first sent.
        self.open_since_ms = 0.0
        #: The watch of its destination queue will call back.
        self.is_watched = False
        #: The last error that the server had for this queue alone.
        self.problem = ""
        self.sizer = BatchSizer()
        self.transfer_sizer = BatchSizer(first=100)
        self.sweep_ms = 0.0
        self.sweep_cursor = 0


class ClaimLoop:
    """Runs in the main thread of a worker process until it is told to stop, or has nothing left to do."""

    def __init__(
        self,
        client: Redis,
        queues: Sequence[tuple[QueueSettings, float]],
        worker: WorkerSettings,
        *,
        owner: bytes,
        threads: ThreadExecutor,
        coroutines: LoopExecutor,
        is_weighted: bool,
        is_burst: bool = False,
        max_jobs: int | None = None,
        watch: Callable[[str], None] = lambda queue: None,
    ) -> None:
        self._client = client
        self._worker = worker
        self._owner = owner
        self._threads = threads
        self._coroutines = coroutines
        self._is_weighted = is_weighted
        self._has_async = any(task.is_async for task in all_tasks())
        self._is_burst = is_burst
        self._jobs_left = max_jobs
        self._watch = watch
        self.queues = {
            settings.name: QueueState(settings, weight) for settings, weight in queues
        }
        self.alarm: Alarm[str] = Alarm()
        # Added to by the threads that run jobs, taken from by the loop: a deque needs no lock for that.
        self._ended: deque[Attempt] = deque()
        self._unsettled: list[Attempt] = []
        # Owned by the loop.
        self._running: dict[Attempt, None] = {}
        self._stop_ms: float | None = None
        self._grace_ms = 0.0
        self._is_renewal_due = threading.Event()
        self._settle_ms: float | None = None
        self._rate = 0.0
        self._rate_from: tuple[float, int] | None = None
        self._finished = 0
        self._backoff_ms = BACKOFF_MS[0]
        self._is_away = False
        self._stuck: list[Attempt] = []

    # From other threads, and from signal handlers.

    def job_ended(self, attempt: Attempt) -> None:
        """Take in an attempt that has an outcome."""
        self._ended.append(attempt)
        if len(self._ended) >= SETTLE_BATCH or not self._threads.queued():
            self.alarm.wake(_SELF)

    def job_stuck(self, attempt: Attempt) -> None:
        """A task ignores its time limit: this process has to go."""
        self._stuck.append(attempt)
        logger.error(
            "job %s (%s) does not react to its time limit; this process will be replaced",
            attempt.id,
            attempt.name,
        )
        self.alarm.wake(_SELF)

    def destination_changed(self, queue: str) -> None:
        """Somebody put something into a queue's destination list; the watch has to be set again."""
        self.queues[queue].is_watched = False
        self.alarm.wake(queue)

    def renew_soon(self) -> None:
        """Leases are to be renewed: the watchdog's timer."""
        self._is_renewal_due.set()
        self.alarm.wake(_SELF)

    def stop(self, grace_s: float) -> None:
        """Claim no more; give what runs so long to end, and give back the rest."""
        self._grace_ms = grace_s * 1000
        if self._stop_ms is None:
            self._stop_ms = monotonic_ms()
        self.alarm.wake(_SELF)

    # The loop.

    def run(self) -> None:
        """Work until told to stop; in burst mode until nothing is due."""
        while not self._is_over():
            try:
                self._turn()
                if self._is_away:
                    logger.warning("the server is back")
                    self._is_away = False
                self._backoff_ms = BACKOFF_MS[0]
            except (RedisError, OSError) as error:
                # It is away; or speaks, but will not serve: loading, a replica during a failover, not permitted.
                self._wait_for_server(error)

    def _is_over(self) -> bool:
        if self._stop_ms is None and self._stuck:
            self.stop(self._worker.grace_s)
        if self._stop_ms is None:
            return False
        if not self._running and not self._ended and not self._unsettled:
            return True
        if self._stuck and all(attempt in self._stuck for attempt in self._running):
            return True
        return monotonic_ms() >= self._stop_ms + self._grace_ms

    def _turn(self) -> None:
        self._settle(force=False)
        if self._is_renewal_due.is_set():
            self._renew()
        if self._stop_ms is not None:
            self._give_back_queued()
            self._wait()
            return
        claimed = self._claim_round()
        if not claimed:
            if self._is_burst and self._is_drained():
                self._stop_ms = monotonic_ms()
                self._grace_ms = float("inf")
                return
            self._wait()

    def _is_drained(self) -> bool:
        return (
            not self._running
            and not self._ended
            and not any(queue.is_ready for queue in self.queues.values())
        )

    def _wait(self) -> None:
        timeout_ms = float("inf")
        if self._ended or self._unsettled:
            timeout_ms = SETTLE_AFTER_MS
        if self._stop_ms is not None:
            timeout_ms = min(
                timeout_ms, max(1.0, self._stop_ms + self._grace_ms - monotonic_ms())
            )
        for name in self.alarm.wait(timeout_ms):
            if name in self.queues:
                self.queues[name].is_ready = True

    def _wait_for_server(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            logger.warning(
                "the server does not serve, trying again until it does: %s", error
            )
        for queue in self.queues.values():
            queue.is_ready = True
        until_ms = monotonic_ms() + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MS[1])
        while (left_ms := until_ms - monotonic_ms()) > 0 and not self._is_over():
            self.alarm.wait(left_ms)

    # Claiming.

    def _room(self) -> int:
        """How many jobs may be taken on: what free threads can start, or what is started within AHEAD_MS."""
        if self._jobs_left is not None and self._jobs_left <= 0:
            return 0
        coroutines = self._coroutines.count()
        ahead = int(self._rate * AHEAD_MS)
        room = max(self._threads.size, ahead) - (len(self._running) - coroutines)
        if self._has_async:
            # What comes may be of either kind, so there has to be room for both.
            room = min(room, self._coroutines.size - coroutines)
        if self._jobs_left is not None:
            room = min(room, self._jobs_left)
        return max(0, min(room, MAX_BATCH))

    def _order(self) -> list[QueueState]:
        ready = [queue for queue in self.queues.values() if queue.is_ready]
        if not self._is_weighted or len(ready) < 2:
            return ready
        # A weighted shuffle: each queue leads as often as its weight says.
        return sorted(
            ready, key=lambda queue: random.random() ** (1 / queue.weight), reverse=True
        )

    def _claim_round(self) -> bool:
        """Claim from every queue that may have something; False: nothing came, or there was no room."""
        came = False
        for queue in self._order():
            room = self._room()
            if room == 0 and queue.mode is not Mode.SHARED:
                continue
            if (
                room
                and room < min(self._threads.size, queue.sizer.size)
                and self._threads.queued()
            ):
                # Jobs are waiting here already: one call for many is cheaper than many for one.
                continue
            try:
                reply = self._claim(queue, room)
            except ReadOnlyError:
                raise
            except ResponseError as error:
                self._set_aside(queue, error)
                continue
            came = (
                came or bool(reply.jobs) or (queue.is_ready and reply.transferred > 0)
            )
        return came

    def _set_aside(self, queue: QueueState, error: ResponseError) -> None:
        """One queue's keys are of the wrong type, or forbidden: the others go on, and it is tried again."""
        if str(error) != queue.problem:
            logger.error(
                "queue %s cannot be served, trying again: %s",
                queue.settings.name,
                error,
            )
        queue.problem = str(error)
        queue.is_ready, queue.open_request = False, None
        self.alarm.ring_in(queue.settings.name, -1)

    def _claim(self, queue: QueueState, room: int) -> Claimed:
        settings = queue.settings
        limit = min(room, queue.sizer.size)
        sent_ms = monotonic_ms()
        # Kept until a reply comes: only the same request again brings back leases that were given to a lost reply.
        if queue.open_request is None:
            queue.open_request, queue.open_since_ms = os.urandom(8), sent_ms
        reply = run(
            self._client,
            operations.claim(
                settings.keys,
                owner=self._owner,
                request=queue.open_request,
                limit=limit,
                lease_ms=self._worker.lease_ms,
                mode=queue.mode,
                transfer_limit=queue.transfer_sizer.size,
                max_kills=self._worker.max_kills,
            ),
        )
        queue.open_request = None
        if queue.problem:
            logger.warning("queue %s is served again", settings.name)
            queue.problem = ""
        now_ms = monotonic_ms()
        queue.sizer.learn(limit, len(reply.jobs), now_ms - sent_ms)
        queue.transfer_sizer.learn(
            queue.transfer_sizer.size, reply.transferred, now_ms - sent_ms
        )
        queue.is_ready = reply.wait_us == 0
        self.alarm.ring_in(
            settings.name, reply.wait_us if reply.wait_us else self.alarm.cap_ms * 1000
        )
        if not queue.is_ready and not queue.is_watched:
            queue.is_watched = True
            self._watch(settings.name)
        if reply.doubles:
            logger.warning(
                "queue %s: %d payloads dropped, their jobs are known already",
                settings.name,
                reply.doubles,
            )
        if reply.jobs:
            self._hand_out(queue, reply, (sent_ms + now_ms) / 2)
        if queue.mode is Mode.SHARED and now_ms >= queue.sweep_ms:
            self._sweep(queue, now_ms)
        return reply

    def _hand_out(self, queue: QueueState, reply: Claimed, middle_ms: float) -> None:
        # The lease began no earlier than the call was first sent.
        lease_end_ms = queue.open_since_ms + self._worker.lease_ms
        offset_ms = reply.now_us / 1000 - middle_ms
        if self._jobs_left is not None:
            self._jobs_left -= len(reply.jobs)
        for leased in reply.jobs:
            attempt = Attempt(queue.settings, leased, lease_end_ms, offset_ms)
            self._running[attempt] = None
            if not attempt.prepare():
                self.job_ended(attempt)
            elif attempt.task is not None and attempt.task.is_async:
                self._coroutines.submit(attempt)
            else:
                self._threads.submit(attempt)

    def _sweep(self, queue: QueueState, now_ms: float) -> None:
        swept = run(
            self._client,
            operations.sweep(queue.settings.keys, cursor=queue.sweep_cursor),
        )
        queue.sweep_cursor = swept.cursor
        queue.sweep_ms = now_ms + (SWEEP_EVERY_MS if swept.cursor == 0 else 0)

    # Settling.

    def _settle(self, *, force: bool) -> None:
        ended = self._ended
        if not ended and not self._unsettled:
            return
        now_ms = monotonic_ms()
        if not force and self._threads.queued() and len(ended) < SETTLE_BATCH:
            if self._settle_ms is None:
                self._settle_ms = now_ms + SETTLE_AFTER_MS
            if now_ms < self._settle_ms:
                return
        self._settle_ms = None
        is_repeat = bool(self._unsettled)
        while ended:
            self._unsettled.append(ended.popleft())
        self._measure(now_ms)
        settled = [attempt for attempt in self._unsettled if not attempt.is_lost]
        calls, groups = self._calls(settled)
        # Repeating is safe, and what does not come back stays in _unsettled.
        for group, reply in zip(groups, run_all(self._client, calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            for index in reply:
                # A repeat finds its own first try done: only a first try tells a lost lease.
                group[index].is_lost = not is_repeat
        for attempt in self._unsettled:
            self._running.pop(attempt, None)
            if attempt.is_lost:
                logger.warning(
                    "job %s (%s) lost its lease, so its end changes nothing; it may run elsewhere",
                    attempt.id,
                    attempt.name,
                )
            else:
                attempt.log()
        self._unsettled.clear()
        if (
            self._jobs_left is not None
            and self._jobs_left <= 0
            and self._stop_ms is None
            and not self._running
        ):
            self.stop(self._worker.grace_s)

    def _measure(self, now_ms: float) -> None:
        """Learn how many jobs per ms this process gets through while it has some waiting."""
        count = len(self._unsettled)
        self._finished += count
        if self._rate_from is not None and now_ms > self._rate_from[0]:
            rate = (self._finished - self._rate_from[1]) / (now_ms - self._rate_from[0])
            self._rate += 0.3 * (rate - self._rate) if self._rate else rate
        self._rate_from = (
            (now_ms, self._finished)
            if self._threads.queued() or count >= self._threads.size
            else None
        )

    def _calls(
        self, attempts: list[Attempt]
    ) -> tuple[list[Call[list[int]]], list[list[Attempt]]]:
        by_outcome: dict[tuple[str, Any], list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            by_outcome[attempt.queue.name, attempt.outcome].append(attempt)
        calls: list[Call[list[int]]] = []
        groups: list[list[Attempt]] = []
        for (name, outcome), members in by_outcome.items():
            keys = self.queues[name].settings.keys
            for start in range(0, len(members), MAX_BATCH):
                group = members[start : start + MAX_BATCH]
                groups.append(group)
                if outcome in (State.SUCCEEDED, State.EXPIRED):
                    calls.append(
                        operations.acknowledge(
                            keys, [item.as_done() for item in group], outcome=outcome
                        )
                    )
                elif outcome is State.RETRYING:
                    calls.append(
                        operations.retry(keys, [item.as_failed() for item in group])
                    )
                elif outcome is State.SCHEDULED:
                    calls.append(
                        operations.give_back(keys, [item.leased for item in group])
                    )
                else:
                    calls.append(
                        operations.bury(
                            keys,
                            [item.as_rejected() for item in group],
                            state=outcome,
                            attempt_failed=outcome is State.DEAD,
                        )
                    )
        return calls, groups

    def _renew(self) -> None:
        by_queue: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self._running:
            if not attempt.is_lost:
                by_queue[attempt.queue.name].append(attempt)
        calls: list[Call[list[int]]] = []
        groups: list[list[Attempt]] = []
        for name, members in by_queue.items():
            for start in range(0, len(members), MAX_BATCH):
                group = members[start : start + MAX_BATCH]
                groups.append(group)
                tokens = [(item.leased.token, item.leased.fence) for item in group]
                keys = self.queues[name].settings.keys
                calls.append(
                    operations.renew(keys, tokens, lease_ms=self._worker.lease_ms)
                )
        lease_end_ms = monotonic_ms() + self._worker.lease_ms
        for group, reply in zip(groups, run_all(self._client, calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            lost = set(reply)
            for index, attempt in enumerate(group):
                if index not in lost:
                    attempt.lease_end_ms = lease_end_ms
                elif attempt.outcome is None:
                    attempt.is_lost = True
                    logger.warning(
                        "job %s (%s) lost its lease while it runs; it may run elsewhere, too",
                        attempt.id,
                        attempt.name,
                    )
        self._is_renewal_due.clear()

    # The end.

    def _give_back_queued(self) -> None:
        for attempt in self._threads.take_back() + self._coroutines.take_back():
            attempt.give_back()
            self._ended.append(attempt)
        self._settle(force=True)

    def give_back_all(self) -> None:
        """Settle what ended and give back what still runs: the process is about to end.

        Raises:
            redis.exceptions.RedisError: the server is not there; the leases end by themselves.
        """
        for attempt in list(self._running):
            if attempt.outcome is None:
                if attempt in self._stuck:
                    attempt.fail(
                        TimeLimitExceeded(
                            f"{attempt.name} ignored its time limit of {attempt.time_limit_s or 0:g} s;"
                            " its process was replaced"
                        )
                    )
                else:
                    attempt.give_back()
                self._ended.append(attempt)
        self._settle(force=True)

    @property
    def is_stuck(self) -> bool:
        return bool(self._stuck)
