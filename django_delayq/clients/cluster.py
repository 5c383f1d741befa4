"""A Redis or Valkey Cluster: which node holds a key, and clients that send each command to that node.

redis-py's engine finds the nodes and their slots. A queue's keys share a slot, so each call has one node, and goes there
on a connection like that to a single server. Nodes that say where a slot is are noted here; `recover` follows them.
"""

import asyncio
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import redis
from redis import asyncio as aio
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.backoff import NoBackoff
from redis.client import Redis
from redis.cluster import ClusterNode, NodesManager, cleanup_kwargs
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from django_delayq.calls.call import Argument
from django_delayq.calls.command import Command
from django_delayq.calls.connections import aconverse, converse
from django_delayq.calls.errors import (
    LOST,
    TURNED_AWAY,
    is_of_some,
    mark_of_node,
    mark_of_some,
    mark_unsent,
)
from django_delayq.calls.exchange import (
    WAITS,
    Address,
    Exchange,
    Outcome,
    Where,
    key_of,
)
from django_delayq.calls.running import amake, make
from django_delayq.clients.answering import note_change
from django_delayq.clients.client import Client, Pipeline, called_back
from django_delayq.clients.primary import AttentiveSocket
from django_delayq.clients.server import Server
from django_delayq.clients.url import nodes_of
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.exceptions import InvalidSettings

P = TypeVar("P")

#: For so long a call waits for a slot that is being moved, or that no node serves.
PATIENCE_S = 5.0
#: The table of slots is read again so often at most.
REFRESH_EVERY_MS = 200.0
#: For so long a node is waited for that is asked where the slots are, s.
TABLE_PATIENCE_S = 0.5


