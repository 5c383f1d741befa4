"""The inbox: a row for each job that has run, written in the transaction of what the job did."""

import hashlib
from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.transaction import TransactionManagementError

from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.commit import is_alias
from django_delayq.logs import get_log
from django_delayq.outbox.epoch import EpochMs
from django_delayq.outbox.models import InboxRow
from django_delayq.outbox.row_writer import noting_migration
from django_delayq.redaction import show

logger = get_log("django_delayq.outbox")

#: The status of a PostgreSQL connection whose transaction can be committed; libpq's PQTRANS_INTRANS.
IN_TRANSACTION = 2
#: How long a job is known to have run: 30 days.
KEPT_MS = 30 * 86_400_000
#: Rows that one statement deletes.
DELETED = 1_000
#: The longest id that is a key as it is.
LONGEST_NAME = 255


def run_once(job_id: str, using: str, call: Callable[[], Any], later: str = "") -> Any:
    """Make a call in a transaction with a row of the job's id; do nothing, and return None, if that row is there.

    ``later`` is the token of the call that has replaced the job's arguments; its run has a row of its own.

    An exception that leaves the call rolls back the row, with all that the call has written.

    Raises:
        InvalidTask: DATABASES has no such alias.
        TransactionManagementError: autocommit is off, so nothing would commit; or an error that the task swallowed, or a
            connection that it closed, has ended its transaction.
    """
    if not is_alias(using):
        raise InvalidTask(
            f"once={show(using)} of the task of job {job_id}: it is not in DATABASES; give True, for the default database,"
            f" or one of {', '.join(map(repr, connections))}"
        )
    connection = connections[using]
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise TransactionManagementError(
            f"once={show(using)} of the task of job {job_id}: AUTOCOMMIT of this database is off, so nothing would commit what"
            " the task does; leave AUTOCOMMIT on, or once out"
        )
    is_first = False
    try:
        with transaction.atomic(using=using):
            # Beside an unfinished run of the same job this waits for its end: the row is there, or it was taken back.
            with noting_migration(using, InboxRow._meta.db_table):
                InboxRow(job=name_of(job_id, later)).save(
                    force_insert=True, using=using
                )
            is_first, begun_on = True, connection.connection
            value = call()
            if _has_ended(connection, begun_on):
                # Its end would roll back without a word, and the job would count as done.
                raise TransactionManagementError(
                    f"job {job_id}: the task suppressed a database error or closed the connection, which ended its"
                    " transaction, so its changes cannot be committed; put atomic() around the statement that"
                    " may fail, inside the try"
                )
            return value
    except IntegrityError:
        if is_first:
            raise
    logger.info(
        "job %s has already run, and its changes are committed: it was not run again",
        job_id,
    )
    return None


def _has_ended(connection: Any, begun_on: Any) -> bool:
    """Return whether a transaction, begun on this connection of the driver, cannot be committed any more."""
    if connection.needs_rollback or connection.closed_in_transaction:
        return True
    if connection.connection is not begun_on:
        return True
    # A bare cursor may end it, and Django does not notice. After an error of one, PostgreSQL answers a commit with a
    # rollback.
    if connection.vendor == "postgresql":
        return bool(begun_on.info.transaction_status != IN_TRANSACTION)
    return connection.vendor == "sqlite" and not begun_on.in_transaction


def name_of(job_id: str, later: str = "") -> str:
    """Return the key of a job's row, or of its row for the arguments of a later call."""
    name = f"{job_id}:{later}" if later else job_id
    if len(name) <= LONGEST_NAME:
        return name
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def delete_old(using: str) -> int:
    """Delete rows that are too old, a bounded number; return how many."""
    rows = InboxRow.objects.using(using)
    old = rows.filter(ran_ms__lt=EpochMs() - KEPT_MS).order_by("ran_ms")
    names = list(old.values_list("pk", flat=True)[:DELETED])
    if names:
        rows.filter(pk__in=names).delete()
    return len(names)
