"""Unique keys: one job at a time holds a key. The script that stores the job takes the key; its end frees it."""

from typing import Any

import pytest

from django_delayq.core import change as change_calls
from django_delayq.core import replace as replace_calls
from django_delayq.core import store as store_calls
from django_delayq.core.claim import Mode
from django_delayq.core.replace import Replaced
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, Scheduled, tail_of
from tests.core.rig import LEASE, T0, Rig, name_in, names_of, payload, token
from tests.core.tour import follower

TO_END, TO_START = "ek", "sk"


def test_second_job_of_a_key_is_not_stored_and_the_first_is_named(
    any_rig: Rig,
) -> None:
    rig = any_rig
    rig.schedule({"a": 1_000}, unique=TO_END)
    before = rig.state()

    assert rig.schedule({"b": 500}, unique=TO_END) == [Scheduled(500, "a")]

    assert rig.state() == before


def test_first_job_of_a_key_in_one_call_holds_it_against_the_others(
    rig: Rig,
) -> None:
    jobs = [
        NewJob(token("a"), "+0", "ek", payload("a")),
        NewJob(token("b"), "+0", "ek", payload("b")),
        NewJob(token("c"), "+0", "el", payload("c")),
        NewJob(token("d"), "+0", "", payload("d")),
        NewJob(token("e"), "+0", "sk", payload("e")),
    ]

    replies = rig.send(jobs)

    assert [reply.holder for reply in replies] == ["", "a", "", "", "a"]
    assert names_of(rig.claim()) == ["a", "c", "d"]


def test_repeat_of_the_call_that_stored_the_holder_is_not_refused(
    rig: Rig,
) -> None:
    rig.schedule({"a": 1_000}, unique=TO_END)

    replies = rig.schedule({"a": 1_000}, unique=TO_END, again=True)

    assert replies == [Scheduled(1_000, "")]


def test_repeat_of_a_call_with_several_jobs_of_a_key_gives_the_same_answer(
    rig: Rig,
) -> None:
    jobs = [NewJob(token(name), "+0", "ek", payload(name)) for name in "abc"]
    first = rig.send(jobs)

    assert rig.send(jobs, again=True) == first
    assert names_of(rig.claim()) == ["a"]


def test_key_of_another_queue_is_another_key(rig: Rig) -> None:
    other = Rig(rig.client, rig.keys.queue.name + "-2")
    rig.schedule({"a": 0}, unique=TO_END)

    assert other.schedule({"b": 0}, unique=TO_END) == [Scheduled(0, "")]


# How long a key is held.


@pytest.mark.parametrize(
    "life",
    [
        "scheduled",
        "due",
        "leased",
        "renewed",
        "retrying",
        "claimed again",
        "given back",
        "lease expired",
        "recovered",
        "moved",
        "moved while it retries",
        "in the destination queue",
        "moved from the destination queue",
    ],
)
def test_key_held_to_the_end_is_held_while_the_job_lives(rig: Rig, life: str) -> None:
    rig.schedule({"a": 0 if life != "scheduled" else 10}, unique=TO_END)
    if life == "moved":
        rig.reschedule("a", 700)
    elif "destination queue" in life:
        rig.transfer()
        if life.startswith("moved"):
            rig.reschedule("a", 700)
    elif life not in ("scheduled", "due"):
        job = rig.lease()
        if life == "renewed":
            rig.renew(job)
        elif life == "given back":
            rig.give_back(job)
        elif life == "lease expired":
            rig.now = LEASE
        elif life == "recovered":
            rig.recover()
        elif life != "leased":
            rig.retry(job, wait=0)
        if life == "claimed again":
            rig.lease()
        elif life == "moved while it retries":
            rig.reschedule("a", 700)

    (reply,) = rig.schedule({"b": 0}, unique=TO_END)

    assert reply.holder == "a"
    assert rig.state()["unique"] == {"k": "a"}


@pytest.mark.parametrize(
    "end",
    ["succeeded", "expired", "dead", "quarantined", "killed", "cancelled"],
)
def test_key_held_to_the_end_is_free_in_the_script_that_ends_the_job(
    rig: Rig, end: str
) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    if end == "cancelled":
        rig.cancel("a")
    else:
        job = rig.lease()
        if end == "killed":
            rig.now = LEASE
            rig.claim(max_kills=0)
        elif end == "dead":
            rig.bury(job)
        elif end == "quarantined":
            rig.bury(job, state=State.QUARANTINED)
        else:
            rig.acknowledge(job, state=State(end))

    assert "unique" not in rig.state()
    assert rig.schedule({"b": 0}, unique=TO_END)[0].holder == ""


