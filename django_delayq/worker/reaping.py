"""What process 1 owes to all others: to take notice of those that end without a parent."""

import os
from collections.abc import Container


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
