"""Which connections are open, and what happens to them when another server answers.

A connection leads to the server that answered when it was opened. Once another server has taken its place, the
connection is closed, and the process reads again what it remembers of the former server.
"""

import os
import socket
import ssl
import weakref
from collections.abc import Callable
from typing import Any

from django_delayq.logs import get_log

logger = get_log(__name__)

# By id: other threads may add to it while it is copied.
_open: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_changes = 0


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
    global _changes
    _changes += 1
    older = [each for each in connections() if is_older(each)]
    for connection in older:
        connection.shut()
    logger.warning("%s: %d connections to the former server closed", what, len(older))


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


def _forget_after_fork() -> None:
    # To shut the parent's sockets would end the parent's calls.
    global _open
    _open = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
