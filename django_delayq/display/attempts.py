"""Attempts of a job as pages and commands show them: the progress of one that runs, the errors of those that failed."""

from dataclasses import dataclass
from typing import Any

from django_delayq.core.progress import ReadProgress
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import State
from django_delayq.display.texts import PAGE_CHARACTERS, ROW_CHARACTERS, clean, cut
from django_delayq.display.time_texts import Moment
from django_delayq.jobs import stored_results
from django_delayq.jobs.progress_report import as_progress
from django_delayq.redaction import redact
from django_delayq.translations import gettext, number_text


@dataclass(frozen=True, slots=True)
class ShownProgress:
    """How far a running job is, as its task has said."""

    #: "40 of 200, 20 %"
    words: str
    text: str
    #: From 0 to 100; None: the task has not said how much there is.
    percent: int | None
    at: Moment | None

    @classmethod
    def of(
        cls, read: ReadProgress | None, now_ms: int, token: str = ""
    ) -> "ShownProgress | None":
        """Describe progress, if there is any; else return None. For ``token`` see `as_progress`."""
        told = as_progress(read, token)
        if read is None or told is None:
            return None
        done, share = number_text(_whole(told.done)), told.share
        words, percent = done, None
        if told.total is not None and share is not None:
            percent = int(share * 100)
            words = gettext(
                "{done} of {total}, {percent} %",
                done=done,
                total=number_text(_whole(told.total)),
                percent=percent,
            )
        return cls(words, clean(told.text), percent, Moment.of(read.at_ms, now_ms))


def _whole(number: float) -> Any:
    return int(number) if number == int(number) else number


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt of a job failed, or why the job was quarantined."""

    message: str
    kind: str
    traceback: str
    at: Moment | None
    #: How long the attempt ran, ms; None: that is not known.
    took_ms: int | None = None
    #: Host and process id of its worker; after a kill, the id by which the worker's claims go.
    worker: str = ""

    @property
    def line(self) -> str:
        return cut(" ".join(self.message.split()), ROW_CHARACTERS)


def read_failure(error: bytes, now_ms: int, token: str = "") -> Failure | None:
    """Read an error as a worker or a script wrote it; with the token of its job, an encrypted one as well."""
    found = stored_results.read_error(error, token)
    if found is None:
        return None
    if not token and "encrypted" in found:
        found["error"] = gettext("encrypted")
    at, began = found.get("at"), found.get("began")
    took_ms = at - began if type(at) is int and type(began) is int else -1
    return Failure(
        message=cut(redact(clean(found.get("error") or "")), PAGE_CHARACTERS),
        kind=cut(clean(found.get("kind") or ""), ROW_CHARACTERS),
        traceback=cut(redact(clean(found.get("traceback") or "")), PAGE_CHARACTERS),
        at=Moment.of(at, now_ms)
        if isinstance(at, int) and not isinstance(at, bool)
        else None,
        took_ms=took_ms if took_ms >= 0 else None,
        worker=cut(clean(found.get("worker") or ""), ROW_CHARACTERS),
    )


def read_attempts(seen: Inspected, token: str = "") -> list[Failure]:
    """Read the attempts behind a job, the last first; for ``token`` see `read_failure`.

    The last error of a job that is held, or in quarantine, says why it is, and is of no attempt.
    """
    found = [
        read_failure(line, seen.now_ms, token)
        for line in seen.history.split(b"\n")
        if line
    ]
    attempts = [each for each in found if each is not None]
    last = read_failure(seen.error, seen.now_ms, token)
    is_reason = seen.state in (State.HELD, State.QUARANTINED)
    if last is None or is_reason or (attempts and last.at == attempts[0].at):
        return attempts
    return [last, *attempts]
