"""Limits of a queue and of the tasks on it: what code says of them, what somebody has set instead, and what is in force."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from django_delayq.calls.call import Call
from django_delayq.calls.command import Command, fields_of
from django_delayq.decoding import Decoder, whole_number
from django_delayq.delivery.binding import bind, new_request
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.reasons import Kind, Reason
from django_delayq.wire import signing
from django_delayq.wire.publishing import read_published

#: How often a worker process says when its code was loaded, and which limits it has.
DECLARE_MS = 15_000
#: A process that has not said so for this long is gone: what other code says counts instead.
SILENT_MS = 40_000
#: How long a limit counts after a process said that its code has it, if no other code has it.
KEPT_MS = 600_000
#: How many limits and keys one `loosen` looks at, and how many jobs it lets go on.
LOOSENED = 100
#: What is set in the place of no limit.
UNLIMITED: Mapping[str, dict[str, int | str]] = {
    "concurrency": {"concurrency": 0},
    "rate": {"rate": "", "interval_us": 0, "burst": 0},
}


class StoredLimit(NamedTuple):
    """A limit as it is stored."""

    #: Of the limit that tasks have; empty: it is the queue's own.
    name: str
    #: What the code of workers says: ``concurrency``, ``rate``; for the queue's own, the settings say that instead.
    code: dict[str, Any]
    #: What somebody has set in the place of that.
    set: dict[str, Any]
    #: Who set it; empty if nothing is set.
    by: str


def set_limit(
    keys: DeliveryKeys,
    changes: Mapping[str, int | float | str] | None,
    *,
    name: str = "",
    by: str = "",
) -> Call[int]:
    """Set a limit of the queue, or the limit of this name that tasks have; None clears what was set.

    ``changes`` are as `rates.numbers_of` and `UNLIMITED` have them. Returns 0 if there was nothing to clear.
    """
    text = b"" if changes is None else msgspec.json.encode(changes)
    return bind("set_limit", keys)(
        read_published, name=name, change=text, by=by, id=new_request()
    )


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
        read_format=signing.FORMAT,
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
_any = Decoder[Any](Any, "a limit cannot be read", holds_any=True)


def limits(keys: DeliveryKeys) -> Command[list[StoredLimit]]:
    """Read the limits that are stored of a queue: its own first, then others by name."""
    return Command(("HGETALL", keys.control), _read_limits)


def _read_limits(reply: Any) -> list[StoredLimit]:
    found = []
    for field, text in fields_of(reply).items():
        kind, _, name = field.decode(errors="replace").partition(":")
        if field != b"queue_limit" and kind != "limit":
            continue
        stored = _any.read(text)
        if isinstance(stored, dict):
            parts = [stored.get(each) for each in ("code", "set")]
            code, changed = (part if isinstance(part, dict) else {} for part in parts)
            found.append(StoredLimit(name, code, changed, str(stored.get("by", ""))))
    return sorted(found, key=lambda each: each.name)


def held_for(limit: str) -> Reason:
    """Return what jobs of a limit are held for; ``limit`` is as `tail_of` takes it."""
    name, _, key = limit.partition("\0")
    return Reason(Kind.LIMIT, name, key)


def count_slots(keys: DeliveryKeys, limit: str) -> Command[int]:
    """Count the jobs of a limit that run; ``limit`` is as `tail_of` takes it."""
    return Command(("ZLEXCOUNT", keys.slots, f"[{limit}\0", f"({limit}\1"))


def count_held(keys: DeliveryKeys, limit: str) -> Command[int]:
    """Count the jobs that are held for a limit."""
    name = held_for(limit).text
    return Command(("ZLEXCOUNT", keys.held_tasks, f"[{name}\0", f"({name}\1"))


class Loosened(NamedTuple):
    """The reply to a `loosen` call."""

    released: int
    #: Where to go on; empty at the end.
    cursor: bytes


def loosen(
    keys: DeliveryKeys,
    *,
    name: str = "",
    cursor: bytes = b"",
    name_limit: int = LOOSENED,
    limit: int = LOOSENED,
) -> Call[Loosened]:
    """Release up to ``limit`` jobs that are held for a limit, or for any, and that it admits now."""
    return bind("loosen", keys)(
        lambda reply: Loosened(*reply),
        name=name,
        cursor=cursor,
        name_limit=name_limit,
        limit=limit,
    )
