"""How many jobs of which kind to ask a queue for, so that each begins soon after it was claimed.

If too many were claimed, they are given back. A claim cannot choose between sync and async jobs.
"""

from django_delayq.clock import monotonic_ms
from django_delayq.delivery.bounds import MAX_BATCH
from django_delayq.worker.parts import Parts
from django_delayq.worker.plan import NO_ROOM, NOTHING, Plan, Room
from django_delayq.worker.queue_state import QueueState

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
