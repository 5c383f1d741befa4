"""The server in memory and a real one get the same sequence of operations, and hold and reply the same after each step.

It is what `frozen_queue` stands on. Both run the same scripts, so what is compared is our commands, and Lua's libraries.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis.exceptions import NoScriptError, ResponseError

from django_delayq.core import claim as claim_calls
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import DelayqError
from django_delayq.testing.memory.commands import Keyspace
from django_delayq.testing.memory.memory_server import MemoryServer
from django_delayq.testing.memory.zset import ZSet
from django_delayq.transport.call import Call
from tests.clock import at
from tests.core.rig import T0
from tests.scripts import SCRIPTS
from tests.servers import ExternalServer, Server
from tests.testing import operations
from tests.testing.operations import (
    COMMANDS,
    MAKERS,
    OPERATIONS,
    World,
    any_command,
)

#: Steps of one sequence, and the bytes of which each is made: the first says which operation it is.
LENGTH, STEP_BYTES = 100, 4
#: Sequences: a short form for `make test`. With ``--all``, which CI runs on three kinds of servers, 120,000 steps.
FEW, MANY = 40, 400
#: Everything that a server holds under some names, by type.
DUMP = """
local all = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, held = redis.call('TYPE', key).ok, nil
  if kind == 'hash' then held = redis.call('HGETALL', key)
  elseif kind == 'list' then held = redis.call('LRANGE', key, 0, -1)
  else held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  all[#all + 1] = { key, kind, redis.call('PTTL', key) > 0 and 1 or 0, held }
end
return all
"""


class Real:
    """The real server, asked on one connection: all steps of a sequence in one write, each with a dump behind it."""

    def __init__(self, client: "redis.Redis[bytes]", name: str) -> None:
        self.connection = client.connection_pool.get_connection()
        self.pattern = f"*{name}*"
        self.dump = client.script_load(DUMP)
        self.client = client

    def ask(
        self, commands: list[tuple[Any, ...]]
    ) -> Iterator[tuple[Any, dict[bytes, Any]]]:
        """Yield the reply to each command, and what the server held after it."""
        dump = ("EVALSHA", self.dump, 0, self.pattern)
        both = [each for command in commands for each in (command, dump)]
        self.connection.send_packed_command(self.connection.pack_commands(both))
        # All are read, or the next sequence would get the rest.
        replies = [(self._read(), self._read()) for _ in commands]
        for told, held in replies:
            yield told, dict(map(_dumped, held))

    def _read(self) -> Any:
        try:
            return self.connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    def empty(self) -> None:
        if keys := self.client.keys(self.pattern):
            self.client.delete(*keys)

    def close(self) -> None:
        self.client.connection_pool.release(self.connection)


def _dumped(item: list[Any]) -> tuple[bytes, tuple[Any, ...]]:
    key, kind, expires, held = item
    if kind == b"hash":
        value: Any = dict(zip(held[::2], held[1::2], strict=True))
    elif kind == b"zset":
        value = [
            (float(score), member)
            for member, score in zip(held[::2], held[1::2], strict=True)
        ]
    else:
        value = held
    return key, (kind, bool(expires), value)


_KINDS = {dict: b"hash", list: b"list", ZSet: b"zset"}


def in_memory(keyspace: Keyspace) -> dict[bytes, tuple[Any, ...]]:
    return {
        key: (
            _KINDS[type(value)],
            key in keyspace.expiries,
            (value.ordered if isinstance(value, ZSet) else value).copy(),
        )
        for key, value in keyspace.keys.items()
    }


class Both:
    """Both servers."""

    def __init__(self, real: Real, name: str) -> None:
        self.real = real
        self.name = name
        self.steps = 0
        #: How often each script and command has done its work, and how often it was refused.
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._loaded: set[str] = set()

    def run(
        self,
        seeds: list[tuple[int, int]],
        shape: int,
        makers: Sequence[Callable[[World], Any]] = MAKERS,
    ) -> None:
        self.real.empty()
        memory = MemoryServer(lambda: T0 * 1000)
        world = World(self.name, is_shared=bool(shape & 1), is_listed=bool(shape & 2))
        # The server in memory goes first, and operations learn from its replies; if one is wrong, that is found below.
        taken: list[tuple[str, tuple[Any, ...], Any, Any]] = []
        for which, seed in seeds:
            world.random.seed(seed)
            if world.random.random() < 0.4:
                world.now_us += world.random.choice((1, 700, 5_000, 60_000, 31_000_000))
            for step in makers[which % len(makers)](world):
                self._take(memory, world, step, taken)
        theirs = self.real.ask([command for _, command, _, _ in taken])
        for (name, _, told, held), (their_reply, their_keys) in zip(
            taken, theirs, strict=True
        ):
            compare(name, "reply", told, _as_told(their_reply))
            compare(name, "keys", held, their_keys)
        self.steps += len(taken)

    def _take(
        self, memory: MemoryServer, world: World, step: Any, taken: list[Any]
    ) -> None:
        if isinstance(step, Call):
            step = at(world.now_us, step)
        command = operations.command_of(step)
        name = str(command[0])
        if isinstance(step, Call):
            name = step.script.name
            told = _ask(memory, command)
            if isinstance(told, NoScriptError):
                told = _ask(memory, step.full_command())
            if name not in self._loaded or step.script.sha not in self._loaded:
                self._loaded |= {name, step.script.sha}
                command = step.full_command()
        else:
            told = _ask(memory, command)
        taken.append(
            (name, command, _as_told(deepcopy(told)), in_memory(memory.keyspace))
        )
        if isinstance(told, ResponseError):
            self.refused[name] += 1
            return
        self.done[name] += 1
        if told is None and isinstance(step, Call) and step.full is not None:
            self._take(memory, world, step.full(), taken)
        elif isinstance(step, Call):
            try:
                world.take_in(step.read(told))
            except DelayqError:
                # The queue is in a later format.
                return


#: Replies with the fields of a hash, whose order a server leaves open: the reply itself (None), or one part of it.
UNORDERED = {
    "HGETALL": None,
    "schedules": 3,
    "counts": 15,
    "read_figures": 2,
    "read_days": 1,
}


def compare(name: str, what: str, mine: Any, theirs: Any) -> None:
    if mine == theirs:
        return
    if isinstance(mine, dict):
        differ = {key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)}
        mine, theirs = (
            {key: _canonical(each.get(key)) for key in differ}
            for each in (mine, theirs)
        )
    else:
        mine, theirs = _canonical(mine), _canonical(theirs)
        if name in UNORDERED and isinstance(mine, list):
            part = UNORDERED[name]
            mine, theirs = (_sorted(told, part) for told in (mine, theirs))
    if mine != theirs:
        raise AssertionError(
            f"{what} after {name}: {mine} in memory, {theirs} on the server"
        )


def _sorted(told: list[Any], part: int | None) -> list[Any]:
    """Return a reply with its items, or those of one part, in the order of their texts."""
    if part is None:
        return sorted(map(_text_of, told))
    return [*told[:part], sorted(map(_text_of, told[part])), *told[part + 1 :]]


def _text_of(value: Any) -> str:
    """Return text by which values can be ordered."""
    return (
        repr(value) if isinstance(value, bytes) else json.dumps(value, sort_keys=True)
    )


def _canonical(value: Any) -> Any:
    """Bring a value into a form without what Lua leaves open: in which order cjson writes the fields of an object."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, bytes) and value.startswith(b"{"):
        try:
            return [json.loads(line) for line in value.splitlines()]
        except ValueError:
            return value
    if isinstance(value, bytes):
        # What is kept of a job that moves to another server ends with its error.
        place, zero, failure = value.partition(b"\0")
        if zero and failure.startswith(b"{"):
            return [place, _canonical(failure)]
    return value


def _ask(memory: MemoryServer, command: tuple[Any, ...]) -> Any:
    try:
        return memory.execute(command)
    except ResponseError as error:
        return error
    except TimeoutError:
        # Where a real server would have waited, and then replied nil.
        return None


def _as_told(reply: Any) -> Any:
    """Bring a reply into a form that servers agree on."""
    if isinstance(reply, ResponseError):
        return "refused"
    if isinstance(reply, list):
        return [_as_told(each) for each in reply]
    return reply


@pytest.fixture
def client(server: Server | ExternalServer) -> Iterator["redis.Redis[bytes]"]:
    """A client in the version of the protocol that the server in memory speaks."""
    with redis.Redis.from_url(server.socket_url, protocol=2) as client:
        yield client


@pytest.fixture
def both(client: "redis.Redis[bytes]", queue_name: str) -> Iterator[Both]:
    real = Real(client, queue_name)
    yield Both(real, queue_name)
    real.close()


def _steps(drawn: bytes) -> list[tuple[int, int]]:
    """Return which operation each step is, and the number from which its arguments are made."""
    starts = range(0, len(drawn), STEP_BYTES)
    return [(drawn[i], int.from_bytes(drawn[i + 1 : i + STEP_BYTES])) for i in starts]


def sequences(examples: int) -> Callable[[Any], Any]:
    """Have a test run so many sequences."""
    # Drawn at once: number by number, hypothesis would take longer than both servers.
    size = STEP_BYTES * LENGTH
    run = given(
        seeds=st.binary(min_size=size, max_size=size).map(_steps),
        shape=st.integers(0, 3),
    )
    how = settings(
        max_examples=examples,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: how(run(test))


@sequences(FEW)
def test_server_in_memory_holds_and_replies_what_a_real_one_does(
    both: Both, seeds: list[tuple[int, int]], shape: int
) -> None:
    both.run(seeds, shape)


@pytest.mark.exhaustive
@sequences(MANY)
def test_server_in_memory_is_a_real_one_for_a_hundred_thousand_steps(
    both: Both, seeds: list[tuple[int, int]], shape: int
) -> None:
    both.run(seeds, shape)


@sequences(FEW)
def test_every_command_does_with_its_options_what_it_does_on_a_server(
    both: Both, seeds: list[tuple[int, int]], shape: int
) -> None:
    """An operation meets few of them: frames of ours, say, are never equal."""
    both.run(seeds, shape, [any_command])


def test_operations_reach_every_script(both: Both) -> None:
    random = Random(1)
    for _ in range(25):
        seeds = [(n, random.randrange(2**24)) for n in range(len(MAKERS))]
        random.shuffle(seeds)
        both.run(seeds, random.randrange(4))

    assert set(SCRIPTS) <= set(both.done)


WRONG = [
    ("LPUSH", "q1", "a"),
    ("HSET", "q1", "a", "b"),
    ("ZADD", "q1", 1, "b"),
    ("HGET", "q1", "a"),
    ("ZCARD", "q1"),
    ("LSET", "q1", 5, "b"),
    ("LSET", "q2", 0, "b"),
    ("LINDEX", "q1", "one"),
    ("LPOS", "q1", "a", "RANK", 0),
    ("RENAME", "q2", "q3"),
    ("HSET", "q2", "a", "9223372036854775807", "b", "1.5", "c", "007"),
    ("HINCRBY", "q2", "a", 1),
    ("HINCRBY", "q2", "b", 1),
    ("HINCRBY", "q2", "c", 1),
    ("HINCRBY", "q2", "d", "x"),
    ("HSET", "q2", "a"),
    ("HGET", "q2"),
    ("ZADD", "q3", "nan", "a"),
    ("ZADD", "q3", "x", "a"),
    ("ZADD", "q3", 1),
    ("ZADD", "q3", "XX", 1, "a"),
    ("ZADD", "q3", "inf", "a", "-inf", "b", "0.1", "c", "1e20", "d", "3", "e"),
    ("ZRANGE", "q3", 0, -1, "WITHSCORES"),
    ("ZRANGE", "q3", -2, 100),
    ("ZRANGE", "q3", 3, 1),
    ("ZREVRANGE", "q3", 0, 1),
    ("ZRANGEBYSCORE", "q3", "(0.1", "+inf", "LIMIT", 1, 1),
    ("ZRANGEBYSCORE", "q3", "x", "y"),
    ("ZRANGEBYLEX", "q3", "a", "[b"),
    ("ZCOUNT", "q3", "(3", "(1e20"),
    ("ZADD", "q4", 0, "a", 0, "ab", 0, "b", 0, ""),
    ("ZRANGEBYLEX", "q4", "[a", "(b"),
    ("ZRANGEBYLEX", "q4", "(a", "+", "LIMIT", 1, -1),
    ("ZLEXCOUNT", "q4", "-", "[ab"),
    ("ZREMRANGEBYRANK", "q4", 1, -2),
    ("ZMSCORE", "q4", "b", "none"),
    ("ZREM", "q4", "", "b", "a", "ab"),
    ("EXISTS", "q4"),
    ("TYPE", "q3"),
    ("TYPE", "q4"),
    ("LPOS", "q1", "a", "COUNT", 0, "MAXLEN", 1),
    ("LTRIM", "q1", 1, 0),
    ("EXISTS", "q1"),
    ("NOSUCH", "q1"),
    ("PTTL", "q3"),
    ("PEXPIRE", "q3", 3_600_000),
    ("PEXPIRE", "q4", 3_600_000),
    ("HSETNX", "q2", "a", "b"),
    ("LPOP", "q9"),
    ("EVALSHA", "0" * 40, 0),
    ("EVAL", "return redis.call('NOSUCH')", 0),
    ("EVAL", "return redis.pcall('HGET', KEYS[1])", 1, "q2"),
    ("EVAL", "return redis.error_reply('NOT so')", 0),
    ("EVAL", "return redis.status_reply('so')", 0),
    ("EVAL", "return { 1.9, 'a', false, nil, 2 }", 0),
    ("EVAL", "return { -1.9, true, { ok = 'x' }, { a = 1 } }", 0),
    ("EVAL", "error('broken')", 0),
    ("EVAL", "return cjson.decode('[1, 2.5, \"\\u00e9\\/\", null, true]')[3]", 0),
    ("EVAL", "return cjson.encode({ 1, 'a/\"\\\127\1é', false, 1e15, 0.1, {} })", 0),
    ("EVAL", "return cjson.encode(cjson.decode('{\"a\":null}'))", 0),
    ("EVAL", "return pcall(cjson.decode, '{') and 1 or 0", 0),
    ("EVAL", "return pcall(cjson.encode, 0 / 0) and 1 or 0", 0),
    (
        "EVAL",
        "return cmsgpack.pack({ 'a', 1, -1, -33, 200, 70000, 2^40, 0.5, 0.1, true, -2^33 })",
        0,
    ),
    ("EVAL", "return cmsgpack.pack({ ('x'):rep(40), ('y'):rep(300) })", 0),
    (
        "EVAL",
        "return cmsgpack.unpack(cmsgpack.pack({ 'a', 1, ('x'):rep(40), ('y'):rep(300), -33, '\255', '' }))",
        0,
    ),
    ("EVAL", "return struct.pack('<Bc2>I6<Ld', 8, 'ab', 2^40, 2^50, 1.5)", 0),
    ("EVAL", "return { struct.unpack('>I2Bc0', '\1\2\3abcd') }", 0),
    ("EVAL", "return pcall(struct.unpack, '<L', 'abc') and 1 or 0", 0),
    ("EVAL", "return tostring(redis.call('HGET', KEYS[1], 'none'))", 1, "q2"),
    (
        "EVAL",
        "return redis.call('HSET', KEYS[1], 'n', 1e15, 'm', 0.1, 'o', 2^53)",
        1,
        "q2",
    ),
    ("HMGET", "q2", "n", "m", "o"),
    ("HSET", "q2", "a", "b", "c", 5),
    ("HVALS", "q2"),
]


def test_commands_refuse_and_reply_as_a_real_server_does(
    client: "redis.Redis[bytes]", queue_name: str
) -> None:
    """What no operation meets: wrong types, wrong numbers, and the edges of Lua's libraries."""
    memory = MemoryServer(lambda: T0 * 1000)

    def named(command: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            f"{queue_name}{part}" if re.fullmatch(r"q\d", str(part)) else part
            for part in command
        )

    def ask_real(command: tuple[Any, ...]) -> Any:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error
        finally:
            client.connection_pool.release(connection)

    for each in WRONG:
        command = named(each)
        mine, theirs = _ask(memory, command), ask_real(command)
        assert _in_words(mine) == _in_words(theirs), each


def test_repeated_claim_tells_again_of_what_it_has_ended(queue_name: str) -> None:
    memory = MemoryServer(lambda: T0 * 1000)
    keys = DeliveryKeys.of(queue_name)
    memory.execute(("ZADD", keys.queue.timeout_set, 1, b"no frame"))
    call = claim_calls.claim(
        keys, owner=b"owner---", request=b"request-", limit=5, lease_ms=1_000
    )

    told, again = (call.read(memory.execute(call.full_command())) for _ in range(2))

    (end,) = told.ends or ()
    assert end.state is State.QUARANTINED
    assert again.ends == told.ends


def _in_words(reply: Any) -> Any:
    """Bring a reply into a form in which servers differ in words and spellings only."""
    if isinstance(reply, ResponseError):
        return "refused"
    if isinstance(reply, list):
        # Lua's own error, behind a false.
        if len(reply) == 1 and reply[0] is None:
            return [None]
        return [_in_words(each) for each in reply]
    try:
        return float(reply)
    except (TypeError, ValueError):
        return reply


def test_every_call_of_the_package_is_among_the_operations() -> None:
    """A new operation needs an entry in operations.py: nothing else would hold the server in memory to it."""
    assert set(operations.functions()) == set(OPERATIONS)


def test_every_plain_command_of_the_package_is_among_the_operations() -> None:
    assert operations.sent_commands() <= set(COMMANDS)
