"""Writes the pages of the public API, which Sphinx fills from docstrings: each public name once."""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path

import lists

import django_delayq
import pytest_delayq
from django_delayq import signals, testing
from django_delayq.codecs import values
from django_delayq.queues.redisson_object import RedissonObject

CODECS = ["ClassLayout", "MarshallingCodec", "Kryo5Codec"]
#: The types of Java that Python lacks.
VALUES = [
    name
    for name, value in vars(values).items()
    if inspect.isclass(value)
    and value.__module__ == values.__name__
    and not name.startswith("_")
]
#: What the comments in `django_delayq.__all__` call a group, and the title of its page if that is another.
TITLES = {
    "limits": "Limits in code",
    "workers and statistics": "Statistics and workers in code",
    "errors": "Exceptions",
}
#: Public names that have to be imported from a module: the title of a page, its modules and their names.
MODULES: dict[str, dict[str, list[str]]] = {
    "Test helpers": {
        "django_delayq.testing": testing.__all__,
        "pytest_delayq": [],
    },
    "Signals of jobs": {
        "django_delayq.signals": [
            name for name in vars(signals) if name.startswith("job_")
        ]
    },
    "Contexts": {
        "django_delayq.context": ["Locale", "Scheduling", "being_scheduled"],
        "django_delayq.context.otel": ["OpenTelemetry"],
        "django_delayq.context.sentry": ["Sentry"],
    },
    "Django's tasks in code": {"django_delayq.backend": ["DelayqBackend", "sensitive"]},
    "Models and admin": {
        "django_delayq.models": ["Job"],
        "django_delayq.admin": ["JobAdmin"],
    },
    "Codecs and values of Java": {
        "django_delayq.codecs": ["get_codec", *CODECS],
        "django_delayq.codecs.values": [*VALUES, "to_plain"],
        "django_delayq.codecs.guess": ["probable_codecs"],
    },
}
#: Classes that people call. Of others, the reference does not say how they are made.
MADE = {
    *(
        f"django_delayq.{name}"
        for name in (
            "Backoff",
            "Batch",
            "BlockingQueue",
            "Cancel",
            "DelayedQueue",
            "Durable",
            "Limit",
            "Retry",
            "Snooze",
        )
    ),
    "django_delayq.context.sentry.Sentry",
    *(f"django_delayq.codecs.{name}" for name in CODECS),
    *(f"django_delayq.codecs.values.{name}" for name in VALUES),
}
#: Members that only this package uses, Django's own, and the base class from which others are shown.
INTERNAL = {
    "Backoff": "delay_ms",
    "ClassLayout": "chain",
    "DelayqBackend": "*",
    "DelayqRunner": "*",
    "Durable": "with_, command, timeout_s",
    "Figures": "add, encode",
    "FoundJobs": "walk, count_at_most",
    "FrozenQueue": "server, start, stop",
    "Histogram": "add",
    "Job": "here, draft, take_headers, kept, claimed, options, wait_for_commit, leave_to_commit, note_commit, awaits_commit,"
    " is_unsent, was_sent, label, DoesNotExist, MultipleObjectsReturned",
    "JobAdmin": "actions, changelist_view, change_view",
    "Limit": "of_call",
    "LimitInForce": "words",
    "Locale": "*",
    "OpenTelemetry": "*",
    "Retry": "when",
    "Sentry": "*",
    "Snooze": "when",
}


def groups() -> dict[str, list[str]]:
    """Return the names in `django_delayq.__all__` by the comment above them."""
    found: dict[str, list[str]] = {}
    source = inspect.getsource(django_delayq).split("__all__ = [")[1].split("]")[0]
    names: list[str] = []
    for line in source.splitlines():
        if match := re.match(r"    # (.+)", line):
            names = found.setdefault(match[1], [])
        names += re.findall(r'"(\w+)"', line)
    return found


def by_page() -> dict[str, dict[str, list[str]]]:
    """Return the title of each page with the names of each module."""
    own = {
        TITLES.get(group) or group[0].upper() + group[1:]: {"django_delayq": names}
        for group, names in groups().items()
    }
    return own | MODULES


def entry_of(module: str, name: str) -> list[str]:
    """Return the directive for one name."""
    path = f"{module}.{name}"
    value = getattr(importlib.import_module(module), name)
    if not inspect.isclass(value):
        if callable(value):
            return [f".. autofunction:: {path}", ""]
        return [f".. autodata:: {path}", "   :no-value:", ""]
    is_error = issubclass(value, BaseException)
    lines = [f".. auto{'exception' if is_error else 'class'}:: {path}"]
    hidden = INTERNAL.get(name, "")
    if hidden != "*":
        lines += ["   :members:", f"   :exclude-members: {hidden}"]
    if issubclass(value, Enum) or hasattr(value, "_fields") or is_dataclass(value):
        # Its fields are named so that most need no comment.
        lines.append("   :undoc-members:")
    if name == "Pause":
        lines.append("   :inherited-members: tuple")
    if issubclass(value, RedissonObject):
        lines.append("   :inherited-members:")
    if is_error:
        lines.append("   :show-inheritance:")
    return [*lines, ""]


def fixtures() -> Iterator[str]:
    """Yield the entries of the fixtures of pytest, which are no functions."""
    for name, value in vars(pytest_delayq).items():
        if name.startswith("delayq"):
            yield from [f".. py:data:: {name}", ""]
            yield from (f"   {line}" for line in inspect.getdoc(value).splitlines())
            yield ""


def api_page(title: str, modules: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of the page on some public names."""
    yield from lists.title_of(title)
    for module, names in modules.items():
        if module == pytest_delayq.__name__:
            yield from lists.title_of("Fixtures of pytest", "-")
            yield from fixtures()
            continue
        yield from [f"Import from ``{module}``.", "", f".. py:currentmodule:: {module}"]
        yield ""
        for name in names:
            yield from entry_of(module, name)


def write_pages(folder: Path) -> None:
    """Write the pages of the API, of the commands and of the log."""
    folder.mkdir()
    contents = [
        *lists.title_of("Python API"),
        "Every public name, from its docstring. See also :doc:`Commands <commands>` and :doc:`Log lines <log-lines>`.",
        *["", ".. toctree::", "   :maxdepth: 2", ""],
    ]
    for title, modules in by_page().items():
        name = re.sub(r"\W+", "-", title.lower())
        text = "\n".join([*api_page(title, modules), ""])
        (folder / f"{name}.rst").write_text(text, "utf-8")
        contents.append(f"   {name}")
    written = {
        "index": contents,
        "commands": lists.commands_page(),
        "log-lines": lists.log_page(),
    }
    for name, lines in written.items():
        (folder / f"{name}.rst").write_text("\n".join([*lines, ""]), "utf-8")
