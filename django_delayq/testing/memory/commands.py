"""The commands that our scripts and calls use, on keys in memory, with the replies of a server.

tests/testing/test_same.py holds them to a real server. Other commands raise an error that says so.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from django_delayq.testing.memory.zset import ZSet, read_score, score_text

T = TypeVar("T")
#: What a key holds: text, a hash, a list, a sorted set.
Value = bytes | dict[bytes, bytes] | list[bytes] | ZSet
#: The greatest number that HINCRBY makes.
_GREATEST = 2**63 - 1


class Ok(bytes):
    """A status reply, such as OK."""


class Keyspace:
    """The keys of one server, and its commands. Every command takes bytes and returns what a server replies."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        #: The server's clock, epoch us.
        self.now_us = now_us
        self.keys: dict[bytes, Value] = {}
        #: When keys expire, epoch ms.
        self.expiries: dict[bytes, float] = {}

    def do(self, name: bytes, args: list[bytes]) -> Any:
        command = COMMANDS.get(name)
        if command is None:
            command = COMMANDS.get(name.upper())
        if command is None:
            raise ResponseError(
                f"the server in memory has no command {name.decode(errors='replace')!r}; it has those that"
                " django-delayq itself uses"
            )
        try:
            return command(self, *args)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise ResponseError(
                    f"wrong number of arguments for {name.decode()!r} command"
                ) from None
            raise

    # Keys.

    def _get(self, key: bytes, kind: type[T]) -> T | None:
        value = self.keys.get(key)
        if value is None:
            return None
        if self.expiries and self._has_expired(key):
            return None
        if not isinstance(value, kind):
            raise _wrong_type()
        return value

    def _has_expired(self, key: bytes) -> bool:
        until_ms = self.expiries.get(key)
        if until_ms is None or self.now_us() < until_ms * 1000:
            return False
        self._delete(key)
        return True

    def _make(self, key: bytes, kind: type[T]) -> T:
        found = self._get(key, kind)
        if found is None:
            found = kind()
            self.keys[key] = found  # type: ignore[assignment]  # one of the four kinds
        return found

    def _delete(self, key: bytes) -> bool:
        self.expiries.pop(key, None)
        return self.keys.pop(key, None) is not None

    def _drop_if_empty(self, key: bytes, value: Any) -> None:
        if not value:
            self._delete(key)

    def drop_expired(self) -> None:
        for key in list(self.expiries):
            self._has_expired(key)

    def delete(self, *keys: bytes) -> int:
        self.drop_expired()
        return sum(self._delete(key) for key in keys)

    def exists(self, *keys: bytes) -> int:
        self.drop_expired()
        return sum(key in self.keys for key in keys)

    def type(self, key: bytes) -> Ok:
        self.drop_expired()
        return Ok(_KINDS[type(self.keys.get(key))])

    def rename(self, key: bytes, to: bytes) -> Ok:
        self.drop_expired()
        if key not in self.keys:
            raise ResponseError("no such key")
        until_ms = self.expiries.get(key)
        value = self.keys[key]
        self._delete(key)
        self._delete(to)
        self.keys[to] = value
        if until_ms is not None:
            self.expiries[to] = until_ms
        return Ok(b"OK")

    def pexpire(self, key: bytes, ms: bytes) -> int:
        self.drop_expired()
        if key not in self.keys:
            return 0
        self.expiries[key] = self.now_us() // 1000 + integer(ms)
        self._has_expired(key)
        return 1

    def pttl(self, key: bytes) -> int:
        self.drop_expired()
        if key not in self.keys:
            return -2
        until_ms = self.expiries.get(key)
        return -1 if until_ms is None else int(until_ms - self.now_us() // 1000)

    # The server.

    def time(self) -> list[bytes]:
        now_us = self.now_us()
        return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]

    def ping(self) -> Ok:
        return Ok(b"PONG")

    def info(self, section: bytes) -> bytes:
        """Say nothing, as to an account without the right: no other server takes the place of this one."""
        return b""

    def wait(self, replicas: bytes, timeout_ms: bytes) -> int:
        return integer(replicas)

    def waitaof(self, local: bytes, replicas: bytes, timeout_ms: bytes) -> list[int]:
        return [integer(local), integer(replicas)]

    def publish(self, channel: bytes, message: bytes) -> int:
        return 0

    def pubsub(self, what: bytes, *channels: bytes) -> list[Any]:
        if what.upper() != b"NUMSUB":
            raise ResponseError("of PUBSUB the server in memory has NUMSUB only")
        return [each for channel in channels for each in (channel, 0)]

    # Hashes.

    def hset(self, key: bytes, *pairs: bytes) -> int:
        if not pairs or len(pairs) % 2:
            raise ResponseError("wrong number of arguments for 'hset' command")
        fields = self._make(key, dict)
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fields) - before

    def hsetnx(self, key: bytes, field: bytes, value: bytes) -> int:
        fields = self._make(key, dict)
        if field in fields:
            return 0
        fields[field] = value
        return 1

    def hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self._get(key, dict) or {}).get(field)

    def hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        found = self._get(key, dict) or {}
        return [found.get(field) for field in fields]

    def hgetall(self, key: bytes) -> list[bytes]:
        found = self._get(key, dict) or {}
        return [each for pair in found.items() for each in pair]

    def hkeys(self, key: bytes) -> list[bytes]:
        return list(self._get(key, dict) or {})

    def hvals(self, key: bytes) -> list[bytes]:
        return list((self._get(key, dict) or {}).values())

    def hdel(self, key: bytes, *fields: bytes) -> int:
        found = self._get(key, dict)
        if found is None:
            return 0
        count = sum(found.pop(field, None) is not None for field in fields)
        self._drop_if_empty(key, found)
        return count

    def hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self._get(key, dict) or {}))

    def hlen(self, key: bytes) -> int:
        return len(self._get(key, dict) or ())

    def hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        step = integer(by)
        found = self._get(key, dict) or {}
        try:
            number = integer(found.get(field, b"0"))
        except ResponseError:
            raise ResponseError("hash value is not an integer") from None
        if not -_GREATEST - 1 <= number + step <= _GREATEST:
            raise ResponseError("increment or decrement would overflow")
        self._make(key, dict)[field] = b"%d" % (number + step)
        return number + step

    def hscan(self, key: bytes, cursor: bytes, *options: bytes) -> list[Any]:
        # All at once: a server may return more than it was asked for.
        return [b"0", self.hgetall(key)]

    # Lists.

    def rpush(self, key: bytes, *values: bytes) -> int:
        items = self._make(key, list)
        items.extend(values)
        return len(items)

    def lpush(self, key: bytes, *values: bytes) -> int:
        items = self._make(key, list)
        items[:0] = values[::-1]
        return len(items)

    def lpop(self, key: bytes) -> bytes | None:
        items: list[bytes] | None = self._get(key, list)
        if items is None:
            return None
        value = items.pop(0)
        self._drop_if_empty(key, items)
        return value

    def llen(self, key: bytes) -> int:
        return len(self._get(key, list) or ())

    def lindex(self, key: bytes, index: bytes) -> bytes | None:
        items: list[bytes] = self._get(key, list) or []
        at = integer(index)
        return items[at] if -len(items) <= at < len(items) else None

    def lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        items: list[bytes] = self._get(key, list) or []
        return [items[i] for i in ranks(len(items), first, last)]

    def lset(self, key: bytes, index: bytes, value: bytes) -> Ok:
        items: list[bytes] | None = self._get(key, list)
        if items is None:
            raise ResponseError("no such key")
        at = integer(index)
        if not -len(items) <= at < len(items):
            raise ResponseError("index out of range")
        items[at] = value
        return Ok(b"OK")

    def lrem(self, key: bytes, count: bytes, value: bytes) -> int:
        items: list[bytes] | None = self._get(key, list)
        if items is None:
            return 0
        most = integer(count)
        order = range(len(items)) if most >= 0 else range(len(items) - 1, -1, -1)
        found = [at for at in order if items[at] == value]
        if most:
            found = found[: abs(most)]
        for at in sorted(found, reverse=True):
            del items[at]
        self._drop_if_empty(key, items)
        return len(found)

    def ltrim(self, key: bytes, first: bytes, last: bytes) -> Ok:
        items: list[bytes] | None = self._get(key, list)
        if items is not None:
            kept = ranks(len(items), first, last)
            items[:] = items[kept.start : kept.stop]
            self._drop_if_empty(key, items)
        return Ok(b"OK")

    def lpos(self, key: bytes, value: bytes, *options: bytes) -> Any:
        items: list[bytes] = self._get(key, list) or []
        named = dict(zip((o.upper() for o in options[::2]), options[1::2], strict=True))
        rank, most = (
            integer(named.get(b"RANK", b"1")),
            integer(named.get(b"MAXLEN", b"0")),
        )
        if not rank:
            raise ResponseError("RANK can't be zero")
        order: Iterable[int] = range(len(items))
        if rank < 0:
            order = range(len(items) - 1, -1, -1)
        compared = list(order)[: most or None]
        found = [at for at in compared if items[at] == value][abs(rank) - 1 :]
        if b"COUNT" not in named:
            return found[0] if found else None
        return found[: integer(named[b"COUNT"]) or None]

    def lmove(self, key: bytes, to: bytes, from_: bytes, where: bytes) -> bytes | None:
        items: list[bytes] | None = self._get(key, list)
        self._get(to, list)
        if items is None:
            return None
        value = items.pop(0 if from_.upper() == b"LEFT" else -1)
        target = items if to == key else self._make(to, list)
        target.insert(0 if where.upper() == b"LEFT" else len(target), value)
        self._drop_if_empty(key, items)
        return value

    def blmove(
        self, key: bytes, to: bytes, from_: bytes, where: bytes, timeout: bytes
    ) -> bytes | None:
        value = self.lmove(key, to, from_, where)
        if value is None:
            raise TimeoutError(
                "nothing runs while a frozen queue is waited for, so this wait would never end: the job has not ended;"
                " let time pass first, with advance(), or run_due() for what is due now"
            )
        return value

    # Sorted sets.

    def zadd(self, key: bytes, *args: bytes) -> int:
        options = set()
        while args and args[0].upper() in (b"NX", b"XX", b"CH"):
            options.add(args[0].upper())
            args = args[1:]
        if not args or len(args) % 2:
            raise ResponseError("syntax error")
        pairs = [(read_score(args[i]), args[i + 1]) for i in range(0, len(args), 2)]
        if any(score != score for score, _ in pairs):
            raise ResponseError("value is not a valid float")
        found = self._get(key, ZSet)
        if found is None:
            if b"XX" in options:
                return 0
            found = self._make(key, ZSet)
        added = changed = 0
        for score, member in pairs:
            before = found.scores.get(member)
            if b"NX" in options and before is not None:
                continue
            if b"XX" in options and before is None:
                continue
            added += found.add(member, score)
            changed += before != score
        return changed if b"CH" in options else added

    def zrem(self, key: bytes, *members: bytes) -> int:
        found = self._get(key, ZSet)
        if found is None:
            return 0
        count = sum(found.remove(member) for member in members)
        self._drop_if_empty(key, found)
        return count

    def zscore(self, key: bytes, member: bytes) -> bytes | None:
        return self.zmscore(key, member)[0]

    def zmscore(self, key: bytes, *members: bytes) -> list[bytes | None]:
        found = self._get(key, ZSet) or ZSet()
        scores = map(found.scores.get, members)
        return [None if score is None else score_text(score) for score in scores]

    def zcard(self, key: bytes) -> int:
        return len(self._get(key, ZSet) or ())

    def zrank(self, key: bytes, member: bytes) -> int | None:
        found = self._get(key, ZSet)
        return None if found is None else found.rank(member)

    def zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len((self._get(key, ZSet) or ZSet()).by_score(low, high))

    def zlexcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len((self._get(key, ZSet) or ZSet()).by_bytes(low, high))

    def zrange(
        self, key: bytes, first: bytes, last: bytes, *options: bytes
    ) -> list[bytes]:
        found = self._get(key, ZSet) or ZSet()
        items = [found.ordered[i] for i in ranks(len(found), first, last)]
        return _members(items, options)

    def zrevrange(
        self, key: bytes, first: bytes, last: bytes, *options: bytes
    ) -> list[bytes]:
        found = self._get(key, ZSet) or ZSet()
        items = found.ordered[::-1]
        return _members([items[i] for i in ranks(len(items), first, last)], options)

    def zrangebyscore(
        self, key: bytes, low: bytes, high: bytes, *options: bytes
    ) -> list[bytes]:
        found = self._get(key, ZSet) or ZSet()
        return _ranged(found, found.by_score(low, high), options)

    def zrangebylex(
        self, key: bytes, low: bytes, high: bytes, *options: bytes
    ) -> list[bytes]:
        found = self._get(key, ZSet) or ZSet()
        return _ranged(found, found.by_bytes(low, high), options)

    def zremrangebyrank(self, key: bytes, first: bytes, last: bytes) -> int:
        found = self._get(key, ZSet)
        if found is None:
            return 0
        gone = [found.ordered[i][1] for i in ranks(len(found), first, last)]
        for member in gone:
            found.remove(member)
        self._drop_if_empty(key, found)
        return len(gone)


