"""Runs the tests that Django has for its own backends of tasks, with ours in their place.

``python -m tests.backend.conformance FOLDER`` runs ``FOLDER/tasks``, which is ``tests/tasks`` of Django's source
distribution, on the server that ``DELAYQ_TEST_URL`` names: one of its own, whose keys are deleted. Django's backend that
keeps results is replaced by ours; the one that runs a task at once is ours with a worker after each call. Nothing of
Django's tests is copied or changed.
"""

import sys
import tarfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from tests.backend.sources import source_of
from tests.settings import TIME_ZONE

ROOT = Path(__file__).resolve().parents[2]
OWN_RESULTS = "it is about the list of results that Django's DummyBackend keeps in the process: ours are on the server"
AT_ONCE = "it is about Django's ImmediateBackend, which runs a task within enqueue(): ours has a worker for that"
#: Tests of Django that do not apply to ours, and why.
EXCLUDED = {
    "test_dummy_backend.DummyBackendTestCase.test_clear": OWN_RESULTS,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": OWN_RESULTS,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": OWN_RESULTS,
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": AT_ONCE,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": "ours supports it",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": "ours supports it",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": "ours supports it",
}


def unpack(version: str, folder: Path) -> Path:
    """Unpack the tests of Django's tasks into a folder, and return it."""
    root = f"django-{version}/tests/tasks/"
    with tarfile.open(source_of(version)) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith(root):
                target = folder / "tasks" / member.name.removeprefix(root)
                target.parent.mkdir(exist_ok=True)
                file = archive.extractfile(member)
                assert file is not None
                target.write_bytes(file.read())
    return folder


def configure(url: str) -> None:
    queues = ("default", "queue_1", "queue-1", "queue-2", "unknown_queue", "high")
    settings.configure(
        SECRET_KEY="only for tests",
        USE_TZ=True,
        TIME_ZONE=TIME_ZONE,
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        },
        INSTALLED_APPS=["django_delayq"],
        DELAYQ={
            "CONNECTION": url,
            "TEST": "connection",
            "QUEUES": {name: {"RETRY": {"BASE": 0.01, "JITTER": 0}} for name in queues},
        },
        TASKS={
            "default": {
                "BACKEND": "django_delayq.backend.DelayqBackend",
                "QUEUES": [],
            }
        },
    )
    django.setup()


def replace_backends() -> None:
    """Put ours where Django's tests name its own."""
    from asgiref.sync import sync_to_async
    from django.tasks.backends import dummy, immediate

    from django_delayq import conf
    from django_delayq.backend import DelayqBackend
    from tests.worker.workers import InlineWorker

    class Keeping(DelayqBackend):
        """Ours, with the list that tests look into."""

        def __init__(self, alias: str, params: Any) -> None:
            super().__init__(alias, params)
            self.clear()

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.results.append(result)
            return result

        async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = await super().aenqueue(task, args, kwargs)
            self.results.append(result)
            return result

        def clear(self) -> None:
            self.results: list[Any] = []

    def work() -> None:
        worker = InlineWorker([*conf.get_settings().queues], is_burst=True, threads=1)
        try:
            worker.start().join()
        finally:
            worker.stop()

    class Working(DelayqBackend):
        """Ours, with a worker that runs what was just enqueued, once."""

        def __init__(self, alias: str, params: Any) -> None:
            super().__init__(alias, {**params, "OPTIONS": {"MAX_ATTEMPTS": 1}})
            self.options = params.get("OPTIONS", {})

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            work()
            result.refresh()
            return result

        async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = await super().aenqueue(task, args, kwargs)
            await sync_to_async(work)()
            await result.arefresh()
            return result

    dummy.DummyBackend = Keeping
    immediate.ImmediateBackend = Working


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests_of(each)
        else:
            yield each


def name_of(test: unittest.TestCase) -> str:
    return test.id().removeprefix("tasks.")


class Result(unittest.TextTestResult):
    """Leaves an empty server to each test."""

    def startTest(self, test: unittest.TestCase) -> None:
        from django_delayq.transport.clients import own_clients

        own_clients.of_thread().flushall()
        super().startTest(test)


def main(folder: str, url: str) -> int:
    configure(url)
    replace_backends()
    sys.path.insert(0, folder)
    from django.test.utils import setup_test_environment

    setup_test_environment()
    found = list(
        tests_of(unittest.defaultTestLoader.discover(folder, "test_*.py", folder))
    )
    if unknown := EXCLUDED.keys() - set(map(name_of, found)):
        print(f"EXCLUDED names tests that Django does not have: {sorted(unknown)}")
        return 1
    chosen = [test for test in found if name_of(test) not in EXCLUDED]
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    result = runner.run(unittest.TestSuite(chosen))
    print(f"Django {django.__version__}: {result.testsRun} of {len(found)} tests run")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    import os

    raise SystemExit(main(sys.argv[1], os.environ["DELAYQ_TEST_URL"]))
