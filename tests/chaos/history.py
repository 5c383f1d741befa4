"""A failover: who took over, how soon, and what was thrown away.

That is in the append-only file of the primary that failed, and not in that of the server that was promoted.

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
    files = [
        *server.data_directory.rglob("*.rdb"),
        *server.data_directory.rglob("*.aof"),
    ]
    # Their names have a number and the kind: the snapshot, then what was written since.
    files.sort(
        key=lambda path: (
            [int(part) for part in re.findall(r"\d+", path.name)]
            + [path.suffix == ".aof"]
        )
    )
    return {
        token.decode(): None
        for path in files
        for token in _TOKEN.findall(path.read_bytes())
    }


def hold_back(primary: Server) -> None:
    """Have the replicas of a primary hear nothing new from now on: they are cut off, and refused when they come back."""
    with primary.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")


def let_in(server: Server) -> None:
    """Undo `hold_back`, which a server that started again has forgotten."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "+psync", "+sync")


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
            return f"has all {self.kept}"
        return (
            f"has the first {self.kept} and lacks the last {len(self.jobs)}, "
            f"stored {self.oldest_ms:.0f} to {self.newest_ms:.0f} ms before the failure"
        )


def tail_of(
    load: Load, before: dict[str, None], after: dict[str, None], failed_ms: float
) -> Tail:
    """Compare what the failed primary had ``before`` with what the promoted one has had ``after``.

    Raises:
        AssertionError: what is missing is not the end of what was there.
    """
    told = {each["job"].rpartition(":")[2]: each for each in load.told("stored")}
    # A call that had no reply yet may have been made again, behind the gap.
    answered = [
        token
        for token in before
        if token in told and told[token]["after_ms"] < failed_ms
    ]
    there = [token in after for token in answered]
    assert there == sorted(there, reverse=True), (
        "a job is missing, and one that was stored later is not"
    )
    missing = [told[token] for token in before if token in told and token not in after]
    ages = [failed_ms - each["after_ms"] for each in missing]
    return Tail(
        [each["job"] for each in missing],
        max(ages, default=0.0),
        min(ages, default=0.0),
        sum(there),
    )


def line_of(server: Server, text: str) -> str:
    """Return the last line of a server's log that has a text, without time and process; empty if none has."""
    found = [line for line in server.log().splitlines() if text in line]
    return re.sub(r"^.*? [*#] ", "", found[-1]) if found else ""


def prove_primary(arena: Arena, server: Server, old_run_id: str) -> None:
    """Show by its own words that another server is the primary."""
    with server.client() as client:
        run_id = client.info("server")["run_id"]
        role = client.execute_command("ROLE")[0].decode()
    assert run_id != old_run_id
    assert role == "master"
    said = line_of(server, "valid up to offset").partition(". New")[0]
    arena.prove(f"run_id {old_run_id[:8]} → {run_id[:8]}, ROLE {role}: {said}")


def prove_service(
    arena: Arena, queue: str, failed_ms: float, switched_ms: float
) -> None:
    """Say how soon after the switch the first call returned, and the first job of the queue began."""
    jobs = arena.load_of(queue).told("stored")
    ids = {told["job"] for told in jobs}
    stored = min(told["after_ms"] for told in jobs if told["after_ms"] > switched_ms)
    began = min(
        line["now_ms"]
        for line in arena.records.all("start")
        if line["job"] in ids and line["now_ms"] > switched_ms
    )
    arena.prove(
        f"the switch came {switched_ms - failed_ms:.0f} ms after the failure; from the switch "
        f"{stored - switched_ms:.0f} ms to the first job stored, {began - switched_ms:.0f} ms to the first one begun"
    )


def prove_tail(
    arena: Arena,
    queue: str,
    before: dict[str, None],
    after: dict[str, None],
    failed_ms: float,
) -> None:
    """Say what of a queue was thrown away; that may be lost, unless its calls waited for the replicas."""
    tail = tail_of(arena.load_of(queue), before, after, failed_ms)
    durable = arena.queues[queue].get("DURABLE", 0)
    if not durable:
        assert tail.jobs, "the replicas were not behind"
        arena.gone.update(tail.jobs)
    arena.prove(f"durable={durable}: of the acknowledged jobs the new primary {tail}")
