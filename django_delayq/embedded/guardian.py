"""The process that owns an embedded server: starts it, restarts it, and stops it with its last user.

It runs by path, not as a module, and imports only the standard library. So it is up in about 30 ms,
whatever the package imports: ``python -I -S embedded/guardian.py HOME BINARY FD LINGER_S``.
It knows nothing of jobs or Django; `django_delayq.embedded.embedded_server` is the side that users call.

HOME is the project's ``.delayq`` folder:

=================  ============================================================================
users.lock         flock, shared by every user for as long as it lives
start.lock         flock, exclusive while a user looks for a guardian or starts one
guardian.lock      flock, exclusive for the life of the guardian
server.lock        flock, exclusive for the life of the server, which inherits it
place.json         the path of the socket, and the HOME that it belongs to
data/              the append-only file
engine.json        the server that wrote the data, and its version: no other and no older one may read them
guardian.log       server.log       the log of each
guardian.pid       server.pid       for humans, and to end a server that has lost its guardian
=================  ============================================================================

Only locks show who lives. The kernel releases them when their last holder ends, however it ends; a pid
may belong to another process by then, or to a zombie.

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
from collections.abc import Iterator
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
#: Between two tries to connect to a server that is about to listen, or to lock what is about to be free.
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
    """Replace a file of HOME as a whole: a reader sees the old one or the new one.

    The caller holds the start lock or the guardian's, so there is one writer at a time.
    """
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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive flock, waiting for it as long as it takes."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a process that another thread forked meanwhile has a copy of
            # the descriptor, and would keep the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds an exclusive flock on the file."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    finally:
        os.close(fd)


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


def refuses(path: Path) -> bool:
    """Tell whether a socket has nobody who listens. A server that hangs still listens; its child never does."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(0)
        try:
            link.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass  # no such file, which says nothing, or too many wait to be let in
        return False


