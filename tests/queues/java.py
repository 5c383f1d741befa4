"""What a Java client does to a queue, byte by byte: frames with random ids, plain pushes and pops."""

import os

import redis

from django_delayq.wire.frame import FrameFormat, pack
from django_delayq.wire.queue_keys import QueueKeys


class JavaQueue:
    """An RDelayedQueue and its destination, as some version of Redisson handles them."""

    def __init__(
        self, client: redis.Redis, name: str, frame_format: FrameFormat
    ) -> None:
        self.client = client
        self.keys = QueueKeys.of(name)
        self.frame_format = frame_format

    def offer_at(
        self, payload: bytes, start_time_ms: float, *, random_id: bytes = b""
    ) -> bytes:
        """Do as `offerAsync` does; return the frame."""
        frame = pack(random_id or os.urandom(8), payload, self.frame_format)
        keys = self.keys
        self.client.zadd(keys.timeout_set, {frame: start_time_ms})
        self.client.rpush(keys.delay_queue, frame)
        if self.client.zrange(keys.timeout_set, 0, 0) == [frame]:
            self.client.publish(keys.channel, int(start_time_ms))
        return frame

    def offer(self, payload: bytes, delay_ms: int, *, random_id: bytes = b"") -> bytes:
        return self.offer_at(
            payload, now_ms(self.client) + delay_ms, random_id=random_id
        )


def now_ms(client: redis.Redis) -> int:
    seconds, us = client.time()
    return seconds * 1000 + us // 1000


def make_due(client: redis.Redis, name: str) -> None:
    """Let all that waits fall due now, in the order of its start times, whichever way it was stored."""
    keys = QueueKeys.of(name)
    waiting = client.zrange(keys.timeout_set, 0, -1, withscores=True)
    moved = {frame: start_time - 10_000_000 for frame, start_time in waiting}
    assert client.zadd(keys.timeout_set, moved, xx=True, ch=True) == len(moved)
    client.publish(keys.channel, now_ms(client))


def frames_of(client: redis.Redis, name: str) -> tuple[list[bytes], set[bytes]]:
    """Return the delay queue and the timeout set."""
    keys = QueueKeys.of(name)
    return client.lrange(keys.delay_queue, 0, -1), set(
        client.zrange(keys.timeout_set, 0, -1)
    )
