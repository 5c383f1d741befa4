"""``--max-memory``: when a worker process has grown so much that it has to be replaced.

It measures the memory that only this process uses, which is what replacing it gives back. The claim loop decides how
the process ends.
"""

import fcntl
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable

from django_delayq.clock import monotonic_ms
from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")

#: How often a process measures itself.
LOOK_EVERY_MS = 1_000.0
#: A limit below this multiple of a fresh process is too low: each process would be replaced after nearly every job.
LEAST_ROOM = 1.25
#: A limit that is reached in fewer jobs than this is also too low, unless one of the jobs leaves much behind.
FEW_JOBS = 10
#: A process above this multiple of its limit is replaced even while another one is.
MOST_EXCESS = 1.25

_MB = 2**20
_STATUS = "/proc/self/status"
_OWN = re.compile(rb"^(?:RssAnon|VmSwap):\s*(\d+) kB$", re.MULTILINE)


class Meter:
    """Measures the process that made it.

    On Linux it counts anonymous pages, in memory or swapped out. It does not count shared memory and mapped files, such
    as libraries; it does count pages that the process shares with the supervisor that forked it. Other systems only
    report the peak that was resident.
    """

    def __init__(self) -> None:
        # The file is kept open: a process that has run out of descriptors can still measure itself.
        self._status, self._tells_own = -1, False
        if os.path.exists(_STATUS):
            self._status = os.open(_STATUS, os.O_RDONLY)
            self._tells_own = b"\nRssAnon:" in self._told()

    def read(self) -> int:
        """Return bytes."""
        if self._tells_own:
            return 1024 * sum(map(int, _OWN.findall(self._told())))
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most

    def _told(self) -> bytes:
        # The file has 2 KB, and more for a user of many groups.
        return os.pread(self._status, 65_536, 0)

    def __del__(self) -> None:
        if self._status >= 0:
            os.close(self._status)


class MemoryLimit:
    """The memory limit of a worker; its processes inherit this object from their supervisor."""

    def __init__(self, limit: int) -> None:
        """``limit`` in bytes."""
        self.limit = limit
        self._turn = _nameless_file()
        # The pipe holds one byte, for the process that reads it first.
        self._say, writer = os.pipe()
        os.write(writer, b"!")
        os.close(writer)

    def take_turn(self) -> bool:
        """Return whether this process may be replaced now; until it ends, no other process may."""
        try:
            # The kernel releases the lock, however this process ends.
            fcntl.lockf(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def may_warn(self) -> bool:
        """Return True once, to the first process that asks."""
        return bool(os.read(self._say, 1))

    def __del__(self) -> None:
        os.close(self._turn)
        os.close(self._say)


class MemoryWatch:
    """Has one process replaced once it passes the limit; the watchdog calls `look`."""

    def __init__(
        self,
        limit: MemoryLimit,
        *,
        jobs: Callable[[], int],
        retire: Callable[[], None],
    ) -> None:
        """``jobs`` returns how many jobs have run; ``retire`` ends the process after its running jobs."""
        self._shared = limit
        self._limit = float(limit.limit)
        self._jobs = jobs
        self._retire = retire
        self._is_over = False
        self._fresh = 0
        self._look_ms = 0.0
        self._meter = Meter()

    def start(self) -> None:
        """Measure the process while it is fresh."""
        self._fresh = self._meter.read()
        self._limit = max(self._limit, LEAST_ROOM * self._fresh)
        self._look_ms = monotonic_ms() + LOOK_EVERY_MS
        if self._limit > self._shared.limit and self._shared.may_warn():
            logger.warning(
                "--max-memory of %s is too low: a fresh process takes %s, so that each would be replaced after nearly"
                " every job; they are replaced above %s instead",
                _text(self._shared.limit),
                _text(self._fresh),
                _text(self._limit),
            )

    def look(self) -> None:
        """Measure the process, if it is time."""
        now_ms = monotonic_ms()
        if self._is_over or now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_EVERY_MS
        taken = self._meter.read()
        if taken <= self._limit:
            return
        if not self._shared.take_turn() and taken <= MOST_EXCESS * self._limit:
            # If all processes ended at once, nobody would claim until the last of their jobs has ended.
            return
        self._is_over = True
        jobs = self._jobs()
        logger.info(
            "this process uses %s and will be replaced: the limit is %s, %d jobs have run",
            _text(taken),
            _text(self._limit),
            jobs,
        )
        if jobs < FEW_JOBS and self._shared.may_warn():
            logger.warning(
                "--max-memory of %s is too low, or a task leaves much behind: a fresh process takes %s, and %s after %d"
                " jobs",
                _text(self._shared.limit),
                _text(self._fresh),
                _text(taken),
                jobs,
            )
        self._retire()


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        # A nameless file needs no writable directory, which not every container has.
        return os.memfd_create("delayq-turn")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _text(size: float) -> str:
    return f"{size / _MB:.1f} MB"
