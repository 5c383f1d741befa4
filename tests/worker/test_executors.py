"""The executors by themselves: what they hand back, whatever happens to what runs there."""

import asyncio
import threading

import pytest

from django_delayq.clock import boottime_ms
from django_delayq.conf import get_settings
from django_delayq.core.claim import Leased
from django_delayq.core.store import new_token
from django_delayq.jobs.decorator import delayed_task
from django_delayq.jobs.stop import Stop
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.loop_executor import LoopExecutor
from django_delayq.worker.thread_executor import Shared, _Handover
from django_delayq.worker.time_limit import Timer
from tests.polling import wait_until
from tests.signed import signed


@pytest.fixture
def timer():
    timer = Timer("test-timer")
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

    def ignore(_):
        pass

    shared = Shared(
        timer=timer,
        stop=Stop(),
        done=ended.append,
        stuck=ignore,
        died=ignore,
        found_async=ignore,
    )
    executor = LoopExecutor(10, shared)
    try:
        executor.submit(attempt_of(block))
        wait_until(lambda: executor.queued() == 0, description="the loop is blocked")
        # Begin in one go once the loop is free.
        canceller, *others = map(attempt_of, (cancel_others, run, run))
        for attempt in (canceller, *others):
            executor.submit(attempt)
        gate.set()

        wait_until(lambda: len(ended) == 4, description="all are handed back")

        assert canceller.verdict is Verdict.SUCCEED
        assert {attempt.verdict for attempt in others} == {Verdict.GIVE_BACK}
        assert not runs
        assert executor.count() == 0
        again = attempt_of(run)
        executor.submit(again)
        wait_until(lambda: again in ended, description="the loop goes on")
        assert again.verdict is Verdict.SUCCEED
    finally:
        executor.stop(5)


# On their way to the threads.


def test_the_thread_that_became_idle_last_takes_the_next():
    handover = _Handover()
    bells = [threading.Lock() for _ in range(3)]
    taken = []

    def take(bell):
        bell.acquire()
        taken.append((bells.index(bell), handover.get(bell)))

    threads = [threading.Thread(target=take, args=[bell]) for bell in bells]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(
            lambda number=number: len(handover._idle) == number, description="it waits"
        )

    for item in "ab":
        handover.append(item)
        handover.wake()
        threads[2 if item == "a" else 1].join(30)
    assert taken == [(2, "a"), (1, "b")]

    handover.append("c")
    handover.wake()
    threads[0].join(30)
    assert taken[2:] == [(0, "c")]


def test_what_is_handed_over_is_taken_once_and_in_full_by_threads_that_come_and_go():
    handover = _Handover()
    taken = [[] for _ in range(4)]

    def take(mine):
        bell = threading.Lock()
        bell.acquire()
        while (item := handover.get(bell)) is not None:
            mine.append(item)

    threads = [threading.Thread(target=take, args=[mine]) for mine in taken]
    for thread in threads:
        thread.start()
    for number in range(20_000):
        handover.append(number)
        handover.wake()
    for _ in threads:
        handover.append(None)
    handover.wake()
    for thread in threads:
        thread.join(30)

    assert sorted(number for mine in taken for number in mine) == list(range(20_000))
    assert all(mine == sorted(mine) for mine in taken)
