"""`DelayqRunner`: the runner of ``manage.py test`` for projects whose tests use a server or unittest's own classes.

``DELAYQ["TEST"]`` works with every runner. This one also empties what was scheduled, and the server of the run, before
each test, in each process of ``--parallel``.
"""

import unittest
from typing import Any

from django.test.runner import (
    DiscoverRunner,
    ParallelTestSuite,
    RemoteTestResult,
    RemoteTestRunner,
)

from django_delayq.testing import mode
from django_delayq.testing.capture import clear_captured
from django_delayq.testing.servers import empty_server


def begin_test() -> None:
    """Forget what earlier tests scheduled."""
    clear_captured()
    if mode.is_of_run():
        empty_server()


class _Beginning:
    """Makes each test begin without earlier jobs."""

    def startTest(self, test: Any) -> None:
        begin_test()
        super().startTest(test)  # type: ignore[misc]  # of the class beside this one


class _Result(_Beginning, unittest.TextTestResult):
    pass


class _RemoteResult(_Beginning, RemoteTestResult):
    pass


class _RemoteRunner(RemoteTestRunner):
    resultclass = _RemoteResult


class _ParallelSuite(ParallelTestSuite):
    runner_class = _RemoteRunner


class DelayqRunner(DiscoverRunner):
    """Django's test runner, with a clean start for each test: no jobs of earlier tests.

    Example::

        TEST_RUNNER = "django_delayq.testing.DelayqRunner"
    """

    parallel_test_suite = _ParallelSuite

    def get_resultclass(self) -> Any:
        chosen = super().get_resultclass()
        if chosen is None:
            return _Result
        return type("Result", (_Beginning, chosen), {})
