"""`captured` and `immediate`: what was scheduled is a list, and runs at once."""

import asyncio
import unittest
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import SimpleTestCase
from django.utils import timezone
from freezegun import freeze_time

from django_delayq import (
    Batch,
    DelayedQueue,
    InvalidArguments,
    InvalidDelay,
    InvalidTask,
    JobFailed,
    State,
    TaskNotFound,
    aschedule,
    delayed_task,
    get_job,
    pause,
    schedule,
    schedule_many,
)
from django_delayq.testing import captured, immediate
from django_delayq.transport.clients import own_clients
from tests.testing.samples import (
    RAN,
    adouble,
    aparent,
    cut_off,
    deciding,
    double,
    expiring_once,
    failing,
    latest,
    mailed,
    once,
    parent,
    waiting,
)


def test_what_is_scheduled_is_listed_and_does_not_run() -> None:
    with captured() as jobs:
        job = double.schedule(900, 1)
        schedule("tests.testing.samples.mailed", timedelta(hours=1), n=2)

    first, second = jobs
    assert (first.id, first.task, first.args, first.kwargs) == (
        job.id,
        double.name,
        [1],
        {},
    )
    assert (first.queue, first.due_in) == ("default", timedelta(minutes=15))
    assert (second.queue, second.args, second.kwargs) == ("mail", [], {"n": 2})
    assert second.due_in == timedelta(hours=1)
    assert RAN == []


def test_argument_is_compared_whether_it_has_a_name_or_not() -> None:
    with captured() as jobs:
        once.schedule(0, n=42)
        once.schedule(0, 43, "x")

    jobs.assert_scheduled(once, args=(42,))
    jobs.assert_scheduled(once, kwargs={"n": 43, "why": "x"})
    jobs.assert_scheduled(once, args=(43,), kwargs={"why": "x"})
    jobs.assert_not_scheduled(once, args=(41,))
    jobs.assert_not_scheduled(once, args=(42,), kwargs={"why": "x"})


def test_moment_matches_one_that_was_made_of_an_earlier_now() -> None:
    moment = timezone.now() + timedelta(minutes=15)
    with captured() as jobs:
        double.schedule(moment, 1)

    jobs.assert_scheduled(double, due_in=moment + timedelta(milliseconds=500))
    jobs.assert_not_scheduled(double, due_in=moment + timedelta(seconds=5))


def test_assert_scheduled_compares_what_it_is_given() -> None:
    with captured() as jobs:
        double.schedule(900, 1)

    jobs.assert_scheduled(double)
    jobs.assert_scheduled(double.name, args=(1,), kwargs={}, queue="default", count=1)
    assert jobs.assert_scheduled(double, due_in=900).args == [1]
    jobs.assert_scheduled(double, due_in=timedelta(minutes=15))
    jobs.assert_scheduled(double, due_in=timezone.now() + timedelta(minutes=15))
    jobs.assert_not_scheduled(mailed)
    jobs.assert_not_scheduled(double, args=(2,))
    assert (jobs.count(), jobs.count(double), jobs.count(double, args=[2])) == (1, 1, 0)


def test_moment_is_compared_with_a_second_to_spare_and_a_delay_to_the_ms() -> None:
    with captured() as jobs:
        double.schedule(timezone.now() + timedelta(hours=1), 1)
        double.schedule(900.5, 2)

    jobs.assert_scheduled(double, args=[1], due_in=3_600)
    jobs.assert_not_scheduled(double, args=[1], due_in=3_590)
    jobs.assert_not_scheduled(double, args=[2], due_in=900)


@pytest.mark.parametrize(
    "like",
    [
        {"args": (2,)},
        {"kwargs": {"n": 2}},
        {"due_in": 899},
        {"queue": "mail"},
        {"count": 2},
    ],
)
def test_failure_says_what_was_expected_and_lists_what_was_scheduled(
    like: dict[str, Any],
) -> None:
    with captured() as jobs:
        double.schedule(900, 1)

    with pytest.raises(AssertionError) as caught:
        jobs.assert_scheduled(double, **like)

    text = str(caught.value)
    assert text.startswith("tests.testing.samples.double ")
    assert "was not scheduled" in text
    assert "1. tests.testing.samples.double(1) due in 0:15:00" in text


def test_failure_says_that_nothing_was_scheduled() -> None:
    with captured() as jobs, pytest.raises(AssertionError, match="nothing was sched"):
        jobs.assert_scheduled(double)


def test_a_captured_job_is_shown_without_the_ms_of_the_servers_clock() -> None:
    with captured() as jobs:
        double.schedule(86_400, 1)

    shown = str(replace(jobs[0], due_in=timedelta(days=1, milliseconds=1)))
    assert shown == "tests.testing.samples.double(1) due in 1 day, 0:00:00"


