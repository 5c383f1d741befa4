"""The server in memory and a real one get the same sequence of operations, and hold and reply the same after each step.

It is what `frozen_queue` stands on. Both run the same scripts, so what is compared is our commands, and Lua's libraries.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from redis.exceptions import NoScriptError, ResponseError

from django_delayq.calls.call import Call
from django_delayq.calls.script import NAMES
from django_delayq.exceptions import DelayqError
from django_delayq.testing.memory.commands import Keyspace
from django_delayq.testing.memory.server import MemoryServer
from django_delayq.testing.memory.zset import ZSet
from tests.delivery.rig import T0
from tests.servers import ExternalServer, Server
from tests.testing import operations
from tests.testing.operations import COMMANDS, MAKERS, OPERATIONS, PACKAGE, World

#: Steps of one sequence.
LENGTH = 100
#: Sequences: `make test` runs a short form, CI a hundred thousand steps.
FEW, MANY = 40, 1_050
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

    def run(self, seeds: list[tuple[int, int]], shape: int) -> None:
        self.real.empty()
        memory = MemoryServer(lambda: T0 * 1000)
        world = World(self.name, is_shared=bool(shape & 1), is_listed=bool(shape & 2))
        # The server in memory goes first, and operations learn from its replies; if one is wrong, that is found below.
        taken: list[tuple[str, tuple[Any, ...], Any, Any]] = []
        for which, seed in seeds:
            world.random.seed(seed)
            if world.random.random() < 0.4:
                world.now_us += world.random.choice((1, 700, 5_000, 60_000, 31_000_000))
            for step in MAKERS[which % len(MAKERS)](world):
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


#: Replies with the fields of a hash, whose order a server leaves open.
UNORDERED = ("limits", "schedules", "counts")


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
            mine, theirs = (sorted(map(_text_of, told)) for told in (mine, theirs))
    if mine != theirs:
        raise AssertionError(
            f"{what} after {name}: {mine} in memory, {theirs} on the server"
        )


def _text_of(value: Any) -> str:
    """Return text by which values can be ordered."""
    return repr(value) if isinstance(value, bytes) else json.dumps(value, sort_keys=True)


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
def both(
    client: "redis.Redis[bytes]", queue_name: str, server: Server | ExternalServer
) -> Iterator[Both]:
    real = Real(client, queue_name)
    yield Both(real, queue_name)
    real.close()


def sequences(examples: int) -> Callable[[Any], Any]:
    """Have a test run so many sequences."""
    step = st.tuples(st.integers(0, len(MAKERS) - 1), st.integers(0, 2**24))
    run = given(
        seeds=st.lists(step, min_size=LENGTH, max_size=LENGTH), shape=st.integers(0, 3)
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


def test_every_call_of_the_package_is_among_the_operations() -> None:
    """A new operation needs an entry in operations.py: nothing else would hold the server in memory to it."""
    assert set(operations.functions()) == set(OPERATIONS)


def test_every_plain_command_of_the_package_is_among_the_operations() -> None:
    assert operations.sent_commands() <= set(COMMANDS)
