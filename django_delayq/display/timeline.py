"""What has happened to a job, and what comes next, as a person follows it: in the order of time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from django.utils import formats

from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import GRAVES, State
from django_delayq.display.attempts import Failure, read_failure
from django_delayq.display.fields import SCORE_LABELS, held_until_note
from django_delayq.display.texts import clean
from django_delayq.display.time_texts import Moment
from django_delayq.translations import gettext, kind_label, ngettext, state_label

_FRAME = re.compile(r'  File "([^"\n]+)", line \d+')
#: Files of Python and of installed packages, on whatever machine the worker runs.
_LIBRARY = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen |[/\\]django_delayq[/\\]"
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines of a traceback that are shown, or folded because they are of a library."""

    text: str
    #: What stands in the place of folded lines; "": they are shown.
    summary: str = ""


def stretches_of(traceback: str) -> list[Stretch]:
    """Part a traceback into the project's own lines and those of libraries."""
    blocks: list[tuple[bool, list[str]]] = []
    is_library = False
    for line in traceback.splitlines(keepends=True):
        found = _FRAME.match(line)
        if found is not None:
            is_library = _LIBRARY.search(found[1]) is not None
            blocks.append((is_library, [line]))
        elif line.startswith("    ") and blocks:
            # The code of the frame, and the marks below it.
            blocks[-1][1].append(line)
        else:
            blocks.append((False, [line]))
    stretches = []
    for folded, group in groupby(blocks, key=lambda block: block[0]):
        texts = ["".join(lines) for _, lines in group]
        summary = ""
        if folded:
            summary = ngettext(
                "{number} library frame", "{number} library frames", len(texts)
            )
        stretches.append(Stretch("".join(texts).rstrip("\n"), summary))
    return stretches


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that has happened, or is to come."""

    label: str
    moment: Moment | None = None
    #: Facts about it: how long it took, which worker.
    facts: list[str] = field(default_factory=list)
    note: str = ""
    #: Of an attempt that failed.
    error: str = ""
    traceback: list[Stretch] = field(default_factory=list)
    is_failure: bool = False
    #: It is to come, or going on.
    is_open: bool = False


def events_of(
    seen: Inspected,
    state: str,
    attempts: Sequence[Failure],
    enqueued_ms: int | None,
    worker: str,
    note: str,
    token: str = "",
) -> list[Event]:
    """Return the life of a job, in order.

    ``attempts`` are those behind it, the last first; ``worker`` runs it now; ``note`` says what its state means; for
    ``token`` see `display.read_failure`.
    """
    now_ms, start_ms = seen.now_ms, seen.start_time_ms
    events = []
    # A long history lacks its oldest attempts. A retried dead letter keeps its history, and counts attempts from 0.
    last = max(seen.attempts + seen.kills, len(attempts))
    missing = last - len(attempts)
    if missing and attempts:
        events.append(
            Event(
                ngettext(
                    "{number} earlier attempt, not kept",
                    "{number} earlier attempts, not kept",
                    missing,
                )
            )
        )
    # Attempts from before the dead letter was retried, or the job given another start time.
    before = sum(
        1 for each in attempts if each.at is not None and each.at.ms < start_ms
    )
    for number, attempt in enumerate(reversed(attempts), missing + 1):
        events.append(_attempt(number, attempt))
    # The state says it as well.
    is_next = seen.state in _WAITING and start_ms == seen.score_ms
    if start_ms and not is_next:
        label = gettext("Due again") if before else gettext("First due")
        at = before + (missing > 0) if before else 0
        events.insert(at, Event(label, Moment.of(start_ms, now_ms)))
    if enqueued_ms is not None:
        # By the clock of the process that enqueued it. Where that clock is ahead, the moment would not be in order.
        oldest = attempts[-1].at if attempts else None
        first_ms = oldest.ms if oldest is not None else start_ms
        is_ahead = bool(first_ms) and enqueued_ms > first_ms
        moment = None if is_ahead else Moment.of(enqueued_ms, now_ms)
        events.insert(0, Event(gettext("Enqueued"), moment))
    events += _now(seen, state, worker, note, token)
    return events


#: States in which a job waits for its score, its next moment.
_WAITING = frozenset({State.SCHEDULED, State.DUE, State.RETRYING})


#: What the last error is of a job in these states: no attempt's, but why it is there.
_REASONS = frozenset({State.HELD, State.QUARANTINED})


def _attempt(number: int, attempt: Failure) -> Event:
    facts = []
    if attempt.took_ms is not None:
        took = formats.number_format(attempt.took_ms / 1000, 3)
        facts.append(gettext("ran for {count} s", count=took))
    if attempt.worker:
        facts.append(gettext("worker {worker}", worker=attempt.worker))
    if attempt.kind:
        facts.append(kind_label(attempt.kind))
    return Event(
        gettext("Attempt {number}", number=number),
        attempt.at,
        facts,
        error=attempt.message,
        traceback=stretches_of(attempt.traceback),
        is_failure=bool(attempt.message),
    )


def _now(
    seen: Inspected, state: str, worker: str, note: str, token: str = ""
) -> list[Event]:
    """Say where the job is, and when that changes."""
    now_ms = seen.now_ms
    if seen.state is State.RUNNING:
        since = Moment.of(seen.claimed_ms, now_ms) if seen.claimed_ms else None
        ends = Moment.of(seen.score_ms, now_ms)
        assert ends is not None
        facts = [gettext("lease ends {when}", when=ends.relative)]
        if worker:
            facts.insert(0, gettext("worker {worker}", worker=clean(worker)))
        return [Event(gettext("Runs since"), since, facts, note, is_open=True)]
    label, reason = state_label(state), None
    if seen.state in _REASONS:
        reason = read_failure(seen.error, now_ms, token)
    moment = None
    if seen.score_ms and seen.state in SCORE_LABELS:
        label = str(SCORE_LABELS[seen.state])
        of = Moment.of_held if seen.state is State.HELD else Moment.of
        moment = of(seen.score_ms, now_ms)
    facts = [held] if (held := held_until_note(seen)) else []
    # Words of our own, such as "frame", say less than the message behind them.
    if reason is not None and "." in reason.kind:
        facts.insert(0, reason.kind)
    return [
        Event(
            label[:1].upper() + label[1:],
            moment,
            facts,
            note,
            error=reason.message if reason is not None else "",
            traceback=stretches_of(reason.traceback) if reason is not None else [],
            is_failure=seen.state in GRAVES,
            is_open=seen.state not in GRAVES,
        )
    ]
