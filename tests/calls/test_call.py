import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.connection import HiredisRespSerializer

from django_delayq.calls import call as call_module
from django_delayq.calls.call import (
    Call,
    CallPacker,
    Line,
    Question,
    Script,
    arun,
    arun_all,
    bind,
    load_script,
    may_have_run,
    preludes_of,
    run,
    run_all,
    run_stream,
)
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.states import State
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.servers import ExternalServer, Server

COUNT = "return { redis.call('INCR', KEYS[1]), ARGV[1] }"


@pytest.fixture
def proxy(server: Server | ExternalServer) -> Any:
    if isinstance(server, ExternalServer):
        pytest.skip("the proxy speaks to Unix sockets only")
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def through_proxy(proxy: Proxy) -> Any:
    """A client that repeats nothing by itself."""
    client = redis.Redis.from_url(
        proxy.url, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    )
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "PAUSES_S", (0.001, 0.001, 0.001))


def script(source: str) -> Script:
    from hashlib import sha1

    return Script("test", source, sha1(source.encode()).hexdigest())


def echo(value: str, read: Callable[[Any], Any] = bytes.decode) -> Call[Any]:
    return Call(script("return ARGV[1]"), (), (value,), read)


WIRE = ("django_delayq.wire",)
DELIVERY = ("django_delayq.delivery", *WIRE)


class TestLoading:
    def test_script_has_before_it_what_it_uses_of_its_preludes(self) -> None:
        source = load_script(WIRE, "offer").source

        text = source.index("-- Store one")
        assert preludes_of(source[text:]) == [
            "clock",
            "count",
            "window",
            "frame",
            "list",
        ]
        places = [
            source.index(definition)
            for definition in (
                "local function read_clock",
                "local function add_to",
                "local function pack_frame",
                "local function next_numbers",
            )
        ]
        assert places == sorted(places)
        assert places[-1] < text
        # What it uses itself uses more; nothing here takes a frame out of the list.
        assert "local UNLIKELY" in source
        assert "local function locate_listed" not in source
        assert "locate_listed(" in load_script(DELIVERY, "claim").source

    def test_prelude_is_looked_for_beside_the_script_and_then_below(self) -> None:
        loaded = load_script(DELIVERY, "schedule")

        assert "local function read_locator" in loaded.source
        assert "local function read_clock" in loaded.source

    def test_text_is_read_once(self) -> None:
        assert load_script(WIRE, "read") is load_script(WIRE, "read")

    def test_missing_script_is_an_error(self) -> None:
        with pytest.raises(FileNotFoundError):
            load_script(WIRE, "nonsense")

    @pytest.mark.parametrize(
        ("text", "preludes"),
        [
            ("-- Does it.\n--\n-- Prelude  clock, frame\nreturn 1", ["clock", "frame"]),
            ("-- Prelude  walk", ["walk"]),
            ("-- Does it.\nreturn 1", []),
            ("return '-- Prelude  no'", []),
        ],
    )
    def test_header_names_the_preludes(self, text: str, preludes: list[str]) -> None:
        assert preludes_of(text) == preludes


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


