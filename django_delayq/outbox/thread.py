"""The outbox's part of a worker's process: one thread for each database, beside everything else, that sweeps it.

Whatever goes wrong here keeps no job from running, and no other database from being served: it is logged once, and tried
again. One more thread reports a database that does not answer, because the thread of that one waits for it.
"""

import random
import threading
from contextlib import suppress

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import DatabaseError, InterfaceError
from redis.exceptions import RedisError

from django_delayq import faults
from django_delayq.clock import monotonic_ms
from django_delayq.logs import get_log
from django_delayq.outbox import inbox
from django_delayq.outbox.models import InboxRow
from django_delayq.outbox.relay import (
    ReadOnlyDatabase,
    Relay,
    Swept,
    databases,
    has_table,
)
from django_delayq.outbox.row_writer import migrating
from django_delayq.redaction import redact

logger = get_log("django_delayq.outbox")

#: The pause before the next sweep, ms, if there was nothing to do; a row that nobody has sent waits for so long.
IDLE_MS = 5_000.0
#: The shortest pause after a sweep that met rows: some of them may go at the next one.
BUSY_MS = 1_000.0
#: The pause after an error; it doubles with each that follows.
ERROR_MS = 2_000.0
LONGEST_MS = 60_000.0
#: How often old rows of the inbox are deleted, and how many statements of that one turn makes.
INBOX_MS = 600_000.0
INBOX_STEPS = 20
#: A step that takes longer than this is told of: a batch of rows takes a second at most, and the server has time-outs.
HANGS_MS = 30_000.0


