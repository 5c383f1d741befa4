"""What an error says of the call that it ended: whether it may have been carried out, and why the server refused it."""

import re

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

LOST = (RedisConnectionError, RedisTimeoutError)


#: Errors of the connection by which the server says that it has not even looked at the call.
TURNED_AWAY = (AuthenticationError, AuthorizationError, BusyLoadingError)


#: By these codes the server says that a script was not begun, or refused its first write. Ours check types before that.
_REFUSED = re.compile(
    r"\b(?:WRONGTYPE|NOREPLICAS|MISCONF|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b"
)


#: The attribute by which an error of a call knows whether the call may have been carried out.
MAY_HAVE_RUN = "_delayq_may_have_run"


def may_have_run(error: Exception) -> bool:
    """Tell whether a call that failed so may have been carried out, in part at least.

    False where no connection came about, and where the server refused the call before its first write.
    """
    marked: bool | None = getattr(error, MAY_HAVE_RUN, None)
    if marked is not None:
        return marked
    if isinstance(error, LOST):
        return not isinstance(error, TURNED_AWAY)
    return not (
        isinstance(error, OutOfMemoryError | ReadOnlyError | NoPermissionError)
        or _REFUSED.search(str(error))
    )


def mark_unsent(error: Exception) -> None:
    """Note on an error that it came up before anything was sent."""
    setattr(error, MAY_HAVE_RUN, False)


#: Errors that a caller decides by, as Redis 6.2 has them in the text of the error of the script.
_HIDDEN = {"-OOM ": OutOfMemoryError, "-READONLY ": ReadOnlyError}


def unhidden(error: ResponseError) -> ResponseError:
    """Return the error of the command that stopped a script; from Redis 7 on that is what the server tells."""
    text = str(error)
    if text.startswith("Error running script"):
        for prefix, cls in _HIDDEN.items():
            _, found, rest = text.partition(prefix)
            if found:
                return cls(rest)
    return error


def raise_hidden(error: ResponseError) -> None:
    told = unhidden(error)
    if told is not error:
        raise told from error
