"""The example project in containers, without Docker: its Dockerfile and compose.yaml are read, their steps are run here."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_delayq.conf import WorkerSettings
from tests.databases import Postgres
from tests.example.project import ROOT
from tests.pages import blocks_of
from tests.polling import PATIENCE_S, wait_until
from tests.servers import Server

CHECKOUT = ROOT.parent
PAGE = CHECKOUT / "docs" / "howto" / "deploy.md"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
COMPOSE = (ROOT / "compose.yaml").read_text("utf-8")
IGNORED = (ROOT / "Dockerfile.dockerignore").read_text("utf-8").split()
SERVICES = yaml.safe_load(COMPOSE)["services"]
#: Services of our image.
OURS = ("migrate", "web", "worker")
#: Values that the person who starts the containers chooses.
SECRETS = {"SECRET_KEY": "of this test alone", "POSTGRES_PASSWORD": "not asked for"}
#: What stands for the programs of the image.
PROGRAMS = {
    "python": [sys.executable],
    "gunicorn": [sys.executable, "-m", "gunicorn"],
}
#: Settings of `DatabaseWrapper` by the name that PostgreSQL's library has for each.
LIBPQ = {"PGHOST": "HOST", "PGUSER": "USER", "PGDATABASE": "NAME"}


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in DOCKERFILE.splitlines() if line and line[0] != "#"]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def seconds(duration: str) -> float:
    assert duration.endswith("s"), duration
    return float(duration[:-1])


def test_an_image_holds_no_secret_and_does_not_run_as_root() -> None:
    words = [word for word, _ in instructions()]
    of_image = [rest for word, rest in instructions() if word in ("ENV", "ARG")]

    assert ("USER", "root") not in instructions()
    assert words.index("USER") < words.index("CMD")
    assert of_image == ["DJANGO_SETTINGS_MODULE=example.production"]
    # What the page has people write beside compose.yaml.
    assert "**/.env" in IGNORED


def test_secrets_of_the_services_come_from_whoever_starts_them() -> None:
    values = [
        (name, value)
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
    ]

    for name, value in values:
        if "KEY" in name or "PASSWORD" in name:
            assert re.fullmatch(r"\$\{\w+:\?\}", value), name


def test_web_and_worker_are_one_image_with_one_environment() -> None:
    for key in ("image", "build", "environment"):
        assert (
            SERVICES["web"][key] == SERVICES["worker"][key] == SERVICES["migrate"][key]
        )


def test_docker_waits_longer_than_the_worker_and_signals_it_directly() -> None:
    worker = SERVICES["worker"]

    assert seconds(worker["stop_grace_period"]) >= WorkerSettings().grace_s + 15
    # The form that starts no shell, which would keep the signal to itself.
    assert isinstance(worker["command"], list)
    assert isinstance(json.loads(dict(instructions())["CMD"]), list)


def test_page_shows_these_files() -> None:
    dockerfile, compose = [
        [block.text for block in blocks_of(PAGE) if block.language == language]
        for language in ("dockerfile", "yaml")
    ]

    # Without what only this checkout needs.
    paragraphs = DOCKERFILE.split("\n\n")
    ours = [each for each in paragraphs if "/package" not in each]
    assert dockerfile == ["\n".join(ours)]
    services = [text for text in compose if "stop_grace_period" in text]
    assert len(services) == 1
    assert services[0] in COMPOSE
    assert "  worker:\n" in services[0]
    assert "  valkey:\n" in services[0]


class Image:
    """What the Dockerfile makes, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.workdir = folder
        self.environment: dict[str, str] = {}
        self.command: list[str] = []
        for word, rest in instructions():
            if word == "WORKDIR":
                self.workdir = self._path(rest)
                self.workdir.mkdir(parents=True)
            elif word == "COPY":
                self._copy(*rest.split())
            elif word == "RUN" and rest.startswith("pip install"):
                self._install(rest)
            elif word == "ENV":
                name, _, self.environment[name] = rest.partition("=")
            elif word == "CMD":
                self.command = json.loads(rest)
            elif word == "RUN":
                assert rest.startswith("useradd --system --create-home "), rest
                (folder / "home").mkdir()
            else:
                assert word in ("FROM", "USER"), word

    def _path(self, name: str) -> Path:
        """Return where a path of the image is; a relative one begins at WORKDIR."""
        return self.root / name[1:] if name.startswith("/") else self.workdir / name

    def _copy(self, *names: str) -> None:
        *sources, target = names
        ignore = shutil.ignore_patterns(*(name.removeprefix("**/") for name in IGNORED))
        for source in sources:
            found = CHECKOUT / source
            if found.is_dir():
                where = self._path(target)
                shutil.copytree(found, where, ignore=ignore, dirs_exist_ok=True)
            else:
                self._path(target).mkdir(parents=True, exist_ok=True)
                shutil.copy(found, self._path(target))

    def _install(self, command: str) -> None:
        """Install the package; what requirements.txt names is here already."""
        if not command.endswith(" /package"):
            assert command.endswith(" -r requirements.txt")
            assert (self.workdir / "requirements.txt").is_file()
            return
        pip = [sys.executable, "-m", "pip", "--quiet", "install"]
        options = ["--no-deps", "--no-build-isolation", "--no-index"]
        packages, package = self.root / "packages", self.root / "package"
        subprocess.run([*pip, *options, "--target", packages, package], check=True)

    def environment_of(self, service: str, others: dict[str, str]) -> dict[str, str]:
        """Return the variables of a container, with the addresses of the servers that are here."""
        told = {
            name: re.sub(r"\$\{(\w+):\?\}", lambda found: SECRETS[found[1]], value)
            for name, value in SERVICES[service]["environment"].items()
        }
        assert others.keys() <= told.keys()
        own = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.root / "packages"),
            "HOME": str(self.root / "home"),
        }
        return own | self.environment | told | others


