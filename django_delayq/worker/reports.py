"""What a process writes down now and then, beside its jobs: how they ended, what was measured, that it lives.

The claim loop does that with its own calls, so it needs no connection and no thread. Nothing here delays a job, and
nothing depends on it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from django_delayq.calls.call import Call
from django_delayq.calls.line import Line, UnderWay
from django_delayq.worker.attempt import Attempt

T = TypeVar("T")


def _ignore(*_: object) -> None:
    """Do nothing about a reply, or about one that is missing."""


class Report(ABC):
    """One kind of what is written. It logs once what the server refuses."""

    def __init__(self, line: Line, due_ms: float = float("inf")) -> None:
        self._line = line
        #: When to write, by `monotonic_ms`; infinite while there is nothing to write.
        self.due_ms = due_ms
        # What was asked of which queue, what takes the reply, and what happens without one.
        self._told: list[
            tuple[str, UnderWay[Any], Callable[[Any], object], Callable[[], object]]
        ] = []
        # What was logged of each queue.
        self._problems: dict[str, str] = {}

    @abstractmethod
    def tell(self) -> None:
        """Write it; the calls go out with the line's next calls, or at `learn`."""

    @abstractmethod
    def _refused(self, queue: str, error: ResponseError) -> None:
        """Log that the server refuses to store this."""

    def _ask(
        self,
        queue: str,
        call: Call[T],
        then: Callable[[T], object] = _ignore,
        lost: Callable[[], object] = _ignore,
    ) -> None:
        """Make a call. `learn` hands the reply to ``then``, or calls ``lost`` if none comes."""
        self._told.append((queue, self._line.ask(call), then, lost))

    @property
    def has_told(self) -> bool:
        """Whether replies to `tell` are still to be read."""
        return bool(self._told)

    def learn(self) -> None:
        """Take in the replies to `tell`, and log a refusal once; the refused part is not written again.

        If the server is away, this says nothing: every other call of the loop does.
        """
        told, self._told = self._told, []
        for queue, under_way, then, lost in told:
            try:
                reply = under_way.finish()
            except ResponseError as error:
                if self._problems.get(queue) != str(error):
                    self._problems[queue] = str(error)
                    self._refused(queue, error)
            except (RedisError, OSError):
                lost()
            else:
                self._problems.pop(queue, None)
                then(reply)


class EndReport(Report):
    """A report on the ends of jobs."""

    @abstractmethod
    def note(self, attempts: list[Attempt]) -> None:
        """Take in attempts of one queue with one verdict, which the server has settled."""


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
