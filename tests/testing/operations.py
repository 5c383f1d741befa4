"""Every operation on a queue, with arguments made from a number: what a server in memory is held to a real one by.

A call is made once and sent to both servers, so request ids and tokens are the same on both.
"""

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import (
    durability,
    forward_calls,
    frame_heads,
    lease_ends,
    limit_slots,
    prefixes,
    progress,
    queue_reads,
    rates,
    resign_calls,
    search_calls,
    shards,
    stored_pauses,
    worker_code,
    worker_registry,
)
from django_delayq.core import hold as hold_calls
from django_delayq.core import replace as replace_calls
from django_delayq.core import store as store_calls
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.change import Kept
from django_delayq.core.claim import Claimed, Leased, Mode
from django_delayq.core.followers import Following
from django_delayq.core.forward_calls import Forward
from django_delayq.core.hold import Held, Hold
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.lease_ends import Done, Failed, Rejected
from django_delayq.core.progress import JobProgress
from django_delayq.core.reasons import Reason
from django_delayq.core.resign_calls import Where
from django_delayq.core.search_calls import PLACES, Window
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, Target, tail_of
from django_delayq.core.sweep import SWEPT, Which
from django_delayq.core.worker_registry import RegistryKeys, WorkerInfo
from django_delayq.features.batches import calls as batch_calls
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.calls import (
    Closed,
    Figures,
    Histogram,
    Outcome,
    Unit,
)
from django_delayq.queues import queue_calls
from django_delayq.tools import frame_calls as repairs
from django_delayq.tools import page_calls
from django_delayq.tools.frame_calls import FrameName
from django_delayq.tools.page_calls import Exported, Kind, Moved, MovedSchedule, Source
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command
from django_delayq.wire import frame as frames
from django_delayq.wire import script_calls as wire_calls
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.script_calls import Cursor
from tests.clock import at
from tests.core.rig import LEASE, T0, payload, token

PACKAGE = Path(claim_calls.__file__).parent.parent
#: Where functions describe calls of scripts.
LAYERS = ("core", "tools", "queues", "wire")
NAMES = "abcdefghijkl"
OWNERS = (b"owner--1", b"owner--2", b"idle----")
TASKS = ("shop.mail", "shop.new")
REASONS = (
    *(Reason("task", task) for task in TASKS),
    Reason("paused", TASKS[0]),
)
LIMITS = ("stripe\0k", "stripe\0l", "mail\0")
BATCHES = "BC"
QUEUES = ("more", "other")
SCHEDULES = ("hourly", "daily")


class World:
    """What operations know of the queue: its keys, its clock, and what earlier replies said."""

    def __init__(self, name: str, *, is_shared: bool, is_listed: bool) -> None:
        self.keys = DeliveryKeys.of(name)
        self.is_listed = is_shared or is_listed
        self.mode = Mode.SHARED if is_shared else Mode.DIRECT
        self.frame_format = FrameFormat.DLC0 if is_shared else FrameFormat.BC0LC0
        self.now_us = T0 * 1000
        self.leases: list[Leased] = []
        self.has_slots = False
        self.frames: list[bytes] = []
        self.random = Random()
        self.requests = 0
        #: The last page that was taken out.
        self.moved: list[Moved] = []

    def take_in(self, reply: Any) -> None:
        """Learn from what the real server has replied."""
        if isinstance(reply, Claimed):
            self.leases = [*self.leases, *reply.jobs][-12:]
            if reply.limits is not None and reply.limits.has_slots:
                self.has_slots = True
        if isinstance(reply, Exported) and reply.jobs:
            self.moved = reply.jobs

    # Arguments.

    def name(self) -> str:
        return self.random.choice(NAMES)

    def token(self) -> str:
        return token(self.random.choice(NAMES + BATCHES))

    def when(self) -> str:
        wait = self.random.choice((0, 0, 0, 1, 5, 50, 1_000, 100_000))
        if self.random.random() < 0.2:
            return f"={self.now_us // 1000 - 20 + wait}"
        return f"+{wait}"

    def job(self, name: str = "", *, has_batch: bool = False) -> NewJob:
        random, name = self.random, name or self.name()
        choice = random.random()
        batch = token(random.choice(BATCHES)) if has_batch else ""
        tail: str | bytes = ""
        if choice > 0.4 or has_batch:
            unique = random.choice(("", "", "eone", "stwo", "ethree"))
            tail = tail_of(
                unique,
                random.choice((0, 0, 5, -7, 100)),
                random.choice(("", "", *LIMITS)),
                drops=choice > 0.97,
                notes_first=choice > 0.9,
                may_go_behind=bool(unique) and choice > 0.8,
                has_on_dead=choice > 0.75,
                batch=batch,
            )
        size = random.choice((0, 0, 0, 90, 300))
        return NewJob(token(name), self.when(), tail, payload(name, size))

    def lease(self) -> Leased:
        if self.leases and self.random.random() < 0.9:
            return self.random.choice(self.leases)
        return Leased(self.token(), 0, 0, T0, payload("a"), False, b"nobody--")

    def some_leases(self) -> list[Leased]:
        found: dict[str, Leased] = {}
        for _ in range(self.random.randint(1, 4)):
            lease = self.lease()
            found[lease.token] = lease
        return list(found.values())

    def fresh_request(self) -> bytes:
        # A repeat, now and then.
        if self.random.random() < 0.95:
            self.requests += 1
        return b"%08d" % self.requests

    def following(self, count: int) -> Following | None:
        if self.random.random() < 0.7:
            return None
        jobs = [(self.random.randrange(count), self.job()) for _ in range(2)]
        forwards = [
            (self.random.randrange(count), queue, self.job()) for queue in QUEUES
        ]
        return Following(
            self.random.choice((jobs, [])),
            self.frame_format,
            self.is_listed,
            self.random.choice((forwards, [])),
        )

    def forward(self) -> Forward:
        random = self.random
        ended_ms = self.now_us // 1000 - random.choice((0, 1))
        return forward_calls.forward_of(random.choice(QUEUES), self.job(), ended_ms)

    def options(self) -> dict[str, Any]:
        return {
            "frame_format": self.frame_format,
            "insertion_list": self.is_listed,
        }

    def most(self) -> int | None:
        return self.random.choice((None, None, None, 3, 20))


