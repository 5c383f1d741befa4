"""Tasks that do what tests are about, and record it."""

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_delayq import Limit, Snooze, current_job, delayed_task, schedule
from django_delayq.backoff import Backoff
from django_delayq.features.statistics import worker as statistics_worker
from django_delayq.worker import (
    held_jobs,
    operating_system,
    outage,
    process,
    reports,
    supervisor,
    time_limit,
    upkeep,
)
from django_delayq.worker.memory_limit import Meter
from tests.worker.records import ENVIRONMENT, Records, gate_of_test, record

#: How long a task holds where the test does not let go.
HOLD_S = 120.0
#: Retries that a test does not have to wait for.
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)

# What never ends is waited for in vain.
process.CANCEL_S = 0.2
if "WORKER_TEST_STUCK_AFTER" in os.environ:
    time_limit.STUCK_AFTER_S = float(os.environ["WORKER_TEST_STUCK_AFTER"])
if "WORKER_TEST_LOOK_AT_HELD_MS" in os.environ:
    held_jobs.LOOK_AT_HELD_MS = float(os.environ["WORKER_TEST_LOOK_AT_HELD_MS"])
if "WORKER_TEST_REFUSED_MS" in os.environ:
    outage.REFUSED_MS = float(os.environ["WORKER_TEST_REFUSED_MS"])
if "WORKER_TEST_AS_INIT" in os.environ:
    # Linux gives orphans to this process then, as it gives them to process 1 of a container.
    assert not ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    supervisor_pid = os.getpid()
    operating_system.is_first_process = lambda: os.getpid() == supervisor_pid

if "WORKER_TEST_SOON_MS" in os.environ:
    supervisor.SOON_MS = float(os.environ["WORKER_TEST_SOON_MS"])
if "WORKER_TEST_ROUND_MS" in os.environ:
    upkeep.ROUND_MS = float(os.environ["WORKER_TEST_ROUND_MS"])
if "WORKER_TEST_REGISTER_MS" in os.environ:
    reports.REGISTER_EVERY_MS = float(os.environ["WORKER_TEST_REGISTER_MS"])
if "WORKER_TEST_COUNT_AFTER_MS" in os.environ:
    statistics_worker.COUNT_AFTER_MS = float(os.environ["WORKER_TEST_COUNT_AFTER_MS"])
if "WORKER_TEST_YOUNG_OBJECTS" in os.environ:
    gc.set_threshold(int(os.environ["WORKER_TEST_YOUNG_OBJECTS"]))


class Wrong(Exception):
    """What tasks raise on purpose."""


@delayed_task
def note(text: object = None) -> None:
    record("run", text=text)


@delayed_task
def note_collector() -> None:
    """Record what the garbage collector of this process looks at, and when."""
    record(
        "collector",
        young=gc.get_threshold()[0],
        frozen=gc.get_freeze_count(),
    )


@delayed_task
def pair(first: object, second: object) -> None:
    """Record its two arguments in their order."""
    record("pair", pair=[first, second])


@delayed_task
async def note_async(text: object = None) -> None:
    record("run", text=text)


@delayed_task
def nothing() -> None:
    pass


@delayed_task
def nap(seconds: float) -> None:
    """Sleep in one call, as in C code."""
    record("start")
    time.sleep(seconds)
    record("end")


@delayed_task
def hold(seconds: float = HOLD_S) -> None:
    """Run until the test lets go."""
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + seconds
    while not gate.exists() and time.monotonic() < end_s:
        time.sleep(0.005)
    record("end")


@delayed_task
def count_up(steps: int) -> None:
    """Count until done, or until the worker is to end."""
    job = current_job()
    assert job is not None
    for step in range(steps):
        record("step", at=step)
        if job.wait_for_stop(0.005):
            raise Snooze(0)


@delayed_task
def hold_and_fail() -> None:
    hold.function()
    raise Wrong


@delayed_task
def await_processes(count: int) -> None:
    """Run until jobs of so many processes have begun."""
    record("start")
    records = Records(Path(os.environ[ENVIRONMENT]))
    end_s = time.monotonic() + HOLD_S
    while len({line["pid"] for line in records.all("start")}) < count:
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.005)
    record("end")


@delayed_task
def stop_process() -> None:
    """Stop the process at the first attempt, as a machine that hangs does."""
    # Kills do not tell the first: what ends while nobody looks at the queue counts none.
    is_first = Records(Path(os.environ[ENVIRONMENT])).count("start") == 0
    record("start")
    if is_first:
        os.kill(os.getpid(), signal.SIGSTOP)
    record("end")


@delayed_task
async def hold_async() -> None:
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + HOLD_S
    while not gate.exists() and time.monotonic() < end_s:
        await asyncio.sleep(0.005)
    record("end")


@delayed_task
async def nap_async(seconds: float) -> None:
    record("start")
    await asyncio.sleep(seconds)
    record("end")


#: What this process keeps.
_kept: list[bytes] = []


@delayed_task
def grow(mb: int, seconds: float = 0.0) -> None:
    """Take so much more memory, for ever."""
    record("start")
    _kept.append(os.urandom(1) * (mb * 2**20))
    time.sleep(seconds)
    record("end")


@delayed_task
def grow_and_hold(mb: int) -> None:
    """Have the process take so much in all, and run until the test lets go."""
    _kept.append(b"x" * (mb * 2**20 - Meter().read()))
    hold.function()


@delayed_task
def spin(seconds: float) -> None:
    """Be busy in Python."""
    record("start")
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass
    record("end")


