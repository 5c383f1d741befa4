"""Checks of the project's databases against the worker's settings, as far as a fault is certain.

Settings alone are compared by an ordinary check. A database is asked only by ``check --deploy --database ALIAS``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections

from django_delayq import conf
from django_delayq.exceptions import DelayqError
from django_delayq.jobs import registry
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.options import Commit

#: How many tasks a message names.
MAX_NAMED = 3
#: Connections of psycopg's pool if neither max_size nor min_size says otherwise.
POOL_SIZE = 4


def check_databases(settings: conf.Settings) -> Iterator[checks.CheckMessage]:
    """Compare DATABASES with ``DELAYQ``, without a connection."""
    yield from _check_atomic_requests()
    for alias, database in connections.settings.items():
        yield from _check_pool(alias, database, settings.worker)


def _check_atomic_requests() -> Iterator[checks.CheckMessage]:
    atomic = [
        alias
        for alias, database in connections.settings.items()
        if database["ATOMIC_REQUESTS"]
    ]
    # Whoever has said on_commit has thought of it. What others offer calls handlers, and no view does.
    undecided = [
        task.name
        for task in registry.all_tasks()
        if task.options.on_commit is None
        and (commit := _commit_of(task)) is not None
        and commit.using not in atomic
        and registry.get_handler(task.options.queue) is not task
    ]
    if not atomic or not undecided:
        return
    yield checks.Warning(
        f"Each request is a transaction of database {_listed(map(repr, atomic))} (ATOMIC_REQUESTS), but the jobs of"
        f" {_listed(undecided)} wait only for the commit of database {DEFAULT_DB_ALIAS!r}.",
        hint="A worker may start them before the request is committed, and even if it is rolled back. Give"
        f" on_commit={atomic[0]!r} to a task that needs such rows, and on_commit=True to one that needs none.",
        id="django_delayq.W008",
    )


def _commit_of(task: TaskDefinition) -> Commit | None:
    try:
        return task.commit
    except DelayqError:
        # E027 says so.
        return None


def _listed(names: Any) -> str:
    first, rest = (found := list(names))[:MAX_NAMED], len(found) - MAX_NAMED
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")


class _Jobs(NamedTuple):
    """How many jobs of a process may each have a connection to a database at once, and the settings that say so."""

    most: int
    names: list[str]
    why: str


def _jobs_of(worker: conf.WorkerSettings) -> _Jobs:
    if not any(task.is_async for task in registry.all_tasks()):
        return _Jobs(
            worker.threads,
            ["THREADS"],
            f"THREADS is {worker.threads}, with a connection each",
        )
    # Django makes queries in threads, and asgiref gives each coroutine a thread of its own.
    return _Jobs(
        worker.threads + worker.coroutines,
        ["THREADS", "COROUTINES"],
        f"THREADS is {worker.threads}, with a connection each, and COROUTINES {worker.coroutines}, with one each if the task"
        " makes queries",
    )


def _check_pool(
    alias: str, database: Mapping[str, Any], worker: conf.WorkerSettings
) -> Iterator[checks.CheckMessage]:
    size = _pool_size(database)
    if size is None:
        return
    if database["CONN_MAX_AGE"] != 0:
        yield checks.Warning(
            f"Database {alias!r} has a pool and CONN_MAX_AGE, {database['CONN_MAX_AGE']!r}: Django refuses to connect, so"
            " each job that uses it fails.",
            hint="Leave CONN_MAX_AGE out: the pool keeps connections open by itself.",
            id="django_delayq.W006",
        )
    jobs = _jobs_of(worker)
    if size < jobs.most:
        together = " together" if len(jobs.names) > 1 else ""
        yield checks.Warning(
            f"Database {alias!r} has a pool of {size} connections in each process, and {jobs.most} jobs may need one at"
            f" once: in DELAYQ['WORKER'], {jobs.why}.",
            hint="Those that find no free connection wait, and fail after the timeout of the pool, 30 s by default. Set"
            f" OPTIONS['pool']['max_size'] to {jobs.most} or more, or {' and '.join(jobs.names)}{together} to {size} or less.",
            id="django_delayq.W006",
        )


def _pool_size(database: Mapping[str, Any]) -> int | None:
    """Return how many connections the pool of psycopg opens in a process; None: there is none, or it cannot be said."""
    pool = database["OPTIONS"].get("pool")
    # Oracle's options have other names.
    if not pool or "oracle" in database["ENGINE"]:
        return None
    if pool is True:
        return POOL_SIZE
    if not isinstance(pool, Mapping):
        return None
    size = pool.get("max_size")
    if size is None:
        size = pool.get("min_size", POOL_SIZE)
    return size if isinstance(size, int) else None


# With --deploy --database


class Room(NamedTuple):
    """How many connections a database admits."""

    most: int
    #: What says so.
    why: str


def check_room(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Ask the named databases whether they admit as many connections as one worker opens."""
    try:
        worker = conf.get_settings().worker
    except DelayqError:
        # `check_settings` says what is wrong with them.
        return []
    found: list[checks.CheckMessage] = []
    jobs = _jobs_of(worker)
    for alias in databases or ():
        room = _room_of(alias)
        size = _pool_size(connections.settings[alias])
        each = jobs.most if size is None else min(jobs.most, size)
        if room is None or worker.processes * each <= room.most:
            continue
        found.append(
            checks.Warning(
                f"A worker of {worker.processes} processes, each with {each} connections to database {alias!r}, needs"
                f" {worker.processes * each:,} of them, and the database admits {room.most:,}: {room.why}.",
                hint="Under load, jobs and requests will fail because no connection is free. In DELAYQ['WORKER'],"
                f" {jobs.why}. Lower PROCESSES or {' or '.join(jobs.names)}, raise what the message names, or put a pooler such"
                " as PgBouncer in between. Web processes and other workers need connections as well.",
                id="django_delayq.W007",
            )
        )
    return found


#: What may limit a role of PostgreSQL that is no superuser; −1 is no limit. Not every version reserves connections for
#: others than superusers.
_LIMITS = """
    SELECT pg_backend_pid(), rolsuper, rolconnlimit, datconnlimit, current_setting('max_connections')::int,
        current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true)::int, 0)
    FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()
"""


def _room_of(alias: str) -> Room | None:
    """Return how many connections PostgreSQL admits; None: it cannot be said, as of another database, or of a pooler."""
    try:
        connection = connections[alias]
        if connection.vendor != "postgresql":
            return None
        with connection.cursor() as cursor:
            cursor.execute(_LIMITS)
            row = cursor.fetchone()
        # A pooler makes up the process that it tells its clients, and shares its connections among them.
        is_direct = connection.connection.info.backend_pid == row[0]
    except (Error, ImproperlyConfigured, AttributeError):
        # Whoever cannot connect, or may not ask, learns so elsewhere. A database that only looks like PostgreSQL has
        # none of this.
        return None
    if not is_direct:
        return None
    _, is_superuser, of_role, of_database, most, reserved = row
    rooms = [
        Room(most, f"max_connections is {most:,}")
        if is_superuser
        else Room(
            most - reserved,
            f"max_connections is {most:,}, and {reserved:,} are reserved",
        )
    ]
    if of_role >= 0 and not is_superuser:
        rooms.append(Room(of_role, "the connection limit of its role"))
    if of_database >= 0 and not is_superuser:
        rooms.append(Room(of_database, "the connection limit of the database"))
    return min(rooms)
