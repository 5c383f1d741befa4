"""``python -m benchmarks.cluster``: what does a job cost three nodes of a cluster beside one server, how fast are two nodes
with two worker processes, and for how long is a queue closed while its slot moves?

Calls and times are those of the servers' own ``commandstats``. ``move`` fills one queue, moves its slot while somebody
schedules all the time, and tells the longest pause: key by key, as ``redis-cli`` does, and as Valkey 9 moves a slot at once.
"""

import argparse
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError

from benchmarks import bench
from tests.clusters import TestCluster
from tests.servers import Server, available_kinds

#: Jobs of a round that are scheduled one by one, in each queue.
ONE_BY_ONE = 1_000
#: Jobs of a round that are due at once, in each queue.
DUE = 10_000
#: What the scripts of a job are called.
SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__
    )
    parser.add_argument("what", choices=("cost", "rates", "move"), nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="of move")
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    options = parser.parse_args()
    for what in options.what or ("cost", "rates", "move"):
        primaries, processes = (2, 2) if what == "rates" else (3, 1)
        cluster = TestCluster(options.server, primaries=primaries, replicas=0)
        with bench.running(options.server) as server:
            cluster.start()
            try:
                if what == "move":
                    move(cluster, options.jobs)
                else:
                    compare(server, cluster, options.rounds, processes=processes)
            finally:
                cluster.stop()


def compare(
    server: Server, cluster: TestCluster, rounds: int, *, processes: int
) -> None:
    """Print what the same jobs in the same queues cost one server and the nodes, in turns."""
    names = [name for (name,) in cluster.names_on_each()]
    os.environ["DELAYQ_BENCH_QUEUES"] = ",".join(names)
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    layouts = {
        "one server": (server.url, [server]),
        f"{len(names)} nodes": (cluster.url, cluster.nodes),
    }
    found: dict[str, dict[str, list[float]]] = {layout: {} for layout in layouts}
    for i in range(rounds + 1):
        for layout, (url, nodes) in layouts.items():
            figures = measure(url, nodes, names, processes)
            for name, value in figures.items() if i else ():  # the first one warms up
                found[layout].setdefault(name, []).append(value)
    one, many = found.values()
    print(f"{processes} worker processes, {len(names)} queues\n")
    bench.table(
        ("what", *layouts, "ratio"),
        [
            (
                name,
                bench.spread(one[name], "{:,.3f}"),
                bench.spread(many[name], "{:,.3f}"),
                f"{statistics.median(many[name]) / statistics.median(one[name]):.3f}",
            )
            for name in one
        ],
    )


def measure(
    url: str, nodes: Sequence[Server], names: Sequence[str], processes: int
) -> dict[str, float]:
    """Return what a job costs the servers, and how many a second get through."""
    import django
    from django.conf import settings
    from django.test.utils import override_settings

    os.environ["DELAYQ_BENCH_URL"] = url
    django.setup()
    told = {
        **settings.DELAYQ,
        "CONNECTION": url,
        "QUEUES": {**settings.DELAYQ["QUEUES"], **{name: {} for name in names}},
    }
    with override_settings(DELAYQ=told):
        from benchmarks.tasks import noop_flat
        from django_delayq import schedule, schedule_many

        tasks = [noop_flat.using(queue=name) for name in names]
        figures: dict[str, float] = {}

        def one_by_one() -> int:
            for task in tasks:
                for i in range(ONE_BY_ONE):
                    schedule(task, 3600, i)
            return ONE_BY_ONE * len(tasks)

        def in_turns() -> int:
            # Each node dozes off, and its processor's caches go cold, while the others are asked.
            for i in range(ONE_BY_ONE):
                for task in tasks:
                    schedule(task, 3600, i)
            return ONE_BY_ONE * len(tasks)

        def drain() -> int:
            arguments = [each for name in names for each in ("--queue", name)]
            with bench.working(
                *arguments, "--burst", "--processes", str(processes), "--verbosity", "0"
            ) as worker:
                worker.wait()
            return DUE * len(tasks)

        def due() -> int:
            return sum(
                len(schedule_many(task.prepare(0, i) for i in range(DUE)))
                for task in tasks
            )

        for what, do in (
            ("schedule()", one_by_one),
            ("schedule(), queues in turns", in_turns),
            ("schedule_many()", due),
            ("worker, with its start", drain),
        ):
            for name, value in _cost(nodes, do).items():
                figures[f"{what}: {name}"] = value
        for i, name in enumerate(names):
            bench.delete_queue(nodes[i % len(nodes)].client(), name)
        return figures


