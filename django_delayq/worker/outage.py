"""Whether the server serves this process, as last logged, and how long to wait before asking it again."""

import logging
import mmap
from enum import Enum, auto

from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from django_delayq import faults
from django_delayq.clock import monotonic_ms
from django_delayq.logs import get_log
from django_delayq.transport.errors import is_of_node

logger = get_log("django_delayq.worker")

#: The pause between attempts to reach a server that is away doubles, from the first of these to the second. It is
#: never longer than `LOOKS_A_LEASE` allows: once the server is back, leases that ended meanwhile are spared for a third
#: of a lease.
BACKOFF_MS = (50.0, 1_000.0)
#: A worker that was never accepted ends once each attempt was refused for this time, in ms.
REFUSED_MS = 10_000.0
#: The pause after a step of a queue that has failed doubles, from the first of these to the second.
STEP_PAUSE_MS = (200.0, 5_000.0)
#: That pause if a person has to mend something, in ms.
MEND_PAUSE_MS = 60_000.0
#: The log's words for a loss, after what has lost something; with a time, s.
FORGOTTEN = (
    "has forgotten what it took %.1f s ago: FLUSHALL or FLUSHDB was run there, or it came back without its data or with"
    " older data, as after a restart without appendonly or with an append-only file that it could not load (see its log),"
    " or a failover to a replica that was behind. Jobs that waited there may be lost, and jobs that had ended may run again"
)


def is_queues_own(error: Exception) -> bool:
    """Return whether an error concerns the keys of one queue, or one node of a cluster, so that others can continue."""
    # A replica refuses everything, and so does a server without our database: such errors concern all queues.
    return is_of_node(error) or (
        isinstance(error, ResponseError)
        and not isinstance(error, ReadOnlyError)
        and not faults.is_misconfigured(error)
    )


def forgotten_s(
    before_ms: int, kept_ms: int | None, now_ms: int, within_ms: float
) -> float | None:
    """Return how long ago a server took what it has forgotten, s; None: it has forgotten nothing.

    ``before_ms`` is when it took this before, as far as it knows, ``kept_ms`` when it said that it did, None if it has not,
    and ``now_ms`` its clock. A process that was silent for longer than ``within_ms``, or seems so after a step of the
    clock, is rightly forgotten.
    """
    if kept_ms is None or before_ms >= kept_ms or abs(now_ms - kept_ms) > within_ms:
        return None
    return (now_ms - kept_ms) / 1000


class StepPause:
    """How long one kind of step of a queue rests after it has failed. Owned by the claim loop's thread."""

    def __init__(self) -> None:
        self._pause_ms = STEP_PAUSE_MS[0]

    def note_success(self) -> None:
        """Have the next pause be short."""
        self._pause_ms = STEP_PAUSE_MS[0]

    def after(self, error: Exception) -> float:
        """Return how long to wait, ms; the next pause is twice as long.

        Only what passes by itself is tried again soon: not a missing right, a key of another type, or our own error.
        """
        is_of_server = isinstance(error, (RedisError, OSError))
        if not is_of_server or faults.is_to_be_mended(error):
            return MEND_PAUSE_MS
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, STEP_PAUSE_MS[1])
        return pause_ms


class Service(Enum):
    """The state of the server, as this process sees it."""

    SERVING = auto()
    AWAY = auto()
    #: The server answers, but rejects DELAYQ['CONNECTION'] as it is.
    REFUSING = auto()


class Flag:
    """A fact in memory that a process shares with the processes it forks. It stays one."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    @property
    def is_set(self) -> bool:
        return self._memory[0] > 0

    def set(self) -> None:
        self._memory[0] = 1


class Outage:
    """Logs once when the server stops serving, and once when it is back. Owned by the claim loop's thread."""

    def __init__(self, longest_pause_ms: float, accepted: Flag) -> None:
        """``accepted``: whether the server has ever served a process of this worker."""
        self._accepted = accepted
        self._has_accepted_us = False
        # Since when each attempt is refused, by `monotonic_ms`.
        self._refused_ms: float | None = None
        self._service = Service.SERVING
        self._longest_pause_ms = min(BACKOFF_MS[1], longest_pause_ms)
        #: How long the next pause takes, ms.
        self.pause_ms = min(BACKOFF_MS[0], longest_pause_ms)

    def note_reply(self) -> None:
        """Note that the server serves us."""
        self.pause_ms = min(BACKOFF_MS[0], self._longest_pause_ms)
        if not self._has_accepted_us:
            self._has_accepted_us = True
            self._accepted.set()
        if self._service is not Service.SERVING:
            self._service = Service.SERVING
            logger.warning("the server is back")

    def note_error(self, error: Exception) -> None:
        """Log why the server does not serve, once for each reason."""
        if not faults.is_refused(error) or self._accepted.is_set:
            self._refused_ms = None
        elif self._refused_ms is None:
            self._refused_ms = monotonic_ms()
        is_misconfigured = faults.is_misconfigured(error)
        service = Service.REFUSING if is_misconfigured else Service.AWAY
        if service is self._service:
            return
        self._service = service
        logger.log(
            logging.ERROR if is_misconfigured else logging.WARNING,
            "the server does not serve, trying again until it does: %s",
            faults.fault_line(error),
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether the server never served this worker, and has refused every attempt for `REFUSED_MS`."""
        since_ms = self._refused_ms
        return since_ms is not None and monotonic_ms() >= since_ms + REFUSED_MS

    def next_pause_ms(self) -> float:
        """Return how long to wait before the server is asked again; the next pause is twice as long."""
        pause_ms = self.pause_ms
        self.pause_ms = min(2 * pause_ms, self._longest_pause_ms)
        return pause_ms
