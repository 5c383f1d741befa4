"""Prepares a worker for Django's tasks, where ``TASKS`` has our backend."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import show


def prepare_tasks() -> None:
    """Hear of the ends of tasks if somebody listens.

    Raises:
        InvalidSettings: our backend cannot be imported.
    """
    if _ours():
        # Only here it is known that the package for Django 5.2 is there.
        from django_delayq.backend import finished_signal as ends

        ends.listen()


def listening() -> AbstractContextManager[None]:
    """Hear of the ends of tasks while a test is its own worker.

    Raises:
        InvalidSettings: our backend cannot be imported.
    """
    if not _ours():
        return nullcontext()
    from django_delayq.backend import finished_signal as ends

    return ends.listening()


def _ours() -> dict[str, Mapping[str, Any]]:
    """Return the entries of ``TASKS`` whose backend is ours, by alias."""
    tasks: Mapping[str, Mapping[str, Any]] = getattr(settings, "TASKS", {})
    return {alias: each for alias, each in tasks.items() if _is_ours(alias, each)}


def _is_ours(alias: str, params: Mapping[str, Any]) -> bool:
    backend = params.get("BACKEND")
    try:
        found = import_string(backend) if isinstance(backend, str) else backend
    except ImportError as error:
        if not str(backend).startswith("django_delayq."):
            # Whoever uses that backend gets Django's own error.
            return False
        raise InvalidSettings(
            f"TASKS[{alias!r}] names {show(backend)}, which cannot be imported: {error}. Correct the name; for Django 5.2,"
            " pip install django-tasks"
        ) from error
    # Not imported here: on Django 5.2 it needs a package that most projects do not have.
    ours = sys.modules.get("django_delayq.backend")
    return (
        ours is not None
        and isinstance(found, type)
        and issubclass(found, ours.DelayqBackend)
    )
