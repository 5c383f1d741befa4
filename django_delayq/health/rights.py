"""The rights of one user on the keys, channels and commands of some queues, found out by trying.

Commands that change nothing are tried on the queues' own keys, all others on throwaway keys with names
like those of results. ``rights_problems`` says what a missing right means for jobs.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.client import Redis
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.worker_registry import RegistryKeys
from django_delayq.health.facts import Facts, text_of
from django_delayq.transport.connections import arguments_of
from django_delayq.transport.errors import LOST, is_of_node
from django_delayq.waiting.connection import DedicatedConnection

#: How long a throwaway key lives if we are cut off before we delete it.
THROWAWAY_MS = 5000
#: A socket that is silent for this long is dead.
DEADLINE_S = 5.0


class Try(NamedTuple):
    """One command that is tried on throwaway keys."""

    #: The type of its key: list, zset or hash.
    kind: str
    name: str
    #: Its arguments after the key.
    args: tuple[str | int | float, ...] = ()
    #: Whether it creates the key if that does not exist.
    creates: bool = False


#: Every command that a script or a client of ours uses on a key, in an order that leaves nothing behind.
TRIES = (
    Try("list", "RPUSH", ("1", "2", "3"), creates=True),
    Try("list", "PEXPIRE", (THROWAWAY_MS,)),
    Try("list", "LPUSH", ("0",), creates=True),
    Try("list", "LLEN"),
    Try("list", "LINDEX", (0,)),
    Try("list", "LRANGE", (0, 1)),
    Try("list", "LPOS", ("2",)),
    Try("list", "LSET", (0, "0")),
    Try("list", "LREM", (1, "3")),
    Try("zset", "ZADD", (1, "1", 2, "2"), creates=True),
    Try("zset", "PEXPIRE", (THROWAWAY_MS,)),
    Try("zset", "ZCARD"),
    Try("zset", "ZCOUNT", ("-inf", "+inf")),
    Try("zset", "ZMSCORE", ("1",)),
    Try("zset", "ZRANGE", (0, 0)),
    Try("zset", "ZREVRANGE", (0, 0)),
    Try("zset", "ZRANGEBYSCORE", ("-inf", "+inf")),
    Try("zset", "ZRANGEBYLEX", ("-", "+")),
    Try("zset", "ZLEXCOUNT", ("-", "+")),
    Try("zset", "ZRANK", ("1",)),
    Try("zset", "ZSCORE", ("1",)),
    Try("zset", "ZREM", ("1",)),
    Try("zset", "ZREMRANGEBYRANK", (0, 0)),
    Try("hash", "HSET", ("1", "1"), creates=True),
    Try("hash", "HSETNX", ("1", "1"), creates=True),
    Try("hash", "PEXPIRE", (THROWAWAY_MS,)),
    Try("hash", "HGET", ("1",)),
    Try("hash", "HGETALL"),
    Try("hash", "HKEYS"),
    Try("hash", "HEXISTS", ("1",)),
    Try("hash", "HINCRBY", ("1", 1), creates=True),
    Try("hash", "HLEN"),
    Try("hash", "HMGET", ("1",)),
    Try("hash", "HSCAN", (0,)),
    Try("hash", "HDEL", ("1",)),
)
#: The commands that remove what the tries create. Unless all of them are allowed, nothing is created.
REMOVALS = (
    Try("list", "DEL"),
    Try("list", "UNLINK"),
    Try("list", "LTRIM", (1, 0)),
)

#: For each type of key, a command that needs the right to read, and below one that needs the right to write but
#: changes nothing.
_READS = {"list": ("LLEN",), "zset": ("ZCARD",), "hash": ("HLEN",)}
_NO_CHANGES: dict[str, tuple[str | int, ...]] = {
    "list": ("LTRIM", 0, -1),
    "zset": ("ZREM", ""),
    "hash": ("HDEL", ""),
}
_HASHES = (
    "locators",
    "headers",
    "payloads",
    "errors",
    "notes",
    "unique",
    "claims",
    "control",
    "counters",
    "schedules",
    "batches",
    "minute",
    "hour",
    "minutes",
    "hours",
    "totals",
    "progress",
    "moving_from",
)
_ZSETS = (
    "leases",
    "retries",
    "returned",
    "held",
    "held_tasks",
    "dead",
    "quarantine",
    "ranked",
    "periods",
    "slots",
    "paces",
    "ended",
    "forwards",
    "sent",
    "moving",
)


#: The type of every key of a registry of workers.
REGISTRY_KINDS = RegistryKeys("hash", "zset", "hash")


def kinds_of(keys: DeliveryKeys) -> dict[str, str]:
    """Return the type of every key of a queue: list, zset or hash."""
    kinds = {
        keys.queue.timeout_set: "zset",
        keys.queue.delay_queue: "list",
        keys.queue.destination: "list",
        keys.last_ended: "list",
    }
    kinds |= {getattr(keys, name): "hash" for name in _HASHES}
    kinds |= {getattr(keys, name): "zset" for name in _ZSETS}
    return kinds


@dataclass
class Rights:
    """The rights of one user on the keys, channels and commands of these queues."""

    client: Redis
    keys: Sequence[DeliveryKeys]
    facts: Facts
    #: The registry of the workers.
    registry_keys: RegistryKeys = RegistryKeys.of()  # noqa: RUF009
    #: Refused commands, and what the server says to each.
    commands: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    unwritable: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    #: The keys of the registry of workers that it may not read or not write.
    registry: list[str] = field(default_factory=list)
    #: Keys that hold another type of data, and the type that each ought to hold.
    mistyped: dict[str, str] = field(default_factory=dict)
    #: The frames in the insertion list of each queue, by its name.
    list_lengths: dict[str, int] = field(default_factory=dict)
    is_full: bool = False
    is_read_only: bool = False
    #: Other errors of the server, and the command that each answered.
    other: dict[str, str] = field(default_factory=dict)
    has_frozen_scripts: bool = False
    kinds: dict[str, str] = field(default_factory=dict)

    def find(self) -> None:
        """Try everything."""
        tag = self.keys[0].result(f"check-{secrets.token_hex(8)}")
        self._throwaway = {kind: f"{tag}-{kind}" for kind in ("list", "zset", "hash")}
        self._try_keys()
        self._try_registry()
        if self.facts.role != "replica":
            self._try_scripts()
            self._try_commands(may_create=self._try_removals())
            self._try_channels()
        if self.mistyped:
            self._ask_types()

    def _pipeline(self, commands: Sequence[Sequence[str | int | float]]) -> list[Any]:
        pipeline: Any = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, LOST):
                raise reply
        return replies

    def _try_keys(self) -> None:
        places = [
            (keys, key, kind)
            for keys in self.keys
            for key, kind in kinds_of(keys).items()
        ]
        commands: list[Sequence[str | int]] = []
        for _, key, kind in places:
            commands.append((*_READS[kind], key))
            change, *args = _NO_CHANGES[kind]
            commands.append((change, key, *args))
        replies = self._pipeline(commands)
        for (keys, key, kind), read, change_ in zip(
            places, replies[::2], replies[1::2], strict=True
        ):
            self._take_key(key, kind, read, change_)
            if key == keys.queue.delay_queue and isinstance(read, int):
                self.list_lengths[keys.queue.name] = read

    def _try_registry(self) -> None:
        commands: list[Sequence[str | int]] = []
        kinds = dict(zip(self.registry_keys, REGISTRY_KINDS, strict=True))
        for key, kind in kinds.items():
            change, *args = _NO_CHANGES[kind]
            commands += [(*_READS[kind], key), (change, key, *args)]
        try:
            replies = iter(self._pipeline(commands))
        except LOST as error:
            if not is_of_node(error):
                raise
            # The queues lie on other nodes.
            return
        for key, kind in kinds.items():
            for reply in (next(replies), next(replies)):
                if not isinstance(reply, Exception):
                    continue
                if _is_about_keys(reply) and key not in self.registry:
                    self.registry.append(key)
                elif "WRONGTYPE" in str(reply):
                    self.mistyped[key] = kind

    def _take_key(self, key: str, kind: str, read: Any, change: Any) -> None:
        for reply, command, refused in (
            (read, _READS[kind][0], self.unreadable),
            (change, str(_NO_CHANGES[kind][0]), self.unwritable),
        ):
            if not isinstance(reply, Exception):
                continue
            if _is_about_keys(reply):
                refused.append(key)
            elif "WRONGTYPE" in str(reply):
                self.mistyped[key] = kind
            else:
                self._take(command, reply)

    def _try_scripts(self) -> None:
        key = self._throwaway["list"]
        writing = "redis.call('TIME') return redis.call('DEL', KEYS[1])"
        by_sha, by_text = self._pipeline(
            [("EVALSHA", "0" * 40, 1, key), ("EVAL", writing, 1, key)]
        )
        if not isinstance(by_sha, NoScriptError):
            self._take("EVALSHA", by_sha)
        text = str(by_text)
        if isinstance(by_text, ResponseError) and "non deterministic" in text:
            self.has_frozen_scripts = True
        elif isinstance(by_text, ResponseError) and _is_about_commands_in_script(text):
            self._try_time(key)
        else:
            self._take("EVAL", by_text)

    def _try_time(self, key: str) -> None:
        # DEL is tried elsewhere, so only TIME is left to try.
        (reply,) = self._pipeline([("EVAL", "return redis.call('TIME')", 1, key)])
        if isinstance(reply, Exception):
            self.commands["TIME"] = str(reply)

    def _try_removals(self) -> bool:
        """Try the removals; return whether all of them are allowed."""
        key = self._throwaway["list"]
        before = len(self.commands) + len(self.other)
        commands = [(item.name, key, *item.args) for item in REMOVALS]
        for item, reply in zip(REMOVALS, self._pipeline(commands), strict=True):
            self._take(item.name, reply)
        return len(self.commands) + len(self.other) == before

    def _try_commands(self, *, may_create: bool) -> None:
        commands: list[tuple[str, Sequence[str | int | float]]] = [
            (item.name, (item.name, self._throwaway[item.kind], *item.args))
            for item in TRIES
            if may_create or not item.creates
        ]
        first, second = self._throwaway["list"], f"{self._throwaway['list']}-2"
        commands += [
            ("PING", ("PING",)),
            # Returns at once if the list has an element, else after a tenth of a second.
            ("BLMOVE", ("BLMOVE", first, first, "LEFT", "LEFT", 0.01)),
            ("RENAME", ("RENAME", first, second)),
            # A start time long past, of which listeners only look once more at what they know.
            ("PUBLISH", ("PUBLISH", self.keys[0].channel, "0")),
        ]
        if may_create:
            zset, hash_ = self._throwaway["zset"], self._throwaway["hash"]
            commands.append(("DEL", ("DEL", first, second, zset, hash_)))
        replies = self._pipeline([command for _, command in commands])
        for (name, _), reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception) and "no such key" in str(reply):
                continue  # LSET and RENAME, if nothing was created
            if isinstance(reply, Exception) and _is_about_channels(reply):
                continue  # _try_channels finds which channels
            self._take(name, reply)

    def _try_channels(self) -> None:
        names = [
            name for keys in self.keys for name in (keys.queue.channel, keys.channel)
        ]
        # Of a cluster any node would do, but that of a queue is one that answers.
        connection = DedicatedConnection(
            self.client, deadline_s=DEADLINE_S, key=self.keys[0].control
        )
        try:
            if self._subscribe(connection, names) is None:
                return
            for name in names:
                error = self._subscribe(connection, [name])
                if error is None:
                    continue
                if not _is_about_channels(error):
                    self._take("SUBSCRIBE", error)
                    return
                self.channels.append(name)
        finally:
            connection.close()

    def _subscribe(
        self, connection: DedicatedConnection, names: Sequence[str]
    ) -> ResponseError | None:
        try:
            connection.command("SUBSCRIBE", *names)
            for _ in names[1:]:
                connection.read()
            self._unsubscribe(connection, names)
        except ResponseError as error:
            return error
        return None

    def _unsubscribe(
        self, connection: DedicatedConnection, names: Sequence[str]
    ) -> None:
        try:
            connection.command("UNSUBSCRIBE", *names)
            for _ in names[1:]:
                connection.read()
        except ResponseError as error:
            self._take("UNSUBSCRIBE", error)

    def _take(self, command: str, reply: Any) -> None:
        """Note what a reply means, if it is an error."""
        if not isinstance(reply, Exception):
            return
        text = str(reply)
        if isinstance(reply, OutOfMemoryError) or text.startswith("OOM"):
            self.is_full = True
        elif _is_about_keys(reply):
            # The throwaway keys have names like results: without a right to those, no result can be kept.
            if not self.unwritable:
                self.unwritable.append(self.keys[0].result("*"))
        elif isinstance(reply, NoPermissionError) or "unknown command" in text.lower():
            self.commands.setdefault(command, text)
        elif isinstance(reply, ReadOnlyError):
            self.is_read_only = True
        else:
            self.other.setdefault(text, command)

    def _ask_types(self) -> None:
        names = list(self.mistyped)
        replies = self._pipeline([("TYPE", name) for name in names])
        for name, reply in zip(names, replies, strict=True):
            if not isinstance(reply, Exception):
                self.kinds[name] = text_of(reply)


def _is_about_keys(reply: Exception) -> bool:
    text = str(reply)
    return isinstance(reply, NoPermissionError) and (
        "one of the keys" in text or "access a key" in text
    )


def _is_about_channels(reply: Exception) -> bool:
    text = str(reply)
    return isinstance(reply, NoPermissionError) and (
        "one of the channels" in text or "access a channel" in text
    )


def _is_about_commands_in_script(text: str) -> bool:
    # As servers say it from 6.2, from 7.0, and later.
    return (
        "can't run this command" in text
        or "ACL failure in script" in text
        or "unknown command" in text.lower()
        or "Unknown Redis command" in text
    )


def user_of(client: Redis) -> str:
    """Return the name of the user as whom a client logs in."""
    arguments = arguments_of(client)
    provider = arguments.get("credential_provider")
    if provider is not None:
        credentials = provider.get_credentials()
        return str(credentials[0]) if len(credentials) > 1 else "default"
    return str(arguments.get("username") or "default")