def test_assert_not_scheduled_lists_what_was() -> None:
    with captured() as jobs:
        double.schedule(0, 1)

    with pytest.raises(AssertionError, match=r"1 time; scheduled were:\n  1\. "):
        jobs.assert_not_scheduled(double)
    with pytest.raises(AssertionError, match="something was scheduled"):
        jobs.assert_not_scheduled()


def test_delay_that_nothing_could_have_is_an_error() -> None:
    with captured() as jobs:
        double.schedule(0, 1)
        with pytest.raises(InvalidDelay, match="time zone"):
            jobs.assert_scheduled(double, due_in=datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"args": 1}, r"such as args=\(42,\); got 1"),
        ({"args": "abc"}, "got 'abc'"),
        ({"kwargs": [1]}, "such as kwargs="),
    ],
)
def test_arguments_that_no_call_has_are_an_error(
    like: dict[str, Any], words: str
) -> None:
    with captured() as jobs:
        double.schedule(0, 1)
        with pytest.raises(InvalidArguments, match=words):
            jobs.assert_not_scheduled(double, **like)


@pytest.mark.parametrize("check", ["assert_scheduled", "assert_not_scheduled", "count"])
def test_misspelt_name_of_a_task_is_an_error(check: str) -> None:
    with captured() as jobs, pytest.raises(TaskNotFound, match="Did you mean"):
        getattr(jobs, check)("tests.testing.samples.doubel")


def test_what_is_no_task_is_an_error() -> None:
    with captured() as jobs, pytest.raises(InvalidTask, match="is not a task; give"):
        jobs.assert_scheduled(len)  # type: ignore[arg-type]


def test_job_says_where_it_is_and_can_be_moved_and_cancelled() -> None:
    with captured() as jobs:
        job = double.schedule(900, 1)
        assert job.refresh() is State.SCHEDULED
        assert get_job(job.id).args == [1]
        assert job.reschedule(60)
        jobs.assert_scheduled(double, due_in=60)
        assert job.reprioritize(5)
        assert jobs[0].priority == 5
        assert job.run_now()
        assert job.refresh() is State.DUE
        assert job.cancel()
        assert (job.state, len(jobs)) == (State.CANCELLED, 0)
        assert not job.reschedule(5)
        assert job.cancel()


def test_unique_job_is_captured_once_until_it_is_cancelled() -> None:
    with captured() as jobs:
        first = once.schedule(60, 1)
        second = once.schedule(5, 1)
        other = once.schedule(5, 2)

        assert (first.created, second.created, other.created) == (True, False, True)
        assert second.id == first.id
        assert [job.unique != "" for job in jobs] == [True, True]
        first.cancel()
        assert once.schedule(5, 1).created


def test_duplicate_changes_the_job_that_waits() -> None:
    with captured() as jobs:
        latest.schedule(60, 1, why="first")
        again = latest.schedule(90, 1, why="second")

    assert again.replaced
    assert [job.kwargs for job in jobs] == [{"why": "second"}]
    jobs.assert_scheduled(latest, kwargs={"why": "second"}, due_in=90)


def test_job_that_is_too_late_holds_its_key_no_more() -> None:
    with captured() as jobs, freeze_time("2026-05-04 12:00") as clock:
        expiring_once.schedule(0, 1, "old")
        clock.tick(50)
        assert expiring_once.schedule(0, 1, "new").replaced
        clock.tick(60)
        assert expiring_once.schedule(0, 1, "newer").replaced
        clock.tick(61)
        assert expiring_once.schedule(0, 1, "last").created

    assert [job.args for job in jobs] == [[1, "newer"], [1, "last"]]


def test_replacement_is_followed_by_what_followed_the_job() -> None:
    with captured() as calls:
        keeping = latest.using(on_duplicate="keep")
        schedule(keeping.prepare(10, 1, "old").then(double.prepare(0, 2)))
        job = latest.schedule(20, 1, "new")

        assert job.replaced
        (call,) = calls
        assert call.args == [1, "new"]
        assert [each.args for each in call.then] == [[2]]


def test_jobs_of_schedule_many_and_what_follows_them_are_seen() -> None:
    with captured() as jobs:
        schedule_many(
            double.prepare(60, n).then(mailed.prepare(5, n)).on_dead(once.prepare(0, n))
            for n in range(3)
        )

    assert [job.args for job in jobs] == [[0], [1], [2]]
    (follower,) = jobs[1].then
    assert (follower.task, follower.args) == (mailed.name, [1])
    assert follower.due_in == timedelta(seconds=5)
    assert jobs[1].on_dead[0].task == once.name


