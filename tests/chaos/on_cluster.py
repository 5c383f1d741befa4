"""The faults of a cluster of three primaries."""

import time
from collections import Counter, defaultdict
from itertools import count

from redis.crc import key_slot

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.shards import shard_keys
from tests.chaos.arena import JOBS_OF_A_LOAD, SETTLE_S, SLACK_MS, Arena, Span
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
from tests.chaos.load import FOLLOWER, MOURNER
from tests.clusters import NODE_TIMEOUT_MS, TestCluster
from tests.polling import wait_until
from tests.servers import Server

#: Until the fault, and once it has been noticed, no pause of a busy machine is taken for a failure.
PATIENT_MS = 60_000
OPTIONS = {
    **LEGIBLE,
    "cluster_node_timeout": str(PATIENT_MS),
    # A replica is promoted however long it has heard nothing.
    "cluster_replica_validity_factor": "0",
}


#: How many shards a queue has, and how many the settings of another deploy say.
FEW, MORE = 2, 4


def with_replicas(kind: str) -> Layout:
    """Two queues on the first node, one with `durable=`, and one on the second."""
    cluster = TestCluster(kind, options=OPTIONS)
    (plain, sure), (other, _), _ = cluster.names_on_each(2)
    return cluster, {plain: {}, sure: {"DURABLE": 1}, other: {}}


def without_replicas(kind: str) -> Layout:
    """A queue on each node."""
    cluster = TestCluster(kind, replicas=0, options=OPTIONS)
    return cluster, {name: {} for (name,) in cluster.names_on_each()}


def with_shards(kind: str) -> Layout:
    """A queue of two shards. If it had four, they would lie on all nodes."""
    cluster = TestCluster(kind, replicas=0, options=OPTIONS)
    name = next(
        name
        for name in (f"chaos-{number}" for number in count())
        if len({key_slot(f"{name}:{part}".encode()) * 3 >> 14 for part in range(MORE)})
        == 3
    )
    return cluster, {name: {"SHARDS": FEW}}


def place_of(arena: Arena) -> TestCluster:
    assert isinstance(arena.place, TestCluster)
    return arena.place


def run_id_of(node: Server) -> str:
    with node.client() as client:
        found: str = client.info("server")["run_id"]
    return found


def ask_who_took_over(place: TestCluster, old: Server) -> Server | None:
    """Return the node that holds the slots of a node that failed, as another primary says; None: nobody yet."""
    with place.nodes[1].client() as client:
        for begin, _, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
            if begin == 0 and primary[1] != old.port:
                return next(each for each in place.nodes if each.port == primary[1])
    return None


def fail_over(arena: Arena, how: str) -> None:
    """Have the first node fail, ``kill`` or ``suspend``, while its replica is behind by some jobs."""
    place = place_of(arena)
    plain, sure, other = arena.queues
    arena.let_it_run()
    old = place.nodes[0]
    run_id = run_id_of(old)
    load = arena.load_of(plain)
    with trouble(arena):
        hold_back(old)
        load.wait_for_more(20)
        place.set_node_timeout(NODE_TIMEOUT_MS)
        getattr(old, how)()
        failed_ms = now_ms()
        new = wait_until(
            lambda: ask_who_took_over(place, old),
            description="its replica takes over",
            timeout=SETTLE_S,
        )
        switched_ms = now_ms()
        place.set_node_timeout(
            PATIENT_MS, *(each for each in place.nodes if each is not old)
        )
        # It is dead or hangs: nobody has told it to follow yet, and to throw away what it has.
        before = tokens_of(old.data_directory)
        load.wait_for_more(20)
        wait_for_runs(arena, plain, switched_ms)
        arena.prove(f"the replica: {line_of(new, 'election won')}")
        prove_primary(arena, new, run_id)
        prove_service(arena, plain, new, failed_ms, switched_ms)
        prove_meanwhile(arena, other, failed_ms, switched_ms)
        prove_tail(arena, plain, before, new, failed_ms)
        prove_tail(arena, sure, before, new, failed_ms)
        # What was cancelled is in doubt as what was stored is.
        arena.lossy.append(Span(failed_ms - PATIENT_MS, now_ms()))
        if how == "kill":
            old.start()
        else:
            old.resume()
        wait_until(
            lambda: is_in_step(old, new),
            description="the old primary follows",
            timeout=SETTLE_S,
        )
        let_in(old)
    for each in arena.loads:
        each.wait_for_more(20)
    arena.let_it_run()


def is_in_step(replica: Server, primary: Server) -> bool:
    with replica.client() as client:
        told = client.info("replication")
    return (
        told["role"] == "slave"
        and told["master_port"] == primary.port
        and told["master_link_status"] == "up"
    )


