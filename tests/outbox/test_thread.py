"""The outbox's part of a worker: it relays, deletes what is old, and keeps no job from running."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import State, schedule
from django_delayq.jobs import outbox
from django_delayq.outbox import inbox, relay, thread
from django_delayq.outbox.models import InboxRow, RelayClaim
from django_delayq.outbox.relay import ReadOnlyDatabase, Relay, Swept
from django_delayq.outbox.thread import RelayThreads
from tests.databases import Postgres, added
from tests.outbox import samples
from tests.outbox.conftest import make_tables
from tests.outbox.test_outbox import commit_unsent, make_older, rows
from tests.polling import wait_until
from tests.servers import Server
from tests.worker.workers import InlineWorker

LOG = "django_delayq.outbox"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    samples.ran.clear()


def turn(alias: str, times: int = 1) -> Any:
    """Do in this thread what the relay's own does."""
    part = thread._Database(alias, threading.Event())
    for _ in range(times):
        part.turn()
    return part


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG]


def test_worker_serves_while_the_database_is_away_and_says_so_once(
    queue: str,
    run_worker: Callable[..., InlineWorker],
    django_db_blocker: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(thread, "ERROR_MS", 1.0)
    monkeypatch.setattr(thread, "LONGEST_MS", 1.0)
    monkeypatch.setattr(thread, "databases", lambda: ["away"])
    turns: list[None] = []
    note = thread._Database._note_trouble

    def note_trouble(self: Any, error: Exception) -> float:
        turns.append(None)
        return note(self, error)

    monkeypatch.setattr(thread._Database, "_note_trouble", note_trouble)
    entry = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "/dev/null/no-database",
    }
    with django_db_blocker.unblock(), added("away", entry):
        worker = run_worker()

        job = schedule(samples.note.using(queue=queue), 0, "ran")

        wait_until(lambda: len(turns) > 3, description="it has tried several times")
        wait_until(
            lambda: job.refresh() is State.SUCCEEDED, description="the job has run"
        )
        worker.stop()
    (line,) = told(caplog)
    assert "database away: its outbox cannot be served now" in line
    assert "jobs still run" in line


def test_missing_table_is_told_with_what_to_do(
    postgres: Any,
    django_db_blocker: Any,
    caplog: pytest.LogCaptureFixture,
    queue: str,
) -> None:
    caplog.set_level(logging.INFO)

    with django_db_blocker.unblock(), added("bare", postgres.make_database()):
        turn("bare", 2)

    (record,) = [each for each in caplog.records if each.name == LOG]
    # Nobody may want rows in a database that is not the default one.
    assert record.levelno == logging.INFO
    assert "it has no table delayq_outbox_inboxrow" in record.getMessage()
    assert "run manage.py migrate delayq_outbox --database bare" in record.getMessage()
    assert "INSTALLED_APPS" not in record.getMessage()


def test_missing_table_of_the_default_database_is_an_error(
    django_db_blocker: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    queue: str,
) -> None:
    monkeypatch.setattr(thread, "DEFAULT_DB_ALIAS", "bare")
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "bare")}
    with django_db_blocker.unblock(), added("bare", entry):
        turn("bare", 3)

    (record,) = [each for each in caplog.records if each.name == LOG]
    assert record.levelno == logging.ERROR
    assert "run manage.py migrate" in record.getMessage()


def test_it_says_when_the_server_is_there_again(
    settings: Any,
    private_server: Callable[..., Server],
    queue_name: str,
    alias: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = private_server()
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {queue_name: {}},
        "OUTBOX_KEEP": 0,
    }
    commit_unsent(queue_name, alias)
    make_older(alias, 10_000)
    server.kill()
    part = turn(alias, 3)
    (line,) = told(caplog)
    assert "cannot be served now" in line
    assert rows(alias)

    server.start()
    part.turn()

    assert told(caplog)[1:] == [
        f"database {alias}: the outbox is served again",
        f"database {alias}: 1 jobs of the outbox were sent that had not been sent at their commit",
    ]
    assert not rows(alias)


@pytest.fixture
def two_databases(
    postgres: Postgres,
    queue: str,
    tmp_path: Any,
    django_db_blocker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """A row waits in each: in the one that ``hangs``, because somebody has locked its table, and in the one that does not."""
    monkeypatch.setattr(thread, "databases", lambda: ["hangs", "serves"])
    hangs = postgres.make_database()
    serves = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "serves"),
        "OPTIONS": {"timeout": 20},
    }
    with django_db_blocker.unblock():
        make_tables(hangs)
        make_tables(serves)
        with added("hangs", hangs), added("serves", serves):
            for alias in ("hangs", "serves"):
                commit_unsent(queue, alias)
                make_older(alias, 10_000)
            yield
            # It ends once its database answers.
            wait_until(
                lambda: "delayq-outbox hangs" not in names_of_threads(),
                description="no thread uses it",
            )


@contextmanager
def locked(alias: str) -> Iterator[None]:
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("lock table delayq_outbox_outboxrow in access exclusive mode")
        yield


