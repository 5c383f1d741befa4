"""What becomes of a job whose task raises `Retry`, `Snooze` or `Cancel`, and of one that asks whether to stop."""

import asyncio
import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_delayq import (
    Cancel,
    InvalidTask,
    JobFailed,
    Retry,
    Snooze,
    State,
    current_job,
    delayed_task,
    get_job,
    queue_handler,
    schedule,
)
from django_delayq.backoff import Backoff
from django_delayq.clock import monotonic_ms
from django_delayq.core import scripts
from django_delayq.core.keys import DeliveryKeys
from django_delayq.transport.bind import bind_in
from django_delayq.worker import process, time_limit
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.records import ENVIRONMENT, Records, record
from tests.worker.test_running import wait_for
from tests.worker.workers import NEVER_MS, counts

#: A wait that no test sees the end of.
FAR_S = 3600


class Closed(Retry):
    """A reason of a project's own."""

    def __init__(self):
        super().__init__(FAR_S, "the bank is closed")


class Silent(Snooze):
    """It says no delay."""

    def __init__(self):
        pass


class Misnamed(Snooze):
    """It has a field that hides ours."""

    def __init__(self):
        super().__init__(5)
        self.when = "soon"


def make(what):
    """Return the decision with this name."""
    return {
        "retry": lambda: Retry(FAR_S, "not yet"),
        "retry at once": lambda: Retry(0),
        "retry by backoff": Retry,
        "retry then": lambda: Retry(datetime.now(UTC) + timedelta(hours=1)),
        "closed": Closed,
        "snooze": lambda: Snooze(FAR_S, "not yet"),
        "snooze at once": lambda: Snooze(0),
        "cancel": lambda: Cancel("the order is paid"),
        "cancel without a word": Cancel,
        "silent": Silent,
        "misnamed": Misnamed,
        "negative": lambda: Retry(-1),
        "soon": lambda: Snooze("soon"),
    }[what]()


@delayed_task
def decide(what, times=1):
    """Raise a decision in the first runs, and return in the next."""
    record("run", attempts=current_job().attempts, kills=current_job().kills)
    runs = Records(Path(os.environ[ENVIRONMENT])).count("run")
    if runs <= times:
        raise make(what)


@delayed_task
async def decide_async(what, times=1):
    decide.function(what, times)


@delayed_task
def decide_because(what):
    try:
        raise OSError("refused")
    except OSError as error:
        raise make(what) from error


@delayed_task
def decide_while_handling(what):
    try:
        raise OSError("refused")
    except OSError:
        raise make(what)  # noqa: B904  the point


@delayed_task
def decide_within_except(what):
    try:
        raise make(what)
    except Exception:
        record("caught")


@delayed_task
async def decide_in_thread(what):
    await sync_to_async(decide.function)(what)


@delayed_task
def decide_in_loop(what):
    async_to_sync(decide_async.function)(what)


@delayed_task
async def decide_in_gather(what):
    await asyncio.gather(decide_async.function(what))


@delayed_task
async def decide_in_group(what):
    async with asyncio.TaskGroup() as group:
        group.create_task(decide_async.function(what))


@pytest.fixture(autouse=True)
def _whole_log(caplog):
    caplog.set_level(logging.INFO, "django_delayq.worker")


def lines_of(caplog, job):
    """Return the records of the log about a job, as (level, fields, whether it has a traceback).

    A busy machine may give a job back before it begins, which says nothing of its task.
    """
    return [
        (each.levelno, each.delayq, each.exc_info is not None)
        for each in caplog.records
        if (fields := getattr(each, "delayq", {})).get("job") == job.id
        and fields["outcome"] != "given_back"
    ]


def seconds_to(job):
    return (job.start_time - datetime.now(UTC)).total_seconds()


# Retry.


