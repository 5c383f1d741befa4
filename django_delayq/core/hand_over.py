"""Handing over: what a server has stored is deleted elsewhere only while that server is still the one that counts.

A primary that a failover replaces, or that a moved address no longer reaches, still answers for a while, and all that
it stores then is lost. So who answers is compared with who a new connection reaches, after a replica has acknowledged.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from redis.client import Redis
from redis.exceptions import ResponseError

from django_delayq.clock import monotonic_ms
from django_delayq.core.durability import Durable, Wait, durably, fence
from django_delayq.core.keys import DeliveryKeys
from django_delayq.exceptions import DelayqError
from django_delayq.transport.connections import disconnect, has_nodes, node_of
from django_delayq.transport.open_connections import is_refusal, run_id_in
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform

T = TypeVar("T")

#: Age at which the answer of a server about itself is asked for again, in ms.
FRESH_MS = 1_000
#: How long to wait for a failover that is under way, and for the replicas of the new primary, ms.
PATIENCE_MS = 30_000
#: The default wait, if the server has a replica.
REPLICA = Durable(replicas=1)
#: The pause between two looks meanwhile, ms.
PAUSE_MS = 100


class NotHandedOver(DelayqError):
    """Raised when nothing may be deleted elsewhere yet. The stored jobs may be there or be lost."""


class Answering(NamedTuple):
    """The server that answers."""

    #: Changes with each start of a server; empty if the account may not ask.
    run_id: str
    #: Where the Sentinels say that it is; None without Sentinels.
    address: tuple[str, int] | None = None


class HandOver:
    """Stores something on the server of a queue, for a caller that deletes it elsewhere then.

    ``client`` has one connection at a time, such as that of `Clients.of_thread`: another one might lead to another server.
    """

    def __init__(
        self,
        client: Redis,
        keys: DeliveryKeys,
        durable: Durable | None = None,
        *,
        waits: bool = True,
        is_patient: bool = True,
        fresh_ms: float = 0.0,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Wait as ``durable`` says, by default for one replica if the server has any, and with ``waits=False`` for none.

        With ``is_patient=False``, for a caller that tries again later, it waits for no failover, and leaves that default out
        if the account has no right to wait.
        Who a new connection reaches is not asked again within ``fresh_ms``: for what may be done twice, but not be lost.
        ``within`` surrounds what is asked of the server.
        """
        self._client = client
        self._keys = keys
        self._durable = durable
        self._waits = waits
        self._is_patient = is_patient
        self._fresh_ms = fresh_ms
        self._within = within
        # What opens new connections, and the pool that it is like.
        self._probe: Any = None
        self._pool: object = None
        self._known: Answering | None = None
        self._known_ms = 0.0
        # A replica that was there and is not any more may have been promoted, so it counts for as long as this object.
        self._has_replica = False

    def make(self, act: Callable[[], T]) -> T:
        """Do something on the server, and return what that returned once the server, and a replica, have it for good.

        It is done again if another server takes the place of that one meanwhile.

        Raises:
            NotHandedOver: too few replicas have it in time, or a failover takes too long.
        """
        until_ms = monotonic_ms() + (PATIENCE_MS if self._is_patient else 0.0)
        was_replaced = False
        while True:
            if self._known is None or monotonic_ms() > self._known_ms + FRESH_MS:
                self._know(until_ms)
            with self._within():
                done = act()
                why_not = self._wait()
            if self._is_still(until_ms):
                if not why_not:
                    return done
                # The replicas of a new primary come some time after it.
                if not was_replaced or monotonic_ms() > until_ms:
                    raise NotHandedOver(why_not)
            elif monotonic_ms() > until_ms:
                raise NotHandedOver("another server has just taken its place")
            was_replaced = True
            time.sleep(PAUSE_MS / 1000)

    def _know(self, until_ms: float) -> None:
        """Note which server answers. If a new connection reaches another one, the old ones are closed before."""
        while True:
            newest = self._newest(until_ms)
            self._look_for_replicas()
            if self._ask() == newest.run_id:
                self._known, self._known_ms = newest, monotonic_ms()
                return
            self._disconnect()
            if monotonic_ms() > until_ms:
                raise NotHandedOver("another server has just taken its place")

    def _is_still(self, until_ms: float) -> bool:
        """Whether the server that we know is the one that answers, and the one that a new connection reaches."""
        assert self._known is not None
        is_same = self._ask() == self._known.run_id
        if is_same and monotonic_ms() < self._known_ms + self._fresh_ms:
            return True
        if is_same and self._newest(until_ms) == self._known:
            self._known_ms = monotonic_ms()
            return True
        self._known = None
        self._disconnect()
        return False

    def _wait(self) -> str:
        """Wait for replicas or disks; return why they do not have it, or nothing."""
        durable = self._durable
        if not self._waits or not (durable or self._has_replica):
            return ""
        waiting = Wait(durable or REPLICA, self._keys)
        perform(self._client, durably(fence(self._keys), waiting))
        if waiting.is_refused and not (durable or self._is_patient):
            return ""
        return waiting.why_not

    def _ask(self) -> str:
        """Return the run id of the server that answers."""
        return run_id_in(self._info("server"))

    def _look_for_replicas(self) -> None:
        if b"state=online" in self._info("replication"):
            self._has_replica = True

    def _info(self, section: str) -> bytes:
        """Return a section of INFO; nothing if the account has no right to read it."""
        node = node_of(self._client, self._keys.control)
        try:
            told: bytes = run(node, Command(("INFO", section)))
        except ResponseError as error:
            if not is_refusal(error):
                raise
            return b""
        return told

    def _newest(self, until_ms: float) -> Answering:
        """Return the server that a new connection reaches, once no Sentinel replaces it."""
        while True:
            newest, is_moving = self._reach()
            if not is_moving:
                return newest
            if monotonic_ms() > until_ms:
                raise NotHandedOver("a Sentinel is replacing the primary")
            time.sleep(PAUSE_MS / 1000)

    def _reach(self) -> tuple[Answering, bool]:
        """Return the server that a new connection reaches, and whether a Sentinel is about to replace it."""
        client: Any = self._client
        if has_nodes(client):
            client.doubt()
        pool = node_of(client, self._keys.control).connection_pool
        if pool is not self._pool:
            # To make one takes as long as to connect.
            self._probe = pool.connection_class(**pool.connection_kwargs)
            self._pool = pool
        probe = self._probe
        try:
            probe.connect()
            probe.send_command("INFO", "server")
            told = probe.read_response()
        except ResponseError as error:
            if not is_refusal(error):
                raise
            told = b""
        finally:
            probe.disconnect()
        primary = getattr(probe, "primary", None)
        if primary is None:
            return Answering(run_id_in(told)), False
        return Answering(run_id_in(told), primary.address), primary.is_moving

    def _disconnect(self) -> None:
        client = self._client
        disconnect(client)
        for node in client.kept() if has_nodes(client) else [client]:  # type: ignore[attr-defined]
            node.connection_pool.disconnect(inuse_connections=False)
