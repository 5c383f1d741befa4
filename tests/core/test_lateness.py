"""From when the lateness of an attempt counts: what a claim says of each job in `Leased.held_ms`."""

from collections.abc import Callable

import pytest

from django_delayq.core import lease_ends, queue_reads
from django_delayq.core.claim import Leased, Mode
from django_delayq.core.rates import limit_text
from django_delayq.core.reasons import Kind, Reason
from django_delayq.features.limits import calls as limit_calls
from tests.core.rig import LEASE, Rig, names_of
from tests.core.test_limits import STRIPE, declare


def held(rig: Rig, **options: object) -> list[int]:
    """Claim what is due; return from when lateness counts of each job, ms after its start time."""
    return [job.held_ms for job in rig.claim(**options).jobs]


def late_ms(rig: Rig) -> int:
    return rig.run(queue_reads.counts(rig.keys)).late_ms


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED])
def test_first_attempt_is_late_from_its_start_time(any_rig: Rig, mode: Mode) -> None:
    any_rig.schedule({"a": 100, "b": 200})
    any_rig.now = 5_000
    if mode is Mode.SHARED:
        any_rig.claim(mode=mode)

    assert held(any_rig, mode=mode) == [0, 0]


def test_first_attempt_that_claim_few_leases_is_late_from_its_start_time(
    rig: Rig,
) -> None:
    rig.insertion_list = False
    rig.schedule({"first": 0})
    rig.acknowledge(rig.lease())
    rig.schedule({"a": 100})
    rig.now = 600

    claimed = rig.claim_few()

    assert claimed is not None
    assert [job.held_ms for job in claimed.jobs] == [0]


@pytest.mark.parametrize("end", [Rig.retry, Rig.snooze])
def test_retry_and_snooze_are_late_from_the_moment_that_they_asked_for(
    rig: Rig, end: Callable[..., object]
) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = 70
    end(rig, job, wait=1_000)
    rig.now = 9_000

    assert held(rig) == [1_070]


def test_rate_of_a_task_holds_until_the_moment_that_it_gives(rig: Rig) -> None:
    declare(rig, rate="10/s burst 1")
    rig.schedule({"a": 0, "b": 0}, limit=STRIPE)
    assert held(rig) == [0]
    rig.now = 100
    rig.is_served = False
    rig.now = 150

    assert held(rig) == [100]


def test_concurrency_of_a_task_holds_until_the_slot_is_free(rig: Rig) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0, "b": 0, "c": 0}, limit=STRIPE)
    first = rig.lease()
    assert rig.claim().jobs == []
    rig.now = 700
    rig.acknowledge(first)
    rig.now = 750

    assert held(rig) == [700]


def test_raised_limit_of_a_task_holds_until_it_was_raised_and_keeps_the_order(
    rig: Rig,
) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"z": 0}, limit=STRIPE)
    rig.schedule({"c": 1, "a": 2, "b": 3}, limit=STRIPE)
    rig.now = 10
    rig.claim()
    declare(rig, concurrency=10)
    rig.now = 400
    rig.run(limit_calls.loosen(rig.keys))

    claimed = rig.claim()

    assert names_of(claimed) == ["c", "a", "b"]
    assert [job.held_ms for job in claimed.jobs] == [399, 398, 397]


def test_pause_of_a_task_holds_until_its_jobs_are_released(rig: Rig) -> None:
    rig.schedule({"b": 0, "a": 50})
    rig.now = 60
    rig.pause("shop.mail")
    rig.hold(*rig.claim().jobs, task=Reason(Kind.PAUSED, "shop.mail"), hold_ms=None)
    rig.now = 800
    rig.resume("shop.mail")
    rig.release(Reason(Kind.PAUSED, "shop.mail"))

    claimed = rig.claim()

    assert names_of(claimed) == ["b", "a"]
    assert [job.held_ms for job in claimed.jobs] == [800, 750]


def test_pause_of_a_queue_holds_what_was_due_until_it_is_resumed(rig: Rig) -> None:
    rig.pause()
    rig.schedule({"a": 0, "b": 900})
    rig.now = 600
    assert rig.claim().jobs == []
    rig.resume()
    rig.now = 1_000

    # A worker that has not seen the pause has to know as well.
    assert rig.claim_few() is None
    assert late_ms(rig) == 400
    assert held(rig) == [600, 0]


def test_pause_of_a_queue_holds_until_its_time_was_over(rig: Rig) -> None:
    rig.pause(until="+500")
    rig.schedule({"a": 0})
    rig.schedule({"b": 600})
    rig.now = 1_000

    assert held(rig, limit=1) == [500]
    assert held(rig) == [0]


def test_pause_that_ended_by_a_clock_that_was_ahead_holds_nothing(rig: Rig) -> None:
    rig.now = 1_000_000
    rig.pause()
    rig.resume()
    rig.now = 0
    rig.insertion_list = False
    rig.schedule({"a": 100})
    rig.now = 700

    assert late_ms(rig) == 600
    assert held(rig) == [0]
    rig.schedule({"b": 0})
    assert rig.claim_few() is not None


def test_concurrency_of_a_queue_holds_until_a_claim_finds_room(rig: Rig) -> None:
    text = limit_text(concurrency=1)
    rig.schedule({"a": 0, "b": 0})
    first = rig.claim(limit_text=text).jobs
    rig.now = 5_000
    assert rig.claim(limit_text=text).jobs == []
    assert late_ms(rig) == 0
    rig.now = 9_000
    rig.acknowledge(*first)

    assert held(rig, limit_text=text) == [9_000]
    # What comes later is late from its own start time.
    rig.schedule({"c": 1_000})
    rig.now = 10_500
    assert held(rig, limit_text=text) == []


def test_rate_of_a_queue_holds_until_a_claim_finds_a_turn(rig: Rig) -> None:
    text = limit_text(rate="10/s burst 1")
    rig.schedule({"a": 0, "b": 0})
    assert held(rig, limit_text=text) == [0]
    rig.now = 120

    assert held(rig, limit_text=text) == [120]


def test_queue_whose_limit_has_gone_is_late_again(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.claim(limit_text=limit_text(concurrency=1))
    rig.now = 1_000
    assert held(rig) == [1_000]
    rig.schedule({"c": 0})
    rig.now = 3_000

    assert held(rig) == [0]


def test_job_that_was_given_back_before_it_began_is_late_from_its_start_time(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.give_back(*rig.claim().jobs)
    rig.now = 1_000

    assert held(rig) == [0, 0]


def test_job_that_its_worker_stopped_is_late_from_when_it_was_given_back(
    rig: Rig,
) -> None:
    rig.schedule({"b": 0, "a": 0})
    jobs: list[Leased] = rig.claim().jobs
    rig.now = 20_000
    begun = {job.token for job in jobs}
    call = lease_ends.give_back(rig.keys, jobs, begun=begun)
    assert rig.run(call) == []
    claimed = rig.claim()

    assert names_of(claimed) == ["b", "a"]
    assert [job.held_ms for job in claimed.jobs] == [20_000, 20_000]


def test_job_of_an_expired_lease_is_late_from_the_end_of_the_lease(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.lease()
    rig.now = LEASE + 2_000

    assert held(rig) == [LEASE]


def test_job_of_a_process_that_is_known_to_be_dead_is_not_late(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.lease()
    rig.now = 2_000
    rig.recover()

    assert held(rig) == [2_000]


def test_job_with_a_priority_is_late_from_the_moment_of_its_retry(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0}, priority=5)
    rig.retry(*rig.claim().jobs, wait=500)
    rig.now = 900

    assert held(rig) == [500, 500]
