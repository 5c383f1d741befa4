"""A queue with shards, as callers see it: where jobs go, how they are found, what is shared among the shards."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from django_delayq import (
    Batch,
    DelayedQueue,
    InvalidArguments,
    InvalidSchedule,
    InvalidTask,
    Job,
    OtherShards,
    QueueFull,
    QueueNotFound,
    State,
    aget_job,
    aschedule,
    aschedule_many,
    clear_limit,
    delayed_task,
    ended_jobs,
    find_jobs,
    get_job,
    get_schedule,
    limits,
    pause,
    paused,
    resume,
    schedule,
    schedule_many,
    set_limit,
    store_schedule,
)
from django_delayq.conf import get_settings, keys_of
from django_delayq.core import worker_code
from django_delayq.core.shards import (
    MOST_SHARDS,
    Pin,
    parse_shard,
    pin_shards,
    read_shards,
    shard_keys,
    shard_of,
    share_of,
)
from django_delayq.display.overview import look
from django_delayq.features.statistics.api import (
    queue_statistics,
    statistics_totals,
    tasks_statistics,
)
from django_delayq.health.problem import Level
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import send_many, shard_agreement
from django_delayq.jobs.follow_ups import bind, home_of
from django_delayq.jobs.limit import Limit
from django_delayq.jobs.occurrences import every
from django_delayq.jobs.store_calls import storing_one
from django_delayq.server_checks import server_problems
from django_delayq.tools import page_calls
from django_delayq.transport.clients import own_clients
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.servers import Server

Shards = Callable[..., str]


@pytest.fixture
def shards(settings: Any, queue: str) -> Shards:
    """Gives the queue shards, and what else is said; returns its name."""

    def set_shards(number: int | None, **options: Any) -> str:
        its = {"SHARDS": number, **options} if number is not None else options
        settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: its, f"{queue}-2": {}}}
        return queue

    return set_shards


@delayed_task(
    limit=Limit("of-account", concurrency=1, key=lambda account: account), unique=True
)
def charge(account: int) -> None: ...


@delayed_task(
    limit=Limit("by-account", concurrency=1, key=lambda account, **_: account),
    unique=("text",),
)
def write(account: int, text: str) -> None: ...


# Names and keys


@pytest.mark.parametrize(
    ("key", "two", "three", "four", "sixty_four"),
    [
        # docs/wire-format.md has them.
        ("0Vb3Xq2mTg6sYk9wLz1aPQ", 0, 2, 2, 54),
        ("shop.tasks.remind:42", 0, 2, 0, 36),
        ("stripe\0acct_1", 1, 1, 3, 35),
        ("é", 0, 2, 2, 62),
    ],
)
def test_key_leads_to_the_shard_that_the_contract_has(
    key: str, two: int, three: int, four: int, sixty_four: int
) -> None:
    assert [shard_of(key, n) for n in (1, 2, 3, 4, 64)] == [
        0, two, three, four, sixty_four,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("mail:0", ("mail", 0)),
        ("a:b:63", ("a:b", 63)),
        ("mail:64", None),
        ("mail:00", None),
        ("mail:01", None),
        ("mail:-1", None),
        ("mail:x", None),
        ("mail:٣", None),
        ("mail:", None),
        (":1", None),
        ("mail", None),
    ],
)
def test_name_of_a_shard_is_that_of_its_queue_and_a_number(
    name: str, parsed: tuple[str, int] | None
) -> None:
    assert parse_shard(name) == parsed


def test_shares_add_up_and_differ_by_one_at_most() -> None:
    for shards in range(1, MOST_SHARDS + 1):
        for total in (shards, 100, 101, 1_000_000):
            shares = [share_of(total, number, shards) for number in range(shards)]
            assert sum(shares) == total
            assert max(shares) - min(shares) <= 1


# Sending


@pytest.mark.redis
def test_jobs_are_spread_over_all_shards_and_each_is_found_by_its_id(
    shards: Shards,
) -> None:
    name = shards(4)

    jobs = [schedule(samples.add.using(queue=name), LATER, n) for n in range(64)]

    spread = Counter(job.queue for job in jobs)
    assert set(spread) == {f"{name}:{n}" for n in range(4)}
    for job in jobs:
        assert job.queue == f"{name}:{shard_of(job.token, 4)}"
        assert get_job(job.id).args == job.args
    assert asyncio.run(aget_job(jobs[0].id)).args == [0]
    assert jobs[0].cancel()
    assert get_job(jobs[0].id).state is State.CANCELLED
    assert jobs[1].reschedule(2 * LATER)


@pytest.mark.redis
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_schedule_many_sends_a_call_to_each_shard_and_keeps_the_order(
    shards: Shards, is_async: bool, monkeypatch: Any
) -> None:
    name, calls = shards(4), []
    its_call = send_many.storing_all
    monkeypatch.setattr(
        send_many,
        "storing_all",
        lambda queue, drafts, *more: (
            calls.append((queue, len(drafts))) or its_call(queue, drafts, *more)
        ),
    )
    task = samples.add.using(queue=name)
    other = samples.add.using(queue=f"{name}-2")
    jobs = [task.prepare(LATER, n) for n in range(200)]
    # In between, and behind which the shards go on.
    jobs.insert(100, other.prepare(LATER, 1_000))
    before = samples.double.using(queue=f"{name}-2").prepare(LATER, 7)

    sent = (
        asyncio.run(aschedule_many([before, *jobs]))
        if is_async
        else schedule_many([before, *jobs])
    )

    assert sent == [before, *jobs]
    assert all(job.state is State.SCHEDULED for job in sent)
    assert Counter(queue for queue, _ in calls) == Counter(
        {f"{name}-2": 2, **{f"{name}:{n}": 2 for n in range(4)}}
    )
    assert sum(count for _, count in calls) == 202
    assert find_jobs(queue=name).count() == 200


@pytest.mark.redis
def test_jobs_behind_an_error_of_the_iterable_are_handed_back(shards: Shards) -> None:
    name = shards(3)
    task = samples.add.using(queue=name)
    jobs = [task.prepare(LATER, n) for n in range(40)]

    def broken() -> Any:
        yield from jobs
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        schedule_many(broken())

    assert find_jobs(queue=name).count() == 0
    assert schedule_many(jobs) == jobs
    assert find_jobs(queue=name).count() == 40


@pytest.mark.redis
def test_unique_key_has_one_holder_whatever_its_token(shards: Shards) -> None:
    name = shards(4)
    task = samples.once.using(queue=name)

    first = [schedule(task, LATER, user) for user in range(16)]
    again = [schedule(task, LATER, user) for user in range(16)]

    assert again == first
    assert not any(job.created for job in again)
    assert len({job.queue for job in first}) > 1
    assert find_jobs(queue=name).count() == 16


@pytest.mark.redis
def test_jobs_of_one_limit_and_key_share_a_shard(shards: Shards) -> None:
    name = shards(4)
    task = charge.using(queue=name)

    jobs = [task.prepare(LATER, account) for account in range(16)]

    for account, job in enumerate(jobs):
        number = shard_of(f"of-account\0{account}", 4)
        assert job.queue == f"{name}:{number}"


def test_task_whose_limit_and_unique_key_may_part_is_refused(shards: Shards) -> None:
    name = shards(4)

    with pytest.raises(InvalidTask, match="the two keys may lead to different shards"):
        write.using(queue=name).prepare(LATER, 1, "a")


@pytest.mark.redis
def test_full_shard_says_what_its_share_is(shards: Shards) -> None:
    name = shards(2, MAX_JOBS=3)
    task = samples.add.using(queue=name)

    def fill() -> None:
        for n in range(4):
            schedule(task, LATER, n)

    with pytest.raises(QueueFull) as caught:
        fill()

    assert f"DELAYQ['QUEUES'][{name!r}]['MAX_JOBS'] is 3, of which a shard" in str(
        caught.value
    )


@pytest.mark.redis
def test_batch_moves_its_jobs_to_the_shard_of_its_callback(shards: Shards) -> None:
    name = shards(4)
    callback = samples.double.using(queue=name).prepare(0, 1)
    jobs = [samples.add.using(queue=name).prepare(LATER, n) for n in range(16)]

    stored = Batch(callback).schedule(jobs)

    assert {job.queue for job in stored} == {callback.queue}
    assert find_jobs(queue=callback.queue).count() == 17
    assert [get_job(job.id).args for job in stored] == [[n] for n in range(16)]


def test_batch_refuses_a_job_whose_key_is_kept_in_another_shard(
    shards: Shards,
) -> None:
    name = shards(4)
    callback = samples.double.using(queue=name).prepare(0, 1)
    jobs = [samples.once.using(queue=name).prepare(LATER, n) for n in range(16)]

    with pytest.raises(InvalidTask, match="is kept in shard"):
        Batch(callback).schedule(jobs)


# The number of shards


def begin(name: str) -> None:
    """Do what a worker does before it serves a queue."""
    for part in get_settings().queues_of(name):
        perform(own_clients.of_thread, shard_agreement.serving(part))


@contextmanager
def stale(settings: Any) -> Iterator[None]:
    """Be a process again that has begun with the settings that are in force now, whatever they become before."""
    before, known = (
        settings.DELAYQ,
        (dict(shard_agreement._agreed), dict(shard_agreement._ready)),
    )
    yield
    settings.DELAYQ = before
    shard_agreement._agreed.update(known[0])
    shard_agreement._ready.update(known[1])


def number_of(name: str, client: Any) -> int:
    return run(client, read_shards(keys_of(name))).pin.number


def kinds_of_call(task: Any) -> list[Callable[[], Any]]:
    job = task.prepare(LATER, 9)
    return [
        lambda: schedule(task, LATER, 9),
        lambda: asyncio.run(aschedule(task, LATER, 9)),
        lambda: schedule_many([job]),
        lambda: asyncio.run(aschedule_many([job])),
    ]


@pytest.mark.redis
@pytest.mark.parametrize(
    ("first", "then"), [(2, 4), (4, 2), (None, 3), (3, None)], ids=str
)
@pytest.mark.parametrize("prefix", ["", "shop-"])
def test_another_number_of_shards_is_refused_and_nothing_is_stored(
    shards: Shards, settings: Any, first: Any, then: Any, prefix: str, client: Any
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"PREFIX": prefix}
    name = shards(first)
    for n in range(16):
        schedule(samples.add.using(queue=name), LATER, n)

    name = shards(then)

    calls = [] if then is None else kinds_of_call(samples.add.using(queue=name))
    for call in [
        *calls,
        lambda: begin(name),
        lambda: pause(name),
        lambda: set_limit(name, rate="90/s"),
    ]:
        with pytest.raises(OtherShards) as caught:
            call()
        error = caught.value
        assert (error.queue, error.theirs, error.ours) == (name, first or 0, then or 0)
        assert f"SHARDS={first}, and the settings say SHARDS={then}" in str(error)
        assert "(jobs: 16)" in str(error)
    # So `manage.py check --deploy` says it before anything is deployed.
    (told,) = [each for each in server_problems() if each.level is Level.ERROR]
    assert f"{told.message} {told.hint}" == str(error)
    assert told in look(get_settings().queues_of()).problems
    name = shards(first)
    assert find_jobs(queue=name).count() == 16
    assert paused(name) == []
    begin(name)


@pytest.mark.redis
@pytest.mark.parametrize(
    ("first", "then"), [(2, 4), (4, 2), (None, 3), (3, None)], ids=str
)
def test_empty_queue_takes_the_number_of_the_worker_that_begins(
    shards: Shards, settings: Any, first: Any, then: Any, client: Any
) -> None:
    name = shards(first)
    jobs = [schedule(samples.add.using(queue=name), LATER, n) for n in range(16)]
    for job in jobs:
        job.cancel()
    begin(name)
    with stale(settings):
        name = shards(then)
        if then is not None:
            with pytest.raises(
                OtherShards, match="The queue is empty, so the first wor"
            ):
                schedule(samples.add.using(queue=name), LATER, 0)
        begin(name)
        assert number_of(name, client) == (then or 0)
        held = [schedule(samples.once.using(queue=name), LATER, n) for n in range(16)]
        for n in range(16):
            schedule(samples.add.using(queue=name), LATER, n)

    # It has the old settings, and does not ask before each job.
    refused = 0
    for n in range(16):
        with pytest.raises(OtherShards):
            schedule(samples.once.using(queue=name), LATER, n)
        for call in kinds_of_call(samples.add.using(queue=name)):
            try:
                call()
            except OtherShards:
                refused += 1
    with pytest.raises(OtherShards):
        begin(name)

    name = shards(then)
    stored = [job.id for job in find_jobs(queue=name)]
    assert len(stored) == len(set(stored)) == 32 + 16 * 4 - refused
    assert {job.id for job in held} < set(stored)
    assert (refused == 64) is (None in (first, then))
    assert jobs_of_all_parts(name, client) == len(stored)


@pytest.mark.redis
@pytest.mark.parametrize("then", [3, None], ids=str)
def test_batch_that_is_refused_leaves_no_callback(
    shards: Shards, settings: Any, then: int | None, client: Any
) -> None:
    name = shards(2)
    begin(name)
    with stale(settings):
        begin(shards(then))
    job = samples.add.using(queue=name)
    batch = Batch(job.prepare(0, 1))

    with pytest.raises(OtherShards):
        batch.schedule([job.prepare(0, 2)])

    assert jobs_of_all_parts(name, client) == 0
    assert not client.exists(keys_of(batch.callback.queue).held)
    shards(then)
    begin(name)


@pytest.mark.redis
@pytest.mark.parametrize("then", [2, 4, None], ids=str)
@pytest.mark.parametrize("call", range(4), ids=["one", "aone", "many", "amany"])
def test_change_whose_worker_dies_is_undone_by_whoever_uses_the_queue(
    shards: Shards, settings: Any, client: Any, then: Any, call: int
) -> None:
    name = shards(3)
    begin(name)
    task = samples.add.using(queue=name)
    schedule(task, LATER, 1).cancel()
    with stale(settings):
        shards(then)
        parts = get_settings().queues_of(name)
        steps = shard_agreement.serving(parts[0])
        said = run(client, next(steps))
        closed = f"{name}:2"
        while not run(client, read_shards(keys_of(closed))).pin.is_closed:
            said = run(client, steps.send(said))

    task = task.using(queue=closed)
    with pytest.raises(OtherShards, match="was being changed, and nothing was stored"):
        kinds_of_call(task)[call]()
    kinds_of_call(task)[call]()
    # It was only suspended.
    with suppress(OtherShards):
        while True:
            said = run(client, steps.send(said))

    begin(name)
    assert number_of(name, client) == 3
    assert find_jobs(queue=name).count() == 1
    assert jobs_of_all_parts(name, client) == 1
    schedule_many(samples.add.using(queue=name).prepare(LATER, n) for n in range(32))


def jobs_of_all_parts(name: str, client: Any) -> int:
    """Count jobs wherever they may lie."""
    keys = keys_of(name)
    parts = [keys, *(shard_keys(keys, number) for number in range(8))]
    return sum(run(client, read_shards(part)).held.jobs for part in parts)


@pytest.mark.redis
@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (lambda name: schedule(samples.add.using(queue=name), LATER, 1), "jobs: 1"),
        (
            lambda name: store_schedule(
                "s", samples.add, every(timedelta(hours=1)), args=[1], queue=name
            ),
            "jobs: 1, schedules: 1",
        ),
        (lambda name: pause(f"{name}:1"), "pauses and limits: 1"),
        (lambda name: pause(name), "pauses and limits: 2"),
        (lambda name: pause(f"{name}:0", task=samples.add), "pauses and limits: 1"),
        (lambda name: set_limit(name, concurrency=2), "pauses and limits: 2"),
    ],
)
def test_number_is_fixed_while_the_queue_holds_anything(
    shards: Shards, leave: Callable[[str], Any], words: str, client: Any
) -> None:
    name = shards(2)
    begin(name)
    leave(name)

    name = shards(3)

    with pytest.raises(OtherShards, match=re.escape(f"({words})")):
        begin(name)
    assert number_of(name, client) == 2


@pytest.mark.redis
@pytest.mark.parametrize("place", ["dead", "quarantine", "forwards", "leases"])
def test_number_is_fixed_while_the_queue_keeps_dead_letters_or_runs_jobs(
    shards: Shards, client: Any, place: str
) -> None:
    name = shards(2)
    begin(name)
    keys = get_settings().queues[f"{name}:1"].keys
    client.zadd(keys.key(place), {"token": 1})

    name = shards(1)

    with pytest.raises(OtherShards):
        begin(name)
    client.delete(keys.key(place))
    begin(name)
    assert number_of(name, client) == 1


@pytest.mark.redis
def test_number_is_fixed_while_a_schedule_is_on_its_way_to_another_server(
    shards: Shards, client: Any
) -> None:
    name = shards(4)
    begin(name)
    part = f"{name}:3"
    store_schedule("s", samples.add, every(timedelta(hours=1)), args=[1], queue=part)
    for job in find_jobs(queue=name):
        job.cancel()
    run(client, page_calls.take_schedule(keys_of(part), "s"))

    shards(2)

    with pytest.raises(OtherShards, match="schedules: 1"):
        begin(name)
    shards(4)
    run(client, page_calls.end_schedule(keys_of(part), "s", is_moved=False))
    assert get_schedule("s", queue=name) is not None


def begin_in_few_calls(name: str, client: Any) -> None:
    """Do what `begin` does for one shard, and fail if that asks the server again and again."""
    steps = shard_agreement.serving(get_settings().queues_of(name)[0])
    with suppress(StopIteration):
        call = next(steps)
        for _ in range(300):
            call = steps.send(run(client, call))
        pytest.fail("it does not come to an end")


@pytest.mark.redis
@pytest.mark.parametrize("part", ["", ":1"], ids=["queue", "shard"])
@pytest.mark.parametrize("text", ["x", "x y", "100000 id", "4 id later"])
def test_number_that_cannot_be_read_is_replaced(
    shards: Shards, client: Any, part: str, text: str
) -> None:
    name = shards(4)
    begin(name)
    client.hset(keys_of(f"{name}{part}").control, "shards", text)
    begin_in_few_calls(name, client)

    shards(2)
    begin_in_few_calls(name, client)

    assert number_of(name, client) == 2


@pytest.mark.redis
def test_number_can_change_after_somebody_has_opened_the_bare_name_by_hand(
    shards: Shards, client: Any
) -> None:
    name = shards(4)
    begin(name)
    client.delete(keys_of(name).ranked)
    client.rpush(keys_of(name).queue.destination, b"1")

    shards(2)
    begin_in_few_calls(name, client)

    assert number_of(name, client) == 2


@pytest.mark.redis
def test_limits_statistics_and_schedules_of_code_leave_a_queue_empty(
    shards: Shards, client: Any
) -> None:
    name = shards(2)
    begin(name)
    keys = get_settings().queues[f"{name}:1"].keys
    call = worker_code.declare(
        keys, [("of-account", {"concurrency": 1})], owner=b"process1", loaded_ms=0
    )
    run(client, call)
    client.hset(keys.schedules, "code nightly", "text")
    schedule(samples.add.using(queue=name), LATER, 1).cancel()

    name = shards(3)
    begin(name)

    assert number_of(name, client) == 3


@pytest.mark.redis
def test_number_is_not_changed_back_by_a_worker_that_had_the_old_one(
    shards: Shards, settings: Any, client: Any
) -> None:
    name = shards(2)
    begin(name)
    with stale(settings):
        shards(3)
        begin(name)

    with pytest.raises(OtherShards, match="The queue is empty"):
        begin(name)
    assert number_of(name, client) == 3


@pytest.mark.redis
def test_jobs_of_a_number_that_the_server_has_forgotten_are_not_left_behind(
    shards: Shards, client: Any
) -> None:
    name = shards(4)
    for n in range(32):
        schedule(samples.add.using(queue=name), LATER, n)
    client.delete(keys_of(name).control)

    name = shards(2)
    with pytest.raises(OtherShards) as caught:
        schedule(samples.add.using(queue=name), LATER, 1)

    assert caught.value.theirs == 4
    name = shards(4)
    begin(name)
    assert number_of(name, client) == 4
    assert find_jobs(queue=name).count() == 32


@pytest.mark.redis
def test_queue_without_shards_is_served_beside_what_has_the_name_of_a_shard(
    shards: Shards, settings: Any, client: Any
) -> None:
    name = shards(None)
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {name: {}, f"{name}:1": {}}}
    # A key of the application, and a queue of its own.
    client.hset(f"{name}:0", "a", 1)
    schedule(samples.add.using(queue=f"{name}:1"), LATER, 1)

    begin(name)
    begin(f"{name}:1")

    assert number_of(name, client) == 0


@pytest.mark.redis
@pytest.mark.parametrize("then", [2, 8])
@pytest.mark.parametrize("is_used", [True, False], ids=["jobs", "no jobs"])
def test_number_that_the_server_has_forgotten_is_read_from_the_shards(
    shards: Shards, client: Any, then: Any, is_used: bool
) -> None:
    name = shards(4)
    begin(name)
    if is_used:
        schedule(samples.add.using(queue=f"{name}:0"), LATER, 1)
    keys = keys_of(name)
    client.delete(keys.control, keys.ranked)

    name = shards(then)

    if is_used:
        with pytest.raises(OtherShards, match="SHARDS=4, and the settings say"):
            begin(name)
        name = shards(4)
    begin(name)
    assert number_of(name, client) == (4 if is_used else then or 0)
    schedule_many(samples.add.using(queue=name).prepare(LATER, n) for n in range(32))


@pytest.mark.redis
def test_job_that_follows_goes_to_the_shard_that_its_key_leads_to_by_then(
    shards: Shards,
) -> None:
    name = shards(4)
    task, first = samples.once.using(queue=name), samples.add.using(queue=f"{name}-2")
    carrying = []
    for user in range(16):
        follower = task.prepare(LATER, user)
        carrying.append(first.prepare(LATER, 1).then(follower))
        call = envelopes.claimed_call(carrying[-1].draft.new.payload)
        assert call.follow is not None
        (its,) = call.follow.then
        assert f"{home_of(its).name}:{its.token}" == follower.id
    named = first.prepare(LATER, 1).then(
        samples.once.using(queue=f"{name}:1").prepare(0, 7)
    )

    name = shards(2)

    for user, job in enumerate(carrying):
        assert bound_for(job) == {task.prepare(LATER, user).queue}
    assert bound_for(named) == {f"{name}:1"}


@pytest.mark.redis
def test_job_that_follows_keeps_its_shard_where_its_queue_is_not_known(
    shards: Shards, settings: Any
) -> None:
    name = shards(4)
    first = samples.add.using(queue=f"{name}-2")
    followers = [samples.once.using(queue=name).prepare(LATER, n) for n in range(16)]
    carrying = [first.prepare(LATER, 1).then(each) for each in followers]

    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {f"{name}-2": {}}}

    for follower, job in zip(followers, carrying, strict=True):
        assert bound_for(job) == {follower.queue}


def bound_for(job: Job[Any]) -> set[str]:
    call = envelopes.claimed_call(job.draft.new.payload)
    assert call.follow is not None
    return set(bind(call.follow.then, job.queue).elsewhere)


@pytest.mark.redis
@pytest.mark.parametrize("number", [None, 3], ids=str)
@pytest.mark.parametrize("account", ["jobs", "web"])
def test_account_of_the_page_needs_rights_to_its_own_shards_only(
    shards: Shards,
    settings: Any,
    server: Server,
    client: Any,
    number: int | None,
    account: str,
) -> None:
    page = Path("docs/howto/deploy.md").read_text()
    rights = re.findall(rf"ACL SETUSER {account} reset (.*?)\n```", page, re.DOTALL)[0]
    (more,) = re.findall(r"\(shards.md\), the second user also needs `(.*?)`", page)
    name = shards(number)
    parts = [name, *(f"{name}:{n}" for n in range(number or 0))]
    words = (rights if number is None else f"{rights} {more}").split()
    words.remove("resetchannels")
    places = [word.replace("default", part) for part in parts for word in words]
    client.execute_command("ACL", "SETUSER", name, "resetchannels", *places)
    url = server.socket_url.replace("://", f"://{name}:password@")
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": url}

    if account == "jobs":
        begin(name)
    for n in range(16):
        schedule(samples.add.using(queue=name), LATER, n)

    assert jobs_of_all_parts(name, client) == 16
    client.execute_command("ACL", "DELUSER", name)


@pytest.mark.redis
def test_elements_under_the_bare_name_do_not_hinder_a_new_number(
    shards: Shards, client: Any
) -> None:
    name = shards(2)
    begin(name)
    DelayedQueue(name).offer("hello", LATER)

    name = shards(3)
    begin(name)

    assert number_of(name, client) == 3


@pytest.mark.redis
def test_another_server_is_asked_again_how_many_shards_a_queue_has(
    shards: Shards,
) -> None:
    name = shards(2)
    task = samples.add.using(queue=name)
    client, keys = own_clients.of_thread(), keys_of(name)
    schedule(task, LATER, 1).cancel()
    # Another process was first there.
    client.delete(keys.control, keys.ranked)
    run(client, pin_shards(keys, Pin(), Pin.new(4)))

    own_clients.note_change()

    for send in kinds_of_call(task):
        with pytest.raises(OtherShards) as caught:
            send()
        assert caught.value.theirs == 4


class Process:
    """A process with settings of its own, whose steps are made one by one."""

    def __init__(self, settings: Any, delayq: Any, act: Callable[[], Any]) -> None:
        self.settings, self.delayq, self.act = settings, delayq, act
        self.known: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.steps: Any = None
        self.result: Any = None

    def step(self, client: Any) -> bool:
        """Make one call, or start over after the last one; return whether there was a call."""
        # Assigning the settings makes them be read again.
        if self.settings.DELAYQ is not self.delayq:
            self.settings.DELAYQ = self.delayq
        shard_agreement._agreed.update(self.known[0])
        shard_agreement._ready.update(self.known[1])
        try:
            if self.steps is None:
                self.steps, call = self.act(), None
                call = next(self.steps)
            else:
                call = self.steps.send(self.result)
            self.result = run(client, call)
        except (StopIteration, OtherShards):
            self.steps = self.result = None
            return False
        except ResponseError:
            # The server refuses the job.
            self.steps = self.result = None
        finally:
            self.known = dict(shard_agreement._agreed), dict(shard_agreement._ready)
        return True

    def restart(self) -> None:
        self.known, self.steps, self.result = ({}, {}), None, None


@pytest.mark.redis
@pytest.mark.parametrize("seed", range(6))
def test_no_job_is_left_behind_however_the_steps_of_processes_mix(
    shards: Shards, settings: Any, client: Any, seed: int
) -> None:
    """Workers and callers of two numbers, each of which may die between any two calls."""
    chance = random.Random(seed)
    numbers = chance.sample([None, 1, 2, 3], 2)
    names = iter(range(10_000))

    def storing(name: str) -> Any:
        job = samples.add.using(queue=name).prepare(LATER, next(names))
        yield from shard_agreement.agreeing_on(job.queue)
        yield storing_one(job.queue, job.draft)

    def serving(name: str) -> Any:
        for part in get_settings().queues_of(name):
            yield from shard_agreement.serving(part)

    def emptying(name: str) -> Any:
        for part in get_settings().queues_of(name):
            yield Command(("DEL", part.keys.queue.timeout_set, part.keys.locators))

    processes = []
    for number in numbers:
        name = shards(number)
        delayq = settings.DELAYQ
        for act in (storing, serving, serving, emptying):
            processes.append(Process(settings, delayq, partial(act, name)))
    for _ in range(400):
        process = chance.choice(processes)
        if chance.random() < 0.03:
            process.restart()
            continue
        if not process.step(client):
            continue

        said = run(client, read_shards(keys_of(name))).pin
        # A shard beyond the number holds nothing.
        keys = keys_of(name)
        beyond = [shard_keys(keys, each) for each in range(said.number, 3)]
        beyond += [keys] if said.number else []
        assert not any(run(client, read_shards(part)).held.jobs for part in beyond)


@pytest.mark.redis
def test_queue_without_shards_is_asked_nothing_more(
    shards: Shards, monkeypatch: Any
) -> None:
    name = shards(None)
    monkeypatch.setattr(shard_agreement, "agreeing", None)

    assert schedule(samples.add.using(queue=name), LATER, 1).created


# Finding


@pytest.mark.redis
def test_queue_is_found_whole_by_its_name_and_in_part_by_that_of_a_shard(
    shards: Shards,
) -> None:
    name = shards(3)
    jobs = [schedule(samples.add.using(queue=name), LATER, n) for n in range(24)]

    assert {job.id for job in find_jobs(queue=name)} == {job.id for job in jobs}
    in_parts = [find_jobs(queue=f"{name}:{n}").count() for n in range(3)]
    assert sum(in_parts) == find_jobs(queue=name).count() == 24
    assert find_jobs(queue=name).cancel().won == 24
    assert find_jobs(queue=name).count() == 0
    with pytest.raises(QueueNotFound):
        find_jobs(queue=f"{name}:64")


@pytest.mark.redis
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_jobs_of_all_shards_are_listed_by_their_start_times(
    shards: Shards, is_async: bool
) -> None:
    name = shards(3)
    delays = [LATER + 7 * n % 500 for n in range(500)]
    schedule_many(samples.add.using(queue=name).prepare(d, d) for d in delays)
    looked: list[int] = []

    async def listed(jobs: Any) -> list[Any]:
        return [job.args[0] async for job in jobs]

    def of(jobs: Any) -> list[Any]:
        return asyncio.run(listed(jobs)) if is_async else [job.args[0] for job in jobs]

    assert of(find_jobs(queue=name)) == sorted(delays)
    assert of(find_jobs(limit=10)) == sorted(delays)[:10]
    assert of(find_jobs(queue=[name, f"{name}-2"], limit=0)) == []
    assert of(find_jobs(queue=name).watched(looked.append))
    assert looked[-1] == 500
    assert looked == sorted(looked)


@pytest.mark.redis
def test_ended_jobs_and_statistics_are_of_the_whole_queue(shards: Shards) -> None:
    name = shards(2)
    jobs = [schedule(samples.add.using(queue=name), LATER, n) for n in range(8)]
    for job in jobs:
        job.cancel()

    assert {job.id for job in ended_jobs(name)} == {job.id for job in jobs}
    assert list(queue_statistics([name])) == [name]
    assert len(queue_statistics([name], minutes=5)[name].spans) == 5
    assert set(queue_statistics()) == {name, f"{name}-2"}
    assert set(tasks_statistics([name])) == set(statistics_totals([name])) == {name}


# Pauses and limits


@pytest.mark.redis
def test_pause_holds_all_shards_or_one(shards: Shards) -> None:
    name = shards(3)

    pause(name, reason="mending")
    assert [(each.queue, each.reason) for each in paused(name)] == [(name, "mending")]
    assert resume(f"{name}:1")
    assert {each.queue for each in paused(name)} == {f"{name}:0", f"{name}:2"}
    assert resume(name)
    assert paused() == []
    assert not resume(name)


@pytest.mark.redis
def test_limit_of_the_queue_is_shared_among_its_shards(shards: Shards) -> None:
    name = shards(3, CONCURRENCY=10, RATE="90/s")

    (whole,) = limits(name)
    assert (whole.concurrency, whole.rate, whole.by) == (10, "90/s", "")
    parts = [limits(f"{name}:{n}")[0] for n in range(3)]
    assert [each.concurrency for each in parts] == [4, 3, 3]
    assert {each.rate for each in parts} == {"90/3s"}

    set_limit(name, concurrency=7, rate="30/m burst 6")
    (whole,) = limits(name)
    assert (whole.queue, whole.concurrency, whole.rate) == (name, 7, "30/m burst 6")
    assert whole.by
    assert limits(f"{name}:0")[0].concurrency == 3

    set_limit(f"{name}:1", concurrency=1)
    assert {each.queue for each in limits(name)} > {f"{name}:0", f"{name}:1"}

    assert clear_limit(name)
    assert [each.concurrency for each in limits(name)] == [10]
    assert not clear_limit(name)


@pytest.mark.redis
def test_limit_too_small_to_share_is_refused_and_nothing_is_set(
    shards: Shards,
) -> None:
    name = shards(4)

    with pytest.raises(InvalidArguments, match="the 4 shards of queue"):
        set_limit(name, concurrency=3)
    assert limits(name) == []


# Schedules


@pytest.mark.redis
def test_schedule_lives_in_one_shard(shards: Shards) -> None:
    name = shards(4)

    stored = [
        store_schedule(
            f"s{n}", samples.add, every(timedelta(hours=1)), args=[n], queue=name
        )
        for n in range(8)
    ]

    assert [each.queue for each in stored] == [
        f"{name}:{shard_of(f's{n}', 4)}" for n in range(8)
    ]
    assert get_schedule("s3", name) == stored[3]
    assert get_schedule("s3") == stored[3]
    assert find_jobs(queue=name).count() == 8
    job: Job[Any] = stored[0].fire()
    assert job.queue == stored[0].queue
    assert all(each.delete() for each in stored)


@pytest.mark.redis
def test_schedule_of_another_shard_keeps_its_name(shards: Shards) -> None:
    name = shards(4)
    task = charge.using(unique=False, queue=name)
    by_shard = {task.prepare(0, n).queue: n for n in range(32)}
    first, second = list(by_shard.values())[:2]
    options: Any = {"queue": name, "unique": False}
    moments = every(timedelta(hours=1))
    stored = store_schedule("charged", charge, moments, args=[first], **options)

    with pytest.raises(InvalidSchedule, match=f"is in shard '{stored.queue}'"):
        store_schedule(
            "charged", charge, moments, args=[second], replace=True, **options
        )
    assert (
        store_schedule(
            "charged", charge, moments, args=[first], replace=True, **options
        ).queue
        == stored.queue
    )
    assert stored.delete()
