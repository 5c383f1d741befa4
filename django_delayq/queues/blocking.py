"""Redisson's RBlockingQueue as a Python object: what is due, for those who want elements rather than tasks.

Taking an element needs two calls, and nothing in between can lose it: the first leases it, the second confirms that
the lease's holder has it. What is not confirmed is taken again, by whoever comes next.
"""

import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.delivery import operations
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.operations import Claimed, Leased, Mode, Rejected, State
from django_delayq.exceptions import DecodeError
from django_delayq.queues import scripts
from django_delayq.queues.connection import Clients, Command, Given
from django_delayq.queues.options import options_of
from django_delayq.queues.steps import (
    Once,
    Pause,
    Steps,
    WaitForAny,
    aperform,
    perform,
)
from django_delayq.queues.waiting import Peeks
from django_delayq.wire.codecs import Codec
from django_delayq.wire.scripts import PAGE

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: How long an element stays with somebody who claimed it and died before the confirmation, s.
LEASE_S = 10.0
#: Between two attempts to confirm when the connection broke: from the first to the second of these, doubling.
CONFIRM_PAUSE_MS = (20, 500)


@dataclass(slots=True)
class _Batch:
    """Elements that one claim has leased."""

    keys: DeliveryKeys
    owner: bytes
    #: Epoch ms by the server's clock, or a little less: until then nobody else can have them.
    lease_end_ms: int
    #: The same, about, by `monotonic_ms`.
    give_up_ms: float
    jobs: list[Leased]
    #: Of the jobs that could be decoded; of those that are ours, once it is confirmed.
    values: list[Any]
    #: Of the others.
    errors: list[DecodeError]
    #: Until the next event of the queue.
    wait_ms: float