def wait_for_runs(arena: Arena, queue: str, from_ms: float, jobs: int = 20) -> None:
    """Wait until so many jobs of a queue have begun since a moment."""

    def have_begun() -> bool:
        ids = {told["job"] for told in arena.load_of(queue).told("stored")}
        begun = arena.records.all("start")
        return (
            sum(each["job"] in ids and each["now_ms"] > from_ms for each in begun)
            >= jobs
        )

    wait_until(
        have_begun,
        description=f"{jobs} jobs of {queue} have run; {arena.logs()}",
        timeout=SETTLE_S,
    )


def prove_meanwhile(arena: Arena, queue: str, from_ms: float, until_ms: float) -> None:
    """Say how a queue of a node that did not fail was served."""
    stored = [
        told
        for told in arena.load_of(queue).told("stored")
        if from_ms < told["before_ms"] and told["after_ms"] < until_ms
    ]
    ids = {told["job"] for told in arena.load_of(queue).told("stored")}
    begun = [
        each
        for each in arena.records.all("start")
        if each["job"] in ids and from_ms < each["now_ms"] < until_ms
    ]
    arena.prove(
        f"on another node {len(stored)} jobs were stored and {len(begun)} began meanwhile"
    )


@fault("cluster: kill -9 of a node, and its replica takes over", layout=with_replicas)
def cluster_kill(arena: Arena) -> None:
    fail_over(arena, "kill")


@fault(
    "cluster: a node hangs (SIGSTOP), its replica takes over, and it comes back as a replica",
    layout=with_replicas,
)
def cluster_hang(arena: Arena) -> None:
    fail_over(arena, "suspend")


@fault(
    "cluster: a node without a replica is down, and starts again",
    layout=without_replicas,
)
def cluster_third(arena: Arena) -> None:
    place = place_of(arena)
    down, *others = arena.queues
    arena.let_it_run()
    node = place.nodes[0]
    run_id = run_id_of(node)
    failed_ms = now_ms()
    with trouble(arena):
        place.set_node_timeout(NODE_TIMEOUT_MS)
        node.kill()
        wait_until(
            lambda: is_failed(place, node),
            description="the others call it failed",
            timeout=SETTLE_S,
        )
        noticed_ms = now_ms()
        place.set_node_timeout(PATIENT_MS, *place.nodes[1:])
        for queue in others:
            arena.load_of(queue).wait_for_more(20)
            wait_for_runs(arena, queue, noticed_ms)
        for queue in others:
            prove_meanwhile(arena, queue, failed_ms, now_ms())
        load = arena.load_of(down)
        errors = wait_until(
            lambda: {
                told["error"]
                for told in load.told()
                if told["before_ms"] > failed_ms and "error" in told
            },
            description="the queue of the node that is down refuses jobs",
            timeout=SETTLE_S,
        )
        arena.prove(f"the queue of the node that is down: {sorted(errors)[0]}")
        wait_until(
            lambda: any(
                f"queue {down} cannot be served" in each.log for each in arena.workers
            ),
            description=f"the worker says so; {arena.logs()}",
        )
        node.start()
        for each in arena.loads:
            each.wait_for_more(20)
        wait_for_runs(arena, down, now_ms())
    arena.prove(f"run_id {run_id[:8]} → {run_id_of(node)[:8]}")
    arena.let_it_run()


#: How long the queue of the followers is away at least, s.
AWAY_S = 12.0


