"""``@delayed_task``: makes a function that can be scheduled, and can still be called directly."""

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

from redis.exceptions import RedisError

from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import (
    CallOptions,
    DecoratorOptions,
    HandlerOptions,
    TaskOptions,
    is_unicode,
)
from django_delayq.jobs.other_shard import asend_elsewhere, send_elsewhere
from django_delayq.jobs.prepare import prepare
from django_delayq.jobs.registry import get_task, register, register_handler
from django_delayq.jobs.run_once import running_once
from django_delayq.jobs.send import asend, send
from django_delayq.redaction import show
from django_delayq.wire.delay import Delay

P = ParamSpec("P")
R = TypeVar("R")
#: What a call of the function returns. Covariant: a checker may give the call of an async one a subtype of Coroutine.
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

#: The longest name of a task, bytes.
MAX_NAME = 512
#: Methods that the tasks of other libraries have, and what to write here instead.
HINTS = {
    "delay": ".schedule(0, …) runs it in a worker at once, .schedule(90, …) in 90 seconds",
    "apply_async": ".schedule(delay, …) takes the delay first, then the arguments of the function",
    "delay_on_commit": ".schedule(0, …) sends it after the commit of a transaction",
    "apply_async_on_commit": ".schedule(delay, …) sends it after the commit of a transaction",
    "enqueue": ".schedule(0, …) runs it in a worker at once",
    "aenqueue": "await .aschedule(0, …) runs it in a worker at once",
    "send": ".schedule(0, …) runs it in a worker at once",
    "send_with_options": ".using(…).schedule(delay, …) changes options for a call",
    "s": ".prepare(delay, …) makes a job that schedule() sends",
    "si": ".prepare(delay, …) makes a job that schedule() sends",
    "signature": ".prepare(delay, …) makes a job that schedule() sends",
}


class _Hint:
    """A missing attribute whose error says what to use. A `__getattr__` would slow down the existing attributes."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def __get__(self, task: object, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}: {self._text}",
            name=self._name,
            obj=task,
        )


#: Options that only the decorator takes, and why.
FIXED = {
    "name": "workers find the task by it",
    "retry_on": "exceptions do not travel with a job",
    "no_retry_on": "exceptions do not travel with a job",
    "limit": "workers read it from the decorator",
    "sensitive": "pages and workers read it from the decorator",
    "encrypt": "it covers everything that the server stores about the task",
    "once": "the decorator wraps the function that workers run",
}


class DelayedTask(TaskDefinition, Generic[P, R_co]):
    """A registered function. A call runs it in this process; `schedule` runs it later, in a worker.

    Example::

        cancel_unpaid(order.pk)                # here and now
        cancel_unpaid.schedule(900, order.pk)  # in a worker, in 15 minutes
    """

    def __init__(
        self,
        function: Callable[P, R_co],
        name: str,
        options: TaskOptions,
        base: TaskOptions | None = None,
    ) -> None:
        # This comes first, so that the function's own attributes cannot replace the fields set below.
        functools.update_wrapper(self, function)
        super().__init__(function, name, options, base)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        result: R_co = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<delayed_task {self.name}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__

    def using(self, **options: Unpack[CallOptions]) -> "DelayedTask[P, R_co]":
        """Return this task with other options for its calls.

        Example::

            send_receipt.using(queue="bulk", priority=-10).schedule(60, order.pk)

        Raises:
            InvalidTask: an option is unknown, has a wrong value, or belongs to the decorator.
        """
        for name, why in FIXED.items():
            if name in options:
                raise InvalidTask(
                    f"{name} cannot be changed for one call: {why}; give it to the decorator"
                )
        return DelayedTask(
            self.function, self.name, self.options.changed(**options), self.base
        )

    # A call of an async function makes a coroutine; its job returns what the coroutine returns.
    @overload
    def prepare(
        self: "DelayedTask[P, Coroutine[Any, Any, T]]",
        delay: Delay,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[T]: ...
    @overload
    def prepare(
        self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R_co]: ...
    def prepare(
        self, delay: Any = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[Any]:
        """Make a job with its id, without sending it. ``schedule(job)`` or `schedule_many` sends it.

        Example::

            schedule_many([remind.prepare(3600, order.pk) for order in orders])

        Raises:
            InvalidDelay, InvalidArguments, QueueNotFound: the call cannot be scheduled.
            EncodeError: its payload is larger than MAX_PAYLOAD_BYTES.
        """
        return prepare(self, delay, args, kwargs)

    @overload
    def schedule(
        self: "DelayedTask[P, Coroutine[Any, Any, T]]",
        delay: Delay,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[T]: ...
    @overload
    def schedule(
        self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R_co]: ...
    def schedule(
        self, delay: Any = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[Any]:
        """Schedule a call of this task; see `django_delayq.schedule`.

        Example::

            job = cancel_unpaid.schedule(timedelta(minutes=15), order.pk)
        """
        job = prepare(self, delay, args, kwargs)
        try:
            return send(job)
        except RedisError as error:
            return send_elsewhere(self, job, error, delay, args, kwargs)

    @overload
    async def aschedule(
        self: "DelayedTask[P, Coroutine[Any, Any, T]]",
        delay: Delay,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[T]: ...
    @overload
    async def aschedule(
        self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R_co]: ...
    async def aschedule(
        self, delay: Any = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[Any]:
        """`schedule` on the event loop."""
        job = prepare(self, delay, args, kwargs)
        try:
            return await asend(job)
        except RedisError as error:
            return await asend_elsewhere(self, job, error, delay, args, kwargs)


for _name, _text in HINTS.items():
    setattr(DelayedTask, _name, _Hint(_name, _text))


@overload
def delayed_task(function: Callable[P, R], /) -> DelayedTask[P, R]: ...
@overload
def delayed_task(
    *, name: str | None = None, **options: Unpack[DecoratorOptions]
) -> Callable[[Callable[P, R]], DelayedTask[P, R]]: ...
def delayed_task(
    function: Any = None, /, *, name: str | None = None, **options: Any
) -> Any:
    """Register a function, sync or async, as a task. For the options, see `TaskOptions`.

    On the server the task is named after its module and function, unless you give a ``name``. Keep the name when you
    move the function, because waiting jobs have it.

    Example::

        @delayed_task
        def cancel_unpaid(order_id): ...

        @delayed_task(queue="mail", max_attempts=5, retry_on=ConnectionError)
        def send_receipt(order_id): ...

    Raises:
        InvalidTask: this is not a plain function of a module, an option is wrong, or the name is taken.
    """
    if function is None:
        return functools.partial(_make_task, name=name, options=_read_options(options))
    return _make_task(function, name=None, options=TaskOptions())


def queue_handler(
    queue: str, /, *, name: str | None = None, **options: Unpack[HandlerOptions]
) -> Callable[[Callable[[Any], R]], DelayedTask[[Any], R]]:
    """Register a function that workers call with each foreign payload of a queue, decoded by the queue's codec.

    It is a task with leases, attempts, dead letters, and most options of `delayed_task`.

    Example::

        @queue_handler("payments", max_attempts=3)
        def on_payment(value):
            Payment.objects.create(order_id=value["orderId"])

    Raises:
        InvalidTask: as `delayed_task`; or the queue has a handler, the function takes more than the value, or an option
            does not fit payloads of others.
    """
    read = _read_options({**options, "queue": queue})
    if read.duplicates:
        raise InvalidTask(
            f"on_duplicate={read.on_duplicate!r}: payloads of other programs on queue {queue!r} have no unique key,"
            " so its handler gets no duplicates; leave it out"
        )

    if read.encrypt:
        raise InvalidTask(
            f"encrypt=True: payloads of other programs on queue {queue!r} are not encrypted; leave it out"
        )

    def decorate(function: Callable[[Any], R]) -> DelayedTask[[Any], R]:
        task = _make_task(function, name=name, options=read)
        if task.positional[0] > 1 or task.positional[1] < 1:
            raise InvalidTask(
                f"{task.name!r} handles the payloads of queue {queue!r}, so it takes one argument, the value"
            )
        if task.options.limit is not None:
            raise InvalidTask(
                f"{task.name!r} handles payloads of other programs, which carry no limit; set CONCURRENCY or RATE of"
                f" queue {queue!r}"
            )
        register_handler(queue, task)
        return task

    return decorate


def _read_options(options: dict[str, Any]) -> TaskOptions:
    return TaskOptions().changed(**options)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not is_unicode(name):
        raise InvalidTask(f"name={show(name)}: give text")
    size = len(name.encode())
    if size > MAX_NAME:
        raise InvalidTask(
            f"the name of task {show(name)} has {size:,} bytes, too long to be in every payload, unique key and log line"
            f" of its jobs; give name= one of at most {MAX_NAME}"
        )


def _make_task(
    function: Any, *, name: str | None, options: TaskOptions
) -> DelayedTask[Any, Any]:
    if isinstance(function, DelayedTask):
        raise InvalidTask(
            f"{function.name!r} is already a delayed_task; decorate the function once"
        )
    if not inspect.isfunction(function):
        raise InvalidTask(
            f"delayed_task needs a function, got {show(function)}, a {type(function).__name__}"
            " (is the order of the decorators right?)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(
            f"{function.__qualname__} is a generator, so a call would not run its body; return a list instead"
        )
    owner = function.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        raise InvalidTask(
            f"{function.__qualname__} is defined in a class, but a task has to be a function of a module; move it to"
            " the module, and pass it what it needs, such as a primary key"
        )
    if "<lambda>" in function.__qualname__ and name is None:
        raise InvalidTask(
            "a lambda has no name that a worker could find; define a function, or give name="
        )
    if function.__module__ == "__main__" and name is None:
        warnings.warn(
            f"{function.__qualname__} is defined in __main__, where no worker will find it; move it to tasks.py",
            stacklevel=3,
        )
    name = name or f"{function.__module__}.{function.__qualname__}"
    _check_name(name)
    if options.once:
        function = running_once(function, name, options.once)
    task = DelayedTask(function, name, options)
    register(task)
    return task


#: How a caller names a task.
Task = DelayedTask[..., Any] | str


def name_of(task: Task) -> str:
    """Return the name of a task.

    Raises:
        TaskNotFound: no task is registered under this name.
        InvalidTask: it is neither a task nor a name.
    """
    if isinstance(task, str):
        return get_task(task).name
    if not isinstance(task, DelayedTask):
        raise InvalidTask(
            f"{show(task)} is not a task; give task= a function decorated with @delayed_task, or its name"
        )
    return task.name
