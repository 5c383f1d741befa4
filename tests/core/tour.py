"""One call of every operation, on a queue to which it has something to write, to test what holds for all operations.

Each stop brings a queue into some state, and returns the call without making it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import (
    durability,
    frame_heads,
    limit_slots,
    progress,
    queue_reads,
    rates,
    worker_code,
    worker_registry,
)
from django_delayq.core import replace as replace_calls
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.claim import Leased, Mode
from django_delayq.core.forward_calls import Forward, forward_of
from django_delayq.core.lease_ends import Done, Rejected
from django_delayq.core.progress import JobProgress
from django_delayq.core.reasons import Reason
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, tail_of
from django_delayq.core.sweep import Which
from django_delayq.core.worker_registry import KEPT_MS, RegistryKeys, WorkerInfo
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.calls import Figures, Histogram, Outcome, Unit
from django_delayq.tools import frame_calls, page_calls
from django_delayq.tools.frame_calls import FrameName
from django_delayq.tools.page_calls import Kind, MovedSchedule, Source
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import LEASE, OWNER, T0, Rig, is_unlisted, payload, token

HOUR_MS = 3_600_000

Stop = Callable[[Rig], Callable[[], object]]
TOUR: dict[str, Stop] = {}
#: Operations that make room on a full server, or have to go on there.
DRAINS: set[str] = set()


def stop(name: str, *, drains: bool = False) -> Callable[[Stop], Stop]:
    def enter(function: Stop) -> Stop:
        TOUR[name] = function
        if drains:
            DRAINS.add(name)
        return function

    return enter


def mix(rig: Rig) -> None:
    """Fill a queue with everything that can be due at the same time."""
    rig.schedule({f"j{n}": (n * 7) % 10 for n in range(12)})
    rig.schedule({"u": 3}, unique="ek")
    rig.schedule({"s": 4}, unique="sk")
    rig.schedule({"flat": 5}, insertion_list=False)
    rig.java_offer("x", 2)
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0 + 6})
    rig.client.rpush(rig.keys.queue.delay_queue, b"bad")
    rig.now = 8


def hold_paused(rig: Rig, *names: str, task: str = "shop.mail") -> None:
    """Schedule jobs of a task, due now; pause it, and have a worker hold them for that."""
    rig.schedule(dict.fromkeys(names, 0))
    rig.pause(task)
    jobs = rig.claim(len(names)).jobs
    assert rig.hold(*jobs, task=Reason("paused", task), hold_ms=None) == []


def follower(
    name: str, wait: str = "+0", *, unique: str = "", priority: int = 0
) -> NewJob:
    return NewJob(token(name), wait, tail_of(unique, priority), payload(name))


def forward(name: str, wait: str = "+0", **options: Any) -> Forward:
    return forward_of("queue", follower(name, wait, **options), T0)


def end_of(name: str, ended_ms: int = T0, **options: Any) -> EndRecord:
    return EndRecord(token(name), "shop.mail", State.SUCCEEDED, ended_ms, **options)


def deep(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_000)
    rig.schedule({"a": 0})
    rig.transfer()


@stop("schedule")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"held": 9}, unique="eheld")
    jobs = [
        NewJob(token("a"), "+0", "ek", payload("a")),
        NewJob(token("b"), "+5", "", payload("b")),
        NewJob(token("c"), "+5", "eheld", payload("c")),
    ]
    return lambda: rig.send(jobs)


@stop("schedule without the list")
def _(rig: Rig) -> Callable[[], object]:
    return lambda: rig.schedule({"a": 0, "b": 1}, insertion_list=False)


@stop("schedule within a limit")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 9})
    return lambda: rig.schedule({"a": 0, "b": 1}, max_jobs=3)


@stop("store within a limit")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 9})
    return lambda: rig.schedule({"a": 0}, max_jobs=2)


@stop("store")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 9})
    return lambda: rig.schedule({"a": 0})


@stop("store without the list")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 9}, insertion_list=False)
    return lambda: rig.schedule({"a": 0}, insertion_list=False)


@stop("schedule, displacing a holder")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.java_transfer()
    rig.java_take()
    return lambda: rig.schedule({"b": 5}, unique="ek")


@stop("schedule again")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5})
    return lambda: rig.schedule({"a": 0, "b": 0}, again=True)


@stop("arrange a schedule", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    call = rig.arranging("s", 50, job="a", code=b"x")
    return lambda: rig.run(call)


@stop("arrange a schedule anew", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 9})
    rig.arrange("s", 50, job="a", code=b"x", change=b"y")
    call = rig.arranging("s", 5, job="b", print="p2", code=b"z", change="")
    return lambda: rig.run(call)


@stop("advance a schedule", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.arrange("s", 50, job="a", code=b"x")
    rig.now = 50
    rig.claim()
    return lambda: rig.advance("s", 50, {"b": 100}, 100)


@stop("advance a schedule with a priority", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.arrange("s", 50, job="a", code=b"x")
    return lambda: rig.advance("s", 50, {"b": 100}, 100, priority=5)


@stop("read schedules", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.arrange("s", 50, job="a", code=b"x")
    return rig.schedules


@stop("transfer", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.transfer()


@stop("claim", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.claim(20)


@stop("claim of a few", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 0, "a": 2, "b": 3}, insertion_list=False)
    rig.claim()
    rig.now = 4
    return rig.claim_few


@stop("claim from a swept list", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    rig.client.hset(rig.keys.counters, "sweeping", 1)
    return lambda: rig.claim(20)


@stop("claim of expired leases", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    rig.claim()
    rig.now = LEASE
    return lambda: rig.claim()


@stop("claim of what killed its workers", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.claim()
    rig.now = LEASE
    return lambda: rig.claim(max_kills=0)


@stop("claim beside a suspect", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    rig.claim()
    rig.now = LEASE
    return lambda: rig.claim(safe_kills=0, takes_suspect=False, put_off_ms=20)


@stop("claim of retries", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    rig.retry(*rig.claim().jobs, wait=0)
    return lambda: rig.claim()


@stop("claim on a shared queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    rig.client.rpush(rig.keys.queue.destination, b"y", payload("z"))
    return lambda: rig.claim(mode=Mode.SHARED)


@stop("claim of foreign elements alone", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.client.rpush(rig.keys.queue.destination, b"x", b"y")
    return lambda: rig.claim(mode=Mode.TAKE)


@stop("claim of what lost its payload", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0}, unique="")
    rig.schedule({"u": 0}, unique="ek")
    rig.claim()
    rig.client.hdel(rig.keys.payloads, token("u"))
    rig.now = LEASE
    return lambda: rig.claim()


@stop("replay of what lost its payload", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    rig.bury(*rig.claim().jobs)
    rig.client.hdel(rig.keys.payloads, token("b"))
    return lambda: rig.replay("a", "b")


@stop("claim of noted jobs", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    deep(rig)
    rig.cancel("a")
    rig.schedule({"b": 0, "c": 0})
    rig.transfer()
    rig.reschedule("b", 50)
    rig.client.ltrim(rig.keys.queue.destination, 990, -1)
    return lambda: rig.claim(20, mode=Mode.TAKE)


@stop("claim that repeats", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.claim(request=b"12345678")
    return lambda: rig.claim(request=b"12345678")


@stop("claim that forgets notes", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    deep(rig)
    rig.cancel("a")
    rig.client.delete(rig.keys.queue.destination)
    return lambda: rig.claim()


@stop("acknowledge", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.schedule({"b": 0})
    a, b = rig.claim().jobs
    done = Done(b.token, b.fence, 60_000, b"result")
    return lambda: rig.acknowledge(a, done)


@stop("acknowledge, and follow", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    rig.schedule({"held": 90}, unique="eheld")
    a, b = rig.claim().jobs
    done = Done(b.token, b.fence, 60_000, b"result")
    followers = [
        (0, follower("c", unique="ek")),
        (1, follower("d", wait="+5", priority=2)),
        (1, follower("e", unique="eheld")),
    ]
    return lambda: rig.acknowledge(a, done, followers=followers)


@stop("bury, and follow", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 9}, unique="ek")
    job = rig.lease()
    rejected = Rejected(job.token, job.fence, b"{}", 60_000, b"failed")
    return lambda: rig.bury(rejected, followers=[(0, follower("c", unique="ek"))])


@stop("acknowledge, and forward", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    done = Done(b.token, b.fence, 60_000, b"result")
    forwards = [(0, "other", follower("c")), (1, "more", follower("d", wait="+5"))]
    return lambda: rig.acknowledge(
        a, done, followers=[(0, follower("e"))], forwards=forwards
    )


@stop("bury, and forward", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rejected = Rejected((job := rig.lease()).token, job.fence, b"{}", 60_000, b"failed")
    return lambda: rig.bury(rejected, forwards=[(0, "other", follower("c"))])


@stop("receive", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.receive(forward("before"))
    rig.schedule({"holder": 90}, unique="ek")
    forwards = [forward("a"), forward("b", priority=2), forward("c", unique="ek")]
    return lambda: rig.receive(*forwards)


@stop("count forwards", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.acknowledge(rig.lease(), forwards=[(0, "other", follower("b"))])
    return rig.forwards


@stop("store rows of a database", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.store_rows("before", unique="ek")
    return lambda: rig.store_rows("a", "b", unique="ek")


@stop("retry", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    job = rig.lease()
    return lambda: rig.retry(job)


@stop("snooze", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"failed": 0, "new": 0})
    rig.retry(rig.claim(1).jobs[0], wait=0)
    jobs = rig.claim().jobs
    return lambda: rig.snooze(*jobs)


@stop("bury", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    job = rig.lease()
    rejected = Rejected(job.token, job.fence, b"{}", 60_000, b"failed")
    return lambda: rig.bury(rejected)


@stop("bury in quarantine", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.java_offer("x", 0)
    job = rig.lease()
    return lambda: rig.bury(job, state=State.QUARANTINED)


@stop("give back", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.client.rpush(rig.keys.queue.destination, b"x", b"y")
    jobs = rig.claim().jobs
    return lambda: rig.give_back(*jobs)


@stop("hold", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    job = rig.lease()
    return lambda: rig.hold(job)


@stop("release", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"known": 0})
    rig.hold(rig.lease(), task="known")
    rig.schedule({"over": 0}, unique="ek")
    rig.hold(rig.lease(), hold_ms=0)
    return lambda: rig.release("known")


@stop("cancel what is held", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease())
    return lambda: rig.cancel("a")


@stop("reschedule what is held", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.hold(rig.lease())
    return lambda: rig.reschedule("a", 5)


@stop("renew", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    job = rig.lease()
    rig.now = 5
    return lambda: rig.renew(job)


@stop("pause", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    return lambda: rig.pause(reason="why")


@stop("pause of a task", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    return lambda: rig.pause("shop.mail", until="+5")


@stop("resume", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.pause()
    return rig.resume


@stop("resume of a task", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.pause("shop.mail")
    rig.pause("shop.other")
    return lambda: rig.resume("shop.mail")


@stop("release of what a pause held", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    hold_paused(rig, "a")
    rig.resume("shop.mail")
    return lambda: rig.release(Reason("paused", "shop.mail"), is_worker=False)


@stop("claim from a paused queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    rig.pause(until="+5")
    rig.now += 6
    return lambda: rig.claim(20)


@stop("claim from a paused queue that is shared", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    rig.pause()
    return lambda: rig.claim(20, mode=Mode.SHARED)


def limit(rig: Rig, **numbers: Any) -> None:
    """Have a worker's code say what the limit "stripe" is."""
    declared = [("stripe", rates.numbers_of(**numbers))]
    rig.run(worker_code.declare(rig.keys, declared, owner=b"process1", loaded_ms=0))


