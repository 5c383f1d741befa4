"""Sends jobs with the commit of a transaction. A failure is reported, and stops no other commit hook.

Django stops at the first commit hook that raises, and drops the rest. So our failures are kept until all other hooks
have run, and are then raised to the caller that committed. If a foreign hook raises, the jobs behind it are sent first.
"""

import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionDoesNotExist
from redis.exceptions import RedisError

from django_delayq.clock import monotonic_ms
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidTask, MaybeScheduled
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import Commit
from django_delayq.logs import get_log
from django_delayq.redaction import show

logger = get_log("django_delayq")

#: Once failures in one commit have taken this long, ms, its remaining jobs are not tried: the caller is waiting.
PATIENCE_MS = 10_000
#: Django runs the commit hooks of a connection by this method.
_RUN = "run_and_clear_commit_hooks"
#: What to do if the server may be away at a commit.
ADVICE = "With outbox=True, a job is a row that is committed with its transaction: see docs/howto/outbox.md"


def is_awaited(commit: Commit, task: str | None) -> bool:
    """Whether the commit is still to come: a transaction of its database is open in this thread. Nothing connects.

    The transactions of Django's ``TestCase`` itself do not count, as they never commit. Nor does an `atomic` without
    autocommit: it commits nothing itself, and Django runs no hooks after the ``commit()`` that does.

    Raises:
        InvalidTask: DATABASES has no such alias.
        TransactionManagementError: the task asks for a commit, and without autocommit nothing reports one.
    """
    try:
        connection = _connection_of(commit.using)
    except ConnectionDoesNotExist:
        raise InvalidTask(
            f"on_commit of task {task!r} is {show(commit.using)}, which is not in DATABASES; give True, for the default"
            f" database, or one of {', '.join(map(repr, connections))}"
        ) from None
    if connection.in_atomic_block and (
        connection.commit_on_exit
        # A worker finds the row, if Django never runs the hook.
        or commit.in_outbox
    ):
        return not is_of_testcase(connection.atomic_blocks)
    if (
        commit.is_written
        and connection.connection is not None
        and not connection.autocommit
    ):
        option, instead = "on_commit", "give on_commit=False to send at once"
        if commit.in_outbox:
            option, instead = "outbox=True", "use atomic(), or outbox=False"
        raise TransactionManagementError(
            f"{option} of task {task!r}: autocommit is off, so no hook runs at the commit; {instead}"
        )
    return False


class _Known(threading.local):
    def __init__(self) -> None:
        self.connections: dict[str, Any] = {}


_known = _Known()


def _forget(connection: Any, **kwargs: Any) -> None:
    # Somebody may have put it in the place of another. It connects before its first transaction.
    _known.connections.pop(connection.alias, None)


connection_created.connect(_forget, dispatch_uid="django_delayq.jobs.commit")


def _connection_of(alias: str) -> Any:
    """Return ``connections[alias]``. Each thread asks Django once, because that takes a tenth of the time of `send`."""
    if _get_running_loop() is not None:
        # Django keeps the connections of an event loop by context.
        return connections[alias]
    found = _known.connections.get(alias)
    if found is None:
        found = _known.connections[alias] = connections[alias]
    return found


def is_of_testcase(blocks: Sequence[Any]) -> bool:
    """Whether the innermost `atomic` is one that ``TestCase`` rolls back after the test."""
    # Django has this mark for `atomic(durable=True)`, which ignores those blocks as well.
    return bool(blocks) and blocks[-1]._from_testcase


def is_alias(using: str) -> bool:
    """Return whether DATABASES has a database of this alias."""
    return using in connections.settings


class Hook:
    """The hook that a commit calls, for one job or for many; a rollback drops it."""

    def __init__(
        self, jobs: Sequence[Job[Any]], send: Callable[[], object] | None = None
    ) -> None:
        #: What is sent.
        self.jobs = jobs
        self._send = send
        #: Whether the hook was called, however that ended. Until then its jobs wait.
        self.has_run = False
        self._commit: _Commit | None = None

    def join(self, using: str) -> None:
        """Have the open transaction of a database call this with its commit."""
        self._commit = _Commit.of(connections[using])
        transaction.on_commit(self, using=using)

    def send(self) -> None:
        """Send the jobs."""
        if self._send is not None:
            self._send()

    def give_up(self, why: str) -> None:
        """Handle the jobs of a hook that is given up before `send`.

        Raises:
            MaybeScheduled: the jobs are not stored.
        """
        raise MaybeScheduled(
            f"{_named(self.jobs)}: not stored. It was not sent, as {why}", self.jobs
        )

    def __call__(self) -> None:
        failures = None if self._commit is None else self._commit.failures
        try:
            if failures is None:
                # Django did not call this hook, so it has no other hooks to drop.
                self.send()
            else:
                failures.watch(self)
        finally:
            self.has_run = True
            for job in self.jobs:
                job.note_commit()


