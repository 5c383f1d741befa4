"""What a supervisor sees of its processes: whether the interpreter of one still runs Python code.

All other parts that look after a process are its own threads. C code that never releases the interpreter, such as an
endless regular expression, stops all of them at once: nothing inside the process can end it.
"""

import mmap
import struct
from pathlib import Path

#: How often a process beats.
BEAT_S = 1.0

_COUNT = struct.Struct("=Q")


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


class Flag:
    """A fact in memory that a process shares with the processes it forks. It stays one."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    @property
    def is_set(self) -> bool:
        return self._memory[0] > 0

    def set(self) -> None:
        self._memory[0] = 1


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
