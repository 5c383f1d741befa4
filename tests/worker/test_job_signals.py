"""What the thread that tells of ends holds: a bounded number of signals, and each that is lost is counted."""

import logging
import re
import threading
from collections.abc import Iterator

import pytest

from django_delayq.worker import job_signals
from django_delayq.worker.job_signals import MOST_WAITING, WAITING_BYTES, SignalThread


class Slow:
    """One whose thread is held by its first call until the test lets go."""

    def __init__(self) -> None:
        self.signal_thread = SignalThread()
        self.told: list[int] = []
        self.may_go_on, self._is_held = threading.Event(), threading.Event()
        self.signal_thread.call(self._hold)
        assert self._is_held.wait(10)

    def _hold(self) -> None:
        self._is_held.set()
        assert self.may_go_on.wait(10)

    def tell(self, number: int, **size: int) -> None:
        self.signal_thread.call(lambda: self.told.append(number), **size)

    def go_on(self) -> None:
        self.may_go_on.set()
        assert self.signal_thread.drain(10)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.go_on()


def lost(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return how many signals each line of the log counts."""
    return [
        int(found[1])
        for record in caplog.records
        if (found := re.match(r"(\d+) signals are not sent", record.getMessage()))
    ]


def test_all_is_told_in_order(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(MOST_WAITING - 1):
        slow.tell(n)
    slow.go_on()

    assert slow.told == list(range(MOST_WAITING - 1))
    assert lost(caplog) == []


def test_signals_beyond_the_most_are_dropped_and_counted(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.tell(1, count=MOST_WAITING - 1)
    for n in (2, 3, 4):
        slow.tell(n, count=5)

    # At once, and all later ones together: not a line each.
    assert lost(caplog) == [5]
    slow.go_on()
    assert lost(caplog) == [5, 10]
    assert slow.told == [1]


def test_bytes_are_bounded_as_well(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.tell(1, size=WAITING_BYTES)
    slow.tell(2, size=1)
    slow.tell(3)

    slow.go_on()
    assert slow.told == [1, 3]
    assert lost(caplog) == [1]


def test_what_nothing_waits_before_is_told_however_large(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signal_thread, told = SignalThread(), []
    signal_thread.call(
        lambda: told.append(1), count=MOST_WAITING + 1, size=WAITING_BYTES + 1
    )

    assert signal_thread.drain(10)
    assert told == [1]
    assert lost(caplog) == []


def test_there_is_room_again_once_something_was_told(slow: Slow) -> None:
    slow.tell(1, count=MOST_WAITING - 1)
    slow.go_on()
    slow.tell(2, count=MOST_WAITING)
    assert slow.signal_thread.drain(10)

    assert slow.told == [1, 2]


def test_losses_are_logged_again_after_a_while(
    slow: Slow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_signals, "REPORT_MS", 0)
    slow.tell(1, count=MOST_WAITING - 1)

    slow.tell(2, count=3)
    slow.tell(3, count=4)

    assert lost(caplog) == [3, 4]


def test_end_counts_what_is_not_told_by_then(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(3):
        slow.tell(n)

    slow.signal_thread.end(0.01)

    # The first is being told.
    assert lost(caplog) == [4]
    slow.go_on()
    caplog.clear()
    slow.signal_thread.end(0.01)
    assert lost(caplog) == []


def test_receiver_that_raises_takes_no_room(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("receiver")

    slow.signal_thread.call(fail, count=MOST_WAITING - 1)
    slow.go_on()
    slow.tell(1, count=MOST_WAITING)
    assert slow.signal_thread.drain(10)

    assert slow.told == [1]
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