@every_server
@pytest.mark.parametrize("task", [decide, decide_async])
@pytest.mark.parametrize("what", ["retry", "retry then"])
def test_retry_counts_an_attempt_and_comes_when_it_said(
    work, queue_name, caplog, task, what
):
    job = schedule(task.using(queue=queue_name), 0, what)

    work()
    wait_for(job, State.RETRYING)

    assert (job.attempts, job.kills) == (1, 0)
    assert FAR_S - 120 < seconds_to(job) <= FAR_S + 1
    assert counts(queue_name).counters["retried"] == 1
    wait_until(lambda: lines_of(caplog, job), description="it is logged")
    ((level, fields, has_traceback),) = lines_of(caplog, job)
    assert (level, fields["outcome"]) == (logging.WARNING, "retrying")
    assert FAR_S * 1000 - 120_000 < fields["retry_in_ms"] <= FAR_S * 1000 + 1000
    assert not has_traceback


def test_retry_without_a_delay_waits_as_the_backoff_says(work, records, queue_name):
    backoff = Backoff(base=FAR_S, factor=1, jitter=0)
    job = schedule(
        decide.using(queue=queue_name, backoff=backoff), 0, "retry by backoff"
    )

    work()
    wait_for(job, State.RETRYING)

    assert FAR_S - 120 < seconds_to(job) <= FAR_S + 1


@pytest.mark.parametrize(
    ("task", "what", "text"),
    [
        (decide, "retry", "Retry: not yet"),
        (decide, "retry by backoff", "Retry"),
        (decide, "closed", "Closed: the bank is closed"),
        (decide_because, "retry", "Retry: not yet: OSError: refused"),
        (decide_because, "retry by backoff", "Retry: OSError: refused"),
        (
            decide_while_handling,
            "closed",
            "Closed: the bank is closed: OSError: refused",
        ),
    ],
)
def test_error_of_the_job_has_the_reason_and_the_cause(
    work, records, queue_name, task, what, text
):
    backoff = Backoff(base=FAR_S, factor=1, jitter=0)
    job = schedule(task.using(queue=queue_name, backoff=backoff), 0, what)

    work()
    wait_for(job, State.RETRYING)

    assert job.error["error"] == text
    assert job.error["kind"] == "failed"
    assert ("OSError: refused" in job.error["traceback"]) == ("OSError" in text)
    assert f"in {task.__name__}" in job.error["traceback"]


@pytest.mark.parametrize(
    ("task", "cause"), [(decide, ""), (decide_because, ": OSError: refused")]
)
def test_retry_out_of_attempts_is_a_dead_letter_that_says_so(
    work, records, queue_name, caplog, task, cause
):
    args = ["retry at once"] if cause else ["retry at once", 9]
    job = schedule(
        task.using(queue=queue_name, max_attempts=3, keep_result=60), 0, *args
    )

    work()
    text = f"Retry{cause}; this was attempt 3, and max_attempts is 3"
    with pytest.raises(JobFailed, match=f"is dead: {text}"):
        job.wait(60)
    wait_for(job, State.DEAD)

    assert job.attempts == 3
    assert job.error["error"] == text
    wait_until(lambda: len(lines_of(caplog, job)) == 3, description="all is logged")
    level, fields, has_traceback = lines_of(caplog, job)[-1]
    assert (level, fields["outcome"]) == (logging.ERROR, "dead")
    # That of the error behind it; a decision is no news.
    assert has_traceback == bool(cause)


def test_retry_goes_by_neither_retry_on_nor_no_retry_on(work, records, queue_name):
    @delayed_task(name="picky", retry_on=KeyError, no_retry_on=BaseException)
    def picky():
        raise Retry(FAR_S)

    job = schedule(picky.using(queue=queue_name), 0)

    work()

    wait_for(job, State.RETRYING)


# Snooze.