def test_batch_is_captured_with_its_callback_held() -> None:
    with captured() as jobs:
        batch = Batch(mailed.prepare(0, 9))
        with pytest.raises(InvalidTask, match="queue"):
            batch.schedule([double.prepare(0, 1)])
        batch = Batch(once.using(unique=False).prepare(0, 9))
        members = batch.schedule([double.prepare(0, 1), double.prepare(0, 2)])
        assert batch.left() == 2
        assert jobs.assert_scheduled(once).state is State.HELD
        for job in members:
            job.cancel()
        assert jobs.assert_scheduled(once).state is State.SCHEDULED


async def test_event_loop_is_captured() -> None:
    with captured() as jobs:
        job = await aschedule(adouble, 5, 1)
        assert await job.arefresh() is State.SCHEDULED
        assert await job.areschedule(7)
        jobs.assert_scheduled(adouble, due_in=7)
        assert await job.acancel()


def test_what_needs_a_server_says_so() -> None:
    with captured(), pytest.raises(NotImplementedError, match="use frozen_queue"):
        pause("default")


def test_wait_for_a_captured_job_ends_at_once() -> None:
    with captured():
        job = double.schedule(0, 1)
        with pytest.raises(TimeoutError, match="runs no job later"):
            job.wait(timeout=60)


def test_captures_nest_and_end() -> None:
    with captured() as outer:
        double.schedule(0, 1)
        with captured() as inner:
            double.schedule(0, 2)
        double.schedule(0, 3)

    assert [job.args for job in outer] == [[1], [3]]
    assert [job.args for job in inner] == [[2]]


# immediate()


def test_job_runs_when_it_is_scheduled_whatever_its_delay() -> None:
    with immediate() as jobs:
        job = double.schedule(900, 1)

        assert RAN == [("double", 1)]
        assert job.wait(timeout=1) == 2
        assert job.refresh() is State.SUCCEEDED
        jobs.assert_scheduled(double, due_in=900)


def test_async_task_runs_in_this_thread() -> None:
    with immediate():
        assert adouble.schedule(900, 2).wait(timeout=1) == 4


async def test_event_loop_runs_both_kinds_of_tasks() -> None:
    with immediate():
        assert await (await adouble.aschedule(0, 1)).await_result(1) == 2
        assert await (await double.aschedule(0, 2)).await_result(1) == 4


async def test_async_task_cannot_run_within_a_call_that_blocks_the_loop() -> None:
    with immediate(), pytest.raises(RuntimeError, match=r"adouble.*await aschedule"):
        adouble.schedule(0, 1)


def test_exception_is_raised_to_the_test() -> None:
    with immediate() as jobs:
        with pytest.raises(ValueError, match="no 1"):
            failing.schedule(0, 1)
        assert jobs.assert_scheduled(failing).state is State.RETRYING


def test_exception_is_kept_with_the_job_if_the_test_asks_for_that() -> None:
    with immediate(raises=False):
        job = failing.using(max_attempts=1, keep_result=60).schedule(0, 1)

        assert job.refresh() is State.DEAD
        assert job.error is not None
        assert job.error["error"] == "ValueError: no 1"
        with pytest.raises(JobFailed):
            job.wait(timeout=1)


def test_error_that_looks_like_one_of_the_server_is_wrapped() -> None:
    with immediate(), pytest.raises(RuntimeError, match="the task raised Conn") as told:
        cut_off.schedule(0, 1)

    assert isinstance(told.value.__cause__, ConnectionError)


@pytest.mark.parametrize(
    ("what", "state"),
    [
        ("retry", State.RETRYING),
        ("snooze", State.DUE),
        ("cancel", State.CANCELLED),
    ],
)
def test_decision_is_kept_and_raises_nothing(what: str, state: State) -> None:
    with immediate():
        job = deciding.schedule(0, what)

        if what == "snooze":
            state = State.SCHEDULED
        assert job.refresh() is state
        assert RAN == [("deciding", 0)]


def test_what_follows_runs_too() -> None:
    with immediate():
        schedule_many([double.prepare(0, 1).then(mailed.prepare(60, 2))])
        Batch(once.using(unique=False).prepare(0, 3)).schedule([double.prepare(0, 4)])

    assert RAN == [("double", 1), ("mailed", 2), ("double", 4), ("once", 3)]


