"""Jobs that are held for a worker that knows their tasks or keys."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES, now_argument
from django_delayq.delivery.keys import DeliveryKeys

#: Bytes of the longest name of a task that is held.
MAX_HELD_NAME = 255
#: Names of tasks that one `release` looks at.
HELD_NAMES = 100


class Held(NamedTuple):
    """One job whose task this process does not know, for `hold`."""

    token: str
    fence: bytes
    #: Of the task, as `can_be_held` accepts it, or of the key.
    name: str
    #: Why it is held, for the user.
    why: str
    #: How long to hold it, from the first time that it was held for so long; None: as long as it takes.
    hold_ms: int | None


def can_be_held(name: str) -> bool:
    """Return whether jobs of a task can be held: its name can be sent, and fits among the others in one set."""
    try:
        # A codec of Java's may bring half a surrogate pair, which cannot be sent.
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= MAX_HELD_NAME and b"\0" not in encoded


def hold(
    keys: DeliveryKeys,
    jobs: Sequence[Held],
    *,
    now_us: int | None = None,
) -> Call[list[int]]:
    """Keep jobs for a worker that knows their tasks or keys; returns the indexes of those whose lease was lost.

    They are held until ``hold_ms`` after they were first held; `release` quarantines them then. One that was signed
    with another key meanwhile is not held for the old one: it is due again.
    """
    args: list[Argument] = [now_argument(now_us)]
    for job in jobs:
        args += (*job[:-1], "" if job.hold_ms is None else job.hold_ms)
    return Call(
        *bind(PACKAGES, "hold", keys),
        args,
    )


class Released(NamedTuple):
    """The reply to a `release` call."""

    released: int
    #: They were held for too long.
    quarantined: int
    #: Where to go on; empty at the end of what is held.
    cursor: bytes


def release(
    keys: DeliveryKeys,
    names: Iterable[str],
    *,
    limit: int,
    cursor: bytes = b"",
    name_limit: int = HELD_NAMES,
    is_worker: bool = True,
    now_us: int | None = None,
) -> Call[Released]:
    """Let up to ``limit`` held jobs of the named tasks run, the first due first.

    A worker, which names all tasks that it knows, quarantines up to ``limit`` others that were held for too long.
    Of the tasks that something is held of, at most ``name_limit`` are looked at, from a cursor on.
    """
    return Call(
        *bind(PACKAGES, "release", keys),
        (now_argument(now_us), limit, int(is_worker), name_limit, cursor, *names),
        lambda reply: Released(*reply),
    )


class HeldNames(NamedTuple):
    """The reply to a `held_names` call."""

    #: By what they are held for: the name of a task; ``key `` and the id of a key; ``format `` and its number.
    counts: dict[str, int]
    #: Held for others.
    rest: int


def held_names(keys: DeliveryKeys, *, limit: int = 20) -> Call[HeldNames]:
    """Count held jobs by what they are held for, of up to ``limit`` names."""
    return Call(
        *bind(PACKAGES, "held_names", keys),
        (limit,),
        _read_held_names,
    )


def _read_held_names(reply: list[Any]) -> HeldNames:
    # Anybody may have put a member there.
    names = [name.decode(errors="replace") for name in reply[1::2]]
    return HeldNames(dict(zip(names, reply[2::2], strict=True)), reply[0])
