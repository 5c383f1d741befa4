"""Durability by choice: a call waits until replicas, or disks, have what it wrote.

The call, a fence and WAIT (or WAITAOF) leave in one write on one connection. The server replies to WAIT once enough
replicas have acknowledged all that was written up to the fence, or when the time is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import msgspec
from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import NoPermissionError

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.exceptions import InvalidSettings, NotDurable
from django_delayq.redaction import brief, show
from django_delayq.transport.call import Argument, Call, InFull
from django_delayq.transport.connections import arguments_of
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import amake, make
from django_delayq.transport.steps import Steps

T = TypeVar("T")

#: More replicas than anybody has.
MOST_REPLICAS = 100
#: Seconds of the longest wait. A call waits no longer than half of its connection's time-out, whatever it asks for.
LONGEST_WAIT_S = 300
#: Seconds to wait by default. With ``appendfsync everysec`` a disk takes up to 2 s.
WAIT_S = 2.4
#: What `durable` may be.
DURABLE_WANTED = f"a number of replicas, 1 to {MOST_REPLICAS}; 'disk'; a Durable(replicas=…, disk=…, timeout=…); or False"


@dataclass(frozen=True, kw_only=True)
class Durable:
    """Replicas and disks that must have a write before the call returns, and the time the call waits for them.

    ``Durable(replicas=1)``: one replica has it in memory. ``Durable(disk=True)``: the primary has it on disk.
    ``Durable(replicas=1, disk=True)``: the primary and one replica have it on disk.

    Raises:
        InvalidSettings: it waits for nothing, or a value is out of range.
    """

    #: How many replicas.
    replicas: int = 0
    #: Whether it has to be on the disk of the primary, and of that many replicas.
    disk: bool = False
    #: How long to wait, seconds or a timedelta.
    timeout: float | timedelta = WAIT_S

    def __post_init__(self) -> None:
        if not _is_number_of_replicas(self.replicas, 0):
            raise InvalidSettings(
                f"Durable(replicas={show(self.replicas)}): give a whole number, 0 to {MOST_REPLICAS}"
            )
        if not isinstance(self.disk, bool):
            raise InvalidSettings(
                f"Durable(disk={show(self.disk)}): give True or False"
            )
        if not self.replicas and not self.disk:
            raise InvalidSettings(
                "Durable() waits for nothing: give replicas=1 or disk=True, or use durable=False"
            )
        timeout = self.timeout
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not 0.001 <= timeout <= LONGEST_WAIT_S
        ):
            raise InvalidSettings(
                f"Durable(timeout={show(self.timeout)}): give seconds or a timedelta, 0.001 to {LONGEST_WAIT_S} s"
            )

    def __str__(self) -> str:
        replicas = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"
        if not self.disk:
            return replicas
        where = f"the primary and {replicas}" if self.replicas else "the primary"
        return f"the disk of {where}"

    @property
    def timeout_s(self) -> float:
        timeout = self.timeout
        return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout

    def with_(self, other: "Durable | None") -> "Durable":
        """Return what satisfies both."""
        if other is None or other == self:
            return self
        return Durable(
            replicas=max(self.replicas, other.replicas),
            disk=self.disk or other.disk,
            timeout=max(self.timeout_s, other.timeout_s),
        )

    def command(self, silence_s: float | None) -> Command["Told"]:
        """Return the command that waits, on a connection that counts as dead after a silence of so long."""
        timeout_s = self.timeout_s
        if silence_s is not None:
            timeout_s = min(timeout_s, silence_s / 2)
        timeout_ms = max(1, round(1000 * timeout_s))
        args: tuple[Argument, ...]
        if self.disk:
            args = ("WAITAOF", 1, self.replicas, timeout_ms)
            return Command(args, lambda reply: Told(reply[1], bool(reply[0])))
        args = ("WAIT", self.replicas, timeout_ms)
        return Command(args, lambda reply: Told(reply, False))


#: What tasks, calls and queues take; None: what the next one out says.
Durability = Durable | int | Literal["disk", False]


def _is_number_of_replicas(value: object, least: int) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and least <= value <= MOST_REPLICAS
    )


def is_durability(value: object) -> bool:
    """Whether `as_durable` can read a value."""
    return (
        isinstance(value, Durable)
        or value is False
        or (isinstance(value, str) and value == "disk")
        or _is_number_of_replicas(value, 1)
    )


def as_durable(value: Durability) -> Durable | None:
    """Read what `is_durability` accepts; None: nothing is waited for."""
    if isinstance(value, Durable):
        return value
    if value is False:
        return None
    return Durable(disk=True) if value == "disk" else Durable(replicas=int(value))


class Told(msgspec.Struct, frozen=True):
    """The reply to WAIT or WAITAOF."""

    #: Replicas that have acknowledged.
    replicas: int
    #: Whether it is on the disk of the primary; False if that was not asked.
    is_on_disk: bool

    def is_enough(self, durable: Durable) -> bool:
        return self.replicas >= durable.replicas and self.is_on_disk >= durable.disk


def fence(keys: DeliveryKeys) -> Call[Any]:
    """Write something that changes nothing, for WAIT to count from. It covers all that was written before it."""
    return bind("fence", keys)()


class Wait:
    """The durability that one operation waits for, and the result."""

    def __init__(self, durable: Durable, keys: DeliveryKeys) -> None:
        self.durable = durable
        self.keys = keys
        # The first that was not enough: a reply, or an error of the server.
        self._short: Told | Exception | None = None

    @classmethod
    def of(cls, durable: Durable | None, keys: DeliveryKeys) -> "Wait | None":
        return None if durable is None else cls(durable, keys)

    def add(self, durable: Durable) -> None:
        """Wait for something else as well."""
        self.durable = self.durable.with_(durable)

    def take(self, told: Told | Exception) -> None:
        """Take in the reply to the command that waits, or the server's error."""
        is_short = isinstance(told, Exception) or not told.is_enough(self.durable)
        if is_short and self._short is None:
            self._short = told

    def check(self, jobs: Sequence[Any], first: str, done: str, advice: str) -> None:
        """Raise the error if an operation was not made durable in time; ``done`` says what became of its jobs.

        ``first`` is the id of the first of them.

        Raises:
            NotDurable: fewer replicas or disks have it than were asked for.
        """
        short = self._short
        if short is None or not jobs:
            return
        what = f"job {first} is {done}"
        if len(jobs) > 1:
            what = f"{len(jobs):,} jobs, {first} first, are {done}"
        told = short if isinstance(short, Told) else Told(0, False)
        raise NotDurable(
            f"{what} on the primary, but durable asks for {self.durable}: {self._why(short)}. {advice}",
            jobs,
            acknowledged=told.replicas,
            wanted=self.durable.replicas,
            is_on_disk=told.is_on_disk,
        ) from (short if isinstance(short, Exception) else None)

    @property
    def why_not(self) -> str:
        """Why it is not durable; empty: it is."""
        return "" if self._short is None else self._why(self._short)

    @property
    def is_refused(self) -> bool:
        """Whether the account has no right to wait."""
        return isinstance(self._short, NoPermissionError)

    def _why(self, short: Told | Exception) -> str:
        durable = self.durable
        if isinstance(short, Told):
            found = []
            if durable.disk and not short.is_on_disk:
                found.append("the primary has not synced its append-only file")
            if short.replicas < durable.replicas:
                found.append(
                    f"{short.replicas} of {durable.replicas} replicas have acknowledged it: INFO replication shows them"
                )
            return f"within {durable.timeout_s:g} s " + ", and ".join(found)
        return refusal(short)


