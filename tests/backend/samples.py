"""Functions of Django's ``@task`` that do what tests are about, and record it."""

import asyncio
import os
import signal
import time
from typing import Any

from django_delayq import Cancel, Snooze, current_job, delayed_task
from django_delayq.backend import upstream
from tests.worker.records import gate_of_test, record

if upstream.Task.__module__.startswith("django."):
    from django.tasks import task
else:
    from django_tasks import task

#: How long a task holds where the test does not let go.
HOLD_S = 120.0


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task()
async def add_async(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    record("run", args=list(args), kwargs=kwargs)
    return {"args": args, "kwargs": kwargs}


@task
def fail(text: str) -> None:
    record("run", text=text)
    raise LookupError(text)


@task
async def fail_async(text: str) -> None:
    raise LookupError(text)


@task
def leave() -> None:
    raise SystemExit("gone")


@task(takes_context=True)
def fail_until(context: Any, attempt: int) -> dict[str, Any]:
    """Fail before an attempt; return what the context says then."""
    if context.attempt < attempt:
        raise ConnectionError(f"attempt {context.attempt}")
    result = context.task_result
    return {
        "id": result.id,
        "attempt": context.attempt,
        "status": result.status,
        "errors": [error.exception_class_path for error in result.errors],
        "workers": result.worker_ids,
    }


@task(takes_context=True)
async def tell_context(context: Any, word: str) -> list[Any]:
    return [word, context.attempt, context.task_result.args, context.task_result.kwargs]


@task(takes_context=True)
def tell_any(context: Any, **words: str) -> list[str]:
    return sorted(words)


@task
def odd(kind: str) -> Any:
    """Return what cannot be kept."""
    record("run", kind=kind)
    return {
        "lambda": lambda: True,
        "set": {1},
        "nan": float("nan"),
        "bytes": b"\xff",
        "big": "x" * 3_000_000,
    }[kind]


@task
def hold() -> str:
    """Run until the test lets go."""
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + HOLD_S
    while not gate.exists() and time.monotonic() < end_s:
        time.sleep(0.005)
    return "held"


@task
def die_once() -> str:
    """End the process at the first attempt."""
    job = current_job()
    assert job is not None
    if not job.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@task
def cancel_itself() -> None:
    raise Cancel("not needed")


@task
def snooze_once() -> str:
    job = current_job()
    assert job is not None
    if not gate_of_test().exists():
        gate_of_test().touch()
        raise Snooze(0)
    return "awake"


@task
async def sleep_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


@delayed_task(keep_result=60)
def plain(a: int) -> int:
    return a


def not_decorated() -> None:
    raise AssertionError("nobody calls this")


#: Its path leads to the function, not to it.
elsewhere = task(not_decorated)
