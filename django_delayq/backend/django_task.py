"""A function of Django's ``@task``: the Task that a project holds, and the definition that workers and the admin know.

The decorator registers the definition under the path of the function. So a worker runs only what it has imported: no
payload names a module to import.
"""

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, TypeVar, Unpack

from django.utils import timezone

from django_delayq import conf
from django_delayq.backend.upstream import (
    AnyResult,
    AnyTask,
    InvalidTask,
    Task,
    task_backends,
)
from django_delayq.backoff import Backoff
from django_delayq.core.durability import Durability
from django_delayq.exceptions import InvalidTask as NoTask
from django_delayq.jobs import registry
from django_delayq.jobs.definition import TaskDefinition, signature_of
from django_delayq.jobs.options import OnDuplicate, Seconds, SharedOptions, TaskOptions
from django_delayq.redaction import show
from django_delayq.wire.delay import Delay

F = TypeVar("F", bound=Callable[..., Any])

#: The options of `delayed_task` that a Task may have, beside Django's own. None, or what the decorator has by default, leaves an option to the backend's OPTIONS and the queue.
OPTIONS = tuple(SharedOptions.__annotations__)


_options_of = attrgetter("queue_name", "priority", *OPTIONS)
#: Of a function, so many combinations of options are remembered.
MOST_VARIANTS = 64
#: What `sensitive` sets on a function.
_SENSITIVE = "_delayq_sensitive"


def sensitive(*names: str) -> Callable[[F], F]:
    """Hide the values of these parameters in pages, logs and errors. Put this decorator below ``@task``.

    Example::

        @task
        @sensitive("token")
        def call(url, token): ...

    Raises:
        InvalidTask: of Django: there are no names, or the decorator is above ``@task``. ``@task`` itself raises it for a
            name that is not a parameter of the function.
    """
    if not names or not all(isinstance(name, str) and name for name in names):
        told = ", ".join(map(show, names))
        raise InvalidTask(
            f"@sensitive({told}): give the names of parameters, such as @sensitive('token')"
        )

    def mark(function: F) -> F:
        if isinstance(function, Task):
            raise InvalidTask(
                f"@sensitive is above @task of {function.module_path!r}, where it has no effect: put it below"
            )
        setattr(function, _SENSITIVE, names)
        return function

    return mark


class Plan:
    """How the calls of a Task are scheduled: what can be worked out before the first."""

    __slots__ = ("alias", "backend", "definition", "delay", "is_checked", "settings")

    def __init__(self, backend: Any, definition: "BackendTask", delay: Delay) -> None:
        #: The TASKS of then, and the backend's alias in it: the plan counts as long as these are the same.
        self.settings = task_backends.settings
        self.alias = backend.alias
        self.definition = definition
        #: As `prepare` takes it.
        self.delay = delay
        #: The backend, if it may serve other threads than its own.
        self.backend = backend if backend.is_of_all_threads else None
        #: Whether the path of the function was found to lead to its Task.
        self.is_checked = False

    @property
    def counts(self) -> bool:
        return self.settings is task_backends.settings


