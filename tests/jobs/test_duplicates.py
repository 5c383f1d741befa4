"""Calls whose unique key another job holds, as projects use them: what they change, what they make, what they tell."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_delayq import (
    Batch,
    EncodeError,
    InvalidTask,
    Job,
    MaybeScheduled,
    QueueFull,
    State,
    aschedule,
    aschedule_many,
    delayed_task,
    get_job,
    pause,
    queue_handler,
    schedule,
    schedule_many,
)
from django_delayq.core import claim as claim_calls
from django_delayq.core import replace as replace_calls
from django_delayq.jobs import send_many
from django_delayq.jobs.options import TaskOptions
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.jobs.test_races import together
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.servers import ExternalServer, Server
from tests.signed import opened

#: What a call of each mode does to the arguments, and to the start time.
REPLACES = ["replace", ("replace", "postpone"), ("replace", "sooner")]


def one(task: Any, delay: Any, *args: Any) -> Job[Any]:
    return schedule(task, delay, *args)


def one_async(task: Any, delay: Any, *args: Any) -> Job[Any]:
    return asyncio.run(aschedule(task, delay, *args))


def many(task: Any, delay: Any, *args: Any) -> Job[Any]:
    return schedule_many([task.prepare(delay, *args)])[0]


def many_async(task: Any, delay: Any, *args: Any) -> Job[Any]:
    return asyncio.run(aschedule_many([task.prepare(delay, *args)]))[0]


ways = pytest.mark.parametrize("way", [one, one_async, many, many_async])


def on(queue: str, on_duplicate: Any = "keep", **options: Any) -> Any:
    return samples.anything.using(
        queue=queue,
        unique=lambda *args, **kwargs: str(args[0]),
        on_duplicate=on_duplicate,
        **options,
    )


def ms_until(job: Job[Any]) -> float:
    assert job.start_time is not None
    return (job.start_time - datetime.now(UTC)).total_seconds() * 1000


@ways
@pytest.mark.parametrize("mode", REPLACES)
def test_later_call_replaces_the_arguments_and_the_id_stays(
    queue: str, hand: Hand, way: Any, mode: Any
) -> None:
    first = way(on(queue, mode), LATER, 1, "old")
    job = way(on(queue, mode), LATER, 1, "new")

    assert (first.created, first.replaced) == (True, False)
    assert (job.created, job.replaced, job.id) == (False, True, first.id)
    assert (job.args, job.state) == ([1, "new"], State.SCHEDULED)
    assert get_job(first.id).args == [1, "new"]
    assert len(hand.tokens()) == 1
    assert job.run_now()
    assert [call.args for call in hand.take_all()] == [[1, "new"]]
    assert not hand.client.exists(hand.keys.unique)


@ways
def test_without_the_option_the_first_job_stays_as_it_is(
    queue: str, hand: Hand, way: Any
) -> None:
    first = way(on(queue), LATER, 1, "old")
    job = way(on(queue), 2 * LATER, 1, "new")

    assert (job.created, job.replaced, job.id) == (False, False, first.id)
    found = get_job(first.id)
    assert (found.args, found.start_time) == ([1, "old"], first.start_time)


@ways
@pytest.mark.parametrize("args", ["old", "new"])
def test_later_start_time_counts(queue: str, way: Any, args: str) -> None:
    mode: Any = "postpone" if args == "old" else ("replace", "postpone")
    first = way(on(queue, mode), LATER, 1, "old")

    later = way(on(queue, mode), 2 * LATER, 1, "new")
    assert (later.created, later.replaced) == (False, True)
    assert later.start_time > first.start_time + timedelta(seconds=LATER - 60)

    same = way(on(queue, mode), LATER, 1, "new")
    assert (same.replaced, same.start_time) == (args == "new", later.start_time)
    assert same.args == [1, args]


@ways
@pytest.mark.parametrize("args", ["old", "new"])
def test_sooner_start_time_counts(queue: str, way: Any, args: str) -> None:
    mode: Any = "sooner" if args == "old" else ("replace", "sooner")
    way(on(queue, mode), 2 * LATER, 1, "old")

    sooner = way(on(queue, mode), LATER, 1, "new")
    assert (sooner.created, sooner.replaced) == (False, True)
    assert ms_until(sooner) < (LATER + 60) * 1000

    same = way(on(queue, mode), 2 * LATER, 1, "new")
    assert (same.replaced, same.start_time) == (args == "new", sooner.start_time)
    assert same.args == [1, args]


def test_other_keys_are_other_jobs(queue: str, hand: Hand) -> None:
    schedule(on(queue, "replace"), LATER, 1)
    job = schedule(on(queue, "replace"), LATER, 2)

    assert job.created
    assert len(hand.tokens()) == 2


@ways
def test_debounced_call_runs_once_with_the_last_arguments(
    queue: str, hand: Hand, way: Any
) -> None:
    task = on(
        queue,
        ("replace", "postpone"),
        unique_until="start",
        max_wait=timedelta(hours=1),
    )
    jobs = [way(task, 60 + n, 1, n) for n in range(5)]

    assert len({job.id for job in jobs}) == 1
    assert [job.created for job in jobs] == [True, *[False] * 4]
    last = way(task, 5 * LATER, 1, "last")
    assert last.start_time <= jobs[0].start_time + timedelta(seconds=LATER)
    assert last.start_time >= jobs[0].start_time + timedelta(seconds=LATER - 61)
    assert last.run_now()
    leased = hand.take()
    # It has begun, so the next call begins anew.
    anew = way(task, 60, 1, "next")
    assert anew.created
    assert ms_until(anew) < 61_000
    hand.succeed(leased)


@ways
@pytest.mark.parametrize("mode", ["postpone", "sooner", *REPLACES])
def test_call_that_meets_a_running_job_makes_one_behind_it(
    queue: str, hand: Hand, way: Any, mode: Any
) -> None:
    first = way(on(queue, mode), 0, 1, "old")
    running = hand.take()

    job = way(on(queue, mode), 0, 1, "new")

    assert (job.created, job.replaced) == (True, False)
    assert job.id != first.id
    again = way(on(queue, mode), 0, 1, "newest")
    assert again.id == job.id
    assert hand.claim() == []
    hand.succeed(running)
    leased = hand.take()
    assert leased.token == job.token
    expected = "newest" if mode in REPLACES else "new"
    assert get_job(job.id).args == [1, expected]
    hand.succeed(leased)
    assert not hand.client.exists(hand.keys.unique)


@ways
def test_job_of_a_key_free_from_the_start_waits_behind_one_that_holds_it_to_the_end(
    queue: str, hand: Hand, way: Any
) -> None:
    # The task had another unique_until before.
    first = way(on(queue, "replace"), 0, 1, "old")
    running = hand.take()

    job = way(on(queue, "replace", unique_until="start"), 0, 1, "new")

    assert (job.created, job.replaced) == (True, False)
    assert job.id != first.id
    assert hand.claim() == []
    hand.succeed(running)
    assert hand.take().token == job.token
    assert not hand.client.exists(hand.keys.unique)


@ways
@pytest.mark.parametrize("until", ["start", "end"])
def test_call_makes_another_job_if_the_holder_lies_deep_in_the_destination_queue(
    queue: str, hand: Hand, settings: Any, way: Any, until: str
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: {"REDISSON": "3.52.0"}}}
    hand.client.rpush(hand.keys.queue.destination, *[b"x"] * 1_000)
    first = way(on(queue, "replace", unique_until=until), 0, 1, "old")
    wait_until(
        lambda: hand.run(claim_calls.transfer(hand.keys, batch=10)).moved,
        description="the job lies behind the others",
    )

    job = way(on(queue, "replace", unique_until=until), LATER, 1, "new")

    assert (job.created, job.replaced) == (True, False)
    assert job.id != first.id
    again = way(on(queue, "replace", unique_until=until), LATER, 1, "newest")
    assert (again.id, again.args) == (job.id, [1, "newest"])


def test_call_that_keeps_meets_the_running_job_as_ever(queue: str, hand: Hand) -> None:
    first = schedule(on(queue), 0, 1)
    hand.take()

    job = schedule(on(queue), 0, 1)

    assert (job.created, job.id, job.state) == (False, first.id, State.RUNNING)


def test_options_of_the_call_are_those_of_the_replacement(
    queue: str, hand: Hand
) -> None:
    base = on(queue, "replace")
    schedule(base.using(max_attempts=2, priority=5), LATER, 1)

    job = schedule(base.using(expires=60, priority=-5), LATER, 1)

    assert (job.options, job.priority) == ({"expires": 60.0}, -5)


def test_retry_gets_the_arguments_and_all_attempts(queue: str, hand: Hand) -> None:
    schedule(on(queue, "replace"), 0, 1, "old")
    hand.retry(hand.take(), LATER * 1000)

    job = schedule(on(queue, "replace"), LATER, 1, "new")

    assert (job.replaced, job.attempts, job.args) == (True, 0, [1, "new"])
    assert job.state is State.SCHEDULED
    assert job.error is not None


@ways
@pytest.mark.parametrize("mode", ["keep", "postpone", *REPLACES])
@pytest.mark.parametrize("options", [{}, {"MAX_JOBS": 5}], ids=["", "limited"])
def test_call_that_meets_a_job_which_is_too_late_makes_another(
    queue: str, hand: Hand, settings: Any, way: Any, mode: Any, options: Any
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: options}}
    first = way(on(queue, mode, expires=0.001), 0, 1, "old")
    start_ms = first.start_time_ms
    assert start_ms is not None

    def is_too_late() -> bool:
        seconds, us = hand.client.time()
        return seconds * 1000 + us // 1000 > start_ms + 1

    wait_until(is_too_late, description="the first is too late")
    job = way(on(queue, mode, expires=LATER), 0, 1, "new")

    assert (job.created, job.replaced, job.id != first.id) == (True, False, True)
    again = way(on(queue, mode), 0, 1, "newest")
    assert (again.created, again.id) == (False, job.id)


def keeping(queue: str) -> Any:
    return on(queue).using(on_duplicate="keep")


PLACES = ["waits", "is due", "retries", "held"]


def bring(hand: Hand, place: str) -> None:
    """Have the job that is due wait elsewhere."""
    if place == "retries":
        hand.retry(hand.take(), LATER * 1000)
    elif place == "held":
        pause(hand.keys.queue.name, task=samples.anything)
        hand.hold_paused([hand.take()], samples.anything.name)


@ways
@pytest.mark.parametrize("mode", REPLACES)
@pytest.mark.parametrize("place", PLACES)
def test_replacement_is_followed_by_what_followed_the_job(
    queue: str, hand: Hand, way: Any, mode: Any, place: str
) -> None:
    then, dead = keeping(queue).prepare(0, 2), keeping(queue).prepare(0, 3)
    holder = keeping(queue).prepare(LATER if place == "waits" else 0, 1, "old")
    schedule(holder.then(then).on_dead(dead))
    bring(hand, place)

    job = way(on(queue, mode), 0, 1, "new")
    again = way(on(queue, mode), 0, 1, "newest")

    assert (job.id, job.replaced) == (holder.id, True)
    assert (again.id, again.replaced) == (holder.id, True)
    call = opened(hand.payload(holder), queue)
    assert call.args == [1, "newest"]
    assert call.follow is not None
    assert [each.token for each in call.follow.then] == [then.token]
    assert [each.token for each in call.follow.dead] == [dead.token]
    # Without the flag, a claim would bury the job itself, and nothing would follow.
    assert holder.run_now()
    hand.kill(hand.take(), max_kills=0)
    assert holder.refresh() is State.RUNNING


@ways
@pytest.mark.parametrize("place", PLACES)
def test_replacement_stays_in_the_batch_of_the_job(
    queue: str, hand: Hand, way: Any, place: str
) -> None:
    batch = Batch(samples.anything.using(queue=queue).prepare(0, "callback"))
    holder = keeping(queue).prepare(LATER if place == "waits" else 0, 1, "old")
    batch.schedule([holder])
    bring(hand, place)

    job = way(on(queue, "replace"), 0, 1, "new")

    assert (job.id, job.replaced) == (holder.id, True)
    call = opened(hand.payload(holder), queue)
    assert (call.args, call.batch) == ([1, "new"], batch.callback.token)
    assert batch.left() == 1
    assert job.cancel()
    assert batch.left() == 0
    assert batch.callback.refresh() is State.DUE


def test_arguments_that_read_like_what_follows_are_replaced(
    queue: str, hand: Hand
) -> None:
    arguments = {"follow": {"then": []}, "batch": "x"}
    schedule(on(queue, "replace"), LATER, 1, arguments)

    job = schedule(on(queue, "replace"), LATER, 1, arguments)

    assert (job.replaced, job.args) == (True, [1, arguments])
    assert opened(hand.payload(job), queue).follow is None


def test_calls_at_once_lose_nothing_that_follows(queue: str, hand: Hand) -> None:
    then = keeping(queue).prepare(0, 2)
    holder = schedule(keeping(queue).prepare(LATER, 1, "old").then(then))

    def calls() -> None:
        for n in range(40):
            schedule(on(queue, "replace"), LATER, 1, n)

    together(calls, calls, calls)

    call = opened(hand.payload(holder), queue)
    assert call.args == [1, 39]
    assert call.follow is not None
    assert [each.token for each in call.follow.then] == [then.token]


@ways
def test_what_follows_a_job_that_cannot_be_read_here_is_not_lost(
    queue: str, hand: Hand, settings: Any, way: Any
) -> None:
    then = keeping(queue).prepare(0, 2)
    holder = schedule(keeping(queue).prepare(LATER, 1, "old").then(then))
    before = hand.payload(holder)
    settings.SECRET_KEY = "another"

    with pytest.raises(MaybeScheduled, match="cannot be read here") as failed:
        way(on(queue, "replace"), LATER, 1, "new")

    assert len(failed.value.unsent) == 1
    assert hand.payload(holder) == before


@ways
def test_replacement_that_is_too_large_with_what_follows_is_refused(
    queue: str, hand: Hand, settings: Any, way: Any
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"MAX_PAYLOAD_BYTES": 2_000}
    then = keeping(queue).prepare(0, 2, "t" * 1_000)
    holder = schedule(keeping(queue).prepare(LATER, 1, "old").then(then))
    before = hand.payload(holder)

    with pytest.raises((EncodeError, MaybeScheduled), match="MAX_PAYLOAD_BYTES"):
        way(on(queue, "replace"), LATER, 1, "n" * 1_000)

    assert hand.payload(holder) == before


def test_held_job_of_a_paused_task_gets_the_arguments(queue: str, hand: Hand) -> None:
    first = schedule(on(queue, "replace"), 0, 1, "old")
    pause(queue, task=samples.anything)
    hand.hold_paused([hand.take()], samples.anything.name)

    job = schedule(on(queue, "replace"), 0, 1, "new")

    assert (job.id, job.replaced, job.args) == (first.id, True, [1, "new"])
    hand.hold_paused([hand.take()], samples.anything.name)
    assert get_job(first.id).args == [1, "new"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("per_call", [500, 2])
def test_duplicates_within_schedule_many_are_brought_together_in_order(
    queue: str,
    hand: Hand,
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
    per_call: int,
) -> None:
    monkeypatch.setattr(send_many, "most_in_a_call", lambda queue: per_call)
    task = on(queue, "replace")
    jobs = [task.prepare(LATER, n % 3, n) for n in range(30)]

    sent = asyncio.run(aschedule_many(jobs)) if is_async else schedule_many(jobs)

    assert [job.created for job in sent] == [n < 3 for n in range(30)]
    assert [job.replaced for job in sent] == [n >= 3 for n in range(30)]
    assert len(hand.tokens()) == 3
    for n in range(3):
        assert get_job(sent[n].id).args == [n, 27 + n]


@pytest.mark.parametrize("is_async", [False, True])
def test_last_of_schedule_many_stays_if_a_worker_claims_the_holder_meanwhile(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(send_many, "most_in_a_call", lambda queue: 2)
    task = on(queue, "replace")

    def jobs() -> Iterator[Job[Any]]:
        for n in range(6):
            if n == 5:
                # The second call has been made, so one of its jobs has met the first.
                wait_until(lambda: len(hand.tokens()) >= 2, description="two wait")
                hand.take()
            yield task.prepare(0, 1, n) if n % 2 else task.prepare(LATER, n, n)

    sent = asyncio.run(aschedule_many(jobs())) if is_async else schedule_many(jobs())

    assert get_job(sent[1].id).state is State.RUNNING
    assert get_job(sent[5].id).args == [1, 5]


@pytest.mark.parametrize("is_async", [False, True])
def test_schedule_many_that_a_full_queue_stops_names_what_it_has_not_sent(
    queue: str,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
) -> None:
    monkeypatch.setattr(send_many, "most_in_a_call", lambda queue: 2)
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: {"MAX_JOBS": 3}}}
    jobs = [on(queue, "replace").prepare(LATER, n) for n in range(8)]

    with pytest.raises(QueueFull) as failed:
        asyncio.run(aschedule_many(jobs)) if is_async else schedule_many(jobs)

    assert failed.value.scheduled == jobs[:2]
    assert failed.value.unsent == jobs[2:]
    assert failed.value.unknown == []


@pytest.mark.django_db(transaction=True)
def test_commit_replaces_what_is_there_by_then(queue: str, hand: Hand) -> None:
    task = on(queue, "replace", on_commit=True)
    with transaction.atomic():
        first = schedule(task, LATER, 1, "first")
        second = schedule(task, LATER, 1, "second")
        assert first.id != second.id
        assert hand.tokens() == []

    assert (first.created, second.created, second.replaced) == (True, False, True)
    assert second.id == first.id
    assert get_job(first.id).args == [1, "second"]


def test_replacement_is_no_new_job_of_a_full_queue(
    queue: str, hand: Hand, settings: Any
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: {"MAX_JOBS": 1}}}
    task = on(queue, ("replace", "postpone"))
    schedule(task, LATER, 1, "old")

    assert schedule(task, LATER, 1, "new").replaced
    with pytest.raises(QueueFull):
        schedule(task, LATER, 2)


def test_job_behind_another_is_a_new_job_of_a_full_queue(
    queue: str, hand: Hand, settings: Any
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: {"MAX_JOBS": 1}}}
    task = on(queue, "replace")
    schedule(task, 0, 1, "old")
    hand.take()

    with pytest.raises(QueueFull) as refused:
        schedule(task, 0, 1, "new")

    assert len(refused.value.unsent) == 1


@pytest.mark.parametrize("codec", ["StringCodec", "Kryo5Codec", None])
def test_replacement_on_a_shared_queue_is_written_as_its_codec_writes(
    queue: str, hand: Hand, settings: Any, codec: str | None
) -> None:
    options = {"REDISSON": "3.52.0"} | ({"CODEC": codec} if codec else {})
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: options}}
    first = schedule(on(queue, "replace"), LATER, 1, "old")

    job = schedule(on(queue, "replace"), LATER, 1, "new")

    assert (job.id, job.args) == (first.id, [1, "new"])
    assert hand.client.llen(hand.keys.queue.delay_queue) == 1
    assert hand.client.lrange(hand.keys.queue.delay_queue, 0, -1) == hand.client.zrange(
        hand.keys.queue.timeout_set, 0, -1
    )


# Costs.


def commands(hand: Hand, do: Callable[[], object]) -> int:
    """Return how many commands the queue's server ran, those of scripts included."""
    hand.node.config_resetstat()
    do()
    stats = hand.node.info("commandstats")
    return sum(
        each["calls"]
        for name, each in stats.items()
        if name not in ("cmdstat_config|resetstat", "cmdstat_info")
    )


