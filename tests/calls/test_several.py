from typing import Any

import redis

from django_delayq.calls.call import Call
from django_delayq.calls.running import run
from django_delayq.calls.several import run_all, run_stream
from tests.calls.samples import COUNT, echo, script
from tests.servers import Server


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
