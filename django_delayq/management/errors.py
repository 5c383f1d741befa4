"""Errors of commands, as people read them."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of this package and of the server into a CommandError that says what to do."""
    try:
        yield
    except DelayqError as error:
        raise CommandError(str(error)) from error
    except (RedisError, OSError) as error:
        what, message, hint = describe_fault(error)
        notes = getattr(error, "__notes__", ())
        raise CommandError("\n".join([f"{what} {hint}", message, *notes])) from error
