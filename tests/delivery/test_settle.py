"""The end of an attempt, and the fence before it: whoever lost the lease changes nothing and is told."""

import pytest

from django_delayq.delivery import looking, settling
from django_delayq.delivery.claiming import Leased
from django_delayq.delivery.settling import Done, Rejected
from django_delayq.delivery.states import State
from tests.delivery.bench import LEASE, T0, Bench, name_in, names_of, payload

#: Each can be called with any number of leases, and returns the indexes of those that were lost.
WAYS = ["acknowledge", "retry", "bury", "give_back", "renew"]


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
def test_lost_lease_changes_nothing_and_is_told(
    bench: Bench, way: str, how: str
) -> None:
    bench.schedule({"a": 0}, unique="ek")
    job = bench.lease()
    bench.now = LEASE
    if how == "claimed by another":
        bench.lease(owner=b"owner--2")
    elif how == "claimed again by the same":
        bench.lease()
    elif how == "cancelled after its worker was found dead":
        bench.recover()
        bench.cancel("a")
    elif how == "moved after its worker was found dead":
        bench.recover()
        bench.reschedule("a", 500)
    elif how == "acknowledged":
        bench.acknowledge(job)
    elif how == "retrying":
        bench.retry(job)
    elif how == "dead":
        bench.bury(job)
    elif how == "given back":
        bench.give_back(job)
    else:
        job.fence = b"\0" * 8
        job.token = "x" * 22
    before = bench.client.dump(bench.keys.headers), bench.state(), bench.counters()

    assert getattr(bench, way)(job) == [0]

    after = bench.client.dump(bench.keys.headers), bench.state(), bench.counters()
    assert after == before


@pytest.mark.parametrize("way", WAYS)
def test_lease_past_its_end_is_still_the_callers_while_nobody_claimed_it(
    bench: Bench, way: str
) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.now = LEASE + 1

    assert getattr(bench, way)(job) == []


@pytest.mark.parametrize("way", WAYS)
def test_lost_ones_of_a_batch_are_told_by_index_and_the_others_are_settled(
    bench: Bench, way: str
) -> None:
    bench.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    jobs = bench.claim().jobs
    jobs[0].fence = b"another!"
    jobs[2].token = "nobody" + "-" * 16
    call = getattr(bench, way)

    assert call(*jobs) == [0, 2]
    jobs[0].fence = jobs[1].fence

    # b and d are settled now, a is not.
    if way != "renew":
        assert call(*jobs) == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_job_twice_in_a_batch_is_settled_once(bench: Bench, way: str) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    call = getattr(bench, way)

    assert call(job, job) == [1]


@pytest.mark.parametrize("way", WAYS)
def test_five_hundred_are_settled_by_one_call(bench: Bench, way: str) -> None:
    bench.schedule({f"j{n}": 0 for n in range(500)})
    jobs = bench.claim(500).jobs
    call = getattr(bench, way)

    assert call(*jobs) == []


@pytest.mark.parametrize("way", WAYS)
def test_empty_batch_changes_nothing(bench: Bench, way: str) -> None:
    call = getattr(bench, way)

    assert call() == []
    assert bench.leftovers() == []


# Acknowledge.


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.EXPIRED, State.TAKEN])
def test_acknowledged_job_leaves_nothing_but_how_it_ended(
    bench: Bench, state: State
) -> None:
    bench.schedule({"a": 0}, unique="ek")
    bench.retry(bench.lease(), wait=0)

    assert bench.acknowledge(bench.lease(), state=state) == []

    assert bench.state() == {}
    assert bench.leftovers() == [bench.keys.claims]
    assert bench.inspect("a").state is state
    assert bench.counters()[state] == 1