_KINDS: dict[type, bytes] = {
    type(None): b"none",
    bytes: b"string",
    dict: b"hash",
    list: b"list",
    ZSet: b"zset",
}

COMMANDS: dict[bytes, Callable[..., Any]] = {
    name.upper().encode(): command
    for name, command in vars(Keyspace).items()
    if callable(command) and not name.startswith("_")
}
COMMANDS[b"DEL"] = COMMANDS[b"UNLINK"] = COMMANDS.pop(b"DELETE")
del COMMANDS[b"DO"], COMMANDS[b"DROP_EXPIRED"]


def _wrong_type() -> ResponseError:
    return ResponseError(
        "WRONGTYPE Operation against a key holding the wrong kind of value"
    )


def integer(text: bytes) -> int:
    """Read a whole number as strictly as a server does.

    Raises:
        ResponseError: it is none.
    """
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or b"%d" % number != text:
        raise ResponseError("value is not an integer or out of range")
    return number


def ranks(size: int, first: bytes, last: bytes) -> range:
    """Return the indexes that a server means by two of them, where negative ones count from the end."""
    begin, end = integer(first), integer(last)
    begin = max(0, begin + size if begin < 0 else begin)
    end = min(size - 1, end + size if end < 0 else end)
    return range(begin, max(begin, end + 1))


def _members(
    items: Iterable[tuple[float, bytes]], options: tuple[bytes, ...]
) -> list[bytes]:
    if not any(option.upper() == b"WITHSCORES" for option in options):
        return [member for _, member in items]
    return [each for score, member in items for each in (member, score_text(score))]


def _ranged(found: ZSet, at: range, options: tuple[bytes, ...]) -> list[bytes]:
    upper = [option.upper() for option in options]
    if b"LIMIT" in upper:
        i = upper.index(b"LIMIT")
        offset, count = integer(options[i + 1]), integer(options[i + 2])
        at = at[offset:] if count < 0 else at[offset : offset + count]
    return _members([found.ordered[i] for i in at], options)
