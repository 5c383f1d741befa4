"""`frozen_queue`: jobs fall due when the test says so, and run as a worker would run them."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.test import TestCase
from django.utils import timezone
from freezegun import freeze_time

from django_delayq import (
    Batch,
    BlockingQueue,
    DelayedQueue,
    InvalidDelay,
    InvalidSettings,
    State,
    cron,
    ended_jobs,
    every,
    find_jobs,
    get_job,
    pause,
    resume,
    schedule,
    schedule_many,
    set_limit,
    store_schedule,
)
from django_delayq.features.schedules.periodic import CatchUp
from django_delayq.testing import frozen, frozen_queue
from django_delayq.testing.memory import memory_server as memory
from tests.pairs.scenes import hold_up
from tests.testing.samples import (
    MOMENTS,
    RAN,
    adouble,
    chaining,
    committed,
    deciding,
    double,
    endless,
    expiring,
    expiring_once,
    failing,
    latest,
    limited,
    mailed,
    once,
    slow,
)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def outcomes(ran: list[frozen.Ran]) -> list[str]:
    return [each.outcome for each in ran]


def test_job_runs_at_its_moment_and_not_before() -> None:
    with frozen_queue(now=NOON) as q:
        job = double.schedule(900, 1)

        assert q.advance(minutes=14, seconds=59.999) == []
        assert job.refresh() is State.SCHEDULED
        (ran,) = q.advance(seconds=0.001)

        assert (ran.id, ran.task, ran.args, ran.outcome) == (
            job.id,
            double.name,
            [1],
            "succeeded",
        )
        assert ran.at == q.now == NOON + timedelta(minutes=15)
        assert job.refresh() is State.SUCCEEDED
        assert job.wait(timeout=1) == 2


def test_replacement_is_followed_by_what_followed_the_job() -> None:
    with frozen_queue(now=NOON) as q:
        keeping = latest.using(on_duplicate="keep")
        schedule(keeping.prepare(10, 1, "old").then(double.prepare(0, 2)))

        assert latest.schedule(20, 1, "new").replaced

        assert [each.args for each in q.advance(seconds=30)] == [[1, "new"], [2]]


def test_jobs_run_in_order_each_at_its_own_moment_on_djangos_clock() -> None:
    with frozen_queue(now=NOON) as q:
        for wait in (30, 10, 20):
            double.schedule(wait, wait)
        mailed.schedule(15, 15)

        q.advance(timedelta(minutes=1))

        assert [n for _, n in RAN] == [10, 15, 20, 30]
        assert [NOON + timedelta(seconds=n) for n in (10, 20, 30)] == MOMENTS
        assert timezone.now() == NOON + timedelta(minutes=1)
    assert timezone.now() > NOON + timedelta(days=1)


def test_job_that_a_job_schedules_runs_if_it_falls_due() -> None:
    with frozen_queue() as q:
        chaining.schedule(60, 0)
        q.advance(minutes=3)

    assert [("chaining", n) for n in range(3)] == RAN


def test_failures_are_tried_again_until_the_job_is_dead() -> None:
    with frozen_queue() as q:
        job = failing.schedule(0, 1)

        (first,) = q.run_due()
        assert first.outcome == "retrying"
        assert isinstance(first.error, ValueError)
        assert job.refresh() is State.RETRYING
        assert outcomes(q.advance(minutes=1)) == ["retrying"]
        assert outcomes(q.advance(minutes=1)) == ["dead"]

        (dead,) = find_jobs(queue="default", state="dead")
        assert dead == job
        assert get_job(job.id).attempts == 3
        assert [entry.outcome for entry in ended_jobs("default")] == [State.DEAD]
        assert job.retry()
        assert outcomes(q.run_due()) == ["retrying"]


def test_decisions_count_as_in_a_worker() -> None:
    with frozen_queue() as q:
        retry = deciding.schedule(0, "retry")
        snooze = deciding.schedule(0, "snooze")
        cancel = deciding.schedule(0, "cancel")

        assert outcomes(q.run_due()) == ["retrying", "snoozed", "cancelled"]
        assert retry.refresh() is State.RETRYING
        assert snooze.refresh() is State.SCHEDULED
        assert cancel.refresh() is State.CANCELLED
        q.advance(seconds=60)
        snooze.refresh()
        assert snooze.attempts == 0


def test_async_task_runs_in_this_thread() -> None:
    with frozen_queue() as q:
        job = adouble.schedule(5, 4)
        q.advance(5)

        assert job.wait(timeout=1) == 8


async def test_event_loop_lets_time_pass() -> None:
    with frozen_queue() as q:
        job = await adouble.aschedule(5, 4)
        await double.aschedule(5, 3)

        assert outcomes(await q.aadvance(5)) == ["succeeded", "succeeded"]
        assert await job.await_result(1) == 8
        await once.aschedule(0, 1)
        assert outcomes(await q.arun_due()) == ["succeeded"]


def test_expired_job_does_not_run() -> None:
    with frozen_queue() as q:
        job = expiring.schedule(0, 1)
        pause("default")
        q.advance(minutes=2)
        resume("default")

        assert outcomes(q.run_due()) == ["expired"]
        assert job.refresh() is State.EXPIRED
    assert RAN == []


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_job_that_is_too_late_holds_its_key_no_more(on_duplicate: Any) -> None:
    task = expiring_once.using(on_duplicate=on_duplicate)
    with frozen_queue(now=NOON) as q:
        pause("default")
        first = task.schedule(0, 1, "old")
        q.advance(seconds=60)
        assert not task.schedule(0, 1, "in time").created
        q.advance(seconds=61)

        job = task.schedule(0, 1, "new")

        assert (job.created, job.replaced, job.id != first.id) == (True, False, True)
        resume("default")
        assert outcomes(q.run_due()) == ["expired", "succeeded"]
    assert RAN == [("expiring_once", "new")]


def test_expiry_of_a_replacement_counts_from_its_own_start() -> None:
    with frozen_queue(now=NOON) as q:
        pause("default")
        first = expiring_once.schedule(0, 1, "old")
        q.advance(seconds=50)
        assert expiring_once.schedule(0, 1, "new").id == first.id
        q.advance(seconds=50)
        again = expiring_once.schedule(0, 1, "newest")
        assert (again.id, again.replaced) == (first.id, True)
        q.advance(seconds=59)

        resume("default")
        (ran,) = q.run_due()

        assert (ran.id, ran.outcome, ran.args) == (first.id, "succeeded", [1, "newest"])


def test_replacement_that_is_too_late_expires_and_its_key_is_free() -> None:
    with frozen_queue(now=NOON) as q:
        pause("default")
        expiring_once.schedule(0, 1, "old")
        q.advance(seconds=50)
        expiring_once.schedule(0, 1, "new")
        q.advance(seconds=61)
        last = expiring_once.schedule(0, 1, "last")

        assert last.created
        resume("default")
        ran = q.run_due()

        assert outcomes(ran) == ["expired", "succeeded"]
        assert [each.args for each in ran] == [[1, "new"], [1, "last"]]


def test_job_that_waits_for_its_key_does_not_keep_its_unique_key(settings: Any) -> None:
    with frozen_queue(now=NOON) as q:
        first = once.schedule(0, 1, "old")
        before, settings.SECRET_KEY = settings.SECRET_KEY, "another"
        q.run_due()
        assert first.refresh() is State.HELD

        second = once.schedule(60, 1, "new")

        assert second.created
        assert not once.schedule(60, 1, "newer").created
        settings.SECRET_KEY_FALLBACKS = [before]
        assert [each.args for each in q.advance(seconds=30)] == [[1, "old"]]
        assert not once.schedule(60, 1, "newest").created
        assert [each.args for each in q.advance(seconds=60)] == [[1, "new"]]


def test_unique_key_holds_to_the_end_of_the_job() -> None:
    with frozen_queue() as q:
        assert once.schedule(60, 1).created
        assert not once.schedule(60, 1).created
        q.advance(60)
        assert once.schedule(60, 1).created


def test_limits_hold_back_what_would_be_too_much() -> None:
    with frozen_queue(now=NOON) as q:
        for n in range(3):
            limited.schedule(0, n)

        moments = [each.at - NOON for each in q.advance(minutes=5)]

        assert [n for _, n in RAN] == [0, 1, 2]
        assert moments == [timedelta(minutes=n) for n in range(3)]


def test_limit_of_a_queue_set_from_code_is_kept() -> None:
    with frozen_queue() as q:
        set_limit("mail", rate="1/m burst 1")
        for n in range(2):
            mailed.schedule(0, n)

        assert len(q.run_due()) == 1
        assert len(q.advance(minutes=1)) == 1


def test_pause_of_a_queue_or_a_task_holds_its_jobs() -> None:
    with frozen_queue() as q:
        pause("default", until=timedelta(minutes=5))
        double.schedule(0, 1)
        assert q.advance(minutes=4) == []
        assert outcomes(q.advance(minutes=1)) == ["succeeded"]

        pause(task=double.name)
        job = double.schedule(0, 2)
        assert outcomes(q.run_due()) == ["held"]
        assert job.refresh() is State.HELD
        resume(task=double.name)
        assert outcomes(q.run_due()) == ["succeeded"]


def test_queue_that_stays_paused_does_not_hold_up_the_others() -> None:
    with frozen_queue() as q:
        pause("mail")
        mailed.schedule(0, 1)
        double.schedule(3_600, 2)

        (ran,) = q.advance(days=30)

        assert ran.task == double.name


def test_objects_of_redisson_and_their_handler_work(settings: Any) -> None:
    shared = {"REDISSON": "3.16.6", "CODEC": "StringCodec"}
    settings.DELAYQ = {"QUEUES": {"default": {}, "orders": shared}}
    with frozen_queue() as q, DelayedQueue("orders") as orders:
        orders.offer("later", 30)
        BlockingQueue("orders").put("now")

        assert [str(each.args) for each in q.advance(30)] == ["['now']", "['later']"]


def test_what_follows_runs_also_in_another_queue() -> None:
    with frozen_queue() as q:
        schedule_many(
            [
                double.prepare(60, 1).then(once.prepare(5, 2), mailed.prepare(10, 3)),
                failing.using(max_attempts=1).prepare(0, 4).on_dead(once.prepare(0, 5)),
            ]
        )
        q.advance(minutes=2)

    assert RAN == [
        ("failing", 4),
        ("once", 5),
        ("double", 1),
        ("once", 2),
        ("mailed", 3),
    ]


def test_callback_of_a_batch_runs_after_its_last_job() -> None:
    with frozen_queue() as q:
        batch = Batch(once.using(unique=False).prepare(5, 9))
        batch.schedule([double.prepare(10, 1), double.prepare(20, 2)])
        q.advance(24)
        assert batch.left() == 0
        assert RAN == [("double", 1), ("double", 2)]
        q.advance(1)

    assert RAN[-1] == ("once", 9)


def test_schedules_go_on_if_the_test_asks_for_that() -> None:
    with frozen_queue(now=NOON, periodic=True) as q:
        store_schedule("hourly", double, cron("0 * * * *", tz="UTC"), args=[1])
        assert len(q.advance(hours=3, minutes=30)) == 3
    assert [NOON + timedelta(hours=n) for n in (1, 2, 3)] == MOMENTS


def test_override_gives_the_moments_that_were_missed_before_it_their_jobs() -> None:
    with frozen_queue(now=NOON) as q:
        when = cron("0 * * * *", tz="UTC")
        hourly = store_schedule("hourly", double, when, args=[1], catch_up="all")
        assert len(q.advance(hours=3, minutes=30)) == 1

        changed = hourly.override(cron("0 12 * * *", tz="UTC"))

        assert len(q.run_due()) == 2
    assert changed.next_occurrence == NOON + timedelta(days=1)


@pytest.mark.parametrize("catch_up", ["one", "none", "all"])
def test_schedule_goes_on_after_the_clock_of_the_server_was_ahead(
    catch_up: CatchUp,
) -> None:
    ahead = timedelta(days=10)
    with frozen_queue(now=NOON, periodic=True) as q:
        when = every(timedelta(days=4))
        store_schedule("rare", double, when, args=[1], catch_up=catch_up)
        while_ahead = q.advance(ahead)
        q._now_us -= ahead // timedelta(microseconds=1)

        after = q.advance(ahead)

    assert [each.at for each in while_ahead] == [each.at for each in after]
    assert len(after) >= 2


def test_job_is_cancelled_and_moved_as_on_every_server() -> None:
    with frozen_queue() as q:
        job, other = double.schedule(60, 1), double.schedule(60, 2)
        assert job.cancel()
        assert other.reschedule(90)
        assert q.advance(60) == []
        assert outcomes(q.advance(30)) == ["succeeded"]


def test_time_limit_is_kept_by_the_real_clock() -> None:
    with frozen_queue() as q:
        slow.using(max_attempts=1).schedule(0)
        (ran,) = q.run_due()

    assert ran.outcome == "dead"
    assert type(ran.error).__name__ == "TimeLimitExceeded"


def test_wait_for_a_job_that_has_not_ended_ends_at_once() -> None:
    with frozen_queue():
        job = double.schedule(60, 1)
        with pytest.raises(TimeoutError, match="let time pass first"):
            job.wait(timeout=60)


class CommitTest(TestCase):
    def test_job_of_a_test_case_runs_after_the_commit(self) -> None:
        with frozen_queue() as q:
            with self.captureOnCommitCallbacks(execute=True):
                committed.schedule(900, 1)
            q.advance(minutes=15)
        assert RAN == [("committed", 1)]


# Bad input


def test_a_single_job_that_is_left_due_is_counted_as_one() -> None:
    with (
        pytest.raises(AssertionError, match=r"^1 job is due and has not run: "),
        frozen_queue(),
    ):
        double.schedule(0, 1)


def test_jobs_that_are_left_due_are_an_error_that_names_them() -> None:
    q = frozen_queue()
    q.__enter__()
    job = double.schedule(0, 1)
    mailed.schedule(0, 2)
    once.schedule(60, 1)

    with pytest.raises(AssertionError) as caught:
        q.__exit__(None, None, None)

    text = str(caught.value)
    assert text.startswith("2 jobs are due and have not run: ")
    assert f"{double.name} ({job.id})" in text
    assert mailed.name in text
    assert "frozen_queue(leave_due=True)" in text


def test_jobs_may_be_left_due() -> None:
    with frozen_queue(leave_due=True) as q:
        double.schedule(0, 1)
        assert len(q.due) == 1
    with frozen_queue():
        pause("default")
        double.schedule(0, 1)


def test_error_of_the_test_is_not_replaced_by_one_about_jobs() -> None:
    def test() -> None:
        with frozen_queue():
            double.schedule(0, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        test()


def test_jobs_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MOST_AT_ONCE", 5)
    with frozen_queue(leave_due=True) as q:
        endless.schedule(0)
        with pytest.raises(AssertionError, match="does a job schedule itself"):
            q.run_due()


@pytest.mark.parametrize(
    ("args", "units", "words"),
    [
        ((), {}, "how much time passes"),
        ((-1,), {}, "cannot go back"),
        ((), {"fortnights": 1}, "arguments of a timedelta"),
        (("soon",), {}, "a timedelta, a number of seconds"),
        ((), {"days": 3_000_000}, "beyond the year 9999"),
    ],
)
def test_time_that_cannot_pass_is_an_error(
    args: tuple[Any, ...], units: dict[str, Any], words: str
) -> None:
    with frozen_queue() as q, pytest.raises(InvalidDelay, match=words):
        q.advance(*args, **units)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (datetime(2026, 1, 1), "needs a time zone"),
        ("2026-01-01", "takes an aware datetime; got '2026-01-01'"),
    ],
)
def test_now_that_is_no_aware_datetime_is_an_error(now: Any, words: str) -> None:
    with pytest.raises(InvalidDelay, match=words), frozen_queue(now=now):
        pass


def test_without_lua_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "LuaRuntime", None)

    with (
        pytest.raises(InvalidSettings, match=r"django-delayq\[testing\]"),
        frozen_queue(),
    ):
        pass


# Other clocks


def test_without_time_machine_only_the_clock_of_the_queue_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen, "time_machine", None)
    with frozen_queue() as q:
        begin = q.now
        double.schedule(900, 1)
        assert len(q.advance(minutes=15)) == 1

        assert q.now - begin == timedelta(minutes=15)
        assert timezone.now() < q.now


def test_queue_begins_where_freezegun_has_stopped_the_clock() -> None:
    with freeze_time("2026-01-01T00:00:00Z"), frozen_queue() as q:
        assert q.now == datetime(2026, 1, 1, tzinfo=UTC)
        double.schedule(900, 1)
        assert len(q.advance(minutes=15)) == 1


def test_key_expires_by_the_frozen_clock() -> None:
    with frozen_queue() as q:
        job = double.schedule(0, 1)
        q.run_due()
        assert get_job(job.id).state is State.SUCCEEDED
        q.advance(hours=1, seconds=1)

        assert job.refresh() is State.MISSING
        q.server.keyspace.drop_expired()
        assert not [key for key in q.server.keyspace.keys if b"result" in key]


def test_loop_that_runs_may_not_be_blocked() -> None:
    async def test() -> None:
        with frozen_queue(leave_due=True) as q:
            job = await adouble.aschedule(0, 1)
            for advance in (q.run_due, partial(q.advance, 5)):
                with pytest.raises(RuntimeError, match=r"await q\.aadvance\(\) or q"):
                    advance()
            assert await job.arefresh() is State.DUE

    asyncio.run(test())


def test_queue_that_has_ended_says_so() -> None:
    with frozen_queue() as q:
        double.schedule(60, 1)

    with pytest.raises(RuntimeError, match="frozen queue has ended"):
        q.advance(60)
    assert RAN == []


def test_job_that_has_lost_its_worker_too_often_is_dead_and_followed(
    settings: Any,
) -> None:
    settings.DELAYQ = {"WORKER": {"MAX_KILLS": 0}}
    with frozen_queue(now=NOON) as q:
        job = double.prepare(0, 1).on_dead(double.prepare(0, 2))
        schedule(job)
        hold_up(q, lease_ms=30_000)

        # A lease counts only while somebody serves the queue.
        ran = [one for _ in range(40) for one in q.advance(seconds=1)]

        assert job.refresh() is State.DEAD
    assert [(one.args, one.outcome) for one in ran] == [
        ([1], "dead"),
        ([2], "succeeded"),
    ]


def test_prefix_is_left_out_here_as_well(settings: Any) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "PREFIX": "shop-",
        "QUEUES": {"default": {}, "parts": {"SHARDS": 2}},
    }
    with frozen_queue() as q:
        job = schedule(double, 60, 2)
        other = schedule(double.using(queue="parts"), 60, 3)
        assert b"redisson_delay_queue_timeout:{shop-default}" in q.server.keyspace.keys

        ran = q.advance(60)

    assert job.id.startswith("default:")
    assert {each.id for each in ran} == {job.id, other.id}
