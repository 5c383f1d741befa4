"""``@delayed_task``: a function that can be called later, and still be called now."""

import functools
import hashlib
import inspect
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from django_delayq import conf
from django_delayq.delivery import storing
from django_delayq.delivery.storing import NewJob
from django_delayq.exceptions import EncodeError, InvalidArguments, InvalidTask
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import formats
from django_delayq.jobs.job import Job, is_unicode
from django_delayq.jobs.options import TaskOptions
from django_delayq.jobs.registry import register, register_handler
from django_delayq.jobs.sending import asend, send
from django_delayq.redaction import show
from django_delayq.wire.delay import Delay, parse_delay

P = ParamSpec("P")
R = TypeVar("R")

#: Names that the tasks of other libraries have for this, and what to write here.
HINTS = {
    "delay": ".schedule(0, …) has a worker run it at once, .schedule(90, …) in 90 seconds",
    "apply_async": ".schedule(delay, …) takes the delay first, then the arguments of the function",
    "delay_on_commit": ".using(on_commit=True).schedule(0, …) sends it after the commit",
    "apply_async_on_commit": ".using(on_commit=True).schedule(delay, …) sends it after the commit",
    "enqueue": ".schedule(0, …) has a worker run it at once",
    "aenqueue": "await .aschedule(0, …) has a worker run it at once",
    "send": ".schedule(0, …) has a worker run it at once",
    "send_with_options": ".using(…).schedule(delay, …) changes options for a call",
    "s": ".prepare(delay, …) makes a job that schedule_many sends",
    "si": ".prepare(delay, …) makes a job that schedule_many sends",
    "signature": ".prepare(delay, …) makes a job that schedule_many sends",
}