def test_first_call_of_a_key_takes_what_it_took(queue: str, hand: Hand) -> None:
    for n in range(2):
        for mode in ("keep", ("replace", "postpone")):
            schedule(on(queue, mode), LATER, f"warm {n} {mode}")

    costs = {
        str(mode): commands(
            hand, lambda mode=mode: schedule(on(queue, mode), LATER, str(mode))
        )
        for mode in ("keep", "replace", "postpone")
    }

    assert len(set(costs.values())) == 1, costs


# Lost replies, and others who do the same.


@pytest.fixture
def proxied(
    settings: Any, queue: str, private_server: Callable[..., Server]
) -> Iterator[tuple[Proxy, Hand]]:
    server = private_server()
    proxy = Proxy(server)
    settings.DELAYQ = {"CONNECTION": proxy.url, "QUEUES": {queue: {}}}
    yield proxy, Hand(server.client(), queue)
    proxy.close()


@ways
def test_lost_reply_to_a_replacement_is_asked_for_again(
    queue: str, proxied: tuple[Proxy, Hand], way: Any
) -> None:
    proxy, _ = proxied
    task = on(queue, ("replace", "postpone"))
    first = way(task, LATER, 1, "old")
    way(task, LATER, 1, "older")
    lost = proxy.lose_reply_to(b"later")

    try:
        job = way(task, 2 * LATER, 1, "new")
    except MaybeScheduled as error:
        (job,) = schedule_many(error.unsent)

    assert lost.is_set()
    assert (job.id, job.created, job.replaced) == (first.id, False, True)
    assert get_job(first.id).args == [1, "new"]


