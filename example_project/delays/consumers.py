"""Three ways to consume a `BlockingQueue`, as people write them; `compare_consumers` measures them.

Each one calls ``handle(element)`` for every element until ``stop`` is set.
A fourth way needs none of this: ``@queue_handler`` in tasks.py, run by the worker.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django_delayq import BlockingQueue
from django_delayq.worker.time_limit import Timer

Handle = Callable[[Any], None]
Consumer = Callable[[BlockingQueue, Handle, threading.Event], None]

#: Between two looks of the timer: the timer of Redisson ticks as often.
TICK_MS = 100.0
#: Between two looks of the executor.
PERIOD_MS = 10.0
#: Elements that one look of the executor takes, and threads that handle them.
BATCH, THREADS = 100, 4


def blocking_take(queue: BlockingQueue, handle: Handle, stop: threading.Event) -> None:
    """Wait at the server for the next element, in a thread that does nothing else."""

    def take_all() -> None:
        while not stop.is_set():
            handle(queue.take())

    # A daemon: nobody can wake it up, and an element on its way to it is taken again.
    threading.Thread(target=take_all, daemon=True).start()
    stop.wait()


def timer_looks(queue: BlockingQueue, handle: Handle, stop: threading.Event) -> None:
    """Look ten times a second by a timer that the process has anyway; no thread waits."""
    timer = Timer("looks")

    def look() -> None:
        while not stop.is_set() and (element := queue.poll()) is not None:
            handle(element)
        if not stop.is_set():
            timer.call_later(TICK_MS / 1000, look)

    timer.call_later(0, look)
    stop.wait()
    timer.stop()


def fixed_rate(queue: BlockingQueue, handle: Handle, stop: threading.Event) -> None:
    """Look at a fixed rate, and hand every element to a pool: Java's scheduleAtFixedRate."""
    start, looks = time.monotonic(), 0
    with ThreadPoolExecutor(THREADS) as pool:
        while not stop.is_set():
            for element in queue.drain_to(BATCH):
                pool.submit(handle, element)
            looks += 1
            # Counted from the start, or every look would delay all later ones.
            time.sleep(max(0.0, start + looks * PERIOD_MS / 1000 - time.monotonic()))


CONSUMERS: dict[str, Consumer] = {
    "blocking take in a thread": blocking_take,
    f"timer, {TICK_MS:g} ms": timer_looks,
    f"fixed rate, {PERIOD_MS:g} ms, pool": fixed_rate,
}
