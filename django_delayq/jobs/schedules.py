"""Periodic schedules as the server knows them: listed, paused, changed, stored, fired. Workers move them on.

This module knows the queues and definitions of schedules. The effect of a change on the waiting job is in ``delivery``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from itertools import islice
from typing import Any, NamedTuple, Unpack

import msgspec

from django_delayq import conf
from django_delayq.calls.call import Call
from django_delayq.calls.steps import Steps
from django_delayq.calls.together import together
from django_delayq.clients.performing import aperformed, performed
from django_delayq.clock import boottime_ms, epoch_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery import limiting, looking, periods, storing
from django_delayq.delivery.periods import KEPT, Entry
from django_delayq.delivery.states import State
from django_delayq.delivery.storing import NewJob
from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    InvalidSchedule,
    InvalidTask,
    NotSigned,
    ScheduleNotFound,
    TaskNotFound,
)
from django_delayq.jobs import periodic as definitions
from django_delayq.jobs import register as registers
from django_delayq.jobs import sharding
from django_delayq.jobs.answers import asking, complete
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.envelope import OCCURRENCE, SCHEDULE
from django_delayq.jobs.job import Draft, Job
from django_delayq.jobs.occurrences import When, datetime_of, when_of
from django_delayq.jobs.options import CallOptions
from django_delayq.jobs.pausing import Task, actor, checked_text, name_of
from django_delayq.jobs.periodic import CatchUp, Change, CodeSchedule, Definition
from django_delayq.jobs.register import Register
from django_delayq.jobs.registry import get_task
from django_delayq.jobs.workers import reading
from django_delayq.logs import get_log
from django_delayq.redaction import brief, show

logger = get_log("django_delayq.jobs")

#: How many schedules somebody may store on a queue: each of its workers reads them all.
MAX_STORED = 1_000
#: So often somebody else may be quicker before a change gives up.
TRIES = 50
#: Of more missed occurrences in a row, `catch_up="all"` leaves out those that follow.
MOST_BEHIND = 1_000
#: An occurrence that nobody has moved on for this long belongs to a worker that is gone: one with other code may take over.
TAKE_OVER_MS = 60_000
#: Why a schedule rests whose change is lost, or is not the last one.
LOST = "its pause or its other times are not what was written last: resume it, and set its other times again"
#: How many of the schedules that are ignored a process logs, each once.
MOST_TOLD = 100
#: How the field begins of a stored schedule that is on its way to another server.
ASIDE = b"moving stored "
#: How the field of a register begins.
REGISTER = registers.FIELD.encode()
#: Bytes of payload in one `advance` call, about.
ADVANCE_BYTES = 1 << 20


# What the server knows.


class Known(NamedTuple):
    """The schedules of a queue, as it knows them."""

    queue: QueueSettings
    version: int
    #: The server's clock, epoch us.
    now_us: int
    entries: dict[str, Entry]
    #: Which texts of people hold.
    register: Register = Register()
    #: The stored schedules that are on their way to another server.
    aside: Collection[str] = ()

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def found(self) -> Iterator["Found"]:
        """Yield the schedules that have a definition which this project has signed; log what is wrong with others."""
        for name in sorted(self.entries):
            if (found := self.find(name)) is not None:
                yield found

    def is_of_another_key(self, name: str) -> bool:
        """Whether what is stored of a schedule is signed with a key that only other processes have, and may be later."""
        entry, lacks = (
            self.entries.get(name) or Entry(),
            conf.get_keyring().lacks_key_of,
        )
        if self.register.is_of_another_key and (entry.stored or entry.change):
            return True
        return lacks(entry.code) or lacks(entry.change)

    def find(self, name: str) -> "Found | None":
        found = self.read(name)
        return None if found is None or found.definition.moved_to else found

    def read(self, name: str) -> "Found | None":
        """Return a schedule even if it has moved to another queue."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        queue = self.queue.name
        for kind, text in (("code", entry.code), ("stored", entry.stored)):
            definition = _read(queue, kind, name, text)
            if definition is None:
                continue
            is_stored = kind == "stored"
            if is_stored and not self.register.fits(kind, name, text):
                _log_once(
                    "queue %s: stored data of schedule %r is ignored (%s): it is not what was stored last",
                    queue,
                    name,
                    kind,
                )
                continue
            change = self.change_of(name)
            return Found(self.queue, name, entry, definition, change, is_stored)
        return None

    def change_of(self, name: str) -> Change | None:
        """Return what somebody has changed of a schedule; if that is lost or is not the last change, a pause."""
        text = (self.entries.get(name) or Entry()).change
        queue = self.queue.name
        change = _read_change(queue, name, text)
        # What nobody has signed is as good as missing.
        if self.register.fits("change", name, text if change is not None else b""):
            return change
        logger.error(
            "queue %s: schedule %r rests: its pause or its other times are not what was written last; resume() it, and"
            " override() its times again if it had others",
            queue,
            name,
        )
        return Change(self.now_ms, "django-delayq", LOST)

    def registering(
        self, name: str, *, stored: bytes | str = KEPT, change: bytes | str = KEPT
    ) -> bytes | str:
        """Return the register to write with these texts of a schedule.

        Raises:
            InvalidSchedule: it cannot be read here, so it cannot be changed.
        """
        before = self.register
        changed = before.changed(name, stored=stored, change=change)
        is_same = changed == before and (before.number or before.is_of_another_key)
        return KEPT if is_same else changed.sealed(self.queue.name)

    def signed_anew(self) -> dict[str, bytes]:
        """Return the texts, by field, that have to be signed with the present key, or to be marked as registered.

        A text that does not hold is never among them.
        """
        queue, found = self.queue.name, dict[str, bytes]()
        for name, entry in self.entries.items():
            for kind in ("code", *registers.KINDS):
                text: bytes = getattr(entry, kind)
                if not text or (
                    definitions.is_sealed_now(text) and definitions.is_registered(text)
                ):
                    continue
                if kind != "code" and not self.register.fits(kind, name, text):
                    continue
                with suppress(NotSigned):
                    anew = definitions.sealed_anew(queue, kind, name, text)
                    found[f"{kind} {name}"] = anew
        kept, key_id = self._pruned(), conf.get_keyring().ids[0]
        is_unwritten = bool(kept.digests) and not kept.number
        if is_unwritten or (kept.key_ids and kept.key_ids != (key_id,)):
            gone = (f"{registers.FIELD}{each}" for each in kept.key_ids)
            found |= dict.fromkeys(gone, b"")
            found[f"{registers.FIELD}{key_id}"] = kept.sealed(queue)
        return self.pruned() | found

    def pruned(self) -> dict[str, bytes]:
        """Return the register without what is gone, by its field; nothing if all is there."""
        kept = self._pruned()
        if kept == self.register:
            return {}
        field_name = f"{registers.FIELD}{conf.get_keyring().ids[0]}"
        return {field_name: kept.sealed(self.queue.name)}

    def _pruned(self) -> Register:
        def is_there(place: str) -> bool:
            kind, _, name = place.partition(" ")
            entry = self.entries.get(name) or Entry()
            # A change stays: else whoever deletes it would undo a pause.
            return kind != "stored" or bool(entry.stored) or name in self.aside

        digests = self.register.digests
        kept = {place: digests[place] for place in digests if is_there(place)}
        return self.register._replace(digests=kept)


