"""The executors by themselves: what they hand back, whatever happens to what runs there."""

import asyncio
import threading

import pytest

from django_delayq.clock import boottime_ms
from django_delayq.conf import get_settings
from django_delayq.delivery.operations import Leased, State, new_token
from django_delayq.jobs.decorator import delayed_task
from django_delayq.transfer.wheel import HashedWheelTimer
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.executors import LoopExecutor
from tests.signed import signed
from tests.waiting import wait_until


@pytest.fixture
def timer():
    timer = HashedWheelTimer()
    yield timer
    timer.stop()


@pytest.fixture
def attempt_of(configure, queue_name):
    """Make an attempt to run a task without arguments, leased for a minute."""

    def make(task):
        token = new_token()
        payload = signed(task.name, queue_name, token=token)
        leased = Leased(token, 0, 0, 0, payload, False, b"12345678")
        queue = get_settings().queue(queue_name)
        return Attempt(queue, leased, boottime_ms() + 60_000, 0.0)

    return make


def test_a_coroutine_that_is_cancelled_before_its_first_step_is_given_back(
    timer, attempt_of
):
    ended, gate, runs = [], threading.Event(), []

    @delayed_task
    async def block():
        assert gate.wait(60)

    @delayed_task
    async def cancel_others():
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()

    @delayed_task
    async def run():
        runs.append(1)

    executor = LoopExecutor(
        10, timer=timer, done=ended.append, stuck=lambda _: None, died=lambda _: None
    )
    try:
        executor.submit(attempt_of(block))
        wait_until(lambda: executor.queued() == 0, description="the loop is blocked")
        # Begin in one go once the loop is free.
        canceller, *others = map(attempt_of, (cancel_others, run, run))
        for attempt in (canceller, *others):
            executor.submit(attempt)
        gate.set()

        wait_until(lambda: len(ended) == 4, description="all are handed back")

        assert canceller.outcome is State.SUCCEEDED
        assert {attempt.outcome for attempt in others} == {State.SCHEDULED}
        assert not runs
        assert executor.count() == 0
        again = attempt_of(run)
        executor.submit(again)
        wait_until(lambda: again in ended, description="the loop goes on")
        assert again.outcome is State.SUCCEEDED
    finally:
        executor.stop(5)
