"""What a failover threw away: the append-only file of the primary that failed, beside that of the one that was promoted.

A server writes its append-only file before it replies, and a replica writes there what it has received. So the two files
say which of the acknowledged jobs the promoted server had, whatever this package thinks.
"""

import re
from typing import NamedTuple

from tests.chaos.arena import Arena, Load
from tests.servers import LASTING, Server

#: Options of a server whose history can be read: the snapshots at the front of its files have no compressed text.
LEGIBLE = {**LASTING, "rdbcompression": "no"}
_TOKEN = re.compile(rb'"delayq\\*":\\*"([\w-]{22})\\*"')


def tokens_of(server: Server) -> dict[str, None]:
    """Return the tokens of all jobs that a server has ever had, in the order in which it got them."""
    files = [*server.data_directory.rglob("*.rdb"), *server.data_directory.rglob("*.aof")]
    # Their names have a number and the kind: the snapshot, then what was written since.
    files.sort(key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)] + [path.suffix == ".aof"])
    return {
        token.decode(): None
        for path in files
        for token in _TOKEN.findall(path.read_bytes())
    }


class Tail(NamedTuple):
    """The jobs of one load that the primary acknowledged, and that the promoted server never got."""

    #: Their ids, in the order in which the primary got them.
    jobs: list[str]
    #: For how long the first and the last of them had been stored when the primary failed, ms.
    oldest_ms: float
    newest_ms: float
    #: How many jobs of the load the promoted server had got when the primary failed.
    kept: int

    def __str__(self) -> str:
        if not self.jobs:
            return f"it had all {self.kept} of them"
        return (
            f"it had the first {self.kept} of them, and lacked the last {len(self.jobs)}, stored {self.oldest_ms:.0f} to "
            f"{self.newest_ms:.0f} ms before"
        )


def tail_of(load: Load, before: dict[str, None], after: dict[str, None], failed_ms: float) -> Tail:
    """Compare what the failed primary had ``before`` with what the promoted one has had ``after``.

    Raises:
        AssertionError: what is missing is not the end of what was there.
    """
    told = {each["job"].rpartition(":")[2]: each for each in load.told("stored")}
    # A call that had no reply yet may have been made again, behind the gap.
    answered = [token for token in before if token in told and told[token]["after_ms"] < failed_ms]
    there = [token in after for token in answered]
    assert there == sorted(there, reverse=True), "a job is missing, and one that was stored later is not"
    missing = [told[token] for token in before if token in told and token not in after]
    ages = [failed_ms - each["after_ms"] for each in missing]
    return Tail([each["job"] for each in missing], max(ages, default=0.0), min(ages, default=0.0), sum(there))
