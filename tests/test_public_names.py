import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import django_delayq
from django_delayq import delayed_task, exceptions

ROOT = Path(__file__).parent.parent

ERRORS = {
    name
    for name, value in vars(exceptions).items()
    if inspect.isclass(value) and value.__module__ == exceptions.__name__
}
#: `tests/surface.txt` holds them.
NAMES = set(django_delayq.__all__) - ERRORS


def test_all_has_each_error_and_each_name_once() -> None:
    assert set(django_delayq.__all__) >= ERRORS
    assert len(django_delayq.__all__) == len(NAMES | ERRORS)


@pytest.mark.parametrize("name", sorted(NAMES | ERRORS))
def test_name_is_there_with_a_docstring_of_its_own(name: str) -> None:
    value = getattr(django_delayq, name)

    assert inspect.getdoc(value)
    assert value.__module__.startswith("django_delayq.")


def test_star_brings_exactly_these_names() -> None:
    namespace: dict[str, object] = {}

    exec("from django_delayq import *", namespace)

    assert namespace.keys() - {"__builtins__"} == NAMES | ERRORS


def test_no_name_is_that_of_a_submodule() -> None:
    """Whichever was imported last would win."""
    modules = {path.stem for path in (ROOT / "django_delayq").iterdir()}

    assert modules & set(django_delayq.__all__) == set()


def run_python(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        cwd=ROOT,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_no_settings_and_starts_nothing() -> None:
    told = run_python(
        """
        import threading
        import django_delayq
        from django.apps import apps
        from django.conf import settings
        assert not settings.configured and not apps.ready
        print(threading.active_count(), django_delayq.__version__)
        """
    )

    assert told == f"1 {django_delayq.__version__}\n"


def test_tasks_can_be_decorated_before_django_is_set_up() -> None:
    told = run_python(
        """
        from django_delayq import delayed_task, queue_handler

        @delayed_task(queue="mail", max_attempts=3, name="send")
        def send(to): return to

        @queue_handler("orders", name="handle")
        def handle(value): return value

        print(send(1), handle(2))
        """
    )

    assert told == "1 2\n"


def test_importing_any_module_makes_no_logger_of_ours() -> None:
    """Settings may import the package: `LOGGING` disables the loggers that exist when Django applies it."""
    told = run_python(
        """
        import importlib
        import logging
        import pkgutil

        import django
        from django.conf import settings

        import django_delayq, pytest_delayq

        for name in django_delayq.__all__:
            getattr(django_delayq, name)
        # Most modules need no app registry; the rest are imported by Django, or after it is set up.
        settings.configure(
            INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.messages",
                "django.contrib.sessions", "django.contrib.admin", "django_delayq", "django_delayq.outbox"],
        )
        django.setup()
        count = 0
        for module in pkgutil.walk_packages(django_delayq.__path__, "django_delayq."):
            if module.name != "django_delayq.embedded.guardian":
                importlib.import_module(module.name)
                count += 1
        assert count > 200, count
        print([name for name in logging.root.manager.loggerDict if name.startswith("django_delayq")])
        """
    )

    assert told == "[]\n"


def test_logs_of_a_project_whose_settings_import_the_package_are_written(
    tmp_path: Path,
) -> None:
    """`disable_existing_loggers` is Django's default."""
    (tmp_path / "project_settings.py").write_text(
        textwrap.dedent(
            """
            from django_delayq import Backoff, Durable

            INSTALLED_APPS = ["django_delayq"]
            DELAYQ = {"QUEUES": {"default": {"RETRY": Backoff()}}}
            LOGGING = {
                "version": 1,
                "handlers": {"it": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
                "root": {"handlers": ["it"]},
            }
            """
        )
    )

    told = run_python(
        f"""
        import os, sys
        sys.path.insert(0, {str(tmp_path)!r})
        os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
        import django
        django.setup()
        from django_delayq.features.pauses import api as pauses
        from django_delayq.jobs import commit
        from django_delayq.queues import reading
        for module in (commit, pauses, reading):
            module.logger.warning("it is read: %s", module.logger.name)
        """
    )

    assert told.count("it is read: django_delayq") == 3


def test_version_is_one_that_installers_order() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", django_delayq.__version__)


# Examples.


def examples_of(name: str) -> list[str]:
    """Return the code of the examples in a docstring."""
    found = re.findall(
        r"^Example::\n\n((?:    .*\n|\n)+)",
        f"{inspect.getdoc(getattr(django_delayq, name))}\n",
        re.MULTILINE,
    )
    return [textwrap.dedent(code) for code in found]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_name_has_an_example(name: str) -> None:
    """An async twin has that of the other."""
    is_twin = name[0] == "a" and name[1:] in NAMES

    text = inspect.getdoc(getattr(django_delayq, name)) or ""

    assert is_twin or examples_of(name) or f"``{name}(" in text


@pytest.mark.parametrize("name", sorted(NAMES | ERRORS))
def test_examples_are_python(name: str) -> None:
    for code in examples_of(name):
        compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@delayed_task
def remind(order: object) -> None:
    pass


@pytest.mark.parametrize(
    "name",
    sorted(
        ERRORS
        # What needs a server, a worker or other settings.
        - {"ScheduleNotFound", "LeaseLost", "InvalidSettings"}
    ),
)
def test_example_raises_what_it_says(name: str) -> None:
    for code in examples_of(name):
        if f"# raises {name}" in code:
            known = {each: getattr(django_delayq, each) for each in NAMES}
            with pytest.raises(getattr(exceptions, name)):
                exec(
                    code, known | {"remind": remind, "order": SimpleNamespace(pk=4711)}
                )


# Errors.


def test_every_error_is_one_of_ours_and_says_when_it_is_raised() -> None:
    for name in ERRORS - {"DelayqError"}:
        error = getattr(exceptions, name)
        assert issubclass(error, exceptions.DelayqError)
        assert (error.__doc__ or "").startswith("Raised ")


def test_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(
        r"^(?:│   )?[├└]── (\w+)", exceptions.__doc__ or "", re.MULTILINE
    )

    assert len(drawn) == len(set(drawn))
    assert set(drawn) == ERRORS - {"DelayqError"}


# What we show is what we export.


def shown_names() -> set[tuple[str, str]]:
    """Return the names that documents and examples import from the package itself, each with its file."""
    shown = set()
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("example_project/**/*.py"),
    ]
    for path in files:
        text = path.read_text("utf-8")
        found = re.findall(
            r"^\s*from django_delayq import (\([^)]*\)|[^\n]+)", text, re.MULTILINE
        )
        for names in found:
            for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names)):
                shown.add((name, path.name))
    return shown


def test_documents_and_examples_import_public_names_only() -> None:
    allowed = (
        NAMES | ERRORS | {"testing", "metrics"}
    )  # modules, for those who want them

    assert {item for item in shown_names() if item[0] not in allowed} == set()
