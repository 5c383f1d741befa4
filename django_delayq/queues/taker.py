"""Takes elements out of a destination queue: claims, decodes and confirms, or puts back if the caller goes away.

Two calls make sure that no element is lost. The first leases the element; the second confirms that the holder of the
lease has it. An unconfirmed element goes to the next consumer.
"""

import json
import math
import os
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.codecs import Codec
from django_delayq.core import claim as claim_calls
from django_delayq.core import lease_ends
from django_delayq.core.claim import Claimed, Leased, Mode
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.lease_ends import Rejected
from django_delayq.core.states import State
from django_delayq.exceptions import DecodeError
from django_delayq.logs import get_log
from django_delayq.queues import queue_calls
from django_delayq.queues.drained import drained
from django_delayq.queues.reading import read
from django_delayq.redaction import brief
from django_delayq.transport.steps import Pause, Steps

logger = get_log(__name__)

#: The pause between two attempts to confirm after the connection broke: it doubles, from the first to the second.
CONFIRM_PAUSE_MS = (20, 500)


@brief
@dataclass(slots=True)
class Batch:
    """Elements that one claim has leased."""

    keys: DeliveryKeys
    owner: bytes
    #: When to stop trying to confirm, by `monotonic_ms`: from then on others may have the elements.
    give_up_ms: float
    jobs: list[Leased]
    #: Values of the jobs that could be decoded; after the confirmation, only those that are ours.
    values: list[Any]
    #: Errors of the jobs that could not be decoded.
    errors: list[DecodeError]
    #: Time until the queue's next event, ms.
    wait_ms: float


