"""The process that owns an embedded Valkey: starts it, restarts it, and stops it with its last user.

Run by path and not as a module, with nothing but the standard library, so that it is up in
some 30 ms whatever the package imports: ``python -I -S embedded/guardian.py HOME BINARY FD LINGER_S``.
It knows nothing of jobs or Django; `django_delayq.embedded.server` is the side that users call.

HOME is the project's ``.delayq`` folder:

=================  ============================================================================
users.lock         flock, shared by every user for as long as it lives
start.lock         flock, exclusive while a user looks whether there is a guardian, or starts one
guardian.lock      flock, exclusive for the life of the guardian
server.lock        flock, exclusive for the life of the server, which inherits it
place.json         where the socket is, and for which HOME it was chosen
data/              the append-only file
engine.json        which server wrote the data, and its version: no other and no older one may read them
guardian.log       server.log       what each of them has to say
guardian.pid       server.pid       for humans, and to kill a server that does not answer
=================  ============================================================================

Who lives is told by locks alone: the kernel drops them with their last holder, however that
ends, while a pid may long be somebody else's (or a zombie).

HOME may have been put there by somebody else, in a repository or by another user. So every file
in it is opened by its name in a folder that is held open and is ours alone, and never through
a link: what root writes there stays there.
"""

import contextlib
import errno
import fcntl
import json
import os
import queue
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

#: What the guardian tells the process that started it: one of these, then perhaps a newline
#: and the reason, then a zero byte.
READY, REFUSED, NOT_NEEDED = "ready", "refused", "not needed"

#: How long a server may take to answer after its start: it loads the append-only file first.
LOAD_TIMEOUT_S = 60.0
#: How long a server that nobody started just now may take to answer, before it is killed.
ANSWER_TIMEOUT_S = 5.0
#: How long a program may take to tell its version.
VERSION_TIMEOUT_S = 10.0
#: How long a server may take to write its data and end.
STOP_TIMEOUT_S = 10.0
#: Between two looks whether the socket's file is still there: cleaners of temporary folders
#: remove what looks old, and then nobody can connect any more.
SOCKET_CHECK_S = 5.0
#: Between two tries to connect to a server that is about to listen.
CONNECT_POLL_S = 0.002
#: A server.log larger than this starts anew with the server.
LOG_LIMIT_BYTES = 1_000_000
#: A socket's path in bytes: Linux holds 107, macOS and the BSDs 103.
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
    """Raised when the server ended, or did not answer; the message has its last words."""


class NoPlace(Exception):
    """Raised when no folder can hold the socket."""


class NotOurs(OSError):
    """Raised when a folder or a file of HOME may lead somewhere else, or belongs to somebody else."""


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Hold a folder open that only we may enter, for the functions that take ``dir_fd``.

    Raises:
        NotOurs: it is a link, another user's, or others may enter it.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and folder.is_symlink():
            raise NotOurs(f"{str(folder)!r} is a link") from error
        raise
    try:
        found = os.fstat(fd)
        _check_owner(found, folder)
        if found.st_mode & 0o077:
            raise NotOurs(
                f"others may enter {str(folder)!r} (mode {found.st_mode & 0o777:o}, and it has to be 700)"
            )
        yield fd
    finally:
        os.close(fd)


def _check_owner(found: os.stat_result, path: Path) -> None:
    if found.st_uid != os.geteuid():
        raise NotOurs(
            f"{str(path)!r} belongs to user {found.st_uid}, and this process is user {os.geteuid()}"
        )


