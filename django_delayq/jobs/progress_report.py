"""The progress of a running job, from its task to the worker's next write."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django_delayq.conf import get_keyring
from django_delayq.core.progress import TEXT_LIMIT, ReadProgress, StoredProgress, encode
from django_delayq.exceptions import InvalidTask, NotSigned
from django_delayq.jobs.stored_results import Encrypt
from django_delayq.redaction import ENCRYPTED, show


class Progress(NamedTuple):
    """How far a running job is.

    Example::

        progress = job.read_progress()
        if progress is not None:
            print(progress.done, "of", progress.total, progress.text)
    """

    done: float
    #: The total amount; None if the task has not given it.
    total: float | None
    text: str
    #: Time when the worker stored it, by the server's clock.
    at: datetime

    @property
    def share(self) -> float | None:
        """The part that is done, 0 to 1; None without a total."""
        return min(1.0, self.done / self.total) if self.total else None


#: Takes an attempt and how far it is. A worker sets this once for each thread and event loop; elsewhere nobody listens.
running_report: ContextVar[Callable[[Any, bytes], None]] = ContextVar(
    "django_delayq_running_report", default=lambda attempt, stored: None
)


def stored_progress(
    done: float, total: float | None, text: str, encrypt: Encrypt | None = None
) -> bytes:
    """Return what a task says of its progress as it is stored; ``encrypt`` encrypts the text.

    Raises:
        InvalidTask: a number is not one, or is negative, or the text is not a text.
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
    stored = StoredProgress(float(done), None if total is None else float(total), cut)
    if encrypt is not None and cut:
        stored.text, stored.encrypted = "", encrypt("progress", cut.encode())
    return encode(stored)


def as_progress(read: ReadProgress | None, token: str = "") -> Progress | None:
    """Return what was read as it is shown. Without the token of the job, an encrypted text reads `ENCRYPTED`."""
    if read is None:
        return None
    told = read.progress
    at = datetime.fromtimestamp(read.at_ms / 1000, UTC)
    text = told.text
    if told.encrypted:
        text = _decrypted(told.encrypted, token) if token else ENCRYPTED
    return Progress(told.done, told.total, text, at)


def _decrypted(encrypted: str, token: str) -> str:
    try:
        return get_keyring().decrypt("progress", token, encrypted).decode()
    except (NotSigned, UnicodeDecodeError) as error:
        return f"(cannot be decrypted: {error})"
