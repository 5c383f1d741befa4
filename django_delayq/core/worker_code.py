"""What each worker process says of its code: when it was loaded, and which limits its tasks have.

Of the code of living processes, the latest counts: its limits are in force, and its schedules are stored.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from django_delayq.clock import boottime_ms
from django_delayq.core.bounds import SKEW_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import Decoder, whole_number
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command, fields_of
from django_delayq.wire import signatures

#: How often a worker process says when its code was loaded, and which limits it has.
DECLARE_MS = 15_000
#: A process that has not said so for this long is gone: what other code says counts instead.
SILENT_MS = 40_000
#: How long a limit counts after a process said that its code has it, if no other code has it.
KEPT_MS = 600_000
#: When this process has read its code, by `boottime_ms`. A worker's processes are forked after their supervisor has read
#: the code, so all of them have the same.
LOADED_MS = boottime_ms()


class LoadTime:
    """When this process has read its code, by the clock of one server. The clock of this machine may be wrong."""

    def __init__(self) -> None:
        #: Epoch ms; 0: not found out yet.
        self.ms = 0

    def by(self, server_ms: int) -> int:
        """Return it in epoch ms; ``server_ms`` is the server's time now.

        It is found out once: slow replies must not reorder two processes. And again if it is to come, as that clock was
        set back since.
        """
        if not self.ms or self.ms > server_ms + SKEW_MS:
            self.ms = server_ms - round(boottime_ms() - LOADED_MS)
        return self.ms


class Declared(NamedTuple):
    """The reply to a `declare` call."""

    #: How many limits have changed.
    changed: int
    #: Whether no living process has later code with schedules. Only a process that has declared for a while hears that.
    is_latest: bool


def declare(
    keys: DeliveryKeys,
    limits: Iterable[tuple[str, Mapping[str, int | float | str]]],
    *,
    owner: bytes,
    loaded_ms: int,
    has_schedules: bool = False,
) -> Call[Declared]:
    """Say which limits the code of this process has.

    ``loaded_ms`` is when that code was loaded, by the server's clock. Of the code of living processes, the latest counts:
    of those that have said so within `SILENT_MS`, and have not left since.
    """
    return bind("declare", keys)(
        lambda reply: Declared(reply[0], bool(reply[1])),
        owner=owner,
        loaded_ms=loaded_ms,
        kept_ms=KEPT_MS,
        silent_ms=SILENT_MS,
        read_format=signatures.FORMAT,
        has_schedules=int(has_schedules),
        limits=[(name, msgspec.json.encode(numbers)) for name, numbers in limits],
    )


def latest_code(keys: DeliveryKeys, now_ms: int) -> Command[int]:
    """Return when the latest code was loaded that a living process has, of those with schedules; 0: there is none."""

    def read(reply: Any) -> int:
        latest_ms = 0
        for name, text in fields_of(reply).items():
            if not name.startswith(b"code:"):
                continue
            said = _said.read(text)
            if said is None:
                continue
            is_alive = abs(now_ms - (whole_number(said.at) or 0)) <= SILENT_MS
            if is_alive and said.has_schedules == "1":
                latest_ms = max(latest_ms, whole_number(said.loaded) or 0)
        return latest_ms

    return Command(("HGETALL", keys.control), read)


class _Said(msgspec.Struct):
    """The notes of `declare` on a process."""

    at: str
    loaded: str
    has_schedules: str


_said = Decoder[_Said](_Said, "the description of a worker's code cannot be read")
