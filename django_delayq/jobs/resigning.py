"""Signing anew what waits: a run of short, atomic steps over one queue that may end after any of them.

For a project that takes a key out of use: jobs that wait for months are signed with it, and once it is gone nobody can
tell that they are jobs. Every step leaves each job where it is; a run that was interrupted is started again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from redis.client import Redis

from django_delayq.conf import QueueSettings
from django_delayq.delivery import operations
from django_delayq.delivery.operations import Where
from django_delayq.exceptions import DecodeError, NotSigned
from django_delayq.jobs import envelope as envelopes
from django_delayq.wire import scripts as wire_scripts
from django_delayq.wire.call import run
from django_delayq.wire.frame import unpack
from django_delayq.wire.scripts import START
from django_delayq.wire.signing import Keyring

#: Payloads that one step reads: some 2 ms of the server's time.
STEP = 200


@dataclass(slots=True)
class Tally:
    """What a run has found and done so far."""

    #: Written anew.
    signed: int = 0
    #: Signed with the key that signs now: left as they are.
    current: int = 0
    #: Nobody of this project has signed them.
    foreign: int = 0
    #: Signed with a key that is not here, by what is missing.
    unknown: dict[str, int] = field(default_factory=dict)
    #: Held until now for the lack of a key.
    released: int = 0

    @property
    def seen(self) -> int:
        return self.signed + self.current + self.foreign + sum(self.unknown.values())


class Resigning:
    """One run over one queue; `steps` yields after each call to the server, with what is done in ``tally``."""

    def __init__(self, client: Redis, queue: QueueSettings, keyring: Keyring) -> None:
        self._client = client
        self._queue = queue
        self._keyring = keyring
        self.tally = Tally()

    def steps(self) -> Iterator[None]:
        """Sign all that waits, is due, was tried, is held or was given up."""
        # What lies in Redisson's list has its place there; all of it is in the timeout set, and counted there.
        for _ in self._sign_frames(insertion_list=True):
            self.tally = Tally(signed=self.tally.signed)
            yield
        listed = self.tally.signed
        yield from self._sign_frames(insertion_list=False)
        self.tally.current -= listed
        yield from self._sign_destination()
        yield from self._sign_payloads()
        yield from self._release()

    def _new(self, payload: bytes) -> bytes | None:
        """Return what a payload is to be, None where it stays."""
        queue, tally = self._queue, self.tally
        try:
            new = envelopes.signed_anew(payload, queue, self._keyring)
        except NotSigned as error:
            if error.missing:
                tally.unknown[error.missing] = tally.unknown.get(error.missing, 0) + 1
            else:
                tally.foreign += 1
            return None
        except DecodeError:
            tally.foreign += 1
            return None
        if new is None:
            tally.current += 1
        return new

    def _write(self, where: Where, items: list[tuple[Any, bytes, bytes]]) -> None:
        if items:
            call = operations.resign(self._queue.keys, where, items)
            self.tally.signed += run(self._client, call)

    def _sign_frames(self, *, insertion_list: bool) -> Iterator[None]:
        cursor = START
        while not cursor.is_at_end:
            page = run(
                self._client,
                wire_scripts.read(
                    self._queue.keys.queue,
                    cursor,
                    insertion_list=insertion_list,
                    page=STEP,
                ),
            )
            items: list[tuple[Any, bytes, bytes]] = []
            for index, frame in enumerate(page.frames, page.first):
                try:
                    payload = unpack(frame, prefer=self._queue.frame_format).payload
                except DecodeError:
                    continue
                if (new := self._new(payload)) is not None:
                    items.append((index if insertion_list else "", frame, new))
            self._write(Where.FRAMES, items)
            cursor = page.cursor
            yield

    def _sign_destination(self) -> Iterator[None]:
        first, destination = 0, self._queue.keys.queue.destination
        while True:
            part: Any = self._client.lrange(destination, first, first + STEP - 1)
            if not part:
                return
            items = [
                (index, payload, new)
                for index, payload in enumerate(part, first)
                if (new := self._new(payload)) is not None
            ]
            self._write(Where.DESTINATION, items)
            first += STEP
            yield

    def _sign_payloads(self) -> Iterator[None]:
        cursor: int = 0
        part: Any
        while True:
            cursor, part = self._client.hscan(
                self._queue.keys.payloads, cursor, count=STEP
            )
            items = [
                (token, payload, new)
                for token, payload in part.items()
                if (new := self._new(payload)) is not None
            ]
            self._write(Where.PAYLOADS, items)
            yield
            if not cursor:
                return

    def _release(self) -> Iterator[None]:
        """Let go what was held for the lack of a key that is here: a worker with the newest alone can run it now."""
        names = [f"key {key}" for key in self._keyring.ids]
        cursor = b""
        while True:
            reply = run(
                self._client,
                operations.release(self._queue.keys, names, limit=STEP, cursor=cursor),
            )
            self.tally.released += reply.released
            yield
            if reply.released < STEP and not reply.cursor:
                return
            cursor = reply.cursor