Maker = Callable[[World], Any]
#: By function: what makes a call of it.
OPERATIONS: dict[Callable[..., Any], Maker] = {}
#: Of functions that are called more often than others.
WEIGHTS: dict[Callable[..., Any], int] = {}


def op(function: Callable[..., Any], weight: int = 1) -> Callable[[Maker], Maker]:
    def enter(maker: Maker) -> Maker:
        OPERATIONS[function] = maker
        WEIGHTS[function] = weight
        return maker

    return enter


def functions() -> Iterator[Callable[..., Any]]:
    """Yield every function of the package that describes a call."""
    files = [
        file for layer in LAYERS for file in sorted((PACKAGE / layer).glob("*.py"))
    ]
    files += sorted((PACKAGE / "features").rglob("calls.py"))
    for file in files:
        path = file.relative_to(PACKAGE.parent).with_suffix("")
        module = importlib.import_module(".".join(path.parts))
        for name, function in vars(module).items():
            if (
                inspect.isfunction(function)
                and function.__module__ == module.__name__
                and not name.startswith("_")
                # Not Steps, a generator: each of their calls is made by another function.
                and re.search(
                    r"^(?!.*Generator\[).*\b(Call|Command)\[",
                    str(function.__annotations__.get("return", "")),
                )
            ):
                yield function


# Storing.


@op(store_calls.schedule, 6)
def _(world: World) -> Any:
    has_batches = world.random.random() < 0.2
    names = world.random.sample(NAMES, world.random.randint(1, 4))
    jobs = [world.job(name, has_batch=has_batches) for name in names]
    target = Target(world.keys, max_jobs=world.most(), **world.options())
    call = store_calls.schedule(target, jobs, has_batches=has_batches)
    return call.again() if world.random.random() < 0.2 else call


@op(store_calls.store, 8)
def _(world: World) -> Any:
    name = world.name()
    job = NewJob(token(name), world.when(), "", payload(name))
    # A token that is known makes two jobs of one, so only repeats look for it.
    target = Target(world.keys, max_jobs=world.most(), **world.options())
    call = store_calls.store(target, job)
    return call.again() if world.random.random() < 0.6 else call


@op(store_calls.store_rows)
def _(world: World) -> Any:
    jobs = [world.job() for _ in range(world.random.randint(1, 2))]
    return store_calls.store_rows(Target(world.keys, **world.options()), jobs)


@op(forward_calls.forwards)
def _(world: World) -> Any:
    return forward_calls.forwards(world.keys)


@op(forward_calls.page)
def _(world: World) -> Any:
    random = world.random
    after = random.choice((b"", world.forward().member))
    return forward_calls.page(world.keys, random.choice(QUEUES), after=after, count=2)


@op(forward_calls.receive, 3)
def _(world: World) -> Any:
    random = world.random
    return forward_calls.receive(
        world.keys,
        [world.forward() for _ in range(random.randint(1, 3))],
        until_ms=world.now_us // 1000 + random.choice((-1, 0, 60_000)),
        **world.options(),
    )


@op(forward_calls.remove)
def _(world: World) -> Any:
    return forward_calls.remove(world.keys, [world.forward(), world.forward()])


@op(store_calls.when_sent)
def _(world: World) -> Any:
    return store_calls.when_sent(world.keys, [world.token(), world.token()])


