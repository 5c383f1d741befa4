"""Writes a job as a row of the caller's transaction, and sends it with the commit.

The commit is what counts: from then on the job exists, whatever becomes of this process. Sending it here only spares it
the wait for a worker's look.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from django.db import (
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)
from django.db.transaction import TransactionManagementError
from msgspec import Meta
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import boottime_ms
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.core import store as store_calls
from django_delayq.core.states import State
from django_delayq.core.store import ROW_REPEAT_MS, Scheduled
from django_delayq.decoder import Number
from django_delayq.exceptions import DelayqError, InvalidTask
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.caller_signals import task_of
from django_delayq.jobs.commit import Hook, is_awaited
from django_delayq.jobs.draft import Draft, awaits_commit
from django_delayq.jobs.job import Job
from django_delayq.jobs.limit import MAX_LIMIT_KEY, MAX_LIMIT_NAME
from django_delayq.jobs.options import Commit
from django_delayq.jobs.store_calls import written
from django_delayq.logs import get_log
from django_delayq.outbox.models import OutboxRow
from django_delayq.redaction import redact
from django_delayq.signals import job_scheduled, tell
from django_delayq.transport.call import Call
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from django_delayq.wire.delay import MAX_DELAY_MS

logger = get_log("django_delayq.outbox")

#: After a send that failed, the jobs of this process wait so long for a worker, ms: callers need not wait for a server
#: that is away.
QUIET_MS = 2_000.0
# Until when, by queue; that of the empty name holds for all.
_quiet_until_ms: dict[str, float] = {}


class Beside(msgspec.Struct, omit_defaults=True):
    """Options that few jobs have, beside their call and their start time. No signature covers it."""

    #: Its unique key, as `tail_of` takes it.
    unique: Annotated[str, Meta(pattern=r"\A([es]|\Z)")] = ""
    priority: Number = 0
    #: Its limit, as `tail_of` takes it.
    limit: Annotated[str, Meta(max_length=MAX_LIMIT_NAME + 1 + MAX_LIMIT_KEY)] = ""
    #: For how long after its start time it holds its unique key, ms.
    expires_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] = 0
    #: Others follow it once it is a dead letter; its payload says which.
    has_on_dead: bool = False


def has_outbox(alias: str) -> bool:
    """Return whether a database may have rows of its own.

    A replica, which its entry says by ``TEST``'s ``MIRROR``, has those of its primary. What routers say of writes is not
    asked: a row is written to the database of its transaction, and they may answer by the request that is served.
    """
    mirrored = connections.settings[alias]["TEST"]["MIRROR"]
    return mirrored is None and router.allow_migrate_model(alias, OutboxRow)


def migrating(alias: str) -> str:
    """Return the command for a database that lacks the tables."""
    return f"manage.py migrate delayq_outbox --database {alias}"


@contextmanager
def noting_migration(alias: str, table: str) -> Iterator[None]:
    """Note what to do on an error of a database that names one of our tables, as each does of a table that it lacks."""
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        if table in str(error):
            error.add_note(
                f"django-delayq: if database {alias!r} lacks the table, run {migrating(alias)}"
            )
        raise


def write(job: Job[Any], commit: Commit) -> None:
    """Write the row of a prepared job, and have the commit of the transaction send the job.

    Raises:
        InvalidTask: no worker would look for the row in this database.
        TransactionManagementError: autocommit is off, and nothing could report the commit.
    """
    alias = commit.using
    if not has_outbox(alias):
        raise InvalidTask(
            f"job {job.id} cannot be a row of database {alias!r}: no worker looks for rows there, because"
            " TEST['MIRROR'] of its entry in DATABASES names a primary, or allow_migrate() of a database router"
            " returns False for delayq_outbox; name another database with on_commit, or give outbox=False"
        )
    connection = connections[alias]
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise TransactionManagementError(
            f"job {job.id} cannot be a row of the outbox: autocommit is off, so nothing would announce the commit; use"
            " atomic(), or outbox=False"
        )
    draft, extras = job.draft, job.draft.extras
    beside = Beside(
        str(draft.new.tail),
        extras.priority,
        extras.limit,
        extras.expires_ms,
        extras.follow is not None and bool(extras.follow.dead),
    )
    as_bytes = connection.Database.Binary  # type: ignore[attr-defined]
    values = (
        job.queue,
        job.token,
        draft.new.when,
        as_bytes(draft.new.payload),
        as_bytes(b"" if beside == Beside() else msgspec.json.encode(beside)),
    )
    # As of Django's own statements, an error is no secret of whoever swallows it.
    with (
        noting_migration(alias, OutboxRow._meta.db_table),
        transaction.mark_for_rollback_on_error(using=connection.alias),
        connection.cursor() as cursor,
    ):
        cursor.execute(_insert(connection), values)
    hook = _Hook(job, draft)
    job.leave_to_commit(awaits_commit(hook))
    if is_awaited(commit, job.task):
        hook.join(alias)
    else:
        hook()


# The statement that writes a row, by the kind of database.
_inserts: dict[str, str] = {}


def _insert(connection: Any) -> str:
    """Return the statement that writes a row. Django would compile it again for each, in more time than it takes."""
    statement = _inserts.get(connection.vendor)
    if statement is not None:
        return statement
    quote = connection.ops.quote_name
    names = ("queue", "token", "start_time", "payload", "beside")
    columns = [quote(OutboxRow._meta.get_field(name).column) for name in names]  # type: ignore[union-attr]
    marks = ", ".join(["%s"] * len(columns))
    statement = f"INSERT INTO {quote(OutboxRow._meta.db_table)} ({', '.join(columns)}) VALUES ({marks})"
    _inserts[connection.vendor] = statement
    return statement


class _Hook(Hook):
    """Sends one job when its row is committed. A failure does not raise: the row is stored."""

    def __init__(self, job: Job[Any], draft: Draft) -> None:
        super().__init__([job])
        self._job = job
        self._draft = draft
        self._written_ms = boottime_ms()

    def send(self) -> None:
        self.has_run = True
        self._job.note_commit()
        job = self._job
        quiet_ms = (_quiet_until_ms.get(name, 0.0) for name in ("", job.queue))
        if boottime_ms() < max(quiet_ms):
            why = "a job before it failed"
        else:
            try:
                if self._is_sent():
                    return
                why = "its transaction took long"
            except (RedisError, OSError, DelayqError) as error:
                # Anything else is no failure to send it: `immediate()` of the tests runs the task here, which may raise.
                # The queue's node is away, or its slot; or the server. Anything else is about this job or its queue. A node
                # that hangs keeps callers waiting for each of its queues: then all have to be quiet.
                if is_of_node(error) and not isinstance(error, RedisTimeoutError):
                    _quiet_until_ms[job.queue] = boottime_ms() + QUIET_MS
                elif not isinstance(error, ResponseError | DelayqError):
                    _quiet_until_ms[""] = boottime_ms() + QUIET_MS
                why = redact(f"{type(error).__name__}: {error}")
                if isinstance(error, DelayqError):
                    logger.exception("job %s (%s) cannot be sent", job.id, job.task)
        self.give_up(why)

    def give_up(self, why: str) -> None:
        logger.warning(
            "job %s (%s) is committed and was not sent at once, so a worker sends it: %s",
            self._job.id,
            self._job.task,
            why,
        )

    def _is_sent(self) -> bool:
        """Send the job; return False if that may be too late."""
        job, client = self._job, own_clients.of_thread()
        perform(client, shard_agreement.agreeing_on(job.queue))
        queue = get_settings().queue(job.queue)
        if boottime_ms() - self._written_ms > ROW_REPEAT_MS:
            # Perhaps only this process was suspended, since the commit: its row may have been sent, and be forgotten.
            return False
        (sent,) = run(client, forwarding(queue, [self._draft]))
        job.state, job.start_time_ms = State.SCHEDULED, sent.start_time_ms
        if sent.holder:
            # Another job holds its unique key; the reply does not say when that job is due.
            job.token, job.created, job.start_time_ms = sent.holder, False, None
        if sent.holder or sent.beyond is not None:
            # Beyond: a worker was quicker.
            job.refresh()
        elif job_scheduled.receivers:
            tell(job_scheduled, task_of(job), job)
        return True


def forwarding(queue: QueueSettings, drafts: list[Draft]) -> Call[list[Scheduled]]:
    """Return the call that sends rows of one queue. A row that the queue got before is not stored again."""
    new, _ = written(drafts)
    return store_calls.store_rows(queue.target, new)
