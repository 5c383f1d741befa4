"""What a transfer task pushes: due elements of one queue, in calls of a few ms each."""

from redis.client import Redis

from django_delayq.clock import monotonic_ms
from django_delayq.delivery import operations
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.transfer.connection import DedicatedConnection
from django_delayq.transfer.service import QueueTransferService
from django_delayq.transfer.task import PushResult

#: Redisson's batch, and where ours begins. RedissonDelayedQueue.java:71.
FIRST_BATCH = 100
#: Smallest and largest batch: Lua unpacks some 8,000 values at most, two for each element.
BATCHES = (20, 1_000)
#: What a call may take beside the one scan of the delay queue, ms.
BUDGET_MS = 4.0
#: Time of a scan of the delay queue per frame in it, ms: 3 ms for 100,000.
SCAN_MS = 30e-6
#: How long the server may take to answer, and to be connected to.
DEADLINE_S = 2.0

#: The transfers of this process.
service = QueueTransferService()


class QueuePush:
    """Moves a batch of due elements to the destination queue, and learns how large the next may be."""

    def __init__(self, client: Redis, keys: DeliveryKeys) -> None:
        self.batch = FIRST_BATCH
        self._keys = keys
        # Not the client's own pool, which repeats what failed for seconds, and reads without a deadline.
        self._connection = DedicatedConnection(
            client, deadline_s=DEADLINE_S, key=keys.queue.destination
        )

    def __call__(self) -> PushResult:
        begun_ms = monotonic_ms()
        moved, wait_us = self._connection.run(
            operations.transfer(self._keys, batch=self.batch)
        )
        if wait_us == 0 and moved >= self.batch:
            self._learn(monotonic_ms() - begun_ms)
        return PushResult(moved, wait_us)

    def _learn(self, took_ms: float) -> None:
        """Size the next call by how long a full one took."""
        # One scan is paid for every call, so a long list asks for larger ones.
        scan_ms = SCAN_MS * self._connection.command(
            "LLEN", self._keys.queue.delay_queue
        )
        aim_ms = scan_ms + max(BUDGET_MS, scan_ms)
        # By the half at most: one slow answer may be somebody else's.
        factor = min(max(aim_ms / max(took_ms, 0.1), 0.5), 1.25)
        smallest, largest = BATCHES
        self.batch = min(max(round(self.batch * factor), smallest), largest)

    def close(self) -> None:
        self._connection.close()
