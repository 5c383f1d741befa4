import pytest

from django_delayq.core.claim import Recovered
from tests.core.rig import LEASE, OWNER, Rig, names_of

OTHER = b"owner--2"


def test_leases_of_a_dead_process_are_claimable_at_once_and_count_as_kills(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    rig.claim(2, owner=OWNER)
    rig.claim(2, owner=OTHER)

    assert rig.recover(OWNER) == Recovered(2, -1)

    jobs = rig.claim(owner=OTHER).jobs
    assert [(job.payload[11:12], job.kills) for job in jobs] == [(b"a", 1), (b"b", 1)]
    assert rig.client.hkeys(rig.keys.claims) == [OTHER]


def test_recovered_jobs_are_told_on_our_channel(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.lease()
    with rig.listening(rig.keys.channel) as heard:
        rig.recover(OTHER)
        rig.recover(OWNER)

        assert heard() == [0]


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_every_lease_is_found_page_by_page_among_those_of_others(
    rig: Rig, batch: int
) -> None:
    for n in range(40):
        rig.schedule({f"j{n}": 0})
        rig.now += 1
        rig.lease(owner=OWNER if n % 3 == 0 else OTHER)

    ended, rank, pages = 0, 0, 0
    while rank >= 0:
        page = rig.recover(OWNER, first_rank=rank, batch=batch)
        assert page.ended <= batch
        ended, rank, pages = ended + page.ended, page.next_rank, pages + 1

    assert ended == 14
    assert pages <= 40 // batch + 1
    assert names_of(rig.claim(40)) == sorted(
        (f"j{n}" for n in range(0, 40, 3)), key=lambda name: name.ljust(22, "-")
    )


def test_late_word_of_a_process_thought_dead_is_refused_after_the_next_claim(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.recover()
    rig.lease(owner=OTHER)

    assert rig.acknowledge(job) == [0]


def test_process_thought_dead_may_end_its_job_while_nobody_claimed_it(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.recover()

    assert rig.acknowledge(job) == []
    assert rig.claim().jobs == []


def test_recovering_nobody_changes_nothing(rig: Rig) -> None:
    assert rig.recover() == Recovered(0, -1)
    rig.schedule({"a": 0})
    rig.lease()
    before = rig.state()

    assert rig.recover(b"nobody--") == Recovered(0, -1)

    assert rig.state() == before


def test_retries_of_a_dead_process_wait_on(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.retry(rig.lease(), wait=LEASE)

    assert rig.recover() == Recovered(0, -1)

    assert rig.state() == {"retries": {"a": LEASE}}


def test_lease_without_a_header_is_passed_over(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    job, _ = rig.claim().jobs
    rig.client.hdel(rig.keys.headers, job.token)

    assert rig.recover() == Recovered(1, -1)

    rig.is_checked = False  # half of it is gone
