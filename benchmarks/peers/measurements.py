"""The measurements. Each writes a row for every figure it gets; README.md says what they do."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.peers import figures
from benchmarks.peers.processes import Workers, sleep_until
from benchmarks.peers.records import END, START, Record
from benchmarks.peers.server import MeasuredServer
from benchmarks.peers.subject import SETTLE_S, Subject, SubjectError

Row = dict[str, Any]

#: How far away jobs are due that are not to run, in seconds.
FAR_S = 86_400
#: Offers are measured no longer than this.
OFFER_S = 10.0
#: Offering may take so many times as long as it did before.
PATIENCE = 2.0
#: Between the end of offering, as late as that, and the first due time.
LEAD_S = 2.0
#: A worker that runs nothing for so long has stopped.
STALLED_S = 20.0
#: How long after the last due time a job is waited for: the slowest of the schedulers looks every 30 s.
OVERDUE_S = 35.0
#: Twice started jobs would show within this.
TAIL_S = 1.0
#: Off the whole second, so that nobody's look is in phase.
OFF_THE_SECOND_S = 0.137
#: How long an idle worker is watched.
IDLE_S = 5.0
#: Pending jobs of memory: the first of these that can be filled.
MEMORY_JOBS = (100_000, 10_000)
STRESS_QUEUES, STRESS_JOBS = 3, 1_000
CRASH_JOBS, CRASH_WORK_MS = 200, 50
#: Jobs offered one by one while others wait.
GROWTH_OFFERS = 1_000
#: Jobs far away have numbers from here on.
FAR_INDEX = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much is measured."""

    #: Jobs of offers, bulk, drain and burst.
    n: int = 5_000
    #: Over how long the jobs of lateness fall due.
    seconds: float = 10.0
    #: Layouts of every test but drain, which has 1 and 2, and of memory, growth and crash, which have 1.
    layouts: tuple[str, ...] = ("1",)
    #: Far-future jobs that wait while growth measures; with none, burst and offers do.
    pending: tuple[int, ...] = (100_000, 1_000_000)
    #: A system that drains more slowly gets fewer jobs, so that they take no longer than this.
    drain_s: float = 20.0
    #: Growth leaves out what takes longer to fill; memory takes fewer jobs from a third of it on.
    fill_s: float = 90.0
    #: How long a redelivery is waited for. One that is documented to take longer, or not to come, is not.
    crash_s: float = 45.0
    #: How long the other jobs are waited for then.
    rest_s: float = 10.0


class Spent(NamedTuple):
    """CPU seconds of the server and the workers, and the server's commands."""

    server_s: float
    commands: int
    workers_s: float


class Meter:
    """What the server and the workers spend from here on; workers that start later count from their start."""

    def __init__(self, server: MeasuredServer, workers: Workers | None = None) -> None:
        self._server = server
        self.workers = workers
        self._before = self._now()

    def _now(self) -> Spent:
        workers_s = self.workers.cpu_s() if self.workers else 0.0
        return Spent(*self._server.reading(), workers_s)

    def spent(self) -> Spent:
        """Return what they have spent."""
        now, before = self._now(), self._before
        return Spent(
            now.server_s - before.server_s,
            now.commands - before.commands - 1,  # our own reading
            now.workers_s - before.workers_s,
        )

    def a_job(self, n: int) -> Row:
        """Return what one of ``n`` jobs cost: commands, and CPU time in µs."""
        spent = self.spent()
        row: Row = {
            "server_us": spent.server_s / n * 1e6,
            "commands": spent.commands / n,
        }
        if self.workers:
            row["worker_us"] = spent.workers_s / n * 1e6
        return row


