"""The code blocks of README.md and docs/ run: in a project made of them, with a worker, on the embedded server.

What a block is, `tests.pages` says.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class

from django_delayq import conf
from tests.pages import (
    DOCUMENTS,
    PATH,
    README,
    ROOT,
    TUTORIAL,
    Block,
    Session,
    blocks_of,
    session,
)
from tests.polling import wait_until

MODELS = """
from django.db import models


class Order(models.Model):
    status = models.CharField(max_length=20, default="unpaid")
"""
TASKS = """
from django_delayq import delayed_task

from .models import Order


@delayed_task
def cancel_unpaid(order_id):
    Order.objects.filter(pk=order_id, status="unpaid").update(status="cancelled")
"""
SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "of a project in a temporary folder"
DEBUG = True
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "OPTIONS": {{"timeout": 20}},
        "TEST": {{"NAME": BASE_DIR / "test.sqlite3"}},
    }}
}}
INSTALLED_APPS = {apps!r}
DELAYQ = {delayq!r}
{more}
"""
MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""
NAMES = """
from shop.models import Order
from shop.tasks import *

order = Order.objects.create()
"""
APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_delayq",
    "shop",
]


def settings_of(blocks: list[Block]) -> dict[str, Any]:
    """Return what the settings blocks of a page say, the queues of all of them together."""
    found: dict[str, Any] = {}
    queues: dict[str, Any] = {}
    for block in blocks:
        if block.path == "settings.py" and not block.not_run:
            said: dict[str, Any] = {}
            exec(block.text, said)
            queues |= said.get("DELAYQ", {}).get("QUEUES", {})
            found |= {
                key: value
                for key, value in said.items()
                if key.isupper() and key != "DELAYQ"
            }
    # The embedded server, whichever one they name.
    return found | {"DELAYQ": {"QUEUES": queues}}


class Project:
    """A Django project made of the blocks of a page."""

    def __init__(self, folder: Path, blocks: list[Block]) -> None:
        self.folder = folder
        said = settings_of(blocks)
        files = {"shop/__init__.py": "", "shop/models.py": MODELS, "manage.py": MANAGE}
        for block in blocks:
            if (
                block.path is not None
                and block.path != "settings.py"
                and not block.not_run
            ):
                files[block.path] = files.get(block.path, "") + block.text
        files.setdefault("shop/tasks.py", TASKS)
        files["settings.py"] = SETTINGS.format(
            apps=said.get("INSTALLED_APPS", APPS),
            delayq=said["DELAYQ"],
            more=(
                'TEST_RUNNER = "shop.runner.DelayqRunner"'
                if "shop/runner.py" in files
                else ""
            ),
        )
        self.files = files
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text, "utf-8")

    def run(self, *command: str) -> str:
        """Run Python in the project; returns what it printed."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        log = self.folder / "worker.log"
        assert done.returncode == 0, (
            f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}\n"
            + (f"worker:\n{log.read_text()[-3000:]}" if log.exists() else "")
        )
        return done.stdout

    @contextmanager
    def worker(self) -> Iterator[None]:
        with (self.folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "manage.py", "delayq_worker", "--grace", "1"],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            # What follows waits for what it does, and not for its start.
            wait_until(
                lambda: "is in format" in (self.folder / "worker.log").read_text(),
                description="the worker has started, and raised the format of its queues",
            )
            yield
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A process of the project that runs blocks, with `order` and the tasks."""
        code = "import django; django.setup(); from tests.pages import serve; serve()"
        command = [sys.executable, "-c", code]
        log = self.folder / "session.log"
        with session(
            command, cwd=self.folder, env=self._environment, log=log
        ) as blocks:
            blocks.run(Path("names.py"), "python", NAMES, 0)
            yield blocks

    @property
    def _environment(self) -> dict[str, str]:
        # Not DELAYQ_TEST_URL and the like: it is a project like any other.
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("DELAYQ_")
        }
        return own | {
            "DJANGO_SETTINGS_MODULE": "settings",
            "JOBS_KEY": "a secret that the pages only name",
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
        }


@pytest.mark.redis
@pytest.mark.usefixtures("embedded_server")
@pytest.mark.parametrize(
    "document",
    # The tutorial makes a project of its own, with the commands that it shows: test_tutorial.py.
    [document for document in DOCUMENTS if document != TUTORIAL],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_blocks_of_a_page_run(document: Path, tmp_path: Path) -> None:
    blocks = blocks_of(document)
    running = [
        block
        for block in blocks
        if block.language in ("python", "pycon") and not block.not_run
    ]
    if not running:
        return
    project = Project(tmp_path, blocks)

    project.run("manage.py", "check", "--fail-level", "WARNING")
    project.run("manage.py", "migrate", "--run-syncdb", "--verbosity", "0")
    with project.worker(), project.session() as session:
        for block in running:
            if block.path is None:
                session.run(document, block.language, block.text, block.line)
    if "shop/tests.py" in project.files:
        project.run("manage.py", "test")


@pytest.mark.redis
@pytest.mark.usefixtures("embedded_server")
def test_first_screen_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    task, schedule, command = blocks_of(README)[:3]
    lines = [
        line for block in (task, schedule, command) for line in block.text.splitlines()
    ]
    code = [line for line in lines if line.strip() and not PATH.match(line)]
    assert len(code) < 20
    assert command.text == "$ python manage.py delayq_worker\n"
    project = Project(tmp_path, [task])
    project.run("manage.py", "migrate", "--run-syncdb", "--verbosity", "0")
    first = (
        "from shop.models import Order\norder = Order.objects.create()\n"
        + schedule.text
    )
    # The reader waits for fifteen minutes, the test moves them away.
    first += "assert job.refresh() == 'scheduled', job.state\nassert job.run_now()\n"
    then = (
        "import time\n"
        "from shop.models import Order\n"
        "deadline = time.monotonic() + 60\n"
        "while Order.objects.get().status != 'cancelled':\n"
        "    assert time.monotonic() < deadline, Order.objects.get().status\n"
        "    time.sleep(0.05)\n"
    )

    with project.worker():
        project.run("manage.py", "shell", "--verbosity", "0", "-c", first)
        project.run("manage.py", "shell", "--verbosity", "0", "-c", then)


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_settings_of_a_page_are_valid(document: Path) -> None:
    for block in blocks_of(document):
        if block.path != "settings.py":
            continue
        said: dict[str, Any] = {}
        exec(block.text, said)
        assert list(conf.find_problems(said.get("DELAYQ", {}))) == [], block.text


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_options_of_the_worker_on_a_page_exist(document: Path) -> None:
    command = load_command_class("django_delayq", "delayq_worker")
    parser = command.create_parser("manage.py", "delayq_worker")
    for block in blocks_of(document):
        for line in block.text.splitlines():
            _, found, arguments = line.partition("manage.py delayq_worker")
            if found:
                parser.parse_args(shlex.split(arguments, comments=True))