class Found(NamedTuple):
    """The parts of a queue's schedule that can be trusted."""

    queue: QueueSettings
    name: str
    entry: Entry
    definition: Definition
    change: Change | None
    is_stored: bool

    @property
    def when(self) -> When:
        """Its occurrences.

        Raises:
            InvalidSchedule: a later version may have written them.
        """
        changed = self.change.when if self.change is not None else None
        return when_of(changed or self.definition.when)

    @property
    def is_paused(self) -> bool:
        return self.change is not None and self.change.paused_ms > 0

    @property
    def print(self) -> str:
        return definitions.fingerprint(self.definition, self.change)

    def job(self, occurrence_ms: int, next_ms: int | None = None) -> NewJob:
        """Make the job of an occurrence; ``next_ms`` is the occurrence after it, at which it may expire."""
        return definitions.occurrence(
            self.queue,
            self.name,
            self.definition,
            print=self.print,
            occurrence_ms=occurrence_ms,
            next_ms=next_ms,
        )

    def next_ms(self, now_ms: int) -> int | None:
        """Return its next occurrence, epoch ms; None: it has none, or is paused."""
        if self.is_paused:
            return None
        return self.when.after(max(now_ms, self.entry.state.fired_by(now_ms)))


def _read(queue: str, kind: str, name: str, text: bytes) -> Definition | None:
    if not text:
        return None
    try:
        return definitions.read_definition(queue, kind, name, text)
    except NotSigned as error:
        _log_ignored(queue, kind, name, error)
    except DecodeError as error:
        _log_once("queue %s: schedule %r cannot be read: %s", queue, name, str(error))
    return None


def _read_change(queue: str, name: str, text: bytes) -> Change | None:
    if not text:
        return None
    try:
        return definitions.changes.decode(
            definitions.unsealed(queue, "change", name, text)
        )
    except NotSigned as error:
        _log_ignored(queue, "change", name, error)
    except DecodeError as error:
        _log_once("queue %s: schedule %r cannot be read: %s", queue, name, str(error))
    return None


def _log_ignored(queue: str, kind: str, name: str, error: NotSigned) -> None:
    _log_once(
        "queue %s: stored data of schedule %r is ignored (%s): %s",
        queue,
        name,
        kind,
        str(error),
    )


# What was logged of schedules that are ignored.
_told: set[tuple[str, ...]] = set()


def _log_once(message: str, *args: str) -> None:
    # Each look at the schedules reads all of them, and anybody who can write to the hash can make up any number.
    if args in _told or len(_told) >= MOST_TOLD:
        return
    _told.add(args)
    logger.error(message, *args)


def loading(queue: QueueSettings) -> Steps[Known]:
    """Read what a queue knows of its schedules."""
    while True:
        entries: dict[str, Entry] = {}
        texts, aside = dict[str, bytes](), set[str]()
        cursor, version = 0, -1
        while True:
            page = yield periods.page(queue.keys, cursor)
            if version not in (-1, page.version):
                # Somebody has changed something between two pages.
                break
            cursor, version = page.cursor, page.version
            for field_name, value, occurrence_ms in page.fields:
                if field_name.startswith(REGISTER):
                    key_id = field_name[len(REGISTER) :].decode(errors="replace")
                    texts[key_id] = value
                elif field_name.startswith(ASIDE):
                    aside.add(field_name[len(ASIDE) :].decode(errors="replace"))
                else:
                    periods.add_field(entries, field_name, value, occurrence_ms)
            if not cursor:
                its_register = registers.read(queue.name, texts, entries, page.now_us)
                return Known(queue, version, page.now_us, entries, its_register, aside)


