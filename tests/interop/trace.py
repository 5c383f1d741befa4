"""What both sides say to the server for one element, as MONITOR sees it: the trace in docs/wire-format.md.

``python -m tests.interop.trace`` prints it.
"""

import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import redis

from django_delayq.delivery import operations
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.queues import scripts as queues
from django_delayq.queues.blocking import BlockingQueue
from django_delayq.queues.delayed import DelayedQueue
from django_delayq.wire import scripts as wire
from django_delayq.wire.call import load_script
from tests.interop.peers import Peer
from tests.servers import Server
from tests.waiting import wait_until

VERSION = "4.7.0"
CODEC = "StringCodec"
VALUE = "hello"
#: Whether a script said it, and the command, one after the other.
Seen = list[tuple[bool, str]]
#: Not part of what happens to an element: who is there, who listens, what keeps a connection alive.
ASIDE = (
    "PING",
    "CLIENT",
    "HELLO",
    "INFO",
    "SCRIPT",
    "ECHO",
    "AUTH",
    "SELECT",
    "MONITOR",
)


class Recorder:
    """Listens to a server until it is stopped."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._seen: list[dict[str, Any]] = []
        self._is_over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        self._ready.wait()

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._ready.set()
            while not self._is_over.is_set():
                self._seen.append(monitor.next_command())

    def stop(self) -> Seen:
        """Return what it heard."""
        self._is_over.set()
        self._client.echo("enough")
        self._thread.join()
        return [
            (seen["client_type"] == "lua", seen["command"])
            for seen in self._seen
            if seen["command"].partition(" ")[0].upper() not in ASIDE
        ]


def trace_of(server: Server) -> str:
    """Return the trace as a block of text, calls that only looked and found nothing left out."""
    lines = []
    for side, run in (("Redisson " + VERSION, _java), ("django-delayq", _ours)):
        name = f"trace-{side.partition(' ')[0].lower()}"
        lines.append(f"# {side}")
        for is_lua, command in _calls(_record(server, name, run)):
            lines.append(("    " if is_lua else "") + _named(command, name))
        lines.append("")
    return "\n".join(lines).rstrip()


def _calls(seen: Seen) -> Seen:
    """Keep what changes something, and is part of the offer, the transfer or the take."""
    calls: list[Seen] = []
    for is_lua, command in seen:
        if is_lua:
            calls[-1].append((is_lua, command))
        else:
            calls.append([(is_lua, command)])
    return [line for call in calls if _is_change(call) for line in call]


def _is_change(call: Seen) -> bool:
    words = {command.partition(" ")[0].upper() for _, command in call}
    return bool(words & {"ZADD", "ZREM", "BLPOP", "BLMOVE"})


def _record(
    server: Server, name: str, run: Callable[[Server, str], Iterator[None]]
) -> Seen:
    steps = run(server, name)
    next(steps)
    with redis.Redis.from_url(server.url) as client:
        recorder = Recorder(client)
        next(steps, None)
        return recorder.stop()


def _java(server: Server, name: str) -> Iterator[None]:
    peer = Peer(VERSION, server.url).wait_ready()
    try:
        # Once before, so that scripts are known and connections made.
        peer.call("offer", queue=name, codec=CODEC, items=[[["String", "first"], 1]])
        peer.call("take", queue=name, codec=CODEC, count=1, timeout_ms=5000)
        peer.call("consume", queue=name, codec=CODEC, threads=1, take=True)
        yield
        peer.call("offer", queue=name, items=[[["String", VALUE], 300]])
        wait_until(
            lambda: peer.call("consumed", queue=name), description="it was taken"
        )
    finally:
        peer.kill()


def _ours(server: Server, name: str) -> Iterator[None]:
    with (
        DelayedQueue(name, codec=CODEC, connection=server.url) as delayed,
        BlockingQueue(name, codec=CODEC, connection=server.url) as queue,
    ):
        delayed.offer("first", 0.001)
        assert queue.poll(5) == "first"
        yield
        delayed.offer(VALUE, 0.3)
        assert queue.poll(5) == VALUE


def _named(command: str, name: str) -> str:
    """Put names in the place of keys, and of what differs from run to run."""
    word, _, rest = command.partition(" ")
    if word.upper() == "EVALSHA":
        return f"EVALSHA {_script_of(rest)}"
    keys = DeliveryKeys.of(name)
    queue = keys.queue
    names = {
        getattr(keys, field): f"our:{field}"
        for field in keys.__dataclass_fields__
        if field != "queue"
    } | {
        queue.timeout_set: "TIMEOUT_SET",
        queue.channel: "CHANNEL",
        queue.delay_queue: "DELAY_QUEUE",
    }
    for key in sorted(names, key=len, reverse=True):
        rest = rest.replace(key, names[key])
    for pattern, instead in (
        (rf"(?<!\S){re.escape(name)}(?!\S)", "DESTINATION"),
        (rf"\S+\\x00\S*{VALUE}", "FRAME"),
        (r"(?<!\S)\d{13,14}(?!\S)", "MS"),
        (r"(?<!\S)[\w-]{16}\d{6}(?!\S)", "TOKEN"),
        (r"(?<!\S)\d\.\d{3}$", "SECONDS"),
        (r"\S*\\x\S*", "BYTES"),
    ):
        rest = re.sub(pattern, instead, rest)
    # What a random number looks like differs: a space in it parts it in two.
    return f"{word.upper()} {re.sub(r'BYTES( .*)?$', 'BYTES', rest)}".rstrip()


def _script_of(rest: str) -> str:
    sha, key_count, *_ = rest.split(" ")
    return _our_scripts().get(sha, f"({key_count} keys)")


@cache
def _our_scripts() -> dict[str, str]:
    names = {}
    for packages in (wire.PACKAGES, operations.PACKAGES, queues.PACKAGES):
        for file in resources.files(packages[0]).joinpath("lua").iterdir():
            if not file.name.startswith("_"):
                script = load_script(packages, file.name.removesuffix(".lua"))
                names[script.sha] = file.name
    return names


def main() -> None:
    server = Server("valkey").start()
    try:
        print(trace_of(server))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