class Taker:
    """Takes elements for any number of threads, and remembers what a broken connection left open."""

    def __init__(self, codec: Codec, lease_ms: int) -> None:
        self._codec = codec
        self._lease_ms = lease_ms
        #: How often a waiting consumer has to look while elements are leased.
        self.look_ms = lease_ms / claim_calls.LOOKS_A_LEASE
        # Batches that earlier calls had to leave open.
        self._unconfirmed: deque[Batch] = deque()
        self._to_put_back: deque[Batch] = deque()
        # With their queues, elements that earlier calls confirmed but could not return. Emptied under _lock.
        self._left_over: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    def take(self, keys: DeliveryKeys, limit: int) -> Steps[Batch]:
        """Claim, decode and confirm the elements that are there now."""
        yield from self._settle_earlier()
        if found := self._left_over_of(keys):
            return Batch(keys, b"", 0, [], found, [], 0)
        batch = yield from self._claim(keys, limit)
        if not batch.jobs:
            return batch
        try:
            yield from self._decode(batch)
            try:
                yield from self._confirm(batch)
            except (RedisConnectionError, RedisTimeoutError):
                # The next call learns whether the server has confirmed the batch.
                self._unconfirmed.append(batch)
                raise
        except (RedisError, GeneratorExit):
            # Either nothing was confirmed, or the next call settles it, or the lease ends.
            raise
        except BaseException:
            # Interrupted: confirmed or not, the caller did not get the elements.
            yield from self.put_back(batch)
            raise
        return batch

    def _claim(self, keys: DeliveryKeys, limit: int) -> Steps[Batch]:
        owner, request = os.urandom(8), os.urandom(8)
        begun_ms = monotonic_ms()

        def batch_of(claimed: Claimed) -> Batch:
            return Batch(
                keys,
                owner,
                give_up_ms=begun_ms + self._lease_ms,
                jobs=claimed.jobs,
                values=[],
                errors=[],
                wait_ms=math.inf if claimed.wait_us < 0 else claimed.wait_us / 1000,
            )

        def claim(limit: int) -> Any:
            return claim_calls.claim(
                keys,
                owner=owner,
                request=request,
                limit=limit,
                lease_ms=self._lease_ms,
                mode=Mode.TAKE,
            )

        try:
            claimed: Claimed = yield claim(limit)
        except (RedisError, GeneratorExit):
            # If the server made the claim, its lease ends by itself.
            raise
        except BaseException:
            try:
                # The same request returns what it got before; with a limit of 0 it takes nothing new.
                claimed = yield claim(0)
                yield from self.put_back(batch_of(claimed))
            except RedisError as error:
                logger.warning(
                    "claimed elements come back after their lease: %s", error
                )
            raise
        if claimed.newer_format:
            raise claim_calls.newer_format(keys.queue.name, claimed.newer_format)
        return batch_of(claimed)

    def _decode(self, batch: Batch) -> Steps[None]:
        """Decode the jobs of a batch. Those that cannot be decoded go to the quarantine."""
        readable: list[Leased] = []
        rejected: list[Rejected] = []
        for job in batch.jobs:
            try:
                batch.values.append(
                    read(self._codec, job.payload, batch.keys.queue.name)
                )
                readable.append(job)
            except Exception as raised:
                error = _as_decode_error(raised, job.payload)
                batch.errors.append(error)
                rejected.append(Rejected(job.token, job.fence, _error_text(error)))
        if rejected:
            yield lease_ends.bury(
                batch.keys,
                rejected,
                state=State.QUARANTINED,
                attempt_failed=False,
            )
        batch.jobs = readable
        if not readable:
            # No confirmation will follow, which would make the server forget the request.
            yield claim_calls.leave(batch.keys, owner=batch.owner)

    def _confirm(self, batch: Batch) -> Steps[None]:
        """Confirm a batch. Afterwards ``values`` has only the elements that are the caller's."""
        if not batch.jobs:
            return
        pause_ms, longest_ms = CONFIRM_PAUSE_MS
        while True:
            try:
                flags: str = yield queue_calls.confirm(
                    batch.keys,
                    batch.jobs,
                    owner=batch.owner,
                )
                break
            except (RedisConnectionError, RedisTimeoutError):
                # The server may have confirmed it. Asking again is safe, and gives the answer.
                if monotonic_ms() >= batch.give_up_ms:
                    raise
                yield Pause(pause_ms)
                pause_ms = min(2 * pause_ms, longest_ms)
        # '?': the server no longer knows who had the element. Twice is better than never.
        batch.values = [
            value
            for value, flag in zip(batch.values, flags, strict=True)
            if flag != "0"
        ]

    def put_back(self, batch: Batch) -> Steps[None]:
        """Put back a batch that the caller did not get, confirmed or not."""
        if not batch.jobs:
            self._keep(batch)  # left over from an earlier call
            return
        try:
            yield queue_calls.untake(
                batch.keys,
                batch.jobs,
                owner=batch.owner,
            )
        except RedisError as error:
            logger.warning("the next call puts the elements back: %s", error)
            self._to_put_back.append(batch)

    def _settle_earlier(self) -> Steps[None]:
        """Finish what earlier calls had to leave open."""
        # What cannot be put back comes to stand behind the others.
        for batch in islice(drained(self._to_put_back), len(self._to_put_back)):
            try:
                yield from self.put_back(batch)
            except BaseException:
                self._to_put_back.append(batch)
                raise
        for batch in drained(self._unconfirmed):
            try:
                yield from self._confirm(batch)
            except BaseException:
                self._unconfirmed.append(batch)
                raise
            self._keep(batch)

    def _keep(self, batch: Batch) -> None:
        """Keep elements that belong to the caller for its next call."""
        name = batch.keys.queue.name
        self._left_over.extend([(name, value) for value in batch.values])

    def _left_over_of(self, keys: DeliveryKeys) -> list[Any]:
        """Take an element that an earlier call confirmed but could not return, if there is one."""
        with self._lock:
            for i, (name, value) in enumerate(self._left_over):
                if name == keys.queue.name:
                    del self._left_over[i]
                    return [value]
        return []


def _as_decode_error(error: Exception, payload: bytes) -> DecodeError:
    """Return the error as a DecodeError with its data; wrap an error of the user's own codec."""
    if isinstance(error, DecodeError):
        error.data = error.data or payload
        return error
    wrapped = DecodeError(f"the codec failed: {type(error).__name__}: {error}", payload)
    wrapped.__cause__ = error
    return wrapped


def _error_text(error: DecodeError) -> bytes:
    """Return an error in the form that the quarantine shows."""
    return json.dumps(
        {
            "kind": "payload",
            "error": f"{type(error).__name__}: {error}",
            "at": epoch_ms(),
        }
    ).encode()
