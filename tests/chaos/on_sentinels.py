"""The faults of a primary with two replicas that Sentinels watch."""

from tests.chaos.arena import QUEUE, Arena
from tests.chaos.fault import Layout, fault, trouble
from tests.chaos.history import (
    LEGIBLE,
    hold_back,
    let_in,
    line_of,
    prove_primary,
    prove_service,
    prove_tail,
    tokens_of,
)
from tests.chaos.lines import now_ms
from tests.sentinels import PATIENT_MS, Watched

#: The queue whose jobs both replicas have once `schedule()` returns.
SURE = "sure"


#: A replica that has heard nothing for ten times as long as a primary may be silent is not promoted. Well below that.
MOST_HELD_BACK_MS = 2_000


def watched(kind: str) -> Layout:
    return Watched(kind, options=LEGIBLE), {QUEUE: {}, SURE: {"DURABLE": 2}}


def fail_over(arena: Arena, how: str) -> None:
    """Have the primary fail, ``kill`` or ``suspend``, while its replicas are behind by some jobs."""
    place = arena.place
    assert isinstance(place, Watched)
    place.set_down_after(PATIENT_MS)
    arena.let_it_run()
    old = place.primary
    run_id = arena.run_id()
    load = arena.load_of(QUEUE)
    with trouble(arena):
        while True:
            held_ms = now_ms()
            hold_back(old)
            load.wait_for_more(20)
            place.set_down_after()
            if now_ms() - held_ms < MOST_HELD_BACK_MS:
                break
            let_in(old)
            place.wait_until_whole()
        getattr(old, how)()
        failed_ms = now_ms()
        switched_s, port = place.wait_for_switch(old)
        place.set_down_after(PATIENT_MS)
        new = next(server for server in place.servers if server.port == port)
        # It is dead or hangs: nobody has told it to follow yet, and to throw away what it has.
        before = tokens_of(old)
        load.wait_for_more(20)
        arena.let_it_run(20)
        after = tokens_of(new)
        said = max(line_of(each, "+switch-master") for each in place.sentinels)
        assert f" {new.port}" in said
        arena.prove(f"a Sentinel: {said}")
        prove_primary(arena, new, run_id)
        prove_service(arena, QUEUE, failed_ms, switched_s * 1000)
        prove_tail(arena, QUEUE, before, after, failed_ms)
        prove_tail(arena, SURE, before, after, failed_ms)
        place.heal(old)
        let_in(old)
        if how == "suspend":
            # A server that starts again does not know how far it had come.
            arena.prove(f"the old primary, which follows: {line_of(old, '(request ')}")
    for each in arena.loads:
        each.wait_for_more(20)
    arena.let_it_run()


@fault("Sentinels: kill -9 of the primary, and a replica takes over", layout=watched)
def sentinel_kill(arena: Arena) -> None:
    fail_over(arena, "kill")


@fault(
    "Sentinels: the primary hangs (SIGSTOP), a replica takes over, and it comes back as a replica",
    layout=watched,
)
def sentinel_hang(arena: Arena) -> None:
    fail_over(arena, "suspend")
