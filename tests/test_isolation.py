"""No test sees what another one registered or changed in the process: each of these runs twice, in any order."""

import gc
import logging
import signal
from importlib import import_module
from typing import Any

import pytest

from django_delayq.jobs import outbox, registry
from django_delayq.jobs.decorator import delayed_task, queue_handler
from django_delayq.jobs.registry import all_tasks
from django_delayq.queues import reading
from django_delayq.worker import payload
from tests import conftest

# As the collection of another module would. Nothing here refers to it.
import_module("tests.jobs.samples")

twice = pytest.mark.parametrize("run", ["once", "again"])


@twice
def test_what_a_test_registers_ends_with_it(run: str) -> None:
    assert "tests.isolation.mine" not in [task.name for task in all_tasks()]
    assert registry._handlers == {}

    @delayed_task(name="tests.isolation.mine")
    def mine() -> None: ...

    @queue_handler("nobody's", name="tests.isolation.handler")
    def handler(value: object) -> None: ...

    assert list(registry._handlers) == ["nobody's"]


@twice
def test_what_a_test_tells_once_a_process_is_told_in_the_next_again(run: str) -> None:
    assert "nobody's" not in reading._told
    assert ("nobody's", "key") not in payload._told
    reading._told.add("nobody's")
    payload._told.add(("nobody's", "key"))


@twice
def test_handlers_of_logs_and_signals_end_with_the_test(run: str) -> None:
    logger = logging.getLogger("django_delayq")
    assert logger.level == logging.NOTSET
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL

    logger.setLevel(logging.ERROR)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@twice
def test_an_app_that_is_made_ready_again_installs_no_outbox_for_the_next_test(
    run: str, settings: Any
) -> None:
    assert outbox.installed() is None

    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS]

    assert outbox.installed() is not None


def test_tasks_of_modules_that_this_one_does_not_import_are_hidden() -> None:
    assert [task.name for task in all_tasks() if "samples" in task.name] == []


def test_garbage_is_collected_again_after_a_collection_of_tests_that_failed() -> None:
    collection = conftest.pytest_collection()
    next(collection)
    assert not gc.isenabled()

    with pytest.raises(KeyboardInterrupt):
        collection.throw(KeyboardInterrupt)

    assert gc.isenabled()