def promised(using: str, queue: str) -> int:
    """Return how many jobs the commit of the open transaction of a database will store in a queue, at most."""
    connection: Any = connections[using]
    hooks = (hook for _, hook, _ in connection.run_on_commit)
    jobs = (job for hook in hooks if isinstance(hook, Hook) for job in hook.jobs)
    # Of several jobs with one unique key, one is stored.
    return len(
        {
            job.unique or id(job)
            for job in jobs
            if job.queue == queue
            and job.state is not State.CANCELLED
            and not job.was_sent
        }
    )


def run_ours(using: str) -> None:
    """Run our hooks of a connection, and no others, as if its transaction were committed.

    The end of the project's outermost `atomic` is such a commit, where a ``TestCase`` has one around it.
    """
    connection: Any = connections[using]
    hooks = connection.run_on_commit
    ours = [hook for _, hook, _ in hooks if isinstance(hook, Hook)]
    if not ours:
        return
    connection.run_on_commit = [
        entry for entry in hooks if not isinstance(entry[1], Hook)
    ]
    if connection.needs_rollback:
        return

    def run() -> None:
        while ours:
            ours.pop(0)()

    _Commit.of(connection).collect(run)


class _Commit:
    """Stands in for the method of a connection by which Django runs commit hooks; raises our failures at the end."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._run = getattr(connection, _RUN)
        #: Those of the commit under way; None: there is none.
        self.failures: _Failures | None = None

    @classmethod
    def of(cls, connection: Any) -> "_Commit":
        """Return that of a connection; put it there first, if need be."""
        found = vars(connection).get(_RUN)
        if isinstance(found, cls):
            return found
        made = cls(connection)
        setattr(connection, _RUN, made)
        return made

    def __call__(self) -> None:
        self.collect(self._run_all)

    def _run_all(self) -> None:
        """Run all hooks; after one that raises, ours only, which Django has dropped with the others."""
        hooks = self._connection.run_on_commit
        ours = [hook for _, hook, _ in hooks if isinstance(hook, Hook)]
        try:
            self._run()
        except BaseException:
            # Django has begun with them if the connection has a new list. What ends the process is no reason to lose a
            # job: the transaction is committed.
            if self._connection.run_on_commit is not hooks:
                for hook in ours:
                    if not hook.has_run:
                        hook()
            raise

    def collect(self, run: Callable[[], None]) -> None:
        """Call what runs hooks; then raise what ours have failed with."""
        # A foreign hook may open a transaction, which has its own commit.
        before, failures = self.failures, _Failures()
        self.failures = failures
        try:
            run()
        except BaseException:
            # It hides ours from whoever committed.
            failures.log()
            raise
        finally:
            self.failures = before
        failures.check()


class _Failures:
    """The failures of the jobs of one commit."""

    def __init__(self) -> None:
        self._failed: list[tuple[Sequence[Job[Any]], Exception]] = []
        self._took_ms = 0.0

    def watch(self, hook: Hook) -> None:
        """Have a hook send its jobs, and keep the error."""
        jobs, begun_ms = hook.jobs, monotonic_ms()
        try:
            if self._failed and self._took_ms > PATIENCE_MS:
                took = f"{self._took_ms / 1000:.0f} s"
                hook.give_up(f"other jobs of the commit failed for {took}")
            else:
                hook.send()
        except Exception as error:
            self._failed.append((jobs, error))
            self._took_ms += monotonic_ms() - begun_ms

    def log(self) -> None:
        """Log the errors, which `check` would raise."""
        for jobs, error in self._failed:
            logger.error(
                "the transaction is committed, but sending its %s failed: %s",
                _named(jobs),
                "\n".join([_text_of(error), *getattr(error, "__notes__", [])]),
            )

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if not self._failed:
            return
        (jobs, error), *others = self._failed
        error.add_note(
            f"django-delayq: the transaction is committed; sending its {_named(jobs)} failed"
        )
        for other, its_error in others:
            error.add_note(
                f"django-delayq: sending its {_named(other)} failed, too: {_text_of(its_error)}"
            )
        if isinstance(error, RedisError | MaybeScheduled):
            error.add_note(f"django-delayq: {ADVICE}")
        raise error


def _named(jobs: Sequence[Job[Any]]) -> str:
    first = f"job {jobs[0].id} ({jobs[0].task})"
    return first if len(jobs) == 1 else f"{first} and {len(jobs) - 1} more"


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
