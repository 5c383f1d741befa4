"""The metrics, on a real server: what they count, that totals never fall, and that a broken queue hides no other."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_delayq import pause, schedule_many
from django_delayq.clock import epoch_ms
from django_delayq.core.forward_calls import forward_of
from django_delayq.core.store import NewJob, new_token
from django_delayq.core.worker_registry import RunningJob
from django_delayq.features.statistics.api import statistics_totals
from django_delayq.features.statistics.calls import (
    Figures,
    Outcome,
    add_figures,
    bucket_of,
    pack_figures,
)
from django_delayq.metrics.exposition import Family, Sample, text_of, without_server
from tests.clock import at
from tests.jobs import samples
from tests.jobs.adding import add, add_of_each_state
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.management.conftest import Writes, serve
from tests.metrics.reading import Scrape
from tests.polling import wait_until
from tests.servers import Server
from tests.worker.project import tasks

ADD = samples.add.name
HOUR_US = 3_600_000_000
#: The most buckets that a histogram of a queue may have.
MOST_BUCKETS = 12


def figures(*took_us: float, outcome: Outcome = Outcome.SUCCEEDED) -> Figures:
    """Return figures of attempts that took so long, and began as late."""
    found = Figures()
    for us in took_us:
        found.outcomes[outcome] += 1
        for histogram in (found.lateness, found.duration):
            histogram.buckets[bucket_of(us)] += 1
            histogram.sum_us += int(us)
    return found


def note(hand: Hand, *took_us: float, task: str = ADD, **more: Any) -> Any:
    """Count attempts of a task, as a worker does."""
    now_us = more.pop("now_us", None)
    found = figures(*took_us, **more)
    call = add_figures(hand.keys, {"": found, task: found}, most_tasks=1_000)
    return hand.run(call if now_us is None else at(now_us, call))


# The format


def test_text_escapes_what_would_end_a_name_or_a_line() -> None:
    family = Family("x", "gauge", 'a\\b\n"c"', [Sample({"task": 'a\\b\n"c"'}, 0.5)])

    assert text_of([family]) == (
        '# HELP x a\\\\b\\n"c"\n# TYPE x gauge\nx{task="a\\\\b\\n\\"c\\""} 0.5\n'
    )


def test_family_without_samples_is_left_out() -> None:
    assert text_of([Family("x", "gauge", "An x.", [])]) == ""


def test_server_that_is_away_is_one_number_and_one_comment() -> None:
    text = without_server("It is\naway.")

    assert text.startswith("# It is away.\n# HELP delayq_up ")
    assert Scrape.of(text).values == {("delayq_up", frozenset()): 0}


def test_names_of_tasks_arrive_as_they_are(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    name = 'a"b\\c\nd{e="f"} 1 ü漢'
    note(hand, 5_000, task=name)

    found = scrape()

    assert (
        found("delayq_task_attempts_total", queue=queue, task=name, outcome="succeeded")
        == 1
    )


# Now


def test_jobs_are_counted_by_queue_and_state(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    add_of_each_state(queue, hand)

    found = scrape()

    states = {
        dict(labels)["state"]: number
        for labels, number in found.of_name("delayq_jobs", queue=queue).items()
    }
    assert states == {
        "scheduled": 4,
        "due": 1,
        "running": 1,
        "retrying": 1,
        "held": 0,
        "dead": 1,
        "quarantined": 0,
    }
    assert found("delayq_jobs_offered_total", queue=queue) == 8
    ended = {
        dict(labels)["outcome"]: number
        for labels, number in found.of_name(
            "delayq_jobs_ended_total", queue=queue
        ).items()
    }
    assert ended.pop("dead") == 1
    assert set(ended) == {"succeeded", "expired", "cancelled", "quarantined"}
    assert set(found.of_name("delayq_jobs", queue=f"{queue}-2").values()) == {0}
    assert found("delayq_up") == 1


def test_oldest_due_job_pauses_and_problems_are_told(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    job = add(queue, 1)
    an_hour_ago_ms = hand.start_times()[job.token] - 2 * LATER * 1000
    ((member, _),) = hand.client.zscan_iter(hand.keys.queue.timeout_set)
    hand.client.zadd(hand.keys.queue.timeout_set, {member: an_hour_ago_ms})
    pause(f"{queue}-2")
    pause(queue, task=samples.add)

    found = scrape()

    assert LATER <= found("delayq_oldest_due_seconds", queue=queue) < LATER + 600
    assert found("delayq_oldest_due_seconds", queue=f"{queue}-2") == 0
    assert found("delayq_queue_paused", queue=queue) == 0
    assert found("delayq_queue_paused", queue=f"{queue}-2") == 1
    assert found("delayq_queue_paused_tasks", queue=queue) == 1
    # No worker serves the first queue; two pauses.
    assert found("delayq_problems", level="error") == 1
    assert found("delayq_problems", level="warning") == 2


def test_what_another_queue_does_not_get_is_counted_and_told(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    a_minute_ago = epoch_ms() - 60_000
    new = NewJob(new_token(), "+0", "", b"{}")
    member = forward_of(f"{queue}-2", new, a_minute_ago).member
    hand.client.zadd(hand.keys.forwards, {member: 0})

    found = scrape()

    where = {"queue": queue, "to": f"{queue}-2"}
    assert found("delayq_forwards", **where) == 1
    assert 60 <= found("delayq_oldest_forward_seconds", **where) < 600
    assert found("delayq_problems", level="warning") == 1


def test_workers_are_counted_together(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    job = RunningJob(queue, "T", ADD)
    serve(hand, queue, coroutines=50, busy_threads=1, jobs=[job], memory=45_000_000)

    found = scrape()

    assert found("delayq_queue_workers", queue=queue) == 1
    assert found("delayq_queue_workers", queue=f"{queue}-2") == 0
    assert found("delayq_workers", state="working") == 1
    assert found("delayq_workers", state="quiet") == 0
    assert found("delayq_worker_slots", kind="thread") == 8
    assert found("delayq_worker_slots", kind="coroutine") == 50
    assert found("delayq_worker_busy", kind="thread") == 1
    assert found("delayq_worker_busy", kind="coroutine") == 0
    assert found("delayq_worker_memory_bytes") == 45_000_000


# Since the first day


def test_histograms_of_a_queue_have_few_buckets_that_add_up(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    note(hand, 500, 2_000, 3_000, 5_000_000, 2_000_000_000)

    found = scrape()

    for name in ("delayq_lateness_seconds", "delayq_duration_seconds"):
        buckets = {
            float(dict(labels)["le"]): number
            for labels, number in found.of_name(f"{name}_bucket", queue=queue).items()
        }
        assert len(buckets) <= MOST_BUCKETS
        in_order = [buckets[bound] for bound in sorted(buckets)]
        assert in_order == sorted(in_order)
        assert buckets[0.001024] == 1
        assert buckets[0.004096] == 3
        assert buckets[16.777216] == 4
        assert buckets[268.435456] == 4
        assert buckets[float("inf")] == found(f"{name}_count", queue=queue) == 5
        assert found(f"{name}_sum", queue=queue) == pytest.approx(2_005.0055)


def test_queue_without_an_attempt_has_all_its_totals_at_nothing(
    queue: str, scrape: Callable[[], Scrape]
) -> None:
    found = scrape()

    outcomes = found.of_name("delayq_attempts_total", queue=queue)
    assert len(outcomes) == len(Outcome)
    assert set(outcomes.values()) == {0}
    assert found("delayq_duration_seconds_count", queue=queue) == 0


def test_task_has_the_outcomes_that_alarm_from_its_first_attempt_on(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    note(hand, 1_000, 3_000)

    found = scrape()

    outcomes = found.of_name("delayq_task_attempts_total", queue=queue, task=ADD)
    assert {dict(labels)["outcome"]: n for labels, n in outcomes.items()} == {
        "succeeded": 2,
        "retrying": 0,
        "dead": 0,
    }
    assert found("delayq_task_duration_seconds_sum", queue=queue, task=ADD) == 0.004
    assert found("delayq_task_duration_seconds_count", queue=queue, task=ADD) == 2
    assert found("delayq_task_lateness_seconds_count", queue=queue, task=ADD) == 2


def test_totals_never_fall_when_hours_pass(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    began_us = 500_000 * HOUR_US
    last: dict[Any, float] = {}
    for hour in range(4):
        closed = note(hand, 1_000, 70_000, now_us=began_us + hour * HOUR_US)
        for each in closed:
            hand.run(pack_figures(hand.keys, each))
        counted = scrape().counted
        assert counted.keys() >= last.keys()
        assert all(counted[key] >= value for key, value in last.items())
        last = counted

    found = scrape()

    assert found("delayq_duration_seconds_count", queue=queue) == 8
    assert (
        found("delayq_task_attempts_total", queue=queue, task=ADD, outcome="succeeded")
        == 8
    )


@pytest.mark.slow
def test_totals_never_fall_when_a_worker_is_killed(
    program: Callable[..., Any],
    queue_name: str,
    records: Any,
    scrape: Callable[[], Scrape],
) -> None:
    """What ended just before it is killed may be missing, and never what was written."""
    task = tasks.note.using(queue=queue_name)
    schedule_many([task.prepare(0, n) for n in range(20)])
    worker = program(
        "--queue", queue_name, environment={"WORKER_TEST_COUNT_AFTER_MS": "500"}
    )

    def runs() -> int:
        return statistics_totals([queue_name])[queue_name].queue.runs

    wait_until(lambda: runs() == 20, description="all are counted")
    before = scrape()
    schedule_many([task.prepare(0, n) for n in range(20, 25)])
    wait_until(lambda: records.count("run") == 25, description="the rest has run")
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)
    between = scrape()
    schedule_many([task.prepare(0, n) for n in range(25, 30)])
    # The supervisor has started another process.
    wait_until(lambda: runs() >= 25, description="those of the next are counted")
    after = scrape()

    assert before("delayq_duration_seconds_count", queue=queue_name) == 20
    for sooner, later in ((before, between), (between, after)):
        assert sooner.counted.keys() <= later.counted.keys()
        assert all(later.counted[key] >= value for key, value in sooner.counted.items())


def test_without_statistics_there_are_no_totals_of_attempts(
    queue: str, settings: Any, scrape: Callable[[], Scrape]
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "STATISTICS": 0}

    found = scrape()

    assert found("delayq_queue_up", queue=queue) == 1
    assert "delayq_attempts_total" not in found.kinds


# What goes wrong, and what it costs


@pytest.mark.parametrize("broken", ["leases", "control", "totals", "minute"])
def test_queue_that_cannot_be_read_hides_no_other(
    queue: str,
    hand: Hand,
    client: "redis.Redis[bytes]",
    scrape: Callable[[], Scrape],
    broken: str,
) -> None:
    other = Hand(client, f"{queue}-2")
    for each in (hand, other):
        note(each, 1_000)
    key = other.keys.key(broken)
    client.delete(key)
    client.lpush(key, "of somebody else")

    found = scrape()

    assert found("delayq_queue_up", queue=queue) == 1
    assert found("delayq_attempts_total", queue=queue, outcome="succeeded") == 1
    assert set(found.of_name("delayq_jobs", queue=queue).values()) == {0}
    is_up = broken not in ("leases", "control")
    assert found("delayq_queue_up", queue=f"{queue}-2") == is_up
    assert bool(found.of_name("delayq_jobs", queue=f"{queue}-2")) == is_up
    has_totals = bool(found.of_name("delayq_attempts_total", queue=f"{queue}-2"))
    assert has_totals == (broken != "totals")


def test_scrape_of_many_queues_takes_few_round_trips(
    server: Server,
    queue_name: str,
    settings: Any,
    scrape: Callable[[], Scrape],
    writes: Writes,
) -> None:
    queues = {f"{queue_name}-{n}": {} for n in range(20)}
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": queues}
    scrape()

    assert writes.during(scrape) <= 10


def test_queue_with_shards_is_one_queue_with_sums(
    queue: str, settings: Any, scrape: Callable[[], Scrape]
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: {"SHARDS": 3}}}
    jobs = [add(queue, n) for n in range(12)]
    assert len({job.queue for job in jobs}) > 1

    read = scrape()

    assert read("delayq_jobs", queue=queue, state="scheduled") == 12
    assert read("delayq_jobs_offered_total", queue=queue) == 12
    names = {dict(labels).get("queue") for _, labels in read.values}
    assert names <= {queue, None}