def _arrange(
    known: Known,
    name: str,
    *,
    stored: bytes | str = KEPT,
    change: bytes | str = KEPT,
    **more: Any,
) -> Call[int]:
    """Describe a change of what was read of a queue, with its register.

    Raises:
        InvalidSchedule: the register cannot be changed here.
    """
    return periods.arrange(
        known.queue.keys,
        name,
        version=known.version,
        stored=stored,
        change=change,
        register=known.registering(name, stored=stored, change=change),
        **more,
    )


def arranging(
    known: Known,
    found: Found,
    *,
    code: bytes | str = KEPT,
    stored: bytes | str = KEPT,
    change: bytes | str = KEPT,
    since_ms: int | None = None,
) -> Steps[int]:
    """Write a definition or a change, with the occurrence and the job that follow from ``found``.

    For a schedule that moves here from another queue, ``found`` is its state there, and ``since_ms`` the occurrence from which
    it continues. Returns the new version, or 0 if another process changed the schedule first.
    """
    queue = known.queue
    yield from sharding.agreeing_on(queue.name)
    if not (yield from _catching_up(known, found)):
        return 0
    occurrence_ms = found.next_ms(known.now_ms)
    if since_ms is not None and occurrence_ms is not None:
        occurrence_ms = found.when.after(since_ms)
    job = None
    if occurrence_ms is not None:
        job = found.job(occurrence_ms, found.when.after(occurrence_ms))
    version: int = yield _arrange(
        known,
        found.name,
        code=code,
        stored=stored,
        change=change,
        print=found.print,
        next_ms=occurrence_ms,
        before=None if since_ms is None else found.entry.state,
        job=job,
        frame_format=queue.frame_format,
        insertion_list=queue.keeps_list,
    )
    return version


def _catching_up(known: Known, new: Found) -> Steps[bool]:
    """Give the occurrences that a schedule has missed by now their jobs, before ``new`` changes it.

    They are the occurrences of the definition that has held until now, if that catches up with all; their jobs are those of
    ``new``. A kill between two calls loses nothing: the next worker continues. Returns False if another process changed the
    schedule first.
    """
    old, queue = known.find(new.name), known.queue
    if old is None or old.is_paused or old.definition.catch_up != "all":
        return True
    state, seen_ms = old.entry.state, old.entry.occurrence_ms
    behind, is_over = state.behind_count, False
    while seen_ms is not None and not is_over:
        try:
            made, is_over = missed(
                old, new, seen_ms=seen_ms, now_ms=known.now_ms, behind=behind
            )
        except InvalidSchedule as error:
            # Nobody could mend that schedule otherwise.
            logger.warning(
                "queue %s: what schedule %s has missed is left out: %s",
                queue.name,
                new.name,
                error,
            )
            return True
        if not made:
            return True
        behind += len(made)
        *before, last = made
        reply = yield periods.advance(
            queue.keys,
            new.name,
            [made[at] for at in before if at not in state.early_ms] + [made[last]],
            print=state.print,
            seen_ms=seen_ms,
            next_ms=last,
            fired_ms=before[-1] if before else seen_ms,
            behind=behind,
            frame_format=queue.frame_format,
            insertion_list=queue.keeps_list,
        )
        if not reply.has_moved:
            return False
        seen_ms = last
    return True


def missed(
    old: Found, new: Found, *, seen_ms: int, now_ms: int, behind: int
) -> tuple[dict[int, NewJob], bool]:
    """Return the occurrences of ``old`` after ``seen_ms`` that have come by now, each with its job as ``new`` makes it.

    One `advance` takes them, and one more job. The second value says that others are left out, because that makes
    `MOST_BEHIND` in a row; the log says so as well.

    Raises:
        InvalidSchedule: this machine does not know the zone.
    """
    made, size = dict[int, NewJob](), 0
    for at in old.when.occurrences(seen_ms):
        is_full = len(made) + 1 == periods.ADVANCE_BATCH or size >= ADVANCE_BYTES
        if at > now_ms or is_full:
            break
        if behind + len(made) >= MOST_BEHIND:
            logger.warning(
                "queue %s: schedule %s has missed more than %d occurrences; those after %d are left out",
                new.queue.name,
                new.name,
                MOST_BEHIND,
                MOST_BEHIND,
            )
            return made, True
        # Without a next occurrence: the job must not expire at one that has come.
        made[at] = new.job(at)
        size += len(made[at].payload)
    return made, False


class Move(Enum):
    """The fate of a schedule that code defines on a queue which does not have it."""

    #: No other queue has it.
    NEW = auto()
    #: Something has changed: look again.
    AGAIN = auto()
    #: Its jobs on the queue that it comes from have to end.
    WAITS = auto()
    #: Later code has it on another queue.
    ELSEWHERE = auto()


