"""Taking what can move out of a queue, line by line: the queue holds what was taken until another server has it."""

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from redis.client import Redis

from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.core.hand_over import FRESH_MS, HandOver
from django_delayq.features.schedules.known_schedules import Known, loading
from django_delayq.logs import get_log
from django_delayq.tools import page_calls
from django_delayq.tools.lines import Line, OfQueue, OfSchedule, Page
from django_delayq.tools.move import CannotMove, Tally, handed_over, settings_of
from django_delayq.tools.pace import TARGET_MS, finished_first
from django_delayq.tools.page_calls import Kind, MovedSchedule, Source
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from django_delayq.wire.signatures import Keyring

#: Jobs of a page: at first, at least, at most. A page takes some 2 ms of a server; large payloads bound it by their bytes.
FIRST, LEAST, MOST = 64, 32, 150
#: Walks through all places of a queue, at most: a later one finds what came, or went on, meanwhile.
WALKS = 4

T = TypeVar("T")
logger = get_log("django_delayq")


class Taking:
    """Takes what can move out of a queue, line by line, and ends it there: deletes it, or puts it back.

    Both ways of moving use it: one passes each line to the other server and deletes it, one writes all lines to a file and
    ends them together.
    """

    def __init__(
        self,
        client: Redis,
        queue: QueueSettings,
        tally: Tally,
        kind: Kind | None,
        *,
        only: Keyring | None = None,
        waits: bool = True,
        target: str = "",
    ) -> None:
        """``kind=None``: only read it. ``only``: leave what is signed with another key. ``waits=False``: for no replica.

        ``target`` is the name of the server that the queue moves to.
        """
        self._client = client
        self._queue = queue
        self._kind = kind
        self._only = only
        self.tally = tally
        self._sizer = BatchSizer(
            first=FIRST, least=LEAST, most=MOST, target_ms=TARGET_MS, call_share=0.0
        )
        self._hand_over = HandOver(
            client,
            queue.keys,
            waits=waits,
            fresh_ms=FRESH_MS,
            within=finished_first,
        )
        self._target = target
        #: The run of the queue; None before it begins.
        self.run: page_calls.Run | None = None
        #: As they were when the run began, or was continued.
        self.schedules: SchedulesThere | None = None

    def begin(self) -> page_calls.Run:
        """Begin a run, or continue the one that has begun.

        Raises:
            CannotMove: the queue is being moved in another way.
        """
        id = secrets.token_urlsafe(9)
        if self._kind is None:
            self.run = page_calls.Run(id, Kind.FILE, 0)
        else:
            call = page_calls.begin_export(
                self._queue.keys, id, self._kind, self._target
            )
            self.run = run(self._client, call)
            check_kind(self._queue, self.run, self._kind)
        return self.run

    def head(self) -> Iterator[Line]:
        """Yield the queue, and take its stored schedules."""
        begun = self.run or self.begin()
        there = schedules_of(self._client, self._queue, self._only)
        self.schedules = there
        yield OfQueue(
            self._queue.name,
            begun.id,
            run(self._client, queue_reads.read_format(self._queue.keys)),
            settings_of(self._client, self._queue),
            there.changed,
            self._queue.shards or 0,
            begun.pages if begun.kind is Kind.DIRECT else None,
            "" if begun.target == self._target else begun.target,
        )
        is_copy = self._kind is None
        for name in there.stored:
            take = partial(
                take_schedule, self._client, self._queue, name, there, is_copy=is_copy
            )
            found = self._take(take)
            if found is not None:
                yield OfSchedule(name, found)

    def body(self) -> Iterator[Page]:
        """Take pages until a walk finds nothing, or after `WALKS`; yield those first that are held already.

        A run that deletes each page holds the last one, and those whose deletion a failover has lost.
        """
        begun = self.run
        assert begun is not None
        is_direct = begun.kind is Kind.DIRECT
        for number in range(1, begun.pages + 1):
            jobs = self._export(Source.FRAMES, number, 0).jobs
            if jobs or not is_direct:
                yield Page(number, jobs)
        for _ in range(WALKS if self._kind else 1):
            yield from self._walk()
            if not self.tally.late:
                return

    def learn(self, count: int, took_ms: float) -> None:
        """Learn from the time that a call with a page of this size took."""
        self._sizer.learn(count, took_ms)

    def delete(self, line: Line) -> None:
        """Delete what a line has, which another server has stored."""
        match line:
            case OfSchedule():
                self._end_schedule(line.name, is_moved=True)
            case Page():
                self._end_page(line.number, is_moved=True)

    def end(self, *, is_moved: bool = True) -> int:
        """End the run, unless jobs are on their way; return how many are.

        Raises:
            CannotMove: see `handed_over`.
        """
        # On another primary than the pages before, it finds what that has not heard of.
        return self._take(partial(self._end_page, 0, is_moved=is_moved))

    @property
    def holds_nothing(self) -> bool:
        """Whether this run has begun, and nothing is on its way in it."""
        there = self.schedules
        return (
            self.run is not None
            and self.run.kind is self._kind
            and not self.run.pages
            and not (there and there.known.aside)
        )

    def withdraw(self) -> None:
        """End a run that holds nothing, without waiting for replicas."""
        self._end_page(0, is_moved=False)

    def end_steps(self, its_run: page_calls.Run, *, is_moved: bool) -> Iterator[None]:
        """End all that an export has taken out of the queue: another server has it, or it is put back here."""
        self.run = its_run
        for page in range(1, its_run.pages + 1):
            self.tally.moved += self._end_page(page, is_moved=is_moved)
            yield
        for name in schedules_of(self._client, self._queue).stored:
            self.tally.schedules += self._end_schedule(name, is_moved=is_moved)
        if left := self.end(is_moved=is_moved):
            raise CannotMove(
                f"{left} jobs of queue {self._queue.name!r} are on their way in pages that this run has not; run this again"
            )

    def _walk(self) -> Iterator[Page]:
        """Yield all pages of one walk through the queue, in the order in which jobs go."""
        assert self.run is not None
        self.tally.stay = self.tally.late = 0
        for source in Source:
            skip = 0
            while True:
                taken = self._export(source, self.run.pages + 1, skip)
                # A page whose reply was lost is read again, which looks at nothing else.
                if not taken.looked and not taken.jobs:
                    break
                self.tally.stay += taken.stay
                self.tally.late += len(taken.jobs)
                skip += taken.stay if self._kind else taken.looked
                if taken.jobs:
                    self.run = self.run._replace(pages=self.run.pages + 1)
                    yield Page(self.run.pages, taken.jobs)

    def _export(self, source: Source, page: int, skip: int) -> page_calls.Exported:
        assert self.run is not None
        call = page_calls.export_page(
            self._queue.keys,
            source,
            run=self.run.id if self._kind else "",
            page=page if self._kind else 0,
            skip=skip,
            limit=self._sizer.size,
            frame_format=self._queue.frame_format,
            key_ids=self._only.ids if self._only else (),
        )

        def export() -> page_calls.Exported:
            begun_ms = monotonic_ms()
            taken = run(self._client, call)
            self._sizer.learn(taken.looked, monotonic_ms() - begun_ms)
            return taken

        return self._take(export)

    def _take(self, act: Callable[[], T]) -> T:
        """Take something out, and return it once the source has it no more, whichever of its servers fails.

        Raises:
            CannotMove: see `handed_over`.
        """
        if self._kind is None:
            return act()
        where = f"queue {self._queue.name!r} of the source"
        return handed_over(self._hand_over, act, where)

    def _end_page(self, page: int, *, is_moved: bool) -> int:
        assert self.run is not None
        call = page_calls.end_page(
            self._queue.keys,
            run=self.run.id,
            page=page,
            is_moved=is_moved,
            frame_format=self._queue.frame_format,
            insertion_list=self._queue.keeps_list,
        )
        with finished_first():
            return run(self._client, call)

    def _end_schedule(self, name: str, *, is_moved: bool) -> bool:
        call = page_calls.end_schedule(self._queue.keys, name, is_moved=is_moved)
        return run(self._client, call)


