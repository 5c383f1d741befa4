"""The way of claimed jobs to the threads and the event loop that run them, and every job that has not been settled.

Unless a comment says otherwise, the claim loop's thread owns everything here.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from django_delayq import conf
from django_delayq.clock import monotonic_ms
from django_delayq.conf import WorkerSettings
from django_delayq.core.claim import Claimed, Leased
from django_delayq.jobs.envelope import peek_task, task_text
from django_delayq.jobs.middleware import compose
from django_delayq.jobs.registry import all_tasks, get_handler
from django_delayq.jobs.stop import Stop
from django_delayq.logs import get_log
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.loop_executor import LoopExecutor
from django_delayq.worker.queue_state import QueueState, Room
from django_delayq.worker.thread_executor import Shared, ThreadExecutor
from django_delayq.worker.time_limit import Timer

logger = get_log("django_delayq.worker")

#: So many ended attempts are worth a call while jobs still wait in this process.
SETTLE_BATCH = 100
#: How long an ended attempt waits for others, at most.
SETTLE_AFTER_MS = 5.0
#: A suspect is put off while another one runs here: for as long as that one has run, from the first to the second of
#: these limits. If many are put off, longer: the next figure for each of them, up to the last.
SUSPECT_MS = (20.0, 1_000.0)
SUSPECT_EACH_MS = 5.0
SUSPECT_MOST_MS = 10_000.0
#: In burst mode a worker waits for suspects that were put off, and so much longer, as giving back takes time.
PUT_OFF_SLACK_MS = 1_000.0
#: How long there must have been jobs to run before their number shows how fast they are.
MEASURED_MS = 1.0


class Pace:
    """Learns how many jobs per ms the threads of a process finish while they have jobs.

    Time spent waiting for more does not count: it only shows how long a call takes.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again: what was learnt turned out to be wrong."""
        #: Jobs per ms; 0: not known yet.
        self.rate = 0.0
        # Since the last measurement: how long there were jobs, until when that is known, and how many have ended.
        self._busy_ms, self._noted_ms = 0.0, float("inf")
        self._ended = 0
        self._is_busy = False

    def note(self, now_ms: float, until_ms: float) -> None:
        """Note until when there were jobs. Call this before jobs are handed out, and when some are settled."""
        self._busy_ms += max(0.0, until_ms - self._noted_ms)
        self._noted_ms = now_ms

    def measure(self, count: int, *, is_busy: bool) -> None:
        """Count settled jobs. If they ended before all threads had a job (not ``is_busy``), leave them out."""
        self._ended += count
        is_measured = self._is_busy and self._busy_ms >= MEASURED_MS
        if is_measured:
            rate = self._ended / self._busy_ms
            self.rate += 0.3 * (rate - self.rate) if self.rate else rate
        if is_measured or not self._is_busy:
            self._busy_ms, self._ended = 0.0, 0
        self._is_busy = is_busy


class Dispatch:
    """Both executors of a process, and every attempt that was claimed and is not settled."""

    def __init__(
        self,
        worker: WorkerSettings,
        *,
        wake: Callable[[], None],
        report: Callable[[Attempt, bytes], None],
        max_jobs: int | None = None,
        follows_death: bool = False,
    ) -> None:
        """Make the executors; `start` starts them.

        ``wake`` ends the wait of the claim loop. ``report`` takes how far a running job is. ``follows_death``: a process
        of this worker has died.
        """
        self._wake = wake
        self._timer = Timer("delayq-time-limits")
        #: Notifies the jobs when the process is to end.
        self.stop = Stop()
        shared = Shared(
            timer=self._timer,
            stop=self.stop,
            done=self.job_ended,
            stuck=self.job_stuck,
            died=self.cannot_work,
            found_async=self.found_async,
            around=compose(conf.get_settings()),
            report=report,
        )
        self.threads = ThreadExecutor(worker.threads, shared)
        self.coroutines = LoopExecutor(worker.coroutines, shared)
        #: Every attempt that was claimed and is not settled. Other threads take a `snapshot`.
        self.running: dict[Attempt, None] = {}
        #: Attempts with a verdict: the threads that run jobs append, the loop pops. A deque needs no lock for that.
        self.ended: deque[Attempt] = deque()
        #: When the waiting loop will look again by itself: a job that ends before then need not wake it. Written by the
        #: loop, read by the threads that run jobs.
        self.awake_ms = 0.0
        self.suspects = Suspects(
            self.running, max_kills=worker.max_kills, follows_death=follows_death
        )
        #: How many jobs may still begin here; None: no limit.
        self.jobs_left = max_jobs
        #: Whether jobs have come since the loop last set this to False.
        self.has_had_jobs = True
        #: Async jobs are recognised by their task's name alone: the claim loop must not spend time on decoding
        #: payloads.
        self.async_names = frozenset(
            task_text(task.name) for task in all_tasks() if task.is_async
        )
        #: When the threads were last given an attempt, and the coroutines.
        self.submitted_ms = self.submitted_async_ms = 0.0
        #: Attempts that a thread has read, and that belong on the event loop: threads append, the loop takes.
        self.waiting_async: deque[Attempt] = deque()
        #: Attempts that ignore their time limit: appended by the timer's thread.
        self.stuck: list[Attempt] = []
        #: Why this process cannot run what it claims, or "" if it can. Set once, by any thread.
        self.inability = ""

    def start(self) -> None:
        """Start the threads.

        Raises:
            RuntimeError: the machine gives no more threads.
        """
        self._timer.start()
        self.threads.start()

    def close(self) -> None:
        """End the timer, if the process itself continues."""
        self._timer.stop()

    # From other threads.

    def job_ended(self, attempt: Attempt) -> None:
        """Accept an attempt that has a verdict."""
        ended = self.ended
        ended.append(attempt)
        # The loop soon looks by itself, and does so while jobs are queued: see `ClaimLoop._wait`.
        if len(ended) >= SETTLE_BATCH or (
            monotonic_ms() + SETTLE_AFTER_MS < self.awake_ms
            and not self.threads.queued()
        ):
            self._wake()

    def snapshot(self) -> list[Attempt]:
        """Return every attempt that was claimed and is not settled. The interpreter makes the copy in one step."""
        return list(self.running)

    def job_stuck(self, attempt: Attempt) -> None:
        """Note that a task ignores its time limit: this process has to be replaced."""
        attempt.is_stuck = True
        self.stuck.append(attempt)
        logger.error(
            "job %s (%s) does not react to its time limit; this process will be replaced",
            attempt.id,
            attempt.name,
        )
        self._wake()

    def cannot_work(self, why: str) -> None:
        """Note that something that runs jobs has died: this process has to be replaced."""
        if not self.inability:
            self.inability = why
            logger.error("this process cannot continue and will be replaced: %s", why)
        self._wake()

    def found_async(self, attempt: Attempt) -> None:
        """Accept an attempt that a thread has read and that belongs on the event loop."""
        self.waiting_async.append(attempt)
        self._wake()

    # From the claim loop.

    def hand_out(
        self,
        queue: QueueState,
        reply: Claimed,
        only: Room | None,
        lease_end_ms: float,
        offset_ms: float,
    ) -> None:
        """Begin the jobs of a reply, and give back those that must not begin.

        ``only``: how many of each kind may begin; None: all. ``lease_end_ms`` is by `boottime_ms`; adding ``offset_ms``
        to that clock gives the server's.
        """
        self.has_had_jobs = True
        left = list(only or ())
        had = [False, False]
        put_back: list[Attempt] = []
        begun, is_async = 0, False
        # Every job pays for each line of this loop, so what stays the same is looked up before it.
        settings, name, gates = queue.settings, queue.settings.name, queue.gates
        async_names, safe_kills = self.async_names, self.suspects.safe_kills
        running, submit = self.running, self.threads.submit
        for leased in reply.jobs:
            attempt = Attempt(settings, leased, lease_end_ms, offset_ms, gates)
            running[attempt] = None
            if async_names:
                is_async = attempt.is_async = self._is_async(name, leased)
            had[is_async] = True
            if left:
                if not left[is_async]:
                    put_back.append(attempt)
                    continue
                left[is_async] -= 1
            if leased.kills > safe_kills:
                if leased.kills > self.suspects.max_kills:
                    # It does not run, and so endangers nobody.
                    attempt.is_out_of_kills = True
                    self.begin(attempt)
                else:
                    self.suspects.take_in(attempt)
            elif is_async:
                self.begin(attempt)
            else:
                begun += 1
                submit(attempt)
        queue.had_sync, queue.had_async = had
        queue.had_ms = monotonic_ms()
        if begun:
            self.submitted_ms = queue.had_ms
            if self.jobs_left is not None:
                self.jobs_left -= begun
        if put_back:
            self.give_back(put_back)
            # The jobs that were given back wait in the queue.
            queue.is_ready = True

    def _is_async(self, queue: str, leased: Leased) -> bool:
        """Guess whether a job is async. A wrong guess costs a detour through a thread, which decodes the payload."""
        if leased.is_foreign:
            handler = get_handler(queue)
            return handler is not None and handler.is_async
        return peek_task(leased.payload) in self.async_names

    def begin(self, attempt: Attempt) -> None:
        if self.jobs_left is not None:
            self.jobs_left -= 1
        if attempt.is_async:
            self._submit_async(attempt)
        else:
            self.submitted_ms = monotonic_ms()
            self.threads.submit(attempt)
            self.threads.wake()

    def submit_found(self) -> None:
        """Hand the event loop the attempts that threads have found to belong there."""
        while self.waiting_async:
            self._submit_async(self.waiting_async.popleft())

    def _submit_async(self, attempt: Attempt) -> None:
        self.submitted_async_ms = monotonic_ms()
        try:
            self.coroutines.submit(attempt)
        except RuntimeError as error:
            # The attempt is given back with all others that have not begun.
            self.cannot_work(f"the event loop: {error}")

    def queued(self) -> int:
        """How many attempts were handed out and not begun."""
        return self.threads.queued() + self.coroutines.queued()

    def give_back(self, attempts: Iterable[Attempt]) -> None:
        """Have it reported to the server that these attempts were not run."""
        for attempt in attempts:
            attempt.give_back()
            self.ended.append(attempt)

    def give_back_unbegun(self, attempts: list[Attempt]) -> None:
        """Do as `give_back` for attempts that were handed out, and were counted as begun."""
        if self.jobs_left is not None:
            self.jobs_left += len(attempts)
        self.give_back(attempts)

    def give_back_queued(self) -> None:
        """Give back every attempt that has not begun."""
        attempts = self.threads.take_back() + self.coroutines.take_back()
        while self.waiting_async:
            attempts.append(self.waiting_async.popleft())
        self.give_back_unbegun(attempts)
        if (held := self.suspects.take_held()) is not None:
            self.give_back([held])

    def orphans(self) -> list[Attempt]:
        """Return attempts whose thread or loop has died. Their leases are left to end, like those of a dead process."""
        if not self.inability:
            return []
        return self.threads.orphans() + self.coroutines.orphans()

    def hopeless(self) -> list[Attempt]:
        """Return the orphans, and the attempts on an executor that shows no sign of life."""
        attempts = self.orphans()
        for executor in (self.threads, self.coroutines):
            if executor.is_stuck:
                attempts += executor.attempts()
        return attempts

    def is_beyond_waiting(self) -> bool:
        """Whether nothing that still runs may end by itself."""
        orphans = self.orphans()
        return all(
            attempt.is_refused or attempt in self.stuck or attempt in orphans
            for attempt in self.running
        )


class Suspects:
    """Jobs that may have killed their workers: a process has one of them at a time.

    A process that dies takes everything it has leased with it. If two suspects were there together, the bystander would
    be killed as often as the culprit, and become a dead letter with it.

    Owned by the claim loop's thread.
    """

    def __init__(
        self,
        running: Mapping[Attempt, None],
        *,
        max_kills: int,
        follows_death: bool,
    ) -> None:
        """``running`` has every attempt that was claimed and is not settled.

        ``follows_death``: a process of this worker has died, and may have put jobs off.
        """
        self._running = running
        #: A job with more kills than this is not run any more.
        self.max_kills = max_kills
        #: A job with more kills than this is on its last chance, or on the one before.
        self.safe_kills = max(0, max_kills - 2)
        #: Due jobs may have been put off up to then: a worker in burst mode waits for them.
        self.put_off_until_ms = 0.0
        if follows_death:
            self.put_off_until_ms = monotonic_ms() + SUSPECT_MS[1] + PUT_OFF_SLACK_MS
        #: The suspect that is leased and not begun. All other ends are settled first, as it may kill us before that.
        self.held: Attempt | None = None
        self._latest: Attempt | None = None
        self._since_ms = 0.0
        # How many were put off since the latest suspect came.
        self._put_off = 0

    def take_in(self, attempt: Attempt) -> None:
        """Take in a leased suspect; it begins when all else is settled."""
        self._latest = self.held = attempt
        self._since_ms = monotonic_ms()
        self._put_off = 0

    def take_held(self) -> Attempt | None:
        """Return the suspect that is not begun, if any, and forget it."""
        held, self.held = self.held, None
        return held

    def has_one(self) -> bool:
        """Whether a suspect is leased here."""
        latest = self._latest
        # A suspect that lost its lease before it began is settled without a verdict.
        return latest is not None and latest.verdict is None and latest in self._running

    def were_put_off(self) -> bool:
        """Whether suspects were put off a moment ago, and may come again."""
        return monotonic_ms() < self.put_off_until_ms

    def may_come_from(self, queue: QueueState, queues: Iterable[QueueState]) -> bool:
        """Return whether a claim may lease a suspect: not while an unanswered claim of another queue may bring one."""
        return not self.has_one() and all(
            other is queue or other.open_request is None for other in queues
        )

    def put_off_ms(self) -> int:
        """Return how long to put suspects off, so that others find room meanwhile.

        The time grows with how long the present suspect has run, and with how many were put off.
        """
        least_ms, most_ms = SUSPECT_MS
        if not self.has_one():
            return round(least_ms)
        ran_ms = min(monotonic_ms() - self._since_ms, most_ms)
        wait_ms = max(least_ms, ran_ms, SUSPECT_EACH_MS * self._put_off)
        return round(min(wait_ms, SUSPECT_MOST_MS))

    def note_put_off(self, count: int, until_ms: float) -> None:
        """Record how many suspects a claim has put off, and until when."""
        self._put_off += count
        self.put_off_until_ms = max(self.put_off_until_ms, until_ms + PUT_OFF_SLACK_MS)
