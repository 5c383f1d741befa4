"""What a worker measures of its jobs."""

import os
import random
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    pause,
    resume,
    schedule,
    schedule_many,
)
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.core import queue_reads
from django_delayq.core.claim import Leased
from django_delayq.core.hold import Hold
from django_delayq.core.reasons import Kind, Reason
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics import worker as statistics_worker
from django_delayq.features.statistics.api import queue_statistics, statistics_totals
from django_delayq.features.statistics.calls import UNKNOWN, Figures, Outcome, bucket_of
from django_delayq.features.statistics.worker import StatisticsReport, counted
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.worker import claims
from django_delayq.worker.attempt import Attempt, Verdict
from tests.clock import at
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks

#: The server's clock is the machine's, which may be set, and is read to the millisecond.
CLOCK_MS = 20.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Write figures at once, not after ten seconds."""
    monkeypatch.setattr(statistics_worker, "COUNT_AFTER_MS", 50.0)


@pytest.fixture(autouse=True)
def _no_job_is_given_back(monkeypatch) -> None:
    """Let jobs wait in the worker's process for as long as a busy machine takes: one that is given back is counted."""
    monkeypatch.setattr(claims, "STALLED_MS", 1e9)


def totals(queue) -> dict[str, Figures]:
    return statistics_totals([queue])[queue].tasks


def wait_for(queue, count: int) -> dict[str, Figures]:
    """Return what is known of each task once so many attempts are counted."""

    def are_there():
        found = totals(queue)
        # On a busy machine some jobs wait in the process for too long, and are given back: they come again.
        numbers = sum(
            number
            for each in found.values()
            for outcome, number in each.outcomes.items()
            if outcome not in (Outcome.HELD, Outcome.GIVEN_BACK)
        )
        assert numbers <= count, found
        return found if numbers == count else None

    return wait_until(are_there, description=f"{count} attempts are counted")


@every_server
def test_each_end_is_counted_with_its_lateness_and_its_duration(
    work, queue_name, records
) -> None:
    schedule(tasks.nap.using(queue=queue_name), 0, 0.05)
    schedule_many([tasks.note.using(queue=queue_name).prepare(0, n) for n in range(5)])
    work()

    found = wait_for(queue_name, 6)

    nap, note = found[tasks.nap.name], found[tasks.note.name]
    assert nap.outcomes == {Outcome.SUCCEEDED: 1}
    assert note.outcomes == {Outcome.SUCCEEDED: 5}
    assert nap.duration.percentile(50) >= 50 / 1.25
    assert nap.duration.sum_us >= 50_000
    assert (note.duration.count, note.lateness.count) == (5, 5)
    whole = statistics_totals([queue_name])[queue_name].queue
    assert (whole.runs, whole.lateness.count) == (6, 6)
    assert queue_statistics([queue_name], minutes=2)[queue_name].total.runs == 6


def test_failures_count_each_attempt_with_its_lateness(work, queue_name) -> None:
    task = tasks.fail.using(queue=queue_name, max_attempts=3, backoff=tasks.AT_ONCE)
    schedule(task, 0)
    work()

    found = wait_for(queue_name, 3)[tasks.fail.name]

    assert found.outcomes == {Outcome.RETRYING: 2, Outcome.DEAD: 1}
    assert (found.failures, found.runs) == (3, 3)
    assert found.lateness.count == 3


def test_what_does_not_run_has_neither_lateness_nor_duration(work, queue_name) -> None:
    late = tasks.note.using(queue=queue_name, expires=0.001)
    schedule(late, datetime.now(UTC) - timedelta(hours=1))
    work()

    found = wait_for(queue_name, 1)[tasks.note.name]

    assert found.outcomes == {Outcome.EXPIRED: 1}
    assert (found.lateness.count, found.duration.count) == (0, 0)


@pytest.mark.parametrize("task", [None, tasks.note.name])
def test_lateness_after_a_pause_counts_from_its_end(
    work, queue_name, records, task
) -> None:
    worker = work()
    schedule(tasks.nap.using(queue=queue_name), 0, 0)
    wait_for(queue_name, 1)
    pause(queue_name, task=task)
    schedule(tasks.note.using(queue=queue_name), 0, 1)
    if task is None:
        keys = get_settings().queue(queue_name).keys
        wait_until(
            lambda: run(own_clients.of_thread(), queue_reads.counts(keys)).due,
            description="the job is due",
        )
        wait_until(
            lambda: worker.loop.queues[queue_name].is_paused,
            description="the worker has seen the pause",
        )
    else:
        held = get_settings().queue(queue_name).keys.held
        wait_until(
            lambda: own_clients.of_thread().zcard(held), description="it is held"
        )
    resumed_ms = monotonic_ms()
    resume(queue_name, task=task)

    found = wait_for(queue_name, 2)[tasks.note.name]

    assert (found.runs, found.lateness.count) == (1, 1)
    assert found.lateness.sum_us <= (monotonic_ms() - resumed_ms + CLOCK_MS) * 1_000


