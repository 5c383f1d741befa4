"""Where ``async def`` functions run: coroutines on one event loop, in a thread of its own."""

import asyncio
import asyncio.timeouts
import functools
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_delayq.exceptions import DecodeError
from django_delayq.jobs.context import running_job
from django_delayq.jobs.contexts import restored, warm
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.exception_text import class_name, text_of
from django_delayq.jobs.progress_report import running_report
from django_delayq.jobs.stop import running_stop
from django_delayq.logs import get_log
from django_delayq.signals import heard
from django_delayq.worker import job_signals, time_limit
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.django_connections import close_connections, make_caches
from django_delayq.worker.operating_system import end_child
from django_delayq.worker.payload import Read, read, read_if_quick
from django_delayq.worker.thread_executor import Shared, job_within, read_in_thread
from django_delayq.worker.time_limit import exceeds

logger = get_log("django_delayq.worker")

#: Threads that decode payloads which would hold up the event loop; they start when they are needed.
READERS = 4


class LoopExecutor:
    """Runs ``async def`` tasks on one event loop in a thread of its own."""

    what = "the event loop"

    def __init__(self, coroutines: int, shared: Shared) -> None:
        self.size = coroutines
        self._shared = shared
        self._done, self._around = shared.done, shared.around
        self._pid = os.getpid()
        self._is_over = False
        # Set by the watchdog.
        self.is_stuck = False
        self._is_asked = self._has_answered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Owned by the loop's thread.
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        # One for each job that runs, which begins in a copy of it, and those that no job uses now. Each has caches: jobs
        # that run at the same time share none, as not every cache bears that, and no job has to connect anew.
        self._bases: dict[Attempt, Context] = {}
        self._free_bases: list[Context] = []
        self._is_closed = False
        self._is_cancelling = False
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="delayq-read")
        # Attempts that wait for a free coroutine. The claim loop appends; both it and the event loop pop.
        self._waiting: deque[Attempt] = deque()
        # The context in which all jobs begin, so that none has to be told of the stop.
        self._context = copy_context()
        self._context.run(running_stop.set, shared.stop)
        self._context.run(running_report.set, shared.report)
        if shared.around is not None:
            self._context.run(warm, shared.around.travellers)
        # Two counters with one owner each, so that neither needs a lock.
        self._submitted = 0
        self._finished = 0

    def count(self) -> int:
        """How many attempts run or wait."""
        return self._submitted - self._finished

    def queued(self) -> int:
        """How many attempts were submitted and not begun."""
        return len(self._waiting)

    def take_back(self) -> list[Attempt]:
        """Return the attempts that were not begun."""
        attempts: list[Attempt] = []
        while True:
            try:
                attempts.append(self._waiting.popleft())
            except IndexError:
                break
        self._submitted -= len(attempts)
        return attempts

    def close(self) -> list[Attempt]:
        """Begin nothing more; return the attempts that were not begun."""
        self._is_closed = True
        return self.take_back()

    def submit(self, attempt: Attempt) -> None:
        """Run an attempt when a coroutine is free.

        Raises:
            RuntimeError: the loop cannot be started, or has ended; `take_back` returns the attempt with all others.
        """
        self._submitted += 1
        self._waiting.append(attempt)
        if self._loop is None:
            self._start()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, context=self._context.copy())

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._serve, args=(loop,), name="delayq-loop", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread = loop, thread

    def orphans(self) -> list[Attempt]:
        """Return the attempts that ran on a loop that has ended: nothing will end them."""
        if self._thread is None or self._thread.is_alive() or self._is_over:
            return []
        return list(self._running)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that run on the loop."""
        return list(self._running)

    def has_shown_life(self) -> bool:
        """Return whether the loop has answered since the last call, or was never started; ask it again."""
        loop = self._loop
        if loop is None or self._is_over:
            return True
        has_answered, self._has_answered = self._has_answered, False
        if not self._is_asked:
            self._is_asked = True
            try:
                loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                # The loop is closed.
                return False
        return has_answered

    def _answer(self) -> None:
        self._is_asked, self._has_answered = False, True

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._is_over:
                self._run_loop(loop)
            # This closes the clients of this loop as well.
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException as error:
            logger.exception("the event loop failed")
            if not self._is_over:
                self._shared.died(f"the event loop has ended: {class_name(error)}")
        finally:
            loop.close()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            # asyncio lets these two through if they come from a task that a job has started. Whoever awaits that task
            # gets them as well: they end that attempt, and leave the other jobs alone.
            logger.error(
                "a coroutine that a job has started raised %s; the worker continues",
                class_name(error),
            )

    def _begin(self) -> None:
        assert self._loop is not None
        while len(self._running) < self.size and not self._is_closed:
            try:
                attempt = self._waiting.popleft()
            except IndexError:
                return
            run = self._run(attempt)
            base = self._take_base()
            try:
                task = base.run(self._loop.create_task, run, name=attempt.id)
            except BaseException as error:
                # A job has set a task factory that fails. The waiting attempts are given back when the process ends.
                run.close()
                self._waiting.appendleft(attempt)
                self._shared.died(
                    f"the event loop starts no tasks: {class_name(error)}"
                )
                return
            self._running[attempt], self._bases[attempt] = task, base
            task.add_done_callback(functools.partial(self._end, attempt))

    def _take_base(self) -> Context:
        if self._free_bases:
            return self._free_bases.pop()
        base = self._context.copy()
        base.run(make_caches)
        return base

    def _end(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        # A finally in _run would not do: a task that is cancelled before its first step never gets there.
        if attempt.verdict is None and not attempt.is_lost:
            if attempt.started_ms:
                # Its end went missing, but the attempt has run; without an end it would run again for ever.
                attempt.fail(RuntimeError("the worker failed to note its end"))
            else:
                attempt.give_back()
        del self._running[attempt]
        self._free_bases.append(self._bases.pop(attempt))
        self._finished += 1
        self._done(attempt)
        self._begin()

    async def _run(self, attempt: Attempt) -> None:
        try:
            if await self._prepare(attempt) and attempt.may_start():
                await self._call(attempt)
        except BaseException as error:
            self._take(attempt, error)
        if heard.attempts:
            await self._send_end(attempt)

    async def _send_end(self, attempt: Attempt) -> None:
        """Tell of an attempt's end. Its receivers use the database as another task would."""
        running_job.set(attempt.job)
        async with ThreadSensitiveContext() as context:
            try:
                await job_signals.asend_end(attempt)
            finally:
                if context in SyncToAsync.context_to_thread_executor:
                    await sync_to_async(close_connections)()

    async def _prepare(self, attempt: Attempt) -> bool:
        if attempt.task is not None:
            # A thread has read the attempt, and found that it belongs here.
            return True
        if not attempt.holds_lease():
            return False
        result = await self._read(attempt)
        if not isinstance(result, BaseException) and not result[0].is_async:
            # A payload may name two tasks: `peek_task` sees the first, decoding the last. A sync task would block the
            # loop.
            payload = attempt.leased.payload
            result = DecodeError("not a job of ours: it names two tasks", payload)
        return attempt.take(result) is not None

    async def _read(self, attempt: Attempt) -> Read | BaseException:
        if (call := read_if_quick(attempt.queue, attempt.leased)) is not None:
            return call
        assert self._loop is not None
        try:
            reading = self._loop.run_in_executor(
                self._readers, read_in_thread, self._shared, attempt
            )
        except RuntimeError:
            # The machine gives no more threads: decoding here holds up the loop, but gets the job done.
            return read(attempt.queue, attempt.leased)
        return await reading

    def _take(self, attempt: Attempt, error: BaseException) -> None:
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if attempt.verdict is not None:
            # The error came after the task's own end: from closing its connections, or from stop().
            if not is_cancelled:
                logger.error(
                    "job %s: after its end: %s",
                    attempt.id,
                    text_of(error, attempt.secrets),
                )
        elif not is_cancelled:
            attempt.fail(error)
        elif self._is_cancelling:
            if attempt.is_stuck:
                attempt.give_up()
            else:
                attempt.give_back()
        else:
            # Only stop() cancels from outside.
            failure = RuntimeError("the task cancelled itself")
            attempt.fail(failure.with_traceback(error.__traceback__))

    async def _call(self, attempt: Attempt) -> None:
        task = attempt.task
        assert task is not None
        running_job.set(attempt.job)
        limit_s = attempt.time_limit_s
        overdue = None
        if limit_s is not None:
            # A coroutine that blocks the loop, or ignores its cancellation, cannot be ended.
            overdue = functools.partial(self._shared.stuck, attempt)
            self._shared.timer.call_later(limit_s + time_limit.STUCK_AFTER_S, overdue)
        try:
            # As in an ASGI request, everything that the task does through sync_to_async shares one thread, and its
            # connections end with the task.
            async with ThreadSensitiveContext() as context:
                try:
                    if heard.attempts:
                        await job_signals.asend_started(attempt)
                    value = await self._limited(attempt, limit_s)
                    if heard.attempts:
                        attempt.value = value
                    attempt.succeed(value)
                finally:
                    if os.getpid() != self._pid:
                        # Before it closes the parent's connections.
                        end_child()
                    # Most tasks have used no thread, and starting one costs more than all the rest.
                    if context in SyncToAsync.context_to_thread_executor:
                        await sync_to_async(close_connections)()
        finally:
            if overdue is not None:
                self._shared.timer.cancel(overdue)

    async def _limited(self, attempt: Attempt, limit_s: float | None) -> object:
        task = attempt.task
        assert task is not None
        around = self._around
        if around is not None:
            with restored(around.travellers, attempt):
                run: Callable[[], Awaitable[Any]] = functools.partial(
                    task.function, *attempt.args, **attempt.kwargs
                )
                if around.acall is not None:
                    run = functools.partial(around.acall, job_within(attempt, run))
                return await self._within_limit(run(), attempt, limit_s)
        call = task.function(*attempt.args, **attempt.kwargs)
        if limit_s is None:
            return await call
        return await self._within_limit(call, attempt, limit_s)

    async def _within_limit(
        self, call: Awaitable[Any], attempt: Attempt, limit_s: float | None
    ) -> object:
        if limit_s is None:
            return await call
        timeout = asyncio.timeout(limit_s)
        try:
            async with timeout:
                value = await call
        except BaseException as error:
            if not timeout.expired() or (
                isinstance(error, Decision) and not attempt.is_stuck
            ):
                raise
            if self._is_cancelling and isinstance(error, asyncio.CancelledError):
                # stop() broke off what the coroutine still did after its limit. `_take` gives it back.
                raise
            exceeded = exceeds(attempt.name, limit_s)
            cut = _cut_by_timeout(error)
            if cut is not None:
                # This error is asyncio's own, and `cut` shows the line where the task was cancelled.
                raise exceeded.with_traceback(cut.__traceback__) from None
            raise exceeded from error
        if attempt.is_stuck:
            raise exceeds(attempt.name, limit_s)
        return value

    def stop(self, timeout_s: float) -> None:
        """Cancel what still runs, wait up to ``timeout_s`` for it to notice, and end the loop if it did."""
        self.close()
        self._readers.shutdown(wait=False)
        if self._loop is None or self._thread is None:
            return
        # Every wait for the loop has a limit here, because a coroutine may be blocking it.
        ended = threading.Event()
        try:
            self._loop.call_soon_threadsafe(self._cancel_all, ended)
            if ended.wait(timeout_s):
                self._is_over = True
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(timeout_s)
        except RuntimeError:
            # The loop is closed: it has ended before, and what it ran is among its orphans.
            logger.warning("the event loop has ended already")

    def _cancel_all(self, ended: threading.Event) -> None:
        assert self._loop is not None
        self._is_cancelling = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        self._ending = self._loop.create_task(self._tell_end(tasks, ended))

    @staticmethod
    async def _tell_end(
        tasks: list["asyncio.Task[None]"], ended: threading.Event
    ) -> None:
        if tasks:
            await asyncio.wait(tasks)
        ended.set()


def _cut_by_timeout(error: BaseException) -> BaseException | None:
    """Return the cancellation that `asyncio.timeout` has turned into this error; None: the error is another's."""
    if not isinstance(error, TimeoutError):
        return None
    if error.__cause__ is None and _raised_in(error) == asyncio.timeouts.__file__:
        # The first versions of 3.11 name no cause.
        return error.__context__
    return error.__cause__


def _raised_in(error: BaseException) -> str:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else traceback.tb_frame.f_code.co_filename
