"""The jobs of the load, and one that eats memory.

Where the environment names a file of seconds, the clock of the process that runs them is so far from the machine's.
"""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import time_machine

from django_delayq import current_job, delayed_task, every, periodic
from tests.chaos.lines import now_ms
from tests.worker.records import record

CLOCK_FILE = "CHAOS_CLOCK_FILE"
#: Names the queue of a task that comes each second.
TICKS_QUEUE = "CHAOS_TICKS_QUEUE"
#: Between two moments of that, s.
TICK_S = 1
#: A worker that has not been killed when it holds this much never will be.
MOST_BYTES = 1 << 30
STEP_BYTES = 1 << 20


_lock = threading.Lock()
_moved: dict[str, time_machine.travel] = {}


def _follow_clock() -> None:
    """Bring the clock of this process to what the file says."""
    said = Path(os.environ[CLOCK_FILE]).read_text()
    if said not in _moved:
        while _moved:
            _moved.popitem()[1].stop()
        _moved[said] = time_machine.travel(timedelta(seconds=int(said)), tick=True)
        _moved[said].start()


@delayed_task(name="chaos.work")
def work(number: int, ms: int) -> None:
    """Note when the function begins and ends, by the clock that no fault moves."""
    if CLOCK_FILE in os.environ:
        with _lock:
            _follow_clock()
    record("start", n=number, now_ms=now_ms())
    time.sleep(ms / 1000)
    record("end", n=number, now_ms=now_ms())


@delayed_task(name="chaos.eat")
def eat() -> None:
    """Take memory until somebody ends this process."""
    record("eat", now_ms=now_ms())
    held: list[bytes] = []
    while len(held) * STEP_BYTES < MOST_BYTES:
        # Not zeros, which need no memory until they are written.
        held.append(os.urandom(STEP_BYTES))
    record("ate", now_ms=now_ms())


if TICKS_QUEUE in os.environ:

    @periodic(every(TICK_S), catch_up="all")
    @delayed_task(name="chaos.tick", queue=os.environ[TICKS_QUEUE])
    def tick() -> None:
        """Note which moment has come."""
        job = current_job()
        assert job is not None
        assert job.occurrence is not None
        record("tick", moment_s=round(job.occurrence.timestamp()))
