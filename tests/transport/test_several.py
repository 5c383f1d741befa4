import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.several import Behind, run_all, run_stream
from tests.servers import Server
from tests.transport.samples import COUNT, echo, script


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

    def test_a_health_check_does_not_come_between_the_calls_of_a_stream(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True, health_check_interval=1)
        run(client, echo("x"))

        def calls() -> Iterator[Call[str]]:
            for number in range(4):
                # As after a second without a call.
                client.connection.next_health_check = 0
                yield echo(str(number))

        assert list(run_stream(client, calls())) == ["0", "1", "2", "3"]

    def test_stream_yields_all_replies_before_it_goes_on_behind_none(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True)
        run(client, echo("x"))
        replies: list[str | Exception] = []
        known: list[int] = []

        def calls() -> Iterator[Call[str] | None]:
            for n in range(6):
                if n % 2 == 0:
                    yield None
                    known.append(len(replies))
                yield echo(str(n))

        for reply in run_stream(client, calls()):
            replies.append(reply)

        assert replies == [str(n) for n in range(6)]
        assert known == [0, 2, 4]

    def test_stream_brings_scripts_that_the_server_has_not_seen(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True)
        known = echo("known")
        run(client, known)
        fresh = [Call(script(f"return 'fresh {n}'"), ()) for n in range(3)]
        client.script_flush()

        replies = list(run_stream(client, [fresh[0], known, *fresh[1:], fresh[0]]))

        assert replies == [b"fresh 0", "known", b"fresh 1", b"fresh 2", b"fresh 0"]

    def test_what_comes_behind_calls_runs_after_those_whose_scripts_were_brought(
        self, server: Server, queue_name: str
    ) -> None:
        client = server.client(single_connection_client=True)
        name = queue_name
        write: Call[Any] = Call(
            script("return redis.call('SET', KEYS[1], 'x')"), (name,)
        )
        client.script_flush()

        replies = list(
            run_stream(client, [write, Behind(lambda last: [Command(("GET", name))])])
        )

        assert replies[-1] == b"x"
        client.delete(name)

    def test_nothing_is_sent_on_a_connection_that_was_lost(
        self, server: Server
    ) -> None:
        """It would be opened anew, and the reply would be that of the next call."""
        client = server.client(single_connection_client=True)
        run(client, echo("x"))
        own = client.connection

        def calls() -> Iterator[Call[str] | Behind]:
            yield echo("a")
            yield echo("b")
            server.client().client_kill_filter(_type="normal", skipme=True)
            # Also where the first write is what finds it out.
            own._sock.shutdown(socket.SHUT_RDWR)
            yield Behind(lambda last: [Command(("PING",)), Command(("TIME",))])

        replies = list(run_stream(client, calls()))

        assert isinstance(replies[-1], redis.ConnectionError)
        assert run(client, echo("next")) == "next"

    def test_stream_that_is_left_early_does_not_confuse_the_next_call(
        self, server: Server
    ) -> None:
        client = server.client(single_connection_client=True)
        run(client, echo("x"))
        stream = run_stream(client, [echo(str(n)) for n in range(20)])
        next(stream)
        stream.close()

        assert run(client, echo("next")) == "next"

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.parametrize("at", [3, 10])
    def test_child_that_the_source_forks_reads_no_reply_of_its_parent(
        self, server: Server, at: int
    ) -> None:
        """It also sends nothing: neither between two calls of the source nor after the last."""
        client = server.client(single_connection_client=True)
        run(client, echo("x"))
        child = -1

        def calls() -> Iterator[Call[str]]:
            nonlocal child
            for n in range(10):
                if n == at:
                    child = fork()
                yield echo(str(n))
            if at == 10:
                child = fork()

        replies: list[str | Exception] = []
        status = 1
        try:
            for reply in run_stream(client, calls()):
                replies.append(reply)
            own = [reply for reply in replies if isinstance(reply, Exception)]
            is_told = all("was forked" in str(error) for error in own)
            # Its parent had read what came before the two that were under way.
            status = int(not own or not is_told or len(replies) - len(own) != at - 2)
        finally:
            if child == 0:
                os._exit(status)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert replies == [str(n) for n in range(10)]
        assert run(client, echo("next")) == "next"


def fork() -> int:
    """Fork, and have the parent wait until the child has ended, but leave its status to others."""
    child = os.fork()
    if child:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child
