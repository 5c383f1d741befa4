"""Redisson's RBlockingQueue as a Python object: what is due, for those who want elements rather than tasks.

It waits and looks; how an element is taken so that none is lost is told in ``taking``.
"""

import logging
import math
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from redis.exceptions import RedisError

from django_delayq.calls.command import Command
from django_delayq.calls.once import Once
from django_delayq.calls.steps import Steps, aperform, perform
from django_delayq.clients.clients import Clients, Given
from django_delayq.clock import monotonic_ms
from django_delayq.codecs import Codec
from django_delayq.delivery import limits
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.exceptions import InvalidSettings
from django_delayq.queues import calls
from django_delayq.queues.options import check_limit, options_of
from django_delayq.queues.reading import read
from django_delayq.queues.taking import Batch, Taker
from django_delayq.redaction import show
from django_delayq.waiting.lists import Peeks, WaitForAny
from django_delayq.wire.calls import PAGE
from django_delayq.wire.delay import parse_timeout_ms
from django_delayq.wire.signing import looks_like_job

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: How long an element stays with somebody who claimed it and died before the confirmation, s.
LEASE_S = 10.0


class BlockingQueue:
    """The queue ``name``, from which elements are taken by whoever comes first, here or in Java.

    An element that was returned is gone; one that was not is not, unless the process dies just before it returns it.
    When the wait ends, the caller is interrupted or cancelled, or the connection drops while an element is on its
    way, the element goes back to the head, or is taken again when its lease is over, after `LEASE_S`. What the codec
    cannot read goes to the quarantine, is seen there, and raises DecodeError.

    One object serves any number of threads; every method has an async twin whose name begins with ``a``.

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
        """Name a queue; nothing is sent yet.

        ``connection`` is a client, sync or async, or a URL; None: the one in the settings. ``codec`` is that of the
        queue in the settings, else JSON. ``lease`` is in seconds.

        Raises:
            EncodeError: no queue can have this name, or no such codec exists.
            InvalidSettings: connection is something else, or lease no number of seconds.
        """
        self.name = name
        self._keys = DeliveryKeys.of(name)
        self._codec = options_of(name, codec=codec).codec
        self._clients = Clients.of(connection)
        if (
            isinstance(lease, bool)
            or not isinstance(lease, int | float)
            or not 0 < lease < 10**9
        ):
            raise InvalidSettings(
                f"lease={show(lease)}: give a number of seconds above 0"
            )
        self._taker = Taker(self._codec, round(lease * 1000))
        self._peeks = Peeks()

    def __repr__(self) -> str:
        return f"<BlockingQueue {self.name!r}>"

    # What is due

    def offer(self, value: object) -> bool:
        """Put a value at the tail; return True.

        Raises:
            EncodeError: the codec cannot write the value.
            MaybeScheduled: the connection broke before the reply. It was sent once, and may be in the queue.
        """
        return self._perform(self._offer(value))

    async def aoffer(self, value: object) -> bool:
        return await self._aperform(self._offer(value))

    def put(self, value: object) -> None:
        """Put a value at the tail, as `offer` does: there is always room."""
        self.offer(value)

    async def aput(self, value: object) -> None:
        await self.aoffer(value)

    def take(self) -> Any:
        """Take the first element out; wait for one as long as it takes.

        It is confirmed before it is returned. A process that dies in between has taken it, and nobody gets it again;
        one that dies before leaves it to others, after the lease. What must survive its consumer's death is a job, or
        goes to a ``@queue_handler``: those are acknowledged after they ran.

        Raises:
            DecodeError: the codec cannot read it; ``data`` is the payload, which went to the quarantine.
            redis.exceptions.ConnectionError: the server is away. If an element was on its way, the next call returns
                it, or it is taken again after the lease.
        """
        return self._perform(self._take([self._keys], math.inf))

    async def atake(self) -> Any:
        return await self._aperform(self._take([self._keys], math.inf))

    def poll(self, timeout: float | timedelta = 0) -> Any:
        """Take the first element out, waiting for one for so many seconds, fractions included; None if none came.

        Raises:
            As `take`.
        """
        return self._perform(self._take([self._keys], parse_timeout_ms(timeout)))

    async def apoll(self, timeout: float | timedelta = 0) -> Any:
        return await self._aperform(self._take([self._keys], parse_timeout_ms(timeout)))

    def poll_from_any(self, timeout: float | timedelta, *names: str) -> Any:
        """Do as `poll` on this and other queues, the first that has an element; earlier ones are preferred."""
        return self._perform(self._poll_from_any(timeout, names))

    async def apoll_from_any(self, timeout: float | timedelta, *names: str) -> Any:
        return await self._aperform(self._poll_from_any(timeout, names))

    def drain_to(self, limit: int) -> list[Any]:
        """Take what is there out, ``limit`` elements at most, and return it.

        What the codec cannot read is left out, logged, and goes to the quarantine.
        """
        return self._perform(self._drain_to(limit))

    async def adrain_to(self, limit: int) -> list[Any]:
        return await self._aperform(self._drain_to(limit))

    def peek(self) -> Any:
        """Return the first element and leave it; None when the queue is empty.

        Raises:
            DecodeError: the codec cannot read it.
        """
        return self._perform(self._peek())

    async def apeek(self) -> Any:
        return await self._aperform(self._peek())

    def read_all(self) -> list[Any]:
        """Return all elements and leave them. They are read in pages, so what changes meanwhile may be seen or not.

        Raises:
            DecodeError: the codec cannot read one of them.
        """
        return self._perform(self._read_all())

    async def aread_all(self) -> list[Any]:
        return await self._aperform(self._read_all())

    def contains(self, value: object) -> bool:
        """Return whether an element equals the value, as a payload."""
        return self._perform(self._contains(value))

    async def acontains(self, value: object) -> bool:
        return await self._aperform(self._contains(value))

    def remove(self, value: object) -> bool:
        """Take the first element out that equals the value; return whether there was one.

        Raises:
            MaybeScheduled: the connection broke before the reply; it may be removed. It was not sent again, as
                that could remove a second one.
        """
        return self._perform(self._remove(value))

    async def aremove(self, value: object) -> bool:
        return await self._aperform(self._remove(value))

    def clear(self) -> None:
        """Delete all elements that are due. What somebody has claimed and not confirmed comes back."""
        self._perform(self._clear())

    async def aclear(self) -> None:
        await self._aperform(self._clear())

    def close(self) -> None:
        """Close the connections that were made here; the next call makes others. Async ones end with their loop."""
        self._peeks.close()
        self._clients.close()

    async def aclose(self) -> None:
        self.close()

    def __len__(self) -> int:
        """Return how many elements are due and claimed by nobody."""
        return self._perform(self._count())

    async def alen(self) -> int:
        return await self._aperform(self._count())

    def __bool__(self) -> bool:
        # Or ``if queue:`` would ask the server.
        return True

    def __contains__(self, value: object) -> bool:
        return self.contains(value)

    def __enter__(self) -> "BlockingQueue":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> "BlockingQueue":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # How it is done

    def _perform(self, steps: Steps[T]) -> T:
        return perform(self._clients.at_hand(), steps)

    async def _aperform(self, steps: Steps[T]) -> T:
        return await aperform(await self._clients.of_loop(), steps)

    def _poll_from_any(
        self, timeout: float | timedelta, names: Sequence[str]
    ) -> Steps[Any]:
        queues = [self._keys, *(DeliveryKeys.of(name) for name in names)]
        return self._take(list(dict.fromkeys(queues)), parse_timeout_ms(timeout))

    def _take(self, queues: Sequence[DeliveryKeys], timeout_ms: float) -> Steps[Any]:
        end_ms = monotonic_ms() + timeout_ms
        destinations = tuple(keys.queue.destination for keys in queues)
        while True:
            wait_ms = math.inf
            for keys in queues:
                batch = yield from self._taker.take(keys, 1)
                if batch.errors:
                    raise batch.errors[0]
                if batch.values:
                    return batch.values[0]
                wait_ms = min(wait_ms, batch.wait_ms)
            left_ms = end_ms - monotonic_ms()
            if left_ms <= 0:
                return None
            if wait_ms < math.inf:
                # Something is leased: a queue that is not looked at for long spares what ends meanwhile.
                wait_ms = min(wait_ms, self._taker.look_ms)
            if wait_ms > 0:
                yield WaitForAny(self._peeks, destinations, min(wait_ms, left_ms))

    def _drain_to(self, limit: int) -> Steps[list[Any]]:
        check_limit(limit)
        done: list[Batch] = []
        try:
            while (left := limit - sum(len(batch.values) for batch in done)) > 0:
                batch = yield from self._taker.take(
                    self._keys, min(left, limits.MAX_BATCH)
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
            # What was taken is the caller's. If the error stays, the next call raises it.
        except GeneratorExit:
            raise
        except BaseException:
            for batch in reversed(done):
                yield from self._taker.put_back(batch)
            raise
        return [value for batch in done for value in batch.values]

    def _offer(self, value: object) -> Steps[bool]:
        payload = self._codec.encode(value)
        if looks_like_job(payload):
            yield Once(calls.put(self._keys, payload))
        else:
            yield Once(Command(("RPUSH", self._keys.queue.destination, payload)))
        return True

    def _peek(self) -> Steps[Any]:
        payload = yield Command(("LINDEX", self._keys.queue.destination, 0))
        return None if payload is None else read(self._codec, payload, self.name)

    def _read_all(self) -> Steps[list[Any]]:
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
                return [read(self._codec, payload, self.name) for payload in payloads]

    def _contains(self, value: object) -> Steps[bool]:
        payload = self._codec.encode(value)
        index = yield Command(("LPOS", self._keys.queue.destination, payload))
        return index is not None

    def _remove(self, value: object) -> Steps[bool]:
        payload = self._codec.encode(value)
        removed: int = yield Once(
            Command(("LREM", self._keys.queue.destination, 1, payload))
        )
        return removed > 0

    def _clear(self) -> Steps[None]:
        yield Command(("UNLINK", self._keys.queue.destination))

    def _count(self) -> Steps[int]:
        count: int = yield Command(("LLEN", self._keys.queue.destination))
        return count
