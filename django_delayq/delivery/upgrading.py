"""Which format a queue is in, who reads it, and signing payloads anew."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES, now_argument
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.wire import signing

#: How long what a process said of the formats that it reads counts; it says so every minute.
ENROLLED_MS = 180_000


class Where(StrEnum):
    """Where `resign` finds payloads."""

    FRAMES = "frames"
    DESTINATION = "destination"
    #: Of what was claimed once.
    PAYLOADS = "payloads"


def resign(
    keys: DeliveryKeys, where: Where, items: Iterable[tuple[str | int, bytes, bytes]]
) -> Call[int]:
    """Write payloads anew where they are as they were read; returns how many were. Safe to repeat.

    ``items`` are index or token, frame or payload as read, and the new payload. An index may be a guess, or empty for a
    frame; in the destination queue it counts from the tail, -1 being the last.
    """
    args: list[Argument] = [where]
    for item in items:
        args += item
    return Call(
        *bind(PACKAGES, "resign", keys),
        args,
    )


class Enrolled(NamedTuple):
    """The reply to an `enroll` call."""

    #: Of the queue: what its workers have to read.
    format: int
    #: Processes that read no format as late as the caller's.
    behind: int
    #: What a command has chosen to be written; 0: nothing.
    written: int


def enroll(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    reads: int | None = None,
    now_us: int | None = None,
) -> Call[Enrolled]:
    """Say that a process reads the formats up to ``reads``; the queue goes to a later one when all that live do."""
    return Call(
        *bind(PACKAGES, "enroll", keys),
        (now_argument(now_us), owner, reads or signing.FORMAT, ENROLLED_MS),
        lambda reply: Enrolled(*reply),
    )


class QueueFormat(NamedTuple):
    """The reply to a `read_format` call."""

    #: What the queue's workers have to read.
    format: int
    #: What is written to it.
    written: int


def read_format(keys: DeliveryKeys) -> Call[QueueFormat]:
    """Ask in which format a queue is."""
    return Call(
        *bind(PACKAGES, "read_format", keys),
        read=lambda reply: QueueFormat(*reply),
    )


class Step(StrEnum):
    """What `set_format` is to do."""

    #: Raise the format, or have an earlier one written; nothing where workers read less than what it is raised to.
    BEGIN = "begin"
    #: The same, whatever workers read.
    FORCE = "force"
    #: Lower the format to what is written, once nothing later waits.
    END = "end"


class FormatSet(NamedTuple):
    """The reply to a `set_format` call."""

    #: Of the queue, until now.
    before: int
    #: Processes that read no format as late as the chosen one.
    behind: int


def set_format(
    keys: DeliveryKeys, format: int, step: Step, *, now_us: int | None = None
) -> Call[FormatSet]:
    """Choose the format of a queue; nothing is changed where its own is later than this version reads."""
    return Call(
        *bind(PACKAGES, "set_format", keys),
        (now_argument(now_us), format, signing.FORMAT, ENROLLED_MS, step),
        lambda reply: FormatSet(*reply),
    )
