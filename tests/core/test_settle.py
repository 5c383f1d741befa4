"""The end of an attempt, and its fence: a caller that has lost the lease changes nothing, and learns that."""

import pytest

from django_delayq.core import lease_ends, queue_reads
from django_delayq.core.claim import Leased
from django_delayq.core.lease_ends import Done, Rejected
from django_delayq.core.states import State
from tests.core.rig import LEASE, T0, Rig, name_in, names_of, payload

#: Each of these takes any number of leases, and returns the indexes of those that were lost.
WAYS = ["acknowledge", "retry", "snooze", "bury", "give_back", "renew"]


# Fencing.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "how",
    [
        "claimed by another",
        "claimed again by the same",
        "cancelled after its worker was found dead",
        "moved after its worker was found dead",
        "acknowledged",
        "retrying",
        "dead",
        "given back",
        "never leased",
    ],
)
def test_lost_lease_changes_nothing_and_is_told(rig: Rig, way: str, how: str) -> None:
    rig.schedule({"a": 0}, unique="ek")
    job = rig.lease()
    rig.now = LEASE
    if how == "claimed by another":
        rig.lease(owner=b"owner--2")
    elif how == "claimed again by the same":
        rig.lease()
    elif how == "cancelled after its worker was found dead":
        rig.recover()
        rig.cancel("a")
    elif how == "moved after its worker was found dead":
        rig.recover()
        rig.reschedule("a", 500)
    elif how == "acknowledged":
        rig.acknowledge(job)
    elif how == "retrying":
        rig.retry(job)
    elif how == "dead":
        rig.bury(job)
    elif how == "given back":
        rig.give_back(job)
    else:
        job.fence = b"\0" * 8
        job.token = "x" * 22
    before = rig.client.dump(rig.keys.headers), rig.state(), rig.counters()

    assert getattr(rig, way)(job) == [0]

    after = rig.client.dump(rig.keys.headers), rig.state(), rig.counters()
    assert after == before


@pytest.mark.parametrize("way", WAYS)
def test_lease_past_its_end_is_still_the_callers_while_nobody_claimed_it(
    rig: Rig, way: str
) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = LEASE + 1

    assert getattr(rig, way)(job) == []


@pytest.mark.parametrize("way", WAYS)
def test_lost_ones_of_a_batch_are_told_by_index_and_the_others_are_settled(
    rig: Rig, way: str
) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    jobs = rig.claim().jobs
    jobs[0].fence = b"another!"
    jobs[2].token = "nobody" + "-" * 16
    call = getattr(rig, way)

    assert call(*jobs) == [0, 2]
    jobs[0].fence = jobs[1].fence

    # b and d are settled now, a is not.
    if way != "renew":
        assert call(*jobs) == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_job_twice_in_a_batch_is_settled_once(rig: Rig, way: str) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    call = getattr(rig, way)

    assert call(job, job) == [1]


@pytest.mark.parametrize("way", WAYS)
def test_five_hundred_are_settled_by_one_call(rig: Rig, way: str) -> None:
    rig.schedule({f"j{n}": 0 for n in range(500)})
    jobs = rig.claim(500).jobs
    call = getattr(rig, way)

    assert call(*jobs) == []


@pytest.mark.parametrize("way", WAYS)
def test_empty_batch_changes_nothing(rig: Rig, way: str) -> None:
    call = getattr(rig, way)

    assert call() == []
    assert rig.leftovers() == []


