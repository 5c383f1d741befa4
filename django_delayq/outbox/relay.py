"""Sends the rows of one database that nobody has sent, and deletes those that the server has.

A sweep looks at each committed row once: it sends the row, and if the server has had the job for long enough, deletes it.
To send a row again is harmless, because the queue remembers its token until the row is gone and for two minutes after
(delivery/lua/_sent.lua). So nothing here depends on a lock: locks only spare two workers the same work.
"""

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from django.db import connections, router, transaction
from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
)
from django.db.models.functions import Length, Now
from redis.client import Redis
from redis.exceptions import ResponseError

from django_delayq.calls.command import Command
from django_delayq.calls.running import run
from django_delayq.calls.steps import perform
from django_delayq.clients.clients import own_clients
from django_delayq.clock import boottime_ms
from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.delivery import storing
from django_delayq.delivery.limits import MAX_BATCH
from django_delayq.delivery.storing import ROW_REPEAT_MS, NewJob
from django_delayq.exceptions import DecodeError, DelayqError
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import formats
from django_delayq.jobs.job import NO_EXTRAS, Draft, Extras
from django_delayq.jobs.options import check_priority
from django_delayq.jobs.sending import SCHEDULE_BYTES
from django_delayq.outbox.models import InboxRow, OutboxRow, RelayClaim
from django_delayq.outbox.writing import Beside, forwarding
from django_delayq.redaction import redact
from django_delayq.wire.delay import MAX_DELAY_MS, MAX_START_TIME_MS

#: Rows that a worker reads, sends and deletes at a time.
BATCH = 500
#: Bytes of their payloads, about.
BATCH_BYTES = 8 << 20
#: Younger rows are left to the process that has committed them.
FRESH = timedelta(seconds=2)
#: How long a claim of a whole database lasts, where rows cannot be locked.
CLAIM = timedelta(seconds=15)
#: What `RelayClaim` calls the claim of the outbox.
CLAIMED = "outbox"


class Swept(NamedTuple):
    """What a sweep has done."""

    #: Rows that were looked at.
    seen: int = 0
    #: Rows that the server has got now.
    sent: int = 0
    #: Rows that are gone, because the server has had their jobs for long enough.
    deleted: int = 0
    #: Rows that stay because this process cannot send them, by the reason.
    problems: Counter[str] = Counter()  # noqa: RUF012  replaced, never changed

    def and_then(self, other: "Swept") -> "Swept":
        return Swept(
            self.seen + other.seen,
            self.sent + other.sent,
            self.deleted + other.deleted,
            self.problems + other.problems,
        )


def databases() -> list[str]:
    """Return the aliases of the databases that may have rows."""
    return [
        alias for alias in connections if router.allow_migrate_model(alias, OutboxRow)
    ]


class Waiting(NamedTuple):
    """What is in the tables of a database."""

    #: Rows of the outbox.
    rows: int
    #: How long ago the first of them was written, by the database's clock.
    age: timedelta
    #: Rows of the inbox.
    ran: int


def look(alias: str) -> Waiting:
    """Return what is in the tables of a database."""
    rows = _aged(alias, timedelta(0))
    oldest = rows.order_by("pk").values_list("age", flat=True).first()
    return Waiting(
        rows.count(), oldest or timedelta(0), InboxRow.objects.using(alias).count()
    )


