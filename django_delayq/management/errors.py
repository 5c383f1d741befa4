"""Errors of commands, as people read them, each once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault


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


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of this package and of the server into a CommandError that says what to do.

    An OSError is none of these: redis-py makes its own errors of those of sockets, so it is about a file or a stream.
    """
    try:
        yield
    except DelayqError as error:
        raise CommandError(str(error)) from error
    except RedisError as error:
        what, message, hint = describe_fault(error)
        notes = getattr(error, "__notes__", ())
        raise CommandError("\n".join([f"{what} {hint}", message, *notes])) from error
