"""``python -m benchmarks.punctual rates|idle|trace``: what it costs to be on time.

``rates``: jobs that are due one by one, evenly spaced: processor time of the worker and of the server a job, calls a job,
lateness. ``idle``: commands a second, and processor time, of a worker that has nothing to do. ``trace``: every command of
one job, from `schedule()` to its end, as the server sees them.
"""

import argparse
import array
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from benchmarks import bench
from tests.servers import available_kinds

RATES = (50, 500)
#: The jobs are scheduled before the first of them is due.
AHEAD_MS = 3_000
#: Processor time is counted from here on: the first jobs find caches cold and the worker's lead unlearned.
WARM_UP_S = 2
TICKS = os.sysconf("SC_CLK_TCK")
#: The jobs of a trace, and how far apart they are.
STREAM = 1_000
STREAM_MS = 2
#: By this time after its start a worker has looked after its queues.
SETTLED_S = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.punctual", description=__doc__
    )
    parser.add_argument("name", choices=("rates", "idle", "trace"))
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument(
        "--rates", type=int, nargs="+", default=RATES, help="jobs a second"
    )
    parser.add_argument(
        "--pending", type=int, default=0, help="jobs far in the future, for idle"
    )
    options = parser.parse_args()
    if options.name == "rates":
        rates(options.server, options.rates, options.seconds)
    elif options.name == "idle":
        idle(options.server, options.seconds, options.pending)
    else:
        trace(options.server)


def rates(kind: str, wanted: Sequence[int], seconds: int) -> None:
    """Print what a job costs at each rate, and how late jobs begin."""
    with tempfile.TemporaryDirectory() as folder, bench.serving(kind) as server:
        marks = Path(folder) / "marks"
        os.environ["DELAYQ_BENCH_MARKS"] = str(marks)
        from benchmarks import tasks

        client = server.client()
        rows = []
        for rate in wanted:
            marks.write_bytes(bytes(8 * rate * (seconds + WARM_UP_S)))
            with _worker(tasks.tell_flat.options.queue) as worker:
                rows.append(_rate(client, worker, marks, rate, seconds))
            bench.delete_queue(client, tasks.tell_flat.options.queue)
        bench.table(
            (
                "jobs/s",
                "worker µs",
                "server µs",
                "scripts a job",
                "commands a job",
                "p50 ms",
                "p90 ms",
                "p99 ms",
                "latest ms",
                "earliest ms",
            ),
            rows,
        )


def _rate(
    client: redis.Redis, worker: int, marks: Path, rate: int, seconds: int
) -> tuple[str, ...]:
    from benchmarks import tasks
    from django_delayq import schedule_many

    count = rate * (seconds + WARM_UP_S)
    first_ms = time.time() * 1000 + AHEAD_MS
    schedule_many(
        tasks.tell_flat.prepare(
            _at(due_ms := round(first_ms + i * 1000 / rate)), i, due_ms
        )
        for i in range(count)
    )
    server = int(client.info("server")["process_id"])
    _sleep_until(first_ms / 1000 + WARM_UP_S)
    before = _spent_us(worker), _spent_us(server), _calls(client)
    _sleep_until(first_ms / 1000 + WARM_UP_S + seconds)
    after = _spent_us(worker), _spent_us(server), _calls(client)
    deadline = time.monotonic() + 30
    while not all(late := array.array("d", marks.read_bytes())):
        if time.monotonic() > deadline:
            raise SystemExit(f"{late.count(0.0)} of {count} jobs did not run in time")
        time.sleep(0.1)
    late = late[rate * WARM_UP_S :]
    jobs = rate * seconds
    calls = after[2] - before[2]
    return (
        f"{rate}",
        f"{(after[0] - before[0]) / jobs:.0f}",
        f"{(after[1] - before[1]) / jobs:.0f}",
        f"{calls['evalsha'] / jobs:.2f}",
        f"{sum(calls.values()) / jobs:.1f}",
        *(f"{bench.percentile(late, share):.2f}" for share in (0.5, 0.9, 0.99)),
        f"{max(late):.2f}",
        f"{min(late):.2f}",
    )


def idle(kind: str, seconds: int, pending: int) -> None:
    """Print the commands that an idle worker sends to the server, and what they cost."""
    with bench.serving(kind) as server:
        from benchmarks import tasks
        from django_delayq import schedule_many

        client = server.client()
        schedule_many(tasks.noop_flat.prepare(86_400 + i, i) for i in range(pending))
        pid = int(client.info("server")["process_id"])
        with _worker(tasks.noop_flat.options.queue) as worker:
            time.sleep(SETTLED_S)
            before = _spent_us(worker), _spent_us(pid)
            time.sleep(seconds)
            after = _spent_us(worker), _spent_us(pid)
            lines: list[str] = []
            with _monitored(server.client(), lines):
                time.sleep(seconds)
        counted = Counter(line for line in lines if not line.startswith(" "))
        bench.table(
            ("call", "a second"),
            [(name, f"{count / seconds:.2f}") for name, count in counted.most_common()]
            + [("all", f"{counted.total() / seconds:.2f}")],
        )
        for name, index in (("worker", 0), ("server", 1)):
            share = (after[index] - before[index]) / seconds / 1e4
            print(f"{name}: {share:.2f} % of a processor")


