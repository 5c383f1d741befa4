"""The pauses of a queue, as its last claim returned them."""

import math
from collections.abc import Mapping

from redis.client import Redis

from django_delayq.core import queue_reads
from django_delayq.core.claim import Claimed
from django_delayq.core.hold import Hold, held_names
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.stored_pauses import Pause, StoredPauses, read_pauses
from django_delayq.features.pauses.calls import forget_over
from django_delayq.logs import get_log
from django_delayq.transport.run import run
from django_delayq.worker.leased_job import Gate, LeasedJob
from django_delayq.worker.queue_state import QueuePart, QueueState

logger = get_log("django_delayq.worker")


class PausesOfQueue(QueuePart):
    """The pauses of one queue, and of tasks on it."""

    def __init__(self, client: Redis, queue: QueueState) -> None:
        super().__init__(client, queue)
        self._stored: StoredPauses | None = None
        # Those that last, by task; None: the queue itself.
        self._found: dict[str | None, Pause] = {}
        # The pauses of tasks, by the names of the tasks.
        self._of_tasks: Mapping[str, Pause] = {}

    def take_in(self, reply: Claimed) -> bool:
        """Take in the reply to a claim; return whether jobs that were held may run now. Log each change, once."""
        if reply.pauses is self._stored is None:
            return False
        now_ms, name = reply.now_us / 1000, self._settings.name
        if reply.pauses == self._stored and reply.now_us < self.free_us:
            return False
        self._stored = reply.pauses
        found: dict[str | None, Pause] = {}
        if self._stored is not None:
            pauses = read_pauses(name, self._stored, now_ms)
            found = {pause.task: pause for pause in pauses}
        before, self._found = self._found, found
        stored = self._stored
        self._queue.is_paused = stored is not None and stored.of_queue is not None
        tasks = {task: each for task, each in found.items() if task is not None}
        self._of_tasks = tasks
        self.gate = Gate(tasks, self._hold) if tasks else None
        ends_ms = min((each.until_ms for each in tasks.values()), default=math.inf)
        self.free_us = ends_ms * 1000
        ended = before.keys() - found.keys()
        if not tasks and stored is not None and stored.of_tasks:
            # Those of all tasks have ended by themselves. Until the server forgets them, each claim brings them along.
            self.next_ms = 0.0
        for pause in found.values():
            if pause != before.get(pause.task):
                what = (
                    "claims nothing there" if pause.task is None else "holds its jobs"
                )
                logger.warning("%s; this process %s", pause, what)
        for task in ended:
            if task is None:
                logger.warning("queue %s is claimed from again", name)
            else:
                logger.warning("task %s runs again on queue %s", task, name)
        return any(ended)

    def turn(self, now_ms: float, now_us: int | None) -> bool:
        """Have the server forget pauses of tasks that are over."""
        self.next_ms = math.inf
        run(self._client, forget_over(self._settings.keys))
        self._pause.note_success()
        return False

    def _hold(self, attempt: LeasedJob) -> Hold | None:
        pause = self._of_tasks.get(attempt.name)
        if pause is None:
            return None
        return Hold(Reason(Kind.PAUSED, attempt.name), str(pause))

    def warn_of_left(self) -> None:
        if not self._found:
            return
        client, keys = self._client, self._settings.keys
        counts = run(client, queue_reads.counts(keys))
        for task, pause in self._found.items():
            if task is None:
                left = f"{counts.due + counts.destination:,} due jobs were left there"
            else:
                reason = Reason(Kind.PAUSED, task)
                held = run(client, held_names(keys, limit=1, only=reason))
                count = held.counts.get(reason, 0)
                left = f"{count:,} of its jobs are held there"
            logger.warning("%s; %s", pause, left)
