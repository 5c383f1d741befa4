"""What tasks do, on purpose or not, that must not disable the worker they run in."""

import asyncio
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NoReturn

from django_delayq import LeaseLost, current_job, delayed_task
from django_delayq.backoff import Backoff
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.process import WorkerProcess
from tests.worker.records import gate_of_test, record

AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
_fork = multiprocessing.get_context("fork")


@delayed_task
def fork_and_terminate(kind: str) -> None:
    """Start a child and end it with a signal; note how it ended."""
    record("start")
    if kind == "multiprocessing":
        child = _fork.Process(target=time.sleep, args=(120,))
        child.start()
        child.terminate()
        child.join()
        code = child.exitcode
    else:
        program = subprocess.Popen(["sleep", "120"])
        number = signal.SIGINT if kind == "interrupt" else signal.SIGTERM
        program.send_signal(number)
        code = program.wait()
    record("end", code=code)


@delayed_task
def use_pool() -> None:
    record("start")
    with ProcessPoolExecutor(2, mp_context=_fork) as pool:
        values = list(pool.map(abs, [-1, -2, -3]))
    record("end", values=values)


def _leave_child(how: str) -> None:
    if how == "_exit":
        os._exit(5)
    if how == "exit":
        sys.exit(5)
    if how == "raise":
        raise ValueError("in the child")


@delayed_task(max_attempts=1)
def fork(how: str) -> None:
    """Fork; the child leaves the task in some way, the parent notes the child's status."""
    record("start")
    pid = os.fork()
    if pid == 0:
        _leave_child(how)
        return
    record("end", status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@delayed_task(max_attempts=1)
async def fork_async(how: str) -> None:
    record("start")
    pid = os.fork()
    if pid == 0:
        _leave_child(how)
        return
    record("end", status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit("nobody asks me")


class Untraceable(Exception):
    def with_traceback(self, traceback: object) -> NoReturn:
        raise SystemExit("nobody traces me")


class Endless(Exception):
    def __str__(self) -> str:
        raise Endless


ODD = {each.__name__: each for each in (Unspeakable, Untraceable, Endless)}


@delayed_task(backoff=AT_ONCE, max_attempts=1)
def raise_odd(name: str) -> NoReturn:
    raise ODD[name]


@delayed_task(backoff=AT_ONCE, max_attempts=1)
async def raise_odd_async(name: str) -> NoReturn:
    raise ODD[name]


async def _raise(error: BaseException) -> NoReturn:
    raise error


@delayed_task(max_attempts=1)
async def child_exits(how: str) -> None:
    """Begin another coroutine that ends the interpreter."""
    record("start")
    error = KeyboardInterrupt() if how == "interrupt" else SystemExit(3)
    if how == "gather":
        await asyncio.gather(_raise(error), asyncio.sleep(0))
    else:
        other = asyncio.create_task(_raise(error))
        await asyncio.wait([other])
    record("end")


@delayed_task
async def stop_loop() -> None:
    record("start")
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    record("end")


@delayed_task
async def break_loop() -> None:
    """Take from the loop what it waits with, at the first attempt."""
    record("start")
    if not _kills():
        asyncio.get_running_loop()._selector.close()  # type: ignore[attr-defined]
        await asyncio.sleep(120)
    record("end")


@delayed_task
async def refuse_tasks() -> None:
    """Have the loop begin no coroutine any more."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError("no tasks here")

    record("start")
    asyncio.get_running_loop().set_task_factory(refuse)


@delayed_task
def break_thread() -> None:
    """Have nothing work that ends an attempt, at the first attempt."""
    record("start")
    if not _kills():
        Attempt.fail = _raise_always  # type: ignore[method-assign]
        raise ValueError
    record("end")


@delayed_task
def keep_interpreter() -> None:
    """Stay in C code without letting go of the interpreter, at the first attempt."""
    record("start")
    if not _kills():
        ctypes.PyDLL(None).sleep(600)
    record("end")


@delayed_task
def close_pipes() -> None:
    """Close what the worker hears signals with, as a task does that closes all descriptors."""
    record("start")
    for part in gc.get_objects():
        if isinstance(part, WorkerProcess):
            for descriptor in part._pipes:
                os.close(descriptor)
            part._pipes.clear()
    record("end")


def _raise_always(attempt: Attempt, error: BaseException) -> NoReturn:
    raise MemoryError


@delayed_task
def use_up_threads() -> None:
    """Have the process get no more threads."""
    record("start")

    def refuse(*args: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    threading._start_new_thread = refuse  # type: ignore[attr-defined]
    record("end")


def _kills() -> int:
    job = current_job()
    assert job is not None
    return job.kills


@delayed_task(max_attempts=1)
def check_until_told() -> None:
    """Work until the test lets go, for as long as the job is this worker's."""
    job = current_job()
    assert job is not None
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + 120
    is_last = False
    while not is_last:
        is_last = gate.exists() or time.monotonic() > end_s
        try:
            job.check()
        except LeaseLost:
            record("lost")
            raise
        time.sleep(0.005)
    record("end")


@delayed_task
async def block_until_told() -> None:
    """Do what no coroutine should, until the test lets go."""
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + 120
    while not gate.exists() and time.monotonic() < end_s:
        time.sleep(0.005)
    record("end")
