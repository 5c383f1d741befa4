"""The queue and the hand of `tests.jobs`, a way to call commands, and how many writes a command makes."""

import io
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command
from redis.connection import AbstractConnection

from django_delayq import __version__
from django_delayq.core.worker_registry import RegistryKeys, WorkerInfo, register
from tests.jobs import conftest as of_jobs
from tests.jobs.hand import Hand

queue = of_jobs.queue
hand = of_jobs.hand


class Said(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Call = Callable[..., Said]


@pytest.fixture
def call() -> Call:
    """Call a command as a shell does; what it refuses is its last line of errors."""

    def call(name: str, *arguments: object) -> Said:
        out, err, status = io.StringIO(), io.StringIO(), 0
        try:
            call_command(name, *map(str, arguments), stdout=out, stderr=err)
        except SystemExit as end:
            status = int(str(end.code))
        except CommandError as error:
            status = error.returncode
            err.write(f"{error}\n")
        return Said(status, out.getvalue(), err.getvalue())

    return call


class Writes:
    """Counts what is written to the server, but not by threads that have other work."""

    def __init__(self) -> None:
        self.count = 0
        self._others: set[threading.Thread] = set()

    def during(self, act: Callable[[], Any]) -> int:
        # Some that live already ping the server, or look after it, whenever they like.
        self._others = set(threading.enumerate()) - {threading.current_thread()}
        self.count = 0
        act()
        return self.count

    def note(self) -> None:
        if threading.current_thread() not in self._others:
            self.count += 1


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    found = Writes()
    send = AbstractConnection.send_packed_command

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.note()
        return send(self, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    return found


def serve(hand: Hand, *queues: str, version: str = __version__, **more: Any) -> None:
    """Say that a process of a worker lives, as it does every five seconds."""
    info = WorkerInfo("web1", 4711, version, 2, list(queues), 8, **more)
    hand.run(register(RegistryKeys.of(), f"w-{hand.keys.queue.name}", info))
