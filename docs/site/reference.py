"""Writes the pages of the public API, which Sphinx fills from docstrings: each public name once."""

import importlib
import inspect
import re
from pathlib import Path

import django_delayq
from django_delayq import signals
from django_delayq.codecs import values

#: What the comments in `django_delayq.__all__` call a group, and the title of its page.
TITLES = {
    "tasks and jobs": "Tasks and jobs",
    "pauses": "Pauses",
    "periodic schedules": "Periodic schedules",
    "limits": "Limits in code",
    "Redisson's objects": "Redisson's objects",
    "errors": "Exceptions",
}
#: Public names that have to be imported from a module: the title of a page, its modules and their names.
MODULES: dict[str, dict[str, list[str]]] = {
    "Test helpers": {
        "django_delayq.testing": importlib.import_module(
            "django_delayq.testing"
        ).__all__
    },
    "Signals of jobs": {
        "django_delayq.signals": [
            name for name in vars(signals) if name.startswith("job_")
        ]
    },
    "Statistics and workers in code": {
        "django_delayq.jobs.statistics": [
            "queue_statistics",
            "aqueue_statistics",
            "task_statistics",
            "atask_statistics",
            "tasks_statistics",
            "atasks_statistics",
            "statistics_totals",
            "astatistics_totals",
            "Span",
            "Series",
            "Totals",
        ],
        "django_delayq.jobs.workers": [
            "workers",
            "aworkers",
            "quiet_worker",
            "aquiet_worker",
            "stop_worker",
            "astop_worker",
            "Worker",
            "WorkerJob",
            "WorkerState",
        ],
    },
    "Contexts": {
        "django_delayq.context": ["Locale", "Scheduling", "being_scheduled"],
        "django_delayq.context.otel": ["OpenTelemetry"],
        "django_delayq.context.sentry": ["Sentry"],
    },
    "Django's tasks in code": {"django_delayq.backend": ["DelayqBackend", "sensitive"]},
    "Codecs and values of Java": {
        "django_delayq.codecs": [
            "get_codec",
            "ClassLayout",
            "MarshallingCodec",
            "Kryo5Codec",
        ],
        "django_delayq.codecs.values": [
            name
            for name, value in vars(values).items()
            if inspect.isclass(value)
            and value.__module__ == values.__name__
            and not name.startswith("_")
        ]
        + ["to_plain"],
        "django_delayq.codecs.guess": ["probable_codecs"],
    },
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
    own = {TITLES[group]: {"django_delayq": names} for group, names in groups().items()}
    return own | MODULES


def entry_of(module: str, name: str) -> list[str]:
    """Return the directive for one name."""
    value = getattr(importlib.import_module(module), name)
    if not inspect.isclass(value):
        kind = "function" if callable(value) else "data"
        return [f".. auto{kind}:: {module}.{name}", ""]
    kind = "exception" if issubclass(value, BaseException) else "class"
    return [
        f".. auto{kind}:: {module}.{name}",
        "   :members:",
        *(["   :show-inheritance:"] if kind == "exception" else []),
        "",
    ]


def write_pages(folder: Path) -> None:
    folder.mkdir()
    entries = []
    for title, modules in by_page().items():
        lines = [title, "=" * len(title), ""]
        for module, names in modules.items():
            lines += [
                f"Import from ``{module}``.",
                "",
                f".. py:currentmodule:: {module}",
                "",
            ]
            for name in names:
                lines += entry_of(module, name)
        entry = re.sub(r"\W+", "-", title.lower())
        (folder / f"{entry}.rst").write_text("\n".join(lines), "utf-8")
        entries.append(f"   {entry}")
    title = "Python API"
    head = [
        title,
        "=" * len(title),
        "",
        "Every public name, from its docstring.",
        "",
        ".. toctree::",
        "",
    ]
    (folder / "index.rst").write_text("\n".join([*head, *entries, ""]), "utf-8")
