"""Which connections are open, and what happens to them when another server answers.

A connection leads to the server that answered when it was opened. Once another server has taken its place, the
connection is closed, and the process reads again what it remembers of the former server.

Each start of a server has a run id. Each new connection asks for it, so another server at the same address is noticed.
"""

import asyncio
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.errors import mark_unsent

logger = get_log(__name__)

# By id: other threads may add to it while it is copied.
_open: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_changes = 0
#: A server that answers again so soon after another one takes turns with it, s.
TURN_S = 10.0


class FormerServerError(RedisConnectionError):
    """Raised when a new connection leads to a server that another one has replaced while the connection was opened."""


@dataclass
class _Place:
    """The servers at one address, as far as they are known. Guarded by `_lock`."""

    #: That of the server that answered last, and since when it does.
    run_id: str = ""
    since_s: float = 0.0
    #: By run id, when another server took the place of the one that had it.
    left_s: dict[str, float] = field(default_factory=dict)
    #: Who said last that it is a replica, and when.
    demoted: tuple[str, float] | None = None
    #: Why nobody asks for run ids any more.
    why_off: str = ""


_places: dict[Hashable, _Place] = {}
_lock = threading.Lock()


def note_open(connection: Any) -> None:
    """Remember a connection for as long as somebody holds it. Its ``shut`` may be called from any thread."""
    _open[id(connection)] = connection


def connections() -> list[Any]:
    """Return the connections that were opened in this process, and that somebody holds."""
    references = _open.valuerefs()
    return [found for each in references if (found := each()) is not None]


def changes() -> int:
    """Return how often another server has answered, of all that this process uses."""
    return _changes


def note_another(what: str, is_older: Callable[[Any], bool]) -> None:
    """Shut the connections to a server that was replaced. Calls that are under way on them may have run."""
    older = [each for each in connections() if is_older(each)]
    for connection in older:
        connection.shut()
    # Only now: what is read again must not come from the former server.
    note_change()
    logger.warning("%s: closed %d connections to the former server", what, len(older))


def note_change() -> None:
    """Have what was read from servers read again."""
    global _changes
    _changes += 1


def why_unasked(place: Hashable) -> str:
    """Return why new connections to an address do not ask for the run id; nothing if they do."""
    known = _places.get(place)
    return known.why_off if known else ""


def note_answer(connection: Any, run_id: str) -> None:
    """Note which server answers on a new connection, which `note_open` knows already.

    Raises:
        FormerServerError: another connection was opened later, and leads to another server.
    """
    place, now_s = connection.place, time.monotonic()
    with _lock:
        known = _places.setdefault(place, _Place())
        if known.why_off or run_id in ("", known.run_id):
            return
        former = known.run_id
        if former and connection.began_s < known.since_s:
            error = FormerServerError("another server has just taken its place")
            mark_unsent(error)
            raise error
        takes_turns = now_s < known.left_s.get(run_id, -TURN_S) + TURN_S
        if takes_turns:
            known.why_off = f"several servers answer in turn at {connection.address}"
        elif former:
            kept = {
                each: at for each, at in known.left_s.items() if now_s < at + TURN_S
            }
            known.left_s = kept | {former: now_s}
        known.run_id, known.since_s = run_id, now_s
    if takes_turns:
        logger.warning(
            "%s, so this process no longer notices if one server replaces another",
            known.why_off,
        )
    elif former:
        note_another(
            f"another server answers at {connection.address}",
            lambda each: (
                getattr(each, "place", None) == place
                and each.run_id not in ("", run_id)
            ),
        )


def note_refusal(connection: Any, error: ResponseError) -> None:
    """Note that a server does not say its run id."""
    with _lock:
        known = _places.setdefault(connection.place, _Place())
        known.why_off = f"{connection.address}: {redact(str(error))}"
    logger.debug("no run id from %s", known.why_off)


def note_demoted(connection: Any) -> None:
    """Note that the server of a connection says that it is a replica."""
    place, run_id, now_s = connection.place, connection.run_id, time.monotonic()
    with _lock:
        known = _places.setdefault(place, _Place())
        before = known.demoted
        # It says so again to each call as long as the address leads to it.
        if before and before[0] == run_id and now_s < before[1] + TURN_S:
            return
        known.demoted = run_id, now_s
    note_another(
        f"the server at {connection.address} is a replica now",
        lambda each: getattr(each, "place", None) == place and each.run_id == run_id,
    )


def run_id_in(told: bytes) -> str:
    """Return the run id in the reply to ``INFO server``; nothing if there is none."""
    _, _, rest = told.partition(b"run_id:")
    return rest.partition(b"\r\n")[0].decode()


def is_refusal(error: ResponseError) -> bool:
    """Return whether a server gives INFO to nobody, or not to this account."""
    return isinstance(error, NoPermissionError) or "unknown command" in str(error)


def shut_socket(sock: socket.socket) -> None:
    """Make every wait for a socket end with an error. Called from any thread."""
    try:
        if isinstance(sock, ssl.SSLSocket):
            # Its own method takes away what another thread is using.
            super(ssl.SSLSocket, sock).shutdown(socket.SHUT_RDWR)
        else:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It is closed already.
        return


def abort(loop: asyncio.AbstractEventLoop, writer: asyncio.StreamWriter) -> None:
    """`shut_socket` for what belongs to an event loop."""
    try:
        loop.call_soon_threadsafe(writer.transport.abort)
    except RuntimeError:
        # The loop is closed, and its connections with it.
        return


def _forget_after_fork() -> None:
    # To shut the parent's sockets would end the parent's calls.
    global _open, _lock
    _lock = threading.Lock()
    _open = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