@op(store_calls.count_rows_from)
def _(world: World) -> Any:
    tokens = [world.token(), world.token()]
    return store_calls.count_rows_from(world.keys, tokens, now_ms=world.now_us // 1000)


@op(store_calls.let_go)
def _(world: World) -> Any:
    tokens = [world.token(), world.token()]
    # Some are over at once, for the next that are sent.
    now_ms = world.now_us // 1000 - world.random.choice((0, 200_000))
    return store_calls.let_go(world.keys, tokens, now_ms=now_ms)


@op(replace_calls.replace, 2)
def _(world: World) -> Any:
    random, later = world.random, world.job()
    holder = world.name()
    return replace_calls.replace(
        world.keys,
        token(holder),
        later,
        payload=random.choice((b"", payload(holder, 120))),
        moves=random.choice(("", "later", "sooner")),
        max_wait_ms=random.choice((None, 0, 100)),
        linked=random.choice((b"", b"0" * 16)),
    )


# Claims.


@op(claim_calls.claim, 14)
def _(world: World) -> Any:
    random = world.random
    return claim_calls.claim(
        world.keys,
        owner=random.choice(OWNERS),
        request=world.fresh_request(),
        limit=random.choice((0, 1, 1, 2, 5, 20)),
        lease_ms=random.choice((LEASE, 100)),
        mode=random.choice((world.mode, world.mode, Mode.TAKE)),
        transfer_limit=random.choice((1, 100)),
        max_kills=random.choice((-1, 0, 2)),
        safe_kills=random.choice((-1, 0)),
        takes_suspect=random.random() < 0.7,
        put_off_ms=random.choice((0, 20)),
        priority_step_ms=random.choice((None, 10)),
        keeps_ended=random.random() < 0.5,
        has_slots=world.has_slots or random.random() < 0.3,
        limit_text=random.choice(("", "", rates.limit_text(concurrency=2, rate="5/s"))),
        frame_format=world.frame_format,
        byte_budget=random.choice((1 << 20, 200)),
    )


@op(claim_calls.claim_few, 3)
def _(world: World) -> Any:
    return claim_calls.claim_few(
        world.keys,
        owner=world.random.choice(OWNERS),
        request=world.fresh_request(),
        limit=world.random.choice((1, 3)),
        lease_ms=LEASE,
        frame_format=world.frame_format,
    )


@op(claim_calls.transfer)
def _(world: World) -> Any:
    return claim_calls.transfer(
        world.keys,
        batch=world.random.choice((1, 100)),
        frame_format=world.frame_format,
        byte_budget=world.random.choice((1 << 20, 100)),
    )


@op(claim_calls.recover)
def _(world: World) -> Any:
    return claim_calls.recover(
        world.keys,
        owner=world.random.choice(OWNERS),
        first_rank=world.random.choice((0, 0, 1)),
    )


@op(claim_calls.leave)
def _(world: World) -> Any:
    return claim_calls.leave(world.keys, owner=world.random.choice(OWNERS))


# Ends of leases.


@op(lease_ends.acknowledge, 5)
def _(world: World) -> Any:
    random, leases = world.random, world.some_leases()
    done = [
        Done(lease.token, lease.fence, *random.choice(((), (3_600_000, b'{"a":1}'))))
        for lease in leases
    ]
    return lease_ends.acknowledge(
        world.keys,
        done,
        state=random.choice((State.SUCCEEDED, State.EXPIRED, State.CANCELLED)),
        has_slots=world.has_slots,
        following=world.following(len(done)),
    )


@op(lease_ends.retry, 3)
def _(world: World) -> Any:
    failed = [
        Failed(
            lease.token,
            lease.fence,
            world.when(),
            b'{"error":"%s"}' % world.random.choice((b"e", b"x" * 80)),
        )
        for lease in world.some_leases()
    ]
    return lease_ends.retry(
        world.keys,
        failed,
        attempt_failed=world.random.random() < 0.6,
        has_slots=world.has_slots,
    )


@op(lease_ends.bury, 3)
def _(world: World) -> Any:
    random = world.random
    rejected = [
        Rejected(lease.token, lease.fence, b'{"error":"e"}', *kept)
        for lease in world.some_leases()
        for kept in [random.choice(((), (3_600_000, b"failed")))]
    ]
    return lease_ends.bury(
        world.keys,
        rejected,
        state=random.choice((State.DEAD, State.QUARANTINED)),
        attempt_failed=random.random() < 0.7,
        has_slots=world.has_slots,
        following=world.following(len(rejected)),
    )


@op(lease_ends.give_back, 2)
def _(world: World) -> Any:
    leases = world.some_leases()
    return lease_ends.give_back(
        world.keys,
        leases,
        late={lease.token for lease in leases if world.random.random() < 0.3},
        has_slots=world.has_slots,
    )


@op(lease_ends.renew)
def _(world: World) -> Any:
    held = [(lease.token, lease.fence) for lease in world.some_leases()]
    return lease_ends.renew(world.keys, held, lease_ms=LEASE)


# What is held.


@op(hold_calls.hold, 3)
def _(world: World) -> Any:
    random = world.random
    held = [
        Held(
            lease.token,
            lease.fence,
            Hold(
                random.choice((*REASONS, limit_slots.held_for(LIMITS[0]))),
                "no such task.",
                random.choice((None, 50, 900_000)),
            ),
        )
        for lease in world.some_leases()
    ]
    return hold_calls.hold(world.keys, held, has_slots=world.has_slots)


@op(hold_calls.release)
def _(world: World) -> Any:
    random = world.random
    reasons = (*REASONS, Reason("key", "x"), Reason("task"))
    return hold_calls.release(
        world.keys,
        random.sample(reasons, 2),
        limit=random.choice((1, 100)),
        name_limit=random.choice((1, 100)),
        is_worker=random.random() < 0.7,
        keeps_ended=random.random() < 0.5,
    )


@op(hold_calls.held_names)
def _(world: World) -> Any:
    return hold_calls.held_names(world.keys, limit=world.random.choice((1, 20)))


# Batches.


@op(batch_calls.open_batch)
def _(world: World) -> Any:
    callback = world.job(world.random.choice(BATCHES))
    callback = callback._replace(tail=world.random.choice(("", tail_of("", 5))))
    return batch_calls.open_batch(world.keys, callback, "why")


@op(batch_calls.close_batch)
def _(world: World) -> Any:
    batch = token(world.random.choice(BATCHES))
    return batch_calls.close_batch(world.keys, batch)


@op(batch_calls.withdraw_batch)
def _(world: World) -> Any:
    return batch_calls.withdraw_batch(world.keys, token(world.random.choice(BATCHES)))


@op(batch_calls.count_left)
def _(world: World) -> Any:
    return batch_calls.count_left(world.keys, token(world.random.choice(BATCHES)))


# Changes.


def kept(world: World, tokens: Sequence[str]) -> Kept:
    ttl_ms = {token: 3_600_000 for token in tokens if world.random.random() < 0.5}
    return Kept(b'{"state":"cancelled"}', ttl_ms)


@op(change_calls.cancel_many, 4)
def _(world: World) -> Any:
    tokens = [world.token()]
    if world.random.random() < 0.25:
        tokens += [world.token(), "foreign"]
    calls = change_calls.cancel_many(
        world.keys,
        tokens,
        keep_ended=world.random.choice((0, 2, 100)),
        kept=kept(world, tokens),
    )
    # A second call is about what is not ours.
    return world.random.choice([*calls])


@op(change_calls.reschedule, 2)
def _(world: World) -> Any:
    return change_calls.reschedule(world.keys, world.token(), world.when())


@op(change_calls.reprioritize)
def _(world: World) -> Any:
    priority = world.random.choice((-100, 0, 7))
    return change_calls.reprioritize(world.keys, world.token(), priority)


def grave(world: World) -> State:
    return world.random.choice((State.DEAD, State.DEAD, State.QUARANTINED))


@op(change_calls.replay, 2)
def _(world: World) -> Any:
    return change_calls.replay(
        world.keys,
        [world.token(), world.token()],
        state=grave(world),
        when=world.when(),
    )


@op(change_calls.discard)
def _(world: World) -> Any:
    return change_calls.discard(world.keys, [world.token()], state=grave(world))


# Looks.


@op(queue_reads.inspect, 2)
def _(world: World) -> Any:
    return queue_reads.inspect(world.keys, world.token())


@op(queue_reads.page)
def _(world: World) -> Any:
    random = world.random
    return queue_reads.page(
        world.keys,
        random.choice(list(queue_reads.PAGES)),
        first=random.choice((0, 1)),
        count=random.choice((1, 50)),
        newest=random.random() < 0.5,
        frame_format=world.frame_format,
    )


@op(queue_reads.counts)
def _(world: World) -> Any:
    return queue_reads.counts(world.keys)


@op(queue_reads.ahead)
def _(world: World) -> Any:
    return queue_reads.ahead(world.keys, (1, 1_000, 60_000))


@op(search_calls.search, 2)
def _(world: World) -> Any:
    random, now_ms = world.random, world.now_us // 1000
    states = random.choice(([*PLACES.values(), State.DUE], [State.SCHEDULED]))
    window = random.choice((search_calls.ALWAYS, Window(now_ms - 100, now_ms + 100)))
    return search_calls.search(
        world.keys,
        search_calls.first_place(states, window, now_ms=now_ms),
        count=random.choice((1, 3, 100)),
        payload_bytes=1 << 20,
        frame_format=world.frame_format,
    )


@op(ended_calls.note_ended)
def _(world: World) -> Any:
    random = world.random
    records = [
        EndRecord(
            world.token(),
            random.choice(TASKS) * random.choice((1, 9)),
            random.choice((State.SUCCEEDED, State.DEAD)),
            world.now_us // 1000,
            random.choice((0.5, 1e9, 3.0)),
            random.choice((-1, 0.1)),
        )
        for _ in range(random.randint(1, 3))
    ]
    return ended_calls.note_ended(world.keys, records, keep=random.choice((2, 100)))


@op(ended_calls.read_ended)
def _(world: World) -> Any:
    return ended_calls.read_ended(
        world.keys, first=world.random.choice((0, 1)), count=3
    )


# What is measured.


def figures(world: World) -> Figures:
    random = world.random
    return Figures(
        Counter({random.choice(list(Outcome)): random.randint(1, 300)}),
        Histogram(Counter({random.randint(0, 159): 2, 7: 1}), 10**10),
        Histogram(Counter({random.randint(0, 159): random.randint(1, 70_000)}), 5),
    )


@op(statistics_calls.add_figures, 4)
def _(world: World) -> Any:
    names = world.random.sample(("", *TASKS, "längst"), 2)
    return at(
        world.now_us + world.random.choice((0, 0, 60000000, 7200000000)),
        statistics_calls.add_figures(
            world.keys,
            {name: figures(world) for name in names},
            most_tasks=world.random.choice((1, 1_000)),
        ),
    )


@op(statistics_calls.pack_figures)
def _(world: World) -> Any:
    day, unit = world.now_us // 86_400_000_000, world.random.choice(list(Unit))
    tasks = day.to_bytes(4, "big") + b"\0tasks"
    return statistics_calls.pack_figures(
        world.keys, Closed(unit, f"day:{day % 8}", tasks)
    )


@op(statistics_calls.read_figures)
def _(world: World) -> Any:
    return at(
        world.now_us + 7200000000,
        statistics_calls.read_figures(
            world.keys,
            world.random.choice(list(Unit)),
            first=world.random.choice((0, 1)),
            count=4,
            of_tasks=world.random.random() < 0.5,
        ),
    )


@op(statistics_calls.read_days)
def _(world: World) -> Any:
    return at(
        world.now_us + 7200000000,
        statistics_calls.read_days(world.keys, count=world.random.choice((1, 8))),
    )


@op(statistics_calls.read_totals)
def _(world: World) -> Any:
    return statistics_calls.read_totals(world.keys)


# Workers, and how far their jobs are.


def registry(world: World) -> RegistryKeys:
    return RegistryKeys(*map(world.keys.queue.own, RegistryKeys._fields))


@op(worker_registry.register, 2)
def _(world: World) -> Any:
    return at(
        world.now_us - world.random.choice((0, 0, 40000000)),
        worker_registry.register(
            registry(world), world.name(), WorkerInfo("host", 7, queues=["q"])
        ),
    )


@op(worker_registry.unregister)
def _(world: World) -> Any:
    return worker_registry.unregister(registry(world), world.name())


@op(worker_registry.read_worker)
def _(world: World) -> Any:
    return worker_registry.read_worker(registry(world), world.name())


@op(worker_registry.read_workers)
def _(world: World) -> Any:
    return worker_registry.read_workers(
        registry(world), first=world.random.choice((0, 1)), count=2
    )


@op(prefixes.note_prefix)
def _(world: World) -> Any:
    return prefixes.note_prefix(world.name(), "abcd", where=_prefixes(world))


@op(prefixes.noted_prefixes)
def _(world: World) -> Any:
    return prefixes.noted_prefixes(_prefixes(world))


def _prefixes(world: World) -> str:
    return world.keys.queue.own("prefixes")


@op(worker_registry.give_order)
def _(world: World) -> Any:
    return worker_registry.give_order(registry(world), world.name(), b"sealed")


@op(durability.fence)
def _(world: World) -> Any:
    return durability.fence(world.keys)


@op(worker_registry.announce_order)
def _(world: World) -> Any:
    return worker_registry.announce_order(world.keys)


@op(progress.note_progress, 2)
def _(world: World) -> Any:
    said = (b"", b'{"done":1}', b'{"done":2}')
    return progress.note_progress(
        world.keys,
        [
            JobProgress(lease.token, lease.fence, world.random.choice(said))
            for lease in world.some_leases()
        ],
    )


@op(progress.read_progress)
def _(world: World) -> Any:
    return progress.read_progress(world.keys, world.token())


# Pauses and limits.


@op(pause_calls.pause)
def _(world: World) -> Any:
    random = world.random
    return pause_calls.pause(
        world.keys,
        task=random.choice((None, *TASKS)),
        until=random.choice(("", "+30", f"={world.now_us // 1000 + 90}")),
        by="me",
        reason=random.choice(("", 'a "reason"/\x7f\n', "längerer Grund " * 6)),
    )


@op(pause_calls.resume, 2)
def _(world: World) -> Any:
    task = world.random.choice((None, None, *TASKS))
    return pause_calls.resume(world.keys, task=task)


@op(pause_calls.forget_over)
def _(world: World) -> Any:
    return pause_calls.forget_over(world.keys)


@op(stored_pauses.pauses)
def _(world: World) -> Any:
    return stored_pauses.pauses(world.keys)


def numbers(world: World) -> Any:
    return rates.numbers_of(
        **world.random.choice(
            (
                {"concurrency": 1},
                {"concurrency": 2, "rate": "10/s burst 2"},
                {"rate": "100/s burst 1"},
            )
        )
    )


@op(limit_calls.set_limit)
def _(world: World) -> Any:
    return limit_calls.set_limit(
        world.keys,
        world.random.choice((None, None, numbers(world))),
        name=world.random.choice(("", "stripe", "mail")),
        by="me",
    )


@op(worker_code.declare, 2)
def _(world: World) -> Any:
    declared = [("stripe", numbers(world))]
    return worker_code.declare(
        world.keys, declared, owner=b"process1", loaded_ms=world.random.choice((0, 1))
    )


@op(worker_code.latest_code)
def _(world: World) -> Any:
    return worker_code.latest_code(world.keys, world.now_us // 1000)


@op(limit_calls.limits)
def _(world: World) -> Any:
    return limit_calls.limits(world.keys)


@op(limit_slots.count_slots)
def _(world: World) -> Any:
    return limit_slots.count_slots(world.keys, world.random.choice(LIMITS))


@op(limit_slots.count_held)
def _(world: World) -> Any:
    return limit_slots.count_held(world.keys, world.random.choice(LIMITS))


@op(limit_calls.loosen)
def _(world: World) -> Any:
    return limit_calls.loosen(
        world.keys,
        name=world.random.choice(("", "stripe")),
        limit=world.random.choice((1, 100)),
    )


# Periodic schedules.


@op(schedule_calls.arrange)
def _(world: World) -> Any:
    random, name = world.random, world.name()
    next_ms = world.now_us // 1000 + random.choice((0, 5, 500))
    return schedule_calls.arrange(
        Target(world.keys, **world.options()),
        random.choice(SCHEDULES),
        version=random.choice((0, 0, 1, 2, 3)),
        code=random.choice((b"code", "=", "")),
        stored=random.choice((b"stored", "=")),
        change=random.choice(("", "=", b'{"delayq":"x"}')),
        register=random.choice((b"key register", "=")),
        print=random.choice(("p1", "p2")),
        next_ms=random.choice((next_ms, "=", None)),
        job=NewJob(token(name), f"={next_ms}", "", payload(name)),
    )


@op(schedule_calls.advance)
def _(world: World) -> Any:
    random, name = world.random, world.name()
    next_ms = world.now_us // 1000 + random.choice((5, 500))
    return schedule_calls.advance(
        Target(world.keys, **world.options()),
        random.choice(SCHEDULES),
        [NewJob(token(name), f"={next_ms}", "", payload(name))],
        print=random.choice(("p1", "p2")),
        seen_ms=world.now_us // 1000,
        next_ms=next_ms,
        fired_ms=world.now_us // 1000,
    )


@op(schedule_calls.reseal)
def _(world: World) -> Any:
    random = world.random
    texts = {f"change {name}": random.choice((b"anew", b"")) for name in SCHEDULES}
    version = random.choice((0, 0, 1, 2, 3))
    return schedule_calls.reseal(world.keys, version, texts)


@op(schedule_calls.page)
def _(world: World) -> Any:
    return schedule_calls.page(world.keys)


# Upkeep.


@op(sweep_calls.sweep)
def _(world: World) -> Any:
    which = world.random.choice(SWEPT)
    return sweep_calls.sweep(world.keys, which)


@op(sweep_calls.expire)
def _(world: World) -> Any:
    random = world.random
    return sweep_calls.expire(
        world.keys,
        state=grave(world),
        age_ms=random.choice((0, 1_000)),
        kept=random.choice((0, 1)),
        which=random.choice(list(Which)),
    )


@op(sweep_calls.check_in, 2)
def _(world: World) -> Any:
    owner = world.random.choice(OWNERS)
    return sweep_calls.check_in(world.keys, owner=owner)


@op(queue_reads.read_format)
def _(world: World) -> Any:
    return queue_reads.read_format(world.keys)


@op(shards.read_shards)
def _(world: World) -> Any:
    return shards.read_shards(world.keys)


@op(shards.pin_shards)
def _(world: World) -> Any:
    pins = [shards.Pin(), shards.Pin(2, "a"), shards.Pin(4, "b")]
    old, new = world.random.choices(pins, k=2)
    return shards.pin_shards(world.keys, old, new)


@op(resign_calls.resign)
def _(world: World) -> Any:
    name = world.name()
    items = [(token(name), payload(name), payload(name, signature="new"))]
    if world.random.random() < 0.5:
        items = [(-1, payload(name), payload(name, signature="new"))]
        return resign_calls.resign(world.keys, Where.DESTINATION, items)
    if world.random.random() < 0.3:
        old, new = world.forward().member, world.forward().member
        return resign_calls.resign(world.keys, Where.FORWARDS, [("", old, new)])
    return resign_calls.resign(world.keys, Where.PAYLOADS, items)


@op(resign_calls.resign_result)
def _(world: World) -> Any:
    items = [(0, b'{"state":"succeeded","result":1}', b'{"state":"succeeded"}')]
    return resign_calls.resign_result(world.keys, token(world.name()), items)


# Repair.


def frame_names(world: World) -> list[FrameName]:
    return [
        FrameName(
            world.now_us // 1000, world.frame_format, frames.unpack(each).random_id
        )
        for each in world.frames[-2:]
    ]


@op(frame_heads.survey)
def _(world: World) -> Any:
    kind = world.random.choice(("tail", "zset"))
    return frame_heads.survey(world.keys, kind, batch=5)


@op(frame_heads.read_heads)
def _(world: World) -> Any:
    return frame_heads.read_heads(world.keys)


@op(repairs.reframe)
def _(world: World) -> Any:
    kind = world.random.choice(("tail", "zset"))
    return repairs.reframe(
        world.keys, kind, world.random.choice(list(FrameFormat)), batch=5, lookups=10
    )


@op(repairs.drop_delivered)
def _(world: World) -> Any:
    return repairs.drop_delivered(world.keys, frame_names(world))


@op(repairs.enlist)
def _(world: World) -> Any:
    return repairs.enlist(world.keys, frame_names(world), run="r", step=1)


@op(repairs.delist)
def _(world: World) -> Any:
    step = world.random.choice((1, 2))
    return repairs.delist(world.keys, run="r", step=step, batch=5)


@op(repairs.announce)
def _(world: World) -> Any:
    return repairs.announce(world.keys)


# Moves to another server. Few pages, so that some of these come in their order.

RUN = "r" * 12


@op(page_calls.begin_export, 3)
def _(world: World) -> Any:
    return page_calls.begin_export(world.keys, RUN, Kind.DIRECT)


@op(page_calls.export_page, 3)
def _(world: World) -> Any:
    return page_calls.export_page(
        world.keys,
        world.random.choice(list(Source)),
        run=world.random.choice((RUN, RUN, "")),
        page=world.random.randint(1, 4),
        skip=world.random.choice((0, 0, 1)),
        limit=world.random.choice((2, 20)),
        frame_format=world.frame_format,
        key_ids=world.random.choice(((), (), ("abcd", "efgh"))),
    )


@op(page_calls.import_page, 2)
def _(world: World) -> Any:
    return page_calls.import_page(
        world.keys,
        world.moved,
        run=f"t{world.random.randrange(100)}",
        page=world.random.choice((1, 1, 2)),
        **world.options(),
    )


@op(page_calls.end_page, 3)
def _(world: World) -> Any:
    return page_calls.end_page(
        world.keys,
        run=RUN,
        page=world.random.randint(0, 4),
        is_moved=world.random.random() < 0.5,
        **world.options(),
    )


@op(page_calls.take_schedule)
def _(world: World) -> Any:
    return page_calls.take_schedule(
        world.keys, world.random.choice(SCHEDULES), is_copy=world.random.random() < 0.3
    )


@op(page_calls.put_schedule)
def _(world: World) -> Any:
    stored = world.random.choice((b"", b"stored"))
    moment = world.random.choice((b"", b"%d" % (world.now_us // 1000)))
    return page_calls.put_schedule(
        world.keys,
        world.random.choice(SCHEDULES),
        MovedSchedule(stored, b"change", b"", moment),
        version=world.random.choice((0, 0, 1, 2, 3)),
        register=world.random.choice((b"key register", "=")),
    )


@op(page_calls.end_schedule)
def _(world: World) -> Any:
    return page_calls.end_schedule(
        world.keys, world.random.choice(SCHEDULES), is_moved=world.random.random() < 0.5
    )


# Redisson's objects.


@op(wire_calls.offer, 2)
def _(world: World) -> Any:
    element = world.random.choice((b"x", b"y", b"z" * 70, payload(world.name())))
    return wire_calls.offer(
        world.keys.queue,
        element,
        world.when(),
        frame_format=world.frame_format,
        insertion_list=world.is_listed,
    )


@op(wire_calls.read)
def _(world: World) -> Any:
    return wire_calls.read(
        world.keys.queue,
        insertion_list=world.is_listed,
        page=world.random.choice((2, 500)),
    )


@op(wire_calls.contains)
def _(world: World) -> Any:
    return wire_calls.contains(
        world.keys.queue,
        [b"x", payload("a")],
        Cursor(),
        frame_format=world.frame_format,
        insertion_list=world.is_listed,
    )


@op(queue_calls.put)
def _(world: World) -> Any:
    element = world.random.choice((b"x", b"w", payload(world.name())))
    return queue_calls.put(world.keys, element)


@op(queue_calls.remove)
def _(world: World) -> Any:
    return queue_calls.remove(
        world.keys,
        [b"x", payload("a")],
        world.random.choice(("first", "all", "others")),
        frame_format=world.frame_format,
        insertion_list=world.is_listed,
    )


@op(queue_calls.withdraw)
def _(world: World) -> Any:
    return queue_calls.withdraw(
        world.keys,
        world.frames[-2:] or [b"none"],
        request=f"request{world.requests:05}",
        depth=100,
        from_tail=world.random.random() < 0.5,
        insertion_list=world.is_listed,
    )


@op(queue_calls.clear)
def _(world: World) -> Any:
    has_begun = world.random.random() < 0.5
    return queue_calls.clear(world.keys, has_begun=has_begun)


@op(queue_calls.confirm)
def _(world: World) -> Any:
    owner = world.random.choice(OWNERS)
    jobs = world.some_leases()[:1]
    return queue_calls.confirm(world.keys, jobs, owner=owner)


@op(queue_calls.first_that_holds)
def _(world: World) -> Any:
    return queue_calls.first_that_holds(world.keys)


@op(queue_calls.untake)
def _(world: World) -> Any:
    owner = world.random.choice(OWNERS)
    jobs = world.some_leases()
    return queue_calls.untake(world.keys, jobs, owner=owner)


#: Plain commands that the package sends, and what Java and redis-py do to the same keys.
COMMANDS: dict[str, Callable[[World], tuple[Any, ...]]] = {
    "BLMOVE": lambda world: (
        "BLMOVE",
        (key := world.keys.queue.destination),
        key,
        "LEFT",
        "LEFT",
        "0.01",
    ),
    "HGETALL": lambda world: ("HGETALL", world.keys.control),
    "HMGET": lambda world: ("HMGET", world.keys.control, "format", "written", "none"),
    "LINDEX": lambda world: ("LINDEX", world.keys.queue.delay_queue, -1),
    "LLEN": lambda world: ("LLEN", world.keys.queue.destination),
    "LPOP": lambda world: ("LPOP", world.keys.queue.destination),
    "LPOS": lambda world: ("LPOS", world.keys.queue.destination, b"x"),
    "LRANGE": lambda world: ("LRANGE", world.keys.result(world.token()), 0, 2),
    "LREM": lambda world: ("LREM", world.keys.queue.destination, 1, b"x"),
    "PUBLISH": lambda world: ("PUBLISH", world.keys.channel, b"0"),
    "RPUSH": lambda world: (
        "RPUSH",
        world.keys.queue.destination,
        b"x",
        payload(world.name()),
    ),
    "UNLINK": lambda world: ("UNLINK", world.keys.queue.destination),
    "ZADD": lambda world: (
        "ZADD",
        world.keys.sent,
        "XX",
        world.now_us // 1000,
        world.token(),
    ),
    "ZCARD": lambda world: ("ZCARD", world.keys.queue.timeout_set),
    "ZLEXCOUNT": lambda world: ("ZLEXCOUNT", world.keys.slots, "[m", "(t"),
    "ZMSCORE": lambda world: ("ZMSCORE", world.keys.sent, world.token(), "none"),
    "ZRANGE": lambda world: ("ZRANGE", world.keys.queue.timeout_set, -1, -1),
    "ZRANGEBYLEX": lambda world: (
        "ZRANGEBYLEX",
        world.keys.forwards,
        b"(more\0",
        b"(more\1",
        "LIMIT",
        0,
        2,
    ),
    "ZREM": lambda world: (
        "ZREM",
        world.keys.queue.timeout_set,
        *(world.frames[-1:] or [b"none"]),
    ),
    "HDEL": lambda world: ("HDEL", world.keys.payloads, world.token()),
    "HSET": lambda world: ("HSET", world.keys.errors, world.token(), b"{}"),
}


def sent_commands() -> set[str]:
    """Return the plain commands that the package describes, but for those about the clock and the server."""
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        if "testing" not in file.parts:
            found |= set(re.findall(r'Command\(\s*\(\s*"([A-Z]+)"', file.read_text()))
    return found - {"TIME", "INFO"}


def offer_as_java(world: World) -> list[tuple[Any, ...]]:
    """Offer as Redisson does: into the timeout set and the delay queue."""
    world.requests += 1
    frame = frames.pack(
        b"java" + world.requests.to_bytes(4, "big"), b"java", world.frame_format
    )
    world.frames.append(frame)
    queue = world.keys.queue
    at_ms = world.now_us // 1000 + world.random.choice((0, 5, 500))
    return [
        ("ZADD", queue.timeout_set, at_ms, frame),
        ("RPUSH", queue.delay_queue, frame),
    ]


#: Members, fields and elements of the commands below; scores and bounds.
WORDS = (b"", b"a", b"ab", b"b", b"c", b"x")
SCORES = ("-inf", "-1", "0", "1", "1.5", "2", "1700000000000", "+inf")


def any_command(world: World) -> list[tuple[Any, ...]]:
    """Return a command with any of its options, on keys of no queue: scripts use few of them with what lies there."""
    random, name = world.random, world.keys.queue.name
    words, scores = partial(random.choice, WORDS), partial(random.choice, SCORES)
    index = partial(random.randint, -4, 4)
    hash_, list_, zset, flat = (f"{name}:{kind}" for kind in "hlzf")

    def bound() -> str:
        return random.choice(("", "", "(")) + scores()

    def lex() -> bytes:
        return random.choice((b"-", b"+", b"[" + words(), b"(" + words()))

    def some(*options: tuple[Any, ...]) -> list[Any]:
        return [each for option in options if random.random() < 0.5 for each in option]

    limit = ("LIMIT", random.randint(0, 3), random.randint(-1, 3))
    told = ("WITHSCORES",)
    commands: tuple[tuple[Any, ...], ...] = (
        ("HSET", hash_, words(), words(), words(), random.randint(-5, 5)),
        ("HSETNX", hash_, words(), words()),
        ("HDEL", hash_, words(), words()),
        ("HINCRBY", hash_, words(), index()),
        ("HMGET", hash_, words(), words()),
        ("HEXISTS", hash_, words()),
        ("HLEN", hash_),
        ("RPUSH", list_, words(), words()),
        ("LPUSH", list_, words(), words()),
        ("LPOP", list_),
        ("LINDEX", list_, index()),
        ("LRANGE", list_, index(), index()),
        ("LTRIM", list_, random.randint(-9, 2), random.randint(-2, 9)),
        ("LSET", list_, index(), words()),
        ("LREM", list_, random.randint(-2, 2), words()),
        (
            "LPOS",
            list_,
            words(),
            *some(
                ("RANK", random.choice((-2, -1, 1, 2))),
                ("COUNT", random.randint(0, 2)),
                ("MAXLEN", random.randint(0, 4)),
            ),
        ),
        ("LMOVE", list_, list_, *random.choices(("LEFT", "RIGHT"), k=2)),
        (
            "ZADD",
            zset,
            *random.choice(((), (), ("NX",), ("XX",), ("XX", "CH"))),
            scores(),
            words(),
            scores(),
            words(),
        ),
        ("ZADD", flat, 0, words(), 0, words()),
        ("ZREM", zset, words(), words()),
        ("ZREM", flat, words()),
        ("ZRANK", zset, words()),
        ("ZMSCORE", zset, words(), words()),
        ("ZCARD", zset),
        ("ZCOUNT", zset, bound(), bound()),
        ("ZRANGE", zset, index(), index(), *some(told)),
        ("ZREVRANGE", zset, index(), index(), *some(told)),
        ("ZRANGEBYSCORE", zset, bound(), bound(), *some(told, limit)),
        ("ZRANGEBYLEX", flat, lex(), lex(), *some(limit)),
        ("ZLEXCOUNT", flat, lex(), lex()),
        ("ZREMRANGEBYRANK", zset, index(), index()),
        ("PEXPIRE", random.choice((hash_, zset)), 3_600_000),
        ("RENAME", zset, f"{name}:y")
        if random.random() < 0.1
        else ("EXISTS", zset, list_),
        ("UNLINK", random.choice((hash_, list_, zset, flat))),
    )
    return [random.choice(commands)]


def _makers() -> list[Callable[[World], list[Call[Any] | tuple[Any, ...]]]]:
    found: list[Callable[[World], list[Any]]] = []
    for function, maker in OPERATIONS.items():
        found += [lambda world, maker=maker: [maker(world)]] * WEIGHTS[function]
    found += [
        lambda world, command=command: [command(world)] for command in COMMANDS.values()
    ]
    return [*found, offer_as_java]


MAKERS = _makers()


def command_of(step: Any) -> tuple[Any, ...]:
    return step.command() if isinstance(step, Call | Command) else step
