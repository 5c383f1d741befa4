"""``python -m benchmarks.soak``: steady load for an hour, and whether anything grows, is lost, runs twice or runs early.

A server with an append-only file, a worker of two processes with the defaults, and a producer that schedules twenty tasks
at a steady rate on four queues: some fail, some die, some have unique keys, limits, priorities, results, progress or
schedules; some are cancelled or moved. With ``--shards``, there is one queue instead, and each of its shards lies on a node
of its own in a cluster. The producer and the tasks write a ledger of their own. Every 15 s a sample is taken.

Ctrl-C ends it with what it has. The exit status is 1 if a finding does not hold.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from redis.crc import key_slot

from benchmarks import bench
from benchmarks.peers.plots import THEMES
from benchmarks.soak.kinds import queue_names
from benchmarks.soak.ledger import Event, Ledger
from benchmarks.soak.picture import draw
from benchmarks.soak.sampling import Sample, Sampler, Watcher, timed_lateness
from benchmarks.soak.verdict import End, Finding, judge
from django_delayq.core.shards import MOST_SHARDS, shard_name
from tests.clusters import TestCluster
from tests.polling import wait_until
from tests.servers import Server, available_kinds

PROCESSES = 2
#: A server that keeps what it has, as deploy.md has it.
LASTING = {"appendonly": "yes", "appendfsync": "everysec"}
#: For how long the limit is measured, if no rate is given.
LIMIT_S = 10.0
#: Until then caches are cold.
LIMIT_AFTER_S = 3.0
#: After the last job is due: for retries, and for a machine that is busy.
DRAIN_S = 120.0


class Report(msgspec.Struct):
    """What a soak leaves behind, as JSON."""

    began: str
    seconds: float
    rate: float
    queues: int
    #: The shards of the only queue, each on a node of its own; None: it has none.
    shards: int | None
    #: The longest delay, seconds.
    longest_s: float
    server: str
    jobs: int
    is_interrupted: bool
    samples: list[Sample]
    findings: list[Finding]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument(
        "--rate", type=float, help="jobs a second; by default half of what is measured"
    )
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--queues", type=int, default=4)
    layout.add_argument(
        "--shards",
        type=_number_of_shards,
        help="one queue of so many shards, each on a node of its own",
    )
    parser.add_argument("--every", type=float, default=15, help="seconds a sample")
    parser.add_argument("--longest", type=float, default=300, help="longest delay, s")
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(".cache/soak/soak"),
        help="path without suffix",
    )
    options = parser.parse_args()
    with (
        _interrupts() as interrupts,
        tempfile.TemporaryDirectory(prefix="dq-soak-") as folder,
        _serving(options) as servers,
    ):
        try:
            rate = options.rate
            if rate is None:
                with _setting(
                    servers, Path(folder) / "limit", 1.0, interrupts
                ) as limit:
                    rate = limit.measure() / 2
                _say(f"half of the limit is {rate:,.0f} jobs a second")
                for node in nodes_of(servers):
                    node.client().flushall()
            report = soak(options, servers, rate, Path(folder) / "soak", interrupts)
        except (Interrupted, ProcessEnded) as error:
            sys.exit(f"there is nothing to judge: {error}")
    publish(report, options.output)
    if any(finding.holds is False for finding in report.findings):
        sys.exit(1)


def _number_of_shards(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text) <= MOST_SHARDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of shards; give 2 to {MOST_SHARDS}, and leave it out for a single server"
        )
    return int(text)


def soak(
    options: argparse.Namespace,
    servers: Server | TestCluster,
    rate: float,
    folder: Path,
    interrupts: int,
) -> Report:
    """Run it, and return what was found."""
    samples: list[Sample] = []
    errors: list[str] = []
    is_interrupted = False
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    with _setting(servers, folder, options.longest, interrupts) as setting:
        setting.begin(rate)
        try:
            at_s = 0.0
            while at_s < options.seconds:
                setting.sleep(min(options.every, options.seconds - at_s))
                samples.append(setting.sample())
                at_s = samples[-1].at_s
                _tell(samples[-1], options.seconds)
            setting.stop_producing()
            _say("the producer has stopped; what waits comes to its end")
            setting.drain(options.longest + DRAIN_S)
        except Interrupted:
            is_interrupted = True
            _say("interrupted; this is the verdict on what there is")
        except ProcessEnded as error:
            errors.append(str(error))
        end = setting.end(errors)
        ledger = setting.ledger
    return Report(
        began,
        samples[-1].at_s if samples else 0.0,
        rate,
        len(queue_names()),
        options.shards,
        options.longest,
        setting.server_name,
        ledger.events[Event.STORED],
        is_interrupted,
        samples,
        judge(samples, ledger, end),
    )


def publish(report: Report, output: Path) -> None:
    """Write samples and pictures beside each other, and print the verdict."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_bytes(msgspec.json.encode(report))
    if report.samples:
        title = f"{report.seconds / 60:.0f} minutes of soak"
        subtitle = (
            f"{report.jobs:,} jobs on {_layout(report)}, {report.server};"
            f" a worker of {PROCESSES} processes; {report.began}"
        )
        for name, theme in THEMES.items():
            path = output.with_name(f"{output.name}-{name}.svg")
            path.write_text(draw(report.samples, title, subtitle, theme))
    bench.table(
        ("", "figure", "bar", "holds"),
        [
            (f.name, f.figure, f.bar, {True: "yes", False: "NO", None: "?"}[f.holds])
            for f in report.findings
        ],
    )


