"""docs/tutorial.md is typed as it stands: its files, its commands in their terminals, and what is printed."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pages import (
    ROOT,
    TUTORIAL,
    Block,
    MaskedChecker,
    Session,
    blocks_of,
    commands_of,
    masked,
    session,
)
from tests.polling import wait_until
from tests.settings import TIME_ZONE

#: The environment of the reader has what that of the tests has, the package included.
_INSTALLED = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
#: Instead of what the page says: pip would unpack itself for seconds, and somebody may listen on port 8000.
INSTEAD = {
    "python3 -m venv .venv": (
        "python3 -m venv --without-pip .venv"
        f' && echo "{_INSTALLED}" > installed.pth && mv installed.pth .venv/lib/python*/site-packages'
    ),
    "python manage.py runserver": "python manage.py runserver 0",
}
PROJECT = "django-admin startproject mysite ."
#: Settings of the project's zone and language, in the words of Django's template.
ZONE, LANGUAGE = "TIME_ZONE = 'UTC'", "LANGUAGE_CODE = 'en-us'"
#: Opens the shell that takes its lines from the page.
SHELL = "python manage.py shell"
SERVE = f"exec {SHELL} --verbosity 0 -c 'from tests.pages import serve; serve()'"
#: What the page says of the admin, looked up by its user while the site is up.
ADMIN = """
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext

client = Client(headers={"host": "localhost"})
client.force_login(get_user_model().objects.get(username="admin"))
pages = {
    "/admin/": [capfirst(gettext("queues and jobs"))],
    reverse("admin:django_delayq_job_changelist"): ["default"],
    reverse("admin:django_delayq_job_queue", args=["default"]): [job.task, job.token],
    reverse("admin:django_delayq_job_job", args=[job.id]): [gettext("Run now"), gettext("Cancel this job")],
}
for address, shown in pages.items():
    # On a busy machine the server may not answer in time. The page says so then, and is loaded again.
    for left in range(9, -1, -1):
        text = client.get(address).text
        missing = [each for each in shown if each not in text]
        if not missing:
            break
        assert left, f"{address} does not show {missing}:\\n{text}"
"""


class Terminal:
    """A window in which a command goes on beside what follows, and what it has printed."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        #: How much of what was printed the page has shown.
        self._shown = 0

    def start(self, command: list[str], *, cwd: Path, env: dict[str, str]) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the end."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            self._process.wait(60)

    def expect(self, shown: str, *, in_english: bool) -> None:
        """Wait until the command has printed, in this order, the lines that the page shows next.

        Lines between them are not the page's: a worker on a busy machine may have more to say. In another language, only
        the log is compared, which is English always.
        """
        lines = [
            line
            for line in masked(shown).splitlines()
            if line != "..." and (in_english or line.startswith("TIME"))
        ]
        pattern = re.compile(
            "^" + r"$\n(?:.*\n)*?".join(map(re.escape, lines)) + "$", re.MULTILINE
        )

        def is_printed() -> bool:
            found = pattern.search(self.printed, self._shown)
            if found:
                self._shown = found.end()
            return bool(found)

        try:
            wait_until(is_printed, description=shown, timeout=120)
        except AssertionError as error:
            error.add_note(f"printed so far:\n{self.printed[self._shown :]}")
            raise

    @property
    def printed(self) -> str:
        # The last line may not be complete yet.
        whole, newline, _ = self._log.read_text("utf-8").rpartition("\n")
        return masked(whole + newline)


