import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from django_delayq.transport.call import Call
from django_delayq.transport.errors import may_have_run
from django_delayq.transport.run import arun, run
from django_delayq.transport.script import load_script
from tests.queues.proxy import Proxy
from tests.servers import Server
from tests.transport.samples import COUNT, echo, script


class TestRunning:
    def test_reply_is_read(self, client: redis.Redis) -> None:
        assert run(client, echo("x")) == "x"

    def test_script_that_the_server_forgot_is_sent_in_full(
        self, client: redis.Redis
    ) -> None:
        run(client, echo("x"))
        client.script_flush()

        assert run(client, echo("y")) == "y"
        assert run(client, echo("z")) == "z"

    def test_error_of_the_script_passes_through(self, client: redis.Redis) -> None:
        fail = Call(script("return redis.error_reply('MINE ' .. ARGV[1])"), (), ("x",))

        with pytest.raises(redis.ResponseError, match="MINE x"):
            run(client, fail)

    async def test_async_reply_is_read(self, async_client: redis.asyncio.Redis) -> None:
        await async_client.script_flush()

        assert await arun(async_client, echo("x")) == "x"
        assert await arun(async_client, echo("y")) == "y"

    def test_client_with_a_connection_of_its_own_is_served(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True)

        assert run(client, echo("x")) == "x"
        with pytest.raises(redis.ResponseError):
            run(client, Call(script("return redis.error_reply('no')"), ()))
        assert run(client, echo("y")) == "y"


class TestLostReplies:
    def test_call_is_made_again(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        count: Call[Any] = Call(script(COUNT), (queue_name,), ("x",))
        run(through_proxy, count)
        proxy.lose_reply_to(count.script.sha.encode())

        assert run(through_proxy, count) == [3, b"x"]

    def test_call_that_is_made_again_says_so_in_its_arguments(
        self, through_proxy: redis.Redis, proxy: Proxy, queue_name: str
    ) -> None:
        count: Call[Any] = Call(
            script(COUNT), (queue_name,), ("first",), repeat={0: "again"}
        )
        assert run(through_proxy, count) == [1, b"first"]
        proxy.lose_reply_to(count.script.sha.encode())

        assert run(through_proxy, count) == [3, b"again"]

    def test_call_that_must_not_be_repeated_is_not(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        count: Call[Any] = Call(script(COUNT), (queue_name,), ("x",), repeat=None)
        run(through_proxy, count)
        proxy.lose_reply_to(count.script.sha.encode())

        with pytest.raises(redis.ConnectionError):
            run(through_proxy, count)

        assert client.get(queue_name) == b"2"

    def test_server_that_stays_away_is_an_error_in_the_end(
        self, through_proxy: redis.Redis, proxy: Proxy
    ) -> None:
        run(through_proxy, echo("x"))
        proxy.is_refusing = True
        proxy.cut()

        with pytest.raises(redis.ConnectionError):
            run(through_proxy, echo("x"))

    async def test_async_call_is_made_again(
        self, proxy: Proxy, client: redis.Redis, queue_name: str
    ) -> None:
        async_client = redis.asyncio.Redis.from_url(
            proxy.url, retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
        )
        count: Call[Any] = Call(
            script(COUNT), (queue_name,), ("first",), repeat={0: "again"}
        )
        assert await arun(async_client, count) == [1, b"first"]
        proxy.lose_reply_to(count.script.sha.encode())

        assert await arun(async_client, count) == [3, b"again"]

        once: Call[Any] = Call(script(COUNT), (queue_name,), ("x",), repeat=None)
        proxy.lose_reply_to(count.script.sha.encode())
        with pytest.raises(redis.ConnectionError):
            await arun(async_client, once)
        assert client.get(queue_name) == b"4"
        await async_client.aclose()


def test_cancelled_call_does_not_confuse_the_next_one(
    server: Server, queue_name: str
) -> None:
    async def scenario() -> list[str]:
        client = redis.asyncio.Redis.from_url(server.socket_url, max_connections=1)
        replies = []
        for number in range(200):
            task = asyncio.create_task(arun(client, echo(f"lost {number}")))
            await asyncio.sleep(0)
            await asyncio.sleep(number % 5 * 1e-4)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            replies.append(await arun(client, echo(str(number))))
        await client.aclose()
        return replies

    assert asyncio.run(scenario()) == [str(n) for n in range(200)]


def test_nothing_has_run_where_no_connection_came_about_from_a_pool() -> None:
    client = redis.Redis(port=1, retry=None)

    with pytest.raises(redis.ConnectionError) as raised:
        run(
            client,
            Call(
                load_script(("django_delayq.core",), "read_progress"),
                ("k",),
                repeat=None,
            ),
        )

    assert not may_have_run(raised.value)


def test_an_error_of_a_call_keeps_no_connection_alive() -> None:
    """Its frames have the client; what the collector finds first may be a socket that nobody has closed."""
    # Over TCP, a frame of redis-py's keeps the error of the attempt itself, and with it the callers' frames.
    client = redis.Redis(unix_socket_path="/nowhere", retry=None)
    is_alive = weakref.ref(client)
    gc.disable()
    try:
        with suppress(redis.ConnectionError):
            run(client, echo("x"))
        del client

        assert is_alive() is None
    finally:
        gc.enable()