@every_server
@pytest.mark.parametrize("task", [decide, decide_async])
def test_snooze_counts_nothing_and_keeps_the_job(
    work, records, queue_name, caplog, task
):
    job = schedule(task.using(queue=queue_name, unique=True), 0, "snooze")

    work()
    wait_until(
        lambda: counts(queue_name).counters.get("snoozed"), description="it snoozes"
    )

    again = get_job(job.id)
    assert again.state is State.SCHEDULED
    assert (again.attempts, again.kills, again.error) == (0, 0, None)
    assert FAR_S - 120 < seconds_to(again) <= FAR_S + 1
    assert not schedule(task.using(queue=queue_name, unique=True), 0, "snooze").created
    wait_until(lambda: lines_of(caplog, job), description="it is logged")
    ((level, fields, has_traceback),) = lines_of(caplog, job)
    assert (level, fields["outcome"]) == (logging.INFO, "snoozed")
    assert (fields["again_in_ms"], fields["reason"]) == (FAR_S * 1000, "not yet")
    assert not has_traceback
    # It runs again under its id.
    assert again.run_now()
    wait_for(job, State.SUCCEEDED)
    assert records.jobs("run") == [job.id] * 2


def test_snooze_goes_on_for_as_often_as_the_task_wants(work, records, queue_name):
    job = schedule(
        decide.using(queue=queue_name, max_attempts=1), 0, "snooze at once", 40
    )

    work()
    wait_for(job, State.SUCCEEDED)

    assert records.count("run") == 41
    assert {line["attempts"] for line in records.all("run")} == {0}
    assert counts(queue_name).counters["snoozed"] == 40


def test_snooze_after_a_failure_keeps_the_attempts_and_the_error(
    work, records, queue_name
):
    @delayed_task(name="fail-then-snooze", backoff=Backoff(base=0.01, jitter=0))
    def fail_then_snooze():
        if not current_job().attempts:
            raise KeyError("the first")
        raise Snooze(FAR_S)

    job = schedule(fail_then_snooze.using(queue=queue_name), 0)

    work()
    wait_until(
        lambda: counts(queue_name).counters.get("snoozed"), description="it snoozes"
    )

    assert job.refresh() is State.RETRYING
    assert job.attempts == 1
    assert job.error["error"] == "KeyError: 'the first'"


def test_lateness_of_a_snoozed_job_counts_from_the_end_of_its_snooze(
    work, records, queue_name, caplog
):

    @delayed_task(name="snooze-a-little")
    def snooze_a_little():
        record("run")
        if Records(Path(os.environ[ENVIRONMENT])).count("run") == 1:
            raise Snooze(0.5)

    begin_ms = monotonic_ms()
    job = schedule(snooze_a_little.using(queue=queue_name), 0)

    work()
    wait_for(job, State.SUCCEEDED)
    wait_until(lambda: len(lines_of(caplog, job)) == 2, description="both are logged")

    (_, first, _), (_, second, _) = lines_of(caplog, job)
    # Neither is late by the time of the other, nor by the snooze.
    clocks_ms = 20
    most_ms = monotonic_ms() - begin_ms - 500 + clocks_ms
    assert first["lateness_ms"] + second["lateness_ms"] <= most_ms


# Cancel.


@every_server
@pytest.mark.parametrize("task", [decide, decide_async])
def test_cancel_ends_the_job_with_the_reason(work, records, queue_name, caplog, task):
    task = task.using(queue=queue_name, unique=True, keep_result=60)
    job = schedule(task, 0, "cancel")

    work()
    with pytest.raises(JobFailed, match=r"is cancelled: the order is paid$"):
        job.wait(60)

    assert job.state is State.CANCELLED
    assert get_job(job.id).state is State.CANCELLED
    assert counts(queue_name).counters["cancelled"] == 1
    wait_until(lambda: lines_of(caplog, job), description="it is logged")
    ((level, fields, has_traceback),) = lines_of(caplog, job)
    assert (level, fields["outcome"]) == (logging.INFO, "cancelled")
    assert fields["reason"] == "the order is paid"
    assert not has_traceback
    # Its key is free.
    assert schedule(task, FAR_S, "cancel").created


