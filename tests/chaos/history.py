"""A failover: who took over, how soon, and what was thrown away.

That is in the append-only file of the primary that failed, and not in that of the server that was promoted.

A server writes its append-only file before it replies, and a replica writes there what it has received. So the two files
say which of the acknowledged jobs the promoted server had, whatever this package thinks.
"""

import os
import re
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.chaos.arena import Arena, Load
from tests.chaos.lines import now_ms
from tests.scripts import names_by_sha
from tests.servers import LASTING, Server

#: Options of a server whose history can be read: the snapshots at the front of its files have no compressed text.
LEGIBLE = {**LASTING, "rdbcompression": "no"}
#: A script in MONITOR's output. Commands inside a script have ``lua`` in place of an address.
_CALL = re.compile(rb'\+([\d.]+) \[\d+ [^l][^]]*\] "EVALSHA" "(\w{40})"')
_TOKEN = re.compile(rb'"delayq\\*":\\*"([\w-]{22})\\*"')


def tokens_of(directory: Path, what: re.Pattern[bytes] = _TOKEN) -> dict[str, None]:
    """Return the tokens of all jobs that a server has ever had, in the order in which it got them, or something else.

    They stand in the files of its data directory, or in what `keep_history` returned.
    """
    files = [*directory.rglob("*.rdb"), *directory.rglob("*.aof")]
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
        for token in what.findall(path.read_bytes())
    }


def keep_history(server: Server) -> Path:
    """Keep the files of a server, which goes on writing to them, although it will delete them when it follows another."""
    kept = server.directory / "kept"
    for path in server.data_directory.rglob("*"):
        if path.suffix in (".rdb", ".aof"):
            kept.mkdir(exist_ok=True)
            os.link(path, kept / path.name)
    return kept


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
    #: When the first and the last of them were stored, ms from the failure.
    first_ms: float
    last_ms: float
    #: How many jobs of the load the promoted server had got when the primary failed.
    kept: int

    def __str__(self) -> str:
        if not self.jobs:
            return f"has all {self.kept}"
        return (
            f"has the first {self.kept} and lacks the last {len(self.jobs)}, "
            f"stored from {self.first_ms:+,.0f} to {self.last_ms:+,.0f} ms of the failure"
        )


def tail_of(
    load: Load,
    before: dict[str, None],
    new: Server,
    failed_ms: float,
    served_until_ms: float,
) -> Tail:
    """Compare what the failed primary had ``before`` with what the promoted one has had since.

    A primary that is cut off fails, and is served for a while all the same.

    Raises:
        AssertionError: what is missing is not the end of what was there.
    """
    told = {each["job"].rpartition(":")[2]: each for each in load.told("stored")}
    # In this order: what it acknowledges meanwhile is not missing.
    after = tokens_of(new.data_directory)
    # A call that had no reply yet may have been made again, behind the gap.
    answered = [
        token
        for token in before
        if token in told and told[token]["after_ms"] < served_until_ms
    ]
    there = [token in after for token in answered]
    assert there == sorted(there, reverse=True), (
        "a job is missing, and one that was stored later is not"
    )
    missing = [told[token] for token in before if token in told and token not in after]
    times = [each["after_ms"] - failed_ms for each in missing]
    return Tail(
        [each["job"] for each in missing],
        min(times, default=0.0),
        max(times, default=0.0),
        sum(there),
    )


class Overheard:
    """What a server is asked until `stop`, by MONITOR."""

    def __init__(self, server: Server) -> None:
        self.from_ms = now_ms()
        # Redis tells the time by another clock.
        self._ahead_ms = time.time() * 1000 - now_ms()
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.sendall(b"MONITOR\r\n")
        self._said = b""
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        # Its server closes all connections when it is demoted.
        with suppress(OSError):
            while data := self._socket.recv(1 << 16):
                self._said += data

    def stop(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def calls(self) -> dict[str, list[float]]:
        """Return when each script was called, by `now_ms`; only scripts that this process knows."""
        names, calls = names_by_sha(), defaultdict[str, list[float]](list)
        for time_s, sha in _CALL.findall(self._said):
            name = names.get(sha.decode(), "another script")
            calls[name].append(float(time_s) * 1000 - self._ahead_ms)
        return calls


def line_of(server: Server, text: str) -> str:
    """Return the last line of a server's log that has a text, without time and process; empty if none has."""
    return re.sub(r"^.*? [*#] ", "", _last_line(server, text))


def logged_ms(server: Server, text: str) -> float:
    """Return when a server wrote the last line of its log that has a text, by `now_ms`."""
    written = re.search(r"(\d+ \w+ \d+ [\d:]+)\.(\d+) [*#] ", _last_line(server, text))
    assert written, f"no line of the log has {text!r}"
    second_s = time.mktime(time.strptime(written[1], "%d %b %Y %H:%M:%S"))
    return second_s * 1000 + int(written[2]) - time.time() * 1000 + now_ms()


def _last_line(server: Server, text: str) -> str:
    found = [line for line in server.log().splitlines() if text in line]
    return found[-1] if found else ""


def prove_primary(arena: Arena, server: Server, old_run_id: str) -> None:
    """Show by its own words that another server is the primary."""
    with server.client() as client:
        run_id = client.info("server")["run_id"]
        role = client.execute_command("ROLE")[0].decode()
    assert run_id != old_run_id
    assert role == "master"
    said = line_of(server, "valid up to offset").partition(". New")[0]
    arena.prove(f"run_id {old_run_id[:8]} → {run_id[:8]}, ROLE {role}: {said}")


def service_of(
    arena: Arena, queue: str, new: Server, from_ms: float
) -> tuple[float, float]:
    """Return when the first call returned, and when the first job of a queue began, on the new primary since a moment.

    Those are the jobs that it has had, whatever the old one took meanwhile.
    """
    there = tokens_of(new.data_directory)
    jobs = [
        told
        for told in arena.load_of(queue).told("stored")
        if told["job"].rpartition(":")[2] in there
    ]
    ids = {told["job"] for told in jobs}
    return (
        min(told["after_ms"] for told in jobs if told["after_ms"] > from_ms),
        min(
            line["now_ms"]
            for line in arena.records.all("start")
            if line["job"] in ids and line["now_ms"] > from_ms
        ),
    )


def prove_service(
    arena: Arena,
    queue: str,
    new: Server,
    failed_ms: float,
    switched_ms: float,
) -> None:
    """Say how soon after the switch the first call returned, and the first job of the queue began."""
    stored_ms, began_ms = service_of(arena, queue, new, switched_ms)
    arena.prove(
        f"the switch came {switched_ms - failed_ms:.0f} ms after the failure; from the switch "
        f"{stored_ms - switched_ms:.0f} ms to the first job stored, {began_ms - switched_ms:.0f} ms to the first one begun"
    )


def prove_tail(
    arena: Arena,
    queue: str,
    before: dict[str, None],
    new: Server,
    failed_ms: float,
    served_until_ms: float | None = None,
) -> Tail:
    """Say what of a queue was thrown away; that may be lost, unless its calls waited for the replicas."""
    served_until_ms = failed_ms if served_until_ms is None else served_until_ms
    tail = tail_of(arena.load_of(queue), before, new, failed_ms, served_until_ms)
    durable = arena.queues[queue].get("DURABLE", 0)
    if durable:
        assert not tail.jobs, f"the new primary lacks what it had promised: {tail}"
    else:
        assert tail.jobs, "the replicas were not behind"
        arena.gone.update(tail.jobs)
    arena.prove(f"durable={durable}: of the acknowledged jobs the new primary {tail}")
    return tail
