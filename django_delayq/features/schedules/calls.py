"""The occurrences of periodic schedules, and what a queue knows of each.

This module stores what it is given: `jobs` knows what a definition says, when its next occurrence comes, and how its job is
made.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from django_delayq.core.bounds import REPEAT_MS, SKEW_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind, new_request
from django_delayq.core.store import NewJob, Target
from django_delayq.decoder import Decoder, score_of, whole_number
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.script import rows
from django_delayq.wire.published_reply import note_refusal, read_published

#: Jobs of one `advance` call.
ADVANCE_BATCH = 100
#: What stands for a definition, or an occurrence, that stays as it is.
KEPT = "="
#: The message on our channel that says that a definition has changed.
CHANGED = b"0"
#: Fields of a page.
PAGE = 500


class Advanced(NamedTuple):
    """The reply to an `advance` call."""

    #: The version of the definitions.
    version: int
    #: The occurrence that is stored now, epoch ms; None: there is none.
    occurrence_ms: int | None
    #: Whether this call has moved it.
    has_moved: bool
    #: The occurrence that is stored now had its job before it came, so this call has not stored the last one.
    is_early: bool
    #: How many missed occurrences were caught up with in a row.
    behind: int


def advance(
    target: Target,
    name: str,
    jobs: Sequence[NewJob],
    *,
    print: str,
    seen_ms: int,
    next_ms: int | None,
    fired_ms: int,
    behind: int = 0,
) -> Call[Advanced]:
    """Move a schedule on from ``seen_ms``; the last of ``jobs`` is that of ``next_ms``. Safe to repeat.

    Nothing changes if another process was first, or if ``print`` is not the fingerprint of the queue's definition.
    ``MAX_JOBS`` does not hold: a schedule was accepted once, with all its occurrences.
    """
    return bind("advance", target.keys)(
        _read_advanced,
        format=target.frame_format.number,
        listed=int(target.insertion_list),
        name=name,
        print=print,
        seen_ms=seen_ms,
        next_ms="" if next_ms is None else next_ms,
        behind=behind,
        fired_ms=fired_ms,
        jobs=jobs,
    )


def _read_advanced(reply: list[Any]) -> Advanced:
    version, occurrence, has_moved, behind, refusal = reply
    if refusal:
        note_refusal(refusal)
    return Advanced(
        version,
        score_of(occurrence),
        has_moved > 0,
        has_moved == 2,
        whole_number(behind) or 0,
    )


def arrange(
    target: Target,
    name: str,
    *,
    version: int,
    code: bytes | str = KEPT,
    stored: bytes | str = KEPT,
    change: bytes | str = KEPT,
    register: bytes | str = KEPT,
    print: str,
    next_ms: int | str | None = KEPT,
    before: "State | None" = None,
    job: NewJob | None = None,
) -> Call[int]:
    """Change what defines a schedule, and replace the job of its next occurrence, unless that has come.

    Returns the version of the definitions from now on. It is 0 if they were of another ``version``, or if an occurrence has
    come that the caller did not know of: then nothing has changed, and the caller looks again. An empty definition is
    deleted. ``register`` is the queue's register from now on. ``before`` is the state on the queue that the schedule comes from.
    """
    return bind("arrange", target.keys)(
        read_published,
        format=target.frame_format.number,
        listed=int(target.insertion_list),
        name=name,
        version=version,
        request=new_request(),
        code=code,
        stored=stored,
        change=change,
        register=register,
        print=print,
        next_ms="" if next_ms is None else next_ms,
        before="" if before is None else msgspec.json.encode(before),
        job=[] if job is None else [job],
        window_ms=REPEAT_MS,
    )


def reseal(keys: DeliveryKeys, version: int, fields: Mapping[str, bytes]) -> Call[int]:
    """Replace signed texts by others that say the same, by field; an empty one goes.

    Returns the version of the definitions from now on; 0 if they were of another ``version``, or a repeat finds its own.
    """
    return bind("reseal", keys)(read_published, version=version, fields=fields.items())


class State(msgspec.Struct):
    """A schedule as the scripts know it."""

    #: The job of the next occurrence.
    token: str = ""
    #: The fingerprint of the definition by which that job was made.
    print: str = ""
    #: The last occurrence that has come, epoch ms.
    fired: str = "0"
    #: How many missed occurrences were caught up with in a row.
    behind: str = "0"
    #: The occurrences to come whose jobs were cancelled or run early, epoch ms, with spaces between.
    early: str = ""

    @property
    def early_ms(self) -> set[int]:
        return {whole_number(each) or 0 for each in self.early.split()}

    def fired_by(self, now_ms: int) -> int:
        """Return the last occurrence that has come, epoch ms; 0: none has."""
        fired_ms = whole_number(self.fired) or 0
        return now_ms if fired_ms > now_ms + SKEW_MS else fired_ms

    @property
    def behind_count(self) -> int:
        return whole_number(self.behind) or 0


@brief
class Entry(msgspec.Struct):
    """One schedule as its queue knows it; the definitions are signed, and not checked here."""

    code: bytes = b""
    stored: bytes = b""
    change: bytes = b""
    state: State = msgspec.field(default_factory=State)
    #: The occurrence whose job waits, epoch ms; None: there is none.
    occurrence_ms: int | None = None


@brief
class Page(NamedTuple):
    """The reply to a `page` call."""

    now_us: int
    version: int
    #: Where to go on; 0 at the end.
    cursor: int
    #: Pairs of a field and its value, and for a state the occurrence whose job waits.
    fields: list[tuple[bytes, bytes, int | None]]


def page(keys: DeliveryKeys, cursor: int = 0, *, count: int = PAGE) -> Call[Page]:
    """Read a page of what a queue knows of its schedules."""

    def read(reply: list[Any]) -> Page:
        now, version, next_cursor, flat = reply
        fields = [
            (field, value, score_of(score)) for field, value, score in rows(flat, 3)
        ]
        return Page(int(now), whole_number(version) or 0, int(next_cursor), fields)

    return bind("schedules", keys)(read, cursor=cursor, count=count)


def add_field(
    entries: dict[str, Entry], field: bytes, value: bytes, occurrence_ms: int | None
) -> None:
    """Add a field of a page to the entries, by name of the schedule; entries that our scripts have not written are left out."""
    try:
        kind, space, name = field.decode().partition(" ")
    except UnicodeDecodeError:
        return
    if not space or kind not in ("code", "stored", "change", "state"):
        return
    entry = entries.setdefault(name, Entry())
    if kind != "state":
        setattr(entry, kind, value)
        return
    entry.occurrence_ms = occurrence_ms
    entry.state = _state.read(value) or entry.state


_state = Decoder[State](State, "the state of a schedule cannot be read")


def read_version(field: bytes | None) -> int:
    """Read the field ``version`` of the definitions; 0: there is none."""
    return whole_number(field or b"") or 0
