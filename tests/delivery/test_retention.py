"""What a queue keeps of the past, and what goes: dead letters, quarantine, requests, notes, keys of nobody's."""

import struct

import pytest

from django_delayq.delivery import claiming, tending
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.settling import Rejected
from django_delayq.delivery.states import State
from django_delayq.delivery.tending import Expired, Swept, Which
from tests.delivery.bench import LEASE, OWNER, T0, Bench, names_of, token

DAY = 86_400_000


def bury(bench: Bench, *names: str, state: State = State.DEAD) -> None:
    bench.schedule(dict.fromkeys(names, 0))
    bench.bury(*bench.claim(len(names)).jobs, state=state)


def expire(bench: Bench, **options: object) -> Expired:
    call = tending.expire(bench.keys, now_us=bench.now_us, **options)  # type: ignore[arg-type]
    return bench.run(call)


def sweep(bench: Bench, which: str) -> int:
    forgotten = cursor = 0
    while True:
        call = tending.sweep(
            bench.keys, which, cursor=cursor, count=10, now_us=bench.now_us
        )
        swept = bench.run(call)
        forgotten, cursor = forgotten + swept.forgotten, swept.cursor
        if cursor == 0:
            return forgotten


# Dead letters and quarantine.


def test_dead_letters_go_whole_by_their_age_the_oldest_first(bench: Bench) -> None:
    bury(bench, "a", "b")
    bench.now = DAY
    bury(bench, "c")

    assert expire(bench, age_ms=DAY + 1) == Expired(0, 3, -1, -1)
    bench.now = DAY + 1

    assert expire(bench, age_ms=DAY) == Expired(2, 1, -1, T0)
    assert bench.state() == {"dead": {"c": DAY}}
    assert bench.inspect("a").state is State.FAILED


def test_dead_letters_beyond_a_number_go_unless_they_are_young(bench: Bench) -> None:
    for n in range(6):
        bench.now = n * DAY
        bury(bench, f"j{n}")

    assert expire(bench, age_ms=DAY, kept=4).deleted == 2
    assert expire(bench, age_ms=DAY, kept=4).deleted == 0
    assert expire(bench, age_ms=3 * DAY, kept=0).deleted == 1

    assert list(bench.state()["dead"]) == ["j3", "j4", "j5"]


def test_dead_letters_are_deleted_a_batch_at_a_time(bench: Bench) -> None:
    bury(bench, *[f"j{n}" for n in range(7)])
    bench.now = DAY

    assert expire(bench, age_ms=1, batch=3)[:3] == (3, 4, 0)
    assert expire(bench, age_ms=1, batch=3)[:3] == (3, 1, 0)
    assert expire(bench, age_ms=1, batch=3)[:3] == (1, 0, -1)
    assert "dead" not in bench.state()


@pytest.mark.parametrize(
    ("which", "left"), [(Which.FOREIGN, ["a", "b"]), (Which.JOBS, ["x", "y", "bad"])]
)
def test_quarantine_keeps_jobs_and_foreign_payloads_by_rules_of_their_own(
    bench: Bench, which: Which, left: list[str]
) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"x", b"y")
    bench.schedule({"a": 0, "b": 0})
    bench.client.zadd(bench.keys.queue.timeout_set, {b"bad": T0})
    bench.bury(*bench.claim().jobs, state=State.QUARANTINED)
    bench.now = DAY

    deleted, rank = 0, 0
    while rank >= 0:
        reply = expire(
            bench,
            state=State.QUARANTINED,
            age_ms=DAY,
            which=which,
            first_rank=rank,
            batch=2,
        )
        deleted, rank = deleted + reply.deleted, reply.next_rank

    assert deleted == 5 - len(left)
    assert sorted(bench.state()["quarantine"]) == sorted(left)


def test_quarantine_is_looked_through_by_bytes(bench: Bench) -> None:
    for n in range(4):
        bench.client.rpush(bench.keys.queue.destination, b"%d" % n * 600)
    bench.bury(*bench.claim().jobs, state=State.QUARANTINED)
    bench.now = DAY

    reply = expire(
        bench,
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
        # With the tokens of those that were late.
        (0, b"request1" + struct.pack("<d", T0 + LEASE) + b"t" * 22, 0),
        (0, b"request1" + struct.pack("<d", float("nan")), 1),
    ],
)
def test_request_of_a_process_that_vanished_is_swept_after_its_leases(
    bench: Bench, later: int, value: bytes | None, forgotten: int
) -> None:
    bench.schedule({"a": 0})
    bench.acknowledge(bench.lease())
    if value is not None:
        bench.client.hset(bench.keys.claims, OWNER, value)
    bench.now += later

    assert sweep(bench, "claims") == forgotten
    assert bench.client.hlen(bench.keys.claims) == 1 - forgotten


