"""One Redis operation, described without I/O, and the two ways to run it.

A `Call` names the script, its keys and arguments, and how to read the reply. `run` executes it on a
`redis.Redis`, `arun` on a `redis.asyncio.Redis`, `run_all` several in one pipeline.
"""

import asyncio
import math
import re
import select
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha1
from importlib import resources
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from hiredis import pack_command
from msgspec.structs import replace
from redis.asyncio import Redis as AsyncRedis
from redis.client import Redis
from redis.connection import HiredisRespSerializer
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.calls.connections import borrow
from django_delayq.clock import boottime_ms

T = TypeVar("T")
#: What redis-py can put on the wire as it stands.
Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script: the text sent to the server (what it uses of its preludes included) and the SHA-1 of it."""

    name: str
    source: str
    sha: str
    #: What it calls its keys, in their order; one that ends with ``?`` may be missing, behind the last may be more.
    keys: tuple[str, ...] = ()


class Keys(Hashable, Protocol):
    """The keys of one queue."""

    def key(self, name: str) -> str:
        """Return a key by the name that the headers of scripts have for it."""


#: How a definition in a prelude begins; it goes on to the next one.
_DEFINITION = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)


@cache
def load_script(packages: tuple[str, ...], name: str) -> Script:
    """Read ``lua/<name>.lua`` of the first package and put what it uses of its preludes before it.

    A header line ``-- Prelude  clock, frame`` names ``_clock.lua`` and ``_frame.lua``, which are looked for in the
    ``lua`` folders of all the packages: the script's own layer and those below it, nearest first.

    The server makes each function of a script anew at each call: what is not used would cost `schedule` an eighth
    of its time there.
    """
    text = _find(packages[:1], name)
    definitions: list[tuple[set[str], str]] = []
    for prelude in preludes_of(text):
        definitions += _definitions_of(_find(packages, f"_{prelude}"))
    used, needed = _names_in(text), [text]
    for names, definition in reversed(definitions):
        if names & used:
            used |= _names_in(definition)
            needed.append(definition)
    keys = keys_of(text)
    source = _with_numbers("".join(reversed(needed)), keys, name)
    return Script(
        name, source, sha1(source.encode(), usedforsecurity=False).hexdigest(), keys
    )


def bind(
    packages: tuple[str, ...],
    name: str,
    keys: Keys,
    *,
    more: Iterable[str] = (),
    **named: str,
) -> tuple[Script, tuple[str, ...]]:
    """Return a script and its keys, in the order of its header: those named here, else those of the queue.

    ``more`` are those behind them, which the header has as ``name?`` or ``name...``.
    """
    if named:
        script, found = _bind(packages, name, keys, named)
    else:
        script, found = _bind_once(packages, name, keys)
    if not more:
        return script, found
    if not script.keys or script.keys[-1][-1] not in "?.":
        raise TypeError(f"{name}.lua takes no more keys than its header names")
    return script, (*found, *more)


def _bind(
    packages: tuple[str, ...], name: str, keys: Keys, named: Mapping[str, str]
) -> tuple[Script, tuple[str, ...]]:
    script = load_script(packages, name)
    if unknown := named.keys() - set(script.keys):
        raise TypeError(f"{name}.lua has no key {min(unknown)!r} in its header")
    return script, tuple(
        named[key] if key in named else keys.key(key)
        for key in script.keys
        if key[-1] not in "?."
    )


@lru_cache(maxsize=16_384)
def _bind_once(
    packages: tuple[str, ...], name: str, keys: Keys
) -> tuple[Script, tuple[str, ...]]:
    return _bind(packages, name, keys, {})


_KEYS = re.compile(r"^-- Keys     (.*(?:\n--          .*)*)", re.MULTILINE)


def keys_of(text: str) -> tuple[str, ...]:
    """Return the names in the ``-- Keys`` lines of a script's header."""
    match = _KEYS.search(text)
    return tuple(re.findall(r"[\w?.]+", match[1])) if match else ()


def _with_numbers(source: str, keys: tuple[str, ...], script: str) -> str:
    """Put what the server calls a key in place of its name: ``KEYS[3]`` for ``keys.leases``, their number for ``#keys``."""
    numbers = {key.rstrip("?."): i for i, key in enumerate(keys, 1)}

    def number(match: re.Match[str]) -> str:
        if match[1] not in numbers:
            raise KeyError(
                f"{script}.lua uses {match[0]}, which its header does not name"
            )
        return f"KEYS[{numbers[match[1]]}]"

    source = re.sub(r"\bkeys\.(\w+)", number, source)
    return source.replace(
        "#keys", str(len([key for key in keys if key[-1] not in "?."]))
    )


