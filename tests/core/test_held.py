"""Jobs of tasks that a worker does not know: held, released by a worker that does, quarantined if none came."""

import json

import pytest

from django_delayq.core import queue_reads
from django_delayq.core.claim import EndedHere
from django_delayq.core.hold import HeldNames, Released, Shape, can_be_held
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, tail_of
from tests.core.rig import (
    HOLD,
    T0,
    Rig,
    name_in,
    names_of,
    payload,
    reason_of,
    token,
)


def hold(
    rig: Rig, *names: str, task: str | Reason = "shop.new", **options: int | None
) -> None:
    """Schedule jobs of a task, due now, and have them held by a worker that does not know it."""
    rig.schedule(dict.fromkeys(names, 0))
    assert rig.hold(*rig.claim(len(names)).jobs, task=task, **options) == []


def error_of(rig: Rig, name: str) -> dict[str, object]:
    found = json.loads(rig.inspect(name).error)
    assert isinstance(found, dict)
    return found


def test_held_job_keeps_its_place_its_counts_and_its_unique_key(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.retry(rig.lease(), wait=0)
    rig.now = 7

    assert rig.hold(rig.lease()) == []

    assert rig.state() == {"held": {"a": 7 + HOLD}, "unique": {"k": "a"}}
    seen = rig.inspect("a")
    assert (seen.state, seen.score_ms) == (State.HELD, T0 + 7 + HOLD)
    assert (seen.attempts, seen.kills, seen.start_time_ms) == (1, 0, T0)
    error = error_of(rig, "a")
    assert (error["kind"], error["at"]) == ("task", T0 + 7)
    assert error["reason"] == reason_of("shop.new").text
    assert error["error"] == "no task shop.new."
    assert rig.schedule({"b": 0}, unique="ek")[0].holder == "a"
    assert rig.claim().jobs == []
    (row,) = rig.run(queue_reads.page(rig.keys, State.HELD)).rows
    assert (row.token, row.score_ms, row.attempts) == (token("a"), T0 + 7 + HOLD, 1)
    assert rig.run(queue_reads.counts(rig.keys)).held == 1


def test_lost_lease_is_not_held(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.acknowledge(job)

    assert rig.hold(job) == [0]

    assert rig.state() == {}


def test_delivered_again_while_it_is_held_it_is_a_double(rig: Rig) -> None:
    hold(rig, "a")
    rig.schedule({"a": 0})

    assert rig.claim().doubles == 1
    assert rig.claim().jobs == []


def test_worker_that_knows_the_task_releases_its_jobs_in_the_order_of_their_start_times(
    rig: Rig,
) -> None:
    rig.schedule({"c": 3, "a": 1, "b": 2})
    rig.now = 3
    rig.hold(*rig.claim().jobs)
    hold(rig, "other", task="shop.other")
    hold(rig, "longer", task="shop.new.er")

    assert rig.release("shop.new", "shop.old", limit=2) == Released(
        2,
        0,
        b"4:task8:shop.new\0%016d\0" % (100 * 2**42 + T0 + 2)
        + token("b").encode()
        + b"\0",
    )
    assert names_of(rig.claim()) == ["a", "b"]
    assert rig.release("shop.new") == Released(1, 0, b"")
    (last,) = rig.claim().jobs
    assert (name_in(last.payload), last.attempts, last.kills) == ("c", 0, 0)
    assert list(rig.state()["held"]) == ["longer", "other"]


def test_released_job_that_has_failed_before_is_a_retry(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.retry(rig.lease(), wait=0)
    rig.hold(rig.lease())

    rig.release("shop.new")

    assert rig.state() == {"retries": {"a": 0}}
    assert rig.lease().attempts == 1


def test_worker_that_does_not_know_the_task_leaves_it_until_its_time_is_over(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease())
    rig.now = HOLD - 1
    before = rig.state()

    assert rig.release("shop.old") == Released(0, 0, b"")
    assert rig.state() == before

    rig.now = HOLD
    why = "no task shop.new. It was held, and no worker that can run it came in time."
    told = EndedHere("a".ljust(22, "-"), State.QUARANTINED, "", why)
    assert rig.release("shop.old") == Released(0, 1, b"", (told,))
    assert rig.state() == {"quarantine": {"a": HOLD}}
    assert rig.counters()["quarantined"] == 1
    error = error_of(rig, "a")
    assert str(error["error"]).startswith("no task shop.new. It was held")
    assert "held" not in error
    assert rig.replay("a", state=State.QUARANTINED) == 1
    rig.hold(rig.lease())
    assert rig.state()["held"] == {"a": HOLD + HOLD}, "a replay starts over"


def test_job_held_as_long_as_it_takes_is_not_late_for_a_worker_that_knows_its_task(
    rig: Rig,
) -> None:
    hold(rig, "a", task=Reason(Kind.KEY, "key1"), hold_ms=None)
    rig.now = 100 * HOLD

    assert rig.release("shop.old") == Released(0, 0, b"")
    assert "held" not in error_of(rig, "a")
    assert rig.release(Reason(Kind.KEY, "key1")) == Released(1, 0, b"")

    rig.hold(rig.lease())
    assert rig.state()["held"] == {"a": 101 * HOLD}, "its time begins now"


def test_job_that_waits_for_its_key_between_has_no_more_time_for_its_task(
    rig: Rig,
) -> None:
    hold(rig, "a")
    rig.now = 1
    rig.release("shop.new")
    rig.hold(rig.lease(), task=Reason(Kind.KEY, "key1"), hold_ms=None)
    rig.now = HOLD - 1
    assert rig.release(Reason(Kind.KEY, "key1")) == Released(1, 0, b"")

    rig.hold(rig.lease())

    assert rig.state()["held"] == {"a": HOLD}


def test_worker_that_knows_the_task_comes_too_late_for_nothing_that_is_held(
    rig: Rig,
) -> None:
    hold(rig, "a")
    rig.now = 10 * HOLD

    assert rig.release("shop.new", limit=1) == Released(1, 0, b"")
    assert names_of(rig.claim()) == ["a"]


def test_time_counts_from_the_first_time_that_a_job_was_held(rig: Rig) -> None:
    hold(rig, "a")
    for _ in range(3):
        rig.now += 1_000
        rig.release("shop.new")
        rig.hold(rig.lease())

    assert rig.state()["held"] == {"a": HOLD}
    assert error_of(rig, "a")["at"] == T0


@pytest.mark.parametrize("wait", [0, HOLD])
def test_moved_by_hand_it_runs_at_its_time_and_may_be_held_anew(
    rig: Rig, wait: int
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease())
    rig.now = 5

    assert rig.reschedule("a", wait) == ("rescheduled", 5 + wait)

    assert rig.state() == {"returned": {"a": 5 + wait}, "unique": {"k": "a"}}
    assert rig.inspect("a").error == b""
    rig.now += wait
    rig.hold(rig.lease())
    assert rig.state()["held"] == {"a": 5 + wait + HOLD}


def test_tasks_of_what_is_held_are_looked_at_in_bounded_calls(rig: Rig) -> None:
    for n in range(7):
        hold(rig, f"j{n}", task=f"task{n}")

    found, cursor, calls = 0, b"", 0
    while True:
        reply = rig.release("task1", "task6", cursor=cursor, name_limit=2)
        found, cursor, calls = found + reply.released, reply.cursor, calls + 1
        if not cursor:
            break

    assert (found, calls) == (2, 4)
    assert sorted(rig.state()["held"]) == ["j0", "j2", "j3", "j4", "j5"]


def test_many_that_were_held_for_too_long_go_in_bounded_calls(rig: Rig) -> None:
    hold(rig, *(f"j{n}" for n in range(30)), hold_ms=0)

    assert rig.release(limit=20).quarantined == 20
    assert rig.release(limit=20).quarantined == 10
    assert rig.release(limit=20).quarantined == 0


def test_what_somebody_deleted_or_wrote_into_our_keys_stops_nobody(
    rig: Rig,
) -> None:
    hold(rig, "header", "error", "token", "fine")
    keys, client = rig.keys, rig.client
    client.hdel(keys.headers, token("header"))
    client.hset(keys.errors, token("error"), b"no JSON")
    client.zrem(keys.held, token("token"))
    client.zadd(keys.held_tasks, {b"nothing of ours": 0})
    rig.is_checked = False

    reply = rig.release("shop.new")

    assert (reply.released, reply.quarantined, reply.cursor) == (3, 0, b"")
    assert sorted(names_of(rig.claim())) == ["error", "fine", "header"]
    assert client.zcard(keys.held) == client.zcard(keys.held_tasks) == 0


@pytest.mark.parametrize(
    ("name", "is_held"),
    [("a", True), ("é" * 127, True), ("é" * 128, False), ("a\0b", True), ("", True)],
)
def test_name_that_fits_among_the_others_can_be_held(name: str, is_held: bool) -> None:
    assert can_be_held(name) is is_held


@pytest.mark.parametrize("failures", [0, 1])
def test_job_that_was_signed_anew_meanwhile_is_not_held_for_the_old_key(
    rig: Rig, failures: int
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    if failures:
        rig.retry(rig.lease(), wait=0)
    leased = rig.lease()
    rig.client.hset(
        rig.keys.payloads, leased.token, leased.payload.replace(b"2key1", b"2key2")
    )
    rig.now = 5

    assert rig.hold(leased, task=Reason(Kind.KEY, "key1"), hold_ms=None) == []

    waits = "retries" if failures else "returned"
    assert rig.state() == {waits: {"a": 0}, "unique": {"k": "a"}}
    again = rig.lease()
    assert (again.attempts, again.kills) == (failures, 0)
    assert rig.hold(again, task=Reason(Kind.KEY, "key2"), hold_ms=None) == []
    assert list(rig.state()["held"]) == ["a"]


def test_who_names_keys_alone_puts_nothing_into_quarantine(rig: Rig) -> None:
    hold(rig, "a")
    hold(rig, "b", task=Reason(Kind.KEY, "key1"), hold_ms=None)
    rig.now = 10 * HOLD

    assert rig.release(Reason(Kind.KEY, "key1"), is_worker=False) == Released(1, 0, b"")

    assert list(rig.state()["held"]) == ["a"]


def test_calls_with_other_arguments_hide_nothing_behind_them(rig: Rig) -> None:
    shapes = [Shape("shop.new", number, ()).held_name for number in range(25)]
    calls = [Reason(Kind.CALL, name) for name in shapes]
    for number, call in enumerate(calls):
        hold(rig, f"j{number}", task=call)
    hold(rig, "a", task=Reason(Kind.KEY, "key1"), hold_ms=None)

    assert rig.held_names() == HeldNames(
        {Reason(Kind.CALL): 25, Reason(Kind.KEY, "key1"): 1}, 0
    )
    counts = rig.held_names(only=Kind.CALL, limit=100).counts
    assert counts == dict.fromkeys(calls, 1)
    calls.sort(key=lambda call: call.text)
    cursor = f"{calls[22].text}\1".encode()
    after = rig.held_names(only=Kind.CALL, cursor=cursor)
    assert list(after.counts) == calls[23:]
    assert rig.held_names(only=Kind.CALL, cursor=b"4:call:").counts == {}


def test_members_that_no_script_has_written_are_passed_over_within_reason(
    rig: Rig,
) -> None:
    hold(rig, "a", task=Reason(Kind.KEY, "key1"), hold_ms=None)
    others = {f"!{number:04}": 0 for number in range(999)}
    rig.client.zadd(rig.keys.held_tasks, others)
    assert rig.held_names() == HeldNames({Reason(Kind.KEY, "key1"): 1}, 0)

    rig.client.zadd(rig.keys.held_tasks, {"!more": 0})
    assert rig.held_names() == HeldNames({}, 1)
    rig.client.zrem(rig.keys.held_tasks, "!more", *others)


def test_what_is_held_is_counted_by_what_it_is_held_for(rig: Rig) -> None:
    assert rig.held_names() == HeldNames({}, 0)
    hold(rig, "a", "b", "c", task=Reason(Kind.KEY, "key1"), hold_ms=None)
    hold(rig, "d", task="shop.new")
    hold(rig, "e", "f", task="shop.new.er")
    # Somebody else's.
    rig.client.zadd(rig.keys.held_tasks, {"lion": 0})

    assert rig.held_names() == HeldNames(
        {
            Reason(Kind.KEY, "key1"): 3,
            reason_of("shop.new"): 1,
            reason_of("shop.new.er"): 2,
        },
        0,
    )
    assert rig.held_names(limit=1) == HeldNames({Reason(Kind.KEY, "key1"): 3}, 4)
    rig.client.zrem(rig.keys.held_tasks, "lion")


# The unique key of a job that nobody here can read.


@pytest.mark.parametrize("tail", ["ek", tail_of("ek", 0, "stripe\0acct")])
@pytest.mark.parametrize("failures", [0, 1])
def test_job_that_waits_for_its_key_does_not_keep_its_unique_key(
    any_rig: Rig, tail: str | bytes, failures: int
) -> None:
    rig = any_rig
    rig.has_slots = True
    rig.send([NewJob(token("a"), "+0", tail, payload("a"))])
    if failures:
        rig.retry(rig.lease(), wait=0)

    rig.hold(rig.lease(), task=Reason(Kind.KEY, "key1"), hold_ms=None)

    assert "unique" not in rig.state()
    assert rig.inspect("a").unique == ""
    (stored,) = rig.schedule({"b": 0}, unique="ek")
    assert stored.holder == ""
    (kept,) = rig.schedule({"c": 0}, unique="ek")
    assert kept.holder == "b"


def test_job_has_its_unique_key_back_once_its_key_is_there(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease(), task=Reason(Kind.KEY, "key1"), hold_ms=None)

    assert rig.release(Reason(Kind.KEY, "key1")) == Released(1, 0, b"")

    assert rig.inspect("a").unique == "k"
    (kept,) = rig.schedule({"b": 0}, unique="ek")
    assert kept.holder == "a"
    rig.acknowledge(rig.lease())
    assert "unique" not in rig.state()


@pytest.mark.parametrize("way", ["release", "run now"])
@pytest.mark.parametrize("other", ["waits", "runs"])
def test_job_whose_unique_key_another_has_by_now_runs_without_it(
    rig: Rig, other: str, way: str
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease(), task=Reason(Kind.KEY, "key1"), hold_ms=None)
    rig.schedule({"b": 0}, unique="ek")
    b = rig.lease() if other == "runs" else None

    if way == "release":
        assert rig.release(Reason(Kind.KEY, "key1")) == Released(1, 0, b"")
    else:
        rig.reschedule("a", 0)

    jobs = {job.token: job for job in rig.claim().jobs}
    rig.acknowledge(jobs.pop(token("a")))
    assert rig.state()["unique"] == {"k": "b"}
    (left,) = jobs.values() if b is None else [b]
    rig.acknowledge(left)
    assert "unique" not in rig.state()
    rig.recover()
    assert rig.leftovers() == []


def test_job_that_is_run_now_has_its_unique_key_and_gives_it_up_again(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease(), task=Reason(Kind.KEY, "key1"), hold_ms=None)

    rig.reschedule("a", 0)
    assert rig.state()["unique"] == {"k": "a"}
    rig.hold(rig.lease(), task=Reason(Kind.KEY, "key1"), hold_ms=None)

    assert "unique" not in rig.state()
    rig.cancel("a")
    rig.recover()
    assert rig.leftovers() == []


def test_job_behind_one_that_waits_for_its_key_begins(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ek")
    a = rig.lease()
    rig.schedule({"b": 0}, unique="ek", may_go_behind=True)
    assert names_of(rig.claim()) == []

    rig.hold(a, task=Reason(Kind.KEY, "key1"), hold_ms=None)
    rig.now = 5_000

    assert names_of(rig.claim()) == ["b"]
    assert rig.state()["unique"] == {"k": "b"}


@pytest.mark.parametrize("task", ["shop.new", Reason(Kind.PAUSED, "shop.new")])
def test_job_that_is_held_for_a_while_keeps_its_unique_key(
    rig: Rig, task: str | Reason
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    if isinstance(task, Reason):
        rig.pause("shop.new")
        rig.hold(rig.lease(), task=task, hold_ms=None)
    else:
        rig.hold(rig.lease(), task=task)

    assert rig.state()["unique"] == {"k": "a"}


#: Names of tasks, limits and keys that look like parts of others, or like the end of one.
NAMES = [
    "",
    "a",
    "a b",
    "a:b",
    "a\0b",
    "a\0",
    "\0",
    "1:a",
    "4:task1:a",
    "a0:",
    "größe",
    "key abcd",
    "limit a b",
    "batch ",
    "moving a",
    "6:moving",
    "\U0001f600",
    "x" * 255,
]


@pytest.mark.parametrize("kind", [Kind.TASK, Kind.CALL, Kind.FORMAT])
def test_no_name_is_taken_for_another(rig: Rig, kind: Kind) -> None:
    reasons = [Reason(kind, name) for name in NAMES]
    for number, reason in enumerate(reasons):
        hold(rig, f"j{number}", task=reason, hold_ms=None)
    only = {"only": kind} if kind is Kind.CALL else {}

    counts = rig.held_names(limit=100, **only).counts
    assert counts == dict.fromkeys(reasons, 1)
    for number, reason in enumerate(reasons):
        assert rig.release(reason).released == 1
        (job,) = rig.claim().jobs
        assert name_in(job.payload) == f"j{number}"
        rig.hold(job, task=reason, hold_ms=None)
        assert rig.cancel(f"j{number}") == "cancelled"


def test_task_of_any_name_is_paused_and_resumed(rig: Rig) -> None:
    for name in NAMES[1:]:
        rig.pause(name)
    for number, name in enumerate(NAMES[1:]):
        reason = Reason(Kind.PAUSED, name)
        hold(rig, f"j{number}", task=reason, hold_ms=None)
        assert rig.release("a").released == 0
        assert rig.resume(name) == 1
        # A worker finds out by itself.
        assert rig.release("a").released == 1
        (job,) = rig.claim().jobs
        assert name_in(job.payload) == f"j{number}"
        rig.acknowledge(job)


def test_reason_is_read_as_it_was_written() -> None:
    for name in NAMES:
        reason = Reason(Kind.TASK, name)
        assert Reason.of_text(reason.text.encode()) == reason
        for key in NAMES:
            reason = Reason(Kind.LIMIT, name, key)
            assert Reason.of_text(reason.text.encode()) == reason
    assert Reason.of_text(b"5:batch") == Reason(Kind.BATCH)
    assert Reason.of_text(b"4:task1:a1:b1:c") == Reason("task", "a", "b")
