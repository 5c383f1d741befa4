"""Logs a trouble once when it begins and when it changes, and not at every attempt to get over it."""

import logging

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.logs import Log
from django_delayq.redaction import redact


class Trouble:
    """Why something that is tried again and again does not work; owned by the thread that tries.

    A server that is away troubles everything that needs it, and one part of a process logs that. ``is_outage_told``
    says whether this is the part; the others log it at level DEBUG.
    """

    def __init__(self, logger: logging.Logger | Log, *, is_outage_told: bool) -> None:
        self._logger = logger
        self._is_outage_told = is_outage_told
        self._kind: object = None

    def note(self, error: Exception, what: str, *, again_ms: int) -> None:
        """Log what cannot be done, why, and when it is tried again; at level DEBUG if that was logged already."""
        # Connections are refused, reset and timed out by turns in one outage.
        kind = "outage" if is_outage(error) else f"{type(error)} {error}"
        is_told = kind == self._kind
        if kind == "outage" and not self._is_outage_told:
            is_told = True
        level = logging.DEBUG if is_told else logging.WARNING
        self._kind = kind
        self._logger.log(
            level, "%s, again in %d ms: %s", what, again_ms, redact(str(error))
        )

    def is_over(self) -> None:
        """Take note that it works: the next trouble is a new one."""
        self._kind = None


def is_outage(error: Exception) -> bool:
    """Return whether nothing in this process can use the server: it is away, or does not let us in."""
    # A wrong account is a ConnectionError as well. Each new connection to a missing database is refused.
    return isinstance(
        error,
        RedisConnectionError | RedisTimeoutError | InvalidResponse | OSError,
    ) or "DB index is out of range" in str(error)
