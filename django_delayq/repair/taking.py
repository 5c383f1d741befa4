"""Taking what can move out of a queue, page by page; the queue holds each page until it is told that another has it."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from redis.client import Redis

from django_delayq.calls.batch import BatchSizer
from django_delayq.calls.running import run
from django_delayq.calls.steps import perform
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery.handing_over import FRESH_MS, HandOver, NotHandedOver
from django_delayq.jobs.schedules import Known, loading
from django_delayq.logs import get_log
from django_delayq.repair import pages
from django_delayq.repair.moving import (
    CannotMove,
    Tally,
    new_run,
)
from django_delayq.repair.pacing import TARGET_MS, finished_first
from django_delayq.repair.pages import Kind, Moved, MovedSchedule, Source
from django_delayq.wire.signing import Keyring

#: Jobs of a page: at first, at least, at most. A page takes some 2 ms of a server; large payloads bound it by their bytes.
FIRST, LEAST, MOST = 64, 32, 150
#: Walks through all places of a queue, at most: a later one finds what came, or went on, meanwhile.
WALKS = 4

T = TypeVar("T")
logger = get_log("django_delayq")


def check_kind(queue: QueueSettings, its_run: pages.Run, kind: Kind) -> None:
    """Make sure that a queue is not being moved in another way.

    Raises:
        CannotMove: it is.
    """
    if its_run.kind is not kind:
        how = (
            "with delayq_import --from: run that again to continue"
            if its_run.kind is Kind.DIRECT
            else "to a file: end that first, with delayq_export --confirm or --release"
        )
        raise CannotMove(
            f"queue {queue.name!r} is being moved in another way already, {how}."
        )


class Taking:
    """Takes page after page out of a queue, or only reads it; `pages` yields them.

    Both commands use it: one sends a page to the other server, one writes it to a file.
    """

    def __init__(
        self,
        client: Redis,
        queue: QueueSettings,
        tally: Tally,
        *,
        is_copy: bool,
        key_ids: Sequence[str] = (),
        waits: bool = True,
    ) -> None:
        """``key_ids``: leave jobs that are signed with another key. ``waits=False``: for no replica."""
        self._client = client
        self._queue = queue
        self.tally = tally
        self._is_copy = is_copy
        self._key_ids = key_ids
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
        #: The run of the queue; None before it begins.
        self.run: pages.Run | None = None

    def take(self, act: Callable[[], T]) -> T:
        """Take something out, and return it once the source has it no more, whichever of its servers fails.

        Raises:
            CannotMove: that takes too long.
        """
        try:
            return self._hand_over.make(act)
        except NotHandedOver as error:
            raise CannotMove(
                f"queue {self._queue.name!r} of the source: {error}. Jobs that were taken out are held there. Run this again once that"
                " is mended; with --no-wait it waits for no replica."
            ) from error

    def begin(self, kind: Kind) -> pages.Run:
        """Begin a run, or continue the one that has begun.

        Raises:
            CannotMove: the queue is being moved in another way.
        """
        keys = self._queue.keys
        self.run = run(self._client, pages.begin_export(keys, new_run(), kind))
        check_kind(self._queue, self.run, kind)
        return self.run

    def learn(self, count: int, took_ms: float) -> None:
        """Learn from the time that a call with a page of this size took."""
        self._sizer.learn(count, took_ms)

    def again(self, page: int) -> list[Moved]:
        """Return the jobs of a page that was taken before, and are still held."""
        return self._export(Source.FRAMES, page, 0).jobs

    def walk(self) -> Iterator[tuple[int, list[Moved]]]:
        """Yield all pages of one walk through the queue, each with its number, in the order in which jobs go."""
        self.tally.stay = self.tally.late = 0
        for source in Source:
            skip = 0
            while True:
                page = 0 if self._is_copy else self._next
                taken = self._export(source, page, skip)
                # A page whose reply was lost is read again, which looks at nothing else.
                if not taken.looked and not taken.jobs:
                    break
                self.tally.stay += taken.stay
                self.tally.late += len(taken.jobs)
                skip += taken.looked if self._is_copy else taken.stay
                if taken.jobs:
                    self._next += 1
                    yield self._next - 1, taken.jobs

    @property
    def _next(self) -> int:
        return 1 if self.run is None else self.run.pages + 1

    @_next.setter
    def _next(self, number: int) -> None:
        if self.run is not None:
            self.run = self.run._replace(pages=number - 1)

    def _export(self, source: Source, page: int, skip: int) -> pages.Exported:
        call = pages.export_page(
            self._queue.keys,
            source,
            run=self.run.id if page and self.run else "",
            page=page,
            skip=skip,
            limit=self._sizer.size,
            frame_format=self._queue.frame_format,
            key_ids=self._key_ids,
        )

        def export() -> pages.Exported:
            begun_ms = monotonic_ms()
            taken = run(self._client, call)
            self._sizer.learn(taken.looked, monotonic_ms() - begun_ms)
            return taken

        return export() if self._is_copy else self.take(export)


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
    """Set a stored schedule aside; None: no such schedule is stored, or it is not what was stored last, and stays.

    ``is_copy``: only read it.
    """
    taken = run(client, pages.take_schedule(queue.keys, name, is_copy=is_copy))
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
        run(client, pages.end_schedule(queue.keys, name, is_moved=False))
    return None
