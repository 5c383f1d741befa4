"""Sends the rows of one database that nobody has sent, and deletes those that the server has.

A sweep asks the server about each committed row once: a row that it does not know is sent, and one whose job it has had for
`OUTBOX_KEEP` is deleted. To send a row again is harmless, because the queue remembers its token until the row is gone and for
two minutes after (core/lua/_sent.lua). So nothing here depends on a lock: locks only spare two workers the same work.
"""

import math
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from django.db import connections, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest, Length
from django.db.utils import DatabaseError
from redis.client import Redis
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import boottime_ms
from django_delayq.conf import (
    QueueSettings,
    get_keyring,
    get_settings,
)
from django_delayq.core import store as store_calls
from django_delayq.core.bounds import MAX_BATCH, SKEW_MS
from django_delayq.core.hand_over import NotHandedOver
from django_delayq.core.store import ROW_REPEAT_MS, NewJob
from django_delayq.decoder import Decoder
from django_delayq.exceptions import DecodeError, DelayqError
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.draft import NO_EXTRAS, Draft, Extras
from django_delayq.jobs.kept import kept_since, known_since
from django_delayq.jobs.options import check_priority
from django_delayq.jobs.store_calls import SCHEDULE_BYTES
from django_delayq.outbox.epoch import EpochMs
from django_delayq.outbox.models import InboxRow, OutboxRow, RelayClaim
from django_delayq.outbox.row_writer import Beside, forwarding, has_outbox
from django_delayq.redaction import redact, show
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from django_delayq.wire.delay import MAX_DELAY_MS, MAX_START_TIME_MS
from django_delayq.wire.signatures import TOKEN_MARK

#: Rows that a worker looks at, sends and deletes at a time.
BATCH = 500
#: Bytes of their payloads, about.
BATCH_BYTES = 8 << 20
#: Younger rows are left to the process that has committed them, but for those that were written while the clock was ahead.
FRESH_MS = 2_000
#: How long a claim of a whole database lasts, where rows cannot be locked.
CLAIM_MS = 15_000
#: What `RelayClaim` calls the claim of the outbox.
CLAIMED = "outbox"
#: What asks a database whether it takes no writes, by its vendor. SQLite is not asked: its claim is a write.
IS_READ_ONLY = {
    "postgresql": "SHOW transaction_read_only",
    "mysql": "SELECT @@global.read_only",
}

T = TypeVar("T", "Head", OutboxRow)


class ReadOnlyDatabase(DatabaseError):
    """Raised when a database with rows takes no writes."""


class Head(NamedTuple):
    """The columns that are read of every row."""

    pk: int
    queue: str
    token: str
    #: Bytes of its payload.
    size: int


class Swept(NamedTuple):
    """The result of a sweep."""

    #: Rows that were looked at.
    seen: int = 0
    #: Rows that the server has got now.
    sent: int = 0
    #: Rows that are gone, because the server has had their jobs for long enough.
    deleted: int = 0
    #: Rows that stay because this process cannot send them, by the reason.
    problems: Counter[str] = Counter()  # noqa: RUF012  replaced, never changed
    #: How long until the server has had another job for long enough, ms.
    rest_ms: float = math.inf

    def and_then(self, other: "Swept") -> "Swept":
        return Swept(
            self.seen + other.seen,
            self.sent + other.sent,
            self.deleted + other.deleted,
            self.problems + other.problems,
            min(self.rest_ms, other.rest_ms),
        )


def databases() -> list[str]:
    """Return the aliases of the databases that may have rows of their own."""
    return [alias for alias in connections if has_outbox(alias)]


class Waiting(NamedTuple):
    """The contents of the tables of a database."""

    #: Rows of the outbox.
    rows: int
    #: How long ago the first of them was written, by the database's clock.
    age_ms: int
    #: Rows of the inbox.
    ran: int


