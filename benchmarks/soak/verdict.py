"""What a soak has shown: each finding has a figure, a bar, and whether it holds."""

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from benchmarks.bench import percentile
from benchmarks.soak.kinds import TICKS_S
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.sampling import GROWING, Sample

#: Samples of the second half from which on a slope says something.
LEAST_SAMPLES = 8
#: How much a flat figure may grow over the second half, by its regression line.
FLAT = 0.05
#: The same of keys, handles and clients, which are few: so many.
FLAT_COUNT = 2.0
#: The kind of keys that results have.
RESULTS = "delayq_result"
#: Our percentiles are those of a bucket. A task reads the clock a little after its worker, which adds some ms, and to a
#: few jobs much more: so the percentile may be that of a neighbour.
BUCKET, TASK_MS, RANK = 0.25, 1.0, 0.005


class Finding(msgspec.Struct):
    """One sentence of the verdict."""

    name: str
    figure: str
    bar: str
    #: None: there is too little to judge.
    holds: bool | None


class End(NamedTuple):
    """What was seen when all had stopped."""

    #: Jobs that the server still has, without dead letters and those of schedules.
    waiting_on_server: int
    #: Dead letters that were discarded, or are still there.
    dead: int
    #: Attempts, by our own statistics.
    runs: int
    #: Lateness of timed jobs, by our own statistics: median and 99th percentile, ms.
    p50_ms: float | None
    p99_ms: float | None
    #: What the processes ended with, by name.
    statuses: dict[str, int]
    #: Of the append-only file: how the last write and the last rewrite went.
    aof: dict[str, str]
    #: What went wrong beside that.
    errors: Sequence[str] = ()


def judge(samples: Sequence[Sample], ledger: Ledger, end: End) -> list[Finding]:
    """Return all findings."""
    return [*_of_jobs(ledger, end), *_of_growth(samples), *_of_the_end(samples, end)]


def _of_jobs(ledger: Ledger, end: End) -> list[Finding]:
    explained, unexplained = ledger.doubled()
    return [
        _exactly("jobs lost", ledger.on_server() - end.waiting_on_server, 0),
        Finding(
            "jobs that ran twice",
            f"{len(unexplained):,}, beside {len(explained):,} whose worker was lost",
            "0",
            not unexplained,
        ),
        _exactly("jobs that began early", ledger.early, 0),
        _exactly("starts of jobs that nobody has stored", ledger.unknown(), 0),
        _exactly("dead letters", end.dead, ledger.dead()),
        *_of_schedules(ledger),
        _exactly("attempts, by our statistics", end.runs, ledger.attempts),
        *_of_lateness(ledger, end),
    ]


def _exactly(name: str, figure: int, bar: int) -> Finding:
    return Finding(name, f"{figure:,}", f"{bar:,}", figure == bar)


def _of_schedules(ledger: Ledger) -> list[Finding]:
    findings = []
    for number, interval_s in enumerate(TICKS_S):
        moments = sorted(ledger.moments.get(number, []))
        wrong = sum(b - a != interval_s * 1000 for a, b in pairwise(moments))
        findings.append(
            Finding(
                f"moments of a schedule of {interval_s} s that had no job, or two",
                f"{wrong:,} of {len(moments):,}",
                "0",
                wrong == 0 if len(moments) > 1 else None,
            )
        )
    return findings


def _of_lateness(ledger: Ledger, end: End) -> list[Finding]:
    exact_ms = sorted(ledger.late_ms)
    findings = []
    for share, said_ms in ((0.5, end.p50_ms), (0.99, end.p99_ms)):
        name = f"lateness p{share * 100:.0f}, ms, by our statistics"
        if not exact_ms or said_ms is None:
            findings.append(Finding(name, "–", "–", None))
            continue
        least_ms, own_ms, most_ms = (
            percentile(exact_ms, at) for at in (share - RANK, share, share + RANK)
        )
        least_ms = min(least_ms, own_ms * (1 - BUCKET)) - TASK_MS
        most_ms = max(most_ms, own_ms * (1 + BUCKET)) + TASK_MS
        findings.append(
            Finding(
                name,
                f"{said_ms:.2f}",
                f"{own_ms:.2f} by the ledger, {max(least_ms, 0):.2f} to {most_ms:.2f}",
                least_ms <= said_ms <= most_ms,
            )
        )
    return findings


