"""Processes that begin with what every one of them would import: Python, Django, redis-py and the package.

Imports take most of the processor time of a command in a test. `Popen` starts ``python script``, ``-c code`` or
``-m module`` as that of `subprocess` does, but a process that has imported all this forks the new one, once for all
tests of a process of pytest. It knows no settings and has no threads. The new process gets the arguments, the
environment, the folder and the files of the order. It is our child like any other: a process in between ends at once,
and orphans are ours for that moment.

What only a new interpreter can do is left to `subprocess`: options of Python but ``-W error``, a variable that Python reads as it
starts. So is everything where Linux is not.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
#: What Python, or a library that is loaded before it, reads as it starts.
AT_START = ("PYTHON", "LD_", "FAKETIME", "TZ", "LANG", "LC_")
#: Variables of these that the new process heeds all the same.
HEEDED = ("PYTHONPATH", "PYTHONUNBUFFERED")
#: The longest order, bytes.
MOST = 1 << 20
#: Room for the arguments that `ps` shows, bytes.
SHOWN = 4096
#: What commands import that need no settings to be imported.
IMPORTED = (
    "django.contrib.auth.apps",
    "django.contrib.contenttypes.apps",
    "django.core.management.commands.check",
    "django.core.management.commands.migrate",
    "django.core.management.commands.test",
    "django.db.backends.sqlite3.base",
    "django.template.backends.django",
    "django.test",
    "django_delayq.apps",
    "django_delayq.embedded.embedded_server",
    "django_delayq.management.commands.delayq_jobs",
    "django_delayq.management.commands.delayq_worker",
)
#: A new process ignores those of these that we ignore.
KEPT = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_lock = threading.Lock()


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of the Python that runs the tests, forked from what has imported all."""

    def _execute_child(self, *arguments: Any) -> None:  # type: ignore[override]
        bound = inspect.signature(super()._execute_child).bind(*arguments)  # type: ignore[misc]
        order = bound.arguments
        environment = dict(os.environ if order["env"] is None else order["env"])
        if not _is_possible(order, environment):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        files = [
            (order["p2cread"], order["p2cwrite"]),
            (order["c2pwrite"], order["c2pread"]),
            (order["errwrite"], order["errread"]),
        ]
        said = {
            "arguments": [os.fspath(each) for each in order["args"]],
            "environment": environment,
            "folder": os.fspath(order["cwd"] or os.getcwd()),
            "is_leader": order["start_new_session"],
            "ignored": [
                number for number in KEPT if signal.getsignal(number) is signal.SIG_IGN
            ],
        }
        theirs = [
            number if file == -1 else file for number, (file, _) in enumerate(files)
        ]
        self.pid = _forker().fork(json.dumps(said).encode(), theirs)
        self._child_created = True
        for file, ours in files:
            if -1 not in (file, ours) and file != getattr(self, "_devnull", None):
                os.close(file)


def run(
    command: Sequence[str | Path],
    *,
    timeout: float = 300,
    check: bool = False,
    **options: Any,
) -> Any:
    """Run a command as `subprocess.run` does."""
    with Popen(command, **options) as process:
        try:
            printed, complaints = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, printed, complaints)
    if check:
        done.check_returncode()
    return done


def _is_possible(order: dict[str, Any], environment: dict[str, str]) -> bool:
    arguments = order["args"]
    return (
        sys.platform == "linux"
        and isinstance(arguments, list)
        and arguments[0] == sys.executable
        and (
            arguments[1] in ("-c", "-m")
            or arguments[1:3] == ["-W", "error"]
            or not str(arguments[1]).startswith("-")
        )
        and order["preexec_fn"] is None
        and not order["pass_fds"]
        and order["close_fds"]
        and _read_at_start(environment) == _read_at_start(_forker().environment)
    )


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_START) and name not in HEEDED
    }


class Forker:
    """The process that forks, which ends with ours."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        environment = {**self.environment}
        environment.pop("PYTHONPATH", None)
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), "-" * SHOWN],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

        atexit.register(self._end)

    def _end(self) -> None:
        """End it, as it does when the socket closes."""
        self._socket.close()
        self._process.wait()

    def fork(self, order: bytes, files: list[int]) -> int:
        """Have a process start; return its pid."""
        adopt = ctypes.CDLL(None).prctl
        with _lock:
            adopt(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [order], files)
                answer = self._socket.recv(64)
            finally:
                adopt(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the process that forks has ended"
        return int(answer)


@functools.cache
def _forker() -> Forker:
    return Forker()


def _next_order(orders: socket.socket) -> dict[str, Any]:
    """Fork for each order; return it in the process that is to follow it."""
    while True:
        said, files, _, _ = socket.recv_fds(orders, MOST, 3)
        if not said:
            raise SystemExit
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            pid = os.fork()
            if pid:
                os.write(writer, b"%d" % pid)
                os._exit(0)
            # Who looks for its parent finds the one that stays.
            while os.getppid() == between:
                time.sleep(0.001)
            for number, file in enumerate(files):
                os.dup2(file, number)
            for file in (*files, reader, writer):
                os.close(file)
            orders.close()
            return dict(json.loads(said))
        os.waitpid(between, 0)
        orders.send(os.read(reader, 64))
        for file in (*files, reader, writer):
            os.close(file)


def _open_streams(is_unbuffered: bool) -> None:
    """Open the standard streams again, as Python does when it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        raw: Any = io.FileIO(number, "w" if number else "r", closefd=False)
        if not number:
            raw = io.BufferedReader(raw)
        elif not is_unbuffered:
            raw = io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            raw,
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=number == 2,
            write_through=bool(number) and is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show_arguments(arguments: list[str]) -> None:
    """Have `ps` show the arguments."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(os.fsencode(each) for each in arguments)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _follow(order: dict[str, Any]) -> None:
    """Be the process of an order."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in order["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if order["is_leader"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    arguments = order["arguments"]
    _open_streams(bool(os.environ.get("PYTHONUNBUFFERED")))
    _show_arguments(arguments)
    sys.orig_argv = [*arguments]
    more = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = [os.path.abspath(path) for path in more.split(os.pathsep) if path]
    if arguments[1] == "-W":
        sys.warnoptions.append(arguments.pop(2))
        del arguments[1]
        warnings.simplefilter("error")
    _, first, *rest = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        script = Path(first)
        sys.path.insert(0, str(script.absolute().parent))
        sys.argv = [first, *rest]
        main.__file__ = first
        exec(compile(script.read_bytes(), first, "exec"), vars(main))


if __name__ == "__main__":
    # An interrupt at the terminal is not for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    _follow(_next_order(socket.socket(fileno=int(sys.argv[1]))))
