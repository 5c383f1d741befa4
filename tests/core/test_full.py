"""A queue of limited size: what counts, and what a full one refuses."""

import threading

import pytest
import redis

from django_delayq.core import store as store_calls
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, Scheduled
from django_delayq.transport.run import run
from tests.core.rig import LEASE, Rig, names_of, payload, token


def refused(count: int) -> Scheduled:
    return Scheduled(0, "", State.UNCOMMITTED, count)


@pytest.mark.parametrize("unique", ["", "ek"])
def test_full_queue_takes_no_job_and_nothing_changes(any_rig: Rig, unique: str) -> None:
    rig = any_rig
    rig.schedule({"a": 5, "b": 1_000}, max_jobs=2)
    before = rig.state(), rig.counters(), rig.leftovers()

    with rig.listening(rig.keys.queue.channel) as heard:
        assert rig.schedule({"c": 0}, unique=unique, max_jobs=2) == [refused(2)]
        assert heard() == []

    assert (rig.state(), rig.counters(), rig.leftovers()) == before


def test_call_is_stored_wholly_or_refused_wholly(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 1_000}, max_jobs=4)
    before = rig.state()

    assert rig.schedule(dict.fromkeys("bcde", 0), max_jobs=4) == [refused(1)] * 4
    assert rig.state() == before

    assert rig.schedule(dict.fromkeys("bcd", 0), max_jobs=4) == [Scheduled(0, "")] * 3
    assert rig.schedule({"e": 0}, max_jobs=4) == [refused(4)]


def test_what_waits_or_runs_counts_whoever_offered_it(rig: Rig) -> None:
    rig.schedule({"late": 900_000, **dict.fromkeys("abcdef", 0)})
    leased = {job.token.rstrip("-"): job for job in rig.claim(6).jobs}
    rig.retry(leased["a"], wait=60_000)
    rig.give_back(leased["b"])
    rig.hold(leased["c"])
    rig.bury(leased["d"])
    rig.bury(leased["e"], state=State.QUARANTINED)
    rig.java_offer("x", 60_000)
    rig.lay("lies")
    rig.client.rpush(rig.keys.queue.destination, "y")
    # Waiting late and x; a, b, c; f runs; lies and y in the destination queue. Neither d nor e.
    assert rig.schedule({"new": 0}, max_jobs=8) == [refused(8)]

    assert rig.schedule({"new": 0}, max_jobs=9) == [Scheduled(0, "")]
    rig.is_checked = False  # what lies has no job


def test_end_of_a_job_makes_room(rig: Rig) -> None:
    rig.schedule({"a": 0}, max_jobs=1)
    job = rig.lease()
    assert rig.schedule({"b": 0}, max_jobs=1) == [refused(1)]

    rig.acknowledge(job)

    assert rig.schedule({"b": 0}, max_jobs=1) == [Scheduled(0, "")]


def test_full_queue_takes_back_what_it_holds(rig: Rig) -> None:
    """Retries, jobs that are given back, moved, recovered or replayed."""
    rig.schedule(dict.fromkeys("abcd", 0), max_jobs=4)
    a, b, c, _ = rig.claim().jobs
    rig.retry(a, wait=0)
    rig.give_back(b)
    rig.bury(c)
    rig.schedule({"e": 0}, max_jobs=4)
    assert rig.replay("c") == 1
    rig.reschedule("e", 0)
    rig.now = LEASE + 1
    rig.recover()

    assert sorted(names_of(rig.claim())) == ["a", "b", "c", "d", "e"]


def test_repeat_of_a_stored_job_is_not_refused(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 1_000, "b": 0}, max_jobs=2)
    before = rig.state()

    again = rig.schedule({"a": 1_000, "b": 0}, max_jobs=2, again=True)

    assert again == [Scheduled(1_000, ""), Scheduled(0, "")]
    assert rig.state() == before


def test_repeat_with_new_jobs_among_it_tells_each_what_became_of_it(rig: Rig) -> None:
    rig.schedule({"a": 1_000, "b": 0}, max_jobs=3)
    rig.acknowledge(rig.lease())
    rig.schedule({"c": 1_000, "d": 1_000}, max_jobs=3)
    before = rig.state()

    call = store_calls.schedule(
        store_calls.Target(rig.keys, max_jobs=3),
        [NewJob(token(name), "+0", "", payload(name)) for name in "aben"],
    )
    known, ended, *new = rig.run(call.again())

    assert known.beyond is None
    assert ended.beyond is State.SUCCEEDED
    assert new == [refused(3)] * 2
    assert rig.state() == before


