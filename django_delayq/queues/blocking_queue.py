"""Redisson's RBlockingQueue as a Python object, for programs that want due elements rather than tasks.

It waits and looks. ``taker`` takes the elements, so that none is lost.
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from redis.exceptions import RedisError

from django_delayq.clock import monotonic_ms
from django_delayq.codecs import Codec
from django_delayq.core import bounds
from django_delayq.core.keys import DeliveryKeys
from django_delayq.exceptions import InvalidSettings
from django_delayq.logs import get_log
from django_delayq.queues import queue_calls
from django_delayq.queues.queue_options import check_limit, keys_of, options_of
from django_delayq.queues.redisson_object import (
    RedissonObject,
    aperformed,
    performed,
)
from django_delayq.queues.taker import Batch, Taker
from django_delayq.redaction import hide_url, show
from django_delayq.transport.clients import Given
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.steps import Pause, Steps
from django_delayq.waiting.lists import Peeks, WaitForAny
from django_delayq.wire.delay import parse_timeout_ms
from django_delayq.wire.script_calls import PAGE
from django_delayq.wire.signatures import looks_like_job

logger = get_log(__name__)

#: How long a consumer's claim on an element lasts if it dies before it confirms, s.
LEASE_S = 10.0
#: Wait before all queues are looked at again after an element was put back for an earlier queue, ms.
OVERTAKEN_MS = 5.0


class BlockingQueue(RedissonObject):
    """The queue ``name``. Each element goes to the first consumer that takes it, in Python or in Java.

    A returned element is removed. An element that was not returned stays in the queue, unless the process dies just
    before it returns the element. If the wait ends, the caller is interrupted, or the connection drops while an element
    is being taken, the element goes back to the head. If that fails, others get it when its lease ends, after
    `LEASE_S`. A payload that the codec cannot read goes to quarantine and raises DecodeError.

    Threads can share one object. Every method has an async version whose name begins with ``a``.

    Example::

        queue = BlockingQueue("payments")
        value = queue.poll(timeout=5)

    Source: RedissonBlockingQueue.java
    """

    def __init__(
        self,
        name: str,
        *,
        codec: str | Codec | None = None,
        connection: Given | None = None,
        lease: float = LEASE_S,
    ) -> None:
        """Name a queue. Nothing is sent yet.

        ``connection`` is a client, sync or async, or a URL; None: the one in the settings. ``codec`` defaults to the
        one in the queue's settings, else to JSON. ``lease`` is in seconds.

        Raises:
            EncodeError: no queue can have this name, or no such codec exists.
            InvalidSettings: ``connection`` is something else, or ``lease`` is not a number of seconds.
        """
        # After any error from here on, a debug page shows the variables of this frame.
        connection = hide_url(connection)
        super().__init__(name, connection, options_of(name, codec=codec))
        if (
            isinstance(lease, bool)
            or not isinstance(lease, int | float)
            or not 0 < lease < 10**9
        ):
            raise InvalidSettings(
                f"lease={show(lease)}: give a number of seconds above 0"
            )
        self._taker = Taker(self._options.codec, round(lease * 1000))
        self._peeks = Peeks()

    # What is due

    @performed
    def offer(self, value: object) -> Steps[bool]:
        """Add a value at the tail; return True.

        Raises:
            EncodeError: the codec cannot write the value.
            MaybeScheduled: the connection broke before the reply. The value was sent once, and may be in the queue.
        """
        return self._offer(value)

    aoffer = aperformed(offer)

    @performed
    def put(self, value: object) -> Steps[None]:
        """Add a value at the tail, as `offer` does. It never waits for room."""
        yield from self._offer(value)

    aput = aperformed(put)

    @performed
    def take(self) -> Steps[Any]:
        """Remove the first element and return it. Wait until there is one.

        The element is confirmed, and then returned. If the process dies in between, the element is lost. If it dies
        earlier, others get the element when the lease ends. For an element that must survive the death of its consumer,
        use a job or a ``@queue_handler``: these are acknowledged after they ran.

        Raises:
            DecodeError: the codec cannot read the element. ``data`` is the payload, which went to quarantine.
            redis.exceptions.ConnectionError: the server does not answer. If an element was being taken, the next call
                returns it, or others get it when the lease ends.
        """
        return self._take([self._keys], math.inf)

    atake = aperformed(take)

    @performed
    def poll(self, timeout: float | timedelta = 0) -> Steps[Any]:
        """Remove the first element and return it. Wait up to ``timeout`` seconds; return None if no element came.

        Raises:
            As `take`.
        """
        return self._take([self._keys], parse_timeout_ms(timeout))

    apoll = aperformed(poll)

    @performed
    def poll_from_any(self, timeout: float | timedelta, *names: str) -> Steps[Any]:
        """Do what `poll` does for this and other queues. The first queue in this order that has an element wins.

        On a cluster, the queues are read one after the other, so an element that arrives meanwhile may be overlooked.
        """
        queues = [self._keys, *map(keys_of, names)]
        return self._take(list(dict.fromkeys(queues)), parse_timeout_ms(timeout))

    apoll_from_any = aperformed(poll_from_any)

    @performed
    def drain_to(self, limit: int) -> Steps[list[Any]]:
        """Remove up to ``limit`` elements and return them, without waiting.

        Elements that the codec cannot read are logged and go to the quarantine.
        """
        check_limit(limit)
        done: list[Batch] = []
        try:
            while (left := limit - sum(len(batch.values) for batch in done)) > 0:
                batch = yield from self._taker.take(
                    self._keys, min(left, bounds.MAX_BATCH)
                )
                done.append(batch)
                for error in batch.errors:
                    logger.warning(
                        "put into the quarantine of %r: %s", self.name, error
                    )
                if batch.wait_ms > 0 or not (batch.values or batch.errors):
                    break
        except RedisError:
            if not any(batch.values for batch in done):
                raise
            # The caller gets the elements that were taken. If the error stays, the next call raises it.
        except GeneratorExit:
            raise
        except BaseException:
            for batch in reversed(done):
                yield from self._taker.put_back(batch)
            raise
        return [value for batch in done for value in batch.values]

    adrain_to = aperformed(drain_to)

    @performed
    def peek(self) -> Steps[Any]:
        """Return the first element without removing it; None if the queue is empty.

        Raises:
            DecodeError: the codec cannot read it.
        """
        payload = yield Command(("LINDEX", self._keys.queue.destination, 0))
        return None if payload is None else self._decode(payload)

    apeek = aperformed(peek)

    @performed
    def read_all(self) -> Steps[list[Any]]:
        """Return all elements without removing them. They are read in pages, so changes meanwhile may be missing.

        Raises:
            DecodeError: the codec cannot read one of them.
        """
        payloads: list[bytes] = []
        while True:
            page = yield Command(
                (
                    "LRANGE",
                    self._keys.queue.destination,
                    len(payloads),
                    len(payloads) + PAGE - 1,
                )
            )
            payloads += page
            if len(page) < PAGE:
                return [self._decode(payload) for payload in payloads]

    aread_all = aperformed(read_all)

    @performed
    def contains(self, value: object) -> Steps[bool]:
        """Return whether an element equals the value; their payloads are compared."""
        return self._contains(value)

    acontains = aperformed(contains)

    @performed
    def clear(self) -> Steps[None]:
        """Delete all due elements. An element that a consumer has claimed but not confirmed comes back."""
        yield Command(("UNLINK", self._keys.queue.destination))

    aclear = aperformed(clear)

    def close(self) -> None:
        """Close this object's connections. The next call opens new ones. Async connections close with their loop."""
        self._peeks.close()
        self._clients.close()

    async def aclose(self) -> None:
        self.close()

    def __len__(self) -> int:
        """Return how many due elements nobody has claimed."""
        return self._perform(self._count())

    async def alen(self) -> int:
        return await self._aperform(self._count())

    # How it is done

    def _begin(self) -> None:
        """Nothing has to be done before a call."""

    def _end(self) -> None:
        self.close()

    async def _aend(self) -> None:
        await self.aclose()

    def _take(self, queues: Sequence[DeliveryKeys], timeout_ms: float) -> Steps[Any]:
        end_ms = monotonic_ms() + timeout_ms
        destinations = tuple(keys.queue.destination for keys in queues)
        while True:
            wait_ms = math.inf
            for i, keys in enumerate(queues):
                batch = yield from self._taker.take(keys, 1)
                if batch.errors:
                    raise batch.errors[0]
                if batch.values:
                    if i and (yield from self._is_overtaken(batch, queues[:i])):
                        # The earlier queue may give nothing all the same.
                        yield Pause(OVERTAKEN_MS)
                        wait_ms = 0.0
                        break
                    return batch.values[0]
                wait_ms = min(wait_ms, batch.wait_ms)
            left_ms = end_ms - monotonic_ms()
            if left_ms <= 0:
                return None
            if wait_ms < math.inf:
                # Some elements are leased. After a long time without a look, leases that ended meanwhile would be
                # spared.
                wait_ms = min(wait_ms, self._taker.look_ms)
            if wait_ms > 0:
                yield WaitForAny(self._peeks, destinations, min(wait_ms, left_ms))

    def _is_overtaken(
        self, batch: Batch, earlier: Sequence[DeliveryKeys]
    ) -> Steps[bool]:
        """Put an element back if a queue that comes earlier has got one since it was looked at."""
        try:
            is_overtaken: bool = yield queue_calls.AnyHolds(earlier)
        except GeneratorExit:
            raise
        except BaseException:
            # The caller does not get the element.
            yield from self._taker.put_back(batch)
            raise
        if is_overtaken:
            yield from self._taker.put_back(batch)
        return is_overtaken

    def _offer(self, value: object) -> Steps[bool]:
        payload = self._encode(value)
        if looks_like_job(payload):
            yield Once(queue_calls.put(self._keys, payload))
        else:
            yield Once(Command(("RPUSH", self._keys.queue.destination, payload)))
        return True

    def _contains(self, value: object) -> Steps[bool]:
        payload = self._encode(value)
        index = yield Command(("LPOS", self._keys.queue.destination, payload))
        return index is not None

    def _remove(self, value: object) -> Steps[bool]:
        payload = self._encode(value)
        removed: int = yield Once(
            Command(("LREM", self._keys.queue.destination, 1, payload))
        )
        return removed > 0

    def _count(self) -> Steps[int]:
        count: int = yield Command(("LLEN", self._keys.queue.destination))
        return count
