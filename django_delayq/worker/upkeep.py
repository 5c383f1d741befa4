"""Upkeep of a queue by a worker process, from time to time, so that nothing grows without bound.

It deletes dead letters and quarantined payloads that are too old, removes fields that belong to no job any more, and
warns of what grows. Every step is one bounded call; the claim loop decides when it has a moment for the next.
"""

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from shlex import quote

from redis.client import Redis
from redis.exceptions import NoPermissionError, RedisError

from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.conf import QueueSettings, get_keyring
from django_delayq.core import prefixes, queue_reads, worker_code
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.frame_heads import is_numbered, read_heads, survey
from django_delayq.core.rates import numbers_of
from django_delayq.core.states import State
from django_delayq.core.sweep import Which
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.health.queue_problems import (
    LONG_LIST,
    find_nearly_full,
    find_other_format,
)
from django_delayq.jobs.registry import all_limits
from django_delayq.logs import get_log
from django_delayq.transport.clients import own_clients
from django_delayq.transport.connections import has_nodes
from django_delayq.transport.run import run
from django_delayq.wire.frame import format_of
from django_delayq.worker.outage import FORGOTTEN, StepPause, forgotten_s, is_queues_own

logger = get_log("django_delayq.worker")

#: The pause between two rounds.
ROUND_MS = 60_000.0
#: The pause after a part of a hash in which nothing was forgotten: a million fields take half a day, and hardly any
#: work.
PART_MS = 4_000.0
#: The pause after a part in which something was forgotten: there is more.
BUSY_MS = 20.0
#: Where there are too many dead letters, only those older than this are deleted: by then somebody has seen the warning.
YOUNGEST = timedelta(days=1)