def look(alias: str) -> Waiting:
    """Return what is in the tables of a database."""
    rows = _aged(alias)
    oldest = rows.order_by("pk").values_list("age_ms", flat=True).first()
    return Waiting(rows.count(), oldest or 0, InboxRow.objects.using(alias).count())


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
        self, *, fresh_ms: int = FRESH_MS, by_hand: bool = False
    ) -> Iterator[Swept]:
        """Go through all rows that are at least ``fresh_ms`` old; yield what was done with each batch.

        ``by_hand``: beside workers that do the same, if need be.

        Raises:
            ReadOnlyDatabase: the database takes no writes.
            django.db.DatabaseError: the database is away, or has no such table.
            redis.exceptions.RedisError, OSError: the server is away. The next sweep sends the remaining rows.
        """
        after = 0
        while True:
            may_go = Q(age_ms__gte=fresh_ms) | Q(age_ms__lt=0)
            rows = _aged(self.alias).filter(may_go, pk__gt=after)
            heads, is_all = _heads_of_batch(rows.order_by("pk"))
            if not heads:
                return
            if not after:
                _check_takes_writes(self.alias)
            if not (self._can_lock or by_hand or self._claim()):
                return
            yield self._handle(heads)
            if is_all:
                return
            after = heads[-1].pk

    def _claim(self) -> bool:
        """Claim the whole database, or keep it claimed; return whether it is ours."""
        claims = RelayClaim.objects.using(self.alias).filter(name=CLAIMED)
        until_ms = EpochMs() + CLAIM_MS
        is_over = Q(until_ms__lt=EpochMs())
        # A claim that lasts longer than any does was made while the clock was ahead.
        is_ahead = Q(until_ms__gt=EpochMs() + CLAIM_MS)
        is_free = is_over | is_ahead | Q(owner=self._owner)
        if claims.filter(is_free).update(owner=self._owner, until_ms=until_ms):
            return True
        if claims.exists():
            return False
        # The first one ever; whoever is second waits for its next turn.
        fresh = RelayClaim(name=CLAIMED, owner=self._owner, until_ms=until_ms)
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

    def _handle(self, heads: Sequence[Head]) -> Swept:
        client = own_clients.of_thread()
        keep_ms = get_settings().outbox_keep_s * 1000
        problems: Counter[str] = Counter()
        unsent: list[Head] = []
        kept: list[Head] = []
        rest_ms = math.inf
        now_ms = run(client, Command(("TIME",), _read_time_ms))
        for name, members in _by_queue(heads).items():
            try:
                queue = get_settings().queue(name)
                since = known_since(client, queue, [head.token for head in members])
            except (DelayqError, RedisError) as error:
                _check_is_its_own(error)
                problems[_problem(name, error)] += len(members)
                continue
            ahead: list[str] = []
            for head, since_ms in zip(members, since, strict=True):
                if since_ms is None:
                    unsent.append(head)
                elif since_ms > now_ms + SKEW_MS:
                    ahead.append(head.token)
                    rest_ms = min(rest_ms, keep_ms)
                elif (had_ms := max(0, now_ms - since_ms)) >= keep_ms:
                    kept.append(head)
                else:
                    rest_ms = min(rest_ms, keep_ms - had_ms)
            if ahead:
                # The server's clock was ahead. Else these rows would stay until that time.
                keys = get_settings().queue(name).keys
                count = store_calls.count_rows_from(keys, ahead, now_ms=now_ms)
                try:
                    run(client, count)
                except RedisError as error:
                    # A full server refuses it, and rows of other queues are not to wait for that.
                    _check_is_its_own(error)
                    problems[_problem(name, error)] += len(ahead)
        sent = self._send(client, unsent, problems) if unsent else set[int]()
        if sent and keep_ms:
            rest_ms = min(rest_ms, keep_ms)
        elif sent:
            kept += [head for head in unsent if head.pk in sent]
        gone = _handed_over(client, kept, problems)
        if len(gone) < len(kept):
            rest_ms = min(rest_ms, max(keep_ms, 1_000))
        deleted = self._delete(client, gone) if gone else 0
        return Swept(len(heads), len(sent), deleted, problems, rest_ms)

    def _send(
        self, client: Redis, heads: Sequence[Head], problems: Counter[str]
    ) -> set[int]:
        """Send rows; return the keys of those that the server has got."""
        sent: set[int] = set()
        with self._transaction():
            read_ms = boottime_ms()
            rows = list(self._unlocked(heads))
            for name, members in _by_queue(rows).items():
                sent |= _send_to_queue(client, name, members, read_ms, problems)
        return sent

    def _delete(self, client: Redis, heads: Sequence[Head]) -> int:
        """Delete rows whose jobs the server has had for `OUTBOX_KEEP`; return how many."""
        with self._transaction():
            keys = set(self._unlocked(heads).values_list("pk", flat=True))
            OutboxRow.objects.using(self.alias).filter(pk__in=keys).delete()
            gone = [head for head in heads if head.pk in keys]
            # If the transaction is taken back, the rows are there, and this did not happen.
            transaction.on_commit(lambda: _let_go(client, gone), using=self.alias)
        return len(gone)

    def _transaction(self) -> AbstractContextManager[Any]:
        """Hold the locks of rows, where rows can be locked."""
        return transaction.atomic(using=self.alias) if self._can_lock else nullcontext()

    def _unlocked(self, heads: Sequence[Head]) -> QuerySet[Any]:
        """Return the rows that no other worker has locked, each with its age, and lock them."""
        rows = _aged(self.alias).filter(pk__in=[head.pk for head in heads])
        return rows.select_for_update(skip_locked=True) if self._can_lock else rows


