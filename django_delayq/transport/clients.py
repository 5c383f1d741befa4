"""The clients of one server, made when they are needed: of a thread, shared by threads, of an event loop.

A queue object uses the clients of the connection that it was given. Everything else shares `own_clients`, the
process's own, whose server the settings name.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis import asyncio as aio
from redis.client import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import show
from django_delayq.transport import open_connections
from django_delayq.transport.cluster import Cluster, server_at
from django_delayq.transport.connections import disconnect, has_nodes
from django_delayq.transport.errors import nothing_sent
from django_delayq.transport.server import Server
from django_delayq.transport.url import read_url

#: What ``connection=`` takes.
Given = Redis | aio.Redis | RedisCluster | str


class Clients:
    """Makes and keeps the clients of one server, for any number of threads and event loops. Their replies are bytes.

    A forked child makes its own clients: on its parent's connections it would read its parent's replies.
    """

    def __init__(
        self,
        find: Callable[[], Server | Cluster],
        *,
        given: Redis | aio.Redis | None = None,
        key: Hashable = None,
    ) -> None:
        """Ask ``find`` where the server is, whenever a pool is made.

        A client that was ``given`` is used itself where its kind, sync or async, is asked for. Objects with the same
        ``key`` share the clients of event loops.
        """
        #: Says where the server is.
        self.find = find
        #: What it says may change: as long as this returns the same, what was made stays.
        self.state: Callable[[], object] = bool
        #: Called when it has changed.
        self.on_change: Callable[[], object] = bool
        self._changes = 0
        self._given = given
        self._key = self if key is None else key
        # One at most. A dictionary is filled in one step: if two threads make one at once, the second is dropped before
        # anybody has it.
        self._made: dict[str, _Made] = {}
        _all.add(self)

    @classmethod
    def of(cls, connection: Given | None) -> "Clients":
        """Return the clients of a connection: a client, also of a cluster, a URL, or None for the process's own.

        Raises:
            InvalidSettings: ``connection`` is something else.
        """
        if connection is None:
            return own_clients
        if isinstance(connection, str):
            url = read_url(connection)
            return cls(lambda: server_at(url), key=url)
        if isinstance(connection, RedisCluster):
            return cls(lambda: Cluster.of(connection), key=id(connection))
        if not isinstance(connection, Redis | aio.Redis):
            raise InvalidSettings(
                "connection has to be a redis.Redis, a redis.asyncio.Redis, a redis.RedisCluster or a URL;"
                f" got {show(connection)}"
            )
        # A client that decodes would return text. A sync one with a single connection would mix up the replies of
        # threads, that of the transfer among them. One that redis-py leads by Sentinels would stay with a server that
        # hangs, and sometimes with one that was replaced.
        server = Server.of(connection)
        is_used = (
            not server.decodes
            and not server.is_led
            and not (isinstance(connection, Redis) and connection.connection)
        )
        return cls(
            lambda: Server.of(connection),
            given=connection if is_used else None,
            key=id(connection),
        )

    @property
    def is_own(self) -> bool:
        """Whether these are the process's own."""
        return self is own_clients

    def shared(self) -> Redis:
        """Return a client for all threads, whose pool lends it a connection for each call.

        Raises:
            InvalidSettings, EmbeddedServerError: there is no server to connect to.
        """
        if isinstance(self._given, Redis):
            return self._given
        return self._get().shared

    def of_thread(self) -> Redis:
        """Return the client of this thread, which has a connection of its own, or the client that was given.

        The bookkeeping of a pool would cost as much as a call.

        Raises:
            InvalidSettings, EmbeddedServerError: there is no server to connect to.
            redis.exceptions.ConnectionError: the server cannot be reached, so nothing was sent.
        """
        try:
            made = self._made["made"]
            client: Redis = made.of_threads.client
        except (KeyError, AttributeError):
            pass
        else:
            if made.state is self.state():
                return client
        if isinstance(self._given, Redis):
            return self._given
        with nothing_sent():
            made = self._get()
            # It connects at once. It is freed with its thread, or with us; its connection then returns to the pool.
            client = made.server.client(made.pool, is_single=True)
        made.of_threads.client = client
        return client

    @contextmanager
    def waiting_once(self) -> Iterator[Redis]:
        """Give out this thread's client, which in this block waits once for a node of a cluster that hangs."""
        client = self.of_thread()
        if not has_nodes(client):
            yield client
            return
        with client.waiting_once():  # type: ignore[attr-defined]
            yield client

    def at_hand(self) -> Redis:
        """Return the client of this thread. If it cannot connect, return the shared one, whose call meets the error.

        Raises:
            InvalidSettings, EmbeddedServerError: there is no server to connect to.
        """
        try:
            return self.of_thread()
        except (RedisConnectionError, RedisTimeoutError):
            return self.shared()

    @contextmanager
    def lent(self) -> Iterator[Redis]:
        """Lend this thread's client to a stream. Other calls of the thread use another client meanwhile.

        The next replies on this client's connection belong to the stream.
        """
        client = self.of_thread()
        of_threads = self._get().of_threads
        vars(of_threads).pop("client", None)
        try:
            yield client
        except BaseException:
            # The stream may live on in the traceback, with replies that nobody has read.
            disconnect(client)
            raise
        finally:
            of_threads.client = client

    def make(self, **overrides: Any) -> Redis:
        """Make a client with a pool of its own, for a caller that needs other time-outs. The caller closes it."""
        server = self.find()
        client = server.client(server.pool(**overrides))
        client.auto_close_connection_pool = True
        return client

    async def of_loop(self) -> aio.Redis:
        """Return the client of the running event loop, which is closed with its loop, or the client that was given.

        Raises:
            InvalidSettings, EmbeddedServerError: there is no server to connect to.
        """
        if isinstance(self._given, aio.Redis):
            return self._given
        place = asyncio.get_running_loop(), self._key
        kept, state = _of_loops.get(place), self.state()
        if kept is None or kept.state is not state:
            with nothing_sent():
                server = self.find()
            client = server.async_client(server.async_pool())
            client.auto_close_connection_pool = True
            keeper = _close_with_loop(client, place)
            await anext(keeper)
            _drop_closed_loops()
            kept = _of_loops[place] = _OfLoop(client, keeper, self.find, state)
        return kept.client

    @property
    def changes(self) -> int:
        """How often another server has answered, or one that had forgotten what it took.

        Code that keeps what a server said compares this, and reads again when it has risen.
        """
        return self._changes + open_connections.changes()

    def note_change(self) -> None:
        """Note that what was remembered of the server may be wrong now. Called from any thread."""
        self._changes += 1

    def close(self) -> None:
        """Close what was made for threads, unless these are the process's own clients. The next use makes others."""
        if not self.is_own and (made := self._made.pop("made", None)) is not None:
            made.pool.disconnect()

    def forget(self) -> None:
        """Drop all clients, because the server is another one now."""
        # A thread that makes a pool of the old server right now puts it into the old dictionary, which nobody reads.
        made, self._made = self._made.get("made"), {}
        # Other threads may add loops meanwhile: `list` copies a dictionary in one step.
        for place in list(_of_loops):
            if place[1] == self._key:
                _of_loops.pop(place, None)
        if made is not None:
            made.pool.disconnect()

    def forget_after_fork(self) -> None:
        """Drop the clients that the parent still uses."""
        self._made.clear()

    def _get(self) -> "_Made":
        state, kept = self.state(), self._made
        made = kept.get("made")
        if made is not None and made.state is not state:
            self.forget()
            self.on_change()
            kept, made = self._made, None
        return made or kept.setdefault("made", _Made(self.find(), state))


