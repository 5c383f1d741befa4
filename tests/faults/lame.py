"""A cluster of which one node is away: it refuses connections, or it hangs. That node lists the workers as well."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from django_delayq import every, pause, schedule, set_limit, store_schedule
from django_delayq.transport.clients import own_clients
from django_delayq.transport.exchange import Address
from django_delayq.transport.nodes import NodeConnection
from tests.clusters import TestCluster
from tests.conftest import skip_old_redis_py
from tests.jobs.samples import add
from tests.servers import Server


@dataclass
class Lame:
    """The cluster, and the queues that somebody asks about."""

    cluster: TestCluster
    node: Server
    #: Two on the node that is away, and two on each of the others.
    away: list[str]
    there: list[str]
    is_filled: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What ``DELAYQ`` is. Whoever waits for the node waits for a second."""
        return {
            "CONNECTION": f"{self.cluster.url}/?socket_timeout=1",
            "QUEUES": {name: {} for name in (*self.away, *self.there)},
        }

    def answers(self, queue: str) -> bool:
        """Return whether a queue is on another node."""
        return self.cluster.holder_of(queue) is not self.node


@pytest.fixture(scope="module")
def whole() -> Iterator[Lame]:
    """The cluster before, on which nothing is stored yet."""
    skip_old_redis_py()
    cluster = TestCluster("valkey", replicas=0).start()
    node = cluster.holder_of("{delayq}")
    away, there = [], []
    for names, each in zip(cluster.names_on_each(2), cluster.nodes, strict=True):
        (away if each is node else there).extend(names)
    yield Lame(cluster, node, away, there)
    if node.is_running:
        node.resume()
    cluster.stop()


def fill(names: list[str]) -> None:
    """Give each queue a job, one that has ended, a pause, a limit and a schedule."""
    for name in names:
        schedule(add.using(queue=name), 3600, 1)
        schedule(add.using(queue=name), 3600, 2).cancel()
        pause(name)
        set_limit(name, concurrency=2)
        store_schedule(f"of {name}", add, every(86_400), args=[1], queue=name)


@pytest.fixture
def filled(whole: Lame, settings: Any) -> Lame:
    """The cluster, with something on each queue, for a process that knows nothing of it yet."""
    settings.DELAYQ = whole.settings
    own_clients.forget()
    if not whole.is_filled:
        # Once, and not as the cluster starts: only a test knows its tasks.
        for name in (*whole.away, *whole.there):
            _fill(name)
        whole.is_filled = True
        own_clients.forget()
    return whole


def _fill(name: str) -> None:
    """Give a queue a job, one that has ended, a pause, a limit and a schedule."""
    schedule(add.using(queue=name), 3600, 1)
    schedule(add.using(queue=name), 3600, 2).cancel()
    pause(name)
    set_limit(name, concurrency=2)
    store_schedule(f"of {name}", add, every(86_400), args=[1], queue=name)


@pytest.fixture
def lame(filled: Lame) -> Lame:
    """The cluster, whose node is dead from now on."""
    if filled.node.is_running:
        filled.node.kill(signal.SIGKILL)
    return filled


@pytest.fixture
def hanging(filled: Lame) -> Iterator[Lame]:
    """The cluster, while the node hangs."""
    filled.node.suspend()
    yield filled
    filled.node.resume()


@pytest.fixture
def asked(whole: Lame, monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """The attempts to connect to the node that is away."""
    found: list[Address] = []
    connect = NodeConnection._connect

    def note(self: Any) -> Any:
        if self.port == whole.node.port:
            found.append(Address(self.host, self.port))
        return connect(self)

    monkeypatch.setattr(NodeConnection, "_connect", note)
    return found