def _handed_over(
    client: Redis, heads: Sequence[Head], problems: Counter[str]
) -> list[Head]:
    """Return those rows that may be deleted: the server that has their jobs is still the primary, and so has a replica."""
    found: list[Head] = []
    for name, members in _by_queue(heads).items():
        queue = get_settings().queue(name)
        try:
            since = kept_since(client, queue, [head.token for head in members])
        except NotHandedOver as error:
            asks = f"DURABLE asks for {queue.durable}: " if queue.durable else ""
            problems[f"queue {name}: {asks}{error}"] += len(members)
        except RedisError as error:
            _check_is_its_own(error)
            problems[_problem(name, error)] += len(members)
        else:
            found += [
                head
                for head, since_ms in zip(members, since, strict=True)
                if since_ms is not None
            ]
    return found


def _check_takes_writes(alias: str) -> None:
    """Make sure that a database is not a replica, which may have rows that are gone from its primary.

    Raises:
        ReadOnlyDatabase: it takes no writes.
    """
    connection = connections[alias]
    statement = IS_READ_ONLY.get(connection.vendor)
    if statement is None:
        return
    with connection.cursor() as cursor:
        cursor.execute(statement)
        (answer,) = cursor.fetchone()
    if str(answer).lower() not in ("off", "0"):
        raise ReadOnlyDatabase(
            "it takes no writes, so it may be a replica; if it is, set TEST['MIRROR'] of its entry in DATABASES to"
            " the alias of its primary, or let allow_migrate() of a database router return False for delayq_outbox"
        )


def _aged(alias: str) -> QuerySet[Any]:
    """Return the rows, each with its age by the database's clock."""
    # PostgreSQL refuses a difference that is no bigint, and with it the rows of the whole statement.
    written_ms = Greatest(F("written_ms"), 0)
    return OutboxRow.objects.using(alias).annotate(age_ms=EpochMs() - written_ms)


def _heads_of_batch(rows: QuerySet[Any]) -> tuple[list[Head], bool]:
    """Return the heads of the next batch, and whether no row comes after it."""
    names = ("pk", "queue", "token", Length("payload"))
    found = [Head(*values) for values in rows.values_list(*names)[:BATCH]]
    size = 0
    for n, head in enumerate(found):
        size += head.size
        if n and size > BATCH_BYTES:
            return found[:n], False
    return found, len(found) < BATCH