@pytest.mark.parametrize(
    ("task", "what", "text"),
    [
        (decide, "cancel without a word", "by its task"),
        (decide_because, "cancel", "the order is paid: OSError: refused"),
        (decide_because, "cancel without a word", "OSError: refused"),
    ],
)
def test_who_waits_for_a_cancelled_job_gets_the_cause(
    work, records, queue_name, task, what, text
):
    job = schedule(task.using(queue=queue_name, keep_result=60), 0, what)

    work()

    with pytest.raises(JobFailed, match=f"is cancelled: {text}$"):
        job.wait(60)


# Where it is raised.


@pytest.mark.parametrize(
    "task",
    [decide_within_except, decide_in_thread, decide_in_loop, decide_in_gather],
)
def test_decision_reaches_the_worker_from_where_it_is_raised(
    work, records, queue_name, task
):
    job = schedule(task.using(queue=queue_name, keep_result=60), 0, "cancel")

    work()

    with pytest.raises(JobFailed, match="is cancelled: the order is paid"):
        job.wait(60)
    assert records.count("caught") == 0


def test_decision_within_a_group_is_not_looked_for(work, records, queue_name):
    job = schedule(decide_in_group.using(queue=queue_name), 0, "snooze")

    work()
    wait_for(job, State.DEAD)

    assert job.error["error"].startswith("BaseExceptionGroup: ")
    assert "Snooze: not yet" in job.error["traceback"]


@pytest.mark.parametrize("what", ["retry", "snooze", "cancel"])
def test_handlers_of_foreign_elements_decide_as_tasks_do(
    work, client, records, queue_name, what
):
    @queue_handler(queue_name, name="decides")
    def handle(value):
        record("run", value=value)
        raise make(what)

    client.rpush(queue_name, b'"hello"')

    work()
    counter = {"retry": "retried", "snooze": "snoozed", "cancel": "cancelled"}[what]
    wait_until(
        lambda: counts(queue_name).counters.get(counter) == 1, description="it ended"
    )

    seen = counts(queue_name)
    assert (seen.retrying, seen.waiting, seen.running) == (
        int(what == "retry"),
        int(what == "snooze"),
        0,
    )


@pytest.mark.parametrize("task", [decide, decide_async])
@pytest.mark.parametrize("what", ["snooze", "cancel"])
def test_decision_counts_if_it_comes_within_the_time_limit(
    work, records, queue_name, task, what
):
    job = schedule(task.using(queue=queue_name, time_limit=60), 0, what)

    work()

    wait_for(job, State.SCHEDULED if what == "snooze" else State.CANCELLED)


# On the way to the server.


@pytest.fixture
def proxied(server, settings, queue_name, configure):
    """A server behind a line that fails on demand."""
    proxy = Proxy(server)
    settings.DELAYQ = {
        "CONNECTION": proxy.url,
        "QUEUES": {"default": {}, queue_name: {}},
    }
    yield proxy
    proxy.close()


@pytest.mark.parametrize("is_reply_lost", [True, False])
@pytest.mark.parametrize(
    ("what", "script", "counter"),
    [
        ("retry", "retry", "retried"),
        ("snooze", "retry", "snoozed"),
        ("cancel", "acknowledge", "cancelled"),
    ],
)
def test_decision_whose_call_breaks_off_is_told_again_and_counted_once(
    proxied, work, records, queue_name, what, script, counter, is_reply_lost
):
    sha = bind_in(scripts.PACKAGES, script, DeliveryKeys.of(queue_name))[0].sha.encode()
    task = decide.using(queue=queue_name)
    schedule(task, 0, what, 9)
    work()
    wait_until(lambda: counts(queue_name).counters.get(counter), description="one ends")
    lose = proxied.lose_reply_to if is_reply_lost else proxied.lose
    struck = lose(sha, 2)

    job = schedule(task, 0, what, 9)

    wait_until(struck.is_set, description="it breaks off")
    expected = {
        "retry": State.RETRYING,
        "snooze": State.SCHEDULED,
        "cancel": State.CANCELLED,
    }[what]
    wait_for(job, expected)
    assert job.attempts == int(what == "retry")
    assert counts(queue_name).counters[counter] == 2
    assert records.jobs("run").count(job.id) == 1


