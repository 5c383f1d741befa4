"""What is written to a queue: no format later than the queue's own, whoever writes, and however."""

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import transaction

from django_delayq import (
    DelayedQueue,
    Job,
    aschedule,
    conf,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.calls.steps import perform
from django_delayq.delivery import holding, upgrading
from django_delayq.delivery.holding import Held
from django_delayq.delivery.reasons import Kind, Reason
from django_delayq.delivery.states import State
from django_delayq.delivery.upgrading import Step
from django_delayq.exceptions import EncodeError, MaybeScheduled
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import formats
from django_delayq.jobs.envelope import Envelope
from django_delayq.jobs.sending import aschedule_many
from django_delayq.repair import resigning
from django_delayq.repair.resigning import FormatChange
from django_delayq.wire import signing
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.later import come, go
from tests.polling import FakeClock
from tests.signed import opened

OWNER = b"owner--1"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, fake_clock: FakeClock) -> FakeClock:
    """What answers of queues are timed by."""
    monkeypatch.setattr(formats, "monotonic_ms", fake_clock)
    formats.forget()
    return fake_clock


@pytest.fixture(autouse=True)
def earlier() -> Iterator[None]:
    """This process is of a version that knows only format 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signing, "FORMAT", 1)
        conf.get_keyring.cache_clear()
        yield
    conf.get_keyring.cache_clear()


@pytest.fixture
def later(earlier: None) -> Iterator[pytest.MonkeyPatch]:
    """This process is of a version that reads and writes format 2 as well; `go` makes it an earlier one again."""
    patch = pytest.MonkeyPatch()
    come(patch)
    yield patch
    go(patch)


@pytest.fixture
def put(hand: Hand) -> Callable[[int], None]:
    """Put the queue into a format, as another process does."""

    def put(format: int) -> None:
        for step in (Step.BEGIN, Step.END):
            hand.run(upgrading.set_format(hand.keys, format, step))

    return put


def format_of(payload: bytes) -> int:
    return int(json.loads(payload)["mac"][0])


def written_by(hand: Hand, *jobs: Job[Any]) -> list[int]:
    """Return the formats of jobs on the server, of which nothing may have got lost."""
    for job in jobs:
        found = get_job(job.id)
        assert (found.task, found.args) == (samples.add.name, [1, 2])
    return [format_of(hand.payload(job)) for job in jobs]


def on(queue: str) -> Any:
    return samples.add.using(queue=queue)


def test_version_that_writes_one_format_asks_nobody(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.client.hset(hand.keys.control, "format", 7)
    monkeypatch.delattr(formats, "asking")

    jobs = [
        schedule(on(queue), LATER, 1, 2),
        *schedule_many([on(queue).prepare(LATER, 1, 2)]),
        async_to_sync(aschedule)(on(queue), LATER, 1, 2),
        *async_to_sync(aschedule_many)([on(queue).prepare(LATER, 1, 2)]),
    ]

    assert written_by(hand, *jobs) == [1] * 4


def scheduled(queue: str) -> Job[Any]:
    return schedule(on(queue), LATER, 1, 2)


def scheduled_async(queue: str) -> Job[Any]:
    return async_to_sync(aschedule)(on(queue), LATER, 1, 2)


def scheduled_many(queue: str) -> Job[Any]:
    return schedule_many([on(queue).prepare(LATER, 1, 2)])[0]


def scheduled_many_async(queue: str) -> Job[Any]:
    return async_to_sync(aschedule_many)([on(queue).prepare(LATER, 1, 2)])[0]


WAYS = [scheduled, scheduled_async, scheduled_many, scheduled_many_async]


@pytest.mark.parametrize("way", WAYS)
def test_later_version_writes_what_the_queue_says(
    queue: str, hand: Hand, later: Any, put: Any, clock: FakeClock, way: Any
) -> None:
    first = way(queue)
    put(2)
    still = way(queue)
    clock.advance(formats.KEPT_MS)
    second = way(queue)
    put(1)
    clock.advance(formats.KEPT_MS)
    third = way(queue)

    assert written_by(hand, first, still, second, third) == [1, 1, 2, 1]


@pytest.mark.django_db(transaction=True)
def test_job_that_waited_for_its_commit_is_written_as_the_queue_says_then(
    queue: str, hand: Hand, later: Any, put: Any, clock: FakeClock
) -> None:
    put(2)
    perform(hand.client, formats.asking(queue))
    with transaction.atomic():
        job = on(queue).using(on_commit=True).schedule(LATER, 1, 2)
        assert format_of(job.draft.new.payload) == 2
        put(1)
        clock.advance(formats.KEPT_MS)

    assert written_by(hand, job) == [1]


@pytest.mark.parametrize("way", [schedule_many, async_to_sync(aschedule_many)])
def test_jobs_that_were_prepared_long_ago_are_written_as_their_queues_say(
    queue: str, hand: Hand, client: Any, later: Any, put: Any, way: Any
) -> None:
    other = f"{queue}-2"
    jobs = [
        on(name).prepare(LATER, 1, 2) for name in (queue, other, queue, queue, other)
    ]
    put(2)

    way(jobs)

    its = Hand(client, other)
    assert written_by(hand, jobs[0], jobs[2], jobs[3]) == [2, 2, 2]
    assert written_by(its, jobs[1], jobs[4]) == [1, 1]


def test_job_that_is_sent_again_in_another_format_is_stored_once(
    queue: str, hand: Hand, later: Any, put: Any, clock: FakeClock
) -> None:
    job = scheduled(queue)
    put(2)
    clock.advance(formats.KEPT_MS)

    schedule_many([job])

    assert hand.tokens() == [job.token]
    assert written_by(hand, job) == [1]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_stored_where_the_queue_does_not_say(
    queue: str, hand: Hand, client: Any, later: Any, way: Any
) -> None:
    hand.client.set(hand.keys.control, "no hash")

    with pytest.raises((redis.ResponseError, MaybeScheduled)) as failed:
        way(queue)

    told = "".join(getattr(failed.value, "__notes__", [])) + str(failed.value)
    assert "not stored" in told or "1 are not" in told
    hand.client.delete(hand.keys.control)
    assert hand.tokens() == []


def test_job_is_moved_in_a_format_that_the_other_queue_surely_reads(
    queue: str, client: Any, hand: Hand, later: Any, put: Any
) -> None:
    other = Hand(client, f"{queue}-2")
    other.run(upgrading.set_format(other.keys, 2, Step.BEGIN))
    put(2)
    jobs = [scheduled(queue) for _ in range(2)]
    assert written_by(hand, *jobs) == [2, 2]

    with DelayedQueue(queue) as delayed:
        delayed.poll_last_and_offer_first_to(f"{queue}-2")
        perform(client, formats.asking(f"{queue}-2"))
        delayed.poll_last_and_offer_first_to(f"{queue}-2")

    moved = client.lrange(other.keys.queue.destination, 0, -1)
    assert sorted(map(format_of, moved)) == [1, 2]
    for job in jobs:
        assert get_job(f"{queue}-2:{job.token}").args == [1, 2]


# The command.


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_resign", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else writes to the queues, so nobody's answers are waited for."""
    monkeypatch.setattr(formats, "KEPT_MS", 1)
    monkeypatch.setattr("django_delayq.repair.resigning.ON_THE_WAY_MS", 0)


