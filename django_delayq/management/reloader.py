"""``delayq_worker --reload``: runs the worker as a child, and a new one whenever code changes."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

from django.core.management.base import OutputWrapper
from django.utils.autoreload import StatReloader, get_child_arguments

from django_delayq.translations import gettext
from django_delayq.worker.operating_system import handle_signal, reap_orphans
from django_delayq.worker.supervisor import NOW, STOPPING

#: Environment variable that names a pipe: it closes when the reloader of a worker under --reload ends.
RELOADER = "DELAYQ_RELOADER"


def run_reloaded(stderr: OutputWrapper) -> int:
    """Run the worker as a child, and a new one whenever a module of this project changes."""
    reloader = _ChangeReporter()
    ticker: Iterator[None] = reloader.tick()
    next(ticker)
    child = _Child()
    stops: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        # A terminal also sends its signal to the child.
        if len(stops) > 1 and number == signal.SIGTERM:
            child.process.send_signal(number)

    for number in STOPPING:
        handle_signal(number, stop)
    while not stops and child.process.poll() != 0:
        reap_orphans({child.process.pid})
        next(ticker)
        if reloader.changed is not None and not stops:
            stderr.write(
                gettext("{file} changed, restarting the worker", file=reloader.changed)
            )
            reloader.changed = None
            child.stop(NOW)
            child = _Child()
    return child.stop()


class _Child:
    """A worker process that stops when told to, or when this process dies."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.process = subprocess.Popen(
            get_child_arguments(),
            env={**os.environ, RELOADER: str(reader)},
            pass_fds=[reader],
        )
        os.close(reader)

    def stop(self, how: bytes = b"") -> int:
        """End the worker, gracefully unless ``how`` is `NOW`, and return its exit status."""
        with suppress(BrokenPipeError):
            os.write(self._writer, how)
        os.close(self._writer)
        return self.process.wait()


class _ChangeReporter(StatReloader):
    """Django's reloader, except that it reports a change instead of ending the process."""

    changed: "str | os.PathLike[str] | None" = None

    def notify_file_changed(self, path: "str | os.PathLike[str]") -> None:
        self.changed = path
