"""One Redis operation, described without I/O, and the two ways to run it.

A `Call` names the script, its keys and arguments, and how to read the reply. `run` executes it on a
`redis.Redis`, `arun` on a `redis.asyncio.Redis`, `run_all` several in one pipeline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any, Generic, TypeVar

from redis.asyncio import Redis as AsyncRedis
from redis.client import Redis
from redis.exceptions import NoScriptError

T = TypeVar("T")
#: What redis-py can put on the wire as it stands.
Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script: the text sent to the server (its preludes included) and the SHA-1 of it."""

    name: str
    source: str
    sha: str


@cache
def load_script(package: str, name: str) -> Script:
    """Read ``<package>/lua/<name>.lua`` and put the preludes its header names before it.

    A header line ``-- Prelude  clock, frame`` names ``_clock.lua`` and ``_frame.lua``, which are looked
    for beside the script first and in ``django_delayq.wire`` then.
    """
    text = _read(package, name)
    sources = [_prelude(package, prelude) for prelude in preludes_of(text)]
    source = "\n".join([*sources, text])
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def preludes_of(text: str) -> list[str]:
    """Return the names in the ``-- Prelude`` line of a script's header."""
    for line in text.splitlines():
        if line.startswith("-- Prelude  "):
            return [name.strip() for name in line.removeprefix("-- Prelude  ").split(",")]
    return []


def _prelude(package: str, name: str) -> str:
    try:
        return _read(package, f"_{name}")
    except FileNotFoundError:
        return _read("django_delayq.wire", f"_{name}")


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath("lua", f"{name}.lua").read_text("utf-8")


def _identity(reply: Any) -> Any:
    return reply


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A script call that has not been made yet."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument] = ()
    read: Callable[[Any], T] = field(default=_identity)

    def command(self) -> tuple[Argument, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def full_command(self) -> tuple[Argument, ...]:
        """The same with the script's text, for a server that has not seen it yet."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


def run(client: "Redis[bytes]", call: Call[T]) -> T:
    """Make one call; errors of the server and the connection pass through."""
    try:
        reply = client.execute_command(*call.command())
    except NoScriptError:
        reply = client.execute_command(*call.full_command())
    return call.read(reply)


async def arun(client: "AsyncRedis[bytes]", call: Call[T]) -> T:
    """Make one call on an asyncio client."""
    try:
        reply = await client.execute_command(*call.command())
    except NoScriptError:
        reply = await client.execute_command(*call.full_command())
    return call.read(reply)


def run_all(client: "Redis[bytes]", calls: Sequence[Call[T]]) -> list[T | Exception]:
    """Make several calls in one pipeline, not atomic as a whole; an error stands in its call's place."""
    if not calls:
        return []
    replies = _pipeline(client, calls, [call.command() for call in calls])
    return _read_all(calls, replies)


def _pipeline(client: "Redis[bytes]", calls: Sequence[Call[T]], commands: list[tuple[Argument, ...]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies = pipeline.execute(raise_on_error=False)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        # NOSCRIPT means that nothing of it ran: those, and only those, are sent again.
        again = client.pipeline(transaction=False)
        for i in unknown:
            again.execute_command(*calls[i].full_command())
        for i, reply in zip(unknown, again.execute(raise_on_error=False), strict=True):
            replies[i] = reply
    return replies


def _read_all(calls: Sequence[Call[T]], replies: Sequence[Any]) -> list[T | Exception]:
    return [
        reply if isinstance(reply, Exception) else call.read(reply)
        for call, reply in zip(calls, replies, strict=True)
    ]


async def arun_all(client: "AsyncRedis[bytes]", calls: Sequence[Call[T]]) -> list[T | Exception]:
    """`run_all` on an asyncio client."""
    if not calls:
        return []
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*call.command())
    replies = await pipeline.execute(raise_on_error=False)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        again = client.pipeline(transaction=False)
        for i in unknown:
            again.execute_command(*calls[i].full_command())
        for i, reply in zip(unknown, await again.execute(raise_on_error=False), strict=True):
            replies[i] = reply
    return _read_all(calls, replies)
