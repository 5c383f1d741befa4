"""Which databases have an outbox of their own, and what their clocks say."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections
from django.db.utils import NotSupportedError

from django_delayq import InvalidTask
from django_delayq.clock import epoch_ms
from django_delayq.outbox.epoch import EpochMs
from django_delayq.outbox.models import OutboxRow
from django_delayq.outbox.relay import ReadOnlyDatabase, Relay, databases
from tests.databases import added
from tests.jobs.hand import Hand
from tests.outbox.test_outbox import commit_unsent, rows


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[str]:
    """A database that tests take for a mirror; in a file, as Django closes none in memory."""
    entry = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "replica"),
        "TEST": {"MIRROR": "default"},
    }
    with added("replica", entry) as alias:
        yield alias


class OnlyDefault:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "default" if app_label == "delayq_outbox" else None


def test_database_of_whose_tables_a_router_says_no_is_left_out(settings: Any) -> None:
    assert databases() == ["default", "other"]

    settings.DATABASE_ROUTERS = [OnlyDefault()]

    assert databases() == ["default"]


class WritesGoToPrimary:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


def test_replica_is_left_out_and_no_other_database_that_rows_may_go_to(
    settings: Any, replica: str
) -> None:
    # As Django's pages have it.
    settings.DATABASE_ROUTERS = [WritesGoToPrimary()]

    assert databases() == ["default", "other"]


@pytest.mark.parametrize("why", ["mirror", "router"])
def test_row_is_refused_where_no_worker_looks_for_it(
    queue: str, alias: str, replica: str, settings: Any, why: str
) -> None:
    if why == "router":
        settings.DATABASE_ROUTERS = [OnlyDefault()]
    else:
        alias = replica

    with pytest.raises(InvalidTask, match=f"a row of database '{alias}': no work"):
        commit_unsent(queue, alias)


# SQLite has no replicas, and its claim is a write.
@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_database_that_takes_no_writes_is_not_swept(
    queue: str, hand: Hand, alias: str, django_db_blocker: Any
) -> None:
    """A replica that nobody has named as one may have rows that are gone from its primary, and were sent long ago."""
    job = commit_unsent(queue, alias)
    entry = {
        **connections.settings[alias],
        "OPTIONS": {"options": "-c default_transaction_read_only=on"},
    }

    with django_db_blocker.unblock(), added("replica", entry):
        with pytest.raises(ReadOnlyDatabase, match="MIRROR"):
            list(Relay("replica").sweep(fresh_ms=0))

    assert hand.tokens() == []
    assert rows(alias) == [job.token]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_clock_is_epoch_ms_whatever_the_zone(
    queue: str, alias: str, zone: str, django_db_blocker: Any
) -> None:
    entry = {**connections.settings[alias], "TIME_ZONE": zone}

    with django_db_blocker.unblock(), added("zoned", entry):
        before_ms = epoch_ms()
        job = commit_unsent(queue, "zoned")
        row = (
            OutboxRow.objects.using("zoned")
            .annotate(now_ms=EpochMs())
            .get(token=job.token)
        )
        after_ms = epoch_ms()

    assert before_ms - 1 <= row.written_ms <= row.now_ms <= after_ms + 1


def test_database_without_a_clock_that_we_can_ask_is_refused() -> None:
    connection = SimpleNamespace(display_name="Oracle")

    with pytest.raises(NotSupportedError, match="does not support Oracle"):
        EpochMs().as_sql(None, connection)