def test_lateness_of_a_job_that_a_limit_held_counts_from_the_end_of_the_hold(
    work, queue_name, records
) -> None:
    """Each job holds the next of its key for as long as it runs."""
    task = tasks.one_of_a_key.using(queue=queue_name)
    begin_ms = monotonic_ms()
    schedule_many([task.prepare(0, "a") for _ in range(4)])
    work()

    found = wait_for(queue_name, 4)[tasks.one_of_a_key.name]

    # All that was not run time may have been lateness, of one job at a time.
    most_us = (monotonic_ms() - begin_ms + CLOCK_MS) * 1_000
    assert (found.runs, found.lateness.count) == (4, 4)
    assert found.lateness.sum_us <= most_us - found.duration.sum_us


def test_worker_that_ends_writes_what_it_has_not_written(
    work, queue_name, records, monkeypatch
) -> None:
    monkeypatch.setattr(statistics_worker, "COUNT_AFTER_MS", 600_000.0)
    schedule_many([tasks.note.using(queue=queue_name).prepare(0, n) for n in range(9)])
    worker = work(is_burst=True)
    worker.join()

    assert totals(queue_name)[tasks.note.name].runs == 9


def test_nothing_is_measured_with_the_setting_off(
    work, configure, queue_name, records, settings
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "STATISTICS": 0}
    schedule_many([tasks.note.using(queue=queue_name).prepare(0, n) for n in range(9)])
    work(is_burst=True).join()

    assert records.count("run") == 9
    assert totals(queue_name) == {}


def test_killed_process_loses_no_more_than_it_had_not_written(
    program, queue_name, records
) -> None:
    task = tasks.note.using(queue=queue_name)
    schedule_many([task.prepare(0, n) for n in range(20)])
    worker = program(
        "--queue", queue_name, environment={"WORKER_TEST_COUNT_AFTER_MS": "500"}
    )
    wait_until(lambda: records.count("run") == 20, description="all have run")
    written = wait_for(queue_name, 20)
    schedule_many([task.prepare(0, n) for n in range(20, 25)])
    wait_until(lambda: records.count("run") == 25, description="the rest has run")
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)

    found = totals(queue_name)[tasks.note.name].runs
    assert written[tasks.note.name].runs <= found <= 25


def test_worker_that_ends_packs_what_its_last_figures_found_over(
    work, queue_name, monkeypatch
) -> None:
    monkeypatch.setattr(statistics_worker, "COUNT_AFTER_MS", 1e9)
    client, keys = own_clients.of_thread(), get_settings().queue(queue_name).keys
    old = statistics_calls.add_figures(keys, {tasks.note.name: Figures()}, most_tasks=9)
    run(client, at(7 * 3_600_000_000, old))
    schedule(tasks.note.using(queue=queue_name), 0, 1)

    worker = work(is_burst=True)
    wait_until(lambda: not worker.is_running, description="the worker has ended")

    for key, slot in ((keys.minutes, 7 * 60), (keys.hours, 7)):
        stored = client.hget(key, f"{slot}:tasks")
        assert stored[4:5] == b"\1"


# Without a server.


class _Line:
    """Takes calls and answers none."""

    def __init__(self, error=None) -> None:
        self.calls = []
        self.error = error
        self.closed = []

    def ask(self, call):
        self.calls.append(call)
        return self

    def finish(self):
        if self.error is not None:
            raise self.error
        return self.closed


def attempts(count=1, *, task=tasks.note, verdict=Verdict.SUCCEED, late_ms=3.0):
    made = []
    for n in range(count):
        leased = Leased("t" * 22, 0, 0, 1_000_000, b"", False, b"f" * 8)
        attempt = Attempt(QueueSettings(name="q"), leased, 0.0, 900_000.0)
        attempt.task, attempt.verdict = task, verdict
        attempt.started_ms = 100_000 + late_ms
        attempt.ended_ms = attempt.started_ms + n
        made.append(attempt)
    return made


def taken(found: StatisticsReport) -> dict[str, Figures]:
    return dict(found._take()["q"])


@pytest.mark.parametrize("seed", range(5))
def test_times_are_counted_in_the_buckets_of_the_format(seed) -> None:
    rand = random.Random(seed)
    times = [rand.lognormvariate(4, 6) for _ in range(5_000)]
    times += [-1e9, -0.1, 0.0, 0.5, 1.0, 1.25, 2.0**40, 1e300]

    found = counted(times)

    assert found.buckets == Counter(map(bucket_of, times))
    assert found.count == len(times)


