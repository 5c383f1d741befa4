"""The file in which jobs move between servers that do not see each other: one JSON object a line.

It says which server's run it belongs to, and has the pages of that run in their order. The last line has a code, by which
the source knows that all of the file was imported.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import BinaryIO

import msgspec
from redis.client import Redis
from redis.exceptions import OutOfMemoryError

from django_delayq import conf
from django_delayq.calls.running import run
from django_delayq.conf import QueueSettings
from django_delayq.decoding import Count, Decoder
from django_delayq.delivery import looking
from django_delayq.delivery.handing_over import HandOver, NotHandedOver
from django_delayq.exceptions import DecodeError
from django_delayq.repair import pages
from django_delayq.repair.moving import (
    CannotMove,
    Settings,
    Tally,
    home_of_keys,
    new_run,
    settings_of,
)
from django_delayq.repair.pages import Kind, Moved, MovedSchedule, Run
from django_delayq.repair.taking import (
    WALKS,
    Taking,
    check_kind,
    schedules_of,
    take_schedule,
)

#: The version of the file's format.
VERSION = 1


class Begin(msgspec.Struct, frozen=True, tag="begin", tag_field="is"):
    """The first line."""

    version: Count
    #: Whether the jobs also stay where they are, and run there.
    copy: bool
    #: By queue, in how many shards its unique keys and schedules are, 0: under its bare name. A queue without any has none.
    key_shards: dict[str, Count] = {}


class OfQueue(msgspec.Struct, frozen=True, tag="queue", tag_field="is"):
    """A queue, before its pages."""

    name: str
    run: str
    #: The format that its jobs are in, at most.
    format: Count
    settings: Settings
    #: What somebody has changed of schedules in code.
    changed: dict[str, MovedSchedule]


class OfSchedule(msgspec.Struct, frozen=True, tag="schedule", tag_field="is"):
    """A stored schedule of the queue before it."""

    name: str
    schedule: MovedSchedule


class Page(msgspec.Struct, frozen=True, tag="page", tag_field="is"):
    """A page of jobs of the queue before it."""

    number: Count
    jobs: list[Moved]
    #: Of these jobs: a page that lacks some must not be stored, as the whole one would be taken for stored then.
    digest: str


class End(msgspec.Struct, frozen=True, tag="end", tag_field="is"):
    """The last line."""

    code: str


#: How files of gzip, zstd, xz and bzip2 begin.
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh")

Line = Begin | OfQueue | OfSchedule | Page | End
_encoder = msgspec.json.Encoder()
_decoder = Decoder[Line](Line, holds_any=True)


def write(line: Line) -> bytes:
    """Write one line."""
    return _encoder.encode(line) + b"\n"


def read(file: BinaryIO | Iterable[bytes]) -> Iterator[Line]:
    """Read a file line by line, to its end line.

    Raises:
        DecodeError: another program or a later version wrote it, or its end is missing.
    """
    number = 0
    for number, text in enumerate(file, 1):
        try:
            line = _decoder.decode(text)
        except DecodeError as error:
            if text.startswith(_COMPRESSED):
                raise DecodeError(
                    "the file is compressed: unpack it first, as gunzip and unzstd do, or pipe what they write into"
                    " delayq_import -",
                    text[:4],
                ) from error
            raise DecodeError(
                f"line {number} is not of a file of delayq_export: {error}. Perhaps the export was interrupted: run it again;"
                " then import its file from the beginning.",
                text[:100],
            ) from error
        if isinstance(line, Begin) is not (number == 1):
            raise DecodeError(f"line {number} is at the wrong place", text[:100])
        if isinstance(line, Begin) and line.version > VERSION:
            raise DecodeError(
                f"the file is of version {line.version}, and this reads {VERSION}; import it with the version that wrote it",
                text[:100],
            )
        yield line
        if isinstance(line, End):
            return
    raise DecodeError(
        f"the file ends after line {number}, before its end: the export was interrupted, or a part of the file is lost. Run"
        " delayq_export again: its file has everything. Jobs that are imported already are not imported twice."
    )


def digest_of(jobs: list[Moved]) -> str:
    """Return a digest of the jobs of a page."""
    return blake2b(_encoder.encode(jobs), digest_size=5).hexdigest()


def mark_of(before: str, jobs: list[Moved]) -> str:
    """Return a mark of a page and those before it, whose mark is given: other pages of the same numbers have another."""
    names = [before, *sorted(job.token for job in jobs)]
    return blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


def code_of(runs: dict[str, Run]) -> str:
    """Return the code that says that these runs, by queue, were imported whole."""
    text = "\n".join(
        f"{name} {each.id} {each.pages}" for name, each in sorted(runs.items())
    )
    return blake2b(text.encode(), digest_size=5).hexdigest()


class Exporting:
    """One export of some queues; `lines` yields the file, and ``tallies`` has what is done, by queue."""

    def __init__(
        self,
        client: Redis,
        queues: Sequence[QueueSettings],
        *,
        is_copy: bool,
        waits: bool = True,
    ) -> None:
        """``waits=False``: for no replica."""
        self._client = client
        self._queues = queues
        self._is_copy = is_copy
        self._waits = waits
        self.tallies = {queue.name: Tally() for queue in queues}
        #: The code that the last line has.
        self.code = ""

    def begin(self) -> dict[str, Taking]:
        """Begin the runs of all queues.

        Raises:
            CannotMove: one of them is being moved in another way, or is not yet deleted here after another move.
        """
        taking = {}
        # Before any begins: a run that has begun has to be ended.
        runs = {} if self._is_copy else open_runs(self._client, self._queues)
        for queue in self._queues:
            if (its_run := runs.get(queue.name)) is None:
                # A mark of an end without a run is left of two ends at once.
                continue
            check_kind(queue, its_run, Kind.FILE)
            code = confirmed_with(self._client, queue)
            if code is not None:
                raise CannotMove(
                    f"queue {queue.name!r}: another server has what was exported, and not all of it is deleted here yet. Run"
                    f" delayq_export --confirm {code} again."
                )
        for queue in self._queues:
            each = Taking(
                self._client,
                queue,
                self.tallies[queue.name],
                is_copy=self._is_copy,
                waits=self._waits,
            )
            if not self._is_copy:
                each.begin(Kind.FILE)
            taking[queue.name] = each
        return taking

    def lines(self) -> Iterator[Line]:
        """Take everything out that can move, and yield the lines of the file."""
        runs: dict[str, Run] = {}
        taking = self.begin()
        yield Begin(VERSION, self._is_copy, self._homes())
        for queue in self._queues:
            each = taking[queue.name]
            runs[queue.name] = each.run or Run(new_run(), Kind.FILE, 0)
            yield self._head(queue, runs[queue.name])
            yield from self._schedules(queue, each)
            number = 0
            for number, page in enumerate(self._pages(each), 1):
                self.tallies[queue.name].moved += len(page)
                yield Page(number, page, digest_of(page))
            if not self._is_copy:
                # What was taken out is among what the last walk has seen held.
                tally = self.tallies[queue.name]
                tally.stay = max(0, tally.stay - tally.moved)
            # Workers forward it, and that moves with the queue that gets it.
            counts = run(self._client, looking.counts(queue.keys))
            self.tallies[queue.name].stay += counts.forwards
            runs[queue.name] = runs[queue.name]._replace(pages=number)
        self.code = code_of(runs)
        yield End(self.code)

    def _homes(self) -> dict[str, int]:
        found = {}
        settings = conf.get_settings()
        for name in dict.fromkeys(queue.whole for queue in self._queues):
            whole = settings.sharded.get(name) or settings.queue(name)
            if (home := home_of_keys(self._client, whole)) is not None:
                found[name] = home
        return found

    def _pages(self, taking: Taking) -> Iterator[list[Moved]]:
        # Those that an export has taken before, whose file may be lost, are still held.
        for page in range(1, (taking.run.pages if taking.run else 0) + 1):
            yield taking.again(page)
        for _ in range(1 if self._is_copy else WALKS):
            for _, jobs in taking.walk():
                yield jobs
            if not taking.tally.late:
                return

    def _head(self, queue: QueueSettings, its_run: Run) -> OfQueue:
        return OfQueue(
            queue.name,
            its_run.id,
            run(self._client, looking.read_format(queue.keys)),
            settings_of(self._client, queue),
            schedules_of(self._client, queue).changed,
        )

    def _schedules(self, queue: QueueSettings, taking: Taking) -> Iterator[OfSchedule]:
        there = schedules_of(self._client, queue)
        for name in there.stored:
            take = partial(
                take_schedule, self._client, queue, name, there, is_copy=self._is_copy
            )
            found = take() if self._is_copy else taking.take(take)
            if found is not None:
                self.tallies[queue.name].schedules += 1
                yield OfSchedule(name, found)


def open_runs(client: Redis, queues: Iterable[QueueSettings]) -> dict[str, Run]:
    """Return the runs that move these queues now, by queue."""
    found = {}
    for queue in queues:
        text: bytes | None = client.hget(queue.keys.control, "moving")  # type: ignore[assignment]
        its_run = pages.run_of(text)
        if its_run is not None:
            found[queue.name] = its_run
    return found


def confirm(client: Redis, queues: Iterable[QueueSettings], code: str) -> None:
    """Note that another server has all of these runs, before the first of them ends: a code is that of all."""
    for queue in queues:
        # A full server takes no mark; an end that is interrupted there needs another export.
        with suppress(OutOfMemoryError):
            client.hset(queue.keys.control, "confirmed", code)


def confirmed_with(client: Redis, queue: QueueSettings) -> str | None:
    """Return the code by which the run of a queue was confirmed, if it was."""
    text: bytes | None = client.hget(queue.keys.control, "confirmed")  # type: ignore[assignment]
    return None if text is None else text.decode(errors="replace")


def end_steps(
    client: Redis,
    queue: QueueSettings,
    its_run: Run,
    tally: Tally,
    *,
    is_moved: bool,
    waits: bool = True,
) -> Iterator[None]:
    """End all that an export has taken out of a queue: another server has it, or it is put back here.

    ``waits=False``: for no replica.
    """
    for page in range(1, its_run.pages + 1):
        call = pages.end_page(
            queue.keys,
            run=its_run.id,
            page=page,
            is_moved=is_moved,
            frame_format=queue.frame_format,
            insertion_list=queue.keeps_list,
        )
        tally.moved += run(client, call)
        yield
    for name in schedules_of(client, queue).stored:
        ending = pages.end_schedule(queue.keys, name, is_moved=is_moved)
        tally.schedules += run(client, ending)
    end = pages.end_page(queue.keys, run=its_run.id, page=0, is_moved=is_moved)
    hand_over = HandOver(client, queue.keys, waits=waits)
    try:
        # On another primary than the pages before, it finds what that has not heard of.
        left = hand_over.make(lambda: run(client, end))
    except NotHandedOver as error:
        raise CannotMove(
            f"queue {queue.name!r}: {error}. Run this again once that is mended; with --no-wait it waits for no replica."
        ) from error
    if left:
        raise CannotMove(
            f"{left} jobs of queue {queue.name!r} are on their way in pages that this run has not; run this again"
        )
