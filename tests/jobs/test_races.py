"""Two at once: exactly one wins, and the other is told."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from django_delayq import Job, State, get_job, schedule, schedule_many
from django_delayq.conf import get_settings
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.servers import ExternalServer, Server

COUNT = 1_500


def together(*functions: Callable[[], None]) -> None:
    """Run each in a thread of its own, all begun at one moment; an error of one is raised here."""
    barrier = threading.Barrier(len(functions))
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        barrier.wait()
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(item,)) for item in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def jobs(queue: str) -> list[Job[int]]:
    """Jobs that are due, all at once."""
    task = samples.add.using(queue=queue)
    return schedule_many([task.prepare(0, n) for n in range(COUNT)])


def claimer(
    server: Server | ExternalServer, queue: str, limit: int, into: list[str]
) -> Callable[[], None]:
    def claim() -> None:
        with server.client() as client:
            hand = Hand(client, queue)
            idle = 0
            while idle < 20:
                claimed = hand.claim(limit)
                idle = 0 if claimed else idle + 1
                into.extend(job.token for job in claimed)

    return claim


@pytest.mark.parametrize("limit", [1, 10])
def test_of_cancel_and_claim_exactly_one_wins_and_the_caller_knows_which(
    server: Server | ExternalServer, queue: str, jobs: list[Job[int]], limit: int
) -> None:
    claimed: list[str] = []
    told: dict[str, bool] = {}

    begun, met = threading.Event(), threading.Event()

    def cancel() -> None:
        # From the far end, and each has one before the other goes on, so that both meet.
        for job in reversed(jobs):
            told[job.token] = job.cancel()
            begun.set()
            met.wait(60)

    def claim() -> None:
        begun.wait(60)
        with server.client() as client:
            claimed.extend(job.token for job in Hand(client, queue).claim(limit))
        met.set()
        claimer(server, queue, limit, claimed)()

    together(cancel, claim)

    assert len(claimed) == len(set(claimed))
    assert {token for token, won in told.items() if not won} == set(claimed)
    assert {job.state for job in jobs} <= {State.CANCELLED, State.RUNNING}
    assert 0 < len(claimed) < COUNT, "they met"


def test_of_several_claims_exactly_one_has_each_job(
    server: Server | ExternalServer, queue: str, jobs: list[Job[int]]
) -> None:
    parts: list[list[str]] = [[] for _ in range(4)]

    together(*[claimer(server, queue, 7, part) for part in parts])

    found = Counter(token for part in parts for token in part)
    assert found == Counter(job.token for job in jobs)


def test_of_several_cancels_every_one_is_told_that_it_will_not_run(
    queue: str, jobs: list[Job[int]], hand: Hand
) -> None:
    told: list[bool] = []

    def cancel() -> None:
        for job in jobs[:300]:
            told.append(get_job(job.id).cancel())

    together(cancel, cancel, cancel)

    assert told == [True] * 900
    assert hand.counter("cancelled") == 300


def test_of_reschedule_and_claim_exactly_one_wins(
    server: Server | ExternalServer, queue: str, jobs: list[Job[int]], hand: Hand
) -> None:
    claimed: list[str] = []
    moved: list[str] = []

    def reschedule() -> None:
        for job in reversed(jobs):
            if job.reschedule(LATER):
                moved.append(job.token)

    together(reschedule, claimer(server, queue, 5, claimed))

    assert set(moved) | set(claimed) == {job.token for job in jobs}
    assert len(moved) + len(claimed) == COUNT
    assert hand.client.zcard(hand.keys.queue.timeout_set) == len(moved)


def test_one_key_scheduled_by_many_threads_is_one_job(queue: str, hand: Hand) -> None:
    task = samples.once.using(queue=queue)
    jobs: list[Job[None]] = []

    def schedule_all() -> None:
        for n in range(100):
            jobs.append(schedule(task, LATER, n))

    together(*[schedule_all] * 4)

    assert Counter(job.created for job in jobs) == {True: 100, False: 300}
    assert len({job.id for job in jobs}) == 100
    assert len(hand.tokens()) == 100


def test_threads_schedule_at_once_and_nothing_is_mixed_up(
    queue: str, hand: Hand
) -> None:
    task = samples.add.using(queue=queue)
    found: list[tuple[int, str]] = []

    def schedule_some(first: int) -> Callable[[], None]:
        def run() -> None:
            for n in range(first, first + 100):
                job = schedule(task, LATER, n)
                job.refresh()
                assert job.args == [n]
                found.append((n, job.token))

        return run

    together(*[schedule_some(100 * n) for n in range(6)])

    assert len(dict(found)) == 600
    assert sorted(hand.tokens()) == sorted(token for _, token in found)


def test_threads_give_their_connections_back(queue: str, hand: Hand) -> None:
    task = samples.add.using(queue=queue)
    schedule(task, LATER, 1)
    before = hand.client.info("clients")["connected_clients"]

    for _ in range(20):
        thread = threading.Thread(target=lambda: schedule(task, LATER, 1))
        thread.start()
        thread.join()

    assert hand.client.info("clients")["connected_clients"] <= before + 2
    assert get_settings().queues[queue].name == queue