def moving(
    known: Known, others: Sequence[Known], name: str, definition: Definition
) -> Steps[Move]:
    """Have a schedule come from the queue that had it before, one step at a time.

    First that queue notes where the schedule goes, and cancels the job that waits; then this queue continues from the last
    occurrence that has come there. So each occurrence has one job, whichever process is killed in between.
    """
    own, queue = known.read(name), known.queue.name
    elsewhere = _elsewhere(others, name, definition.task)
    for other, found in elsewhere:
        if found.definition.moved_to:
            continue
        if not is_later(definition, found, other.now_ms):
            latest_ms: int = yield limiting.latest_code(other.queue.keys, other.now_ms)
            if latest_ms > definition.loaded_ms:
                return Move.ELSEWHERE
        yield from _sending(other, found, queue, definition.loaded_ms)
        return Move.AGAIN
    # It is on its way, or no queue has it. Of several notes, an earlier one is of a move that has ended.
    notes = [*elsewhere, (known, own)] if own is not None else elsewhere
    notes = [each for each in notes if each[1].definition.moved_ms]
    if not notes:
        return Move.NEW
    other, found = max(notes, key=lambda note: note[1].definition.moved_ms)
    before = found.definition
    if before.moved_to != queue:
        # The queue that it goes to does not have it yet.
        # A note from a time to come was written while the server's clock was ahead.
        since_ms = abs(other.now_ms - before.moved_ms)
        if not is_later(definition, found, other.now_ms) and since_ms < TAKE_OVER_MS:
            return Move.ELSEWHERE
        yield from _redirecting(other, found, others, queue, definition.loaded_ms)
        return Move.AGAIN
    may_not_overlap = other is not known and (before.drops or definition.drops)
    if may_not_overlap and (yield from _is_busy(found)):
        if before.moved_ms + TAKE_OVER_MS / 2 < other.now_ms:
            # It says that somebody still waits.
            yield from _sending(other, found, before.moved_to, before.loaded_ms)
        return Move.WAITS
    # The occurrences of the definition before count until this one replaces it, as any other.
    first = msgspec.structs.replace(
        definition, when=before.when, catch_up=before.catch_up, loaded_ms=0
    )
    if definition.is_like(first):
        first = definition
    state = found.entry.state
    fired_ms = state.fired_by(known.now_ms)
    since_ms = max(known.now_ms, fired_ms)
    if before.catch_up == "all":
        since_ms = fired_ms or before.moved_ms
    code = definitions.sealed(queue, "code", name, first)
    # What this queue has of its own stays: else whoever writes a schedule back that has left a queue would undo a pause here.
    change = found.change or known.change_of(name)
    text: bytes | str = ""
    if change is not None:
        text = definitions.sealed(queue, "change", name, change)
    new = Found(known.queue, name, Entry(state=state), first, change, False)
    is_done = yield from arranging(
        known, new, code=code, change=text, since_ms=since_ms
    )
    if is_done and before.catch_up == "all":
        yield from _moving_on(known.queue, name)
    if is_done and other is not known:
        yield from _arrived(other, found)
        logger.info(
            "schedule %s has moved from queue %s to %s", name, other.queue.name, queue
        )
    return Move.AGAIN


def _moving_on(queue: QueueSettings, name: str) -> Steps[None]:
    """Give the occurrences that a schedule has missed on its way their jobs.

    Else its next occurrence has come long ago, and each worker with other code takes it over from the one before.
    """
    known = yield from loading(queue)
    found = known.find(name)
    if found is not None:
        yield from arranging(known, found)


def loading_others(queue: QueueSettings) -> Steps[list[Known]]:
    """Read what all queues but one know of their schedules."""
    queues = [
        each for each in conf.get_settings().queues_of() if each.name != queue.name
    ]
    found = []
    for known in (yield from together([loading(each) for each in queues])):
        if isinstance(known, Exception):
            raise known
        found.append(known)
    return found


def _elsewhere(
    others: Sequence[Known], name: str, task: str
) -> list[tuple[Known, Found]]:
    """Return what other queues have of a schedule in code which our code does not define there."""
    found = [
        (known, one)
        for known in others
        if (one := known.read(name)) is not None
        and not one.is_stored
        and one.definition.task == task
    ]
    if not found:
        return []
    in_code = {each.queue for each in definitions.all_schedules() if each.name == name}
    return [each for each in found if each[0].queue.name not in in_code]


def _sending(
    known: Known, found: Found, to: str, loaded_ms: int, *, has_come: bool = False
) -> Steps[int]:
    """Note on a queue that a schedule has moved from it; if its next occurrence has not come, the job of that is cancelled.

    ``has_come``: the other queue has it, with what somebody has changed.
    """
    moved = msgspec.structs.replace(
        found.definition,
        moved_to=to,
        moved_ms=0 if has_come else known.now_ms,
        loaded_ms=loaded_ms,
    )
    version: int = yield _arrange(
        known,
        found.name,
        code=definitions.sealed(known.queue.name, "code", found.name, moved),
        change="" if has_come else KEPT,
        print=found.entry.state.print or found.print,
        next_ms=None,
    )
    return version


def _arrived(known: Known, found: Found) -> Steps[None]:
    """Note on a queue that the schedule which it has sent has arrived. A later note stays."""
    note = found.definition
    while found.definition == note:
        version = yield from _sending(
            known, found, note.moved_to, note.loaded_ms, has_come=True
        )
        if version:
            return
        # Another schedule of the queue has changed.
        known = yield from loading(known.queue)
        again = known.read(found.name)
        if again is None:
            return
        found = again


