"""Connections to the nodes of a cluster, and their pools, one a node."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from redis.connection import Connection, SSLConnection
from redis.exceptions import RedisError

from django_delayq.transport.exchange import Address
from django_delayq.transport.primary import AttentiveSocket
from django_delayq.transport.slots import Slots

P = TypeVar("P")


class NodeConnection(Connection):
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


class NodeSSLConnection(NodeConnection, SSLConnection):
    """The same with TLS."""


#: What a pool of ours has in the place of redis-py's own connections.
ATTENTIVE = {Connection: NodeConnection, SSLConnection: NodeSSLConnection}


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
