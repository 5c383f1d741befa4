"""Sends a job with the commit of a transaction. A failure is reported, and stops no other commit hook.

Django stops at the first commit hook that raises, and drops the rest. So our failures are kept until all other hooks
have run, and are then raised to whoever committed.
"""

import sys
import weakref
from functools import partial
from typing import Any, Protocol

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.clock import monotonic_ms
from django_delayq.delivery.states import State
from django_delayq.exceptions import InvalidTask, MaybeScheduled
from django_delayq.jobs import outbox
from django_delayq.jobs.job import Job
from django_delayq.jobs.once import alias_within
from django_delayq.jobs.options import Commit, InOutbox
from django_delayq.logs import get_log
from django_delayq.redaction import show

logger = get_log("django_delayq")

#: Once failures in one commit have taken this long, ms, its remaining jobs are not tried: the caller is waiting.
PATIENCE_MS = 10_000
#: Django runs commit hooks in this function; its local variable of this name holds the hooks to come.
_RUN_HOOKS = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
_TO_COME = "current_run_on_commit"


class Send(Protocol):
    """How a job is sent; ``is_promised``: even to a full queue."""

    def __call__(self, job: Job[Any], *, is_promised: bool) -> object: ...


def send_with_commit(job: Job[Any], send: Send, on_commit: Commit) -> None:
    """Have a job sent when the transaction of a database is committed, or at once if there is no transaction.

    In a transaction the job is promised: its data are committed before a full queue could refuse it.

    Raises:
        InvalidTask: DATABASES has no such alias.
        InvalidSettings: the job is to be a row, and the app with the table is not installed.
    """
    in_outbox = isinstance(on_commit, InOutbox)
    using = on_commit.using if isinstance(on_commit, InOutbox) else on_commit
    if not isinstance(using, str):
        using = None
    if using is not None and not is_alias(using):
        raise InvalidTask(
            f"on_commit of task {job.task!r} is {show(using)}, which is not in DATABASES; give True, for the default"
            f" database, or one of {', '.join(map(repr, connections))}"
        )
    # A task with `once` does nothing when it runs again: what it sends after its commit must not get lost before that.
    is_once = alias_within() == (using or DEFAULT_DB_ALIAS)
    if is_once and job.draft.extras.duplicates is None:
        in_outbox = True
    if in_outbox:
        outbox.needed(f"outbox=True of task {job.task!r}").write(job, using)
        return
    is_promised = transaction.get_connection(using).in_atomic_block
    hook = _Hook(job, send, is_promised)
    # The database connection holds the hook until the commit, and drops it with a rollback.
    held = weakref.ref(hook)

    def awaits_commit() -> bool:
        waiting = held()
        return waiting is not None and not waiting.has_run

    job.draft.awaits_commit = awaits_commit
    transaction.on_commit(hook, using=using)


def is_alias(using: str) -> bool:
    """Return whether DATABASES has a database of this alias."""
    return using in connections.settings


class _Hook:
    """Sends one job when the transaction is committed."""

    def __init__(self, job: Job[Any], send: Send, is_promised: bool) -> None:
        self._job = job
        self._send = partial(send, job, is_promised=is_promised)
        #: Whether the hook was called, however that ended. Until then the job waits.
        self.has_run = False

    def __call__(self) -> None:
        try:
            # Django calls this method directly: `_hooks_to_come` looks for Django's frame two levels up.
            self._run(_hooks_to_come())
        finally:
            self.has_run = True
            if not self._job.is_unsent:
                # From now on the server knows the state. A handle that keeps nothing of this process can be pickled.
                self._job.draft.awaits_commit = None

    def _run(self, to_come: list[tuple[Any, Any, bool]] | None) -> None:
        job = self._job
        if job.state is State.CANCELLED or not job.is_unsent:
            # The job was withdrawn; or somebody sent it meanwhile, and that caller knows how it went.
            return
        if to_come is None:
            # Somebody else calls the hook, or there is no transaction: Django drops no other hooks.
            self._send()
            return
        failures = next(
            (hook for _, hook, _ in to_come if isinstance(hook, _Failures)), None
        )
        begun_ms = monotonic_ms()
        try:
            if failures is not None and failures.took_ms > PATIENCE_MS:
                raise failures.error_of(job)
            self._send()
        except Exception as error:
            if failures is None:
                failures = _Failures()
                to_come.append((set(), failures, False))
            failures.add(job, error, monotonic_ms() - begun_ms)


class _Failures:
    """The last hook of a commit; it raises the errors of our hooks."""

    def __init__(self) -> None:
        self._failed: list[tuple[Job[Any], Exception]] = []
        self.took_ms = 0.0

    def add(self, job: Job[Any], error: Exception, took_ms: float) -> None:
        self._failed.append((job, error))
        self.took_ms += took_ms
        # If a hook of somebody else raises as well, nobody sees the error that `__call__` raises.
        logger.error(
            "the transaction is committed, but sending its job %s (%s) failed: %s",
            job.id,
            job.task,
            "\n".join([_text_of(error), *getattr(error, "__notes__", [])]),
        )

    def error_of(self, job: Job[Any]) -> Exception:
        """Return the error for a job that is no longer tried."""
        return MaybeScheduled(
            f"job {job.id} is not stored: it was not sent, as other jobs of the commit failed for {self.took_ms / 1000:.0f} s",
            [job],
        )

    def __call__(self) -> None:
        (job, error), *others = self._failed
        error.add_note(
            f"django-delayq: the transaction is committed; what failed is its job {job.id} ({job.task})"
        )
        for other, its_error in others:
            error.add_note(
                f"django-delayq: and its job {other.id} ({other.task}): {_text_of(its_error)}"
            )
        raise error


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _hooks_to_come() -> list[tuple[Any, Any, bool]] | None:
    """Return Django's list of the commit hooks to come, or None if Django is not running hooks.

    No public name leads to that list. `on_commit` then adds to another list, which a savepoint's rollback replaces.
    """
    frame = sys._getframe(2)
    if frame.f_code is not _RUN_HOOKS:
        return None
    to_come: list[tuple[Any, Any, bool]] | None = frame.f_locals.get(_TO_COME)
    return to_come
