"""One call of every operation, each at a queue where it has something to write: for what holds for all of them.

Each stop brings a queue into some state and returns the call itself, still to be made.
"""

from collections.abc import Callable

from django_delayq.delivery import claiming, looking, tending
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.settling import Done, Rejected
from django_delayq.delivery.states import State
from django_delayq.delivery.storing import NewJob
from django_delayq.delivery.tending import Which
from django_delayq.repair import frames
from django_delayq.repair.frames import FrameName
from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import LEASE, OWNER, T0, Bench, is_unlisted, payload, token

Stop = Callable[[Bench], Callable[[], object]]
TOUR: dict[str, Stop] = {}
#: What makes room, or has to go on, on a server that is full.
DRAINS: set[str] = set()


def stop(name: str, *, drains: bool = False) -> Callable[[Stop], Stop]:
    def enter(function: Stop) -> Stop:
        TOUR[name] = function
        if drains:
            DRAINS.add(name)
        return function

    return enter


def mix(bench: Bench) -> None:
    """Fill a queue with everything that can be due at once."""
    bench.schedule({f"j{n}": (n * 7) % 10 for n in range(12)})
    bench.schedule({"u": 3}, unique="ek")
    bench.schedule({"s": 4}, unique="sk")
    bench.schedule({"flat": 5}, insertion_list=False)
    bench.java_offer("x", 2)
    bench.client.zadd(bench.keys.queue.timeout_set, {b"bad": T0 + 6})
    bench.client.rpush(bench.keys.queue.delay_queue, b"bad")
    bench.now = 8


def deep(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_000)
    bench.schedule({"a": 0})
    bench.transfer()


@stop("schedule")
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"held": 9}, unique="eheld")
    jobs = [
        NewJob(token("a"), "+0", "ek", payload("a")),
        NewJob(token("b"), "+5", "", payload("b")),
        NewJob(token("c"), "+5", "eheld", payload("c")),
    ]
    return lambda: bench.send(jobs)


@stop("schedule without the list")
def _(bench: Bench) -> Callable[[], object]:
    return lambda: bench.schedule({"a": 0, "b": 1}, insertion_list=False)


@stop("store")
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"first": 9})
    return lambda: bench.schedule({"a": 0})


@stop("store without the list")
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"first": 9}, insertion_list=False)
    return lambda: bench.schedule({"a": 0}, insertion_list=False)


@stop("schedule, displacing a holder")
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.java_transfer()
    bench.java_take()
    return lambda: bench.schedule({"b": 5}, unique="ek")


@stop("schedule again")
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 5})
    return lambda: bench.schedule({"a": 0, "b": 0}, again=True)


@stop("transfer", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.transfer()


@stop("claim", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.claim(20)


@stop("claim of a few", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"first": 0, "a": 2, "b": 3}, insertion_list=False)
    bench.claim()
    bench.now = 4
    return bench.claim_few


@stop("claim from a swept list", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    bench.client.hset(bench.keys.counters, "sweeping", 1)
    return lambda: bench.claim(20)


@stop("claim of expired leases", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0, "b": 0})
    bench.claim()
    bench.now = LEASE
    return lambda: bench.claim()


@stop("claim of what killed its workers", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.claim()
    bench.now = LEASE
    return lambda: bench.claim(max_kills=0)


@stop("claim beside a suspect", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0, "b": 0})
    bench.claim()
    bench.now = LEASE
    return lambda: bench.claim(safe_kills=0, takes_suspect=False, put_off_ms=20)


@stop("claim of retries", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0, "b": 0})
    bench.retry(*bench.claim().jobs, wait=0)
    return lambda: bench.claim()


