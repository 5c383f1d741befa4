"""What a job carries and what it leaves behind. Standard library only: it is imported in every peer's environment.

A job's one argument is 60 characters, ``index|due|work_ms|xxx…``. The first thing that it does is to append a record
to a file: one write that other processes cannot split, that outlives a kill -9 of its writer, and that costs one
system call and no network.
"""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: u32 index, u8 kind, 3 bytes of padding, f64 due and f64 now in epoch seconds; little-endian.
RECORD = struct.Struct("<IB3xdd")
START, END = 0, 1
PAYLOAD_LENGTH = 60
#: The index of jobs that only show that a worker is there.
PROBE = 0xFFFFFFFF


class Record(NamedTuple):
    """One event of one job; times in epoch seconds."""

    index: int
    kind: int
    due: float
    at: float


def payload_of(index: int, due: float, work_ms: int) -> str:
    """Return the argument of a job."""
    return f"{index}|{due:.3f}|{work_ms}|".ljust(PAYLOAD_LENGTH, "x")


class Recorder:
    """Appends to the record file; one a process, shared by its threads."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def start(self, payload: str) -> tuple[int, float, float]:
        """Record that a job starts; return its index, its due time and its work, in seconds."""
        now = time.time()
        index, due, work_ms, _ = payload.split("|", 3)
        self._append(int(index), START, float(due), now)
        return int(index), float(due), int(work_ms) / 1000

    def end(self, index: int, due: float) -> None:
        """Record that a job has done its work."""
        self._append(index, END, due, time.time())

    def _append(self, index: int, kind: int, due: float, now: float) -> None:
        os.write(self._fd, RECORD.pack(index, kind, due, now))

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> Iterator[Record]:
    """Read the records of a file, without those of probes. A record that is being written is left out."""
    data = path.read_bytes()
    whole = len(data) - len(data) % RECORD.size
    for fields in RECORD.iter_unpack(memoryview(data)[:whole]):
        record = Record(*fields)
        if record.index != PROBE:
            yield record


def count(path: Path) -> int:
    """Return how many records a file holds, those of probes included."""
    return path.stat().st_size // RECORD.size
