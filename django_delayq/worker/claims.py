"""Claims: how much a queue is asked for, whose turn it is, what each asks of its queue, and what its reply says about it."""

import os
import random
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.core import claim as claim_calls
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.claim import Claimed, Leased, Mode
from django_delayq.exceptions import OtherShards
from django_delayq.faults import fault_line
from django_delayq.jobs import shard_agreement
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.primary import pause_ms
from django_delayq.transport.steps import perform
from django_delayq.worker import job_signals
from django_delayq.worker.outage import is_queues_own
from django_delayq.worker.parts import Parts
from django_delayq.worker.queue_state import (
    NO_ROOM,
    NOTHING,
    Asked,
    Plan,
    QueueState,
    Room,
)

logger = get_log("django_delayq.worker")

#: So often a worker tries to tell that a job has lost its worker too often; then the job is buried without that.
MOST_TOLD = 3


#: A worker claims no more than it can start within this time, so that no job waits in it while another is idle.
AHEAD_MS = 10.0
#: Jobs that still wait here after this time are given back: the jobs before them take longer than foreseen.
STALLED_MS = 50.0
#: With room for one kind only, sync or async, a worker looks past at most so many jobs of the other kind. If it finds
#: some, it pauses before it looks again.
LOOK_PAST = 100
LOOK_PAUSE_MS = 1_000.0


