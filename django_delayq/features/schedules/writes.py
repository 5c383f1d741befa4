"""Writes the definition or the change of a schedule, once the occurrences that it has missed have their jobs."""

from typing import Any

from django_delayq.core.store import NewJob
from django_delayq.exceptions import InvalidSchedule
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.features.schedules.calls import KEPT
from django_delayq.features.schedules.known_schedules import Found, Known
from django_delayq.jobs import shard_agreement
from django_delayq.logs import get_log
from django_delayq.transport.call import Call
from django_delayq.transport.steps import Steps

logger = get_log("django_delayq.jobs")

#: Of more missed occurrences in a row, `catch_up="all"` leaves out those that follow.
MOST_BEHIND = 1_000
#: Bytes of payload in one `advance` call, about.
ADVANCE_BYTES = 1 << 20


def arrange(
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
    return schedule_calls.arrange(
        known.queue.target,
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
    yield from shard_agreement.agreeing_on(queue.name)
    if not (yield from _catching_up(known, found)):
        return 0
    occurrence_ms = found.next_ms(known.now_ms)
    if since_ms is not None and occurrence_ms is not None:
        occurrence_ms = found.when.after(since_ms)
    job = None
    if occurrence_ms is not None:
        job = found.job(occurrence_ms, found.when.after(occurrence_ms))
    version: int = yield arrange(
        known,
        found.name,
        code=code,
        stored=stored,
        change=change,
        print=found.print,
        next_ms=occurrence_ms,
        before=None if since_ms is None else found.entry.state,
        job=job,
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
        reply = yield schedule_calls.advance(
            queue.target,
            new.name,
            [made[at] for at in before if at not in state.early_ms] + [made[last]],
            print=state.print,
            seen_ms=seen_ms,
            next_ms=last,
            fired_ms=before[-1] if before else seen_ms,
            behind=behind,
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
        is_full = len(made) + 1 == schedule_calls.ADVANCE_BATCH or size >= ADVANCE_BYTES
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
