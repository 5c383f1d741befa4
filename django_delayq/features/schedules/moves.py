"""Moves a schedule in code to the queue on which the latest code has it, step by step: no script can write to both."""

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core import bounds, limit_slots, queue_reads, worker_code
from django_delayq.core.states import State
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules.calls import KEPT, Entry
from django_delayq.features.schedules.known_schedules import Found, Known, loading
from django_delayq.features.schedules.periodic import Definition
from django_delayq.features.schedules.writes import arrange, arranging
from django_delayq.jobs.workers import reading
from django_delayq.logs import get_log
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

logger = get_log("django_delayq.jobs")

#: An occurrence that nobody has moved on for this long belongs to a worker that is gone: one with other code may take over.
TAKE_OVER_MS = 60_000


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
    elsewhere = found_elsewhere(others, name, definition.task)
    for other, found in elsewhere:
        if found.definition.moved_to:
            continue
        if not is_later(definition, found, other.now_ms):
            latest_ms: int = yield worker_code.latest_code(
                other.queue.keys, other.now_ms
            )
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


def found_elsewhere(
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
    version: int = yield arrange(
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
        version: int = yield arrange(target, name, print=state.print)
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
        for count in (limit_slots.count_slots, limit_slots.count_held):
            if (yield count(keys, limit)):
                return True
    token = conf.get_keyring().token(
        found.queue.name, found.name, state.fired, state.print
    )
    last = yield queue_reads.inspect(keys, token)
    return last.state in _ALIVE


def is_later(definition: Definition, found: Found, now_ms: int) -> bool:
    """Whether a definition replaces that of another worker: its code is later, or nobody moves the other's on."""
    loaded_ms = found.definition.loaded_ms
    if loaded_ms > now_ms + bounds.SKEW_MS:
        # The server's clock was ahead.
        return True
    return definition.loaded_ms > loaded_ms or is_left(found.entry, now_ms)


def is_left(entry: Entry, now_ms: int) -> bool:
    """Whether nobody has moved a schedule on for a minute after its occurrence."""
    return (
        entry.occurrence_ms is not None and entry.occurrence_ms + TAKE_OVER_MS < now_ms
    )
