"""Errors of commands, as people read them."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault


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
