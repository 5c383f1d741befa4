"""Calls that go together on one connection, and the node of a cluster that each of them is for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command

#: Commands whose second word is not a key.
_WITHOUT_KEY = frozenset(
    [
        "ACL",
        "CLIENT",
        "CLUSTER",
        "COMMAND",
        "CONFIG",
        "HELLO",
        "INFO",
        "PING",
        "PUBLISH",
        "PUBSUB",
        "ROLE",
        "SCAN",
        "SCRIPT",
        "TIME",
        "WAIT",
        "WAITAOF",
    ]
)
#: Commands that wait for what their connection wrote before.
WAITS = frozenset({"WAIT", "WAITAOF"})

Made = Call[Any] | Command[Any]


class Address(NamedTuple):
    """Where a node of a cluster listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Where(NamedTuple):
    """The node that another node has named."""

    address: Address
    #: Whether the node takes the call only after ASKING, because the slot is not its own yet.
    is_asking: bool = False


@brief
class Exchange(msgspec.Struct, frozen=True):
    """Calls that are sent in one write."""

    calls: Sequence[Made]
    #: Whether the others only serve the first: all are sent again with it, and its error is that of the exchange.
    #: Otherwise each call is on its own, and an error takes the place of its result.
    is_one: bool = True
    #: Whether calls whose replies were lost are made again, if they allow it.
    repeats: bool = True


def key_of(command: Sequence[Any]) -> str | bytes | None:
    """Return the first key of a command; None if any node can run it."""
    name = str(command[0]).partition(" ")[0].upper()
    if name in ("EVALSHA", "EVAL"):
        key = command[3] if int(command[2]) else None
    elif name in _WITHOUT_KEY or len(command) < 2:
        key = None
    else:
        key = command[1]
    return key if key is None or isinstance(key, bytes) else str(key)