class Slots:
    """Which node holds which slot. Any thread may ask."""

    def __init__(self, find: Callable[[], NodesManager]) -> None:
        """``find`` makes redis-py's engine, which asks the cluster at once."""
        self._find = find
        self._engine: NodesManager | None = None
        self._lock = threading.Lock()
        #: Nodes that did not answer when they were asked last.
        self._silent: set[Address] = set()
        #: What redirections have said since the table was read.
        self._moved: dict[int, Address] = {}
        self._is_doubtful = False
        self._read_ms = 0.0
        #: Why the cluster could not be asked, before it ever was, and when that was found out.
        self._failure: Exception = RedisConnectionError()
        self._failed_ms = -1.0
        #: The table that the primaries were read from, and those.
        self._primaries: tuple[Any, list[Address]] | None = None

    def holder(self, key: str | bytes | None) -> Address:
        """Return the primary that holds a key. Without a key, return any primary.

        Raises:
            redis.exceptions.ClusterDownError: no node serves the slot.
            redis.exceptions.ConnectionError: the table was never read, and no node can be reached.
        """
        # The table is not read again for this, as then a node that has not answered would be tried again.
        if key is None and (awake := self._awake()):
            return random.choice(awake)
        if self._is_doubtful or self._engine is None:
            self.refresh()
        if key is None:
            return self._any()
        slot = key_slot(key if isinstance(key, bytes) else key.encode())
        if (moved := self._moved.get(slot)) is not None:
            return moved
        assert self._engine is not None
        nodes = self._engine.slots_cache.get(slot)
        if not nodes:
            self._is_doubtful = True
            raise ClusterDownError(f"CLUSTERDOWN Hash slot {slot} is served by no node")
        return Address(nodes[0].host, int(nodes[0].port))

    def primaries(self) -> list[Address]:
        """Return the nodes that hold slots."""
        if self._engine is None:
            self.refresh()
        assert self._engine is not None
        table = self._engine.slots_cache
        if self._primaries is None or self._primaries[0] is not table:
            # redis-py's own list of nodes keeps those that have been replaced.
            holders = {id(nodes[0]): nodes[0] for nodes in table.values() if nodes}
            found = [Address(node.host, int(node.port)) for node in holders.values()]
            self._primaries = table, list(dict.fromkeys(found))
        return self._primaries[1]

    def _any(self) -> Address:
        primaries = self.primaries()
        if not primaries:
            raise ClusterDownError("CLUSTERDOWN no node holds a slot")
        return random.choice(primaries)

    def _awake(self) -> list[Address]:
        """Return the primaries that have answered, as far as is known. Nothing is asked."""
        if self._engine is None:
            return []
        return [each for each in self.primaries() if each not in self._silent]

    def note_silent(self, address: Address) -> None:
        """Note that a node did not answer: another may soon hold its slots."""
        self._silent.add(address)
        self._is_doubtful = True

    def is_replaced(self, address: Address) -> bool:
        """Ask the cluster whether another node has taken over from one that is silent."""
        self.note_silent(address)
        self.refresh()
        return address not in self.primaries()

    def doubt(self) -> None:
        """Have the table read again before it is used the next time."""
        self._is_doubtful = True

    @property
    def is_doubtful(self) -> bool:
        """Whether the next `holder` asks the cluster."""
        return self._is_doubtful or self._engine is None

    def note_moved(self, error: MovedError, asked: Address) -> Address:
        """Note what a node said about a slot, and return the node that holds it."""
        # Without a host it is that of the node that said so.
        moved = Address(error.host or asked.host, error.port)
        self._moved[error.slot_id] = moved
        self._is_doubtful = True
        return moved

    def refresh(self) -> None:
        """Read the table again, unless that was done just now, or another thread does it.

        Raises:
            InvalidSettings: the server has no cluster mode.
            redis.exceptions.NoPermissionError: the account may not ask for it.
            redis.exceptions.ConnectionError: the table was never read, and no node can be reached.
        """
        came_ms = monotonic_ms()
        if self._engine is not None and self._lock.locked():
            return
        # Not acquire(): an interrupt right behind it would leave the lock held for ever.
        with self._lock:
            if self._engine is None:
                self._begin(came_ms)
            elif monotonic_ms() >= self._read_ms + REFRESH_EVERY_MS:
                # What comes in meanwhile is newer than what is read.
                before = dict(self._moved)
                self._is_doubtful = False
                known = set(self.primaries())
                try:
                    self._engine = self._read_again(self._engine)
                except LOST:
                    # The old table still names the nodes that are up.
                    self._is_doubtful = True
                else:
                    self._silent.clear()
                    if not known.issuperset(self.primaries()):
                        note_change()
                    for slot, address in before.items():
                        if self._moved.get(slot) == address:
                            self._moved.pop(slot, None)
            else:
                return
            self._read_ms = monotonic_ms()

    def _begin(self, came_ms: float) -> None:
        """Make the engine. A thread that waited while another one asked all nodes without success does not ask them again."""
        if self._failed_ms >= came_ms:
            lost = copy(self._failure)
            mark_unsent(lost)
            raise lost
        try:
            self._engine = self._asked(self._find)
        except LOST as error:
            self._failure, self._failed_ms = error, monotonic_ms()
            raise

    def _read_again(self, engine: NodesManager) -> NodesManager:
        try:
            with self._without_silent(engine):
                self._asked(engine.initialize)
        except LOST:
            # All of them may have moved. The nodes that the settings name may be found at other addresses.
            found: NodesManager = self._asked(self._find)
            if found is engine:
                # That of a client which was given: nobody was asked.
                raise
            return found
        return engine

    @contextmanager
    def _without_silent(self, engine: NodesManager) -> Iterator[None]:
        """Have the engine ask the nodes that answer, if there are any: it would wait for one that hangs."""
        silent = {str(address) for address in self._silent}
        left_out = {
            name: node for name, node in engine.startup_nodes.items() if name in silent
        }
        if len(left_out) < len(engine.startup_nodes):
            for name in left_out:
                del engine.startup_nodes[name]
        try:
            yield
        finally:
            for name, node in left_out.items():
                engine.startup_nodes.setdefault(name, node)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except RedisClusterException as error:
            told = error.__cause__ or error
            if isinstance(told, TURNED_AWAY):
                raise told from None
            if isinstance(told.__context__, NoPermissionError):
                # redis-py takes any refusal of CLUSTER SLOTS for that of a single server.
                raise told.__context__ from None
            if "not enabled" in str(told):
                raise InvalidSettings(
                    "the server is not a cluster (cluster-enabled no): write redis://, or name a cluster"
                ) from None
            lost = RedisConnectionError(
                f"no node of the cluster can be reached: {told}"
            )
            mark_unsent(lost)
            if is_of_some(told):
                mark_of_some(lost)
            raise lost from error


