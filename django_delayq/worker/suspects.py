"""Suspects, jobs that may have killed their workers: a process has one of them at a time.

A process that dies takes everything it has leased with it. If two suspects were there together, the bystander would be
killed as often as the culprit, and become a dead letter with it.
"""

from collections.abc import Iterable, Mapping

from django_delayq.clock import monotonic_ms
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.queue_state import QueueState

#: A suspect is put off while another one runs here: for as long as that one has run, from the first to the second of
#: these limits. If many are put off, longer: the next figure for each of them, up to the last.
SUSPECT_MS = (20.0, 1_000.0)
SUSPECT_EACH_MS = 5.0
SUSPECT_MOST_MS = 10_000.0
#: In burst mode a worker waits for suspects that were put off, and so much longer, as giving back takes time.
PUT_OFF_SLACK_MS = 1_000.0


class Suspects:
    """Knows the suspect that this process has, and how long others are put off.

    Owned by the claim loop's thread.
    """

    def __init__(
        self,
        running: Mapping[Attempt, None],
        *,
        max_kills: int,
        follows_death: bool,
    ) -> None:
        """``running`` has every attempt that was claimed and is not settled.

        ``follows_death``: a process of this worker has died, and may have put jobs off.
        """
        self._running = running
        #: A job with more kills than this is not run any more.
        self.max_kills = max_kills
        #: A job with more kills than this is on its last chance, or on the one before.
        self.safe_kills = max(0, max_kills - 2)
        #: Due jobs may have been put off up to then: a worker in burst mode waits for them.
        self.put_off_until_ms = 0.0
        if follows_death:
            self.put_off_until_ms = monotonic_ms() + SUSPECT_MS[1] + PUT_OFF_SLACK_MS
        #: The suspect that is leased and not begun. All other ends are settled first, as it may kill us before that.
        self.held: Attempt | None = None
        self._latest: Attempt | None = None
        self._since_ms = 0.0
        # How many were put off since the latest suspect came.
        self._put_off = 0

    def take_in(self, attempt: Attempt) -> None:
        """Take in a leased suspect; it begins when all else is settled."""
        self._latest = self.held = attempt
        self._since_ms = monotonic_ms()
        self._put_off = 0

    def take_held(self) -> Attempt | None:
        """Return the suspect that is not begun, if any, and forget it."""
        held, self.held = self.held, None
        return held

    def has_one(self) -> bool:
        """Whether a suspect is leased here."""
        latest = self._latest
        # A suspect that lost its lease before it began is settled without a verdict.
        return latest is not None and latest.verdict is None and latest in self._running

    def were_put_off(self) -> bool:
        """Whether suspects were put off a moment ago, and may come again."""
        return monotonic_ms() < self.put_off_until_ms

    def may_come_from(self, queue: QueueState, queues: Iterable[QueueState]) -> bool:
        """Return whether a claim may lease a suspect: not while an unanswered claim of another queue may bring one."""
        return not self.has_one() and all(
            other is queue or other.open_request is None for other in queues
        )

    def put_off_ms(self) -> int:
        """Return how long to put suspects off, so that others find room meanwhile.

        The time grows with how long the present suspect has run, and with how many were put off.
        """
        least_ms, most_ms = SUSPECT_MS
        if not self.has_one():
            return round(least_ms)
        ran_ms = min(monotonic_ms() - self._since_ms, most_ms)
        wait_ms = max(least_ms, ran_ms, SUSPECT_EACH_MS * self._put_off)
        return round(min(wait_ms, SUSPECT_MOST_MS))

    def note_put_off(self, count: int, until_ms: float) -> None:
        """Record how many suspects a claim has put off, and until when."""
        self._put_off += count
        self.put_off_until_ms = max(self.put_off_until_ms, until_ms + PUT_OFF_SLACK_MS)
