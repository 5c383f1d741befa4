"""Every finding of a soak holds where all is well, and fails where what it is about is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak.kinds import NUMBERS
from benchmarks.soak.ledger import Event
from benchmarks.soak.sampling import MIB, Sample
from benchmarks.soak.verdict import End, Finding, growth, judge
from tests.soak.samples import COUNT, samples
from tests.soak.written import DUE_MS, LATE_MS, Written

WELL = End(
    waiting_on_server=0,
    dead=1,
    runs=29,
    p50_ms=LATE_MS,
    p99_ms=LATE_MS,
    statuses={"producer": 0, "worker": 0},
    aof={"aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok"},
)


def failing(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.holds is not True]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    written = Written(tmp_path)
    written.all_is_well()
    return written


def test_all_findings_hold_where_all_is_well(written: Written) -> None:
    written.ledger.read()

    assert failing(judge(samples(), written.ledger, WELL)) == []


def lose(written: Written) -> None:
    written.store(10, "do_nothing")


def double(written: Written) -> None:
    written.finish(1, "do_nothing")


def begin_early(written: Written) -> None:
    written.store(10, "call_provider", DUE_MS + 10)
    written.start(10, "call_provider", DUE_MS + 9)
    written.finish(10, "call_provider")


def run_unknown(written: Written) -> None:
    written.start(10, "do_nothing")


def die(written: Written) -> None:
    written.store(10, "fail_always")
    written.start(10, "fail_always")
    written.start(10, "fail_always")


def miss_a_moment(written: Written) -> None:
    written.tick(0, [11])


def run_a_moment_twice(written: Written) -> None:
    written.tick(1, [9])


@pytest.mark.parametrize(
    ("spoil", "runs", "name"),
    [
        (lose, 29, "jobs lost"),
        (double, 29, "jobs that ran twice"),
        (begin_early, 30, "jobs that began early"),
        (run_unknown, 30, "starts of jobs that nobody has stored"),
        (die, 31, "dead letters"),
        (miss_a_moment, 30, "moments of a schedule of 2 s that had no job, or two"),
        (
            run_a_moment_twice,
            30,
            "moments of a schedule of 5 s that had no job, or two",
        ),
    ],
)
def test_finding_about_jobs_fails_alone(
    spoil: Callable[[Written], None], runs: int, name: str, written: Written
) -> None:
    spoil(written)
    written.ledger.read()

    assert failing(judge(samples(), written.ledger, WELL._replace(runs=runs))) == [name]


def test_second_run_of_a_job_whose_worker_was_lost_is_told(written: Written) -> None:
    written.start(1, "do_nothing", kills=1)
    written.finish(1, "do_nothing")
    written.ledger.read()

    findings = judge(samples(), written.ledger, WELL._replace(runs=30))

    assert failing(findings) == []
    assert "0, beside 1 whose worker was lost" in [each.figure for each in findings]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"waiting_on_server": 1}, "jobs lost"),
        ({"dead": 0}, "dead letters"),
        ({"runs": 28}, "attempts, by our statistics"),
        ({"p50_ms": 1.26 * LATE_MS + 1}, "lateness p50, ms, by our statistics"),
        ({"p99_ms": 0.74 * LATE_MS - 1}, "lateness p99, ms, by our statistics"),
        ({"p99_ms": None}, "lateness p99, ms, by our statistics"),
        ({"statuses": {"worker": 1}}, "exit status of the worker"),
        (
            {"aof": {"aof_last_write_status": "err"}},
            "aof_last_write_status of the server",
        ),
        ({"errors": ["the producer has ended by itself"]}, "went wrong"),
    ],
)
def test_finding_about_the_end_fails_alone(
    change: dict[str, Any], name: str, written: Written
) -> None:
    written.ledger.read()

    assert failing(judge(samples(), written.ledger, WELL._replace(**change))) == [name]


def more_keys(sample: Sample, share: float) -> None:
    sample.keys["delayq_leases"] += int(10 * share)


def more_results(sample: Sample, share: float) -> None:
    sample.keys["delayq_result"] += int(60 * share)


def more_memory(sample: Sample, share: float) -> None:
    sample.used_memory += int(MIB * share)


def more_worker_memory(sample: Sample, share: float) -> None:
    sample.rss["worker 8"] += int(10 * MIB * share)


def more_handles(sample: Sample, share: float) -> None:
    sample.handles["worker 7"] += int(10 * share)


def more_clients(sample: Sample, share: float) -> None:
    sample.clients += int(10 * share)


def replace_a_worker(sample: Sample, share: float) -> None:
    if share > 0.9:
        for column in (sample.rss, sample.handles):
            column["worker 9"] = column.pop("worker 8")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (more_keys, "keys, without those of results and statistics: growth"),
        (more_results, "keys of results: growth"),
        (more_memory, "the server's memory without statistics, MiB: growth"),
        (more_worker_memory, "memory of worker 8, MiB: growth"),
        (more_handles, "open handles of worker 7: growth"),
        (more_clients, "clients: growth"),
        (replace_a_worker, "worker processes that were replaced"),
    ],
)
def test_finding_about_growth_fails_alone(
    change: Callable[[Sample, float], None], name: str, written: Written
) -> None:
    written.ledger.read()

    assert failing(judge(samples(change), written.ledger, WELL)) == [name]


def test_statistics_may_grow(written: Written) -> None:
    def more_statistics(sample: Sample, share: float) -> None:
        sample.used_memory += int(5 * MIB * share)
        sample.statistics_memory += int(5 * MIB * share)
        # When the first hour ends by the clock, there is a key more for each queue.
        sample.keys["delayq_hours"] = 10 * (share > 0.8)

    written.ledger.read()

    assert failing(judge(samples(more_statistics), written.ledger, WELL)) == []


def test_growth_of_the_first_half_does_not_count() -> None:
    def warm_up(sample: Sample, share: float) -> None:
        sample.clients = min(20, int(40 * share))

    assert growth(samples(warm_up), lambda sample: sample.clients) == (20, 0)


def test_growth_is_that_of_the_line_through_the_second_half() -> None:
    # The second half is 21 of 40 samples, 20 steps.
    found = growth(samples(), lambda sample: sample.at_s)

    assert found == (pytest.approx(300), pytest.approx(300))


def test_too_few_samples_are_not_judged(written: Written) -> None:
    written.ledger.read()

    few = judge(samples()[: COUNT // 4], written.ledger, WELL)

    assert all(name.endswith("growth") for name in failing(few))
    assert {finding.holds for finding in few} == {True, None}


def test_run_without_samples_has_a_verdict(written: Written) -> None:
    written.producer.record(Event.STORED, 10, NUMBERS["do_nothing"], DUE_MS)
    written.ledger.read()

    findings = judge([], written.ledger, WELL._replace(waiting_on_server=1))

    assert all(finding.holds is not False for finding in findings)
