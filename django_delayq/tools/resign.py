"""Re-sign the jobs of one queue with the first key, in short atomic steps.

A project that takes a key out of use needs this first: jobs that wait for months are signed with that key, and without
it no worker recognises them. Each step leaves every job in its place. After an interrupt, start again.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.client import Redis
from redis.exceptions import NoPermissionError

from django_delayq.conf import QueueSettings
from django_delayq.core import hold as hold_calls
from django_delayq.core import queue_reads
from django_delayq.core.forward_calls import forward_of, read_forward
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.resign_calls import Where, resign, resign_result
from django_delayq.exceptions import DecodeError, NotSigned
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import stored_results
from django_delayq.jobs.follow_ups import queue_of
from django_delayq.jobs.registry import all_tasks
from django_delayq.tools.pace import finished_first
from django_delayq.transport.connections import nodes_of
from django_delayq.transport.run import run
from django_delayq.wire import script_calls as wire_calls
from django_delayq.wire.frame import pack, unpack
from django_delayq.wire.script_calls import START, Cursor
from django_delayq.wire.signatures import (
    TOKEN_BEFORE,
    TOKEN_LENGTH,
    Keyring,
    readable_marks,
)

#: Payloads that one step reads. Writing them takes some 3 ms of the server's time.
STEP = 200
#: Bytes that one step should read, judged by the sizes seen before.
STEP_BYTES = 1_000_000
#: Keys that one step looks at, to find results.
SCANNED = 1_000
#: Looks through a queue, at most. A look may miss a job that moves meanwhile, so the last one has to find nothing to
#: sign. If it finds something, a process still signs with an older key.
LOOKS = 4
#: How many keys that are not here are told apart. Anybody can make up more, and all others count as one.
MOST_UNKNOWN = 20
OTHERS = "key …"


@dataclass(slots=True)
class Tally:
    """The result of a run so far."""

    #: Re-signed.
    signed: int = 0
    #: Signed with the key that signs now, before this run.
    current: int = 0
    #: Not signed by this project.
    foreign: int = 0
    #: Signed with a key that is not here, or in another format; by the name of what is missing.
    unknown: dict[str, int] = field(default_factory=dict)
    #: Errors and results that were encrypted with the first key.
    encrypted: int = 0
    #: Whether there may be encrypted results that this run could not look for.
    has_hidden: bool = False
    #: Were held for lack of a key, and are not any more.
    released: int = 0
    #: Re-signed by the last look; above 0, there may be more.
    late: int = 0


class Resigning:
    """One run over one queue; `steps` yields after each call to the server, and ``tally`` has what is done."""

    def __init__(self, client: Redis, queue: QueueSettings, keyring: Keyring) -> None:
        self._client = client
        self._queue = queue
        self._keyring = keyring
        # What one step reads.
        self._step = 1
        # Of the looks that are over; of the first look; of the one under way.
        self._signed = 0
        self._first: Tally | None = None
        self._seen = Tally()
        self._released = 0
        # Of errors and results.
        self._encrypted, self._lacking, self._has_hidden = 0, Counter[str](), False

    @property
    def tally(self) -> Tally:
        """The result of the run so far."""
        seen, first = self._seen, self._first or self._seen
        return Tally(
            signed=self._signed + seen.signed,
            # Later looks also count what the first has signed.
            current=first.current,
            foreign=seen.foreign,
            unknown=dict(self._lacking + Counter(seen.unknown)),
            encrypted=self._encrypted,
            has_hidden=self._has_hidden,
            released=self._released,
            late=0 if first is seen else seen.signed,
        )

    @property
    def seen(self) -> int:
        """How many payloads the look that is under way has read."""
        seen = self._seen
        told = seen.signed + seen.current + seen.foreign
        return told + sum(seen.unknown.values())

    def total(self) -> int:
        """Return about how many payloads there are."""
        counts = run(self._client, queue_reads.counts(self._queue.keys))
        payloads: Any = self._client.hlen(self._queue.keys.payloads)
        return counts.waiting - counts.returned + counts.destination + int(payloads)

    def steps(self) -> Iterator[None]:
        """Re-sign all jobs that wait, are due, were tried, are held or were given up."""
        for _ in range(LOOKS):
            self._signed += self._seen.signed
            self._seen = Tally()
            yield from self._look()
            self._first = self._first or self._seen
            if not self._seen.signed:
                break
        yield from self._encrypt_errors()
        if self._queue.encrypt or any(task.base.encrypt for task in all_tasks()):
            yield from self._encrypt_results()
        yield from self._release()

    def _look(self) -> Iterator[None]:
        # In the direction in which jobs go, so that none slips past. Frames in Redisson's list are found there by their
        # index; they are in the timeout set as well, and counted there.
        for _ in self._sign_frames(insertion_list=True):
            self._seen = Tally(signed=self._seen.signed)
            yield
        listed = self._seen.signed
        yield from self._sign_frames(insertion_list=False)
        self._seen.current -= listed
        yield from self._sign_destination()
        yield from self._sign_payloads()
        yield from self._sign_forwards()

    def _new(
        self,
        payload: bytes,
        *,
        is_data: bool = False,
        queue: QueueSettings | None = None,
    ) -> bytes | None:
        """Return the new payload, or None if it stays. ``is_data``: it counts as foreign unless its signature fits."""
        tally = self._seen
        try:
            new = envelopes.signed_anew(payload, queue or self._queue, self._keyring)
        except NotSigned as error:
            if error.missing and not is_data:
                _count(tally.unknown, error.missing)
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
            call = resign(self._queue.keys, where, items)
            with finished_first():
                written = run(self._client, call)
                if where is Where.ERRORS:
                    self._encrypted += written
                else:
                    self._seen.signed += written

    def _sign_frames(self, *, insertion_list: bool) -> Iterator[None]:
        cursor = START
        while not cursor.is_at_end:
            page = run(
                self._client,
                wire_calls.read(
                    self._queue.keys.queue,
                    cursor,
                    insertion_list=insertion_list,
                    page=STEP,
                ),
            )
            items: list[tuple[Any, bytes, bytes]] = []
            cursor = page.cursor
            for index, member in enumerate(page.frames, page.first):
                try:
                    frame = unpack(member, prefer=self._queue.frame_format)
                except DecodeError:
                    continue
                if (new := self._new(frame.payload)) is not None:
                    items.append((index if insertion_list else "", member, new))
                    if member == cursor.frame:
                        # The member that is there from now on: a walk of a list that does not find it repeats a page.
                        written = pack(frame.random_id, new, frame.format)
                        cursor = Cursor(cursor.where, written)
            self._write(Where.FRAMES, items)
            yield

    def _sign_destination(self) -> Iterator[None]:
        # From the tail on: workers take from the head and move nothing there, and a later look sees what comes.
        self._step, destination = 1, self._queue.keys.queue.destination
        last = -1
        while True:
            step = self._step
            part: Any = self._client.lrange(destination, last - step + 1, last)
            if not part:
                return
            items = [
                (index, payload, new)
                for index, payload in enumerate(part, last - len(part) + 1)
                if (new := self._new(payload)) is not None
            ]
            self._write(Where.DESTINATION, items)
            self._fit(part)
            last -= step
            yield

    def _sign_payloads(self) -> Iterator[None]:
        for part in self._parts_of(self._queue.keys.payloads):
            items = [
                (token, payload, new)
                for token, payload in part.items()
                if (new := self._new(payload, is_data=not _names(payload, token)))
                is not None
            ]
            self._write(Where.PAYLOADS, items)
            yield

    def _parts_of(self, key: str) -> Iterator[dict[bytes, bytes]]:
        """Yield a hash in parts, each as large as one step reads."""
        self._step, cursor = 1, 0
        part: Any
        while True:
            cursor, part = self._client.hscan(key, cursor, count=self._step)
            yield part
            if not cursor:
                return
            self._fit(list(part.values()))

    def _sign_forwards(self) -> Iterator[None]:
        """Sign what goes to other queues, for those."""
        self._step, after = 1, b"-"
        while True:
            part: Any = self._client.zrangebylex(
                self._queue.keys.forwards, after, "+", 0, self._step
            )
            if not part:
                return
            items: list[tuple[Any, bytes, bytes]] = []
            for member in part:
                forward = read_forward(member)
                if forward is None:
                    continue
                name = member.partition(b"\0")[0].decode(errors="replace")
                new = self._new(forward.job.payload, queue=queue_of(name))
                if new is not None:
                    job = forward.job._replace(payload=new)
                    anew = forward_of(name, job, forward.ended_ms)
                    items.append(("", member, anew.member))
            self._write(Where.FORWARDS, items)
            after = b"(" + (
                items[-1][2] if items and items[-1][1] == part[-1] else part[-1]
            )
            self._fit(part)
            yield

    def _fit(self, part: Sequence[bytes]) -> None:
        """Decide how many payloads the next step reads: few at first, because a single one may be huge."""
        size = sum(map(len, part))
        fitting = STEP_BYTES * len(part) // size if size else STEP
        self._step = max(1, min(4 * self._step, STEP, fitting))

    def _encrypted_anew(self, use: str, text: bytes, token: str) -> bytes | None:
        try:
            return stored_results.encrypted_anew(use, text, token, self._keyring)
        except NotSigned as error:
            _count(self._lacking, error.missing)
            return None

    def _encrypt_errors(self) -> Iterator[None]:
        for part in self._parts_of(self._queue.keys.errors):
            items: list[tuple[Any, bytes, bytes]] = []
            for field_name, text in part.items():
                token = field_name.removeprefix(b"history:").decode(errors="replace")
                if (new := self._encrypted_anew("error", text, token)) is not None:
                    items.append((field_name, text, new))
            self._write(Where.ERRORS, items)
            yield

    def _encrypt_results(self) -> Iterator[None]:
        """Encrypt what is kept of jobs that have ended: with the result, their payloads and attempts."""
        keys = self._queue.keys
        start = keys.result("")
        # A name may have what a pattern means.
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", start) + "*"
        try:
            for number, name in enumerate(self._names(pattern)):
                token = name[len(start.encode()) :].decode(errors="replace")
                self._encrypt_result(token)
                if number % STEP == 0:
                    yield
        except NoPermissionError:
            self._has_hidden = True

    def _names(self, pattern: str) -> Iterator[bytes]:
        for node in nodes_of(self._client):
            yield from node.scan_iter(match=pattern, count=SCANNED)

    def _encrypt_result(self, token: str) -> None:
        keys = self._queue.keys
        parts: Any = self._client.lrange(keys.result(token), 0, 2)
        items = []
        for index, part in enumerate(parts):
            if index == 1:
                try:
                    new = envelopes.signed_anew(part, self._queue, self._keyring)
                except DecodeError:
                    # It runs no more, and is shown as unchecked.
                    new = None
            else:
                use = "error" if index else "result"
                new = self._encrypted_anew(use, part, token)
            if new is not None:
                items.append((index, part, new))
        if items:
            self._encrypted += run(self._client, resign_result(keys, token, items)) > 0

    def _release(self) -> Iterator[None]:
        """Release jobs that were held for lack of a key or a format that is here: others can run them now as well.

        One walk over the names: it does not wait for jobs that a worker without the newest key holds again.
        """
        known = [Reason(Kind.KEY, key) for key in self._keyring.ids]
        known += [Reason(Kind.FORMAT, mark) for mark in readable_marks()]
        cursor = b""
        while True:
            reply = run(
                self._client,
                hold_calls.release(
                    self._queue.keys,
                    known,
                    limit=STEP,
                    cursor=cursor,
                    is_worker=False,
                ),
            )
            self._released += reply.released
            yield
            cursor = reply.cursor
            if not cursor:
                return


def _count(known: dict[str, int], name: str) -> None:
    if name.startswith("key ") and len(known) >= MOST_UNKNOWN:
        name = name if name in known else OTHERS
    known[name] = known.get(name, 0) + 1


def _names(payload: bytes, token: bytes) -> bool:
    # A payload that a worker could not take for a job is kept under a token of the worker's.
    return token in payload[: TOKEN_BEFORE + TOKEN_LENGTH]
