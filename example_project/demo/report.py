"""The table in the terminal: a row for each step that held."""

import statistics
import sys

from failure import Failure

#: Widths of the columns.
STEP, ASKED, LATE = 58, 9, 11


class Report:
    def __init__(self) -> None:
        self.is_complete = False
        self._late_ms: list[float] = []
        self._is_terminal = sys.stdout.isatty()

    def heading(self) -> None:
        print(f"\n  {'step':{STEP}}{'asked':>{ASKED}}{'late':>{LATE}}")
        print(f"  {'─' * (STEP + ASKED + LATE)}", flush=True)

    def row(
        self, step: str, *, asked_s: float | None = None, late_ms: float | None = None
    ) -> None:
        """Print a step that held.

        Raises:
            Failure: it was early.
        """
        asked = "" if asked_s is None else f"{asked_s:.3f} s"
        late = "" if late_ms is None else f"{late_ms:.1f} ms"
        line = f"  {step:{STEP}}{asked:>{ASKED}}{late:>{LATE}}".rstrip()
        print(("\r\033[K" if self._is_terminal else "") + line, flush=True)
        if late_ms is None:
            return
        self._late_ms.append(late_ms)
        if late_ms < 0:
            raise Failure(f"{step}: {-late_ms:.3f} ms early")

    def waiting(self, what: str, left_s: float) -> None:
        """Show what the tour waits for, where the next row will be."""
        if self._is_terminal:
            left = f"in {left_s:.1f} s" if left_s > 0 else "now"
            print(f"\r\033[K  … {what} {left}", end="", flush=True)

    def conclude(self) -> None:
        """Say that every step held."""
        self.is_complete = True
        half, worst = statistics.median(self._late_ms), max(self._late_ms)
        print(
            f"\nEvery step held. Of {len(self._late_ms)} deadlines none was early;"
            f" half were at most {half:.1f} ms late, the worst {worst:.1f} ms.",
            flush=True,
        )
