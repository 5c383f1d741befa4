"""The pauses of a queue, as its last claim returned them."""

import math
from collections.abc import Mapping

from redis.client import Redis

from django_delayq.calls.running import run
from django_delayq.delivery import looking
from django_delayq.delivery.claiming import Claimed
from django_delayq.delivery.holding import held_names
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.pausing import Pause, StoredPauses, read_pauses
from django_delayq.delivery.reasons import Kind, Reason
from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")


class Pauses:
    """The pauses of one queue. Owned by the claim loop's thread."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._stored: StoredPauses | None = None
        # Those that last, by task; None: the queue itself.
        self._found: dict[str | None, Pause] = {}
        #: The queue itself is paused.
        self.is_paused = False
        #: The pauses of tasks, by the names of the tasks.
        self.of_tasks: Mapping[str, Pause] = {}
        #: The pauses of all tasks have ended by themselves, and are still stored.
        self.are_over = False
        # When the first pause of a task ends, by the server's clock, epoch ms.
        self._first_end_ms = float("inf")

    def __bool__(self) -> bool:
        return self._stored is not None

    def take_in(self, reply: Claimed) -> bool:
        """Take in the reply to a claim; return whether jobs that were held may run now. Log each change, once."""
        now_ms = reply.now_us / 1000
        if reply.pauses == self._stored and now_ms < self._first_end_ms:
            return False
        self._stored = reply.pauses
        found: dict[str | None, Pause] = {}
        if self._stored is not None:
            pauses = read_pauses(self._queue, self._stored, now_ms)
            found = {pause.task: pause for pause in pauses}
        before, self._found = self._found, found
        self.is_paused = self._stored is not None and self._stored.of_queue is not None
        tasks = {task: each for task, each in found.items() if task is not None}
        self.of_tasks = tasks
        self._first_end_ms = min(
            (each.until_ms for each in tasks.values()), default=float("inf")
        )
        ended = before.keys() - found.keys()
        self.are_over = not tasks and bool(self._stored and self._stored.of_tasks)
        for pause in found.values():
            if pause != before.get(pause.task):
                what = (
                    "claims nothing there" if pause.task is None else "holds its jobs"
                )
                logger.warning("%s; this process %s", pause, what)
        for task in ended:
            if task is None:
                logger.warning("queue %s is claimed from again", self._queue)
            else:
                logger.warning("task %s runs again on queue %s", task, self._queue)
        return any(ended)

    def wait_us(self, reply: Claimed) -> int:
        """Return the time until the next event: the script knows of all but the end of a task's pause."""
        if self._first_end_ms == float("inf"):
            return reply.wait_us
        left_us = max(0, math.ceil(self._first_end_ms * 1000 - reply.now_us))
        return left_us if reply.wait_us < 0 else min(left_us, reply.wait_us)

    def warn_of_left(self, client: Redis, keys: DeliveryKeys) -> None:
        """Log what a process leaves undone that ends because nothing else may run."""
        if not self._found:
            return
        counts = run(client, looking.counts(keys))
        for task, pause in self._found.items():
            if task is None:
                left = f"{counts.due + counts.destination:,} due jobs were left there"
            else:
                reason = Reason(Kind.PAUSED, task)
                held = run(client, held_names(keys, limit=1, only=reason))
                count = held.counts.get(reason, 0)
                left = f"{count:,} of its jobs are held there"
            logger.warning("%s; %s", pause, left)
