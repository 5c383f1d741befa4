"""What a scenario touches: every command on the keys of frozen queues, and each part that it reads or writes.

A touch is a mode, a part and the script that does it, such as ``w tail.limit in claim``: ``r`` reads, ``w`` writes, ``n``
counts, or finds nothing to remove. A part is one of these:

* a key, by its name in `DeliveryKeys`; of the hash ``control`` the field;
* what a header, a locator, a tail or a payload has inside, if a job without features has nothing there;
* a start time: when it is first noted, with the wait that it stands for; later, if it is another one;
* the outcome with which a job ends;
* a table of the outbox, in a query;
* a hook: a place in Python where a worker decides by something that no command shows.

So that it means something that two features share nothing, some touches do not count: `inspect` and `search` look for
people; what is counted and kept for people decides nothing; and a script that asks whether a key has its type does not look
at what it holds. What moves a job has to keep its rank, and ranks are one more list of the jobs that wait: they count as
`rank` and as `place`.
"""

import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha1
from typing import Any

import msgspec
import pytest
from django.db import connection

from django_delayq.core.keys import DeliveryKeys
from django_delayq.outbox.part import OutboxPart
from django_delayq.redaction import MASK
from django_delayq.testing.memory import memory_server as memory
from django_delayq.testing.memory.commands import Keyspace
from django_delayq.transport.script import LOADED
from django_delayq.wire.signatures import JOB_START
from django_delayq.worker.attempt import Attempt

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

#: The resource of each part; "": it decides nothing about a job.
RESOURCE_OF = {
    part: frozenset(resources.split())
    for resources, parts in (
        (
            "payload",
            "payload.changed payload.wrapped payload.options payload.headers payload.since payload.later hook.secrets hook.later",
        ),
        ("payload end", "payload.follow payload.batch"),
        # A frame's, a retry's, whatever says when the job may begin.
        ("start", "start"),
        (
            "place",
            "timeout_set delay_queue destination locators headers leases retries returned held held_tasks dead quarantine sent moving"
            " moving_from notes forwards control.paused control.paused_tasks control.resumed table.outboxrow",
        ),
        (
            "slot",
            "slots paces control.limit control.queue_limit control.pace tail.limit",
        ),
        # A claim waits for the end of any lease.
        ("slot place", "control.full"),
        ("key", "unique tail.unique tail.times tail.ahead"),
        # Ranks are one more list of all that waits.
        ("rank place", "ranked"),
        ("rank", "control.ranked control.priority_step tail.priority"),
        (
            "end",
            "ended errors.masked result last_ended batches header.attempts header.kills tail.batch"
            " tail.on_dead table.inboxrow",
        ),
        ("start end", "hook.expires"),
        ("schedule", "schedules periods"),
        # The bytes of a payload go with its place; `payload.changed` says whether they are others.
        ("", "payloads"),
        # Wakes workers, which look by themselves.
        ("", "channel redisson_channel"),
        # Counted and kept for people: what becomes of a job does not depend on it.
        (
            "",
            "counters minute minutes hour hours totals progress errors control.held_till",
        ),
        # Of calls and processes, not of jobs.
        (
            "",
            "claims control control.service control.format control.seen control.code control.fence control.cleared control.emptied"
            " control.shards table.relayclaim",
        ),
    )
    for part in parts.split()
}


def resources_of(touch: str) -> frozenset[str]:
    """Return what a touch belongs to.

    Raises:
        KeyError: nobody has said so.
    """
    part = re.split("[ +=-]", touch)[1]
    if part not in RESOURCE_OF:
        raise KeyError(f"{touch!r} belongs to nothing: say in RESOURCE_OF to what")
    return RESOURCE_OF[part]


_READS = frozenset(
    b"HGET HMGET HGETALL HKEYS HVALS HEXISTS HSCAN LINDEX LRANGE LPOS ZSCORE ZMSCORE ZRANK ZRANGE ZREVRANGE ZRANGEBYSCORE"
    b" ZRANGEBYLEX".split()
)
_COUNTS = frozenset(b"HLEN LLEN ZCARD ZCOUNT ZLEXCOUNT EXISTS TYPE PTTL".split())
_REMOVES = frozenset(b"HDEL ZREM LREM DEL UNLINK ZREMRANGEBYRANK LPOP LTRIM".split())
_ADDS = frozenset(
    b"HSET HSETNX HINCRBY RPUSH LPUSH LSET ZADD PEXPIRE RENAME LMOVE BLMOVE".split()
)
_WITHOUT_KEY = frozenset(b"TIME INFO PING WAIT WAITAOF PUBLISH PUBSUB".split())
#: Commands with several keys.
_KEYS = {
    b"DEL": None,
    b"UNLINK": None,
    b"EXISTS": None,
    b"RENAME": 2,
    b"LMOVE": 2,
    b"BLMOVE": 2,
}
#: Scripts that look for people, or, once for each process, at how many shards a queue has.
_NOT_OF_A_FEATURE = ("inspect", "search", "pin_shards")
#: Before its first write a script looks whether keys have their type. That is no look at what they hold.
_TYPE_CHECK = re.compile(rb"redis\.call\('(HLEN|ZCARD)', key\)")
_OUTCOMES = ("", "succeeded", "cancelled", "discarded", "expired", "taken")
#: Flags of a tail and what they belong to; the others are of the limit.
_IN_BATCH, _HAS_ON_DEAD, _HAS_TIMES, _BEHIND = 16, 32, 64, 128


