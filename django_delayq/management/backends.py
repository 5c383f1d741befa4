"""Prepares a worker for Django's tasks, where ``TASKS`` has a backend of ours."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import show


def prepare_tasks() -> None:
    """Import the modules that ``MODULES`` of our backends name, and hear of the ends of tasks if somebody listens.

    Raises:
        InvalidSettings: a module cannot be imported.
    """
    ours = {alias: each for alias, each in _backends() if _is_ours(each)}
    for alias, params in ours.items():
        for name in params.get("OPTIONS", {}).get("MODULES", ()):
            try:
                import_module(name)
            except Exception as error:
                raise InvalidSettings(
                    f"TASKS[{alias!r}]['OPTIONS']['MODULES'] names {show(name)}, which cannot be imported:"
                    f" {type(error).__name__}: {error}. Correct the name, or the module: without it a worker can only hold"
                    " the jobs of its tasks"
                ) from error
    if ours:
        # As above: only now it is known that the package is needed, and there.
        from django_delayq.backend import ends

        ends.listen()


def _backends() -> Iterable[tuple[str, Mapping[str, Any]]]:
    tasks: Mapping[str, Mapping[str, Any]] = getattr(settings, "TASKS", {})
    return tasks.items()


def _is_ours(params: Mapping[str, Any]) -> bool:
    backend = params.get("BACKEND")
    if backend in _DJANGOS:
        return False
    # On Django 5.2 it needs a package that most projects do not have.
    from django_delayq.backend import DelayqBackend

    found = import_string(backend) if isinstance(backend, str) else backend
    return isinstance(found, type) and issubclass(found, DelayqBackend)


#: What most projects have, if they name no backend.
_DJANGOS = (None, "django.tasks.backends.immediate.ImmediateBackend")
