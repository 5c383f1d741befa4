"""One problem of a server or a queue: how bad it is, and what to do about it."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad a problem is."""

    #: Jobs will be lost, or not run at all.
    ERROR = "error"
    #: Works, until something happens.
    WARNING = "warning"
    #: Could not be found out.
    INFO = "info"


class ServerProblem(NamedTuple):
    """Something about the server to know before relying on it."""

    level: Level
    message: str
    hint: str
    #: No worker may start with it.
    is_fatal: bool = False


def worst_first(problems: Iterable[ServerProblem]) -> list[ServerProblem]:
    """Sort problems by level, each once: some are found in two ways, or on several nodes."""
    order = list(Level)
    return sorted(
        dict.fromkeys(problems), key=lambda problem: order.index(problem.level)
    )


def some(items: Sequence[str]) -> str:
    """Return the first five names, and how many more there are."""
    return ", ".join(items[:5]) + (
        f" and {len(items) - 5} more" if len(items) > 5 else ""
    )
