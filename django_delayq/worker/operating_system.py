"""What our processes owe to the operating system: signals, their children, standard streams.

A worker starts under terminals, init systems and containers, and its tasks fork: this is where it is an ordinary and a
polite process. A command continues if its standard streams are closed, full or without a reader.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Container
from contextlib import suppress
from types import FrameType
from typing import TextIO

#: Signals that a worker process reacts to. A terminal that is closed sends SIGHUP to all of its processes.
HEEDED = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)

#: EX_SOFTWARE of sysexits.h.
RETURNED = 70

#: What writing to such a stream raises; ValueError: somebody has closed it in Python.
UNWRITABLE = (OSError, ValueError)


def handle_signal(
    number: int, handler: Callable[[int, FrameType | None], object]
) -> None:
    """Set the handler of a signal, unless it is SIGHUP and ignored: ``nohup`` asks for that."""
    if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


def make_children_ordinary(pipes: list[int]) -> None:
    """Have signals do in forked children what they do by default, and close there the pipes of the worker's signals."""
    mask = threading.local()

    def block() -> None:
        # A signal that reaches the child before it has let go of the pipe would count as the worker's.
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def let_go() -> None:
        if pipes:
            signal.set_wakeup_fd(-1)
            for number in HEEDED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            while pipes:
                os.close(pipes.pop())
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=let_go)


def end_child() -> None:
    """End this process, which a task has forked, and which has come to the task's end: the job belongs to the parent."""
    os._exit(RETURNED)


def is_first_process() -> bool:
    """Return whether orphans become children of this process, as in a container without an init of its own."""
    return os.getpid() == 1


def reap_orphans(ours: Container[int]) -> None:
    """Reap the processes that have ended and that nobody here has started. ``ours`` are left to who waits for them."""
    if not is_first_process():
        return
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in ours:
            # Once that one is reaped, the rest comes.
            return
        os.waitpid(found.si_pid, 0)


def replace_closed_streams() -> None:
    """Open /dev/null in place of standard streams that were closed before Python started, as by ``>&-``.

    Otherwise, the next socket would get the number of such a stream, and the programs that a task starts would write to
    it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_null(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115


def _open_null(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        os.set_inheritable(number, True)


def flush_streams() -> None:
    """Write what both streams hold, if they take it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(*UNWRITABLE):
            stream.flush()


def settle_streams() -> None:
    """Do as `flush_streams`, and drop what cannot be written: at its end, Python would exit with status 120 for it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except UNWRITABLE:
            _drop(stream)


def _drop(stream: TextIO) -> None:
    with suppress(*UNWRITABLE):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
