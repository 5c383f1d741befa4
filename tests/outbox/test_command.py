"""``manage.py delayq_outbox``, and what ``manage.py check`` says of the app."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError
from django.test import override_settings

from django_delayq import delayed_task
from django_delayq.checks import check_settings
from django_delayq.outbox import inbox, table_checks
from django_delayq.outbox.models import InboxRow, OutboxRow
from tests.databases import added
from tests.outbox.test_outbox import commit_unsent, rows

URL = "redis://localhost:6379/0"


def test_it_counts_rows_and_says_how_old_the_oldest_is(
    queue: str, alias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_unsent(queue, alias)
    InboxRow(job="q:1").save(force_insert=True, using=alias)

    call_command("delayq_outbox", database=alias)

    assert re.fullmatch(
        rf"{alias}: 1 row in the outbox, the oldest [\d.]+ (ms|s) old; 1 in the inbox\n",
        capsys.readouterr().out,
    )


def test_it_relays_by_hand(
    queue: str, hand: Any, alias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = commit_unsent(queue, alias)

    call_command("delayq_outbox", "--relay", database=alias)

    assert hand.tokens() == [job.token]
    assert rows(alias) == []
    out = capsys.readouterr().out
    assert f"{alias}: sent for the first time: 1; rows deleted: 1," in out
    assert f"{alias}: 0 rows in the outbox; 0 in the inbox" in out


def test_rows_that_cannot_be_sent_make_it_fail(
    queue: str, alias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_unsent(queue, alias)
    OutboxRow.objects.using(alias).update(queue="elsewhere")

    with pytest.raises(CommandError, match="rows that cannot be sent from here: 1"):
        call_command("delayq_outbox", "--relay", database=alias)

    assert "'elsewhere' is not configured" in capsys.readouterr().err


def test_unknown_database_is_told() -> None:
    with pytest.raises(CommandError, match="'no' is not in DATABASES; give one of"):
        call_command("delayq_outbox", database="no")


def test_database_without_the_table_is_told(
    django_db_blocker: Any, tmp_path: Any
) -> None:
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "bare")}
    with django_db_blocker.unblock(), added("bare", entry):
        with pytest.raises(
            CommandError, match="no table of the outbox in 'bare'"
        ) as told:
            call_command("delayq_outbox", database="bare")
    assert str(told.value).endswith(
        "run manage.py migrate delayq_outbox --database bare"
    )


@pytest.mark.parametrize("option", ["outbox", "once"])
def test_error_of_a_missing_table_says_what_to_do(
    queue: str, django_db_blocker: Any, tmp_path: Any, option: str
) -> None:
    @delayed_task(name="tests.outbox.bare", queue=queue, outbox=True, on_commit="bare")
    def row() -> None: ...

    calls: dict[str, Callable[[], object]] = {
        "outbox": lambda: row.schedule(0),
        "once": lambda: inbox.run_once("q:1", "bare", row),
    }
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "bare")}
    with django_db_blocker.unblock(), added("bare", entry):
        with pytest.raises(OperationalError, match="no such table") as failure:
            calls[option]()

    (note,) = failure.value.__notes__
    assert note.endswith("run manage.py migrate delayq_outbox --database bare")


def found(**settings: Any) -> list[tuple[str, str]]:
    with override_settings(**settings):
        return [(str(m.id), m.msg) for m in check_settings()]


def test_check_says_that_the_app_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    @delayed_task(name="tests.outbox.row", outbox=True)
    def row() -> None: ...

    @delayed_task(name="tests.outbox.once", once=True)
    def once() -> None: ...

    assert found(DELAYQ={"CONNECTION": URL}) == []
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    needs = "which needs the app django_delayq.outbox."
    assert sorted(found(DELAYQ={"CONNECTION": URL})) == [
        (
            "django_delayq.E024",
            f"Task 'tests.outbox.once' has once=True, {needs}",
        ),
        (
            "django_delayq.E024",
            f"Task 'tests.outbox.row' has outbox, {needs}",
        ),
    ]


def test_check_says_that_once_names_no_database() -> None:
    @delayed_task(name="tests.outbox.nodb", once="nodb")
    def nodb() -> None: ...

    assert found(DELAYQ={"CONNECTION": URL}) == [
        (
            "django_delayq.E025",
            "once of task 'tests.outbox.nodb' is 'nodb', which is not in DATABASES.",
        )
    ]


def test_check_says_that_a_task_cannot_follow_the_setting() -> None:
    @delayed_task(name="tests.outbox.debounced", unique=True, on_duplicate="replace")
    def debounced() -> None: ...

    ((number, text),) = found(DELAYQ={"CONNECTION": URL, "OUTBOX": True})

    assert number == "django_delayq.E027"
    assert "task 'tests.outbox.debounced'" in text


def test_deploy_check_asks_for_the_tables(
    django_db_blocker: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_checks, "DEFAULT_DB_ALIAS", "bare")
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "bare")}
    with django_db_blocker.unblock(), added("bare", entry):
        (error,) = table_checks.check_tables(databases=["bare"])
        assert error.id == "django_delayq.E026"
        assert error.msg == "Database 'bare' has no tables of django_delayq.outbox."
        assert "migrate delayq_outbox --database bare" in str(error.hint)

        assert table_checks.check_tables() == []

        call_command("migrate", "delayq_outbox", database="bare", verbosity=0)

        assert table_checks.check_tables(databases=["bare"]) == []


@pytest.mark.django_db(databases=["default", "other"])
def test_migration_is_the_models() -> None:
    call_command("makemigrations", "delayq_outbox", check=True, dry_run=True)