def pid_behind(path: Path, timeout_s: float) -> int | None:
    """Return the pid of the server behind a socket; None where no server answers in time."""
    found = re.search(rb"process_id:(\d+)\r", _ask(path, "INFO server", timeout_s))
    return found and int(found[1])


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
        # Opened once: the locks stay shared with our users, whatever becomes of the folder.
        self._lock = open_lock(home / "guardian.lock")
        self._users_lock = open_lock(home / "users.lock")
        self._server: subprocess.Popen[bytes] | None = None
        # When we first found no user, and the time of users.lock then, which says when one last came.
        self._alone_since: float | None = None
        self._last_visit = 0
        self._is_asked_to_end = False

    def run(self, starter: socket.socket) -> int:
        """Guard until the last user has gone; return the exit status."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another guardian is there: the process that started it died before it could wait for it.
            tell(starter, "")
            return 0
        signal.signal(signal.SIGTERM, self._ask_to_end)
        try:
            write_file(self._home / "guardian.pid", f"{os.getpid()}\n")
            self._end_orphan()
            self._start()
            tell(starter, "")
            while (why := self._reason_to_end()) is None:
                self._look_after_server()
                time.sleep(LOOK_S)
            say(f"ending: {why}")
        except (ServerRefused, OSError) as error:
            say(f"giving up: {error}")
            tell(starter, str(error))
            return 1
        finally:
            self._stop()
        return 0

    def _ask_to_end(self, *_: object) -> None:
        self._is_asked_to_end = True

    def _reason_to_end(self) -> str | None:
        if self._is_asked_to_end:
            return "was asked to"
        # If the folder was removed, the next user makes a new one, with a guardian of its own. What
        # then lies under our paths belongs to that one: we neither judge by it nor touch it.
        try:
            there = os.stat(self._home / "guardian.lock")
        except OSError:
            there = None
        if there is None or not os.path.samestat(os.fstat(self._lock), there):
            return "the folder was removed"
        return "the last user has gone" if self._is_alone() else None

    def _is_alone(self) -> bool:
        """Tell whether the last user has gone for good; if so, newcomers wait from now on.

        They wait for our end, and then start the next guardian, instead of using a server that
        is about to go away.
        """
        try:
            fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._alone_since = None
            return False
        # Users touch the file when they come: after one that came and went, the next command of a series may follow.
        visit = os.fstat(self._users_lock).st_mtime_ns
        if self._alone_since is None or visit != self._last_visit:
            self._alone_since, self._last_visit = time.monotonic(), visit
        if time.monotonic() - self._alone_since >= self._linger_s:
            return True
        fcntl.flock(self._users_lock, fcntl.LOCK_UN)
        return False

    def _look_after_server(self) -> None:
        path = recorded_socket(self._home)
        if self._server is not None and self._server.poll() is None:
            if path is not None and path.is_socket():
                return
            # Cleaners of temporary folders remove sockets that look old, and then nobody can connect any more.
            say("the socket's file has gone")
            self._stop()
        say("starting the server again")
        self._start()

    def _end_orphan(self) -> None:
        """End the server that a killed guardian left behind: only one server may open the data."""
        lock = self._home / "server.lock"
        deadline = time.monotonic() + STOP_TIMEOUT_S
        pid = None
        while pid is None:
            if not is_locked(lock):
                return
            if time.monotonic() >= deadline:
                raise ServerRefused("a server that cannot be reached holds the data")
            pid = self._pid_of_orphan()
            if pid is None:
                time.sleep(POLL_S)
        say(f"server {pid} has lost its guardian, ending it")
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_number)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while time.monotonic() < deadline:
                if not is_locked(lock):
                    return
                time.sleep(POLL_S)
        # Starting another would wait for the lock, and nobody would learn why.
        raise ServerRefused(f"server {pid} holds the data and does not end")

    def _pid_of_orphan(self) -> int | None:
        path = recorded_socket(self._home)
        if path is not None and refuses(path):
            # Either the server is about to listen, or it is dead: then the child that rewrites its file holds the lock,
            # and another process may have its pid.
            return None
        try:
            # Removed before a server starts, so it never names the one before it.
            return int((self._home / "server.pid").read_text())
        except (OSError, ValueError):
            # The guardian was killed between the server's start and that line; the server may be about to listen.
            return pid_behind(path, STOP_TIMEOUT_S) if path is not None else None

    def _start(self) -> None:
        path = self._place()
        self._note_engine()
        data = self._home / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        check_files(data, is_deep=True)
        log_path = self._home / "server.log"
        (self._home / "server.pid").unlink(missing_ok=True)
        lock = open_lock(self._home / "server.lock")
        fcntl.flock(lock, fcntl.LOCK_EX)
        with log_path.open("ab") as log:
            if log.tell() > LOG_LIMIT_BYTES:
                log.truncate(0)
            log_start = log.tell()
            command = [os.fspath(self._binary), "--unixsocket", os.fspath(path)]
            for name, value in SERVER_OPTIONS.items():
                command += [f"--{name}", value]
            self._server = process = subprocess.Popen(
                command,
                cwd=data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
            )
        os.close(lock)  # now only the server has it
        write_file(self._home / "server.pid", f"{process.pid}\n")
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while process.poll() is None:
            if answers(path, LOAD_TIMEOUT_S):
                say(f"server {process.pid} answers at {path}")
                return
            if time.monotonic() > deadline:
                raise ServerRefused(_told("no answer", log_path, log_start))
            time.sleep(POLL_S)
        path.unlink(missing_ok=True)  # left by a server that gave up while loading
        raise ServerRefused(
            _told(f"exit status {process.returncode}", log_path, log_start)
        )

    def _stop(self) -> None:
        """Have the server write its data and end."""
        if self._server is None:
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


def _told(what: str, log: Path, start: int) -> str:
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    return "\n".join([what, *lines[-12:]])


def tell(starter: socket.socket, message: str) -> None:
    """Tell the process that started us why there is no server; an empty message means that there is one."""
    # That process may have ended meanwhile, or may have its answer already. All others find us by the lock.
    with contextlib.suppress(OSError):
        starter.sendall(message.encode() + b"\0")
    starter.close()


def say(message: str) -> None:
    """Write a line to the log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # A full disk must not end the server.
    with contextlib.suppress(OSError):
        print(now, message, file=sys.stderr, flush=True)


def main(home: str, binary: str, starter_fd: str, linger_s: str) -> int:
    # We leave the family of the process that started us: it has no zombie to reap, and its
    # terminal sends us no signals.
    os.set_inheritable(int(starter_fd), False)
    if os.fork():
        os._exit(0)
    os.setsid()
    starter = socket.socket(fileno=int(starter_fd))
    return Guardian(Path(home), Path(binary), float(linger_s)).run(starter)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