def has_table(alias: str) -> bool:
    """Return whether the migration was applied to a database."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
    return OutboxRow._meta.db_table in tables


class Relay:
    """Sweeps one database, in the thread that calls."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._owner = secrets.token_urlsafe(16)

    def sweep(
        self, *, fresh: timedelta = FRESH, by_hand: bool = False
    ) -> Iterator[Swept]:
        """Go through all rows that are older than ``fresh``; yield what was done with each batch.

        ``by_hand``: beside workers that do the same, if need be.

        Raises:
            django.db.DatabaseError: the database is away, or has no such table.
            redis.exceptions.RedisError, OSError: the server is away. What was not sent is sent by the next sweep.
        """
        after: int | None = 0
        while after is not None:
            handled = self._sweep_batch(after, fresh, by_hand)
            if handled is None:
                return
            after, swept = handled
            yield swept

    def _sweep_batch(
        self, after: int, fresh: timedelta, by_hand: bool
    ) -> tuple[int | None, Swept] | None:
        """Handle the next rows; return the last of them, None if there are no more. None: there was nothing to do."""
        rows = _aged(self.alias, fresh).filter(pk__gt=after).order_by("pk")
        last, is_all = _last_of_batch(rows)
        if not last:
            return None
        rows = rows.filter(pk__lte=last)
        begun_ms = boottime_ms()
        if self._can_lock:
            with transaction.atomic(using=self.alias):
                batch = list(rows.select_for_update(skip_locked=True))
                swept = self._handle(batch, begun_ms)
        elif by_hand or self._claim():
            swept = self._handle(list(rows), begun_ms)
        else:
            return None
        return (None if is_all else last), swept

    def _claim(self) -> bool:
        """Claim the whole database, or keep it claimed; return whether it is ours."""
        claims = RelayClaim.objects.using(self.alias).filter(name=CLAIMED)
        until = ExpressionWrapper(Now() + CLAIM, output_field=DateTimeField())
        is_free = Q(until__lt=Now()) | Q(owner=self._owner)
        if claims.filter(is_free).update(owner=self._owner, until=until):
            return True
        if claims.exists():
            return False
        # The first one ever; whoever is second waits for its next turn.
        fresh = RelayClaim(name=CLAIMED, owner=self._owner, until=until)
        made = RelayClaim.objects.using(self.alias).bulk_create(
            [fresh], ignore_conflicts=True
        )
        return bool(made) and claims.filter(owner=self._owner).exists()

    def release(self) -> None:
        """Let others relay."""
        if not self._can_lock:
            RelayClaim.objects.using(self.alias).filter(owner=self._owner).delete()

    @property
    def _can_lock(self) -> bool:
        features = connections[self.alias].features
        return bool(features.has_select_for_update_skip_locked)

    def _handle(self, batch: Sequence[OutboxRow], begun_ms: float) -> Swept:
        if not batch:
            return Swept()
        client = own_clients.of_thread()
        problems: Counter[str] = Counter()
        done: list[OutboxRow] = []
        sent = 0
        for name, members in _by_queue(batch).items():
            if boottime_ms() - begun_ms > ROW_REPEAT_MS:
                # This process was suspended, or the server hangs: others may have sent and deleted these rows.
                break
            try:
                fresh, gone = _send(client, name, members, problems)
            except (DelayqError, ResponseError) as error:
                problems[f"queue {name}: {redact(str(error))}"] += len(members)
                continue
            sent += fresh
            done += gone
        if done:
            OutboxRow.objects.using(self.alias).filter(
                pk__in=[row.pk for row in done]
            ).delete()
            # If the transaction is taken back, the rows are there, and this did not happen.
            transaction.on_commit(lambda: _let_go(client, done), using=self.alias)
        return Swept(len(batch), sent, len(done), problems)


def _aged(alias: str, fresh: timedelta) -> QuerySet[Any]:
    """Return the rows that are older than ``fresh``, each with its age; both by the database's clock."""
    age = ExpressionWrapper(Now() - F("written_at"), output_field=DurationField())
    return (
        OutboxRow.objects.using(alias)
        .filter(written_at__lte=Now() - fresh)
        .annotate(age=age)
    )


def _last_of_batch(rows: QuerySet[Any]) -> tuple[int, bool]:
    """Return the key of the last row of the next batch, 0 if there is none; and whether no row comes after it."""
    last = size = 0
    heads = list(rows.values_list("pk", Length("payload"))[:BATCH])
    for key, length in heads:
        if last and size + length > BATCH_BYTES:
            return last, False
        last, size = key, size + length
    return last, len(heads) < BATCH


def _by_queue(batch: Sequence[OutboxRow]) -> dict[str, list[OutboxRow]]:
    groups: dict[str, list[OutboxRow]] = {}
    for row in batch:
        groups.setdefault(row.queue, []).append(row)
    return groups