def _redirecting(
    known: Known, found: Found, others: Sequence[Known], to: str, loaded_ms: int
) -> Steps[None]:
    """Have a schedule that has left a queue, and has not arrived, go to another queue instead.

    A worker that was stopped on the way may still want to have it arrive: the version of the queue before is raised, so it
    has to look again, and finds the new note.
    """
    name, before = found.name, found.definition.moved_to
    if not (yield from _sending(known, found, to, loaded_ms)):
        return
    target = next((each for each in others if each.queue.name == before), None)
    while target is not None and target.find(name) is None:
        state = target.entries.get(name, Entry()).state
        version: int = yield _arrange(target, name, print=state.print)
        if version:
            return
        target = yield from loading(target.queue)


#: A job in one of these states may run.
_ALIVE = (State.SCHEDULED, State.DUE, State.RUNNING, State.RETRYING, State.HELD)


def _is_busy(found: Found) -> Steps[bool]:
    """Whether jobs of a schedule run on the queue that it has left, or are going to."""
    keys, state, limit = found.queue.keys, found.entry.state, found.definition.limit
    served, _ = yield from reading(found.queue.name)
    if not served:
        return False
    if limit:
        for count in (limiting.count_slots, limiting.count_held):
            if (yield count(keys, limit)):
                return True
    token = conf.get_keyring().token(
        found.queue.name, found.name, state.fired, state.print
    )
    last = yield looking.inspect(keys, token)
    return last.state in _ALIVE


def is_later(definition: Definition, found: Found, now_ms: int) -> bool:
    """Whether a definition replaces that of another worker: its code is later, or nobody moves the other's on."""
    loaded_ms = found.definition.loaded_ms
    if loaded_ms > now_ms + periods.SKEW_MS:
        # The server's clock was ahead.
        return True
    return definition.loaded_ms > loaded_ms or is_left(found.entry, now_ms)


def is_left(entry: Entry, now_ms: int) -> bool:
    """Whether nobody has moved a schedule on for a minute after its occurrence."""
    return (
        entry.occurrence_ms is not None and entry.occurrence_ms + TAKE_OVER_MS < now_ms
    )


# What a project sees.


@brief
@dataclass(frozen=True)
class Schedule:
    """A periodic schedule, as it was at the last call. `refresh` reads it again.

    Example::

        schedule = get_schedule("shop.tasks.report")
        print(schedule.words, schedule.occurrences(3))
        schedule.pause(reason="holidays")
    """

    name: str
    queue: str
    #: Name of its task.
    task: str
    #: Its occurrences: what `cron` or `every` has made.
    when: When
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Options of its jobs that differ from its task's.
    options: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    catch_up: CatchUp = "one"
    #: False: while one of its jobs runs, the next is dropped; or it waits, if `catch_up` is "all".
    overlap: bool = True
    #: It is stored, and not in code.
    is_stored: bool = False
    #: No task of this process is so named, or its code has no such schedule any more.
    is_orphan: bool = False
    #: Whether `override` has given it other times than its definition has.
    is_overridden: bool = False
    #: The server has its arguments encrypted.
    is_encrypted: bool = False
    #: The server knows it. A schedule in code is enrolled by the first worker that starts.
    is_enrolled: bool = True
    #: When it was paused, in UTC; None: it is not.
    paused_since: datetime | None = None
    paused_by: str = ""
    paused_reason: str = ""
    #: The next occurrence that has a job, in UTC: not one whose job was cancelled, or run early. None: there is none.
    next_occurrence: datetime | None = None
    #: The last occurrence that has come, in UTC.
    last_occurrence: datetime | None = None
    #: The id of the job that waits for the next occurrence; empty: it is not stored yet, or there is no such occurrence.
    job_id: str = ""
    #: The occurrences to come whose jobs were cancelled or run early, epoch ms.
    _had: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None

    @property
    def words(self) -> str:
        """When it comes, in words."""
        return self.when.words

    def occurrences(self, count: int = 5) -> list[datetime]:
        """Return the next occurrences by the clock of this machine, in the schedule's time zone, whether or not it is paused.

        An occurrence whose job was cancelled, or run early, is not among them.

        Raises:
            InvalidSchedule: this machine does not know the zone.
        """
        coming = (at for at in self.when.occurrences(epoch_ms()) if at not in self._had)
        return [datetime_of(at, self.when.zone) for at in islice(coming, count)]

    @performed
    def refresh(self) -> Steps["Schedule"]:
        """Read the schedule from the server again.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return _getting(self.name, self.queue)

    arefresh = aperformed(refresh)

    @performed
    def pause(self, *, reason: str = "", by: str = "") -> Steps["Schedule"]:
        """Have it rest until `resume`: the job that waits is cancelled, unless its occurrence has come.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return _pausing(self, reason, by)

    apause = aperformed(pause)

    @performed
    def resume(self) -> Steps["Schedule"]:
        """Continue with its next occurrence; those that it has missed stay missed.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return _resuming(self)

    aresume = aperformed(resume)

    @performed
    def override(self, when: When | None) -> Steps["Schedule"]:
        """Give it other times than its definition has; with None, those of its definition again.

        The job that waits is replaced in the same step. The change holds until it is taken back, through deploys as well.

        Raises:
            InvalidSchedule: these occurrences never come.
            ScheduleNotFound: it is gone.
        """
        return _overriding(self, when)

    aoverride = aperformed(override)

    @performed
    def fire(self) -> Steps[Job[Any]]:
        """Store a job of it that is due now, beside those of its occurrences, even if it is paused.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return _firing(self)

    afire = aperformed(fire)

    @performed
    def delete(self) -> Steps[bool]:
        """Delete it, and the job that waits unless its occurrence has come; return False if it was gone.

        Only for schedules that are stored, and those that have gone from code: workers would enroll any other again.

        Raises:
            InvalidSchedule: it is in code.
        """
        return _deleting(self)

    adelete = aperformed(delete)


