"""A reply that was lost is asked for again: every call made twice leaves what one would have left."""

import pytest

from django_delayq.delivery import changing
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.settling import Done, Rejected
from django_delayq.delivery.states import State
from tests.delivery.bench import LEASE, Bench, names_of, token
from tests.delivery.tour import TOUR

#: Calls that go on where the first ended, instead of repeating it: each does no more than another of its kind would.
GOES_ON = {
    "transfer",
    "claim",
    "claim from a swept list",
    "claim of expired leases",
    "claim of what killed its workers",
    "claim of retries",
    "claim on a shared queue",
    "claim of noted jobs",
    "claim that forgets notes",
    "schedule",
    "schedule without the list",
    "schedule, displacing a holder",
    "store",
    "store without the list",
}


@pytest.mark.parametrize("stop", sorted(set(TOUR) - GOES_ON))
def test_call_made_twice_leaves_what_it_left_at_first(bench: Bench, stop: str) -> None:
    call = TOUR[stop](bench)
    call()
    before = bench.state(), bench.counters()

    call()

    assert (bench.state(), bench.counters()) == before
    bench.is_checked = False  # what Java took is no matter here


def test_cancel_whose_reply_was_lost_is_told_that_it_cancelled(bench: Bench) -> None:
    bench.schedule({"a": 5})

    assert bench.cancel("a") == "cancelled"
    assert bench.cancel("a") == "cancelled"


@pytest.mark.parametrize("mode", Mode)
def test_claim_whose_reply_was_lost_has_the_leases_it_was_given(
    bench: Bench, mode: Mode
) -> None:
    bench.schedule({"a": 0, "b": 0})
    bench.client.rpush(bench.keys.queue.destination, b"x")
    first = bench.claim(mode=mode, request=b"12345678")
    before = bench.client.zrange(bench.keys.leases, 0, -1, withscores=True)
    bench.now = 500

    again = bench.claim(mode=mode, request=b"12345678")

    assert sorted(names_of(again)) == sorted(names_of(first))
    assert bench.client.zrange(bench.keys.leases, 0, -1, withscores=True) == before


def test_retry_sent_twice_counts_one_attempt(bench: Bench) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()

    assert bench.retry(job, wait=0) == []
    assert bench.retry(job, wait=0) == [0]

    assert bench.lease().attempts == 1


def test_foreign_payload_given_back_twice_comes_back_once(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"x")
    job = bench.lease()

    assert bench.give_back(job) == []
    assert bench.give_back(job) == [0]

    assert bench.state() == {"destination": ["x"]}


def test_late_repeat_does_not_end_the_next_attempt(bench: Bench) -> None:
    bench.schedule({"a": 0})
    first = bench.lease()
    bench.retry(first, wait=0)
    bench.lease()

    assert bench.acknowledge(first) == [0]
    assert bench.retry(first) == [0]
    assert bench.bury(first) == [0]

    assert bench.state() == {"leases": {"a": LEASE}}


def test_results_are_not_written_for_those_that_lost_their_lease(bench: Bench) -> None:
    bench.schedule({"a": 0})
    first = bench.lease()
    bench.retry(first, wait=0)
    key = bench.keys.result(first.token)

    bench.acknowledge(Done(first.token, first.fence, 60_000, b"late"))
    bench.bury(Rejected(first.token, first.fence, b"{}", 60_000, b"late"))

    assert bench.client.exists(key) == 0
    assert bench.inspect("a").state is State.RETRYING


@pytest.mark.parametrize("since", ["nothing", "claimed", "succeeded", "dead again"])
def test_replay_whose_reply_was_lost_is_told_that_it_replayed(
    bench: Bench, since: str
) -> None:
    bench.schedule({"a": 0, "b": 0})
    bench.bury(*bench.claim().jobs)
    call = changing.replay(
        bench.keys, [token(name) for name in "axb"], now_us=bench.now_us
    )

    assert bench.run(call) == 2
    if since != "nothing":
        jobs = bench.claim().jobs
        if since == "succeeded":
            bench.acknowledge(*jobs)
        elif since == "dead again":
            bench.bury(*jobs)
    before = bench.state()

    assert bench.run(call.again()) == 2
    assert bench.state() == before


def test_discard_whose_reply_was_lost_is_told_that_it_discarded(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.bury(bench.lease())
    call = changing.discard(bench.keys, [token("a")], now_us=bench.now_us)

    assert bench.run(call) == 1
    assert bench.run(call.again()) == 1


@pytest.mark.parametrize("since", ["nothing", "claimed", "succeeded"])
def test_reschedule_whose_reply_was_lost_is_told_that_it_moved(
    bench: Bench, since: str
) -> None:
    bench.schedule({"a": 1_000})
    call = changing.reschedule(bench.keys, token("a"), "+0", now_us=bench.now_us)

    moved = bench.run(call)
    assert moved[0] == "rescheduled"
    bench.now += 5
    if since != "nothing":
        job = bench.lease()
        if since == "succeeded":
            bench.acknowledge(job)
    before = bench.state()

    outcome, start_time_ms = bench.run(call.again())
    assert outcome == "rescheduled"
    assert abs(start_time_ms - moved[1]) <= 1
    assert bench.state() == before


def test_replay_takes_the_old_failure_from_those_who_wait(bench: Bench) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.bury(Rejected(job.token, job.fence, b"{}", 60_000, b"failed"))

    bench.replay("a")

    assert bench.client.exists(bench.keys.result(job.token)) == 0
