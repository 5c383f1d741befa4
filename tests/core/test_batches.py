"""Batches: each end of a job counts once, and the last one lets the callback go on."""

import random
from collections.abc import Callable

import pytest
from redis.exceptions import ResponseError

from django_delayq.core.claim import Mode
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import Change, State
from tests.core.rig import LEASE, Rig, name_in, names_of, token


def is_waiting(rig: Rig, callback: str = "cb") -> bool:
    return rig.inspect(callback).state is State.HELD


# Each way in which a job may end: it gets the leased job `a`.
ENDS: dict[str, Callable[[Rig, str], None]] = {
    "succeeds": lambda rig, name: check_none(rig.acknowledge(rig.lease())),
    "expires": lambda rig, name: check_none(
        rig.acknowledge(rig.lease(), state=State.EXPIRED)
    ),
    "dies": lambda rig, name: check_none(rig.bury(rig.lease())),
    "is quarantined": lambda rig, name: check_none(
        rig.bury(rig.lease(), state=State.QUARANTINED, attempt_failed=False)
    ),
    "is cancelled": lambda rig, name: check_is(rig.cancel(name), Change.CANCELLED),
    "is cancelled while it waits for its next attempt": lambda rig, name: cancel_retry(
        rig, name
    ),
    "loses its worker too often": lambda rig, name: lose(rig),
    "loses its payload": lambda rig, name: lose_payload(rig, name),
    "is held for too long": lambda rig, name: hold_for_ever(rig),
    "is cancelled by a note": lambda rig, name: cancel_by_note(rig, name),
}


def check_none(lost: list[int]) -> None:
    assert lost == []


def check_is(one: object, other: object) -> None:
    assert one is other


def cancel_retry(rig: Rig, name: str) -> None:
    rig.retry(rig.lease())
    assert rig.cancel(name) is Change.CANCELLED


def lose(rig: Rig) -> None:
    rig.lease(max_kills=0)
    rig.now += LEASE
    assert rig.claim(max_kills=0).jobs == []


def lose_payload(rig: Rig, name: str) -> None:
    rig.retry(rig.lease(), wait=0)
    rig.client.hdel(rig.keys.payloads, token(name))
    assert rig.claim().vanished == 1


def hold_for_ever(rig: Rig) -> None:
    rig.hold(rig.lease(), hold_ms=10)
    rig.now += 10
    assert rig.release().quarantined == 1


def cancel_by_note(rig: Rig, name: str) -> None:
    rig.transfer()
    rig.client.hset(rig.keys.notes, token(name), "cancel")
    assert rig.claim(mode=Mode.SHARED).jobs == []


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_job_counts_once_and_the_last_lets_the_callback_go_on(
    rig: Rig, end: str
) -> None:
    assert rig.open("cb", 5)
    rig.schedule({"a": 0}, batch="cb")
    rig.schedule({"late": 60_000}, batch="cb")
    assert rig.close("cb")
    assert rig.left("cb") == 2

    ENDS[end](rig, "a")

    assert rig.left("cb") == 1
    assert is_waiting(rig)
    rig.check()
    with rig.listening(rig.keys.channel) as heard:
        assert rig.cancel("late") is Change.CANCELLED
        assert rig.now + 5 in heard()
    seen = rig.inspect("cb")
    assert (seen.state, rig.left("cb")) == (State.SCHEDULED, 0)
    rig.now += 5
    assert [name_in(job.payload) for job in rig.claim().jobs] == ["cb"]
    assert rig.client.hlen(rig.keys.batches) == 0


def test_jobs_that_end_before_the_batch_is_closed_do_not_start_the_callback(
    rig: Rig,
) -> None:
    rig.open("cb", 7)
    rig.schedule({"a": 0}, batch="cb")
    rig.acknowledge(rig.lease())
    assert (rig.left("cb"), is_waiting(rig)) == (0, True)

    with rig.listening(rig.keys.channel) as heard:
        assert rig.close("cb")
        assert heard() == [7]

    assert rig.inspect("cb").state is State.SCHEDULED
    rig.now = 7
    assert names_of(rig.claim()) == ["cb"]


def test_callback_with_a_moment_starts_then_or_at_once_if_that_has_passed(
    rig: Rig,
) -> None:
    for name, moment in (("soon", 5), ("late", 900)):
        rig.open(name, f"={rig.at(moment)}")
        rig.schedule({f"a-{name}": 10}, batch=name)
        rig.close(name)
    rig.now = 10

    rig.acknowledge(*rig.claim().jobs)

    assert names_of(rig.claim()) == ["soon"]
    rig.now = 900
    assert names_of(rig.claim()) == ["late"]


@pytest.mark.parametrize("wait_ms", [0, 31_000])
def test_batch_can_be_begun_and_closed_again_however_late(
    rig: Rig, wait_ms: int
) -> None:
    assert rig.open("cb")
    assert not rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    assert rig.close("cb")
    rig.now += wait_ms
    assert not rig.close("cb")
    assert rig.left("cb") == 1
    rig.acknowledge(rig.lease())
    assert not rig.close("cb")
    rig.acknowledge(rig.lease())
    rig.now += wait_ms

    assert not rig.close("cb")

    assert rig.claim().jobs == []