class _Hint:
    """An attribute that is not there. A `__getattr__` would slow down those that are."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def __get__(self, task: object, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}: {self._text}",
            name=self._name,
            obj=task,
        )


#: Some 31 years: nobody waits as long, but clocks and generated keys count from there.
NO_DELAY_S = 10**9
#: Bytes of the longest key that a function for `unique` may return: a locator, a header and a hash hold it each.
MAX_UNIQUE_KEY = 1_024


#: What only the decorator takes, and why.
_FIXED = {
    "name": "workers know the task by it",
    "retry_on": "exceptions do not travel with a job",
    "no_retry_on": "exceptions do not travel with a job",
}


class DelayedTask(Generic[P, R]):
    """A registered function. Call it and it runs here and now; `schedule` it and a worker runs it later."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        options: TaskOptions,
        base: TaskOptions | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.options = options
        #: As decorated; what differs in `options` goes with each job.
        self.base = options if base is None else base
        self.is_async = inspect.iscoroutinefunction(function)
        self._signature = inspect.signature(function)
        self._positional = _positional_range(self._signature)
        self._optional = _optional_first(self._signature)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<delayed_task {self.name}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__

    def using(self, **options: Any) -> "DelayedTask[P, R]":
        """Return this task with other options, for the calls made through it.

        Raises:
            InvalidTask: an option is unknown, has a value it cannot have, or belongs to the decorator.
        """
        for name, why in _FIXED.items():
            if name in options:
                raise InvalidTask(
                    f"{name} cannot be changed for one call: {why}; decorate it so"
                )
        return DelayedTask(
            self.function, self.name, self.options.changed(**options), self.base
        )

    def prepare(self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Make a job, id and all, without sending it: for `schedule_many`.

        Raises:
            InvalidDelay, InvalidArguments, QueueNotFound: the call cannot be scheduled.
            EncodeError: its payload is larger than MAX_PAYLOAD_BYTES.
        """
        when = parse_delay(delay)
        settings = conf.get_settings()
        options = self.options
        queue = settings.queue(options.queue)
        self._check_call(delay, args, kwargs)
        plain_args, plain_kwargs = envelopes.plain(args, kwargs)
        job: Job[R] = Job(
            queue.name, storing.new_token(), self.name, plain_args, plain_kwargs
        )
        if options is not self.base:
            job.options = options.carried(self.base)
        payload = envelopes.encode(
            envelopes.Envelope(self.name, plain_args, plain_kwargs, job.options),
            job.token,
            queue.name,
            conf.get_keyring(),
            queue.payload_codec if queue.is_shared else None,
            formats.known(queue.name),
        )
        if len(payload) > settings.max_payload_bytes:
            raise EncodeError(
                f"job of {self.name!r} has {len(payload):,} bytes, more than DELAYQ['MAX_PAYLOAD_BYTES'],"
                f" {settings.max_payload_bytes:,}; store the data elsewhere and pass its key"
            )
        if options.unique:
            job.unique = self._unique_key(args, kwargs)
        unique = options.unique_until[0] + job.unique if job.unique else ""
        job._unsent = NewJob(job.token, when, unique, payload)
        return job

    def schedule(self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Call this task later; see `django_delayq.schedule`."""
        return send(self.prepare(delay, *args, **kwargs), self._on_commit())

    async def aschedule(
        self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """`schedule` on the event loop."""
        return await asend(self.prepare(delay, *args, **kwargs), self._on_commit())

    def _on_commit(self) -> bool | str:
        on_commit = self.options.on_commit
        return conf.get_settings().on_commit if on_commit is None else on_commit

    def _check_call(
        self, delay: Delay, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        least, most = self._positional
        if not kwargs and least <= len(args) <= most:
            if not args and self._optional:
                self._warn_of_forgotten_delay(delay)
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            forgotten = (
                f". The first argument of the call is the delay, {delay!r} here: was the delay forgotten?"
                if not args and type(delay) in (int, float) and least
                else ""
            )
            raise InvalidArguments(
                f"{self.name}{self._signature} cannot be called with {_show_call(args, kwargs)}: {error}{forgotten}"
            ) from error

    def _warn_of_forgotten_delay(self, delay: Delay) -> None:
        """Warn where a number stands alone that is more likely the argument than the delay."""
        # A timedelta or a datetime is never meant as an argument.
        if type(delay) not in (int, float):
            return
        if not _names_an_id(self._optional) and delay < NO_DELAY_S:  # type: ignore[operator]
            return
        warnings.warn(
            f"{self.name} is scheduled in {delay!r} seconds and without arguments. If {delay!r} was meant as"
            f" {self._optional!r}, the delay is missing before it: schedule(0, {delay!r}). If it is the delay, say"
            f" so: timedelta(seconds={delay!r})",
            stacklevel=_caller_level(),
        )

    def _unique_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        unique = self.options.unique
        if callable(unique):
            key = unique(*args, **kwargs)
            if not isinstance(key, str) or not key or not is_unicode(key):
                raise InvalidArguments(
                    f"unique of {self.name!r} returned {show(key)}; a key is a string, not empty"
                )
            if len(key.encode()) > MAX_UNIQUE_KEY:
                raise InvalidArguments(
                    f"unique of {self.name!r} returned a key of {len(key.encode()):,} bytes, and every call that meets"
                    f" its job reads it; return one of at most {MAX_UNIQUE_KEY:,}, a hash of this one for example"
                )
            return f"{self.name}:{key}"
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        chosen = dict(bound.arguments)
        if isinstance(unique, tuple):
            unknown = set(unique) - set(chosen)
            if unknown:
                raise InvalidTask(
                    f"unique of {self.name!r} names {sorted(unknown)[0]!r}, which is no parameter of it"
                )
            chosen = {name: chosen[name] for name in unique}
        text = json.dumps(
            envelopes.plain((), chosen)[1], sort_keys=True, separators=(",", ":")
        )
        return f"{self.name}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


for _name, _text in HINTS.items():
    setattr(DelayedTask, _name, _Hint(_name, _text))


def _positional_range(signature: inspect.Signature) -> tuple[int, int]:
    """Return how many positional arguments alone make a call that fits; an empty range where none do."""
    least = most = 0
    for parameter in signature.parameters.values():
        if parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            most += 1
            least += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = 1 << 30
        elif (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.default is parameter.empty
        ):
            return 1, 0
    return least, most


def _optional_first(signature: inspect.Signature) -> str:
    """Return the name of the first positional parameter where it has a default, else ""."""
    for parameter in signature.parameters.values():
        if (
            parameter.kind
            in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.default is not parameter.empty
        ):
            return parameter.name
        break
    return ""


def _names_an_id(name: str) -> bool:
    return name in ("id", "pk") or name.endswith(("_id", "_pk"))


def _caller_level() -> int:
    """Return the ``stacklevel`` of who called into this package, for the function that calls this."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(
        "django_delayq."
    ):
        frame = frame.f_back
        level += 1
    return level


def _show_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # What does not fit is how many there are and what they are called: the values are the caller's own.
    parts = [f"<{type(arg).__qualname__}>" for arg in args] + [
        f"{name}=<{type(value).__qualname__}>" for name, value in kwargs.items()
    ]
    text = ", ".join(parts)
    return f"({text if len(text) <= 200 else text[:200] + '…'})"


@overload
def delayed_task(function: Callable[P, R], /) -> DelayedTask[P, R]: ...
@overload
def delayed_task(
    *, name: str | None = None, **options: Any
) -> Callable[[Callable[P, R]], DelayedTask[P, R]]: ...
def delayed_task(
    function: Any = None, /, *, name: str | None = None, **options: Any
) -> Any:
    """Register a function, sync or async, so that it can be scheduled; bare, or with options (see `TaskOptions`).

    The name it goes by on the wire is its module and name, unless another is given: keep it when the code moves.

    Raises:
        InvalidTask: it is no function of a module, an option is wrong, or the name is taken.
    """
    if function is None:
        return functools.partial(_make_task, name=name, options=_read_options(options))
    return _make_task(function, name=None, options=TaskOptions())


def queue_handler(
    queue: str, /, *, name: str | None = None, **options: Any
) -> Callable[[Callable[[Any], R]], DelayedTask[[Any], R]]:
    """Register the function that is called with each foreign payload of a queue, decoded by the queue's codec.

    It is a task like any other: leases, attempts, dead letters, and the options of `delayed_task`.
    """
    read = _read_options({**options, "queue": queue})

    def decorate(function: Callable[[Any], R]) -> DelayedTask[[Any], R]:
        task = _make_task(function, name=name, options=read)
        if task._positional[0] > 1 or task._positional[1] < 1:
            raise InvalidTask(
                f"{task.name!r} handles the payloads of queue {queue!r}, so it takes one argument, the value"
            )
        register_handler(queue, task)
        return task

    return decorate


def _read_options(options: dict[str, Any]) -> TaskOptions:
    return TaskOptions().changed(**options)


def _make_task(
    function: Any, *, name: str | None, options: TaskOptions
) -> DelayedTask[Any, Any]:
    if isinstance(function, DelayedTask):
        raise InvalidTask(f"{function.name!r} is a delayed_task already")
    if not inspect.isfunction(function):
        raise InvalidTask(
            f"delayed_task needs a function, got {show(function)}, a {type(function).__name__}"
            " (is the order of the decorators right?)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(
            f"{function.__qualname__} is a generator: nobody would run its body; return a list instead"
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
    task = DelayedTask(
        function, name or f"{function.__module__}.{function.__qualname__}", options
    )
    register(task)
    return task
