"""The clocks of this machine, kept apart by name.

The server's TIME decides inside a script what is due; no clock of this machine takes part.
"""

import time
from datetime import UTC, datetime


def epoch_ms() -> int:
    """Return this machine's wall clock in epoch ms, for logs and pages only."""
    return time.time_ns() // 1_000_000


def iso_text(moment: datetime) -> str:
    """Write a moment for programs and logs: ISO 8601 in UTC, to the millisecond. `translations.moment_text` is for people."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def monotonic_ms() -> float:
    """Return a clock that never steps, in ms, for every wait."""
    return time.monotonic() * 1000.0


#: On Linux the monotonic clock stops while the machine is suspended. Elsewhere the only monotonic clock goes on.
_COUNTS_SUSPENSION: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_ms() -> float:
    """Return a clock that never steps and also runs while the machine is suspended, in ms. Leases end by it."""
    return time.clock_gettime(_COUNTS_SUSPENSION) * 1000.0
