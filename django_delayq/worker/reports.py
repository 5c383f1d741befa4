"""What a process writes down now and then, beside its jobs: how they ended, what was measured, that it lives.

The claim loop does that with its own calls, so it needs no connection and no thread. Nothing here delays a job, and
nothing depends on it.
"""

from typing import Protocol


class Report(Protocol):
    """One kind of what is written."""

    #: When to write, by `monotonic_ms`; infinite while there is nothing to write.
    due_ms: float

    @property
    def has_told(self) -> bool:
        """Whether replies to `tell` are still to be read."""

    def tell(self) -> None:
        """Write it; the calls go out with the line's next calls, or at `learn`."""

    def learn(self) -> None:
        """Take in the replies to `tell`. If the server is away, this says nothing: every other call of the loop does."""


class Reports:
    """All of what one process writes. Owned by the claim loop's thread."""

    def __init__(self, *reports: Report) -> None:
        self._reports = list(reports)

    def add(self, report: Report) -> None:
        self._reports.append(report)

    @property
    def due_ms(self) -> float:
        """When to write next, by `monotonic_ms`; infinite while there is nothing to write."""
        return min([report.due_ms for report in self._reports])

    def tell(self, now_ms: float) -> None:
        """Write what is due."""
        for report in self._reports:
            if now_ms >= report.due_ms:
                report.tell()

    def learn(self) -> None:
        """Take in the replies to `tell`."""
        for report in self._reports:
            if report.has_told:
                report.learn()
