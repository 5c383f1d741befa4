"""The format of a queue, which formats its workers read, and signing payloads anew."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES, now_argument
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.wire import signing

#: How long a process counts after it said which formats it reads. It says so every minute.
ENROLLED_MS = 180_000


class Where(StrEnum):
    """Where `resign` finds payloads."""

    FRAMES = "frames"
    DESTINATION = "destination"
    #: The payloads of jobs that were claimed before.
    PAYLOADS = "payloads"


def resign(
    keys: DeliveryKeys, where: Where, items: Iterable[tuple[str | int, bytes, bytes]]
) -> Call[int]:
    """Write payloads anew, each where it was read and only if it is unchanged; returns how many were written.

    Safe to repeat. ``items`` are index or token, frame or payload as read, and the new payload. An index may be a
    guess, and for a frame it may be empty. In the destination queue it counts from the tail; the last element is -1.
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

    #: The format of the queue, which its workers have to read.
    format: int
    #: Processes that read only earlier formats than the caller.
    behind: int
    #: The format that a command has chosen to be written; 0: none was chosen.
    written: int
    #: When the server took this before, as far as it knows, and when it took it now, by its clock, epoch ms; 0: never.
    before_ms: int = 0
    now_ms: int = 0


def enroll(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    reads: int | None = None,
    now_us: int | None = None,
) -> Call[Enrolled]:
    """Say that a process reads formats up to ``reads``. The queue gets a later one once all living processes read it."""
    return Call(
        *bind(PACKAGES, "enroll", keys),
        (now_argument(now_us), owner, reads or signing.FORMAT, ENROLLED_MS),
        lambda reply: Enrolled(*reply),
    )


class QueueFormat(NamedTuple):
    """The reply to a `read_format` call."""

    #: The format that the queue's workers have to read.
    format: int
    #: The format that is written to it.
    written: int
    #: Whether a job that waits has, or had, a priority: then all jobs are ranked.
    is_ranked: bool


def read_format(keys: DeliveryKeys) -> Call[QueueFormat]:
    """Read which format a queue is in."""
    return Call(
        *bind(PACKAGES, "read_format", keys),
        read=lambda reply: QueueFormat(reply[0], reply[1], bool(reply[2])),
    )


class Step(StrEnum):
    """What `set_format` is to do."""

    #: Raise the format, or have an earlier one written. It is not raised while workers read only earlier formats.
    BEGIN = "begin"
    #: Do so whatever the workers read.
    FORCE = "force"
    #: Lower the format to the one that is written, once nothing of a later format waits.
    END = "end"


class FormatSet(NamedTuple):
    """The reply to a `set_format` call."""

    #: The format of the queue until now.
    before: int
    #: Processes that read only earlier formats than the chosen one.
    behind: int


def set_format(
    keys: DeliveryKeys, format: int, step: Step, *, now_us: int | None = None
) -> Call[FormatSet]:
    """Choose the format of a queue. If its present format is later than this version reads, nothing changes."""
    return Call(
        *bind(PACKAGES, "set_format", keys),
        (now_argument(now_us), format, signing.FORMAT, ENROLLED_MS, step),
        lambda reply: FormatSet(*reply),
    )
