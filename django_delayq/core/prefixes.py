"""Which prefixes are used on a server, and who signed the jobs that wait under one: several projects may share it."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from django_delayq.core.queue_reads import Page
from django_delayq.transport.plain_command import Command, fields_of
from django_delayq.wire.signatures import key_id_of

#: HASH prefix → id of the first key of the project whose worker last began with it. The server has one for all prefixes.
PREFIXES = "delayq_prefixes:{delayq}"


def note_prefix(prefix: str, key_id: str, *, where: str = PREFIXES) -> Command[int]:
    """Note that a project, known by one of its keys, has a prefix."""
    return Command(("HSET", where, prefix, key_id))


def noted_prefixes(where: str = PREFIXES) -> Command[dict[str, str]]:
    """Read the prefixes that were noted, each with the id of a key."""

    def read(reply: Any) -> dict[str, str]:
        return {
            prefix.decode(errors="replace"): key_id.decode(errors="replace")
            for prefix, key_id in fields_of(reply).items()
        }

    return Command(("HGETALL", where), read)


class Signed(NamedTuple):
    """The keys that signed the jobs of a sample."""

    #: How many there are in all.
    total: int
    #: How many of the sample have a signature, by the id of its key.
    by_key: dict[str, int]

    def of_others(self, key_ids: Collection[str]) -> int:
        """Return how many of the sample are signed with none of these keys."""
        return sum(n for key_id, n in self.by_key.items() if key_id not in key_ids)


def signed(pages: Iterable[Page]) -> Signed:
    """Say who signed the jobs on these pages."""
    total = 0
    by_key: dict[str, int] = {}
    for each in pages:
        total += each.total
        for row in each.rows:
            key_id = key_id_of(row.payload)
            if key_id is not None:
                by_key[key_id] = by_key.get(key_id, 0) + 1
    return Signed(total, by_key)
