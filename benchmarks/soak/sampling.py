"""Samples of a soak: what the server, the processes, our own statistics and the ledger say at one moment."""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis

from benchmarks import bench
from benchmarks.soak.kinds import KINDS
from benchmarks.soak.ledger import Event, Ledger

#: Seconds between two looks at the overview.
OVERVIEW_S = 10.0
MIB = 2**20
#: Kinds of keys that a soak adds to by design: figures of 8 hours and 90 days. Those of hours are there when one ends.
GROWING = tuple(
    f"delayq_{what}" for what in ("minute", "minutes", "hour", "hours", "totals")
)
_TAG = re.compile(r":?\{[^}]*\}(:.*)?")


class Sample(msgspec.Struct):
    """One moment, and the time since the sample before it. Times are in ms, memory in bytes."""

    #: Seconds since the soak began.
    at_s: float
    stored_a_second: float
    ended_a_second: float
    #: Jobs that have not come to their end.
    waiting: int
    #: Of jobs that began since the sample before: by our own statistics and by the ledger; None: none did.
    p50_ms: float | None
    p99_ms: float | None
    ledger_p50_ms: float | None
    ledger_p99_ms: float | None
    ledger_most_ms: float | None
    #: Keys of all servers by kind, without the name of the queue. So are memory, file and clients those of all.
    keys: dict[str, int]
    used_memory: int
    #: Of that, what our statistics take.
    statistics_memory: int
    aof_size: int
    clients: int
    #: The longest call that held the server.
    longest_call_ms: float
    #: By process: server or nodes, producer, supervisor, and worker processes by their pids.
    rss: dict[str, int]
    handles: dict[str, int]
    #: Looks at the overview: how many, and how long the median and the longest took.
    overviews: int
    overview_ms: float | None
    overview_most_ms: float | None
    #: Of the machine, over the last minute.
    load: float

    @property
    def dbsize(self) -> int:
        return sum(self.keys.values())


class Watcher(threading.Thread):
    """Looks at what the overview shows, as somebody who leaves that page open."""

    def __init__(self) -> None:
        super().__init__(name="overview", daemon=True)
        self._is_over = threading.Event()
        self._took_ms: list[float] = []
        #: What went wrong; then nobody looks any more.
        self.error: Exception | None = None

    def run(self) -> None:
        """Look until `stop`."""
        from django_delayq import conf
        from django_delayq.display.overview import look
        from django_delayq.features.statistics.api import tasks_statistics

        queues = list(conf.get_settings().queues.values())
        ahead_ms = [(n + 1) * 60_000 for n in range(96)]
        try:
            while not self._is_over.wait(OVERVIEW_S):
                began = time.perf_counter()
                look(queues, minutes=60, ahead_ms=ahead_ms)
                tasks_statistics(hours=2)
                self._took_ms.append((time.perf_counter() - began) * 1000)
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._is_over.set()
        self.join()

    def taken(self) -> list[float]:
        """Return how long each look took since this was last asked, ms."""
        taken, self._took_ms = self._took_ms, []
        return taken


class Sampler:
    """Takes samples, each of the time since the one before."""

    def __init__(
        self,
        nodes: Sequence[redis.Redis],
        ledger: Ledger,
        watcher: Watcher,
        pids: dict[str, int],
    ) -> None:
        from django_delayq.features.statistics.calls import Histogram

        #: Clients of all servers.
        self._nodes = nodes
        self._ledger = ledger
        self._watcher = watcher
        #: Processes by name; the supervisor's children are found anew each time.
        self._pids = pids
        self._began = self._last = time.monotonic()
        self._late_count = 0
        self._events: Counter[Event] = Counter()
        self._lateness = Histogram()

    def take(self) -> Sample:
        """Take a sample now."""
        now = time.monotonic()
        spent_s, self._last = now - self._last, now
        self._ledger.read()
        events = self._ledger.events - self._events
        self._events = self._ledger.events.copy()
        late_ms = self._ledger.late_ms[self._late_count :]
        self._late_count = len(self._ledger.late_ms)
        lateness = timed_lateness()
        measured = _difference(lateness, self._lateness)
        self._lateness = lateness
        infos: list[dict[str, Any]] = [node.info() for node in self._nodes]
        keys = [
            (node, key) for node in self._nodes for key in node.scan_iter(count=1_000)
        ]
        looks_ms = self._watcher.taken()
        longest_us = max(bench.slowest_us(node)[0] for node in self._nodes)
        for node in self._nodes:
            node.slowlog_reset()
        rss, handles = look_at(
            {**self._pids, **worker_processes(self._pids["supervisor"])}
        )
        return Sample(
            at_s=now - self._began,
            stored_a_second=events[Event.STORED] / spent_s,
            ended_a_second=events[Event.ENDED] / spent_s,
            waiting=len(self._ledger.waiting),
            p50_ms=measured.percentile(50),
            p99_ms=measured.percentile(99),
            ledger_p50_ms=bench.percentile(late_ms, 0.5) if late_ms else None,
            ledger_p99_ms=bench.percentile(late_ms, 0.99) if late_ms else None,
            ledger_most_ms=max(late_ms, default=None),
            keys=dict(Counter(kind_of(key.decode()) for _, key in keys)),
            used_memory=sum(info["used_memory"] for info in infos),
            statistics_memory=sum(
                node.memory_usage(key, samples=0) or 0
                for node, key in keys
                if kind_of(key.decode()) in GROWING
            ),
            aof_size=sum(info["aof_current_size"] for info in infos),
            clients=sum(info["connected_clients"] for info in infos),
            longest_call_ms=longest_us / 1000,
            rss=rss,
            handles=handles,
            overviews=len(looks_ms),
            overview_ms=bench.percentile(looks_ms, 0.5) if looks_ms else None,
            overview_most_ms=max(looks_ms, default=None),
            load=os.getloadavg()[0],
        )


def kind_of(key: str) -> str:
    """Return a key without the name of its queue and, of a result, without the token."""
    return _TAG.sub("", key)


def timed_lateness() -> Any:
    """Return the histogram of how late the jobs of timed tasks began, since the first day."""
    from django_delayq.features.statistics.api import statistics_totals
    from django_delayq.features.statistics.calls import Histogram

    timed = {f"benchmarks.soak.tasks.{kind.task}" for kind in KINDS if kind.is_timed}
    found = Histogram()
    for totals in statistics_totals().values():
        for task, figures in totals.tasks.items():
            if task in timed:
                found.add(figures.lateness)
    return found


def _difference(now: Any, before: Any) -> Any:
    from django_delayq.features.statistics.calls import Histogram

    return Histogram(now.buckets - before.buckets, now.sum_us - before.sum_us)


def worker_processes(supervisor: int) -> dict[str, int]:
    """Return the children of a supervisor by names."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
    return {f"worker {pid}": int(pid) for pid in children.split()}


def look_at(pids: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return by name the bytes of processes that are in memory, and how many files, sockets and pipes are open."""
    rss, handles = {}, {}
    for name, pid in pids.items():
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            count = len(os.listdir(f"/proc/{pid}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended; the verdict says that a process was replaced
        rss[name] = pages * os.sysconf("SC_PAGE_SIZE")
        handles[name] = count
    return rss, handles