def refusal(error: Exception) -> str:
    """Say why a server refuses WAIT or WAITAOF, and what to do."""
    text = str(error)
    if "unknown command" in text.lower():
        return "the server has no WAITAOF, which Redis and Valkey have from 7.2 on: update it, or ask for replicas"
    if "appendonly" in text:
        return "the append-only file is off: set appendonly to yes, or ask for replicas"
    if "permissions" in text or text.startswith("NOPERM"):
        return (
            f"the user has no right to wait: ACL SETUSER USER +wait +waitaof ({text})"
        )
    return f"the server refuses to wait: {text}"


@brief
class _InOneWrite(msgspec.Struct, frozen=True):
    """Send a call, the fence, and the command that waits, in one write; return their results."""

    call: Call[Any]
    waiting: Wait

    def do(self, client: Redis) -> list[Any]:
        return make(client, self._exchange(client))

    async def ado(self, client: aio.Redis) -> list[Any]:
        return await amake(client, self._exchange(client))

    def _exchange(self, client: Redis | aio.Redis) -> Exchange:
        # The fence goes with its text: it is short, and has to be there whenever the call is.
        fenced = InFull.of(fence(self.waiting.keys))
        waits = self.waiting.durable.command(silence_of(client))
        return Exchange((self.call, fenced, waits))


def silence_of(client: Redis | aio.Redis) -> float | None:
    """Return after how many seconds without a byte a connection of this client counts as dead; None: never."""
    silence_s: float | None = arguments_of(client).get("socket_timeout")
    return silence_s


def durably(call: Call[T], waiting: Wait | None) -> Steps[T]:
    """Make a call, and wait until what it wrote, or found written, is durable; ``waiting`` keeps how that went.

    If the reply to either is lost, both are made again.
    """
    if waiting is None:
        return (yield call)  # type: ignore[no-any-return]
    result, fenced, told = yield _InOneWrite(call, waiting)
    # If the fence was refused, the server waited for less than it was to.
    waiting.take(fenced if isinstance(fenced, Exception) else told)
    return result  # type: ignore[no-any-return]