class Planner:
    """Decides how much a queue is asked for. Owned by the claim loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._queues, self._dispatch = parts.queues, parts.dispatch
        self._settlement, self._pace = parts.ends.settlement, parts.ends.pace
        self._shutdown = parts.shutdown
        #: When the next queue may be looked at again for jobs of one kind; infinite: no queue waits for that. Each
        #: round of claims computes it anew.
        self.look_ms = float("inf")

    def plan(
        self, queue: QueueState, *, is_enough: bool = False, is_later: bool = False
    ) -> Plan:
        """Decide what to ask a queue for now.

        ``is_enough``: an earlier queue has more jobs, which come first; ``is_later``: an earlier queue waits for room.
        """
        dispatch = self._dispatch
        if self._settlement.is_refused(queue.settings.name):
            # The server would give us this queue's jobs but refuse their ends.
            return NOTHING
        room = self.room(queue.sizer.call_ms)
        common = 0 if is_enough or is_later else self.common(room)
        # While jobs already wait here, one call for many is cheaper than many calls for one.
        enough = self.enough(queue)
        if common >= enough or (common and not dispatch.queued()):
            return Plan(min(common, queue.sizer.size))
        if not dispatch.async_names:
            return NOTHING
        # There is room for one kind at most. Sync jobs that wait for busy threads must not delay async jobs, or the
        # other way round: the queue is claimed from for the kind that can start.
        if room.coroutines:
            if not dispatch.coroutines.queued():
                return self._look(queue, Room(0, room.coroutines), queue.had_sync)
        elif room.sync and not is_enough and not dispatch.threads.queued():
            return self._look(queue, Room(room.sync, 0), queue.had_async)
        return NOTHING

    def room(self, call_ms: float = 0.0, begun: int = 0) -> Room:
        """Return how many jobs may be taken on: as many as threads can start within `AHEAD_MS`, and free coroutines.

        ``begun`` more are about to be handed out. If a call by itself, without its jobs, takes longer than `AHEAD_MS`,
        threads get as many jobs as they start within the call's time. Jobs that will have run by its reply leave room.
        """
        if self._shutdown.takes_no_more() or self._shutdown.is_quiet:
            return NO_ROOM
        dispatch, jobs_left = self._dispatch, self._dispatch.jobs_left
        coroutines = dispatch.coroutines.count()
        # A job that has ended occupies no thread, even if the server does not know yet.
        busy = len(dispatch.running) - coroutines - self._settlement.count()
        busy += sum(
            q.under_way.plan.limit for q in self._queues.values() if q.under_way
        )
        busy += begun
        most = MAX_BATCH if jobs_left is None else min(jobs_left, MAX_BATCH)
        rate = self._pace.rate
        ahead = max(dispatch.threads.size, int(rate * max(AHEAD_MS, call_ms)))
        threads = ahead - max(0, busy - int(rate * call_ms))
        free = dispatch.coroutines.size - coroutines
        return Room(max(0, min(threads, most)), max(0, min(free, most)))

    def common(self, room: Room) -> int:
        """Return how many jobs may be taken on if their kind is not known."""
        return min(room) if self._dispatch.async_names else room.sync

    def enough(self, queue: QueueState) -> int:
        """Return how many jobs are worth a call while others wait here.

        That is as many as cost what the call itself costs, but at most half of what there is ever room for.
        """
        sizer = queue.sizer
        most = min(sizer.size, int(self._pace.rate * max(AHEAD_MS, sizer.call_ms)) // 2)
        worth = int(sizer.call_ms / sizer.element_ms) if sizer.element_ms else 0
        return max(min(worth, most), min(self._dispatch.threads.size, sizer.size))

    def _look(self, queue: QueueState, room: Room, had_others: bool) -> Plan:
        if not had_others:
            return Plan(min(max(room), queue.sizer.size), room)
        again_ms = queue.had_ms + LOOK_PAUSE_MS
        if monotonic_ms() < again_ms:
            self.look_ms = min(self.look_ms, again_ms)
            return NOTHING
        return Plan(LOOK_PAST, room)

    def give_back_stalled(self, now_ms: float) -> bool:
        """Give back jobs that wait longer than foreseen: other workers may be idle. Return whether there were any."""
        dispatch, is_stalled = self._dispatch, False
        if (
            dispatch.threads.queued()
            and now_ms > dispatch.submitted_ms + self._stalled_ms()
        ):
            is_stalled = True
            dispatch.give_back_unbegun(dispatch.threads.take_back())
            self._pace.forget()
        if (
            now_ms > dispatch.submitted_async_ms + STALLED_MS
            and dispatch.coroutines.queued()
        ):
            is_stalled = True
            dispatch.give_back_unbegun(dispatch.coroutines.take_back())
        return is_stalled

    def _stalled_ms(self) -> float:
        return max(STALLED_MS, *(q.sizer.call_ms for q in self._queues.values()))


#: If reading a reply takes more than this part of its call's time, the server was still working.
NOTICEABLE = 0.1
#: For so long a look at held jobs waits for a moment in which no job is nearly due.
HELD_PATIENCE_MS = 1_000.0
#: For so long the loop lets threads go first before the part of a queue has its turn.
BEGIN_FIRST_S = 0.0003
#: A queue whose node is away is asked again after this, then after pauses that double up to the alarm's cap.
AWAY_FIRST_MS = 50.0


class Claims:
    """Claims from the queues of a process, in order. Owned by the claim loop's thread."""

    def __init__(self, parts: Parts, watch: Callable[[str], None]) -> None:
        self._line, self._queues, self._alarm = parts.line, parts.queues, parts.alarm
        self._lease_ms = parts.options.worker.lease_ms
        self._is_weighted = parts.options.is_weighted
        names = dict.fromkeys(queue.settings.whole for queue in parts.queues.values())
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._watch = watch
        self._dispatch, self._shutdown = parts.dispatch, parts.shutdown
        self._ends = parts.ends
        self._settlement = parts.ends.settlement
        self._outage, self._suspects = parts.outage, parts.dispatch.suspects
        self.planner = Planner(parts)
        self._owner, self._max_kills = parts.owner, parts.options.worker.max_kills

    # Whose turn it is.

    def round(self) -> bool:
        """Claim from the queues that may have something, in order; return False if the loop should wait instead."""
        is_progress = is_enough = is_later = False
        planner = self.planner
        planner.look_ms = float("inf")
        for queue in self._order():
            plan = planner.plan(queue, is_enough=is_enough, is_later=is_later)
            if not plan.limit and not self._settlement.is_refused(queue.settings.name):
                # This queue waits for room. A later queue, for which less room is worth a call, must not take that
                # room.
                is_later = True
            is_transfer = queue.is_due and queue.mode is Mode.SHARED
            if not plan.limit and not is_transfer and queue.under_way is None:
                # The queue stays ready. Its parts, such as its schedules, go on without room.
                if queue.has_begun and not queue.newer_format:
                    try:
                        self._begin(queue)
                        self._take_turns(queue, monotonic_ms(), None)
                    except Exception as error:
                        self._set_aside_or_raise(queue, error)
                continue
            # Threads work while we wait for the reply.
            self._dispatch.threads.wake()
            try:
                self._claim(queue, plan)
            except Exception as error:
                self._set_aside_or_raise(queue, error)
                continue
            if plan.limit and queue.is_ready and plan.only is None:
                # The queue has more. The next round decides whose turn it is; until then later queues only transfer.
                is_enough = True
            is_progress = is_progress or (
                queue.is_ready if plan.limit else queue.is_due
            )
        return is_progress

    def _order(self) -> list[QueueState]:
        ready = [queue for queue in self._queues.values() if queue.is_ready]
        if len(ready) < 2:
            return ready
        if self._is_weighted:
            # A weighted shuffle: each queue leads in proportion to its weight.
            ready.sort(
                key=lambda queue: random.random() ** (1 / queue.weight), reverse=True
            )
        elif len(self._queues) > len(self._ranks):
            # The order of the queues holds, and the shards of each take turns.
            random.shuffle(ready)
            ready.sort(key=lambda queue: self._ranks[queue.settings.whole])
        if self._suspects.were_put_off():
            # While a claim sent ahead may bring a suspect, no other claim may bring one. The suspects of an earlier queue
            # would be put off for as long as a later one has jobs.
            ready.sort(key=lambda queue: queue.under_way is None)
        return ready

    def _set_aside_or_raise(self, queue: QueueState, error: Exception) -> None:
        if isinstance(error, (RedisError, OSError)) and not is_queues_own(error):
            raise error
        self._set_aside(queue, error)

    def _set_aside(self, queue: QueueState, error: Exception) -> None:
        """Leave out a queue whose keys have the wrong type or are forbidden, and retry it later; the others continue."""
        self._outage.note_reply()
        if str(error) != queue.problem:
            logger.error(
                "queue %s cannot be served, trying again: %s",
                queue.settings.name,
                fault_line(error) if is_of_node(error) else redact(str(error)),
                exc_info=not isinstance(error, RedisError),
            )
        queue.problem = str(error)
        queue.expect_nothing()
        again_ms = pause_ms(self._line.client, self._alarm.cap_ms)
        if is_of_node(error):
            # The node, or the replica that takes its place, may have heard the request, and may soon be back.
            queue.away_ms = again_ms = min(
                max(AWAY_FIRST_MS, 2 * queue.away_ms), again_ms
            )
        else:
            # A primary that misses its replicas refuses too, and another one may soon take its place.
            queue.open_request = None
        self._alarm.ring_in(queue.settings.name, 1000 * again_ms)

    def take_under_way(self) -> None:
        """Read the replies to claims that were sent ahead: we hold their leases, and only we can give them back."""
        for queue in self._queues.values():
            if queue.under_way is not None:
                try:
                    self._claim(queue, NOTHING)
                except Exception as error:
                    queue.open_request = None
                    logger.warning(
                        "queue %s: no reply to the last claim; its leases will expire: %s",
                        queue.settings.name,
                        error,
                    )

    # One claim.

    def _claim(self, queue: QueueState, plan: Plan) -> None:
        self._begin(queue)
        is_ahead = queue.under_way is not None
        asked = queue.under_way or self._ask(queue, plan)
        queue.under_way = None
        read_ms = monotonic_ms()
        # If this raises, the request stays open and is repeated.
        reply = asked.call.finish()
        while reply is None:
            # The script found more to heed than it can, and did nothing.
            if asked.is_whole and queue.has_slots:
                # It has forgotten our limits.
                self._line.rest()
                queue.upkeep.begin()
            elif asked.is_whole:
                queue.has_slots = True
            else:
                queue.few.note_miss(asked.sent_ms)
            asked, is_ahead = self._ask(queue, asked.plan), False
            reply = asked.call.finish()
        if not asked.is_whole:
            queue.few.note_hit()
        if asked.is_whole and reply.jobs:
            queue.few.note_whole(asked.sent_ms, self._lease_ms)
        self._outage.note_reply()
        queue.open_request = None
        if queue.problem:
            logger.warning("queue %s is served again", queue.settings.name)
            queue.problem = ""
            queue.away_ms = 0.0
        if self._is_newer(queue, reply.newer_format):
            return
        for part in queue.parts:
            if part.take_in(reply):
                queue.held.next_ms = 0.0
        if reply.limits is not None and reply.limits.has_slots:
            self._settlement.limited.add(queue.settings.name)
        if reply.ends is not None:
            job_signals.send_ends(queue.settings.name, reply.ends)
        now_ms = monotonic_ms()
        if not is_ahead or now_ms - read_ms > NOTICEABLE * (now_ms - asked.sent_ms):
            # The reply had already arrived, so its time does not show how long the server took.
            queue.sizer.learn(len(reply.jobs), now_ms - asked.sent_ms)
            queue.transfer_sizer.learn(reply.transferred, now_ms - asked.sent_ms)
        # The script reads the server's clock when it begins, which is nearer to the call's sending than to its reply. A
        # wait counted from the middle of the call is therefore hardly ever too short.
        told_ms = now_ms if is_ahead else (asked.sent_ms + now_ms) / 2
        self._expect(queue, reply, now_ms, told_ms, has_room=asked.plan.limit > 0)
        # Read before the next claim is sent, which overwrites it.
        since_ms = queue.open_since_ms
        # Nothing may come between a reply and its jobs: an error of the next call is kept for that call's `finish`.
        self._ask_ahead(queue, reply.jobs)
        if reply.jobs:
            middle_ms = asked.sent_ms if is_ahead else told_ms
            middle_ms += boottime_ms() - monotonic_ms()
            lease_end_ms = since_ms + self._lease_ms
            offset_ms = reply.now_us / 1000 - middle_ms
            self._ends.note_busy()
            is_stopping = self._shutdown.stop_ms is not None
            only = NO_ROOM if is_stopping else asked.plan.only
            self._dispatch.hand_out(queue, reply, only, lease_end_ms, offset_ms)
        elif asked.plan.limit:
            queue.had_sync = queue.had_async = False
        if reply.put_off:
            self._suspects.note_put_off(reply.put_off, now_ms + asked.put_off_ms)
        if is_ahead or queue.under_way is not None:
            self._dispatch.threads.wake()
        if self._shutdown.stop_ms is None:
            self._tend(queue, now_ms, reply.now_us)

    def _ask(self, queue: QueueState, plan: Plan) -> Asked:
        sent_ms = monotonic_ms()
        settings = queue.settings
        is_few = (
            queue.open_request is None
            and plan.limit > 0
            and queue.few.is_worth_it(sent_ms)
            and queue.mode is Mode.DIRECT
            and not settings.limit_text
        )
        # The request is kept until its reply comes: if the reply is lost, only the same request brings its leases back.
        # Those leases begin no earlier than the request was first sent.
        if queue.open_request is None:
            queue.open_request, queue.open_since_ms = os.urandom(8), boottime_ms()
        if is_few:
            few = claim_calls.claim_few(
                settings.keys,
                owner=self._owner,
                request=queue.open_request,
                limit=plan.limit,
                lease_ms=self._lease_ms,
                frame_format=settings.frame_format,
            )
            # `claim_few` puts no suspects off.
            return Asked(self._line.ask(few), plan, sent_ms, 0.0, False)
        suspects = self._suspects
        put_off_ms = suspects.put_off_ms()
        call = claim_calls.claim(
            settings.keys,
            owner=self._owner,
            request=queue.open_request,
            limit=plan.limit,
            lease_ms=self._lease_ms,
            mode=queue.mode,
            transfer_limit=queue.transfer_sizer.size,
            # A worker buries the job, so that it is logged, counted and told: a claim could only say so once, and a reply
            # can be lost. But who kills its process even then is not called for ever.
            max_kills=self._max_kills + MOST_TOLD,
            safe_kills=suspects.safe_kills,
            takes_suspect=suspects.may_come_from(queue, self._queues.values()),
            put_off_ms=put_off_ms,
            priority_step_ms=settings.priority_step_ms,
            keeps_ended=settings.keep_ended > 0,
            has_slots=queue.has_slots,
            has_declared=queue.upkeep.has_declared,
            limit_text=settings.limit_text,
            frame_format=settings.frame_format,
        )
        return Asked(self._line.ask(call), plan, sent_ms, put_off_ms, True)

    def _ask_ahead(self, queue: QueueState, jobs: Sequence[Leased]) -> None:
        """Send the next claim before the jobs of the last are handed out, if the queue has more and there is room."""
        if not queue.is_ready or queue.mode is not Mode.DIRECT:
            return
        if self._shutdown.stop_ms is not None or self._dispatch.jobs_left is not None:
            return
        if any(other.is_ready for other in self._queues.values() if other is not queue):
            # The next round decides which queue's turn it is.
            return
        planner, safe_kills = self.planner, self._suspects.safe_kills
        room = planner.common(planner.room(queue.sizer.call_ms, len(jobs)))
        if room < planner.enough(queue):
            return
        # A suspect among these jobs is not noted yet, and the next claim must not bring a second one.
        if all(job.kills <= safe_kills for job in jobs):
            queue.under_way = self._ask(queue, Plan(min(room, queue.sizer.size)))
            self._line.flush()

    def _begin(self, queue: QueueState) -> None:
        """Tell the server what it has to know before a claim, unless it knows."""
        if queue.has_begun and not queue.is_outdated:
            return
        self._line.rest()
        perform(self._line.client, shard_agreement.serving(queue.settings))
        queue.upkeep.begin()
        queue.has_begun, queue.is_outdated = True, False

    def _is_newer(self, queue: QueueState, newer: int) -> bool:
        """Return whether the queue has a later format than we read; such a queue is only looked at now and then."""
        if newer != queue.newer_format:
            queue.newer_format = newer
            if newer:
                # Until the format changes, this process claims nothing there and does no upkeep.
                logger.error("%s", claim_calls.newer_format(queue.settings.name, newer))
            else:
                logger.warning("queue %s is claimed from again", queue.settings.name)
        if newer:
            queue.has_begun = False
            queue.expect_nothing()
            self._alarm.ring_in(queue.settings.name, -1)
        return newer > 0

    def _expect(
        self,
        queue: QueueState,
        reply: Claimed,
        now_ms: float,
        told_ms: float,
        *,
        has_room: bool,
    ) -> None:
        """Take in what a reply says about the queue: when to look again, and what was lost there."""
        name, wait_us = queue.settings.name, queue.wait_us(reply)
        queue.is_due = wait_us == 0
        queue.next_ms = queue.next_us = float("inf")
        if wait_us > 0:
            queue.next_ms = now_ms + wait_us / 1000
            queue.next_us = reply.now_us + wait_us
        self._alarm.ring_in(name, wait_us or -1, told_ms)
        if has_room:
            # A claim without room does not show whether jobs wait for room. So the queue stays ready without a watch,
            # which would report the same elements again and again.
            queue.is_ready = queue.is_due
            # What lies in the destination queue of a queue that is paused, or held back by its limits, would wake us
            # again and again.
            is_watching = queue.is_watched or queue.is_paused or queue.is_held_back
            if not queue.is_ready and not is_watching:
                queue.is_watched = True
                self._arm(name)
        if reply.doubles:
            logger.warning(
                "queue %s: %d payloads dropped, because their jobs are already known",
                name,
                reply.doubles,
            )
        if reply.vanished:
            logger.error(
                "queue %s: %d jobs dropped, their payloads are gone from %s: somebody deleted them",
                name,
                reply.vanished,
                queue.settings.keys.payloads,
            )

    def _arm(self, name: str) -> None:
        try:
            self._watch(name)
        except RuntimeError as error:
            # Raising here would orphan the jobs of this reply: they are not handed out yet.
            self._dispatch.cannot_work(f"the watch of a destination queue: {error}")

    # Now and then.

    def _tend(self, queue: QueueState, now_ms: float, now_us: int) -> None:
        """Do what is to be done for a queue now and then; skip held jobs while another job is nearly due."""
        is_soon = now_ms < queue.next_ms < now_ms + AHEAD_MS
        # On a queue with a job every few ms another one is always nearly due.
        is_overdue = now_ms >= queue.held.next_ms + HELD_PATIENCE_MS
        is_looked_at = now_ms >= queue.held.next_ms and (is_overdue or not is_soon)
        is_looked_at = is_looked_at and not queue.is_paused
        is_kept_up = now_ms >= queue.upkeep.next_ms
        if is_looked_at or is_kept_up:
            self._dispatch.threads.wake()
            self._line.rest()
        if is_looked_at:
            planner = self.planner
            limit = max(self._dispatch.threads.size, planner.common(planner.room()))
            try:
                if queue.held.turn(now_ms, limit):
                    queue.is_ready = True
            except RedisError as error:
                queue.held.rest(now_ms, error)
                queue.upkeep.note(error)
        if is_kept_up:
            queue.upkeep.turn(now_ms)
            self._check_shards(queue)
        if queue.has_begun and not queue.newer_format:
            self._take_turns(queue, now_ms, now_us)

    def _check_shards(self, queue: QueueState) -> None:
        try:
            perform(self._line.client, shard_agreement.serving(queue.settings))
        except OtherShards:
            # The next claim says so, and makes none.
            queue.has_begun = False
        except RedisError as error:
            queue.upkeep.note(error)

    def _take_turns(self, queue: QueueState, now_ms: float, now_us: int | None) -> None:
        """Have the parts of a queue do what is due. ``now_us`` is the server's time, if a reply has just had it."""
        for part in queue.parts:
            if not part.is_due(now_ms, now_us):
                continue
            self._dispatch.threads.wake()
            # The jobs of this moment begin before a part has its turn, which would keep the interpreter from their threads.
            time.sleep(BEGIN_FIRST_S)
            self._line.rest()
            try:
                if part.turn(now_ms, now_us):
                    queue.is_ready = True
            except RedisError as error:
                part.rest(now_ms, error)
                queue.upkeep.note(error)
