"""Redisson's RDelayedQueue as a Python object: elements that wait until they are due.

It offers elements, looks at waiting ones and takes them out. `BlockingQueue` takes due ones.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import boottime_ms
from django_delayq.codecs import Codec
from django_delayq.core.bounds import REPEAT_MS
from django_delayq.exceptions import DecodeError, DelayqError
from django_delayq.logs import get_log
from django_delayq.queues import queue_calls
from django_delayq.queues.drained import drained
from django_delayq.queues.queue_options import (
    check_limit,
    keys_of,
    options_of,
    signed_for,
)
from django_delayq.queues.redisson_object import (
    RedissonObject,
    aperformed,
    performed,
)
from django_delayq.queues.transfer.push import QueuePush, service
from django_delayq.queues.transfer.task import QueueTransferTask
from django_delayq.redaction import brief, hide_url
from django_delayq.transport.clients import Given
from django_delayq.transport.errors import may_have_run
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.steps import Steps
from django_delayq.waiting.channel import ChannelListener
from django_delayq.waiting.connection import address_of
from django_delayq.wire import script_calls as wire_calls
from django_delayq.wire.delay import Delay, parse_delay
from django_delayq.wire.frame import FrameFormat, unpack
from django_delayq.wire.script_calls import PAGE, START, Cursor, FramePage

logger = get_log(__name__)

#: Payloads that one `contains` or `remove` call compares elements with.
VALUES_BATCH = 1_000


@brief
@dataclass(frozen=True, slots=True)
class _Page:
    """Elements that a poll has read and wants to take out."""

    frames: list[bytes]
    values: list[Any]
    #: How far from the head they lie, at most.
    depth: int
    #: The id of the request; a repeat has the same.
    request: str = field(default_factory=lambda: uuid4().hex)
    begun_ms: float = field(default_factory=boottime_ms)


class DelayedQueue(RedissonObject):
    """Elements that go to the queue ``name`` when their delay is over.

    Like a Redisson object, it transfers all due elements of the queue, from its creation until `destroy`. Elements
    arrive only while such an object, a worker or a Java client is running. After a fork, the child process starts to
    transfer with its first call. Threads can share one object. Every method has an async version whose name begins with
    ``a``.

    Waiting elements come in the order in which they were offered; without an insertion list, by start time. Values are
    compared as payloads, after encoding.

    Example::

        queue = DelayedQueue("payments")
        queue.offer({"orderId": 4711}, timedelta(minutes=15))
        queue.remove({"orderId": 4711})

    Source: RedissonDelayedQueue.java
    """

    def __init__(
        self,
        name: str,
        *,
        codec: str | Codec | None = None,
        connection: Given | None = None,
        frame_format: FrameFormat | str | None = None,
        insertion_list: bool | None = None,
    ) -> None:
        """Begin to transfer the queue ``name``.

        ``connection`` is a client, sync or async, or a URL; None: the one in the settings. Sync and async methods work
        with either kind. ``codec``, ``frame_format`` (or the version of the Redisson on the other side: ``"3.16.6"``)
        and ``insertion_list`` default to the queue's settings, else to JSON, the newer format, and True.
        ``insertion_list`` cannot differ from the settings, because all writers have to agree on it.

        Raises:
            EncodeError: no queue can have this name, or no such codec or version exists.
            InvalidSettings: connection is something else, or insertion_list differs from the settings.
        """
        # After any error from here on, a debug page shows the variables of this frame.
        connection = hide_url(connection)
        options = options_of(
            name,
            codec=codec,
            frame_format=frame_format,
            insertion_list=insertion_list,
        )
        super().__init__(name, connection, options)
        # The client with which the transfer began, and the process that it runs in.
        self._held: Redis | None = None
        # What polls had to leave open.
        self._unsettled: deque[_Page] = deque()
        # Emptied under _lock.
        self._left_over: list[Any] = []
        self._lock = threading.Lock()
        self._pid = 0
        self._is_destroyed = False
        # If the settings name no server yet, or none that can be found, the first call begins, or raises the error.
        later = (DelayqError, RedisError, OSError) if self._clients.is_own else ()
        with suppress(*later):
            self._begin()

    # What waits

    @performed
    def offer(self, value: object, delay: Delay) -> Steps[None]:
        """Add a value to the queue when the delay is over, by the server's clock.

        ``delay`` is a number of seconds, a timedelta, or an aware datetime. A datetime in the past means now.

        Raises:
            InvalidDelay: the delay is negative, a naive datetime, or not a time.
            EncodeError: the codec cannot write the value.
            MaybeScheduled: the connection broke before the reply. The value was sent once, and may be in the queue.
            redis.exceptions.RedisError: the server refused it or did not answer; the value is not in the queue.
        """
        yield Once(
            wire_calls.offer(
                self._keys.queue,
                self._encode(value),
                parse_delay(delay),
                frame_format=self._options.frame_format,
                insertion_list=self._options.insertion_list,
            )
        )

    aoffer = aperformed(offer)

    @performed
    def remove_all(self, values: Iterable[object]) -> Steps[bool]:
        """Remove every element that equals one of the values; return whether there was any."""
        payloads = self._encode_all(values)
        has_changed = False
        for i in range(0, len(payloads), VALUES_BATCH):
            batch = payloads[i : i + VALUES_BATCH]
            has_changed |= yield from self._remove_pages(batch, "all")
        return has_changed

    aremove_all = aperformed(remove_all)

    @performed
    def retain_all(self, values: Iterable[object]) -> Steps[bool]:
        """Remove every element that equals none of the values; return whether there was any.

        The removed elements never arrive. With Redisson's own method they would, because it leaves them in the timeout
        set. An element that is not one of Redisson's frames stays.
        """
        payloads = self._encode_all(values)
        if not payloads:
            return (yield from self._clear())
        return (yield from self._remove_pages(payloads, "others"))

    aretain_all = aperformed(retain_all)

    @performed
    def contains(self, value: object) -> Steps[bool]:
        """Return whether an element equals the value."""
        return self._contains(value)

    acontains = aperformed(contains)

    @performed
    def contains_all(self, values: Iterable[object]) -> Steps[bool]:
        """Return whether each of the values equals an element; True if there are no values."""
        return self._contains_all(values)

    acontains_all = aperformed(contains_all)

    @performed
    def peek(self) -> Steps[Any]:
        """Return the first element without removing it; None if nothing waits.

        Raises:
            DecodeError: the codec cannot read it; ``data`` is the payload.
        """
        cursor, count = START, 1
        while not cursor.is_at_end:
            page = yield from self._read(cursor, count)
            for value in self._values(page.frames):
                return value
            cursor, count = page.cursor, PAGE
        return None

    apeek = aperformed(peek)

    @performed
    def poll(self, limit: int | None = None) -> Steps[Any]:
        """Remove the first element, due or not, and return it, or None. With a limit, return a list of at most
        ``limit``.

        If an error interrupts the call, the list has the elements that were removed before it, and the next call raises
        the error if it persists. If a reply was lost, the next call of this object returns the elements of that reply.

        Raises:
            DecodeError: the codec cannot read the first element, which stays in its place.
        """
        if limit is not None:
            return (yield from self._poll(limit))
        taken = yield from self._poll(1)
        return taken[0] if taken else None

    apoll = aperformed(poll)

    @performed
    def poll_last_and_offer_first_to(self, name: str) -> Steps[Any]:
        """Remove the last element, add it at the head of the list ``name``, and return it; None if nothing waits.

        Raises:
            DecodeError: the codec cannot read the last element, which stays in its place.
        """
        target = keys_of(name)
        depth = 1
        while True:
            frame = yield from self._nth_last(depth)
            if frame is None:
                return None
            payload = self._payload_of(frame)
            if payload is None:
                depth += 1
                continue
            value = self._decode(payload)
            (was_there,) = yield queue_calls.withdraw(
                self._keys,
                [frame],
                request=uuid4().hex,
                # Others may have offered elements meanwhile.
                depth=depth + PAGE,
                from_tail=True,
                target=target,
                payload=signed_for(payload, self.name, name),
                insertion_list=self._options.insertion_list,
            )
            if was_there:
                return value

    apoll_last_and_offer_first_to = aperformed(poll_last_and_offer_first_to)

    def read_all(self) -> list[Any]:
        """Return all elements. They are read in pages, so changes meanwhile may be missing.

        Raises:
            DecodeError: the codec cannot read one of them.
        """
        return list(self)

    async def aread_all(self) -> list[Any]:
        return [value async for value in self]

    @performed
    def clear(self) -> Steps[None]:
        """Delete all waiting elements. Jobs among them are cancelled and free their unique keys.

        They are deleted in one step. Elements that are already due, or running, stay.
        """
        yield from self._clear()

    aclear = aperformed(clear)

    def destroy(self) -> None:
        """Stop transferring. Waiting elements stay for the next object or worker. This object can still be used."""
        self._is_destroyed = True
        self._release()
        self._clients.close()

    async def adestroy(self) -> None:
        self._is_destroyed = True
        # This waits for a push that is under way.
        await asyncio.to_thread(self._release)
        self._clients.close()

    def __len__(self) -> int:
        """Return how many elements wait."""
        return self._perform(self._count())

    async def alen(self) -> int:
        return await self._aperform(self._count())

    def __iter__(self) -> Iterator[Any]:
        cursor = START
        while not cursor.is_at_end:
            page = self._perform(self._read(cursor))
            cursor = page.cursor
            yield from self._values(page.frames)

    async def __aiter__(self) -> AsyncIterator[Any]:
        cursor = START
        while not cursor.is_at_end:
            page = await self._aperform(self._read(cursor))
            cursor = page.cursor
            for value in self._values(page.frames):
                yield value

    # How it is done

    def _end(self) -> None:
        self.destroy()

    async def _aend(self) -> None:
        await self.adestroy()

    def _begin(self) -> None:
        """Keep the transfer of this queue running.

        A fork ends its thread, so a child starts it again. If the settings name another server, it moves there.
        """
        if self._is_destroyed:
            return
        client, pid = self._clients.shared(), os.getpid()
        if client is self._held and pid == self._pid:
            return
        if self._held is not None:
            if address_of(self._held) == address_of(client):
                self._held, self._pid = client, pid
                service.resume(client, self.name)
                return
            self._release()
        self._held, self._pid = client, pid

        def make_task(listener: ChannelListener) -> QueueTransferTask:
            return QueueTransferTask(
                name=self.name,
                channel=self._keys.queue.channel,
                presence=self._keys.channel,
                push=QueuePush(client, self._keys, self._options.frame_format),
                listener=listener,
            )

        service.schedule(client, self.name, make_task)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            service.unschedule(held, self.name)

    def _encode_all(self, values: Iterable[object]) -> list[bytes]:
        """Encode values and return each different payload once."""
        return list(dict.fromkeys(self._encode(value) for value in values))

    def _values(self, frames: Sequence[bytes]) -> Iterator[Any]:
        for frame in frames:
            if (payload := self._payload_of(frame)) is not None:
                yield self._decode(payload)

    def _payload_of(self, frame: bytes) -> bytes | None:
        """Unpack a frame. Return None for anything else, which the transfer puts into quarantine when it is due."""
        try:
            return unpack(frame, prefer=self._options.frame_format).payload
        except DecodeError:
            return None

    def _read(self, cursor: Cursor, count: int = PAGE) -> Steps[FramePage]:
        page: FramePage = yield wire_calls.read(
            self._keys.queue,
            cursor,
            insertion_list=self._options.insertion_list,
            page=count,
        )
        return page

    def _remove(self, value: object) -> Steps[bool]:
        cursor = START
        payloads = [self._encode(value)]
        while not cursor.is_at_end:
            reply: queue_calls.Removed = yield Once(
                queue_calls.remove(
                    self._keys,
                    payloads,
                    "first",
                    cursor,
                    frame_format=self._options.frame_format,
                    insertion_list=self._options.insertion_list,
                )
            )
            if reply.removed:
                return True
            cursor = reply.cursor
        return False

    def _remove_pages(self, payloads: list[bytes], which: str) -> Steps[bool]:
        cursor = START
        has_changed = False
        # A dictionary: if others take elements out meanwhile, a frame may be seen twice.
        left: dict[bytes, None] = {}
        while not cursor.is_at_end:
            reply: queue_calls.Removed = yield queue_calls.remove(
                self._keys,
                payloads,
                which,
                cursor,
                frame_format=self._options.frame_format,
                insertion_list=self._options.insertion_list,
            )
            has_changed |= reply.removed > 0
            cursor = reply.cursor
            left |= dict.fromkeys(reply.left)
            if left and (
                cursor.is_at_end
                or len(left) >= queue_calls.TOGETHER
                or sum(map(len, left)) >= queue_calls.TOGETHER_BYTES
            ):
                flags: list[bool] = yield queue_calls.withdraw(
                    self._keys,
                    list(left),
                    request=uuid4().hex,
                    depth=0,
                    insertion_list=False,
                )
                has_changed |= any(flags)
                left = {}
        return has_changed

    def _contains(self, value: object) -> Steps[bool]:
        return self._contains_all([value])

    def _contains_all(self, values: Iterable[object]) -> Steps[bool]:
        missing = self._encode_all(values)
        for i in range(0, len(missing), VALUES_BATCH):
            batch = missing[i : i + VALUES_BATCH]
            cursor = START
            while batch:
                if cursor.is_at_end:
                    return False
                sought: wire_calls.Sought = yield wire_calls.contains(
                    self._keys.queue,
                    batch,
                    cursor,
                    frame_format=self._options.frame_format,
                    insertion_list=self._options.insertion_list,
                )
                found = set(sought.indexes)
                batch = [item for j, item in enumerate(batch) if j not in found]
                cursor = sought.cursor
        return True

    def _poll(self, limit: int) -> Steps[list[Any]]:
        check_limit(limit)
        taken: list[Any] = []
        try:
            yield from self._settle()
            # What earlier calls took but could not return. If interrupted here, it is returned twice rather than never.
            with self._lock:
                taken += self._left_over[:limit]
                del self._left_over[:limit]
            yield from self._poll_pages(taken, limit)
        except RedisError as error:
            if not taken:
                raise
            # The caller gets the elements that were taken. If the error persists, the next call raises it.
            logger.warning(
                "poll of %r took %d elements, then: %s", self.name, len(taken), error
            )
        except DecodeError:
            raise
        except BaseException:
            # Interrupted: the next call returns the elements.
            self._left_over.extend(taken)
            raise
        return taken

    def _settle(self) -> Steps[None]:
        """Learn what earlier calls took if their replies were lost."""
        for page in drained(self._unsettled):
            is_late = boottime_ms() - page.begun_ms > REPEAT_MS
            try:
                values = yield from self._withdraw(page)
            except BaseException:
                self._unsettled.append(page)
                raise
            # If the server has forgotten the request, nobody knows who took the elements. Twice is better than never.
            self._left_over.extend(page.values if is_late else values)

    def _withdraw(self, page: _Page) -> Steps[list[Any]]:
        """Take out a page that was read. Return the values that are ours."""
        flags: list[bool] = yield queue_calls.withdraw(
            self._keys,
            page.frames,
            request=page.request,
            depth=page.depth,
            insertion_list=self._options.insertion_list,
        )
        return [value for value, flag in zip(page.values, flags, strict=True) if flag]

    def _poll_pages(self, taken: list[Any], limit: int) -> Steps[None]:
        # Read, decode, then take out: an element that cannot be decoded stays. The last call names its frames and may
        # be repeated.
        cursor = START
        while len(taken) < limit and not cursor.is_at_end:
            count = min(limit - len(taken), queue_calls.WITHDRAW_BATCH)
            page = yield from self._read(cursor, count)
            frames, values, error = self._decode_first(page.frames)
            if error is not None and not taken and not values:
                raise error
            if frames:
                to_take = _Page(frames, values, page.first + len(page.frames))
                try:
                    taken += yield from self._withdraw(to_take)
                except BaseException as raised:
                    if not isinstance(raised, Exception) or may_have_run(raised):
                        self._unsettled.append(to_take)
                    raise
            if error is not None:
                break
            # Start from the head again, unless nothing on this page could be unpacked.
            cursor = START if frames else page.cursor

    def _decode_first(
        self, page: Sequence[bytes]
    ) -> tuple[list[bytes], list[Any], DecodeError | None]:
        """Decode frames up to the first payload that cannot be decoded. Leave out what is not a frame."""
        frames: list[bytes] = []
        values: list[Any] = []
        for frame in page:
            try:
                values += self._values([frame])
            except DecodeError as error:
                return frames, values, error
            if len(values) > len(frames):
                frames.append(frame)
        return frames, values, None

    def _nth_last(self, depth: int) -> Steps[bytes | None]:
        queue = self._keys.queue
        if self._options.insertion_list:
            frame: bytes | None = yield Command(("LINDEX", queue.delay_queue, -depth))
            return frame
        frames: list[bytes] = yield Command(
            ("ZRANGE", queue.timeout_set, -depth, -depth)
        )
        return frames[0] if frames else None

    def _clear(self) -> Steps[bool]:
        has_begun = found_any = False
        left = 1
        while left or not has_begun:
            reply: queue_calls.Cleared = yield queue_calls.clear(
                self._keys, has_begun=has_begun
            )
            has_begun = has_begun or reply.has_begun
            found_any = found_any or reply.found_any
            left = reply.left
        return found_any

    def _count(self) -> Steps[int]:
        queue = self._keys.queue
        if self._options.insertion_list:
            count: int = yield Command(("LLEN", queue.delay_queue))
        else:
            count = yield Command(("ZCARD", queue.timeout_set))
        return count
