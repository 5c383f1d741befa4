"""The tests that a version of what we stand on can change, on the rows of versions that docs/versions.md claims.

Each pair of versions that can exist stands together in some row. ``python -m tests.versions`` needs nothing installed:
each Python gets a venv of its own in .cache/versions, in which the rows take turns. A row whose Python is not on this
machine is left out, and the last lines say so. ``--row 3`` (repeatable) runs only that row, ``--except 1`` all others.
All other arguments go to pytest; where none of them is a path, a row runs what is listed here.
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
#: A zone half an hour off, in which it is often still the day before.
WEST = "America/St_Johns"


#: What uses the interfaces of Django and redis-py together.
PAIR_TESTS = (
    "tests/asgi",
    "tests/transport/test_clients.py",
    "tests/transport/test_url.py",
    "tests/jobs/test_on_commit.py",
    "tests/test_checks.py",
    "tests/test_conf.py",
    "tests/worker/test_running.py",
)

#: What uses those of redis-py: on each redis-py once. A failover does not care which Django waits for it.
CLIENT_TESTS = (
    *PAIR_TESTS,
    "tests/transport",
    "tests/jobs/test_scheduling.py::test_lost_reply_is_asked_for_again_and_the_job_stored_once",
    "tests/waiting/test_channel.py::test_restarted_server_is_listened_to_soon_after_its_return",
)

#: What uses the interfaces of Django, or those of Python that change: on each Django and each Python once.
#: Scripts, codecs and what a job does with them do not.
WHOLE_TESTS = (
    "tests/admin",
    "tests/asgi",
    "tests/backend",
    "tests/faults/test_secrets.py",
    "tests/example",
    "tests/jobs/test_context.py",
    "tests/jobs/test_decorator.py",
    "tests/jobs/test_job.py",
    "tests/jobs/test_on_commit.py",
    "tests/jobs/test_periodic.py",
    "tests/test_checks.py",
    "tests/test_conf.py",
    "tests/management",
    "tests/outbox/test_command.py",
    "tests/outbox/test_databases.py",
    "tests/outbox/test_inbox.py",
    "tests/outbox/test_outbox.py",
    "tests/test_isolation.py",
    "tests/test_public_names.py",
    "tests/health",
    "tests/metrics/test_views.py",
    "tests/worker/test_command.py",
    "tests/worker/test_contexts.py",
    "tests/worker/test_database.py",
    "tests/worker/test_postgres.py",
    "tests/worker/test_running.py",
    "tests/worker/test_time_limit.py",
)


class Row(NamedTuple):
    django: str
    python: str
    redis: str
    django_redis: str
    tests: tuple[str, ...] = PAIR_TESTS
    #: The time zone of its tests.
    zone: str = "UTC"

    def __str__(self) -> str:
        return (
            f"Django {self.django}, Python {self.python}, redis-py {self.redis},"
            f" django-redis {self.django_redis}"
        )


#: The first of a Python has the venv of that made; the whole ones have what pip installs where nothing is pinned.
ROWS = (
    Row("5.2", "3.11", "8", "7.0", WHOLE_TESTS),
    Row("5.2", "3.11", "7", "5.4", CLIENT_TESTS),
    Row("5.2", "3.11", "6", "7.0", CLIENT_TESTS),
    Row("5.2", "3.11", "5.0", "5.4", CLIENT_TESTS),
    Row("6.0", "3.12", "8", "7.0", WHOLE_TESTS, zone=WEST),
    Row("5.2", "3.12", "8", "5.4"),
    Row("6.1", "3.12", "7", "5.4"),
    Row("6.0", "3.12", "6", "5.4"),
    Row("6.0", "3.12", "5.0", "7.0"),
    Row("6.1", "3.13", "8", "7.0", WHOLE_TESTS),
    Row("5.2", "3.13", "8", "7.0"),
    Row("6.0", "3.13", "7", "7.0"),
    Row("6.1", "3.13", "6", "7.0"),
    Row("6.1", "3.13", "5.0", "5.4"),
)

#: What pip is asked for: of 5.0 the oldest that we support, of the others the newest.
REDIS = {"5.0": "5.0.1", "6": "6.*", "7": "7.*", "8": "8.*"}
DJANGO_REDIS = {"5.4": "5.4.*", "7.0": "7.*"}

#: redis-py 5.0 leaves the socket to the garbage collector where it cannot connect.
QUIET = {
    "5.0": ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"),
}


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


def install(row: Row, interpreter: str) -> str:
    """Bring the venv of the row's Python to its versions, and return its Python."""
    venv = VENVS / f"python{row.python}"
    python = str(venv / "bin" / "python")
    if not os.access(python, os.X_OK):
        subprocess.run([interpreter, "-m", "venv", "--clear", venv], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    versions = [
        f"django=={row.django}.*",
        f"redis=={REDIS[row.redis]}",
        f"django-redis=={DJANGO_REDIS[row.django_redis]}",
    ]
    # The browser and the oldest Redis are for the whole rows alone.
    groups = ["test", "ci"] if row.tests is WHOLE_TESTS else ["test"]
    of = (ROOT / "pyproject.toml").stat().st_mtime_ns
    if not all((venv / f"{group}-{of}").exists() for group in groups):
        # --group came with pip 25.1.
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        wanted = [f"--group={group}" for group in groups]
        wanted += [*versions, "--editable", ".[embedded]"]
        subprocess.run([*pip, *wanted], check=True, cwd=ROOT)
        for group in groups:
            (venv / f"{group}-{of}").touch()
    # What these need besides is there.
    subprocess.run([*pip, "--no-deps", *versions], check=True)
    if row.django != "5.2":
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


def has_paths(arguments: list[str]) -> bool:
    return any((ROOT / each.partition("::")[0]).exists() for each in arguments)


def run(row: Row, arguments: list[str]) -> str:
    """Run the tests on a row and return how that ended, in a line."""
    interpreter = python_of(row.python)
    if interpreter is None:
        return f"not run: there is no Python {row.python} on this machine"
    print(f"\n--- {row}", flush=True)
    begun = time.monotonic()
    python = install(row, interpreter)
    installed_s = time.monotonic() - begun
    # The scripts have tests of their own on each server.
    environment = {
        "DELAYQ_TEST_SERVERS": "valkey",
        "DELAYQ_TEST_REQUIRE_SOURCES": "1",
        "DELAYQ_TEST_TIME_ZONE": row.zone,
        **os.environ,
    }
    quiet = [f"-Wignore::{name}" for name in QUIET.get(row.redis, ())]
    tests: list[str] = []
    if not has_paths(arguments):
        # What takes long, or repeats a claim on other data, has no more to do with versions than others that are run.
        tests = [
            "-m",
            "not slow and not exhaustive",
            *row.tests,
        ]
        if row.tests is PAIR_TESTS:
            # They wait little; more processes would only collect them once more.
            tests.append("--numprocesses=0")
    ended = subprocess.run(
        [python, "-m", "pytest", *quiet, *arguments, *tests],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    took_s = time.monotonic() - begun
    word = "failed" if ended.returncode else "passed"
    return f"{word} in {took_s:.0f} s, {installed_s:.0f} of them to install"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    numbers = range(1, len(ROWS) + 1)
    parser.add_argument("--row", action="append", type=int, choices=numbers)
    parser.add_argument(
        "--except",
        action="append",
        type=int,
        choices=numbers,
        default=[],
        dest="left_out",
    )
    options, arguments = parser.parse_known_args()
    chosen = [
        ROWS[number - 1]
        for number in options.row or numbers
        if number not in options.left_out
    ]
    endings = {row: run(row, arguments) for row in chosen}
    print()
    for row, ending in endings.items():
        print(f"{row}: {ending}")
    if any(ending.startswith("failed") for ending in endings.values()):
        raise SystemExit(1)
    if all(ending.startswith("not run") for ending in endings.values()):
        raise SystemExit("no row could be run")


if __name__ == "__main__":
    main()
