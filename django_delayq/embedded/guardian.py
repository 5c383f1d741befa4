"""The process that owns an embedded server: starts it, restarts it, and stops it with its last user.

It runs by path, not as a module, and imports only the standard library. So it is up in about 30 ms,
whatever the package imports: ``python -I -S embedded/guardian.py HOME BINARY FD LINGER_S``.
It knows nothing of jobs or Django; `django_delayq.embedded.server` is the side that users call.

HOME is the project's ``.delayq`` folder:

=================  ============================================================================
users.lock         flock, shared by every user for as long as it lives
guardian.lock      flock, exclusive for the life of the guardian, which inherits it as FD from the user that starts it
server.lock        flock, exclusive for the life of the server, which inherits it from the guardian
place.json         the path of the socket, and the HOME that it belongs to
data/              the append-only file
engine.json        the server that wrote the data, and its version: no other and no older one may read them
guardian.log       server.log       the log of each
guardian.pid       server.pid       for humans
=================  ============================================================================

Only locks show who lives. The kernel releases them when their last holder ends, however it ends; a pid
may belong to another process by then, or to a zombie. If the guardian is killed, its server lives on, and the
next guardian takes it over.

Another program may have made HOME, in a repository or as another user. So HOME has to be a folder that
only we may enter, without a link in it. Then no other user can change what is inside.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

#: How long a server may take to answer after its start: it loads the append-only file first.
LOAD_TIMEOUT_S = 60.0
#: How long a program may take to print its version.
VERSION_TIMEOUT_S = 10.0
#: How long a server may take to write its data and end.
STOP_TIMEOUT_S = 10.0
#: Between two looks at the server, its socket, the folder and the users.
LOOK_S = 0.1
#: Between two tries to connect to a server that is about to listen.
POLL_S = 0.002
#: A server.log larger than this is emptied when the server starts.
LOG_LIMIT_BYTES = 1_000_000
#: The longest path of a socket, in bytes: Linux allows 107, macOS and the BSDs 103.
SOCKET_PATH_LIMIT = 103

SERVER_OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "dir": ".",
    "daemonize": "no",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
    # Out of memory must be an error that the caller sees, never a job that vanishes.
    "maxmemory-policy": "noeviction",
}


class ServerRefused(Exception):
    """Raised when no server can run; the message has the reason, or the server's last words."""


class NotOurs(OSError):
    """Raised when a folder or a file of HOME may lead somewhere else, or belongs to another user."""


def check_home(home: Path) -> None:
    """Check that only we may enter a HOME, and that the files in it are ours.

    Raises:
        NotOurs: the folder or a file is a link, is another user's, or has a second name, or others may enter.
    """
    found = home.lstat()
    _check_owner(found, home)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & 0o077:
        raise NotOurs(
            f"other users may enter {str(home)!r} (its mode is {found.st_mode & 0o777:o} and has to be 700)"
        )
    check_files(home)


def check_files(folder: Path, *, is_deep: bool = False) -> None:
    """Check that the files of a folder are ours and not links; with ``is_deep``, those in its folders as well.

    Raises:
        NotOurs: see `check_home`.
    """
    for name in os.listdir(folder):
        path = folder / name
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # somebody renamed it meanwhile
        _check_owner(found, path)
        if stat.S_ISDIR(found.st_mode):
            if is_deep:
                check_files(path, is_deep=True)
        elif not stat.S_ISREG(found.st_mode):
            raise NotOurs(f"{str(path)!r} is not a file")
        elif found.st_nlink > 1:
            raise NotOurs(f"{str(path)!r} has a second name (a hard link)")


