"""What `DelayedQueue` and `BlockingQueue` have in common: a name, a codec and a connection.

Which elements they hold, and what happens to them, is up to the two classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from django_delayq.queues.queue_options import QueueOptions, keys_of
from django_delayq.queues.reading import read
from django_delayq.transport.clients import Clients, Given
from django_delayq.transport.performed import name_async, return_result, steps_of
from django_delayq.transport.steps import Steps, aperform, perform

P = ParamSpec("P")
T = TypeVar("T")
Q = TypeVar("Q", bound="RedissonObject")


def performed(
    steps: Callable[Concatenate[Q, P], Steps[T]],
) -> Callable[Concatenate[Q, P], T]:
    """Make a method that performs an operation on the clients of its object, as `performing.performed` does."""

    @wraps(steps)
    def on_thread(self: Q, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._perform(steps(self, *args, **kwargs))

    return_result(on_thread, steps)
    return on_thread


def aperformed(
    method: Callable[Concatenate[Q, P], T],
) -> Callable[Concatenate[Q, P], Coroutine[Any, Any, T]]:
    """Make the async version of a method that `performed` has made."""
    steps: Callable[Concatenate[Q, P], Steps[T]] = steps_of(method)

    @wraps(method)
    async def on_loop(self: Q, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._aperform(steps(self, *args, **kwargs))

    name_async(on_loop, method)
    return on_loop


class RedissonObject(ABC):
    """The elements of one queue. Each call is described as steps, which a thread or an event loop performs.

    Source: RedissonObject.java
    """

    def __init__(
        self, name: str, connection: Given | None, options: QueueOptions
    ) -> None:
        self.name = name
        self._keys = keys_of(name)
        self._options = options
        self._clients = Clients.of(connection)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @performed
    def remove(self, value: object) -> Steps[bool]:
        """Remove the first element that equals the value; return whether there was one.

        Raises:
            MaybeScheduled: the connection broke before the reply. The element may be removed. The call was not
                repeated, because that could remove a second element.
        """
        return self._remove(value)

    aremove = aperformed(remove)

    def __bool__(self) -> bool:
        # Without this, ``if queue:`` would ask the server.
        return True

    def __contains__(self, value: object) -> bool:
        return self._perform(self._contains(value))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._aend()

    @abstractmethod
    def _begin(self) -> None:
        """Do what has to be done before each call."""

    @abstractmethod
    def _end(self) -> None:
        """End the use of this object, as a ``with`` block does."""

    @abstractmethod
    async def _aend(self) -> None: ...

    @abstractmethod
    def _contains(self, value: object) -> Steps[bool]: ...

    @abstractmethod
    def _remove(self, value: object) -> Steps[bool]: ...

    def _perform(self, steps: Steps[T]) -> T:
        self._begin()
        return perform(self._clients.at_hand(), steps)

    async def _aperform(self, steps: Steps[T]) -> T:
        self._begin()
        return await aperform(await self._clients.of_loop(), steps)

    def _encode(self, value: object) -> bytes:
        return self._options.codec.encode(value)

    def _decode(self, payload: bytes) -> Any:
        return read(self._options.codec, payload, self.name)
