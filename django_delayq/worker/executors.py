"""Where the functions run: sync ones in threads, ``async def`` ones on an event loop.

Both take attempts, and hand each to ``done`` when it has an outcome. Database connections are handled as Django
handles them around a request.
"""

import asyncio
import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs.context import running_job
from django_delayq.transfer.wheel import HashedWheelTimer
from django_delayq.worker.attempt import Attempt

logger = logging.getLogger("django_delayq.worker")

#: A task that has not reacted this long after its time limit costs its process: a thread cannot be killed.
STUCK_AFTER_S = 5.0


def _begin_database_use() -> None:
    """What Django does for request_started, for the connections that this thread has."""
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()


class ThreadExecutor:
    """Runs sync tasks in a fixed number of threads."""

    def __init__(
        self,
        threads: int,
        *,
        timer: HashedWheelTimer,
        done: Callable[[Attempt], None],
        stuck: Callable[[Attempt], None],
    ) -> None:
        self.size = threads
        self._timer = timer
        self._done = done
        self._stuck = stuck
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"delayq-task-{i}", daemon=True)
            for i in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, attempt: Attempt) -> None:
        self._queue.put(attempt)

    def queued(self) -> int:
        """How many were submitted and not begun."""
        return self._queue.qsize()

    def take_back(self) -> list[Attempt]:
        """Return what was not begun, in order."""
        attempts: list[Attempt] = []
        while not self._queue.empty():
            attempt = self._queue.get()
            if attempt is not None:
                attempts.append(attempt)
        return attempts

    def stop(self) -> None:
        """End the threads, each after the attempt it runs; database connections are closed."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        get = self._queue.get
        try:
            while (attempt := get()) is not None:
                if attempt.may_start():
                    self._run(attempt)
                self._done(attempt)
        finally:
            connections.close_all()

    def _run(self, attempt: Attempt) -> None:
        task = attempt.task
        assert task is not None
        _begin_database_use()
        token = running_job.set(attempt.job)
        limit_s = attempt.time_limit_s
        try:
            if limit_s is None:
                attempt.succeed(task.function(*attempt.args, **attempt.kwargs))
            else:
                self._run_limited(attempt, limit_s)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of a task are its own: they end the attempt, not the worker.
            attempt.fail(error)
        finally:
            running_job.reset(token)
            close_old_connections()

    def _run_limited(self, attempt: Attempt, limit_s: float) -> None:
        """Run with a timer that raises TimeLimitExceeded in this thread."""
        task = attempt.task
        assert task is not None
        thread_id = threading.get_ident()
        attempt.lock = threading.Lock()
        attempt.running_in = thread_id
        attempt.timeout = self._timer.new_timeout(
            lambda: self._interrupt(attempt, limit_s), limit_s * 1000
        )
        try:
            try:
                value = task.function(*attempt.args, **attempt.kwargs)
            finally:
                self._finish(attempt)
        except TimeLimitExceeded as error:
            # It may have struck while _finish ran.
            self._finish(attempt)
            if not attempt.timed_out:
                raise
            raise TimeLimitExceeded(
                f"{attempt.name} ran longer than its time limit of {limit_s:g} s"
            ) from error
        if attempt.timed_out:
            raise TimeLimitExceeded(
                f"{attempt.name} ran longer than its time limit of {limit_s:g} s"
            )
        attempt.succeed(value)

    @staticmethod
    def _finish(attempt: Attempt) -> None:
        assert attempt.lock is not None
        with attempt.lock:
            thread_id, attempt.running_in = attempt.running_in, None
        attempt.timeout.cancel()
        if thread_id is not None:
            # Nothing that was raised too late may strike the next attempt.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), None)

    def _interrupt(self, attempt: Attempt, limit_s: float) -> None:
        assert attempt.lock is not None
        with attempt.lock:
            if attempt.running_in is None:
                return
            attempt.timed_out = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(attempt.running_in), ctypes.py_object(TimeLimitExceeded)
            )
            attempt.timeout = self._timer.new_timeout(
                lambda: self._report_stuck(attempt), STUCK_AFTER_S * 1000
            )

    def _report_stuck(self, attempt: Attempt) -> None:
        assert attempt.lock is not None
        with attempt.lock:
            if attempt.running_in is not None:
                self._stuck(attempt)


class LoopExecutor:
    """Runs ``async def`` tasks on one event loop in a thread of its own."""

    def __init__(self, coroutines: int, *, done: Callable[[Attempt], None]) -> None:
        self.size = coroutines
        self._done = done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Owned by the loop's thread.
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._is_stopping = False
        # What no coroutine is free for yet; appended to by who submits, taken from by both.
        self._waiting: deque[Attempt] = deque()
        # Two counters, one owner each, so that neither needs a lock.
        self._submitted = 0
        self._finished = 0

    def count(self) -> int:
        """How many run or wait."""
        return self._submitted - self._finished

    def take_back(self) -> list[Attempt]:
        """Return what was not begun."""
        attempts: list[Attempt] = []
        while self._waiting:
            try:
                attempts.append(self._waiting.popleft())
            except IndexError:
                break
        self._submitted -= len(attempts)
        return attempts

    def submit(self, attempt: Attempt) -> None:
        if self._loop is None:
            self._start()
        assert self._loop is not None
        self._submitted += 1
        self._waiting.append(attempt)
        self._loop.call_soon_threadsafe(self._begin)

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name="delayq-loop", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _serve(self, ready: threading.Event) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(ready.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _begin(self) -> None:
        assert self._loop is not None
        while len(self._running) < self.size and not self._is_stopping:
            try:
                attempt = self._waiting.popleft()
            except IndexError:
                return
            self._running[attempt] = self._loop.create_task(
                self._run(attempt), name=attempt.id
            )

    async def _run(self, attempt: Attempt) -> None:
        try:
            if attempt.may_start():
                await self._call(attempt)
        except asyncio.CancelledError:
            # Only stop() cancels from outside; a task that cancels itself has failed.
            if self._is_stopping:
                attempt.give_back()
            else:
                attempt.fail(RuntimeError("the task cancelled itself"))
        except BaseException as error:
            attempt.fail(error)
        finally:
            self._running.pop(attempt, None)
            self._finished += 1
            self._done(attempt)
            self._begin()

    async def _call(self, attempt: Attempt) -> None:
        task = attempt.task
        assert task is not None
        running_job.set(attempt.job)
        limit_s = attempt.time_limit_s
        # As in an ASGI request: what it does through sync_to_async shares one thread, and its connections end with it.
        async with ThreadSensitiveContext():
            try:
                async with asyncio.timeout(limit_s) as timeout:
                    value = await task.function(*attempt.args, **attempt.kwargs)
            except TimeoutError as error:
                if timeout.expired():
                    raise TimeLimitExceeded(
                        f"{attempt.name} ran longer than its time limit of {limit_s:g} s"
                    ) from error
                raise
            finally:
                await sync_to_async(connections.close_all)()
        attempt.succeed(value)

    def stop(self) -> None:
        """Cancel what still runs, wait for it to notice, and end the loop."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _cancel_all(self) -> None:
        self._is_stopping = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
