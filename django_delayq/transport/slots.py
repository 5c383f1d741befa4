"""The map of a cluster's slots: which node holds a key, as redis-py's engine and the nodes' own redirections say.

It is read again when somebody doubts it. Who sends a call to which node is up to `routes` and the clients.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from redis.cluster import ClusterNode, NodesManager
from redis.crc import key_slot
from redis.exceptions import (
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisClusterException,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.clock import monotonic_ms
from django_delayq.exceptions import InvalidSettings
from django_delayq.transport.errors import (
    LOST,
    TURNED_AWAY,
    is_of_some,
    mark_of_node,
    mark_of_some,
    mark_unsent,
)
from django_delayq.transport.exchange import Address
from django_delayq.transport.open_connections import note_change

#: The table of slots is read again so often at most.
REFRESH_EVERY_MS = 200.0


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
        return _address_of(nodes[0])

    def lying_at(self, node: str, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it lies on this node."""
        lie = []
        for key in keys:
            try:
                lie.append(str(self.holder(key)) == node)
            except ClusterDownError:
                lie.append(False)
        return lie

    def primaries(self) -> list[Address]:
        """Return the nodes that hold slots."""
        if self._engine is None:
            self.refresh()
        assert self._engine is not None
        table = self._engine.slots_cache
        if self._primaries is None or self._primaries[0] is not table:
            # redis-py's own list of nodes keeps those that have been replaced.
            holders = {id(nodes[0]): nodes[0] for nodes in table.values() if nodes}
            found = dict.fromkeys(map(_address_of, holders.values()))
            self._primaries = table, list(found)
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

    def note_lost(self, error: Exception, address: Address) -> None:
        """Note the error of a connection to a node, and on the error, that it is the node's own."""
        mark_of_node(error, str(address))
        self.note_silent(address)

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


def _address_of(node: ClusterNode) -> Address:
    return Address(node.host, int(node.port))
