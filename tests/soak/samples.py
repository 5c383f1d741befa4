"""Samples of a soak for tests: each as the one before, but for what a test changes."""

from collections.abc import Callable

from benchmarks.soak.sampling import MIB, Sample

COUNT = 40


def samples(change: Callable[[Sample, float], None] | None = None) -> list[Sample]:
    """Return samples of ten minutes, with a change that is told how far each is, from 0 to 1."""
    found = []
    for place in range(1, COUNT + 1):
        sample = Sample(
            at_s=15.0 * place,
            stored_a_second=200.0,
            ended_a_second=199.0,
            waiting=4_000,
            p50_ms=0.8,
            p99_ms=9.0,
            ledger_p50_ms=0.9,
            ledger_p99_ms=9.5,
            ledger_most_ms=40.0,
            keys={"delayq_result": 240, "delayq_leases": 4, "delayq_locators": 60},
            used_memory=7 * MIB,
            statistics_memory=MIB // 4,
            aof_size=40 * MIB,
            clients=23,
            longest_call_ms=1.2,
            rss={"server": 16 * MIB, "worker 7": 60 * MIB, "worker 8": 61 * MIB},
            handles={"server": 33, "worker 7": 23, "worker 8": 24},
            overviews=1,
            overview_ms=12.0,
            overview_most_ms=14.0,
            load=1.0,
        )
        if change is not None:
            change(sample, place / COUNT)
        found.append(sample)
    return found