class _Made:
    """A pool, and the clients whose connections it lends."""

    def __init__(self, server: Server | Cluster, state: object) -> None:
        self.server = server
        # A pool, or those of the nodes of a cluster: each kind of server makes clients on its own.
        self.pool: Any = server.pool()
        #: That of `Clients` when it was made.
        self.state = state
        self.shared = server.client(self.pool)
        self.of_threads = threading.local()


class _OfLoop(NamedTuple):
    client: aio.Redis
    #: Closes the client. It stays open as long as the loop.
    keeper: AsyncGenerator[None, None]
    #: Holds the object that the client was made from, so that no other object gets its id.
    find: Callable[[], Server | Cluster]
    #: That of `Clients` when it was made.
    state: object


#: By loop and `Clients._key`. A client and its keeper refer to their loop, so that weak keys would never be freed.
_of_loops: dict[tuple[asyncio.AbstractEventLoop, Hashable], _OfLoop] = {}


async def _close_with_loop(
    client: aio.Redis, place: tuple[asyncio.AbstractEventLoop, Hashable]
) -> AsyncGenerator[None, None]:
    # asyncio.run() closes the generators that are open when its loop ends.
    try:
        yield
    finally:
        if (kept := _of_loops.get(place)) is not None and kept.client is client:
            del _of_loops[place]
        await client.aclose()


def _drop_closed_loops() -> None:
    # Whoever closes a loop by hand may leave its generators open.
    for place in list(_of_loops):
        if place[0].is_closed():
            _of_loops.pop(place, None)


def nowhere() -> Server:
    """Raise the error for a server that nobody has named.

    Raises:
        InvalidSettings: always. The message says what to do.
    """
    raise InvalidSettings(
        "no connection: give connection=redis.Redis(...) or a URL such as 'redis://localhost:6379/0',"
        " or add 'django_delayq' to INSTALLED_APPS and set DELAYQ['CONNECTION']"
    )


_all: weakref.WeakSet[Clients] = weakref.WeakSet()
#: The clients of this process. `django_delayq.project_connection` says where their server is.
own_clients = Clients(nowhere)


def _forget_after_fork() -> None:
    for clients in list(_all):
        clients.forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)