@delayed_task
def swallow(seconds: float) -> None:
    """Be busy until the test lets go, and go on whatever else happens."""
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + seconds
    is_free = False
    while not is_free and time.monotonic() < end_s:
        try:
            time.sleep(0.01)
            is_free = gate.exists()
        except Exception:
            record("swallowed")
    record("end")


@delayed_task
async def swallow_async(seconds: float) -> None:
    """Wait until the test lets go, and go on however often it is cancelled."""
    gate = gate_of_test()
    record("start")
    end_s = time.monotonic() + seconds
    while not gate.exists() and time.monotonic() < end_s:
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            record("swallowed")
    record("end")


@delayed_task
async def block_loop(seconds: float) -> None:
    """Do what no coroutine should, until the test lets go."""
    hold.function(seconds)


@delayed_task(backoff=AT_ONCE)
def fail(message: str = "as told") -> None:
    record("run")
    raise Wrong(message)


@delayed_task(backoff=AT_ONCE)
async def fail_async() -> None:
    record("run")
    raise Wrong("as told")


@delayed_task(backoff=AT_ONCE)
def fail_until(attempt: int) -> str:
    """Fail until some attempt."""
    job = current_job()
    assert job is not None
    record("run")
    if job.attempts + 1 < attempt:
        raise Wrong(f"attempt {job.attempts + 1}")
    return f"attempt {job.attempts + 1}"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@delayed_task(backoff=AT_ONCE, max_attempts=1, keep_result=60)
def raise_strangely(kind: str) -> None:
    record("run")
    if kind == "unprintable":
        raise Unprintable
    if kind == "surrogate":
        raise Wrong("half a pair: \ud800")
    if kind == "huge":
        raise Wrong("x" * 5_000_000)
    if kind == "exit":
        raise SystemExit(3)
    raise KeyboardInterrupt


@delayed_task(keep_result=60)
def add(one: int, other: int) -> int:
    return one + other


@delayed_task(keep_result=60)
async def add_async(one: int, other: int) -> int:
    return one + other


@delayed_task(keep_result=60)
def return_strangely(kind: str) -> object:
    record("run")
    values: dict[str, object] = {
        "object": object(),
        "surrogate": "\ud800",
        "huge": "x" * 3_000_000,
    }
    return values[kind]


@delayed_task
def kill_worker() -> None:
    record("run")
    os.kill(os.getpid(), signal.SIGKILL)


@delayed_task
def kill_worker_together(companions: int) -> None:
    """Wait until others run beside it, then kill them all."""
    record("run")
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s and len(_beside) < companions:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


_beside: set[int] = set()


@delayed_task
def be_beside(seconds: float) -> None:
    record("start")
    _beside.add(threading.get_ident())
    time.sleep(seconds)
    _beside.discard(threading.get_ident())
    record("end")


@delayed_task
def end_process(status: int) -> None:
    record("run")
    os._exit(status)


@delayed_task
def schedule_more(depth: int) -> None:
    """Schedule the next one in a row, on the same queue."""
    job = current_job()
    assert job is not None
    record("run", text=depth)
    if depth > 0:
        schedule(schedule_more.using(queue=job.queue), 0, depth - 1)


@delayed_task
def schedule_on_commit(fails: bool) -> None:
    job = current_job()
    assert job is not None
    try:
        with transaction.atomic():
            schedule(note.using(queue=job.queue), 0, "committed")
            record("in transaction")
            if fails:
                raise Wrong
    except Wrong:
        record("rolled back")


#: Kept, so that no two have the same id().
_seen_connections: list[object] = []


@delayed_task(backoff=AT_ONCE)
def use_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    _seen_connections.append(connection.connection)
    record(
        "run",
        connection=id(connection.connection),
        queries=len(connection.queries),
        is_in_transaction=connection.in_atomic_block,
    )


@delayed_task
async def use_database_async() -> None:
    def use() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        _seen_connections.append(connection.connection)
        record(
            "run", thread=threading.get_ident(), connection=id(connection.connection)
        )

    await sync_to_async(use)()
    await sync_to_async(use)()


@delayed_task
def age_connection() -> None:
    """Make the connection older than CONN_MAX_AGE."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    connection.close_at = 0
    record("run")


@delayed_task
def leave_transaction_open() -> None:
    transaction.atomic().__enter__()
    record("run")


@delayed_task(backoff=AT_ONCE, max_attempts=1, time_limit=0.2)
def spin_in_transaction() -> None:
    record("start")
    while True:
        with transaction.atomic():
            pass


@delayed_task
def leave_grandchildren(count: int) -> None:
    """Start processes whose parents end before them."""
    for _ in range(count):
        subprocess.run(["sh", "-c", "sleep 0.1 &"], check=True)
    record("run")


@delayed_task
def work_a_while(ms: int) -> None:
    record("start")
    time.sleep(ms / 1000)
    record("end")


@delayed_task
async def work_a_while_async(ms: int) -> None:
    record("start")
    await asyncio.sleep(ms / 1000)
    record("end")


@delayed_task(limit=Limit("of-key", concurrency=1, key=lambda key, *_: key))
def one_of_a_key(key: str, seconds: float = 0.0) -> None:
    """Record when it begins and ends: no two of one key at a time."""
    record("start", key=key)
    time.sleep(seconds)
    record("end", key=key)


@delayed_task(limit=Limit("paced", rate="20/s burst 2"))
def paced() -> None:
    record("run")