@pytest.mark.usefixtures("at_once")
def test_command_writes_what_waits_in_a_later_format_and_back(
    queue: str, hand: Hand, later: Any, clock: FakeClock
) -> None:
    jobs = [scheduled(queue) for _ in range(5)]
    due = schedule(on(queue), 0, 1, 2)
    hand.retry(hand.take(), 3_600_000)

    there = command(queue, "--format", "2")
    clock.advance(1)

    assert f"queue {queue}: from format 1 to format 2" in there
    assert f"queue {queue}: 6 signed anew" in there
    assert written_by(hand, *jobs, due, scheduled(queue)) == [2] * 7
    # Again, it finds nothing to do.
    assert f"queue {queue}: 0 signed anew" in command(queue, "--format", "2")

    back = command(queue, "--format", "1")
    clock.advance(1)

    assert f"queue {queue}: from format 2 to format 1" in back
    assert f"queue {queue}: 7 signed anew" in back
    assert written_by(hand, *jobs, due, scheduled(queue)) == [1] * 7
    assert hand.client.hget(hand.keys.control, "format") == b"1"


@pytest.mark.usefixtures("at_once")
def test_without_a_format_what_waits_is_written_in_that_of_the_queue(
    queue: str, hand: Hand, later: Any, put: Any
) -> None:
    job = scheduled(queue)
    put(2)

    command(queue)

    assert written_by(hand, job) == [2]


def change_of(queue: str, hand: Hand, format: int) -> FormatChange:
    settings, keyring = conf.get_settings().queue(queue), conf.get_keyring()
    return FormatChange(hand.client, settings, keyring, format)


def test_old_workers_get_nothing_before_the_last_job_is_written_for_them(
    queue: str, hand: Hand, later: Any, put: Any, clock: FakeClock, monkeypatch: Any
) -> None:
    monkeypatch.setattr(resigning, "monotonic_ms", clock)
    monkeypatch.setattr(resigning, "PAUSE_S", 0)
    put(2)
    jobs = [scheduled(queue)]
    change = change_of(queue, hand, 1)

    change.begin()
    # Its process was told before.
    jobs.append(scheduled(queue))
    for _ in change.steps():
        is_over = hand.client.hget(hand.keys.control, "format") == b"1"
        assert not is_over or written_by(hand, *jobs) == [1] * len(jobs)
        if clock.now_ms == formats.KEPT_MS - 500:
            jobs.append(scheduled(queue))
            assert written_by(hand, jobs[-1]) == [2]
        clock.advance(500)

    assert is_over
    assert len(jobs) == 3