def test_process_that_leaves_leaves_nothing(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.acknowledge(bench.lease())

    assert bench.run(claiming.leave(bench.keys, owner=OWNER)) == 1
    assert bench.run(claiming.leave(bench.keys, owner=OWNER)) == 0
    assert bench.leftovers() == []


def test_thousand_processes_leave_nothing_behind(bench: Bench) -> None:
    for n in range(300):
        bench.schedule({f"j{n}": 0})
        bench.acknowledge(bench.lease(owner=b"%08d" % n))
    assert bench.client.hlen(bench.keys.claims) == 300
    bench.now += LEASE + 60_000

    assert sweep(bench, "claims") == 300
    assert bench.leftovers() == []


# Notes and unique keys.


def test_note_goes_once_its_job_is_gone_though_the_list_is_never_empty(
    bench: Bench,
) -> None:
    destination = bench.keys.queue.destination
    bench.client.rpush(destination, *["x"] * 1_000)
    bench.schedule({"a": 0, "b": 0})
    bench.transfer()
    assert [bench.cancel("a"), bench.cancel("b")] == ["noted", "noted"]
    assert sweep(bench, "notes") == 0
    # Java takes all but b, and more comes.
    bench.client.ltrim(destination, 1_001, -1)
    bench.client.rpush(destination, "y")

    assert sweep(bench, "locators") == 1
    assert sweep(bench, "notes") == 1

    assert bench.state()["notes"] == {"b": "cancel"}
    assert names_of(bench.claim(mode=Mode.TAKE)) == ["y"]


def test_job_deep_in_the_destination_queue_is_never_swept(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_000)
    bench.schedule({"a": 0}, unique="ek")
    bench.java_transfer()

    for which in tending.SWEPT:
        assert sweep(bench, which) == 0

    assert bench.schedule({"b": 0}, unique="ek")[0].holder == "a"


@pytest.mark.parametrize("where", ["waiting", "leased", "retrying", "destination"])
def test_unique_key_of_a_living_job_is_kept(bench: Bench, where: str) -> None:
    bench.schedule({"a": 0}, unique="ek")
    if where == "destination":
        bench.transfer()
    elif where != "waiting":
        job = bench.lease()
        if where == "retrying":
            bench.retry(job)

    assert sweep(bench, "unique") == 0
    assert bench.schedule({"b": 0}, unique="ek")[0].holder == "a"


def test_unique_key_of_nobody_is_forgotten(bench: Bench) -> None:
    bench.schedule({"a": 9}, unique="ek")
    bench.client.hset(bench.keys.unique, mapping={"lost": token("z"), "odd": b"\xff"})

    assert sweep(bench, "unique") == 2
    assert bench.state()["unique"] == {"k": "a"}


@pytest.mark.parametrize("deleted", ["leases", "retries", "returned"])
def test_job_whose_set_somebody_deleted_is_forgotten_and_its_key_is_free(
    bench: Bench, deleted: str
) -> None:
    bench.schedule({"a": 0}, unique="ek")
    (job,) = bench.claim(1).jobs
    if deleted == "retries":
        bench.retry(job)
    elif deleted == "returned":
        bench.give_back(job)
    bench.client.delete(getattr(bench.keys, deleted))

    assert sweep(bench, "headers") == 1

    assert bench.inspect("a").state is State.MISSING
    (again,) = bench.schedule({"b": 0}, unique="ek")
    assert not again.holder
    for left in (bench.keys.headers, bench.keys.payloads, bench.keys.errors):
        assert bench.client.hlen(left) == 0


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
def test_graves_that_somebody_deleted_leave_nothing(bench: Bench, state: State) -> None:
    bury(bench, "a", "b", state=state)
    bench.client.zadd(bench.keys.queue.timeout_set, {b"?": T0})
    bench.claim(1)  # no frame: it goes aside without a header
    bench.client.delete(bench.keys.dead, bench.keys.quarantine)

    assert sum(sweep(bench, which) for which in ("headers", "errors")) == 3

    assert bench.state() == {}


def test_what_has_a_header_is_swept_nowhere(bench: Bench) -> None:
    bench.schedule(dict.fromkeys("abcdef", 0))
    a, b, c, d, e, _ = bench.claim(6).jobs
    bench.retry(a)
    bench.give_back(b)
    bench.bury(c)
    bench.bury(d, state=State.QUARANTINED)
    bench.hold(e)
    before = bench.state()

    assert [sweep(bench, which) for which in ("headers", "errors")] == [0, 0]

    assert bench.state() == before


def test_locator_that_cannot_be_read_is_forgotten(bench: Bench) -> None:
    bench.schedule({"a": 9, "b": 9})
    bench.client.hset(bench.keys.locators, token("a"), b"short")

    assert bench.run(tending.sweep(bench.keys)) == Swept(0, 1)
    assert bench.state()["locators"] == ["b"]


def test_buried_without_its_payload_is_deleted_in_its_time(bench: Bench) -> None:
    bury(bench, "a")
    bench.bury(Rejected(token("b"), b"nobody--", b"{}"))
    bench.client.delete(bench.keys.payloads)
    bench.now = DAY

    assert expire(bench, age_ms=DAY).deleted == 1
    assert bench.leftovers() == [bench.keys.claims]
