"""Queue objects that are torn down, and one way to call their sync and their async methods."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from tests.queues.proxy import Proxy
from tests.servers import ExternalServer, Server


class AsyncFace:
    """Calls the async twin of every method, to run the tests of the sync ones on it."""

    def __init__(self, queue: Any, runner: asyncio.Runner) -> None:
        self._queue = queue
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        twin = getattr(self._queue, f"a{name}")
        return lambda *args: self._runner.run(twin(*args))

    def __len__(self) -> int:
        return int(self._runner.run(self._queue.alen()))

    def __iter__(self) -> Iterator[Any]:
        async def read() -> list[Any]:
            return [value async for value in self._queue]

        return iter(self._runner.run(read()))


class SyncFace(AsyncFace):
    """Calls the methods themselves."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._queue, name)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._queue)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=[SyncFace, AsyncFace], ids=["sync", "async"])
def face(
    request: pytest.FixtureRequest, runner: asyncio.Runner
) -> Callable[[Any], Any]:
    """Wrap a queue so that its sync or its async methods are called."""
    return lambda queue: request.param(queue, runner)


@pytest.fixture
def delayed(
    client: redis.Redis, queue_name: str
) -> Iterator[Callable[..., DelayedQueue]]:
    """Make a DelayedQueue of the test's own queue; destroyed at the end."""
    made: list[DelayedQueue] = []

    def make(**options: Any) -> DelayedQueue:
        made.append(DelayedQueue(queue_name, **{"connection": client, **options}))
        return made[-1]

    yield make
    for queue in made:
        queue.destroy()


@pytest.fixture
def blocking(
    client: redis.Redis, queue_name: str
) -> Iterator[Callable[..., BlockingQueue]]:
    """Make a BlockingQueue of the test's own queue; closed at the end."""
    made: list[BlockingQueue] = []

    def make(name: str = queue_name, **options: Any) -> BlockingQueue:
        made.append(BlockingQueue(name, **{"connection": client, **options}))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def proxy(server: Server | ExternalServer) -> Iterator[Proxy]:
    """The shared server behind a line that can be cut."""
    if isinstance(server, ExternalServer):
        pytest.skip("the proxy speaks to Unix sockets only")
    proxy = Proxy(server)
    yield proxy
    proxy.close()
