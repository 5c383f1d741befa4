"""Operations that move what a queue holds to another server, page by page: each describes one bounded script call.

A page is taken out of the source and held there, stored on the target, and then deleted on the source. Each of these
calls may be repeated at any time. ``move`` says in which order they are made.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.frame_heads import BYTE_BUDGET
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import whole_number
from django_delayq.exceptions import DelayqError
from django_delayq.features.schedules.calls import KEPT
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.script import rows
from django_delayq.wire.frame import FrameFormat

T = TypeVar("T")

#: How the name begins under which jobs are held that are on their way; also in `_moving.lua`.
HELD_NAME = "moving "


class OtherRun(DelayqError):
    """Raised when a queue is not in the state in which this run has left it: another one has ended it, or is under way."""


#: What to do when the target has pages that the source does not know of.
FORGOTTEN = (
    "the source has forgotten what the target has, as after a failover to a replica that was behind. Stop the workers of the"
    " source, else jobs run twice; put back what is on its way, with delayq_export --release --queue {name} on the source, and"
    " move the queue again: jobs that are here already are not stored twice."
)


class Source(StrEnum):
    """The places that pages are taken from, in the order that jobs pass through them."""

    FRAMES = "frames"
    DESTINATION = "destination"
    RETURNED = "returned"
    RETRIES = "retries"
    HELD = "held"
    #: Those of processes that have gone, where nobody works who would notice.
    LEASES = "leases"
    DEAD = "dead"
    QUARANTINE = "quarantine"

    def key_of(self, keys: DeliveryKeys) -> str:
        """Return the key that it is."""
        return keys.key("timeout_set" if self is Source.FRAMES else self.value)


class Kind(StrEnum):
    """How the pages of a run reach the other server."""

    FILE = "file"
    DIRECT = "direct"


class Run(NamedTuple):
    """A run that moves the jobs of a queue away, as the queue knows it."""

    id: str
    kind: Kind
    #: The number of its last page.
    pages: int
    #: The name of the server that it goes to; empty for a file.
    target: str = ""

    @property
    def way(self) -> str:
        """How its pages go, and how to end it, for messages."""
        if self.kind is Kind.DIRECT:
            return "with delayq_import --from: run that to its end first, on the same target"
        return "to a file: import that and end it with delayq_export --confirm, or with --release if it was imported nowhere"


@brief
class Moved(NamedTuple):
    """One job as a page has it; for a foreign element, the token is one of the page."""

    #: A letter, as `_moving.lua` explains.
    place: str
    token: str
    #: Its score in the set that it was in, decimal.
    score: str
    header: bytes
    payload: bytes
    error: bytes
    history: bytes


class Exported(NamedTuple):
    """The reply to an `export_page` call."""

    #: How many elements it looked at; 0 also for a page that was taken before.
    looked: int
    #: How many of these stay, because they belong to something that goes on here.
    stay: int
    jobs: list[Moved]


class Imported(NamedTuple):
    """The reply to an `import_page` call."""

    #: New here.
    stored: int
    #: Were here already.
    known: int
    #: Of those stored, how many run without their unique key, because another job has it here.
    shared: int


def begin_export(
    keys: DeliveryKeys, run: str, kind: Kind, target: str = ""
) -> Call[Run]:
    """Begin a run, or return the one that has begun before. Safe to repeat.

    ``target`` is the name of the server that it goes to.
    """

    def read(reply: list[Any]) -> Run:
        id, its_kind, pages, its_target = reply
        return Run(id.decode(), Kind(its_kind.decode()), pages, its_target.decode())

    return bind("begin_export", keys)(read, run=run, kind=kind, target=target)


def run_of(text: bytes | None) -> Run | None:
    """Read the field of the control hash that names the run of a queue."""
    parts = (text or b"").decode(errors="replace").split(" ")
    if len(parts) != 3 or parts[1] not in list(Kind):
        return None
    number = whole_number(parts[2])
    return None if number is None else Run(parts[0], Kind(parts[1]), number)


def stored_field(run: str) -> str:
    """Return the field of the target's control hash that has the number of the last page which it has stored of a run."""
    return f"moved:{run}"


def shards_field(run: str) -> str:
    """Return the field of the target's control hash, under the bare name, that says over how many shards a file of a run is spread."""
    return f"moved_over:{run}"