def test_repeat_of_a_schedule_call_counts_no_job_twice(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 0, "b": 0}, batch="cb")
    rig.schedule({"a": 0, "b": 0}, batch="cb", again=True)

    assert rig.left("cb") == 2


def test_job_that_gives_way_to_the_holder_of_its_key_does_not_count(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"holder": 60}, unique="ek")

    rig.schedule({"a": 0}, unique="ek", batch="cb")
    rig.schedule({"b": 0}, batch="cb")

    assert rig.left("cb") == 1


def test_job_that_a_full_queue_refuses_does_not_count(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"x": 0, "y": 0})

    rig.schedule({"a": 0, "b": 0}, batch="cb", max_jobs=3)

    assert rig.left("cb") == 0


def test_dead_letter_that_is_replayed_does_not_count_again(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 0, "b": 0}, batch="cb")
    rig.close("cb")
    a, b = rig.claim().jobs
    rig.bury(a)

    rig.replay("a")
    rig.acknowledge(rig.lease())

    assert (rig.left("cb"), is_waiting(rig)) == (1, True)
    rig.acknowledge(b)
    assert names_of(rig.claim()) == ["cb"]


@pytest.mark.parametrize("way", ["retry", "give_back", "hold", "snooze", "move"])
def test_job_that_goes_on_stays_in_its_batch(rig: Rig, way: str) -> None:
    rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    rig.close("cb")
    job = rig.lease()
    if way == "retry":
        rig.retry(job, wait=0)
    elif way == "give_back":
        rig.give_back(job)
    elif way == "hold":
        rig.hold(job)
        rig.release("shop.new")
    elif way == "snooze":
        rig.snooze(job, wait=0)
    else:
        rig.retry(job)
        rig.reschedule("a", 0)
    assert (rig.left("cb"), is_waiting(rig)) == (1, True)

    rig.acknowledge(rig.lease())

    assert names_of(rig.claim()) == ["cb"]


def test_lost_lease_ends_nothing(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    rig.close("cb")
    job = rig.lease()
    rig.now = LEASE
    again = rig.lease()

    assert rig.acknowledge(job) == [0]

    assert (rig.left("cb"), is_waiting(rig)) == (1, True)
    rig.acknowledge(again)
    assert names_of(rig.claim()) == ["cb"]


def test_unique_key_limit_and_priority_go_with_a_batch(rig: Rig) -> None:
    rig.open("cb", priority=9)
    rig.schedule({"a": 0}, unique="sk", priority=7, limit="l\0key", batch="cb")
    rig.schedule({"b": 0}, batch="cb")
    rig.close("cb")
    assert rig.inspect("a").priority == 7

    a, b = rig.claim().jobs
    assert a.limit == "l\0key"
    assert rig.inspect("a").unique == ""
    rig.retry(a, wait=0)
    rig.acknowledge(rig.lease(), b)

    assert rig.inspect("cb").priority == 9
    assert names_of(rig.claim()) == ["cb"]


def test_many_batches_end_in_one_call(rig: Rig) -> None:
    for name in ("one", "two", "three"):
        rig.open(name)
    rig.schedule({"a": 0, "b": 1}, batch="one")
    rig.schedule({"c": 2}, batch="two")
    rig.schedule({"d": 3, "e": 60}, batch="three")
    for name in ("one", "two", "three"):
        rig.close(name)
    rig.now = 10

    rig.acknowledge(*rig.claim().jobs)

    assert sorted(names_of(rig.claim())) == ["one", "two"]
    assert (rig.left("three"), is_waiting(rig, "three")) == (1, True)


def test_callback_that_was_cancelled_does_not_start(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    rig.close("cb")

    assert rig.cancel("cb") is Change.CANCELLED
    rig.acknowledge(rig.lease())

    assert rig.inspect("cb").state is State.CANCELLED
    assert rig.claim().jobs == []
    assert rig.client.hlen(rig.keys.batches) == 0


def test_callback_that_somebody_started_does_not_start_again(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 60_000}, batch="cb")
    rig.close("cb")
    rig.reschedule("cb", 0)
    job = rig.lease()
    rig.hold(job)

    rig.cancel("a")

    assert rig.inspect("cb").state is State.HELD
    rig.release("shop.new")
    rig.acknowledge(rig.lease())
    assert rig.claim().jobs == []


def test_no_worker_releases_a_callback(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 60_000}, batch="cb")
    rig.close("cb")
    rig.now = 50_000

    assert rig.release("shop.new", Reason(Kind.BATCH, token("cb"))).released == 0

    assert is_waiting(rig)
    rig.open("other")
    assert rig.held_names().counts == {Reason(Kind.BATCH): 2}


def test_batch_without_jobs_is_withdrawn_and_leaves_nothing(rig: Rig) -> None:
    rig.open("cb", priority=3)

    assert rig.withdraw("cb")

    assert rig.inspect("cb").state is State.MISSING
    assert rig.leftovers() == []
    assert not rig.withdraw("cb")
    assert rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    assert not rig.withdraw("cb")
    rig.acknowledge(rig.lease())
    rig.close("cb")
    assert not rig.withdraw("cb")
    assert names_of(rig.claim()) == ["cb"]


