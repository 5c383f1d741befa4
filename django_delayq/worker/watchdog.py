"""Signs of life: renews the leases of the jobs that run, looks whether anything is stuck, and beats for others to see."""

import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import boottime_ms, epoch_ms, monotonic_ms
from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs.exception_text import class_name
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.primary import pause_ms
from django_delayq.waiting.trouble import Trouble
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.settle import renew

logger = get_log("django_delayq.worker")

#: How often the file is written.
BEAT_EVERY_MS = 5_000.0
#: How often the counter is raised.
PULSE_S = 1.0

_COUNT = struct.Struct("=Q")


class Heartbeat:
    """The file of this process."""

    def __init__(
        self, directory: Path, *, queues: Sequence[str], turns: Callable[[], int]
    ) -> None:
        """``turns`` returns a number that grows while the claim loop goes round."""
        self._path = _path(directory, os.getpid())
        self._queues = list(queues)
        self._turns = turns
        self._seen_turns = -1
        self._beat_ms = float("-inf")
        self._is_failing = False

    def beat(self) -> None:
        """Write the file, unless it is young or the claim loop has stood still since the last write."""
        now_ms, turns = monotonic_ms(), self._turns()
        if now_ms < self._beat_ms + BEAT_EVERY_MS or turns == self._seen_turns:
            return
        self._beat_ms, self._seen_turns = now_ms, turns
        told = {
            "pid": os.getpid(),
            "queues": self._queues,
            "at": epoch_ms(),
            "able": True,
        }
        try:
            # A reader finds the old file or the new one, never a part.
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(told))
            fresh.replace(self._path)
        except OSError as error:
            if not self._is_failing:
                logger.error("the heartbeat cannot be written, trying again: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False


def clear(directory: Path) -> None:
    """Make the directory, and remove the files that an earlier worker left there.

    Raises:
        InvalidSettings: the directory cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("worker-*"):
            path.unlink(missing_ok=True)
        trial = directory / "worker-trial.new"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise InvalidSettings(
            f"the heartbeat's directory {str(directory)!r} cannot be used: {error};"
            " name another in DELAYQ['WORKER']['HEARTBEAT'] or --heartbeat"
        ) from error


def remove(directory: Path, pid: int) -> None:
    """Remove the file of a process that has ended."""
    path = _path(directory, pid)
    try:
        path.with_suffix(".new").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.error("the heartbeat of process %d cannot be removed: %s", pid, error)


def _path(directory: Path, pid: int) -> Path:
    return directory / f"worker-{pid}.json"


class Pulse:
    """A counter in memory that a process shares with the processes it forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _COUNT.size)

    @property
    def count(self) -> int:
        number: int = _COUNT.unpack_from(self._memory)[0]
        return number

    def beat(self) -> None:
        """Count one more. Only one thread of one process may call this."""
        _COUNT.pack_into(self._memory, 0, self.count + 1)

    def close(self) -> None:
        self._memory.close()


class Silence:
    """How long a pulse has been silent, for a supervisor that looks now and then."""

    def __init__(self, pulse: Pulse, now_ms: float) -> None:
        self._pulse = pulse
        self._count = pulse.count
        self._looked_ms = now_ms
        self._silent_ms = 0.0

    def look(self, now_ms: float, *, at_most_ms: float) -> float:
        """Return how long the silence has lasted, in ms.

        At most ``at_most_ms`` of the time since the last look counts: the supervisor itself may have been stopped.
        """
        count, since_ms = self._pulse.count, now_ms - self._looked_ms
        self._looked_ms = now_ms
        if count == self._count:
            self._silent_ms += min(since_ms, at_most_ms)
        else:
            self._count, self._silent_ms = count, 0.0
        return self._silent_ms


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process; False if the system does not say."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The program's name, in parentheses, may contain anything.
    return told.rpartition(")")[2].split()[0] in "Tt"


#: How often the watchdog looks: it notices within a second that a lease has run out.
TICK_MS = 500.0
#: An executor that shows no life for this long, or for a lease if that is longer, is stuck.
STUCK_AFTER_MS = 10_000.0


class Executor(Protocol):
    """An executor of attempts."""

    #: Its name in messages.
    what: str
    #: Whether it shows no sign of life, so that what it runs will have no end.
    is_stuck: bool

    def has_shown_life(self) -> bool:
        """Return whether it has done something since the last call, and ask it to do something."""

    def attempts(self) -> list[Attempt]:
        """Return the attempts whose leases are not renewed while the executor shows no life."""

    def orphans(self) -> list[Attempt]:
        """Return the attempts that nothing will end, because the thread that ran them is dead."""