def _send(
    client: Redis, name: str, rows: Sequence[OutboxRow], problems: Counter[str]
) -> tuple[int, list[OutboxRow]]:
    """Send rows of one queue; return how many of them the server did not have, and those it has had for long enough."""
    settings = get_settings().queue(name)
    known = perform(client, formats.finding(name))
    drafts: list[Draft] = []
    written: list[OutboxRow] = []
    for row in rows:
        try:
            drafts.append(draft_of(row, settings, known.format))
            written.append(row)
        except DelayqError as error:
            problems[f"queue {name}: {redact(str(error))}"] += 1
    begun_ms = Command(("TIME",), _read_time_ms).do(client)
    for part in _parts(drafts):
        run(client, forwarding(settings, part, known))
    keep_ms = get_settings().outbox_keep_s * 1000
    fresh, gone = 0, []
    for some in _batches(written, MAX_BATCH):
        tokens = [row.token for row in some]
        since = storing.when_sent(settings.keys, tokens).do(client)
        for row, since_ms in zip(some, since, strict=True):
            if since_ms is None:
                # Somebody has deleted the key since; the next sweep sends the row again.
                continue
            fresh += since_ms >= begun_ms
            if max(0, begun_ms - since_ms) >= keep_ms:
                gone.append(row)
    return fresh, gone


def draft_of(row: Any, settings: QueueSettings, format: int) -> Draft:
    """Return what was prepared of a row, signed with the key that signs now; ``row`` has its age.

    Raises:
        NotSigned, DecodeError: nobody in this project has written it, or with a key that this process does not have.
        EncodeError: the format cannot hold it.
    """
    payload = bytes(row.payload)
    anew = envelopes.signed_anew(payload, settings, get_keyring(), format)
    if row.token.encode() not in payload[: envelopes.PEEK_BYTES]:
        raise DecodeError("a row has the payload of another one", payload)
    beside = Beside()
    if row.beside:
        try:
            beside = msgspec.json.decode(bytes(row.beside), type=Beside)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"what is beside it cannot be read: {error}") from error
    extras = NO_EXTRAS
    if beside.priority or beside.limit:
        check_priority(beside.priority, row.queue)
        extras = Extras(beside.priority, beside.limit)
    new = NewJob(row.token, _when(row), beside.unique, anew or payload)
    return Draft(new, format, extras)


def _when(row: Any) -> str:
    """Return when a job is due, counted from now."""
    kind, digits = row.start_time[:1], row.start_time[1:]
    # No signature covers it, and a script would stop halfway at what is no number.
    if kind in ("+", "=") and digits.isascii() and digits.isdecimal():
        ms, most_ms = int(digits), MAX_START_TIME_MS
        if kind == "+":
            ms, most_ms = (
                max(0, ms - max(0, row.age // timedelta(milliseconds=1))),
                MAX_DELAY_MS,
            )
        if ms <= most_ms:
            return f"{kind}{ms}"
    # Without the value: problems are counted by their text.
    raise DecodeError("its start time cannot be read")


def _parts(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Cut into parts that one call can take, by number and by size."""
    part: list[Draft] = []
    size = 0
    for draft in drafts:
        if part and (
            len(part) == storing.SCHEDULE_BATCH
            or size + len(draft.new.payload) > SCHEDULE_BYTES
        ):
            yield part
            part, size = [], 0
        part.append(draft)
        size += len(draft.new.payload)
    if part:
        yield part


def _batches(rows: Sequence[OutboxRow], most: int) -> Iterator[Sequence[OutboxRow]]:
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


def _let_go(client: Redis, rows: Sequence[OutboxRow]) -> None:
    """Have the queues forget rows that are deleted: a while later, when nobody can be about to send them any more."""
    now_ms = Command(("TIME",), _read_time_ms).do(client)
    for name, members in _by_queue(rows).items():
        keys = get_settings().queue(name).keys
        for part in _batches(members, MAX_BATCH):
            tokens = [row.token for row in part]
            storing.let_go_of_rows(keys, tokens, now_ms=now_ms).do(client)


def _read_time_ms(reply: Sequence[Any]) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000