@pytest.mark.parametrize("where", ["retrying", "worker dead", "destination queue"])
def test_cancel_frees_the_key_wherever_the_job_waits(rig: Rig, where: str) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    if where == "destination queue":
        rig.transfer()
    else:
        job = rig.lease()
        if where == "retrying":
            rig.retry(job)
        else:
            rig.recover()

    rig.cancel("a")

    assert "unique" not in rig.state()


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED])
def test_key_held_to_the_start_is_free_once_the_job_is_claimed(
    rig: Rig, mode: Mode
) -> None:
    rig.schedule({"a": 0}, unique=TO_START)
    assert rig.schedule({"b": 0}, unique=TO_START)[0].holder == "a"

    if mode is Mode.SHARED:
        rig.transfer()
    assert names_of(rig.claim(mode=mode)) == ["a"]

    assert "unique" not in rig.state()
    assert rig.schedule({"c": 0}, unique=TO_START)[0].holder == ""


def test_job_that_retries_does_not_take_back_a_key_it_held_to_its_start(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0}, unique=TO_START)
    job = rig.lease()
    rig.schedule({"b": 5_000}, unique=TO_START)
    rig.retry(job, wait=0)

    rig.acknowledge(rig.lease())

    assert rig.state()["unique"] == {"k": "b"}