class Reader:
    """Somebody who does what the tutorial says, in an empty folder."""

    def __init__(self, folder: Path, logs: Path, zone: str, language: str) -> None:
        self.folder = folder
        self._zone = zone
        self._language = language
        self._logs = logs
        #: What a shell remembers of the commands before.
        self._remembered = "true"
        self._terminals: dict[str, Terminal] = {}
        self._shells = ExitStack()
        self._shell: Session | None = None

    def follow(self, block: Block) -> None:
        """Do what a block shows, and compare what comes of it."""
        if block.path is not None:
            file = self.folder / block.path
            with file.open("a", encoding="utf-8") as lines:
                lines.write(block.text)
        elif block.language == "pycon":
            self.say(block.language, block.text, block.line)
        else:
            assert block.language == "console", block
            commands = [*commands_of(block.text)]
            for number, (command, shown) in enumerate(commands, 1):
                goes_on = bool(block.terminal) and number == len(commands)
                if command.startswith(". "):
                    self._remembered = command
                elif command == SHELL:
                    self._open_shell()
                elif goes_on or command == "^C":
                    self._type(command, shown, self._terminal(block.terminal))
                else:
                    self._run(command, shown)
                if command == PROJECT:
                    self._settle()

    def say(self, language: str, text: str, line: int = 0) -> None:
        """Run Python in the shell that is open."""
        assert self._shell is not None, "the page has opened no shell yet"
        self._shell.run(TUTORIAL, language, text, line)

    def leave(self) -> None:
        self._shells.close()
        for terminal in self._terminals.values():
            terminal.interrupt()

    def _terminal(self, name: str) -> Terminal:
        return self._terminals.setdefault(name, Terminal(self._logs / f"{name}.log"))

    def _type(self, command: str, shown: str, terminal: Terminal) -> None:
        if command == "^C":
            terminal.interrupt()
        elif command:
            terminal.start(
                self._bash(f"exec {INSTEAD.get(command, command)}"),
                cwd=self.folder,
                env=self._environment,
            )
        terminal.expect(shown, in_english=self._language == "en-us")

    def _run(self, command: str, shown: str) -> None:
        done = subprocess.run(
            self._bash(INSTEAD.get(command, command)),
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        assert not shown or MaskedChecker().check_output(shown, done.stdout, 0), (
            f"$ {command}\n{done.stdout}\nis not what the page shows:\n{shown}"
        )

    def _settle(self) -> None:
        settings = self.folder / "mysite" / "settings.py"
        text = settings.read_text("utf-8").replace('"', "'")
        assert ZONE in text
        assert LANGUAGE in text
        text = text.replace(ZONE, f"TIME_ZONE = {self._zone!r}")
        text = text.replace(LANGUAGE, f"LANGUAGE_CODE = {self._language!r}")
        settings.write_text(text, "utf-8")

    def _open_shell(self) -> None:
        # Whoever opens another leaves the one before.
        self._shells.close()
        self._shell = self._shells.enter_context(
            session(
                self._bash(SERVE),
                cwd=self.folder,
                env=self._environment | {"PYTHONPATH": str(ROOT)},
                log=self._logs / "shell.log",
            )
        )

    def _bash(self, command: str) -> list[str]:
        return ["bash", "-c", f"{self._remembered} && {command}"]

    @property
    def _environment(self) -> dict[str, str]:
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("DELAYQ_", "DJANGO_", "PYTHON"))
        }
        return own | {
            # python3, pip and django-admin are those of the tests.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            # What the page installs is here.
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            # A line is in the log as soon as it is printed.
            "PYTHONUNBUFFERED": "1",
        }


@pytest.mark.redis
@pytest.mark.usefixtures("embedded_server")
@pytest.mark.parametrize(
    ("zone", "language"), [("Asia/Kolkata", "en-us"), (TIME_ZONE, "de")]
)
def test_tutorial_does_what_it_says(tmp_path: Path, zone: str, language: str) -> None:
    folder, logs = tmp_path / "shop", tmp_path / "logs"
    folder.mkdir()
    logs.mkdir()
    reader = Reader(folder, logs, zone, language)
    try:
        for block in blocks_of(TUTORIAL):
            reader.follow(block)
            if block.terminal == "site":
                reader.say("python", ADMIN)
    finally:
        reader.leave()
