"""What a queue keeps of the past, and what it forgets: dead letters, quarantine, requests, notes, stale unique keys."""

import json
import struct

import pytest

from django_delayq.core import claim as claim_calls
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.bounds import ENDED_MS
from django_delayq.core.claim import Mode
from django_delayq.core.lease_ends import Rejected
from django_delayq.core.rates import numbers_of
from django_delayq.core.states import State
from django_delayq.core.sweep import Expired, Swept, Which
from tests.core.rig import LEASE, OWNER, T0, Rig, names_of, token

DAY = 86_400_000


def bury(rig: Rig, *names: str, state: State = State.DEAD) -> None:
    rig.schedule(dict.fromkeys(names, 0))
    rig.bury(*rig.claim(len(names)).jobs, state=state)


def expire(rig: Rig, **options: object) -> Expired:
    call = sweep_calls.expire(rig.keys, **options)  # type: ignore[arg-type]
    return rig.run(call)


def sweep(rig: Rig, which: str) -> int:
    forgotten = cursor = 0
    while True:
        call = sweep_calls.sweep(rig.keys, which, cursor=cursor, count=10)
        swept = rig.run(call)
        forgotten, cursor = forgotten + swept.forgotten, swept.cursor
        if cursor == 0:
            return forgotten


# Dead letters and quarantine.


def test_dead_letters_go_whole_by_their_age_the_oldest_first(rig: Rig) -> None:
    bury(rig, "a", "b")
    rig.now = DAY
    bury(rig, "c")

    assert expire(rig, age_ms=DAY + 1) == Expired(0, 3, -1, -1)
    rig.now = DAY + 1

    assert expire(rig, age_ms=DAY) == Expired(2, 1, -1, T0)
    assert rig.state() == {"dead": {"c": DAY}}
    assert rig.inspect("a").state is State.DISCARDED


def test_dead_letters_beyond_a_number_go_unless_they_are_young(rig: Rig) -> None:
    for n in range(6):
        rig.now = n * DAY
        bury(rig, f"j{n}")

    assert expire(rig, age_ms=DAY, kept=4).deleted == 2
    assert expire(rig, age_ms=DAY, kept=4).deleted == 0
    assert expire(rig, age_ms=3 * DAY, kept=0).deleted == 1

    assert list(rig.state()["dead"]) == ["j3", "j4", "j5"]


def test_dead_letters_are_deleted_a_batch_at_a_time(rig: Rig) -> None:
    bury(rig, *[f"j{n}" for n in range(7)])
    rig.now = DAY

    assert expire(rig, age_ms=1, batch=3)[:3] == (3, 4, 0)
    assert expire(rig, age_ms=1, batch=3)[:3] == (3, 1, 0)
    assert expire(rig, age_ms=1, batch=3)[:3] == (1, 0, -1)
    assert "dead" not in rig.state()


@pytest.mark.parametrize(
    ("which", "left"), [(Which.FOREIGN, ["a", "b"]), (Which.JOBS, ["x", "y", "bad"])]
)
def test_quarantine_keeps_jobs_and_foreign_payloads_by_rules_of_their_own(
    rig: Rig, which: Which, left: list[str]
) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"x", b"y")
    rig.schedule({"a": 0, "b": 0})
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0})
    rig.bury(*rig.claim().jobs, state=State.QUARANTINED)
    rig.now = DAY

    deleted, rank = 0, 0
    while rank >= 0:
        reply = expire(
            rig,
            state=State.QUARANTINED,
            age_ms=DAY,
            which=which,
            first_rank=rank,
            batch=2,
        )
        deleted, rank = deleted + reply.deleted, reply.next_rank

    assert deleted == 5 - len(left)
    assert sorted(rig.state()["quarantine"]) == sorted(left)


def test_quarantine_is_looked_through_by_bytes(rig: Rig) -> None:
    for n in range(4):
        rig.client.rpush(rig.keys.queue.destination, b"%d" % n * 600)
    rig.bury(*rig.claim().jobs, state=State.QUARANTINED)
    rig.now = DAY

    reply = expire(
        rig,
        state=State.QUARANTINED,
        age_ms=1,
        which=Which.FOREIGN,
        byte_budget=1_000,
    )

    assert reply[:3] == (2, 2, 0)