class Measurements:
    """The tests of one system in one pass."""

    def __init__(
        self,
        subject: Subject,
        server: MeasuredServer,
        options: Options,
        write: Callable[[Row], None],
        labels: Row,
    ) -> None:
        """Have rows written with the labels in front."""
        self._subject = subject
        self._server = server
        self._options = options
        self._write = write
        self._labels = labels
        self._test = ""
        self._offer_rates: dict[str, float] = {}
        self._drain_rates: dict[str, float | None] = {}

    def run(self, test: str) -> None:
        """Run a test; what fails is a row of its own, and the others go on."""
        self._test = test
        try:
            TESTS[test](self)
        except SubjectError as error:
            self._row(error=str(error))
        finally:
            self._subject.stop()

    def _row(self, **row: Any) -> None:
        self._write({"test": self._test, **self._labels, **row})

    def _layouts(self, *wanted: str) -> list[str]:
        return [
            layout
            for layout in self._subject.description["layouts"]
            if layout in wanted
        ]

    # What is needed to size a test.

    def _offer_rate(self, mode: str) -> float:
        if mode not in self._offer_rates:
            self._subject.reset()
            self._offer(200, mode)
            self._offer_rates[mode] = self._offer(500, mode)
        return self._offer_rates[mode]

    def _offer(self, n: int, mode: str, start: int = FAR_INDEX) -> float:
        """Offer jobs that are due in a day; return how many a second."""
        reply = self._subject.enqueue(
            n, {"kind": "at", "t": time.time() + FAR_S}, mode, start=start
        )
        return n / (reply["t1"] - reply["t0"])

    def _drain_rate(self, layout: str) -> float | None:
        if layout not in self._drain_rates:
            self._drain_rates[layout] = self._drain(layout, 300)["rate"]
            self._subject.stop()
        return self._drain_rates[layout]

    def _burst_size(self, layout: str) -> int:
        rate = self._drain_rate(layout)
        return scaled(self._options.n, rate, self._options.drain_s)

    def _fill_s(self, n: int) -> float:
        """Return how long it takes to fill a queue with ``n`` jobs."""
        return n / self._offer_rate(self._subject.fastest)

    # Offers.

    def offers(self) -> None:
        self._measure_offers("single")

    def bulk(self) -> None:
        if self._subject.description["bulk"]:
            self._measure_offers("bulk")

    def _measure_offers(self, mode: str) -> None:
        n = scaled(self._options.n, self._offer_rate(mode), OFFER_S)
        self._subject.reset()
        self._offer(20, mode)  # the connection and the scripts
        meter = Meter(self._server)
        rate = self._offer_rates[mode] = self._offer(n, mode)
        self._row(n=n, rate=rate, **meter.a_job(n))

    # What is due already, and what falls due at once.

    def drain(self) -> None:
        for layout in self._layouts("1", "2"):
            row = self._drain(layout, self._options.n)
            self._drain_rates[layout] = row["rate"]
            self._row(layout=layout, **row)
            self._subject.stop()

    def _drain(self, layout: str, n: int) -> Row:
        subject = self._subject
        subject.reset()
        subject.enqueue(n, {"kind": "now"}, subject.fastest)
        meter = Meter(self._server)
        meter.workers = subject.start(layout)
        subject.wait(1, time.time() + STALLED_S)
        subject.wait(n, time.time() + self._options.drain_s, idle_s=STALLED_S)
        costs = meter.a_job(n)
        time.sleep(TAIL_S)
        starts = sorted(
            record.at for record in subject.records() if record.kind == START
        )
        seen = len({record.index for record in subject.records()})
        if seen < n:  # it was stopped in the middle
            costs = {}
        return {
            "n": n,
            "seen": seen,
            "twice": len(starts) - seen,
            "rate": figures.rate(starts),
            **costs,
        }

    def burst(self) -> None:
        for layout in self._layouts(*self._options.layouts):
            n = self._burst_size(layout)
            self._offer_rate(self._subject.fastest)
            self._subject.reset()
            ready_s = self._start_ready(layout)
            self._row(layout=layout, ready_s=ready_s, **self._burst(n))

    def _start_ready(self, layout: str) -> float:
        """Start a worker; return how long its first job took from there, in seconds."""
        begun = time.monotonic()
        self._subject.start(layout)
        self._subject.wait_ready(settle_s=0)
        ready_s = time.monotonic() - begun
        time.sleep(SETTLE_S)
        return ready_s

    def _burst(self, n: int) -> Row:
        """Have ``n`` jobs fall due at one whole second."""
        row = self._fall_due(n)
        if row["seen"] == n:
            row["rate"] = n / (row["most_ms"] / 1000)
        return row

    def _fall_due(self, n: int, step_s: float = 0.0, off_s: float = 0.0) -> Row:
        """Return how late ``n`` jobs start, and what they cost; the worker is up, and all are offered before.

        ``step_s`` is between two due times, ``off_s`` between a whole second and the first of them.
        """
        subject = self._subject
        first, begin = self._offer_in_time(n, step_s, off_s)
        sleep_until(begin - 0.25)
        meter = Meter(self._server, subject.workers)
        end = begin + n * step_s
        subject.wait(first + n, end + OVERDUE_S + self._options.drain_s)
        costs = meter.a_job(n)
        time.sleep(TAIL_S)
        own = range(first, first + n)
        row = figures.lateness([r for r in subject.records() if r.index in own], n)
        return {**row, **costs} if row["seen"] == n else row

    def _offer_in_time(self, n: int, step_s: float, off_s: float) -> tuple[int, float]:
        """Offer ``n`` jobs; return the first one's number, and its due time in epoch seconds.

        Raises:
            SubjectError: again and again the first was due before the last was offered.
        """
        subject = self._subject
        takes_s = n / self._offer_rate(subject.fastest)
        for attempt in range(3):
            lead_s = takes_s * PATIENCE + LEAD_S * (attempt + 1)
            begin = math.ceil(time.time() + lead_s) + off_s
            due = {"kind": "uniform", "t": begin, "step": step_s}
            offered = subject.enqueue(n, due, subject.fastest, start=attempt * n)
            if offered["t1"] < begin - 0.25:
                return attempt * n, begin
            # They run, and nothing counts them.
            end = begin + n * step_s
            subject.wait((attempt + 1) * n, end + OVERDUE_S + self._options.drain_s)
        took_s = offered["t1"] - offered["t0"]
        raise SubjectError(
            f"offering took {took_s:.1f} s where {takes_s:.1f} s were expected"
        )

    # How late.

    def lateness(self) -> None:
        for layout in self._layouts(*self._options.layouts):
            for per_s in (50, 500):
                rate = self._drain_rate(layout)
                if rate is None or rate < per_s:
                    self._row(
                        layout=layout,
                        per_s=per_s,
                        skipped=f"it runs {rate or 0:,.0f} jobs/s at most",
                    )
                else:
                    self._row(
                        layout=layout, per_s=per_s, **self._lateness(layout, per_s)
                    )
                self._subject.stop()

    def _lateness(self, layout: str, per_s: int) -> Row:
        n = int(per_s * self._options.seconds)
        self._offer_rate(self._subject.fastest)
        self._subject.reset()
        self._subject.start(layout)
        self._subject.wait_ready()
        return self._fall_due(n, 1 / per_s, OFF_THE_SECOND_S)

    def stress(self) -> None:
        for layout in self._layouts(*self._options.layouts):
            subject = self._subject
            subject.reset()
            subject.start(layout, STRESS_QUEUES)
            subject.wait_ready(STRESS_QUEUES)
            n = STRESS_QUEUES * STRESS_JOBS
            offered = subject.ask(
                "paced",
                queues=STRESS_QUEUES,
                per_queue=STRESS_JOBS,
                interval=0.01,
                least_s=1.0,
                most_s=5.0,
                seed=1,
            )
            subject.wait(n, offered["t1"] + 5 + OVERDUE_S, idle_s=OVERDUE_S)
            time.sleep(TAIL_S)
            self._row(
                layout=layout,
                offered_s=offered["t1"] - offered["t0"],
                lag_ms=offered["lag"] * 1000,
                **figures.lateness(subject.records(), n),
            )

    # What waits.

    def memory(self) -> None:
        subject = self._subject
        most_s = self._options.fill_s / 3
        n = next((n for n in MEMORY_JOBS if self._fill_s(n) <= most_s), MEMORY_JOBS[-1])
        empty = self._idle()
        subject.reset()
        self._offer(10, subject.fastest)
        before = self._stored()
        self._offer(n, subject.fastest)
        stored = self._stored()
        workers = subject.start("1")
        self._wait_steady()
        after = self._stored()
        self._row(
            n=n,
            bytes=(stored - before) / n,
            bytes_with_worker=(after - before) / n,
            store=subject.description["store"],
            **{f"empty_{key}": value for key, value in empty.items()},
            **{
                f"pending_{key}": value
                for key, value in self._watched(workers.memory_mib()).items()
            },
        )

    def _stored(self) -> int:
        """Return the bytes of the server, and of a peer's own store."""
        own = (
            self._subject.ask("bytes")["bytes"]
            if self._subject.description["store"]
            else 0
        )
        return self._server.used_memory() + int(own)

    def _idle(self) -> Row:
        self._subject.reset()
        workers = self._subject.start("1")
        self._subject.wait_ready()
        return self._watched(workers.memory_mib())

    def _wait_steady(self) -> None:
        """Return once the workers' memory has stopped growing: some take all that waits into it."""
        workers = self._subject.workers
        assert workers is not None
        deadline = time.monotonic() + 60
        grown: list[float] = []
        while time.monotonic() < deadline:
            time.sleep(0.5)
            grown.append(workers.memory_mib())
            if len(grown) > 8 and abs(grown[-1] - grown[-6]) < 0.005 * grown[-1] + 0.2:
                return

    def _watched(self, memory_mib: float) -> Row:
        """Watch a worker that has nothing to do."""
        workers = self._subject.workers
        assert workers is not None
        meter = Meter(self._server, workers)
        begun = time.monotonic()
        time.sleep(IDLE_S)
        spent, seconds = meter.spent(), time.monotonic() - begun
        return {
            "pss_mib": memory_mib,
            "commands_a_s": spent.commands / seconds,
            "worker_percent": spent.workers_s / seconds * 100,
            "server_percent": spent.server_s / seconds * 100,
        }

    def growth(self) -> None:
        subject = self._subject
        n = self._burst_size("1")
        for pending in self._options.pending:
            if self._fill_s(pending) > self._options.fill_s:
                self._row(
                    pending=pending,
                    skipped=f"it takes over {self._options.fill_s:.0f} s to fill",
                )
                continue
            subject.reset()
            self._offer(pending, subject.fastest)
            offer_rate = self._offer(GROWTH_OFFERS, "single", FAR_INDEX * 2)
            ready_s = self._start_ready("1")
            self._row(
                pending=pending,
                offer_rate=offer_rate,
                ready_s=ready_s,
                **self._burst(n),
            )
            subject.stop()

    # What is killed.

    def crash(self) -> None:
        for variant in self._subject.description["crash"]:
            self._row(variant=variant, **self._crash(variant))

    def _crash(self, variant: str) -> Row:
        subject, n = self._subject, CRASH_JOBS
        promised_s = subject.description["redelivered_s"][variant]
        is_promised = promised_s is not None and promised_s <= self._options.crash_s
        watch_s = self._options.crash_s if is_promised else self._options.rest_s
        subject.reset(variant)
        subject.start("1")
        subject.wait_ready()
        due = float(math.ceil(time.time() + LEAD_S))
        subject.enqueue(n, {"kind": "at", "t": due}, work_ms=CRASH_WORK_MS)
        self._wait_half_started(due)
        subject.kill_workers()
        before = subject.records()
        restarted = time.time()
        subject.start("1")
        probe_at = restarted + 2
        while time.time() < restarted + watch_s and _ended(subject.records()) < n:
            # A live queue has some traffic, and some peers look for dead jobs only when a message arrives.
            if time.time() > probe_at:
                subject.probe()
                probe_at += 2
            time.sleep(0.05)
        time.sleep(TAIL_S)
        watched = {"watch_s": watch_s, "promised_s": promised_s}
        return {**watched, **figures.crash(before, subject.records(), n, restarted)}

    def _wait_half_started(self, due: float) -> None:
        deadline = due + OVERDUE_S + STALLED_S
        while time.time() < deadline:
            if (
                len({r.index for r in self._subject.records() if r.kind == START})
                >= CRASH_JOBS // 2
            ):
                return
            time.sleep(0.002)
        raise SubjectError("half of the jobs never started")


def _ended(found: list[Record]) -> int:
    return len({record.index for record in found if record.kind == END})


def scaled(n: int, rate: float | None, seconds: float) -> int:
    """Return ``n``, or fewer where that would take longer than ``seconds``; hundreds of them, and 200 at least."""
    if not rate or n / rate <= seconds:
        return n
    return min(n, max(200, int(rate * seconds) // 100 * 100))


#: In the order in which they run: later ones are sized by what earlier ones found.
TESTS: dict[str, Callable[[Measurements], None]] = {
    "offers": Measurements.offers,
    "bulk": Measurements.bulk,
    "drain": Measurements.drain,
    "burst": Measurements.burst,
    "lateness": Measurements.lateness,
    "stress": Measurements.stress,
    "memory": Measurements.memory,
    "growth": Measurements.growth,
    "crash": Measurements.crash,
}
