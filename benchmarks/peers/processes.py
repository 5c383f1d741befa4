"""Worker processes: started, accounted for, and ended. Linux only: it reads /proc.

Only processes that we started are touched. Each leads a session of its own, and what it starts stays in that session.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.polling import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Where in /proc/PID/stat, behind the name, stand the state, the session, and the times of a process and its children.
_STATE, _SESSION, _TIMES = 0, 3, slice(11, 15)


def _stat(pid: int) -> list[bytes] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat[stat.rindex(b")") + 2 :].split()


class Workers:
    """The processes of one layout of a peer."""

    def __init__(
        self,
        described: Sequence[Mapping[str, Any]],
        environment: Mapping[str, str],
        cwd: Path,
        log: Path,
    ) -> None:
        """Start them: each is described by its ``argv``, and by ``env``, which adds to the environment."""
        self._processes = []
        with log.open("ab") as output:
            for one in described:
                self._processes.append(
                    subprocess.Popen(
                        one["argv"],
                        env={**environment, **one.get("env", {})},
                        cwd=cwd,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        self._sessions = {process.pid for process in self._processes}

    def pids(self) -> list[int]:
        """Return every process of the sessions, zombies left out."""
        found = []
        for entry in os.listdir("/proc"):
            stat = _stat(int(entry)) if entry.isdigit() else None
            if stat and int(stat[_SESSION]) in self._sessions and stat[_STATE] != b"Z":
                found.append(int(entry))
        return found

    def cpu_s(self) -> float:
        """Return the CPU time that they and the children that they reaped have used."""
        return (
            sum(
                int(ticks)
                for pid in self.pids()
                for ticks in (_stat(pid) or [])[_TIMES]
            )
            / TICKS_PER_S
        )

    def memory_mib(self) -> float:
        """Return their PSS, which counts pages that several share once."""
        return sum(_pss_kib(pid) for pid in self.pids()) / 1024

    def kill(self) -> None:
        """End them with SIGKILL, parents first, so that nobody starts another."""
        for process in self._processes:
            process.kill()
        wait_until(self._kill_children, description="the workers' sessions are empty")
        for process in self._processes:
            process.wait()

    def _kill_children(self) -> bool:
        left = self.pids()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself
        return not left


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has just ended
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def sleep_until(moment: float) -> None:
    """Sleep until a time of the epoch, in seconds."""
    time.sleep(max(0.0, moment - time.time()))
