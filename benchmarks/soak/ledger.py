"""What happened, written by the producer and by the tasks themselves: the server has no part in it.

Each process appends to a file of its own, one record of 16 bytes an event, with one `write` each: so a process that is
killed loses nothing, and no record is torn. `Ledger` reads what was appended since it last looked.
"""

import os
import struct
from array import array
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from operator import itemgetter
from pathlib import Path

from benchmarks.soak.kinds import KINDS, NUMBERS

#: Number of the job, event, kind, kills, and a time, epoch ms.
_RECORD = struct.Struct("=IBBHd")
_Record = tuple[int, int, int, int, float]


class Event(IntEnum):
    """What is recorded of a job, and what the time in the record is."""

    #: The producer has stored it: its start time, 0 if another job decides that.
    STORED = 1
    #: The producer has cancelled it, and no worker had it: now.
    CANCELLED = 2
    #: The producer has moved it: its new start time.
    MOVED = 3
    #: An attempt begins: now.
    STARTED = 4
    #: The task has done its work: now.
    ENDED = 5
    #: A periodic job begins; the number is that of its schedule: the moment.
    TICKED = 6


class Recorder:
    """Appends events to the file of this process."""

    def __init__(self, directory: Path, name: str) -> None:
        self._fd = os.open(
            directory / f"{name}-{os.getpid()}",
            os.O_WRONLY | os.O_APPEND | os.O_CREAT,
            0o600,
        )

    def record(
        self, event: Event, number: int, kind: int, at_ms: float, kills: int = 0
    ) -> None:
        """Write one event."""
        os.write(self._fd, _RECORD.pack(number, event, kind, min(kills, 65_535), at_ms))


class Ledger:
    """All that was recorded so far, by the numbers of jobs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: Counter[Path] = Counter()
        #: Starts whose jobs the producer has not recorded yet: it does so after the server has them.
        self._ahead: list[tuple[int, int, float]] = []
        #: Jobs that were stored and have not come to their end.
        self.waiting: set[int] = set()
        self._kinds = bytearray()
        self._starts = bytearray()
        self._ends = bytearray()
        self._stored = bytearray()
        self._cancelled = bytearray()
        self._kills = bytearray()
        self._due_ms = array("d")
        #: How late first attempts of timed jobs began, ms, in the order in which they were read.
        self.late_ms = array("f")
        #: How many there are of each event.
        self.events: Counter[Event] = Counter()
        self.early = 0
        #: By schedule, the moments whose jobs have begun.
        self.moments: dict[int, list[int]] = {}

    def read(self) -> None:
        """Take in what was appended since the last look."""
        producers: list[_Record] = []
        workers: list[_Record] = []
        for path in self._directory.iterdir():
            is_worker = path.name.startswith("worker")
            (workers if is_worker else producers).extend(self._appended(path))
        # Producers know the jobs. Of a job that is tried again, attempts may be in the files of several workers.
        for record in (*producers, *sorted(workers, key=itemgetter(-1))):
            number, event, kind, kills, at_ms = record
            self._take(Event(event), number, kind, kills, at_ms)
        ahead, self._ahead = self._ahead, []
        for number, kind, at_ms in ahead:
            self._start(number, kind, at_ms)

    def _appended(self, path: Path) -> Iterator[_Record]:
        with path.open("rb") as file:
            file.seek(self._offsets[path])
            data = file.read()
        whole = len(data) - len(data) % _RECORD.size
        self._offsets[path] += whole
        return _RECORD.iter_unpack(data[:whole])

    def _take(
        self, event: Event, number: int, kind: int, kills: int, at_ms: float
    ) -> None:
        self.events[event] += 1
        if event is Event.TICKED:
            self.moments.setdefault(number, []).append(round(at_ms))
            return
        self._make_room(number)
        if event is Event.STORED:
            self._stored[number] = 1
            self._kinds[number] = kind
            self._due_ms[number] = at_ms
        elif event is Event.MOVED:
            self._due_ms[number] = at_ms
        elif event is Event.CANCELLED:
            self._cancelled[number] = 1
        elif event is Event.ENDED:
            self._ends[number] = min(self._ends[number] + 1, 255)
        else:
            self._kills[number] = max(self._kills[number], min(kills, 255))
            self._start(number, kind, at_ms)
        if self._stored[number]:
            if self._is_over(number):
                self.waiting.discard(number)
            elif event is Event.STORED:
                self.waiting.add(number)

    def _start(self, number: int, kind: int, at_ms: float) -> None:
        if not self._stored[number]:
            self._ahead.append((number, kind, at_ms))
            return
        self._starts[number] = min(self._starts[number] + 1, 255)
        if self._is_over(number):
            self.waiting.discard(number)
        due_ms = self._due_ms[number]
        if self._starts[number] == 1 and due_ms:
            self.early += at_ms < due_ms
            if KINDS[kind].is_timed:
                self.late_ms.append(at_ms - due_ms)

    def _make_room(self, number: int) -> None:
        missing = number + 1 - len(self._kinds)
        if missing > 0:
            # Further than needed, so that room is made seldom.
            zeros = bytes(missing + 10_000)
            for column in (
                self._kinds,
                self._starts,
                self._ends,
                self._stored,
                self._cancelled,
                self._kills,
            ):
                column.extend(zeros)
            self._due_ms.extend([0.0] * len(zeros))

    @property
    def attempts(self) -> int:
        """How many attempts have begun."""
        return self.events[Event.STARTED] + self.events[Event.TICKED]

    def on_server(self) -> int:
        """Return how many of those that wait the server has: a job that follows is in the one before it until then."""
        follows = NUMBERS["confirm_order"]
        return sum(
            self._kinds[number] != follows or number - 1 not in self.waiting
            for number in self.waiting
        )

    def _is_over(self, number: int) -> bool:
        if self._cancelled[number]:
            return True
        kind = KINDS[self._kinds[number]]
        if kind.is_dead:
            return self._starts[number] >= kind.starts
        return self._ends[number] > 0

    def dead(self) -> int:
        """Return how many have had their last attempt in vain."""
        return sum(
            KINDS[self._kinds[number]].is_dead and self._is_over(number)
            for number, is_stored in enumerate(self._stored)
            if is_stored
        )

    def doubled(self) -> tuple[list[int], list[int]]:
        """Return the jobs that ran more often than they should: those that had lost their worker, and the others."""
        explained: list[int] = []
        unexplained: list[int] = []
        for number, is_stored in enumerate(self._stored):
            if is_stored:
                kind = KINDS[self._kinds[number]]
                most = 0 if self._cancelled[number] else kind.starts
                if self._starts[number] > most or self._ends[number] > 1:
                    which = explained if self._kills[number] else unexplained
                    which.append(number)
        return explained, unexplained

    def unknown(self) -> int:
        """Return how many starts there were of jobs that the producer has not stored."""
        return len(self._ahead)