@performed
def get_schedules(queue: str | None = None) -> Steps[list[Schedule]]:
    """Return the schedules of a queue, by default of every queue in the settings, ordered by name.

    Example::

        late = [each.name for each in get_schedules() if each.is_paused]

    Raises:
        QueueNotFound: the queue is not configured.
        PartialAnswer: some queues did not answer; ``found`` has the schedules of the others.
    """
    found, missing = yield from _finding_all(queue)
    return complete(found, missing)


aget_schedules = aperformed(get_schedules)


@performed
def get_schedule(name: str, queue: str | None = None) -> Steps[Schedule]:
    """Return the schedule with this name.

    Example::

        get_schedule("shop.tasks.report").fire()

    Raises:
        ScheduleNotFound: there is none, or several queues have one and ``queue`` is not given.
        QueueNotFound: the queue is not configured.
        PartialAnswer: some queues did not answer, and the others do not have it.
    """
    return _getting(name, queue)


aget_schedule = aperformed(get_schedule)


@performed
def store_schedule(
    name: str,
    task: Task,
    when: When,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    catch_up: CatchUp = "one",
    overlap: bool = True,
    replace: bool = False,
    **options: Unpack[CallOptions],
) -> Steps[Schedule]:
    """Store a schedule on the server, in addition to the schedules in code. The options are those of `periodic`.

    It stays until it is deleted. With ``replace``, it replaces a stored schedule of the same name; otherwise the name
    must be free.

    Example::

        store_schedule(f"report-{user.pk}", report, cron("0 9 * * *", tz=user.zone), args=[user.pk], replace=True)

    Raises:
        InvalidSchedule, InvalidTask, InvalidArguments, EncodeError, TaskNotFound, QueueNotFound: nothing was stored.
    """
    found_task = get_task(name_of(task))
    if isinstance(task, DelayedTask):
        options = {**definitions.options_by_using(task), **options}  # type: ignore[typeddict-item]
    definitions.check_names(options)
    if not isinstance(found_task, DelayedTask):
        raise InvalidTask(
            f"{found_task.name!r} is a Django task, which has no schedules: give a @delayed_task that enqueues it"
        )
    schedule = definitions.schedule_of(
        found_task, when, name, args, kwargs, catch_up, overlap, options
    )
    definitions.check(schedule)
    definition = schedule.definition()
    queue = conf.get_settings().queue(schedule.queue)
    text = definitions.sealed(queue.name, "stored", name, definition)
    if queue.shard_of is not None:
        yield from _checking_others(name, queue)
    for _ in range(TRIES):
        known = yield from loading(queue)
        entry = known.entries.get(name) or Entry()
        if entry.code or name in _in_code(queue.name):
            raise InvalidSchedule(
                f"schedule {name!r} of queue {queue.name!r} is in code; override() gives it other times, or choose"
                " another name"
            )
        if entry.stored and not replace:
            raise InvalidSchedule(
                f"a schedule named {name!r} is stored on queue {queue.name!r} already; say replace=True to replace it"
            )
        if not entry.stored and _count_stored(known) >= MAX_STORED:
            raise InvalidSchedule(
                f"queue {queue.name!r} has {MAX_STORED:,} stored schedules, and takes no more: each of its workers reads"
                " all of them"
            )
        is_new = not entry.stored
        # What an earlier schedule of this name may have left is not for this one.
        change = None if is_new else known.change_of(name)
        found = Found(queue, name, entry, definition, change, True)
        gone = "" if is_new else KEPT
        if (yield from arranging(known, found, stored=text, change=gone)):
            logger.info("schedule %s is stored on queue %s: %s", name, queue.name, when)
            return (yield from _getting(name, queue.name))
    raise _too_busy(name)


astore_schedule = aperformed(store_schedule)


def _finding_all(
    queue: str | None,
) -> Steps[tuple[list[Schedule], dict[str, Exception]]]:
    """Return the schedules of the queues that can be read, and the errors of the others."""
    settings = conf.get_settings()
    schedules: list[Schedule] = []
    queues = settings.queues_of(queue)
    answers = yield from asking(queues, map(loading, queues))
    for each, known in answers.of(queues):
        code = _in_code(each.name)
        shown = yield from together(
            [_showing(known, found, code) for found in known.found()]
        )
        for one in shown:
            if isinstance(one, Schedule):
                schedules.append(one)
            elif not isinstance(one, InvalidSchedule):
                raise one
        enrolled = {
            schedule.name for schedule in schedules if schedule.queue == each.name
        }
        for name in code.keys() - enrolled:
            try:
                schedules.append(_shown_code(code[name]))
            except DelayqError as error:
                # Workers leave it out as well, and say so.
                logger.error("schedule %s is left out: %s", name, error)
    schedules.sort(key=lambda schedule: (schedule.name, schedule.queue))
    return schedules, answers.missing


def _in_code(queue: str) -> dict[str, CodeSchedule]:
    return {
        schedule.name: schedule
        for schedule in definitions.all_schedules()
        if schedule.queue == queue
    }