def test_database_that_hangs_is_told_of_and_holds_up_no_other(
    two_databases: None,
    run_worker: Callable[..., InlineWorker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(thread, "HANGS_MS", 100.0)

    with locked("hangs"):
        worker = run_worker()
        wait_until(lambda: not rows("serves"), description="the other is served")
        wait_until(
            lambda: any(
                "database hangs: its outbox has" in line for line in told(caplog)
            ),
            description="it is told of",
        )
    wait_until(lambda: not rows("hangs"), description="it is served as well")
    worker.stop()


def test_burst_ends_although_a_database_hangs(
    two_databases: None,
    run_worker: Callable[..., InlineWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread, "HANGS_MS", 100.0)

    with locked("hangs"):
        assert run_worker(is_burst=True).join() is not None


def test_step_that_takes_long_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    part = thread._Database("slow", threading.Event())
    part._step_ms = thread.monotonic_ms() - thread.HANGS_MS - 1

    for _ in range(2):
        part.tell_whether_it_hangs()
    part._step_ms = None
    for _ in range(2):
        part.tell_whether_it_hangs()

    assert told(caplog) == [
        "database slow: its outbox has waited for an answer for 30 s: the database hangs, or another session holds a lock;"
        " other databases are served, and jobs still run",
        "database slow: it answers again",
    ]


def test_turn_that_took_long_is_followed_by_one_as_soon_as_any(
    alias: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were committed while the database hung wait no longer for that."""
    passed_ms = 0.0
    sweep = Relay.sweep

    def hang(self: Relay) -> Iterator[Swept]:
        nonlocal passed_ms
        passed_ms += 75_000.0
        return sweep(self)

    monkeypatch.setattr(Relay, "sweep", hang)
    now_ms = thread.monotonic_ms
    monkeypatch.setattr(thread, "monotonic_ms", lambda: now_ms() + passed_ms)

    part = turn(alias)

    assert part.next_ms - thread.monotonic_ms() <= 1.1 * thread.IDLE_MS


def names_of_threads() -> set[str]:
    return {each.name for each in threading.enumerate()}


def test_replica_that_is_not_named_as_one_is_no_error(
    alias: str, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    commit_unsent(queue, alias)
    make_older(alias, 10_000)

    def refuse(alias: str) -> None:
        raise ReadOnlyDatabase("it takes no writes, so it may be a replica")

    monkeypatch.setattr(relay, "_check_takes_writes", refuse)
    turn(alias, 2)

    (record,) = [each for each in caplog.records if each.name == LOG]
    assert record.levelno == logging.INFO
    assert "it may be a replica" in record.getMessage()
    assert rows(alias)


def test_rows_that_cannot_be_sent_are_told_once(
    queue: str, alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    commit_unsent(queue, alias)
    make_older(alias, 10_000, queue="elsewhere")

    begun_ms = thread.monotonic_ms()
    part = turn(alias, 3)

    (line,) = told(caplog)
    assert "1 rows of the outbox stay" in line
    assert "'elsewhere' is not configured" in line
    # They are not worth a look each second.
    assert part.next_ms - begun_ms > 4_000


def test_idle_turn_is_one_query_for_the_rows(queue: str, alias: str) -> None:
    part = turn(alias)

    with CaptureQueriesContext(connections[alias]) as queries:
        part.turn()

    assert len(queries) == 1
    assert not RelayClaim.objects.using(alias).exists()


def test_turn_deletes_old_rows_of_the_inbox(queue: str, alias: str) -> None:
    InboxRow(job="q:old").save(force_insert=True, using=alias)
    InboxRow.objects.using(alias).update(ran_ms=F("ran_ms") - inbox.KEPT_MS - 1_000)
    InboxRow(job="q:new").save(force_insert=True, using=alias)

    turn(alias)

    assert list(InboxRow.objects.using(alias).values_list("job", flat=True)) == [
        "q:new"
    ]


def test_worker_that_ends_lets_others_relay(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    commit_unsent(queue, alias)
    make_older(alias, 10_000)

    worker = run_worker()
    wait_until(lambda: not rows(alias), description="the row is gone")
    worker.stop()

    assert not RelayClaim.objects.using(alias).exists()
    assert not [name for name in names_of_threads() if "delayq-outbox" in name]


def test_burst_sends_what_waits_before_it_looks_for_jobs(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    job = commit_unsent(queue, alias, "burst")
    make_older(alias, 10_000, start_time="+0")

    assert run_worker(is_burst=True).join() is not None

    assert samples.ran == ["burst"]
    assert job.refresh() is State.SUCCEEDED


def test_without_the_app_there_is_no_thread_and_no_query(
    queue: str,
    alias: str,
    run_worker: Callable[..., InlineWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_installed", None)
    made: list[object] = []
    monkeypatch.setattr(RelayThreads, "start", lambda *args, **kw: made.append(args))

    run_worker()
    job = schedule(samples.note.using(queue=queue), 0)

    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it has run")
    assert made == []
