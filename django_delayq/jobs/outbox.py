"""The part of the app ``django_delayq.outbox`` that jobs need; the app keeps rows in the project's databases.

That app has models, so it can be imported only where it is installed. Once it is ready it says so here; where it is not,
nothing of it is ever imported, and no database is asked.
"""

from collections.abc import Callable
from typing import Any, Protocol

from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import Commit

#: What to do where the app is missing.
ADVICE = "add 'django_delayq.outbox' to INSTALLED_APPS, and run manage.py migrate"


class Relay(Protocol):
    """Sends, in a worker's process, the rows that are not sent yet."""

    def start(self, *, sweep_first: bool) -> None:
        """Begin; with ``sweep_first``, return once all rows of now were looked at."""

    def stop(self, timeout_s: float) -> None:
        """End; wait ``timeout_s`` at most."""


class Outbox(Protocol):
    """The app's part, once it is installed."""

    def write(self, job: Job[Any], commit: Commit) -> None:
        """Write a job as a row of the transaction that is open, and have it sent after the commit."""

    def run_once(
        self, job_id: str, using: str, call: Callable[[], Any], later: str
    ) -> Any:
        """Make a call in a transaction with a row of the job's id; do nothing if that row is there.

        ``later`` is the token of the call that has replaced the job's arguments; its run has a row of its own.
        """

    def make_relay(self) -> Relay:
        """Make the part of a worker's process."""


_installed: Outbox | None = None


def install(outbox: Outbox | None) -> None:
    """Take the app's part; None: the app is not installed."""
    global _installed
    _installed = outbox


def installed() -> Outbox | None:
    return _installed


def needed(what: str) -> Outbox:
    """Return the app's part.

    Raises:
        InvalidSettings: the app is not installed; ``what`` needs it.
    """
    if _installed is None:
        raise InvalidSettings(
            f"{what} needs a table, and the app of it is not installed: {ADVICE}"
        )
    return _installed
