"""Each database's connection is cleaned up by itself: what one raises says nothing of the others."""

import sqlite3

import pytest
from django.db import OperationalError, transaction
from django.db.utils import ConnectionHandler

from django_delayq.worker import django_connections
from django_delayq.worker.django_connections import DatabaseUse, close_connections

ALIASES = ("default", "second", "third")


@pytest.fixture
def connections(tmp_path, monkeypatch, django_db_blocker):
    """Three databases of this test, whose connections this thread keeps."""
    handler = ConnectionHandler(
        {
            alias: {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(tmp_path / alias),
                "CONN_MAX_AGE": None,
            }
            for alias in ALIASES
        }
    )
    monkeypatch.setattr(django_connections, "connections", handler)
    monkeypatch.setattr(transaction, "connections", handler)
    with django_db_blocker.unblock():
        for alias in ALIASES:
            handler[alias].cursor().execute("CREATE TABLE thing (name text)")
        yield handler
        for alias in ALIASES:
            handler[alias].close()


def broken(*args, **kwargs):
    raise OperationalError("it hangs")


def write(connections, alias, name):
    connections[alias].cursor().execute("INSERT INTO thing VALUES (%s)", [name])


def written(tmp_path, alias):
    with sqlite3.connect(tmp_path / alias) as database:
        return [name for (name,) in database.execute("SELECT name FROM thing")]


@pytest.mark.parametrize("how", ["closing", "looking"])
@pytest.mark.parametrize("bad", ALIASES)
def test_no_write_of_the_next_job_is_lost_if_one_connection_cannot_be_closed(
    connections, tmp_path, bad, how, caplog
):
    use = DatabaseUse()
    use.begin()
    for alias in ALIASES:
        if how == "closing" or alias != bad:
            transaction.atomic(using=alias).__enter__()
        write(connections, alias, "of the first job")
    raw = connections[bad].connection
    name = "_close" if how == "closing" else "close_if_unusable_or_obsolete"
    setattr(connections[bad], name, broken)
    use.end(was_interrupted=False)
    raw.close()

    use.begin()
    for alias in ALIASES:
        write(connections, alias, "of the next")
    use.end(was_interrupted=False)

    close_connections()
    for alias in ALIASES:
        assert written(tmp_path, alias)[-1:] == ["of the next"]
    assert f"a connection to database '{bad}' cannot be closed" in caplog.text


@pytest.mark.parametrize("bad", ALIASES)
def test_a_job_starts_though_a_kept_connection_cannot_be_looked_at(
    connections, tmp_path, bad
):
    use = DatabaseUse()
    for alias in ALIASES:
        write(connections, alias, "of the first job")
    use.end(was_interrupted=False)
    connections[bad].close_if_unusable_or_obsolete = broken

    use.begin()

    for alias in ALIASES:
        write(connections, alias, "of the next")
        assert written(tmp_path, alias) == ["of the first job", "of the next"]


@pytest.mark.parametrize("bad", ALIASES)
def test_all_other_connections_are_closed_if_one_cannot_be(connections, bad):
    raw = {alias: connections[alias].connection for alias in ALIASES}
    connections[bad]._close = broken

    close_connections()

    for alias in set(ALIASES) - {bad}:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            raw[alias].execute("SELECT 1")
    raw[bad].close()
