"""The claim loop of one worker process: one thread that asks for jobs, hands them out, and settles what ended.

It owns the connection. Everything else only wakes it: the alarm, channel messages, a change of a destination queue,
a job's end. A server that goes away is waited for; what ended meanwhile is settled when it is back.
"""

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import faults
from django_delayq.calls.command import Question
from django_delayq.calls.line import Line
from django_delayq.calls.running import run
from django_delayq.calls.several import run_all
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import QueueSettings, WorkerSettings, get_keyring
from django_delayq.delivery import claiming, holding
from django_delayq.delivery.claiming import LOOKS_A_LEASE, Claimed, Leased, Mode
from django_delayq.delivery.limits import MAX_BATCH
from django_delayq.exceptions import DelayqError
from django_delayq.jobs.envelope import peek_task, task_text
from django_delayq.jobs.registry import all_tasks, get_handler
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.waiting.alarm import CAP_MS, Alarm
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.claiming import Asked
from django_delayq.worker.executors import LoopExecutor, ThreadExecutor
from django_delayq.worker.pace import Pace
from django_delayq.worker.planning import NO_ROOM, NOTHING, Plan, Room
from django_delayq.worker.queue_state import QueueState
from django_delayq.worker.settlement import Settlement, is_queues_own
from django_delayq.worker.upkeep import ROUND_MS, Upkeep

logger = get_log("django_delayq.worker")

#: A worker claims no more than it can start within this time, so that no job waits in one while another is idle.
AHEAD_MS = 10.0
#: Jobs that were claimed ahead and still wait after this, because those before them take longer than was foreseen,
#: are given back.
STALLED_MS = 50.0
#: Where so much of a call's time goes into reading its reply, the server was still working.
NOTICEABLE = 0.1
#: Attempts that ended and are worth a call while jobs still wait in this process.
SETTLE_BATCH = 100
#: One that ended waits no longer than this for others.
SETTLE_AFTER_MS = 5.0
#: Between attempts to reach a server that is away: from the first to the second of these, doubling. Never longer than
#: `LOOKS_A_LEASE` says: when the server is back, leases that ended meanwhile are spared for a third of one.
BACKOFF_MS = (50.0, 1_000.0)
#: A job that may have killed its workers and is put off because another such job runs here is looked at again after
#: the time that one has run, from the first to the second of these, or after so long for each that was put off, up to
#: the last.
SUSPECT_MS = (20.0, 1_000.0)
SUSPECT_EACH_MS = 5.0
SUSPECT_MOST_MS = 10_000.0
#: In burst mode, what was put off is waited for, and for so much longer: until it is given back time goes by.
PUT_OFF_SLACK_MS = 1_000.0
#: In burst mode, what falls due so soon is waited for: a job that was just scheduled for now is due within a ms.
SOON_MS = 2.0
#: With room for jobs of one kind only, sync or async, a worker looks past so many of the other kind at most, and looks
#: again after this where it found some.
LOOK_PAST = 100
LOOK_PAUSE_MS = 1_000.0
#: How often a process looks for held jobs whose tasks it knows, where any are held.
LOOK_AT_HELD_MS = 5_000.0

#: After a whole claim that leased something, `claim_few` is tried for this part of a lease: the record of the service,
#: which only a whole claim writes, may be new enough. Where it did nothing twice in a row, it is not tried for so long.
FEW_A_LEASE = 40
NOT_FEW_MS = 1_000.0
#: The server's clock, epoch us.
TIME = Question(("TIME",), lambda reply: int(reply[0]) * 1_000_000 + int(reply[1]))
#: The alarm's key for everything that is no queue's.
_SELF = ""


