"""A small file for each worker process, rewritten every few seconds while the process can run jobs.

A probe reads the file's age: if a process is up but does nothing, its file grows old. The watchdog writes the file; the
supervisor removes it when the process has ended.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.exceptions import InvalidSettings
from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")

#: How often the file is written.
BEAT_EVERY_MS = 5_000.0


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
