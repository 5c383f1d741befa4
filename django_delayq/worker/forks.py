"""Signals of a worker process and of the children that its tasks fork."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

#: Signals that a worker process reacts to. A terminal that is closed sends SIGHUP to all of its processes.
HEEDED = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)

#: EX_SOFTWARE of sysexits.h.
RETURNED = 70


def handle(number: int, handler: Callable[[int, FrameType | None], object]) -> None:
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


def end_child(pid: int) -> None:
    """End this process if its pid is another: a task forked it, and the job belongs to the parent."""
    if os.getpid() != pid:
        os._exit(RETURNED)