@pytest.mark.parametrize("what", ["retry", "snooze", "cancel"])
def test_decision_is_kept_while_the_server_is_away(
    proxied, work, server, records, queue_name, what
):
    @delayed_task(name="decide-later")
    def decide_later():
        record("run")
        gate = Path(os.environ[ENVIRONMENT] + ".go")
        while not gate.exists():
            time.sleep(0.005)
        record("decided")
        raise make(what)

    job = schedule(decide_later.using(queue=queue_name), 0)
    work()
    wait_until(lambda: records.count("run"), description="it runs")
    proxied.is_refusing = True
    proxied.cut()
    records.let_go()
    wait_until(lambda: records.count("decided"), description="it has decided")
    proxied.is_refusing = False

    wait_for(
        job,
        {
            "retry": State.RETRYING,
            "snooze": State.SCHEDULED,
            "cancel": State.CANCELLED,
        }[what],
    )
    assert records.count("run") == 1


# Bad input.


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("negative", "InvalidDelay: a delay cannot be negative; got -1"),
        ("soon", "InvalidDelay: a delay is a number of seconds"),
        ("silent", "InvalidTask: Silent says no delay"),
        ("misnamed", "InvalidTask: Misnamed says no delay"),
    ],
)
def test_wrong_decision_fails_the_job_as_any_error_does(
    work, records, queue_name, what, text
):
    job = schedule(decide.using(queue=queue_name, max_attempts=1), 0, what)

    work()
    wait_for(job, State.DEAD)

    assert job.error["error"].startswith(text)


def test_decision_that_is_returned_is_no_success(work, records, queue_name):
    @delayed_task(name="return-it")
    def return_it():
        return Snooze(5)

    job = schedule(return_it.using(queue=queue_name, max_attempts=1), 0)

    work()
    wait_for(job, State.DEAD)

    assert job.error["error"] == (
        "InvalidTask: return-it returned a Snooze, which decides nothing unless it is raised"
    )


# Stopping.


@delayed_task
def work_long(steps=10_000):
    """Work until done or told to stop; note where it was."""
    job = current_job()
    for step in range(steps):
        record("step", at=step)
        if job.wait_for_stop(0.01):
            raise Snooze(0, f"left at {step}")


@delayed_task
async def work_long_async(steps=10_000):
    job = current_job()
    for step in range(steps):
        record("step", at=step)
        if await job.await_stop(0.01):
            raise Snooze(0, f"left at {step}")


@delayed_task
async def work_long_in_a_thread():
    """Wait in a thread that the coroutine has begun."""

    def wait():
        record("step")
        return current_job().wait_for_stop()

    if await sync_to_async(wait)() and current_job().stopping:
        raise Snooze(0)


@delayed_task
def watch_in_a_thread():
    """Ask in a thread of its own."""
    job = current_job()
    seen = []
    record("step")
    thread = threading.Thread(target=lambda: seen.append(job.wait_for_stop()))
    thread.start()
    thread.join()
    raise Snooze(0, f"told {seen}, {job.stopping}")


