"""Real Redissons of ten versions, each in a Java process of its own that a test tells what to do.

The program is peer/src/main/java/Peer.java; Maven brings each version's jars. It is built once, and again
when the program or the Maven projects change.
"""

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).parent / "peer"
TARGET = PROJECT / "target"
CLASSES = TARGET / "classes"
RESOLVE = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
PROJECT_OF_VERSION = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <parent>
    <groupId>django-delayq</groupId><artifactId>{parent}</artifactId><version>1</version>
    <relativePath>../../{parent}.xml</relativePath>
  </parent>
  <artifactId>peer-{version}</artifactId>
  <properties>{properties}</properties>
</project>
"""
PROJECT_OF_ALL = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>django-delayq</groupId><artifactId>peers</artifactId><version>1</version>
  <packaging>pom</packaging>
  <modules>{modules}</modules>
</project>
"""


class Libraries(NamedTuple):
    """Versions of what Redisson calls optional, from its own pom.xml."""

    msgpack: str
    kryo: str = "5.6.2"
    marshalling: str = "2.0.11.Final"
    #: The project that names what only some Redissons have.
    parent: str = "redisson-3"
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
        parent="redisson-4",
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
    # Most of a start is the verification of classes, which are those of their jars.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 60.0


class PeerUnavailable(Exception):
    """Raised when this machine cannot run a Redisson; says what is missing."""


class PeerError(Exception):
    """Raised when an operation fails in Java; the text is its root exception."""


@cache
def class_path(version: str) -> str:
    """Build the peers, unless they have been, and return the class path of a version's.

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
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "lock").open("w") as lock:
        # One of the processes that share the tests builds, while the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build()
    return os.pathsep.join([str(CLASSES), _jars(version)])


def _jars(version: str) -> str:
    return (TARGET / version / "jars").read_text().strip()


def _build() -> None:
    sources = sorted(map(str, PROJECT.rglob("src/**/*.java")))
    projects = _projects()
    digest = hashlib.sha256(repr(projects).encode())
    for source in [*sorted(PROJECT.glob("*.xml")), *map(Path, sources)]:
        digest.update(source.read_bytes())
    stamp = TARGET / "stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    for file, text in projects.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    # All in one Maven, which is slow to start.
    _run("mvn", "--batch-mode", "--quiet", "-Dmdep.outputFile=jars", RESOLVE)
    # For all versions: what it calls is in each of them the same.
    jars = _jars([*VERSIONS][-1])
    _run("javac", "-d", str(CLASSES), "-classpath", jars, *sources)
    stamp.write_text(digest.hexdigest())


def _run(*command: str) -> None:
    environment = os.environ | {"JAVA_TOOL_OPTIONS": " ".join(QUICK_START)}
    done = subprocess.run(
        command, cwd=TARGET, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise PeerUnavailable(
            f"{command[0]} could not build the peers:\n{done.stdout}{done.stderr}"
        )


def _projects() -> dict[Path, str]:
    """Return the Maven projects: one for each version, and one with all of these as modules."""
    found = {
        TARGET / version / "pom.xml": PROJECT_OF_VERSION.format(
            parent=libraries.parent,
            version=version,
            properties="".join(
                f"<{name}>{value}</{name}>"
                for name, value in _properties(version, libraries).items()
            ),
        )
        for version, libraries in VERSIONS.items()
    }
    modules = "".join(f"<module>{version}</module>" for version in VERSIONS)
    return found | {TARGET / "pom.xml": PROJECT_OF_ALL.format(modules=modules)}


def _properties(version: str, libraries: Libraries) -> dict[str, str]:
    lz4_group, lz4_artifact, lz4 = libraries.lz4.split(":")
    return {
        "redisson.version": version,
        "kryo.version": libraries.kryo,
        "marshalling.version": libraries.marshalling,
        "msgpack.version": libraries.msgpack,
        "snappy.version": libraries.snappy,
        "lz4.group": lz4_group,
        "lz4.artifact": lz4_artifact,
        "lz4.version": lz4,
        "compress.version": libraries.compress,
        "zstd.version": libraries.zstd,
    }


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


#: The fixture `peer_of`: the process of a version that the tests of a file share.
PeerOf = Callable[[str], Peer]


def main() -> None:
    """Build what is not built yet: ``python -m tests.interop.peers``."""
    class_path([*VERSIONS][-1])


if __name__ == "__main__":
    main()
