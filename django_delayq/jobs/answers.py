"""Asking several queues when some do not answer: the answers of the others, and an error that names the rest.

An error is the one way to give a partial answer. A list that is merely shorter would pass for the whole, and an answer
that fails as a whole hides what the other nodes of a cluster know.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from django_delayq.conf import QueueSettings, get_settings
from django_delayq.exceptions import PartialAnswer
from django_delayq.faults import fault_line
from django_delayq.transport.errors import LOST, is_of_node
from django_delayq.transport.neighbours import Neighbours
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers of queues."""

    #: In the order of the queues; an error takes the place of an answer.
    replies: list[T | Exception]
    #: The error of each queue that did not answer, by its name.
    missing: dict[str, Exception]

    def of(self, asked: Iterable[K]) -> Iterator[tuple[K, T]]:
        """Yield the answers, each with what stands in its place in ``asked``."""
        for each, reply in zip(asked, self.replies, strict=True):
            if not isinstance(reply, Exception):
                yield each, reply


def asking(
    queues: Sequence[QueueSettings], operations: Iterable[Steps[T]]
) -> Steps[Answers[T]]:
    """Perform an operation on each queue, all at once, so that a silent node is waited for once.

    Raises:
        redis.exceptions.RedisError: no queue answers.
    """
    replies = yield from together(list(operations))
    missing: dict[str, Exception] = {}
    for queue, reply in zip(queues, replies, strict=True):
        if isinstance(reply, Exception):
            note_missing(missing, queue.name, reply)
    if missing and len(missing) == len({queue.name for queue in queues}):
        raise next(iter(missing.values()))
    return Answers(replies, missing)


def note_missing(missing: dict[str, Exception], queue: str, error: Exception) -> None:
    """Note that a queue has not answered.

    Raises:
        redis.exceptions.RedisError: no other queue would answer either.
    """
    if isinstance(error, LOST) and not is_of_node(error):
        raise error
    missing.setdefault(queue, error)


def leaving_out(
    missing: dict[str, Exception],
    queue: str,
    error: Exception,
    rest: Sequence[str],
) -> Steps[list[str]]:
    """Note that a queue has not answered, and those of the rest that lie on the same node; return which are left.

    Raises:
        redis.exceptions.RedisError: see `note_missing`.
    """
    note_missing(missing, queue, error)
    settings = get_settings()
    keys = [settings.queue(name).keys.control for name in rest]
    lie_there = yield Neighbours(error, keys)
    left = []
    for name, is_there in zip(rest, lie_there, strict=True):
        if is_there:
            missing.setdefault(name, error)
        else:
            left.append(name)
    return left


def complete(found: T, missing: Mapping[str, Exception]) -> T:
    """Return what was found.

    Raises:
        PartialAnswer: some queues are missing from it.
    """
    if missing:
        raise partial_answer(found, missing)
    return found


def partial_answer(found: object, missing: Mapping[str, Exception]) -> PartialAnswer:
    """Make the error that gives a partial answer."""
    error = PartialAnswer(
        f"The answer is not complete. {missing_line(missing)}",
        found=found,
        missing=missing,
    )
    error.__cause__ = next(iter(missing.values()))
    return error


def missing_line(missing: Mapping[str, Exception]) -> str:
    """Say in one line which queues are missing, and why."""
    why: dict[str, list[str]] = {}
    for name, error in missing.items():
        line = " ".join([fault_line(error), *getattr(error, "__notes__", ())])
        why.setdefault(line, []).append(name)
    return " ".join(
        f"No answer from queue{'s'[: len(names) > 1]} {', '.join(names)}: {line}"
        for line, names in why.items()
    )