@fault(
    "cluster: jobs follow others into a queue on a node that hangs, and the worker is replaced meanwhile",
    layout=without_replicas,
)
def cluster_followers(arena: Arena) -> None:
    place = place_of(arena)
    target, source, _ = arena.queues
    load = arena.start_load(queue=source, how=f"then:{target}")
    arena.let_it_run()
    with trouble(arena):
        begun_ms = now_ms()
        place.nodes[0].suspend()
        (worker,) = arena.workers
        arena.wait_for_work(arena.start_worker())
        assert worker.stop() == 0, worker.log
        wait_for_runs(arena, source, now_ms())
        time.sleep(max(0.0, AWAY_S - (now_ms() - begun_ms) / 1000))
        prove_meanwhile(arena, source, begun_ms, now_ms())
        place.nodes[0].resume()
        back_ms = now_ms()
        wait_for_runs(arena, target, back_ms)
    load.stop()
    firsts = [
        told for told in load.told("stored") if told["n"] % JOBS_OF_A_LOAD < FOLLOWER
    ]
    followed_by = {told["n"]: told["n"] + FOLLOWER for told in firsts}
    meanwhile = sum(begun_ms < told["before_ms"] < back_ms for told in firsts)

    def are_through() -> bool:
        ended = {line["n"] for line in arena.records.all("end")}
        return ended.issuperset(followed_by.values())

    wait_until(
        are_through,
        description=f"all that follow have run; {arena.logs()}",
        timeout=SETTLE_S,
    )
    starts, ends = defaultdict[int, list[float]](list), dict[int, float]()
    for line in arena.records.all():
        if line["step"] == "start":
            starts[line["n"]].append(line["now_ms"])
        elif line["step"] == "end":
            ends.setdefault(line["n"], line["now_ms"])
    wrong = {
        "early": [n for n, then in followed_by.items() if starts[then][0] < ends[n]],
        "run again": [n for n in followed_by if len(starts[n]) > 1],
        # One that ran as the node began to hang may run again.
        "doubled": [
            n
            for n in followed_by.values()
            if len(starts[n]) > 1
            and not Span(begun_ms - SLACK_MS, back_ms).meets(starts[n][0], starts[n][0])
        ],
        "dead": [n for n in followed_by if n + MOURNER in starts],
    }
    assert not any(wrong.values()), wrong
    arena.prove(
        f"the node hung for {(back_ms - begun_ms) / 1000:.0f} s, and the worker was replaced; of {len(followed_by)}"
        f" jobs, {meanwhile} of them stored meanwhile, none ran again, no on_dead ran, and what follows ran after it"
    )
    arena.let_it_run()


def is_failed(place: TestCluster, node: Server) -> bool:
    known = place.known_to(place.nodes[1])
    return any(
        address.startswith(f"127.0.0.1:{node.port}")
        and "fail" in each["flags"].split(",")
        for address, each in known.items()
    )


@fault(
    "cluster: slots move under load, key by key, and at once where the server can",
    layout=without_replicas,
)
def cluster_move(arena: Arena) -> None:
    place = place_of(arena)
    (queue, *_) = arena.queues
    slot = key_slot(queue.encode())
    first, second, third = place.nodes
    arena.let_it_run()
    with trouble(arena):
        began_ms = now_ms()
        place.begin_move(slot, first, second)
        keys = 0
        while moved := place.move_keys(slot, first, second, most=1):
            keys += moved
        place.end_move(slot, second)
        took_ms = now_ms() - began_ms
    assert place.holder_of(queue) is second
    arena.prove(
        f"{keys} keys, each by MIGRATE, in {took_ms:.0f} ms; CLUSTER SLOTS names {second.port} instead of {first.port}"
    )
    arena.load_of(queue).wait_for_more(20)
    wait_for_runs(arena, queue, now_ms())
    if place.version >= (9,):
        with trouble(arena):
            began_ms = now_ms()
            place.move_at_once(slot, second, third)
            took_ms = now_ms() - began_ms
        assert place.holder_of(queue) is third
        arena.prove(
            f"CLUSTER MIGRATESLOTS in {took_ms:.0f} ms; CLUSTER SLOTS names {third.port}"
        )
        arena.load_of(queue).wait_for_more(20)
        wait_for_runs(arena, queue, now_ms())
    arena.let_it_run()


@fault(
    "a deploy with another number of shards comes up beside the old one",
    layout=with_shards,
)
def other_shards(arena: Arena) -> None:
    (name,) = arena.queues
    ours, place = arena.queues, place_of(arena)
    arena.let_it_run()
    # Else the queue is empty now and then, and takes the other number.
    kept = shard_keys(DeliveryKeys.of(name), 0).dead
    with place.client() as client:
        client.zadd(kept, {"kept": now_ms()})
        arena.queues = {name: {"SHARDS": MORE}}
        worker = arena.start_worker()
        told = f"SHARDS={FEW}, and the settings say SHARDS={MORE}"
        wait_until(
            lambda: all(
                f"queue {name}:{part} cannot be served" in worker.log
                for part in range(MORE)
            ),
            description=f"it serves no shard; {worker.log[-2_000:]}",
        )
        arena.prove(next(line for line in worker.log.splitlines() if told in line))
        arena.let_it_run()
        assert worker.stop() == 0, worker.log
        client.zrem(kept, "kept")
    arena.queues = ours
    arena.let_it_run()

    ran = Counter(
        job.rpartition(":")[0]
        for job in {line["job"] for line in arena.records.all("end")}
    )
    for shard in (f"{name}:{part}" for part in range(FEW)):
        assert ran[shard], f"nothing ran in {shard}"
        arena.prove(
            f"{shard} is on the node at port {place.holder_of(shard).port}, {ran[shard]} of its jobs have run"
        )