def _layout(report: Report) -> str:
    if report.shards is None:
        return f"{report.queues} queues of one server"
    return f"a queue of {report.shards} shards, each on a node of its own"


class Interrupted(Exception):
    """Raised when somebody wants the soak to end."""


class ProcessEnded(Exception):
    """Raised when a process has ended that should not have."""


@contextmanager
def _interrupts() -> Iterator[int]:
    """Have the first Ctrl-C or SIGTERM make a file readable, and the second one interrupt whatever is done."""
    reading, writing = os.pipe()

    def note(number: int, frame: FrameType | None) -> None:
        os.write(writing, b"!")
        signal.signal(number, signal.default_int_handler)

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


class Setting:
    """The servers and the processes of one run."""

    def __init__(
        self,
        servers: Server | TestCluster,
        folder: Path,
        longest_s: float,
        worker: subprocess.Popen[bytes],
        interrupts: int,
    ) -> None:
        self._servers = servers
        self._folder = folder
        self._longest_s = longest_s
        self._worker = worker
        #: Files that become readable when somebody wants it to end, or a process ends.
        self._interrupts = interrupts
        self._ends: dict[int, str] = {}
        self._client = servers.client()
        self._nodes = [node.client() for node in nodes_of(servers)]
        self._discarded = 0
        self.ledger = Ledger(folder)
        self.server_name = f"{servers.kind} {'.'.join(map(str, servers.version))}"

    def begin(self, rate: float) -> None:
        """Start the producer once all worker processes claim. Time counts from its first job.

        Raises:
            Interrupted, ProcessEnded: before that.
        """
        from django_delayq.jobs.workers import workers

        wait_until(
            lambda: len(workers()) == PROCESSES, description="the worker has begun"
        )
        self._producer = subprocess.Popen(
            [
                sys.executable,
                *("-m", "benchmarks.soak.producing"),
                *(str(rate), str(self._longest_s)),
            ],
            cwd=bench.ROOT,
            env=bench.environment(bench.ROOT),
            stdin=subprocess.PIPE,
        )
        for name, process in (("producer", self._producer), ("worker", self._worker)):
            self._ends[os.pidfd_open(process.pid)] = name
        while not self.ledger.events[Event.STORED]:
            self.sleep(0.05)
            self.ledger.read()
        self._watcher = Watcher()
        self._watcher.start()
        pids = {
            **names_of(nodes_of(self._servers)),
            "producer": self._producer.pid,
            "supervisor": self._worker.pid,
        }
        self._sampler = Sampler(self._nodes, self.ledger, self._watcher, pids)

    def sleep(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            Interrupted, ProcessEnded: before it has passed.
        """
        ready, _, _ = select.select([self._interrupts, *self._ends], [], [], seconds)
        if self._interrupts in ready:
            raise Interrupted("it was interrupted")
        for file in ready:
            raise ProcessEnded(f"the {self._ends[file]} has ended by itself")

    def sample(self) -> Sample:
        """Take a sample, and discard what is dead, as somebody does who looks after it."""
        from django_delayq import find_jobs

        sample = self._sampler.take()
        self._discarded += find_jobs(state="dead").discard().won
        return sample

    def measure(self) -> float:
        """Return how many jobs a second come to their end if the producer schedules as fast as it goes."""
        self.begin(0)
        self.sleep(LIMIT_AFTER_S)
        self.sample()
        self.sleep(LIMIT_S)
        ended = self.sample().ended_a_second
        self.end([])
        return ended

    def stop_producing(self) -> None:
        """End the producer; again, it does nothing."""
        assert self._producer.stdin is not None
        self._producer.stdin.close()
        self._producer.wait()
        self._forget("producer")

    def _forget(self, name: str) -> None:
        for file in [file for file, ends in self._ends.items() if ends == name]:
            del self._ends[file]
            os.close(file)

    def drain(self, timeout_s: float) -> None:
        """Wait until every job has come to its end; what has not by then is lost."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.ledger.read()
            if not self.ledger.waiting:
                return
            self.sleep(0.2)

    def end(self, errors: Sequence[str]) -> End:
        """Stop everything but the server, and say what there is then."""
        from django_delayq import conf, find_jobs
        from django_delayq.features.statistics.api import statistics_totals

        self.stop_producing()
        self._watcher.stop()
        overview = self._watcher.error
        self._worker.terminate()
        self._worker.wait()
        self._forget("worker")
        self.ledger.read()
        lateness = timed_lateness()
        persistence = [node.info("persistence") for node in self._nodes]
        schedules = sum(
            self._client.zcard(queue.keys.periods)
            for queue in conf.get_settings().queues.values()
        )
        living = ["scheduled", "due", "running", "retrying", "held", "quarantined"]
        totals = statistics_totals().values()
        return End(
            waiting_on_server=find_jobs(state=living).count() - schedules,
            dead=self._discarded + find_jobs(state="dead").count(),
            runs=sum(each.queue.runs for each in totals),
            p50_ms=lateness.percentile(50),
            p99_ms=lateness.percentile(99),
            statuses={
                "producer": self._producer.returncode,
                "worker": self._worker.returncode,
            },
            aof={
                name: " ".join(sorted({each[name] for each in persistence}))
                for name in ("aof_last_write_status", "aof_last_bgrewrite_status")
            },
            errors=[*errors, *([f"the overview: {overview!r}"] if overview else ())],
        )


def nodes_of(servers: Server | TestCluster) -> list[Server]:
    return servers.nodes if isinstance(servers, TestCluster) else [servers]


def names_of(nodes: Sequence[Server]) -> dict[str, int]:
    """Return the processes of servers by names."""
    if len(nodes) == 1:
        return {"server": nodes[0].pid}
    return {f"node {place}": node.pid for place, node in enumerate(nodes, 1)}


@contextmanager
def _serving(options: argparse.Namespace) -> Iterator[Server | TestCluster]:
    lasting = LASTING | bench.SLOW_LOG
    cluster = None
    if options.shards is None:
        os.environ["DELAYQ_SOAK_QUEUES"] = str(options.queues)
    else:
        os.environ["DELAYQ_SOAK_SHARDS"] = str(options.shards)
        cluster = TestCluster(
            options.server, primaries=options.shards, replicas=0, options=lasting
        )
    servers = cluster or Server(options.server, lasting)
    try:
        servers.start()
        if cluster is not None:
            spread(cluster)
        os.environ["DELAYQ_SOAK_URL"] = servers.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.soak.settings"
        import django

        django.setup()
        yield servers
    finally:
        servers.stop()


def spread(cluster: TestCluster) -> None:
    """Give each node a shard: by their names, two may lie on one node, and another would have nothing to do."""
    (queue,) = queue_names()
    for number, target in enumerate(cluster.nodes):
        name = shard_name(queue, number)
        source = cluster.holder_of(name)
        if source is not target:
            cluster.move(key_slot(name.encode()), source, target)


@contextmanager
def _setting(
    servers: Server | TestCluster, folder: Path, longest_s: float, interrupts: int
) -> Iterator[Setting]:
    folder.mkdir()
    os.environ["DELAYQ_SOAK_LEDGER"] = str(folder)
    with bench.working("--processes", str(PROCESSES), "--verbosity", "0") as worker:
        yield Setting(servers, folder, longest_s, worker, interrupts)


def _tell(sample: Sample, seconds: float) -> None:
    late = "–" if sample.p99_ms is None else f"{sample.p99_ms:.1f}"
    _say(
        f"{sample.at_s:6.0f} of {seconds:.0f} s: {sample.ended_a_second:.0f} jobs/s, {sample.waiting:,} wait,"
        f" p99 {late} ms, {sample.dbsize} keys, {sample.used_memory / 2**20:.1f} MiB,"
        f" {sample.clients} clients, load {sample.load:.1f}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