def test_job_that_gives_way_to_the_holder_of_its_key_is_not_refused(rig: Rig) -> None:
    rig.schedule({"a": 1_000}, unique="ek", max_jobs=1)

    assert rig.schedule({"b": 0}, unique="ek", max_jobs=1) == [Scheduled(0, "a")]


def test_job_that_would_give_way_to_a_refused_one_is_refused_with_it(rig: Rig) -> None:
    rig.schedule({"a": 1_000, "h": 1_000}, max_jobs=2)
    jobs = [
        NewJob(token(name), "+0", key, payload(name))
        for name, key in (("b", "ek"), ("c", "ek"), ("d", ""))
    ]

    assert rig.send(jobs, max_jobs=2) == [refused(2)] * 3
    assert "unique" not in rig.state()


def test_job_alone_within_a_limit_costs_one_script_and_six_counts_more(
    rig: Rig,
) -> None:
    rig.schedule({"first": 1_000})
    commands = []
    for name, limit in (("a", None), ("b", 10)):
        rig.schedule(
            {name + name: 900_000}, max_jobs=limit
        )  # the server has the script
        rig.client.config_resetstat()
        rig.schedule({name: 900_000}, max_jobs=limit)
        stats = rig.client.info("commandstats")
        commands.append({what: stat["calls"] for what, stat in stats.items()})

    assert commands[1]["cmdstat_evalsha"] == 1
    assert commands[1].pop("cmdstat_zcard") == commands[0].pop("cmdstat_zcard") + 5
    assert commands[1].pop("cmdstat_llen") == 1
    assert commands[1] == commands[0]


def test_without_a_limit_a_call_has_no_argument_and_no_key_more(rig: Rig) -> None:
    jobs = [NewJob(token("a"), "+0", "", payload("a"))]
    call = store_calls.schedule(store_calls.Target(rig.keys), jobs)
    limited = store_calls.schedule(store_calls.Target(rig.keys, max_jobs=1), jobs)

    assert (len(limited.args), len(limited.keys)) == (
        len(call.args) + 1,
        len(call.keys) + 4,
    )
    assert call.script.source.count("ZCARD") == limited.script.source.count("ZCARD")
    assert "if nil then" in call.script.source


def test_refusal_costs_the_same_however_much_waits(rig: Rig) -> None:
    """It is counted in commands: none of them depends on what waits."""
    jobs = [
        NewJob(token(f"n{n}"), "+0", "", payload(f"n{n}", 1_000)) for n in range(500)
    ]
    # A server that has not seen the script counts one call more.
    assert rig.send(jobs[:2], max_jobs=1) == [refused(0)] * 2
    counted = []
    for size in (500, 10_000):
        while (held := rig.client.zcard(rig.keys.queue.timeout_set)) < size:
            rig.schedule({f"w{held + n}": 900_000 for n in range(500)})
        rig.client.config_resetstat()
        assert rig.send(jobs, max_jobs=size) == [refused(size)] * 500
        stats = rig.client.info("commandstats")
        counted.append(
            {
                name: stat["calls"]
                for name, stat in stats.items()
                if name not in ("cmdstat_info", "cmdstat_config|resetstat")
            }
        )

    assert counted[0] == counted[1]
    # Of a script that stores or refuses 500 jobs: none of these commands is made for each job.
    assert max(counted[0].values()) <= 6


def test_limit_is_never_exceeded_by_producers_side_by_side(
    client: "redis.Redis[bytes]", queue_name: str
) -> None:
    keys = DeliveryKeys.of(queue_name)
    stored: list[Scheduled] = []

    def produce(thread: int) -> None:
        for n in range(250):
            name = f"t{thread}n{n}"
            job = NewJob(token(name), "+900000", "", payload(name))
            stored.extend(
                run(
                    client,
                    store_calls.store(store_calls.Target(keys, max_jobs=1_000), job),
                )
            )

    threads = [threading.Thread(target=produce, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert client.zcard(keys.queue.timeout_set) == 1_000
    assert sum(reply.beyond is None for reply in stored) == 1_000
    assert len(stored) == 2_000
