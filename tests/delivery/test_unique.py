"""Unique keys: one job at a time, held in the script that stores it and released in the one that ends it."""

import pytest

from django_delayq.delivery import storing
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import State
from django_delayq.delivery.storing import NewJob, Scheduled
from tests.delivery.bench import LEASE, Bench, names_of, payload, token

TO_END, TO_START = "ek", "sk"


def test_second_job_of_a_key_is_not_stored_and_the_first_is_named(
    any_bench: Bench,
) -> None:
    bench = any_bench
    bench.schedule({"a": 1_000}, unique=TO_END)
    before = bench.state()

    assert bench.schedule({"b": 500}, unique=TO_END) == [Scheduled(500, "a")]

    assert bench.state() == before


def test_first_job_of_a_key_in_one_call_holds_it_against_the_others(
    bench: Bench,
) -> None:
    jobs = [
        NewJob(token("a"), "+0", "ek", payload("a")),
        NewJob(token("b"), "+0", "ek", payload("b")),
        NewJob(token("c"), "+0", "el", payload("c")),
        NewJob(token("d"), "+0", "", payload("d")),
        NewJob(token("e"), "+0", "sk", payload("e")),
    ]

    replies = bench.send(jobs)

    assert [reply.holder for reply in replies] == ["", "a", "", "", "a"]
    assert names_of(bench.claim()) == ["a", "c", "d"]


def test_repeat_of_the_call_that_stored_the_holder_is_not_refused(
    bench: Bench,
) -> None:
    bench.schedule({"a": 1_000}, unique=TO_END)

    replies = bench.schedule({"a": 1_000}, unique=TO_END, again=True)

    assert replies == [Scheduled(1_000, "")]


def test_repeat_of_a_call_with_several_jobs_of_a_key_gives_the_same_answer(
    bench: Bench,
) -> None:
    jobs = [NewJob(token(name), "+0", "ek", payload(name)) for name in "abc"]
    first = bench.send(jobs)

    assert bench.send(jobs, again=True) == first
    assert names_of(bench.claim()) == ["a"]


def test_key_of_another_queue_is_another_key(bench: Bench) -> None:
    other = Bench(bench.client, bench.keys.queue.name + "-2")
    bench.schedule({"a": 0}, unique=TO_END)

    assert other.schedule({"b": 0}, unique=TO_END) == [Scheduled(0, "")]


# Held until.


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
def test_key_held_to_the_end_is_held_while_the_job_lives(
    bench: Bench, life: str
) -> None:
    bench.schedule({"a": 0 if life != "scheduled" else 10}, unique=TO_END)
    if life == "moved":
        bench.reschedule("a", 700)
    elif "destination queue" in life:
        bench.transfer()
        if life.startswith("moved"):
            bench.reschedule("a", 700)
    elif life not in ("scheduled", "due"):
        job = bench.lease()
        if life == "renewed":
            bench.renew(job)
        elif life == "given back":
            bench.give_back(job)
        elif life == "lease expired":
            bench.now = LEASE
        elif life == "recovered":
            bench.recover()
        elif life != "leased":
            bench.retry(job, wait=0)
        if life == "claimed again":
            bench.lease()
        elif life == "moved while it retries":
            bench.reschedule("a", 700)

    (reply,) = bench.schedule({"b": 0}, unique=TO_END)

    assert reply.holder == "a"
    assert bench.state()["unique"] == {"k": "a"}


@pytest.mark.parametrize(
    "end",
    ["succeeded", "expired", "dead", "quarantined", "killed", "cancelled"],
)
def test_key_held_to_the_end_is_free_in_the_script_that_ends_the_job(
    bench: Bench, end: str
) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    if end == "cancelled":
        bench.cancel("a")
    else:
        job = bench.lease()
        if end == "killed":
            bench.now = LEASE
            bench.claim(max_kills=0)
        elif end == "dead":
            bench.bury(job)
        elif end == "quarantined":
            bench.bury(job, state=State.QUARANTINED)
        else:
            bench.acknowledge(job, state=State(end))

    assert "unique" not in bench.state()
    assert bench.schedule({"b": 0}, unique=TO_END)[0].holder == ""


@pytest.mark.parametrize("where", ["retrying", "worker dead", "destination queue"])
def test_cancel_frees_the_key_wherever_the_job_waits(bench: Bench, where: str) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    if where == "destination queue":
        bench.transfer()
    else:
        job = bench.lease()
        if where == "retrying":
            bench.retry(job)
        else:
            bench.recover()

    bench.cancel("a")

    assert "unique" not in bench.state()


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED])
def test_key_held_to_the_start_is_free_once_the_job_is_claimed(
    bench: Bench, mode: Mode
) -> None:
    bench.schedule({"a": 0}, unique=TO_START)
    assert bench.schedule({"b": 0}, unique=TO_START)[0].holder == "a"

    if mode is Mode.SHARED:
        bench.transfer()
    assert names_of(bench.claim(mode=mode)) == ["a"]

    assert "unique" not in bench.state()
    assert bench.schedule({"c": 0}, unique=TO_START)[0].holder == ""