@pytest.mark.parametrize(
    "task", [work_long, work_long_async, work_long_in_a_thread, watch_in_a_thread]
)
def test_long_job_leaves_off_in_order_when_its_worker_stops(
    work, records, queue_name, task
):
    job = schedule(task.using(queue=queue_name, time_limit=300), 0)
    worker = work(cap_ms=NEVER_MS)
    wait_until(lambda: records.count("step"), description="it works")

    # It has longer than this test waits, and does not need it.
    worker.loop.stop(600)
    worker.join()

    assert job.refresh() is State.DUE
    assert (job.attempts, job.kills) == (0, 0)
    assert counts(queue_name).counters["snoozed"] == 1


def test_coroutine_that_is_broken_off_may_still_decide(
    work, records, queue_name, monkeypatch
):
    monkeypatch.setattr(process, "CANCEL_S", 60)

    @delayed_task(name="decide-at-last")
    async def decide_at_last():
        record("step")
        try:
            await asyncio.sleep(FAR_S)
        except asyncio.CancelledError:
            raise Snooze(FAR_S) from None

    job = schedule(decide_at_last.using(queue=queue_name), 0)
    worker = work()
    wait_until(lambda: records.count("step"), description="it works")

    worker.loop.stop(0)
    worker.join()

    assert job.refresh() is State.SCHEDULED
    assert FAR_S - 120 < seconds_to(job) <= FAR_S + 1


def test_coroutine_that_is_broken_off_after_its_limit_is_given_back(
    work, records, queue_name, monkeypatch
):
    monkeypatch.setattr(process, "CANCEL_S", 60)
    monkeypatch.setattr(time_limit, "STUCK_AFTER_S", FAR_S)

    @delayed_task(name="clean-up-at-length")
    async def clean_up_at_length():
        try:
            await asyncio.sleep(FAR_S)
        finally:
            record("step")
            await asyncio.sleep(FAR_S)

    job = schedule(
        clean_up_at_length.using(queue=queue_name, time_limit=0.01, max_attempts=1), 0
    )
    worker = work()
    wait_until(lambda: records.count("step"), description="its limit has passed")

    worker.loop.stop(0)
    worker.join()

    assert job.refresh() is State.DUE
    assert (job.attempts, job.error) == (0, None)


@pytest.mark.parametrize("task", [work_long, work_long_async])
def test_job_that_is_told_nothing_goes_on(work, records, queue_name, task):
    job = schedule(task.using(queue=queue_name), 0, 3)

    work()
    wait_for(job, State.SUCCEEDED)

    assert records.count("step") == 3


def test_process_that_is_to_be_replaced_tells_its_jobs(work, records, queue_name):
    job = schedule(work_long.using(queue=queue_name), 0)
    worker = work()
    wait_until(lambda: records.count("step"), description="it works")

    worker.loop.retire()
    worker.join()

    assert job.refresh() is State.DUE


def test_job_of_a_worker_with_max_jobs_is_told_nothing_of_its_end(
    work, records, queue_name
):
    """Else each job of a worker with --max-jobs 1 would put itself off for ever."""
    job = schedule(work_long.using(queue=queue_name), 0, 3)

    work(max_jobs=1)

    wait_for(job, State.SUCCEEDED)


def test_only_the_job_that_runs_here_can_be_asked(queue_name, configure):
    job = schedule(work_long.using(queue=queue_name), FAR_S)

    for ask in (lambda: job.stopping, job.wait_for_stop):
        with pytest.raises(InvalidTask, match=r"does not run here.*current_job\(\)"):
            ask()
    with pytest.raises(InvalidTask, match="does not run here"):
        asyncio.run(job.await_stop())
    assert job.cancel()


def test_sigterm_has_a_long_job_leave_off_and_go_on_elsewhere(
    program, records, queue_name
):
    job = schedule(tasks.count_up.using(queue=queue_name), 0, 10**9)
    first = program("--queue", queue_name, "--processes", "1").wait_for_processes()
    wait_until(lambda: records.count("step") >= 3, description="it works")

    assert first.stop() == 0

    assert job.refresh() is State.DUE
    assert (job.attempts, job.kills) == (0, 0)
    assert "outcome=snoozed" in first.log
