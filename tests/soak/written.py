"""Ledgers for tests: the records of a producer and a worker, in files as they write them."""

from collections.abc import Iterable
from pathlib import Path

from benchmarks.soak.kinds import NUMBERS, TICKS_S
from benchmarks.soak.ledger import Event, Ledger, Recorder

#: When the jobs of these ledgers are due, epoch ms.
DUE_MS = 1_800_000_000_000.0
LATE_MS = 5.0


class Written:
    """A ledger, and the files that it reads."""

    def __init__(self, directory: Path) -> None:
        self.producer = Recorder(directory, "producer")
        self.worker = Recorder(directory, "worker")
        self.ledger = Ledger(directory)

    def store(self, number: int, task: str, due_ms: float = DUE_MS) -> None:
        self.producer.record(Event.STORED, number, NUMBERS[task], due_ms)

    def start(
        self, number: int, task: str, at_ms: float = DUE_MS + LATE_MS, kills: int = 0
    ) -> None:
        self.worker.record(Event.STARTED, number, NUMBERS[task], at_ms, kills)

    def finish(self, number: int, task: str) -> None:
        self.worker.record(Event.ENDED, number, NUMBERS[task], DUE_MS + LATE_MS + 1)

    def tick(self, schedule: int, moments: Iterable[int]) -> None:
        for moment in moments:
            at_ms = DUE_MS + 1000 * TICKS_S[schedule] * moment
            self.worker.record(Event.TICKED, schedule, NUMBERS["tick"], at_ms)

    def all_is_well(self) -> None:
        """One job of each fate: done, tried three times, dead, cancelled, moved, followed; and schedules that came."""
        for number, task, starts in (
            (1, "do_nothing", 1),
            (2, "fail_twice", 3),
            (3, "fail_always", 2),
        ):
            self.store(number, task)
            for _ in range(starts):
                self.start(number, task)
            if task != "fail_always":
                self.finish(number, task)
        self.store(4, "remind")
        self.producer.record(Event.CANCELLED, 4, NUMBERS["remind"], DUE_MS - 1)
        self.store(5, "publish")
        later_ms = DUE_MS + 2_000
        self.producer.record(Event.MOVED, 5, NUMBERS["publish"], later_ms)
        self.start(5, "publish", later_ms + LATE_MS)
        self.finish(5, "publish")
        self.store(6, "take_order")
        self.store(7, "confirm_order", 0.0)
        for number, task in ((6, "take_order"), (7, "confirm_order")):
            self.start(number, task)
            self.finish(number, task)
        for schedule in range(len(TICKS_S)):
            self.tick(schedule, range(10))