def _cost(nodes: Sequence[Server], do: Callable[[], int]) -> dict[str, float]:
    clients = [node.client() for node in nodes]
    for client in clients:
        client.config_resetstat()
    began = time.perf_counter()
    jobs = do()
    took_s = time.perf_counter() - began
    told = [
        stats[name]
        for client in clients
        for stats in (client.info("commandstats"),)
        for name in SCRIPTS
        if name in stats
    ]
    return {
        "calls a job": sum(each["calls"] for each in told) / jobs,
        "us of the servers a job": sum(each["usec"] for each in told) / jobs,
        "jobs a second": jobs / took_s,
    }


def move(cluster: TestCluster, jobs: int) -> None:
    """Print for how long a queue takes no job while its slot moves."""
    import django
    from django.test.utils import override_settings

    ((name,), *_) = cluster.names_on_each()
    os.environ["DELAYQ_BENCH_QUEUES"] = name
    os.environ["DELAYQ_BENCH_URL"] = cluster.url
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from django.conf import settings

    slot = key_slot(name.encode())
    told = {**settings.DELAYQ, "CONNECTION": cluster.url, "QUEUES": {name: {}}}
    with override_settings(DELAYQ=told):
        from benchmarks.tasks import noop_flat
        from django_delayq import schedule_many
        from django_delayq.transport import cluster_client

        # However long it takes.
        cluster_client.PATIENCE_S = 600.0
        task = noop_flat.using(queue=name)
        schedule_many(task.prepare(3600 + i % 1000, i) for i in range(jobs))
        rows = []
        for how, source, target in (
            (_key_by_key, cluster.nodes[0], cluster.nodes[1]),
            (_at_once, cluster.nodes[1], cluster.nodes[2]),
        ):
            if how is _at_once and cluster.version < (9,):
                continue
            took_s, closed_s = _while_scheduling(
                task, lambda how=how, s=source, t=target: how(cluster, slot, s, t)
            )
            title = how.__doc__ or ""
            rows.append((title, f"{took_s:.2f} s", f"{closed_s:.2f} s"))
    print(f"a queue of {jobs:,} jobs\n")
    bench.table(("how its slot moves", "it takes", "the queue is closed"), rows)


def _key_by_key(
    cluster: TestCluster, slot: int, source: Server, target: Server
) -> None:
    """MIGRATE of each key"""
    # A node that sends a large key answers nobody meanwhile, and must not be taken for dead.
    for node in cluster.nodes:
        node.client().config_set("cluster-node-timeout", "600000")
    cluster.move(slot, source, target)


def _at_once(cluster: TestCluster, slot: int, source: Server, target: Server) -> None:
    """CLUSTER MIGRATESLOTS of Valkey 9"""
    cluster.move_at_once(slot, source, target)


def _while_scheduling(task: Any, do: Callable[[], None]) -> tuple[float, float]:
    """Return how long ``do`` takes, and the longest time between two jobs that are stored meanwhile, s."""
    from django_delayq import schedule

    stored: list[float] = []
    is_over = threading.Event()

    def keep_scheduling() -> None:
        while not is_over.is_set():
            try:
                schedule(task, 3600, 0)
            except RedisError:
                # The node is silent for longer than a call waits.
                continue
            stored.append(time.monotonic())

    thread = threading.Thread(target=keep_scheduling)
    thread.start()
    while len(stored) < 100:
        time.sleep(0.001)
    began = time.monotonic()
    do()
    took_s = time.monotonic() - began
    seen = len(stored)
    while len(stored) < seen + 100:
        time.sleep(0.001)
    is_over.set()
    thread.join()
    gaps = [b - a for a, b in itertools.pairwise(stored) if b > began]
    return took_s, max(gaps)


if __name__ == "__main__":
    main()
