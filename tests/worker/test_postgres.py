"""What a real database notices: transactions that outlive their jobs, and connections that nobody closes."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from django_delayq import Job, State, delayed_task, schedule, schedule_many
from tests.databases import Postgres, added
from tests.polling import wait_until
from tests.servers import ExternalServer, Server
from tests.worker.workers import InlineWorker

ALIAS = "of_jobs"
#: Jobs after which no more connections are open than before.
MANY = 1_000
THREADS = 4


@pytest.fixture(params=[0, None], ids=["closed", "kept"])
def database(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    django_db_setup: None,
    django_db_blocker: Any,
) -> Iterator[str]:
    """A database whose connections are closed after each job, or kept; returns its name."""
    entry = {**postgres.make_database(), "CONN_MAX_AGE": request.param}
    with django_db_blocker.unblock(), added(ALIAS, entry):
        execute("create table effects (name text)")
        yield entry["NAME"]


@pytest.fixture
def queue(settings: Any, server: Server | ExternalServer, queue_name: str) -> str:
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {queue_name: {}}}
    return queue_name


@pytest.fixture
def worker(queue: str, database: str) -> Iterator[InlineWorker]:
    worker = InlineWorker([queue], threads=THREADS, coroutines=20)
    yield worker.start()
    worker.stop()


def execute(statement: str) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement)


def effects(cluster: Postgres, database: str) -> int:
    ((count,),) = cluster.execute("select count(*) from effects", database)
    return int(count)


def in_transaction(cluster: Postgres, database: str) -> list[str]:
    return [
        query
        for state, query in cluster.sessions(database)
        if "idle in transaction" in state
    ]


def ends(job: Job[Any], state: State) -> None:
    wait_until(lambda: job.refresh() is state, description=f"{job.id} is {state}")


@delayed_task(name="tests.postgres.add")
def add(name: str = "") -> None:
    execute("insert into effects values ('added')")


@delayed_task(name="tests.postgres.add_async")
async def add_async(name: str = "") -> None:
    await sync_to_async(execute)("insert into effects values ('added')")


def _half_done() -> None:
    with transaction.atomic(using=ALIAS):
        execute("insert into effects values ('half')")
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            time.sleep(0.005)
        transaction.set_rollback(True, using=ALIAS)


@delayed_task(name="tests.postgres.too_long", time_limit=0.2, max_attempts=1)
def too_long() -> None:
    with transaction.atomic(using=ALIAS):
        execute("insert into effects values ('half')")
        while True:
            time.sleep(0.005)


@delayed_task(name="tests.postgres.too_long_async", time_limit=0.2, max_attempts=1)
async def too_long_async() -> None:
    await asyncio.gather(sync_to_async(_half_done)(), asyncio.sleep(60))


@delayed_task(name="tests.postgres.leaves_open", max_attempts=1)
def leaves_open() -> None:
    connections[ALIAS].set_autocommit(False)
    execute("insert into effects values ('open')")


def test_job_is_sent_with_the_commit_only(
    postgres: Postgres, database: str, queue: str, worker: InlineWorker
) -> None:
    task = add.using(queue=queue, on_commit=ALIAS)
    with transaction.atomic(using=ALIAS):
        execute("insert into effects values ('first')")
        job = schedule(task, 0)
        assert job.refresh() is State.UNCOMMITTED
    with transaction.atomic(using=ALIAS):
        dropped = schedule(task, 0)
        transaction.set_rollback(True, using=ALIAS)

    ends(job, State.SUCCEEDED)
    assert dropped.refresh() is State.MISSING
    assert effects(postgres, database) == 2


@pytest.mark.parametrize(
    "task", [too_long, too_long_async, leaves_open], ids=["sync", "async", "left open"]
)
def test_no_transaction_outlives_its_job(
    postgres: Postgres, database: str, queue: str, worker: InlineWorker, task: Any
) -> None:
    job = schedule(task.using(queue=queue), 0)

    ends(job, State.SUCCEEDED if task is leaves_open else State.DEAD)
    wait_until(
        lambda: not in_transaction(postgres, database),
        description="no transaction is open",
    )
    assert effects(postgres, database) == 0
    after = [schedule(add.using(queue=queue), 0) for _ in range(2 * THREADS)]
    after.append(schedule(add_async.using(queue=queue), 0))
    for each in after:
        ends(each, State.SUCCEEDED)
    assert effects(postgres, database) == len(after)


@pytest.mark.parametrize(
    ("database", "task"),
    [
        pytest.param(0, add, id="closed-sync"),
        pytest.param(None, add_async, id="kept-async"),
        pytest.param(None, add, id="kept-sync", marks=pytest.mark.exhaustive),
        pytest.param(0, add_async, id="closed-async", marks=pytest.mark.exhaustive),
    ],
    indirect=["database"],
)
def test_no_connection_is_left_behind(
    postgres: Postgres, database: str, queue: str, worker: InlineWorker, task: Any
) -> None:
    connections[ALIAS].close()
    called = task.using(queue=queue)
    most = 0

    schedule_many(called.prepare(0, str(n)) for n in range(MANY))

    def is_done() -> bool:
        nonlocal most
        most = max(most, len(postgres.sessions(database)))
        return effects(postgres, database) == MANY

    wait_until(is_done, description="all have run")
    worker.stop()
    wait_until(
        lambda: postgres.sessions(database) == [],
        description="all connections are closed",
    )
    # One that was just closed may still show.
    assert most < MANY / 10