def trace(kind: str) -> None:
    """Print the commands of a job that comes alone, those of scripts indented; then those of one among many."""
    with bench.serving(kind) as server:
        from benchmarks import tasks
        from django_delayq import schedule_many

        task = tasks.noop_flat
        with _worker(task.options.queue):
            # These teach the worker its lead.
            for i in range(20):
                task.schedule(0.1 + i / 20, i)
            time.sleep(SETTLED_S)
            alone: list[str] = []
            with _monitored(server.client(), alone):
                task.schedule(0.2, 0)
                time.sleep(0.6)
            schedule_many(
                task.prepare(AHEAD_MS / 1000 + i * STREAM_MS / 1000, i)
                for i in range(STREAM)
            )
            time.sleep(AHEAD_MS / 1000 + STREAM * STREAM_MS / 4000)
            many: list[str] = []
            with _monitored(server.client(), many):
                time.sleep(STREAM * STREAM_MS / 2000)
        print("\n".join(alone))
        print(f"\n{_told(alone, 1)}\n")
        counted = Counter(many)
        bench.table(
            (f"a job every {STREAM_MS} ms", "a job"),
            [
                (name, f"{count * 2 / STREAM:.2f}")
                for name, count in sorted(
                    counted.items(), key=lambda each: each[0].startswith(" ")
                )
            ],
        )
        print(_told(many, STREAM / 2))


def _told(lines: Sequence[str], jobs: float) -> str:
    inner = sum(line.startswith(" ") for line in lines)
    calls = len(lines) - inner
    return f"{calls / jobs:.1f} calls a job, {inner / jobs:.1f} commands of scripts"


def _script_names() -> dict[str, str]:
    """Return the name of each script of the package by its SHA-1."""
    import django_delayq
    from django_delayq.core.scripts import PACKAGES
    from django_delayq.transport.script import variants_of

    files = Path(django_delayq.__file__).parent.rglob("lua/[!_]*.lua")
    return {
        script.sha: script.name
        for file in files
        for script in variants_of(PACKAGES, file.stem)
    }


@contextmanager
def _monitored(client: redis.Redis, lines: list[str]) -> Iterator[None]:
    """Add a line for each command that the server gets meanwhile, and an indented one for each that a script runs."""
    names = _script_names()
    # Connects before it listens, or the trace would show it.
    client.ping()
    with client.monitor() as monitor:
        ended = "delayq-trace-ends"

        def read() -> None:
            for told in monitor.listen():
                if told["command"].startswith("PING " + ended):
                    return
                words = told["command"].split(" ")
                if words[0] == "EVALSHA":
                    lines.append(f"{names.get(words[1], words[1])}, {words[2]} keys")
                elif told["client_type"] == "lua":
                    lines.append("    " + " ".join(words[:2]))
                elif words[0] != "HELLO":
                    # Our own command, which began to listen.
                    lines.append(" ".join(words[:2]))

        thread = threading.Thread(target=read)
        thread.start()
        yield
        client.execute_command("PING", ended)
        thread.join()


@contextmanager
def _worker(queue: str) -> Iterator[int]:
    """Run a worker of one process; gives that process's id once it serves the queue."""
    with bench.working(
        "--queue", queue, "--processes", "1", "--verbosity", "0"
    ) as supervisor:
        children: list[str] = []
        while not children:
            assert supervisor.poll() is None, "the worker has ended"
            time.sleep(0.05)
            path = f"/proc/{supervisor.pid}/task/{supervisor.pid}/children"
            children = Path(path).read_text().split()
        time.sleep(1)
        yield int(children[0])


def _at(epoch_ms: float) -> object:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


def _sleep_until(epoch_s: float) -> None:
    time.sleep(max(0.0, epoch_s - time.time()))


def _spent_us(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / TICKS


def _calls(client: redis.Redis) -> Counter[str]:
    """Return how often clients and scripts called each command, without the command that asks."""
    stats = client.info("commandstats")
    counted = Counter(
        {
            name.removeprefix("cmdstat_"): values["calls"]
            for name, values in stats.items()
        }
    )
    del counted["info"]
    return counted


if __name__ == "__main__":
    main()