def _definitions_of(prelude: str) -> list[tuple[set[str], str]]:
    """Return what each definition of a prelude defines, and its text."""
    found = list(_DEFINITION.finditer(prelude))
    ends = [match.start() for match in found[1:]] + [len(prelude)]
    return [
        (set(match[1].split(", ")), prelude[match.start() : end])
        for match, end in zip(found, ends, strict=True)
    ]


def _names_in(text: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub(r"--.*", "", text)))


def preludes_of(text: str) -> list[str]:
    """Return the names in the ``-- Prelude`` line of a script's header."""
    for line in text.splitlines():
        if line.startswith("-- Prelude  "):
            return [
                name.strip() for name in line.removeprefix("-- Prelude  ").split(",")
            ]
    return []


def _find(packages: tuple[str, ...], name: str) -> str:
    for package in packages:
        file = resources.files(package).joinpath("lua", f"{name}.lua")
        if file.is_file():
            return file.read_text("utf-8")
    raise FileNotFoundError(f"no lua/{name}.lua in {', '.join(packages)}")


def _identity(reply: Any) -> Any:
    return reply


_NOTHING: Mapping[int, Argument] = MappingProxyType({})


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A script call that has not been made yet."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument] = ()
    read: Callable[[Any], T] = _identity
    #: Arguments, by index, that are different when the call is made again because its reply was lost. None: making it
    #: twice would do it twice, so a lost reply is an error.
    repeat: Mapping[int, Argument] | None = _NOTHING
    #: A repeat is known to be one for so long: what a script remembers of the first, it forgets.
    window_ms: float = math.inf
    #: Makes the call of a script that does what this one leaves alone: where the reply is nil, and for a repeat.
    full: "Callable[[], Call[T]] | None" = None

    def command(self) -> tuple[Argument, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def full_command(self) -> tuple[Argument, ...]:
        """The same with the script's text, for a server that has not seen it yet."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)

    def again(self) -> "Call[T]":
        """The same call, for a server that may have run it already."""
        if self.full is not None:
            return self.full().again()
        if not self.repeat:
            return self
        args = list(self.args)
        for index, argument in self.repeat.items():
            args[index] = argument
        return replace(self, args=args)


class CallPacker(HiredisRespSerializer):
    """Writes script calls as redis-py does, without looking at each argument first: that cost a job more than its task."""

    def pack(self, *args: Any) -> list[bytes]:
        if args[0] == "EVALSHA":
            try:
                return [pack_command(args)]
            except TypeError:
                # What no Argument is: redis-py knows more types, or says which one it is.
                pass
        packed: list[bytes] = super().pack(*args)
        return packed


#: Calls of a stream that the server may have before it.
UNDER_WAY = 2
#: Waits before a call is made again, s. A lost connection is quickly told; a silent server has cost its time-out.
PAUSES_S = (0.05, 0.2, 0.5)
_LOST = (RedisConnectionError, RedisTimeoutError)
#: Errors of the connection by which the server says that it has not even looked at the call.
_TURNED_AWAY = (AuthenticationError, AuthorizationError, BusyLoadingError)
#: By these codes the server says that a script was not begun, or refused its first write. Ours check types before that.
_REFUSED = re.compile(
    r"\b(?:WRONGTYPE|NOREPLICAS|MISCONF|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b"
)
#: The attribute by which an error of a call knows whether the call may have been carried out.
_MAY_HAVE_RUN = "_delayq_may_have_run"


def may_have_run(error: Exception) -> bool:
    """Tell whether a call that failed so may have been carried out, in part at least.

    False where no connection came about, and where the server refused the call before its first write.
    """
    marked: bool | None = getattr(error, _MAY_HAVE_RUN, None)
    if marked is not None:
        return marked
    if isinstance(error, _LOST):
        return not isinstance(error, _TURNED_AWAY)
    return not (
        isinstance(error, OutOfMemoryError | ReadOnlyError | NoPermissionError)
        or _REFUSED.search(str(error))
    )


def mark_unsent(error: Exception) -> None:
    """Note on an error that it came up before anything was sent."""
    setattr(error, _MAY_HAVE_RUN, False)


class _Repeats(Generic[T]):
    """When a call whose reply was lost is made again, and what its last error says of all of them."""

    def __init__(self, call: Call[T], first_ms: float, lost: Exception) -> None:
        if call.repeat is None:
            raise lost
        self._call = call
        self._first_ms = first_ms
        self._may_have_run = False
        self.lost = lost
        self.note(lost)

    def pauses_s(self) -> Iterator[float]:
        """Yield how long to wait before each; ends where one more would not be known as a repeat."""
        if isinstance(self.lost, AuthenticationError | AuthorizationError):
            return
        for pause_s in _pauses(self.lost):
            passed_ms = boottime_ms() + pause_s * 1000 - self._first_ms
            if self._may_have_run and passed_ms > self._call.window_ms:
                self.lost.add_note(
                    f"django-delayq: not asked again: the server tells a repeat for {self._call.window_ms / 1000:g} s"
                    f" only, and {passed_ms / 1000:.1f} s have passed"
                )
                return
            yield pause_s

    @property
    def call(self) -> Call[T]:
        """What to send: as a repeat only where it is one."""
        return self._call.again() if self._may_have_run else self._call

    def note(self, error: Exception) -> None:
        """Take in an error; an earlier try may have been carried out whatever the last one says."""
        self.lost = error
        if self._may_have_run and not isinstance(error, OutOfMemoryError):
            # A full server refuses to store, so the repeat did not find it stored.
            setattr(error, _MAY_HAVE_RUN, True)
        self._may_have_run = may_have_run(error)


def run(client: Redis, call: Call[T]) -> T:
    """Make one call, and again where its reply was lost and that is safe.

    The client is one that does not repeat by itself. Other errors of the server pass through; `may_have_run` tells
    what they mean.
    """
    first_ms = boottime_ms()
    try:
        return _run(client, call)
    except _LOST as error:
        repeats = _Repeats(call, first_ms, error)
    for pause_s in repeats.pauses_s():
        time.sleep(pause_s)
        try:
            return _run(client, repeats.call)
        except _LOST as error:
            repeats.note(error)
        except RedisError as error:
            repeats.note(error)
            raise
    raise repeats.lost


def _run(client: Redis, call: Call[T]) -> T:
    try:
        try:
            reply = _execute(client, call.command())
        except NoScriptError:
            reply = _execute(client, call.full_command())
    except ResponseError as error:
        _raise_hidden(error)
        raise
    if reply is None and call.full is not None:
        return _run(client, call.full())
    return call.read(reply)


#: Errors that a caller decides by, as Redis 6.2 has them in the text of the error of the script.
_HIDDEN = {"-OOM ": OutOfMemoryError, "-READONLY ": ReadOnlyError}


def _unhidden(error: ResponseError) -> ResponseError:
    """Return the error of the command that stopped a script; from Redis 7 on that is what the server tells."""
    text = str(error)
    if text.startswith("Error running script"):
        for prefix, cls in _HIDDEN.items():
            _, found, rest = text.partition(prefix)
            if found:
                return cls(rest)
    return error


def _raise_hidden(error: ResponseError) -> None:
    told = _unhidden(error)
    if told is not error:
        raise told from error


def _execute(client: Redis, command: tuple[Argument, ...]) -> Any:
    connection = client.connection
    if connection is None:
        return _execute_pooled(client, command)
    # A client with a connection of its own, see conf.get_client: the pool's bookkeeping would cost as much as the call.
    if getattr(connection, "_sock", None) is None:
        try:
            connection.connect()
        except _LOST as error:
            mark_unsent(error)
            raise
    try:
        connection.send_command(*command)
        return connection.read_response()
    except ResponseError:
        raise
    except BaseException:
        # Also an interrupt: the reply that is still to come must not be taken for the next one's.
        connection.disconnect()
        raise


def _pauses(error: Exception) -> tuple[float, ...]:
    return PAUSES_S[:1] if isinstance(error, RedisTimeoutError) else PAUSES_S


async def arun(client: AsyncRedis, call: Call[T]) -> T:
    """`run` on an asyncio client."""
    first_ms = boottime_ms()
    try:
        return await _arun(client, call)
    except _LOST as error:
        repeats = _Repeats(call, first_ms, error)
    for pause_s in repeats.pauses_s():
        await asyncio.sleep(pause_s)
        try:
            return await _arun(client, repeats.call)
        except _LOST as error:
            repeats.note(error)
        except RedisError as error:
            repeats.note(error)
            raise
    raise repeats.lost


async def _arun(client: AsyncRedis, call: Call[T]) -> T:
    try:
        try:
            reply = await _aexecute(client, call.command())
        except NoScriptError:
            reply = await _aexecute(client, call.full_command())
    except ResponseError as error:
        _raise_hidden(error)
        raise
    if reply is None and call.full is not None:
        return await _arun(client, call.full())
    return call.read(reply)


def _execute_pooled(client: Redis, command: tuple[Argument, ...]) -> Any:
    # By hand, as execute_command() does not say whether it was the connecting that failed.
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return client.execute_command(*command)
    try:
        connection = borrow(pool)
    except _LOST as error:
        mark_unsent(error)
        raise
    try:
        connection.send_command(*command)
        return connection.read_response()
    except ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


async def _aexecute(client: AsyncRedis, command: tuple[Argument, ...]) -> Any:
    pool = getattr(client, "connection_pool", None)
    if pool is None or client.connection is not None:
        return await client.execute_command(*command)
    try:
        connection = await borrow(pool)
    except _LOST as error:
        mark_unsent(error)
        if isinstance(error.__cause__, _TURNED_AWAY):
            # redis.asyncio wraps what redis raises as it is.
            mark_unsent(error.__cause__)
            raise error.__cause__ from None
        raise
    try:
        await connection.send_command(*command)
        return await connection.read_response()
    finally:
        await pool.release(connection)


class UnderWay(Generic[T]):
    """A call that was made on a `Line` and whose reply has not been read: the server works on it meanwhile."""

    def __init__(self, line: "Line", call: "Call[T] | Question[T]") -> None:
        self._line = line
        self._call = call
        #: What came: a reply, or an error of the server or of the connection.
        self._told: Any = None
        self._is_told = False

    def tell(self, reply: Any) -> None:
        self._told, self._is_told = reply, True

    def finish(self) -> T:
        """Wait for the reply; once. Errors of the server and of the connection are raised, also those of sending."""
        if not self._is_told:
            self._line.read_until(self)
        call, told = self._call, self._told
        if not isinstance(told, Exception):
            return call.read(told)
        if isinstance(told, NoScriptError) and isinstance(call, Call):
            return run(self._line.client, call)
        if isinstance(told, ResponseError):
            _raise_hidden(told)
        raise told

    @property
    def is_told(self) -> bool:
        return self._is_told


class Line:
    """A connection that is kept: calls that are made before anybody waits go out in one write.

    It belongs to one thread. Where the server closed it while nothing was under way, nobody notices; an error of the
    connection is the end of all that is under way, and the next call connects anew.
    """

    def __init__(self, client: Redis) -> None:
        """``client`` lends the connection; a script that its server does not know yet is run by it."""
        self.client = client
        self._connection: Any = None
        self._poll: Any = None
        # Not sent yet.
        self._packed: list[bytes] = []
        self._unread: deque[UnderWay[Any]] = deque()

    def ask(self, call: "Call[T] | Question[T]") -> UnderWay[T]:
        """Make a call; it is sent with the others, by `flush` or when the first of them is waited for."""
        under_way = UnderWay(self, call)
        try:
            if not self._unread:
                self._make_ready()
            self._packed += self._connection.pack_command(*call.command())
        except Exception as error:
            self._fail(error)
            under_way.tell(error)
        else:
            self._unread.append(under_way)
        return under_way

    def flush(self) -> None:
        """Send what was not sent yet."""
        if self._packed:
            packed, self._packed = b"".join(self._packed), []
            try:
                self._connection.send_packed_command([packed], check_health=False)
            except Exception as error:
                self._fail(error)
            except BaseException:
                self.close()
                raise

    def read_until(self, last: UnderWay[Any]) -> None:
        """Take in the replies up to that of one call."""
        self.flush()
        while not last.is_told:
            try:
                reply = self._connection.read_response()
            except ResponseError as error:
                reply = error
            except Exception as error:
                self._fail(error)
                return
            except BaseException:
                # Also an interrupt: the replies that are still to come must not be taken for others.
                self.close()
                raise
            self._unread.popleft().tell(reply)

    def rest(self) -> None:
        """Give the connection back where nothing is under way, so that others of the client need none of their own."""
        if self._connection is not None and not self._unread:
            connection, self._connection, self._poll = self._connection, None, None
            self.client.connection_pool.release(connection)

    def close(self) -> None:
        """Let go of the connection; what is under way gets no reply any more."""
        self._fail(RedisConnectionError("the connection was closed"))

    @property
    def is_stale(self) -> bool:
        """Whether there is something to read although nothing was asked: the server has closed it, a restart perhaps."""
        return self._poll is not None and bool(self._poll.poll(0))

    def _make_ready(self) -> None:
        """Connect, unless it is."""
        connection = self._connection
        if connection is None:
            connection = self._connection = borrow(self.client.connection_pool)
        elif self.is_stale:
            connection.disconnect()
        if connection._sock is None:
            connection.connect()
            self._poll = None
        elif connection.health_check_interval:
            connection.check_health()
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(connection._sock.fileno(), select.POLLIN)

    def _fail(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        self._poll, self._packed = None, []
        unread, self._unread = self._unread, deque()
        for under_way in unread:
            under_way.tell(error)
        if connection is not None:
            connection.disconnect()
            self.client.connection_pool.release(connection)


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A command that is no script, for a `Line`."""

    words: tuple[Argument, ...]
    read: Callable[[Any], T] = _identity

    def command(self) -> tuple[Argument, ...]:
        return self.words


def run_all(client: Redis, calls: Sequence[Call[T]]) -> list[T | Exception]:
    """Make several calls in one pipeline, once; not atomic as a whole. An error stands in its call's place."""
    replies = _pipeline(client, [call.command() for call in calls])
    unknown = _unknown(replies)
    if unknown:
        # NOSCRIPT means that nothing of it ran: those, and only those, are sent again.
        for i, reply in zip(
            unknown,
            _pipeline(client, [calls[i].full_command() for i in unknown]),
            strict=True,
        ):
            replies[i] = reply
    return _read_all(calls, replies)


def run_stream(client: Redis, calls: Iterable[Call[T]]) -> Iterator[T | Exception]:
    """Make calls one after the other without waiting for each: while the server works, the next is made.

    The client has a connection of its own. An error stands in its
    call's place; a lost connection ends the stream.
    """
    connection = client.connection
    assert connection is not None
    under_way: deque[Call[T]] = deque()
    failure: Exception | None = None
    try:
        for call in calls:
            try:
                if failure is None:
                    connection.send_command(*call.command())
            except _LOST as error:
                connection.disconnect()
                failure = error
            under_way.append(call)
            if len(under_way) > UNDER_WAY or failure is not None:
                reply, failure = _read_one(connection, under_way.popleft(), failure)
                yield reply
            if failure is not None:
                break
        while under_way:
            reply, failure = _read_one(connection, under_way.popleft(), failure)
            yield reply
    except BaseException:
        # Whatever made the calls failed, or whoever reads went away: replies are still to come.
        connection.disconnect()
        raise


def _read_one(
    connection: Any, call: Call[Any], failure: Exception | None
) -> tuple[Any, Exception | None]:
    if failure is not None:
        return failure, failure
    try:
        return call.read(connection.read_response()), None
    except ResponseError as error:
        return _unhidden(error), None
    except _LOST as error:
        connection.disconnect()
        return error, error


async def arun_all(client: AsyncRedis, calls: Sequence[Call[T]]) -> list[T | Exception]:
    """`run_all` on an asyncio client."""
    replies = await _apipeline(client, [call.command() for call in calls])
    unknown = _unknown(replies)
    if unknown:
        again = await _apipeline(client, [calls[i].full_command() for i in unknown])
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    return _read_all(calls, replies)


def _pipeline(client: Redis, commands: list[tuple[Argument, ...]]) -> list[Any]:
    if not commands:
        return []
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(pipeline.execute(raise_on_error=False))


async def _apipeline(
    client: AsyncRedis, commands: list[tuple[Argument, ...]]
) -> list[Any]:
    if not commands:
        return []
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(await pipeline.execute(raise_on_error=False))


def _unknown(replies: Sequence[Any]) -> list[int]:
    return [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _read_all(calls: Sequence[Call[T]], replies: Sequence[Any]) -> list[T | Exception]:
    read: list[T | Exception] = []
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, ResponseError):
            reply = _unhidden(reply)
        read.append(reply if isinstance(reply, Exception) else call.read(reply))
    return read
