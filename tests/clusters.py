"""Real clusters for tests: three primaries, each with a replica, on loopback."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.crc import key_slot

from django_delayq.transport.clients import Clients
from tests.polling import wait_until
from tests.servers import Server, opened
from tests.tls import OURS, Tls

SLOTS = 16_384
#: A node that is silent for so long counts as failed, ms. A busy machine holds a node up for longer than its default
#: divided by ten.
NODE_TIMEOUT_MS = 2_000


class TestCluster:
    """A cluster of our own. Its first ``primaries`` nodes hold the slots at first, the others are their replicas.

    With ``tls`` its nodes speak TLS alone, to each other as well.
    """

    __test__ = False

    def __init__(
        self,
        kind: str,
        *,
        primaries: int = 3,
        replicas: int = 1,
        options: dict[str, str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.kind = kind
        self.tls = tls
        of_tls = {} if tls is None else {**tls.options(), "tls_cluster": "yes"}
        self.primaries = primaries
        self.nodes = [
            Server(
                kind,
                {
                    "cluster_enabled": "yes",
                    "cluster_node_timeout": str(NODE_TIMEOUT_MS),
                    # What a failed node does not serve is not a reason for the others to serve nothing.
                    "cluster_require_full_coverage": "no",
                    "repl_diskless_sync_delay": "0",
                    **of_tls,
                    **(options or {}),
                },
            )
            for _ in range(primaries * (1 + replicas))
        ]

    def __repr__(self) -> str:
        return f"<TestCluster {self.kind} {', '.join(str(node.port) for node in self.nodes)}>"

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        if self.tls is None:
            return f"redis+cluster://{hosts}"
        return f"rediss+cluster://{hosts}?{self.tls.parameters(**OURS)}"

    @property
    def socket_url(self) -> str:
        """The URL: nodes tell each other's ports only."""
        return self.url

    @property
    def version(self) -> tuple[int, ...]:
        return self.nodes[0].version

    def start(self) -> "TestCluster":
        """Start the nodes, form the cluster, and return once every node knows that it serves all slots."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Server.start, self.nodes))
        first = self.nodes[0]
        for i, node in enumerate(self.nodes):
            with node.client() as client:
                command: Callable[..., Any] = client.execute_command
                command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
                if i < self.primaries:
                    begin = SLOTS * i // self.primaries
                    end = SLOTS * (i + 1) // self.primaries
                    command("CLUSTER", "ADDSLOTS", *range(begin, end))
                if node is not first:
                    command("CLUSTER", "MEET", "127.0.0.1", first.port)
        for node in self.nodes if len(self.nodes) > 1 else []:
            wait_until(
                lambda node=node: len(self.known_to(node)) == len(self.nodes),  # type: ignore[misc]
                description=f"{node} knows all nodes",
            )
        for i, node in enumerate(self.nodes[self.primaries :]):
            primary = self.id_of(self.nodes[i % self.primaries])
            with node.client() as client:
                client.execute_command("CLUSTER", "REPLICATE", primary)
        for node in self.nodes:
            wait_until(
                lambda node=node: self._is_ready(node),  # type: ignore[misc]
                description=f"{node} serves",
            )
        return self

    def known_to(self, node: Server) -> dict[str, Any]:
        """Return the nodes that one of them knows, without those that still shake hands."""
        with node.client() as client:
            known: dict[str, Any] = client.execute_command("CLUSTER NODES")
        return {
            place: each
            for place, each in known.items()
            if "handshake" not in each["flags"] and not place.startswith(":")
        }

    def _is_ready(self, node: Server) -> bool:
        with node.client() as client:
            told = client.execute_command("CLUSTER INFO")
            info = client.info("replication")
        known = self.known_to(node).values()
        return (
            told["cluster_state"] == "ok"
            # Without full coverage a node is well that knows no owner of a slot yet.
            and told["cluster_slots_assigned"] == str(SLOTS)
            and sum("slave" in each["flags"] for each in known)
            == len(self.nodes) - self.primaries
            and info.get("master_link_status", "up") == "up"
        )

    def id_of(self, node: Server) -> str:
        with node.client() as client:
            return str(client.execute_command("CLUSTER", "MYID").decode())

    def state_of(self, node: Server) -> str:
        """Return whether a node says that the cluster is ``ok``."""
        with node.client() as client:
            return str(client.execute_command("CLUSTER INFO")["cluster_state"])

    def set_node_timeout(self, time_ms: int, *nodes: Server) -> None:
        """Say for how long a node may be silent, to these nodes."""
        for node in nodes or self.nodes:
            with node.client() as client:
                client.config_set("cluster-node-timeout", time_ms)

    def wait_for_replicas(self) -> None:
        """Wait until the replicas have all that their primaries have written."""
        for primary in self.nodes[: self.primaries]:
            with primary.client() as client:
                replicas = client.info("replication")["connected_slaves"]
                assert client.wait(replicas, 60_000) == replicas

    def clear(self, names: Sequence[str]) -> None:
        """Delete the keys of queues, and those of the registry of workers."""
        for name in (*names, "default", "delayq_workers"):
            with self.holder_of(name).client() as client:
                for key in client.scan_iter(match=f"*{name}*", count=1000):
                    client.delete(key)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def client(self, **kwargs: Any) -> redis.Redis:
        """Return a new client of all nodes, our own; replies are bytes. Closed when the test ends."""
        return opened(Clients.of(self.url).make(**kwargs))

    def theirs(self, **kwargs: Any) -> redis.RedisCluster:
        """Return redis-py's own client, which the caller closes."""
        node = next(node for node in self.nodes if node.is_running)
        return redis.RedisCluster(host="127.0.0.1", port=node.port, **kwargs)

    def holder_of(self, queue: str) -> Server:
        """Return the node that holds a queue, as a node that runs says."""
        slot = key_slot(queue.encode())
        asked = next(node for node in self.nodes if node.is_running)
        with asked.client() as client:
            for begin, end, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if begin <= slot <= end:
                    port = primary[1]
                    return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"no node holds slot {slot}")

    def names_on_each(self, count: int = 1, prefix: str = "c") -> Iterator[list[str]]:
        """Yield for each primary the names of ``count`` queues that it holds at first."""
        for i in range(self.primaries):
            begin = SLOTS * i // self.primaries
            end = SLOTS * (i + 1) // self.primaries
            names = (f"{prefix}{number}" for number in range(100_000))
            yield [
                name
                for name, _ in zip(
                    (n for n in names if begin <= key_slot(n.encode()) < end),
                    range(count),
                    strict=False,
                )
            ]

    # A slot on its way, step by step, as redis-cli moves it.

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        """From here on the target takes what the source lacks, if asked with ASKING."""
        with target.client() as there, source.client() as here:
            there.execute_command(
                "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source)
            )
            here.execute_command(
                "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target)
            )

    def move_keys(
        self, slot: int, source: Server, target: Server, most: int = 1_000
    ) -> int:
        """Move some keys of the slot, and return how many."""
        # A large key takes its time, and the node does nothing else meanwhile.
        with source.client(socket_timeout=300) as client:
            keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, most)
            if keys:
                client.execute_command(
                    "MIGRATE", "127.0.0.1", target.port, "", 0, 300_000, "KEYS", *keys
                )
        return len(keys)

    def end_move(self, slot: int, target: Server) -> None:
        """Give the slot to the target, and return once every node knows."""
        mine = self.id_of(target)
        for node in [target, *(each for each in self.nodes if each is not target)]:
            wait_until(
                lambda node=node: self._gives(slot, node, mine, target),  # type: ignore[misc]
                description=f"{node} knows that slot {slot} is {target}'s",
            )

    def _gives(self, slot: int, node: Server, mine: str, target: Server) -> bool:
        """Tell a primary whose the slot is, and return whether it says so as well: it may have heard of older news."""
        with node.client() as client:
            if client.info("replication")["role"] == "master":
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", mine)
            return any(
                begin <= slot <= end and primary[1] == target.port
                for begin, end, primary, *_ in client.execute_command(
                    "CLUSTER", "SLOTS"
                )
            )

    def move(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot with all its keys."""
        self.begin_move(slot, source, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, target)

    def move_at_once(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot as Valkey 9 does: what it holds is copied, and it changes hands when all is there."""
        with source.client() as client:
            # Those of earlier moves stay on the list.
            moved = _states_of_moves(client).count("success")
            order = ("SLOTSRANGE", slot, slot, "NODE", self.id_of(target))
            client.execute_command("CLUSTER", "MIGRATESLOTS", *order)
            while (states := _states_of_moves(client)).count("success") == moved:
                assert not {"failed", "cancelled"} & set(states), states
                time.sleep(0.005)


def _states_of_moves(client: redis.Redis) -> list[str]:
    told = client.execute_command("CLUSTER", "GETSLOTMIGRATIONS")
    values = [value for each in told for value in _values(each)]
    return [value.decode() for value in values if isinstance(value, bytes)]


def _values(migration: Any) -> Iterable[Any]:
    """Return the values of a map, which RESP2 writes as a list."""
    return migration.values() if isinstance(migration, dict) else migration[1::2]