# The last request of each owner.


@pytest.mark.parametrize(
    ("later", "value", "forgotten"),
    [
        (0, None, 0),
        (LEASE + 60_000, None, 1),
        (LEASE + 59_999, None, 0),
        (0, b"request1", 1),
        # With the tokens of late jobs.
        (0, b"request1" + struct.pack("<d", T0 + LEASE) + b"t" * 22, 0),
        (0, b"request1" + struct.pack("<d", float("nan")), 1),
    ],
)
def test_request_of_a_process_that_vanished_is_swept_after_its_leases(
    rig: Rig, later: int, value: bytes | None, forgotten: int
) -> None:
    rig.schedule({"a": 0})
    rig.acknowledge(rig.lease())
    if value is not None:
        rig.client.hset(rig.keys.claims, OWNER, value)
    rig.now += later

    assert sweep(rig, "claims") == forgotten
    assert rig.client.hlen(rig.keys.claims) == 1 - forgotten


def test_process_that_leaves_leaves_nothing(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.acknowledge(rig.lease())

    assert rig.run(claim_calls.leave(rig.keys, owner=OWNER)) == 1
    assert rig.run(claim_calls.leave(rig.keys, owner=OWNER)) == 0
    assert rig.leftovers() == []


def test_thousand_processes_leave_nothing_behind(rig: Rig) -> None:
    for n in range(300):
        rig.schedule({f"j{n}": 0})
        rig.acknowledge(rig.lease(owner=b"%08d" % n))
    assert rig.client.hlen(rig.keys.claims) == 300
    rig.now += LEASE + 60_000

    assert sweep(rig, "claims") == 300
    assert rig.leftovers() == []


# Notes and unique keys.


def test_note_goes_once_its_job_is_gone_though_the_list_is_never_empty(
    rig: Rig,
) -> None:
    destination = rig.keys.queue.destination
    rig.client.rpush(destination, *["x"] * 1_000)
    rig.schedule({"a": 0, "b": 0})
    rig.transfer()
    assert [rig.cancel("a"), rig.cancel("b")] == ["noted", "noted"]
    assert sweep(rig, "notes") == 0
    # Java takes all but b, and more jobs come.
    rig.client.ltrim(destination, 1_001, -1)
    rig.client.rpush(destination, "y")

    assert sweep(rig, "locators") == 1
    assert sweep(rig, "notes") == 1

    assert rig.state()["notes"] == {"b": "cancel"}
    assert names_of(rig.claim(mode=Mode.TAKE)) == ["y"]


def test_job_deep_in_the_destination_queue_is_never_swept(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_000)
    rig.schedule({"a": 0}, unique="ek")
    rig.java_transfer()

    for which in sweep_calls.SWEPT:
        assert sweep(rig, which) == 0

    assert rig.schedule({"b": 0}, unique="ek")[0].holder == "a"


@pytest.mark.parametrize("where", ["waiting", "leased", "retrying", "destination"])
def test_unique_key_of_a_living_job_is_kept(rig: Rig, where: str) -> None:
    rig.schedule({"a": 0}, unique="ek")
    if where == "destination":
        rig.transfer()
    elif where != "waiting":
        job = rig.lease()
        if where == "retrying":
            rig.retry(job)

    assert sweep(rig, "unique") == 0
    assert rig.schedule({"b": 0}, unique="ek")[0].holder == "a"


def test_unique_key_of_nobody_is_forgotten(rig: Rig) -> None:
    rig.schedule({"a": 9}, unique="ek")
    rig.client.hset(rig.keys.unique, mapping={"lost": token("z"), "odd": b"\xff"})

    assert sweep(rig, "unique") == 2
    assert rig.state()["unique"] == {"k": "a"}


@pytest.mark.parametrize("deleted", ["leases", "retries", "returned"])
def test_job_whose_set_somebody_deleted_is_forgotten_and_its_key_is_free(
    rig: Rig, deleted: str
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    (job,) = rig.claim(1).jobs
    if deleted == "retries":
        rig.retry(job)
    elif deleted == "returned":
        rig.give_back(job)
    rig.client.delete(getattr(rig.keys, deleted))

    assert sweep(rig, "headers") == 1

    assert rig.inspect("a").state is State.MISSING
    (again,) = rig.schedule({"b": 0}, unique="ek")
    assert not again.holder
    for left in (rig.keys.headers, rig.keys.payloads, rig.keys.errors):
        assert rig.client.hlen(left) == 0


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
def test_graves_that_somebody_deleted_leave_nothing(rig: Rig, state: State) -> None:
    bury(rig, "a", "b", state=state)
    rig.client.zadd(rig.keys.queue.timeout_set, {b"?": T0})
    rig.claim(1)  # not a frame: it goes into quarantine without a header
    rig.client.delete(rig.keys.dead, rig.keys.quarantine)

    assert sum(sweep(rig, which) for which in ("headers", "errors")) == 3

    assert rig.state() == {}


def test_what_has_a_header_is_swept_nowhere(rig: Rig) -> None:
    rig.schedule(dict.fromkeys("abcdef", 0))
    a, b, c, d, e, _ = rig.claim(6).jobs
    rig.retry(a)
    rig.give_back(b)
    rig.bury(c)
    rig.bury(d, state=State.QUARANTINED)
    rig.hold(e)
    before = rig.state()

    assert [sweep(rig, which) for which in ("headers", "errors")] == [0, 0]

    assert rig.state() == before


def test_locator_that_cannot_be_read_is_forgotten(rig: Rig) -> None:
    rig.schedule({"a": 9, "b": 9})
    rig.client.hset(rig.keys.locators, token("a"), b"short")

    assert rig.run(sweep_calls.sweep(rig.keys)) == Swept(0, 1)
    assert rig.state()["locators"] == ["b"]


def test_buried_without_its_payload_is_deleted_in_its_time(rig: Rig) -> None:
    bury(rig, "a")
    rig.bury(Rejected(token("b"), b"nobody--", b"{}"))
    rig.client.delete(rig.keys.payloads)
    rig.now = DAY

    assert expire(rig, age_ms=DAY).deleted == 1
    assert rig.leftovers() == [rig.keys.claims]


# Sets that are scored by time.


def test_ends_that_are_over_are_forgotten_though_nothing_ends_any_more(
    rig: Rig,
) -> None:
    rig.schedule({f"j{n}": 0 for n in range(250)})
    rig.acknowledge(*rig.claim(250).jobs)
    rig.now = ENDED_MS
    assert sweep(rig, "ended") == 0
    assert rig.inspect("j0").state is State.SUCCEEDED

    rig.now = ENDED_MS + 1

    assert sweep(rig, "ended") == 250
    assert not rig.client.exists(rig.keys.ended)


def test_paces_are_forgotten_once_the_next_job_could_start(rig: Rig) -> None:
    text = json.dumps({"code": numbers_of(rate="1/s burst 2")})
    rig.client.hset(rig.keys.control, "limit:stripe", text)
    for n in range(250):
        rig.schedule({f"j{n}": 0}, limit=f"stripe\0{n}")
    rig.acknowledge(*rig.claim(250).jobs)
    assert rig.client.zcard(rig.keys.paces) == 250
    rig.now = 1_000
    assert sweep(rig, "paces") == 0

    rig.now = 1_001

    assert sweep(rig, "paces") == 250
    assert not rig.client.exists(rig.keys.paces)


def test_what_was_sent_is_forgotten_once_nobody_can_send_it_again(rig: Rig) -> None:
    rig.store_rows("a", "b")
    rig.now = 365 * 86_400_000 - 1
    assert sweep(rig, "sent") == 0

    rig.now += 1

    assert sweep(rig, "sent") == 2
    assert not rig.client.exists(rig.keys.sent)
