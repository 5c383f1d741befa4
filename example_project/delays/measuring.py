"""A consumer in a process of its own, which can be watched and killed."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django_delayq import BlockingQueue

from .consumers import CONSUMERS

#: How long a consumer may take to start, or to handle what is due.
PATIENCE_S = 30.0
#: How long an element stays with a consumer that died while it was taking it.
LEASE_S = 1.0


class ConsumerProcess:
    """``manage.py compare_consumers --consume``, and what it has handled so far."""

    def __init__(self, way: str, queue: str, url: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                sys.argv[0],
                "compare_consumers",
                "--consume",
                way,
                queue,
                url,
            ],
            stdin=subprocess.PIPE,  # its end tells the consumer to stop, however we end
            stdout=subprocess.PIPE,
            text=True,
        )
        self.is_ready = False
        #: Number of the element → how late it was, in ms. Written by the thread.
        self.late_ms: dict[int, float] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.partition(" ")
            if rest:
                self.late_ms[int(first)] = float(rest)
            else:
                self.is_ready = True

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if self.process.poll() is not None:
                raise RuntimeError(f"the consumer ended before {what}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {PATIENCE_S:g} s still not: {what}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a power cut would; return once all its output was read."""
        self.process.kill()
        self._reader.join()
        self.process.communicate()


@contextmanager
def consumer(way: str, queue: str, url: str) -> Iterator[ConsumerProcess]:
    """Run a consumer."""
    running = ConsumerProcess(way, queue, url)
    try:
        running.wait_until(lambda: running.is_ready, "it was ready")
        yield running
    finally:
        running.kill()


def consume(way: str, name: str, url: str) -> None:
    """Be the consumer: print the number and the lateness of each element that was handled."""
    stop, one_line = threading.Event(), threading.Lock()

    def handle(element: dict[str, float]) -> None:
        late_ms = time.time() * 1000 - element["due_ms"]
        time.sleep(element["work_s"])
        with one_line:
            print(element["number"], late_ms, flush=True)

    def watch_stdin() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch_stdin, daemon=True).start()
    with BlockingQueue(name, connection=url, lease=LEASE_S) as queue:
        print("ready", flush=True)
        CONSUMERS[way](queue, handle, stop)