@pytest.mark.usefixtures("at_once")
def test_going_back_that_was_interrupted_is_begun_again(
    queue: str, hand: Hand, later: Any, put: Any
) -> None:
    put(2)
    jobs = [scheduled(queue) for _ in range(3)]
    change = change_of(queue, hand, 1)
    change.begin()
    steps = change.steps()
    next(steps)
    steps.close()
    assert hand.client.hget(hand.keys.control, "format") == b"2"

    command(queue, "--format", "1")

    assert hand.client.hget(hand.keys.control, "format") == b"1"
    assert written_by(hand, *jobs) == [1, 1, 1]


@pytest.mark.usefixtures("at_once")
def test_all_queues_go_back_together(
    queue: str, hand: Hand, client: Any, later: Any, put: Any
) -> None:
    other = Hand(client, f"{queue}-2")
    its = schedule(on(f"{queue}-2"), LATER, 1, 2)
    jobs = [scheduled(queue), its]
    command("--format", "2")
    assert [written_by(hand, jobs[0]), written_by(other, its)] == [[2], [2]]

    told = command("--format", "1")

    assert told.count("from format 2 to format 1") == 2
    assert told.index(f"{queue}-2: from") < told.index(f"{queue}: 1 signed anew")
    assert [written_by(hand, jobs[0]), written_by(other, its)] == [[1], [1]]


@pytest.mark.usefixtures("at_once")
def test_command_does_not_stop_old_workers_unless_it_is_forced(
    queue: str, hand: Hand, later: Any
) -> None:
    job = scheduled(queue)
    for owner in (OWNER, b"owner--2"):
        hand.run(upgrading.enroll(hand.keys, owner=owner, reads=1))

    with pytest.raises(CommandError, match="stays in format 1: 2 of its worker proc"):
        command(queue, "--format", "2")
    assert written_by(hand, job) == [1]

    told = command(queue, "--format", "2", "--force")

    assert "2 of its worker processes cannot read format 2" in told
    assert written_by(hand, job) == [2]


def test_command_refuses_what_this_version_does_not_read(
    queue: str, hand: Hand
) -> None:
    with pytest.raises(
        CommandError, match=r"reads and writes format 1\. For --format 2"
    ):
        command(queue, "--format", "2")
    hand.client.hset(hand.keys.control, "format", 2)
    with pytest.raises(CommandError, match="is in format 2, and this version reads f"):
        command(queue, "--format", "1")
    # Nor does it sign what an older version wrote there, as it would have to leave the rest.
    with pytest.raises(CommandError, match="is in format 2, and this version reads f"):
        command(queue)
    assert hand.client.hgetall(hand.keys.control) == {b"format": b"2"}


@pytest.mark.usefixtures("at_once")
def test_job_that_an_earlier_format_cannot_hold_stays_as_it_is(
    queue: str, hand: Hand, later: pytest.MonkeyPatch, put: Any
) -> None:
    def write(envelope: Envelope) -> bytes:
        if envelope.kwargs:
            raise EncodeError("format 1 has no keywords")
        return first.write(envelope)

    put(2)
    job = schedule(on(queue), LATER, 1, note="two")
    other = scheduled(queue)
    first = envelopes.FORMATS[1]
    later.setitem(envelopes.FORMATS, 1, first._replace(write=write))
    out = StringIO()

    with pytest.raises(SystemExit):
        call_command("delayq_resign", queue, "--format", "1", stdout=out)

    assert "1 that the format cannot hold" in out.getvalue()
    assert format_of(hand.payload(job)) == 2
    assert written_by(hand, other) == [1]
    assert get_job(job.id).kwargs == {"note": "two"}


@pytest.mark.usefixtures("at_once")
def test_what_was_held_for_its_format_is_released_by_the_command(
    queue: str, hand: Hand, later: Any, put: Any
) -> None:
    put(2)
    job = schedule(on(queue), 0, 1, 2)
    leased = hand.take()
    held = Held(leased.token, leased.fence, Reason(Kind.FORMAT, "2"), "no", None)
    assert hand.run(holding.hold(hand.keys, [held])) == []

    assert "1 no longer held" in command(queue, "--format", "1")

    go(later)
    assert job.refresh() is not State.HELD
    assert opened(hand.take().payload, queue).args == [1, 2]
