"""Checks a live server before a worker relies on it: version, memory, persistence, role, rights, keys.

The checks take a few round trips and a few milliseconds, however much waits in the queues. ``facts`` and ``rights``
ask the server; the modules named ``…_problems`` say what the answers mean. The caller decides what to do about a
problem. Nothing here knows Django.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis.client import Redis

from django_delayq.core import hold as hold_calls
from django_delayq.core import queue_reads, stored_pauses
from django_delayq.core.durability import Durable
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.queue_reads import Counts
from django_delayq.core.shards import parse_shard
from django_delayq.core.worker_registry import RegistryKeys
from django_delayq.health.durability_problems import find_not_durable
from django_delayq.health.facts import ask_each
from django_delayq.health.problem import ServerProblem, worst_first
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.health.queue_problems import find_queue_problems
from django_delayq.health.rights import Rights
from django_delayq.health.rights_problems import find_missing_rights
from django_delayq.health.server_problems import (
    find_in_facts,
    find_persistence,
    find_role,
    find_unknowns,
)
from django_delayq.health.shard_problems import find_other_shards
from django_delayq.health.signer_problems import find_left_behind, find_strangers
from django_delayq.transport.several import run_all


def find_server_problems(
    client: Redis,
    queues: Iterable[str],
    *,
    key_ids: Collection[str] | None = None,
    max_jobs: Mapping[str, int] | None = None,
    durable: Mapping[str, Durable] | None = None,
    shards: Mapping[str, int] | None = None,
    prefix: str = "",
    keys_of: Callable[[str], DeliveryKeys] = DeliveryKeys.of,
) -> list[ServerProblem]:
    """Find the problems that a server has with these queues, given by name; the worst comes first.

    ``key_ids`` are the ids of this project's keys. With None, nothing looks for jobs signed with other keys.
    ``max_jobs`` says how many jobs a queue may hold, by name, if that is limited. ``durable`` says what its calls wait
    for, if they do. ``shards`` says how many shards a queue has, by its name in the settings.
    ``prefix`` is that of the settings, and ``keys_of`` returns the keys of a queue.

    Raises:
        redis.exceptions.ConnectionError: the server does not answer, or does not let us in.
    """
    each = ask_each(client)
    facts = each[0]
    others = find_other_shards(client, shards or {}, keys_of)
    # Where others closed a part, a key has another type.
    keys = [keys_of(name) for name in queues if _whole_of(name) not in others]
    problems = [
        problem
        for one in each
        for find in (find_in_facts, find_persistence, find_unknowns)
        for problem in find(one)
    ]
    if keys:
        rights = Rights(client, keys, facts, RegistryKeys.of(prefix))
        rights.find()
        problems += find_missing_rights(rights)
        if rights.is_read_only and not facts.role:
            facts.role = "replica"
            problems += find_role(facts)
        if not rights.unreadable and not rights.mistyped:
            for of_queue in _ask_queues(client, keys, key_ids, max_jobs or {}):
                problems += find_queue_problems(of_queue)
            if key_ids is not None:
                problems += find_strangers(client, keys, key_ids)
                problems += find_left_behind(client, keys, key_ids, prefix)
    problems += others.values()
    problems += find_not_durable(client, durable or {})
    return worst_first(problems)


def _ask_queues(
    client: Redis,
    queues: Sequence[DeliveryKeys],
    key_ids: Collection[str] | None,
    max_jobs: Mapping[str, int],
) -> Iterator[QueueFacts]:
    """Ask about queues, in one round trip. `Rights` has reported the commands that the server refuses."""
    calls: list[Any] = []
    for keys in queues:
        calls += [
            queue_reads.read_format(keys),
            hold_calls.held_names(keys),
            stored_pauses.pauses(keys),
        ]
        if keys.queue.name in max_jobs:
            calls.append(queue_reads.counts(keys))
    replies = iter(run_all(client, calls))

    def known(otherwise: Any) -> Any:
        reply = next(replies)
        return otherwise if isinstance(reply, Exception) else reply

    for keys in queues:
        name = keys.queue.name
        its_format, held, pauses = known(None), known(None), known(())
        counts: Counts | None = known(None) if name in max_jobs else None
        yield QueueFacts(
            name=name,
            jobs=None if counts is None else counts.jobs,
            max_jobs=max_jobs.get(name),
            format=its_format,
            held=held,
            key_ids=key_ids,
            pauses=pauses,
        )


def _whole_of(name: str) -> str:
    shard = parse_shard(name)
    return name if shard is None else shard[0]
