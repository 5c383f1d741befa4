"""The tests that a version of Django or Python can change, on the pairs that the README claims.

``python -m tests.versions`` needs nothing installed: each pair gets a venv of its own in .cache/versions. A pair
whose Python is not on this machine is left out, and the last lines say so. ``--django 6.1`` (repeatable) runs only
the pairs with that Django. All other arguments go to pytest; where none of them is a path, it runs what is listed here.
"""

import argparse
import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tests.backend.sources import SOURCES, source_of

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".cache" / "versions"


class Pair(NamedTuple):
    django: str
    python: str

    def __str__(self) -> str:
        return f"Django {self.django} on Python {self.python}"


#: Each Django, and each Python, once.
PAIRS = (Pair("5.2", "3.11"), Pair("6.0", "3.12"), Pair("6.1", "3.13"))

#: What uses the interfaces of Django, or those of Python that change. Scripts and codecs do not.
TESTS = (
    "tests/admin",
    "tests/backend",
    "tests/faults/test_secrets.py",
    "tests/example",
    "tests/jobs",
    "tests/test_checks.py",
    "tests/test_conf.py",
    "tests/embedded/test_server.py",
    "tests/repair/test_frames_command.py",
    "tests/test_isolation.py",
    "tests/test_public_names.py",
    "tests/health",
    "tests/waiting",
    "tests/worker/test_command.py",
    "tests/worker/test_database.py",
    "tests/worker/test_running.py",
    "tests/worker/test_time_limit.py",
)


def python_of(version: str) -> str | None:
    """Return an interpreter of a version, on PATH or of pyenv, if there is one."""
    candidates = [
        *(str(Path(folder) / f"python{version}") for folder in os.get_exec_path()),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")),
    ]
    for candidate in candidates:
        # pyenv puts a shim on PATH for each version that it knows, selected or not.
        if os.access(candidate, os.X_OK) and version_of(candidate) == version:
            return candidate
    return None


def version_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    told = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def install(pair: Pair, interpreter: str) -> str:
    """Make the pair's venv and return its Python."""
    venv = VENVS / f"django{pair.django}-python{pair.python}"
    python = str(venv / "bin" / "python")
    if not os.access(python, os.X_OK):
        subprocess.run([interpreter, "-m", "venv", "--clear", venv], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # --group came with pip 25.1.
    subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
    groups = ["--group", "test", "--group", "ci"]
    wanted = [f"django~={pair.django}.0", "--editable", ".[embedded]"]
    subprocess.run([*pip, *wanted, *groups], check=True, cwd=ROOT)
    if pair.django != "5.2":
        bring_source(python)
    return python


def bring_source(python: str) -> None:
    """Bring the source distribution of a venv's Django, which has the tests of its tasks."""
    code = "import django; print(django.get_version())"
    told = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    )
    version = told.stdout.strip()
    if source_of(version).exists():
        return
    pip = [python, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    source = ["--no-binary", ":all:", "--no-deps", "--dest", str(SOURCES)]
    subprocess.run([*pip, *source, f"django=={version}"], check=True)


#: These take long, and have no more to do with versions than others that are run.
LEFT_OUT = ("tests/admin/test_million.py", "tests/example/test_compare_consumers.py")


def has_paths(arguments: list[str]) -> bool:
    return any((ROOT / each.partition("::")[0]).exists() for each in arguments)


def run(pair: Pair, arguments: list[str]) -> str:
    """Run the tests on a pair and return how that ended, in a line."""
    interpreter = python_of(pair.python)
    if interpreter is None:
        return f"not run: there is no Python {pair.python} on this machine"
    print(f"\n--- {pair}", flush=True)
    python = install(pair, interpreter)
    # The scripts have tests of their own on each server.
    environment = {
        "DELAYQ_TEST_SERVERS": "valkey",
        "DELAYQ_TEST_REQUIRE_SOURCES": "1",
        **os.environ,
    }
    begun = time.monotonic()
    tests: list[str] = []
    if not has_paths(arguments):
        tests = [*TESTS, *(f"--deselect={name}" for name in LEFT_OUT)]
    ended = subprocess.run(
        [python, "-m", "pytest", *arguments, *tests],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    took_s = time.monotonic() - begun
    word = "failed" if ended.returncode else "passed"
    return f"{word} in {took_s:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    djangos = [pair.django for pair in PAIRS]
    parser.add_argument("--django", action="append", choices=djangos)
    options, arguments = parser.parse_known_args()
    chosen = [pair for pair in PAIRS if pair.django in (options.django or djangos)]
    endings = {pair: run(pair, arguments) for pair in chosen}
    print()
    for pair, ending in endings.items():
        print(f"{pair}: {ending}")
    if any(ending.startswith("failed") for ending in endings.values()):
        raise SystemExit(1)
    if all(ending.startswith("not run") for ending in endings.values()):
        raise SystemExit("no pair could be run")


if __name__ == "__main__":
    main()
