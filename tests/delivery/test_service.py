"""Leases measure workers, not the server: gaps in which nobody was served, and steps of the clock."""

import pytest

from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import State
from tests.delivery.bench import LEASE, Bench, names_of

INTERVAL = LEASE / 3
#: For so long after a gap, what ended in it is spared.
SPARED = LEASE * 5 / 12
OTHER = b"owner--2"


@pytest.fixture
def away(bench: Bench) -> Bench:
    """A queue whose one job is leased, and renewed at 10 s; then the server is away until 60 s."""
    bench.is_served = False
    bench.schedule({"a": 0})
    bench.now = INTERVAL
    bench.held = bench.lease()  # type: ignore[attr-defined]
    bench.now = 2 * INTERVAL
    assert bench.renew(bench.held) == []  # type: ignore[attr-defined]
    bench.now = 60_000
    return bench


def wait_ms(claimed) -> float:
    return claimed.wait_us / 1000


@pytest.mark.parametrize("mode", Mode)
def test_whoever_comes_first_after_a_gap_gets_no_lease_that_ended_in_it(away, mode):
    claimed = away.claim(owner=OTHER, mode=mode)

    assert names_of(claimed) == []
    assert wait_ms(claimed) == SPARED
    assert away.renew(away.held) == []
    away.now += SPARED
    assert names_of(away.claim(owner=OTHER, mode=mode)) == []
    assert away.acknowledge(away.held) == []


def test_what_ended_in_the_gap_is_settled_and_does_not_run_again(away):
    away.claim(owner=OTHER)

    assert away.acknowledge(away.held) == []

    away.now += 10 * LEASE
    assert names_of(away.claim(owner=OTHER)) == []


def test_lease_of_who_does_not_come_back_is_over_after_one_interval_and_counts_no_kill(
    away,
):
    away.claim(owner=OTHER)
    away.now += SPARED - 1
    assert names_of(away.claim(owner=OTHER)) == []
    away.now += 1

    (job,) = away.claim(owner=OTHER, max_kills=0).jobs

    assert job.kills == 0
    assert away.renew(away.held) == [0]


def test_gap_spares_a_job_once_until_an_attempt_of_it_ends(away):
    def lose_in_a_gap():
        away.now += 2 * LEASE
        assert names_of(away.claim(owner=OTHER)) == []
        away.now += SPARED
        return away.lease(owner=OTHER)

    assert lose_in_a_gap().kills == 0
    assert lose_in_a_gap().kills == 1
    job = lose_in_a_gap()
    assert job.kills == 2
    assert away.inspect("a").kills == 2
    away.retry(job, wait=0)
    assert away.lease(owner=OTHER).kills == 2
    assert lose_in_a_gap().kills == 2


def test_suspect_that_is_put_off_was_spared_all_the_same(away):
    """Else a job that takes its whole machine down each time would be spared each time."""
    away.recover()
    away.lease(owner=OTHER)
    away.now += 2 * LEASE
    assert names_of(away.claim(owner=OTHER)) == []
    away.now += SPARED
    rule = {"owner": OTHER, "safe_kills": 0, "put_off_ms": 500}
    for _ in range(2):
        assert away.claim(takes_suspect=False, **rule).put_off == 1
        away.now += 500
    assert away.lease(**rule).kills == 1

    away.now += 2 * LEASE
    assert names_of(away.claim(owner=OTHER)) == []
    away.now += SPARED

    assert away.lease(**rule).kills == 2


def test_lease_that_had_ended_before_the_gap_is_over_at_once(bench):
    bench.is_served = False
    bench.schedule({"a": 0})
    bench.lease()
    bench.now = 20_000
    bench.schedule({"b": 0})
    held = bench.lease()
    for _ in range(3):
        bench.now += INTERVAL
        bench.renew(held)
    bench.now += LEASE

    (job,) = bench.claim(owner=OTHER).jobs

    assert names_of(bench.claim(owner=OTHER)) == []
    assert job.token.rstrip("-") == "a"
    assert job.kills == 1


def test_process_that_is_known_to_be_dead_is_not_waited_for(away):
    away.recover()

    assert away.lease(owner=OTHER).kills == 1


@pytest.mark.parametrize("gap", [0, INTERVAL, SPARED])
def test_no_gap_begins_as_long_as_renewals_may_come(bench, gap):
    bench.is_served = False
    bench.schedule({"a": 0})
    bench.lease()
    while bench.now < LEASE - SPARED:
        bench.now += gap or 1_000
        bench.claim(owner=OTHER)
    bench.now = LEASE

    assert bench.lease(owner=OTHER).kills == 1


def test_gap_within_the_time_after_a_gap_goes_on_sparing_what_ended_in_the_first(away):
    for _ in range(2):
        assert names_of(away.claim(owner=OTHER)) == []
        away.now += SPARED + 1_000

    assert names_of(away.claim(owner=OTHER)) == []
    assert away.renew(away.held) == []


