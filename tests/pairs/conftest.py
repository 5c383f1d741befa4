"""After a run of all seeds, says which pairs occurred too seldom, and fails it."""

import os
from typing import Any

import pytest

from tests.pairs import occurring


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    found = dict(report.user_properties).get(occurring.OCCURRED)
    if (
        report.when == "call"
        and found is not None
        and "PYTEST_XDIST_WORKER" not in os.environ
    ):
        occurring.note(found)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if occurring.is_whole() and occurring.missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not occurring.is_whole():
        return
    missing = occurring.missing()
    terminalreporter.section("pairs of features in the model")
    terminalreporter.write_line(
        f"{len(missing)} occurred fewer than {occurring.LEAST} times"
    )
    for pair, count in missing.items():
        terminalreporter.write_line(f"{count:4} {pair}")
