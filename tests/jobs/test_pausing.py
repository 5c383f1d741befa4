"""`pause`, `resume` and `paused`: what a caller may say, and what is paused then."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import (
    EncodeError,
    InvalidArguments,
    InvalidDelay,
    InvalidTask,
    QueueNotFound,
    State,
    TaskNotFound,
    apause,
    apaused,
    aresume,
    delayed_task,
    get_job,
    pause,
    paused,
    resume,
    schedule,
    schedule_many,
)
from django_delayq.conf import get_settings
from django_delayq.core import stored_pauses
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.jobs.actor import MAX_REASON
from tests.jobs import samples
from tests.jobs.hand import Hand
from tests.queues.proxy import Proxy
from tests.servers import Server

ADD = samples.add.name


def now() -> datetime:
    # The server's clock is this machine's.
    return datetime.now(UTC)


def test_queue_is_paused_until_it_is_resumed(queue: str, hand: Hand) -> None:
    schedule(samples.add.using(queue=queue), 0, 1)
    before = now()

    pause(queue, reason="migration", by="ann")

    (found,) = paused()
    assert (found.queue, found.task, found.until) == (queue, None, None)
    assert (found.by, found.reason) == ("ann", "migration")
    assert before - timedelta(seconds=1) < found.since <= now()
    assert hand.claim() == []
    assert resume(queue) is True
    assert paused() == []
    assert resume(queue) is False
    hand.take()


def test_task_is_paused_on_every_queue_or_on_one(queue: str) -> None:
    other = f"{queue}-2"

    pause(task=samples.add)
    assert [(each.queue, each.task) for each in paused()] == [
        (queue, ADD),
        (other, ADD),
    ]
    assert resume(queue, task=ADD) is True
    assert [each.queue for each in paused()] == [other]
    assert resume(task=samples.add.using(queue=queue)) is True
    assert paused() == []

    pause(other, task=ADD)
    assert [(each.queue, each.task) for each in paused(other)] == [(other, ADD)]
    assert paused(queue) == []
    assert resume(queue, task=ADD) is False
    assert resume(task=ADD) is True


@pytest.mark.parametrize(
    "until", [60, 60.0, Decimal(60), timedelta(minutes=1), "a datetime"]
)
def test_pause_ends_when_it_was_told_to(queue: str, until: Any) -> None:
    before = now()

    pause(
        queue, until=before + timedelta(minutes=1) if until == "a datetime" else until
    )

    (found,) = paused()
    assert found.until is not None
    left = found.until - before
    assert timedelta(seconds=59) < left < timedelta(seconds=90)


def test_who_pauses_is_the_user_of_this_process_unless_it_says_otherwise(
    queue: str,
) -> None:
    pause(queue)

    user, at, host = paused()[0].by.partition("@")
    assert user
    assert at + host


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda queue: pause(), InvalidArguments, "needs the name of a queue"),
        (lambda queue: resume(), InvalidArguments, "needs the name of a queue"),
        (lambda queue: pause(samples.add), InvalidArguments, r"say pause\(task="),
        (lambda queue: pause(7), InvalidArguments, "the name of a queue; got 7"),
        (lambda queue: pause("mails"), QueueNotFound, "'mails' is not configured"),
        (lambda queue: resume("mails"), QueueNotFound, "'mails' is not configured"),
        (lambda queue: paused("mails"), QueueNotFound, "'mails' is not configured"),
        (
            lambda queue: pause("mails", task=ADD),
            QueueNotFound,
            "'mails' is not configured",
        ),
        (
            lambda queue: pause(task=ADD + "s"),
            TaskNotFound,
            f"Did you mean '{ADD}'",
        ),
        (
            lambda queue: resume(task=ADD + "s"),
            TaskNotFound,
            f"Did you mean '{ADD}'",
        ),
        (lambda queue: pause(task=len), InvalidTask, "is not a task"),
        (lambda queue: pause(queue, until=0), InvalidDelay, "longer than 0 s"),
        (lambda queue: pause(queue, until=-5), InvalidDelay, "until=-5"),
        (
            lambda queue: pause(queue, until=timedelta(seconds=-1)),
            InvalidDelay,
            "longer than 0 s",
        ),
        (lambda queue: pause(queue, until=float("nan")), InvalidDelay, "finite"),
        (lambda queue: pause(queue, until=Decimal("sNaN")), InvalidDelay, "finite"),
        (lambda queue: pause(queue, until=float("inf")), InvalidDelay, "finite"),
        (lambda queue: pause(queue, until=10**20), InvalidDelay, "longer than"),
        (lambda queue: pause(queue, until="9:00"), InvalidDelay, "of type str"),
        (lambda queue: pause(queue, until=True), InvalidDelay, "of type bool"),
        (
            lambda queue: pause(queue, until=datetime(2020, 1, 1)),
            InvalidDelay,
            "takes a time in the future, with a time zone",
        ),
        (
            lambda queue: pause(queue, until=datetime(2020, 1, 1, tzinfo=UTC)),
            InvalidDelay,
            "in the past",
        ),
        (
            lambda queue: pause(task=ADD, until=datetime(2020, 1, 1, tzinfo=UTC)),
            InvalidDelay,
            "in the past",
        ),
        (lambda queue: pause(queue, reason=5), EncodeError, "reason= is text; got 5"),
        (
            lambda queue: pause(queue, reason="x" * (MAX_REASON + 1)),
            EncodeError,
            "501 characters",
        ),
        (lambda queue: pause(queue, reason="\ud800"), EncodeError, "UTF-8"),
        (lambda queue: pause(queue, by=5), EncodeError, "by= is text"),
    ],
)
def test_bad_call_pauses_nothing_and_says_what_to_do(
    queue: str, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(queue)

    assert paused() == []


def test_past_end_of_a_pause_leaves_the_pause_that_is_there(queue: str) -> None:
    pause(queue, reason="one")

    with pytest.raises(
        InvalidDelay, match=r"in the past: \d{4}-[-\d]+ [:\d]+ \S+ has passed"
    ):
        pause(queue, until=now() - timedelta(hours=1))

    assert [each.reason for each in paused()] == ["one"]


def test_task_whose_jobs_cannot_be_held_cannot_be_paused(queue: str) -> None:
    longest = delayed_task(name="x" * 255)(lambda: None)
    longer = delayed_task(name="y" * 256)(lambda: None)

    pause(queue, task=longest)
    with pytest.raises(InvalidTask, match="its name has more than 255 bytes"):
        pause(queue, task=longer)

    assert [each.task for each in paused()] == [longest.name]


def test_only_so_many_tasks_can_be_paused(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause_calls, "MAX_PAUSED_TASKS", 1)
    pause(queue, task=ADD)

    with pytest.raises(InvalidArguments, match="pause the queue"):
        pause(queue, task=samples.anything)

    assert [each.task for each in paused()] == [ADD]


def test_task_that_is_gone_from_the_code_can_still_be_resumed(
    queue: str, hand: Hand
) -> None:
    keys = get_settings().queue(queue).keys
    hand.run(pause_calls.pause(keys, task="shop.gone"))

    assert resume(task="shop.gone") is True
    with pytest.raises(TaskNotFound):
        resume(task="shop.gone")


def test_held_job_says_that_its_task_is_paused_and_is_due_when_it_is_resumed(
    queue: str, hand: Hand
) -> None:
    keys = get_settings().queue(queue).keys
    jobs = [schedule(samples.add.using(queue=queue), 0, n) for n in range(3)]
    pause(task=samples.add, reason="the bank is down", by="ann")
    hand.hold_paused(hand.take_many(3), ADD)

    job = get_job(jobs[0].id)
    assert job.state is State.HELD
    assert job.error is not None
    assert job.error["error"] == f"task {ADD} is paused"

    assert resume(task=samples.add) is True
    assert [job.refresh() for job in jobs] == [State.DUE] * 3
    # Two that were scheduled within one millisecond come in any order.
    taken = {leased.token for leased in hand.take_many(3)}
    assert taken == {job.token for job in jobs}
    assert hand.run(stored_pauses.pauses(keys)) == []


def test_resume_releases_what_an_earlier_call_left_that_broke_off(
    queue: str, hand: Hand
) -> None:
    keys = get_settings().queue(queue).keys
    job = schedule(samples.add.using(queue=queue), 0, 1)
    pause(queue, task=samples.add)
    hand.hold_paused([hand.take()], ADD)
    hand.run(pause_calls.resume(keys, task=ADD))
    assert job.refresh() is State.HELD

    assert resume(task=samples.add) is False

    assert job.refresh() is State.DUE


def test_more_held_jobs_than_a_call_releases_are_all_released(
    queue: str, hand: Hand
) -> None:
    many = 1_203
    task = samples.add.using(queue=queue)
    schedule_many(task.prepare(0, n) for n in range(many))
    pause(task=samples.add)
    hand.hold_paused(hand.take_many(many), ADD)

    resume(task=samples.add)

    assert len({job.token for job in hand.take_many(many)}) == many


def test_twins_on_the_event_loop(queue: str) -> None:
    async def main() -> None:
        await apause(queue, reason="one", until=60)
        await apause(task=samples.add)
        assert len(await apaused()) == 3
        assert len(await apaused(queue)) == 2
        assert await aresume(queue)
        assert await aresume(task=samples.add)
        assert not await aresume(queue)
        assert await apaused() == []

    asyncio.run(main())


def test_pause_and_resume_are_logged(
    queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "django_delayq"):
        pause(queue, by="ann", reason="migration")
        pause(task=samples.add, by="bob")
        resume(queue)
        resume(task=samples.add)
        resume(queue)

    paused_queue, paused_task, *resumed = [r.getMessage() for r in caplog.records]
    assert paused_queue.startswith(f"queue {queue} has been paused since ")
    assert paused_queue.endswith(", by ann: migration")
    assert paused_task.startswith(f"task {ADD} on queue {queue} has been paused since ")
    assert paused_task.endswith(f", by bob (and on {queue}-2)")
    assert [text.partition(", by")[0] for text in resumed] == [
        f"queue {queue} was resumed",
        f"task {ADD} was resumed on queue {queue}",
        f"task {ADD} was resumed on queue {queue}-2",
    ]


def test_lost_replies_change_nothing(settings: Any, server: Server, queue: str) -> None:
    keys = get_settings().queue(queue).keys
    proxy = Proxy(server)
    try:
        settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": proxy.url}
        marker = pause_calls.pause(keys).script.sha.encode()
        is_lost = proxy.lose_reply_to(marker)
        pause(queue, until=60)
        assert is_lost.is_set()
        (found,) = paused(queue)
        assert found.until is not None
        # The end counts from the call, and not from its repeat, which comes 50 ms later.
        assert found.until - found.since < timedelta(seconds=60.05)

        is_lost = proxy.lose_reply_to(pause_calls.resume(keys).script.sha.encode())
        assert resume(queue) is True
        assert is_lost.is_set()
        assert paused() == []
    finally:
        proxy.close()


def test_pause_as_text_has_moments_in_the_current_zone_and_to_the_second(
    queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    at = datetime(2124, 1, 1, 12, tzinfo=UTC)
    pause(queue, by="ann", until=at, reason="migration")
    (found,) = paused(queue)

    with timezone.override("Asia/Kathmandu"):
        since = f"{timezone.localtime(found.since):%Y-%m-%d %H:%M:%S} +0545"
        assert str(found) == (
            f"queue {queue} has been paused since {since}, until 2124-01-01 17:45:00 +0545, by ann: migration"
        )
    with timezone.override("UTC"):
        assert "until 2124-01-01 12:00:00 UTC, by ann" in str(found)
    # Programs read the log.
    assert "until 2124-01-01T12:00:00.000+00:00" in caplog.text