class RelayThreads:
    """Sweeps every database from time to time."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._watch = threading.Thread(
            target=self._look_for_hangs, name="delayq-outbox", daemon=True
        )
        self._databases: list[_Database] = []

    def start(self, *, sweep_first: bool) -> None:
        """Begin; with ``sweep_first``, return once all present rows were looked at, except in databases that hang."""
        try:
            self._databases = [_Database(alias, self._stop) for alias in databases()]
        except Exception:
            # It asks the project's routers.
            logger.exception(
                "no outbox is served: cannot find out which databases have one"
            )
        for database in self._databases:
            database.thread.start()
        self._watch.start()
        if sweep_first:
            for database in self._databases:
                database.wait_for_first_turn()

    def stop(self, timeout_s: float) -> None:
        """End; wait ``timeout_s`` at most."""
        self._stop.set()
        until_ms = monotonic_ms() + timeout_s * 1000
        for thread in (self._watch, *(each.thread for each in self._databases)):
            thread.join(max(0.0, until_ms - monotonic_ms()) / 1000)

    def _look_for_hangs(self) -> None:
        while self._databases and not self._stop.wait(HANGS_MS / 3000):
            for database in self._databases:
                database.tell_whether_it_hangs()


class _Database:
    """One database, and the thread that sweeps it."""

    def __init__(self, alias: str, stop: threading.Event) -> None:
        self._alias = alias
        self._stop = stop
        self._relay = Relay(alias)
        self.thread = threading.Thread(
            target=self._run, name=f"delayq-outbox {alias}", daemon=True
        )
        self._had_first_turn = threading.Event()
        #: When its next turn comes, by our monotonic clock.
        self.next_ms = 0.0
        self._inbox_ms = 0.0
        # Since when it waits for the database or the server; None: it waits for its next turn. Written by its own thread,
        # read by the watch's.
        self._step_ms: float | None = None
        # The step that was told of, as one that takes long. The watch's.
        self._hung_ms: float | None = None
        # What was logged, so that it is told once.
        self._trouble = ""
        self._problems: set[str] = set()
        self._errors = 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.turn()
                self._had_first_turn.set()
                self._stop.wait(max(0.0, self.next_ms - monotonic_ms()) / 1000)
            self._end()
        except BaseException:
            logger.exception(
                "database %s: this process no longer serves its outbox; other workers do, and this one would after a"
                " restart",
                self._alias,
            )
        finally:
            self._step_ms = None
            self._had_first_turn.set()
            connections.close_all()

    def wait_for_first_turn(self) -> None:
        # Whether it hangs is looked at each second.
        while not self._had_first_turn.wait(1):
            if self._waits_ms() > HANGS_MS:
                return

    def tell_whether_it_hangs(self) -> None:
        """Say so once a step takes long, and once it has ended."""
        if self._waits_ms() > HANGS_MS:
            if self._hung_ms is None:
                self._hung_ms = self._step_ms
                logger.error(
                    "database %s: its outbox has waited for an answer for %.0f s: the database hangs, or another"
                    " session holds a lock; other databases are served, and jobs still run",
                    self._alias,
                    HANGS_MS / 1000,
                )
        elif self._hung_ms is not None and self._hung_ms != self._step_ms:
            self._hung_ms = None
            logger.info("database %s: it answers again", self._alias)

    def _waits_ms(self) -> float:
        step_ms = self._step_ms
        return 0.0 if step_ms is None else monotonic_ms() - step_ms

    def turn(self) -> None:
        """Sweep once; never raise."""
        begun_ms = self._step_ms = monotonic_ms()
        total = Swept()
        try:
            connections[self._alias].close_if_unusable_or_obsolete()
            for swept in self._relay.sweep():
                self._step_ms = monotonic_ms()
                total = total.and_then(swept)
                if self._stop.is_set():
                    break
            self._delete_old()
            connections[self._alias].close_if_unusable_or_obsolete()
            wait_ms = self._note_end(total, monotonic_ms() - begun_ms)
        except Exception as error:
            wait_ms = self._note_trouble(error)
        self._step_ms = None
        self.next_ms = monotonic_ms() + wait_ms * random.uniform(0.9, 1.1)

    def _end(self) -> None:
        """Let others relay."""
        try:
            self._relay.release()
        except Exception as error:
            logger.debug("database %s: %s", self._alias, error)

    def _delete_old(self) -> None:
        now_ms = monotonic_ms()
        if now_ms < self._inbox_ms:
            return
        for _ in range(INBOX_STEPS):
            if self._stop.is_set() or inbox.delete_old(self._alias) < inbox.DELETED:
                self._inbox_ms = now_ms + INBOX_MS
                return
            self._step_ms = monotonic_ms()
        # There are more: the next turn goes on.

    def _note_end(self, total: Swept, took_ms: float) -> float:
        if self._trouble:
            logger.info("database %s: the outbox is served again", self._alias)
        self._trouble, self._errors = "", 0
        if total.sent:
            logger.info(
                "database %s: %d jobs of the outbox were sent that had not been sent at their commit",
                self._alias,
                total.sent,
            )
        for problem, count in total.problems.items():
            if problem not in self._problems:
                logger.error(
                    "database %s: %d rows of the outbox stay, because this worker cannot send them: %s;"
                    " manage.py delayq_outbox shows what is left",
                    self._alias,
                    count,
                    problem,
                )
        self._problems = set(total.problems)
        if total.problems and total.seen == total.problems.total():
            # Where only rows are left that nobody can send, they are looked at less often the more there are.
            return min(LONGEST_MS, max(IDLE_MS, 2 * took_ms))
        return min(IDLE_MS, max(BUSY_MS, total.rest_ms))

    def _note_trouble(self, error: Exception) -> float:
        text, level = redact(f"{type(error).__name__}: {error}".strip()), logger.error
        # By its kind, it is told once: the same trouble may have other words each time, such as a port.
        is_database = isinstance(error, DatabaseError | InterfaceError)
        is_server = isinstance(error, RedisError | OSError)
        is_passing = is_server and not faults.is_to_be_mended(error)
        longest_ms = IDLE_MS if is_passing else LONGEST_MS
        wait_ms: float = min(longest_ms, ERROR_MS * 2.0**self._errors)
        self._errors = min(self._errors + 1, 10)
        kind = "database" if is_database else "server" if is_server else text
        if isinstance(error, ReadOnlyDatabase):
            text, level = str(error), logger.info
            wait_ms, kind = LONGEST_MS, "replica"
        elif is_database and self._lacks_table():
            text = f"it has no table {InboxRow._meta.db_table}: run {migrating(self._alias)}"
            if self._alias != DEFAULT_DB_ALIAS:
                text += (
                    "; if no job is to be a row there, let allow_migrate() of a database router return False for"
                    " delayq_outbox"
                )
                level = logger.info
            wait_ms, kind = LONGEST_MS, "table"
        if kind != self._trouble:
            self._trouble = kind
            level(
                "database %s: its outbox cannot be served now, trying again; jobs still run: %s",
                self._alias,
                text,
                exc_info=not is_database and not is_server,
            )
        # A connection that has failed in the middle is not to be trusted, and may fail once more.
        with suppress(Exception):
            connections[self._alias].close()
        return wait_ms

    def _lacks_table(self) -> bool:
        try:
            return not has_table(self._alias)
        except Exception:
            # The database is away; that was the error.
            return False
