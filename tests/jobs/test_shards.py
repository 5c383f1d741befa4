"""A queue with shards, as callers see it: where jobs go, how they are found, what is shared among the shards."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    Batch,
    InvalidArguments,
    InvalidSchedule,
    InvalidSettings,
    InvalidTask,
    Job,
    QueueFull,
    QueueNotFound,
    State,
    aget_job,
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
from django_delayq.calls.errors import mark_of_node
from django_delayq.calls.running import run
from django_delayq.calls.steps import perform
from django_delayq.checks import server_problems
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.delivery import limiting
from django_delayq.delivery.sharding import (
    MOST_SHARDS,
    parse_shard,
    pin_shards,
    shard_of,
    share_of,
)
from django_delayq.health.problems import Level
from django_delayq.jobs import sending, sharding
from django_delayq.jobs.limit import Limit
from django_delayq.jobs.occurrences import every
from django_delayq.jobs.statistics import (
    queue_statistics,
    statistics_totals,
    tasks_statistics,
)
from tests.jobs import samples
from tests.jobs.conftest import LATER

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
    its_call = sending._call
    monkeypatch.setattr(
        sending,
        "_call",
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


# Where keys are kept


@pytest.mark.redis
def test_more_shards_leave_keys_where_they_are(shards: Shards) -> None:
    name = shards(2)
    held = [schedule(samples.once.using(queue=name), LATER, n) for n in range(16)]

    name = shards(4, KEY_SHARDS=2)
    again = [schedule(samples.once.using(queue=name), LATER, n) for n in range(16)]
    jobs = [schedule(samples.add.using(queue=name), LATER, n) for n in range(32)]

    assert again == held
    assert {job.queue for job in jobs} == {f"{name}:{n}" for n in range(4)}


@pytest.mark.redis
def test_fewer_shards_leave_keys_where_they_are(shards: Shards) -> None:
    name = shards(4)
    held = [schedule(samples.once.using(queue=name), LATER, n) for n in range(16)]
    other = [schedule(samples.add.using(queue=name), LATER, n) for n in range(32)]

    name = shards(2, KEY_SHARDS=4)
    again = [schedule(samples.once.using(queue=name), LATER, n) for n in range(16)]

    assert again == held
    assert find_jobs(queue=name).count() == 48
    assert all(get_job(job.id).state is State.SCHEDULED for job in other)


@pytest.mark.redis
def test_queue_that_had_no_shards_keeps_keys_under_its_bare_name(
    shards: Shards,
) -> None:
    name = shards(None)
    held = [schedule(samples.once.using(queue=name), LATER, n) for n in range(4)]

    name = shards(3)
    with pytest.raises(InvalidSettings, match=r"\['KEY_SHARDS'\] to 0"):
        schedule(samples.once.using(queue=name), LATER, 1)
    name = shards(3, KEY_SHARDS=0)
    again = [schedule(samples.once.using(queue=name), LATER, n) for n in range(4)]

    assert again == held
    assert [get_job(job.id).args for job in held] == [[0], [1], [2], [3]]
    assert find_jobs(queue=name).count() == 4


@pytest.mark.redis
def test_jobs_with_a_limit_that_wait_keep_all_keys_under_the_bare_name(
    shards: Shards, client: Any, hand: Any
) -> None:
    name = shards(None)
    hand.run(
        limiting.declare(
            hand.keys,
            [("of-account", {"concurrency": 1})],
            owner=b"process1",
            loaded_ms=0,
        )
    )
    schedule(samples.add.using(queue=name), LATER, 1)

    name = shards(3)

    with pytest.raises(InvalidSettings, match=r"\['KEY_SHARDS'\] to 0"):
        schedule(charge.using(queue=name), LATER, 1)


@pytest.mark.redis
def test_another_number_of_shards_without_key_shards_is_refused_and_sends_nothing(
    shards: Shards,
) -> None:
    name = shards(2)
    schedule(samples.add.using(queue=name), LATER, 1)

    name = shards(4)

    task = samples.add.using(queue=name)
    job = task.prepare(LATER, 2)
    for send in (
        lambda: schedule(task, LATER, 1),
        lambda: schedule_many([job]),
        lambda: asyncio.run(aschedule_many([job])),
    ):
        with pytest.raises(InvalidSettings, match=r"\['KEY_SHARDS'\] to 2"):
            send()
    assert find_jobs(queue=name).count() == 1
    # So `manage.py check --deploy` says it before anything is deployed.
    (told,) = [each for each in server_problems() if each.level is Level.ERROR]
    assert "are in 2 shards, but the settings say 4" in told.message


@pytest.mark.redis
def test_another_server_is_asked_again_how_many_shards_keep_keys(
    shards: Shards,
) -> None:
    name = shards(2)
    task = samples.add.using(queue=name)
    client, keys = own_clients.of_thread(), get_settings().sharded[name].keys
    schedule(task, LATER, 1)
    # Another process was first there.
    client.delete(keys.control)
    run(client, pin_shards(keys, 4, 4))

    own_clients.note_change()

    for send in (
        lambda: schedule(task, LATER, 1),
        lambda: schedule_many([task.prepare(LATER, 1)]),
    ):
        with pytest.raises(InvalidSettings, match=r"\['KEY_SHARDS'\] to 4"):
            send()


@pytest.mark.redis
def test_further_shards_are_changed_though_a_node_was_away_before(
    shards: Shards,
) -> None:
    name = shards(2, KEY_SHARDS=4)
    settings = get_settings()
    # Of those that keep keys, the settings know; of others, only the server.
    run(own_clients.of_thread(), pin_shards(settings.sharded[name].keys, 6, 4))
    changed = []

    def change(queue: QueueSettings) -> Iterator[None]:
        changed.append(queue.name)
        if queue.name == name:
            error = RedisConnectionError("away")
            mark_of_node(error)
            raise error
        yield from ()

    with pytest.raises(RedisConnectionError) as told:
        perform(
            own_clients.of_thread, sharding.on_each(settings.queues_of(name), change)
        )

    assert changed == [
        *(f"{name}:{n}" for n in range(4)),
        name,
        f"{name}:4",
        f"{name}:5",
    ]
    assert told.value.__notes__[0].startswith(f"django-delayq: {name} may be unchanged")


@pytest.mark.redis
def test_queue_without_shards_is_asked_nothing_more(
    shards: Shards, monkeypatch: Any
) -> None:
    name = shards(None)
    monkeypatch.setattr(sharding, "agreeing", None)

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
    assert {each.queue for each in paused(name)} == {
        f"{name}:0",
        f"{name}:2",
        name,
    }
    assert resume(name)
    assert paused() == []
    assert not resume(name)


@pytest.mark.redis
def test_pause_and_limit_reach_shards_that_only_the_server_knows(
    shards: Shards,
) -> None:
    """Workers serve them, so a pause of the queue has to hold them."""
    name = shards(4, KEY_SHARDS=2)
    schedule_many(samples.add.using(queue=name).prepare(LATER, n) for n in range(8))
    shards(2)

    pause(name)
    set_limit(name, concurrency=4)

    assert [each.queue for each in paused(f"{name}:3")] == [f"{name}:3"]
    assert limits(f"{name}:3")[0].concurrency == 2
    assert [each.queue for each in paused(name)] == [name]
    assert resume(name)
    assert clear_limit(name)
    assert paused(f"{name}:3") == []
    assert limits(f"{name}:3") == []


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
