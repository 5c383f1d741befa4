"""The standard streams: a worker continues if they are closed, full or without a reader."""

import os
import sys
from contextlib import suppress
from typing import TextIO

#: What writing to such a stream raises; ValueError: somebody has closed it in Python.
UNWRITABLE = (OSError, ValueError)


def replace_closed() -> None:
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


def flush() -> None:
    """Write what both streams hold, if they take it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(*UNWRITABLE):
            stream.flush()


def settle() -> None:
    """Do as `flush`, and drop what cannot be written: at its end, Python would exit with status 120 for it."""
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
