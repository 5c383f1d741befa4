"""The Sentinels that watch over a primary, and the question where that primary is now.

A Sentinel may be away, or not know yet what the others know. So all of them are asked, one after the other, and the
answer with the highest configuration epoch counts: every failover has an epoch of its own, higher than those before.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple

from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from django_delayq.redaction import redact
from django_delayq.transport.errors import mark_of_some, mark_unsent
from django_delayq.transport.tls import unchecked, with_host_check

#: How long one Sentinel may take to accept a connection, and for each answer, s. If none of them is that fast, all are
#: asked once more with more patience.
PATIENCE_S = (0.25, 1.0)
#: A Sentinel that did not answer is left out for so long, as long as another one answers, s.
LEFT_OUT_S = 0.25

#: For so long connections to Sentinels share a context of TLS, s. redis-py makes one for each connection, and reads all
#: certificates of the system into it, which takes longer than to ask a Sentinel. Later the files may have been renewed.
CONTEXT_KEPT_S = 10.0

#: Arguments of a connection that does not say which library it is of. Later versions of redis-py look up their own
#: version for each connection, which takes longer than to connect to a Sentinel and ask.
QUIETLY: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)

Address = tuple[str, int]


class PrimaryNotFound(MasterNotFoundError):
    """Raised when no Sentinel can be asked where the primary is."""


class PrimaryUnknown(PrimaryNotFound):
    """Raised when Sentinels answer, and none of them knows a primary of that name."""


class SentinelsRefuse(AuthenticationError):
    """Raised when the Sentinels do not accept the account that they are asked with."""


class Primary(NamedTuple):
    """Where the primary is, by the Sentinels."""

    #: Rises with each failover.
    epoch: int
    host: str
    port: int
    #: Whether a Sentinel is about to make another server the primary.
    is_moving: bool = False

    @property
    def address(self) -> Address:
        return self.host, self.port

    def replaces(self, other: "Primary") -> bool:
        """Return whether the primary was somewhere else before."""
        return self.epoch > other.epoch and self.address != other.address


class _Contexts:
    """The contexts of TLS of one kind of connections to Sentinels, sync and async."""

    def __init__(self) -> None:
        self._kept: dict[bool, tuple[float, Any]] = {}

    def keep(self, context: Any, *, is_async: bool) -> None:
        self._kept[is_async] = time.monotonic(), context

    def kept(self, *, is_async: bool) -> Any:
        kept_s, context = self._kept.get(is_async, (0.0, None))
        return context if time.monotonic() < kept_s + CONTEXT_KEPT_S else None


class _PromptSocket:
    """A socket on which each answer has to be whole ``patience_s`` after its question.

    The time-out of a socket bounds each piece of an answer. Who sends one byte at a time would be waited for forever.
    """

    def __init__(self, sock: Any, patience_s: Any) -> None:
        self.wrapped = sock
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def sendall(self, data: Any) -> None:
        self.wrapped.settimeout(self._patience_s)
        self.wrapped.sendall(data)
        self._until_s = time.monotonic() + self._patience_s

    def recv(self, *args: Any) -> bytes:
        self._wait_no_longer()
        return self.wrapped.recv(*args)  # type: ignore[no-any-return]

    def recv_into(self, *args: Any) -> int:
        self._wait_no_longer()
        return self.wrapped.recv_into(*args)  # type: ignore[no-any-return]

    def _wait_no_longer(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its answer takes too long")
        self.wrapped.settimeout(left_s)


class _SentinelConnection(Connection):
    """A connection to a Sentinel."""

    def _connect(self) -> Any:
        sock = super()._connect()  # type: ignore[no-untyped-call]
        return _PromptSocket(sock, self.socket_timeout)


class _SentinelSSLConnection(SSLConnection):
    """A connection to a Sentinel, with TLS."""

    def __init__(self, *, contexts: _Contexts, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._contexts = contexts

    def _connect(self) -> Any:
        context = self._contexts.kept(is_async=False)
        if context is None or self.ssl_validate_ocsp or self.ssl_validate_ocsp_stapled:
            sock = super()._connect()  # type: ignore[no-untyped-call]
            self._contexts.keep(sock.context, is_async=False)
            return _PromptSocket(sock, self.socket_timeout)
        sock = Connection._connect(self)
        try:
            wrapped = context.wrap_socket(sock, server_hostname=self.host)
        except OSError:
            sock.close()
            raise
        return _PromptSocket(wrapped, self.socket_timeout)


class _AsyncSentinelSSLConnection(AsyncSSLConnection):
    """A connection to a Sentinel, with TLS, for asyncio."""

    def __init__(self, *, contexts: _Contexts, **arguments: Any) -> None:
        super().__init__(**arguments)
        if (context := contexts.kept(is_async=True)) is not None:
            self.ssl_context = context
        else:
            contexts.keep(self.ssl_context, is_async=True)

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        # The farewell of TLS waits for an answer, and may outlive the event loop.
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(*args, **kwargs)


@dataclass(frozen=True)
class Sentinels:
    """Some Sentinels, and the name that they know a primary by. Equal if they are the same ones."""

    name: str
    addresses: tuple[Address, ...]
    #: The arguments of a connection to each, by address; with ``ssl`` for one with TLS.
    arguments: Mapping[Address, Mapping[str, Any]] = field(repr=False, compare=False)
    #: A Sentinel that sees fewer others may be cut off from them, and its answer does not count.
    min_others: int = 0
    #: Take this host, whatever host the Sentinels name.
    forced_host: str | None = None
    # When a Sentinel that did not answer is asked again, by `time.monotonic`.
    _left_out: dict[Address, float] = field(
        default_factory=dict, repr=False, compare=False
    )
    # By the id of the arguments.
    _contexts: dict[int, _Contexts] = field(
        default_factory=dict, repr=False, compare=False
    )

    def find(self) -> Primary:
        """Ask the Sentinels where the primary is.

        Raises:
            PrimaryNotFound, SentinelsRefuse: they do not say.
        """
        answers = _Answers(self)
        for patience_s in PATIENCE_S:
            for address in answers.missing():
                connection = self.connection(address, patience_s, is_async=False)
                try:
                    answers.note(self._replies(connection))
                except (RedisError, OSError, RecursionError) as error:
                    answers.note_error(address, error)
                finally:
                    connection.disconnect()
            if answers.are_enough:
                break
        return answers.primary()

    async def afind(self) -> Primary:
        """`find` for asyncio."""
        answers = _Answers(self)
        for patience_s in PATIENCE_S:
            for address in answers.missing():
                connection = self.connection(address, patience_s, is_async=True)
                try:
                    answers.note(await self._areplies(connection))
                except (RedisError, OSError, RecursionError) as error:
                    answers.note_error(address, error)
                finally:
                    await connection.disconnect(nowait=True)
            if answers.are_enough:
                break
        return answers.primary()

    def ask(self, connection: Any) -> Primary | None:
        """Ask one Sentinel, on a connection to it. None: it does not know the primary.

        Raises:
            redis.exceptions.RedisError, OSError: it does not say.
        """
        answers = _Answers(self)
        answers.note(self._replies(connection))
        return answers.latest

    async def aask(self, connection: Any) -> Primary | None:
        """`ask` for asyncio."""
        answers = _Answers(self)
        answers.note(await self._areplies(connection))
        return answers.latest

    def unchecked(self) -> str:
        """Return the argument that lets a stranger pass for a Sentinel; "" if there is none."""
        told = [unchecked(each) for each in self.arguments.values() if each.get("ssl")]
        return next(filter(None, told), "")

    def _replies(self, connection: Any) -> list[Any]:
        connection.connect()
        connection.send_packed_command(connection.pack_commands(self._questions()))
        return [connection.read_response() for _ in self._questions()]

    async def _areplies(self, connection: Any) -> list[Any]:
        await connection.connect()
        packed = connection.pack_commands(self._questions())
        await connection.send_packed_command(packed)
        return [await connection.read_response() for _ in self._questions()]

    def asked(self) -> list[Address]:
        """Return the Sentinels to ask: those that answered last, or if there are none, all of them."""
        now_s = time.monotonic()
        return [
            address
            for address in self.addresses
            if self._left_out.get(address, 0.0) <= now_s
        ] or list(self.addresses)

    def leave_out(self, address: Address, time_s: float = LEFT_OUT_S) -> None:
        """Do not ask a Sentinel for a while, if others answer."""
        self._left_out[address] = time.monotonic() + time_s

    def _questions(self) -> Sequence[tuple[str, ...]]:
        # In this order: during a failover, a Sentinel has the new epoch before the new address.
        return (
            ("SENTINEL", "MASTER", self.name),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name),
        )

    def connection(self, address: Address, patience_s: float, *, is_async: bool) -> Any:
        """Make a connection to a Sentinel, which connects when it is used."""
        arguments = self._arguments(address, patience_s, is_async=is_async)
        given = self.arguments[address]
        if not given.get("ssl"):
            return (AsyncConnection if is_async else _SentinelConnection)(**arguments)
        contexts = self._contexts.setdefault(id(given), _Contexts())
        cls: Any = _AsyncSentinelSSLConnection if is_async else _SentinelSSLConnection
        return cls(contexts=contexts, **arguments)

    def _arguments(
        self, address: Address, patience_s: float, *, is_async: bool
    ) -> dict[str, Any]:
        arguments = dict(self.arguments[address])
        if arguments.pop("ssl", None):
            arguments = with_host_check(arguments)
        retry: Any = AsyncRetry if is_async else Retry
        return arguments | {
            "host": address[0],
            "port": address[1],
            "socket_timeout": patience_s,
            "socket_connect_timeout": patience_s,
            "retry": retry(NoBackoff(), 0),
            "decode_responses": False,
            "health_check_interval": 0,
            # A map comes as a list.
            "protocol": 2,
            **QUIETLY,
        }


class _Answers:
    """The replies of the Sentinels."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels
        self._primaries: list[Primary] = []
        self._errors: dict[Address, Exception] = {}
        self._is_unknown = False
        # Those whose answer more of the same does not change.
        self._refusing: set[Address] = set()
        self._cut_off = 0

    def note(self, replies: Sequence[Any]) -> None:
        """Take what a Sentinel has answered to the questions.

        Raises:
            InvalidResponse: no Sentinel answers so.
        """
        try:
            state, address = replies
            facts = dict(zip(state[::2], state[1::2], strict=True))
            others = int(facts[b"num-other-sentinels"])
            epoch = int(facts[b"config-epoch"])
            # Once it names the new one, the failover goes on for a while, which changes nothing.
            is_moving = (
                b"failover_in_progress" in facts.get(b"flags", b"")
                and [facts.get(b"ip"), facts.get(b"port")] == address
            )
            primary = address and Primary(epoch, *_address_of(*address), is_moving)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidResponse("no Sentinel answers so") from error
        if others < self._sentinels.min_others:
            self._cut_off += 1
        elif primary:
            if (forced := self._sentinels.forced_host) is not None:
                primary = primary._replace(host=forced)
            self._primaries.append(primary)

    def note_error(self, address: Address, error: Exception) -> None:
        if isinstance(error, ResponseError) and "No such master" in str(error):
            self._is_unknown = True
            self._refusing.add(address)
            return
        self._errors[address] = error
        if _is_refusal(error) or "CERTIFICATE_VERIFY" in str(error):
            self._refusing.add(address)
        else:
            self._refusing.discard(address)
        if not isinstance(error, ResponseError | AuthenticationError):
            self._sentinels.leave_out(address)

    def missing(self) -> list[Address]:
        """Return the Sentinels to ask: at first those that answered last, and then all that have not refused."""
        if not self._errors and not self._refusing:
            return self._sentinels.asked()
        return [
            address
            for address in self._sentinels.addresses
            if address not in self._refusing
        ]

    @property
    def are_enough(self) -> bool:
        """Whether more patience would not change the answer."""
        return bool(self._primaries) or self._have_all_refused

    @property
    def _have_all_refused(self) -> bool:
        return len(self._refusing) == len(self._sentinels.addresses)

    @property
    def latest(self) -> Primary | None:
        return max(self._primaries, default=None)

    def primary(self) -> Primary:
        if (latest := self.latest) is not None:
            return latest
        error = self._error()
        mark_unsent(error)
        if not self._have_all_refused:
            mark_of_some(error)
        raise error

    def _error(self) -> Exception:
        name = self._sentinels.name
        told = ", ".join(
            f"{host}:{port} ({redact(str(error)) or type(error).__name__})"
            for (host, port), error in self._errors.items()
        )
        places = ", ".join(f"{host}:{port}" for host, port in self._sentinels.addresses)
        # One that did not answer may well accept it, so that the call is made again.
        if self._have_all_refused and any(map(_is_refusal, self._errors.values())):
            return SentinelsRefuse(
                f"the Sentinels of {name!r} do not accept the account: {told}"
            )
        if self._is_unknown:
            return PrimaryUnknown(
                f"no primary named {name!r} is known to the Sentinels {places}"
            )
        if self._cut_off:
            return PrimaryNotFound(
                f"each Sentinel of {name!r} that answers sees fewer than {self._sentinels.min_others} others"
            )
        if any("CERTIFICATE_VERIFY" in str(error) for error in self._errors.values()):
            return PrimaryNotFound(
                f"no Sentinel of {name!r} has a certificate that is accepted: {told}; set ssl_ca_certs to its authority"
            )
        return PrimaryNotFound(f"no Sentinel of {name!r} answers: {told}")


def _address_of(host: bytes, port: bytes) -> Address:
    """Read the address of a primary.

    Raises:
        ValueError, AttributeError: nobody can connect to it.
    """
    name, number = host.decode(), int(port)
    is_name = 0 < len(name) < 256 and name.isprintable()
    if not is_name or not 0 < number < 65_536:
        raise ValueError("no address")
    # Python refuses a long part of a name by this error, which no caller would take for one of a connection.
    name.encode("idna")
    return name, number


def _is_refusal(error: Exception) -> bool:
    return isinstance(
        error, AuthenticationError | AuthorizationError | NoPermissionError
    )