class Host:
    """Runs the services of compose.yaml as processes."""

    def __init__(self, image: Image, others: dict[str, str]) -> None:
        self.image = image
        self.others = others
        self.port = 0

    def words(self, command: list[str]) -> list[str]:
        """Return a command of a container as it has to be here."""
        folder = str(self.image.root / "heartbeat")
        here = [
            word.replace("0.0.0.0:8000", f"127.0.0.1:{self.port}")
            .replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
            .replace("/run/delayq", folder)
            for word in command[1:]
        ]
        return PROGRAMS[command[0]] + here

    def run(self, service: str, command: list[str]) -> int:
        """Run a command in a service, as ``docker exec`` does; return its status."""
        return subprocess.run(
            self.words(command),
            cwd=self.image.workdir,
            env=self.image.environment_of(service, self.others),
            check=False,
        ).returncode

    def is_healthy(self, service: str) -> bool:
        kind, *command = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(service, command) == 0

    @contextmanager
    def started(self, service: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a service; its output is in the file `log`."""
        with self.log(service).open("wb") as log:
            process = subprocess.Popen(
                self.words(SERVICES[service].get("command", self.image.command)),
                cwd=self.image.workdir,
                env=self.image.environment_of(service, self.others),
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            # Its children end with it at this signal, and not at the next.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            process.kill()
            process.wait()

    def log(self, service: str) -> Path:
        return self.image.root / f"{service}.log"

    def ask(self, method: str, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(body) if is_json else body


def stop(process: subprocess.Popen[bytes], service: str) -> int:
    """Stop a service as Docker does, which would kill it after the grace period; return its status."""
    process.send_signal(signal.SIGTERM)
    return process.wait(seconds(SERVICES[service]["stop_grace_period"]))


@pytest.mark.slow
def test_services_work_together_say_how_they_are_and_stop_in_order(
    private_server: Callable[..., Server], postgres: Postgres, tmp_path: Path
) -> None:
    program, *options = SERVICES["valkey"]["command"]
    assert program == "valkey-server"
    server = private_server(*options)
    database = postgres.make_database()
    others = {variable: database[name] for variable, name in LIBPQ.items()}
    host = Host(Image(tmp_path), others | {"REDIS_URL": server.url})

    assert host.run("migrate", SERVICES["migrate"]["command"]) == 0
    with host.started("web") as web, host.started("worker") as worker:
        found = wait_until(
            lambda: re.search(r"127\.0\.0\.1:(\d+)", host.log("web").read_text()),
            description="gunicorn listens",
        )
        assert found is not None
        host.port = int(found[1])
        wait_until(lambda: host.is_healthy("web"), description="the site is healthy")
        wait_until(lambda: host.is_healthy("worker"), description="so is the worker")

        # The site answers, with its files, and a worker runs what it schedules.
        assert host.ask("GET", "/")[0] == 200
        assert host.ask("GET", "/static/admin/css/base.css")[0] == 200
        status, element = host.ask("POST", "/delays/?data=a&expire=0")
        assert status == 202
        wait_until(
            lambda: (
                element["id"]
                in [one["id"] for one in host.ask("GET", "/delays/")[1]["delays"]]
            ),
            description="the job has run",
        )

        server.shutdown()
        assert not host.is_healthy("worker")
        server.start()
        wait_until(lambda: host.is_healthy("worker"), description="it is healthy again")

        assert stop(worker, "worker") == 0, host.log("worker").read_text()
        assert not host.is_healthy("worker")
        assert stop(web, "web") == 0, host.log("web").read_text()
        assert not host.is_healthy("web")
