"""Clients of a Redis or Valkey Cluster, which send each command to the node that holds its key.

A queue's keys share a slot, so each call has one node, and goes there on a connection like that to a single server.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from redis import asyncio as aio
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.client import Redis
from redis.connection import ConnectionPool
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.transport.call import Argument
from django_delayq.transport.client import Client, Pipeline, called_back
from django_delayq.transport.connections import aconverse, converse
from django_delayq.transport.errors import LOST, mark_unsent
from django_delayq.transport.exchange import Address, Exchange, Where
from django_delayq.transport.nodes import Pools
from django_delayq.transport.plain_command import Command
from django_delayq.transport.recovery import Outcome
from django_delayq.transport.routes import Routed
from django_delayq.transport.run import amake, make

P = TypeVar("P")
N = TypeVar("N")

#: How long a call waits for a slot that is being moved, or that no node serves, s.
PATIENCE_S = 5.0


class _ClientOfNodes(Generic[P, N]):
    """The pools and the clients by node, of a thread or an event loop."""

    connection: Any = None
    connection_pool: Any = None

    def __init__(self, pools: Pools[P]) -> None:
        # Not that of redis-py's client, which would make a pool.
        self.auto_close_connection_pool = False
        #: How long a command waits for a slot that is being moved, s.
        self.patience_s = PATIENCE_S
        self.arguments = pools.arguments
        self._pools = pools
        self._slots = pools.slots
        self._nodes: dict[Address, N] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._nodes)} nodes>"

    def called_back(
        self, args: Sequence[Any], options: Mapping[str, Any], reply: Any
    ) -> Any:
        """Read a reply as redis-py's clients do."""
        return called_back(next(iter(self._nodes.values())), args, options, reply)


class ClusterClient(_ClientOfNodes[ConnectionPool, Redis], Redis):
    """A client of all nodes. It has no connection and no pool of its own: those are its nodes'.

    Commands without a key go to any node.
    """

    def __init__(
        self, pools: Pools[ConnectionPool], *, is_single: bool = False
    ) -> None:
        super().__init__(pools)
        #: How long a node that timed out is left alone, as a multiple of the timeout. Until then its commands fail at
        #: once.
        self.silent_times: float = 0
        self._is_single = is_single
        #: By node, the error with which it was silent, and until when that counts.
        self._silences: dict[Address, tuple[Exception, float]] = {}

    def of_key(self, key: str | bytes | None) -> Redis:
        """Return the client of the node that holds a key; without a key, of any node.

        Raises:
            redis.exceptions.RedisError: no node serves the key's slot; or the cluster, or that node, cannot be reached.
        """
        return self._at(self._slots.holder(key))

    def of_nodes(self) -> list[Redis]:
        """Return the clients of all nodes that hold slots, except those that are not asked again. Nothing connects yet."""
        primaries = self._slots.primaries()
        awake = [each for each in primaries if self._silence_of(each) is None]
        return [
            Client(connection_pool=self._pools.at(address))
            for address in awake or primaries
        ]

    def lose(self, node: Redis, error: Exception) -> None:
        """Note the error of a client of `of_nodes`."""
        at = node.connection_pool.connection_kwargs
        address = Address(at["host"], at["port"])
        self._slots.note_lost(error, address)
        self._note_silence(error, address)

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
        return self._slots.lying_at(node, keys)

    def kept(self) -> list[Redis]:
        """Return the clients of the nodes that were asked so far."""
        return list(self._nodes.values())

    def pooled(self) -> "ClusterClient":
        """Return another client of the same nodes, for calls while the connections of this one are occupied."""
        return ClusterClient(self._pools)

    def doubt(self) -> None:
        """Have the cluster asked where its slots are before the next command."""
        self._slots.doubt()

    def note_silent(self, node: Redis) -> None:
        """Note that the node of a client did not answer: another may soon hold its slots."""
        for address, each in self._nodes.items():
            if each is node:
                self._slots.note_silent(address)
                return

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the node that holds its key.

        Raises:
            redis.exceptions.TryAgainError: the slot is still being moved after `patience_s`.
            redis.exceptions.ClusterDownError: no node serves the slot after `patience_s`.
        """
        (reply,) = make(self, Exchange((Command(args),), repeats=False))
        return self.called_back(args, options, reply)

    def exchange(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Send commands, in one write a node, and return the replies in their order.

        An error takes the place of a reply.
        """
        calls: list[Command[Any]] = [Command(tuple(command)) for command in commands]
        return make(self, Exchange(calls, is_one=False, repeats=False))

    def send(self, exchange: Exchange, where: Sequence[Where | None] = ()) -> Outcome:
        """Send an exchange once, in one write a node. The nodes are asked one after the other."""
        parts = Routed(self._slots, exchange, where)
        for at, commands in parts.commands():
            try:
                self._check_silence(at.address)
                node = self._at(at.address)
            except LOST as error:
                replies: list[Any] = [error] * len(commands)
            else:
                replies = converse(node, commands, is_own=parts.is_own)
            for lost in parts.take(at, replies):
                self._note_silence(lost, at.address)
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
        for node in self.of_nodes():
            try:
                told.append(dict(node.pubsub_numsub(*args)))
            except LOST as error:
                self.lose(node, error)
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

    def _note_silence(self, error: Exception, address: Address) -> None:
        """Do not ask a node that has timed out again for a while."""
        if (
            self.silent_times
            and isinstance(error, RedisTimeoutError)
            and self._silence_of(address) is None
        ):
            waited_ms = 1000 * (self.arguments.get("socket_timeout") or 0.0)
            until_ms = monotonic_ms() + self.silent_times * waited_ms
            self._silences[address] = error, until_ms

    def _check_silence(self, address: Address) -> None:
        if (error := self._silence_of(address)) is not None:
            raise error

    def _silence_of(self, address: Address) -> Exception | None:
        """Return the error with which a node was silent, while that counts."""
        error, until_ms = self._silences.get(address, (None, 0.0))
        return error if monotonic_ms() < until_ms else None

    def _at(self, address: Address) -> Redis:
        node = self._nodes.get(address)
        if node is None:
            pool = self._pools.at(address)
            try:
                node = Client(
                    connection_pool=pool, single_connection_client=self._is_single
                )
            except LOST as error:
                self._slots.note_lost(error, address)
                self._note_silence(error, address)
                mark_unsent(error)
                raise
            node = self._nodes.setdefault(address, node)
        return node


