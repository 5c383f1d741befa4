"""Imports the modules that ``MODULES`` of a backend names: those whose tasks no ``tasks.py`` of an app has."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import show


def import_modules() -> None:
    """Import what the OPTIONS of our backends in ``TASKS`` name, for a worker.

    Raises:
        InvalidSettings: a module cannot be imported.
    """
    for alias, params in getattr(settings, "TASKS", {}).items():
        names = params.get("OPTIONS", {}).get("MODULES", ())
        for name in names if names and _is_ours(params) else ():
            try:
                import_module(name)
            except Exception as error:
                raise InvalidSettings(
                    f"TASKS[{alias!r}]['OPTIONS']['MODULES'] names {show(name)}, which cannot be imported:"
                    f" {type(error).__name__}: {error}. Correct the name, or the module: without it a worker can only hold"
                    " the jobs of its tasks"
                ) from error


def _is_ours(params: Mapping[str, Any]) -> bool:
    # On Django 5.2 it needs a package that most projects do not have.
    from django_delayq.backend import DelayqBackend

    backend = params["BACKEND"]
    found = import_string(backend) if isinstance(backend, str) else backend
    return isinstance(found, type) and issubclass(found, DelayqBackend)
