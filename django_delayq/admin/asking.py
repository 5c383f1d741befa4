"""Calls of the pages to the server, in one round trip."""

from collections.abc import Sequence
from typing import Any

from django_delayq.calls.several import run_all
from django_delayq.clients.clients import own_clients


def ask(calls: Sequence[Any]) -> list[Any]:
    """Make calls, and plain commands, in one round trip; the first error is raised."""
    replies = run_all(own_clients.of_thread(), calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
