"""What a peer's adapter runs in: a venv, Node's modules or Java's classes, each under .cache/peers and made once.

An environment is made again when what it is made from changes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "peers"
#: Of Redisson's jar; adapters/django_settings.py writes the frames of the same.
REDISSON = "4.7.0"
MAKE_TIMEOUT_S = 900


class EnvironmentUnavailable(Exception):
    """Raised when this machine cannot make an environment; says what is missing."""


class Environment:
    """A folder of .cache/peers, made from files of this one."""

    #: Files that it is made from.
    sources: Iterable[Path] = ()

    def __init__(self, name: str) -> None:
        self.folder = CACHE / name
        #: Added to the environment variables of adapters.
        self.variables: dict[str, str] = {}
        self._stamp = self.folder / "stamp"

    @property
    def is_made(self) -> bool:
        return self._stamp.exists() and self._stamp.read_text() == self._digest()

    def make(self) -> None:
        """Make it, unless it is made.

        Raises:
            EnvironmentUnavailable: a tool is missing, or failed.
        """
        if self.is_made:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._make()
        self._stamp.write_text(self._digest())

    def adapter(self, name: str) -> list[str]:
        """Return the command of an adapter that runs in it."""
        raise NotImplementedError

    def _make(self) -> None:
        raise NotImplementedError

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for source in sorted(self.sources):
            digest.update(source.read_bytes())
        return digest.hexdigest()


class Venv(Environment):
    """A virtual environment with what requirements/NAME.txt pins. Its first line may name the Python it needs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._requirements = HERE / "requirements" / f"{name}.txt"
        self.sources = [self._requirements]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def adapter(self, name: str) -> list[str]:
        return [str(self.python), "-m", "benchmarks.peers.adapters", name]

    def _make(self) -> None:
        needed = re.match(
            r"# Python (\d+)\.(\d+)", self._requirements.read_text("utf-8")
        )
        least = (int(needed[1]), int(needed[2])) if needed else sys.version_info[:2]
        _run([str(python_of(least)), "-m", "venv", str(self.folder)])
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([str(self.python), *install, "--requirement", str(self._requirements)])


class Node(Environment):
    """Node's modules, as requirements/package.json pins them."""

    sources = (HERE / "requirements" / "package.json",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.variables["BENCH_NODE_MODULES"] = str(self.folder)

    def adapter(self, name: str) -> list[str]:
        return [_tool("node", "Node"), str(HERE / "adapters" / f"{name}.mjs")]

    def _make(self) -> None:
        npm = _tool("npm", "Node")
        shutil.copy(HERE / "requirements" / "package.json", self.folder)
        _run([npm, "install", "--no-audit", "--no-fund", "--silent"], cwd=self.folder)


class Java(Environment):
    """Redisson's jars and the adapter's classes, by Maven; needs a JDK 17."""

    project = HERE / "redisson"
    sources = (project / "pom.xml", *project.rglob("src/**/*.java"))

    def adapter(self, name: str) -> list[str]:
        path = os.pathsep.join(
            [str(self.folder / "classes"), str(self.folder / "lib" / "*")]
        )
        return [
            _tool("java", "a JDK 17"),
            f"-Dbench.redisson={REDISSON}",
            "-cp",
            path,
            "Adapter",
        ]

    def _make(self) -> None:
        _tool("javac", "a JDK 17")
        mvn = _tool("mvn", "Maven")
        versions = [f"-Dredisson.version={REDISSON}", f"-Dbench.out={self.folder}"]
        _run([mvn, "--quiet", "--batch-mode", *versions, "package"], cwd=self.project)


@cache
def python_of(least: Sequence[int]) -> Path:
    """Return a Python of at least that version: ours, else one on PATH, else one that pyenv has installed.

    Raises:
        EnvironmentUnavailable: there is none.
    """
    major, minor = least
    if sys.version_info[:2] >= (major, minor):
        return Path(sys.executable)
    names = [f"python{major}.{newer}" for newer in range(minor, minor + 5)]
    found = [Path(folder) / name for name in names for folder in os.get_exec_path()]
    found += (
        Path(os.environ.get("PYENV_ROOT", "~/.pyenv"))
        .expanduser()
        .glob("versions/*/bin/python")
    )
    for path in found:
        if not os.access(path, os.X_OK):
            continue
        # A version manager's stand-in is there for versions that it does not have.
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False
        ).stdout
        version = re.match(r"Python (\d+)\.(\d+)", told)
        if version is not None and (major, minor) <= (
            int(version[1]),
            int(version[2]),
        ) < (major, minor + 5):
            return path
    raise EnvironmentUnavailable(f"no Python {major}.{minor} on this machine")


def _tool(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise EnvironmentUnavailable(
            f"no {name} on this machine, which {package} brings"
        )
    return path


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=MAKE_TIMEOUT_S
    )
    if done.returncode:
        raise EnvironmentUnavailable(
            f"{' '.join(command)}:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )
