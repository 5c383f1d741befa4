"""The app installed, a queue, and databases of each kind with its tables."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connections

from django_delayq.jobs import outbox
from django_delayq.outbox import row_writer, thread
from django_delayq.outbox.part import OutboxPart
from tests.databases import Postgres, added
from tests.jobs.hand import Hand
from tests.servers import ExternalServer, Server
from tests.worker.workers import InlineWorker


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    monkeypatch.setattr(row_writer, "_quiet_until_ms", {})


@pytest.fixture
def queue(settings: Any, server: Server | ExternalServer, queue_name: str) -> str:
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {queue_name: {}, f"{queue_name}-2": {}},
        # A test of its own is about this.
        "OUTBOX_KEEP": 0,
    }
    return queue_name


@pytest.fixture
def hand(client: "redis.Redis[bytes]", queue: str) -> Hand:
    return Hand(client, queue)


@pytest.fixture(params=["sqlite", "postgres"])
def alias(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    django_db_setup: None,
    django_db_blocker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """A database with the tables of the app, and with `ContentType` to stand for what a project keeps."""
    with django_db_blocker.unblock():
        if request.param == "postgres":
            entry = _postgres_entry(request.getfixturevalue("postgres"))
        else:
            entry = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(tmp_path / "db.sqlite3"),
                "OPTIONS": {"timeout": 20},
            }
            make_tables(entry)
    with django_db_blocker.unblock(), added(f"of_{request.param}", entry) as alias:
        monkeypatch.setattr(thread, "databases", lambda: [alias])
        yield alias


def _postgres_entry(cluster: Postgres) -> dict[str, Any]:
    if "outbox" not in cluster.templates:
        entry = cluster.make_database()
        make_tables(entry)
        cluster.templates["outbox"] = entry["NAME"]
    return cluster.make_database(cluster.templates["outbox"])


def make_tables(entry: dict[str, Any]) -> None:
    with added("new", entry) as alias:
        call_command("migrate", "delayq_outbox", database=alias, verbosity=0)
        with connections[alias].schema_editor() as editor:
            editor.create_model(ContentType)


@pytest.fixture
def run_worker(queue: str) -> Iterator[Callable[..., InlineWorker]]:
    """Start a worker in this process."""
    with ExitStack() as stack:

        def start(**options: Any) -> InlineWorker:
            worker = InlineWorker([queue], **options)
            stack.callback(worker.stop)
            return worker.start()

        yield start
