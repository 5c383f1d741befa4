"""Count the functions of the package that a warm job enters, where it is scheduled and where it runs.

    python -m tests.walk.entered          # both numbers, by file
    python -m tests.walk.entered --list   # and the name of each function

*schedule*: one call of ``schedule(task, 0, 1)`` in a process that has made such calls before.
*worker*: one job that comes to an idle worker process which has run others; from the first function that its claim
loop enters to claim the job, until the reply to the acknowledgement is read, in all threads. The worker runs in this
process, without its supervisor. Both use the embedded server and a queue without options.

A function counts once, however often it is entered. Nested functions, lambdas, properties, coroutines, generators and
generator expressions count as functions of their own. A generator is entered when its first part runs; going on with
one is no entry. Comprehensions belong to their function, as in Python 3.12. Functions of other packages, and those
written in C, do not count.

Timers and heartbeats may come in between, so several jobs are run: a function counts if more than half of them enter it.
"""

import argparse
import dis
import json
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import django
from django.conf import settings
from redis.connection import AbstractConnection

from tests.polling import wait_until

#: How often each is measured, and how many jobs come before.
TIMES, WARM_UP = 15, 5
#: The claim loop is idle once it has entered nothing for this long, s.
IDLE_S = 0.05
#: Since Python 3.12 they have no code of their own.
INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


class Function(NamedTuple):
    """A function of the package."""

    #: Below the package, with slashes.
    file: str
    name: str
    line: int


class Entry(NamedTuple):
    """A function that a thread enters, or a mark: the name of a script, which is called or has been answered."""

    thread: int
    code: CodeType | None
    called: str = ""
    answered: str = ""


