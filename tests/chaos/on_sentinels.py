"""The faults of a primary with two replicas that Sentinels watch."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.chaos.arena import QUEUE, SETTLE_S, Arena, Load, Span, kept
from tests.chaos.fault import Layout, NotHere, fault, trouble
from tests.chaos.history import (
    LEGIBLE,
    Overheard,
    hold_back,
    keep_history,
    let_in,
    line_of,
    logged_ms,
    prove_primary,
    prove_service,
    prove_tail,
    service_of,
    tokens_of,
)
from tests.chaos.lines import now_ms
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.sentinels import PATIENT_MS, STOCK_PERIODS, Watched
from tests.servers import LASTING, Server

#: The queue whose jobs both replicas have once `schedule()` returns.
SURE = "sure"
#: A replica that has heard nothing for ten times as long as a primary may be silent is not promoted. Well below that.
MOST_HELD_BACK_MS = 2_000
QUEUES: dict[str, dict[str, Any]] = {QUEUE: {}, SURE: {"DURABLE": 2}}
#: With these options a primary that is cut off soon takes nothing more.
BOUNDED = {"min-replicas-to-write": "1", "min-replicas-max-lag": "2"}
#: From here come the connections of those who are parted from the primary; its clients' come from 127.0.0.1.
MAJORITY = "127.0.0.2"
CLIENTS = "127.0.0.1"
#: What a server logs when it is made a replica. When the other Sentinels tell it the same, it logs something else.
DEMOTED = "enabled (user request"


def watched(kind: str) -> Layout:
    return Watched(kind, options=LEGIBLE, down_after_ms=PATIENT_MS), QUEUES


def parted(kind: str, options: Mapping[str, str] | None = None) -> Layout:
    return Parted(kind, {**LEGIBLE, **(options or {})}), QUEUES


class Parted(Watched):
    """The first primary and the clients can be parted from the replicas and the Sentinels.

    That primary is known by the port of a proxy, to its clients as well: it tells by the address of a peer who is parted
    from it. The clients look for the Sentinels at the ports of other proxies.
    """

    def __init__(self, kind: str, options: Mapping[str, str]) -> None:
        if kind == "redis6":
            raise NotHere("Redis 6.2 does not let us choose where it connects from")
        super().__init__(kind, options=options, down_after_ms=PATIENT_MS)
        first, *others = self.servers
        self._to_primary = Proxy(first, on_port=True)
        self._to_sentinels = [Proxy(each, on_port=True) for each in self.sentinels]
        for server in self.servers:
            # The proxy hides where they connect from.
            server.options["replica-announce-ip"] = "127.0.0.1"
        first.options["replica-announce-port"] = str(self._to_primary.port)
        for server in others:
            server.options["bind-source-addr"] = MAJORITY
            # In protected mode Redis 7 takes 127.0.0.1 alone for this machine.
            server.options["protected-mode"] = "no"
        for sentinel in self.sentinels:
            sentinel.options["bind-source-addr"] = MAJORITY
            sentinel.options["sentinel announce-ip"] = "127.0.0.1"

    def stop(self) -> None:
        for proxy in (self._to_primary, *self._to_sentinels):
            proxy.close()
        super().stop()

    def port_of(self, server: Server) -> int:
        return self._to_primary.port if server is self.servers[0] else server.port

    @property
    def sentinel_ports(self) -> list[int]:
        return [proxy.port for proxy in self._to_sentinels]

    def part(self) -> None:
        self._to_primary.hold(MAJORITY)
        for proxy in self._to_sentinels:
            proxy.hold(CLIENTS)

    def join(self) -> None:
        for proxy in (self._to_primary, *self._to_sentinels):
            proxy.release()


def fail_over(arena: Arena, how: str) -> None:
    """Have the primary fail, ``kill`` or ``suspend``, while its replicas are behind by some jobs."""
    place = arena.place
    assert isinstance(place, Watched)
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
        new = next(server for server in place.servers if place.port_of(server) == port)
        # It is dead or hangs: nobody has told it to follow yet, and to throw away what it has.
        before = tokens_of(old.data_directory)
        load.wait_for_more(20)
        arena.let_it_run(20)
        said = max(line_of(each, "+switch-master") for each in place.sentinels)
        assert f" {new.port}" in said
        arena.prove(f"a Sentinel: {said}")
        prove_primary(arena, new, run_id)
        prove_service(arena, QUEUE, new, failed_ms, switched_s * 1000)
        prove_tail(arena, QUEUE, before, new, failed_ms)
        prove_tail(arena, SURE, before, new, failed_ms)
        place.heal()
        let_in(old)
        if how == "suspend":
            # A server that starts again does not know how far it had come.
            arena.prove(f"the old primary, which follows: {line_of(old, '(request ')}")
        # What was cancelled is in doubt as what was stored is.
        arena.lossy += [Span(held_ms, now_ms())]
    for each in arena.loads:
        each.wait_for_more(20)
    arena.let_it_run()


@fault(
    "Sentinels: kill -9 of the primary, and a replica takes over",
    layout=watched,
    ticks=True,
)
def sentinel_kill(arena: Arena) -> None:
    fail_over(arena, "kill")
    arena.prove_ticks(at_least=5)


@fault(
    "Sentinels: the primary hangs (SIGSTOP), a replica takes over, and it comes back as a replica",
    layout=watched,
    ticks=True,
)
def sentinel_hang(arena: Arena) -> None:
    fail_over(arena, "suspend")
    arena.prove_ticks(at_least=5)


def part(arena: Arena, *, is_bounded: bool) -> None:
    """Part the primary and its clients from all others, until a replica has taken over and the old primary was used."""
    place = arena.place
    assert isinstance(place, Parted)
    arena.let_it_run()
    old = place.servers[0]
    run_id = arena.run_id()
    load = arena.load_of(QUEUE)
    with trouble(arena):
        place.part()
        parted_ms = now_ms()
        place.set_down_after()
        switched_s, port = place.wait_for_switch(old)
        place.set_down_after(PATIENT_MS)
        new = next(server for server in place.servers if place.port_of(server) == port)
        for text in ("+sdown master", "+odown", "+switch-master"):
            prove_word(arena, text, old)
        prove_primary(arena, new, run_id)
        if is_bounded:
            prove_refusals(arena, parted_ms)
        else:
            load.wait_for_more(20)
            prove_not_durable(arena, parted_ms)
        assert place.role(old) == "master"
        # It will be told to follow, and to throw away what it has.
        kept = keep_history(old)
        joined_ms = now_ms()
        place.join()
        wait_until(
            lambda: place.role(old) == "slave",
            description="the old primary is demoted",
            timeout=SETTLE_S,
        )
        demoted_ms = logged_ms(old, DEMOTED)
        wait_for_new_jobs(arena, now_ms())
        place.wait_until_whole()
        before = tokens_of(kept)
        prove_word(arena, "+convert-to-slave", old)
        arena.prove(f"the old primary: {line_of(old, DEMOTED).partition(' (')[0]}")
        arena.prove(f"the old primary, which follows: {line_of(old, '(request ')}")
        stored_ms, began_ms = service_of(arena, QUEUE, new, joined_ms)
        arena.prove(
            f"the switch came {switched_s * 1000 - parted_ms:.0f} ms after the partition, its end "
            f"{joined_ms - parted_ms:.0f} ms; from there {began_ms - joined_ms:.0f} ms to the first job begun on the new "
            f"primary, {demoted_ms - joined_ms:.0f} ms to the demotion of the old one; from that "
            f"{stored_ms - demoted_ms:.0f} ms to the first job stored"
        )
        prove_tail(arena, SURE, before, new, parted_ms, joined_ms)
        tail = prove_tail(arena, QUEUE, before, new, parted_ms, joined_ms)
        alone = {
            told["job"]
            for told in load.told("stored")
            if parted_ms < told["before_ms"] and told["after_ms"] < joined_ms
        }
        assert alone, "nothing was stored meanwhile"
        assert alone <= set(tail.jobs), "the partition leaked"
        ran = {line["job"] for line in arena.records.all("end")}
        arena.lossy += [Span(parted_ms, now_ms())]
        arena.prove(
            f"{len(alone)} of these {len(tail.jobs)} were stored during the partition; "
            f"{len(ran & set(tail.jobs))} ran before the demotion"
        )
    for each in arena.loads:
        each.wait_for_more(20)
    arena.let_it_run()


#: How long after the switch a call may begin on the old primary, ms: a second, twice as long on a busy machine.
NOTICED_MS = 2_400.0
_PAUSE = re.compile(rb"pause \d+\.")


@fault(
    "Sentinels: a planned failover of healthy servers, with sites, an event loop, a worker, a schedule and an import under way",
    layout=watched,
    ticks=True,
)
def sentinel_planned(arena: Arena) -> None:
    place = arena.place
    assert isinstance(place, Watched)
    source = Server(place.kind, LASTING)
    arena.at_end.append(source.stop)
    source.start()
    more = [arena.start_load(how=how) for how in ("unheard", "loop")]
    names = ("a site", "a durable site", "a site without threads", "an event loop")
    loads = dict(zip(names, arena.loads, strict=True))
    elsewhere = arena.start_load(connection=source.socket_url)
    elsewhere.wait_for_more(1)
    importing = arena.start_import(source)
    arena.at_end.append(importing.kill)
    run_id = arena.run_id()
    for load in loads.values():
        load.pause_eater()
        load.wait_for_more(1, "paused")
    # Before the sites go on, there is something to be cancelled.
    arena.let_it_run()
    began_ms = now_ms()
    old = place.hand_on(STOCK_PERIODS)
    overheard = Overheard(old)
    arena.at_end.append(overheard.stop)
    assert place.role(old) == "master"
    wait_until(
        lambda: place.role(old) == "slave",
        description="the old primary is demoted",
        timeout=SETTLE_S,
    )
    demoted_ms = logged_ms(old, DEMOTED)
    for load in loads.values():
        load.pause_eater(False)
    place.set_periods()
    place.wait_until_whole()
    new = place.primary
    for each in arena.loads:
        each.wait_for_more(20)
    for load in (*more, elsewhere):
        load.stop()
    imported = arena.finish_import(importing, source)
    # It ends once it has found nothing, perhaps between two jobs. The next one takes those that came after that.
    arena.finish_import(arena.start_import(source), source)
    prove_primary(arena, new, run_id)
    switched_ms = min(logged_ms(each, "+switch-master") for each in place.sentinels)
    arena.prove(
        f"the switch came {switched_ms - began_ms:.0f} ms after the order, the demotion of the old primary "
        f"{demoted_ms - switched_ms:.0f} ms after the switch, while it took writes"
    )
    doubtful = Span(began_ms, switched_ms + NOTICED_MS)
    arena.troubles.append(doubtful)
    arena.lossy.append(doubtful)
    for name, load in loads.items():
        prove_switched(arena, name, load, new, doubtful, switched_ms)
    prove_left(arena, overheard, switched_ms)
    stored = set(kept(elsewhere.told()))
    missing = stored - ran_or_there(arena, stored, new)
    assert not missing, f"the import reported success, and {len(missing)} jobs are gone"
    arena.let_it_run()
    arena.prove_ticks(at_least=10)
    arena.prove(f"{len(stored)} jobs came; {imported}")


def ran_or_there(arena: Arena, jobs: set[str], server: Server) -> set[str]:
    """Return those jobs that a server has ever had, or that have run."""
    there = tokens_of(server.data_directory)
    ran = {line["job"] for line in arena.records.all("start")}
    return {job for job in jobs if job in ran or job.rpartition(":")[2] in there}


def prove_switched(
    arena: Arena, name: str, load: Load, new: Server, doubtful: Span, switched_ms: float
) -> None:
    """Count what only the old primary was told: no call that began later than this has told it anything."""

    # At first, because the load goes on.
    jobs, cancellations, pauses = (
        [each for each in load.told(step) if each["after_ms"] > doubtful.from_ms]
        for step in ("stored", "cancelled", "paused")
    )
    there = ran_or_there(arena, {each["job"] for each in jobs}, new)
    ran = {line["job"] for line in arena.records.all("start")}
    said = tokens_of(new.data_directory, _PAUSE)
    lost = {
        "jobs": (jobs, [each for each in jobs if each["job"] not in there]),
        "cancellations": (
            cancellations,
            [each for each in cancellations if each["job"] in ran],
        ),
        "pauses": (pauses, [each for each in pauses if each["why"] not in said]),
    }
    figures = []
    for what, (all_, gone) in lost.items():
        last_ms = max((each["before_ms"] for each in gone), default=-math.inf)
        assert last_ms < doubtful.until_ms, (
            f"{name}: one of the {what} was lost {last_ms - switched_ms:.0f} ms after the switch"
        )
        figures.append(
            f"{len(gone)} of {len(all_)} {what}"
            + f" (the last call {last_ms - switched_ms:+.0f} ms)" * bool(gone)
        )
    if arena.queues[load.queue].get("DURABLE"):
        assert not lost["jobs"][1]
    arena.gone.update(each["job"] for each in lost["jobs"][1])
    arena.prove(f"{name} lost {', '.join(figures)}")


def prove_left(arena: Arena, overheard: Overheard, switched_ms: float) -> None:
    """Show when each script was called on the old primary for the last time; also by workers, and by the import."""
    last = {
        name: max(times_ms) - switched_ms
        for name, times_ms in overheard.calls().items()
    }
    assert max(last.values(), default=0.0) < NOTICED_MS, last
    runs = defaultdict[str, list[float]](list)
    for line in arena.records.all("start"):
        runs[line["job"]].append(line["now_ms"] - switched_ms)
    again = [times_ms[0] for times_ms in runs.values() if len(times_ms) > 1]
    arena.prove(
        f"overheard at the old primary from {overheard.from_ms - switched_ms:+.0f} ms of the switch on, the last call of each: "
        + ", ".join(f"{name} {ms:+.0f} ms" for name, ms in last.items())
    )
    if again:
        arena.prove(
            f"{len(again)} jobs ran again, the last of them had begun {max(again):+.0f} ms of the switch"
        )


def prove_word(arena: Arena, event: str, old: Server) -> None:
    """Show what a Sentinel says of the old primary; it may name the new one before it says so."""
    place = arena.place
    assert isinstance(place, Parted)
    said = wait_until(
        lambda: max(line_of(each, event) for each in place.sentinels),
        description=f"a Sentinel says {event}",
        timeout=SETTLE_S,
    )
    assert f" {place.port_of(old)}" in said, said
    arena.prove(f"a Sentinel: {said}")


def failed_calls(load: Load, error: str, from_ms: float) -> list[dict[str, Any]]:
    """Return what the calls were told that were made after a moment, and failed with such an error."""
    return [
        told
        for told in load.told()
        if told["before_ms"] > from_ms and error in told.get("error", "")
    ]


def prove_not_durable(arena: Arena, parted_ms: float) -> None:
    """Show that a call which waits for the replicas says that they do not have its job."""
    load = arena.load_of(SURE)
    (told, *_) = wait_until(
        lambda: failed_calls(load, "NotDurable", parted_ms),
        description="a durable call says so",
        timeout=SETTLE_S,
    )
    arena.prove(
        f"durable={arena.queues[SURE]['DURABLE']}: {told['error'].partition(': INFO')[0]}"
    )


def prove_refusals(arena: Arena, parted_ms: float) -> None:
    """Show that the old primary takes nothing more once it has said so."""
    load = arena.load_of(QUEUE)
    (first, *more) = wait_until(
        lambda: len(told := failed_calls(load, "NOREPLICAS", parted_ms)) > 20 and told,
        description="the old primary refuses jobs",
        timeout=SETTLE_S,
    )
    assert all(told["n"] < first["n"] for told in load.told("stored"))
    arena.prove(
        f"{1 + len(more)} calls were refused, and none was not, from {first['after_ms'] - parted_ms:.0f} ms after the "
        f"partition: {first['error']}"
    )


def wait_for_new_jobs(arena: Arena, from_ms: float, jobs: int = 20) -> None:
    """Wait until so many jobs have begun that were scheduled after a moment."""
    load = arena.load_of(QUEUE)

    def have_begun() -> bool:
        new = {
            told["job"] for told in load.told("stored") if told["before_ms"] > from_ms
        }
        begun = arena.records.all("start")
        return sum(line["job"] in new for line in begun) >= jobs

    wait_until(
        have_begun,
        description=f"new jobs have begun; {arena.logs()}",
        timeout=SETTLE_S,
    )


@fault(
    "Sentinels: the primary and its clients are parted from all others, a replica takes over, and the parts join again",
    layout=parted,
)
def sentinel_partition(arena: Arena) -> None:
    part(arena, is_bounded=False)


@fault(
    "Sentinels: the same, and the old primary soon refuses jobs (min-replicas-to-write 1)",
    layout=partial(parted, options=BOUNDED),
)
def sentinel_partition_bounded(arena: Arena) -> None:
    part(arena, is_bounded=True)
