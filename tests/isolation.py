"""What the process remembers from one test to the next, and how each test is kept from the others.

A test sees the tasks and handlers of the modules that its own module imports, directly or through others of
``tests``, and what it registers itself. What it registers, or changes in the state named here, ends with it.
Import a module of tasks at the top of the test's module: an import inside a test registers for that test alone.
"""

import functools
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from django_delayq.jobs import outbox, registry
from django_delayq.queues import reading
from django_delayq.worker import payload

#: Handlers of these are the process's own; a command that runs inside a test may set them.
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)
ROOT = "tests"


class Registrations:
    """Every task and handler that the import of a test module registered, by the module that did."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}
        self._handlers: dict[str, Any] = {}

    def note(self) -> None:
        """Remember what is registered now: imported modules do not register again."""
        self._tasks.update(registry._tasks)
        self._handlers.update(registry._handlers)

    @contextmanager
    def seen_by(self, module: ModuleType) -> Iterator[None]:
        """Show a test what its module brings, and forget what it adds."""
        modules = reached_from(module.__name__)
        for kept, known in (
            (registry._tasks, self._tasks),
            (registry._handlers, self._handlers),
        ):
            kept.clear()
            kept.update(
                (name, task)
                for name, task in known.items()
                if is_visible(task.function.__module__, modules)
            )
        yield
        registry._tasks.clear()
        registry._handlers.clear()


def is_visible(name: str, modules: set[str]) -> bool:
    """Return whether a task's module is the product's, or one of those that the test's module reaches."""
    return name in modules or name.partition(".")[0] != ROOT


@functools.cache  # what a module imports at its top does not change; the tests of a module follow each other
def reached_from(module: str) -> set[str]:
    """Return the names of the modules of ``tests`` that a module, its conftests included, has imported something of."""
    package = module
    todo = [package]
    while package := package.rpartition(".")[0]:
        todo.append(f"{package}.conftest")
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        found = sys.modules.get(name)
        if found is None or name in reached or name.partition(".")[0] != ROOT:
            continue
        reached.add(name)
        for value in vars(found).values():
            if isinstance(value, ModuleType):
                todo.append(value.__name__)
            else:
                of = getattr(value, "__module__", None)
                if isinstance(of, str):
                    todo.append(of)
    return reached


@contextmanager
def restored() -> Iterator[None]:
    """Put back what a test changes in the process besides its registrations."""
    told = [(known, set(known)) for known in (reading._told, payload._told)]
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    root = logging.getLogger()
    loggers = (root, logging.getLogger("django_delayq"))
    logged = [
        (logger, logger.level, logger.propagate, logger.disabled, [*logger.handlers])
        for logger in loggers
    ]
    path = [*sys.path]
    interval_s = sys.getswitchinterval()
    # A test that changes INSTALLED_APPS has Django call ready() of each app again, which installs the outbox. Workers
    # of later tests would then look for rows in the databases in memory, whose connections close() leaves open.
    installed = outbox.installed()
    yield
    outbox.install(installed)
    for known, before in told:
        known.clear()
        known.update(before)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    for logger, level, propagate, disabled, its_handlers in logged:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.disabled = disabled
        logger.handlers[:] = its_handlers
    sys.path[:] = path
    sys.setswitchinterval(interval_s)
