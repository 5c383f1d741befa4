"""What is kept of an exception that ended an attempt: its class, its text and its traceback, without secrets.

The exception is the project's code: its text, its class and its traceback may raise anything.
"""

import os
import traceback as tracebacks
from collections.abc import Sequence
from types import TracebackType

from django_delayq import logs
from django_delayq.exceptions import InvalidResult
from django_delayq.jobs.decisions import Decision
from django_delayq.masks import mask

#: Characters of a traceback, its end, that are kept with the job.
TRACEBACK_LIMIT = 8_000
#: Characters of an error's own text that are kept with the job.
MESSAGE_LIMIT = 2_000
#: In a traceback, the frames of this package's files precede the task's own.
_HERE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def text_of(error: BaseException, secrets: Sequence[str] = ()) -> str:
    """Return the class and the text of an exception, without secrets, as text that can be written as JSON."""
    try:
        text = str(error)
    except BaseException:
        # Whatever it raises, even SystemExit, must not get further.
        text = "(its text cannot be made)"
    name = class_name(error)
    return _beginning(mask(f"{name}: {text}" if text else name, secrets))


def _beginning(text: str) -> str:
    """Return as much of a text as is kept. Secrets are masked before: half of one would not be found."""
    return text[:MESSAGE_LIMIT].encode(errors="replace").decode()


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception behind one: that of ``raise … from``, or the one that was being handled."""
    if error.__suppress_context__:
        return error.__cause__
    return error.__context__


def reason_of(decision: Decision, secrets: Sequence[str]) -> str:
    """Return what a task says for its decision, and the error behind that."""
    cause = cause_of(decision)
    parts = [str(decision.reason), "" if cause is None else text_of(cause, secrets)]
    return _beginning(mask(": ".join(part for part in parts if part), secrets))


def text_of_decision(decision: Decision, secrets: Sequence[str]) -> str:
    parts = [class_name(decision), reason_of(decision, secrets)]
    return ": ".join(part for part in parts if part)


def class_name(error: BaseException) -> str:
    return _beginning(logs.class_name(error))


def class_path_of(error: BaseException) -> str:
    """Return what imports the class of an exception."""
    cls = type(error)
    if cls is InvalidResult and error.__cause__ is not None:
        # Django's tasks are to show what is wrong with the value.
        cls = type(error.__cause__)
    path = f"{type.__dict__['__module__'].__get__(cls)}.{type.__dict__['__qualname__'].__get__(cls)}"
    return _beginning(path)


def trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback that begins at the task's own first frame."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(
        _HERE
    ):
        traceback = traceback.tb_next
    return traceback


def traceback_of(error: BaseException, secrets: Sequence[str] = ()) -> str:
    try:
        text = "".join(tracebacks.format_exception(error))
    except BaseException:
        # Formatting calls methods that the exceptions themselves define.
        return ""
    return mask(text, secrets)[-TRACEBACK_LIMIT:].encode(errors="replace").decode()