@pytest.mark.parametrize("task", [parent, aparent])
def test_what_a_job_schedules_runs_after_it_in_order(task: Any) -> None:
    with immediate():
        task.schedule(0, "double", "adouble", "grandparent", "once")

    assert [name for name, _ in RAN] == [
        "parent begins",
        "parent ends",
        "double",
        "adouble",
        "grandparent begins",
        "grandparent ends",
        "once",
        "parent begins",
        "parent ends",
        "double",
    ]


@pytest.mark.parametrize("task", [parent, aparent])
async def test_what_a_job_schedules_runs_after_it_on_the_event_loop(task: Any) -> None:
    with immediate():
        await task.aschedule(0, "double", "adouble")

    names = [name for name, _ in RAN]
    assert names == ["parent begins", "parent ends", "double", "adouble"]


async def test_call_runs_what_it_sends_itself_while_the_job_of_another_runs() -> None:
    is_held, may_end = asyncio.Event(), asyncio.Event()

    @delayed_task(name="tests.testing.held")
    async def held() -> None:
        is_held.set()
        await may_end.wait()

    with immediate():
        first = asyncio.create_task(held.aschedule(0))
        await is_held.wait()
        await adouble.aschedule(0, 1)
        assert RAN == [("adouble", 1)]
        may_end.set()
        await first


async def test_what_a_job_has_started_sends_for_itself_once_the_call_is_over() -> None:
    started: list[asyncio.Task[Any]] = []
    may_send = asyncio.Event()

    async def send_later() -> None:
        await may_send.wait()
        await double.aschedule(0, 1)

    @delayed_task(name="tests.testing.starting")
    async def starting() -> None:
        started.append(asyncio.create_task(send_later()))

    with immediate():
        await starting.aschedule(0)
        may_send.set()
        await started[0]

    assert RAN == [("double", 1)]


def test_what_several_jobs_raise_the_first_call_raises_once_all_have_run() -> None:
    with immediate() as jobs:
        with pytest.raises(ValueError, match="no 1"):
            parent.schedule(0, "failing", "cut_off", "double")
        assert jobs.assert_scheduled(parent).state is State.SUCCEEDED
        assert jobs.assert_scheduled(cut_off).state is State.RETRYING
        # The next call begins anew.
        double.schedule(0, 2)

    assert RAN[-2:] == [("double", 1), ("double", 2)]


def test_job_cannot_wait_for_what_runs_after_it() -> None:
    with immediate(), pytest.raises(RuntimeError, match="after that job, so this wait"):
        waiting.schedule(0)

    assert RAN == [("double", 1)]


def test_new_outbox_for_mail_forgets_no_job() -> None:
    job = double.schedule(900, 1)

    mail.outbox = []

    assert job.refresh() is State.SCHEDULED


def test_test_of_django_begins_without_the_jobs_of_others() -> None:
    job = double.schedule(900, 1)

    class Another(SimpleTestCase):
        def test(self) -> None:
            assert job.refresh() is State.MISSING

    result = unittest.TestResult()
    Another("test")(result)

    assert result.wasSuccessful(), result


def test_inner_block_counts() -> None:
    with immediate(), captured() as jobs:
        double.schedule(0, 1)

    assert len(jobs) == 1
    assert RAN == []


def test_recorder_reads_start_times_as_utc() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with captured() as jobs:
        double.schedule(at, 1)

    assert jobs[0].start_time == at


def test_own_clients_return_to_their_server() -> None:
    before = own_clients.find()
    with captured():
        inside = own_clients.find()

    assert own_clients.find().connection_class is before.connection_class
    assert inside.arguments != before.arguments


def test_objects_of_redisson_say_that_they_need_a_server() -> None:
    """Their scripts may have the names of others."""
    with (
        DelayedQueue("default") as queue,
        captured(),
        pytest.raises(NotImplementedError, match="use frozen_queue"),
    ):
        queue.remove("x")


def test_job_of_a_queue_with_shards_is_captured_under_the_name_of_the_queue(
    settings: Any,
) -> None:
    settings.DELAYQ = {"QUEUES": {"default": {"SHARDS": 4}, "mail": {}}}

    with captured() as jobs:
        made = [double.schedule(900, n) for n in range(8)]
        once.schedule(900, 1)
        assert not once.schedule(900, 1).created

        assert len({job.queue for job in made}) > 1
        assert len(jobs.of(double, queue="default")) == 8
        jobs.assert_scheduled(double, args=[1], queue=made[1].queue)


def test_prefix_is_left_out_of_what_is_captured(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "shop-"}

    with captured() as jobs:
        job = schedule(double, 60, 2)
        assert get_job(job.id).state is State.SCHEDULED

    assert [(each.queue, each.id) for each in jobs] == [("default", job.id)]
