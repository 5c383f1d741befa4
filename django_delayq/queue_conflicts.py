"""Conflicts between options of a queue in ``DELAYQ["QUEUES"]``, and between queues."""

from collections.abc import Iterator
from typing import Any

from django_delayq.core.rates import is_rate, share_of_rate
from django_delayq.core.shards import parse_shard
from django_delayq.redaction import show
from django_delayq.setting_fields import Problem
from django_delayq.setting_values import PREFIX
from django_delayq.wire.encryption import INSTALL, has_library


def find_prefix_conflicts(prefix: Any, queues: dict[Any, Any]) -> Iterator[Problem]:
    """Yield queues that a prefix would give the name of another one."""
    if not PREFIX.is_fit(prefix) or not prefix:
        return
    bare = {
        name
        for name, options in queues.items()
        if isinstance(name, str)
        and isinstance(options, dict)
        and options.get("REDISSON") is not None
    }
    wholes = {shard[0] for shard in map(parse_shard, bare) if shard is not None}
    for name, options in queues.items():
        if not isinstance(name, str) or name in bare or not isinstance(options, dict):
            continue
        there = prefix + name
        shard = parse_shard(there)
        has_shards = options.get("SHARDS") is not None
        if there in bare or (has_shards and there in wholes):
            yield Problem(
                "E004",
                f"DELAYQ['QUEUES'][{show(name)}] is {show(there)} on the server, because of DELAYQ['PREFIX'], and"
                " another queue has that name.",
                "Rename one of the two queues, or choose another PREFIX.",
            )
        elif shard is not None and parse_shard(name) is None:
            yield Problem(
                "E004",
                f"DELAYQ['QUEUES'][{show(name)}] is {show(there)} on the server, because of DELAYQ['PREFIX'], which"
                " is the name of a"
                f" shard of {show(shard[0])}.",
                "Rename the queue, or choose a PREFIX that does not end with a colon.",
            )


def find_encrypt_conflicts(path: str, options: dict[str, Any]) -> Iterator[Problem]:
    """Yield what hinders a queue from being encrypted."""
    if options.get("REDISSON") is not None:
        yield Problem(
            "E003",
            f"{path} has both ENCRYPT and REDISSON.",
            "Remove one of them: Java could not read the jobs.",
        )
    if not has_library():
        yield Problem(
            "E003",
            f"{path} has ENCRYPT, but the library for encryption is not installed.",
            f"Run {INSTALL}, or remove ENCRYPT.",
        )


def find_shards_conflicts(
    name: Any, options: dict[str, Any], path: str, queues: dict[Any, Any]
) -> Iterator[Problem]:
    """Yield what hinders a queue from having shards."""
    shards = options.get("SHARDS")
    if shards is None or not isinstance(name, str):
        return
    if options.get("REDISSON") is not None:
        yield Problem(
            "E003",
            f"{path} has both SHARDS and REDISSON.",
            "Remove one of them: Java has no shards. To share a shard with Java, configure it as a queue of its own.",
        )
    if "{" in name or "}" in name:
        yield Problem(
            "E004",
            f"{path} has SHARDS, and braces in its name: all its shards would share one hash slot.",
            "Give it a name without braces.",
        )
    for other in queues:
        shard = parse_shard(other) if isinstance(other, str) else None
        if shard is not None and shard[0] == name:
            yield Problem(
                "E004",
                f"DELAYQ['QUEUES'][{show(other)}] has the name of a shard of queue {show(name)}.",
                "Rename one of the two queues.",
            )
    for key in ("CONCURRENCY", "MAX_JOBS"):
        total = options.get(key)
        if isinstance(total, int) and 0 < total < shards:
            yield Problem(
                "E003",
                f"{path}[{key!r}] is {total}, which {shards} shards cannot share: each needs at least 1.",
                f"Give {shards} or more, or fewer SHARDS.",
            )
    rate: Any = options.get("RATE")
    if is_rate(rate) and not is_rate(share_of_rate(rate, shards)):
        yield Problem(
            "E003",
            f"{path}['RATE'] is {show(rate)}, which {shards} shards cannot share: each starts at least one job a week.",
            "Give a higher rate, or fewer SHARDS.",
        )