def _by_queue(rows: Sequence[T]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for row in rows:
        groups.setdefault(row.queue, []).append(row)
    return groups


def _check_is_its_own(error: Exception) -> None:
    """Raise an error that does not concern a queue or its node of a cluster alone: the server is away.

    So is one that hangs: each of its queues would be waited for, for longer than this relay has the rows for itself.
    """
    is_away = isinstance(error, RedisTimeoutError) or not is_of_node(error)
    if is_away and not isinstance(error, DelayqError | ResponseError):
        raise error


def _problem(queue: str, error: Exception) -> str:
    text = str(error) if isinstance(error, DelayqError | RedisError) else repr(error)
    return f"queue {show(queue)}: {redact(text)}"


def _send_to_queue(
    client: Redis,
    name: str,
    rows: Sequence[OutboxRow],
    read_ms: float,
    problems: Counter[str],
) -> set[int]:
    """Send rows of one queue, which were read at ``read_ms``; return the keys of those that it has got."""
    sent: set[int] = set()
    try:
        settings = get_settings().queue(name)
        perform(client, shard_agreement.agreeing_on(name))
    except (DelayqError, RedisError) as error:
        _check_is_its_own(error)
        problems[_problem(name, error)] += len(rows)
        return sent
    written: list[tuple[OutboxRow, Draft]] = []
    for row in rows:
        try:
            written.append((row, draft_of(row, settings)))
        except Exception as error:
            # Whatever is wrong with a row, those behind it have to go.
            problems[_problem(name, error)] += 1
    for part in _parts(written):
        if boottime_ms() - read_ms > ROW_REPEAT_MS:
            # This process was suspended, or the server hangs: others may have sent and deleted these rows.
            break
        try:
            run(client, forwarding(settings, [draft for _, draft in part]))
            sent |= {row.pk for row, _ in part}
        except (DelayqError, RedisError) as error:
            _check_is_its_own(error)
            problems[_problem(name, error)] += len(part)
    return sent


_beside = Decoder[Beside](Beside)


def draft_of(row: Any, settings: QueueSettings) -> Draft:
    """Return what was prepared of a row, signed with the key that signs now; ``row`` has its age.

    Raises:
        NotSigned, DecodeError: nobody in this project has written it, or with a key that this process does not have.
    """
    payload = bytes(row.payload)
    anew = envelopes.signed_anew(payload, settings, get_keyring())
    if TOKEN_MARK + row.token.encode() + b'"' not in payload[: envelopes.PEEK_BYTES]:
        raise DecodeError("a row has the payload of another one", payload)
    beside = Beside()
    if row.beside:
        try:
            beside = _beside.decode(bytes(row.beside))
        except DecodeError as error:
            raise DecodeError(
                f"the options in its row cannot be read: {error}"
            ) from error
    extras = NO_EXTRAS
    if beside.priority or beside.limit or beside.expires_ms or beside.has_on_dead:
        check_priority(beside.priority, row.queue)
        extras = Extras(
            beside.priority,
            beside.limit,
            follow=envelopes.claimed_call(payload).follow
            if beside.has_on_dead
            else None,
            expires_ms=beside.expires_ms,
        )
    new = NewJob(row.token, _when(row), beside.unique, anew or payload)
    return Draft(new, extras=extras)


def _when(row: Any) -> str:
    """Return when a job is due, counted from now."""
    kind, digits = row.start_time[:1], row.start_time[1:]
    # No signature covers it, and a script would stop halfway at what is no number.
    if kind in ("+", "=") and digits.isascii() and digits.isdecimal():
        ms, most_ms = int(digits), MAX_START_TIME_MS
        if kind == "+":
            ms, most_ms = max(0, ms - max(0, row.age_ms)), MAX_DELAY_MS
        if ms <= most_ms:
            return f"{kind}{ms}"
    # Without the value: problems are counted by their text.
    raise DecodeError("its start time cannot be read")


def _parts(
    written: Sequence[tuple[OutboxRow, Draft]],
) -> Iterator[list[tuple[OutboxRow, Draft]]]:
    """Cut into parts that one call can take, by number and by size."""
    part: list[tuple[OutboxRow, Draft]] = []
    size = 0
    for row, draft in written:
        length = len(draft.new.payload)
        if part and (
            len(part) == store_calls.SCHEDULE_BATCH or size + length > SCHEDULE_BYTES
        ):
            yield part
            part, size = [], 0
        part.append((row, draft))
        size += length
    if part:
        yield part


def _let_go(client: Redis, rows: Sequence[Head]) -> None:
    """Have the queues forget rows that are deleted: a while later, when nobody can be about to send them any more."""
    now_ms = run(client, Command(("TIME",), _read_time_ms))
    for name, members in _by_queue(rows).items():
        keys = get_settings().queue(name).keys
        try:
            for start in range(0, len(members), MAX_BATCH):
                tokens = [row.token for row in members[start : start + MAX_BATCH]]
                run(client, store_calls.let_go(keys, tokens, now_ms=now_ms))
        except RedisError as error:
            # Those of a node that is away are forgotten there by themselves.
            _check_is_its_own(error)


def _read_time_ms(reply: Sequence[Any]) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000
