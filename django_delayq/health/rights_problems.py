"""Missing rights of the user, and whatever else the server refused when `rights` tried it."""

import re
from collections.abc import Iterator, Sequence

from redis.exceptions import MovedError

from django_delayq.faults import describe_fault
from django_delayq.health.problem import Level, ServerProblem, some
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.health.queue_problems import find_long_list
from django_delayq.health.rights import Rights, kinds_of, user_of

#: What a node of a cluster says where another has the slot, without its first word.
_MOVED = re.compile(r"\d+ \S*:\d+$")


def find_missing_rights(rights: Rights) -> Iterator[ServerProblem]:
    user = user_of(rights.client)
    if rights.has_frozen_scripts:
        yield ServerProblem(
            Level.ERROR,
            "lua-replicate-commands is 'no': a script that reads the clock may not write, so nothing can be"
            " scheduled.",
            "Set lua-replicate-commands to yes, which is the default (CONFIG SET lua-replicate-commands yes).",
        )
    if rights.commands:
        names = sorted(rights.commands)
        allowed = " ".join(f"+{name.lower()}" for name in names)
        yield ServerProblem(
            Level.ERROR,
            f"User {user!r} may not use {', '.join(names)}. The server says: {rights.commands[names[0]]}",
            f"ACL SETUSER {user} {allowed}",
        )
    yield from _refused_keys(rights, user)
    if rights.registry:
        yield ServerProblem(
            Level.WARNING,
            f"User {user!r} may not use the key{_s(rights.registry)} {some(rights.registry)}: no page lists the"
            " workers, and stop_worker() reaches none.",
            f"ACL SETUSER {user} {' '.join(f'~{_glob(key)}' for key in rights.registry)}",
        )
    if rights.channels:
        yield ServerProblem(
            Level.ERROR,
            f"User {user!r} may not use the channel{_s(rights.channels)} {some(rights.channels)}: workers do"
            " not hear of new jobs, and may start them 2 s late.",
            f"ACL SETUSER {user} {' '.join(f'&{_glob(name)}' for name in rights.channels[:30])}",
        )
    if rights.is_full:
        used, limit = rights.facts.used_memory, rights.facts.maxmemory
        numbers = "" if used is None else f": it uses {used:,} bytes of {limit:,}"
        yield ServerProblem(
            Level.WARNING,
            f"The server is at its maxmemory{numbers}. It takes no new jobs.",
            "Raise maxmemory. Due jobs go on running and make room.",
        )
    for text, command in rights.other.items():
        if _MOVED.match(text):
            what, _, hint = describe_fault(MovedError(text))
            yield ServerProblem(Level.ERROR, f"{what} {command}: MOVED {text}", hint)
            continue
        yield ServerProblem(
            Level.ERROR,
            f"The server refuses {command}: {text}",
            "See its log. While it refuses, nothing can be scheduled or run.",
        )
    yield from _contents(rights)


def _refused_keys(rights: Rights, user: str) -> Iterator[ServerProblem]:
    both = [key for key in rights.unwritable if key in rights.unreadable]
    for keys, right in (
        (both, "touch"),
        ([key for key in rights.unreadable if key not in both], "read"),
        ([key for key in rights.unwritable if key not in both], "write"),
    ):
        if not keys:
            continue
        yield ServerProblem(
            Level.ERROR,
            f"User {user!r} may not {right} the key{_s(keys)} {some(keys)}.",
            f"ACL SETUSER {user} {' '.join(_patterns(rights, keys))}",
        )


def _patterns(rights: Rights, refused: Sequence[str]) -> list[str]:
    patterns = []
    for keys in rights.keys:
        tag = _glob(keys.queue.tag)
        own = set(kinds_of(keys)) | {keys.result("*")}
        if own & set(refused):
            patterns += [
                f"~{_glob(keys.queue.destination)}",
                f"~redisson_delay_queue*:{tag}",
                f"~delayq_*:{tag}*",
            ]
    return patterns[:30]


def _contents(rights: Rights) -> Iterator[ServerProblem]:
    if rights.mistyped:
        listing = [
            f"{key} ({rights.kinds.get(key, 'something else')} instead of {kind})"
            for key, kind in rights.mistyped.items()
        ]
        yield ServerProblem(
            Level.ERROR,
            f"{len(listing)} key{_s(listing)} of the queues hold{'s' * (len(listing) == 1)} somebody else's data:"
            f" {some(listing)}.",
            "Give the queue another name in DELAYQ['QUEUES'], or delete what is there.",
        )
    for name, length in rights.list_lengths.items():
        yield from find_long_list(QueueFacts(name=name, list_length=length))


def _glob(text: str) -> str:
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"
