"""A real PostgreSQL for tests: a private cluster on a Unix socket, in a short temporary directory.

It dies with the process that started it, even when that one is killed. PostgreSQL refuses to run as root, so where tests
do, it runs as ``postgres`` or ``nobody``. Debian's package ``postgresql`` has what this needs.
"""

import atexit
import contextlib
import functools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.db import connections

from tests.polling import POLL_S

#: Long enough for a loaded machine to make a cluster and to start it.
READY_TIMEOUT_S = 60.0
#: Reads until our end of the pipe closes, which it does however we end.
REAPER = 'read _; kill -QUIT "$1"; sleep 1; rm -rf "$2"'
#: The role that owns everything; nobody but this machine can connect.
USER = "delayq"
#: What our own connections are called.
OURS = "delayq-tests"
#: A cluster of a test is thrown away: what a power cut would lose does not matter, and initdb is quick.
OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
}


class PostgresUnavailable(Exception):
    """Raised where no PostgreSQL is installed, or no user who could run it."""


@functools.cache
def binaries() -> Path:
    """Return the folder of ``postgres`` and ``initdb``.

    Raises:
        PostgresUnavailable: this machine has none.
    """
    # Debian keeps them off the PATH.
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2])
    )
    for folder in [*reversed(found), *map(Path, os.get_exec_path())]:
        if all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb")):
            # A link elsewhere would not find its libraries.
            return (folder / "postgres").resolve().parent
    raise PostgresUnavailable("no postgres on this machine")


def is_required() -> bool:
    return os.environ.get("DELAYQ_TEST_REQUIRE_POSTGRES") == "1"


class Postgres:
    """A cluster of our own."""

    def __init__(self) -> None:
        self.binaries = binaries()
        self.directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._who = _unprivileged()
        #: A database with tables that others are made of, by what needs it.
        self.templates: dict[str, str] = {}
        # Ours, by database.
        self._connections: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the cluster does not run"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> "Postgres":
        """Make the cluster if there is none, start it, and return once it answers."""
        atexit.register(self.stop)
        data = self.directory / "data"
        if not data.exists():
            if "user" in self._who:
                os.chown(self.directory, self._who["user"], self._who["group"])
            subprocess.run(
                [
                    self.binaries / "initdb",
                    f"--pgdata={data}",
                    f"--username={USER}",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-sync",
                ],
                check=True,
                capture_output=True,
                cwd="/",
                **self._who,
            )
        options = {**OPTIONS, "unix_socket_directories": str(self.directory)}
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.binaries / "postgres",
                    "-D",
                    str(data),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # an interrupt at the terminal is not for it
                **self._who,
            )
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", REAPER, "sh", str(self.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_ready()
        return self

    def _wait_until_ready(self) -> None:
        from psycopg import OperationalError

        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            # Until it listens, and while it recovers, it refuses.
            with contextlib.suppress(OperationalError):
                self.execute("select 1")
                return
            time.sleep(POLL_S)
        raise AssertionError(f"PostgreSQL did not start:\n{self.log}")

    def stop(self) -> None:
        """End the cluster for good, with all that it holds."""
        atexit.unregister(self.stop)
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, number: int = signal.SIGQUIT) -> None:
        """End it as a crash does; `start` recovers it."""
        if self._process is None or self._reaper is None:
            return
        while self._connections:
            self._connections.popitem()[1].close()
        self._process.send_signal(number)
        self._process.wait(READY_TIMEOUT_S)
        assert self._reaper.stdin is not None
        # Afterwards the pid may belong to somebody else.
        self._reaper.kill()
        self._reaper.stdin.close()
        self._reaper.wait()
        self._process = self._reaper = None

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement outside Django, and return its rows."""
        import psycopg

        if database not in self._connections:
            self._connections[database] = psycopg.connect(
                host=str(self.directory),
                user=USER,
                dbname=database,
                application_name=OURS,
                autocommit=True,
            )
        cursor = self._connections[database].execute(statement)
        return cursor.fetchall() if cursor.description else []

    def make_database(self, template: str = "template1") -> dict[str, Any]:
        """Make a database, empty or like another one that nobody uses, and return its entry for DATABASES."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        self.execute(f"create database {name} template {template}")
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": USER,
            "HOST": str(self.directory),
        }

    def sessions(self, database: str) -> list[tuple[str, str]]:
        """Return the state and the last statement of each of Django's connections to a database."""
        rows = self.execute(
            "select coalesce(state, ''), query from pg_stat_activity"
            f" where datname = '{database}' and application_name <> '{OURS}' and backend_type = 'client backend'"
        )
        return [(state, query) for state, query in rows]


def _unprivileged() -> dict[str, Any]:
    """Return what makes a child run as a user whom PostgreSQL accepts."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            who = pwd.getpwnam(name)
            return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    raise PostgresUnavailable("PostgreSQL refuses root, and there is no other user")


@contextlib.contextmanager
def added(alias: str, settings: dict[str, Any]) -> Iterator[str]:
    """Have Django know one more database for a while."""
    assert alias not in connections.settings
    assert re.fullmatch(r"\w+", alias)
    connections.settings[alias] = settings
    # The defaults of whatever the entry leaves out.
    connections.configure_settings(connections.settings)
    try:
        yield alias
    finally:
        if hasattr(connections._connections, alias):
            connections[alias].close()
            del connections[alias]
        del connections.settings[alias]
