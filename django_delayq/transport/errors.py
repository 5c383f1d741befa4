"""What the error of a call says: whether the call may have run, and why the server refused it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


class Demoted(RedisConnectionError):
    """Raised when the server has become a replica. It ran nothing, and the primary is found when we connect again."""


#: The connection broke, or the server did not answer in time: the reply is lost.
LOST = (RedisConnectionError, RedisTimeoutError)
#: Connection errors by which the server says that it did not look at the call.
TURNED_AWAY = (AuthenticationError, AuthorizationError, BusyLoadingError)
#: Errors by which a node of a cluster says that it did not run a call: another node does, or one will soon.
REDIRECTIONS = (AskError, TryAgainError, ClusterDownError)
#: Errors of a call that may be made again.
FAILED = (ResponseError, *LOST)
_REFUSALS = (OutOfMemoryError, ReadOnlyError, NoPermissionError, *REDIRECTIONS)
#: By these codes the server says that it did not begin a script, or refused its first write. Our scripts check the
#: types of their keys, and how many shards their queue has, before they write.
_REFUSED = re.compile(r"\b(?:WRONGTYPE|NOREPLICAS|MISCONF|BUSY|OTHERSHARDS)\b")
#: The attribute of an error that says whether its call may have run.
MAY_HAVE_RUN = "_delayq_may_have_run"


def may_have_run(error: Exception) -> bool:
    """Return whether a call that failed with this error may have run, in part at least.

    False if no connection came about, or if the server refused the call before its first write.
    """
    marked: bool | None = getattr(error, MAY_HAVE_RUN, None)
    if marked is not None:
        return marked
    if isinstance(error, LOST):
        return not isinstance(error, TURNED_AWAY)
    told = unhidden(error) if isinstance(error, ResponseError) else error
    return not (isinstance(told, _REFUSALS) or _REFUSED.search(str(told)))


def mark_unsent(error: Exception) -> None:
    """Note on an error that it was raised before anything was sent."""
    setattr(error, MAY_HAVE_RUN, False)


@contextmanager
def nothing_sent() -> Iterator[None]:
    """Note on an error of the server within that it was raised before anything was sent."""
    try:
        yield
    except RedisError as error:
        mark_unsent(error)
        raise


def of_those_behind(error: Exception) -> Exception:
    """Return the error of the calls that were sent behind one that ended like this, on the same connection.

    If a server says that it did not look at one call, that does not hold for the next.
    """
    if may_have_run(error):
        return error
    lost = RedisConnectionError(
        f"the connection was closed after the previous call: {error}"
    )
    lost.__cause__ = error
    if (node := node_named_by(error)) is not None:
        mark_of_node(lost, node)
    return lost


#: The attribute of an error that names the node of a cluster that it concerns.
OF_NODE = "_delayq_of_node"


def mark_of_node(error: Exception, node: str = "") -> None:
    """Note on the error of a connection that the other nodes of the cluster may well answer; ``node`` is ``host:port``."""
    setattr(error, OF_NODE, node)


def node_named_by(error: BaseException) -> str | None:
    """Return the node that an error of the connection concerns, empty if it is unknown; None: it is not of one node."""
    node: str | None = getattr(error, OF_NODE, None)
    return node


def is_of_node(error: Exception) -> bool:
    """Return whether an error concerns one node of a cluster, or one slot."""
    return isinstance(error, REDIRECTIONS) or node_named_by(error) is not None


#: The attribute of a refusal that says that other nodes, or Sentinels, have not refused.
OF_SOME = "_delayq_of_some"


def mark_of_some(error: BaseException) -> None:
    """Note on a refusal that not every node, or Sentinel, has refused."""
    setattr(error, OF_SOME, True)


def is_of_some(error: BaseException) -> bool:
    """Return whether another node, or Sentinel, may still accept us."""
    return getattr(error, OF_SOME, False)


#: Errors that callers tell apart. Redis 6.2 hides them in the text of the script's error.
_HIDDEN = {"-OOM ": OutOfMemoryError, "-READONLY ": ReadOnlyError}


def unhidden(error: Exception) -> Exception:
    """Return the error of the command that stopped a script. Redis 7 and later send that error themselves.

    A replica that has lost its primary may refuse every command: for us it is read-only. No node of a cluster says so.
    """
    text = str(error)
    # redis-py 5.0 does not know this error.
    if isinstance(error, MasterDownError) or text.startswith("MASTERDOWN "):
        return ReadOnlyError(text)
    if text.startswith("Error running script"):
        for prefix, cls in _HIDDEN.items():
            _, found, rest = text.partition(prefix)
            if found:
                return cls(rest)
    return error


def is_demoted(reply: Any) -> bool:
    """Return whether this is the error of a server that is a replica by now, so that its connection leads to the wrong one."""
    if isinstance(reply, Demoted):
        return True
    if not isinstance(reply, ResponseError):
        return False
    told = unhidden(reply)
    text = str(told)
    return (
        isinstance(told, ReadOnlyError)
        or text.startswith("UNBLOCKED")
        or "with replica instances" in text
    )


def astray(reply: Any) -> Exception | None:
    """Return an error if the wrong server answered a fence or WAIT that followed a call; None if the reply counts."""
    if isinstance(reply, REDIRECTIONS):
        what = "the slot moved, so this command ran on another node than the calls before it"
    elif isinstance(reply, LOST) or is_demoted(reply):
        what = "no reply says how durable it is"
    else:
        return None
    # Whatever the error says of its own command, the call before it has run.
    error = RedisConnectionError(f"{what}: {reply}")
    if is_of_node(reply):
        mark_of_node(error, node_named_by(reply) or "")
    return error
