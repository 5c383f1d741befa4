from typing import Any

import pytest
import redis

from django_delayq.transport.line import Line
from django_delayq.transport.plain_command import Command
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.transport.samples import echo


class OlderPool(redis.ConnectionPool):
    """A pool as before redis-py 5.3: `get_connection` needs the name of a command."""

    def get_connection(self, *names: str) -> Any:
        if len(names) != 1:
            raise TypeError("missing 1 required positional argument: 'command_name'")
        try:
            return super().get_connection()
        except TypeError:
            # This redis-py is older itself.
            return super().get_connection(*names)


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
        asked = [line.ask(Command(("ECHO", text))) for text in ("first", "second")]

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
        refused = line.ask(Command(("LLEN", queue_name)))
        done = line.ask(echo("x"))

        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            refused.finish()
        assert done.finish() == "x"
        line.close()
