"""Jobs that are held for a worker that knows their tasks or keys, or whose code takes their arguments."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django_delayq.core.claim import EndedHere, read_ends
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.lease_ends import slot_keys
from django_delayq.core.reasons import Kind, Reason, measured
from django_delayq.core.scripts import bind
from django_delayq.decoder import Count, Decoder
from django_delayq.transport.call import Argument, Call
from django_delayq.transport.script import rows

#: The longest name of a task whose jobs can be held, bytes.
MAX_HELD_NAME = 255
#: The longest such name, bytes: it has the names of all keyword arguments.
MAX_HELD_CALL = 1_024
#: The most positional arguments that such a name may have.
MOST_POSITIONAL = 10_000
#: How many reasons one `release` looks at.
HELD_NAMES = 100


class Hold(NamedTuple):
    """Why a job is held, and for how long."""

    #: What it is held for; of a task or a call with a name as `can_be_held` accepts it.
    reason: Reason
    #: The same in words, for the log and the admin.
    why: str
    #: How long to hold it, counted from the first time that it was held for a limited time; None: without limit.
    for_ms: int | None = None


class Held(NamedTuple):
    """One job that is to be held, for `hold`."""

    token: str
    fence: bytes
    hold: Hold


_shape = Decoder[list[str | int]](list[str | Count])


class Shape(NamedTuple):
    """The shape of a call's arguments, which decides whether a function takes them. A worker reads it from the name of held jobs."""

    task: str
    #: How many positional arguments there are.
    positional: int
    #: The names of the others.
    names: tuple[str, ...]

    @property
    def held_name(self) -> str:
        """The name under which jobs of such a call are held."""
        parts = [self.task, self.positional, *sorted(self.names)]
        return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def of_held(cls, name: str) -> "Shape | None":
        """Read what `held_name` wrote; None: it is another name."""
        try:
            task, count, *names = _shape.decode(name)
        except ValueError:
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
    """Return whether jobs can be held for a name: it can be sent, and is not too long."""
    try:
        # One of Java's codecs may bring half a surrogate pair, which cannot be sent.
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= most


def hold(
    keys: DeliveryKeys, jobs: Sequence[Held], *, has_slots: bool = False
) -> Call[list[int]]:
    """Keep jobs for a worker that knows their tasks or keys; returns the indexes of those whose lease was lost.

    `release` quarantines a job that was held for longer than the ``for_ms`` of its `Hold`. A job that was signed with
    another key meanwhile is not held for the old key, but is due again.
    """
    bound = bind("hold", keys, **(slot_keys(keys) if has_slots else {}))
    rows: list[tuple[Argument, ...]] = []
    for job in jobs:
        reason, why, for_ms = job.hold
        ms = "" if for_ms is None else for_ms
        rows.append((job.token, job.fence, reason.text, why, ms))
    return bound(jobs=rows)


class Released(NamedTuple):
    """The reply to a `release` call."""

    released: int
    #: Jobs that were held for too long.
    quarantined: int
    #: Where to go on among the reasons; empty at their end.
    cursor: bytes
    #: Those that were held for too long.
    ends: Sequence[EndedHere] = ()


def release(
    keys: DeliveryKeys,
    reasons: Iterable[Reason],
    *,
    limit: int,
    cursor: bytes = b"",
    name_limit: int = HELD_NAMES,
    is_worker: bool = True,
    keeps_ended: bool = False,
) -> Call[Released]:
    """Let up to ``limit`` jobs run that are held for one of these reasons, of each the first due first.

    A worker, which names all that it knows, also quarantines up to ``limit`` other jobs that were held for too long. Of
    all reasons, the call looks at ``name_limit`` at most, from a cursor on.

    ``keeps_ended``: the queue remembers the jobs that ended last, those among them that it quarantines.
    """
    named = {}
    if keeps_ended:
        named = {"last_ended": keys.last_ended}
    return bind("release", keys, **named)(
        _read_released,
        limit=limit,
        is_worker=int(is_worker),
        name_limit=name_limit,
        cursor=cursor,
        reasons=(reason.text for reason in reasons),
    )


def _read_released(reply: list[Any]) -> Released:
    released, quarantined, cursor, ends = reply
    return Released(released, quarantined, cursor, read_ends(ends))


class HeldNames(NamedTuple):
    """The reply to a `held_names` call."""

    #: How many are held for each reason. All batches count as one, and so do all calls unless they were asked for.
    counts: dict[Reason, int]
    #: How many are held for further reasons.
    rest: int


def held_names(
    keys: DeliveryKeys,
    *,
    limit: int = 20,
    only: Kind | Reason | None = None,
    cursor: bytes = b"",
) -> Call[HeldNames]:
    """Count held jobs by what they are held for, up to ``limit`` reasons; ``only`` those of a kind, or one.

    ``cursor`` is one that `release` returned: reasons before it are left out.
    """
    if isinstance(only, Reason):
        prefix = only.text
    else:
        prefix = "" if only is None else measured(only)
    return bind("held_names", keys)(
        _read_held_names, most=limit, prefix=prefix, cursor=max(prefix.encode(), cursor)
    )


def _read_held_names(reply: list[Any]) -> HeldNames:
    rest, counts = reply
    return HeldNames(
        {Reason.of_text(text): number for text, number in rows(counts, 2)}, rest
    )
