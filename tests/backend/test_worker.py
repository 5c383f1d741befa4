"""The worker as a program: what it imports, what it says of it, and what a kill leaves behind."""

import json
import sys

import pytest

from django_delayq import conf
from django_delayq.apps import import_modules
from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs import registry
from django_delayq.management import backends
from tests.backend import samples
from tests.backend.test_results import SUCCESSFUL
from tests.polling import wait_until

BACKEND = "django_delayq.backend.DelayqBackend"


@pytest.fixture
def modules(settings, tmp_path, monkeypatch):
    """Write modules, and name them in MODULES."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        settings.DELAYQ = {**settings.DELAYQ, "MODULES": list(sources)}

    yield write
    for name in ("delayq_jobs_a", "delayq_jobs_b"):
        sys.modules.pop(name, None)


DEFINES = f"""
from {samples.task.__module__.partition(".base")[0]} import task
from django_delayq import delayed_task

@task
def greet():
    return "hello"

@delayed_task
def wave():
    return "hello"
"""


def test_modules_are_imported_and_tasks_of_both_kinds_registered(modules) -> None:
    modules(delayq_jobs_a=DEFINES)

    import_modules()

    assert registry.find_task("delayq_jobs_a.greet") is not None
    assert registry.find_task("delayq_jobs_a.wave") is not None


@pytest.mark.parametrize(
    ("source", "why"),
    [("import nothing_here", "ModuleNotFoundError: No module"), ("1 / 0", "ZeroDiv")],
)
def test_module_that_cannot_be_imported_is_named(modules, source, why) -> None:
    modules(delayq_jobs_b=source)

    with pytest.raises(InvalidSettings, match=why) as told:
        import_modules()

    assert "DELAYQ['MODULES'] names 'delayq_jobs_b', which cannot be imported: " in str(
        told.value
    )


@pytest.mark.parametrize("wrong", ["shop.jobs", [5], [""]])
def test_modules_that_are_no_list_of_names_are_left_to_the_check(
    settings, wrong
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MODULES": wrong}

    import_modules()

    (problem,) = conf.find_problems(settings.DELAYQ)
    assert (problem.id, problem.hint[:14]) == ("E003", "Give a list of")


def test_backend_of_others_that_cannot_be_imported_is_left_alone(settings) -> None:
    settings.TASKS = {"default": {"BACKEND": "no.such.Backend"}}

    backends.prepare_tasks()


def test_backend_of_ours_that_cannot_be_imported_is_named(settings) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayqBackend"}}

    with pytest.raises(InvalidSettings, match=r"'default'.*cannot be imported"):
        backends.prepare_tasks()


def test_killed_task_runs_again_and_counts_both_attempts(
    configure, settings, queue_name, client, program, burst
) -> None:
    configure(worker={"PROCESSES": 1, "THREADS": 1})
    task = samples.die_once.using(queue_name=queue_name)
    result = task.enqueue()
    ours = {"BACKEND": BACKEND, "QUEUES": []}
    # No app of the program's project has these tasks.
    settings.DELAYQ = {**settings.DELAYQ, "MODULES": [samples.__name__]}

    program(
        *("--queue", queue_name),
        # The system checks import a project's URLs, and with them most of its modules.
        "--skip-checks",
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