class TestPacking:
    """As redis-py packs it, and refused as redis-py refuses it."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ("sha", 2, "key", "schlüssel", b"\x00\xff", 0, -1, State.SUCCEEDED),
            ("sha", 0),
            # What none of ours is, and redis-py takes.
            ("sha", 1, "key", memoryview(b"view"), bytearray(b"array"), 0.5),
        ],
        ids=["ours", "none", "others"],
    )
    @pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "CONFIG GET"])
    def test_is_that_of_redis(self, command: str, arguments: tuple[Any, ...]) -> None:
        theirs = HiredisRespSerializer().pack(command, *arguments)

        assert CallPacker().pack(command, *arguments) == theirs

    def test_refuses_what_redis_refuses(self) -> None:
        with pytest.raises(redis.DataError):
            CallPacker().pack("EVALSHA", "sha", 1, "key", None)


class OlderPool(redis.ConnectionPool):
    """As before redis-py 5.3, where a connection was asked for by the name of a command."""

    def get_connection(self, *names: str) -> Any:
        if len(names) != 1:
            raise TypeError("missing 1 required positional argument: 'command_name'")
        return super().get_connection()


class TestLine:
    def test_replies_are_read_in_any_order(self, client: redis.Redis) -> None:
        line = Line(client)
        first, second = line.ask(echo("x")), line.ask(echo("y"))

        assert (second.finish(), first.finish()) == ("y", "x")
        line.close()

    def test_calls_that_nobody_waits_for_go_out_in_one_write(
        self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line = Line(client)
        line.ask(echo("x")).finish()
        sent: list[int] = []
        send = line._connection.send_packed_command
        monkeypatch.setattr(
            line._connection,
            "send_packed_command",
            lambda command, **how: sent.append(len(command)) or send(command, **how),
        )

        asked = [line.ask(echo(text)) for text in "xyz"]
        assert [each.finish() for each in asked] == ["x", "y", "z"]

        assert sent == [1]
        line.close()

    def test_older_pool_lends_a_connection(self, client: redis.Redis) -> None:
        pool = OlderPool(
            connection_class=client.connection_pool.connection_class,
            **client.connection_pool.connection_kwargs,
        )
        with redis.Redis.from_pool(pool) as older:
            line = Line(older)
            assert line.ask(echo("x")).finish() == "x"
            line.close()

    def test_error_of_sending_is_raised_with_the_reply(self) -> None:
        with redis.Redis(port=1) as nobody:
            under_way = Line(nobody).ask(echo("x"))

            with pytest.raises(redis.ConnectionError):
                under_way.finish()

    def test_a_client_whose_line_rests_needs_one_connection(
        self, client: redis.Redis
    ) -> None:
        with redis.Redis(connection_pool=client.connection_pool) as other:
            line = Line(other)
            line.ask(echo("x")).finish()
            pool: Any = other.connection_pool
            before = len(pool._in_use_connections)

            line.rest()
            assert len(pool._in_use_connections) == before - 1
            assert line.ask(echo("y")).finish() == "y"
            under_way = line.ask(echo("z"))
            line.rest()

            assert under_way.finish() == "z"
            line.close()

    def test_a_connection_that_was_closed_between_two_calls_is_not_noticed(
        self, through_proxy: redis.Redis, proxy: Proxy
    ) -> None:
        line = Line(through_proxy)
        assert line.ask(echo("x")).finish() == "x"

        proxy.cut()
        wait_until(lambda: line.is_stale, description="the end is seen")

        assert line.ask(echo("y")).finish() == "y"
        line.close()

    def test_a_lost_connection_is_the_end_of_all_that_is_under_way(
        self, through_proxy: redis.Redis, proxy: Proxy
    ) -> None:
        line = Line(through_proxy)
        line.ask(echo("x")).finish()
        proxy.lose_reply_to(b"first")
        asked = [line.ask(Question(("ECHO", text))) for text in ("first", "second")]

        for each in asked:
            with pytest.raises(redis.ConnectionError):
                each.finish()

        assert line.ask(echo("z")).finish() == "z"
        line.close()

    def test_an_error_of_one_call_leaves_the_others_alone(
        self, client: redis.Redis, queue_name: str
    ) -> None:
        client.set(queue_name, "no list")
        line = Line(client)
        refused = line.ask(Question(("LLEN", queue_name)))
        done = line.ask(echo("x"))

        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            refused.finish()
        assert done.finish() == "x"
        line.close()


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


class TestSeveral:
    def test_no_calls_have_no_replies(self, client: redis.Redis) -> None:
        assert run_all(client, []) == []

    def test_replies_come_in_order_and_an_error_in_its_place(
        self, client: redis.Redis
    ) -> None:
        calls = [
            echo("a"),
            Call(script("return redis.error_reply('MINE')"), ()),
            echo("c"),
        ]
        client.script_flush()

        first, second, third = run_all(client, calls)

        assert (first, third) == ("a", "c")
        assert isinstance(second, redis.ResponseError)

    async def test_async_replies_come_in_order(
        self, async_client: redis.asyncio.Redis
    ) -> None:
        await async_client.script_flush()

        replies = await arun_all(async_client, [echo(str(n)) for n in range(10)])

        assert replies == [str(n) for n in range(10)]

    def test_only_what_did_not_run_is_sent_in_full(
        self, client: redis.Redis, queue_name: str
    ) -> None:
        count: Call[Any] = Call(script(COUNT), (queue_name,), ("x",))
        run(client, count)

        run_all(client, [count, echo("new"), count])

        assert client.get(queue_name) == b"3"

    def test_stream_yields_replies_in_order_and_errors_in_their_place(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True)
        bad: Call[Any] = Call(script("return redis.error_reply('MINE')"), ())
        calls = [echo("0"), bad, *(echo(str(n)) for n in range(2, 20))]
        run_all(client, calls)

        replies = list(run_stream(client, calls))

        assert isinstance(replies[1], redis.ResponseError)
        assert replies[:1] + replies[2:] == ["0", *(str(n) for n in range(2, 20))]

    def test_stream_that_is_left_early_does_not_confuse_the_next_call(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True)
        run(client, echo("x"))
        stream = run_stream(client, [echo(str(n)) for n in range(20)])
        next(stream)
        stream.close()

        assert run(client, echo("next")) == "next"


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
            call_module.Call(
                load_script(("django_delayq.delivery",), "read_format"),
                ("k",),
                repeat=None,
            ),
        )

    assert not may_have_run(raised.value)


def test_keys_that_no_header_names_are_refused() -> None:
    packages = ("django_delayq.delivery", "django_delayq.wire")
    keys = DeliveryKeys.of("q")

    with pytest.raises(TypeError, match=r"leave\.lua has no key 'lease' in its header"):
        bind(packages, "leave", keys, lease="k")
    with pytest.raises(TypeError, match=r"leave\.lua takes no more keys"):
        bind(packages, "leave", keys, more=("k",))
