"""What both sides say to the server for one element, as MONITOR sees it: trace.txt.

``python -m tests.interop.trace`` prints it.
"""

import re
import threading
from collections.abc import Callable, Iterator
from functools import cache

import redis

from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from tests.interop.peers import Peer
from tests.polling import wait_until
from tests.scripts import names_by_sha
from tests.servers import Server

VERSION = "4.7.0"
CODEC = "StringCodec"
VALUE = "hello"
#: Whether a script said it, and the command's words, one after the other.
Seen = list[tuple[bool, list[str]]]
#: A line of MONITOR, and a word in it, as the server escapes it. redis-py joins the words, and random bytes may hold
#: a space.
LINE = re.compile(r"\S+ \[\d+ ([^]]*)\] (.*)")
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: The last that a recorder listens for: the server may be far ahead of it.
LAST = ["ECHO", "enough"]
#: Not part of what happens to an element: who is there, who listens, what keeps a connection alive.
ASIDE = (
    "PING",
    "CLIENT",
    "HELLO",
    "INFO",
    "SCRIPT",
    "AUTH",
    "SELECT",
    "MONITOR",
)


class Recorder:
    """Listens to a server until it is stopped."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._seen: Seen = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        self._ready.wait()

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._ready.set()
            while True:
                line = LINE.fullmatch(monitor.connection.read_response())
                assert line is not None
                words = WORD.findall(line[2])
                if words == LAST:
                    return
                self._seen.append((line[1] == "lua", words))

    def stop(self) -> Seen:
        """Return all that the server has heard until now."""
        self._client.execute_command(*LAST)
        self._thread.join()
        return [call for call in self._seen if call[1][0].upper() not in ASIDE]


def trace_of(server: Server) -> str:
    """Return the trace as a block of text, calls that only looked and found nothing left out."""
    lines = []
    for side, run in (("Redisson " + VERSION, _java), ("django-delayq", _ours)):
        name = f"trace-{side.partition(' ')[0].lower()}"
        lines.append(f"# {side}")
        for is_lua, words in _calls(_record(server, name, run)):
            lines.append(("    " if is_lua else "") + _named(words, name))
        lines.append("")
    return "\n".join(lines).rstrip()


def _calls(seen: Seen) -> Seen:
    """Keep what changes something, and is part of the offer, the transfer or the take."""
    calls: list[Seen] = []
    for is_lua, words in seen:
        if is_lua:
            calls[-1].append((is_lua, words))
        else:
            calls.append([(is_lua, words)])
    return [line for call in calls if _is_change(call) for line in call]


def _is_change(call: Seen) -> bool:
    commands = {words[0].upper() for _, words in call}
    return bool(commands & {"ZADD", "ZREM", "BLPOP", "BLMOVE"})


def _record(
    server: Server, name: str, run: Callable[[Server, str], Iterator[None]]
) -> Seen:
    steps = run(server, name)
    next(steps)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        recorder = Recorder(client)
        next(steps, None)
        return recorder.stop()


def _java(server: Server, name: str) -> Iterator[None]:
    peer = Peer(VERSION, server.url).wait_ready()
    try:
        # Once before, so that scripts are known and connections made.
        peer.call("offer", queue=name, codec=CODEC, items=[[["String", "first"], 1]])
        peer.call("take", queue=name, codec=CODEC, count=1, timeout_ms=20_000)
        peer.call("consume", queue=name, codec=CODEC, threads=1, take=True)
        _wait_until_it_waits(server)
        yield
        peer.call("offer", queue=name, items=[[["String", VALUE], 1_000]])
        wait_until(
            lambda: peer.call("consumed", queue=name), description="it was taken"
        )
        _wait_until_it_waits(server)
    finally:
        peer.kill()


def _ours(server: Server, name: str) -> Iterator[None]:
    with (
        DelayedQueue(name, codec=CODEC, connection=server.url) as delayed,
        BlockingQueue(name, codec=CODEC, connection=server.url) as queue,
    ):
        delayed.offer("first", 0.001)
        assert queue.poll(20) == "first"
        yield
        delayed.offer(VALUE, 1)
        assert queue.poll(20) == VALUE


def _wait_until_it_waits(server: Server) -> None:
    """Wait for the BLPOP of the one consumer there is, which must be seen before or after, not by chance."""
    with server.client() as client:
        wait_until(
            lambda: client.info("clients")["blocked_clients"] == 1,
            description="the consumer waits",
        )


def _named(words: list[str], name: str) -> str:
    """Put names in the place of keys, and of what differs from run to run."""
    command = words[0].upper()
    if command == "EVALSHA":
        return f"EVALSHA {_script_of(*words[1:3])}"
    keys = DeliveryKeys.of(name)
    names = {
        getattr(keys, field): f"our:{field}"
        for field in keys.__dataclass_fields__
        if field != "queue"
    } | {
        keys.queue.timeout_set: "TIMEOUT_SET",
        keys.queue.channel: "CHANNEL",
        keys.queue.delay_queue: "DELAY_QUEUE",
        name: "DESTINATION",
    }
    named = [command]
    for word in words[1:]:
        # An owner is eight random bytes, which may all be letters.
        is_owner = named[-1] == "our:claims"
        named.append("BYTES" if is_owner else names.get(word) or _kind_of(word))
        if named[-1] == "BYTES":
            break
    return " ".join(named)


def _kind_of(word: str) -> str:
    for pattern, kind in (
        (rf".*\\x00.*{VALUE}", "FRAME"),
        (r"\d{13,14}", "MS"),
        (r"[\w-]{16}[lf]\d{5}", "TOKEN"),
        (r"history:[\w-]{16}[lf]\d{5}", "history:TOKEN"),
        (r"\d\.\d{3}", "SECONDS"),
        (r".*\\x.*", "BYTES"),
    ):
        if re.fullmatch(pattern, word):
            return kind
    return word


def _script_of(sha: str, key_count: str) -> str:
    return _our_scripts().get(sha, f"({key_count} keys)")


@cache
def _our_scripts() -> dict[str, str]:
    return {sha: f"{name}.lua" for sha, name in names_by_sha().items()}


def main() -> None:
    server = Server("valkey").start()
    try:
        print(trace_of(server))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
