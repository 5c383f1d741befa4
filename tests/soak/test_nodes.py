"""A soak on shards gives each node one of them, and its samples are those of all nodes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak.__main__ import LASTING, names_of, nodes_of, spread
from benchmarks.soak.kinds import queue_names
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.sampling import Sampler, Watcher
from django_delayq.core.shards import shard_name
from tests.clusters import TestCluster
from tests.polling import wait_until
from tests.servers import Server

NODES = 3
#: Connections to each node: more than all others together.
VISITORS = 20
SIZE = 100_000


@pytest.fixture
def nodes(private_cluster: Callable[..., TestCluster]) -> TestCluster:
    return private_cluster(primaries=NODES, replicas=0, options=LASTING)


@pytest.fixture
def supervisor() -> Iterator[int]:
    """A process without children."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def test_each_node_has_a_shard(
    nodes: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELAYQ_SOAK_QUEUES", raising=False)
    (queue,) = queue_names()
    shards = [shard_name(queue, number) for number in range(NODES)]
    assert len({nodes.holder_of(shard).port for shard in shards}) < NODES

    spread(nodes)

    assert [nodes.holder_of(shard) for shard in shards] == nodes.nodes


def test_sample_adds_up_the_nodes(
    nodes: TestCluster, supervisor: int, tmp_path: Path, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": nodes.url}
    clients = [node.client() for node in nodes_of(nodes)]
    visitors = [node.client() for node in nodes_of(nodes) for _ in range(VISITORS)]
    assert all(visitor.ping() for visitor in visitors)
    for (queue,) in nodes.names_on_each():
        with nodes.holder_of(queue).client() as client:
            client.set(f"delayq_progress:{{{queue}}}", b"x" * SIZE)
    wait_until(
        lambda: all(each.info()["aof_current_size"] > SIZE for each in clients),
        description="each node has written its file",
    )
    pids = names_of(nodes_of(nodes)) | {"supervisor": supervisor}
    sampler = Sampler(clients, Ledger(tmp_path), Watcher(), pids)

    sample = sampler.take()

    assert sample.keys == {"delayq_progress": NODES}
    one = clients[0].info()
    assert sample.used_memory > (NODES - 0.5) * one["used_memory"]
    assert sample.aof_size > NODES * SIZE
    assert sample.clients >= NODES * VISITORS
    assert set(sample.rss) == {"node 1", "node 2", "node 3", "supervisor"}


def test_single_server_is_no_node(private_server: Callable[..., Server]) -> None:
    server = private_server()

    assert names_of(nodes_of(server)) == {"server": server.pid}


@pytest.mark.parametrize("number", ["0", "1", "65", "-2", "three", "³"])
def test_what_is_no_number_of_shards_is_refused(number: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", f"--shards={number}"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
    )

    assert found.returncode == 2
    assert f"{number!r} is not a number of shards; give 2 to 64" in found.stderr