def test_results_are_kept_for_those_that_ask_in_their_order(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    a, b, c, d = bench.claim().jobs

    lost = bench.acknowledge(
        Done(a.token, a.fence, 60_000, b"result of a"),
        Done(b.token, b.fence),
        Done(c.token, b"another!", 60_000, b"result of c"),
        Done(d.token, d.fence, 90_000, b"result of d"),
    )

    assert lost == [2]
    kept = {
        name: bench.client.lrange(bench.keys.result(job.token), 0, -1)
        for name, job in zip("abcd", (a, b, c, d), strict=True)
    }
    assert kept == {"a": [b"result of a"], "b": [], "c": [], "d": [b"result of d"]}
    assert 0 < bench.client.pttl(bench.keys.result(a.token)) <= 60_000
    assert 60_000 < bench.client.pttl(bench.keys.result(d.token)) <= 90_000


def test_newer_result_takes_the_place_of_an_older_one(bench: Bench) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.bury(Rejected(job.token, job.fence, b"{}", 60_000, b"failed"))
    bench.replay("a")
    job = bench.lease()

    bench.acknowledge(Done(job.token, job.fence, 60_000, b"succeeded"))

    assert bench.client.lrange(bench.keys.result(job.token), 0, -1) == [b"succeeded"]


def test_memory_of_ended_jobs_is_bounded(bench: Bench) -> None:
    for n in range(40):
        bench.now = n * 1_000
        bench.schedule({f"j{n}-{m}": 0 for m in range(20)})
        bench.acknowledge(*bench.claim(20).jobs)

    # Thirty seconds' worth, of forty.
    assert bench.client.zcard(bench.keys.ended) <= 31 * 20


# Retry.


def test_retry_keeps_the_job_and_counts_an_attempt(bench: Bench) -> None:
    bench.schedule({"a": 0}, unique="ek")
    for attempt in range(4):
        job = bench.lease()
        assert (job.attempts, job.kills) == (attempt, 0)
        assert (job.payload, job.start_time_ms) == (payload("a"), T0)
        assert bench.retry(job, wait=500, error=b'{"error":"%d"}' % attempt) == []
        assert bench.state() == {
            "retries": {"a": bench.now + 500},
            "unique": {"k": "a"},
        }
        assert bench.inspect("a").error == b'{"error":"%d"}' % attempt
        bench.now += 500
    assert bench.counters()["retried"] == 4


@pytest.mark.parametrize(("now", "due"), [(10, 1_010), (10.001, 1_011)])
def test_retry_is_never_early(bench: Bench, now: float, due: int) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.now = now
    bench.retry(job, wait=1_000)

    bench.now = due - 0.001
    assert bench.claim().jobs == []
    bench.now = due
    assert names_of(bench.claim()) == ["a"]


def test_retries_come_in_the_order_of_their_times(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 0, "c": 0})
    a, b, c = bench.claim().jobs
    bench.retry(a, wait=30)
    bench.retry(b, wait=10)
    bench.retry(c, wait=20)
    bench.now = 30

    assert names_of(bench.claim()) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("before", "wait", "published"),
    [(None, 500, [500]), (400, 500, []), (500, 500, []), (600, 500, [500])],
)
def test_retry_that_is_the_next_event_is_published_on_our_channel(
    bench: Bench, before: int | None, wait: int, published: list[int]
) -> None:
    bench.schedule({"a": 0, "b": 0})
    a, b = bench.claim().jobs
    if before is not None:
        bench.retry(a, wait=before)
    with bench.listening(bench.keys.channel) as heard:
        bench.retry(b, wait=wait)

        assert heard() == published


# Bury.


@pytest.mark.parametrize("failed", [True, False])
def test_dead_letter_keeps_payload_error_and_counts(bench: Bench, failed: bool) -> None:
    bench.schedule({"a": 0}, unique="ek")
    bench.retry(bench.lease(), wait=0)
    bench.now = 7.9

    assert bench.bury(bench.lease(), attempt_failed=failed) == []

    assert bench.state() == {"dead": {"a": 7}}
    seen = bench.inspect("a")
    assert (seen.state, seen.score_ms, seen.attempts, seen.kills, seen.payload) == (
        State.DEAD,
        T0 + 7,
        2 if failed else 1,
        0,
        payload("a"),
    )
    assert seen.error == b'{"error":"e"}'
    assert bench.counters()["dead"] == 1


def test_failure_is_kept_as_a_result_for_those_that_ask(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 0})
    a, b = bench.claim().jobs

    bench.bury(
        Rejected(a.token, a.fence, b"{}"),
        Rejected(b.token, b.fence, b"{}", 60_000, b"why"),
    )

    assert bench.client.lrange(bench.keys.result(a.token), 0, -1) == []
    assert bench.client.lrange(bench.keys.result(b.token), 0, -1) == [b"why"]


def test_quarantined_payload_is_kept_with_its_reason(bench: Bench) -> None:
    bench.java_offer("x", 0)
    job = bench.lease()

    bench.bury(job, state=State.QUARANTINED, attempt_failed=False)

    assert bench.state() == {"quarantine": {"x": 0}}
    assert bench.counters()["quarantined"] == 1


# Renew.


def test_renewed_lease_ends_later_rounded_up_and_never_expires_in_between(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.now = 10_000.25

    assert bench.renew(job, lease_ms=40_000) == []

    assert bench.state()["leases"] == {"a": 50_001}
    bench.now = 50_000
    assert bench.claim().jobs == []
    bench.now = 50_001
    assert bench.lease().kills == 1


def test_renewal_brings_no_lease_back(bench: Bench) -> None:
    """Its header may be there still while another script has ended the lease."""
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.client.zrem(bench.keys.leases, job.token)

    bench.renew(job)

    assert "leases" not in bench.state()
    bench.is_checked = False  # half of it is gone


# Give back.


def test_own_jobs_that_were_not_used_wait_for_their_first_attempt_due_at_once(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0, "b": 5}, unique="")
    bench.now = 100
    bench.schedule({"c": 0}, unique="ek")
    jobs = bench.claim().jobs

    assert bench.give_back(*jobs) == []

    assert bench.state() == {
        "returned": {"a": 0, "b": 5, "c": 100},
        "unique": {"k": "c"},
    }
    again = bench.claim().jobs
    assert [name_in(job.payload) for job in again] == ["a", "b", "c"]
    assert {(job.attempts, job.kills) for job in again} == {(0, 0)}


