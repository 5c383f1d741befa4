"""What runs the jobs of a process, and the jobs that it has: each goes to a thread or to the event loop.

Unless a comment says otherwise, the claim loop's thread owns everything here.
"""

from collections import deque
from collections.abc import Callable

from django_delayq.clock import monotonic_ms
from django_delayq.delivery.claiming import Leased
from django_delayq.jobs.envelope import peek_task, task_text
from django_delayq.jobs.registry import all_tasks, get_handler
from django_delayq.logs import get_log
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.loop_executor import LoopExecutor
from django_delayq.worker.thread_executor import ThreadExecutor

logger = get_log("django_delayq.worker")


class Crew:
    """Both executors of a process, and every attempt that was claimed and is not settled."""

    def __init__(
        self,
        threads: ThreadExecutor,
        coroutines: LoopExecutor,
        *,
        max_jobs: int | None,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` ends the wait of the claim loop."""
        self.threads = threads
        self.coroutines = coroutines
        #: Every attempt that was claimed and is not settled. Other threads take a `snapshot`.
        self.running: dict[Attempt, None] = {}
        #: How many jobs may still begin here; None: no limit.
        self.jobs_left = max_jobs
        #: Async jobs are recognised by their task's name alone: the claim loop must not spend time on decoding
        #: payloads.
        self.async_names = frozenset(
            task_text(task.name) for task in all_tasks() if task.is_async
        )
        #: When the threads were last given an attempt, and the coroutines.
        self.submitted_ms = self.submitted_async_ms = 0.0
        self._wake = wake
        # Attempts that a thread has read, and that belong on the event loop: threads append, the loop takes.
        self._found_async: deque[Attempt] = deque()
        #: Attempts that ignore their time limit: appended by the timer's thread.
        self.stuck: list[Attempt] = []
        # Why this process cannot run what it claims, or "" if it can. Set once, by any thread.
        self._inability = ""

    # From other threads.

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
        if not self._inability:
            self._inability = why
            logger.error("this process cannot continue and will be replaced: %s", why)
        self._wake()

    def found_async(self, attempt: Attempt) -> None:
        """Accept an attempt that a thread has read and that belongs on the event loop."""
        self._found_async.append(attempt)
        self._wake()

    @property
    def is_unable(self) -> bool:
        """Whether something that runs jobs has died."""
        return bool(self._inability)

    # From the claim loop.

    def queued(self) -> int:
        """How many attempts were handed out and not begun."""
        return self.threads.queued() + self.coroutines.queued()

    def is_async(self, queue: str, leased: Leased) -> bool:
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

    def note_submitted(self, count: int, now_ms: float) -> None:
        """Count attempts that were handed to the threads without `begin`, which is too slow for many."""
        self.submitted_ms = now_ms
        if self.jobs_left is not None:
            self.jobs_left -= count

    def submit_found(self) -> None:
        """Hand the event loop the attempts that threads have found to belong there."""
        while self._found_async:
            self._submit_async(self._found_async.popleft())

    def _submit_async(self, attempt: Attempt) -> None:
        self.submitted_async_ms = monotonic_ms()
        try:
            self.coroutines.submit(attempt)
        except RuntimeError as error:
            # The attempt is given back with all others that have not begun.
            self.cannot_work(f"the event loop: {error}")

    def take_back(self) -> list[Attempt]:
        """Return the attempts that were handed out and not begun, and uncount them."""
        attempts = self.threads.take_back() + self.coroutines.take_back()
        while self._found_async:
            attempts.append(self._found_async.popleft())
        return self.uncount(attempts)

    def uncount(self, attempts: list[Attempt]) -> list[Attempt]:
        """Uncount attempts that were counted as begun but have not begun; return them."""
        if self.jobs_left is not None:
            self.jobs_left += len(attempts)
        return attempts

    def orphans(self) -> list[Attempt]:
        """Return attempts whose thread or loop has died. Their leases are left to end, like those of a dead process."""
        if not self._inability:
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
