"""Jobs that follow others: stored by the script that ends those."""

import pytest

from django_delayq.core.lease_ends import Done
from django_delayq.core.states import State
from tests.core.rig import LEASE, Rig, name_in, token
from tests.core.tour import follower


def test_job_that_follows_is_stored_by_the_end_of_the_one_before_it(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = 10

    assert rig.acknowledge(job, followers=[(0, follower("b", "+5"))]) == []

    assert rig.inspect("a").state is State.SUCCEEDED
    seen = rig.inspect("b")
    assert seen.state is State.SCHEDULED
    rig.now = 15
    assert [name_in(each.payload) for each in rig.claim().jobs] == ["b"]


def test_job_that_follows_a_lost_lease_is_not_stored(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    a.fence = b"other---"
    followers = [(0, follower("c")), (1, follower("d"))]

    assert rig.acknowledge(a, b, followers=followers) == [0]

    assert rig.inspect("c").state is State.MISSING
    assert rig.inspect("d").state is State.DUE


def test_repeat_whose_reply_was_lost_stores_nothing_again(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.acknowledge(job, followers=[(0, follower("b"))])
    rig.acknowledge(rig.lease())

    rig.acknowledge(job, followers=[(0, follower("b"))])

    assert rig.inspect("b").state is State.SUCCEEDED
    assert rig.claim().jobs == []


@pytest.mark.parametrize("way", ["acknowledge", "bury"])
def test_results_and_followers_of_one_call_do_not_mix(rig: Rig, way: str) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    followers = [(1, follower("c")), (0, follower("d")), (1, follower("e", "+5"))]
    if way == "acknowledge":
        done = [
            Done(job.token, job.fence, 60_000, job.token.encode()) for job in (a, b)
        ]
        rig.acknowledge(*done, followers=followers)
        for job in (a, b):
            kept = rig.client.lrange(rig.keys.result(job.token), 0, -1)
            assert kept == [job.token.encode(), job.payload, b""]
    else:
        rig.bury(a, b, followers=followers)
        assert rig.inspect("a").state is rig.inspect("b").state is State.DEAD

    assert [rig.inspect(name).state for name in "cde"] == [
        State.DUE,
        State.DUE,
        State.SCHEDULED,
    ]


def test_follower_that_waits_or_is_dead_already_stays_as_it_is(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.schedule({"b": 60, "c": 0})
    a, c = rig.claim().jobs
    rig.bury(c)

    rig.acknowledge(a, followers=[(0, follower("b")), (0, follower("c"))])

    assert rig.inspect("b").state is State.SCHEDULED
    assert rig.inspect("c").state is State.DEAD


def test_follower_that_has_ended_follows_again(rig: Rig) -> None:
    """The one before it was replayed, and is dead a second time."""
    rig.schedule({"a": 0})
    for _ in range(2):
        rig.bury(rig.lease(), followers=[(0, follower("b"))])
        (b,) = rig.claim().jobs
        rig.acknowledge(b)
        assert rig.inspect("b").state is State.SUCCEEDED
        rig.replay("a")


def test_follower_whose_unique_key_is_held_is_not_stored(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.schedule({"holder": 60}, unique="ek")
    followers = [
        (0, follower("b", unique="ek")),
        (0, follower("c", unique="eown")),
        (0, follower("d", unique="eown")),
    ]

    rig.acknowledge(rig.lease(), followers=followers)

    states = [rig.inspect(name).state for name in "bcd"]
    assert states == [State.MISSING, State.DUE, State.MISSING]
    assert rig.client.hget(rig.keys.unique, "own") == token("c").encode()
    assert rig.client.hget(rig.keys.unique, "k") == token("holder").encode()


def test_follower_may_have_the_unique_key_of_the_job_before_it(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ek")

    rig.acknowledge(rig.lease(), followers=[(0, follower("b", unique="ek"))])

    assert rig.inspect("b").state is State.DUE
    assert rig.client.hget(rig.keys.unique, "k") == token("b").encode()


def test_follower_with_a_priority_ranks_its_queue_and_one_without_does_not(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs

    rig.acknowledge(a, followers=[(0, follower("c"))])
    assert not rig.client.exists(rig.keys.ranked)

    rig.acknowledge(
        b,
        followers=[(0, follower("d", priority=5)), (0, follower("e"))],
    )
    assert rig.client.zcard(rig.keys.ranked) >= 1
    assert name_in(rig.claim(1).jobs[0].payload) == "d"


def test_full_queue_takes_what_follows(rig: Rig) -> None:
    rig.schedule({"a": 0}, max_jobs=1)

    rig.acknowledge(rig.lease(), followers=[(0, follower(name)) for name in "bcd"])

    assert [rig.inspect(name).state for name in "bcd"] == [State.DUE] * 3


def test_lost_lease_of_all_leaves_all_followers(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = LEASE + 1
    rig.lease(owner=b"owner--2")

    assert rig.bury(job, followers=[(0, follower("b"))]) == [0]
    assert rig.inspect("b").state is State.MISSING
