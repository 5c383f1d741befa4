"""The limits of a queue in a worker process: gives jobs the limit of their task, and lets go what a limit has held."""

from redis.client import Redis

from django_delayq.core.claim import Claimed
from django_delayq.core.hold import Hold
from django_delayq.core.limit_slots import held_for
from django_delayq.features.limits.calls import loosen
from django_delayq.jobs.registry import all_tasks
from django_delayq.logs import get_log
from django_delayq.transport.run import run
from django_delayq.worker.held_jobs import Released
from django_delayq.worker.leased_job import Gate, LeasedJob
from django_delayq.worker.queue_state import QueuePart, QueueState

logger = get_log("django_delayq.worker")


class LimitsOfQueue(QueuePart):
    """The limits of one queue, and of tasks on it. The scripts keep them; this part does what needs the code of tasks."""

    def __init__(self, client: Redis, queue: QueueState) -> None:
        super().__init__(client, queue)
        self._cursor = b""

    def take_in(self, reply: Claimed) -> bool:
        limits = reply.limits
        self._queue.is_held_back = limits is not None and limits.is_held_back
        if limits is not None and limits.dropped:
            logger.warning(
                "queue %s: %d jobs were cancelled, because their limits were full",
                self._settings.name,
                limits.dropped,
            )
        if self._queue.upkeep.has_declared and self.gate is None:
            names = [task.name for task in all_tasks() if task.options.limit]
            self.gate = Gate(frozenset(names), self._hold)
        return False

    def _hold(self, attempt: LeasedJob) -> Hold | None:
        """Hold a job whose stored limit is not its task's; the next claim applies the right one.

        A job that a worker has just given a limit to runs with it. Otherwise no job would start whose key is another each
        time.
        """
        leased, options = attempt.leased, attempt.options
        limit = None if options is None else options.limit
        if limit is None or leased.limit == "" or leased.is_foreign:
            return None
        found = limit.of_call(attempt.name, tuple(attempt.args), attempt.kwargs)
        if found == leased.limit:
            return None
        return Hold(held_for(found), f"it gets its limit, {limit.name}")

    def release(self, limit: int) -> Released:
        """Let go what the limits admit now: somebody has set one, or a lease that was over has left room."""
        reply = run(
            self._client,
            loosen(self._settings.keys, cursor=self._cursor, limit=limit),
        )
        self._cursor = reply.cursor
        return Released.of(reply.released, limit, reply.cursor)
