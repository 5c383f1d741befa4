"""Connections of redis-py, sync and async, to a server inside this process.

Such a server is an object with `execute`. Everything above a connection stays as it is: pools, pipelines, streams, and
the calls that are made on them.
"""

from collections import deque
from typing import Any, Protocol

from redis.asyncio.connection import Connection as AsyncConnection
from redis.connection import Connection

from django_delayq.transport.sentinels import QUIETLY
from django_delayq.transport.server import Server


class InProcess(Protocol):
    """A server inside this process."""

    def execute(self, command: tuple[Any, ...]) -> Any:
        """Do a command and return the reply.

        Raises:
            redis.exceptions.ResponseError: what a server replies to a command that it refuses.
        """
        ...

    def conclude(self, reply: Any) -> None:
        """Do what follows from the command whose reply is being read, before its caller gets it."""
        ...

    async def aconclude(self, reply: Any) -> None:
        """`conclude` on the event loop."""
        ...


class InProcessServer(Server):
    """Makes pools of connections to a server inside this process."""

    __slots__ = ()

    @classmethod
    def to(cls, server: InProcess) -> "InProcessServer":
        # Version 2 of the protocol: redis-py then reads replies as it does for all servers that we support.
        return cls(_Connection, {"in_process": server, "protocol": 2, **QUIETLY})

    def _class(self, *, is_async: bool) -> type:
        return _AsyncConnection if is_async else _Connection


class _Replies:
    """The replies to the commands of one connection that nobody has read yet."""

    def __init__(self, server: InProcess) -> None:
        self._server = server
        self._replies: deque[Any] = deque()

    def send(self, command: tuple[Any, ...]) -> None:
        try:
            reply = self._server.execute(command)
        except Exception as error:
            reply = error
        self._replies.append(reply)

    def next(self) -> Any:
        return self._replies.popleft()

    def clear(self) -> None:
        self._replies.clear()


class _Connection(Connection):
    _sock: Any

    def __init__(self, *, in_process: InProcess, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._in_process = in_process
        self._unread = _Replies(in_process)

    def connect(self, *args: Any, **kwargs: Any) -> None:
        # `calls` takes a connection without a socket for one that has to connect.
        self._sock = self

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self._sock = None
        self._unread.clear()

    def close(self) -> None:
        """Nothing: redis-py closes sockets, and this connection stands in for its own."""

    def can_read(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def check_health(self) -> None:
        pass

    def pack_command(self, *args: Any) -> Any:
        return [args]

    def pack_commands(self, commands: Any) -> Any:
        return list(commands)

    def send_packed_command(self, command: Any, *args: Any, **kwargs: Any) -> None:
        for each in command:
            self._unread.send(each)

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        self._unread.send(args)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        reply = self._unread.next()
        if isinstance(reply, Exception):
            raise reply
        self._in_process.conclude(reply)
        return reply


class _AsyncConnection(AsyncConnection):
    def __init__(self, *, in_process: InProcess, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._in_process = in_process
        self._unread = _Replies(in_process)
        self._is_open = False

    @property
    def is_connected(self) -> bool:
        return self._is_open

    async def connect(self, *args: Any, **kwargs: Any) -> None:
        self._is_open = True

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self._is_open = False
        self._unread.clear()

    def _close(self) -> None:
        """Nothing: there is no socket to close."""

    async def can_read(self, *args: Any, **kwargs: Any) -> bool:
        return False

    async def can_read_destructive(self, *args: Any, **kwargs: Any) -> bool:
        return False

    async def check_health(self) -> None:
        pass

    def pack_command(self, *args: Any) -> Any:
        return [args]

    def pack_commands(self, commands: Any) -> Any:
        return list(commands)

    async def send_packed_command(
        self, command: Any, *args: Any, **kwargs: Any
    ) -> None:
        for each in command:
            self._unread.send(each)

    async def send_command(self, *args: Any, **kwargs: Any) -> None:
        self._unread.send(args)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        reply = self._unread.next()
        if isinstance(reply, Exception):
            raise reply
        await self._in_process.aconclude(reply)
        return reply
