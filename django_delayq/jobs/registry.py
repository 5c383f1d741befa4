"""Maps names to the tasks of this process, and queues to the handlers of their foreign payloads.

A payload never names a module to import. It names a task that was registered when the ``tasks.py`` of an installed
app, or one of ``DELAYQ["MODULES"]``, was imported.
"""

from functools import lru_cache

from django_delayq.exceptions import InvalidTask, TaskNotFound
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.limit import Limit
from django_delayq.redaction import show
from django_delayq.suggestions import suggestion

_tasks: dict[str, TaskDefinition] = {}
_handlers: dict[str, TaskDefinition] = {}


def register(task: TaskDefinition) -> None:
    """Register a task under its name.

    Raises:
        InvalidTask: another function has the name, or another task has a limit of the same name and other numbers.
    """
    other = _tasks.get(task.name)
    if other is not None and not _is_same(other, task):
        raise InvalidTask(
            f"two tasks are named {task.name!r}: {_place(other)} and {_place(task)}; give one of them another name="
        )
    _check_limit(task)
    _tasks[task.name] = task
    _suggestion.cache_clear()


def register_handler(queue: str, task: TaskDefinition) -> None:
    """Register the handler of a queue's foreign payloads.

    Raises:
        InvalidTask: the queue has another handler.
    """
    other = _handlers.get(queue)
    if other is not None and not _is_same(other, task):
        raise InvalidTask(
            f"queue {queue!r} has two handlers: {_place(other)} and {_place(task)}; keep one"
        )
    _handlers[queue] = task


def get_task(name: str) -> TaskDefinition:
    """Return the task with this name.

    Raises:
        TaskNotFound: no task is registered under this name.
    """
    try:
        return _tasks[name]
    except KeyError:
        if "<locals>" in name:
            hint = " A task defined in a function cannot be imported by a worker; define it at the top of a module."
        else:
            hint = (
                f"{_suggestion(name)} Put it in tasks.py of an app in INSTALLED_APPS, name its module in DELAYQ['MODULES'],"
                f" or give name={show(name)} to the function that replaced it; a worker that has it runs its jobs."
            )
        raise TaskNotFound(
            f"no task is registered as {show(name)}.{hint}", name
        ) from None


def find_task(name: str) -> TaskDefinition | None:
    """Return the task with this name, or None."""
    return _tasks.get(name)


@lru_cache(maxsize=256)
def _suggestion(name: str) -> str:
    # Cached: after a deploy, a thousand jobs may name the same missing task. A comparison with many names takes
    # milliseconds, and holds the interpreter.
    return suggestion(name, _tasks)


def all_limits() -> dict[str, Limit]:
    """Return the limits of all tasks by name."""
    return {limit.name: limit for task in all_tasks() if (limit := task.options.limit)}


def get_handler(queue: str) -> TaskDefinition | None:
    """Return the handler of a queue's foreign payloads, or None."""
    return _handlers.get(queue)


def all_tasks() -> list[TaskDefinition]:
    """Return every registered task by name."""
    return [_tasks[name] for name in sorted(_tasks)]


def _check_limit(task: TaskDefinition) -> None:
    limit = task.options.limit
    if limit is None:
        return
    for other in _tasks.values():
        its = other.options.limit
        if its is None or its.name != limit.name or _is_same(other, task):
            continue
        if (its.concurrency, its.rate) != (limit.concurrency, limit.rate):
            raise InvalidTask(
                f"two limits are named {limit.name!r}: concurrency={its.concurrency!r}, rate={its.rate!r} at {_place(other)},"
                f" and concurrency={limit.concurrency!r}, rate={limit.rate!r} at {_place(task)}; give one of them another"
                " name, or both the same numbers"
            )


def _is_same(one: TaskDefinition, other: TaskDefinition) -> bool:
    # A reloaded module registers its functions a second time.
    return _place(one) == _place(other)


def _place(task: TaskDefinition) -> str:
    code = task.function.__code__
    return f"{task.function.__module__}.{task.function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
