"""A push of a transfer task: moves due elements of one queue, in calls of a few ms each."""

from redis.client import Redis

from django_delayq.clock import monotonic_ms
from django_delayq.core import claim as claim_calls
from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.transfer.service import QueueTransferService
from django_delayq.queues.transfer.task import PushResult
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.waiting.connection import DedicatedConnection
from django_delayq.wire.frame import FrameFormat

#: Redisson's batch, and the first of ours. RedissonDelayedQueue.java:71.
FIRST_BATCH = 100
#: One scan of the delay queue, ms for each frame in it: 3 to 4 ms for 100,000.
SCAN_MS = 35e-6
#: Cost of an element that is searched in the list, ms.
ELEMENT_MS = 0.04
#: Most elements of a call: Lua unpacks some 8,000 values at most, two for each element.
MAX_BATCH = 2_000
#: How long the server may take to accept a connection, and to answer.
DEADLINE_S = 2.0

#: The transfers of this process.
service = QueueTransferService()


def bounds(listed: int) -> tuple[int, int]:
    """Return the least and the most elements of a call, given how many frames are in the delay queue.

    Each call pays for one scan of the list, so the longer the list, the more a call has to move. At least it moves what
    takes three quarters of the scan's time, however slow the server seems; at most what takes as long as a scan.
    """
    worth_a_scan = SCAN_MS * listed / ELEMENT_MS
    least = round(FIRST_BATCH / 4 + 0.75 * worth_a_scan)
    # Without the list an element costs a quarter.
    most = min(round(4 * FIRST_BATCH + worth_a_scan), MAX_BATCH)
    return min(least, most), most


class QueuePush:
    """Moves a batch of due elements to the destination queue, and learns how large the next batch may be."""

    def __init__(
        self,
        client: Redis,
        keys: DeliveryKeys,
        frame_format: FrameFormat = FrameFormat.BC0LC0,
    ) -> None:
        self.sizer = BatchSizer(
            first=FIRST_BATCH, least=FIRST_BATCH // 4, most=MAX_BATCH, patience=2
        )
        self._keys = keys
        self._frame_format = frame_format
        # Not from the client's own pool: its connections may retry for seconds, and read without a deadline.
        self._connection = DedicatedConnection(
            client, deadline_s=DEADLINE_S, key=keys.queue.destination
        )

    def __call__(self) -> PushResult:
        begun_ms = monotonic_ms()
        moved, wait_us = self._connection.run(
            claim_calls.transfer(
                self._keys, batch=self.sizer.size, frame_format=self._frame_format
            )
        )
        took_ms = monotonic_ms() - begun_ms
        if wait_us == 0 and moved >= self.sizer.size:
            listed = self._connection.command("LLEN", self._keys.queue.delay_queue)
            self.sizer.bound(*bounds(listed))
            self.sizer.learn(moved, took_ms)
        return PushResult(moved, wait_us)

    def close(self) -> None:
        self._connection.close()