def test_key_is_released_by_its_holder_only(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    lost = rig.lease()
    rig.now = LEASE
    rig.acknowledge(rig.lease())
    rig.schedule({"b": 5_000}, unique=TO_END)

    assert rig.acknowledge(lost) == [0]

    assert rig.state()["unique"] == {"k": "b"}


@pytest.mark.parametrize("end", ["acknowledge", "bury", "cancel", "forget"])
def test_key_that_somebody_else_holds_by_now_is_left_to_him(rig: Rig, end: str) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    rig.client.hset(rig.keys.unique, "k", token("b"))
    rig.is_checked = False

    if end == "forget":
        rig.java_transfer()
        rig.java_take()
    if end in ("cancel", "forget"):
        rig.cancel("a")
    else:
        getattr(rig, end)(rig.lease())

    assert rig.client.hgetall(rig.keys.unique) == {b"k": token("b").encode()}


def test_replayed_dead_letter_runs_beside_the_next_holder(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    rig.bury(rig.lease())
    rig.schedule({"b": 5_000}, unique=TO_END)

    rig.replay("a")
    rig.acknowledge(rig.lease())

    assert rig.state()["unique"] == {"k": "b"}


# Java.


def test_holder_whose_frame_java_removed_is_displaced(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 1_000}, unique=TO_END)
    (frame,) = rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
    rig.java_remove(frame)

    assert rig.schedule({"b": 2_000}, unique=TO_END) == [Scheduled(2_000, "")]

    state = rig.state()
    assert state["unique"] == {"k": "b"}
    assert state["locators"] == ["b"]


def test_holder_that_java_took_is_displaced_but_not_one_it_only_transferred(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    rig.java_transfer()
    assert rig.schedule({"b": 0}, unique=TO_END)[0].holder == "a"
    rig.java_take()

    assert rig.schedule({"c": 0}, unique=TO_END)[0].holder == ""

    assert rig.state()["unique"] == {"k": "c"}


def test_several_holders_that_java_removed_are_displaced_by_one_call(
    rig: Rig,
) -> None:
    for name, key in (("a", "ek"), ("b", "el"), ("c", "em")):
        rig.schedule({name: 1_000}, unique=key)
    for frame in rig.frames()[:2]:
        rig.java_remove(frame)

    replies = rig.send(
        [
            NewJob(token(name), "+5000", key, payload(name))
            for name, key in (("x", "ek"), ("y", "el"), ("z", "em"), ("w", "ek"))
        ]
    )

    assert [reply.holder for reply in replies] == ["", "", "c", "x"]
    assert rig.state()["unique"] == {"k": "x", "l": "y", "m": "c"}
    assert rig.state()["locators"] == ["c", "x", "y"]


def test_holder_deep_in_a_long_destination_queue_counts_as_alive(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_001)
    rig.schedule({"a": 0}, unique=TO_END)
    rig.transfer()

    assert rig.schedule({"b": 0}, unique=TO_END)[0].holder == "a"


def test_holders_in_the_destination_queue_are_looked_for_once_a_call(
    rig: Rig,
) -> None:
    """Each look may read a megabyte, and a call may have 500 keys."""
    count = 50
    for n in range(count):
        rig.schedule({f"h{n}": 0}, unique=f"ek{n}")
    rig.transfer(500)
    jobs = [NewJob(token(f"j{n}"), "+0", f"ek{n}", payload("j")) for n in range(count)]
    rig.client.config_resetstat()

    stored = rig.run(store_calls.schedule(store_calls.Target(rig.keys), jobs))

    assert [job.holder for job in stored] == [token(f"h{n}") for n in range(count)]
    reads = rig.client.info("commandstats")["cmdstat_lrange"]["calls"]
    assert reads < count / 2


def test_holder_with_a_header_is_alive_in_every_place(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=TO_END)
    rig.client.rpush(rig.keys.queue.destination, payload("a"))
    rig.claim()

    assert rig.schedule({"b": 0}, unique=TO_END)[0].holder == "a"


@pytest.mark.parametrize("key", ["k k", "ключ", "e", "x" * 300, '"}', "%s-%%"])
def test_key_is_any_text(rig: Rig, key: str) -> None:
    rig.schedule({"a": 0}, unique="e" + key)

    assert rig.schedule({"b": 0}, unique="e" + key)[0].holder == "a"
    assert rig.inspect("a").unique == key
    job = rig.lease()
    assert rig.inspect("a").unique == key
    rig.acknowledge(job)
    assert "unique" not in rig.state()


# A job that is too late to begin holds its key no more.

AFTER = 1_000


def expiring(
    name: str,
    wait: int = 0,
    *,
    unique: str = TO_END,
    since: int = 0,
    may_go_behind: bool = False,
    **options: Any,
) -> NewJob:
    tail = tail_of(
        unique,
        expires_ms=AFTER,
        since_ms=since and T0 + since,
        may_go_behind=may_go_behind,
        **options,
    )
    return NewJob(token(name), f"+{wait}", tail, payload(name))


def bring_to(rig: Rig, place: str) -> None:
    """Have the job that is due wait somewhere, or lie under a lease."""
    if place in ("timeout set", "destination", "moved"):
        if place != "timeout set":
            rig.transfer()
        if place == "moved":
            rig.reschedule("a", 0)
        return
    job = rig.lease()
    if place == "retries":
        rig.retry(job, wait=0)
    elif place == "snoozes":
        rig.snooze(job, wait=0)
    elif place == "returned":
        rig.give_back(job)
    elif place == "held":
        rig.hold(job)
    elif place == "given up":
        rig.recover()
    else:
        assert place == "leased"


WAITING = [
    "timeout set",
    "destination",
    "moved",
    "retries",
    "snoozes",
    "returned",
    "held",
    "given up",
]


@pytest.mark.parametrize("max_jobs", [None, 10])
@pytest.mark.parametrize(
    ("unique", "place"),
    # One that has begun holds no key to its start.
    [(TO_END, place) for place in WAITING]
    + [(TO_START, place) for place in ("timeout set", "destination", "moved")],
)
def test_job_that_is_too_late_holds_its_key_no_more(
    any_rig: Rig, place: str, unique: str, max_jobs: int | None
) -> None:
    rig = any_rig
    rig.send([expiring("a", unique=unique)])
    bring_to(rig, place)
    rig.now = AFTER
    (kept,) = rig.send([expiring("b", unique=unique)], max_jobs=max_jobs)
    assert kept.holder == "a"

    rig.now = AFTER + 1
    (stored,) = rig.send([expiring("b", unique=unique)], max_jobs=max_jobs)

    assert stored == Scheduled(AFTER + 1, "")
    (again,) = rig.send([expiring("c", unique=unique)], max_jobs=max_jobs)
    assert again.holder == "b"
    rig.release("shop.new")
    if place == "destination":
        rig.transfer()
    jobs = rig.claim().jobs + rig.claim().jobs
    assert sorted(name_in(job.payload) for job in jobs) == ["a", "b"]
    (late,) = [job for job in jobs if job.token == token("a")]
    rig.acknowledge(late, state=State.EXPIRED)
    held = {"k": "b"} if unique == TO_END else None
    assert rig.state().get("unique") == held
    rig.acknowledge(next(job for job in jobs if job.token == token("b")))
    rig.recover()
    assert rig.leftovers() == []


def test_job_that_a_worker_has_holds_its_key_however_late_it_is(rig: Rig) -> None:
    rig.send([expiring("a")])
    rig.lease()
    rig.now = 10 * AFTER

    (kept,) = rig.send([expiring("b")])

    assert kept.holder == "a"


def test_retry_that_is_due_once_it_is_too_late_holds_no_key(rig: Rig) -> None:
    rig.send([expiring("a")])
    rig.retry(rig.lease(), wait=AFTER + 1)

    (stored,) = rig.send([expiring("b")])

    assert stored.holder == ""


def test_lateness_counts_from_the_later_of_two_times(rig: Rig) -> None:
    rig.send([expiring("a", since=500)])
    rig.now = AFTER + 500
    assert rig.send([expiring("b")])[0].holder == "a"

    rig.now = AFTER + 501

    assert rig.send([expiring("b")])[0].holder == ""


@pytest.mark.parametrize("may_go_behind", [False, True])
@pytest.mark.parametrize("other", ["runs", "retries"])
def test_key_of_a_late_job_goes_back_to_the_one_that_it_waits_behind(
    rig: Rig, other: str, may_go_behind: bool
) -> None:
    rig.send([NewJob(token("a"), "+0", TO_END, payload("a"))])
    a = rig.lease()
    (behind,) = rig.send([expiring("b", may_go_behind=True)])
    assert behind.holder == ""
    if other == "retries":
        rig.retry(a, wait=5 * AFTER)
    rig.now = AFTER + 1

    (reply,) = rig.send([expiring("c", may_go_behind=may_go_behind)])

    if may_go_behind and other == "runs":
        assert reply.holder == ""
        assert rig.state()["unique"] == {"k": "c"}
        assert names_of(rig.claim()) == []
        rig.acknowledge(a)
        rig.now += 2_000
        assert sorted(names_of(rig.claim())) == ["b", "c"]
    else:
        assert reply.holder == "a"
        assert rig.state()["unique"] == {"k": "a"}


def test_late_holder_is_not_replaced(rig: Rig) -> None:
    rig.send([expiring("a")])
    rig.now = AFTER + 1
    before = rig.state()
    call = replace_calls.replace(
        rig.keys,
        token("a"),
        expiring("b"),
        payload=payload("a", 120, signature="other"),
    )

    assert rig.run(call) == Replaced(State.EXPIRED, None)

    assert rig.state() == before


def test_job_that_follows_takes_the_key_of_a_late_one(rig: Rig) -> None:
    rig.send([expiring("a", 100)])
    rig.schedule({"first": 0, "second": 0})
    first, second = rig.claim().jobs
    rig.now = 100 + AFTER
    rig.acknowledge(first, followers=[(0, follower("x", unique=TO_END))])
    assert rig.inspect("x").state is State.MISSING

    rig.now += 1
    rig.acknowledge(second, followers=[(0, follower("y", unique=TO_END))])

    assert rig.inspect("y").state is State.DUE


def test_expiry_stays_with_a_job_whatever_else_its_tail_says(rig: Rig) -> None:
    rig.open("all")
    rig.send(
        [
            expiring(
                "a",
                priority=3,
                limit="stripe\0key",
                notes_first=True,
                batch=token("all"),
                has_on_dead=True,
            )
        ],
        has_batches=True,
    )
    rig.run(change_calls.reprioritize(rig.keys, token("a"), -5))
    rig.now = AFTER
    assert rig.send([expiring("b")])[0].holder == "a"
    rig.now = AFTER + 1
    assert rig.send([expiring("b")])[0].holder == ""
    assert rig.inspect("a").unique == "k"
    assert rig.inspect("a").priority == -5
    rig.cancel("a")
    rig.close("all")
    assert rig.left("all") == 0
    assert rig.state()["unique"] == {"k": "b"}
