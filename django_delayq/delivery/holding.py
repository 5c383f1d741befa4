"""Jobs that are held for a worker that knows their tasks or keys, or whose code takes their arguments."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES, now_argument
from django_delayq.delivery.claiming import EndedHere, read_ends
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.settling import slot_keys

#: The longest name of a task whose jobs can be held, bytes.
MAX_HELD_NAME = 255
#: How the names begin under which jobs are held whose arguments a worker's code does not take.
ARGUMENTS = "arguments "
#: The longest such name, bytes: it has the names of all keyword arguments.
MAX_HELD_CALL = 1_024
#: The most positional arguments that such a name may have.
MOST_POSITIONAL = 10_000
#: How the names begin under which jobs are held that the queue's codec does not read; its name follows.
OTHER_CODEC = "codec other than "
#: How many names of tasks one `release` looks at.
HELD_NAMES = 100


class Held(NamedTuple):
    """One job whose task or key this process does not know, for `hold`."""

    token: str
    fence: bytes
    #: The name of the task, as `can_be_held` accepts it, or of what `NotSigned` misses; or `Shape.held_name`.
    name: str
    #: Why it is held, as users read it.
    why: str
    #: How long to hold it, counted from the first time that it was held for a limited time; None: without limit.
    hold_ms: int | None


class Shape(NamedTuple):
    """What decides whether a function takes the arguments of a call. A worker reads it from the name of held jobs."""

    task: str
    #: How many positional arguments there are.
    positional: int
    #: The names of the others.
    names: tuple[str, ...]

    @property
    def held_name(self) -> str:
        """The name under which jobs of such a call are held."""
        parts = [self.task, self.positional, *sorted(self.names)]
        return ARGUMENTS + json.dumps(parts, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def of_held(cls, name: str) -> "Shape | None":
        """Read what `held_name` wrote; None: it is another name."""
        if not name.startswith(ARGUMENTS):
            return None
        try:
            task, count, *names = msgspec.json.decode(
                name[len(ARGUMENTS) :], type=list[str | int]
            )
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Anybody may have put a member there.
            return None
        if not isinstance(task, str) or not isinstance(count, int):
            return None
        texts = tuple(name for name in names if isinstance(name, str))
        # Python has no range of any length.
        if len(texts) < len(names) or not 0 <= count <= MOST_POSITIONAL:
            return None
        return cls(task, count, texts)


def can_be_held(name: str, most: int = MAX_HELD_NAME) -> bool:
    """Return whether jobs can be held under a name: it can be sent, and fits into the set of all that is held."""
    try:
        # One of Java's codecs may bring half a surrogate pair, which cannot be sent.
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= most and b"\0" not in encoded


def hold(
    keys: DeliveryKeys,
    jobs: Sequence[Held],
    *,
    has_slots: bool = False,
    now_us: int | None = None,
) -> Call[list[int]]:
    """Keep jobs for a worker that knows their tasks or keys; returns the indexes of those whose lease was lost.

    A job is held until ``hold_ms`` after it was first held; then `release` quarantines it. A job that was signed with
    another key meanwhile is not held for the old key, but is due again.
    """
    args: list[Argument] = [now_argument(now_us)]
    for job in jobs:
        args += (*job[:-1], "" if job.hold_ms is None else job.hold_ms)
    return Call(
        *bind(PACKAGES, "hold", keys, **(slot_keys(keys) if has_slots else {})),
        args,
    )


class Released(NamedTuple):
    """The reply to a `release` call."""

    released: int
    #: Jobs that were held for too long.
    quarantined: int
    #: Where to go on among the names; empty at their end.
    cursor: bytes
    #: Those that were held for too long.
    ends: Sequence[EndedHere] = ()


def release(
    keys: DeliveryKeys,
    names: Iterable[str],
    *,
    limit: int,
    cursor: bytes = b"",
    name_limit: int = HELD_NAMES,
    is_worker: bool = True,
    keeps_ended: bool = False,
    now_us: int | None = None,
) -> Call[Released]:
    """Let up to ``limit`` held jobs of the named tasks run, of each task the first due first.

    A worker, which names all tasks that it knows, also quarantines up to ``limit`` other jobs that were held for too
    long. Of all tasks with held jobs, the call looks at ``name_limit`` at most, from a cursor on.

    ``keeps_ended``: the queue remembers the jobs that ended last, those among them that it quarantines.
    """
    named = {}
    if keeps_ended:
        named = {"last_ended": keys.last_ended}
    return Call(
        *bind(PACKAGES, "release", keys, **named),
        (now_argument(now_us), limit, int(is_worker), name_limit, cursor, *names),
        lambda reply: Released(reply[0], reply[1], reply[2], read_ends(reply[3])),
    )


class HeldNames(NamedTuple):
    """The reply to a `held_names` call."""

    #: How many are held for each name: that of a task, ``key `` and the id of a key, ``format `` and its number,
    #: `OTHER_CODEC` and the name of a codec, `Shape.held_name`, or ``batch `` for all batches together. Without a prefix,
    #: all shapes count as `ARGUMENTS`.
    counts: dict[str, int]
    #: How many are held for further names.
    rest: int


def held_names(
    keys: DeliveryKeys, *, limit: int = 20, prefix: str = "", cursor: bytes = b""
) -> Call[HeldNames]:
    """Count held jobs by what they are held for, up to ``limit`` names that begin with ``prefix``.

    ``cursor`` is one that `release` returned: names before it are left out.
    """
    return Call(
        *bind(PACKAGES, "held_names", keys),
        (limit, prefix, max(prefix.encode(), cursor)),
        _read_held_names,
    )


def _read_held_names(reply: list[Any]) -> HeldNames:
    # Anybody may have put a member there.
    names = [name.decode(errors="replace") for name in reply[1::2]]
    return HeldNames(dict(zip(names, reply[2::2], strict=True)), reply[0])
