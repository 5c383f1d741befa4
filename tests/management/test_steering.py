"""Nothing that somebody has written steers the terminal of who looks: not by a command, a check or a line of a log."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.management import (
    BaseCommand,
    CommandError,
    call_command,
    get_commands,
    load_command_class,
)

from django_delayq import EncodeError, get_schedule, pause, set_limit
from django_delayq.clock import epoch_ms
from django_delayq.core.prefixes import PREFIXES
from django_delayq.core.progress import JobProgress, note_progress
from django_delayq.core.states import State
from django_delayq.core.worker_registry import (
    RegistryKeys,
    RunningJob,
    WorkerInfo,
    register,
)
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.schedules import periodic
from django_delayq.features.schedules.periodic import Change
from django_delayq.jobs.actor import acting_as
from django_delayq.jobs.progress_report import stored_progress
from django_delayq.logs import get_log
from django_delayq.management.help import CommandWithExamples
from django_delayq.transport.run import run
from tests.admin import living
from tests.admin.conftest import queue as queue_of_admin
from tests.admin.filling import Queue, error
from tests.admin.test_layout import fill

#: Colours, clears the screen, rings, begins a line of its own, and turns the direction of what follows.
HOSTILE = "a\x1b[31mb\x9b2Jc\x07d\r\nforged e\u202ef\u2066g"
filled_queue = queue_of_admin

#: The arguments with which each of our commands is called here; ``{queue}`` and ``{token}`` are filled in.
ARGUMENTS: dict[str, list[str]] = {
    "delayq_export": ["{file} --copy", "{file} --copy --json"],
    "delayq_frames": ["{queue}"],
    "delayq_health": ["", "--json"],
    "delayq_import": ["{file}", "{missing}"],
    "delayq_jobs": [
        "list",
        "list --json",
        "list --state dead",
        "list --state running",
        "list --state succeeded",
        "show {queue}:{running}",
        "show {queue}:{dead}",
        "show {queue}:{dead} --json",
        "show {hostile}",
        "cancel {hostile}",
        "retry --queue {queue} --state dead --dry-run",
    ],
    "delayq_outbox": [""],
    "delayq_pause": ["", "{queue}", "{queue} --reason {hostile}", "{hostile}"],
    "delayq_resign": ["{queue}"],
    "delayq_resume": ["{hostile}", "{queue} --task {hostile}"],
    "delayq_schedules": ["", "--json", "--pause heartbeat", "--pause {hostile}"],
    "delayq_status": ["", "--json"],
    "delayq_worker": ["--queue {hostile}"],
}
OURS = sorted(
    name for name, app in get_commands().items() if str(app).startswith("django_delayq")
)


def steering(text: str) -> list[str]:
    """Return what steers a terminal, and lines that somebody has forged."""
    found = [char for char in text if not (char.isprintable() or char in "\n\t")]
    return found + [line for line in text.splitlines() if line.startswith("forged")]


@pytest.fixture
def told(filled_queue: Queue) -> Iterator[dict[str, str]]:
    """A queue in which every text is hostile."""
    queue = filled_queue
    keys, client = queue.keys, queue.client
    why = error(HOSTILE, HOSTILE, HOSTILE, at_ms=epoch_ms())
    dead = queue.dead(HOSTILE, task=HOSTILE, error_text=why)
    queue.schedule(60_000, HOSTILE, task=HOSTILE, unique=HOSTILE)
    queue.retrying(task=HOSTILE, error_text=why)
    queue.offer(HOSTILE.encode())
    running = queue.running(task=HOSTILE)
    far = stored_progress(1, 2, HOSTILE)
    run(client, note_progress(keys, [JobProgress(running.token, running.fence, far)]))
    tokens = fill(queue, queue) | {"dead": dead, "running": running.token}
    change = Change(epoch_ms(), HOSTILE, HOSTILE)
    sealed = periodic.sealed(queue.name, "change", "heartbeat", change)
    client.hset(keys.schedules, "change heartbeat", sealed)
    job = RunningJob(queue.name, HOSTILE, HOSTILE, epoch_ms() - 5_000)
    info = WorkerInfo(
        HOSTILE, 1, HOSTILE, 2, [queue.name], 8, jobs=[job], state=HOSTILE
    )
    run(client, register(RegistryKeys.of(), f"{queue.name}-hostile", info))
    end = EndRecord(HOSTILE, HOSTILE, State.DEAD, epoch_ms(), error=HOSTILE)
    run(client, ended_calls.note_ended(keys, [end], keep=100))
    living.measure(queue, **{HOSTILE: living.figures_of(3)})
    client.hset(PREFIXES, HOSTILE, HOSTILE)
    client.hset(keys.counters, HOSTILE, 5)
    run(client, pause_calls.pause(keys, by=HOSTILE, reason=HOSTILE))
    run(client, pause_calls.pause(keys, task=HOSTILE, by=HOSTILE, reason=HOSTILE))
    run(
        client,
        limit_calls.set_limit(keys, {"concurrency": 1}, name=HOSTILE, by=HOSTILE),
    )
    yield tokens
    client.hdel(PREFIXES, HOSTILE)
    for key in RegistryKeys.of():
        client.delete(key)


def test_each_command_is_called_here() -> None:
    assert set(OURS) == set(ARGUMENTS)
    for name in OURS:
        command: BaseCommand = load_command_class(get_commands()[name], name)
        assert isinstance(command, CommandWithExamples)


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, each) for name, all_of in ARGUMENTS.items() for each in all_of],
)
def test_what_a_command_prints_steers_no_terminal(
    name: str,
    arguments: str,
    told: dict[str, str],
    filled_queue: Queue,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text(f"{HOSTILE}\n")
    values = told | {
        "queue": filled_queue.name,
        "hostile": HOSTILE,
        "file": str(tmp_path / "file"),
        "missing": str(tmp_path / HOSTILE.partition("\r")[0]),
    }

    out, err = io.StringIO(), io.StringIO()
    # What a command refuses is printed on its standard error, as the next test has it.
    with suppress(CommandError, SystemExit):
        given = [each.format(**values) for each in arguments.split()]
        call_command(name, *given, stdout=out, stderr=err)

    captured = capfd.readouterr()
    logged = map(logging.Formatter().format, caplog.records)
    for text in (out.getvalue(), err.getvalue(), captured.out, captured.err, *logged):
        assert not steering(text)


def test_what_checks_say_steers_no_terminal(told: dict[str, str]) -> None:
    found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

    text = "\n".join(map(str, found))
    assert r"a\x1b[31mb" in text
    assert not steering(text)


def test_errors_of_a_command_are_printed_without_what_steers() -> None:
    out, err = io.StringIO(), io.StringIO()
    command = CommandWithExamples(stdout=out, stderr=err)

    command.stdout.write(HOSTILE)
    command.stderr.write(HOSTILE)
    command.stdout.write_styled("\x1b[1mours\x1b[0m")

    assert r"a\x1b[31mb\x9b2Jc\x07d" in out.getvalue()
    assert r"\u202ef\u2066g" in err.getvalue()
    assert "\x1b[1mours\x1b[0m\n" in out.getvalue()


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.warning("reason: %s", HOSTILE),
        lambda log: log.warning("error: %s", ValueError(HOSTILE)),
        lambda log: log.warning("a\n%s", HOSTILE.replace("forged", "")),
        lambda log: log.error("failed", exc_info=ValueError(HOSTILE.replace("\n", ""))),
        lambda log: log.error(
            "failed",
            exc_info=ValueError("x" + HOSTILE.replace("\n", "")),
            secrets=("x",),
        ),
    ],
)
def test_a_log_has_nothing_that_steers(
    act: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    act(get_log("django_delayq.tests.steering"))

    assert caplog.records
    text = logging.Formatter().format(caplog.records[0])
    assert not steering(text)
    assert r"\x1b[31m" in text


def test_a_log_keeps_its_template_where_nothing_steers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    get_log("django_delayq.tests.steering").warning("queue %s: %d jobs", "größe", 3)

    assert caplog.records[0].msg == "queue %s: %d jobs"
    assert caplog.records[0].args == ("größe", 3)


@pytest.mark.parametrize(
    "text",
    ["\x1b[31m", "\x9b2J", "\x07", "\rb", "\u202e", "\u2066", "\u2028", "\x7f"],
)
def test_a_reason_that_steers_is_refused(filled_queue: Queue, text: str) -> None:
    fill(filled_queue, filled_queue)
    name = filled_queue.name

    with pytest.raises(EncodeError, match="has control characters"):
        pause(name, reason=f"a{text}")
    with pytest.raises(EncodeError, match="has control characters"):
        pause(name, by=f"a{text}")
    with pytest.raises(EncodeError, match="has control characters"):
        get_schedule("heartbeat", name).pause(reason=f"a{text}")


def test_texts_of_people_are_taken(filled_queue: Queue) -> None:
    pause(filled_queue.name, reason="Größe\n👨‍👩‍👧 \t نگه‌دار\r\n")


def test_who_acts_is_noted_without_what_steers(filled_queue: Queue) -> None:
    with acting_as(HOSTILE):
        set_limit(filled_queue.name, concurrency=3)

    stored = filled_queue.client.hgetall(filled_queue.keys.control)
    assert not steering(json.dumps(str(stored), ensure_ascii=False))
    assert any(rb"a\\x1b[31mb" in value for value in stored.values())
