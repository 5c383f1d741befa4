"""When to report ended jobs to the server, and the pace that the process learns from their number."""

import logging
from collections.abc import Sequence

from django_delayq.calls.line import Line
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.logs import get_log
from django_delayq.worker.attempt import Verdict
from django_delayq.worker.attempt_log import log_end
from django_delayq.worker.dispatch import SETTLE_AFTER_MS, SETTLE_BATCH, Dispatch
from django_delayq.worker.outage import Outage
from django_delayq.worker.pace import Pace
from django_delayq.worker.reports import EndReport, Reports
from django_delayq.worker.settlement import Forwarder, Settlement

logger = get_log("django_delayq.worker")


class Ends:
    """Decides when the settlement reports to the server, and reads the replies. Owned by the claim loop's thread."""

    def __init__(
        self,
        line: Line,
        dispatch: Dispatch,
        outage: Outage,
        forward: Forwarder,
        reports: Sequence[EndReport],
    ) -> None:
        self.settlement = Settlement(line, forward, dispatch.ended, reports)
        #: What is written down now and then.
        self.reports = Reports(*reports)
        self.pace = Pace()
        self._dispatch = dispatch
        self._outage = outage
        #: How many jobs have run here. Other threads read it.
        self.finished = 0
        # Until when ended attempts wait for more, to go out together.
        self._settle_ms: float | None = None
        # Ends were sent, and their replies are still to be read.
        self._has_told = False

    def settle(self, *, force: bool, is_last: bool = False) -> None:
        """Tell the server what has ended, and wait for its reply."""
        self.tell(force=force, is_last=is_last)
        self.learn()

    def tell(self, *, force: bool = False, is_last: bool = False) -> None:
        """Make the calls that report ended jobs to the server; they go out with the next claim, or at `learn`."""
        settlement = self.settlement
        now_ms = monotonic_ms()
        if now_ms >= self.reports.due_ms:
            self.reports.tell(now_ms)
        if not settlement:
            return
        if (
            not force
            and self._dispatch.queued()
            and len(settlement.ended) < SETTLE_BATCH
        ):
            if self._settle_ms is None:
                self._settle_ms = now_ms + SETTLE_AFTER_MS
            if now_ms < self._settle_ms:
                return
        self._settle_ms = None
        if not is_last and not settlement.is_waiting:
            again_ms = settlement.next_ms()
            if again_ms is not None and now_ms < again_ms:
                return
        settlement.tell(force=is_last)
        self.note_busy()
        self._has_told = True

    def learn(self) -> None:
        """Take in the replies to `tell`."""
        # They say nothing of how fast jobs run.
        self.reports.learn()
        if not self._has_told:
            return
        self._has_told = False
        settled, failure = self.settlement.learn()
        count = 0
        running, is_told = self._dispatch.running, logger.isEnabledFor(logging.INFO)
        for attempt in settled:
            running.pop(attempt, None)
            if attempt.verdict is Verdict.SUCCEED:
                count += 1
                if not is_told and not attempt.is_lost:
                    continue
            elif attempt.verdict is not Verdict.GIVE_BACK:
                # An attempt that was given back does not show how long jobs take.
                count += 1
            log_end(attempt)
        self.finished += count
        threads = self._dispatch.threads
        is_busy = threads.queued() > 0 or count >= threads.size
        self.pace.measure(count, is_busy=is_busy)
        if failure is not None:
            raise failure
        self._outage.note_reply()

    def record(self) -> None:
        """Write at once all that is written down now and then."""
        self.reports.tell(float("inf"))
        self.reports.learn()
        # A minute that these calls found to be over is packed by other calls.
        self.reports.tell(monotonic_ms())
        self.reports.learn()

    @property
    def record_ms(self) -> float:
        """When to write that next, by `monotonic_ms`; infinite while there is nothing to write."""
        return self.reports.due_ms

    def note_busy(self) -> None:
        """Note until when there were jobs to run; call this before others are handed out."""
        now_ms = until_ms = monotonic_ms()
        if not self._dispatch.threads.queued():
            until_ms += self.settlement.last_ended_ms - boottime_ms()
        self.pace.note(now_ms, until_ms)