class _NodeConnection(Connection):
    """A connection to a node, which looks around while that is silent: its replica may have taken over."""

    def __init__(self, *, slots: Slots, **arguments: Any) -> None:
        super().__init__(**arguments)  # type: ignore[no-untyped-call]
        self._slots = slots

    def _connect(self) -> Any:
        return AttentiveSocket(super()._connect(), self._look)  # type: ignore[no-untyped-call]

    def _look(self) -> None:
        try:
            is_replaced = self._slots.is_replaced(Address(self.host, self.port))
        except RedisError:
            # Nobody knows better than we do. The wait goes on until its own time-out.
            return
        if is_replaced:
            raise ConnectionResetError(
                f"{self.host}:{self.port} does not answer, and another node has taken over"
            )


class _NodeSSLConnection(_NodeConnection, SSLConnection):
    """The same with TLS."""


#: What a pool of ours has in the place of redis-py's own connections.
_ATTENTIVE = {Connection: _NodeConnection, SSLConnection: _NodeSSLConnection}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and how to connect to its nodes: what `Server` is to a single server."""

    #: How to connect to a node; its address is that of the first node that was named.
    server: Server
    nodes: Sequence[Address]
    #: redis-py's engine of a client that was given.
    engine: NodesManager | None = field(default=None, repr=False)

    @classmethod
    def of(cls, client: Any) -> "Cluster":
        """Return the cluster of redis-py's cluster client."""
        node = client.get_default_node()
        server = Server.of_pool(client.get_redis_connection(node).connection_pool)
        return cls(server, [Address(node.host, node.port)], client.nodes_manager)

    @property
    def decodes(self) -> bool:
        """Whether replies come as text and not as bytes."""
        return self.server.decodes

    def slots(self) -> Slots:
        """Make a table of slots. Nothing connects yet.

        Raises:
            InvalidSettings: this redis-py cannot tell the redirections of nodes from other errors.
        """
        # A client that was given works with older ones as well, as long as no slot moves.
        if self.engine is None and int(redis.__version__.partition(".")[0]) < 6:
            raise InvalidSettings(
                f"a cluster needs redis-py 6 or later, and this is {redis.__version__}: pip install --upgrade redis"
            )
        return Slots(self._find_engine)

    def pool(self, **overrides: Any) -> "Pools[ConnectionPool]":
        """Make pools, one a node. Nothing connects yet."""
        slots = self.slots()

        def make(address: Address) -> ConnectionPool:
            server = self._at(address)
            if (attentive := _ATTENTIVE.get(server.connection_class)) is not None:
                server = Server(attentive, {**server.arguments, "slots": slots})
            return server.pool(**overrides)

        return Pools(slots, make, self.server.concealed() | overrides)

    def async_pool(self) -> "Pools[AsyncConnectionPool]":
        """Make asyncio pools, one a node. They belong to the event loop that uses them first."""
        return Pools(
            self.slots(),
            lambda address: self._at(address).async_pool(),
            self.server.concealed(),
        )

    def client(self, pool: Any, *, is_single: bool = False) -> "ClusterClient":
        """Make a client on pools; ``is_single``: for one thread, with one connection a node."""
        return ClusterClient(pool, is_single=is_single)

    def async_client(self, pool: Any) -> "AsyncClusterClient":
        """Make an asyncio client on pools."""
        return AsyncClusterClient(pool)

    def _at(self, address: Address) -> Server:
        arguments = {**self.server.arguments, "host": address.host}
        arguments["port"] = address.port
        return Server(self.server.connection_class, arguments)

    def _find_engine(self) -> NodesManager:
        if self.engine is not None:
            return self.engine
        arguments = cleanup_kwargs(**self.server.concealed())
        for name in ("host", "port", "db", "max_connections", "retry"):
            arguments.pop(name, None)
        for name in ("socket_timeout", "socket_connect_timeout"):
            # Any node knows the table, so one that hangs is not waited for.
            arguments[name] = min(arguments.get(name) or math.inf, TABLE_PATIENCE_S)
        if issubclass(self.server.connection_class, SSLConnection):
            arguments["ssl"] = True
        try:
            return NodesManager(
                startup_nodes=[ClusterNode(*address) for address in self.nodes],
                require_full_coverage=False,
                **arguments,
            )
        except RedisClusterException as error:
            # This is what the last node said.
            told = error.__cause__ or error
            if _is_refusal(told) and not all(
                _refuses(Address(*address), arguments) for address in self.nodes
            ):
                mark_of_some(told)
            raise


