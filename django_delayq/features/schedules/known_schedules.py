"""What the server knows of the schedules of a queue: read, checked, and joined with what somebody has changed.

`Known` has the schedules of a queue, `Found` one of them. This module writes nothing.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core.store import NewJob
from django_delayq.exceptions import DecodeError, NotSigned
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules import register as registers
from django_delayq.features.schedules.calls import KEPT, Entry
from django_delayq.features.schedules.periodic import Change, Definition
from django_delayq.features.schedules.register import Register
from django_delayq.jobs.occurrences import When, when_of
from django_delayq.logs import get_log
from django_delayq.transport.steps import Steps

logger = get_log("django_delayq.jobs")

T = TypeVar("T")

#: Why a schedule rests whose change is lost, or is not the last one.
LOST = "its pause or its other times are not what was written last: resume it, and set its other times again"
#: How many of the schedules that are ignored a process logs, each once.
MOST_TOLD = 100
#: How the field begins of a stored schedule that is on its way to another server.
ASIDE = b"moving stored "
#: How the field of a register begins.
REGISTER = registers.FIELD.encode()


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
        """Return whether a schedule is signed with a key that this process does not have yet."""
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
            definition = _read(queue, kind, name, text, definitions.read_definition)
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
        change = _read(queue, "change", name, text, definitions.read_change)
        # An unsigned change counts as lost.
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
        """Return the register without schedules that are gone, by its field; empty if none is gone."""
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


def _read(
    queue: str,
    kind: str,
    name: str,
    text: bytes,
    read: Callable[[str, str, str, bytes], T],
) -> T | None:
    """Read one text of a schedule; None: there is none, or it cannot be trusted, which is logged."""
    if not text:
        return None
    try:
        return read(queue, kind, name, text)
    except NotSigned as error:
        _log_once(
            "queue %s: stored data of schedule %r is ignored (%s): %s",
            queue,
            name,
            kind,
            str(error),
        )
    except DecodeError as error:
        _log_once("queue %s: schedule %r cannot be read: %s", queue, name, str(error))
    return None


# The warnings about ignored schedules that were logged already.
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
            page = yield schedule_calls.page(queue.keys, cursor)
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
                    schedule_calls.add_field(entries, field_name, value, occurrence_ms)
            if not cursor:
                its_register = registers.read(queue.name, texts, entries, page.now_us)
                return Known(queue, version, page.now_us, entries, its_register, aside)
