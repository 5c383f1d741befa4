"""What the caller is told is true: on real processes and servers."""

import asyncio
import functools

import pytest

from django_delayq import delayed_task, schedule
from django_delayq.core import queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.records import record


def plainly(function):
    """Wrap a function as most decorators do, which have not thought of async def."""

    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def by_itself(function):
    """Wrap an async def in a function that runs it to its end."""

    @functools.wraps(function)
    def wrapper(*args):
        return asyncio.run(function(*args))

    return wrapper


@delayed_task(max_attempts=1)
@plainly
async def wrapped_async():
    record("run")


@delayed_task(max_attempts=1)
@by_itself
async def run_by_its_wrapper():
    record("run")
    return 5


@delayed_task(max_attempts=1)
@plainly
def wrapped_generator():
    record("run")
    yield 1


@delayed_task(max_attempts=1)
async def not_awaited():
    return run_by_its_wrapper.function.__wrapped__()


class Lazy:
    def __await__(self):
        record("run")
        yield


@delayed_task(max_attempts=1)
def lazy():
    return Lazy()


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (wrapped_async, "a coroutine"),
        (wrapped_generator, "a generator"),
        (not_awaited, "a coroutine"),
        (lazy, "an awaitable Lazy"),
    ],
)
def test_what_a_task_returns_before_its_body_ran_is_no_success(
    work, records, queue_name, task, kind
):
    job = schedule(task.using(queue=queue_name), 0)

    work()

    wait_until(
        lambda: job.refresh() not in (State.SCHEDULED, State.DUE, State.RUNNING),
        description="it has ended",
    )
    assert job.state is State.DEAD
    assert f"returned {kind}, whose body has not run" in job.error["error"]
    assert records.count("run") == 0


def test_a_wrapper_that_runs_its_coroutine_succeeds(work, records, queue_name):
    job = schedule(run_by_its_wrapper.using(queue=queue_name, keep_result=60), 0)

    work()

    assert job.wait(30) == 5
    assert records.count("run") == 1


@pytest.mark.parametrize("act", ["cancel", "run_now"])
def test_job_that_runs_is_not_cancelled_or_moved_when_its_lease_has_run_out(
    lasting, use, proxy, programs, ledger, queue_name, act
):
    use(lasting, LEASE=2)
    (worker,) = programs(1, connection=proxy.url)
    job = ledger.schedule(tasks.hold.using(queue=queue_name), 0)
    ledger.wait_for_starts(1)

    proxy.is_refusing = True
    proxy.cut()

    def is_over():
        call = queue_reads.inspect(DeliveryKeys.of(queue_name), job.token)
        seen = run(own_clients.of_thread(), call)
        return 0 < seen.score_ms < seen.now_ms

    wait_until(is_over, description="the lease has run out")
    assert ledger.attempt(job.id, act, getattr(job, act)) is False
    assert job.state is State.RUNNING, worker.log
    ledger.records.let_go()
