"""A process that a task forks is an ordinary process: no worker goes on in it.

The child has the one thread that forked, and a copy of everything else. Each part of a worker registers here how it
lets go of that copy.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn, Protocol
from weakref import WeakSet

from django_delayq.worker import streams

#: Signals that a worker process reacts to. A terminal that is closed sends SIGHUP to all of its processes.
HEEDED = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def handle(number: int, handler: Callable[[int, FrameType | None], object]) -> None:
    """Set the handler of a signal, unless it is SIGHUP and ignored: ``nohup`` asks for that."""
    if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


class Forkable(Protocol):
    """A part of a worker that a forked child must let go of."""

    def forked(self) -> None:
        """Let go. Called in the child by its only thread, so it must not wait for any lock."""


_known: "WeakSet[Forkable]" = WeakSet()


def let_go_when_forked(part: Forkable) -> None:
    """Have `Forkable.forked` called in every process that this one forks."""
    _known.add(part)


class _Mask(threading.local):
    """The signals that a thread had blocked before it forked."""

    #: None: we have blocked no signals.
    before: "set[int | signal.Signals] | None" = None


_mask = _Mask()


def _block() -> None:
    # The child shares the worker's pipe: a signal that reaches it before it has let go would count as the worker's.
    if _known:
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)


def _unblock() -> None:
    if _mask.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)
        _mask.before = None


def _let_go() -> None:
    for part in list(_known):
        part.forked()
    _unblock()
    # The processes that the child forks have nothing more to let go of.
    _known.clear()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_let_go)


def leave(error: BaseException | None) -> NoReturn:
    """End a forked child that has returned from its task, as Python would end, but without its exit functions.

    Those belong to the worker, and so do the threads that Python would wait for.
    """
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = _status(error)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        streams.flush()
    finally:
        os._exit(status)


def _status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with suppress(*streams.UNWRITABLE):
        print(error.code, file=sys.stderr)
    return 1
