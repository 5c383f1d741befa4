"""How far a running job is: what its task says, on its way to the worker's next write."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django_delayq.delivery.progress import (
    TEXT_LIMIT,
    ReadProgress,
    StoredProgress,
    encode,
)
from django_delayq.exceptions import InvalidTask
from django_delayq.redaction import show


class Progress(NamedTuple):
    """How far a running job is."""

    done: float
    #: How much there is to do; None: the task has not said so.
    total: float | None
    text: str
    #: When the worker wrote it down, by the server's clock.
    at: datetime

    @property
    def share(self) -> float | None:
        """From 0 to 1; None: the task has not said how much there is."""
        return min(1.0, self.done / self.total) if self.total else None


#: Takes an attempt and how far it is. A worker sets this once for each thread and event loop; elsewhere nobody listens.
running_report: ContextVar[Callable[[Any, bytes], None]] = ContextVar(
    "django_delayq_running_report", default=lambda attempt, stored: None
)


def stored_progress(done: float, total: float | None, text: str) -> bytes:
    """Return what a task says of its progress as it is stored.

    Raises:
        InvalidTask: a number is none, or negative, or the text is no text.
    """
    for name, number in (("done", done), ("total", total)):
        if number is None and name == "total":
            continue
        if (
            not isinstance(number, int | float)
            or isinstance(number, bool)
            or not 0 <= number < math.inf
        ):
            raise InvalidTask(
                f"progress({name}={show(number)}): give a number, 0 or more"
                + (", or None" if name == "total" else "")
            )
    if not isinstance(text, str):
        # A text that Django translates later is one now.
        text = str(text)
    cut = text[:TEXT_LIMIT].encode(errors="replace").decode()
    return encode(
        StoredProgress(float(done), None if total is None else float(total), cut)
    )


def as_progress(read: ReadProgress | None) -> Progress | None:
    """Return what was read as it is shown."""
    if read is None:
        return None
    told = read.progress
    at = datetime.fromtimestamp(read.at_ms / 1000, UTC)
    return Progress(told.done, told.total, told.text, at)