class Service(Enum):
    """What the server does for this process, as far as that was logged."""

    SERVING = auto()
    AWAY = auto()
    #: It answers, and will not take DELAYQ['CONNECTION'] as it is.
    REFUSING = auto()


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
        follows_death: bool = False,
        watch: Callable[[str], None] = lambda queue: None,
        revive: Callable[[], object] | None = None,
    ) -> None:
        """``revive`` starts the server where it is ours to start.

        ``follows_death``: a process of this worker has died, and may have put jobs off.
        """
        self._client = client
        self._worker = worker
        self._owner = owner
        self._threads = threads
        self._coroutines = coroutines
        self._is_weighted = is_weighted
        # Told apart by their names alone: to decode a payload is not for this thread.
        self._async_names = frozenset(
            task_text(task.name) for task in all_tasks() if task.is_async
        )
        # Attempts that a thread has read, and that belong on the event loop.
        self._found_async: deque[Attempt] = deque()
        self._is_burst = is_burst
        # In burst mode: nothing has come since every queue was last made ready.
        self._is_confirmed = False
        self._jobs_left = max_jobs
        self._watch = watch
        self._revive = revive
        self.queues = {
            settings.name: QueueState(settings, weight, Upkeep(client, settings, owner))
            for settings, weight in queues
        }
        look_ms = worker.lease_ms / LOOKS_A_LEASE
        self.alarm: Alarm[str] = Alarm(cap_ms=min(CAP_MS, look_ms))
        self._longest_backoff_ms = min(BACKOFF_MS[1], look_ms)
        # What the loop asks, in turn; the client's other connections are for what it does now and then.
        self._line = Line(client)
        self._settlement = Settlement(self._line)
        self._ended = self._settlement.ended
        # Owned by the loop. Everything that was claimed and is not settled.
        self._running: dict[Attempt, None] = {}
        #: It was told to `retire`.
        self.is_retiring = False
        #: How often it has gone round.
        self.turns = 0
        self._stop_ms: float | None = None
        self._grace_ms = 0.0
        self._settle_ms: float | None = None
        # When the server was told of ends, and what it said is still to be read.
        self._has_told = False
        # When the loop looks again by itself, as far as it has begun to wait; what ends until then needs not wake it.
        self._awake_ms = 0.0
        # When the threads, and the coroutines, were last given something.
        self._submitted_ms = self._submitted_async_ms = 0.0
        self._look_ms = float("inf")
        self._pace = Pace()
        self._finished = 0
        # Two jobs that may have killed their workers are never leased together, see _takes_suspect. They are on their
        # last chance, or the one before.
        self._safe_kills = max(0, worker.max_kills - 2)
        self._suspect: Attempt | None = None
        self._suspect_since_ms = 0.0
        self._suspects_put_off = 0
        # In burst mode what falls due by then is waited for: it was due, and was put off.
        self._put_off_until_ms = 0.0
        if follows_death:
            self._put_off_until_ms = monotonic_ms() + SUSPECT_MS[1] + PUT_OFF_SLACK_MS
        # It is not begun before the others are given back: it might not leave us the time.
        self._held_suspect: Attempt | None = None
        self._backoff_ms = BACKOFF_MS[0]
        #: What was said of the server last: it serves, it is away, or it will never take this CONNECTION.
        self._service = Service.SERVING
        self._stuck: list[Attempt] = []
        # Why this process cannot run what it claims; "": it can.
        self._inability = ""

    # From other threads.

    def job_ended(self, attempt: Attempt) -> None:
        """Take in an attempt that has an outcome."""
        self._ended.append(attempt)
        # Soon, or while others are queued, the loop looks by itself, see _wait.
        if len(self._ended) >= SETTLE_BATCH or (
            monotonic_ms() + SETTLE_AFTER_MS < self._awake_ms
            and not self._threads.queued()
        ):
            self.alarm.wake(_SELF)

    def job_stuck(self, attempt: Attempt) -> None:
        """A task ignores its time limit: this process has to go."""
        attempt.is_stuck = True
        self._stuck.append(attempt)
        logger.error(
            "job %s (%s) does not react to its time limit; this process will be replaced",
            attempt.id,
            attempt.name,
        )
        self.alarm.wake(_SELF)

    def cannot_work(self, why: str) -> None:
        """Something that runs jobs has died: this process has to go."""
        if not self._inability:
            self._inability = why
            logger.error("this process cannot go on and will be replaced: %s", why)
        self.alarm.wake(_SELF)

    def found_async(self, attempt: Attempt) -> None:
        """Take in an attempt that a thread has read and that belongs on the event loop."""
        self._found_async.append(attempt)
        self.alarm.wake(_SELF)

    def destination_changed(self, queue: str) -> None:
        """Somebody put something into a queue's destination list; the watch has to be set again."""
        self.queues[queue].is_watched = False
        self.alarm.wake(queue)

    def running(self) -> list[Attempt]:
        """Return everything that was claimed and is not settled. The copy is made in one step of the interpreter."""
        return list(self._running)

    def retire(self) -> None:
        """Claim no more, and end when all that was claimed has ended, however long that takes."""
        self.is_retiring = True
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
            except (RedisError, OSError) as error:
                # It is away; or speaks, but will not serve: loading, a replica during a failover, not permitted.
                self._wait_for_server(error)

    def _is_over(self) -> bool:
        if self._stop_ms is None:
            if not self._stuck and not self._inability:
                return False
            self.stop(self._worker.grace_s)
            assert self._stop_ms is not None
        self._take_under_way()
        self._return_queued()
        orphans = self._orphans()
        if all(
            attempt.is_refused or attempt in self._stuck or attempt in orphans
            for attempt in self._running
        ):
            return True
        return monotonic_ms() >= self._stop_ms + self._grace_ms

    def _turn(self) -> None:
        self.turns += 1
        now_ms = monotonic_ms()
        is_stalled = False
        if self._threads.queued() and now_ms > self._submitted_ms + self._stalled_ms():
            # They wait here for longer than was foreseen, while others may be idle.
            is_stalled = True
            self._unbegin(self._threads.take_back())
            self._pace = Pace()
        if now_ms > self._submitted_async_ms + STALLED_MS and self._coroutines.queued():
            is_stalled = True
            self._unbegin(self._coroutines.take_back())
        while self._found_async:
            self._submit_async(self._found_async.popleft())
        if is_stalled or self._stop_ms is not None or self._held_suspect is not None:
            self._settle(force=True)
            if self._held_suspect is not None:
                suspect, self._held_suspect = self._held_suspect, None
                self._begin(suspect)
        else:
            self._tell_ends()
        try:
            self._ask_time()
            is_progress = self._stop_ms is None and self._claim_round()
        finally:
            self._learn_ends()
        if (
            self._takes_no_more()
            and self._stop_ms is None
            and len(self._running) == self._settlement.count_refused()
        ):
            self.stop(self._worker.grace_s)
        if self._stop_ms is None:
            if is_progress or self._held_suspect is not None:
                self._threads.wake()
                return
            if self._is_burst and not self._running and self._look_again():
                return
        elif self._is_over():
            # The last end was settled just now: nothing else would wake us.
            return
        self._wait()

    def _ask_time(self) -> None:
        """Where an alarm has rung early, learn how long is left. A server that has dozed off is awake then."""
        asking = [queue for queue in self.queues.values() if queue.is_asking]
        if not asking:
            return
        sent_ms = monotonic_ms()
        now_us = self._line.ask(TIME).finish()
        now_ms = monotonic_ms()
        for queue in asking:
            queue.is_asking = False
            wait_us = max(0.0, queue.next_us - now_us)
            self.alarm.ring_in(queue.settings.name, wait_us, (sent_ms + now_ms) / 2)

    def _look_again(self) -> bool:
        """In burst mode with nothing left: look at every queue once more, then stop. False: there is more to do."""
        queues = self.queues.values()
        soon_ms = max(monotonic_ms() + SOON_MS, self._put_off_until_ms)
        if any(queue.is_ready or queue.next_ms <= soon_ms for queue in queues):
            return False
        if self._is_confirmed:
            self._stop_ms = monotonic_ms()
            return True
        # The last job may have scheduled another, and what says so comes on another connection.
        self._is_confirmed = True
        for queue in queues:
            queue.is_ready = not queue.problem
        return True

    def _wait(self) -> None:
        now_ms = monotonic_ms()
        ring_ms = self.alarm.next_ms()
        timeout_ms = float("inf")
        # Before looking at what has ended: what ends after that sees whether it has to wake us.
        is_short = any(queue.is_ready for queue in self.queues.values())
        self._awake_ms = float("inf") if is_short else ring_ms
        if self._queued():
            timeout_ms = SETTLE_AFTER_MS
        elif self._settlement.is_waiting:
            # What is told with the next claim needs no call of its own.
            is_soon = not is_short and ring_ms - now_ms <= SETTLE_AFTER_MS
            timeout_ms = SETTLE_AFTER_MS if is_soon else 0.0
        elif (again_ms := self._settlement.next_ms()) is not None:
            timeout_ms = again_ms - now_ms
        if self._stop_ms is not None:
            timeout_ms = min(timeout_ms, self._stop_ms + self._grace_ms - now_ms)
        else:
            timeout_ms = min(timeout_ms, self._look_ms - now_ms)
        # Last: a thread that wakes earlier waits for us to let go of the interpreter.
        self._threads.wake()
        rung = self.alarm.wait(max(0.0, timeout_ms))
        self._awake_ms = 0.0
        for name in rung:
            if (queue := self.queues.get(name)) is None:
                continue
            if name in self.alarm.early and queue.next_us < float("inf"):
                queue.is_asking = True
            else:
                queue.is_ready = queue.is_due = True

    def _wait_for_server(self, error: Exception) -> None:
        self._threads.wake()
        self._tell_of(error)
        for queue in self.queues.values():
            queue.is_ready = queue.is_due = True
        if self._revive is not None:
            try:
                self._revive()
            except DelayqError as failure:
                logger.warning("%s", failure)
        until_ms = monotonic_ms() + min(self._backoff_ms, self._longest_backoff_ms)
        self._backoff_ms = min(2 * self._backoff_ms, self._longest_backoff_ms)
        while (left_ms := until_ms - monotonic_ms()) > 0 and not self._is_over():
            self.alarm.wait(left_ms)

    def _tell_of(self, error: Exception) -> None:
        """Log why the server does not serve, once until that changes."""
        is_misconfigured = faults.is_misconfigured(error)
        service = Service.REFUSING if is_misconfigured else Service.AWAY
        if service is self._service:
            return
        self._service = service
        fault = faults.describe_fault(error)
        if is_misconfigured:
            logger.error(
                "the server does not serve, trying again until it does: %s %s (%s)",
                fault.what,
                fault.hint,
                fault.message,
            )
        else:
            logger.warning(
                "the server does not serve, trying again until it does: %s",
                fault.message,
            )

    def _note_reply(self) -> None:
        """The server serves us."""
        self._backoff_ms = BACKOFF_MS[0]
        if self._service is not Service.SERVING:
            self._service = Service.SERVING
            logger.warning("the server is back")

    # Claiming.

    def _stalled_ms(self) -> float:
        return max(STALLED_MS, *(q.sizer.call_ms for q in self.queues.values()))

    def _queued(self) -> int:
        return self._threads.queued() + self._coroutines.queued()

    def _takes_no_more(self) -> bool:
        """Whether what runs is the last that this process runs."""
        return self.is_retiring or (
            self._jobs_left is not None and self._jobs_left <= 0
        )

    def _room(self, call_ms: float = 0.0, begun: int = 0) -> Room:
        """Return how many jobs may be taken on: what free threads can start, or is started within AHEAD_MS; and coroutines.

        ``begun`` more are about to be handed out. Where a call takes long besides its jobs, they may take as long as
        it does, and those that will have run when its reply comes leave room for others.
        """
        if self._takes_no_more():
            return NO_ROOM
        coroutines = self._coroutines.count()
        # What ended takes up no thread, whether the server knows it yet or not.
        busy = len(self._running) - coroutines - self._settlement.count()
        busy += sum(q.under_way.plan.limit for q in self.queues.values() if q.under_way)
        busy += begun
        most = MAX_BATCH if self._jobs_left is None else self._jobs_left
        most = min(most, MAX_BATCH)
        rate = self._pace.rate
        ahead = max(self._threads.size, int(rate * max(AHEAD_MS, call_ms)))
        threads = ahead - max(0, busy - int(rate * call_ms))
        free = self._coroutines.size - coroutines
        return Room(max(0, min(threads, most)), max(0, min(free, most)))

    def _common(self, room: Room) -> int:
        """Return how many jobs may be taken on of whatever kind they turn out to be."""
        return min(room) if self._async_names else room.sync

    def _plan(
        self, queue: QueueState, *, is_enough: bool = False, is_later: bool = False
    ) -> Plan:
        """Decide what to ask a queue for now.

        ``is_enough``: another one has more, which comes first; ``is_later``: another one waits for room.
        """
        if self._settlement.is_refused(queue.settings.name):
            # What it gives us it does not take back.
            return NOTHING
        room = self._room(queue.sizer.call_ms)
        common = 0 if is_enough or is_later else self._common(room)
        # Where jobs are waiting here already, one call for many is cheaper than many for one.
        enough = self._enough(queue)
        if common >= enough or (common and not self._queued()):
            return Plan(min(common, queue.sizer.size))
        if not self._async_names:
            return NOTHING
        # There is room for one kind at most. What busy threads cannot start must not keep async jobs waiting, nor the
        # other way round: a queue is claimed for the kind that can be started.
        if room.coroutines:
            if not self._coroutines.queued():
                return self._look(queue, Room(0, room.coroutines), queue.had_sync)
        elif room.sync and not is_enough and not self._threads.queued():
            return self._look(queue, Room(room.sync, 0), queue.had_async)
        return NOTHING

    def _enough(self, queue: QueueState) -> int:
        """Return how many jobs are worth a call while others wait here: as many as cost what the call does, or most of
        those that there is ever room for.
        """
        sizer = queue.sizer
        most = min(sizer.size, int(self._pace.rate * max(AHEAD_MS, sizer.call_ms)) // 2)
        worth = int(sizer.call_ms / sizer.job_ms) if sizer.job_ms else 0
        return max(min(worth, most), min(self._threads.size, sizer.size))

    def _look(self, queue: QueueState, room: Room, had_others: bool) -> Plan:
        if not had_others:
            return Plan(min(max(room), queue.sizer.size), room)
        again_ms = queue.had_ms + LOOK_PAUSE_MS
        if monotonic_ms() < again_ms:
            self._look_ms = min(self._look_ms, again_ms)
            return NOTHING
        return Plan(LOOK_PAST, room)

    def _order(self) -> list[QueueState]:
        ready = [queue for queue in self.queues.values() if queue.is_ready]
        if len(ready) < 2:
            return ready
        if self._is_weighted:
            # A weighted shuffle: each queue leads as often as its weight says.
            ready.sort(
                key=lambda queue: random.random() ** (1 / queue.weight), reverse=True
            )
        # What was asked ahead is ours already; and while it may hold a suspect, no other queue gives us one.
        ready.sort(key=lambda queue: queue.under_way is None)
        return ready

    def _claim_round(self) -> bool:
        """Claim from the queues that may have something, in order; False: wait for something to happen."""
        is_progress = is_enough = is_later = False
        self._look_ms = float("inf")
        for queue in self._order():
            plan = self._plan(queue, is_enough=is_enough, is_later=is_later)
            if not plan.limit and not self._settlement.is_refused(queue.settings.name):
                # It waits for room. One behind it, whose calls are worth less of it, must not take that away.
                is_later = True
            is_transfer = queue.is_due and queue.mode is Mode.SHARED
            if not plan.limit and not is_transfer and queue.under_way is None:
                # It stays ready.
                continue
            # The next reply is waited for, too.
            self._threads.wake()
            try:
                self._claim(queue, plan)
            except Exception as error:
                if isinstance(error, (RedisError, OSError)) and not is_queues_own(
                    error
                ):
                    raise
                self._set_aside(queue, error)
                continue
            if plan.limit and queue.is_ready and plan.only is None:
                # It has more. Whose turn it is now is decided anew; for others there are only transfers.
                is_enough = True
            is_progress = is_progress or (
                queue.is_ready if plan.limit else queue.is_due
            )
        return is_progress

    def _set_aside(self, queue: QueueState, error: Exception) -> None:
        """One queue's keys are of the wrong type, or forbidden: the others go on, and it is tried again."""
        self._note_reply()
        if str(error) != queue.problem:
            logger.error(
                "queue %s cannot be served, trying again: %s",
                queue.settings.name,
                redact(str(error)),
                exc_info=not isinstance(error, RedisError),
            )
        queue.problem = str(error)
        queue.is_ready = queue.is_due = False
        queue.next_ms = queue.next_us = float("inf")
        queue.open_request = None
        self.alarm.ring_in(queue.settings.name, -1)

    def _claim(self, queue: QueueState, plan: Plan) -> None:
        settings = queue.settings
        is_ahead = queue.under_way is not None
        asked = queue.under_way or self._ask(queue, plan)
        queue.under_way = None
        limit, sent_ms, read_ms = asked.plan.limit, asked.sent_ms, monotonic_ms()
        # Where this fails the request stays open, and is repeated.
        reply = asked.call.finish()
        if reply is None:
            # More is to be done, and nothing was.
            queue.few_misses += 1
            if queue.few_misses > 1:
                queue.few_from_ms = sent_ms + NOT_FEW_MS
            asked, is_ahead = self._ask(queue, asked.plan), False
            sent_ms = asked.sent_ms
            reply = asked.call.finish()
            assert reply is not None
        elif not asked.is_whole:
            queue.few_misses = 0
        if asked.is_whole and reply.jobs:
            queue.few_till_ms = sent_ms + self._worker.lease_ms / FEW_A_LEASE
        self._note_reply()
        since_ms = queue.open_since_ms
        queue.open_request = None
        if queue.problem:
            logger.warning("queue %s is served again", settings.name)
            queue.problem = ""
        if self._is_newer(queue, reply.newer_format):
            return
        now_ms = monotonic_ms()
        if not is_ahead or now_ms - read_ms > NOTICEABLE * (now_ms - sent_ms):
            # A reply that lay there already says nothing of how long the server took.
            queue.sizer.learn(len(reply.jobs), now_ms - sent_ms)
            queue.transfer_sizer.learn(reply.transferred, now_ms - sent_ms)
        queue.is_due = reply.wait_us == 0
        queue.next_ms = queue.next_us = float("inf")
        if reply.wait_us > 0:
            queue.next_ms = now_ms + reply.wait_us / 1000
            queue.next_us = reply.now_us + reply.wait_us
        # The script reads the server's clock as it begins, nearer to the sending of the call than to its reply: from the
        # middle on, the wait is hardly ever too short.
        told_ms = now_ms if is_ahead else (sent_ms + now_ms) / 2
        self.alarm.ring_in(settings.name, reply.wait_us or -1, told_ms)
        if limit:
            # A call without room says nothing of what waits for room: the queue stays ready, and the watch, which
            # would see the same elements over and over, is left alone.
            queue.is_ready = queue.is_due
            if not queue.is_ready and not queue.is_watched:
                queue.is_watched = True
                self._arm(queue)
        if reply.doubles:
            logger.warning(
                "queue %s: %d payloads dropped, their jobs are known already",
                settings.name,
                reply.doubles,
            )
        if reply.vanished:
            logger.error(
                "queue %s: %d jobs dropped, their payloads are gone from %s: somebody deleted them",
                settings.name,
                reply.vanished,
                settings.keys.payloads,
            )
        # Nothing may come between a reply and its jobs: whatever goes wrong with this is kept for `finish`.
        self._ask_ahead(queue, reply.jobs)
        if reply.jobs:
            middle_ms = sent_ms if is_ahead else told_ms
            middle_ms += boottime_ms() - monotonic_ms()
            lease_end_ms = since_ms + self._worker.lease_ms
            offset_ms = reply.now_us / 1000 - middle_ms
            self._hand_out(queue, reply, asked.plan.only, lease_end_ms, offset_ms)
        elif limit:
            queue.had_sync = queue.had_async = False
        if reply.put_off:
            self._suspects_put_off += reply.put_off
            until_ms = now_ms + asked.put_off_ms + PUT_OFF_SLACK_MS
            self._put_off_until_ms = max(self._put_off_until_ms, until_ms)
        if is_ahead or queue.under_way is not None:
            self._threads.wake()
        if self._stop_ms is not None:
            return
        is_soon = now_ms < queue.next_ms < now_ms + AHEAD_MS
        is_looked_at = now_ms >= queue.look_at_held_ms and not is_soon
        if is_looked_at or now_ms >= queue.upkeep.next_ms:
            self._threads.wake()
            self._line.rest()
        if is_looked_at:
            try:
                self._look_at_held(queue, now_ms)
            except RedisError as error:
                queue.look_at_held_ms = now_ms + ROUND_MS
                queue.upkeep.note(error)
        if now_ms >= queue.upkeep.next_ms:
            queue.upkeep.turn(now_ms)

    def _is_newer(self, queue: QueueState, newer: int) -> bool:
        """Whether the queue has a later format than we read: then it is left alone, and looked at now and then."""
        if newer != queue.newer_format:
            queue.newer_format = newer
            if newer:
                # It claims nothing and looks after nothing there until it is another.
                logger.error("%s", claiming.newer_format(queue.settings.name, newer))
            else:
                logger.warning("queue %s is claimed from again", queue.settings.name)
        if newer:
            queue.is_ready = queue.is_due = False
            queue.next_ms = queue.next_us = float("inf")
            self.alarm.ring_in(queue.settings.name, -1)
        return newer > 0

    def _arm(self, queue: QueueState) -> None:
        try:
            self._watch(queue.settings.name)
        except RuntimeError as error:
            # The jobs of this reply are not handed out yet, and would be nobody's.
            self.cannot_work(f"the watch of a destination queue: {error}")

    def _ask(self, queue: QueueState, plan: Plan) -> Asked:
        sent_ms = monotonic_ms()
        settings = queue.settings
        if (
            queue.open_request is None
            and plan.limit
            and queue.few_from_ms < sent_ms < queue.few_till_ms
            and queue.mode is Mode.DIRECT
        ):
            queue.open_request, queue.open_since_ms = os.urandom(8), boottime_ms()
            few = claiming.claim_few(
                settings.keys,
                owner=self._owner,
                request=queue.open_request,
                limit=plan.limit,
                lease_ms=self._worker.lease_ms,
                frame_format=settings.frame_format,
            )
            # It puts nothing off.
            return Asked(self._line.ask(few), plan, sent_ms, 0.0, False)
        put_off_ms = self._put_off_ms()
        # Kept until a reply comes: only the same request again brings back leases that were given to a lost reply.
        # The leases begin no earlier than it was first sent.
        if queue.open_request is None:
            queue.open_request, queue.open_since_ms = os.urandom(8), boottime_ms()
        call = claiming.claim(
            settings.keys,
            owner=self._owner,
            request=queue.open_request,
            limit=plan.limit,
            lease_ms=self._worker.lease_ms,
            mode=queue.mode,
            transfer_limit=queue.transfer_sizer.size,
            max_kills=self._worker.max_kills,
            safe_kills=self._safe_kills,
            takes_suspect=self._takes_suspect(queue),
            put_off_ms=put_off_ms,
            frame_format=settings.frame_format,
        )
        return Asked(self._line.ask(call), plan, sent_ms, put_off_ms, True)

    def _ask_ahead(self, queue: QueueState, jobs: Sequence[Leased]) -> None:
        """Send the next claim before the jobs of the last are handed out, where there is more and room for it."""
        if not queue.is_ready or queue.mode is not Mode.DIRECT:
            return
        if self._stop_ms is not None or self._jobs_left is not None:
            return
        if any(other.is_ready for other in self.queues.values() if other is not queue):
            # Whose turn it is then is not decided yet.
            return
        room = self._common(self._room(queue.sizer.call_ms, len(jobs)))
        if room < self._enough(queue):
            return
        # With a suspect among them the next claim must not bring another, and nobody knows of this one yet.
        if all(job.kills <= self._safe_kills for job in jobs):
            queue.under_way = self._ask(queue, Plan(min(room, queue.sizer.size)))
            self._line.flush()

    def _take_under_way(self) -> None:
        """Read the replies to what was asked ahead: those jobs are ours, and nobody else would give them back."""
        for queue in self.queues.values():
            if queue.under_way is not None:
                try:
                    self._claim(queue, NOTHING)
                except Exception as error:
                    queue.open_request = None
                    logger.warning(
                        "queue %s: no reply to the last claim, its leases end by themselves: %s",
                        queue.settings.name,
                        error,
                    )

    def _hand_out(
        self,
        queue: QueueState,
        reply: Claimed,
        only: Room | None,
        lease_end_ms: float,
        offset_ms: float,
    ) -> None:
        safe_kills = self._safe_kills
        self._is_confirmed = False
        is_stopping = self._stop_ms is not None
        left = list(only or ())
        had = [False, False]
        put_back: list[Attempt] = []
        begun, is_async = 0, False
        # Each job costs what stands in this loop: nothing is looked up in it that stays the same.
        settings, async_names = queue.settings, self._async_names
        running, submit = self._running, self._threads.submit
        self._note_busy()
        for leased in reply.jobs:
            attempt = Attempt(settings, leased, lease_end_ms, offset_ms)
            running[attempt] = None
            if async_names:
                is_async = attempt.is_async = self._is_async(queue, leased)
            had[is_async] = True
            if is_stopping or (left and not left[is_async]):
                put_back.append(attempt)
                continue
            if left:
                left[is_async] -= 1
            if leased.kills > safe_kills:
                self._take_suspect(attempt)
            elif is_async:
                self._begin(attempt)
            else:
                begun += 1
                submit(attempt)
        queue.had_sync, queue.had_async = had
        queue.had_ms = monotonic_ms()
        if begun:
            self._submitted_ms = queue.had_ms
            if self._jobs_left is not None:
                self._jobs_left -= begun
        if put_back:
            self._give_back(put_back)
            # They wait there.
            queue.is_ready = True

    def _is_async(self, queue: QueueState, leased: Leased) -> bool:
        """Guess where a job belongs. A wrong guess costs it a detour through a thread, where its payload is decoded."""
        if leased.is_foreign:
            handler = get_handler(queue.settings.name)
            return handler is not None and handler.is_async
        return peek_task(leased.payload) in self._async_names

    def _begin(self, attempt: Attempt) -> None:
        if self._jobs_left is not None:
            self._jobs_left -= 1
        if attempt.is_async:
            self._submit_async(attempt)
        else:
            self._submitted_ms = monotonic_ms()
            self._threads.submit(attempt)
            self._threads.wake()

    def _submit_async(self, attempt: Attempt) -> None:
        self._submitted_async_ms = monotonic_ms()
        try:
            self._coroutines.submit(attempt)
        except RuntimeError as error:
            # It is given back with whatever else has not begun.
            self.cannot_work(f"the event loop: {error}")

    def _take_suspect(self, attempt: Attempt) -> None:
        """Take in a job that may have killed its workers: it is begun when all else is settled."""
        self._suspect = self._held_suspect = attempt
        self._suspect_since_ms = monotonic_ms()
        self._suspects_put_off = 0

    def _takes_suspect(self, queue: QueueState) -> bool:
        """Whether a claim may lease a job that may have killed its workers.

        Whoever dies takes all that is leased here along. Two such jobs are never here together: else those that only
        happened to be there would be killed with the culprit, as often as it is, and become dead letters with it.
        A claim whose reply is still to come may have leased one.
        """
        return not self._has_suspect() and all(
            other is queue or other.open_request is None
            for other in self.queues.values()
        )

    def _put_off_ms(self) -> int:
        """Return for how long such jobs are put off, so that others find room meanwhile.

        The longer the one that runs takes, and the more of them there are, the longer.
        """
        least_ms, most_ms = SUSPECT_MS
        if not self._has_suspect():
            return round(least_ms)
        ran_ms = min(monotonic_ms() - self._suspect_since_ms, most_ms)
        wait_ms = max(least_ms, ran_ms, SUSPECT_EACH_MS * self._suspects_put_off)
        return round(min(wait_ms, SUSPECT_MOST_MS))

    def _has_suspect(self) -> bool:
        suspect = self._suspect
        # One that lost its lease before it began has no outcome, and is settled all the same.
        return (
            suspect is not None and suspect.verdict is None and suspect in self._running
        )

    def _look_at_held(self, queue: QueueState, now_ms: float) -> None:
        """Let held jobs run whose tasks are known here, as many as this process can soon start.

        Other workers are not woken: those that do not know the tasks would only hold the jobs again.
        """
        keys = queue.settings.keys
        queue.look_at_held_ms = now_ms + LOOK_AT_HELD_MS
        if not self._client.zcard(keys.held):
            return
        names = [task.name for task in all_tasks()]
        keyring = get_keyring()
        names += [f"key {key}" for key in keyring.ids]
        # A version that did not read it may have held what this one does.
        names += [f"format {format}" for format in keyring.formats]
        if get_handler(queue.settings.name) is not None:
            names.append("")
        limit = max(self._threads.size, self._common(self._room()))
        call = holding.release(keys, names, limit=limit, cursor=queue.held_cursor)
        reply = run(self._client, call)
        queue.held_cursor = reply.cursor
        if reply.released:
            queue.is_ready = True
        if reply.released >= limit or (reply.released and reply.cursor):
            # There may be more. The next claim finds out, when there is room again.
            queue.look_at_held_ms = now_ms
        if reply.quarantined:
            logger.error(
                "queue %s: %d jobs went to quarantine: they were held, and no worker that knows their tasks came in time",
                queue.settings.name,
                reply.quarantined,
            )

    # Settling.

    def _settle(self, *, force: bool, is_last: bool = False) -> None:
        """Tell the server what has ended, and wait for its reply."""
        self._tell_ends(force=force, is_last=is_last)
        self._learn_ends()

    def _tell_ends(self, *, force: bool = False, is_last: bool = False) -> None:
        """Make the calls that tell the server what has ended; they go out with the next claim, or `_learn_ends`."""
        if not self._settlement:
            return
        now_ms = monotonic_ms()
        if not force and self._queued() and len(self._ended) < SETTLE_BATCH:
            if self._settle_ms is None:
                self._settle_ms = now_ms + SETTLE_AFTER_MS
            if now_ms < self._settle_ms:
                return
        self._settle_ms = None
        if not is_last and not self._settlement.is_waiting:
            again_ms = self._settlement.next_ms()
            if again_ms is not None and now_ms < again_ms:
                return
        self._settlement.tell(force=is_last)
        self._note_busy()
        self._has_told = True

    def _learn_ends(self) -> None:
        """Take in what the server said to that."""
        if not self._has_told:
            return
        self._has_told = False
        settled, failure = self._settlement.learn()
        count = 0
        running, is_told = self._running, logger.isEnabledFor(logging.INFO)
        for attempt in settled:
            running.pop(attempt, None)
            if attempt.verdict is Verdict.SUCCEED:
                count += 1
                if not is_told and not attempt.is_lost:
                    continue
            elif attempt.verdict is not Verdict.GIVE_BACK:
                # What is given back without being run says nothing of how long jobs take.
                count += 1
            attempt.log()
        self._finished += count
        is_busy = self._threads.queued() > 0 or count >= self._threads.size
        self._pace.measure(count, is_busy=is_busy)
        if failure is not None:
            raise failure
        self._note_reply()

    def _note_busy(self) -> None:
        """Note until when jobs were there to be run."""
        now_ms = until_ms = monotonic_ms()
        if not self._threads.queued():
            until_ms += self._settlement.last_ended_ms - boottime_ms()
        self._pace.note(now_ms, until_ms)

    # The end.

    def _return_queued(self) -> None:
        """Give back what was not begun."""
        attempts = self._threads.take_back() + self._coroutines.take_back()
        while self._found_async:
            attempts.append(self._found_async.popleft())
        self._unbegin(attempts)
        if self._held_suspect is not None:
            self._give_back([self._held_suspect])
            self._held_suspect = None

    def _unbegin(self, attempts: list[Attempt]) -> None:
        """Give back what was counted as begun, and was not."""
        if self._jobs_left is not None:
            self._jobs_left += len(attempts)
        self._give_back(attempts)

    def _give_back(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            attempt.give_back()
            self._ended.append(attempt)

    def end(self, before_giving_back: Callable[[], None]) -> None:
        """Settle, and give back what still runs: the process is about to end.

        That comes last, and ``before_giving_back`` is for all else that takes time: from then on another worker may
        run the same jobs.

        Raises:
            redis.exceptions.RedisError, OSError: the server is not there; the leases end by themselves.
        """
        self._return_queued()
        for attempt in self._stuck:
            if attempt in self._running and attempt.verdict is None:
                attempt.give_up()
                self._ended.append(attempt)
        hopeless = self._hopeless()
        running = [
            attempt
            for attempt in self._running
            if attempt.verdict is None and attempt not in hopeless
        ]
        self._settle(force=True, is_last=True)
        for attempt in running:
            if attempt.verdict is None:
                attempt.give_back()
                attempt.log()
                self._ended.append(attempt)
        before_giving_back()
        if self._settlement:
            self._settlement.settle(force=True)
        self._leave()

    def _leave(self) -> None:
        """Forget the last requests of this process: each would stay as long as its queue."""
        self._line.rest()
        calls = [
            claiming.leave(queue.settings.keys, owner=self._owner)
            for queue in self.queues.values()
        ]
        try:
            replies = run_all(self._client, calls)
        except (RedisError, OSError) as error:
            replies = [error]
        for reply in replies:
            if isinstance(reply, Exception):
                logger.info("a last request stays until it is swept: %s", reply)

    def _orphans(self) -> list[Attempt]:
        """Return what runs nowhere, because what ran it has died: its lease is left to end, as that of a dead process."""
        if not self._inability:
            return []
        return self._threads.orphans() + self._coroutines.orphans()

    def _hopeless(self) -> list[Attempt]:
        """Return the orphans, and what runs on an executor that gives no sign of life."""
        attempts = self._orphans()
        for executor in (self._threads, self._coroutines):
            if executor.is_stuck:
                attempts += executor.attempts()
        return attempts

    @property
    def finished(self) -> int:
        """How many jobs have run here."""
        return self._finished

    @property
    def is_stuck(self) -> bool:
        return bool(self._stuck)

    @property
    def is_unable(self) -> bool:
        """Whether something that runs jobs has died."""
        return bool(self._inability)

    @property
    def has_problem(self) -> bool:
        """Whether a queue could not be served."""
        return bool(self._settlement) or any(
            queue.problem or queue.newer_format for queue in self.queues.values()
        )
