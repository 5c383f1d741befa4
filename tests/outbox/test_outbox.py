"""Jobs that are rows of the caller's transaction, on SQLite and on PostgreSQL."""

import math
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction
from django.db.models import F, Value
from django.db.transaction import TransactionManagementError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TryAgainError

from django_delayq import (
    Durable,
    InvalidSettings,
    InvalidTask,
    Job,
    JobNotFound,
    Limit,
    QueueFull,
    State,
    aschedule,
    aschedule_many,
    conf,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.clock import boottime_ms
from django_delayq.core import hand_over
from django_delayq.core import store as store_calls
from django_delayq.core.store import ROW_REPEAT_MS
from django_delayq.jobs import commit as commit_module
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import outbox, shard_agreement
from django_delayq.outbox import relay as relay_module
from django_delayq.outbox import row_writer
from django_delayq.outbox.models import OutboxRow, RelayClaim
from django_delayq.outbox.relay import Relay, Swept
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import mark_of_node
from django_delayq.transport.plain_command import Command
from tests.jobs.hand import Hand
from tests.outbox import samples
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.replicas import Replicated
from tests.servers import Server
from tests.worker.workers import InlineWorker

LATER = 3_600


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    samples.ran.clear()


def on(queue: str, alias: str, **options: Any) -> Any:
    return samples.note.using(queue=queue, outbox=True, on_commit=alias, **options)


def rows(alias: str) -> list[str]:
    return list(OutboxRow.objects.using(alias).values_list("token", flat=True))


def sweep(alias: str, *, fresh_ms: int = 0) -> Swept:
    """Do what a worker does from time to time; rows need not be old. When it would look again is left out."""
    total = Swept()
    relay = Relay(alias)
    for swept in relay.sweep(fresh_ms=fresh_ms):
        total = total.and_then(swept)
    relay.release()
    return total._replace(rest_ms=math.inf)


def make_older(alias: str, ms: int, **changes: Any) -> None:
    OutboxRow.objects.using(alias).update(written_ms=F("written_ms") - ms, **changes)


def commit_unsent(queue: str, alias: str, *args: Any, **options: Any) -> Job[Any]:
    """Commit a job in a process that dies before it has sent it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_writer._Hook, "__call__", lambda hook: None)
        with transaction.atomic(using=alias):
            return schedule(on(queue, alias, **options), LATER, *args)


def sent_tokens(hand: Hand) -> set[str]:
    return {token.decode() for token in hand.client.zrange(hand.keys.sent, 0, -1)}


def forget_ends(hand: Hand) -> None:
    """Do what 30 s do."""
    hand.client.delete(hand.keys.ended)


def test_job_is_a_row_of_the_transaction_and_sent_with_its_commit(
    queue: str, hand: Hand, alias: str
) -> None:
    with transaction.atomic(using=alias):
        group = ContentType.objects.using(alias).create(app_label="order")
        job = schedule(on(queue, alias), LATER, group.pk)
        assert rows(alias) == [job.token]
        assert job.state is job.refresh() is State.UNCOMMITTED
        assert hand.tokens() == []

    assert hand.tokens() == [job.token]
    assert job.state is State.SCHEDULED
    assert job.start_time is not None
    assert get_job(job.id).args == [group.pk]
    assert rows(alias) == [job.token]


def test_rollback_leaves_neither_row_nor_job(
    queue: str, hand: Hand, alias: str
) -> None:
    with transaction.atomic(using=alias):
        job = schedule(on(queue, alias), LATER)
        transaction.set_rollback(True, using=alias)

    assert rows(alias) == []
    assert sweep(alias) == Swept()
    assert hand.tokens() == []
    assert job.refresh() is State.MISSING


def test_rollback_of_an_inner_block_takes_its_row(
    queue: str, hand: Hand, alias: str
) -> None:
    with transaction.atomic(using=alias):
        kept = schedule(on(queue, alias), LATER)
        with transaction.atomic(using=alias):
            schedule(on(queue, alias), LATER)
            transaction.set_rollback(True, using=alias)

    assert rows(alias) == hand.tokens() == [kept.token]


def test_outside_a_transaction_the_row_is_one_of_its_own(
    queue: str, hand: Hand, alias: str
) -> None:
    job = schedule(on(queue, alias), LATER)

    assert rows(alias) == hand.tokens() == [job.token]
    assert job.state is State.SCHEDULED


@pytest.mark.parametrize(
    "send",
    [
        schedule,
        async_to_sync(aschedule),
        lambda job: schedule_many([job]),
        lambda job: async_to_sync(aschedule_many)([job]),
    ],
    ids=["one", "one-async", "many", "many-async"],
)
def test_outside_a_transaction_a_prepared_job_is_a_row_as_well(
    queue: str, hand: Hand, alias: str, send: Any
) -> None:
    job = on(queue, alias).prepare(LATER)

    send(job)

    assert rows(alias) == hand.tokens() == [job.token]
    assert job.state is State.SCHEDULED


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_job_that_comes_twice_is_one_row(
    queue: str, hand: Hand, alias: str, is_in_transaction: bool
) -> None:
    job = on(queue, alias).prepare(LATER)

    with transaction.atomic(using=alias) if is_in_transaction else nullcontext():
        assert schedule_many([job, job]) == [job, job]

    assert rows(alias) == hand.tokens() == [job.token]


def test_commit_that_gives_up_leaves_its_rows_to_a_worker(
    settings: Any,
    queue: str,
    hand: Hand,
    alias: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = settings.DELAYQ
    monkeypatch.setattr(commit_module, "PATIENCE_MS", -1)
    jobs: list[Job[None]] = []

    def commit() -> None:
        with transaction.atomic(using=alias):
            for is_row in (False, True):
                task = on(queue, alias).using(outbox=is_row)
                jobs.append(schedule(task, LATER))

    settings.DELAYQ = good | {"CONNECTION": "unix:///dev/null/nobody"}
    with pytest.raises(RedisConnectionError) as failure:
        commit()
    settings.DELAYQ = good

    _, row = jobs
    assert row.id not in "".join(failure.value.__notes__)
    (said,) = [text for text in caplog.messages if row.id in text]
    assert "so a worker sends it: other jobs of the commit failed" in said
    assert rows(alias) == [row.token]
    sweep(alias)
    assert hand.tokens() == [row.token]


def test_refusal_of_many_writes_no_row(
    settings: Any, queue: str, hand: Hand, alias: str
) -> None:
    full = f"{queue}-2"
    settings.DELAYQ = settings.DELAYQ | {
        "QUEUES": {queue: {}, full: {"MAX_JOBS": 1}},
    }
    row = on(queue, alias).prepare(LATER)
    task = samples.note.using(queue=full, on_commit=alias)
    others = [task.prepare(LATER) for _ in range(2)]

    with transaction.atomic(using=alias):
        with pytest.raises(QueueFull) as refused:
            schedule_many([row, *others])

    assert refused.value.unsent == [row, *others]
    assert rows(alias) == hand.tokens() == []
    assert schedule_many([row]) == [row]
    assert rows(alias) == [row.token]


def test_without_autocommit_a_row_is_refused(queue: str, alias: str) -> None:
    connections[alias].set_autocommit(False)
    try:
        with pytest.raises(
            TransactionManagementError, match=r"autocommit is off.* or outbox=False$"
        ):
            schedule(on(queue, alias), LATER)
    finally:
        connections[alias].rollback()
        connections[alias].set_autocommit(True)

    assert rows(alias) == []


def test_row_goes_once_the_server_has_the_job_and_its_token_soon_after(
    queue: str, hand: Hand, alias: str
) -> None:
    job = schedule(on(queue, alias), LATER)
    (score,) = hand.client.zmscore(hand.keys.sent, [job.token])

    swept = sweep(alias)

    assert swept == Swept(seen=1, sent=0, deleted=1)
    assert rows(alias) == []
    (later,) = hand.client.zmscore(hand.keys.sent, [job.token])
    now_ms = hand.client.time()[0] * 1000
    assert score > now_ms + 364 * 86_400_000
    assert now_ms < later <= now_ms + 1_000 + 2 * ROW_REPEAT_MS
    assert hand.tokens() == [job.token]


def test_row_that_nobody_has_sent_is_sent_by_a_worker(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    job = commit_unsent(queue, alias, "relayed")
    make_older(alias, 10_000, start_time="+0")

    run_worker()

    wait_until(lambda: samples.ran, description="the job has run")
    wait_until(lambda: not rows(alias), description="its row is gone")
    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="its end is told")
    assert samples.ran == ["relayed"]


def test_fresh_row_is_left_to_the_process_that_commits_it(
    queue: str, hand: Hand, alias: str
) -> None:
    commit_unsent(queue, alias)

    swept = sweep(alias, fresh_ms=3_600_000)

    assert swept == Swept()
    assert hand.tokens() == []


def test_row_that_was_written_while_the_clock_was_ahead_is_sent(
    queue: str, hand: Hand, alias: str
) -> None:
    job = commit_unsent(queue, alias)
    make_older(alias, -86_400_000)

    assert sweep(alias, fresh_ms=3_600_000).sent == 1

    assert hand.tokens() == [job.token]


def test_claim_that_was_made_while_the_clock_was_ahead_holds_nobody_off(
    queue: str, alias: str
) -> None:
    first, second = Relay(alias), Relay(alias)
    assert first._claim()
    assert not second._claim()
    claims = RelayClaim.objects.using(alias)
    claims.update(until_ms=F("until_ms") + 86_400_000)

    assert second._claim()


def test_server_that_is_away_is_no_error_for_who_commits(
    settings: Any,
    private_server: Callable[..., Server],
    queue_name: str,
    alias: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This machine may pause between two jobs.
    monkeypatch.setattr(row_writer, "QUIET_MS", 600_000.0)
    server = private_server()
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {queue_name: {}},
        "OUTBOX_KEEP": 0,
    }
    server.kill()
    with transaction.atomic(using=alias):
        first = schedule(on(queue_name, alias), LATER)
        second = schedule(on(queue_name, alias), LATER)

    told = [record.getMessage() for record in caplog.records if "outbox" in record.name]
    assert len(told) == 2
    assert first.id in told[0]
    assert "a worker sends it" in told[0]
    # One failure is enough: the caller is waiting.
    assert "a job before it failed" in told[1]

    server.start()
    assert first.refresh() is State.MISSING
    assert sweep(alias).sent == 2
    assert rows(alias) == []
    assert {first.refresh(), second.refresh()} == {State.SCHEDULED}


def test_row_that_is_sent_again_after_its_job_has_ended_is_no_second_job(
    queue: str, hand: Hand, alias: str
) -> None:
    job = schedule(on(queue, alias), 0, "once")
    hand.succeed(hand.take(), keep=False)
    forget_ends(hand)
    assert job.refresh() is State.MISSING

    swept = sweep(alias)

    assert swept == Swept(seen=1, sent=0, deleted=1)
    assert hand.tokens() == []
    # Nor if a worker was suspended meanwhile, and sends a row that another one has deleted.
    client = own_clients.of_thread()
    draft = samples.note.using(queue=queue).prepare(0, "once").draft
    draft.new = draft.new._replace(token=job.token)
    row_writer.run(
        client,
        row_writer.forwarding(outbox_queue(queue), [draft]),
    )
    assert hand.tokens() == []


def outbox_queue(name: str) -> Any:
    return row_writer.get_settings().queue(name)


def test_relative_delay_counts_from_the_row_by_the_databases_clock(
    queue: str, hand: Hand, alias: str
) -> None:
    job = commit_unsent(queue, alias)
    late = commit_unsent(queue, alias)
    made = OutboxRow.objects.using(alias)
    made.filter(token=job.token).update(written_ms=F("written_ms") - 50 * 60_000)
    made.filter(token=late.token).update(written_ms=F("written_ms") - 2 * 86_400_000)

    sweep(alias)

    now_ms = (hand.client.time()[0] + 1) * 1000
    job.refresh()
    late.refresh()
    assert job.start_time_ms is not None
    assert 0 <= now_ms + 600_000 - job.start_time_ms <= 60_000
    assert late.state is State.DUE


def test_absolute_time_stays(queue: str, hand: Hand, alias: str) -> None:
    job = commit_unsent(queue, alias)
    make_older(alias, 2 * 86_400_000, start_time="=4102444800000")

    sweep(alias)

    job.refresh()
    assert job.start_time_ms == 4_102_444_800_000


def test_row_is_signed_anew_with_the_key_that_signs_now(
    settings: Any, queue: str, hand: Hand, alias: str
) -> None:
    old, new = "a secret of enough length", "another secret of enough length"
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": [old]}
    job = commit_unsent(queue, alias, "kept")

    settings.DELAYQ = {**settings.DELAYQ, "KEYS": [new, old]}
    sweep(alias)
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": [new]}

    assert get_job(job.id).args == ["kept"]


def test_row_whose_key_is_gone_stays_and_is_told(
    settings: Any, queue: str, hand: Hand, alias: str
) -> None:
    job = commit_unsent(queue, alias)
    delayq = settings.DELAYQ

    settings.DELAYQ = {**delayq, "KEYS": ["another secret of enough length"]}
    swept = sweep(alias)

    assert swept.problems.total() == 1
    assert "key" in next(iter(swept.problems))
    assert hand.tokens() == []
    assert rows(alias) == [job.token]
    settings.DELAYQ = delayq
    assert sweep(alias) == Swept(seen=1, sent=1, deleted=1)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("start_time", "soon"),
        ("start_time", "+99999999999999999"),
        ("start_time", "=9²"),
        ("beside", b"{"),
        ("beside", b'{"priority":101}'),
        ("beside", b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("beside", b'{"expires_ms":-1}'),
        ("beside", b'{"expires_ms":9223372036854775807}'),
        ("beside", b'{"limit":"' + b"x" * 70_000 + b'"}'),
        ("beside", b'{"unique":"x"}'),
        # Parts of what the payload says, and no token.
        ("token", ""),
        ("token", "delayq"),
    ],
)
def test_row_whose_columns_make_no_sense_holds_up_no_other(
    queue: str, hand: Hand, alias: str, column: str, value: Any
) -> None:
    job = commit_unsent(queue, alias)
    other = commit_unsent(queue, alias)
    made = OutboxRow.objects.using(alias)
    made.filter(token=job.token).update(**{column: value})

    swept = sweep(alias)

    assert hand.tokens() == [other.token]
    assert swept.problems.total() == 1


def test_row_that_only_sqlite_takes_holds_up_no_other(
    queue: str, hand: Hand, alias: str
) -> None:
    if connections[alias].vendor != "sqlite":
        pytest.skip("other databases check lengths and types")
    bad = [("start_time", "+" + "9" * 5_000), ("payload", "text"), ("token", b"bytes")]
    made = OutboxRow.objects.using(alias)
    table = OutboxRow._meta.db_table
    for column, value in bad:
        row = made.get(token=commit_unsent(queue, alias).token)
        with connections[alias].cursor() as cursor:
            cursor.execute(
                f"UPDATE {table} SET {column} = %s WHERE id = %s", [value, row.pk]
            )
    other = commit_unsent(queue, alias)

    swept = sweep(alias)

    assert hand.tokens() == [other.token]
    assert swept.problems.total() == len(bad)


@pytest.mark.parametrize("written_ms", [-(2**63), 2**63 - 1])
def test_row_of_no_possible_time_holds_up_no_other(
    queue: str, hand: Hand, alias: str, written_ms: int
) -> None:
    job = commit_unsent(queue, alias)
    OutboxRow.objects.using(alias).update(written_ms=written_ms)
    other = commit_unsent(queue, alias)
    assert relay_module.look(alias).rows == 2

    sweep(alias)

    assert set(hand.tokens()) == {job.token, other.token}


@pytest.mark.parametrize("what", ["payload", "token", "queue"])
def test_row_that_this_project_has_not_signed_is_not_sent(
    queue: str, hand: Hand, alias: str, what: str
) -> None:
    job = commit_unsent(queue, alias, "one")
    other = commit_unsent(queue, alias, "two")
    made = OutboxRow.objects.using(alias)
    forged = {
        "payload": bytes(made.get(token=job.token).payload).replace(b"one", b"six"),
        "token": "x" * 22,
        "queue": f"{queue}-2",
    }
    made.filter(token=job.token).update(**{what: forged[what]})

    swept = sweep(alias)

    # What stands behind it goes all the same.
    assert hand.tokens() == [other.token]
    assert (swept.seen, swept.sent, swept.problems.total()) == (2, 1, 1)


def away() -> RedisConnectionError:
    error = RedisConnectionError("Connection refused")
    mark_of_node(error)
    return error


def test_a_node_that_is_away_keeps_no_rows_of_other_queues(
    queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_since = relay_module.known_since

    def asked(client: Any, settings: Any, tokens: Any) -> Any:
        if settings.name != queue:
            raise away()
        return known_since(client, settings, tokens)

    monkeypatch.setattr(relay_module, "known_since", asked)
    commit_unsent(f"{queue}-2", alias)
    job = commit_unsent(queue, alias)

    swept = sweep(alias)

    assert hand.tokens() == [job.token]
    assert swept.problems == {f"queue '{queue}-2': Connection refused": 1}


@pytest.mark.parametrize("away", [away, TryAgainError("TRYAGAIN Multiple keys")])
def test_only_jobs_of_the_node_that_is_away_are_left_to_workers(
    queue: str, alias: str, monkeypatch: pytest.MonkeyPatch, away: Any
) -> None:
    send = row_writer._Hook._is_sent
    asked = []

    def sent(hook: Any) -> bool:
        asked.append(hook._job.queue)
        if hook._job.queue != queue:
            raise away() if callable(away) else away
        return send(hook)

    monkeypatch.setattr(row_writer._Hook, "_is_sent", sent)
    for name in (f"{queue}-2", f"{queue}-2", queue):
        with transaction.atomic(alias):
            schedule(on(name, alias), LATER, 1)

    assert asked == [f"{queue}-2", queue]


def test_rows_of_a_queue_that_is_not_configured_stay(
    queue: str, alias: str, hand: Hand
) -> None:
    commit_unsent(queue, alias)
    OutboxRow.objects.using(alias).update(queue="elsewhere")

    swept = sweep(alias)

    assert "'elsewhere' is not configured" in next(iter(swept.problems))
    assert len(rows(alias)) == 1


def test_many_rows_go_in_batches(
    queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "BATCH", 7)
    jobs = [commit_unsent(queue, alias, n) for n in range(20)]

    parts = list(Relay(alias).sweep(fresh_ms=0))

    assert [part.seen for part in parts] == [7, 7, 6]
    assert set(hand.tokens()) == {job.token for job in jobs}
    assert rows(alias) == []


def test_batch_is_bounded_by_bytes(
    queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "BATCH_BYTES", 5_000)
    for _ in range(4):
        commit_unsent(queue, alias, "x" * 2_000)

    parts = list(Relay(alias).sweep(fresh_ms=0))

    assert [part.seen for part in parts] == [2, 2]


def test_row_stays_until_the_server_has_had_the_job_for_long_enough(
    settings: Any, queue: str, hand: Hand, alias: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX_KEEP": 300}
    job = schedule(on(queue, alias), LATER)

    assert sweep(alias) == Swept(seen=1)
    # The server has lost what it wrote last.
    hand.client.delete(*hand.client.keys(f"*{queue}*"))
    assert sweep(alias) == Swept(seen=1, sent=1)
    assert job.refresh() is State.SCHEDULED
    (score,) = hand.client.zmscore(hand.keys.sent, [job.token])
    hand.client.zadd(hand.keys.sent, {job.token: score - 301_000})
    assert sweep(alias) == Swept(seen=1, deleted=1)


def test_row_stays_if_only_a_replaced_server_has_the_job(
    settings: Any, queue: str, alias: str, private_server: Callable[..., Server]
) -> None:
    """An address has moved, and the old server goes on answering on the connections that it has."""
    old, new = private_server(), private_server()
    proxy = Proxy(old)
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": proxy.url}
    job = schedule(on(queue, alias), LATER)
    proxy.lead_to(new)

    first, second = sweep(alias), sweep(alias)

    proxy.close()
    assert (first.seen, first.deleted) == (1, 0)
    assert (second.sent, second.deleted) == (1, 1)
    with new.client() as client:
        assert Hand(client, queue).tokens() == [job.token]


def test_row_stays_until_a_replica_has_the_job_if_there_is_any(
    settings: Any,
    queue: str,
    alias: str,
    private_server: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hand_over, "REPLICA", Durable(replicas=1, timeout=0.05))
    pair = Replicated(private_server, 1)
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": pair.primary.socket_url}
    pair.replicas[0].suspend()
    schedule(on(queue, alias), LATER)

    swept = sweep(alias)

    assert (swept.seen, swept.deleted) == (1, 0)
    assert "0 of 1 replicas have acknowledged" in str(swept.problems)
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue: {"DURABLE": False}}}
    assert sweep(alias).deleted == 1
    pair.replicas[0].resume()


def test_row_that_the_server_got_while_its_clock_was_ahead_goes_in_time(
    settings: Any, queue: str, hand: Hand, alias: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX_KEEP": 300}
    job = schedule(on(queue, alias), LATER)
    (score,) = hand.client.zmscore(hand.keys.sent, [job.token])
    ahead = score + 10 * 86_400_000
    hand.client.zadd(hand.keys.sent, {job.token: ahead})

    assert sweep(alias) == Swept(seen=1)

    # It counts from now: nobody knows for how long the server has had the job.
    (counted,) = hand.client.zmscore(hand.keys.sent, [job.token])
    assert score <= counted < ahead
    hand.client.zadd(hand.keys.sent, {job.token: counted - 301_000})
    assert sweep(alias) == Swept(seen=1, deleted=1)


def test_row_whose_time_cannot_be_corrected_holds_up_no_other(
    settings: Any,
    queue: str,
    hand: Hand,
    alias: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commands that need memory are refused while the server is full."""
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX_KEEP": 300}
    job = schedule(on(queue, alias), LATER)
    (score,) = hand.client.zmscore(hand.keys.sent, [job.token])
    hand.client.zadd(hand.keys.sent, {job.token: score + 10 * 86_400_000})
    other = commit_unsent(queue, alias)

    def refused(keys: Any, tokens: Any, *, now_ms: int) -> Command[int]:
        return Command(("ZADD", keys.sent, "XX", "no number", "x"))

    monkeypatch.setattr(store_calls, "count_rows_from", refused)
    swept = sweep(alias)

    assert (swept.seen, swept.sent, swept.problems.total()) == (2, 1, 1)
    assert set(hand.tokens()) == {job.token, other.token}


def test_row_whose_job_the_server_has_is_not_sent_again(
    settings: Any, queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX_KEEP": 300}
    sent: list[str] = []
    forward = relay_module.forwarding

    def forwarding(queue: Any, drafts: Any) -> Any:
        sent.extend(draft.new.token for draft in drafts)
        return forward(queue, drafts)

    monkeypatch.setattr(relay_module, "forwarding", forwarding)
    schedule(on(queue, alias), LATER)
    unsent = commit_unsent(queue, alias)

    relay = Relay(alias)
    (first,), (second,) = (list(relay.sweep(fresh_ms=0)) for _ in range(2))
    relay.release()

    assert sent == [unsent.token]
    assert (first.seen, first.sent) == (2, 1)
    assert (second.seen, second.sent, second.deleted) == (2, 0, 0)
    # It says when a row may go, so that nobody looks each second.
    assert 200_000 < second.rest_ms <= first.rest_ms <= 300_000


def test_rows_that_were_read_long_ago_are_not_sent(
    queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was suspended in the middle cannot know what others have done with them since."""
    monkeypatch.setattr(relay_module.store_calls, "SCHEDULE_BATCH", 2)
    for _ in range(5):
        commit_unsent(queue, alias)
    passed_ms = 0.0
    call = relay_module.run

    def suspended(*args: Any) -> Any:
        nonlocal passed_ms
        reply = call(*args)
        passed_ms += ROW_REPEAT_MS + 1_000
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(relay_module, "run", suspended)
        patch.setattr(relay_module, "boottime_ms", lambda: boottime_ms() + passed_ms)
        swept = sweep(alias)

    assert (swept.seen, swept.sent, len(hand.tokens())) == (5, 2, 2)
    assert sweep(alias).sent == 3
    assert rows(alias) == []


def test_commit_that_is_suspended_before_its_call_leaves_the_row_to_a_worker(
    queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_ms = 0.0
    agreeing_on = shard_agreement.agreeing_on

    def suspended(name: str) -> Any:
        nonlocal passed_ms
        passed_ms += ROW_REPEAT_MS + 1_000
        return agreeing_on(name)

    monkeypatch.setattr(row_writer, "boottime_ms", lambda: boottime_ms() + passed_ms)
    with monkeypatch.context() as patch:
        patch.setattr(row_writer.shard_agreement, "agreeing_on", suspended)
        schedule(on(queue, alias), LATER)

    assert hand.tokens() == []
    assert sweep(alias).sent == 1


def test_row_is_sent_once_an_acl_lets_the_whole_script_pass(
    settings: Any, private_server: Callable[..., Server], queue_name: str, alias: str
) -> None:
    server = private_server()
    admin = server.client()
    rights = {"enabled": True, "passwords": ["+secret"], "keys": ["*"]}
    admin.acl_setuser("app", **rights, channels=["*"], categories=["+@all"])
    settings.DELAYQ = {
        "CONNECTION": f"redis://app:secret@127.0.0.1:{server.port}",
        "QUEUES": {queue_name: {}},
        "OUTBOX_KEEP": 0,
    }
    job = commit_unsent(queue_name, alias)
    admin.acl_setuser("app", **rights, channels=["*"], commands=["-hset"])

    stopped = sweep(alias)

    assert (stopped.sent, stopped.deleted, stopped.problems.total()) == (0, 0, 1)
    assert rows(alias) == [job.token]
    admin.acl_setuser("app", **rights, channels=["*"], commands=["+hset"])
    assert sweep(alias) == Swept(seen=1, sent=1, deleted=1)
    assert Hand(admin, queue_name).tokens() == [job.token]


def test_job_whose_unique_key_was_held_is_not_stored_once_it_is_free(
    queue: str, hand: Hand, alias: str
) -> None:
    unique = {"unique": True}
    holder = schedule(on(queue, alias, **unique), 0, 1)
    second = schedule(on(queue, alias, **unique), LATER, 1)
    assert (second.token, second.created) == (holder.token, False)
    hand.succeed(hand.take(), keep=False)
    forget_ends(hand)

    swept = sweep(alias)

    assert swept == Swept(seen=2, deleted=2)
    assert hand.tokens() == []


def test_row_keeps_unique_key_and_priority(queue: str, hand: Hand, alias: str) -> None:
    job = commit_unsent(queue, alias, 1, unique=lambda value: "a\0b", priority=7)

    sweep(alias)

    job.refresh()
    assert job.unique == "tests.outbox.note:a\0b"
    assert job.priority == 7


def test_row_can_be_neither_cancelled_nor_moved_before_its_commit(
    queue: str, hand: Hand, alias: str
) -> None:
    with transaction.atomic(using=alias):
        job = schedule(on(queue, alias, keep_result=60), LATER)

        assert not job.cancel()
        assert not job.reschedule(5)
        assert not job.reprioritize(5)
        assert not job.discard()
        assert job.state is State.UNCOMMITTED
        with pytest.raises(JobNotFound, match="waits for the commit"):
            job.wait(1)
        with pytest.raises(InvalidTask, match="is in the outbox"):
            schedule_many([job])

    assert job.reschedule(LATER)
    assert job.cancel()
    sweep(alias)
    assert hand.tokens() == []


def test_job_can_be_pickled_after_its_commit(queue: str, alias: str) -> None:
    job = schedule(on(queue, alias), LATER)

    assert pickle.loads(pickle.dumps(job)).refresh() is State.SCHEDULED


def test_aschedule_writes_a_row(queue: str, hand: Hand, alias: str) -> None:
    async def act() -> Job[Any]:
        return await aschedule(on(queue, alias), LATER)

    job = async_to_sync(act)()

    assert rows(alias) == hand.tokens() == [job.token]


def test_after_a_long_transaction_a_worker_sends(
    queue: str, hand: Hand, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has committed long ago cannot know whether the row was sent, ended and forgotten since."""
    with transaction.atomic(using=alias):
        schedule(on(queue, alias), LATER)
        begun_ms = boottime_ms()
        monkeypatch.setattr(
            row_writer, "boottime_ms", lambda: begun_ms + ROW_REPEAT_MS + 1_000
        )

    assert hand.tokens() == []
    assert sweep(alias).sent == 1


def test_setting_makes_every_task_use_the_outbox_unless_it_says_otherwise(
    settings: Any, queue: str, alias: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": True}
    task = samples.note.using(queue=queue)

    schedule(task.using(on_commit=alias), LATER)
    assert len(rows(alias)) == 1
    schedule(task.using(on_commit=alias, outbox=False), LATER)
    schedule(task.using(on_commit=False), LATER)
    assert len(rows(alias)) == 1


def test_what_changes_other_jobs_cannot_be_a_row(settings: Any, queue: str) -> None:
    options = {"queue": queue, "unique": True, "on_duplicate": "replace"}
    with pytest.raises(InvalidTask, match="on_duplicate='replace' changes a job"):
        samples.note.using(**options, outbox=True)

    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": True}
    with pytest.raises(InvalidTask, match="give outbox=False"):
        schedule(samples.note.using(**options), LATER)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidTask, match="outbox=True, on_commit=False"):
        samples.note.using(outbox=True, on_commit=False)
    with pytest.raises(InvalidTask, match="outbox='default': give True or False"):
        samples.note.using(outbox="default")


def test_alias_that_is_not_in_databases_is_refused(queue: str) -> None:
    with pytest.raises(InvalidTask, match=r"on_commit of task 'tests\.outbox\.note'"):
        schedule(samples.note.using(queue=queue, outbox=True, on_commit="no"), LATER)


def test_without_the_app_it_says_what_to_do(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_installed", None)

    with pytest.raises(InvalidSettings, match=r"add 'django_delayq\.outbox' to INST"):
        schedule(samples.note.using(queue=queue, outbox=True), LATER)


def test_two_workers_do_not_do_the_same_work(
    queue: str, hand: Hand, alias: str
) -> None:
    for n in range(3):
        commit_unsent(queue, alias, n)
    first, second = Relay(alias), Relay(alias)
    inner: list[Swept] = []
    calls: list[None] = []
    send = relay_module._send_to_queue

    def send_slowly(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            # Another worker comes while this one is at it.
            inner.extend(_in_another_thread(second, alias))
        return send(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay_module, "_send_to_queue", send_slowly)
        swept = list(first.sweep(fresh_ms=0))

    assert len(calls) == 1
    assert [(part.sent, part.deleted) for part in inner] in ([], [(0, 0)])
    assert [(part.sent, part.deleted) for part in swept] == [(3, 3)]
    first.release()
    assert len(hand.tokens()) == 3


def _in_another_thread(relay: Relay, alias: str) -> list[Swept]:
    found: list[Swept] = []

    def work() -> None:
        found.extend(relay.sweep(fresh_ms=0))
        connections[alias].close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


def test_limit_of_the_task_goes_with_the_row(
    queue: str, hand: Hand, alias: str
) -> None:
    @delayed_task(
        name="tests.outbox.limited", queue=queue, limit=Limit("one", concurrency=1)
    )
    def limited() -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_writer._Hook, "__call__", lambda hook: None)
        schedule(limited.using(outbox=True, on_commit=alias), 0)
        schedule(limited.using(outbox=True, on_commit=alias), 0)

    sweep(alias)

    assert all(b"one\0" in locator for locator in hand.client.hvals(hand.keys.locators))


@delayed_task(name="tests.outbox.guarded", encrypt=True, keep_result=60)
def guarded(text: str) -> str:
    return text


def test_row_of_an_encrypted_job_is_encrypted_and_sent_with_a_new_key(
    queue: str, alias: str, settings: Any, run_worker: Callable[..., InlineWorker]
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": ["the secret of before"]}
    of = guarded.using(queue=queue, outbox=True, on_commit=alias)
    with transaction.atomic(alias):
        job = schedule(of, 0, "c4nary")
        (row,) = OutboxRow.objects.using(alias)
        assert b"c4nary" not in bytes(row.payload) + bytes(row.beside)
        settings.DELAYQ = {
            **settings.DELAYQ,
            "KEYS": ["the secret of today", "the secret of before"],
        }
        draft = relay_module.draft_of(
            OutboxRow.objects.using(alias).annotate(age_ms=Value(0)).get(),
            conf.get_settings().queue(queue),
        )
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": ["the secret of today"]}
    found = envelopes.open_payload(draft.new.payload, queue, conf.get_keyring())
    assert found.args == ["c4nary"]
    assert job.queue == queue