class BlockingQueue:
    """The queue ``name``, from which elements are taken by whoever comes first, here or in Java.

    An element that was returned is gone; one that was not is not. When the wait ends, the caller is interrupted or
    cancelled, or the connection drops while an element is on its way, the element goes back to the head, or is taken
    again when its lease is over, after `LEASE_S`. What the codec cannot read goes to the quarantine, is seen there,
    and raises DecodeError.

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
            EncodeError: the name is none, or no such codec exists.
            InvalidSettings: connection is something else.
        """
        self.name = name
        self._keys = DeliveryKeys.of(name)
        self._codec = options_of(name, codec=codec).codec
        self._clients = Clients(connection)
        self._lease_ms = round(lease * 1000)
        self._peeks = Peeks()
        # What an earlier call left open when the connection broke; lists are changed by atomic operations only.
        self._unconfirmed: list[_Batch] = []
        self._to_put_back: list[_Batch] = []
        self._left_over: list[tuple[str, Any]] = []

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
        return self._perform(self._take([self._keys], _milliseconds(timeout)))

    async def apoll(self, timeout: float | timedelta = 0) -> Any:
        return await self._aperform(self._take([self._keys], _milliseconds(timeout)))

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
        """Return the first element and leave it, or None when there is none.

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
        return perform(self._clients.sync(), steps, self._peeks)

    async def _aperform(self, steps: Steps[T]) -> T:
        return await aperform(await self._clients.asynchronous(), steps)

    def _poll_from_any(
        self, timeout: float | timedelta, names: Sequence[str]
    ) -> Steps[Any]:
        queues = [self._keys, *(DeliveryKeys.of(name) for name in names)]
        return self._take(list(dict.fromkeys(queues)), _milliseconds(timeout))

    def _take(self, queues: Sequence[DeliveryKeys], timeout_ms: float) -> Steps[Any]:
        end_ms = monotonic_ms() + timeout_ms
        destinations = tuple(keys.queue.destination for keys in queues)
        while True:
            wait_ms = math.inf
            for keys in queues:
                batch = yield from self._take_from(keys, 1)
                if batch.errors:
                    raise batch.errors[0]
                if batch.values:
                    return batch.values[0]
                wait_ms = min(wait_ms, batch.wait_ms)
            left_ms = end_ms - monotonic_ms()
            if left_ms <= 0:
                return None
            if wait_ms > 0:
                yield WaitForAny(destinations, min(wait_ms, left_ms))

    def _drain_to(self, limit: int) -> Steps[list[Any]]:
        done: list[_Batch] = []
        try:
            while (left := limit - sum(len(batch.values) for batch in done)) > 0:
                batch = yield from self._take_from(
                    self._keys, min(left, operations.MAX_BATCH)
                )
                done.append(batch)
                for error in batch.errors:
                    logger.warning(
                        "put into the quarantine of %r: %s", self.name, error
                    )
                if batch.wait_ms > 0 or not batch.jobs:
                    break
        except RedisError:
            if not any(batch.values for batch in done):
                raise
            # What was taken is the caller's. If the error stays, the next call raises it.
        except GeneratorExit:
            raise
        except BaseException:
            for batch in reversed(done):
                yield from self._put_back(batch)
            raise
        return [value for batch in done for value in batch.values]

    def _take_from(self, keys: DeliveryKeys, limit: int) -> Steps[_Batch]:
        """Claim, decode and confirm what is there now."""
        yield from self._settle_earlier()
        if found := self._left_over_of(keys):
            return _Batch(keys, b"", 0, 0, [], found, [], 0)
        batch = yield from self._claim(keys, limit)
        if not batch.jobs:
            return batch
        try:
            yield from self._decode(batch)
            yield from self._confirm(batch)
        except (RedisError, GeneratorExit):
            raise
        except BaseException:
            # Interrupted: whether the confirmation was carried out or not, the caller has not got it.
            yield from self._put_back(batch)
            raise
        return batch

    def _claim(self, keys: DeliveryKeys, limit: int) -> Steps[_Batch]:
        owner, request = os.urandom(8), os.urandom(8)
        begun_ms = monotonic_ms()

        def batch_of(claimed: Claimed) -> _Batch:
            # The claim may have been repeated, so it was made after it was sent, and that is all one knows.
            sent_us = claimed.now_us - math.ceil((monotonic_ms() - begun_ms) * 1000)
            return _Batch(
                keys,
                owner,
                lease_end_ms=sent_us // 1000 + self._lease_ms,
                give_up_ms=begun_ms + self._lease_ms,
                jobs=claimed.jobs,
                values=[],
                errors=[],
                wait_ms=math.inf if claimed.wait_us < 0 else claimed.wait_us / 1000,
            )

        def claim(limit: int) -> Any:
            return operations.claim(
                keys,
                owner=owner,
                request=request,
                limit=limit,
                lease_ms=self._lease_ms,
                mode=Mode.TAKE,
            )

        try:
            return batch_of((yield claim(limit)))
        except (RedisError, GeneratorExit):
            # If the claim was carried out, its lease ends by itself.
            raise
        except BaseException:
            try:
                # The same request again tells what it was given, and with no limit takes nothing new.
                claimed = yield claim(0)
                yield from self._put_back(batch_of(claimed))
            except RedisError as error:
                logger.warning("what was claimed comes back after its lease: %s", error)
            raise

    def _decode(self, batch: _Batch) -> Steps[None]:
        """Decode the jobs of a batch; those that cannot be leave it for the quarantine."""
        readable: list[Leased] = []
        rejected: list[Rejected] = []
        for job in batch.jobs:
            try:
                batch.values.append(self._codec.decode(job.payload))
                readable.append(job)
            except Exception as raised:
                error = _as_decode_error(raised, job.payload)
                batch.errors.append(error)
                rejected.append(Rejected(job.token, job.fence, _error_text(error)))
        if rejected:
            yield operations.bury(
                batch.keys,
                rejected,
                state=State.QUARANTINED,
                attempt_failed=False,
            )
        batch.jobs = readable

    def _confirm(self, batch: _Batch) -> Steps[None]:
        """Make the elements of a batch the caller's; afterwards ``values`` are those that are."""
        if not batch.jobs:
            return
        pause_ms, longest_ms = CONFIRM_PAUSE_MS
        while True:
            try:
                flags: str = yield scripts.confirm(
                    batch.keys,
                    batch.jobs,
                    owner=batch.owner,
                    lease_end_ms=batch.lease_end_ms,
                )
                break
            except (RedisConnectionError, RedisTimeoutError):
                # Carried out or not: to ask again is safe, and tells.
                if monotonic_ms() >= batch.give_up_ms:
                    self._unconfirmed.append(batch)
                    raise
                yield Pause(pause_ms)
                pause_ms = min(2 * pause_ms, longest_ms)
        # '?': nobody knows any more who had it. Twice is better than never.
        batch.values = [
            value
            for value, flag in zip(batch.values, flags, strict=True)
            if flag != "0"
        ]

    def _put_back(self, batch: _Batch) -> Steps[None]:
        """Return a batch that the caller did not get, confirmed or not."""
        if not batch.jobs:
            return
        try:
            yield scripts.untake(
                batch.keys,
                batch.jobs,
                owner=batch.owner,
                lease_end_ms=batch.lease_end_ms,
            )
        except RedisError as error:
            logger.warning("will be put back with the next call: %s", error)
            self._to_put_back.append(batch)

    def _settle_earlier(self) -> Steps[None]:
        """Bring to an end what earlier calls had to leave open."""
        for _ in range(len(self._to_put_back)):
            yield from self._put_back(self._to_put_back.pop(0))
        while self._unconfirmed:
            batch = self._unconfirmed.pop()
            yield from self._confirm(batch)
            self._left_over += [
                (batch.keys.queue.name, value) for value in batch.values
            ]

    def _left_over_of(self, keys: DeliveryKeys) -> list[Any]:
        """Return one element that an earlier call confirmed and could not return, if there is one."""
        for item in list(self._left_over):
            if item[0] == keys.queue.name:
                self._left_over.remove(item)
                return [item[1]]
        return []

    def _offer(self, value: object) -> Steps[bool]:
        payload = self._codec.encode(value)
        yield Once(Command(("RPUSH", self._keys.queue.destination, payload)))
        return True

    def _peek(self) -> Steps[Any]:
        payload = yield Command(("LINDEX", self._keys.queue.destination, 0))
        return None if payload is None else self._codec.decode(payload)

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
                return [self._codec.decode(payload) for payload in payloads]

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


def _milliseconds(timeout: float | timedelta) -> float:
    if isinstance(timeout, timedelta):
        return timeout / timedelta(milliseconds=1)
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or timeout != timeout
    ):
        raise TypeError(
            f"a timeout is a number of seconds or a timedelta; got {timeout!r}"
        )
    return timeout * 1000


def _as_decode_error(error: Exception, payload: bytes) -> DecodeError:
    """Return the error with its data; one of a codec of the user's own, that has other errors, becomes one of ours."""
    if isinstance(error, DecodeError):
        error.data = error.data or payload
        return error
    wrapped = DecodeError(f"the codec failed: {type(error).__name__}: {error}", payload)
    wrapped.__cause__ = error
    return wrapped


def _error_text(error: DecodeError) -> bytes:
    """Describe an error as the quarantine shows it."""
    return json.dumps(
        {
            "kind": "payload",
            "error": f"{type(error).__name__}: {error}",
            "at": epoch_ms(),
        }
    ).encode()
