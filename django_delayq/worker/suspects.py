"""Jobs that may have killed their workers: a process has one of them at a time.

Whoever dies takes all that is leased here along. Two suspects are never here together: else those that only
happened to be there would be killed with the culprit, as often as it is, and become dead letters with it.
"""

from collections.abc import Iterable, Mapping

from django_delayq.clock import monotonic_ms
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.queue_state import QueueState

#: A suspect that is put off because another one runs here is looked at again after the time that one has run, from the
#: first to the second of these, or after so long for each that was put off, up to the last.
SUSPECT_MS = (20.0, 1_000.0)
SUSPECT_EACH_MS = 5.0
SUSPECT_MOST_MS = 10_000.0
#: In burst mode, what was put off is waited for, and for so much longer: until it is given back time goes by.
PUT_OFF_SLACK_MS = 1_000.0


class Suspects:
    """Knows the suspect that this process has, and for how long others are put off.

    Owned by the claim loop's thread.
    """

    def __init__(
        self,
        running: Mapping[Attempt, None],
        *,
        max_kills: int,
        follows_death: bool,
    ) -> None:
        """``running`` has all that was claimed and is not settled.

        ``follows_death``: a process of this worker has died, and may have put jobs off.
        """
        self._running = running
        #: With more kills than this a job is on its last chance, or the one before.
        self.safe_kills = max(0, max_kills - 2)
        #: In burst mode what falls due by then is waited for: it was due, and was put off.
        self.put_off_until_ms = 0.0
        if follows_death:
            self.put_off_until_ms = monotonic_ms() + SUSPECT_MS[1] + PUT_OFF_SLACK_MS
        #: The one that is leased and not begun: all others are given back first, as it might not leave us the time.
        self.held: Attempt | None = None
        self._latest: Attempt | None = None
        self._since_ms = 0.0
        # Since then.
        self._put_off = 0

    def take_in(self, attempt: Attempt) -> None:
        """Take in a suspect that was leased: it is begun when all else is settled."""
        self._latest = self.held = attempt
        self._since_ms = monotonic_ms()
        self._put_off = 0

    def take_held(self) -> Attempt | None:
        """Return the one that is not begun, if any, and hold it no more."""
        held, self.held = self.held, None
        return held

    def has_one(self) -> bool:
        """Whether a suspect is leased here."""
        latest = self._latest
        # One that lost its lease before it began has no verdict, and is settled all the same.
        return latest is not None and latest.verdict is None and latest in self._running

    def may_come_from(self, queue: QueueState, queues: Iterable[QueueState]) -> bool:
        """Whether a claim may lease a suspect. One of another queue whose reply is still to come may have done so."""
        return not self.has_one() and all(
            other is queue or other.open_request is None for other in queues
        )

    def put_off_ms(self) -> int:
        """Return for how long suspects are put off, so that others find room meanwhile.

        The longer the one that runs takes, and the more of them there are, the longer.
        """
        least_ms, most_ms = SUSPECT_MS
        if not self.has_one():
            return round(least_ms)
        ran_ms = min(monotonic_ms() - self._since_ms, most_ms)
        wait_ms = max(least_ms, ran_ms, SUSPECT_EACH_MS * self._put_off)
        return round(min(wait_ms, SUSPECT_MOST_MS))

    def note_put_off(self, count: int, until_ms: float) -> None:
        """Take in how many a claim has put off, and until when."""
        self._put_off += count
        self.put_off_until_ms = max(self.put_off_until_ms, until_ms + PUT_OFF_SLACK_MS)
