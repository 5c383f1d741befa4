"""The stop of a worker process, as its jobs see it: from any thread, and on any event loop."""

import asyncio
import threading
from datetime import timedelta

import pytest

from django_delayq import InvalidDelay, Job
from django_delayq.jobs.attempt_handle import Here
from django_delayq.jobs.stop import Stop

#: Longer than any test lasts.
LONG_MS = 600_000


@pytest.fixture
def stop():
    return Stop()


@pytest.fixture
def job(stop):
    """A job that runs here."""
    job = Job("q", "t", "task", [], {})
    job.here = Here(lambda: True, stop)
    return job


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_wait_ends_with_its_time_if_nobody_stops(stop):
    assert not stop.wait(1)
    assert not asyncio.run(stop.wait_async(1))
    assert not stop.is_set


def test_stop_is_told_to_whoever_waits_and_to_whoever_comes_later(stop):
    told = []
    threads = [in_a_thread(lambda: told.append(stop.wait(LONG_MS))) for _ in range(3)]

    async def several():
        return await asyncio.gather(*(stop.wait_async(LONG_MS) for _ in range(3)))

    threads += [in_a_thread(lambda: told.extend(asyncio.run(several())))]

    stop.set()
    for thread in threads:
        thread.join(30)

    assert told == [True] * 6
    assert stop.wait(0)
    assert asyncio.run(stop.wait_async(0))
    assert not stop._waiters


def test_loop_that_has_gone_does_not_keep_others_from_being_told(stop):
    async def leave():
        asyncio.get_running_loop().create_task(stop.wait_async(LONG_MS))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    (left,) = asyncio.all_tasks(loop)
    left._log_destroy_pending = False
    loop.close()

    stop.set()

    assert stop.is_set


def test_wait_that_is_cancelled_is_forgotten(stop):
    async def give_up():
        async with asyncio.timeout(0.01):
            await stop.wait_async(LONG_MS)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())

    assert not stop._waiters


@pytest.mark.parametrize("timeout", [0, -1, 0.001, timedelta(milliseconds=1)])
def test_job_waits_for_seconds_or_a_timedelta(job, stop, timeout):
    assert not job.wait_for_stop(timeout)
    assert not asyncio.run(job.await_stop(timeout))
    assert not job.stopping

    stop.set()

    assert job.stopping
    assert job.wait_for_stop()
    assert asyncio.run(job.await_stop())


@pytest.mark.parametrize("timeout", ["5", float("nan"), True])
def test_wrong_timeout_is_refused(job, timeout):
    with pytest.raises(InvalidDelay, match="timeout"):
        job.wait_for_stop(timeout)
    with pytest.raises(InvalidDelay, match="timeout"):
        asyncio.run(job.await_stop(timeout))