class Watchdog:
    """Runs from `start` to `stop`."""

    def __init__(
        self,
        client: Redis,
        *,
        lease_ms: int,
        executors: Sequence[Executor],
        running: Callable[[], list[Attempt]],
        cannot_work: Callable[[str], None],
        while_able: Callable[[], None] = lambda: None,
    ) -> None:
        """``client`` is the watchdog's own. ``running`` has unsettled attempts. Healthy ticks call ``while_able``."""
        self._client = client
        self._lease_ms = lease_ms
        self._executors = executors
        self._running = running
        self._cannot_work = cannot_work
        self._while_able = while_able
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="delayq-watchdog", daemon=True
        )
        # Owned by the thread. How long this process was allowed to run, by our own ticks: executors are not stuck just
        # because the process was stopped for an hour.
        self._awake_ms = 0.0
        self._ticked_ms = 0.0
        self._shown_ms = [0.0] * len(executors)
        self._renew_ms = 0.0
        self._trouble = Trouble(logger, is_outage_told=True)
        # The logged reason of the server's refusal to renew, by queue.
        self._refusals: dict[str, str] = {}
        # Attempts whose leases ran out, as logged.
        self._lapsed: set[Attempt] = set()

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the machine gives no more threads.
        """
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end soon, without waiting for a call that is under way."""
        self._is_over.set()

    def _run(self) -> None:
        try:
            self._ticked_ms = boottime_ms()
            self._renew_ms = self._ticked_ms + self._lease_ms / 3
            while not self._is_over.wait(self._next_s()):
                self._tick()
        except BaseException as error:
            logger.exception("the watchdog failed")
            self._cannot_work(f"the watchdog has ended: {class_name(error)}")
        finally:
            self._client.close()

    def _next_s(self) -> float:
        wait_ms = min(TICK_MS, self._renew_ms - boottime_ms())
        return max(0.0, wait_ms) / 1000

    def _tick(self) -> None:
        now_ms = boottime_ms()
        self._awake_ms += min(now_ms - self._ticked_ms, 2 * TICK_MS)
        self._ticked_ms = now_ms
        is_able = self._look_at_executors()
        if now_ms >= self._renew_ms:
            self._renew(now_ms)
        self._notice_lapsed()
        if is_able:
            self._while_able()

    def _look_at_executors(self) -> bool:
        longest_ms = max(self._lease_ms, STUCK_AFTER_MS)
        is_able = True
        for i, executor in enumerate(self._executors):
            if executor.has_shown_life():
                self._shown_ms[i] = self._awake_ms
            silent_ms = self._awake_ms - self._shown_ms[i]
            executor.is_stuck = silent_ms > longest_ms
            is_able = is_able and silent_ms <= self._lease_ms
            if executor.is_stuck:
                self._cannot_work(
                    f"{executor.what} has given no sign of life for {silent_ms / 1000:.0f} s"
                )
        return is_able

    def _to_renew(self) -> list[Attempt]:
        left_out: set[Attempt] = set()
        for i, executor in enumerate(self._executors):
            left_out.update(executor.orphans())
            if self._awake_ms - self._shown_ms[i] > self._lease_ms:
                left_out.update(executor.attempts())
        return [
            attempt
            for attempt in self._running()
            if not attempt.is_lost and attempt not in left_out
        ]

    def _renew(self, now_ms: float) -> None:
        attempts = self._to_renew()
        try:
            lost, refusals = renew(self._client, attempts, lease_ms=self._lease_ms)
        except (RedisError, OSError) as error:
            # A pause is needed: a server that refuses connections does so at once.
            again_ms = pause_ms(self._client, TICK_MS)
            self._renew_ms = now_ms + again_ms
            self._trouble.note(
                error, "leases cannot be renewed", again_ms=round(again_ms)
            )
            return
        self._trouble.is_over()
        # A server that is busy or misses its replicas may soon accept what it refuses now. The next third of the lease
        # could be too late.
        self._renew_ms = now_ms + (TICK_MS if refusals else self._lease_ms / 3)
        self._tell_of(refusals)
        for attempt in lost:
            logger.warning(
                "job %s (%s) lost its lease while it runs; it may also run elsewhere",
                attempt.id,
                attempt.name,
            )

    def _tell_of(self, refusals: dict[str, Exception]) -> None:
        """Log once why the leases of a queue cannot be renewed."""
        texts = {name: redact(str(error)) for name, error in refusals.items()}
        for name, text in texts.items():
            if self._refusals.get(name) != text:
                logger.error(
                    "queue %s: leases cannot be renewed, trying again: %s", name, text
                )
        self._refusals = texts

    def _notice_lapsed(self) -> None:
        now_ms = boottime_ms()
        lapsed = {
            attempt
            for attempt in self._running()
            if attempt.lease_end_ms <= now_ms
            and attempt.verdict is None
            and not attempt.is_lost
        }
        for attempt in lapsed - self._lapsed:
            logger.warning(
                "the lease of job %s (%s) ran out while it runs; it may also run elsewhere",
                attempt.id,
                attempt.name,
            )
        self._lapsed = lapsed
