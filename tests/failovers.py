"""Every kind of connection that this package has, in use while the primary of some Sentinels fails.

Each kind works in a thread of its own, again and again, and notes when it succeeded. A test asks whether all are back
after a failover; ``python -m benchmarks.failover`` asks how soon.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import redis

from django_delayq.exceptions import MaybeScheduled
from django_delayq.transport import switches
from django_delayq.transport.call import Call
from django_delayq.transport.clients import Clients
from django_delayq.transport.line import Line
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import arun, run
from django_delayq.transport.several import run_all, run_stream
from django_delayq.transport.steps import perform
from django_delayq.transport.switches import stop_listening
from django_delayq.transport.together import together
from django_delayq.waiting.channel import ChannelListener
from django_delayq.waiting.lists import Peeks, wait_for_any
from django_delayq.waiting.watch import DestinationWatch
from tests.polling import wait_until
from tests.sentinels import FAILOVER_S, Watched
from tests.transport.samples import script

WRITE = script("return redis.call('SET', KEYS[1], ARGV[1])")
#: Between two attempts of one kind, s.
PAUSE_S = 0.01


def write(key: str) -> Call[Any]:
    return Call(WRITE, (key,), ("x",))


def without_threads() -> AbstractContextManager[object]:
    """Have no thread listen to the Sentinels, as where a process may start none."""
    refuse = RuntimeError("can't start new thread")
    return mock.patch.object(switches._Listener, "start", side_effect=refuse)


class Kind:
    """One kind of connection, and when it worked; times are by `time.monotonic`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.successes: list[float] = []
        self.errors: list[tuple[float, Exception]] = []

    def succeed(self, *args: Any) -> None:
        self.successes.append(time.monotonic())

    def first_after(self, moment: float) -> float | None:
        """Return when it worked for the first time after a moment; None: it did not."""
        return next((at for at in self.successes if at > moment), None)