def _of_growth(samples: Sequence[Sample]) -> list[Finding]:
    processes = sorted(set(samples[-1].handles) if samples else ())
    findings = [
        _count(samples, "keys, without those of results and statistics", _fixed),
        _size(samples, "keys of results", lambda s: float(s.keys.get(RESULTS, 0)), 1),
        _size(
            samples,
            "the server's memory without statistics, MiB",
            lambda s: float(s.used_memory - s.statistics_memory),
            2**20,
        ),
    ]
    for name in processes:
        # A process that was replaced has no samples before; then it is not judged, and counted below.
        if all(name in sample.rss for sample in samples):
            findings += [
                _size(samples, f"memory of {name}, MiB", _getter("rss", name), 2**20),
                _count(samples, f"open handles of {name}", _getter("handles", name)),
            ]
    findings.append(_count(samples, "clients", lambda s: float(s.clients)))
    return findings


def _fixed(sample: Sample) -> float:
    left_out = sum(sample.keys.get(kind, 0) for kind in (RESULTS, *GROWING))
    return float(sample.dbsize - left_out)


def _getter(column: str, name: str) -> Callable[[Sample], float]:
    return lambda sample: float(getattr(sample, column)[name])


def _count(
    samples: Sequence[Sample], name: str, value: Callable[[Sample], float]
) -> Finding:
    grown = growth(samples, value)
    if grown is None:
        return Finding(f"{name}: growth", "–", f"≤ {FLAT_COUNT:g}", None)
    first, more = grown
    return Finding(
        f"{name}: growth",
        f"{more:+.1f} on {first:,.0f}",
        f"≤ {FLAT_COUNT:g}",
        more <= FLAT_COUNT,
    )


def _size(
    samples: Sequence[Sample], name: str, value: Callable[[Sample], float], unit: int
) -> Finding:
    grown = growth(samples, value)
    if grown is None:
        return Finding(f"{name}: growth", "–", f"≤ {FLAT:.0%}", None)
    first, more = grown
    return Finding(
        f"{name}: growth",
        f"{more / first if first else 0.0:+.1%} on {first / unit:,.1f}",
        f"≤ {FLAT:.0%}",
        more <= FLAT * first,
    )


def growth(
    samples: Sequence[Sample], value: Callable[[Sample], float]
) -> tuple[float, float] | None:
    """Return where the regression line of the second half begins, and by how much it rises; None: too few samples."""
    half = [s for s in samples if s.at_s >= samples[-1].at_s / 2] if samples else []
    if len(half) < LEAST_SAMPLES:
        return None
    times = [sample.at_s for sample in half]
    slope, intercept = statistics.linear_regression(
        times, [value(sample) for sample in half]
    )
    return intercept + slope * times[0], slope * (times[-1] - times[0])


def _of_the_end(samples: Sequence[Sample], end: End) -> list[Finding]:
    seen = {name for sample in samples for name in sample.rss}
    workers = sum(name.startswith("worker") for name in seen)
    now = sum(name.startswith("worker") for name in samples[0].rss) if samples else 0
    return [
        _exactly("worker processes that were replaced", workers - now, 0),
        *(
            _exactly(f"exit status of the {name}", status, 0)
            for name, status in end.statuses.items()
        ),
        *(
            Finding(f"{name} of the server", said, "ok", said == "ok")
            for name, said in end.aof.items()
        ),
        *(Finding("went wrong", error, "nothing", False) for error in end.errors),
    ]