def _refuses(node: Address, arguments: dict[str, Any]) -> bool:
    """Return whether a node refuses a connection, and would do so again."""
    client = Redis(
        host=node.host, port=node.port, retry=Retry(NoBackoff(), 0), **arguments
    )
    try:
        client.ping()
    except RedisError as error:
        return _is_refusal(error)
    finally:
        client.close()
    return False


def _is_refusal(error: BaseException) -> bool:
    return isinstance(
        error, AuthenticationError | AuthorizationError
    ) or "CERTIFICATE_" in str(error)


def server_at(url: str) -> Server | Cluster:
    """Return the server or the cluster at a URL."""
    if (nodes := nodes_of(url)) is None:
        # Each thread keeps a connection. A limit for a pool would make calls of other threads fail.
        return replace(Server.at(url), max_connections=None)
    servers = [Server.at(node) for node in nodes]
    return Cluster(
        servers[0],
        [
            Address(
                server.arguments.get("host", "localhost"),
                server.arguments.get("port", 6379),
            )
            for server in servers
        ],
    )


class Pools(Generic[P]):
    """The pools of one client or of several, a node each, with the table of slots that the clients share."""

    def __init__(
        self,
        slots: Slots,
        make: Callable[[Address], P],
        arguments: Mapping[str, Any],
    ) -> None:
        self.slots = slots
        #: Those of the connections to all nodes.
        self.arguments = {
            name: value
            for name, value in arguments.items()
            if name not in ("host", "port")
        }
        self._make = make
        self._pools: dict[Address, P] = {}

    def at(self, address: Address) -> P:
        """Return the pool of a node."""
        try:
            return self._pools[address]
        except KeyError:
            return self._pools.setdefault(address, self._make(address))

    def all(self) -> list[P]:
        """Return the pools that were made."""
        return list(self._pools.values())

    def disconnect(self) -> None:
        """Close the connections of pools that are not asyncio's."""
        for pool in self.all():
            pool.disconnect()  # type: ignore[attr-defined]


