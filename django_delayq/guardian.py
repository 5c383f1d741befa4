"""The process that owns an embedded Valkey: starts it, restarts it, and stops it with its last user.

Run by path and not as a module, with nothing but the standard library, so that it is up in
some 30 ms whatever the package imports: ``python -I -S guardian.py HOME BINARY FD LINGER_S``.
It knows nothing of jobs or Django; `django_delayq.embedded` is the side that users call.

HOME is the project's ``.delayq`` folder:

=================  ============================================================================
users.lock         flock, shared by every user for as long as it lives
start.lock         flock, exclusive while a user looks whether there is a guardian, or starts one
guardian.lock      flock, exclusive for the life of the guardian
server.lock        flock, exclusive for the life of the server, which inherits it
place.json         where the socket is, and for which HOME it was chosen
data/              the append-only file
guardian.log       server.log       what each of them has to say
guardian.pid       server.pid       for humans, and to kill a server that does not answer
=================  ============================================================================

Who lives is told by locks alone: the kernel drops them with their last holder, however that
ends, while a pid may long be somebody else's (or a zombie).
"""

import contextlib
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

#: What the guardian tells the process that started it: one of these, then perhaps a newline
#: and the reason, then a zero byte.
READY, REFUSED, NOT_NEEDED = "ready", "refused", "not needed"

#: How long a server may take to answer after its start: it loads the append-only file first.
LOAD_TIMEOUT_S = 60.0
#: How long a server that nobody started just now may take to answer, before it is killed.
ANSWER_TIMEOUT_S = 5.0
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
    """Open a file for flock, closed on exec; made if it does not exist."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def recorded_socket(home: Path) -> Path | None:
    """Return the socket that was chosen for this HOME, unless there is none.

    The record of a project that was copied with its folder names another HOME, and is ignored:
    its socket belongs to the original.
    """
    try:
        place = json.loads((home / "place.json").read_bytes())
        if place["home"] == str(home):
            return Path(place["socket"])
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
        (self._home / "guardian.pid").write_text(f"{os.getpid()}\n")
        signal.signal(signal.SIGTERM, lambda *_: self._events.put("asked to end"))
        try:
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
            pid = int((self._home / "server.pid").read_text())
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
        data = self._home / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        lock = open_lock(self._server_lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        log_path = self._home / "server.log"
        with log_path.open("ab") as log:
            if log.tell() > LOG_LIMIT_BYTES:
                log.truncate(0)
            log_start = log.tell()
            command = [os.fspath(self._binary), "--unixsocket", os.fspath(path)]
            for name, value in SERVER_OPTIONS.items():
                command += [f"--{name}", value]
            (self._home / "server.pid").unlink(missing_ok=True)
            # Options are relative to the folder of the data: no path of the user's in them.
            process = subprocess.Popen(
                command,
                cwd=data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
            )
        (self._home / "server.pid").write_text(f"{process.pid}\n")
        os.close(lock)  # the server has it now, and nobody else

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

    def _place(self) -> Path:
        path = recorded_socket(self._home)
        if path is None or not _is_private(path.parent):
            name = re.sub(r"[^A-Za-z0-9._-]", "", self._home.parent.name)[:20]
            path = runtime_folder() / f"{name}-{os.urandom(4).hex()}.sock"
            # Replaced as a whole: a user may read it at any time.
            record = self._home / "place.json.new"
            record.write_text(
                json.dumps({"home": str(self._home), "socket": str(path)})
            )
            record.replace(self._home / "place.json")
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
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
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
