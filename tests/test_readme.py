"""The blocks of README.md and docs/ run from top to bottom: in a project made of them, with a worker.

`tests.pages` says how a block is read. Each block of settings begins a chapter of its page. A chapter runs with the
settings blocks so far, in their order and as they stand; only ``CONNECTION`` is taken out, for the embedded server.
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
from tests import forked
from tests.pages import (
    DOCUMENTS,
    PATH,
    README,
    ROOT,
    TUTORIAL,
    Block,
    MaskedChecker,
    Session,
    blocks_of,
    commands_of,
    session,
)
from tests.polling import wait_until
from tests.settings import TIME_ZONE

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
SETTINGS = (
    f"""
TIME_ZONE = {TIME_ZONE!r}
"""
    + """
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "of a project in a temporary folder"
DEBUG = True
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "OPTIONS": {"timeout": 20},
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_delayq",
    "shop",
]
DELAYQ = {}
"""
)
#: After the settings of a page: the servers that pages name are not there, and the apps that they add are.
NO_SERVER = """
DELAYQ.pop("CONNECTION", None)
INSTALLED_APPS = list(dict.fromkeys(INSTALLED_APPS))
"""
MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""
#: What a reader of any page has. What a block imports, the next one has too; what tasks.py imports, it has not.
NAMES = """
import shop.tasks
from django_delayq.jobs.decorator import DelayedTask
from shop.models import Order

order = Order.objects.create()
globals().update(
    (name, task) for name, task in vars(shop.tasks).items() if isinstance(task, DelayedTask)
)
del shop, DelayedTask
"""
#: Pages whose commands are run as well. The tutorial has a test of its own: test_tutorial.py.
#: In one process, as two start twice.
CHECK_AND_MIGRATE = """
import django
from django.core.management import call_command
django.setup()
call_command("check", fail_level="WARNING")
call_command("migrate", run_syncdb=True, verbosity=0)
"""
HOWTO = ROOT / "docs" / "howto"
FOLLOWED = [
    README,
    HOWTO / "testing.md",
    HOWTO / "periodic.md",
    *sorted(HOWTO.glob("from-*.md")),
]


def chapters_of(blocks: list[Block]) -> list[list[Block]]:
    """Return the blocks, parted before each block of settings."""
    chapters: list[list[Block]] = [[]]
    for block in blocks:
        if block.path == "settings.py" and chapters[-1]:
            chapters.append([])
        chapters[-1].append(block)
    return chapters


class Project:
    """A Django project that grows as its page goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {
            "shop/__init__.py": "",
            "shop/models.py": MODELS,
            "shop/tasks.py": TASKS,
            "manage.py": MANAGE,
            "settings.py": SETTINGS,
        }
        self._untouched = {"shop/tasks.py"}

    def add(self, blocks: list[Block]) -> None:
        """Put the blocks that are files in their place."""
        for block in blocks:
            if block.path is not None:
                is_new = block.path in self._untouched
                self._untouched.discard(block.path)
                before = "" if is_new else self.files.get(block.path, "")
                self.files[block.path] = before + block.text
        for path, text in self.files.items():
            (self.folder / path).parent.mkdir(exist_ok=True)
            more = NO_SERVER if path == "settings.py" else ""
            (self.folder / path).write_text(text + more, "utf-8")

    def follow(self, command: str, shown: str) -> None:
        """Run a command that a page shows, and compare what it prints, if the page shows that."""
        program, *arguments = shlex.split(command, comments=True)
        assert program == "python", f"$ {command}: run it here, or say why not"
        if arguments[:2] == ["manage.py", "delayq_worker"]:
            return  # The one that runs beside; another test reads its options.
        printed = self.run(*arguments)
        assert not shown or MaskedChecker().check_output(shown, printed, 0), (
            f"$ {command}\n{printed}\nis not what the page shows:\n{shown}"
        )

    def run(self, *command: str) -> str:
        """Run Python in the project; returns what it printed."""
        done = forked.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
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
            worker = forked.Popen(
                [sys.executable, "manage.py", "delayq_worker", "--grace", "1"],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            # What follows waits for what it does, and not for its start.
            wait_until(
                lambda: "  runs " in (self.folder / "worker.log").read_text(),
                description="the worker has started",
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
    languages = ["python", "pycon", *["console"] * (document in FOLLOWED)]
    running = [
        block
        for block in blocks_of(document)
        if block.is_run and block.language in languages
    ]
    if all(block.path == "settings.py" for block in running):
        return
    project = Project(tmp_path)

    for chapter in chapters_of(running):
        project.add(chapter)
        project.run("-c", CHECK_AND_MIGRATE)
        typed = [block for block in chapter if block.path is None]
        if typed:
            with project.worker(), project.session() as session:
                for block in typed:
                    if block.language == "console":
                        for command, shown in commands_of(block.text):
                            project.follow(command, shown)
                    else:
                        session.run(document, block.language, block.text, block.line)
    if "shop/tests.py" in project.files:
        project.run("manage.py", "test")
    if "shop/test_with_pytest.py" in project.files:
        project.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "shop")


@pytest.mark.parametrize("document", FOLLOWED, ids=lambda path: path.stem)
def test_each_block_of_a_page_runs_or_says_why_not(document: Path) -> None:
    for block in blocks_of(document):
        assert block.is_run or block.not_run, (
            f"{document.name}:{block.line}: write <!-- not run: the reason --> above it"
        )


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
    project = Project(tmp_path)
    project.add([task])
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
def test_settings_of_a_page_are_valid_and_keep_what_the_reader_has(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_KEY", "a secret that the pages only name")
    had: dict[str, Any] = {
        "CONNECTION": "redis://localhost:6379/0",
        "QUEUES": {"default": {}, "mail": {}},
        "KEEP_ENDED": 100,
    }
    # The other pages add to what these two begin with, or list.
    is_first = document in (README, ROOT / "docs" / "settings.md")
    said: dict[str, Any] = {"INSTALLED_APPS": [], "DELAYQ": {} if is_first else had}
    for block in blocks_of(document):
        if block.path != "settings.py":
            continue
        keys, queues = {*said["DELAYQ"]}, {*said["DELAYQ"].get("QUEUES", {})}

        exec(block.text, said)

        assert list(conf.find_problems(said["DELAYQ"])) == [], block.text
        assert keys <= {*said["DELAYQ"]}, block.text
        assert queues <= {*said["DELAYQ"].get("QUEUES", {})}, block.text


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
