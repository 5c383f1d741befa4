"""What an error says of the calls that were sent with the one that it answers."""

import socketserver
import threading
from collections.abc import Iterator

import pytest
import redis

from django_delayq.transport.connections import converse
from django_delayq.transport.errors import (
    is_of_node,
    mark_of_node,
    may_have_run,
    of_those_behind,
)
from django_delayq.transport.line import Line
from django_delayq.transport.plain_command import Command
from django_delayq.transport.several import run_stream
from tests.transport.samples import echo


class _Waking(socketserver.StreamRequestHandler):
    """A server that ends loading its data between the first call and the second."""

    def handle(self) -> None:
        calls = 0
        while head := self.rfile.readline():
            args = []
            for _ in range(int(head[1:])):
                size = int(self.rfile.readline()[1:])
                args.append(self.rfile.read(size + 2)[:-2])
            if args[0] in (b"CLIENT", b"HELLO"):
                self.wfile.write(b"+OK\r\n")
                continue
            calls += 1
            self.wfile.write(b"-LOADING data\r\n" if calls == 1 else b"+OK\r\n")


@pytest.fixture
def waking() -> Iterator[redis.Redis]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), _Waking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = redis.Redis(
            port=server.server_address[1],
            protocol=2,
            single_connection_client=True,
            retry=None,
        )
        yield client
        client.close()
        server.shutdown()


PINGS = [Command(("PING",)) for _ in range(3)]


def test_calls_of_a_write_behind_one_that_was_turned_away_may_have_run(
    waking: redis.Redis,
) -> None:
    told = converse(waking, [each.command() for each in PINGS])

    assert isinstance(told[0], redis.BusyLoadingError)
    assert [may_have_run(error) for error in told] == [False, True, True]


def test_error_of_a_node_stays_one_for_the_calls_behind() -> None:
    loading = redis.BusyLoadingError("LOADING")
    assert not is_of_node(of_those_behind(loading))
    mark_of_node(loading)

    assert is_of_node(of_those_behind(loading))


def test_calls_of_a_line_behind_one_that_was_turned_away_may_have_run(
    waking: redis.Redis,
) -> None:
    line = Line(waking)
    under_way = [line.ask(each) for each in PINGS]
    told = []
    for each in under_way:
        with pytest.raises(redis.ConnectionError) as caught:
            each.finish()
        told.append(caught.value)

    assert [may_have_run(error) for error in told] == [False, True, True]


def test_calls_of_a_stream_behind_one_that_was_turned_away_may_have_run(
    waking: redis.Redis,
) -> None:
    told = list(run_stream(waking, [echo(str(n)) for n in range(9)]))

    assert isinstance(told[0], redis.BusyLoadingError)
    assert len(told) == 3
    assert [may_have_run(error) for error in told if isinstance(error, Exception)] == [
        False,
        True,
        True,
    ]
