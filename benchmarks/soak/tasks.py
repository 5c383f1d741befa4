"""The tasks of a soak. Each writes into the ledger that it begins, and that it has done its work."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.soak.kinds import NUMBERS, TICKS_S
from benchmarks.soak.ledger import Event, Recorder
from django_delayq import (
    Backoff,
    Limit,
    Snooze,
    current_job,
    delayed_task,
    every,
    periodic,
)
from django_delayq.jobs.job import Job

#: The pid, and the file of that process: a worker process is a fork of one that has tasks.
_recorder: tuple[int, Recorder] | None = None


def _recording() -> Recorder:
    global _recorder
    if _recorder is None or _recorder[0] != os.getpid():
        directory = Path(os.environ["DELAYQ_SOAK_LEDGER"])
        _recorder = os.getpid(), Recorder(directory, "worker")
    return _recorder[1]


def _job() -> Job[object]:
    job = current_job()
    assert job is not None, "a soak's tasks run in a worker"
    return job


@contextmanager
def _attempt(number: int, task: str) -> Iterator[Job[object]]:
    """Record an attempt; one that raises anything has not done its work."""
    at_ms = time.time() * 1000
    job, kind, recorder = _job(), NUMBERS[task], _recording()
    recorder.record(Event.STARTED, number, kind, at_ms, job.kills)
    yield job
    recorder.record(Event.ENDED, number, kind, time.time() * 1000)


@delayed_task(queue="soak-0")
def do_nothing(number: int) -> None:
    with _attempt(number, "do_nothing"):
        pass


@delayed_task(queue="soak-0")
def send_mail(number: int) -> None:
    with _attempt(number, "send_mail"):
        time.sleep(0.005)


@delayed_task(queue="soak-0")
def call_webhook(number: int) -> None:
    with _attempt(number, "call_webhook"):
        time.sleep(0.02)


@delayed_task(queue="soak-0")
async def fetch(number: int) -> None:
    with _attempt(number, "fetch"):
        await asyncio.sleep(0.02)


@delayed_task(queue="soak-0")
def store_document(number: int, text: str) -> None:
    with _attempt(number, "store_document"):
        pass


@delayed_task(queue="soak-0", priority=50)
def page_somebody(number: int) -> None:
    with _attempt(number, "page_somebody"):
        pass


@delayed_task(queue="soak-0", priority=-50)
def clean_up(number: int) -> None:
    with _attempt(number, "clean_up"):
        pass


@delayed_task(queue="soak-0", backoff=Backoff(base=1, factor=2, max=10))
def fail_twice(number: int) -> None:
    with _attempt(number, "fail_twice") as job:
        if job.attempts < 2:
            raise ConnectionError("the provider is down")


@delayed_task(queue="soak-0", max_attempts=2, backoff=Backoff(base=1, factor=1, max=1))
def fail_always(number: int) -> None:
    with _attempt(number, "fail_always"):
        raise ValueError("nobody can do this")


@delayed_task(queue="soak-0", unique=("account",))
def sync_account(number: int, account: int) -> None:
    with _attempt(number, "sync_account"):
        time.sleep(0.005)


@delayed_task(
    queue="soak-0",
    limit=Limit("account", concurrency=1, key=lambda number, account: account),
)
def charge_account(number: int, account: int) -> None:
    with _attempt(number, "charge_account"):
        time.sleep(0.005)


@delayed_task(queue="soak-0", limit=Limit("provider", rate="100/s"))
def call_provider(number: int) -> None:
    with _attempt(number, "call_provider"):
        pass


@delayed_task(queue="soak-0", keep_result=60)
def answer(number: int) -> int:
    with _attempt(number, "answer"):
        return number


@delayed_task(queue="soak-0")
def convert(number: int) -> None:
    with _attempt(number, "convert") as job:
        for step in range(20):
            job.progress(step, 20, f"picture {step}")
            time.sleep(0.005)


@delayed_task(queue="soak-0")
def wait_for_quota(number: int, not_before_ms: float) -> None:
    with _attempt(number, "wait_for_quota"):
        if time.time() * 1000 < not_before_ms:
            raise Snooze(not_before_ms / 1000 - time.time(), "the quota is used up")


@delayed_task(queue="soak-0")
def remind(number: int) -> None:
    """Most of these are cancelled."""
    with _attempt(number, "remind"):
        pass


@delayed_task(queue="soak-0")
def publish(number: int) -> None:
    """Most of these are moved to a later time."""
    with _attempt(number, "publish"):
        pass


@delayed_task(queue="soak-0")
def take_order(number: int) -> None:
    with _attempt(number, "take_order"):
        pass


@delayed_task(queue="soak-0")
def confirm_order(number: int) -> None:
    with _attempt(number, "confirm_order"):
        pass


@periodic(every(TICKS_S[1]), name="tick 1", args=[1], catch_up="all")
@periodic(every(TICKS_S[0]), name="tick 0", args=[0], catch_up="all")
@delayed_task(queue="soak-0")
def tick(schedule: int) -> None:
    moment = _job().occurrence
    assert moment is not None, "only schedules store these"
    _recording().record(
        Event.TICKED, schedule, NUMBERS["tick"], moment.timestamp() * 1000
    )