def test_lease_of_a_dead_worker_is_free_at_last_where_each_look_ends_a_gap(away):
    looks = 0
    while not (got := names_of(away.claim(owner=OTHER))):
        looks += 1
        away.now += 10 * SPARED
        assert looks <= 3

    assert got == ["a"]


def test_lease_of_a_dead_worker_is_free_where_renewals_are_slow_for_a_shorter_lease(
    bench,
):
    bench.is_served = False
    bench.schedule({"dead": 0, "alive": 0} | {f"job{i}": 0 for i in range(9)})
    _, alive = bench.claim(2).jobs
    taken = []

    # Every worker is busy, and somebody with a shorter lease comes now and then.
    while "dead" not in taken and bench.now < 3 * LEASE:
        bench.now += LEASE // 6
        claimed = bench.claim(1, owner=OTHER, lease_ms=LEASE // 3)
        taken += names_of(claimed)
        bench.acknowledge(*claimed.jobs)
        bench.now += LEASE // 6
        assert bench.renew(alive) == []

    assert taken[-1] == "dead"


def test_step_forward_of_the_clock_takes_no_lease_away(bench):
    bench.schedule({"a": 0})
    held = bench.lease()
    bench.is_served = False
    bench.now += 10 * LEASE

    assert names_of(bench.claim(owner=OTHER)) == []
    assert bench.renew(held) == []


def test_step_back_of_the_clock_cuts_leases_to_their_length(bench):
    names = [f"j{n}" for n in range(1_203)]
    bench.schedule(dict.fromkeys(names, 0))
    for _ in range(3):
        bench.claim(500)
    held = bench.claim(500).jobs
    assert held == []
    bench.now = -3_600_000

    for _ in range(4):
        claimed = bench.claim(500, owner=OTHER)

    assert claimed.jobs == []
    assert set(bench.state()["leases"].values()) == {-3_600_000 + LEASE}
    bench.now += LEASE
    got = [name for _ in range(3) for name in names_of(bench.claim(500, owner=OTHER))]
    assert sorted(got) == sorted(names)


def test_step_back_that_a_renewal_sees_first_cuts_the_others(bench):
    bench.schedule({"a": 0, "b": 0})
    held, dead = bench.claim().jobs
    bench.now = -3_600_000

    assert bench.renew(held) == []

    bench.now += LEASE
    assert bench.claim(owner=OTHER).jobs[-1].token == dead.token


def test_leases_of_other_lengths_are_waited_for_and_cut_to_their_own(bench):
    bench.is_served = False
    bench.schedule({"long": 0, "short": 0})
    long, short = bench.claim(1).jobs + bench.claim(1, lease_ms=3_000).jobs
    bench.now = 1_000
    assert bench.renew(short, lease_ms=3_000) == []

    # Of the short lease's length, and much less than the other's.
    bench.now += 4_000
    assert names_of(bench.claim(owner=OTHER)) == []
    assert bench.renew(short, lease_ms=3_000) == []
    bench.now = -3_600_000
    bench.claim(owner=OTHER, lease_ms=3_000)
    assert bench.state()["leases"]["long"] == -3_600_000 + LEASE
    assert bench.renew(long) == []


def test_queue_without_leases_has_no_gap_and_writes_nothing(bench):
    bench.is_served = False
    bench.schedule({"a": 0, "b": 2_000_000})
    bench.acknowledge(bench.lease())
    before = bench.client.hgetall(bench.keys.control)

    bench.now = 1_000_000
    assert wait_ms(bench.claim(owner=OTHER)) == 1_000_000
    assert bench.client.hgetall(bench.keys.control) == before
    bench.now = 2_000_000
    bench.lease()
    bench.is_served = True
    bench.now += LEASE
    assert bench.lease(owner=OTHER).kills == 1


def test_server_that_has_forgotten_when_it_served_spares_nothing_and_cuts_what_is_too_long(
    bench,
):
    bench.schedule({"a": 0, "b": 0})
    bench.claim()
    bench.client.delete(bench.keys.control)
    bench.client.zincrby(bench.keys.leases, 3_600_000, "a".ljust(22, "-"))

    bench.claim(owner=OTHER)

    assert bench.state()["leases"] == {"a": LEASE, "b": LEASE}
    bench.now = LEASE
    assert names_of(bench.claim(owner=OTHER)) == ["a", "b"]


def test_record_that_cannot_be_read_is_written_anew(bench):
    bench.schedule({"a": 0})
    bench.client.hset(bench.keys.control, "service", "x")

    held = bench.lease()

    assert bench.renew(held) == []
    assert len(bench.client.hget(bench.keys.control, "service")) == 64


def test_gap_says_nothing_of_who_may_cancel(away):
    assert away.cancel("a") is State.RUNNING
