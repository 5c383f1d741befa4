"""Files of lines, each a JSON object, that several processes write and that a kill leaves whole."""

import json
import os
import time
from pathlib import Path
from typing import Any


def now_ms() -> float:
    """Return the time of this machine, ms, by a clock that no step moves and that all its processes share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC) * 1000


def append(path: Path, **line: Any) -> None:
    """Write a line."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


class Lines:
    """What stands in a file, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[dict[str, Any]] = []
        self._offset = 0

    def all(self, step: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of a step, or all, in order."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._lines += map(json.loads, whole.splitlines())
        return [line for line in self._lines if step in (None, line["step"])]