class Entries:
    """What all threads of this process enter, in order. Appended to by each of them."""

    def __init__(self) -> None:
        import django_delayq

        self._package = str(Path(django_delayq.__file__).parent)
        self.found: list[Entry] = []
        #: What was sent on a connection, and not answered yet.
        self._sent: defaultdict[Any, deque[str]] = defaultdict(deque)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note them in this block. On Python 3.11, threads that began before it are missing."""
        if sys.version_info >= (3, 12):
            events, monitoring = sys.monitoring.events, sys.monitoring
            tool = monitoring.PROFILER_ID
            monitoring.use_tool_id(tool, __name__)
            monitoring.register_callback(tool, events.PY_START, self._note_start)
            monitoring.set_events(tool, events.PY_START)
            try:
                yield
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)
                monitoring.restart_events()
        else:
            threading.setprofile(self._note_event)
            sys.setprofile(self._note_event)
            try:
                yield
            finally:
                sys.setprofile(None)
                threading.setprofile(None)

    def _is_counted(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._package) and (
            code.co_name not in INLINED
        )

    def _note_start(self, code: CodeType, offset: int) -> Any:
        if not self._is_counted(code):
            return sys.monitoring.DISABLE  # type: ignore[attr-defined, unused-ignore]
        self.found.append(Entry(threading.get_ident(), code))
        return None

    def _note_event(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        # A generator is called once more where it goes on, and before its start if it is closed unused.
        if (
            event == "call"
            and self._is_counted(code)
            and frame.f_lasti == _start_of(code)
        ):
            self.found.append(Entry(threading.get_ident(), code))

    @contextmanager
    def scripts_noted(self) -> Iterator[None]:
        """In this block, note when a script is called, and when its reply is read, on sync connections."""
        from django_delayq.transport.script import LOADED

        kept = {
            name: getattr(AbstractConnection, name)
            for name in ("send_command", "pack_command", "pack_commands")
        }
        read = AbstractConnection.read_response

        def note(connection: Any, command: Any) -> None:
            sha = command[1] if len(command) > 1 else ""
            name = LOADED[sha].name if sha in LOADED else ""
            self._sent[connection].append(name)
            if name:
                self.found.append(Entry(threading.get_ident(), None, called=name))

        def one(method: Any, connection: Any, *command: Any, **options: Any) -> Any:
            note(connection, command)
            return method(connection, *command, **options)

        def several(method: Any, connection: Any, commands: Any) -> Any:
            for command in commands:
                note(connection, command)
            return method(connection, commands)

        def read_response(connection: Any, *args: Any, **options: Any) -> Any:
            try:
                return read(connection, *args, **options)
            finally:
                # An error is a reply as well.
                sent = self._sent[connection]
                if name := sent.popleft() if sent else "":
                    self.found.append(Entry(threading.get_ident(), None, answered=name))

        for name, method in kept.items():
            put = several if name == "pack_commands" else one
            # Not `partial`: it would not be bound.
            setattr(AbstractConnection, name, _bound(put, method))
        AbstractConnection.read_response = read_response
        try:
            yield
        finally:
            for name, method in kept.items():
                setattr(AbstractConnection, name, method)
            AbstractConnection.read_response = read

    def function_of(self, code: CodeType) -> Function:
        file = code.co_filename.removeprefix(self._package).lstrip("/")
        return Function(file, code.co_qualname, code.co_firstlineno)


def _bound(put: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **options: partial(put, method)(self, *args, **options)


@cache
def _start_of(code: CodeType) -> int:
    """Return the instruction at which a function stands when it is entered for the first time."""
    return next(
        each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"
    )


def in_most(runs: list[set[CodeType]]) -> set[CodeType]:
    """Return what more than half of the runs have."""
    counts = Counter(code for run in runs for code in run)
    return {code for code, count in counts.items() if 2 * count > len(runs)}


def of_schedule(offer: Callable[[], object]) -> set[Function]:
    """Return the functions that one warm call enters."""
    for _ in range(WARM_UP):
        offer()
    entries, runs = Entries(), []
    for _ in range(TIMES):
        entries.found.clear()
        with entries.noted():
            offer()
        runs.append({each.code for each in entries.found if each.code is not None})
    return set(map(entries.function_of, in_most(runs)))


def of_worker(queue: str, offer: Callable[[], object]) -> set[Function]:
    """Return the functions that a worker process enters from a claim to the acknowledgement of a warm job."""
    from tests.worker.workers import InlineWorker

    entries, runs = Entries(), []
    with entries.scripts_noted(), entries.noted():
        worker = InlineWorker([queue]).start()
        try:
            for number in range(WARM_UP + TIMES):
                _await_idle(entries.found)
                entries.found.clear()
                offer()
                wait_until(
                    lambda: _end_of(entries.found) is not None,
                    description="a job is acknowledged",
                )
                if number >= WARM_UP:
                    runs.append(_from_claim_to_end(entries.found))
        finally:
            worker.stop()
    return set(map(entries.function_of, in_most(runs)))


def _await_idle(found: list[Entry]) -> None:
    """Wait until the thread that claims waits."""
    claiming = {each.thread for each in found if each.called.startswith("claim")}

    def count() -> int:
        return sum(each.thread in claiming for each in list(found))

    last = [-1, time.monotonic()]

    def is_idle() -> bool:
        if (now := count()) != last[0]:
            last[:] = now, time.monotonic()
        return time.monotonic() - last[1] > IDLE_S

    wait_until(is_idle, description="the claim loop waits")


def _end_of(found: list[Entry]) -> int | None:
    """Return the place at which an acknowledgement is answered."""
    places = (i for i, each in enumerate(found) if each.answered == "acknowledge")
    return next(places, None)


def _from_claim_to_end(found: list[Entry]) -> set[CodeType]:
    """Return what is entered from where the loop begins to claim, until the job is acknowledged."""
    caller = threading.get_ident()
    end = _end_of(found)
    loop = next(each.thread for each in found if each.called.startswith("claim"))
    begin = next(i for i, each in enumerate(found) if each.thread == loop)
    return {
        each.code
        for each in found[begin:end]
        if each.code is not None and each.thread != caller
    }


def measure() -> dict[str, set[Function]]:
    """Measure both in this process, which has no other settings."""
    with tempfile.TemporaryDirectory() as folder:
        settings.configure(
            DEBUG=True,
            SECRET_KEY="only for tests",
            USE_TZ=True,
            INSTALLED_APPS=["django_delayq"],
            DATABASES={
                "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
            },
            DELAYQ={"EMBEDDED_DIR": folder, "QUEUES": {"default": {}}},
        )
        django.setup()
        from django_delayq import delayed_task, schedule

        @delayed_task(name="tests.entered")
        def task(number: int) -> None:
            pass

        def offer() -> None:
            schedule(task, 0, 1)

        return {"schedule": of_schedule(offer), "worker": of_worker("default", offer)}


def main() -> None:
    """Print what is entered."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.walk.entered", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--list", action="store_true", help="print each function")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    options = parser.parse_args()
    measured = measure()
    if options.json:
        print(json.dumps({what: sorted(found) for what, found in measured.items()}))
        return
    for what, functions in measured.items():
        print(f"{what}: {len(functions)} functions")
        by_file = Counter(function.file for function in functions)
        for file, count in sorted(by_file.items()):
            print(f"  {count:3} {file}")
            if options.list:
                lines = sorted(
                    (each.line, each.name) for each in functions if each.file == file
                )
                for line, name in lines:
                    print(f"        {line:4} {name}")


if __name__ == "__main__":
    main()
