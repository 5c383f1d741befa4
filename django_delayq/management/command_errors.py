"""Errors of commands, as people read them, each once."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_delayq.exceptions import DelayqError, PartialAnswer
from django_delayq.faults import describe_fault
from django_delayq.jobs.answers import missing_line, note_missing

T = TypeVar("T")


@contextmanager
def said_by_command() -> Iterator[None]:
    """Keep the log of a change from standard error, where Python writes it if the project has no handler for it."""
    log = logging.getLogger("django_delayq.jobs")
    handler = logging.NullHandler()
    if not log.hasHandlers():
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class Missing:
    """Lets a command continue without queues that cannot be reached, and end with an error that names them."""

    def __init__(self) -> None:
        #: The error of each queue, by its name.
        self.queues: dict[str, Exception] = {}

    @contextmanager
    def queue(self, name: str | None, *, of: Sequence[str]) -> Iterator[None]:
        """Do something with one of several queues, and continue with the others if it cannot be reached."""
        try:
            yield
        except RedisError as error:
            if name is None or len(of) == 1:
                raise
            note_missing(self.queues, name, error)

    def part(self, ask: Callable[[], T]) -> T:
        """Return what several queues say, without those that cannot be read."""
        try:
            return ask()
        except PartialAnswer as error:
            self.queues |= error.missing
            found: T = error.found
            return found

    def each(self, found: Iterable[T]) -> Iterator[T]:
        """Yield what several queues say, without those that cannot be read."""
        try:
            yield from found
        except PartialAnswer as error:
            self.queues |= error.missing

    @property
    def line(self) -> str:
        """Which queues are missing, and why; empty: none."""
        return missing_line(self.queues)

    def end(self) -> None:
        """End a command that shows something.

        Raises:
            CommandError: queues are missing.
        """
        if self.queues:
            raise CommandError(f"The answer is not complete. {self.line}")


@contextmanager
def explained(advise: Callable[[], str] = str) -> Iterator[None]:
    """Turn errors of this package and of the server into a CommandError that says what to do.

    ``advise`` returns what the command adds to an error of the server.
    An OSError is not one of these: redis-py makes its own errors of those of sockets, so it is about a file or a stream.
    """
    try:
        yield
    except DelayqError as error:
        raise CommandError(str(error)) from error
    except RedisError as error:
        what, message, hint = describe_fault(error)
        notes = getattr(error, "__notes__", ())
        lines = [f"{what} {hint}", message, *notes, advise()]
        raise CommandError("\n".join(filter(None, lines))) from error
