"""What the backend takes from Django's tasks: from Django itself, or for Django 5.2 from the package ``django-tasks``.

Nothing else in this package knows which of the two it is.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING or find_spec("django.tasks") is not None:
    from django.tasks import (
        TaskContext,
        TaskResult,
        TaskResultStatus,
        signals,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.utils.json import normalize_json
else:
    from django_tasks import (
        TaskContext,
        TaskResult,
        TaskResultStatus,
        signals,
        task_backends,
    )
    from django_tasks import exceptions as _exceptions
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

    # Version 0.12 has another name for it than Django.
    InvalidTask = getattr(
        _exceptions, "InvalidTask", getattr(_exceptions, "InvalidTaskError", None)
    )

# Django's classes are generic only for type checkers.
if TYPE_CHECKING:
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]
    AnyContext: TypeAlias = TaskContext[..., Any]
else:
    AnyTask, AnyResult, AnyContext = Task, TaskResult, TaskContext

task_enqueued = signals.task_enqueued
task_started = signals.task_started
task_finished = signals.task_finished

__all__ = [
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
