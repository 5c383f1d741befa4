"""Real Redissons of ten versions, each in a Java process of its own that a test tells what to do.

The program is peer/src/main/java/Peer.java; Maven brings each version's jars. Built once, again when the program, its
pom.xml or the table below changes.
"""

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).parent / "peer"
TARGET = PROJECT / "target"


class Libraries(NamedTuple):
    """Versions of what Redisson calls optional, from its own pom.xml."""

    msgpack: str
    kryo: str = "5.6.2"
    marshalling: str = "2.0.11.Final"
    profile: str = "redisson-3"
    snappy: str = "1.1.9.1"
    #: Its group and its name have changed.
    lz4: str = "org.lz4:lz4-java:1.8.0"
    #: From 3.27 and 3.40 on; nothing asks for them before.
    compress: str = "1.28.0"
    zstd: str = "1.5.6-7"


_OLD_LZ4 = "net.jpountz.lz4:lz4:1.3.0"

#: 4.7.0's pom.xml asks for a jackson-dataformat-msgpack 0.9.12, which nobody has released.
VERSIONS = {
    "3.12.5": Libraries(
        "0.8.16", "5.0.0-RC4", "2.0.9.Final", snappy="1.1.7.3", lz4=_OLD_LZ4
    ),
    "3.15.0": Libraries(
        "0.8.16", "5.0.3", "2.0.10.Final", snappy="1.1.7.7", lz4=_OLD_LZ4
    ),
    "3.16.6": Libraries("0.8.16", "5.0.3", snappy="1.1.7.7", lz4=_OLD_LZ4),
    "3.20.1": Libraries("0.9.1", "5.4.0"),
    "3.21.0": Libraries("0.9.1", "5.5.0"),
    "3.21.1": Libraries("0.9.1", "5.5.0"),
    "3.27.2": Libraries("0.9.1", "5.6.0", snappy="1.1.10.4", compress="1.26.0"),
    "3.40.2": Libraries("0.9.8", snappy="1.1.10.7", compress="1.27.1"),
    "3.52.0": Libraries("0.9.9", snappy="1.1.10.7"),
    "4.7.0": Libraries(
        "0.9.11",
        profile="redisson-4",
        snappy="1.1.10.8",
        lz4="at.yawk.lz4:lz4-java:1.11.1",
        zstd="1.5.7-12",
    ),
}

#: FST, the default of 3.12.5, looks into the JDK's own classes, as does Kryo up to 3.18 for a UUID.
OPENED = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.text",
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.time",
    "java.base/java.lang.invoke",
    "java.base/java.util.concurrent.atomic",
    "java.sql/java.sql",
)
#: A peer that serves tests is started often and measures nothing.
QUICK_START = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
)
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 60.0


class PeerUnavailable(Exception):
    """Raised when this machine cannot run a Redisson; says what is missing."""


class PeerError(Exception):
    """Raised when an operation fails in Java; the text is its root exception."""


@cache
def class_path(version: str) -> str:
    """Build the peer for a version of Redisson, unless it has been, and return its class path.

    Raises:
        PeerUnavailable: Java or Maven is missing, or Maven cannot fetch the jars.
    """
    for tool, package in (
        ("java", "a JDK 17"),
        ("javac", "a JDK 17"),
        ("mvn", "Maven"),
    ):
        if shutil.which(tool) is None:
            raise PeerUnavailable(f"no {tool} on this machine, which {package} brings")
    sources = sorted([PROJECT / "pom.xml", *PROJECT.rglob("src/**/*.java")])
    digest = hashlib.sha256(repr(VERSIONS[version]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = TARGET / version
    stamp, jars = folder / "stamp", folder / "jars"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        _build(version, jars)
        stamp.write_text(digest.hexdigest())
    return os.pathsep.join([str(folder / "classes"), jars.read_text().strip()])


def _build(version: str, jars: Path) -> None:
    libraries = VERSIONS[version]
    lz4_group, lz4_artifact, lz4 = libraries.lz4.split(":")
    command = [
        "mvn",
        "--batch-mode",
        "--quiet",
        f"--activate-profiles={libraries.profile}",
        f"-Dredisson.version={version}",
        f"-Dkryo.version={libraries.kryo}",
        f"-Dmarshalling.version={libraries.marshalling}",
        f"-Dmsgpack.version={libraries.msgpack}",
        f"-Dsnappy.version={libraries.snappy}",
        f"-Dlz4.group={lz4_group}",
        f"-Dlz4.artifact={lz4_artifact}",
        f"-Dlz4.version={lz4}",
        f"-Dcompress.version={libraries.compress}",
        f"-Dzstd.version={libraries.zstd}",
        f"-Dmdep.outputFile={jars}",
        "compile",
        "dependency:build-classpath",
    ]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        raise PeerUnavailable(
            f"Maven could not build the peer for Redisson {version}:\n{done.stdout}{done.stderr}"
        )


class Peer:
    """A Java service with one version of Redisson, connected to one server.

    ``codec`` is that of its Config; by default none is set, and the version decides. ``prefix`` is what a NameMapper
    puts before every name.
    """

    def __init__(
        self,
        version: str,
        url: str,
        *,
        codec: str = "default",
        prefix: str = "",
        options: Sequence[str] = QUICK_START,
    ) -> None:
        self.version = version
        self._command = [
            "java",
            *options,
            *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
            "-classpath",
            class_path(version),
            "Peer",
            url.removesuffix("/0"),
            codec,
            prefix,
        ]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._ready: Future[Any] = Future()
        self._replies: dict[int, Future[Any]] = {0: self._ready}
        self._number = 0
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, name="peer", daemon=True)
        self._reader.start()
        atexit.register(self.kill)

    def __repr__(self) -> str:
        return f"<Redisson {self.version}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> "Peer":
        """Return once it is connected."""
        self._ready.result(START_TIMEOUT_S)
        return self

    def call(
        self, op: str, *, timeout: float = CALL_TIMEOUT_S, **arguments: Any
    ) -> Any:
        """Perform an operation of Peer.java and return its result.

        Raises:
            PeerError: it failed in Java, or the process is gone.
        """
        return self.begin(op, **arguments).result(timeout)

    def begin(self, op: str, **arguments: Any) -> Future[Any]:
        """Begin an operation and return without its result."""
        reply: Future[Any] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._replies[number] = reply
            stdin = self._process.stdin
            assert stdin is not None
            try:
                print(
                    json.dumps(
                        {"id": number, "op": op, **arguments}, ensure_ascii=False
                    ),
                    file=stdin,
                    flush=True,
                )
            except (OSError, ValueError):
                # The reader says so with the log.
                self._fail_all()
        return reply

    def log(self) -> str:
        """What it wrote to stderr."""
        self._log.flush()
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """End it as a crash does."""
        atexit.unregister(self.kill)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        if not self._log.closed:
            self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            reply = self._replies.pop(told["id"])
            if "error" in told:
                reply.set_exception(PeerError(told["error"]))
            else:
                reply.set_result(told["result"])
        self._fail_all()

    def _fail_all(self) -> None:
        while self._replies:
            _, reply = self._replies.popitem()
            if not reply.done():
                reply.set_exception(
                    PeerError(f"{self!r} is gone: {self.log()[-2000:]}")
                )


def main() -> None:
    """Build what is not built yet: ``python -m tests.interop.peers``."""
    for version in VERSIONS:
        class_path(version)


if __name__ == "__main__":
    main()
