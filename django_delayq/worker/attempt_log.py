"""The line that the log has for the end of an attempt."""

import logging
from typing import Any

from django_delayq.clock import boottime_ms
from django_delayq.logs import get_log
from django_delayq.worker.attempt import Attempt, Verdict

logger = get_log("django_delayq.worker")

#: The fields of a log record that its format repeats.
_IN_FORMAT = frozenset({"task", "outcome"})
_LEVELS: dict[Verdict | None, int] = {
    Verdict.RETRY: logging.WARNING,
    Verdict.HOLD: logging.WARNING,
    Verdict.BURY: logging.ERROR,
    Verdict.QUARANTINE: logging.ERROR,
}


#: Verdicts that a task decides; no error led to them.
_DECISIONS = frozenset({Verdict.SNOOZE, Verdict.CANCEL})


def log_end(attempt: Attempt) -> None:
    """Log the end of the job in one line, with the exception that the task raised."""
    verdict, exception, hold = attempt.verdict, attempt.exception, attempt.hold
    # The traceback holds the task's frames and all that they refer to: let go of it.
    attempt.exception = None
    is_held_without_end = (
        verdict is Verdict.HOLD and hold is not None and hold.for_ms is None
    )
    level = logging.INFO
    if attempt.is_lost:
        level = logging.WARNING
    elif verdict is Verdict.GIVE_BACK and not attempt.started_ms:
        # The job has not begun, and a busy process gives back many jobs a second.
        level = logging.DEBUG
    elif verdict is not Verdict.SUCCEED and not is_held_without_end:
        # A pause or a missing key was logged once, however many jobs wait; a job that gets its limit needs nobody.
        level = _LEVELS.get(verdict, logging.INFO)
    if not logger.isEnabledFor(level):
        return
    ended_ms = attempt.ended_ms or boottime_ms()
    # The outcome is plain text, so that a project's log can print it as it is.
    word = verdict.value if verdict else "running"
    fields: dict[str, Any] = {
        "job": attempt.id,
        "task": attempt.name,
        "outcome": "lost" if attempt.is_lost else word,
    }
    if not attempt.is_unrun:
        fields["attempt"] = attempt.leased.attempts + 1
    if attempt.started_ms:
        fields["lateness_ms"] = round(attempt.late_ms, 1)
        fields["duration_ms"] = round(ended_ms - attempt.started_ms, 1)
    if attempt.leased.kills:
        fields["kills"] = attempt.leased.kills
    if verdict is Verdict.RETRY:
        fields["retry_in_ms"] = attempt.wait_ms()
    elif verdict is Verdict.SNOOZE:
        fields["again_in_ms"] = attempt.wait_ms()
    # What groups log records by their format, as Sentry does, is to group them by task and outcome.
    args = [value for name, value in fields.items() if name not in _IN_FORMAT]
    text = " ".join(
        [
            f"{name}={str(value).replace('%', '%%')}"
            if name in _IN_FORMAT
            else f"{name}=%s"
            for name, value in fields.items()
        ]
    )
    if attempt.message:
        name = "reason" if verdict in _DECISIONS else "error"
        fields[name] = attempt.message
        text += f" {name}=%r"
        args.append(attempt.message)
    if attempt.is_lost:
        text += " (its lease ended before it did, so this end changes nothing; it may run elsewhere)"
    if attempt.masked:
        text += "\n%s"
        args.append(attempt.masked.rstrip("\n"))
    exc_info = None
    if exception is not None:
        exc_info = (type(exception), exception, exception.__traceback__)
    logger.log(level, text, *args, exc_info=exc_info, extra={"delayq": fields})
