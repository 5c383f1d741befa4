"""Standard streams that are closed, full or without a reader: no command takes that for an error of the server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings as django_settings

from django_delayq import pause
from tests import forked
from tests.worker.workers import MANAGE, delayq_environment

COMMANDS = [
    ["delayq_status"],
    ["delayq_health"],
    ["delayq_pause"],
    ["delayq_resume", "QUEUE"],
    ["delayq_jobs", "list"],
    ["delayq_worker", "--help"],
]


@contextmanager
def unreadable() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextmanager
def full() -> Iterator[int]:
    device = os.open("/dev/full", os.O_WRONLY)
    yield device
    os.close(device)


def run(command: list[str], queue: str, records: Any, **streams: Any) -> Any:
    if command != ["delayq_health"]:
        # It has none.
        command = [*command, "--skip-checks"]
    words = [queue if word == "QUEUE" else word for word in command]
    environment = {
        **os.environ,
        **delayq_environment(django_settings.DELAYQ, records),
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return forked.run(
        [sys.executable, str(MANAGE), *words],
        env=environment,
        text=True,
        timeout=120,
        **streams,
    )


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [*((command, "1") for command in COMMANDS), (COMMANDS[0], "")],
)
def test_a_command_whose_reader_has_gone_ends_in_silence(
    queue: str,
    command: list[str],
    unbuffered: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)

    with unreadable() as nobody:
        done = run(command, queue, tmp_path, stdout=nobody)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["delayq_status"], ["delayq_jobs", "list"]])
def test_a_full_disk_is_told_and_is_not_the_servers(
    queue: str, command: list[str], tmp_path: Any
) -> None:
    with full() as disk:
        done = run(command, queue, tmp_path, stdout=disk)

    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last == "CommandError: [Errno 28] No space left on device"
    assert "server" not in done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("command", [["delayq_status"], ["delayq_worker", "--help"]])
def test_a_command_ends_well_though_a_stream_is_closed(
    queue: str, command: list[str], stream: str, tmp_path: Any
) -> None:
    number = 1 if stream == "stdout" else 2
    done = run(command, queue, tmp_path, preexec_fn=lambda: os.close(number))

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["delayq_pause", "delayq_resume"])
def test_a_command_says_what_it_did_once(
    queue: str, tmp_path: Any, command: str
) -> None:
    pause(queue)

    done = run([command, "QUEUE"], queue, tmp_path)

    assert done.stdout.startswith(f"queue {queue} ")
    assert done.stderr == ""


@pytest.mark.parametrize("where", [full, unreadable])
def test_an_error_keeps_its_exit_status_though_nobody_can_read_it(
    queue: str, tmp_path: Any, where: Any
) -> None:
    wrong = ["delayq_jobs", "list", "--queue", "nil"]
    told = run(wrong, queue, tmp_path)

    with where() as nobody:
        done = run(wrong, queue, tmp_path, stderr=nobody)

    assert done.returncode == told.returncode != 0


def test_an_export_to_a_closed_output_takes_nothing(queue: str, tmp_path: Any) -> None:
    done = run(
        ["delayq_export", "-", "--queue", queue],
        queue,
        tmp_path,
        preexec_fn=lambda: os.close(1),
    )

    assert done.returncode == 1
    assert done.stderr == "CommandError: The standard output is closed. Name a file.\n"