class ClusterClient(Redis):
    """A client of all nodes. It has no connection and no pool of its own: those are its nodes'.

    Commands without a key go to any node.
    """

    def __init__(
        self, pools: Pools[ConnectionPool], *, is_single: bool = False
    ) -> None:
        # Not that of `Redis`, which would make a pool.
        self.connection = None
        self.connection_pool = None  # type: ignore[assignment]
        self.auto_close_connection_pool = False
        #: For so long a command waits for a slot that is being moved.
        self.patience_s = PATIENCE_S
        #: A node that was silent for as long as its connections wait is not asked again for so many times that long: its
        #: commands fail at once.
        self.silent_times: float = 0
        self.arguments = pools.arguments
        self._pools = pools
        self._is_single = is_single
        self._nodes: dict[Address, Redis] = {}
        #: By node, the error with which it was silent, and until when that counts.
        self._silences: dict[Address, tuple[Exception, float]] = {}

    def __repr__(self) -> str:
        return f"<ClusterClient of {len(self._nodes)} nodes>"

    def of_key(self, key: str | bytes | None) -> Redis:
        """Return the client of the node that holds a key; without a key, of any node.

        Raises:
            redis.exceptions.RedisError: no node serves the key's slot; or the cluster, or that node, cannot be reached.
        """
        return self._at(self._pools.slots.holder(key))

    def of_nodes(self) -> list[Redis]:
        """Return the clients of all nodes that hold slots, except those that are not asked again. Nothing connects yet."""
        primaries = self._pools.slots.primaries()
        awake = [each for each in primaries if each not in self._silences]
        return [
            Client(connection_pool=self._pools.at(address))
            for address in awake or primaries
        ]

    def lose(self, node: Redis, error: Exception) -> None:
        """Note the error of a client of `of_nodes`."""
        at = node.connection_pool.connection_kwargs
        self._lose(error, Address(at["host"], at["port"]))

    @contextmanager
    def waiting_once(self) -> Iterator[None]:
        """Wait for a node that hangs once: from then on, its commands fail at once until the end of the block."""
        before, self.silent_times = self.silent_times, math.inf
        try:
            yield
        finally:
            self.silent_times = before
            if not before:
                self._silences.clear()

    def lying_at(self, node: str, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it lies on this node."""
        return _lying_at(self._pools.slots, node, keys)

    def kept(self) -> list[Redis]:
        """Return the clients of the nodes that were asked so far."""
        return list(self._nodes.values())

    def pooled(self) -> "ClusterClient":
        """Return another client of the same nodes, for calls while the connections of this one are occupied."""
        return ClusterClient(self._pools)

    def doubt(self) -> None:
        """Have the cluster asked where its slots are before the next command."""
        self._pools.slots.doubt()

    def note_silent(self, node: Redis) -> None:
        """Note that the node of a client did not answer: another may soon hold its slots."""
        for address, each in self._nodes.items():
            if each is node:
                self._pools.slots.note_silent(address)
                return

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the node that holds its key.

        Raises:
            redis.exceptions.TryAgainError: the slot is still being moved after `patience_s`.
            redis.exceptions.ClusterDownError: no node serves the slot after `patience_s`.
        """
        (reply,) = make(self, Exchange((Command(args),), repeats=False))
        return self.called_back(args, options, reply)

    def called_back(
        self, args: Sequence[Any], options: Mapping[str, Any], reply: Any
    ) -> Any:
        """Read a reply as redis-py's clients do."""
        return called_back(next(iter(self._nodes.values())), args, options, reply)

    def exchange(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Send commands, in one write a node, and return the replies in their order.

        An error takes the place of a reply.
        """
        calls: list[Command[Any]] = [Command(tuple(command)) for command in commands]
        return make(self, Exchange(calls, is_one=False, repeats=False))

    def send(self, exchange: Exchange, where: Sequence[Where | None] = ()) -> Outcome:
        """Send an exchange once, in one write a node. The nodes are asked one after the other."""
        parts = _Parts(self._pools.slots, exchange, where)
        for at, commands in parts.commands():
            try:
                self._check_silence(at.address)
                node = self._at(at.address)
            except LOST as error:
                replies: list[Any] = [error] * len(commands)
            else:
                replies = converse(node, commands, is_own=parts.is_own)
            for reply in parts.take(at, replies):
                self._lose(reply, at.address)
        return parts.outcome()

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> Any:
        """Collect commands for `exchange`. They are not atomic together."""
        return Pipeline(self.exchange, self.called_back)

    def pubsub_numsub(self, *args: Any, **kwargs: Any) -> Any:
        """Add up the subscribers of channels at all nodes that answer.

        Raises:
            redis.exceptions.ConnectionError: none does.
        """
        told, failure = [], None
        for address in self._pools.slots.primaries():
            node = Client(connection_pool=self._pools.at(address))
            try:
                told.append(dict(node.pubsub_numsub(*args)))
            except LOST as error:
                self._lose(error, address)
                failure = error
        if not told and failure is not None:
            raise failure
        return [(name, sum(each[name] for each in told)) for name in told[0]]

    def close(self) -> None:
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.close()
        if self.auto_close_connection_pool:
            self._pools.disconnect()

    def _lose(self, error: Exception, address: Address) -> None:
        mark_of_node(error, str(address))
        self._pools.slots.note_silent(address)
        if (
            self.silent_times
            and isinstance(error, RedisTimeoutError)
            and address not in self._silences
        ):
            waited_ms = 1000 * (self.arguments.get("socket_timeout") or 0.0)
            until_ms = monotonic_ms() + self.silent_times * waited_ms
            self._silences[address] = error, until_ms

    def _check_silence(self, address: Address) -> None:
        if (silence := self._silences.get(address)) is None:
            return
        error, until_ms = silence
        if monotonic_ms() < until_ms:
            raise error
        del self._silences[address]

    def _at(self, address: Address) -> Redis:
        node = self._nodes.get(address)
        if node is None:
            pool = self._pools.at(address)
            try:
                node = Client(
                    connection_pool=pool, single_connection_client=self._is_single
                )
            except LOST as error:
                self._lose(error, address)
                mark_unsent(error)
                raise
            node = self._nodes.setdefault(address, node)
        return node


class AsyncClusterClient(aio.Redis):
    """`ClusterClient` on an event loop. The cluster is asked about its slots in a thread."""

    def __init__(self, pools: Pools[AsyncConnectionPool]) -> None:
        self.connection = None
        self.connection_pool = None  # type: ignore[assignment]
        self.auto_close_connection_pool = False
        self.patience_s = PATIENCE_S
        self.arguments = pools.arguments
        self._pools = pools
        self._nodes: dict[Address, aio.Redis] = {}

    def __repr__(self) -> str:
        return f"<AsyncClusterClient of {len(self._nodes)} nodes>"

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the node that holds its key; see `ClusterClient.execute_command`."""
        (reply,) = await amake(self, Exchange((Command(args),), repeats=False))
        return called_back(next(iter(self._nodes.values())), args, options, reply)

    async def send(
        self, exchange: Exchange, where: Sequence[Where | None] = ()
    ) -> Outcome:
        """Send an exchange once, in one write a node, to all nodes at once."""
        slots = self._pools.slots
        try:
            await self._read_slots()
        except LOST as error:
            return Outcome([error] * len(exchange.calls), boottime_ms())
        parts = _Parts(slots, exchange, where)
        sent = list(parts.commands())
        made = await asyncio.gather(
            *(aconverse(self._at(at.address), commands) for at, commands in sent)
        )
        for (at, _), replies in zip(sent, made, strict=True):
            for reply in parts.take(at, replies):
                mark_of_node(reply, str(at.address))
                slots.note_silent(at.address)
        return parts.outcome()

    async def lying_at(self, node: str, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it lies on this node."""
        await self._read_slots()
        return _lying_at(self._pools.slots, node, keys)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self._nodes = {}
        if close_connection_pool or (
            close_connection_pool is None and self.auto_close_connection_pool
        ):
            for pool in self._pools.all():
                await pool.disconnect()

    async def _read_slots(self) -> None:
        slots = self._pools.slots
        if slots.is_doubtful:
            await asyncio.to_thread(slots.refresh)

    def _at(self, address: Address) -> aio.Redis:
        node = self._nodes.get(address)
        if node is None:
            node = aio.Redis(connection_pool=self._pools.at(address))
            self._nodes[address] = node
        return node


def _lying_at(slots: Slots, node: str, keys: Sequence[str]) -> list[bool]:
    lie = []
    for key in keys:
        try:
            lie.append(str(slots.holder(key)) == node)
        except ClusterDownError:
            lie.append(False)
    return lie


class _Parts:
    """The parts of an exchange for each node, and their replies."""

    def __init__(
        self, slots: Slots, exchange: Exchange, where: Sequence[Where | None]
    ) -> None:
        self._slots = slots
        self._commands = [call.command() for call in exchange.calls]
        self._replies: list[Any] = [None] * len(self._commands)
        self._asked: list[Address | None] = [None] * len(self._commands)
        self._places: dict[Where, list[int]] = {}
        #: Whether a thread's own connection takes the place of one of a pool.
        self.is_own = exchange.repeats and len(self._commands) == 1
        at: Where | None = None
        anywhere: Where | None = None
        failure: Exception | None = None
        for i, command in enumerate(self._commands):
            # What waits does so for what its connection wrote before.
            if not i or not (exchange.is_one or command[0] in WAITS):
                key = key_of(command)
                try:
                    if where and where[i] is not None:
                        at = where[i]
                    elif key is None:
                        # Commands without a key go to one node together.
                        at = anywhere = anywhere or Where(slots.holder(None))
                    else:
                        at = Where(slots.holder(key))
                except (ClusterDownError, *LOST) as error:
                    at, failure = None, error
            if at is None:
                self._replies[i] = failure
            else:
                self._places.setdefault(at, []).append(i)

    def commands(self) -> Iterator[tuple[Where, list[tuple[Any, ...]]]]:
        """Yield what each node gets."""
        for at, places in self._places.items():
            asking = [("ASKING",)] if at.is_asking else []
            yield at, [each for i in places for each in (*asking, self._commands[i])]

    def take(self, at: Where, replies: list[Any]) -> list[Any]:
        """Take in what a node replied, and return the errors of lost replies."""
        own = replies[1::2] if at.is_asking else replies
        for i, reply in zip(self._places[at], own, strict=True):
            self._replies[i], self._asked[i] = reply, at.address
            if isinstance(reply, MovedError):
                self._slots.note_moved(reply, at.address)
            elif isinstance(reply, TryAgainError | ClusterDownError):
                self._slots.doubt()
        return [reply for reply in own if isinstance(reply, LOST)]

    def outcome(self) -> Outcome:
        nodes = len(self._slots.primaries()) if any(self._asked) else 1
        return Outcome(self._replies, boottime_ms(), self._asked, nodes)
