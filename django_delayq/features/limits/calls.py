"""Calls about the limits of a queue: setting one, reading them, releasing jobs that a limit has held."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind, new_request
from django_delayq.decoder import Decoder
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command, fields_of
from django_delayq.wire.published_reply import read_published

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