def test_replacement_sent_again_after_it_ran_does_not_run_again(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    task = on(queue, ("replace", "postpone"))
    first = schedule(task, 0, 1, "old")
    schedule(task, 0, 1, "older")
    lost = proxy.lose_reply_to(b"later", refuse=True)
    with pytest.raises(MaybeScheduled) as failed:
        schedule_many([task.prepare(0, 1, "new")])
    assert lost.is_set()
    (unsent,) = failed.value.unsent
    assert failed.value.unknown == [unsent]
    assert [call.args for call in hand.take_all()] == [[1, "new"]]
    proxy.is_refusing = False

    (job,) = schedule_many([unsent])

    assert (job.id, job.created, job.replaced) == (first.id, False, True)
    assert job.state is State.SUCCEEDED
    assert hand.tokens() == []


def test_request_that_never_arrived_leaves_the_job_as_it_was(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    task = on(queue, ("replace", "postpone"))
    first = schedule(task, LATER, 1, "old")
    schedule(task, LATER, 1, "older")
    proxy.lose(b"later", refuse=True)
    with pytest.raises(MaybeScheduled) as failed:
        schedule_many([task.prepare(LATER, 1, "new"), task.prepare(LATER, 2)])
    proxy.is_refusing = False
    assert get_job(first.id).args == [1, "older"]

    jobs = schedule_many(failed.value.unsent)

    assert (jobs[0].id, jobs[0].replaced) == (first.id, True)
    assert get_job(first.id).args == [1, "new"]
    assert len(hand.tokens()) == 2


@pytest.mark.parametrize("mode", REPLACES)
def test_two_clients_at_once_leave_one_job_with_the_arguments_of_one_of_them(
    queue: str, hand: Hand, mode: Any
) -> None:
    task = on(queue, mode)

    def call(who: str) -> Callable[[], None]:
        def calls() -> None:
            for n in range(150):
                schedule(task, LATER, 1, who, n)

        return calls

    together(*map(call, "abc"))

    (token,) = hand.tokens()
    (_, who, n) = get_job(f"{queue}:{token}").args
    assert (who in "abc", n) == (True, 149)


def test_worker_that_claims_meanwhile_runs_the_last_arguments_last(
    server: Server | ExternalServer, queue: str, hand: Hand
) -> None:
    task, count = on(queue, "replace"), 300
    ran: list[list[Any]] = []
    is_over = threading.Event()

    def calls() -> None:
        try:
            for n in range(count):
                schedule(task, 0, 1, n)
        finally:
            is_over.set()

    def works() -> None:
        with server.client() as client:
            worker = Hand(client, queue)
            while (
                not is_over.is_set()
                or worker.tokens()
                or client.exists(worker.keys.returned)
            ):
                claimed = worker.claim(10)
                assert len(claimed) <= 1, "two of one key run at once"
                for leased in claimed:
                    ran.append(opened(leased.payload, queue).args)
                    worker.succeed(leased, keep=False)

    together(calls, works)

    numbers = [args[1] for args in ran]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == count - 1
    assert not hand.client.exists(hand.keys.unique)


def test_holder_that_changes_again_and_again_is_an_error_that_loses_nothing(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = on(queue, "replace")
    schedule(task, LATER, 1, "old")
    real = replace_calls.replace
    monkeypatch.setattr(
        replace_calls,
        "replace",
        lambda keys, holder, *args, **kw: real(keys, "?" * 22, *args, **kw),
    )

    with pytest.raises(MaybeScheduled, match="20 times") as failed:
        schedule(task, LATER, 1, "new")
    with pytest.raises(MaybeScheduled, match="20 times") as failed_too:
        schedule_many([task.prepare(LATER, 1, "new"), task.prepare(LATER, 2)])

    monkeypatch.undo()
    assert [job.created for job in failed_too.value.scheduled] == [True]
    (job,) = schedule_many(failed.value.unsent)
    assert (job.replaced, job.args) == (True, [1, "new"])


# What is wrong.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_duplicate": "replace"}, "on_duplicate='replace': without unique="),
        ({"on_duplicate": "debounce", "unique": True}, "on_duplicate='debounce': give"),
        ({"on_duplicate": (), "unique": True}, r"on_duplicate=\(\): give"),
        ({"on_duplicate": None, "unique": True}, "on_duplicate=None: give"),
        ({"on_duplicate": ["replace"], "unique": True}, "on_duplicate="),
        ({"on_duplicate": ("postpone", "sooner"), "unique": True}, "on_duplicate="),
        ({"on_duplicate": ("keep", "replace"), "unique": True}, "on_duplicate="),
        ({"max_wait": 5}, "max_wait=5: it bounds"),
        ({"max_wait": 5, "unique": True, "on_duplicate": "replace"}, "max_wait=5: it"),
        ({"max_wait": 5, "unique": True, "on_duplicate": "sooner"}, "max_wait=5: it"),
        ({"max_wait": -1, "unique": True, "on_duplicate": "postpone"}, "max_wait=-1"),
        ({"max_wait": 0, "unique": True, "on_duplicate": "postpone"}, "max_wait=0"),
        ({"max_wait": "5", "unique": True, "on_duplicate": "postpone"}, "max_wait="),
    ],
)
def test_options_that_make_no_sense_are_refused_by_the_decorator(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTask, match=message):
        delayed_task(name="wrong", **options)
    with pytest.raises(InvalidTask, match=message):
        samples.anything.using(**options)


def test_call_that_is_not_unique_says_what_becomes_of_its_option() -> None:
    task = samples.anything.using(unique=True, on_duplicate="replace")

    with pytest.raises(InvalidTask, match="on_duplicate='keep'"):
        task.using(unique=False)
    assert task.using(unique=False, on_duplicate="keep").options == TaskOptions()


def test_handler_has_no_duplicates(queue: str) -> None:
    with pytest.raises(InvalidTask, match="have no unique key"):
        queue_handler(queue, unique=True, on_duplicate="replace")