def test_callback_starts_though_somebody_has_deleted_the_errors(rig: Rig) -> None:
    rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    rig.close("cb")
    rig.client.delete(rig.keys.errors)

    rig.acknowledge(rig.lease())

    assert names_of(rig.claim()) == ["cb"]


@pytest.mark.parametrize("way", ["cancel", "reschedule"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_batch_whose_callback_was_taken_away_leaves_nothing(
    rig: Rig, way: str, is_closed: bool
) -> None:
    rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    if is_closed:
        rig.close("cb")

    if way == "cancel":
        assert rig.cancel("cb") is Change.CANCELLED
    else:
        rig.reschedule("cb", 60_000)

    assert rig.left("cb") == 1
    assert not rig.close("cb")
    rig.acknowledge(rig.lease())
    assert rig.client.hlen(rig.keys.batches) == 0
    assert rig.claim().jobs == []


@pytest.mark.parametrize("spoilt", [b"many", None])
def test_callback_stays_held_if_somebody_spoils_the_number(
    rig: Rig, spoilt: bytes | None
) -> None:
    rig.open("cb")
    rig.is_checked = False
    rig.schedule({"a": 0}, batch="cb")
    rig.close("cb")
    if spoilt is None:
        rig.client.hdel(rig.keys.batches, token("cb"))
    else:
        rig.client.hset(rig.keys.batches, token("cb"), spoilt)

    rig.acknowledge(rig.lease())

    assert rig.inspect("a").state is State.SUCCEEDED
    assert is_waiting(rig)


@pytest.mark.parametrize("end", ["loses its worker too often", "loses its payload"])
def test_claim_that_ends_the_last_job_says_that_the_callback_is_due(
    rig: Rig, end: str
) -> None:
    rig.open("cb")
    rig.schedule({"a": 0}, batch="cb")
    rig.close("cb")
    rig.lease()
    if end == "loses its payload":
        rig.client.hdel(rig.keys.payloads, token("a"))
    rig.now += LEASE

    claimed = rig.claim(max_kills=0 if end == "loses its worker too often" else -1)

    assert (claimed.jobs, claimed.wait_us) == ([], 0)
    assert names_of(rig.claim()) == ["cb"]


@pytest.mark.parametrize("name", ["control", "ranked", "batches", "returned"])
def test_end_that_meets_a_key_of_the_wrong_type_changes_nothing(
    rig: Rig, name: str
) -> None:
    rig.open("cb")
    rig.schedule({"a": 60_000}, batch="cb")
    rig.close("cb")
    key = rig.keys.key(name)
    stored = rig.client.dump(key)
    rig.client.set(key, "wrong")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        rig.cancel("a")

    rig.client.delete(key)
    if stored is not None:
        rig.client.restore(key, 0, stored)
    assert rig.inspect("a").state is State.SCHEDULED
    assert rig.cancel("a") is Change.CANCELLED
    assert names_of(rig.claim()) == ["cb"]


def test_walk_of_random_steps_starts_each_callback_once_all_have_ended(
    rig: Rig,
) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    batches = {f"cb{n}": {f"j{n}-{i}" for i in range(4)} for n in range(5)}
    for batch, names in batches.items():
        rig.open(batch)
        rig.schedule({name: dice.randrange(50) for name in names}, batch=batch)
        rig.close(batch)
    left = {batch: set(names) for batch, names in batches.items()}
    by_name = {name: batch for batch, names in batches.items() for name in names}
    started: list[str] = []

    def over(name: str) -> None:
        left[by_name[name]].discard(name)

    for _ in range(400):
        rig.now += dice.randrange(20)
        for job in rig.claim(3).jobs:
            name = name_in(job.payload)
            if name in left:
                assert left[name] == set(), f"seed {seed}: {name} began too early"
                started.append(name)
                rig.acknowledge(job)
                continue
            step = dice.choice(["ack", "bury", "retry", "give", "lose", "hold"])
            if step == "ack":
                rig.acknowledge(job)
                over(name)
            elif step == "bury":
                rig.bury(job)
                over(name)
            elif step == "retry":
                rig.retry(job, wait=dice.randrange(20))
            elif step == "give":
                rig.give_back(job)
            elif step == "hold":
                rig.hold(job, hold_ms=100_000)
                rig.release("shop.new")
        if dice.random() < 0.2:
            name = dice.choice(list(by_name))
            if rig.cancel(name) is Change.CANCELLED:
                over(name)
        if dice.random() < 0.2:
            rig.now += LEASE
        for batch, names in left.items():
            assert rig.left(batch) == len(names), f"seed {seed}"
    rig.now += 10 * LEASE
    while jobs := rig.claim(50).jobs:
        for job in jobs:
            name = name_in(job.payload)
            rig.acknowledge(job)
            if name in left:
                started.append(name)
            else:
                over(name)
    assert sorted(started) == sorted(batches), f"seed {seed}"
