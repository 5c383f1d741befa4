"""A time limit in a thread: struck where it is, and nothing left behind."""

import asyncio
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from django_delayq import Cancel, Retry, Snooze, delayed_task, schedule
from django_delayq.core.states import State
from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.worker import time_limit
from django_delayq.worker.process import REPLACE_ME
from django_delayq.worker.time_limit import ThreadTimeLimit, Timer
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts


@pytest.fixture
def timer():
    timer = Timer("test-timer")
    yield timer
    timer.stop()


@pytest.fixture
def limit(timer):
    def limit(limit_s):
        return ThreadTimeLimit(timer, limit_s, name="it", stuck=stuck.append)

    stuck = []
    return limit


def spin(seconds):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass
    return "spun"


def test_what_ends_in_time_returns_its_value_or_raises_its_error(limit):
    def fail():
        raise KeyError("its own")

    def exceed():
        raise TimeLimitExceeded("its own")

    assert limit(10).run(spin, [0], {}) == "spun"
    with pytest.raises(KeyError):
        limit(10).run(fail, [], {})
    with pytest.raises(TimeLimitExceeded, match="its own"):
        limit(10).run(exceed, [], {})


def test_a_busy_function_is_struck_where_it_is(limit):
    begun_s = time.monotonic()

    with pytest.raises(
        TimeLimitExceeded, match=r"it ran longer than its time limit of 0\.05 s"
    ) as told:
        limit(0.05).run(spin, [60], {})

    assert time.monotonic() - begun_s < 40
    assert told.traceback[-1].name == "spin"


def ending(how):
    """Return a function that is struck, catches that, and ends like this."""

    def end():
        try:
            spin(60)
        except TimeLimitExceeded:
            if isinstance(how, BaseException):
                raise how from None
        return how

    return end


def test_a_function_that_catches_the_strike_may_return(limit):
    assert limit(0.05).run(ending("fine"), [], {}) == "fine"


@pytest.mark.parametrize("decision", [Retry(3), Snooze(3), Cancel("it takes too long")])
def test_a_function_that_catches_the_strike_may_decide(limit, decision):
    with pytest.raises(type(decision)) as told:
        limit(0.05).run(ending(decision), [], {})

    assert told.value is decision


def test_an_error_after_the_strike_is_the_cause_of_an_exceeded_limit(limit):
    error = OSError("while cleaning up")

    with pytest.raises(TimeLimitExceeded, match="it ran longer") as told:
        limit(0.05).run(ending(error), [], {})

    assert told.value.__cause__ is error


@pytest.mark.parametrize("how", ["fine", Retry(3)])
def test_what_a_function_says_once_it_was_reported_is_too_late(timer, monkeypatch, how):
    monkeypatch.setattr(time_limit, "STUCK_AFTER_S", 0.05)
    stuck = threading.Event()
    limit = ThreadTimeLimit(timer, 0.02, name="it", stuck=stuck.set)

    def end_late():
        with suppress(TimeLimitExceeded):
            spin(60)
        stuck.wait(60)
        return ending_at_once(how)

    with pytest.raises(TimeLimitExceeded, match="it ran longer"):
        limit.run(end_late, [], {})


def ending_at_once(how):
    if isinstance(how, BaseException):
        raise how
    return how


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("how", "state", "attempts"),
    [
        (None, State.SUCCEEDED, 0),
        (Retry(3600), State.RETRYING, 1),
        (Snooze(3600), State.SCHEDULED, 0),
        (Cancel("it takes too long"), State.CANCELLED, 0),
        (OSError("while cleaning up"), State.DEAD, 2),
    ],
)
def test_a_task_that_catches_its_time_limit_is_obeyed(
    work, queue_name, is_async, how, state, attempts
):
    @delayed_task(
        name="catches", queue=queue_name, max_attempts=2, backoff=tasks.AT_ONCE
    )
    def catch():
        try:
            spin(60)
        except TimeLimitExceeded:
            return ending_at_once(how)

    @delayed_task(
        name="catches-async", queue=queue_name, max_attempts=2, backoff=tasks.AT_ONCE
    )
    async def catch_async():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return ending_at_once(how)

    task = catch_async if is_async else catch
    job = schedule(task.using(time_limit=0.1, keep_result=60), 0)
    work(threads=1)

    wait_until(lambda: job.refresh() is state, description="it has ended so")
    assert job.attempts == attempts
    if state is State.DEAD:
        assert "ran longer than its time limit" in job.error["error"]
        assert "OSError: while cleaning up" in job.error["traceback"]


def test_a_function_that_does_not_react_is_reported(timer, monkeypatch):
    monkeypatch.setattr(time_limit, "STUCK_AFTER_S", 0.05)
    stuck = threading.Event()
    limit = ThreadTimeLimit(timer, 0.02, name="it", stuck=stuck.set)

    with pytest.raises(TimeLimitExceeded):
        # One call, in C, until it is reported.
        limit.run(stuck.wait, [60], {})

    assert stuck.is_set()