class InUse:
    """All kinds of connection to the primary, in use inside a ``with`` block."""

    def __init__(
        self, watched: Watched, parameters: str = "", *, hears: bool = True
    ) -> None:
        """Without ``hears`` no thread can listen to the Sentinels, and only calls are made."""
        url = watched.url
        joint = "&" if "?" in url else "?"
        self.watched = watched
        self._hears = hears
        self.clients = Clients.of(url + (joint + parameters if parameters else ""))
        self.kinds: dict[str, Kind] = {}
        self._is_over = threading.Event()
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []
        self._waiting: list[Any] = []

    def __enter__(self) -> "InUse":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def _start(self) -> None:
        clients = self.clients
        self._stack.callback(stop_listening)
        if not self._hears:
            stop_listening()
            self._stack.enter_context(without_threads())
        self._use("call of a thread", lambda: run(clients.of_thread(), write("thread")))
        self._use("pooled call", lambda: run(clients.shared(), write("pooled")))
        self._use("pipeline", self._pipeline)
        self._use("stream", self._stream)
        self._use("many at once", self._together)
        self._use("call that is sent once", self._once)
        self._use("worker's line", self._make_line_call())
        self._use("renewal", self._make_renewal())
        self._use(
            "plain command", lambda: run(clients.shared(), Command(("SET", "k", "x")))
        )
        self._use_async("asyncio call", lambda client: arun(client, write("asyncio")))
        self._use_async(
            "asyncio call that is sent once",
            lambda client: Once(Command(("SET", "k", "x"))).ado(client),
        )
        if self._hears:
            self._wait("subscription", self._subscribe)
            self._wait("watch of a list", self._watch)
            self._wait("wait for a list", self._take)
        with self.fed(self.watched.primary.port):
            self.wait_until_back(0.0)

    def _stop(self) -> None:
        self._is_over.set()
        for stop in self._waiting:
            stop()
        for thread in self._threads:
            thread.join()
        self.clients.close()
        self._stack.close()

    def wait_until_back(self, moment: float) -> dict[str, float]:
        """Return how long after a moment each kind worked again, s."""
        wait_until(
            lambda: not self._away_since(moment),
            timeout=FAILOVER_S,
            description="every kind of connection to work again",
        )
        return {
            name: (kind.first_after(moment) or 0.0) - moment
            for name, kind in self.kinds.items()
        }

    def _away_since(self, moment: float) -> list[str]:
        return [
            f"{name}: {kind.errors[-1:]}"
            for name, kind in self.kinds.items()
            if kind.first_after(moment) is None
        ]

    @contextmanager
    def fed(self, port: int) -> Iterator[None]:
        """Publish, and fill the lists, on the server at a port."""
        is_over = threading.Event()

        def feed() -> None:
            while not is_over.wait(PAUSE_S):
                self._feed(port)

        thread = threading.Thread(target=feed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _feed(self, port: int) -> None:
        server = next(each for each in self.watched.servers if each.port == port)
        client = redis.Redis(
            unix_socket_path=str(server.socket_path),
            password=self.watched.password or None,
            socket_timeout=FAILOVER_S,
        )
        with client, client.pipeline(transaction=True) as pipeline:
            for key in ("watched", "waited"):
                # Whoever waits is served, and nobody finds the list filled later.
                pipeline.rpush(key, "x")
            pipeline.publish("told", "x")
            pipeline.execute()
            time.sleep(PAUSE_S)
            client.delete("watched", "waited")

    def _use(self, name: str, act: Callable[[], object]) -> None:
        kind = self.kinds[name] = Kind(name)

        def use() -> None:
            while not self._is_over.is_set():
                try:
                    act()
                except (redis.RedisError, OSError, MaybeScheduled) as error:
                    kind.errors.append((time.monotonic(), error))
                else:
                    kind.succeed()
                self._is_over.wait(PAUSE_S)

        self._run(use)

    def _use_async(self, name: str, act: Callable[[Any], Any]) -> None:
        kind = self.kinds[name] = Kind(name)

        async def use() -> None:
            while not self._is_over.is_set():
                try:
                    await act(await self.clients.of_loop())
                except (redis.RedisError, OSError, MaybeScheduled) as error:
                    kind.errors.append((time.monotonic(), error))
                else:
                    kind.succeed()
                await asyncio.sleep(PAUSE_S)

        self._run(lambda: asyncio.run(use()))

    def _wait(self, name: str, begin: Callable[[Kind], Any]) -> None:
        kind = self.kinds[name] = Kind(name)
        self._waiting.append(begin(kind))

    def _run(self, use: Callable[[], None]) -> None:
        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _pipeline(self) -> None:
        for reply in run_all(self.clients.of_thread(), [write("first"), write("last")]):
            if isinstance(reply, Exception):
                raise reply

    def _stream(self) -> None:
        with self.clients.lent() as client:
            for reply in run_stream(client, [write("first"), write("last")]):
                if isinstance(reply, Exception):
                    raise reply

    def _together(self) -> None:
        def one() -> Any:
            yield write("together")

        for reply in perform(self.clients.shared(), together([one(), one()])):
            if isinstance(reply, Exception):
                raise reply

    def _once(self) -> None:
        Once(write("once")).do(self.clients.shared())

    def _make_line_call(self) -> Callable[[], object]:
        line = Line(self.clients.make())
        self._stack.callback(line.client.connection_pool.disconnect)
        return lambda: line.ask(write("line")).finish()

    def _make_renewal(self) -> Callable[[], object]:
        client = self.clients.make(socket_timeout=5.0)
        self._stack.callback(client.connection_pool.disconnect)
        return lambda: run_all(client, [write("renewal")])

    def _subscribe(self, kind: Kind) -> Callable[[], None]:
        listener = ChannelListener(self.clients.shared())
        listener.subscribe("told", kind.succeed)
        return listener.stop

    def _watch(self, kind: Kind) -> Callable[[], None]:
        watch = DestinationWatch(self.clients.shared())

        def filled() -> None:
            kind.succeed()
            watch.arm("watched", filled)

        watch.arm("watched", filled)
        return watch.stop

    def _take(self, kind: Kind) -> Callable[[], None]:
        peeks, client = Peeks(), self.clients.shared()

        def take() -> None:
            while not self._is_over.is_set():
                begun = time.monotonic()
                wait_for_any(client, peeks, ["waited"], 1_500)
                # An error or the end of its time ends it as well.
                if time.monotonic() - begun < 1.4 and self._is_filled(client):
                    kind.succeed()

        self._run(take)
        return peeks.close

    def _is_filled(self, client: redis.Redis) -> bool:
        try:
            return bool(client.exists("waited"))
        except redis.RedisError:
            return False
