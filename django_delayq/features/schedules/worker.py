"""Moves periodic schedules on: enrolls those in code, and at each occurrence has the job of the next one stored.

Every process does this for its queues, and the first process at an occurrence does it for all. The claim loop decides when.
"""

import math
from typing import Any

import msgspec
from redis.client import Redis

from django_delayq.clock import monotonic_ms
from django_delayq.core.store import NewJob
from django_delayq.exceptions import DelayqError, TaskNotFound
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules.calls import Entry
from django_delayq.features.schedules.known_schedules import Found, Known, loading
from django_delayq.features.schedules.moves import (
    TAKE_OVER_MS,
    Move,
    is_later,
    is_left,
    loading_others,
    moving,
)
from django_delayq.features.schedules.periodic import Definition
from django_delayq.features.schedules.register import FIELD
from django_delayq.features.schedules.writes import arranging, missed
from django_delayq.jobs.registry import get_task
from django_delayq.logs import get_log
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from django_delayq.worker import job_signals
from django_delayq.worker.queue_state import QueuePart, QueueState

logger = get_log("django_delayq.worker")

#: How often a process looks whether definitions have changed; mostly a message says so before.
LOOK_MS = 60_000.0
#: How often it looks whether a schedule may come from another queue.
MOVE_MS = 2_000.0
#: So many schedules are enrolled, and so many moved on, before the loop looks at jobs again.
ENROLL_BATCH = 10
ADVANCE_BATCH = 8
#: Bytes of text that are signed anew in one step, about.
SIGN_BYTES = 1 << 20
#: A server's clock that is set back by more has every schedule looked at.
SET_BACK_MS = 60_000


