"""The name under which a change is made, and the texts that people give about one."""

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show
from django_delayq.wording import one_line, steers

#: The longest reason, and name of who makes a change, characters: each claim carries those of paused tasks.
MAX_REASON = 500


def checked_text(text: object, what: str) -> str:
    """Return a text that somebody gives about a change.

    Raises:
        EncodeError: it is not a text, too long, or not Unicode; or it would steer a terminal.
    """
    if not isinstance(text, str):
        raise EncodeError(
            f"{what}= is text; got {show(text)}, of type {type(text).__name__}"
        )
    if len(text) > MAX_REASON:
        raise EncodeError(
            f"{what}= has {len(text):,} characters, and {MAX_REASON} are the most"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"{what}= cannot be written as UTF-8: {error}") from None
    if steers(text):
        raise EncodeError(
            f"{what}={show(text)} has control characters, or characters that change the direction of text; remove them"
        )
    return text


_acting_as: ContextVar[str] = ContextVar("django_delayq_acting_as", default="")


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Record this name for every change inside the block, in place of the user and host of this process.

    ``name`` is what `checked_text` takes.
    """
    token = _acting_as.set(one_line(name))
    try:
        yield
    finally:
        _acting_as.reset(token)


def actor() -> str:
    """Return who makes a change: the name of `acting_as`, else the user and the host of this process."""
    if name := _acting_as.get():
        return name
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        user = "somebody"
    return one_line(f"{user}@{socket.gethostname()}")[:MAX_REASON]
