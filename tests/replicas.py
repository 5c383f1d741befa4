"""A primary with replicas, each a server of its own; and an address that leads from one to the other."""

from collections.abc import Callable

import redis

from tests.polling import PATIENCE_S, wait_until
from tests.queues.proxy import Proxy
from tests.servers import LASTING, Server

#: The primary speaks to a new replica at once, and a replica tells what it has within a second or less.
QUICK = {"repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1"}


class Replicated:
    """A primary and its replicas, all of which have what the primary has."""

    def __init__(self, start: Callable[..., Server], replicas: int, **options: str):
        self.primary = start(**QUICK, **options)
        self.replicas = [
            start(replicaof=f"127.0.0.1 {self.primary.port}", **QUICK, **options)
            for _ in range(replicas)
        ]
        self.wait_for_replicas()

    def wait_for_replicas(self) -> None:
        """Return once all replicas have what was written; a new one may take a second."""
        count = len(self.replicas)
        with self.primary.client() as client:
            wait_until(
                lambda: client.info("replication")["connected_slaves"] == count,
                description="all replicas are connected",
            )
            client.set("replicated", 1, px=1)
            assert client.wait(count, round(1000 * PATIENCE_S)) == count

    def promote(self) -> Server:
        """Make the first replica a primary, as Sentinel does."""
        replica = self.replicas[0]
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        return replica


class MovingAddress:
    """An address that leads to a primary, and later to its replica, as a DNS name and a virtual address do.

    The old primary is a replica by then. It refuses writes, and closes no connection.
    """

    def __init__(self, start: Callable[..., Server]) -> None:
        self.pair = Replicated(start, 1)
        self._proxy = Proxy(self.pair.primary, on_port=True)
        self.url = f"redis://127.0.0.1:{self._proxy.port}/0"

    def move(self) -> None:
        """Have the servers change places. Connections to the old one stay open."""
        self.pair.wait_for_replicas()
        self.swap()

    def swap(self) -> None:
        """`move` at once, whatever the replica has."""
        self._proxy.lead_to(self.pair.promote())
        self.demote()

    def demote(self) -> None:
        """Have the server become a replica."""
        (new,) = self.pair.replicas
        with self.pair.primary.client() as client:
            client.replicaof("127.0.0.1", str(new.port))

    def strand(self) -> None:
        """Have the server become a replica that finds no primary, and refuses every command."""
        with self.pair.primary.client() as client:
            client.config_set("replica-serve-stale-data", "no")
            # Nobody listens there.
            client.replicaof("127.0.0.1", "1")

    def close(self) -> None:
        self._proxy.close()


class Addressed:
    """Two servers behind a `MovingAddress`, which keep what they acknowledge."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._servers: list[Server] = []

    def start(self) -> None:
        self.address = MovingAddress(self._start)
        (self.primary, self.replica) = self._servers
        self._current = self.primary

    def _start(self, **options: str) -> Server:
        server = Server(self.kind, {**LASTING, **options})
        self._servers.append(server)
        return server.start()

    @property
    def socket_url(self) -> str:
        """The address, which is a port."""
        return self.address.url

    def client(self) -> redis.Redis:
        """Return a new client of the server to which the address leads."""
        return self._current.client()

    def move(self, patience_s: float) -> None:
        """Move the address without a loss: no write is taken until the replica has all."""
        with self.primary.client() as client:
            client.client_pause(round(1000 * patience_s), all=False)
            wait_until(lambda: self._is_in_step(client), description="they are in step")
            self.address.swap()
            client.client_unpause()
        self._current = self.replica

    def _is_in_step(self, client: redis.Redis) -> bool:
        told = client.info("replication")
        return bool(told["slave0"]["offset"] == told["master_repl_offset"])

    def stop(self) -> None:
        self.address.close()
        for server in self._servers:
            server.stop()