class SchedulesOfQueue(QueuePart):
    """Looks after the schedules of one queue."""

    wakes = frozenset({schedule_calls.CHANGED})

    def __init__(self, client: Redis, queue: QueueState) -> None:
        super().__init__(client, queue)
        #: When to look at the definitions next, by our monotonic clock. Other threads set it to 0.
        self.next_ms = 0.0
        # The server's clock less our monotonic one, ms.
        self._offset_ms = 0.0
        # Occurrences may have been stored while the server's clock was ahead. To look at all of them costs.
        self._is_ahead = True
        self._known: Known | None = None
        # The schedules that this process moves on, and the occurrences whose jobs wait.
        self._ours: dict[str, Found] = {}
        self._occurrences: dict[str, int] = {}
        self._behind: dict[str, int] = {}
        # What the last look said of schedules that other queues have.
        self._moves: set[Move] = set()
        # Whether no living process had later code when we last heard of it.
        self._is_latest = False
        # What our code defines; found out once.
        self._code: dict[str, Definition] | None = None
        self._told: set[str] = set()
        # Not before this time, by our monotonic clock, does this process sign anew again; and whether there is something to.
        self._sign_ms = 0.0
        self._is_unsigned = False

    @property
    def has_schedules(self) -> bool:
        return bool(definitions.schedules_on(self._settings.name))

    def is_due(self, now_ms: float, now_us: int | None) -> bool:
        if self._queue.is_paused:
            # What comes while the queue is paused is missed, or all of it would run at its end.
            return False
        self._note_latest(self._queue.upkeep.is_latest)
        if now_us is None:
            now_us = int((now_ms + self._offset_ms) * 1000)
        return now_ms >= self.next_ms or now_us >= self.due_us

    def _note_latest(self, is_latest: bool) -> None:
        """Note whether no living process has later code."""
        if is_latest and not self._is_latest:
            self.forget()
        self._is_latest = is_latest

    def rest(self, now_ms: float, error: Exception) -> None:
        super().rest(now_ms, error)
        self.due_us, self._known = math.inf, None

    def forget(self) -> None:
        self.next_ms, self._known = 0.0, None

    def turn(self, now_ms: float, now_us: int | None) -> bool:
        """Do what is due, in bounded steps; return whether there is more."""
        if now_us is not None and self._is_set_back(now_us / 1000 - now_ms):
            self.forget()
        if now_ms >= self.next_ms:
            self._look(now_ms)
        server_ms = int(now_ms + self._offset_ms) if now_us is None else now_us // 1000
        due = [name for name, at in self._occurrences.items() if at <= server_ms]
        for name in due[:ADVANCE_BATCH]:
            self._advance(name, server_ms)
        first_ms = min(self._occurrences.values(), default=None)
        self.due_us = math.inf if first_ms is None else first_ms * 1000
        self._pause.note_success()
        return self.next_ms <= now_ms or self.due_us <= server_ms * 1000

    def _is_set_back(self, offset_ms: float) -> bool:
        """Take in how far the server's clock is from ours; return whether it has been set back."""
        is_set_back = offset_ms < self._offset_ms - SET_BACK_MS
        self._offset_ms = offset_ms
        # What waits may be far from its schedule's next occurrence.
        self._is_ahead = self._is_ahead or is_set_back
        return is_set_back

    # Definitions.

    def _look(self, now_ms: float) -> None:
        """Read the definitions if they have changed, and enroll ours."""
        self.next_ms = now_ms + LOOK_MS
        if self._code is None:
            self._code = self._read_code()
        stored: Any = self._client.hget(self._settings.keys.schedules, "version")
        version = schedule_calls.read_version(stored)
        known = self._known
        if known is not None and known.version == version and not self._is_overdue():
            return
        if not version and not self._code:
            self._ours, self._occurrences = {}, {}
            return
        known = perform(self._client, loading(self._settings))
        self._is_set_back(known.now_us / 1000 - monotonic_ms())
        if self._enroll(known):
            # What we have changed, or somebody else, is read anew.
            self.next_ms, self._known = now_ms, None
            return
        self._known, self._is_ahead = known, False
        self._take_in(known)
        if self._is_unsigned:
            # That changes no version.
            self._known = None
        if self._moves:
            # What another queue has does not change the version of this one.
            self._known = None
            if Move.WAITS in self._moves:
                self.next_ms = now_ms + MOVE_MS

    def _is_overdue(self) -> bool:
        known = self._known
        server_ms = monotonic_ms() + self._offset_ms
        return known is not None and any(
            entry.occurrence_ms is not None
            and self._occurrences.get(name, entry.occurrence_ms) + TAKE_OVER_MS
            < server_ms
            for name, entry in known.entries.items()
        )

    def _read_code(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for name, schedule in definitions.schedules_on(self._settings.name).items():
            try:
                definitions.check(schedule)
                found[name] = schedule.definition()
            except DelayqError as error:
                self._tell(name, error)
        return found

    def _tell(self, name: str, error: Exception) -> None:
        """Log once what stops a schedule; the others continue."""
        text = f"{name}: {error}"
        if text not in self._told:
            self._told.add(text)
            logger.error(
                "queue %s: schedule %s stops here: %s",
                self._settings.name,
                name,
                error,
            )

    def _tell_of_limit(self, name: str, limit: str) -> None:
        """Log once that a schedule was stored before its task got a limit: a job has one, and gets that of its task."""
        text = f"{name}: limit {limit}"
        if text not in self._told:
            self._told.add(text)
            logger.warning(
                "queue %s: schedule %s was stored with overlap=False, but its task now has the limit %s, which applies instead",
                self._settings.name,
                name,
                limit,
            )

    def _enroll(self, known: Known) -> bool:
        """Write what our code defines and the server does not know; return whether something may have changed."""
        assert self._code is not None
        todo: list[tuple[Found, bytes | str]] = []
        self._moves, others = set(), None
        is_latest: bool | None = None
        loaded_ms = self._queue.upkeep.load_time.by(known.now_ms)
        for name, plain in self._code.items():
            if len(todo) == ENROLL_BATCH:
                break
            definition = msgspec.structs.replace(plain, loaded_ms=loaded_ms)
            found = known.find(name)
            if found is not None and not found.is_stored:
                if definition.is_like(found.definition):
                    continue
                if is_latest is None:
                    # Even if ours is later: else a process that has not heard of us yet would take it back.
                    is_latest = self._queue.upkeep.ask_whether_latest()
                if not is_latest and not is_later(definition, found, known.now_ms):
                    continue
            entry = known.entries.get(name) or Entry()
            if known.is_of_another_key(name) and not is_left(entry, known.now_ms):
                continue
            if found is None:
                if others is None:
                    others = perform(self._client, loading_others(known.queue))
                coming = moving(known, others, name, definition)
                try:
                    move = perform(self._client, coming)
                except DelayqError as error:
                    self._tell(name, error)
                    continue
                if move is Move.AGAIN:
                    return True
                if move is not Move.NEW:
                    self._moves.add(move)
                    continue
            change = known.change_of(name)
            new = Found(self._settings, name, entry, definition, change, False)
            text = definitions.sealed(self._settings.name, "code", name, definition)
            todo.append((new, text))
        if not todo:
            todo = [
                (found, schedule_calls.KEPT)
                for found in known.found()
                if self._is_ours(found, known) and self._is_broken(found, known.now_ms)
            ]
        if not todo and self._sign_anew(known):
            return True
        version = known.version
        for found, code in todo[:ENROLL_BATCH]:
            try:
                steps = arranging(known._replace(version=version), found, code=code)
                version = perform(self._client, steps)
            except DelayqError as error:
                self._tell(found.name, error)
                continue
            if not version:
                # Another process was quicker.
                return True
            if code != schedule_calls.KEPT:
                logger.info(
                    "queue %s: schedule %s is enrolled: %s",
                    self._settings.name,
                    found.name,
                    found.when,
                )
        return version != known.version

    def _sign_anew(self, known: Known) -> bool:
        """Sign with the key that signs now what another one, or an earlier version, has signed; return whether to look again.

        So an earlier key can be retired: nobody has to store anything again. Once a minute at most: while keys change,
        another worker may sign with the key before. Schedules that are gone leave the register at once.
        """
        texts = known.signed_anew()
        self._is_unsigned = bool(texts)
        if monotonic_ms() < self._sign_ms:
            texts = known.pruned()
        if not texts:
            return False
        batch, size = dict[str, bytes](), 0
        # A register first: an earlier version has none, and no text may say that there is one before there is.
        for field in sorted(texts, key=lambda field: not field.startswith(FIELD)):
            if size >= SIGN_BYTES:
                break
            batch[field], size = texts[field], size + len(texts[field])
        call = schedule_calls.reseal(self._settings.keys, known.version, batch)
        if run(self._client, call) and len(batch) == len(texts):
            self._is_unsigned = False
            self._sign_ms = monotonic_ms() + LOOK_MS
        return True

    def _is_broken(self, found: Found, now_ms: int) -> bool:
        """Whether what keeps a schedule going is missing, or a later definition has not come to its occurrence yet."""
        if found.is_paused:
            return False
        state = found.entry.state
        if state.print != found.print:
            return True
        occurrence_ms = found.entry.occurrence_ms
        if occurrence_ms is not None and not self._is_ahead:
            return False
        try:
            next_ms = found.next_ms(now_ms)
        except DelayqError as error:
            # This machine does not know its zone.
            self._tell(found.name, error)
            return False
        # An occurrence after the next one was stored while the server's clock was ahead.
        return next_ms is not None and (
            occurrence_ms is None or occurrence_ms > next_ms
        )

    def _is_ours(self, found: Found, known: Known) -> bool:
        """Whether this process knows all that the jobs of a schedule need: else others move it on, or nobody does."""
        assert self._code is not None
        if known.is_of_another_key(found.name) and not is_left(
            found.entry, known.now_ms
        ):
            return False
        if not found.is_stored:
            code = self._code.get(found.name)
            return code is not None and code.is_like(found.definition)
        try:
            task = get_task(found.definition.task)
        except TaskNotFound:
            return False
        if found.definition.drops and task.options.limit is not None:
            self._tell_of_limit(found.name, task.options.limit.name)
        return True

    def _take_in(self, known: Known) -> None:
        self._ours = {
            found.name: found for found in known.found() if self._is_ours(found, known)
        }
        before = self._occurrences
        self._occurrences = {
            name: found.entry.occurrence_ms
            for name, found in self._ours.items()
            if found.entry.occurrence_ms is not None and not found.is_paused
        }
        self._behind = {
            name: found.entry.state.behind_count for name, found in self._ours.items()
        }
        for name, occurrence_ms in list(self._occurrences.items()):
            known_ms = before.get(name, 0)
            if known_ms > occurrence_ms and self._is_next(name, known_ms, known.now_ms):
                self._store_again(name, known_ms)

    # Occurrences.

    def _advance(self, name: str, now_ms: int) -> None:
        """Move one schedule on from an occurrence that has come."""
        found, seen_ms = self._ours[name], self._occurrences[name]
        queue = self._settings
        try:
            jobs, occurrences, behind = self._plan(found, seen_ms, now_ms)
        except DelayqError as error:
            self._tell(name, error)
            del self._occurrences[name]
            return
        next_ms = occurrences[-1]
        reply = run(
            self._client,
            schedule_calls.advance(
                queue.target,
                name,
                jobs,
                print=found.print,
                seen_ms=seen_ms,
                next_ms=next_ms,
                fired_ms=max(seen_ms, *(each or 0 for each in occurrences[:-1]), 0),
                behind=behind,
            ),
        )
        if reply.has_moved:
            job_signals.send_scheduled(
                queue.name, jobs[:-1] if reply.is_early else jobs
            )
        if self._known is not None and reply.version != self._known.version:
            self.next_ms = 0.0
        self._behind[name] = reply.behind
        if not reply.has_moved and reply.occurrence_ms in (None, seen_ms):
            # It is paused, or goes by another definition, or somebody has deleted what moves it on: a look tells.
            del self._occurrences[name]
            self.forget()
        elif reply.occurrence_ms is None:
            del self._occurrences[name]
        else:
            self._occurrences[name] = reply.occurrence_ms
            if not reply.has_moved and reply.occurrence_ms < seen_ms:
                self._store_again(name, seen_ms)

    def _store_again(self, name: str, occurrence_ms: int) -> None:
        """Store the job of an occurrence that the server has lost, as after a failover: it has an earlier one."""
        self._advance(name, occurrence_ms - 1)

    def _is_next(self, name: str, occurrence_ms: int, now_ms: int) -> bool:
        """Whether a schedule comes to no other occurrence before this one. It may, if a clock was set back."""
        try:
            next_ms = self._ours[name].when.after(now_ms)
        except DelayqError:
            # This machine does not know its zone.
            return False
        return next_ms is None or occurrence_ms <= next_ms

    def _plan(
        self, found: Found, seen_ms: int, now_ms: int
    ) -> tuple[list[NewJob], list[int | None], int]:
        """Return the jobs that an occurrence brings, their occurrences, and how many missed ones that makes in a row.

        The last occurrence is the next one, None if there is no further.
        """
        when, made, behind = found.when, dict[int, NewJob](), 0
        if found.definition.catch_up != "all":
            next_ms = when.after(max(seen_ms, now_ms))
        else:
            behind = self._behind.get(found.name, 0)
            made, is_over = missed(
                found, found, seen_ms=seen_ms, now_ms=now_ms, behind=behind
            )
            next_ms = when.after(now_ms if is_over else max(made, default=seen_ms))
            is_behind = next_ms is not None and next_ms <= now_ms
            behind = behind + len(made) + 1 if is_behind else 0
        early = found.entry.state.early_ms
        jobs = [job for at, job in made.items() if at not in early]
        if next_ms is not None:
            jobs.append(found.job(next_ms, when.after(next_ms)))
        return jobs, [*made, next_ms], behind