# Acknowledge.


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.EXPIRED, State.TAKEN])
def test_acknowledged_job_leaves_nothing_but_how_it_ended(
    rig: Rig, state: State
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.retry(rig.lease(), wait=0)

    assert rig.acknowledge(rig.lease(), state=state) == []

    assert rig.state() == {}
    assert rig.leftovers() == [rig.keys.claims]
    assert rig.inspect("a").state is state
    assert rig.counters()[state] == 1


def test_results_are_kept_for_those_that_ask_in_their_order(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    a, b, c, d = rig.claim().jobs

    lost = rig.acknowledge(
        Done(a.token, a.fence, 60_000, b"result of a"),
        Done(b.token, b.fence),
        Done(c.token, b"another!", 60_000, b"result of c"),
        Done(d.token, d.fence, 90_000, b"result of d"),
    )

    assert lost == [2]
    kept = {
        name: rig.client.lrange(rig.keys.result(job.token), 0, -1)
        for name, job in zip("abcd", (a, b, c, d), strict=True)
    }
    # With it, payload and history are kept.
    assert kept == {
        "a": [b"result of a", payload("a"), b""],
        "b": [],
        "c": [],
        "d": [b"result of d", payload("d"), b""],
    }
    assert 0 < rig.client.pttl(rig.keys.result(a.token)) <= 60_000
    assert 60_000 < rig.client.pttl(rig.keys.result(d.token)) <= 90_000


def test_newer_result_takes_the_place_of_an_older_one(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.bury(Rejected(job.token, job.fence, b"{}", 60_000, b"failed"))
    rig.replay("a")
    job = rig.lease()

    rig.acknowledge(Done(job.token, job.fence, 60_000, b"succeeded"))

    kept = rig.client.lrange(rig.keys.result(job.token), 0, -1)
    assert kept[:2] == [b"succeeded", payload("a")]


def test_memory_of_ended_jobs_is_bounded(rig: Rig) -> None:
    for n in range(40):
        rig.now = n * 1_000
        rig.schedule({f"j{n}-{m}": 0 for m in range(20)})
        rig.acknowledge(*rig.claim(20).jobs)

    # Thirty seconds' worth, of forty.
    assert rig.client.zcard(rig.keys.ended) <= 31 * 20


# Retry.


def test_retry_keeps_the_job_and_counts_an_attempt(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ek")
    for attempt in range(4):
        job = rig.lease()
        assert (job.attempts, job.kills) == (attempt, 0)
        assert (job.payload, job.start_time_ms) == (payload("a"), T0)
        assert rig.retry(job, wait=500, error=b'{"error":"%d"}' % attempt) == []
        assert rig.state() == {
            "retries": {"a": rig.now + 500},
            "unique": {"k": "a"},
        }
        assert rig.inspect("a").error == b'{"error":"%d"}' % attempt
        rig.now += 500
    assert rig.counters()["retried"] == 4


@pytest.mark.parametrize(("now", "due"), [(10, 1_010), (10.001, 1_011)])
def test_retry_is_never_early(rig: Rig, now: float, due: int) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = now
    rig.retry(job, wait=1_000)

    rig.now = due - 0.001
    assert rig.claim().jobs == []
    rig.now = due
    assert names_of(rig.claim()) == ["a"]


def test_retries_come_in_the_order_of_their_times(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0})
    a, b, c = rig.claim().jobs
    rig.retry(a, wait=30)
    rig.retry(b, wait=10)
    rig.retry(c, wait=20)
    rig.now = 30

    assert names_of(rig.claim()) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("before", "wait", "published"),
    [(None, 500, [500]), (400, 500, []), (500, 500, []), (600, 500, [500])],
)
def test_retry_that_is_the_next_event_is_published_on_our_channel(
    rig: Rig, before: int | None, wait: int, published: list[int]
) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    if before is not None:
        rig.retry(a, wait=before)
    with rig.listening(rig.keys.channel) as heard:
        rig.retry(b, wait=wait)

        assert heard() == published


def test_retry_at_a_moment_is_due_then_and_in_the_past_it_is_due_now(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    rig.now = 100.25

    rig.retry(a, wait=f"={T0 + 700}")
    rig.retry(b, wait=f"={T0 + 50}")

    assert rig.state()["retries"] == {"a": 700, "b": 101}


# Snooze.


def test_snooze_counts_nothing_and_keeps_id_start_time_and_key(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ek")
    for lap in range(3):
        job = rig.lease()
        assert (job.attempts, job.kills) == (0, 0)
        assert (job.payload, job.start_time_ms) == (payload("a"), T0)
        assert rig.snooze(job, wait=500) == []
        assert rig.state() == {
            "returned": {"a": rig.now + 500},
            "unique": {"k": "a"},
        }
        seen = rig.inspect("a")
        assert (seen.state, seen.error) == (State.SCHEDULED, b"")
        rig.now += 500
        assert rig.counters()["snoozed"] == lap + 1
    assert rig.inspect("a").state is State.DUE


def test_snooze_keeps_attempts_kills_and_the_last_error(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.retry(rig.lease(), wait=0, error=b'{"error":"e"}')
    rig.lease()
    rig.now = LEASE

    assert rig.snooze(rig.lease(), wait=500) == []

    assert rig.state() == {"retries": {"a": LEASE + 500}}
    seen = rig.inspect("a")
    assert (seen.state, seen.attempts, seen.kills) == (State.RETRYING, 1, 1)
    assert seen.error == b'{"error":"e"}'
    assert "retried" in rig.counters()
    rig.now += 500
    job = rig.lease()
    assert (job.attempts, job.kills, job.start_time_ms) == (1, 1, T0)


def test_snoozed_job_is_moved_and_cancelled_like_any_other_that_waits(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.snooze(*rig.claim().jobs, wait=500)

    assert rig.reschedule("a", 50) == ("rescheduled", 50)
    assert rig.cancel("b") == "cancelled"

    assert rig.state() == {"returned": {"a": 50}}


def test_snoozed_payload_of_somebody_else_waits_with_us(rig: Rig) -> None:
    rig.java_offer("x", 0)

    rig.snooze(rig.lease(), wait=500)

    assert rig.state() == {"returned": {"x": 500}}
    rig.now = 500
    assert name_in(rig.lease().payload) == "x"


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("before", "wait", "published"),
    [(None, 500, [500]), (400, 500, []), (500, 500, []), (600, 500, [500])],
)
def test_snooze_that_is_the_next_event_is_published_on_our_channel(
    rig: Rig, is_first: bool, before: int | None, wait: int, published: list[int]
) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    if before is not None:
        (rig.snooze if is_first else rig.retry)(a, wait=before)
    with rig.listening(rig.keys.channel) as heard:
        rig.snooze(b, wait=wait)

        assert heard() == published


# Bury.


@pytest.mark.parametrize("failed", [True, False])
def test_dead_letter_keeps_payload_error_and_counts(rig: Rig, failed: bool) -> None:
    rig.schedule({"a": 0}, unique="ek")
    rig.retry(rig.lease(), wait=0)
    rig.now = 7.9

    assert rig.bury(rig.lease(), attempt_failed=failed) == []

    assert rig.state() == {"dead": {"a": 7}}
    seen = rig.inspect("a")
    assert (seen.state, seen.score_ms, seen.attempts, seen.kills, seen.payload) == (
        State.DEAD,
        T0 + 7,
        2 if failed else 1,
        0,
        payload("a"),
    )
    assert seen.error == b'{"error":"e"}'
    assert rig.counters()["dead"] == 1


def test_failure_is_kept_as_a_result_for_those_that_ask(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs

    rig.bury(
        Rejected(a.token, a.fence, b"{}"),
        Rejected(b.token, b.fence, b"{}", 60_000, b"why"),
    )

    assert rig.client.lrange(rig.keys.result(a.token), 0, -1) == []
    kept = rig.client.lrange(rig.keys.result(b.token), 0, -1)
    assert kept == [b"why", b.payload, b"{}"]


def test_quarantined_payload_is_kept_with_its_reason(rig: Rig) -> None:
    rig.java_offer("x", 0)
    job = rig.lease()

    rig.bury(job, state=State.QUARANTINED, attempt_failed=False)

    assert rig.state() == {"quarantine": {"x": 0}}
    assert rig.counters()["quarantined"] == 1


# Renew.


def test_renewed_lease_ends_later_rounded_up_and_never_expires_in_between(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = 10_000.25

    assert rig.renew(job, lease_ms=40_000) == []

    assert rig.state()["leases"] == {"a": 50_001}
    rig.now = 50_000
    assert rig.claim().jobs == []
    rig.now = 50_001
    assert rig.lease().kills == 1


def test_renewal_brings_no_lease_back(rig: Rig) -> None:
    """After another script has ended the lease, the header may still be there."""
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.client.zrem(rig.keys.leases, job.token)

    rig.renew(job)

    assert "leases" not in rig.state()
    rig.is_checked = False  # half of it is gone


# Give back.


def test_own_jobs_that_were_not_used_wait_for_their_first_attempt_due_at_once(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 5}, unique="")
    rig.now = 100
    rig.schedule({"c": 0}, unique="ek")
    jobs = rig.claim().jobs

    assert rig.give_back(*jobs) == []

    assert rig.state() == {
        "returned": {"a": 0, "b": 5, "c": 100},
        "unique": {"k": "c"},
    }
    again = rig.claim().jobs
    assert [name_in(job.payload) for job in again] == ["a", "b", "c"]
    assert {(job.attempts, job.kills) for job in again} == {(0, 0)}


def test_foreign_payloads_go_back_to_the_head_of_the_destination_queue_in_order(
    rig: Rig,
) -> None:
    rig.client.rpush(rig.keys.queue.destination, *"abcdef")
    jobs = rig.claim(4).jobs

    assert rig.give_back(*jobs) == []

    assert rig.state() == {"destination": list("abcdef")}
    assert rig.leftovers() == sorted([rig.keys.claims, rig.keys.queue.destination])


def test_foreign_and_own_jobs_of_one_claim_go_their_ways(rig: Rig) -> None:
    rig.java_offer("x", 0)
    rig.schedule({"a": 1})
    rig.java_offer("y", 2)
    rig.now = 3

    rig.give_back(*rig.claim().jobs)

    # In the destination queue, nothing would tell them from what others put there.
    assert rig.state() == {"returned": {"x": 0, "a": 1, "y": 2}}
    assert names_of(rig.claim()) == ["x", "a", "y"]


def test_foreign_payloads_of_the_destination_queue_go_back_to_its_head(
    rig: Rig,
) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"x", b"y", b"z")

    rig.give_back(*rig.claim(2).jobs)

    assert rig.state() == {"destination": ["x", "y", "z"]}


@pytest.mark.parametrize("how", ["attempt", "kill"])
def test_foreign_payload_with_a_history_stays_with_us(rig: Rig, how: str) -> None:
    rig.java_offer("x", 0)
    job = rig.lease()
    if how == "attempt":
        rig.retry(job, wait=0)
    rig.now = LEASE

    rig.give_back(rig.lease())

    assert list(rig.state()) == ["retries"]
    again = rig.lease()
    assert again.attempts + again.kills == 1


def test_giving_back_counts_as_nothing_however_often(rig: Rig) -> None:
    rig.schedule({"a": 0})
    for _ in range(10):
        job = rig.lease()
        assert (job.attempts, job.kills, job.start_time_ms) == (0, 0, T0)
        rig.give_back(job)


def test_others_are_told_of_what_is_given_back(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = 7
    with rig.listening(rig.keys.channel) as heard:
        rig.give_back(job)

        assert heard() == [7]


@pytest.mark.parametrize("count", [1, 9, 300])
def test_many_given_back_keep_their_order(rig: Rig, count: int) -> None:
    rig.schedule({f"j{n}": n % 3 for n in range(count)})
    rig.now = 3
    before = rig.claim(500)

    rig.give_back(*before.jobs)

    after = names_of(rig.claim(500))
    assert sorted(after) == sorted(names_of(before))
    starts = [int(name[1:]) % 3 for name in after]
    assert starts == sorted(starts)


# Given back, and looked at again.


def test_jobs_of_one_start_time_keep_their_order_when_they_are_given_back(
    rig: Rig,
) -> None:
    for letter in "ezbyaxc":
        rig.schedule({letter: 5})
    rig.now = 100
    jobs = rig.claim().jobs
    order = [job.token for job in jobs]

    for _ in range(3):
        rig.give_back(*jobs)
        jobs = rig.claim().jobs
        assert [job.token for job in jobs] == order


def give_back_late(rig: Rig, job: Leased) -> None:
    call = lease_ends.give_back(rig.keys, [job], late=[job.token])
    assert rig.run(call) == []


def test_a_lease_that_ends_before_the_job_begins_counts_the_second_time(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    kills = []
    for _ in range(3):
        (job,) = rig.claim().jobs
        kills.append((job.kills, job.was_late))
        give_back_late(rig, job)

    assert kills == [(0, False), (0, True), (1, True)]


def test_a_job_that_never_begins_in_time_is_a_dead_letter_in_the_end(
    rig: Rig,
) -> None:
    rig.client.rpush(rig.keys.queue.destination, "x")
    claims = 0
    while jobs := rig.claim(max_kills=2).jobs:
        claims += 1
        give_back_late(rig, jobs[0])

    assert claims == 4
    (dead,) = rig.run(queue_reads.page(rig.keys, State.DEAD)).rows
    assert dead.kills == 3


def test_only_an_attempt_makes_a_lease_that_ended_too_early_forgotten(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    give_back_late(rig, rig.lease())
    rig.give_back(rig.lease())
    after_another_return = rig.lease()
    rig.retry(after_another_return)
    rig.now = 1_000_000

    after_an_attempt = rig.lease()

    assert (after_another_return.was_late, after_another_return.kills) == (True, 0)
    assert (after_an_attempt.was_late, after_an_attempt.kills) == (False, 0)


def test_a_claim_that_is_asked_for_again_still_says_what_was_late(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 0})
    first, _ = rig.claim(request=b"request1").jobs
    give_back_late(rig, first)

    reply = rig.claim(request=b"request2")
    repeated = rig.claim(request=b"request2")

    assert [job.was_late for job in reply.jobs] == [True]
    assert [job.was_late for job in repeated.jobs] == [True]
