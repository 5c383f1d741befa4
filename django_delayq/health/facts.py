"""What a live server says about itself: version, role, memory, persistence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.client import Redis

from django_delayq.clock import epoch_ms
from django_delayq.transport.connections import has_nodes, nodes_of
from django_delayq.transport.errors import LOST, is_of_node
from django_delayq.transport.several import run_all


@dataclass
class Facts:
    """A server's report on itself; None or "" where it says nothing."""

    product: str = "Redis"
    version: tuple[int, ...] = ()
    role: str = ""
    maxmemory: int | None = None
    used_memory: int | None = None
    policy: str = ""
    is_aof_on: bool | None = None
    snapshots: str | None = None
    #: How far its clock is ahead of ours, ms, as far as the time that its answer took lets us know.
    skew_ms: int | None = None


def ask(client: Redis) -> Facts:
    """Ask a server about itself, in one round trip, whatever it refuses."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.execute_command("HELLO")
    pipeline.info()
    settings = ("maxmemory", "maxmemory-policy", "appendonly", "save")
    for name in settings:
        pipeline.config_get(name)
    pipeline.time()
    began_ms = epoch_ms()
    hello, info, *configs, clock = pipeline.execute(raise_on_error=False)
    ended_ms = epoch_ms()
    # Managed services and careful administrators refuse INFO, CONFIG or both, so each answer is used by itself.
    facts = Facts()
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
    if not isinstance(clock, Exception):
        its_ms = clock[0] * 1000 + clock[1] // 1000
        # Anything between the question and the answer may be when it looked at its clock.
        facts.skew_ms = its_ms - min(max(its_ms, began_ms), ended_ms)
    return facts


def ask_nodes(client: Redis) -> dict[str, Facts | Exception]:
    """Ask each node of a cluster that holds slots about itself; of a single server, whose name is empty, that.

    An error takes the place of what a node says.

    Raises:
        redis.exceptions.RedisError: none answers.
    """
    if not has_nodes(client):
        return {"": ask(client)}
    found: dict[str, Facts | Exception] = {}
    failure: Exception | None = None
    for node in nodes_of(client):
        at = node.connection_pool.connection_kwargs
        name = f"{at['host']}:{at['port']}"
        try:
            found[name] = ask(node)
        except LOST as error:
            client.lose(node, error)  # type: ignore[attr-defined]
            found[name] = failure = error
    if failure is not None and not any(isinstance(f, Facts) for f in found.values()):
        raise failure
    return found


def ask_each(client: Redis) -> list[Facts]:
    """Return what the server, or each node that answers, says about itself; see `ask_nodes`."""
    return [each for each in ask_nodes(client).values() if isinstance(each, Facts)]


def whole(each: Sequence[Facts]) -> Facts:
    """Return what nodes say as if they were one server: their memory is added up."""
    if len(each) == 1:
        return each[0]
    used = [facts.used_memory for facts in each]
    limits = [facts.maxmemory for facts in each]
    return replace(
        each[0],
        used_memory=None if None in used else sum(filter(None, used)),
        # One node without a limit leaves the whole without.
        maxmemory=sum(filter(None, limits)) if all(limits) else min(limits, key=bool),
    )


def replies_of(client: Redis, calls: Sequence[Any]) -> list[Any]:
    """Ask about keys that may lie on other nodes than the queues, which answer. An error takes the place of its reply."""
    try:
        return run_all(client, calls)
    except LOST as error:
        if not is_of_node(error):
            raise
        return [error] * len(calls)


def _take_hello(facts: Facts, hello: Any) -> None:
    items = (
        hello
        if isinstance(hello, dict)
        else dict(zip(hello[::2], hello[1::2], strict=False))
    )
    told = {text_of(key): value for key, value in items.items()}
    facts.product = "Valkey" if text_of(told.get("server", "")) == "valkey" else "Redis"
    facts.version = _numbers(text_of(told.get("version", "")))
    facts.role = _role_name(text_of(told.get("role", "")))


def _take_info(facts: Facts, info: dict[str, Any]) -> None:
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


def _take_config(facts: Facts, config: dict[str, str]) -> None:
    if facts.maxmemory is None and "maxmemory" in config:
        facts.maxmemory = int(config["maxmemory"])
    facts.policy = facts.policy or config.get("maxmemory-policy", "")
    if facts.is_aof_on is None and "appendonly" in config:
        facts.is_aof_on = config["appendonly"] == "yes"
    facts.snapshots = config.get("save")


def text_of(value: object) -> str:
    """Return a reply as text, whether or not the client decodes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _role_name(role: str) -> str:
    return {"master": "primary", "slave": "replica"}.get(role, role)
