"""Figures from the records of jobs."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.peers.records import END, START, Record

#: A job that starts sooner than this before it is due is early. Clocks and roundings are no finer.
EARLY_MS = 1.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of values that are in order, between two of them where it lies there."""
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def lateness(records: Iterable[Record], n: int) -> dict[str, Any]:
    """Return how late ``n`` jobs started, in ms; how many were early, started twice, or did not start.

    Of a job that started twice the first start counts.
    """
    first: dict[int, float] = {}
    twice = 0
    for record in records:
        if record.kind != START:
            continue
        late_ms = (record.at - record.due) * 1000
        twice += record.index in first
        first[record.index] = min(late_ms, first.get(record.index, late_ms))
    counted = {"n": n, "seen": len(first), "lost": n - len(first), "twice": twice}
    if not first:
        return counted
    ordered = sorted(first.values())
    return {
        **counted,
        "early": sum(late_ms < -EARLY_MS for late_ms in ordered),
        "least_ms": ordered[0],
        "p50_ms": percentile(ordered, 0.5),
        "p95_ms": percentile(ordered, 0.95),
        "p99_ms": percentile(ordered, 0.99),
        "most_ms": ordered[-1],
        "farthest_ms": max(abs(ordered[0]), abs(ordered[-1])),
    }


def rate(starts: Sequence[float]) -> float | None:
    """Return jobs a second from the first start to the last; starts in order, in seconds."""
    if len(starts) < 2 or starts[-1] == starts[0]:
        return None
    return (len(starts) - 1) / (starts[-1] - starts[0])


def crash(
    before: Sequence[Record], after: Sequence[Record], n: int, restarted: float
) -> dict[str, Any]:
    """Return what became of ``n`` jobs whose workers were killed.

    ``before`` are the records up to the kill, ``after`` all of them; ``restarted`` is when new workers began. Lost is
    what was in flight and has not ended.
    """
    started = {r.index for r in before if r.kind == START}
    ended = {r.index for r in before if r.kind == END}
    in_flight = started - ended
    ended_after = {r.index for r in after if r.kind == END}
    starts: dict[int, list[float]] = {}
    for record in after:
        if record.kind == START:
            starts.setdefault(record.index, []).append(record.at)
    again = sorted(
        min(late) - restarted
        for i in in_flight
        if (late := [at for at in starts[i] if at > restarted])
    )
    rest = [starts[i][0] - restarted for i in starts.keys() - started]
    return {
        "n": n,
        "in_flight": len(in_flight),
        "lost": len(in_flight - ended_after),
        "never_ended": n - len(ended_after),
        "never_started": n - len(starts),
        "twice": sum(len(times) > 1 for times in starts.values()),
        "ended_and_again": sum(len(starts[i]) > 1 for i in ended),
        "again": len(again),
        "again_last_s": again[-1] if again else None,
        "rest_last_s": max(rest, default=None),
    }