class Upkeep:
    """Looks after one queue; call `turn` whenever `next_ms` has come."""

    def __init__(
        self,
        client: Redis,
        settings: QueueSettings,
        owner: bytes,
        has_schedules: Callable[[], bool] = lambda: False,
    ) -> None:
        """``has_schedules`` says whether our code has schedules of the queue."""
        self._client = client
        self._has_schedules = has_schedules
        self._owner = owner
        self._settings = settings
        self._steps = self._paced()
        #: When the next step may be done, by our monotonic clock.
        self.next_ms = 0.0
        #: An insertion list longer than this is worth a warning.
        self._long_list = LONG_LIST
        # Whether it was logged that the queue is nearly full.
        self._is_full_told = False
        # Whether it was logged that Redisson does not read some frames.
        self._is_format_told = False
        # In how many looks in a row a stranger listened; None: it was logged, and nobody looks any more.
        self._strangers: int | None = 0
        # So many dead letters are worth a warning.
        self._many_dead = settings.many_dead
        self._problem = ""
        self._pause = StepPause()
        # When the server last noted that we serve the queue, by its clock, epoch ms; None: it has not.
        self._kept_ms: int | None = None
        #: The server knows that tasks of our code have limits.
        self.has_declared = False
        #: When our code was loaded, by the server's clock.
        self.load_time = worker_code.LoadTime()
        #: No living process has later code with schedules of this queue.
        self.is_latest = False
        # When to declare our code again, by our monotonic clock; infinity: not before the next round of steps.
        self._declare_ms = math.inf

    def turn(self, now_ms: float) -> None:
        """Do the next step.

        Raises:
            redis.exceptions.RedisError, OSError: the server is away.
        """
        try:
            self.next_ms = now_ms + next(self._steps)
            self._pause.note_success()
            return
        except Exception as error:
            # A generator that has raised has ended: whatever the error, the next round begins anew.
            self._steps = self._paced()
            self.next_ms = now_ms + self._pause.after(error)
            self.note(error)

    def note(self, error: Exception) -> None:
        """Log once what keeps this queue from being looked after; claims continue.

        Raises:
            Exception: ``error``, if it does not concern this queue alone.
        """
        if not is_queues_own(error):
            raise error
        if str(error) != self._problem:
            self._problem = str(error)
            logger.error(
                "queue %s cannot be looked after, trying again: %s",
                self._settings.name,
                error,
            )

    def _paced(self) -> Iterator[float]:
        """Do the steps, and declare our code between them every few seconds: others see by this that the process lives."""
        for wait_ms in self._rounds():
            until_ms = monotonic_ms() + wait_ms
            while self._declare_ms < until_ms:
                yield max(0.0, self._declare_ms - monotonic_ms())
                self._tell_of_code()
                wait_ms = max(0.0, until_ms - monotonic_ms())
            yield wait_ms

    def _rounds(self) -> Iterator[float]:
        """Do one step after the other, for ever; yield the wait before the next, in ms."""
        cursors: dict[str, int] = {}
        while True:
            self._check_in()
            self._tell_of_code()
            self._warn_of_long_list()
            self._warn_of_full()
            self._warn_of_java()
            self._warn_of_other_format()
            yield from self._delete_old()
            if not cursors:
                cursors = dict.fromkeys(sweep_calls.SWEPT, 0)
            yield from self._sweep(cursors)
            # After part of a long hash, everything else is looked at once more before its sweep goes on.
            yield PART_MS if cursors else ROUND_MS

    def forget(self) -> None:
        """Begin a new round at once: another server answers, or one that has forgotten."""
        self.load_time.ms = 0
        self._steps, self.next_ms = self._paced(), 0.0

    def begin(self) -> None:
        """Do what has to be done before the first claim."""
        if self._settings.prefix:
            call = prefixes.note_prefix(self._settings.prefix, get_keyring().ids[0])
            try:
                run(self._client, call)
            except RedisError as error:
                # Its node may be away while that of the queue is not, and an ACL may forbid it.
                if not is_queues_own(error):
                    raise
        if all_limits() or self._has_schedules():
            self._check_in()
            self._tell_of_code()

    def ask_whether_latest(self) -> bool:
        """Declare our code. Return whether it is the latest that any living process has, among those with schedules here."""
        self._tell_of_code()
        return self.is_latest

    def _tell_of_code(self) -> None:
        """Say when our code was loaded, and which limits tasks have, so that claims keep them."""
        assert self.load_time.ms, "check in first"
        limits = [
            (name, numbers_of(limit.concurrency, limit.rate))
            for name, limit in all_limits().items()
        ]
        self.has_declared = bool(limits)
        has_schedules = self._has_schedules()
        is_to_go_on = bool(limits) or has_schedules
        pause_ms = worker_code.DECLARE_MS if is_to_go_on else math.inf
        self._declare_ms = monotonic_ms() + pause_ms
        found = run(
            self._client,
            worker_code.declare(
                self._settings.keys,
                limits,
                owner=self._owner,
                loaded_ms=self.load_time.ms,
                has_schedules=has_schedules,
            ),
        )
        self.is_latest = found.is_latest

    def _check_in(self) -> None:
        """Have the server note this process; say so if a node has forgotten it.

        A single server's registry shows it sooner.
        """
        found = run(
            self._client, sweep_calls.check_in(self._settings.keys, owner=self._owner)
        )
        self.load_time.by(found.now_ms)
        kept_ms, self._kept_ms = self._kept_ms, found.now_ms
        ago_s = forgotten_s(found.before_ms, kept_ms, found.now_ms, sweep_calls.SEEN_MS)
        if has_nodes(self._client) and ago_s is not None:
            own_clients.note_change()
            logger.error("queue %s: its node " + FORGOTTEN, self._settings.name, ago_s)

    def _warn_of_long_list(self) -> None:
        length = self._client.llen(self._settings.keys.queue.delay_queue)
        if length > self._long_list:
            logger.warning(
                "queue %s: its insertion list holds %d frames, and each due or cancelled job costs a scan of it;"
                " if no Java client looks into this queue, set INSERTION_LIST to False, and run"
                " manage.py delayq_frames %s --list off",
                self._settings.name,
                length,
                quote(self._settings.name),
            )
            self._long_list = 2 * length
        elif length < LONG_LIST:
            self._long_list = LONG_LIST

    def _warn_of_full(self) -> None:
        """Warn once that the queue is nearly full, and again only after half of its room was free."""
        most = self._settings.max_jobs
        if most is None:
            return
        count = run(self._client, queue_reads.counts(self._settings.keys)).jobs
        facts = QueueFacts(name=self._settings.name, jobs=count, max_jobs=most)
        for problem in find_nearly_full(facts):
            if not self._is_full_told:
                logger.warning("%s %s", problem.message, problem.hint)
                self._is_full_told = True
        if count <= most // 2:
            self._is_full_told = False

    def _warn_of_java(self) -> None:
        """Warn once if others use a queue that is not set as shared."""
        settings = self._settings
        if self._strangers is None or settings.is_shared or settings.keeps_list:
            return
        if self._is_offered_by_others():
            found = "holds frames that are not ours"
        elif self._is_watched_by_others():
            found = "has a subscriber that is not ours"
        else:
            return
        self._strangers = None
        logger.warning(
            "queue %s %s, as if Java shared it by Redisson, but it keeps no insertion list: size, contains and remove"
            " find none of our elements there. Set DELAYQ['QUEUES'][%r]['REDISSON'] to its version, and run"
            " manage.py delayq_frames %s --list on",
            settings.name,
            found,
            settings.name,
            quote(settings.name),
        )

    def _warn_of_other_format(self) -> None:
        """Log once that Redisson does not read some of the next frames, and again only after it has read all of them."""
        settings = self._settings
        if settings.redisson is None:
            return
        frames = run(self._client, read_heads(settings.keys)).frames
        found = find_other_format(
            settings.name, settings.redisson, settings.frame_format, frames
        )
        problem = next(found, None)
        if problem is not None and not self._is_format_told:
            logger.error("%s %s", problem.message, problem.hint)
        self._is_format_told = problem is not None

    def _is_offered_by_others(self) -> bool:
        call = survey(self._settings.keys, "tail", batch=1)
        return any(
            format_of(frame.head, frame.size) and not is_numbered(frame.head)
            for frame in run(self._client, call).frames
        )

    def _is_watched_by_others(self) -> bool:
        keys = self._settings.keys
        try:
            counts = self._client.pubsub_numsub(keys.queue.channel, keys.channel)
        except NoPermissionError:
            # The frames in the queue show strangers as well.
            return False
        # Our processes listen to both channels. A process that starts or ends right now may show on only one.
        theirs, ours = (count for _, count in counts)
        self._strangers = (self._strangers or 0) + 1 if theirs > ours else 0
        return self._strangers > 1

    def _sweep(self, cursors: dict[str, int]) -> Iterator[float]:
        """Sweep a part of each hash in turn, for the time of a round; a hash that is done leaves ``cursors``."""
        waited_ms = 0.0
        while cursors:
            for which, cursor in list(cursors.items()):
                swept = run(
                    self._client,
                    sweep_calls.sweep(self._settings.keys, which, cursor=cursor),
                )
                if not swept.cursor:
                    del cursors[which]
                    continue
                cursors[which] = swept.cursor
                if waited_ms >= ROUND_MS:
                    return
                wait_ms = BUSY_MS if swept.forgotten else PART_MS
                waited_ms += wait_ms
                yield wait_ms

    # What was given up.

    def _delete_old(self) -> Iterator[float]:
        settings = self._settings
        dead, quarantined = State.DEAD, State.QUARANTINED
        if settings.dead_ttl_s is not None:
            yield from self._expire("DEAD_TTL", dead, settings.dead_ttl_s)
        yield from self._limit_dead()
        if settings.quarantine_ttl_s is not None:
            yield from self._expire(
                "QUARANTINE_TTL",
                quarantined,
                settings.quarantine_ttl_s,
                which=Which.FOREIGN,
            )
        if settings.quarantined_jobs_ttl_s is not None:
            yield from self._expire(
                "QUARANTINED_JOBS_TTL",
                quarantined,
                settings.quarantined_jobs_ttl_s,
                which=Which.JOBS,
            )

    def _limit_dead(self) -> Iterator[float]:
        most, many = self._settings.max_dead, self._settings.many_dead
        if most is None or many is None or self._many_dead is None:
            return
        count = self._client.zcard(self._settings.keys.dead)
        if count >= self._many_dead:
            logger.warning(
                "queue %s has %d dead letters, and keeps %d (MAX_DEAD): beyond that, those older than a day are"
                " deleted, the oldest first; retry or discard them in the admin, or set MAX_DEAD higher",
                self._settings.name,
                count,
                most,
            )
            self._many_dead = 2 * count
        elif count < many:
            self._many_dead = many
        if count > most:
            yield from self._expire(
                "MAX_DEAD", State.DEAD, YOUNGEST.total_seconds(), kept=most
            )

    def _expire(
        self,
        setting: str,
        state: State,
        age_s: float,
        *,
        kept: int = 0,
        which: Which = Which.ALL,
    ) -> Iterator[float]:
        rank, deleted, oldest_ms = 0, 0, epoch_ms()
        while rank >= 0:
            reply = run(
                self._client,
                sweep_calls.expire(
                    self._settings.keys,
                    state=state,
                    age_ms=int(age_s * 1000),
                    kept=kept,
                    which=which,
                    first_rank=rank,
                ),
            )
            rank = reply.next_rank
            deleted += reply.deleted
            if reply.oldest_ms >= 0:
                oldest_ms = min(oldest_ms, reply.oldest_ms)
            if rank >= 0:
                yield BUSY_MS
        if deleted:
            logger.warning(
                "queue %s: %d %s deleted, the oldest %s old (%s)",
                self._settings.name,
                deleted,
                "dead letters" if state is State.DEAD else "quarantined payloads",
                timedelta(seconds=(epoch_ms() - oldest_ms) // 1000),
                setting,
            )
