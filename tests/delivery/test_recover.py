import pytest

from django_delayq.delivery.claiming import Recovered
from tests.delivery.bench import LEASE, OWNER, Bench, names_of

OTHER = b"owner--2"


def test_leases_of_a_dead_process_are_claimable_at_once_and_count_as_kills(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    bench.claim(2, owner=OWNER)
    bench.claim(2, owner=OTHER)

    assert bench.recover(OWNER) == Recovered(2, -1)

    jobs = bench.claim(owner=OTHER).jobs
    assert [(job.payload[11:12], job.kills) for job in jobs] == [(b"a", 1), (b"b", 1)]
    assert bench.client.hkeys(bench.keys.claims) == [OTHER]


def test_recovered_jobs_are_told_on_our_channel(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.lease()
    with bench.listening(bench.keys.channel) as heard:
        bench.recover(OTHER)
        bench.recover(OWNER)

        assert heard() == [0]


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_every_lease_is_found_page_by_page_among_those_of_others(
    bench: Bench, batch: int
) -> None:
    for n in range(40):
        bench.schedule({f"j{n}": 0})
        bench.now += 1
        bench.lease(owner=OWNER if n % 3 == 0 else OTHER)

    ended, rank, pages = 0, 0, 0
    while rank >= 0:
        page = bench.recover(OWNER, first_rank=rank, batch=batch)
        assert page.ended <= batch
        ended, rank, pages = ended + page.ended, page.next_rank, pages + 1

    assert ended == 14
    assert pages <= 40 // batch + 1
    assert names_of(bench.claim(40)) == sorted(
        (f"j{n}" for n in range(0, 40, 3)), key=lambda name: name.ljust(22, "-")
    )


def test_late_word_of_a_process_thought_dead_is_refused_after_the_next_claim(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.recover()
    bench.lease(owner=OTHER)

    assert bench.acknowledge(job) == [0]


def test_process_thought_dead_may_end_its_job_while_nobody_claimed_it(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.recover()

    assert bench.acknowledge(job) == []
    assert bench.claim().jobs == []


def test_recovering_nobody_changes_nothing(bench: Bench) -> None:
    assert bench.recover() == Recovered(0, -1)
    bench.schedule({"a": 0})
    bench.lease()
    before = bench.state()

    assert bench.recover(b"nobody--") == Recovered(0, -1)

    assert bench.state() == before


def test_retries_of_a_dead_process_wait_on(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.retry(bench.lease(), wait=LEASE)

    assert bench.recover() == Recovered(0, -1)

    assert bench.state() == {"retries": {"a": LEASE}}


def test_lease_without_a_header_is_passed_over(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 0})
    job, _ = bench.claim().jobs
    bench.client.hdel(bench.keys.headers, job.token)

    assert bench.recover() == Recovered(1, -1)

    bench.is_checked = False  # half of it is gone
