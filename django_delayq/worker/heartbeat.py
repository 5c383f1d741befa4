"""The signs of life of a worker process: a file for probes, and a counter in memory for its supervisor.

The watchdog rewrites the file every few seconds while the process can run jobs: if a process is up but does nothing, its
file grows old. The supervisor removes it when the process has ended.

The counter shows whether the interpreter still runs Python code. All other parts that look after a process are its own
threads, and C code that never releases the interpreter, such as an endless regular expression, stops all of them at
once: nothing inside the process can end it.
"""

import json
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.exceptions import InvalidSettings
from django_delayq.logs import get_log

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