@stop("claim on a shared queue", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    bench.client.rpush(bench.keys.queue.destination, b"y", payload("z"))
    return lambda: bench.claim(mode=Mode.SHARED)


@stop("claim of foreign elements alone", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.client.rpush(bench.keys.queue.destination, b"x", b"y")
    return lambda: bench.claim(mode=Mode.TAKE)


@stop("claim of what lost its payload", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0, "b": 0}, unique="")
    bench.schedule({"u": 0}, unique="ek")
    bench.claim()
    bench.client.hdel(bench.keys.payloads, token("u"))
    bench.now = LEASE
    return lambda: bench.claim()


@stop("replay of what lost its payload", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0, "b": 0})
    bench.bury(*bench.claim().jobs)
    bench.client.hdel(bench.keys.payloads, token("b"))
    return lambda: bench.replay("a", "b")


@stop("claim of noted jobs", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    deep(bench)
    bench.cancel("a")
    bench.schedule({"b": 0, "c": 0})
    bench.transfer()
    bench.reschedule("b", 50)
    bench.client.ltrim(bench.keys.queue.destination, 990, -1)
    return lambda: bench.claim(20, mode=Mode.TAKE)


@stop("claim that repeats", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.claim(request=b"12345678")
    return lambda: bench.claim(request=b"12345678")


@stop("claim that forgets notes", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    deep(bench)
    bench.cancel("a")
    bench.client.delete(bench.keys.queue.destination)
    return lambda: bench.claim()


@stop("acknowledge", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.schedule({"b": 0})
    a, b = bench.claim().jobs
    done = Done(b.token, b.fence, 60_000, b"result")
    return lambda: bench.acknowledge(a, done)


@stop("retry", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    job = bench.lease()
    return lambda: bench.retry(job)


@stop("bury", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    job = bench.lease()
    rejected = Rejected(job.token, job.fence, b"{}", 60_000, b"failed")
    return lambda: bench.bury(rejected)


@stop("bury in quarantine", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.java_offer("x", 0)
    job = bench.lease()
    return lambda: bench.bury(job, state=State.QUARANTINED)


@stop("give back", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.client.rpush(bench.keys.queue.destination, b"x", b"y")
    jobs = bench.claim().jobs
    return lambda: bench.give_back(*jobs)


@stop("hold", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    job = bench.lease()
    return lambda: bench.hold(job)


@stop("release", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"known": 0})
    bench.hold(bench.lease(), task="known")
    bench.schedule({"over": 0}, unique="ek")
    bench.hold(bench.lease(), hold_ms=0)
    return lambda: bench.release("known")


@stop("cancel what is held", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.hold(bench.lease())
    return lambda: bench.cancel("a")


@stop("reschedule what is held", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.hold(bench.lease())
    return lambda: bench.reschedule("a", 5)


@stop("renew", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    job = bench.lease()
    bench.now = 5
    return lambda: bench.renew(job)


@stop("recover", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.lease()
    return lambda: bench.recover()


@stop("cancel", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 5, "b": 6}, unique="")
    bench.schedule({"c": 5}, unique="ek")
    return lambda: bench.cancel("c")


@stop("cancel in a long list", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({f"j{n}": n for n in range(100)})
    return lambda: bench.cancel("j50")


@stop("cancel in the destination queue", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.transfer()
    return lambda: bench.cancel("a")


@stop("cancel what retries", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.retry(bench.lease())
    return lambda: bench.cancel("a")


@stop("cancel by a note", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    deep(bench)
    return lambda: bench.cancel("a")


@stop("cancel what Java took", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.java_transfer()
    bench.java_take()
    return lambda: bench.cancel("a")


@stop("reschedule", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 5})
    return lambda: bench.reschedule("a", 0)


@stop("reschedule in the destination queue", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.transfer()
    return lambda: bench.reschedule("a", 5)


@stop("reschedule what retries", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.retry(bench.lease())
    return lambda: bench.reschedule("a", 5)


@stop("reschedule what lost its worker", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.lease()
    bench.recover()
    return lambda: bench.reschedule("a", 5)


@stop("reschedule by a note", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    deep(bench)
    return lambda: bench.reschedule("a", 5)


@stop("inspect", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.inspect("j5")


@stop("replay", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.bury(bench.lease())
    return lambda: bench.replay("a")


@stop("discard", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.bury(bench.lease())
    return lambda: bench.discard("a")


@stop("page", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.run(looking.page(bench.keys, State.SCHEDULED))


@stop("page of dead letters", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.bury(bench.lease())
    return lambda: bench.run(looking.page(bench.keys, State.DEAD))


@stop("counts", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.counters()


@stop("sweep", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.java_transfer()
    bench.java_take()
    return lambda: bench.run(tending.sweep(bench.keys))


@stop("sweep of unique keys", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.client.hset(bench.keys.unique, "k", token("a"))
    return lambda: bench.run(tending.sweep(bench.keys, "unique"))


@stop("sweep of headers", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0}, unique="ek")
    bench.retry(*bench.claim(1).jobs)
    bench.client.delete(bench.keys.retries)
    return lambda: bench.run(tending.sweep(bench.keys, "headers"))


@stop("sweep of errors", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.client.hset(bench.keys.errors, token("a"), "{}")
    return lambda: bench.run(tending.sweep(bench.keys, "errors"))


@stop("sweep of notes", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.client.hset(bench.keys.notes, token("a"), "cancel")
    return lambda: bench.run(tending.sweep(bench.keys, "notes"))


@stop("sweep of claims", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.client.hset(bench.keys.claims, OWNER, b"request1")
    return lambda: bench.run(tending.sweep(bench.keys, "claims"))


@stop("leave", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0})
    bench.lease()
    return lambda: bench.run(claiming.leave(bench.keys, owner=OWNER))


@stop("expire", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 0, "b": 0})
    bench.bury(*bench.claim().jobs)
    bench.now = 10
    return lambda: bench.run(tending.expire(bench.keys, age_ms=5, now_us=bench.now_us))


@stop("expire in quarantine", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.java_offer("x", 0)
    bench.bury(bench.lease(), state=State.QUARANTINED)
    bench.now = 10
    return lambda: bench.run(
        tending.expire(
            bench.keys,
            state=State.QUARANTINED,
            age_ms=5,
            which=Which.FOREIGN,
            now_us=bench.now_us,
        )
    )


@stop("survey of the timeout set", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.run(frames.survey(bench.keys, "zset"))


@stop("survey of the delay queue", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.run(frames.survey(bench.keys, "list"))


@stop("enlist")
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    names = [
        FrameName(int(score), FrameFormat.BC0LC0, frame[1:9])
        for frame, score in bench.client.zrange(
            bench.keys.queue.timeout_set, 0, -1, withscores=True
        )
        if is_unlisted(frame)
    ]
    return lambda: bench.run(frames.enlist(bench.keys, names, run="r", step=1))


@stop("delist", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.run(frames.delist(bench.keys, run="r", step=1, batch=100))


@stop("reframe the delay queue", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.run(frames.reframe(bench.keys, "list", FrameFormat.DLC0))


@stop("reframe what is in the delay queue alone", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.java_offer("x", 5)
    bench.java_offer("y", 5)
    bench.client.zrem(bench.keys.queue.timeout_set, *bench.frames()[:1])
    return lambda: bench.run(frames.reframe(bench.keys, "list", FrameFormat.DLC0))


@stop("reframe the timeout set", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    mix(bench)
    return lambda: bench.run(
        frames.reframe(bench.keys, "zset", FrameFormat.DLC0, lookups=100)
    )


@stop("drop what was delivered", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    frame = bench.java_offer("x", 5)
    bench.java_offer("y", 5)
    bench.client.lrem(bench.keys.queue.delay_queue, 1, frame)
    name = FrameName(T0 + 5, bench.frame_format, frame[1:9])
    return lambda: bench.run(frames.drop_delivered(bench.keys, [name]))


@stop("announce", drains=True)
def _(bench: Bench) -> Callable[[], object]:
    bench.schedule({"a": 5})
    return lambda: bench.run(frames.announce(bench.keys))
