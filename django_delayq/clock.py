"""The two clocks of this machine, kept apart by name.

Due times are decided by the server's TIME inside a script; nothing here takes part in that.
"""

import time


def epoch_ms() -> int:
    """Return this machine's wall clock in epoch ms, for logs and pages only."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> float:
    """Return a clock that never steps, in ms, for every wait."""
    return time.monotonic() * 1000.0
