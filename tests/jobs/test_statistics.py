"""What was measured, as pages and commands ask for it."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import pytest

from django_delayq import InvalidSearch, QueueNotFound, schedule
from django_delayq.conf import get_settings
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.api import (
    BOUNDS_MS,
    aqueue_statistics,
    astatistics_totals,
    atask_statistics,
    atasks_statistics,
    queue_statistics,
    statistics_totals,
    task_statistics,
    tasks_statistics,
)
from django_delayq.features.statistics.calls import (
    Figures,
    Histogram,
    Outcome,
    Unit,
    add_figures,
    total,
)
from django_delayq.transport import run as running
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from tests.clock import at
from tests.jobs import samples


@pytest.fixture
def add(client, queue):
    """Add figures of so many jobs of each task, at a time ago."""
    keys = get_settings().queue(queue).keys
    seconds, micros = client.time()

    def adder(ago=timedelta(), **tasks):
        counted = {
            name: Figures(
                Counter({Outcome.SUCCEEDED: count}),
                Histogram(Counter({40: count}), 1_024 * count),
                Histogram(Counter({60: count}), 32_768 * count),
            )
            for name, count in tasks.items()
        }
        counted[""] = total(list(counted.values()))
        now_us = seconds * 1_000_000 + micros - round(ago.total_seconds() * 1e6)
        call = at(now_us, add_figures(keys, counted, most_tasks=1_000))
        return run(own_clients.of_thread(), call)

    return adder


def test_series_has_each_minute_and_ends_with_the_present_one(add, queue) -> None:
    add(timedelta(minutes=2), mail=3)
    add(mail=1, sms=1)

    series = queue_statistics([queue], minutes=30)[queue]

    assert series.unit is Unit.MINUTE
    assert len(series.spans) == 30
    since = [span.since for span in series.spans]
    assert {b - a for a, b in pairwise(since)} == {timedelta(minutes=1)}
    assert abs(datetime.now(UTC) - since[-1]) < timedelta(minutes=2)
    assert series.total.runs == 5
    assert series.total.outcomes == {Outcome.SUCCEEDED: 5}
    assert series.total.lateness.percentile(50) == pytest.approx(1.152, rel=0.25)
    assert [span.figures.runs for span in series.spans if span.figures] == [3, 2]


def test_hours_reach_back_for_days(add, queue) -> None:
    add(timedelta(days=3), mail=3)
    add(mail=1)

    assert queue_statistics([queue], hours=24)[queue].total.runs == 1
    assert queue_statistics([queue], hours=99)[queue].total.runs == 4
    assert queue_statistics([queue])[queue].total.runs == 1


def test_one_task_has_a_series_of_its_own(add, queue) -> None:
    add(timedelta(minutes=70), mail=2, sms=5)
    add(mail=1)

    series = task_statistics(queue, "mail", minutes=200)

    assert len(series.spans) == 200
    assert series.total.runs == 3
    assert task_statistics(queue, "none").total.runs == 0


@pytest.mark.parametrize("turns", [{1}, {2}, {1, 2, 3}])
def test_minute_that_begins_between_two_readings_leaves_no_gap(
    queue, monkeypatch, turns
) -> None:
    keys = get_settings().queue(queue).keys
    now_us, read_figures = 29_000_000 * 60_000_000, statistics_calls.read_figures
    mail = Figures(Counter({Outcome.SUCCEEDED: 1}), duration=Histogram(Counter({1: 1})))
    for ago in reversed(range(240)):
        call = add_figures(keys, {"mail": mail}, most_tasks=9)
        run(own_clients.of_thread(), at(now_us - ago * 60_000_000, call))
    readings = count()

    def read_later(*args, **options):
        nonlocal now_us
        now_us += 60_000_000 * (next(readings) in turns)
        return at(now_us, read_figures(*args, **options))

    monkeypatch.setattr(statistics_calls, "read_figures", read_later)
    series = task_statistics(queue, "mail", minutes=240)

    runs = [span.figures.runs for span in series.spans]
    assert runs == [1] * (240 - len(turns)) + [0] * len(turns)
    assert next(readings) == 4


def test_tasks_are_summed_up_over_a_span(add, queue) -> None:
    add(timedelta(hours=5), mail=2, sms=5)
    add(mail=1)

    found = tasks_statistics([queue], hours=7)[queue]

    assert {name: each.runs for name, each in found.items()} == {"mail": 3, "sms": 5}


def test_tasks_are_summed_up_over_days(add, queue) -> None:
    add(timedelta(days=5), mail=2, sms=5)
    add(mail=1)

    assert tasks_statistics([queue], days=1)[queue]["mail"].runs == 1
    week = tasks_statistics([queue], days=99)[queue]
    assert {name: each.runs for name, each in week.items()} == {"mail": 3, "sms": 5}


def test_totals_are_of_all_times_and_fold_into_few_buckets(add, queue) -> None:
    add(timedelta(days=80), mail=2, sms=5)
    add(mail=1)

    found = statistics_totals([queue])[queue]

    assert found.queue.runs == 8
    assert {name: each.runs for name, each in found.tasks.items()} == {
        "mail": 3,
        "sms": 5,
    }
    assert len(BOUNDS_MS) < 12
    counts = found.queue.duration.folded(BOUNDS_MS)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 8)


def test_async_twins_return_the_same(add, queue) -> None:
    add(mail=1)

    async def ask():
        return (
            await aqueue_statistics([queue], minutes=9),
            await atask_statistics(queue, "mail", minutes=9),
            await atasks_statistics([queue], days=2),
            await astatistics_totals([queue]),
        )

    series, task, tasks, totals = asyncio.run(ask())

    assert series[queue].total.runs == 1
    assert task.total.runs == 1
    assert tasks[queue]["mail"].runs == 1
    assert totals[queue].queue.runs == 1


def test_totals_count_jobs_that_no_worker_has_ended(hand, queue) -> None:
    ended = [schedule(samples.add.using(queue=queue), delay, 1) for delay in (60, 0)]
    for job in ended:
        job.cancel()
    schedule(samples.add.using(queue=queue), 0, 1)
    hand.succeed(hand.take())

    totals = statistics_totals([queue])[queue]

    assert totals.ended == {
        "succeeded": 1,
        "dead": 0,
        "expired": 0,
        "cancelled": 2,
        "quarantined": 0,
    }
    assert not totals.queue.outcomes


def test_overview_of_many_queues_takes_one_write(
    settings, server, queue_name, monkeypatch
) -> None:
    names = [f"{queue_name}-{n}" for n in range(20)]
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {name: {} for name in names},
    }
    # A server that does not know a script yet is asked twice.
    for ask in (queue_statistics, tasks_statistics, statistics_totals):
        ask()
    tasks_statistics(days=1)
    writes = []
    monkeypatch.setattr(
        running,
        "send",
        lambda *told, send=running.send: writes.append(told) or send(*told),
    )

    assert list(queue_statistics()) == names
    assert list(tasks_statistics(hours=60)) == names
    assert list(statistics_totals()) == names
    assert len(writes) == 3
    assert list(tasks_statistics(days=2)) == names
    assert len(writes) == 4


@pytest.mark.parametrize("wrong", [0, -1, True, "5", 1.5])
def test_number_that_is_none_is_refused(wrong, queue) -> None:
    with pytest.raises(InvalidSearch, match=r"give a number of minutes, 1 to 481"):
        queue_statistics(minutes=wrong)
    with pytest.raises(InvalidSearch, match=r"give a number of days, 1 to 8"):
        tasks_statistics(days=wrong)


def test_both_units_at_once_are_refused(queue) -> None:
    with pytest.raises(InvalidSearch, match=r"give one of the two"):
        queue_statistics(minutes=1, hours=1)
    with pytest.raises(InvalidSearch, match=r"hours=1, days=1: give one of them"):
        tasks_statistics(hours=1, days=1)


def test_queue_that_is_not_configured_is_refused(queue) -> None:
    with pytest.raises(QueueNotFound):
        queue_statistics(["nowhere"])
