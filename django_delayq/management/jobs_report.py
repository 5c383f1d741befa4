"""What ``delayq_jobs`` prints: a row a job, a job in full, and both as JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django_delayq import conf
from django_delayq.clock import epoch_ms, iso_text
from django_delayq.core.bounds import MOST_ENDED
from django_delayq.core.states import OVER, State
from django_delayq.display import job_details as showing
from django_delayq.display.fields import Field
from django_delayq.display.job_details import ShownJob
from django_delayq.display.payloads import call_of
from django_delayq.display.texts import clean
from django_delayq.display.time_texts import Moment, relative_text
from django_delayq.display.timeline import Event
from django_delayq.display.value_json import plain_value
from django_delayq.features.ended.api import EndedJob, ended_jobs
from django_delayq.jobs.arguments import shown_arguments
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import get_job, handle_of
from django_delayq.management.terminal import Column, width_of, wrapped
from django_delayq.redaction import redact
from django_delayq.translations import gettext, number_text, state_label
from django_delayq.wording import one_line, printable

#: Columns of a paragraph, and of what stands below a label.
WIDTH, INDENT = 100, "  "
#: The longest label that has its value beside it.
LONGEST_LABEL = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# A row a job


def columns(*, have_ended: bool = False) -> list[Column]:
    return [
        Column(gettext("ID")),
        Column(gettext("STATE")),
        Column(gettext("ENDED") if have_ended else gettext("DUE")),
        Column(gettext("ATTEMPTS"), is_number=True),
        Column(gettext("TASK"), is_cut=True),
    ]


def row_of(job: Job[Any], *, decrypts: bool = False) -> list[str]:
    """Return a row of the table; ``decrypts`` says whether it shows what is encrypted."""
    due_ms = job.start_time_ms
    return [
        one_line(job.id) if job.token else gettext("(no ID)"),
        state_label(job.state),
        "" if due_ms is None else relative_text(due_ms - int(epoch_ms())),
        _attempts_text(job),
        one_line(call_text(job, decrypts=decrypts) + _error_text(job, decrypts)),
    ]


def _attempts_text(job: Job[Any]) -> str:
    """Write how many attempts failed, and apart from them how many lost their worker."""
    failed = number_text(job.attempts)
    if job.kills:
        return gettext("{attempts} + {kills} killed", attempts=failed, kills=job.kills)
    return failed if job.attempts else ""


def row_of_end(job: EndedJob) -> list[str]:
    return [
        one_line(job.id),
        state_label(job.outcome),
        relative_text(_ms_of(job.ended_at) - int(epoch_ms())),
        str(job.attempts or ""),
        one_line(": ".join(filter(None, (job.task, redact(job.error))))),
    ]


def _ms_of(moment: datetime) -> int:
    return int((moment - _EPOCH) / timedelta(milliseconds=1))


def _error_text(job: Job[Any], decrypts: bool) -> str:
    error = _shown_error(job.error or {}, decrypts).get("error")
    return f": {redact(clean(error))}" if error else ""


def _shown_error(error: dict[str, Any], decrypts: bool) -> dict[str, Any]:
    if decrypts or "encrypted" not in error:
        return error
    return error | {"error": gettext("encrypted"), "traceback": "", "encrypted": True}


def call_text(job: Job[Any], *, decrypts: bool = False) -> str:
    """Write a job as the call that it is: ``shop.tasks.cancel_unpaid(order_id=3)``."""
    if job.task is None:
        return gettext("a foreign payload")
    return f"{job.task}({call_of(job, decrypts=decrypts)})"


def as_json(job: Job[Any], *, decrypts: bool = False) -> dict[str, Any]:
    """Describe a job for programs. Arguments whose names are known are among the ``kwargs``, however they were given.

    Unless ``decrypts``, an encrypted job has None for them.
    """
    arguments = shown_arguments(job.task, job.args, job.kwargs)
    told = {
        "id": clean(job.id) if job.token else None,
        "queue": job.queue,
        "state": str(job.state),
        "task": None if job.task is None else clean(job.task),
        "args": plain_value([each.value for each in arguments if not each.name]),
        "kwargs": plain_value(
            {each.name: each.value for each in arguments if each.name}
        ),
        "due": _iso(job.start_time_ms),
        "attempts": job.attempts,
        "kills": job.kills,
        "priority": job.priority,
        "unique": clean(job.unique),
        "error": None if job.error is None else _attempt(job.error, decrypts),
    }
    if job.is_encrypted and not decrypts:
        told |= {"args": None, "kwargs": None, "encrypted": True}
    return told


def _attempt(error: dict[str, Any], decrypts: bool) -> dict[str, Any]:
    """Describe an attempt; its times were written by a worker, or by anybody."""
    return {
        name: _iso(value) if name in ("at", "began") else plain_value(value)
        for name, value in _shown_error(error, decrypts).items()
    }


def _iso(ms: object) -> str | None:
    if type(ms) is not int:
        return None
    try:
        return iso_text(_EPOCH + timedelta(milliseconds=ms))
    except OverflowError:
        return None


# A job in full


class Shown(NamedTuple):
    """One job as the server has it."""

    shown: ShownJob
    #: How it ended, if it has ended and the queue still knows.
    ended: EndedJob | None = None


def look_at(job_id: str, *, decrypts: bool = False) -> Shown:
    """Ask the server about a job; and if it has ended, how.

    Raises:
        JobNotFound: nothing knows it any more.
        QueueNotFound: its queue is not configured.
    """
    job = handle_of(job_id)
    queue = conf.get_settings().queue(job.queue)
    shown = showing.look_at(queue, job.token, decrypts=decrypts)
    state = shown.seen.state
    if state not in OVER and state is not State.MISSING:
        return Shown(shown)
    ended = _ended(job)
    if state is State.MISSING:
        # Without this either, `get_job` says why there is nothing to show.
        state = get_job(job_id).state if ended is None else ended.outcome
        shown = replace(shown, seen=shown.seen._replace(state=state))
    return Shown(shown, ended)


def _ended(job: Job[Any]) -> EndedJob | None:
    found = ended_jobs(job.queue, limit=MOST_ENDED)
    return next((each for each in found if each.id == job.id), None)


def lines_of(seen: Shown, *, is_folded: bool = True) -> Iterator[str]:
    """Describe a job for people; ``is_folded`` leaves frames of libraries out of tracebacks."""
    shown, content = seen.shown, seen.shown.content
    if seen.ended is not None or shown.seen.state in OVER:
        yield from _lines_of_end(seen)
        return
    title = content.task or gettext("a foreign payload")
    yield one_line(f"{title}({content.arguments})" if content.task else title)
    for told in _paused(shown):
        yield from _paragraph(printable(told), INDENT, INDENT)
    for field in shown.facts:
        yield from _lines_of_field(field)
    if content.call:
        yield ""
        yield gettext("Arguments")
    for name, value in content.call:
        yield from _indented(f"{name}={value}" if name else value, INDENT)
    yield ""
    yield gettext("Timeline")
    for event in shown.events:
        yield from _lines_of_event(event, is_folded)
    if (progress := shown.progress) is not None:
        told = ", ".join(filter(None, (progress.words, progress.text)))
        yield from _lines_of_field(Field(gettext("Progress"), told))


def _paused(shown: ShownJob) -> list[str]:
    return [f"{each.message} {each.hint}" for each in shown.paused]


def _lines_of_event(event: Event, is_folded: bool) -> Iterator[str]:
    told = list(event.facts)
    if event.moment is not None:
        local = event.moment.in_full
        told.insert(
            0, f"{event.moment.relative} ({local})" if local else event.moment.relative
        )
    yield from _paragraph(one_line(", ".join(told)), _labelled(event.label))
    if event.error:
        yield from _indented(event.error, INDENT * 2)
    for part in event.traceback:
        is_left_out = is_folded and part.summary
        text = f"  [{part.summary}]" if is_left_out else part.text
        yield from _indented(text, INDENT * 3)


def _lines_of_end(seen: Shown) -> Iterator[str]:
    job, ended = seen.shown.job, seen.ended
    yield one_line((ended and ended.task) or job.task or job.id)
    told = [
        Field(gettext("State"), state_label(job.state)),
        Field(gettext("ID"), job.id),
    ]
    if ended is not None:
        moment = Moment.of(_ms_of(ended.ended_at), seen.shown.seen.now_ms)
        assert moment is not None
        told.append(Field(gettext("Ended"), moment.in_full, moment.relative))
        for label, number in (
            (gettext("Lateness"), ended.lateness_ms),
            (gettext("Duration"), ended.duration_ms),
        ):
            if number is not None:
                told.append(Field(label, gettext("{count} ms", count=number)))
        if ended.attempts is not None:
            told.append(Field(gettext("Attempts"), str(ended.attempts)))
        if ended.error:
            told.append(Field(gettext("Error"), ended.error))
    if result := seen.shown.result:
        told.append(Field(gettext("Result"), result, is_code=True))
    for field in told:
        yield from _lines_of_field(field)


def _lines_of_field(field: Field) -> Iterator[str]:
    value = redact(field.value)
    if field.is_code and "\n" in value.rstrip():
        yield f"{INDENT}{field.label}"
        yield from _indented(value, INDENT * 2)
        return
    note = f" ({field.note})" if field.note else ""
    yield from _paragraph(
        one_line(value) + printable(note), _labelled(str(field.label))
    )


def _labelled(label: str) -> str:
    padding = " " * (LONGEST_LABEL - width_of(label))
    return f"{INDENT}{label}{padding} "


def _indented(text: str, indent: str) -> Iterator[str]:
    yield from (f"{indent}{line}".rstrip() for line in printable(text).splitlines())


def _paragraph(text: str, start: str, indent: str | None = None) -> Iterable[str]:
    """Wrap a text; by default its further lines stand below what comes after the label."""
    further = _labelled("") if indent is None else indent
    return wrapped(text, WIDTH, start, further) or [start.rstrip()]


def in_full(seen: Shown) -> dict[str, Any]:
    """Describe a job in full, for programs."""
    shown, ended = seen
    job, progress = shown.job, shown.progress
    return {
        **as_json(job, decrypts=shown.decrypts),
        "options": plain_value(job.options or {}),
        "schedule": clean(job.schedule_name) or None,
        "history": [_attempt(each, shown.decrypts) for each in job.history],
        "batch_left": shown.batch_left,
        "paused": _paused(shown),
        "worker": clean(shown.worker) or None,
        "progress": None
        if progress is None
        else {
            "words": progress.words,
            "percent": progress.percent,
            "text": progress.text,
        },
        "ended": None if ended is None else _end(ended),
        "result": plain_value(shown.returned),
    }


def end_as_json(ended: EndedJob) -> dict[str, Any]:
    """Describe how a job ended, for programs."""
    return {
        "id": clean(ended.id),
        "queue": ended.queue,
        "state": str(ended.outcome),
        "task": None if ended.task is None else clean(ended.task),
        **_end(ended),
    }


def _end(ended: EndedJob) -> dict[str, Any]:
    return {
        "at": iso_text(ended.ended_at),
        "lateness_ms": ended.lateness_ms,
        "duration_ms": ended.duration_ms,
        "attempts": ended.attempts,
        "error": redact(ended.error),
    }
