"""A call whose reply was lost is made again: every call made twice leaves what one call would have left."""

import pytest

from django_delayq.core import change as change_calls
from django_delayq.core.claim import Mode
from django_delayq.core.lease_ends import Done, Rejected
from django_delayq.core.states import State
from tests.core.rig import LEASE, Rig, names_of, token
from tests.core.tour import TOUR

#: Calls whose repeat goes on where the first call ended: it does no more than another call of its kind would.
GOES_ON = {
    "transfer",
    "claim",
    "claim from a swept list",
    "claim of expired leases",
    "claim of what killed its workers",
    "claim of retries",
    "claim from a paused queue",
    "claim from a paused queue that is shared",
    "claim on a shared queue",
    "claim of noted jobs",
    "claim of a lost job with a limit",
    "claim that forgets notes",
    "schedule",
    "schedule a job behind another",
    "schedule without the list",
    "schedule, displacing a holder",
    "schedule within a limit",
    "store",
    "store without the list",
    "store within a limit",
}


@pytest.mark.parametrize("stop", sorted(set(TOUR) - GOES_ON))
def test_call_made_twice_leaves_what_it_left_at_first(rig: Rig, stop: str) -> None:
    call = TOUR[stop](rig)
    call()
    before = rig.state(), rig.counters()

    call()

    assert (rig.state(), rig.counters()) == before
    rig.is_checked = False  # what Java took does not matter here


def test_cancel_whose_reply_was_lost_is_told_that_it_cancelled(rig: Rig) -> None:
    rig.schedule({"a": 5})

    assert rig.cancel("a") == "cancelled"
    assert rig.cancel("a") == "cancelled"


@pytest.mark.parametrize("mode", Mode)
def test_claim_whose_reply_was_lost_has_the_leases_it_was_given(
    rig: Rig, mode: Mode
) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.client.rpush(rig.keys.queue.destination, b"x")
    first = rig.claim(mode=mode, request=b"12345678")
    before = rig.client.zrange(rig.keys.leases, 0, -1, withscores=True)
    rig.now = 500

    again = rig.claim(mode=mode, request=b"12345678")

    assert sorted(names_of(again)) == sorted(names_of(first))
    assert rig.client.zrange(rig.keys.leases, 0, -1, withscores=True) == before


def test_retry_sent_twice_counts_one_attempt(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()

    assert rig.retry(job, wait=0) == []
    assert rig.retry(job, wait=0) == [0]

    assert rig.lease().attempts == 1


def test_foreign_payload_given_back_twice_comes_back_once(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"x")
    job = rig.lease()

    assert rig.give_back(job) == []
    assert rig.give_back(job) == [0]

    assert rig.state() == {"destination": ["x"]}


def test_late_repeat_does_not_end_the_next_attempt(rig: Rig) -> None:
    rig.schedule({"a": 0})
    first = rig.lease()
    rig.retry(first, wait=0)
    rig.lease()

    assert rig.acknowledge(first) == [0]
    assert rig.retry(first) == [0]
    assert rig.bury(first) == [0]

    assert rig.state() == {"leases": {"a": LEASE}}


def test_results_are_not_written_for_those_that_lost_their_lease(rig: Rig) -> None:
    rig.schedule({"a": 0})
    first = rig.lease()
    rig.retry(first, wait=0)
    key = rig.keys.result(first.token)

    rig.acknowledge(Done(first.token, first.fence, 60_000, b"late"))
    rig.bury(Rejected(first.token, first.fence, b"{}", 60_000, b"late"))

    assert rig.client.exists(key) == 0
    assert rig.inspect("a").state is State.RETRYING


@pytest.mark.parametrize("since", ["nothing", "claimed", "succeeded", "dead again"])
def test_replay_whose_reply_was_lost_is_told_that_it_replayed(
    rig: Rig, since: str
) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.bury(*rig.claim().jobs)
    call = change_calls.replay(rig.keys, [token(name) for name in "axb"])

    assert rig.run(call) == 2
    if since != "nothing":
        jobs = rig.claim().jobs
        if since == "succeeded":
            rig.acknowledge(*jobs)
        elif since == "dead again":
            rig.bury(*jobs)
    before = rig.state()

    assert rig.run(call.again()) == 2
    assert rig.state() == before


def test_discard_whose_reply_was_lost_is_told_that_it_discarded(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.bury(rig.lease())
    call = change_calls.discard(rig.keys, [token("a")])

    assert rig.run(call) == 1
    assert rig.run(call.again()) == 1


@pytest.mark.parametrize("since", ["nothing", "claimed", "succeeded"])
def test_reschedule_whose_reply_was_lost_is_told_that_it_moved(
    rig: Rig, since: str
) -> None:
    rig.schedule({"a": 1_000})
    call = change_calls.reschedule(rig.keys, token("a"), "+0")

    moved = rig.run(call)
    assert moved[0] == "rescheduled"
    rig.now += 5
    if since != "nothing":
        job = rig.lease()
        if since == "succeeded":
            rig.acknowledge(job)
    before = rig.state()

    outcome, start_time_ms = rig.run(call.again())
    assert outcome == "rescheduled"
    assert abs(start_time_ms - moved[1]) <= 1
    assert rig.state() == before


def test_replay_takes_the_old_failure_from_those_who_wait(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.bury(Rejected(job.token, job.fence, b"{}", 60_000, b"failed"))

    rig.replay("a")

    assert rig.client.exists(rig.keys.result(job.token)) == 0