def _getting(name: str, queue: str | None) -> Steps[Schedule]:
    settings = conf.get_settings()
    if queue is not None and queue not in settings.sharded:
        known = yield from loading(settings.queue(queue))
        one = known.find(name)
        if one is not None:
            # What a later version has written is not shown.
            with suppress(InvalidSchedule):
                return (yield from _showing(known, one, _in_code(queue)))
    all_found, missing = yield from _finding_all(queue)
    found = [schedule for schedule in all_found if schedule.name == name]
    if len(found) > 1:
        queues = ", ".join(schedule.queue for schedule in found)
        raise ScheduleNotFound(
            f"there are schedules named {show(name)} on several queues: {queues}; say which: get_schedule(name, queue)"
        )
    if not found:
        complete(all_found, missing)
        raise _not_found(name, [schedule.name for schedule in all_found])
    return found[0]


def _not_found(name: str, names: Sequence[str] = ()) -> ScheduleNotFound:
    known = f"; there are {', '.join(map(repr, names[:20]))}" if names else ""
    return ScheduleNotFound(f"no schedule is named {show(name)}{known}")


def _waiting_token(known: Known, entry: Entry) -> Steps[str]:
    """Return the token of the job that waits for the next occurrence; empty: it was cancelled, or run early."""
    token, occurrence_ms = entry.state.token, entry.occurrence_ms
    if not token or occurrence_ms is None:
        return ""
    job = yield looking.inspect(known.queue.keys, token)
    # A start time is rounded up to whole ms, so that of a job that runs now may lie 1 ms ahead.
    is_early = job.score_ms <= job.now_ms + 1 and job.now_ms < occurrence_ms
    is_waiting = job.state in (State.SCHEDULED, State.DUE) and not is_early
    return token if is_waiting else ""


def _coming(found: Found, had: Collection[int], now_ms: int) -> int | None:
    """Return the next occurrence that has a job, epoch ms; None: there is none, or this machine does not know the zone."""
    occurrence_ms = found.entry.occurrence_ms
    if occurrence_ms is None or occurrence_ms not in had:
        return occurrence_ms
    if found.definition.catch_up != "all":
        occurrence_ms = max(occurrence_ms, now_ms)
    try:
        return next(
            (at for at in found.when.occurrences(occurrence_ms) if at not in had), None
        )
    except InvalidSchedule:
        return None


def _showing(
    known: Known, found: Found, code: Mapping[str, CodeSchedule]
) -> Steps[Schedule]:
    """Say what a schedule is, after a look at the job that waits.

    Raises:
        InvalidSchedule: a later version may have written it.
    """
    definition, change, entry = found.definition, found.change, found.entry
    when, state, occurrence_ms = found.when, entry.state, entry.occurrence_ms
    token = yield from _waiting_token(known, entry)
    had = (
        {*state.early_ms, occurrence_ms}
        if occurrence_ms and not token
        else state.early_ms
    )
    next_ms = _coming(found, had, known.now_ms)
    is_known = found.name in code
    if found.is_stored:
        try:
            get_task(definition.task)
            is_known = True
        except TaskNotFound:
            is_known = False
    paused_ms = change.paused_ms if change else 0
    fired_ms = state.fired_by(known.now_ms)
    return Schedule(
        found.name,
        found.queue.name,
        definition.task,
        when,
        definition.args,
        definition.kwargs,
        definition.options,
        definition.priority,
        definition.catch_up,
        not definition.drops,
        is_stored=found.is_stored,
        is_orphan=not is_known,
        is_overridden=change is not None and change.when is not None,
        is_encrypted=definition.encrypt,
        paused_since=datetime_of(paused_ms) if paused_ms else None,
        paused_by=change.by if change else "",
        paused_reason=change.reason if change else "",
        next_occurrence=None if next_ms is None else _time_of(next_ms),
        last_occurrence=_time_of(fired_ms) if fired_ms else None,
        job_id=f"{found.queue.name}:{token}" if token else "",
        _had=frozenset(had),
    )


def _time_of(ms: int) -> datetime | None:
    """Return a time of the server; None: no calendar has it, so our scripts have not written it."""
    try:
        return datetime_of(ms)
    except OverflowError:
        return None


def _shown_code(code: CodeSchedule) -> Schedule:
    definition = code.definition()
    return Schedule(
        code.name,
        code.queue,
        definition.task,
        code.when,
        definition.args,
        definition.kwargs,
        definition.options,
        definition.priority,
        definition.catch_up,
        not definition.drops,
        is_encrypted=definition.encrypt,
        is_enrolled=False,
    )


# Changes.


def _finding(schedule: Schedule) -> Steps[tuple[Known, Found, bytes | str]]:
    """Return a schedule as the server knows it now; or as our code does, and then its definition to write with a change."""
    known = yield from loading(conf.get_settings().queue(schedule.queue))
    found = known.find(schedule.name)
    if found is not None:
        return known, found, KEPT
    queue, name = known.queue, schedule.name
    code = _in_code(queue.name).get(name)
    moved = known.read(name)
    if moved is not None:
        raise ScheduleNotFound(
            f"schedule {name!r} has moved from queue {queue.name!r} to {moved.definition.moved_to!r}; use"
            " get_schedule(name, queue)"
        )
    if code is None:
        raise _not_found(name)
    definition = msgspec.structs.replace(
        code.definition(), loaded_ms=definitions.LoadTime().by(known.now_ms)
    )
    others = yield from loading_others(queue)
    for other, _ in _elsewhere(others, name, definition.task):
        raise InvalidSchedule(
            f"schedule {name!r} was not changed: it moves from queue {other.queue.name!r} to {queue.name!r} when a worker"
            " with this code starts; try again then"
        )
    found = Found(queue, name, Entry(), definition, None, False)
    return known, found, definitions.sealed(queue.name, "code", name, definition)


