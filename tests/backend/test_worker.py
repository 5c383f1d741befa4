"""The worker as a program: what it imports, what it says of it, and what a kill leaves behind."""

import json
import sys

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs import registry
from django_delayq.management import backends
from tests.backend import samples
from tests.backend.test_results import SUCCESSFUL, upgrade
from tests.polling import wait_until

BACKEND = "django_delayq.backend.DelayqBackend"


@pytest.fixture
def modules(settings, tmp_path, monkeypatch):
    """Write modules, and name them in MODULES."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        settings.TASKS = {
            "default": {
                "BACKEND": BACKEND,
                "QUEUES": [],
                "OPTIONS": {"MODULES": list(sources)},
            }
        }

    yield write
    for name in ("delayq_jobs_a", "delayq_jobs_b"):
        sys.modules.pop(name, None)


DEFINES = f"""
from {samples.task.__module__.partition(".base")[0]} import task

@task
def greet():
    return "hello"
"""


def test_modules_are_imported_and_their_tasks_registered(modules) -> None:
    modules(delayq_jobs_a=DEFINES)

    backends.prepare_tasks()

    assert registry.find_task("delayq_jobs_a.greet") is not None


@pytest.mark.parametrize(
    ("source", "why"),
    [("import nothing_here", "ModuleNotFoundError: No module"), ("1 / 0", "ZeroDiv")],
)
def test_module_that_cannot_be_imported_is_named(
    modules, configure, source, why
) -> None:
    modules(delayq_jobs_b=source)

    with pytest.raises(CommandError) as told:
        call_command("delayq_worker", burst=True, skip_checks=True)

    assert "['MODULES'] names 'delayq_jobs_b', which cannot be imported: " in str(
        told.value
    )
    assert why in str(told.value)


def test_modules_of_other_backends_are_left_alone(modules, settings) -> None:
    modules(delayq_jobs_a="1 / 0")
    other = "tests.backend.test_backend.OtherBackend"
    settings.TASKS = {"default": {**settings.TASKS["default"], "BACKEND": other}}

    backends.prepare_tasks()


def test_backend_of_others_that_cannot_be_imported_is_left_alone(settings) -> None:
    settings.TASKS = {"default": {"BACKEND": "no.such.Backend"}}

    backends.prepare_tasks()


def test_backend_of_ours_that_cannot_be_imported_is_named(settings) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayqBackend"}}

    with pytest.raises(InvalidSettings, match=r"'default'.*cannot be imported"):
        backends.prepare_tasks()


def test_killed_task_runs_again_and_counts_both_attempts(
    configure, queue_name, client, program, burst
) -> None:
    configure(worker={"PROCESSES": 1, "THREADS": 1})
    upgrade(client, queue_name, burst)
    task = samples.die_once.using(queue_name=queue_name)
    result = task.enqueue()
    # No app of the program's project has these tasks.
    ours = {
        "BACKEND": BACKEND,
        "QUEUES": [],
        "OPTIONS": {"MODULES": [samples.__name__]},
    }

    program(
        *("--queue", queue_name),
        environment={"WORKER_TEST_TASKS": json.dumps({"default": ours})},
    )
    wait_until(
        lambda: task.get_result(result.id).is_finished,
        description="the task has run again",
    )

    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, "alive")
    assert (result.attempts, result.errors) == (2, [])
    assert result.started_at < result.last_attempted_at <= result.finished_at