def open_file(path: Path, flags: int) -> int:
    """Open a file of HOME, closed on exec; with O_CREAT it is made for us alone.

    Raises:
        NotOurs: it or its folder is a link, another user's, or known by a second name.
    """
    # Not to wait for the other end, should it be a pipe.
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with opened_folder(path.parent) as folder:
        try:
            fd = os.open(path.name, flags, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotOurs(f"{str(path)!r} is a link") from error
            raise
    try:
        _check_file(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_file(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotOurs(f"{str(path)!r} is not a file")
    _check_owner(found, path)
    if found.st_nlink > 1:
        raise NotOurs(f"{str(path)!r} has a second name somewhere")


def read_file(path: Path) -> bytes:
    """Return the content of a file of HOME."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def write_file(path: Path, text: str) -> None:
    """Replace a file of HOME as a whole: whoever reads it meanwhile sees the old one or the new one.

    One writer at a time: whoever calls it holds the start lock or the guardian's.
    """
    new = path.with_name(f"{path.name}.new")
    # Emptied after it was looked at, and not by O_TRUNC before.
    with os.fdopen(open_file(new, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()
        file.write(text.encode())
    with opened_folder(path.parent) as folder:
        os.rename(new.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def append_to(path: Path) -> BinaryIO:
    """Open a log of HOME."""
    return os.fdopen(open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab")


def _remove(path: Path) -> None:
    with opened_folder(path.parent) as folder, contextlib.suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=folder)


class Engine(NamedTuple):
    """A server program, as its --version tells it."""

    #: Redis or Valkey.
    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}"

    def can_read(self, written_by: "Engine | None") -> bool:
        """Tell whether it may open what another has written: the same engine, of that version or a later one."""
        return written_by is None or (
            self.name == written_by.name and self.version >= written_by.version
        )


def engine_of(binary: Path) -> Engine | None:
    """Return what a program says it is, or None where it is no server that we know."""
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
    """Return what wrote the data of this HOME; None where there are no data.

    Raises:
        NotOurs: see `open_file`, or there are data and no record.
    """
    if not os.path.lexists(home / "data"):
        return None
    try:
        record = json.loads(read_file(home / "engine.json"))
        return _read_engine(record["engine"], record["version"])
    except FileNotFoundError:
        raise NotOurs(
            f"nothing says which server wrote {str(home / 'data')!r}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotOurs(f"{str(home / 'engine.json')!r} cannot be read") from error


def _read_engine(name: str, version: str) -> Engine:
    return Engine(name, tuple(int(part) for part in version.split(".")))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive flock, waiting for it as long as it takes."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Unlocked by name: a process that another thread forked meanwhile has a copy of
            # the descriptor, and closing ours would leave the lock to it.
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


def open_lock(path: Path) -> int:
    """Open a file of HOME for flock, closed on exec; made if it does not exist."""
    return open_file(path, os.O_RDWR | os.O_CREAT)


def recorded_socket(home: Path) -> Path | None:
    """Return the socket that was chosen for this HOME, unless there is none.

    The record of a project that was copied with its folder names another HOME, and is ignored:
    its socket belongs to the original.
    """
    try:
        place = json.loads(read_file(home / "place.json"))
        if place["home"] == str(home):
            return Path(place["socket"])
    except NotOurs:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or mangled by an editor: a new one is chosen
    return None


def connect(path: Path, timeout_s: float) -> socket.socket | None:
    """Return a connection to a server that answered a PING on it, or None."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(timeout_s)
    try:
        link.connect(os.fspath(path))
        link.sendall(b"PING\r\n")
        if link.recv(64).startswith(b"+PONG"):
            return link
    except OSError:
        pass  # no such file, nobody behind it, or no answer in time
    link.close()
    return None


class Server:
    """One life of the server process, ours or left behind by another guardian."""

    def __init__(
        self,
        link: socket.socket,
        lock: Path,
        pid: int | None,
        process: "subprocess.Popen[bytes] | None",
        events: "queue.SimpleQueue[str]",
    ) -> None:
        # Kept open: the path may lead to another server one day, this connection never does.
        self._link = link
        self._pid = pid
        self._process = process
        self._ended = threading.Event()
        # Opened now: it stays the lock of this server, whatever becomes of the file.
        fd = open_lock(lock)

        def wait() -> None:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.close(fd)
            self._ended.set()
            events.put("server ended")

        threading.Thread(target=wait, daemon=True).start()

    def stop(self) -> None:
        """Have the server write its data and end; returns when it has."""
        with contextlib.suppress(OSError):
            self._link.sendall(b"SHUTDOWN\r\n")
        if not self._ended.wait(STOP_TIMEOUT_S) and self._pid is not None:
            say(f"server {self._pid} does not end, killing it")
            kill(self._pid, signal.SIGKILL)
            self._ended.wait(STOP_TIMEOUT_S)
        self.forget()

    def forget(self) -> None:
        """Let go of a server that has ended."""
        self._link.close()
        if self._process is not None and self._ended.is_set():
            self._process.wait()


class Guardian:
    """Owns the server of one HOME, from the first user to the last."""

    def __init__(self, home: Path, binary: Path, linger_s: float) -> None:
        self._home = home
        self._binary = binary
        self._linger_s = linger_s
        # Opened once: they stay ours and our users', whatever becomes of the folder.
        self._lock = open_lock(home / "guardian.lock")
        self._users_lock = open_lock(home / "users.lock")
        self._server_lock = home / "server.lock"
        # What the main thread waits for; the other threads and the signal handler only put.
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        # Let through once for each time that the main thread wants to know of the last user.
        self._watch_users = threading.Semaphore(1)
        # When to stop unless somebody comes; and the visits seen when that was decided.
        self._linger_ends: float | None = None
        self._visits_seen = 0

    def run(self, starter: socket.socket) -> int:
        """Guard until the last user has gone; return the exit status."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The process that started the other one died before it could wait for it.
            tell(starter, NOT_NEEDED)
            return 0
        signal.signal(signal.SIGTERM, lambda *_: self._events.put("asked to end"))
        try:
            write_file(self._home / "guardian.pid", f"{os.getpid()}\n")
            server = self._adopt() or self._start()
        except (ServerRefused, NoPlace, OSError) as error:
            say(f"giving up: {error}")
            tell(starter, f"{REFUSED}\n{error}")
            return 1
        tell(starter, READY)
        threading.Thread(target=self._tell_when_alone, daemon=True).start()
        try:
            while (guarded := self._guard(server)) is not None:
                server = guarded
        except (ServerRefused, NoPlace, OSError) as error:
            say(f"giving up: {error}")
            server.stop()
            return 1
        return 0

    def _guard(self, server: Server) -> Server | None:
        """Wait for the next event and act on it; return the server that runs then, if any."""
        wait_s = SOCKET_CHECK_S
        if self._linger_ends is not None:
            wait_s = min(wait_s, max(0.0, self._linger_ends - time.monotonic()))
        try:
            event = self._events.get(timeout=wait_s)
        except queue.Empty:
            event = "nothing"
        if event == "asked to end" or not self._is_home():
            say(
                "ending: "
                + ("was asked to" if self._is_home() else "the folder was removed")
            )
            server.stop()
            return None
        if event == "server ended":
            say("the server ended, starting it again")
            server.forget()
            return self._start()
        if event == "alone":
            self._linger()
        elif self._linger_ends is not None and time.monotonic() >= self._linger_ends:
            if self._is_alone():
                server.stop()
                say("stopped with the last user")
                return None
        elif not self._is_reachable():
            say("the socket's file has gone, starting the server again")
            server.stop()  # and its end is the next event
        return server

    def _is_home(self) -> bool:
        # Whoever comes after the folder was removed makes a new one, with a guardian of its own:
        # what lies under our paths then is not ours to judge by, or to touch.
        try:
            return os.path.samestat(
                os.fstat(self._lock), os.stat(self._home / "guardian.lock")
            )
        except OSError:
            return False

    def _linger(self) -> None:
        self._linger_ends = time.monotonic() + self._linger_s
        self._visits_seen = self._visits()

    def _is_alone(self) -> bool:
        """Tell whether the last user has gone for good; if so, newcomers wait from now on.

        They wait for our end, and then start the next guardian, instead of using a server that
        is about to go away.
        """
        try:
            fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._linger_ends = None
            self._watch_users.release()
        else:
            if self._visits() == self._visits_seen:
                return True
            # Somebody came and went: the next command of a series may follow.
            fcntl.flock(self._users_lock, fcntl.LOCK_UN)
            self._linger()
        return False

    def _visits(self) -> int:
        # Users touch the file when they come.
        return os.fstat(self._users_lock).st_mtime_ns

    def _is_reachable(self) -> bool:
        path = recorded_socket(self._home)
        return path is not None and path.is_socket()

    def _tell_when_alone(self) -> None:
        while True:
            self._watch_users.acquire()
            fcntl.flock(self._users_lock, fcntl.LOCK_EX)
            fcntl.flock(self._users_lock, fcntl.LOCK_UN)
            self._events.put("alone")

    def _adopt(self) -> Server | None:
        """Take over the server that a killed guardian left behind."""
        if not is_locked(self._server_lock):
            return None
        pid = None
        with contextlib.suppress(OSError, ValueError):
            # Removed before a server starts, so it never names the one before it.
            pid = int(read_file(self._home / "server.pid"))
        path = recorded_socket(self._home)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while path is not None and path.exists() and time.monotonic() < deadline:
            link = connect(path, ANSWER_TIMEOUT_S)
            if link is not None:
                say(f"took over server {pid} at {path}")
                return Server(link, self._server_lock, pid, None, self._events)
            time.sleep(CONNECT_POLL_S)
        if is_locked(self._server_lock):
            if pid is None:
                raise ServerRefused("a server that cannot be reached holds the data")
            say(f"server {pid} cannot be reached, ending it")
            kill(pid, signal.SIGTERM)
            if not self._is_unlocked_within(STOP_TIMEOUT_S):
                kill(pid, signal.SIGKILL)
        return None

    def _is_unlocked_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while is_locked(self._server_lock):
            if time.monotonic() >= deadline:
                return False
            time.sleep(CONNECT_POLL_S)
        return True

    def _start(self) -> Server:
        path = self._place()
        self._note_engine()
        self._enter_data()
        lock = open_lock(self._server_lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        log_path = self._home / "server.log"
        with append_to(log_path) as log:
            if log.tell() > LOG_LIMIT_BYTES:
                log.truncate(0)
            log_start = log.tell()
            command = [os.fspath(self._binary), "--unixsocket", os.fspath(path)]
            for name, value in SERVER_OPTIONS.items():
                command += [f"--{name}", value]
            _remove(self._home / "server.pid")
            # Options are relative to the folder of the data, which is ours by now: no path of the user's in them.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
            )
        os.close(lock)  # the server has it now, and nobody else
        try:
            write_file(self._home / "server.pid", f"{process.pid}\n")
        except OSError:
            # A server that nobody knows of would hold the data for ever.
            process.kill()
            process.wait()
            raise

        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while process.poll() is None:
            link = connect(path, LOAD_TIMEOUT_S)
            if link is not None:
                say(f"server {process.pid} answers at {path}")
                return Server(
                    link, self._server_lock, process.pid, process, self._events
                )
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise ServerRefused(_told("no answer", log_path, log_start))
            time.sleep(CONNECT_POLL_S)
        path.unlink(missing_ok=True)  # it gave up while loading, and left that behind
        raise ServerRefused(
            _told(f"exit status {process.returncode}", log_path, log_start)
        )

    def _note_engine(self) -> None:
        """Write down which server opens the data from now on, unless it must not."""
        engine = engine_of(self._binary)
        if engine is None:
            raise ServerRefused(f"{str(self._binary)!r} is no Redis and no Valkey")
        written_by = recorded_engine(self._home)
        if not engine.can_read(written_by):
            raise ServerRefused(
                f"the data were written by {written_by}, and {str(self._binary)!r} is {engine}, which may not"
                " be able to read them"
            )
        if engine != written_by:
            # Before it starts: it rewrites the data while it loads them.
            version = ".".join(map(str, engine.version))
            record = {"engine": engine.name, "version": version}
            write_file(self._home / "engine.json", json.dumps(record) + "\n")

    def _enter_data(self) -> None:
        """Make the folder of the data the current one, so that the server cannot end up in another."""
        data = self._home / "data"
        with opened_folder(self._home) as home, contextlib.suppress(FileExistsError):
            os.mkdir("data", mode=0o700, dir_fd=home)
        with opened_folder(data) as folder:
            for root, folders, files, fd in os.fwalk(".", dir_fd=folder):
                # A link to a folder is listed among the folders.
                for name in (*folders, *files):
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if not stat.S_ISDIR(found.st_mode):
                        _check_file(found, data / root / name)
            os.fchdir(folder)

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
        NoPlace: there is none, for lack of rights or of room.
    """
    tried = [os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp"]
    for parent in tried:
        if not parent or not os.path.isabs(parent):
            continue
        folder = Path(parent) / f"delayq-{os.getuid()}"
        if len(os.fsencode(folder)) + 35 > SOCKET_PATH_LIMIT:
            continue
        with contextlib.suppress(OSError):  # told by the next line
            folder.mkdir(mode=0o700)
        if _is_private(folder):
            return folder
    raise NoPlace(
        f"no folder for the server's socket, tried {tried!r}; set XDG_RUNTIME_DIR"
    )


def _is_socket_of_ours(path: Path) -> bool:
    # A server removes what lies where it is to listen: whoever wrote the record could name any file of ours.
    if path.parent.name != f"delayq-{os.getuid()}" or not _is_private(path.parent):
        return False
    return path.is_socket() or not os.path.lexists(path)


def _is_private(folder: Path) -> bool:
    # In a folder that all can write to, somebody else may have made this one, or a link.
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
    lines = read_file(log)[start:].decode(errors="replace").splitlines()
    return "\n".join([what, *lines[-12:]])


def kill(pid: int, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def tell(starter: socket.socket, message: str) -> None:
    # Who started us may have been killed meanwhile: the others find us by the lock.
    with contextlib.suppress(OSError):
        starter.sendall(message.encode() + b"\0")
    starter.close()


def say(message: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), message, file=sys.stderr, flush=True)


def main(home: str, binary: str, starter_fd: str, linger_s: str) -> int:
    # Out of the family of the process that started us: no zombie for it to bury, and no
    # signal of its terminal for us.
    os.set_inheritable(int(starter_fd), False)
    if os.fork():
        os._exit(0)
    os.setsid()
    starter = socket.socket(fileno=int(starter_fd))
    return Guardian(Path(home), Path(binary), float(linger_s)).run(starter)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
