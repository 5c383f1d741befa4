"""One Sentinel that answers nonsense does not keep us from what the others say."""

import asyncio
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis.utils

from django_delayq.transport import sentinels as sentinels_module
from django_delayq.transport.sentinels import (
    Primary,
    PrimaryNotFound,
    Sentinels,
    SentinelsRefuse,
    _PromptSocket,
)
from django_delayq.transport.switches import Lead, _Ear

STATE = [b"num-other-sentinels", b"2", b"config-epoch", b"5"]
LATEST = [b"num-other-sentinels", b"2", b"config-epoch", b"9"]
ADDRESS = [b"127.0.0.1", b"6379"]
Start = Callable[..., tuple[str, int]]


class Refusal(str):
    """What a Sentinel answers to an account that it does not accept."""


def encoded(reply: Any) -> bytes:
    if isinstance(reply, Refusal):
        return f"-{reply} refused\r\n".encode()
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    return b"$-1\r\n" if reply is None else b"$%d\r\n%b\r\n" % (len(reply), reply)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Sentinel that gives these answers; return its address."""
    with ExitStack() as stack:

        def start(state: Any, address: Any, pause_s: float = 0) -> tuple[str, int]:
            class Handler(socketserver.StreamRequestHandler):
                def handle(self) -> None:
                    while head := self.rfile.readline():
                        args = []
                        for _ in range(int(head[1:])):
                            size = int(self.rfile.readline()[1:])
                            args.append(self.rfile.read(size + 2)[:-2].upper())
                        if args[0] != b"SENTINEL":
                            self.wfile.write(b"+OK\r\n")
                            continue
                        told = encoded(state if args[1] == b"MASTER" else address)
                        for byte in told if pause_s else ():
                            self.wfile.write(bytes((byte,)))
                            time.sleep(pause_s)
                        self.wfile.write(b"" if pause_s else told)

            server = stack.enter_context(_Server(("127.0.0.1", 0), Handler))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return "127.0.0.1", server.server_address[1]

        yield start


def of(*addresses: tuple[str, int]) -> Sentinels:
    return Sentinels("mymaster", addresses, {address: {} for address in addresses})


def find(sentinels: Sentinels, *, is_async: bool) -> Primary:
    return asyncio.run(sentinels.afind()) if is_async else sentinels.find()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("state", "address"),
    [
        (None, ADDRESS),
        (5, ADDRESS),
        ([], ADDRESS),
        ([b"name"], ADDRESS),
        ([[b"name"], b"x"], ADDRESS),
        ([*LATEST[:3], b"soon"], ADDRESS),
        ([*LATEST[:3], b"9" * 5_000], ADDRESS),
        (LATEST, 5),
        (LATEST, b"ab"),
        (LATEST, [b"127.0.0.1"]),
        (LATEST, [[b"127.0.0.1"], [b"6379"]]),
        (LATEST, [b"\xff", b"6379"]),
        (LATEST, [b"", b"6379"]),
        (LATEST, [b"a\0b", b"6379"]),
        (LATEST, [b"\x1b[31m", b"6379"]),
        (LATEST, [b"a" * 64, b"6379"]),
        (LATEST, [b"a." * 500, b"6379"]),
        (LATEST, [b"127.0.0.1", b"0"]),
        (LATEST, [b"127.0.0.1", b"65536"]),
        (LATEST, [b"127.0.0.1", b"9" * 5_000]),
    ],
)
def test_answer_that_cannot_be_read_is_none(
    start: Start, state: Any, address: Any, is_async: bool
) -> None:
    liar, other = start(state, address), start(STATE, ADDRESS)

    assert find(of(liar, other), is_async=is_async) == Primary(5, "127.0.0.1", 6379)

    with pytest.raises(PrimaryNotFound, match="no Sentinel answers so"):
        find(of(liar), is_async=is_async)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_answer_that_comes_byte_by_byte_is_not_waited_for(
    start: Start, is_async: bool
) -> None:
    # It would take over an hour.
    liar = start([b"x" * 50_000], ADDRESS, 0.1)
    other = start(STATE, ADDRESS)

    assert find(of(liar, other), is_async=is_async).epoch == 5


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_question_does_not_look_up_the_version_of_redis_py(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(redis.utils, "get_lib_version", lambda: looked_up.append("x"))

    find(of(start(STATE, ADDRESS)), is_async=is_async)

    assert not looked_up


def test_time_for_an_answer_begins_with_its_question() -> None:
    class Wire:
        def __init__(self) -> None:
            self.waits: list[float] = []

        def settimeout(self, seconds: float) -> None:
            self.waits.append(seconds)

        def sendall(self, data: bytes) -> None:
            pass

        def recv(self, size: int) -> bytes:
            clock.now += 0.75
            return b"x"

    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    clock, wire = Clock(), Wire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentinels_module, "time", clock)
        sock = _PromptSocket(wire, 1.0)
        for _ in range(2):
            sock.sendall(b"?")
            assert sock.recv(1) + sock.recv(1) == b"xx"
            with pytest.raises(TimeoutError):
                sock.recv(1)

    assert wire.waits == [1.0, 1.0, 0.25] * 2


@pytest.mark.parametrize(
    ("named", "is_moving"), [(ADDRESS, True), ([b"127.0.0.2", b"6379"], False)]
)
def test_one_of_them_says_that_a_failover_has_begun(
    start: Start, named: Any, is_moving: bool
) -> None:
    """Once that Sentinel names the new primary, nothing changes any more."""
    place = [b"ip", ADDRESS[0], b"port", ADDRESS[1]]
    leading = [*STATE, b"flags", b"master,failover_in_progress", *place]
    leader, other = start(leading, named), start(STATE, named)

    found = find(of(leader, other), is_async=False)

    assert (found.address[0].encode(), found.is_moving) == (named[0], is_moving)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_one_that_refuses_does_not_speak_for_those_that_are_slow(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    refusing, slow = start(Refusal("NOAUTH"), ADDRESS), start(STATE, ADDRESS, 0.001)
    monkeypatch.setattr(sentinels_module, "PATIENCE_S", (0.01, 60.0))

    assert find(of(refusing, slow), is_async=is_async).address == ("127.0.0.1", 6379)


def test_refusal_of_one_is_no_refusal_if_the_others_are_away(start: Start) -> None:
    """A call is made again after the one, and not after the other."""
    refusing, other = start(Refusal("NOAUTH"), ADDRESS), start(Refusal("WRONGPASS"), 1)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = "127.0.0.1", gone.getsockname()[1]

    with pytest.raises(PrimaryNotFound, match=r"answers: .*refused"):
        of(refusing, away).find()
    with pytest.raises(SentinelsRefuse):
        of(refusing, other).find()


def test_sentinel_that_never_stops_talking_is_not_listened_to() -> None:
    class Flood:
        left = 100

        def settimeout(self, seconds: float) -> None:
            pass

        def recv(self, size: int) -> bytes:
            if not self.left:
                raise BlockingIOError
            self.left -= 1
            return b":1\r\n" * 1_000

    ear = _Ear(Lead(of(("127.0.0.1", 1))), ("127.0.0.1", 1))
    ear.sock = flood = Flood()

    assert not ear.hear()

    assert flood.left
    assert ear.sock is None
