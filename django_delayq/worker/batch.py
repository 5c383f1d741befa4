"""How many jobs a call may ask for, so that no script holds the server for long.

A script cannot see its own clock move, so whoever calls it measures and adapts.
"""

#: What one call should take of the server's time, ms.
TARGET_MS = 3.0


class BatchSizer:
    """Grows while calls are quick, shrinks when one was slow."""

    def __init__(self, *, first: int = 64, most: int = 500) -> None:
        self.size = first
        self._most = most

    def learn(self, asked: int, got: int, took_ms: float) -> None:
        """Take in one call: how many were asked for and came, and how long the reply took."""
        if got == 0:
            return
        if took_ms > 2 * TARGET_MS:
            self.size = max(8, min(self.size, asked) // 2)
        elif got >= self.size and took_ms < TARGET_MS:
            self.size = min(self._most, self.size * 3 // 2 + 1)