def _check_owner(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise NotOurs(f"{str(path)!r} is a link")
    if found.st_uid != os.geteuid():
        raise NotOurs(
            f"{str(path)!r} belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}"
        )


def write_file(path: Path, text: str) -> None:
    """Replace a file of HOME as a whole: a reader sees the old one or the new one. Only the guardian writes."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.rename(new, path)


class Engine(NamedTuple):
    """A server program, as its --version describes it."""

    #: Redis or Valkey.
    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}"

    def can_read(self, written_by: "Engine | None") -> bool:
        """Tell whether it may open the data of another: that must be the same engine, not of a later version."""
        return written_by is None or (
            self.name == written_by.name and self.version >= written_by.version
        )


def engine_of(binary: Path) -> Engine | None:
    """Return what a program says it is, or None if it is not a server that we know."""
    try:
        told = subprocess.run(
            [os.fspath(binary), "--version"],
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"(Redis|Valkey) server v=(\d+(?:\.\d+)*)", told)
    return found and _read_engine(found[1].decode(), found[2].decode())


def recorded_engine(home: Path) -> Engine | None:
    """Return the engine that wrote the data of this HOME, or None if there are no data.

    Raises:
        NotOurs: there are data, but no record that can be read.
    """
    if not os.path.lexists(home / "data"):
        return None
    try:
        record = json.loads((home / "engine.json").read_bytes())
        return _read_engine(record["engine"], record["version"])
    except FileNotFoundError:
        raise NotOurs(
            f"nothing says which server wrote {str(home / 'data')!r}"
        ) from None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise NotOurs(f"{str(home / 'engine.json')!r} cannot be read") from error


def _read_engine(name: str, version: str) -> Engine:
    return Engine(name, tuple(int(part) for part in version.split(".")))


def open_lock(path: Path) -> int:
    """Open a file of HOME for flock, closed on exec; create it if it does not exist."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def lock_free(path: Path) -> int | None:
    """Lock a file exclusively and return its descriptor; None if it is locked already."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds a lock on the file."""
    fd = lock_free(path)
    if fd is not None:
        os.close(fd)
    return fd is None


def is_same_file(fd: int, path: Path) -> bool:
    """Tell whether an open file is still the one at a path, and nobody has removed it."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def recorded_socket(home: Path) -> Path | None:
    """Return the socket of this HOME's server, or None if no guardian has chosen one.

    If a project was copied together with this folder, the record names the HOME of the original.
    It is ignored then, because the socket belongs to the original.
    """
    try:
        place = json.loads((home / "place.json").read_bytes())
        return Path(place["socket"]) if place["home"] == str(home) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # there is no record yet, or an editor mangled it


def answers(path: Path, timeout_s: float) -> bool:
    """Tell whether a server behind a socket answers a PING in time."""
    return _ask(path, "PING", timeout_s).startswith(b"+PONG")


def _ask(path: Path, command: str, timeout_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(timeout_s)
        try:
            link.connect(os.fspath(path))
            link.sendall(command.encode() + b"\r\n")
            return link.recv(65536)
        except OSError:
            return b""  # no such file, nobody behind it, or no answer in time


class Guardian:
    """Owns the server of one HOME, from the first user to the last."""

    def __init__(self, home: Path, binary: Path, linger_s: float) -> None:
        self._home = home
        self._binary = binary
        self._linger_s = linger_s
        # Opened once: it stays shared with our users, whatever becomes of the folder.
        self._users_lock = open_lock(home / "users.lock")
        # When somebody last used the server, as far as we have seen: seconds since the epoch, as files have it.
        self._used_s = time.time()
        self._path: Path | None = None
        # None: a guardian before us started the server.
        self._server: subprocess.Popen[bytes] | None = None
        # Where its words begin in server.log.
        self._log_start = 0

    def run(self) -> int:
        """Guard until the last user has gone; return the exit status."""
        # Otherwise the server would stay behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            if not (self._home / ".gitignore").exists():
                write_file(self._home / ".gitignore", "*\n")
            write_file(self._home / "guardian.pid", f"{os.getpid()}\n")
            self._start()
            tell("")
            # If the folder was removed, the next user makes a new one, with a guardian of its own.
            while is_same_file(self._users_lock, self._home / "users.lock"):
                if self._is_alone():
                    break
                self._look_after_server()
                time.sleep(LOOK_S)
            say("ending: the last user has gone, or somebody has removed the folder")
        except (ServerRefused, OSError) as error:
            say(f"giving up: {error}")
            tell(str(error))
            return 1
        finally:
            self._stop()
        return 0

    def _is_alone(self) -> bool:
        """Tell whether the last user has gone for good; if so, newcomers wait from now on.

        They wait for our end, and then start the next guardian, instead of using a server that
        is about to go away.
        """
        try:
            fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._used_s = time.time()
            return False
        # Users touch the file when they come: after one that came and went, the next command of a series may follow.
        visit_s = os.fstat(self._users_lock).st_mtime
        if time.time() - max(visit_s, self._used_s) >= self._linger_s:
            return True
        fcntl.flock(self._users_lock, fcntl.LOCK_UN)
        return False

    def _look_after_server(self) -> None:
        # Cleaners of temporary folders remove sockets that look old, and then nobody can connect any more.
        has_socket = self._path is not None and self._path.is_socket()
        if not has_socket or not is_locked(self._home / "server.lock"):
            say("starting the server again")
            self._stop()
            self._start()

    def _start(self) -> None:
        """Start the server, or take over that of a killed guardian: only one server may open the data."""
        path = self._path = self._place()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (lock := lock_free(self._home / "server.lock")) is None:
            if answers(path, STOP_TIMEOUT_S):
                say(f"the server at {path} has lost its guardian, taking it over")
                return
            # It is about to listen or to end; or it has ended, and its child still rewrites the data.
            if time.monotonic() >= deadline:
                raise ServerRefused(
                    "a server that cannot be reached holds the data; end it, server.pid has its pid"
                )
            time.sleep(POLL_S)
        self._server = process = self._launch(path, lock)
        write_file(self._home / "server.pid", f"{process.pid}\n")
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while process.poll() is None:
            if answers(path, LOAD_TIMEOUT_S):
                say(f"server {process.pid} answers at {path}")
                return
            if time.monotonic() > deadline:
                raise ServerRefused(self._last_words("no answer"))
            time.sleep(POLL_S)
        path.unlink(missing_ok=True)  # left by a server that gave up while loading
        raise ServerRefused(self._last_words(f"exit status {process.returncode}"))

    def _launch(self, path: Path, lock: int) -> subprocess.Popen[bytes]:
        try:
            self._note_engine()
            data = self._home / "data"
            data.mkdir(mode=0o700, exist_ok=True)
            check_files(data, is_deep=True)
            command = [os.fspath(self._binary), "--unixsocket", os.fspath(path)]
            for name, value in SERVER_OPTIONS.items():
                command += [f"--{name}", value]
            with (self._home / "server.log").open("ab") as log:
                if log.tell() > LOG_LIMIT_BYTES:
                    log.truncate(0)
                self._log_start = log.tell()
                return subprocess.Popen(
                    command,
                    cwd=data,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                )
        finally:
            os.close(lock)  # now only the server has it

    def _last_words(self, what: str) -> str:
        log = (self._home / "server.log").read_bytes()[self._log_start :]
        return "\n".join([what, *log.decode(errors="replace").splitlines()[-12:]])

    def _stop(self) -> None:
        """Have the server write its data and end."""
        if self._server is None:
            if self._path is not None:
                # It closes the connection when it ends.
                _ask(self._path, "SHUTDOWN", STOP_TIMEOUT_S)
            return
        self._server.terminate()
        try:
            self._server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            say(f"server {self._server.pid} does not end, killing it")
            self._server.kill()
            self._server.wait()

    def _note_engine(self) -> None:
        """Record the server that opens the data from now on; refuse one that must not."""
        engine = engine_of(self._binary)
        if engine is None:
            raise ServerRefused(f"{str(self._binary)!r} is neither Redis nor Valkey")
        written_by = recorded_engine(self._home)
        if not engine.can_read(written_by):
            raise ServerRefused(
                f"the data were written by {written_by}, and {str(self._binary)!r} is {engine}, which might not be"
                " able to read them"
            )
        if engine != written_by:
            # Recorded before the server starts, because it rewrites the data while it loads them.
            version = ".".join(map(str, engine.version))
            record = {"engine": engine.name, "version": version}
            write_file(self._home / "engine.json", json.dumps(record) + "\n")

    def _place(self) -> Path:
        path = recorded_socket(self._home)
        if path is None or not _is_socket_of_ours(path):
            name = re.sub(r"[^A-Za-z0-9._-]", "", self._home.parent.name)[:20]
            path = runtime_folder() / f"{name}-{os.urandom(4).hex()}.sock"
            record = {"home": str(self._home), "socket": str(path)}
            write_file(self._home / "place.json", json.dumps(record))
        return path


def runtime_folder() -> Path:
    """Return a folder that only we may enter, short enough for the path of a socket in it.

    Raises:
        ServerRefused: no folder is writable for us alone, or short enough.
    """
    tried = [os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp"]
    for parent in tried:
        if not parent or not os.path.isabs(parent):
            continue
        folder = Path(parent) / f"delayq-{os.getuid()}"
        if len(os.fsencode(folder)) + 35 > SOCKET_PATH_LIMIT:
            continue
        with contextlib.suppress(OSError):  # the check below finds out
            folder.mkdir(mode=0o700)
        if _is_private(folder):
            return folder
    raise ServerRefused(
        f"no folder for the server's socket, tried {tried!r}; set XDG_RUNTIME_DIR"
    )


def _is_socket_of_ours(path: Path) -> bool:
    # A server removes the file at the path where it listens, and a planted record could name any file of ours.
    if path.parent.name != f"delayq-{os.getuid()}" or not _is_private(path.parent):
        return False
    return path.is_socket() or not os.path.lexists(path)


def _is_private(folder: Path) -> bool:
    # Where everybody can write, somebody else may have made this folder, or a link of its name.
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & 0o077
        and os.access(folder, os.W_OK)
    )


def tell(message: str) -> None:
    """Tell the user that started us why there is no server; an empty message means that there is one."""
    # That user may have ended, or may have its answer already. All others find us by the lock.
    with contextlib.suppress(OSError):
        os.write(1, message.encode())
    # It reads until nobody can write any more. What is told later goes nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(message: str) -> None:
    """Write a line to the log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # A full disk must not end the server.
    with contextlib.suppress(OSError):
        print(now, message, file=sys.stderr, flush=True)


def main(home: str, binary: str, lock: str, linger_s: str) -> int:
    # We leave the family of the process that started us: it has no zombie to reap, and its
    # terminal sends us no signals.
    if os.fork():
        os._exit(0)
    os.setsid()
    # Only we keep the lock, not our server.
    os.set_inheritable(int(lock), False)
    return Guardian(Path(home), Path(binary), float(linger_s)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