def test_foreign_payloads_go_back_to_the_head_of_the_destination_queue_in_order(
    bench: Bench,
) -> None:
    bench.client.rpush(bench.keys.queue.destination, *"abcdef")
    jobs = bench.claim(4).jobs

    assert bench.give_back(*jobs) == []

    assert bench.state() == {"destination": list("abcdef")}
    assert bench.leftovers() == sorted(
        [bench.keys.claims, bench.keys.queue.destination]
    )


def test_foreign_and_own_jobs_of_one_claim_go_their_ways(bench: Bench) -> None:
    bench.java_offer("x", 0)
    bench.schedule({"a": 1})
    bench.java_offer("y", 2)
    bench.now = 3

    bench.give_back(*bench.claim().jobs)

    # In the destination queue nothing would tell them from what others put there.
    assert bench.state() == {"returned": {"x": 0, "a": 1, "y": 2}}
    assert names_of(bench.claim()) == ["x", "a", "y"]


def test_foreign_payloads_of_the_destination_queue_go_back_to_its_head(
    bench: Bench,
) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"x", b"y", b"z")

    bench.give_back(*bench.claim(2).jobs)

    assert bench.state() == {"destination": ["x", "y", "z"]}


@pytest.mark.parametrize("how", ["attempt", "kill"])
def test_foreign_payload_with_a_history_stays_with_us(bench: Bench, how: str) -> None:
    bench.java_offer("x", 0)
    job = bench.lease()
    if how == "attempt":
        bench.retry(job, wait=0)
    bench.now = LEASE

    bench.give_back(bench.lease())

    assert list(bench.state()) == ["retries"]
    again = bench.lease()
    assert again.attempts + again.kills == 1


def test_giving_back_counts_as_nothing_however_often(bench: Bench) -> None:
    bench.schedule({"a": 0})
    for _ in range(10):
        job = bench.lease()
        assert (job.attempts, job.kills, job.start_time_ms) == (0, 0, T0)
        bench.give_back(job)


def test_others_are_told_of_what_is_given_back(bench: Bench) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.now = 7
    with bench.listening(bench.keys.channel) as heard:
        bench.give_back(job)

        assert heard() == [7]


@pytest.mark.parametrize("count", [1, 9, 300])
def test_many_given_back_keep_their_order(bench: Bench, count: int) -> None:
    bench.schedule({f"j{n}": n % 3 for n in range(count)})
    bench.now = 3
    before = bench.claim(500)

    bench.give_back(*before.jobs)

    after = names_of(bench.claim(500))
    assert sorted(after) == sorted(names_of(before))
    starts = [int(name[1:]) % 3 for name in after]
    assert starts == sorted(starts)


# Given back, and looked at again.


def test_jobs_of_one_start_time_keep_their_order_when_they_are_given_back(
    bench: Bench,
) -> None:
    for letter in "ezbyaxc":
        bench.schedule({letter: 5})
    bench.now = 100
    jobs = bench.claim().jobs
    order = [job.token for job in jobs]

    for _ in range(3):
        bench.give_back(*jobs)
        jobs = bench.claim().jobs
        assert [job.token for job in jobs] == order


def give_back_late(bench: Bench, job: Leased) -> None:
    call = settling.give_back(bench.keys, [job], late=[job.token], now_us=bench.now_us)
    assert bench.run(call) == []


def test_a_lease_that_ends_before_the_job_begins_counts_the_second_time(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    kills = []
    for _ in range(3):
        (job,) = bench.claim().jobs
        kills.append((job.kills, job.was_late))
        give_back_late(bench, job)

    assert kills == [(0, False), (0, True), (1, True)]


def test_a_job_that_never_begins_in_time_is_a_dead_letter_in_the_end(
    bench: Bench,
) -> None:
    bench.client.rpush(bench.keys.queue.destination, "x")
    claims = 0
    while jobs := bench.claim(max_kills=2).jobs:
        claims += 1
        give_back_late(bench, jobs[0])

    assert claims == 4
    (dead,) = bench.run(looking.page(bench.keys, State.DEAD)).rows
    assert dead.kills == 3


def test_only_an_attempt_makes_a_lease_that_ended_too_early_forgotten(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    give_back_late(bench, bench.lease())
    bench.give_back(bench.lease())
    after_another_return = bench.lease()
    bench.retry(after_another_return)
    bench.now = 1_000_000

    after_an_attempt = bench.lease()

    assert (after_another_return.was_late, after_another_return.kills) == (True, 0)
    assert (after_an_attempt.was_late, after_an_attempt.kills) == (False, 0)


def test_a_claim_that_is_asked_for_again_still_says_what_was_late(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0, "b": 0})
    first, _ = bench.claim(request=b"request1").jobs
    give_back_late(bench, first)

    reply = bench.claim(request=b"request2")
    repeated = bench.claim(request=b"request2")

    assert [job.was_late for job in reply.jobs] == [True]
    assert [job.was_late for job in repeated.jobs] == [True]