def fill_limit(rig: Rig, **numbers: Any) -> Leased:
    """Have the first of some jobs of a limit run, and the others wait for it."""
    limit(rig, **(numbers or {"concurrency": 1}))
    rig.schedule({"a": 0, "b": 1, "c": 2}, limit="stripe\0k")
    rig.now += 3
    (job,) = rig.claim().jobs
    return job


@stop("claim within the limits of a queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    text = rates.limit_text(concurrency=2, rate="10/s burst 5")
    return lambda: rig.claim(20, limit_text=text)


@stop("claim held back by the limits of a queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    text = rates.limit_text(concurrency=2, rate="10/s burst 2")
    rig.claim(20, limit_text=text)
    return lambda: rig.claim(20, limit_text=text)


@stop("claim of jobs with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    limit(rig, concurrency=1)
    mix(rig)
    rig.schedule({"a": 0, "b": 1, "c": 2}, limit="stripe\0k")
    rig.schedule({"d": 0, "e": 1}, limit="stripe\0k", drops=True)
    rig.now += 9
    return lambda: rig.claim(50)


@stop("claim of jobs with a rate", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    limit(rig, rate="10/s burst 1")
    rig.schedule({"a": 0, "b": 1, "c": 2}, limit="stripe\0k", priority=1)
    rig.now += 3
    return rig.claim


@stop("claim of a job that has its moment", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.acknowledge(fill_limit(rig, rate="10/s burst 1"))
    rig.now += 100
    return rig.claim


@stop("claim of a lost job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    fill_limit(rig)
    rig.recover()
    return lambda: rig.claim(max_kills=0)


@stop("acknowledge a job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    job = fill_limit(rig)
    return lambda: rig.acknowledge(job)


@stop("retry a job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    job = fill_limit(rig)
    return lambda: rig.retry(job)


@stop("bury a job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    job = fill_limit(rig)
    return lambda: rig.bury(job)


@stop("give back a job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    job = fill_limit(rig)
    return lambda: rig.give_back(job)


@stop("hold a job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    job = fill_limit(rig)
    return lambda: rig.hold(job)


@stop("give a job the limit of its task", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    job = rig.lease()
    name = limit_slots.held_for("stripe\0k")
    return lambda: rig.hold(job, task=name, hold_ms=None)


@stop("cancel a lost job with a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    fill_limit(rig)
    rig.recover()
    return lambda: rig.cancel("a")


@stop("reschedule a job that has its moment", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    fill_limit(rig, rate="10/s burst 1")
    return lambda: rig.reschedule("b", 500)


@stop("set a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    call = limit_calls.set_limit(
        rig.keys, rates.numbers_of(concurrency=1), name="stripe"
    )
    return lambda: rig.run(call)


@stop("clear a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.run(limit_calls.set_limit(rig.keys, rates.numbers_of(concurrency=1)))
    return lambda: rig.run(limit_calls.set_limit(rig.keys, None))


@stop("declare limits", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    return lambda: limit(rig, concurrency=1)


@stop("loosen a limit", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    fill_limit(rig)
    limit(rig, concurrency=3)
    return lambda: rig.run(limit_calls.loosen(rig.keys))


@stop("recover", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.lease()
    return lambda: rig.recover()


@stop("cancel", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5, "b": 6}, unique="")
    rig.schedule({"c": 5}, unique="ek")
    return lambda: rig.cancel("c")


@stop("cancel in a long list", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({f"j{n}": n for n in range(100)})
    return lambda: rig.cancel("j50")


@stop("cancel in the destination queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.transfer()
    return lambda: rig.cancel("a")


@stop("cancel what retries", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.retry(rig.lease())
    return lambda: rig.cancel("a")


@stop("cancel by a note", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    deep(rig)
    return lambda: rig.cancel("a")


@stop("cancel what Java took", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.java_transfer()
    rig.java_take()
    return lambda: rig.cancel("a")


@stop("cancel, and keep a result", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5})
    kept = change_calls.Kept(b"{}", {token("a"): 60_000})
    return lambda: rig.cancel_many("a", kept=kept)


@stop("cancel, and remember the end", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5, "b": 6})
    rig.claim(1)
    rig.now = 5
    rig.note_ended(end_of("before"))
    return lambda: rig.cancel_many("ab", keep_ended=2)


@stop("claim out of kills, and remember the end", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.claim(1, max_kills=0)
    rig.now = LEASE + 1
    rig.note_ended(end_of("before"))
    return lambda: rig.claim(1, max_kills=0, keeps_ended=True)


@stop("release to quarantine, and remember the end", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.hold(rig.lease(), hold_ms=5)
    rig.now = 10
    rig.note_ended(end_of("before"))
    return lambda: rig.release(keeps_ended=True)


@stop("note the ended", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.note_ended(end_of("before"), end_of("then"))
    return lambda: rig.note_ended(end_of("a"), end_of("b"), keep=3)


@stop("read the ended", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.note_ended(end_of("a"))
    return lambda: rig.ended()


@stop("reschedule", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5})
    return lambda: rig.reschedule("a", 0)


@stop("reschedule in the destination queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.transfer()
    return lambda: rig.reschedule("a", 5)


@stop("reschedule what retries", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.retry(rig.lease())
    return lambda: rig.reschedule("a", 5)


@stop("reschedule what lost its worker", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.lease()
    rig.recover()
    return lambda: rig.reschedule("a", 5)


@stop("reschedule by a note", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    deep(rig)
    return lambda: rig.reschedule("a", 5)


@stop("inspect", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.inspect("j5")


def replaces(rig: Rig, *, wait: int = 0, moves: str = "") -> Callable[[], object]:
    """Return a call that gives job a, which holds key k, other arguments, or another start time."""
    later = NewJob(token("b"), f"+{wait}", "ek", payload("b"))
    arguments = b"" if moves else payload("a", 90)
    call = replace_calls.replace(
        rig.keys, token("a"), later, payload=arguments, moves=moves
    )
    return lambda: rig.run(call)


def go_behind(rig: Rig) -> None:
    """Have job b wait behind job a, which runs."""
    rig.schedule({"a": 0}, unique="ek")
    rig.lease()
    rig.schedule({"b": 5}, unique="ek", may_go_behind=True)


@stop("replace", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"first": 5})
    rig.schedule({"a": 5}, unique="ek")
    return replaces(rig)


@stop("replace what retries", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.retry(rig.lease())
    return replaces(rig)


@stop("replace what is held", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.hold(rig.lease())
    return replaces(rig)


@stop("replace what has a slot, and lost its worker", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek", limit="stripe\0")
    rig.lease()
    rig.recover()
    return replaces(rig)


@stop("replace in the destination queue")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.transfer()
    return replaces(rig)


@stop("postpone from the destination queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.transfer()
    return replaces(rig, wait=9, moves="later")


@stop("have sooner", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5}, unique="ek")
    return replaces(rig, wait=1, moves="sooner")


@stop("schedule a job behind another")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.lease()
    return lambda: rig.schedule({"b": 5}, unique="ek", may_go_behind=True)


@stop("claim of a job behind another", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    go_behind(rig)
    rig.now = 5
    return lambda: rig.claim()


@stop("claim again of a job behind another", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    go_behind(rig)
    rig.now = 5
    rig.claim()
    rig.now = 60
    return lambda: rig.claim()


@stop("cancel of a job behind another", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    go_behind(rig)
    return lambda: rig.cancel("b")


@stop("replay", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.bury(rig.lease())
    return lambda: rig.replay("a")


@stop("discard", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.bury(rig.lease())
    return lambda: rig.discard("a")


@stop("page", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(queue_reads.page(rig.keys, State.SCHEDULED))


@stop("page of dead letters", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.bury(rig.lease())
    return lambda: rig.run(queue_reads.page(rig.keys, State.DEAD))


@stop("search", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    rig.lease()
    return lambda: [found.token for found in rig.search()]


@stop("counts", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.counters()


@stop("ahead", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(queue_reads.ahead(rig.keys, [1_000, 60_000]))


@stop("sweep", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.java_transfer()
    rig.java_take()
    return lambda: rig.run(sweep_calls.sweep(rig.keys))


@stop("sweep of unique keys", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.client.hset(rig.keys.unique, "k", token("a"))
    return lambda: rig.run(sweep_calls.sweep(rig.keys, "unique"))


@stop("sweep of headers", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0}, unique="ek")
    rig.retry(*rig.claim(1).jobs)
    rig.client.delete(rig.keys.retries)
    return lambda: rig.run(sweep_calls.sweep(rig.keys, "headers"))


@stop("sweep of errors", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.client.hset(rig.keys.errors, token("a"), "{}")
    return lambda: rig.run(sweep_calls.sweep(rig.keys, "errors"))


@stop("sweep of notes", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.client.hset(rig.keys.notes, token("a"), "cancel")
    return lambda: rig.run(sweep_calls.sweep(rig.keys, "notes"))


@stop("sweep of claims", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.client.hset(rig.keys.claims, OWNER, b"request1")
    return lambda: rig.run(sweep_calls.sweep(rig.keys, "claims"))


@stop("leave", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    rig.lease()
    return lambda: rig.run(claim_calls.leave(rig.keys, owner=OWNER))


@stop("expire", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 0})
    rig.bury(*rig.claim().jobs)
    rig.now = 10
    return lambda: rig.run(sweep_calls.expire(rig.keys, age_ms=5))


@stop("expire in quarantine", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.java_offer("x", 0)
    rig.bury(rig.lease(), state=State.QUARANTINED)
    rig.now = 10
    return lambda: rig.run(
        sweep_calls.expire(
            rig.keys, state=State.QUARANTINED, age_ms=5, which=Which.FOREIGN
        )
    )


@stop("survey of the timeout set", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(frame_heads.survey(rig.keys, "zset"))


@stop("survey of the delay queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(frame_heads.survey(rig.keys, "tail"))


@stop("enlist")
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    names = [
        FrameName(int(score), FrameFormat.BC0LC0, frame[1:9])
        for frame, score in rig.client.zrange(
            rig.keys.queue.timeout_set, 0, -1, withscores=True
        )
        if is_unlisted(frame)
    ]
    return lambda: rig.run(frame_calls.enlist(rig.keys, names, run="r", step=1))


@stop("delist", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(frame_calls.delist(rig.keys, run="r", step=1, batch=100))


@stop("reframe the delay queue", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(frame_calls.reframe(rig.keys, "tail", FrameFormat.DLC0))


@stop("reframe what is in the delay queue alone", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.java_offer("x", 5)
    rig.java_offer("y", 5)
    rig.client.zrem(rig.keys.queue.timeout_set, *rig.frames()[:1])
    return lambda: rig.run(frame_calls.reframe(rig.keys, "tail", FrameFormat.DLC0))


@stop("reframe the timeout set", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    mix(rig)
    return lambda: rig.run(
        frame_calls.reframe(rig.keys, "zset", FrameFormat.DLC0, lookups=100)
    )


@stop("drop what was delivered", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    frame = rig.java_offer("x", 5)
    rig.java_offer("y", 5)
    rig.client.lrem(rig.keys.queue.delay_queue, 1, frame)
    name = FrameName(T0 + 5, rig.frame_format, frame[1:9])
    return lambda: rig.run(frame_calls.drop_delivered(rig.keys, [name]))


@stop("announce", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 5})
    return lambda: rig.run(frame_calls.announce(rig.keys))


# What is measured, who works, and how far jobs are.


def add(rig: Rig) -> list[statistics_calls.Closed]:
    figures = Figures(Counter({Outcome.SUCCEEDED: 2}), Histogram(Counter({40: 2}), 9))
    counted = {"": figures, "shop.mail": figures}
    call = statistics_calls.add_figures(rig.keys, counted, most_tasks=9)
    return rig.run(call)


@stop("add figures")
def _(rig: Rig) -> Callable[[], object]:
    add(rig)
    return lambda: add(rig)


@stop("add figures in a new hour")
def _(rig: Rig) -> Callable[[], object]:
    add(rig)
    rig.now += HOUR_MS
    add(rig)
    rig.now += 2_161 * HOUR_MS
    return lambda: add(rig)


@stop("pack an hour")
def _(rig: Rig) -> Callable[[], object]:
    add(rig)
    rig.now += HOUR_MS
    closed = add(rig)
    return lambda: [
        rig.run(statistics_calls.pack_figures(rig.keys, each))
        for each in closed
        if each.unit is Unit.HOUR
    ]


@stop("read figures", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    add(rig)
    return lambda: [
        rig.run(statistics_calls.read_figures(rig.keys, unit, count=2, of_tasks=True))
        for unit in Unit
    ]


@stop("read days", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    add(rig)
    return lambda: rig.run(statistics_calls.read_days(rig.keys, count=2))


def registry(rig: Rig) -> RegistryKeys:
    return RegistryKeys(*map(rig.keys.queue.own, RegistryKeys._fields))


def register(rig: Rig, name: str) -> worker_registry.Registered:
    info = WorkerInfo("host", 7, queues=[rig.keys.queue.name])
    call = worker_registry.register(registry(rig), name, info)
    registered: worker_registry.Registered = rig.run(call)
    return registered


@stop("register", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    register(rig, "silent")
    order = worker_registry.give_order(registry(rig), "silent", b"o")
    assert rig.run(order)
    rig.now += KEPT_MS + 1
    return lambda: register(rig, "a")


@stop("unregister", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    register(rig, "a")
    return lambda: rig.run(worker_registry.unregister(registry(rig), "a"))


@stop("read workers", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    register(rig, "a")
    return lambda: rig.run(worker_registry.read_workers(registry(rig)))


@stop("give an order")
def _(rig: Rig) -> Callable[[], object]:
    register(rig, "a")
    return lambda: rig.run(worker_registry.give_order(registry(rig), "a", b"order"))


@stop("note progress")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    job = rig.lease()
    said = JobProgress(job.token, job.fence, b'{"done":1}')
    return lambda: rig.run(progress.note_progress(rig.keys, [said]))


@stop("forget progress", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    job = rig.lease()
    said = JobProgress(job.token, job.fence, b'{"done":1}')
    rig.run(progress.note_progress(rig.keys, [said]))
    over = said._replace(stored=b"")
    return lambda: rig.run(progress.note_progress(rig.keys, [over]))


@stop("read progress", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    job = rig.lease()
    said = JobProgress(job.token, job.fence, b'{"done":1}')
    rig.run(progress.note_progress(rig.keys, [said]))
    return lambda: rig.run(progress.read_progress(rig.keys, job.token))


RUN = "r" * 12


def take_page(rig: Rig, source: Source = Source.FRAMES, page: int = 1) -> Any:
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT))
    return rig.run(page_calls.export_page(rig.keys, source, run=RUN, page=page))


@stop("begin to move", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0})
    return lambda: rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT))


@stop("take a page of frames", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT))
    rig.schedule({"a": 0, "b": 5}, unique="ekey")
    rig.java_offer("x", 3)
    return lambda: take_page(rig)


@stop("take a page of due payloads", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT))
    rig.schedule({"a": 0, "b": 0})
    rig.transfer()
    return lambda: take_page(rig, Source.DESTINATION)


@stop("take a page of retries", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT))
    rig.schedule({"a": 0})
    rig.retry(rig.lease())
    return lambda: take_page(rig, Source.RETRIES)


@stop("store a page")
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 5}, unique="ekey", priority=3)
    rig.java_offer("x", 3)
    jobs = take_page(rig).jobs
    rig.schedule({"c": 0})
    rig.retry(rig.lease())
    jobs += take_page(rig, Source.RETRIES, 2).jobs
    for page in (1, 2, 0):
        end_page(rig, page, is_moved=True)
    rig.client.delete(rig.keys.ended)
    return lambda: rig.run(page_calls.import_page(rig.keys, jobs, run="t" * 12, page=1))


def end_page(rig: Rig, page: int, *, is_moved: bool) -> int:
    return rig.run(page_calls.end_page(rig.keys, run=RUN, page=page, is_moved=is_moved))


@stop("end a page that has moved", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 5}, unique="ekey")
    take_page(rig)
    return lambda: end_page(rig, 1, is_moved=True)


@stop("put a page back", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    rig.schedule({"a": 0, "b": 5}, unique="ekey")
    take_page(rig)
    return lambda: end_page(rig, 1, is_moved=False)


def store_schedule(rig: Rig) -> None:
    rig.client.hset(
        rig.keys.schedules, mapping={"stored nightly": "s", "state nightly": "{}"}
    )
    rig.client.zadd(rig.keys.periods, {"nightly": T0})


@stop("set a schedule aside", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    store_schedule(rig)
    return lambda: rig.run(page_calls.take_schedule(rig.keys, "nightly"))


@stop("store a schedule of another server")
def _(rig: Rig) -> Callable[[], object]:
    moved = MovedSchedule(b"s", b"c", b"{}", b"%d" % T0)
    return lambda: rig.run(
        page_calls.put_schedule(rig.keys, "nightly", moved, version=0, register=b"r")
    )


@stop("take a schedule up again", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    store_schedule(rig)
    rig.run(page_calls.take_schedule(rig.keys, "nightly"))
    return lambda: rig.run(page_calls.end_schedule(rig.keys, "nightly", is_moved=False))


@stop("put up a fence", drains=True)
def _(rig: Rig) -> Callable[[], object]:
    return lambda: rig.run(durability.fence(rig.keys))
