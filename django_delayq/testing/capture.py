"""`captured` collects scheduled jobs in a list; `immediate` runs them at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from django.test import SimpleTestCase

from django_delayq.testing import mode
from django_delayq.testing.captured_jobs import Captured
from django_delayq.testing.immediate_jobs import Immediate
from django_delayq.testing.local_connection import InProcessServer
from django_delayq.testing.recorder import Recorder
from django_delayq.transport.server import Server


@contextmanager
def captured() -> Iterator[Captured]:
    """Collect scheduled jobs in a list, without running them and without a server.

    A job within a transaction of your code is collected when that commits. Unique keys work, and you can read, move and
    cancel jobs.

    Example::

        with captured() as jobs:
            place(order)
        jobs.assert_scheduled(cancel_unpaid, args=[order.pk], due_in=timedelta(minutes=15))
    """
    recorder = Recorder()
    with mode.serving(InProcessServer.to(recorder)):
        yield Captured(recorder)


@contextmanager
def immediate(*, raises: bool = True) -> Iterator[Captured]:
    """Run each job as soon as it is scheduled or its transaction commits, in this thread, without its delay.

    Jobs that a job schedules run after it, in order, before the first call returns. That call raises the first error of
    the tasks when all jobs have run, unless ``raises`` is False. ``Retry``, ``Snooze`` and ``Cancel`` work as in a worker,
    but no job runs a second time.

    Example::

        with immediate():
            schedule(cancel_unpaid, timedelta(minutes=15), order.pk)
        order.refresh_from_db()
    """
    recorder = Immediate(raises=raises)
    with mode.serving(InProcessServer.to(recorder)):
        yield Captured(recorder)


@cache
def _of_test(is_immediate: bool) -> Recorder:
    """Return the recorder of a mode that no test has asked for. It is emptied for each test."""
    watch_tests()
    return Immediate() if is_immediate else Recorder()


@cache
def watch_tests() -> None:
    """Have each test of Django's classes begin without the jobs of earlier tests, whatever runs the tests.

    Django sends no signal when a test begins. A test may renew what Django renews for each test, such as ``mail.outbox``.
    """
    call = SimpleTestCase.__call__

    @wraps(call)
    def begin(self: SimpleTestCase, result: Any = None) -> None:
        clear_captured()
        call(self, result)

    SimpleTestCase.__call__ = begin  # type: ignore[method-assign]


def captured_server() -> Server:
    """Return the server of tests that ask for none."""
    return InProcessServer.to(_of_test(False))


def immediate_server() -> Server:
    """Return the server of tests whose settings say ``immediate``."""
    return InProcessServer.to(_of_test(True))


def clear_captured() -> None:
    """Forget what was scheduled before this test."""
    for is_immediate in (False, True):
        _of_test(is_immediate).clear()
    # Nobody who does not use it imports it.
    frozen = sys.modules.get("django_delayq.testing.frozen")
    if frozen is not None:
        frozen.clear_frozen()