def check_kind(queue: QueueSettings, its_run: page_calls.Run, kind: Kind) -> None:
    """Make sure that a queue is not being moved in another way.

    Raises:
        CannotMove: it is.
    """
    if its_run.kind is not kind:
        raise CannotMove(
            f"queue {queue.name!r} is being moved in another way already, {its_run.way}."
        )


class SchedulesThere(NamedTuple):
    """The periodic schedules of a queue that can move."""

    #: Names of those that are stored, or set aside by a run that was interrupted.
    stored: list[str]
    #: What somebody has changed of those in code.
    changed: dict[str, MovedSchedule]
    known: Known


def schedules_of(
    client: Redis, queue: QueueSettings, only: Keyring | None = None
) -> SchedulesThere:
    """Read which schedules of a queue can move; with ``only``, of those that are signed with one of its keys.

    Schedules that are not in force stay, and the log says so.
    """
    known = perform(client, loading(queue))
    stored, changed = list(known.aside), dict[str, MovedSchedule]()
    for name, entry in known.entries.items():
        moved = MovedSchedule(entry.stored, entry.change, b"", b"")
        if name in known.aside or not (entry.stored or entry.change):
            continue
        if only is not None and any(map(only.lacks_key_of, moved)):
            continue
        if not _holds(known, name, moved):
            logger.error(
                "queue %s: schedule %r does not move: it is not what was written last",
                queue.name,
                name,
            )
        elif entry.stored:
            stored.append(name)
        else:
            changed[name] = moved
    return SchedulesThere(stored, changed, known)


def _holds(known: Known, name: str, moved: MovedSchedule) -> bool:
    fits = known.register.fits
    return fits("stored", name, moved.stored) and fits("change", name, moved.change)


def take_schedule(
    client: Redis,
    queue: QueueSettings,
    name: str,
    there: SchedulesThere,
    *,
    is_copy: bool = False,
) -> MovedSchedule | None:
    """Set a stored schedule aside, and return it; None if there is none, or if it is not the one that was stored last.

    ``is_copy``: only read it.
    """
    taken = run(client, page_calls.take_schedule(queue.keys, name, is_copy=is_copy))
    if taken is None or _holds(there.known, name, taken):
        return taken
    # It may have been stored once more since the others were read.
    if _holds(perform(client, loading(queue)), name, taken):
        return taken
    logger.error(
        "queue %s: schedule %r does not move: it is not what was written last",
        queue.name,
        name,
    )
    if not is_copy:
        run(client, page_calls.end_schedule(queue.keys, name, is_moved=False))
    return None
