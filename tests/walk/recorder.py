"""Records which functions of the package call which, on every thread, and what they hold while they do."""

import ast
import dis
import linecache
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

import django_delayq
from django_delayq.jobs.job import Job
from django_delayq.transport.call import Call
from django_delayq.worker.attempt import Attempt

PACKAGE = str(Path(django_delayq.__file__).parent) + os.sep
#: How far into its arguments a function is taken to look.
DEPTH = 6


class Function(NamedTuple):
    """A function of the package; what is defined inside it counts as part of it."""

    #: Below the package, with slashes.
    file: str
    name: str

    @property
    def layer(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")


class Step(NamedTuple):
    """One function calls another."""

    thread: str
    function: Function
    #: The nearest one below it on the stack that is of the package, if any is.
    caller: Function | None
    #: How the caller's source calls it, such as ``call.read``.
    expression: str
    #: Every text among its arguments.
    texts: tuple[bytes, ...]
    #: The tokens of jobs among its arguments.
    tokens: frozenset[bytes]
    #: The scripts of the calls that it or its caller holds.
    scripts: tuple[str, ...]

    def holds(self, texts: set[bytes]) -> bool:
        """Return whether one of these is among its arguments, or part of one that is."""
        return any(text in mine for mine in self.texts for text in texts)


#: The function of the project that is called at the end of the way.
PROJECT = Function("", "")


class Recorder:
    """Records while it is entered, on this thread and on those that begin meanwhile."""

    def __init__(self, project: CodeType) -> None:
        """``project`` is the code of the project's own function, whose call is a step as well."""
        self._project = project
        #: There when the recorder is left.
        self.steps: list[Step] = []
        # Steps, and where they were called. Appended to by every thread.
        self._noted: list[tuple[Step, tuple[CodeType, int] | None]] = []

    def __enter__(self) -> "Recorder":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        # Not while threads run: Python 3.11 counts the depth of a parse for all of them at once, and two that parse
        # at the same time fail.
        self.steps = [
            step if site is None else step._replace(expression=_expression(*site))
            for step, site in list(self._noted)
        ]

    def _note(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        is_project = code is self._project
        if event != "call" or not (is_project or code.co_filename.startswith(PACKAGE)):
            return
        if frame.f_lasti > _start_of(code):
            # A generator goes on, or is closed by whoever happens to collect it.
            return
        below = frame.f_back
        while below is not None and not below.f_code.co_filename.startswith(PACKAGE):
            below = below.f_back
        frames = [frame] if below is None else [frame, below]
        calls = [
            held
            for each in frames
            for held in list(each.f_locals.values())
            if isinstance(held, Call)
        ]
        found = _Texts()
        for argument in _arguments(frame):
            found.look(argument)
        step = Step(
            threading.current_thread().name,
            PROJECT if is_project else function_of(code),
            None if below is None else function_of(below.f_code),
            "",
            tuple(found.texts),
            frozenset(found.tokens),
            tuple(dict.fromkeys(call.script.name for call in calls)),
        )
        site = None if below is None else (below.f_code, below.f_lasti)
        self._noted.append((step, site))


@cache
def _start_of(code: CodeType) -> int:
    """Return the instruction at which a function stands when it is entered for the first time."""
    return next(
        each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"
    )


def function_of(code: CodeType) -> Function:
    file = code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/")
    return Function(file, code.co_qualname.partition(".<locals>")[0])


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # * and **
    local = frame.f_locals
    for name in code.co_varnames[:count]:
        yield local.get(name)


class _Texts:
    """What values hold: containers, records, attempts and jobs are looked into; loops, lines and executors are not."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.tokens: set[bytes] = set()

    def look(self, value: object, depth: int = DEPTH) -> None:
        if isinstance(value, bytes):
            self.texts.append(value)
        elif isinstance(value, str):
            self.texts.append(value.encode(errors="surrogatepass"))
        elif depth:
            token = getattr(value, "token", None)
            if isinstance(token, str):
                self.tokens.add(token.encode())
            for inner in _inside(value):
                self.look(inner, depth - 1)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name, None) for name in value.__struct_fields__]
    if isinstance(value, Attempt):
        return list(vars(value).values())
    if isinstance(value, Job):
        return [getattr(value, name, None) for name in Job.__slots__]
    return []


@cache
def _expression(code: CodeType, at: int) -> str:
    """Return what a function calls at one of its instructions, as its source has it."""
    first, last, start, end = list(code.co_positions())[at // 2]
    if first is None or last is None or start is None or end is None:
        return ""
    source = linecache.getlines(code.co_filename)[first - 1 : last]
    lines = [line.encode() for line in source]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        node = ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except SyntaxError:
        return ""  # A statement, such as `for` or `with`.
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)
