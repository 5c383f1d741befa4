"""Leases measure workers, not the server: gaps in which nobody was served, and steps of the server's clock."""

import pytest

from django_delayq.core.claim import Mode
from django_delayq.core.states import State
from tests.core.rig import LEASE, Rig, names_of

INTERVAL = LEASE / 3
#: For so long after a gap, leases that ended in it are spared.
SPARED = LEASE * 5 / 12
OTHER = b"owner--2"


@pytest.fixture
def away(rig: Rig) -> Rig:
    """A queue with one leased job, renewed at 10 s; then the server is away until 60 s."""
    rig.is_served = False
    rig.schedule({"a": 0})
    rig.now = INTERVAL
    rig.held = rig.lease()  # type: ignore[attr-defined]
    rig.now = 2 * INTERVAL
    assert rig.renew(rig.held) == []  # type: ignore[attr-defined]
    rig.now = 60_000
    return rig


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
    """Otherwise a job that takes its whole machine down each time would be spared each time."""
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


def test_lease_that_had_ended_before_the_gap_is_over_at_once(rig):
    rig.is_served = False
    rig.schedule({"a": 0})
    rig.lease()
    rig.now = 20_000
    rig.schedule({"b": 0})
    held = rig.lease()
    for _ in range(3):
        rig.now += INTERVAL
        rig.renew(held)
    rig.now += LEASE

    (job,) = rig.claim(owner=OTHER).jobs

    assert names_of(rig.claim(owner=OTHER)) == []
    assert job.token.rstrip("-") == "a"
    assert job.kills == 1


def test_process_that_is_known_to_be_dead_is_not_waited_for(away):
    away.recover()

    assert away.lease(owner=OTHER).kills == 1


@pytest.mark.parametrize("gap", [0, INTERVAL, SPARED])
def test_no_gap_begins_as_long_as_renewals_may_come(rig, gap):
    rig.is_served = False
    rig.schedule({"a": 0})
    rig.lease()
    while rig.now < LEASE - SPARED:
        rig.now += gap or 1_000
        rig.claim(owner=OTHER)
    rig.now = LEASE

    assert rig.lease(owner=OTHER).kills == 1


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
    rig,
):
    rig.is_served = False
    rig.schedule({"dead": 0, "alive": 0} | {f"job{i}": 0 for i in range(9)})
    _, alive = rig.claim(2).jobs
    taken = []

    # Every worker is busy, and somebody with a shorter lease comes now and then.
    while "dead" not in taken and rig.now < 3 * LEASE:
        rig.now += LEASE // 6
        claimed = rig.claim(1, owner=OTHER, lease_ms=LEASE // 3)
        taken += names_of(claimed)
        rig.acknowledge(*claimed.jobs)
        rig.now += LEASE // 6
        assert rig.renew(alive) == []

    assert taken[-1] == "dead"


def test_step_forward_of_the_clock_takes_no_lease_away(rig):
    rig.schedule({"a": 0})
    held = rig.lease()
    rig.is_served = False
    rig.now += 10 * LEASE

    assert names_of(rig.claim(owner=OTHER)) == []
    assert rig.renew(held) == []


def test_step_back_of_the_clock_cuts_leases_to_their_length(rig):
    names = [f"j{n}" for n in range(1_203)]
    rig.schedule(dict.fromkeys(names, 0))
    for _ in range(3):
        rig.claim(500)
    held = rig.claim(500).jobs
    assert held == []
    rig.now = -3_600_000

    for _ in range(4):
        claimed = rig.claim(500, owner=OTHER)

    assert claimed.jobs == []
    assert set(rig.state()["leases"].values()) == {-3_600_000 + LEASE}
    rig.now += LEASE
    got = [name for _ in range(3) for name in names_of(rig.claim(500, owner=OTHER))]
    assert sorted(got) == sorted(names)


def test_step_back_that_a_renewal_sees_first_cuts_the_others(rig):
    rig.schedule({"a": 0, "b": 0})
    held, dead = rig.claim().jobs
    rig.now = -3_600_000

    assert rig.renew(held) == []

    rig.now += LEASE
    assert rig.claim(owner=OTHER).jobs[-1].token == dead.token


def test_leases_of_other_lengths_are_waited_for_and_cut_to_their_own(rig):
    rig.is_served = False
    rig.schedule({"long": 0, "short": 0})
    long, short = rig.claim(1).jobs + rig.claim(1, lease_ms=3_000).jobs
    rig.now = 1_000
    assert rig.renew(short, lease_ms=3_000) == []

    # As long as the short lease, and much shorter than the other.
    rig.now += 4_000
    assert names_of(rig.claim(owner=OTHER)) == []
    assert rig.renew(short, lease_ms=3_000) == []
    rig.now = -3_600_000
    rig.claim(owner=OTHER, lease_ms=3_000)
    assert rig.state()["leases"]["long"] == -3_600_000 + LEASE
    assert rig.renew(long) == []


def test_queue_without_leases_has_no_gap_and_writes_nothing(rig):
    rig.is_served = False
    rig.schedule({"a": 0, "b": 2_000_000})
    rig.acknowledge(rig.lease())
    before = rig.client.hgetall(rig.keys.control)

    rig.now = 1_000_000
    assert wait_ms(rig.claim(owner=OTHER)) == 1_000_000
    assert rig.client.hgetall(rig.keys.control) == before
    rig.now = 2_000_000
    rig.lease()
    rig.is_served = True
    rig.now += LEASE
    assert rig.lease(owner=OTHER).kills == 1


def test_server_that_has_forgotten_when_it_served_spares_nothing_and_cuts_what_is_too_long(
    rig,
):
    rig.schedule({"a": 0, "b": 0})
    rig.claim()
    rig.client.delete(rig.keys.control)
    rig.client.zincrby(rig.keys.leases, 3_600_000, "a".ljust(22, "-"))

    rig.claim(owner=OTHER)

    assert rig.state()["leases"] == {"a": LEASE, "b": LEASE}
    rig.now = LEASE
    assert names_of(rig.claim(owner=OTHER)) == ["a", "b"]


def test_record_that_cannot_be_read_is_written_anew(rig):
    rig.schedule({"a": 0})
    rig.client.hset(rig.keys.control, "service", "x")

    held = rig.lease()

    assert rig.renew(held) == []
    assert len(rig.client.hget(rig.keys.control, "service")) == 64


def test_gap_says_nothing_of_who_may_cancel(away):
    assert away.cancel("a") is State.RUNNING