class AsyncClusterClient(  # type: ignore[misc]  # The bases of redis-py's client disagree.
    _ClientOfNodes[AsyncConnectionPool, aio.Redis], aio.Redis
):
    """`ClusterClient` on an event loop. The cluster is asked about its slots in a thread."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the node that holds its key; see `ClusterClient.execute_command`."""
        (reply,) = await amake(self, Exchange((Command(args),), repeats=False))
        return self.called_back(args, options, reply)

    async def send(
        self, exchange: Exchange, where: Sequence[Where | None] = ()
    ) -> Outcome:
        """Send an exchange once, in one write a node, to all nodes at once."""
        try:
            await self._read_slots()
        except LOST as error:
            return Outcome([error] * len(exchange.calls), boottime_ms())
        parts = Routed(self._slots, exchange, where)
        sent = list(parts.commands())
        made = await asyncio.gather(
            *(aconverse(self._at(at.address), commands) for at, commands in sent)
        )
        for (at, _), replies in zip(sent, made, strict=True):
            parts.take(at, replies)
        return parts.outcome()

    async def lying_at(self, node: str, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it lies on this node."""
        await self._read_slots()
        return self._slots.lying_at(node, keys)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self._nodes = {}
        if close_connection_pool or (
            close_connection_pool is None and self.auto_close_connection_pool
        ):
            for pool in self._pools.all():
                await pool.disconnect()

    async def _read_slots(self) -> None:
        if self._slots.is_doubtful:
            await asyncio.to_thread(self._slots.refresh)

    def _at(self, address: Address) -> aio.Redis:
        node = self._nodes.get(address)
        if node is None:
            node = aio.Redis(connection_pool=self._pools.at(address))
            self._nodes[address] = node
        return node
