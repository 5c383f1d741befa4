"""What a fault is: it happens on an arena with workers and loads, shows that it has happened, and says what it excuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.arena import Arena, Span
from tests.chaos.lines import now_ms
from tests.clusters import TestCluster
from tests.replicas import Addressed
from tests.sentinels import Watched
from tests.servers import LASTING

#: Where jobs are stored, and the queues with their options.
Layout = tuple[Addressed | Watched | TestCluster, dict[str, dict[str, Any]]]


class NotHere(Exception):
    """Raised where this machine cannot make a fault."""


@dataclass(frozen=True)
class Fault:
    """One scenario: what happens, and what it runs on."""

    name: str
    summary: str
    happen: Callable[[Arena], None]
    #: Options of the server; by default it keeps what it has acknowledged.
    options: dict[str, str] = field(default_factory=lambda: dict(LASTING))
    #: Prepares what the server or its workers need before they start.
    prepare: Callable[[Path], dict[str, Any]] | None = None
    #: Makes what the jobs are stored on, if that is more than one server, and names the queues and their options.
    layout: Callable[[str], Layout] | None = None
    #: Whether a task comes each second, on a queue of its own.
    ticks: bool = False


FAULTS: dict[str, Fault] = {}


def fault(
    summary: str, **options: Any
) -> Callable[[Callable[[Arena], None]], Callable[[Arena], None]]:
    def add(happen: Callable[[Arena], None]) -> Callable[[Arena], None]:
        name = happen.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, summary, happen, **options)
        return happen

    return add


@contextmanager
def trouble(arena: Arena) -> Iterator[None]:
    """A time in which a job may run twice."""
    from_ms = now_ms()
    try:
        yield
    finally:
        arena.troubles.append(Span(from_ms, now_ms()))
