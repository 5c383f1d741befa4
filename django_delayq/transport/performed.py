"""Functions and methods made of operations, on the clients of the process: one that waits, and its async version."""

from collections.abc import Callable, Coroutine
from functools import wraps
from types import NoneType
from typing import Any, ForwardRef, ParamSpec, TypeVar, get_args

from django_delayq.transport.clients import own_clients
from django_delayq.transport.steps import Steps, aperform, perform

P = ParamSpec("P")
T = TypeVar("T")
Function = Callable[..., Any]


def performed(steps: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Make a function that performs an operation on the client of its thread.

    The operation has its name, parameters and docstring. For callers, it returns what its steps return. `aperformed`
    makes the async version.

    Example::

        @performed
        def count(queue: str) -> Steps[int]:
            \"\"\"Return how many jobs wait.\"\"\"
            ...

        acount = aperformed(count)
    """

    @wraps(steps)
    def on_thread(*args: P.args, **kwargs: P.kwargs) -> T:
        return perform(own_clients.of_thread, steps(*args, **kwargs))

    return_result(on_thread, steps)
    return on_thread


def aperformed(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make the async version of a function that `performed` has made."""
    steps: Callable[P, Steps[T]] = steps_of(function)

    @wraps(function)
    async def on_loop(*args: P.args, **kwargs: P.kwargs) -> T:
        return await aperform(own_clients.of_loop, steps(*args, **kwargs))

    name_async(on_loop, function)
    return on_loop


def return_result(on_thread: Function, steps: Function) -> None:
    """Annotate a function with the result of its steps."""
    returned = _returned(steps.__annotations__["return"])
    for each in steps, on_thread:
        # `inspect.signature` reads those of the steps. From Python 3.14 on, only a new dictionary replaces them all.
        each.__annotations__ = steps.__annotations__ | {"return": returned}


def steps_of(function: Function) -> Any:
    """Return the steps of a function that `performed` has made."""
    return function.__wrapped__  # type: ignore[attr-defined]


def name_async(on_loop: Function, function: Function) -> None:
    """Give an async version its name and docstring."""
    name = function.__name__
    on_loop.__name__ = f"a{name}"
    on_loop.__qualname__ = f"{function.__qualname__.removesuffix(name)}a{name}"
    on_loop.__doc__ = f"`{name}` on the event loop."
    on_loop.__annotations__ = function.__annotations__


def _returned(annotation: Any) -> Any:
    """Return what is written between the brackets of ``Steps[…]``: typing changes ``None``, and what has quotes."""
    *_, returned = get_args(annotation)
    if isinstance(returned, ForwardRef):
        return returned.__forward_arg__
    return None if returned is NoneType else returned