def _changing(schedule: Schedule, **changed: Any) -> Steps[Schedule]:
    """Write a change beside a definition, and say what the schedule is now."""
    for _ in range(TRIES):
        known, found, code = yield from _finding(schedule)
        values = dict(changed)
        if "paused_ms" in values:
            values["paused_ms"] = known.now_ms if values["paused_ms"] else 0
        change = msgspec.structs.replace(found.change or Change(), **values)
        text: bytes | str = ""
        if change != Change():
            text = definitions.sealed(known.queue.name, "change", found.name, change)
        changed_found = found._replace(change=change)
        if (yield from arranging(known, changed_found, code=code, change=text)):
            return (yield from _getting(schedule.name, schedule.queue))
    raise _too_busy(schedule.name)


def _too_busy(name: str) -> InvalidSchedule:
    return InvalidSchedule(
        f"schedule {name!r} was not changed: other changes to schedules of its queue came first each time; try again"
    )


def _pausing(schedule: Schedule, reason: str, by: str) -> Steps[Schedule]:
    by, reason = (
        checked_text(by or actor(), "by"),
        checked_text(reason, "reason"),
    )
    paused = yield from _changing(schedule, paused_ms=1, by=by, reason=reason)
    logger.warning(
        "schedule %s of queue %s is paused, by %s%s",
        schedule.name,
        schedule.queue,
        " ".join(by.split()),
        f": {' '.join(reason.split())}" if reason else "",
    )
    return paused


def _resuming(schedule: Schedule) -> Steps[Schedule]:
    resumed = yield from _changing(schedule, paused_ms=0, by="", reason="")
    logger.warning(
        "schedule %s of queue %s was resumed, by %s",
        schedule.name,
        schedule.queue,
        actor(),
    )
    return resumed


def _overriding(schedule: Schedule, when: When | None) -> Steps[Schedule]:
    if when is not None:
        if not isinstance(when, When):
            raise InvalidSchedule(
                f"override() takes cron(…), every(…) or None; got {show(when)}"
            )
        when.check()
    changed = yield from _changing(
        schedule, when=None if when is None else when.as_json()
    )
    logger.warning(
        "schedule %s of queue %s has %s, by %s",
        schedule.name,
        schedule.queue,
        "the times of its definition again" if when is None else f"the times {when}",
        actor(),
    )
    return changed


def _firing(schedule: Schedule) -> Steps[Job[Any]]:
    known, found, _ = yield from _finding(schedule)
    queue, definition = known.queue, found.definition
    code = None if found.is_stored else _in_code(queue.name).get(found.name)
    if code is not None:
        # No worker may have looked since somebody wrote an earlier definition back.
        definition = code.definition()
    yield from sharding.agreeing_on(queue.name)
    new = definitions.extra(queue, found.name, definition, known.now_ms)
    job: Job[Any] = Job(
        queue.name,
        new.token,
        definition.task,
        definition.args,
        definition.kwargs,
        Draft(new, sent_ms=boottime_ms()),
    )
    job.options, job.priority = definition.options or None, definition.priority
    (stored,) = yield storing.schedule(queue.target.unlimited, [new])
    job.state, job.start_time_ms = State.SCHEDULED, stored.start_time_ms
    job.take_headers({SCHEDULE: found.name, OCCURRENCE: str(known.now_ms)})
    return job


def _deleting(schedule: Schedule) -> Steps[bool]:
    queue = conf.get_settings().queue(schedule.queue)
    if schedule.name in _in_code(queue.name):
        known = yield from loading(queue)
        entry = known.entries.get(schedule.name)
        if entry is None or entry.code or not entry.stored:
            raise InvalidSchedule(
                f"schedule {schedule.name!r} is in code, and workers would enroll it again; delete its @periodic, or pause it"
            )
    for _ in range(TRIES):
        known = yield from loading(queue)
        if schedule.name not in known.entries:
            return False
        version: int = yield _arrange(
            known,
            schedule.name,
            code="",
            stored="",
            change="",
            print="",
            next_ms=None,
        )
        if version:
            logger.warning(
                "schedule %s of queue %s was deleted, by %s",
                schedule.name,
                queue.name,
                actor(),
            )
            return True
    raise _too_busy(schedule.name)


def _checking_others(name: str, queue: QueueSettings) -> Steps[None]:
    """Make sure that no other shard has a schedule of this name: its task's limit may have led it there."""
    for part in conf.get_settings().queues_of(queue.shard_of):
        if part.name == queue.name:
            continue
        known = yield from loading(part)
        if name in known.entries:
            raise InvalidSchedule(
                f"a schedule named {name!r} is in shard {part.name!r}, and by the limit of its task this one belongs to"
                f" {queue.name!r}; delete that one first, or choose another name"
            )


def _count_stored(known: Known) -> int:
    return sum(1 for entry in known.entries.values() if entry.stored)