def export_page(
    keys: DeliveryKeys,
    source: Source,
    *,
    run: str = "",
    page: int = 0,
    skip: int = 0,
    limit: int = MAX_BATCH,
    byte_budget: int = BYTE_BUDGET,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    key_ids: Iterable[str] = (),
) -> Call[Exported]:
    """Take the next page of jobs, up to ``limit``, and hold them; read a page again that is there already.

    With ``key_ids``, jobs that are signed with another key stay. Without a ``run`` it only reads. Reading the reply raises OtherRun if the queue has another run, or none.
    """
    name = keys.queue.name

    def read(reply: list[Any]) -> Exported:
        is_other, other, looked, stay, flat = reply
        if is_other:
            raise OtherRun(
                f"page {page} of queue {name!r} does not belong to the run that moves it now ({other.decode() or 'none'}):"
                " another run has continued it, or has ended it. Look at both servers, then run this again."
            )
        jobs = [
            Moved(
                place.decode(), token.decode(errors="replace"), score.decode(), *stored
            )
            for place, token, score, *stored in rows(flat, len(Moved._fields))
        ]
        return Exported(looked, stay, jobs)

    return bind("export_page", keys, source=source.key_of(keys))(
        read,
        run=run,
        page=page,
        source=source,
        skip=skip,
        most=limit,
        budget=byte_budget,
        format=frame_format.number,
        key_ids="".join(key_ids),
    )


def import_page(
    keys: DeliveryKeys,
    jobs: Sequence[Moved],
    *,
    run: str,
    page: int,
    mark: str = "",
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
) -> Call[Imported | None]:
    """Store a page; returns None if it was stored before. Safe to repeat.

    ``mark`` distinguishes this page and those before it from others of the same numbers. Reading the reply raises OtherRun if the
    last page that is here has another one, if a page before this one is missing, or if the queue moves away from here
    itself.
    """
    name = keys.queue.name

    def read(reply: list[Any]) -> Imported | None:
        outcome, count, known, shared = reply
        if outcome == b"early":
            raise OtherRun(
                f"page {page} of queue {name!r} cannot be stored, because the target has no page {count + 1}: begin with"
                " the first page of the file; or, from server to server, the target has forgotten it: put back what is on"
                f" its way, with delayq_export --release --queue {name} on the source, and run this again"
            )
        if outcome == b"other":
            raise OtherRun(
                f"page {page} of queue {name!r} has other jobs than the page of that number which was imported before:"
                f" {FORGOTTEN.format(name=name)}"
            )
        if outcome == b"leaving":
            raise OtherRun(
                f"queue {name!r} is being moved away from the target itself since this began; run this again, and it says how"
                " to end that"
            )
        return None if outcome == b"known" else Imported(count, known, shared)

    return bind("import_page", keys)(
        read,
        run=run,
        page=page,
        format=frame_format.number,
        listed=int(insertion_list),
        mark=mark,
        jobs=jobs,
    )


def end_page(
    keys: DeliveryKeys,
    *,
    run: str,
    page: int,
    is_moved: bool,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
) -> Call[int]:
    """Delete the jobs of a page that another server has, or put them back; returns how many. Safe to repeat.

    Page 0 ends the run itself, unless a page is left: then it returns how many jobs there are. Reading the reply raises
    OtherRun if the queue has another run, or none.
    """
    name = keys.queue.name

    def read(reply: int) -> int:
        if reply < 0 and page:
            raise OtherRun(
                f"the run that moves queue {name!r} was ended by another process; look at both servers, then run this"
                " again"
            )
        return max(0, reply)

    return bind("end_page", keys)(
        read,
        run=run,
        page=page,
        is_moved=int(is_moved),
        format=frame_format.number,
        listed="1" if insertion_list else "0",
    )


@brief
class MovedSchedule(NamedTuple):
    """A stored periodic schedule, or changes to one in code; each part empty if there is none."""

    stored: bytes
    change: bytes
    state: bytes
    occurrence: bytes


_NO_SCHEDULE = MovedSchedule(b"", b"", b"", b"")


def take_schedule(
    keys: DeliveryKeys, name: str, *, is_copy: bool = False
) -> Call[MovedSchedule | None]:
    """Set a stored schedule aside, so that it has no occurrences here; None: no such schedule is stored. Safe to repeat.

    ``is_copy``: only read it.
    """
    return _step(
        lambda reply: MovedSchedule(*reply) if reply else None,
        keys,
        "read" if is_copy else "take",
        name,
    )


def put_schedule(
    keys: DeliveryKeys,
    name: str,
    schedule: MovedSchedule,
    *,
    version: int,
    register: bytes | str = KEPT,
) -> Call[int]:
    """Write what another server had of a schedule, and the queue's register from now on. Safe to repeat.

    Returns the version of the definitions from now on; 0 if there is one already, -1 if they were of another ``version``.
    """
    return _step(int, keys, "put", name, schedule, version, register)


def end_schedule(keys: DeliveryKeys, name: str, *, is_moved: bool) -> Call[bool]:
    """Delete a schedule that was set aside, or take it back; returns whether there was one. Safe to repeat."""
    step = "end" if is_moved else "release"
    return _step(bool, keys, step, name)


def _step(
    read: Callable[[Any], T],
    keys: DeliveryKeys,
    step: str,
    name: str,
    schedule: MovedSchedule = _NO_SCHEDULE,
    version: int = 0,
    register: bytes | str = KEPT,
) -> Call[T]:
    return bind("move_schedule", keys)(
        read,
        step=step,
        name=name,
        **schedule._asdict(),
        version=version,
        register=register,
    )