class _Planned(AnyTask):
    # No field of the dataclass: a copy, or what comes out of a pickle, makes a plan of its own.
    __slots__ = ("plan",)

    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayqTask(_Planned):
    """A function of Django's ``@task`` with this backend."""

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
    durable: Durability | None = None

    def __post_init__(self) -> None:
        set_plan(self, None)
        if isinstance(self.run_after, timedelta) and not issubclass(
            self.get_backend().task_class, DelayqTask
        ):
            # Other backends know moments only.
            object.__setattr__(self, "run_after", timezone.now() + self.run_after)
        Task.__post_init__(self)

    def enqueue(self, *args: Any, **kwargs: Any) -> AnyResult:
        """Schedule a call; see `DelayqBackend.enqueue`."""
        # A copy has none.
        plan: Plan | None = getattr(self, "plan", None)
        # To ask Django for the backend of this thread takes a tenth of the time of the call.
        if (
            plan is not None
            and plan.backend is not None
            and plan.settings is task_backends.settings
        ):
            result: AnyResult = plan.backend.enqueue(self, args, kwargs)
            return result
        return self.get_backend().enqueue(self, args, kwargs)  # type: ignore[arg-type]

    # A new instance by `replace`, as Django has it. It calls no `super()`, which knows only the class before its slots.
    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        **options: Unpack[SharedOptions],
    ) -> "DelayqTask":
        """Return this task with other options for its calls.

        Raises:
            InvalidTask: of Django: an option is unknown, or has a wrong value.
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
            if (value := getattr(self, name)) is not None
            and (value is not False or name == "durable")
        }
        return replace(
            defaults,
            queue=self.queue_name,
            priority=int(self.priority),
            sensitive=getattr(self.func, _SENSITIVE, ()),
            **given,
        )


def set_plan(task: DelayqTask, plan: Plan | None) -> None:
    # The class is frozen, for its users.
    object.__setattr__(task, "plan", plan)


def unchecked(task: DelayqTask, **changes: Any) -> DelayqTask:
    """Return a task with other values, which no backend is asked about."""
    made = object.__new__(type(task))
    for field in fields(task):
        value = changes.get(field.name, getattr(task, field.name))
        object.__setattr__(made, field.name, value)
    set_plan(made, None)
    return made


def in_queue(task: DelayqTask, queue: str) -> DelayqTask:
    """Return a task as a call that went to this queue has it."""
    if task.queue_name == queue:
        return task
    # Jobs of a queue with shards are in one of them.
    whole = conf.get_settings().whole(queue)
    return task if task.queue_name == whole else unchecked(task, queue_name=whole)


class BackendTask(TaskDefinition):
    """The data of workers and the admin on a function of Django's ``@task``."""

    takes_delay = False
    # As Django's contract has it: a backend sends at once, unless its own OPTIONS say otherwise.
    heeds_on_commit = False

    def __init__(
        self,
        task: DelayqTask,
        sender: type,
        function: Callable[..., Any],
        options: TaskOptions,
    ) -> None:
        """Describe a task; ``function`` is what a worker calls, ``sender`` that of Django's signals."""
        super().__init__(function, task.module_path, options)
        if task.takes_context:
            # Django insists on the name.
            context = signature_of(task.func).parameters.get("context")
            if context is not None and context.kind is context.POSITIONAL_OR_KEYWORD:
                self.filled = "context"
        self.sender = sender
        #: As the decorator made it.
        self.task = task
        # With the defaults, so that their id stays their own.
        self._variants: dict[
            tuple[int, tuple[Any, ...]], tuple[TaskOptions, BackendTask]
        ] = {}

    def variant(self, task: DelayqTask, defaults: TaskOptions) -> "BackendTask":
        """Return this definition with the options of another Task of the function.

        Raises:
            django_delayq.InvalidTask: one has a value that it cannot have.
        """
        # Many projects call using(run_after=…) before each call.
        key = (id(defaults), _options_of(task))
        try:
            found = self._variants.get(key)
        except TypeError:
            # One of them cannot be hashed, such as a list, and is none that an option can have.
            task.options_over(defaults)
            raise
        if found is not None:
            return found[1]
        options = task.options_over(defaults)
        other = self
        if options != self.base:
            if isinstance(options.unique, tuple):
                # This was made with other options, so nothing has looked at these names.
                TaskDefinition(self.function, self.name, options)
            other = copy.copy(self)
            other.options = options
            # Another backend's OPTIONS may say something else about the commit.
            other._decided_for = None
        if len(self._variants) >= MOST_VARIANTS:
            self._variants.clear()
        self._variants[key] = (defaults, other)
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
            f"{task.module_path!r} should lead to a Task of this function, but leads to {what}: a worker finds a"
            " task by the"
            " module and name of its function. Decorate the function where it is defined, and keep its name"
        )


def definition_of(
    task: DelayqTask,
    sender: type,
    defaults: TaskOptions,
    wrap: Callable[[DelayqTask, type], Callable[..., Any]],
) -> BackendTask:
    """Register a task's function, if that is not done yet, and return the definition for its calls.

    ``wrap`` makes what a worker calls.

    Raises:
        InvalidTask: of Django: another function has its path, or an option has a value that it cannot have.
    """
    try:
        known = _registered(task)
        if known is None:
            options = task.options_over(defaults)
            known = BackendTask(task, sender, wrap(task, sender), options)
            registry.register(known)
            return known
        return known.variant(task, defaults)
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