def test_job_that_retries_does_not_take_back_a_key_it_held_to_its_start(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0}, unique=TO_START)
    job = bench.lease()
    bench.schedule({"b": 5_000}, unique=TO_START)
    bench.retry(job, wait=0)

    bench.acknowledge(bench.lease())

    assert bench.state()["unique"] == {"k": "b"}


def test_key_is_released_by_its_holder_only(bench: Bench) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    lost = bench.lease()
    bench.now = LEASE
    bench.acknowledge(bench.lease())
    bench.schedule({"b": 5_000}, unique=TO_END)

    assert bench.acknowledge(lost) == [0]

    assert bench.state()["unique"] == {"k": "b"}


@pytest.mark.parametrize("end", ["acknowledge", "bury", "cancel", "forget"])
def test_key_that_somebody_else_holds_by_now_is_left_to_him(
    bench: Bench, end: str
) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    bench.client.hset(bench.keys.unique, "k", token("b"))
    bench.is_checked = False

    if end == "forget":
        bench.java_transfer()
        bench.java_take()
    if end in ("cancel", "forget"):
        bench.cancel("a")
    else:
        getattr(bench, end)(bench.lease())

    assert bench.client.hgetall(bench.keys.unique) == {b"k": token("b").encode()}


def test_replayed_dead_letter_runs_beside_the_next_holder(bench: Bench) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    bench.bury(bench.lease())
    bench.schedule({"b": 5_000}, unique=TO_END)

    bench.replay("a")
    bench.acknowledge(bench.lease())

    assert bench.state()["unique"] == {"k": "b"}


# Java.


def test_holder_whose_frame_java_removed_is_displaced(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({"a": 1_000}, unique=TO_END)
    (frame,) = bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
    bench.java_remove(frame)

    assert bench.schedule({"b": 2_000}, unique=TO_END) == [Scheduled(2_000, "")]

    state = bench.state()
    assert state["unique"] == {"k": "b"}
    assert state["locators"] == ["b"]


def test_holder_that_java_took_is_displaced_but_not_one_it_only_transferred(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    bench.java_transfer()
    assert bench.schedule({"b": 0}, unique=TO_END)[0].holder == "a"
    bench.java_take()

    assert bench.schedule({"c": 0}, unique=TO_END)[0].holder == ""

    assert bench.state()["unique"] == {"k": "c"}


def test_several_holders_that_java_removed_are_displaced_by_one_call(
    bench: Bench,
) -> None:
    for name, key in (("a", "ek"), ("b", "el"), ("c", "em")):
        bench.schedule({name: 1_000}, unique=key)
    for frame in bench.frames()[:2]:
        bench.java_remove(frame)

    replies = bench.send(
        [
            NewJob(token(name), "+5000", key, payload(name))
            for name, key in (("x", "ek"), ("y", "el"), ("z", "em"), ("w", "ek"))
        ]
    )

    assert [reply.holder for reply in replies] == ["", "", "c", "x"]
    assert bench.state()["unique"] == {"k": "x", "l": "y", "m": "c"}
    assert bench.state()["locators"] == ["c", "x", "y"]


def test_holder_deep_in_a_long_destination_queue_counts_as_alive(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_001)
    bench.schedule({"a": 0}, unique=TO_END)
    bench.transfer()

    assert bench.schedule({"b": 0}, unique=TO_END)[0].holder == "a"


def test_holders_in_the_destination_queue_are_looked_for_once_a_call(
    bench: Bench,
) -> None:
    """Each look may read a megabyte, and a call may have 500 keys."""
    count = 50
    for n in range(count):
        bench.schedule({f"h{n}": 0}, unique=f"ek{n}")
    bench.transfer(500)
    jobs = [NewJob(token(f"j{n}"), "+0", f"ek{n}", payload("j")) for n in range(count)]
    bench.client.config_resetstat()

    stored = bench.run(storing.schedule(bench.keys, jobs, now_us=bench.now_us))

    assert [job.holder for job in stored] == [token(f"h{n}") for n in range(count)]
    reads = bench.client.info("commandstats")["cmdstat_lrange"]["calls"]
    assert reads < count / 2


def test_holder_with_a_header_is_alive_in_every_place(bench: Bench) -> None:
    bench.schedule({"a": 0}, unique=TO_END)
    bench.client.rpush(bench.keys.queue.destination, payload("a"))
    bench.claim()

    assert bench.schedule({"b": 0}, unique=TO_END)[0].holder == "a"


@pytest.mark.parametrize("key", ["k k", "ключ", "e", "x" * 300, '"}', "%s-%%"])
def test_key_is_any_text(bench: Bench, key: str) -> None:
    bench.schedule({"a": 0}, unique="e" + key)

    assert bench.schedule({"b": 0}, unique="e" + key)[0].holder == "a"
    assert bench.inspect("a").unique == key
    job = bench.lease()
    assert bench.inspect("a").unique == key
    bench.acknowledge(job)
    assert "unique" not in bench.state()
