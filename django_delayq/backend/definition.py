"""A function of Django's ``@task``: the Task that a project holds, and the definition that workers and the admin know.

The decorator registers the definition under the path of the function. So a worker runs only what it has imported: no
payload names a module to import.
"""

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from django.utils import timezone

from django_delayq.backend.upstream import AnyTask, InvalidTask, Task
from django_delayq.conf import Backoff
from django_delayq.exceptions import InvalidTask as NoTask
from django_delayq.jobs import registry
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.options import OnDuplicate, Seconds, TaskOptions


class Options(TypedDict, total=False):
    """The options of `delayed_task` that a Task may have, beside Django's own."""

    max_attempts: int | None
    backoff: Backoff | None
    time_limit: Seconds | None
    unique: bool | tuple[str, ...] | Callable[..., str]
    unique_until: Literal["end", "start"]
    on_duplicate: OnDuplicate | tuple[OnDuplicate, ...]
    max_wait: Seconds | None
    expires: Seconds | None
    on_expiry: Literal["drop", "dead"]
    spread: Seconds | None


#: Their names. None, or what the decorator has by default, leaves an option to the backend's OPTIONS and the queue.
OPTIONS = tuple(Options.__annotations__)


class Plan(NamedTuple):
    """How the calls of a Task are scheduled: what can be worked out before the first."""

    #: What the backend's OPTIONS were then.
    defaults: TaskOptions
    definition: "BackendTask"


class _Planned(AnyTask):
    # No field of the dataclass: a copy, or what comes out of a pickle, makes a plan of its own.
    __slots__ = ("plan",)

    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayqTask(_Planned):
    """A function of Django's ``@task`` whose backend is ours."""

    #: When it is to run: an aware datetime, or how long after the call of `enqueue`.
    run_after: datetime | timedelta | None = None  # type: ignore[assignment]
    #: As `TaskOptions` has them.
    max_attempts: int | None = None
    backoff: Backoff | None = None
    time_limit: Seconds | None = None
    unique: bool | tuple[str, ...] | Callable[..., str] = False
    unique_until: Literal["end", "start"] = "end"
    on_duplicate: OnDuplicate | tuple[OnDuplicate, ...] = "keep"
    max_wait: Seconds | None = None
    expires: Seconds | None = None
    on_expiry: Literal["drop", "dead"] = "drop"
    spread: Seconds | None = None

    def __post_init__(self) -> None:
        set_plan(self, None)
        if isinstance(self.run_after, timedelta) and not issubclass(
            self.get_backend().task_class, DelayqTask
        ):
            # Other backends know moments only.
            object.__setattr__(self, "run_after", timezone.now() + self.run_after)
        Task.__post_init__(self)

    # A new instance by `replace`, as Django has it. It calls no `super()`, which knows only the class before its slots.
    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        **options: Unpack[Options],
    ) -> "DelayqTask":
        """Return this task with other values, for the calls made through it.

        Raises:
            InvalidTask: of Django: an option is unknown, or has a value that it cannot have.
        """
        given = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
        }
        changes: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        for name in options:
            if name not in OPTIONS:
                raise InvalidTask(
                    f"using() of task {self.module_path!r} has no option {name!r}; it has priority, queue_name, run_after,"
                    f" backend, {', '.join(OPTIONS)}"
                )
        return replace(self, **changes, **options)

    def options_over(self, defaults: TaskOptions) -> TaskOptions:
        """Return the options of its jobs.

        Raises:
            django_delayq.InvalidTask: one has a value that it cannot have.
        """
        given = {
            name: value
            for name in OPTIONS
            if (value := getattr(self, name)) is not None and value is not False
        }
        return replace(
            defaults, queue=self.queue_name, priority=int(self.priority), **given
        )


def set_plan(task: DelayqTask, plan: Plan | None) -> None:
    # The class is frozen, for its users.
    object.__setattr__(task, "plan", plan)


class BackendTask(TaskDefinition):
    """What workers and the admin know about a function of Django's ``@task``."""

    def __init__(
        self, task: DelayqTask, function: Callable[..., Any], options: TaskOptions
    ) -> None:
        """Describe a task; ``function`` is what a worker calls."""
        super().__init__(function, task.module_path, options)
        #: As the decorator made it.
        self.task = task
        # `schedule()` would take a number in that place for a delay that was forgotten. A call of `enqueue` has none.
        self.optional_first = ""

    def with_options(self, options: TaskOptions) -> "BackendTask":
        """Return this definition with other options, for the calls of one Task."""
        other = copy.copy(self)
        other.options = options
        return other


def check_path(task: AnyTask) -> None:
    """Make sure that the path of a function leads to its Task; nothing is imported for that.

    Raises:
        InvalidTask: of Django: it leads to something else, so a worker cannot tell what to run.
    """
    func = task.func
    found: Any = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Task) or found.func is not func:
        what = "a Task of another function" if isinstance(found, Task) else "no Task"
        raise InvalidTask(
            f"{task.module_path!r} should lead to a Task of this function, and leads to {what}: a worker finds a task by the"
            " module and name of its function. Decorate the function where it is defined, and keep its name"
        )


def plan_of(
    task: DelayqTask,
    defaults: TaskOptions,
    wrap: Callable[[DelayqTask], Callable[..., Any]],
) -> Plan:
    """Register a task's function, if that is not done yet, and work out how its calls are scheduled.

    ``wrap`` makes what a worker calls.

    Raises:
        InvalidTask: of Django: another function has its path, or an option has a value that it cannot have.
    """
    try:
        options = task.options_over(defaults)
        known = _registered(task)
        if known is None:
            known = BackendTask(task, wrap(task), options)
            registry.register(known)
            return Plan(defaults, known)
        if isinstance(options.unique, tuple):
            # The definition was made with other options, so nothing has looked at these names.
            TaskDefinition(known.function, known.name, options)
        return Plan(defaults, known.with_options(options))
    except NoTask as error:
        raise InvalidTask(f"task {task.module_path!r}: {error}") from error


def _registered(task: DelayqTask) -> BackendTask | None:
    """Return the definition of the same function; None: there is none yet, or a reloaded module has brought another."""
    known = registry.find_task(task.module_path)
    if not isinstance(known, BackendTask):
        # If it is a task of another kind, `register` says so.
        return None
    if known.task.func is task.func:
        return known
    if _place(known.task) != _place(task):
        raise NoTask(
            f"two functions have this path: {_place(known.task)} and {_place(task)}; give one of them another name"
        )
    return None


def _place(task: DelayqTask) -> str:
    code = inspect.unwrap(task.func).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
