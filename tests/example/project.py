"""The example project in processes of its own: it has other settings than the test suite."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from django_delayq.embedded.embedded_server import find_binary
from django_delayq.exceptions import EmbeddedServerError
from tests.settings import TIME_ZONE

ROOT = Path(__file__).resolve().parent.parent.parent / "example_project"


def environment(data: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process whose data are in a folder of the test."""
    try:
        find_binary()
    except EmbeddedServerError as error:
        pytest.skip(str(error))
    mine = {
        "EXAMPLE_DATA_DIR": str(data),
        "EXAMPLE_TIME_ZONE": TIME_ZONE,
        "DJANGO_SETTINGS_MODULE": "example.settings",
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EXAMPLE_", "DELAYQ_", "DEMO_"))
    }
    return inherited | mine | more


def manage(data: Path, *command: str, **more: str) -> str:
    """Run a command of manage.py; return what it says.

    Raises:
        AssertionError: it ended with a status other than 0; with what it said.
    """
    return run(environment(data, **more), str(ROOT / "manage.py"), *command)


def run(env: Mapping[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