class Touches:
    """What is touched on the keys of some queues."""

    def __init__(self, queues: list[str]) -> None:
        self.all: set[str] = set()
        #: The script that runs.
        self.script = ""
        self._names: dict[bytes, str] = {}
        for queue in queues:
            keys = DeliveryKeys.of(queue)
            for name in ("destination", "timeout_set", "delay_queue"):
                self._names[keys.key(name).encode()] = name
            for name in keys.__dataclass_fields__:
                if name != "queue":
                    self._names[keys.key(name).encode()] = name
        # By token, what was stored last.
        self._bodies: dict[bytes, bytes] = {}
        self._starts: dict[bytes, int] = {}

    def note(self, mode: str, part: str) -> None:
        if self.script not in _NOT_OF_A_FEATURE:
            self.all.add(f"{mode} {part} in {self.script}")

    def note_command(
        self, name: bytes, args: list[bytes], reply: Any, now_ms: float
    ) -> None:
        name = name.upper()
        if name in _WITHOUT_KEY:
            return
        mode = "w"
        if name in _READS:
            mode = "r"
        elif name in _COUNTS or (name in _REMOVES and not reply):
            # What removes nothing has looked whether there is something.
            mode = "n"
        else:
            assert name in _REMOVES | _ADDS, f"is {name!r} a read or a write?"
        for key in args[: _KEYS.get(name, 1)]:
            self._note_key(mode, name, key, args[1:], reply, now_ms)

    def _note_key(
        self,
        mode: str,
        name: bytes,
        key: bytes,
        args: list[bytes],
        reply: Any,
        now_ms: float,
    ) -> None:
        of = "result" if key.startswith(b"delayq_result:") else self._names[key]
        if of == "control":
            fields = args[:: 2 if name == b"HSET" else 1]
            if mode != "n" or name == b"HDEL":
                # A script that a full server is to let go on begins with the removal of a field without a name.
                for field in filter(None, fields):
                    self.note(mode, f"control.{field.partition(b':')[0].decode()}")
            return
        if name == b"ZADD":
            while args[0].upper() in (b"NX", b"XX", b"CH"):
                args = args[1:]
        if of == "ended" and name == b"ZADD":
            for score in args[::2]:
                outcome = _OUTCOMES[int(score) % 8]
                # The requests that are known for a while are among them.
                if outcome != "taken":
                    self.note(mode, f"ended={outcome}")
            return
        self.note(mode, of)
        if mode == "n":
            return
        if mode == "r":
            for value in _flat(reply):
                self._note_value(of, value)
        elif name in (b"HSET", b"HSETNX", b"ZADD"):
            # Field and value, or score and member.
            for one, other in zip(args[::2], args[1::2], strict=True):
                if of in _STARTS:
                    token = _token_of(other) if of == "timeout_set" else other
                    self._note_start(token, float(one), now_ms)
                self._note_value(of, other, one, now_ms)
        elif name in _ADDS:
            self._note_value(of, args[-1], b"", now_ms)

    def _note_value(
        self, of: str, value: bytes, token: bytes = b"", now_ms: float = 0
    ) -> None:
        """Note what a value has inside. Without a moment, it was read."""
        mode = "w" if now_ms else "r"
        if of in ("payloads", "timeout_set", "destination", "delay_queue"):
            if now_ms:
                self._note_payload(value)
                if of == "payloads" and not value.startswith(JOB_START):
                    self.note("w", "payload.wrapped")
        elif of == "headers":
            attempts, kills, start_ms = struct.unpack("<IId", value[:16])
            if attempts:
                self.note(mode, "header.attempts")
            if kills:
                self.note(mode, "header.kills")
            self._note_start(token, start_ms, now_ms)
            tail = value[32:]
            self._note_tail(mode, tail[7:] if tail[:1] == b"c" else tail)
        elif of == "locators":
            high, low = struct.unpack(">HI", value[15:21])
            self._note_start(token, (high << 32) + low, now_ms)
            self._note_tail(mode, value[21:])
        elif of == "errors" and MASK.encode() in value:
            self.note(mode, "errors.masked")

    def _note_start(self, token: bytes, start_ms: float, now_ms: float) -> None:
        if not now_ms:
            self.note("r", "start")
            return
        # A fraction only orders jobs of one ms.
        start = math.ceil(start_ms)
        before = self._starts.get(token)
        if before is None:
            self.note("w", f"start{start - round(now_ms):+}")
        elif before != start:
            self.note("w", "start")
        self._starts[token] = start

    def _note_tail(self, mode: str, tail: bytes) -> None:
        if tail[:1] == b"x":
            flags, at = tail[1], 5 + int.from_bytes(tail[3:5], "big")
            if tail[2] != 100:
                self.note(mode, "tail.priority")
            if at > 5 or flags % 16:
                self.note(mode, "tail.limit")
            for flag, part, size in (
                (_HAS_TIMES, "times", 18),
                (_BEHIND, "ahead", 22),
                (_IN_BATCH, "batch", 22),
                (_HAS_ON_DEAD, "on_dead", 0),
            ):
                if flags & flag:
                    self.note(mode, f"tail.{part}")
                    at += size
            tail = tail[at:]
        if tail:
            self.note(mode, "tail.unique")

    def _note_payload(self, value: bytes) -> None:
        if b'"delayq":"' not in value:
            return
        at = value.find(JOB_START)
        if at == -1:
            return
        sealed = msgspec.json.decode(value[at:])
        body = msgspec.json.decode(sealed["body"])
        # Arguments are arguments, encrypted or not.
        for field in body.keys() - {"task", "args", "kwargs", "flags", "encrypted"}:
            self.note("w", f"payload.{field}")
        token = sealed["delayq"].encode()
        if self._bodies.setdefault(token, sealed["body"]) != sealed["body"]:
            self.note("w", "payload.changed")

    def note_query(
        self, execute: Any, sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        for table in re.findall(r'"delayq_outbox_(\w+)"', sql):
            self.note("r" if sql.startswith("SELECT") else "w", f"table.{table}")
        return execute(sql, params, many, context)


#: Sets whose scores say when their jobs may begin.
_STARTS = frozenset({"timeout_set", "retries", "returned"})


def _token_of(frame: bytes) -> bytes:
    found = re.search(rb'"delayq":"(.{22})"', frame)
    return found[1] if found else frame


def _flat(reply: Any) -> Iterator[bytes]:
    if isinstance(reply, list):
        for each in reply:
            yield from _flat(each)
    elif isinstance(reply, bytes):
        yield reply


@contextmanager
def recorded(
    queues: list[str], *, spoilt: dict[str, bytes] | None = None
) -> Iterator[Touches]:
    """Note what is touched within this context. ``spoilt``: Lua that scripts do before anything else, by their names."""
    before = spoilt or {}
    touches = Touches(queues)
    do, is_late, secrets = Keyspace.do, Attempt._expire_if_late, Attempt.secrets.fget
    run_once, run = OutboxPart.run_once, memory._Lua.run

    def doing(self: Keyspace, name: bytes, args: list[bytes]) -> Any:
        reply = do(self, name, args)
        touches.note_command(name, args, reply, self.now_us() / 1000)
        return reply

    def expiring(self: Attempt, now_ms: float) -> bool:
        if self.options is not None and self.options.expires is not None:
            touches.note("r", "hook.expires")
        return is_late(self, now_ms)

    def hiding(self: Attempt) -> Any:
        found = secrets(self)
        if found:
            touches.note("r", "hook.secrets")
        return found

    def running_once(self: OutboxPart, *args: Any) -> Any:
        # It is given the token of the call that has brought the arguments.
        touches.note("r", "hook.later")
        return run_once(self, *args)

    def running(self: Any, sha: bytes, *args: Any) -> Any:
        touches.script = _name_of(sha.decode())
        try:
            return run(self, sha, *args)
        finally:
            touches.script = ""

    def compiling(self: Any, source: bytes) -> bytes:
        sha = sha1(source, usedforsecurity=False).hexdigest()
        if sha.encode() not in self._compiled:
            first = before.get(_name_of(sha), b"")
            self._compiled[sha.encode()] = self._runtime.compile(
                first + _TYPE_CHECK.sub(b"", source)
            )
        return sha.encode()

    with (
        pytest.MonkeyPatch.context() as patch,
        connection.execute_wrapper(touches.note_query),
    ):
        patch.setattr(Keyspace, "do", doing)
        patch.setattr(Attempt, "_expire_if_late", expiring)
        patch.setattr(Attempt, "secrets", property(hiding))
        patch.setattr(OutboxPart, "run_once", running_once)
        patch.setattr(memory._Lua, "run", running)
        patch.setattr(memory._Lua, "compile", compiling)
        patch.setattr(memory._lua(), "_compiled", {} if spoilt else _COMPILED)
        yield touches


def _name_of(sha: str) -> str:
    return LOADED[sha].name


#: Scripts without their checks of types.
_COMPILED: dict[bytes, Any] = {}
