"""A project made as the README's "Start" says: its tests run with no further line, whatever runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.settings import TIME_ZONE

TESTS = """
from datetime import timedelta

from django.test import TestCase, TransactionTestCase
from django_delayq.testing import captured, frozen_queue

from shop.models import Order
from shop.tasks import cancel_unpaid, remind


class CapturedTest(TestCase):
    def test_nothing_is_said_and_nothing_runs(self):
        job = remind.schedule(60, 1)
        self.assertEqual(job.refresh(), "scheduled")
        self.assertFalse(remind.schedule(60, 1).created)

    def test_next_test_begins_without_those_jobs(self):
        self.assertTrue(remind.schedule(60, 1).created)


class CommitTest(TransactionTestCase):
    def test_commit_sends_the_job(self):
        order = Order.objects.create()
        with frozen_queue() as q:
            cancel_unpaid.schedule(timedelta(minutes=15), order.pk)
            q.advance(minutes=15)
        order.refresh_from_db()
        self.assertEqual(order.status, "cancelled")
"""
PYTEST = """
import pytest

from shop.models import Order
from shop.tasks import cancel_unpaid, remind


def test_nothing_is_said_and_nothing_runs():
    assert remind.schedule(60, 1).created


def test_next_test_begins_without_those_jobs():
    assert remind.schedule(60, 1).created


def test_captured(delayq):
    remind.schedule(60, 1)
    delayq.assert_scheduled(remind, args=[1], due_in=60)


@pytest.mark.django_db
def test_frozen(delayq_frozen, django_capture_on_commit_callbacks):
    order = Order.objects.create()
    with django_capture_on_commit_callbacks(execute=True):
        cancel_unpaid.schedule(900, order.pk)
    delayq_frozen.advance(minutes=15)
    order.refresh_from_db()
    assert order.status == "cancelled"


@pytest.mark.parametrize("n", [1, 2])
def test_server_is_empty(delayq_server, n):
    assert remind.schedule(60, 1).created


@pytest.mark.django_db(transaction=True)
def test_worker(delayq_worker):
    order = Order.objects.create()
    cancel_unpaid.schedule(0, order.pk)
    delayq_worker.wait_until_idle()
    order.refresh_from_db()
    assert order.status == "cancelled"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    run(folder, "-m", "django", "startproject", "site_", ".")
    run(folder, "manage.py", "startapp", "shop")
    settings = folder / "site_" / "settings.py"
    settings.write_text(
        settings.read_text()
        + f"\nTIME_ZONE = {TIME_ZONE!r}\n"
        + "INSTALLED_APPS += ['django_delayq', 'shop']\n"
        + "import os\n"
        + "DELAYQ = {'TEST': os.environ['TEST_MODE']} if 'TEST_MODE' in os.environ else {}\n"
    )
    (folder / "shop" / "models.py").write_text(
        "from django.db import models\n\n\n"
        "class Order(models.Model):\n"
        "    status = models.CharField(max_length=20, default='unpaid')\n"
    )
    (folder / "shop" / "tasks.py").write_text(
        "from django_delayq import delayed_task\n\nfrom .models import Order\n\n\n"
        "@delayed_task(on_commit=True)\n"
        "def cancel_unpaid(order_id):\n"
        "    Order.objects.filter(pk=order_id, status='unpaid').update(status='cancelled')\n\n\n"
        "@delayed_task(unique=True)\n"
        "def remind(order_id):\n"
        "    raise AssertionError('a test has run it')\n"
    )
    (folder / "shop" / "tests.py").write_text(TESTS)
    (folder / "test_shop.py").write_text(PYTEST)
    run(folder, "manage.py", "makemigrations", "shop")
    return folder


def run(folder: Path, *args: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    kept.pop("DJANGO_SETTINGS_MODULE", None)
    done = forked.run(
        [sys.executable, *args],
        cwd=folder,
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_manage_py_test_needs_no_further_line(project: Path) -> None:
    assert "Ran 3 tests" in run(project, "manage.py", "test")


def test_tests_may_run_in_parallel(project: Path) -> None:
    assert "Ran 3 tests" in run(project, "manage.py", "test", "--parallel", "2")


def test_pytest_needs_no_further_line(project: Path, embedded_server: None) -> None:
    told = run(project, "-m", "pytest", "-q", DJANGO_SETTINGS_MODULE="site_.settings")

    assert "7 passed" in told


@pytest.mark.parametrize("parallel", [(), ("--parallel", "2")])
def test_runner_gives_each_test_an_empty_server(
    project: Path, embedded_server: None, parallel: tuple[str, ...]
) -> None:
    runner = ("--testrunner", "django_delayq.testing.DelayqRunner")

    told = run(project, "manage.py", "test", *runner, *parallel, TEST_MODE="server")

    assert "Ran 3 tests" in told


def test_captured_needs_no_lua(project: Path) -> None:
    """The README's "Start" installs the package alone."""
    told = run(
        project,
        # A new interpreter, which has imported nothing.
        *("-X", "utf8", "-c"),
        "import sys; sys.modules.update(dict.fromkeys(('lupa', 'lupa.lua51', 'time_machine'))); import manage;"
        " sys.argv[1:] = ['test', 'shop.tests.CapturedTest']; manage.main()",
    )

    assert "Ran 2 tests" in told


def test_plugin_imports_neither_django_nor_the_package() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pytest; before = set(sys.modules); import pytest_delayq;"
            " print(sorted(name for name in set(sys.modules) - before if 'pytest' not in name))",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={key: value for key, value in os.environ.items() if "DJANGO" not in key},
    )

    assert told.stdout == "[]\n"