def test_clock_that_is_off_makes_no_negative_sum() -> None:
    assert counted([-500.0]).sum_us == 0


def test_held_jobs_are_counted_by_the_names_that_this_process_does_not_know() -> None:
    found = StatisticsReport(_Line())
    first, second, third, unsigned = attempts(4, task=None, verdict=Verdict.HOLD)
    for attempt, kind, name in (
        (first, Kind.TASK, "shop.gone"),
        (second, Kind.TASK, "shop.lost"),
        (third, Kind.TASK, "shop.gone"),
        (unsigned, Kind.KEY, "0a1b"),
    ):
        # How long a job is held does not say whether its task is known.
        attempt.hold = Hold(Reason(kind, name), "no such task.", for_ms=900)
    found.note([first, second, third, unsigned])

    assert {name: each.outcomes.total() for name, each in taken(found).items()} == {
        "": 4,
        "shop.gone": 2,
        "shop.lost": 1,
        UNKNOWN: 1,
    }


def test_batch_of_several_tasks_is_counted_by_task() -> None:
    found = StatisticsReport(_Line())
    found.note([*attempts(2), *attempts(1, task=tasks.nap), *attempts(3)])
    found.note(attempts(1, task=None, verdict=Verdict.QUARANTINE))
    found.note(attempts(4))

    figures = taken(found)

    assert {name: each.outcomes.total() for name, each in figures.items()} == {
        "": 11,
        tasks.note.name: 9,
        tasks.nap.name: 1,
        UNKNOWN: 1,
    }
    assert figures[""].lateness.count == 10
    assert figures[""].lateness.percentile(50) == pytest.approx(3, rel=0.25)


def test_job_given_back_before_its_task_is_known_counts_only_for_the_queue() -> None:
    found = StatisticsReport(_Line())
    found.note(attempts(3, task=None, verdict=Verdict.GIVE_BACK))
    found.note(attempts(2, verdict=Verdict.GIVE_BACK))

    outcomes = {name: each.outcomes for name, each in taken(found).items()}

    assert outcomes == {
        "": {Outcome.GIVEN_BACK: 5},
        tasks.note.name: {Outcome.GIVEN_BACK: 2},
    }


def test_what_has_not_run_is_told_from_what_has() -> None:
    found = StatisticsReport(_Line())
    unrun = attempts(1, verdict=Verdict.BURY)
    unrun[0].is_unrun = True
    found.note(attempts(2, verdict=Verdict.BURY))
    found.note(unrun)
    found.note(attempts(2, verdict=Verdict.BURY))
    found.note(attempts(1, verdict=Verdict.DROP))

    figures = taken(found)[tasks.note.name]

    assert figures.outcomes == {Outcome.DEAD: 5}
    assert figures.duration.count == 4


def test_many_tasks_go_in_several_calls() -> None:
    line = _Line()
    found = StatisticsReport(line)

    class Task:
        def __init__(self, name):
            self.name = name

    for n in range(50):
        found.note(attempts(1, task=Task(f"t{n}")))
    found.tell()

    assert len(line.calls) == 3
    assert all(
        (len(call.args) - 5) // 2 <= statistics_calls.FIGURES_BATCH
        for call in line.calls
    )


def test_figures_whose_reply_is_lost_are_not_told_again() -> None:
    line = _Line(RedisConnectionError("gone"))
    found = StatisticsReport(line)
    found.note(attempts(3))
    found.tell()
    found.learn()
    found.tell()

    assert len(line.calls) == 1
    assert found.due_ms == float("inf")


def test_what_is_over_is_packed_once_by_the_process_that_finds_it() -> None:
    line = _Line()
    found = StatisticsReport(line)
    found.note(attempts(3))
    found.tell()
    line.closed = [
        statistics_calls.Closed(statistics_calls.Unit.HOUR, "7:tasks", b"\0\0\0\7\0")
    ]
    found.learn()

    # The claim loop would wait for a reply to what is asked here.
    assert [call.script.name for call in line.calls] == ["add_figures"]
    assert not found.has_told
    assert found.due_ms == 0
    found.tell()
    assert [call.script.name for call in line.calls] == ["add_figures", "pack_figures"]
    assert found.has_told
    found.learn()
    found.tell()
    assert len(line.calls) == 2
    assert not found.has_told


def test_collected_times_are_counted_before_they_are_many(monkeypatch) -> None:
    monkeypatch.setattr(statistics_worker, "COUNTED_AT_ONCE", 100)
    found = StatisticsReport(_Line())
    for _ in range(30):
        found.note(attempts(10))
        (collected,) = found._counted.values()
        assert len(collected.took_us) < 100

    assert taken(found)[""].duration.count == 300
