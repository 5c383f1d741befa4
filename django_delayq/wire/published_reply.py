"""Reads the replies of scripts that publish, and warns if an ACL refuses that: the job is stored all the same."""

from typing import Any

from django_delayq.logs import get_log

logger = get_log(__name__)

_told: set[bytes] = set()


def read_published(reply: int | list[Any]) -> int:
    """Read the reply of a script that publishes last: a number, and the server's error if it refused to publish."""
    if isinstance(reply, int):
        return reply
    number, refusal = reply
    note_refusal(refusal)
    return int(number)


def note_refusal(refusal: bytes) -> None:
    """Log the error with which the server refused to publish; once a process, since every call meets it."""
    if refusal in _told:
        return
    _told.add(refusal)
    logger.warning(
        "done, but the account has no right to publish it: %s. An idle worker notices new jobs some seconds late. Let this"
        " user publish to the queue's channels, as docs/howto/deploy.md has it",
        refusal.decode(errors="replace"),
    )
