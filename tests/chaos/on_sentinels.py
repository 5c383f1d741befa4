"""The faults of a primary with two replicas that Sentinels watch."""

import re
from pathlib import Path
from typing import Any

from tests.chaos.arena import QUEUE, Arena
from tests.chaos.fault import Layout, fault, trouble
from tests.chaos.history import LEGIBLE, tail_of, tokens_of
from tests.chaos.lines import now_ms
from tests.polling import wait_until
from tests.sentinels import Watched
from tests.servers import Server

#: The queue whose jobs both replicas have once `schedule()` returns.
SURE = "sure"


def watched(kind: str) -> Layout:
    return Watched(kind, options=LEGIBLE), {QUEUE: {}, SURE: {"DURABLE": 2}}


def place_of(arena: Arena) -> Watched:
    assert isinstance(arena.place, Watched)
    return arena.place


def line_of(server: Server, text: str) -> str:
    """Return the last line of a server's log that has a text, without time and process; empty if none has."""
    found = [line for line in server.log().splitlines() if text in line]
    return re.sub(r"^.*? [*#] ", "", found[-1]) if found else ""


def fail_over(arena: Arena, how: str) -> None:
    """Have the primary fail, ``kill`` or ``suspend``, and judge what the promoted replica lacks by the servers' files."""
    place = place_of(arena)
    arena.let_it_run()
    old = place.primary
    run_id = arena.run_id()
    with trouble(arena):
        getattr(old, how)()
        failed_ms = now_ms()
        switched_s, port = place.wait_for_switch(old)
        new = next(server for server in place.servers if server.port == port)
        # It is dead or hangs: nobody has told it to follow yet, and thrown away what it has.
        before = tokens_of(old)
        load = arena.load_of(QUEUE)
        load.wait_for_more(20)
        arena.let_it_run(20)
        after = tokens_of(new)
        tell_switch(arena, old, new, run_id)
        tell_service(arena, failed_ms, switched_s * 1000)
        tail = tail_of(load, before, after, failed_ms)
        arena.gone.update(tail.jobs)
        arena.prove(f"of the jobs acknowledged without durable=, {tail}")
        sure = tail_of(arena.load_of(SURE), before, after, failed_ms)
        arena.prove(f"of those with durable=2, {sure}")
        place.heal(old)
    for each in arena.loads:
        each.wait_for_more(20)
    arena.let_it_run()


def tell_switch(arena: Arena, old: Server, new: Server, run_id: str) -> None:
    """Show by the servers' own words that another one is the primary."""
    place = place_of(arena)
    said = max(line_of(sentinel, "+switch-master") for sentinel in place.sentinels)
    assert f" {new.port}" in said
    with new.client() as client:
        now = client.info("server")["run_id"]
        role = client.execute_command("ROLE")[0].decode()
    assert now != run_id and role == "master"
    arena.prove(f"a Sentinel: {said}")
    arena.prove(f"run_id {run_id[:8]} → {now[:8]}, ROLE {role}; it says: {line_of(new, 'valid up to offset')}")


def tell_service(arena: Arena, failed_ms: float, switched_ms: float) -> None:
    """Say how soon after the switch the first call returned, and the first job began."""
    stored = min(told["after_ms"] for told in arena.load_of(QUEUE).told("stored") if told["after_ms"] > switched_ms)
    began = min(line["now_ms"] for line in arena.records.all("start") if line["now_ms"] > switched_ms)
    arena.prove(
        f"the switch came {switched_ms - failed_ms:.0f} ms after the failure; from the switch {stored - switched_ms:.0f} ms to "
        f"the first job stored, {began - switched_ms:.0f} ms to the first one begun"
    )


@fault("Sentinels: kill -9 of the primary; a replica takes over", layout=watched)
def sentinel_kill(arena: Arena) -> None:
    fail_over(arena, "kill")


@fault("Sentinels: the primary hangs (SIGSTOP), a replica takes over, and it comes back as a replica", layout=watched)
def sentinel_hang(arena: Arena) -> None:
    fail_over(arena, "suspend")