def test_a_strike_at_the_very_end_leaves_nothing_behind(limit):
    """Whether it strikes or not is decided within microseconds; afterwards nothing may be struck any more."""
    outcomes = {"in time": 0, "exceeded": 0}
    for _ in range(300):
        limit_s = 0.004
        try:
            limit(limit_s).run(spin, [limit_s + random.uniform(-0.001, 0.002)], {})
        except TimeLimitExceeded:
            outcomes["exceeded"] += 1
        else:
            outcomes["in time"] += 1
        # Python code in which a late strike would be delivered.
        spin(0.0005)
    assert sum(outcomes.values()) == 300
    assert outcomes["exceeded"]


STRUCK = """
import sys
from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.worker.time_limit import ThreadTimeLimit, Timer

def spin():
    while True:
        pass

def call():
    print("called")

timer = Timer("test-timer")
try:
    ThreadTimeLimit(timer, 0.01, name="it", stuck=print).run(spin, [], {})
except TimeLimitExceeded:
    timer.stop()
sys.setprofile(lambda *event: None)
call()
"""


def test_thread_that_was_struck_leaves_python_nothing_to_look_for():
    # Python 3.11 calls no function under a profiler while it looks for an exception of some thread.
    ended = subprocess.run(
        [sys.executable, "-c", STRUCK], capture_output=True, text=True, timeout=60
    )

    assert ended.stdout == "called\n", ended.stderr


@pytest.mark.parametrize("task", [tasks.spin, tasks.nap_async])
def test_a_job_that_takes_too_long_is_repeated_and_then_dead(
    work, records, queue_name, task
):
    work(threads=1)
    job = schedule(
        task.using(
            queue=queue_name, time_limit=0.2, max_attempts=2, backoff=tasks.AT_ONCE
        ),
        0,
        30,
    )

    wait_until(lambda: job.refresh() is State.DEAD, description="it is dead")

    assert records.count("start") == 2
    assert job.attempts == 2
    assert "ran longer than its time limit of 0.2 s" in job.error["error"]
    assert f"in {task.__name__}" in job.error["traceback"].splitlines()[1]
    assert schedule(tasks.add.using(queue=queue_name), 0, 1, 1).wait(60) == 2


@pytest.mark.parametrize("task", [tasks.swallow, tasks.swallow_async, tasks.block_loop])
def test_a_worker_process_ends_to_be_replaced_when_a_task_ignores_its_limit(
    work, records, queue_name, task, monkeypatch
):
    monkeypatch.setattr(time_limit, "STUCK_AFTER_S", 0.3)
    worker = work(threads=2)
    limited = task.using(queue=queue_name, time_limit=0.2, max_attempts=1)
    other = schedule(tasks.nap.using(queue=queue_name), 0, 1)
    job = schedule(limited, 0, 30)

    assert worker.join() == REPLACE_ME

    assert job.refresh() is State.DEAD
    assert job.attempts == 1
    assert job.error["error"].startswith(
        f"TimeLimitExceeded: {task.name} ran longer than its time limit of 0.2 s"
    )
    # What ran beside it was let end.
    assert other.refresh() is State.SUCCEEDED
    assert records.jobs("start").count(other.id) == 1


def test_the_limit_of_a_queue_holds_for_tasks_without_their_own(
    configure, work, records, queue_name
):
    configure({"TIME_LIMIT": 0.2, "MAX_ATTEMPTS": 1})
    work()
    limited = schedule(tasks.spin.using(queue=queue_name), 0, 30)
    longer = schedule(tasks.nap.using(queue=queue_name, time_limit=30), 0, 0.6)

    wait_until(lambda: limited.refresh() is State.DEAD, description="one is dead")
    wait_until(lambda: longer.refresh() is State.SUCCEEDED, description="one is not")


def test_no_retry_on_holds_for_time_limits_too(work, records, queue_name):
    task = delayed_task(
        name="test-no-retry-on-time", no_retry_on=TimeLimitExceeded, time_limit=0.1
    )(spin)
    job = schedule(task.using(queue=queue_name), 0, 30)

    work()

    wait_until(lambda: job.refresh() is State.DEAD, description="it is dead")
    assert job.attempts == 1


def test_jobs_that_end_around_their_limit_never_harm_each_other(
    work, records, queue_name
):
    work(threads=2)
    task = tasks.spin.using(queue=queue_name, time_limit=0.1, max_attempts=1)
    # The watchdog's ticks are of 100 ms: the strikes fall all over the place.
    jobs = [schedule(task, i / 100, 0.07 + i % 10 / 50) for i in range(30)]

    ended = (State.SUCCEEDED, State.DEAD)
    wait_until(
        lambda: all(job.refresh() in ended for job in jobs),
        description="all have ended",
        timeout=90,
    )
    told = counts(queue_name)
    assert told.running == 0
    assert told.counters["succeeded"] + told.counters["dead"] == 30
    assert all(
        "time limit" in job.error["error"] for job in jobs if job.state is State.DEAD
    )
