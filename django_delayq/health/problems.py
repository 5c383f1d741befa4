"""What a live server is asked before a worker relies on it: version, memory, persistence, role, rights, keys.

A few round trips and a few milliseconds, whatever waits in the queues. Rights are found out by trying: commands that
change nothing on the queues' own keys, and everything else on throwaway keys named like those of results. Who calls
this decides what a problem is worth; nothing here knows of Django.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from shlex import quote
from typing import Any, NamedTuple

from redis.client import Redis
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from django_delayq.calls.several import run_all
from django_delayq.delivery import holding, upgrading
from django_delayq.delivery.holding import HeldNames
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.upgrading import QueueFormat
from django_delayq.waiting.connection import DedicatedConnection
from django_delayq.wire import signing

#: Frames in a queue's insertion list from which on its upkeep is felt: a scan of it takes 3 ms.
LONG_LIST = 100_000
#: The oldest servers that know every command of ours.
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
#: What a throwaway key lives at most, should we be cut off before we delete it.
THROWAWAY_MS = 5000
#: A socket that says nothing for so long is dead.
DEADLINE_S = 5.0


class Level(StrEnum):
    """How bad a problem is."""

    #: Jobs will be lost, or not run at all.
    ERROR = "error"
    #: Works, until something happens.
    WARNING = "warning"
    #: Could not be found out.
    INFO = "info"


class ServerProblem(NamedTuple):
    """Something about the server that one should know before one relies on it."""

    level: Level
    message: str
    hint: str


def find_server_problems(
    client: "Redis", queues: Iterable[str], *, key_ids: Collection[str] | None = None
) -> list[ServerProblem]:
    """Ask a server whether it can serve these queues, given by name; the worst comes first.

    ``key_ids`` are those of the keys that this project has; None: what is signed with others is not looked for.

    Raises:
        redis.exceptions.ConnectionError: it does not answer, or does not let us in.
    """
    keys = [DeliveryKeys.of(name) for name in queues]
    facts = _ask(client)
    problems = [
        *_version(facts),
        *_role(facts),
        *_memory(facts),
        *_persistence(facts),
        *_unknowns(facts),
    ]
    if keys:
        rights = _Rights(client, keys, facts)
        problems += rights.find()
        if rights.is_read_only and not facts.role:
            facts.role = "replica"
            problems += _role(facts)
        if not rights.unreadable and not rights.mistyped:
            problems += _formats(client, keys)
            if key_ids is not None:
                problems += _missing_keys(client, keys, key_ids)
    order = list(Level)
    return sorted(problems, key=lambda problem: order.index(problem.level))


# What the server tells of itself


@dataclass
class _Facts:
    """What could be found out; None or "" where it could not."""

    product: str = "Redis"
    version: tuple[int, ...] = ()
    role: str = ""
    maxmemory: int | None = None
    used_memory: int | None = None
    policy: str = ""
    is_aof_on: bool | None = None
    snapshots: str | None = None


def _ask(client: "Redis") -> _Facts:
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.execute_command("HELLO")
    pipeline.info()
    settings = ("maxmemory", "maxmemory-policy", "appendonly", "save")
    for name in settings:
        pipeline.config_get(name)
    hello, info, *configs = pipeline.execute(raise_on_error=False)
    # Managed services and careful administrators refuse INFO, CONFIG or both: take what each of them tells.
    facts = _Facts()
    if not isinstance(hello, Exception):
        _take_hello(facts, hello)
    if not isinstance(info, Exception):
        _take_info(facts, info)
    config = {
        name: reply[name]
        for name, reply in zip(settings, configs, strict=True)
        if isinstance(reply, dict) and name in reply
    }
    _take_config(facts, config)
    return facts


def _take_hello(facts: _Facts, hello: Any) -> None:
    items = (
        hello
        if isinstance(hello, dict)
        else dict(zip(hello[::2], hello[1::2], strict=False))
    )
    told = {_text(key): value for key, value in items.items()}
    facts.product = "Valkey" if _text(told.get("server", "")) == "valkey" else "Redis"
    facts.version = _numbers(_text(told.get("version", "")))
    facts.role = _role_name(_text(told.get("role", "")))


def _take_info(facts: _Facts, info: dict[str, Any]) -> None:
    if "valkey_version" in info:
        facts.product = "Valkey"
        facts.version = _numbers(str(info["valkey_version"]))
    elif "redis_version" in info:
        facts.product = "Redis"
        facts.version = _numbers(str(info["redis_version"]))
    facts.role = _role_name(str(info.get("role", ""))) or facts.role
    facts.maxmemory = info.get("maxmemory")
    facts.used_memory = info.get("used_memory")
    facts.policy = str(info.get("maxmemory_policy", ""))
    if "aof_enabled" in info:
        facts.is_aof_on = bool(info["aof_enabled"])


def _take_config(facts: _Facts, config: dict[str, str]) -> None:
    if facts.maxmemory is None and "maxmemory" in config:
        facts.maxmemory = int(config["maxmemory"])
    facts.policy = facts.policy or config.get("maxmemory-policy", "")
    if facts.is_aof_on is None and "appendonly" in config:
        facts.is_aof_on = config["appendonly"] == "yes"
    facts.snapshots = config.get("save")


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _role_name(role: str) -> str:
    return {"master": "primary", "slave": "replica"}.get(role, role)


def _version(facts: _Facts) -> Iterator[ServerProblem]:
    if facts.version and facts.version < (oldest := OLDEST[facts.product]):
        number = ".".join(map(str, facts.version))
        least = ".".join(map(str, oldest))
        yield ServerProblem(
            Level.ERROR,
            f"The server is {facts.product} {number}; {facts.product} {least} is the oldest that will do.",
            "Use a newer server: Redis 6.2 or later, or Valkey 7.2 or later.",
        )


def _role(facts: _Facts) -> Iterator[ServerProblem]:
    if facts.role not in ("", "primary"):
        yield ServerProblem(
            Level.ERROR,
            f"The server is a {facts.role}: what is written to it is refused, or lost with the next synchronisation.",
            "Name the primary in DELAYQ['CONNECTION'].",
        )


def _memory(facts: _Facts) -> Iterator[ServerProblem]:
    hint = "Set maxmemory-policy to noeviction: a full server then refuses new jobs instead of dropping old ones."
    limit = (
        ""
        if facts.maxmemory is None
        else f" and maxmemory is {facts.maxmemory:,} bytes"
    )
    if facts.policy.startswith("allkeys-"):
        if facts.maxmemory == 0:
            yield ServerProblem(
                Level.WARNING,
                f"maxmemory-policy is {facts.policy!r}: as soon as maxmemory is set, the server may drop whole queues.",
                hint,
            )
        else:
            yield ServerProblem(
                Level.ERROR,
                f"maxmemory-policy is {facts.policy!r}{limit}: a full server drops whole queues.",
                hint,
            )
    elif facts.policy.startswith("volatile-") and facts.maxmemory != 0:
        yield ServerProblem(
            Level.WARNING,
            f"maxmemory-policy is {facts.policy!r}{limit}: a full server drops the results of jobs before their time."
            " Jobs are safe.",
            hint,
        )


def _persistence(facts: _Facts) -> Iterator[ServerProblem]:
    if facts.is_aof_on is not False:
        return
    if facts.snapshots:
        what = f"Jobs scheduled since the last snapshot (save {facts.snapshots!r}) are lost"
    elif facts.snapshots == "":
        what = "There are no snapshots either: all jobs are lost"
    else:
        what = "Jobs scheduled since the last snapshot, if it makes any, are lost"
    yield ServerProblem(
        Level.WARNING,
        f"The append-only file is off (appendonly 'no'). {what} when the server crashes.",
        "Set appendonly to yes, and appendfsync to everysec or always.",
    )


def _unknowns(facts: _Facts) -> Iterator[ServerProblem]:
    unknown = [
        name
        for name, is_known in (
            ("the version", bool(facts.version)),
            ("whether it is a primary", bool(facts.role)),
            ("maxmemory-policy (has to be noeviction)", bool(facts.policy)),
            ("the append-only file (ought to be on)", facts.is_aof_on is not None),
        )
        if not is_known
    ]
    if unknown:
        yield ServerProblem(
            Level.INFO,
            f"Could not be checked, because the server allows neither INFO nor CONFIG GET: {', '.join(unknown)}.",
            "Look it up where the server is managed, or allow the user INFO.",
        )


# What is written in a way that this project cannot read


def _formats(
    client: "Redis", queues: Sequence[DeliveryKeys]
) -> Iterator[ServerProblem]:
    found = run_all(client, [upgrading.read_format(keys) for keys in queues])
    for keys, reply in zip(queues, found, strict=True):
        # What the user lacks for it is said of the commands themselves.
        if not isinstance(reply, Exception):
            yield from find_newer(keys.queue.name, reply)


def find_newer(queue: str, found: QueueFormat) -> Iterator[ServerProblem]:
    """Say that a queue is in a later format than this version reads."""
    if found.format > signing.FORMAT:
        yield ServerProblem(
            Level.ERROR,
            f"Queue {queue!r} is in format {found.format}, and this version reads up to {signing.FORMAT}: its workers claim"
            " nothing there.",
            "Update this project; or, to go back, have a newer version run manage.py delayq_resign --format"
            f" {signing.FORMAT}.",
        )


def _missing_keys(
    client: "Redis", queues: Sequence[DeliveryKeys], key_ids: Collection[str]
) -> Iterator[ServerProblem]:
    found = run_all(client, [holding.held_names(keys) for keys in queues])
    for keys, held in zip(queues, found, strict=True):
        # What the user lacks for it is said of the commands themselves.
        if not isinstance(held, Exception):
            for problem in find_missing(held, key_ids):
                yield problem._replace(
                    message=f"Queue {keys.queue.name!r}: {problem.message}"
                )


def find_missing(held: HeldNames, key_ids: Collection[str]) -> Iterator[ServerProblem]:
    """Say which jobs of a queue are held because this project cannot tell whether they are jobs."""
    formats = range(signing.OLDEST, signing.FORMAT + 1)
    for name, count in held.counts.items():
        jobs = f"{count:,} {'job is' if count == 1 else 'jobs are'} held,"
        what, _, which = name.partition(" ")
        if what == "key" and which not in key_ids:
            yield ServerProblem(
                Level.ERROR,
                f"{jobs} signed with the key {which!r}, which this project does not have.",
                "Add the secret to DELAYQ['KEYS'] where that is set, else to SECRET_KEY_FALLBACKS, and restart the workers; or run"
                " manage.py delayq_resign where it is known. If nobody knows it: another project may use this server, with"
                " the same names of queues.",
            )
        elif what == "format" and which not in map(str, formats):
            yield ServerProblem(
                Level.ERROR,
                f"{jobs} written in format {which!r}, which this version does not read.",
                "Start workers of the version that wrote them.",
            )


# What may be done


class Try(NamedTuple):
    """One command that is tried on throwaway keys."""

    #: What it works on: list, zset or hash.
    kind: str
    name: str
    #: What follows the key.
    args: tuple[str | int | float, ...] = ()
    #: Makes a key where there is none.
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
    Try("zset", "ZRANK", ("1",)),
    Try("zset", "ZSCORE", ("1",)),
    Try("zset", "ZREM", ("1",)),
    Try("zset", "ZREMRANGEBYRANK", (0, 0)),
    Try("hash", "HSET", ("1", "1"), creates=True),
    Try("hash", "HSETNX", ("1", "1"), creates=True),
    Try("hash", "PEXPIRE", (THROWAWAY_MS,)),
    Try("hash", "HGET", ("1",)),
    Try("hash", "HGETALL"),
    Try("hash", "HEXISTS", ("1",)),
    Try("hash", "HINCRBY", ("1", 1), creates=True),
    Try("hash", "HLEN"),
    Try("hash", "HMGET", ("1",)),
    Try("hash", "HSCAN", (0,)),
    Try("hash", "HDEL", ("1",)),
)
#: Those that take things away. Unless they are allowed nothing is created, as nothing could be cleaned up.
REMOVALS = (
    Try("list", "DEL"),
    Try("list", "UNLINK"),
    Try("list", "LTRIM", (1, 0)),
)
#: Commands that are tried in other ways, with no key of their own or with two.
OTHERS = (
    "EVAL",
    "EVALSHA",
    "TIME",
    "PING",
    "BLMOVE",
    "RENAME",
    "PUBLISH",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
)

#: What each of a queue's keys holds, and the command that changes nothing in it and needs the right to write.
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
)
_ZSETS = (
    "leases",
    "retries",
    "returned",
    "held",
    "held_tasks",
    "dead",
    "quarantine",
    "ended",
)


def kinds_of(keys: DeliveryKeys) -> dict[str, str]:
    """Return what every key of a queue holds: list, zset or hash."""
    kinds = {
        keys.queue.timeout_set: "zset",
        keys.queue.delay_queue: "list",
        keys.queue.destination: "list",
    }
    kinds |= {getattr(keys, name): "hash" for name in _HASHES}
    kinds |= {getattr(keys, name): "zset" for name in _ZSETS}
    return kinds


@dataclass
class _Rights:
    """What one user may do with the keys, channels and commands of these queues."""

    client: "Redis"
    keys: Sequence[DeliveryKeys]
    facts: _Facts
    #: Commands and what the server says to them.
    commands: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    unwritable: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    #: Key: what it ought to hold.
    mistyped: dict[str, str] = field(default_factory=dict)
    #: Queue: frames in its list.
    long_lists: dict[str, int] = field(default_factory=dict)
    is_full: bool = False
    is_read_only: bool = False
    #: What else the server said, and to which command.
    other: dict[str, str] = field(default_factory=dict)
    has_frozen_scripts: bool = False
    kinds: dict[str, str] = field(default_factory=dict)

    def find(self) -> list[ServerProblem]:
        tag = self.keys[0].result(f"check-{secrets.token_hex(8)}")
        self._throwaway = {kind: f"{tag}-{kind}" for kind in ("list", "zset", "hash")}
        self._try_keys()
        if self.facts.role != "replica":
            self._try_scripts()
            self._try_commands(may_create=self._try_removals())
            self._try_channels()
        if self.mistyped:
            self._ask_types()
        return list(self._problems())

    def _pipeline(self, commands: Sequence[Sequence[str | int | float]]) -> list[Any]:
        pipeline: Any = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, RedisConnectionError):
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
            if (
                key == keys.queue.delay_queue
                and isinstance(read, int)
                and read > LONG_LIST
            ):
                self.long_lists[keys.queue.name] = read

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
        # DEL is tried by itself: what is left is TIME.
        (reply,) = self._pipeline([("EVAL", "return redis.call('TIME')", 1, key)])
        if isinstance(reply, Exception):
            self.commands["TIME"] = str(reply)

    def _try_removals(self) -> bool:
        """Return whether they are all allowed."""
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
            # Returns at once where the list has something, else after a tenth of a second.
            ("BLMOVE", ("BLMOVE", first, first, "LEFT", "LEFT", 0.01)),
            ("RENAME", ("RENAME", first, second)),
            # Long past: whoever listens looks once more at what it knows.
            ("PUBLISH", ("PUBLISH", self.keys[0].channel, "0")),
        ]
        if may_create:
            zset, hash_ = self._throwaway["zset"], self._throwaway["hash"]
            commands.append(("DEL", ("DEL", first, second, zset, hash_)))
        replies = self._pipeline([command for _, command in commands])
        for (name, _), reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception) and "no such key" in str(reply):
                continue  # LSET and RENAME where nothing was created
            if isinstance(reply, Exception) and _is_about_channels(reply):
                continue  # found below, for each of them
            self._take(name, reply)

    def _try_channels(self) -> None:
        names = [
            name for keys in self.keys for name in (keys.queue.channel, keys.channel)
        ]
        connection = DedicatedConnection(self.client, deadline_s=DEADLINE_S)
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
        """Note what a reply that is an error means."""
        if not isinstance(reply, Exception):
            return
        text = str(reply)
        if isinstance(reply, OutOfMemoryError) or text.startswith("OOM"):
            self.is_full = True
        elif _is_about_keys(reply):
            # The throwaway keys are results: without the right to those no result can be kept.
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
                self.kinds[name] = _text(reply)

    # What comes of it

    def _problems(self) -> Iterator[ServerProblem]:
        user = _user_of(self.client)
        if self.has_frozen_scripts:
            yield ServerProblem(
                Level.ERROR,
                "lua-replicate-commands is 'no': a script that reads the clock may not write, so nothing can be"
                " scheduled.",
                "Set lua-replicate-commands to yes, which is the default (CONFIG SET lua-replicate-commands yes).",
            )
        if self.commands:
            names = sorted(self.commands)
            allowed = " ".join(f"+{name.lower()}" for name in names)
            yield ServerProblem(
                Level.ERROR,
                f"User {user!r} may not use {', '.join(names)}. The server says: {self.commands[names[0]]}",
                f"ACL SETUSER {user} {allowed}",
            )
        yield from self._key_problems(user)
        if self.channels:
            yield ServerProblem(
                Level.ERROR,
                f"User {user!r} may not use the channel{_s(self.channels)} {_some(self.channels)}: workers are"
                " not told of new jobs, and may start them 2 s late.",
                f"ACL SETUSER {user} {' '.join(f'&{_glob(name)}' for name in self.channels[:30])}",
            )
        if self.is_full:
            used, limit = self.facts.used_memory, self.facts.maxmemory
            numbers = "" if used is None else f": it uses {used:,} bytes of {limit:,}"
            yield ServerProblem(
                Level.WARNING,
                f"The server is at its maxmemory{numbers}. It takes no new jobs.",
                "Raise maxmemory. Due jobs go on running and make room.",
            )
        for text, command in self.other.items():
            yield ServerProblem(
                Level.ERROR,
                f"The server refuses {command}: {text}",
                "See its log; nothing can be scheduled or run as long as it refuses.",
            )
        yield from self._content_problems()

    def _key_problems(self, user: str) -> Iterator[ServerProblem]:
        both = [key for key in self.unwritable if key in self.unreadable]
        for keys, right in (
            (both, "touch"),
            ([key for key in self.unreadable if key not in both], "read"),
            ([key for key in self.unwritable if key not in both], "write"),
        ):
            if not keys:
                continue
            yield ServerProblem(
                Level.ERROR,
                f"User {user!r} may not {right} the key{_s(keys)} {_some(keys)}.",
                f"ACL SETUSER {user} {' '.join(self._patterns(keys))}",
            )

    def _patterns(self, refused: Sequence[str]) -> list[str]:
        patterns = []
        for keys in self.keys:
            tag = _glob(keys.queue.tag)
            own = set(kinds_of(keys)) | {keys.result("*")}
            if own & set(refused):
                patterns += [
                    f"~{_glob(keys.queue.name)}",
                    f"~redisson_delay_queue*:{tag}",
                    f"~delayq_*:{tag}*",
                ]
        return patterns[:30]

    def _content_problems(self) -> Iterator[ServerProblem]:
        if self.mistyped:
            listing = [
                f"{key} ({self.kinds.get(key, 'something else')} instead of {kind})"
                for key, kind in self.mistyped.items()
            ]
            yield ServerProblem(
                Level.ERROR,
                f"{len(listing)} key{_s(listing)} of the queues hold{'s' * (len(listing) == 1)} data of somebody else:"
                f" {_some(listing)}.",
                "Give the queue another name in DELAYQ['QUEUES'], or delete what is there.",
            )
        for name, length in self.long_lists.items():
            yield ServerProblem(
                Level.WARNING,
                f"The insertion list of queue {name!r} holds {length:,} frames, more than {LONG_LIST:,}: every job"
                " that starts or is cancelled makes the server search it.",
                f"If no Java client looks into this queue, set DELAYQ['QUEUES'][{name!r}]['INSERTION_LIST'] to False,"
                f" and run manage.py delayq_frames {quote(name)} --list off; that is safe while it is in use.",
            )


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
    # 6.2, 7.0, and later.
    return (
        "can't run this command" in text
        or "ACL failure in script" in text
        or "unknown command" in text.lower()
        or "Unknown Redis command" in text
    )


def _user_of(client: "Redis") -> str:
    pool = getattr(client, "connection_pool", None)
    arguments = pool.connection_kwargs if pool is not None else {}
    provider = arguments.get("credential_provider")
    if provider is not None:
        credentials = provider.get_credentials()
        return str(credentials[0]) if len(credentials) > 1 else "default"
    return str(arguments.get("username") or "default")


def _glob(text: str) -> str:
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:5]) + (
        f" and {len(items) - 5} more" if len(items) > 5 else ""
    )
