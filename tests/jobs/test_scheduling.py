"""From a call to the server: what is stored, when it is due, and what becomes of many at once."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace
from redis.exceptions import ConnectionError

from django_delayq import (
    InvalidArguments,
    InvalidDelay,
    InvalidTask,
    Job,
    MaybeScheduled,
    QueueNotFound,
    State,
    aschedule,
    aschedule_many,
    clock,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.core import store as store_calls
from django_delayq.jobs import send_many as sending_many
from django_delayq.wire import signatures
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.queues.proxy import Proxy
from tests.servers import LASTING, Server
from tests.signed import opened, sealed

HOUR_MS = LATER * 1_000


def on(queue: str) -> Any:
    return samples.add.using(queue=queue)


# Without a database.

PROGRAM = """
import json, sys
import django
from django.conf import settings
from django.db import connections

delayq, databases = map(json.loads, sys.argv[1:])
settings.configure(
    SECRET_KEY="of a test", INSTALLED_APPS=["django_delayq"], DELAYQ=delayq, DATABASES=databases
)
django.setup()
from django_delayq import schedule, schedule_many
from tests.jobs.samples import add

queue, _ = delayq["QUEUES"]
for task in (add.using(queue=queue), add.using(queue=queue, on_commit=True)):
    jobs = [schedule(task, 60, 1), *schedule_many([task.prepare(60, 2)])]
    assert {job.state for job in jobs} == {"scheduled"}
assert connections["default"].connection is None
"""


@pytest.mark.parametrize(
    "databases",
    [{}, {"default": {"ENGINE": "django.db.backends.dummy"}}],
    ids=["none", "dummy"],
)
def test_project_without_a_database_schedules(
    settings: Any, queue: str, hand: Hand, databases: Any
) -> None:
    without = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    arguments = map(json.dumps, (settings.DELAYQ, databases))

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *arguments],
        env=without,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(hand.tokens()) == 4


# One job.


def test_schedule_stores_the_call_and_returns_the_job(queue: str, hand: Hand) -> None:
    job = schedule(on(queue), LATER, 1, note="x")

    assert job.queue == queue
    assert job.id == f"{queue}:{job.token}"
    assert len(job.token) == signatures.TOKEN_LENGTH
    assert (job.state, job.created, job.attempts) == (State.SCHEDULED, True, 0)
    assert (job.task, job.args, job.kwargs) == (samples.add.name, [1], {"note": "x"})
    body = b'{"task":"tests.jobs.samples.add","args":[1],"kwargs":{"note":"x"}}'
    assert hand.payload(job) == sealed(body, queue, job.token)


async def _aschedule(job: Job[Any]) -> Job[Any]:
    return await aschedule(job)


@pytest.mark.parametrize(
    "send", [schedule, lambda job: asyncio.run(_aschedule(job))], ids=["sync", "async"]
)
def test_one_prepared_job_is_sent(queue: str, hand: Hand, send: Any) -> None:
    job = on(queue).prepare(LATER, 1)
    cancelled = on(queue).prepare(LATER, 2)
    cancelled.cancel()

    assert send(job) is job
    # Sent again, it is not stored twice.
    assert send(job) is job
    assert send(cancelled) is cancelled

    assert job.state is State.SCHEDULED
    assert cancelled.state is State.CANCELLED
    assert hand.tokens() == [job.token]


async def test_prepared_job_takes_no_delay_and_no_arguments(queue: str) -> None:
    job = on(queue).prepare(LATER, 1)
    call: Any = schedule
    acall: Any = aschedule

    for more in ({"args": (5,)}, {"kwargs": {"note": "x"}}):
        args, kwargs = more.get("args", ()), more.get("kwargs", {})
        with pytest.raises(InvalidTask, match="has its delay and its arguments"):
            call(job, *args, **kwargs)
        with pytest.raises(InvalidTask, match="has its delay and its arguments"):
            await acall(job, *args, **kwargs)
    assert job.is_unsent


@pytest.mark.parametrize("named", [False, True])
async def test_schedule_calls_the_method_that_a_test_has_patched(named: bool) -> None:
    task = samples.add.name if named else samples.add

    with (
        mock.patch.object(samples.add, "schedule") as patched,
        mock.patch.object(samples.add, "aschedule") as apatched,
    ):
        schedule(task, LATER, 1, note="x")
        await aschedule(task, LATER, 2)

    patched.assert_called_once_with(LATER, 1, note="x")
    apatched.assert_called_once_with(LATER, 2)


@pytest.mark.parametrize(
    ("delay", "least_ms", "most_ms"),
    [
        (LATER, HOUR_MS, HOUR_MS),
        (0.5, 500, 500),
        (Decimal("0.0001"), 1, 1),
        (timedelta(minutes=2), 120_000, 120_000),
        (0, 0, 0),
        (timedelta(0), 0, 0),
    ],
)
def test_relative_delay_counts_from_the_servers_clock(
    queue: str, hand: Hand, delay: Any, least_ms: int, most_ms: int
) -> None:
    before = server_ms(hand)
    job = schedule(on(queue), delay, 1)
    after = server_ms(hand)

    assert job.start_time_ms is not None
    assert before + least_ms <= job.start_time_ms <= after + most_ms + 1
    assert hand.start_times() == {job.token: job.start_time_ms}
    assert job.start_time == datetime.fromtimestamp(job.start_time_ms / 1000, UTC)


def server_ms(hand: Hand) -> int:
    seconds, microseconds = hand.client.time()
    return int(seconds) * 1_000 + int(microseconds) // 1_000


def test_datetime_is_the_start_time(queue: str) -> None:
    moment = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)

    assert schedule(on(queue), moment, 1).start_time == moment


def test_datetime_in_the_past_means_now(queue: str, hand: Hand) -> None:
    before = server_ms(hand)

    job = schedule(on(queue), datetime(2001, 1, 1, tzinfo=UTC), 1)

    assert job.start_time_ms is not None
    assert before <= job.start_time_ms <= server_ms(hand) + 1
    assert hand.take().token == job.token


def test_delay_zero_goes_through_the_timeout_set_like_any_other(
    queue: str, hand: Hand
) -> None:
    job = schedule(on(queue), 0, 1)

    assert hand.tokens() == [job.token]


@pytest.mark.parametrize(
    "call",
    [
        lambda task, *args: schedule(task, *args),
        lambda task, *args: task.schedule(*args),
        lambda task, *args: schedule_many([task.prepare(*args)])[0],
        lambda task, *args: asyncio.run(aschedule(task, *args)),
        lambda task, *args: asyncio.run(task.aschedule(*args)),
        lambda task, *args: asyncio.run(_first(aschedule_many([task.prepare(*args)]))),
    ],
    ids=["schedule", "method", "many", "aschedule", "amethod", "amany"],
)
def test_every_way_to_schedule_stores_the_same(
    queue: str, hand: Hand, call: Callable[..., Job[int]]
) -> None:
    job = call(on(queue), LATER, 5)

    assert (job.state, job.created) == (State.SCHEDULED, True)
    assert hand.start_times() == {job.token: job.start_time_ms}
    assert opened(hand.payload(job), queue).args == [5]


async def _first(jobs: Any) -> Any:
    return (await jobs)[0]


def test_task_can_be_named(settings: Any, queue: str) -> None:
    settings.DELAYQ = settings.DELAYQ | {
        "QUEUES": settings.DELAYQ["QUEUES"] | {"default": {}}
    }
    job = schedule("tests.jobs.samples.add", LATER, 1)

    assert job.queue == "default"
    assert job.cancel()


def test_parameters_of_the_task_may_be_named_like_ours(queue: str, hand: Hand) -> None:
    task = samples.anything.using(queue=queue)

    schedule(task, 0, 1, delay=2, task=3, self=4, kwargs=5)

    (envelope,) = hand.take_all()
    assert (envelope.args, envelope.kwargs) == (
        [1],
        {"delay": 2, "task": 3, "self": 4, "kwargs": 5},
    )


def test_ids_are_never_the_same_twice(queue: str) -> None:
    tokens = {on(queue).prepare(0, 1).token for _ in range(2_000)}

    assert len(tokens) == 2_000


# What goes with a job.


def test_options_of_the_call_go_with_its_envelope_and_others_do_not(
    queue: str, hand: Hand
) -> None:
    task = on(queue).using(max_attempts=1, time_limit=timedelta(seconds=2), expires=9)

    schedule(task, 0, 1)
    schedule(on(queue), 0, 1)

    with_options, plain = hand.take_all()
    assert with_options.options == {
        "max_attempts": 1,
        "time_limit": 2.0,
        "expires": 9.0,
    }
    assert plain.options is None


def test_job_found_by_its_id_tells_its_options(queue: str) -> None:
    job = schedule(on(queue).using(max_attempts=1), LATER, 1)

    assert job.options == {"max_attempts": 1}
    assert get_job(job.id).options == {"max_attempts": 1}


@pytest.mark.parametrize(
    ("options", "listed", "first_byte"),
    [
        ({}, 0, b"\x08"),
        ({"INSERTION_LIST": True}, 1, b"\x08"),
        ({"REDISSON": "3.16.6", "CODEC": "StringCodec"}, 1, b"\xd9"),
        (
            {"REDISSON": "3.16.6", "CODEC": "StringCodec", "INSERTION_LIST": False},
            0,
            b"\xd9",
        ),
        ({"FRAME": "dLc0"}, 0, b"\xd9"),
    ],
)
def test_settings_of_the_queue_decide_frame_and_list(
    settings: Any,
    queue: str,
    hand: Hand,
    options: dict[str, Any],
    listed: int,
    first_byte: bytes,
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: options}}

    schedule(on(queue), LATER, 1)

    (frame,) = hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    assert frame[:1] == first_byte
    assert hand.client.llen(hand.keys.queue.delay_queue) == listed


@pytest.mark.parametrize(
    "codec", ["StringCodec", "JsonJacksonCodec", "TypedJsonJacksonCodec", None]
)
def test_job_on_a_shared_queue_is_written_with_its_codec_and_found_again(
    settings: Any, queue: str, hand: Hand, codec: str | None
) -> None:
    options = {"REDISSON": "3.27.2"} | ({"CODEC": codec} if codec else {})
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: options}}

    job = schedule(on(queue), LATER, 1, note="ü")

    found = get_job(job.id)
    assert (found.task, found.args, found.kwargs) == (
        samples.add.name,
        [1],
        {"note": "ü"},
    )
    assert found.cancel()


# Many jobs.


def test_many_jobs_are_stored_in_their_order(queue: str, hand: Hand) -> None:
    jobs = [on(queue).prepare(0, n) for n in range(1_700)]

    returned = schedule_many(jobs)

    assert returned == jobs
    assert {job.state for job in jobs} == {State.SCHEDULED}
    assert [envelope.args for envelope in hand.take_all()] == [
        [n] for n in range(1_700)
    ]


async def test_many_jobs_are_stored_in_their_order_on_the_event_loop(
    queue: str, hand: Hand
) -> None:
    jobs = [on(queue).prepare(LATER, n) for n in range(1_200)]

    assert await aschedule_many(jobs) == jobs

    assert sorted(hand.tokens()) == sorted(job.token for job in jobs)


def test_many_jobs_of_several_queues_go_where_they_belong(
    queue: str, hand: Hand
) -> None:
    other = Hand(hand.client, f"{queue}-2")
    jobs = [on(queue if n % 3 else f"{queue}-2").prepare(0, n) for n in range(90)]

    schedule_many(jobs)

    assert [item.args[0] for item in hand.take_all()] == [n for n in range(90) if n % 3]
    assert [item.args[0] for item in other.take_all()] == list(range(0, 90, 3))


def test_many_jobs_may_come_from_a_generator(queue: str, hand: Hand) -> None:
    returned = schedule_many(on(queue).prepare(0, n) for n in range(1_300))

    assert len(returned) == 1_300
    assert len(hand.take_all()) == 1_300


def test_generator_of_jobs_may_talk_to_the_server_itself(
    queue: str, hand: Hand
) -> None:
    """While its jobs are on their way: an answer to one must not be taken for that to another."""
    marker = schedule(on(queue), LATER, -1)

    def jobs() -> Iterator[Job[int]]:
        for n in range(2_400):
            if n % 400 == 399:
                assert get_job(marker.id).args == [-1]
                assert schedule(on(f"{queue}-2"), 0, n).state is State.SCHEDULED
            yield on(queue).prepare(0, n)

    schedule_many(jobs())

    assert [item.args[0] for item in hand.take_all()] == list(range(2_400))


def test_no_jobs_are_no_trouble(queue: str) -> None:
    assert schedule_many([]) == []
    assert asyncio.run(aschedule_many([])) == []


def test_job_given_twice_is_stored_once(queue: str, hand: Hand) -> None:
    job = on(queue).prepare(0, 1)

    schedule_many([job, job])
    schedule_many([job])

    assert len(hand.tokens()) == 1


async def test_job_given_twice_is_stored_once_on_the_event_loop(
    queue: str, hand: Hand
) -> None:
    job = on(queue).prepare(0, 1)

    await aschedule_many([job, job])
    await aschedule_many([job])

    assert len(hand.tokens()) == 1


def test_large_payloads_go_in_small_calls(
    settings: Any, queue: str, hand: Hand
) -> None:
    task = samples.anything.using(queue=queue)
    jobs = [task.prepare(LATER, "x" * 400_000) for _ in range(12)]
    hand.node.config_resetstat()

    schedule_many(jobs)

    calls = hand.node.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert 4 <= calls <= 7
    assert hand.client.zcard(hand.keys.queue.timeout_set) == 12


def test_job_that_was_not_prepared_cannot_be_sent(queue: str) -> None:
    found = get_job(schedule(on(queue), LATER, 1).id)

    with pytest.raises(InvalidTask, match=r"was not made by prepare\(\)"):
        schedule_many([found])


def test_bad_call_among_many_is_raised_when_it_is_prepared(
    queue: str, hand: Hand
) -> None:
    with pytest.raises(InvalidArguments):
        schedule_many([on(queue).prepare(0, n) for n in ([1] * 10 + [object()])])

    assert hand.tokens() == []


def test_failing_generator_leaves_a_connection_that_works(
    queue: str, hand: Hand
) -> None:
    def jobs() -> Iterator[Job[int]]:
        for n in range(1_600):
            yield on(queue).prepare(LATER, n)
        raise RuntimeError("half of it")

    with pytest.raises(MaybeScheduled, match="half of it"):
        schedule_many(jobs())

    job = schedule(on(queue), LATER, 5)
    assert get_job(job.id) == job


@pytest.mark.parametrize("is_async", [False, True])
def test_failing_generator_is_told_with_what_is_stored(
    queue: str, hand: Hand, is_async: bool
) -> None:
    made: list[Job[int]] = []

    def jobs() -> Iterator[Job[int]]:
        for n in range(1_600):
            made.append(on(queue).prepare(LATER, n))
            yield made[-1]
        raise RuntimeError("half of it")

    with pytest.raises(MaybeScheduled) as failure:
        send_many(jobs(), is_async)

    assert isinstance(failure.value.__cause__, RuntimeError)
    stored = set(hand.tokens())
    assert {job.token for job in failure.value.scheduled} == stored
    assert failure.value.scheduled + failure.value.unsent == made
    assert len(stored) == 1_500
    assert failure.value.unknown == []
    assert "1500 of 1600 jobs are scheduled, 100 are not" in str(failure.value)
    schedule_many(failure.value.unsent)
    assert len(hand.tokens()) == 1_600


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_generator_that_forks_costs_its_child_the_stream_and_its_parent_nothing(
    queue: str, hand: Hand
) -> None:
    prepared = [on(queue).prepare(LATER, n) for n in range(3_000)]
    child = -1

    def jobs() -> Iterator[Job[int]]:
        nonlocal child
        for n, job in enumerate(prepared):
            if n == 2_200:
                child = os.fork()
                if child:
                    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            yield job

    status = 1
    try:
        try:
            stored = schedule_many(jobs())
        except MaybeScheduled as error:
            told = "".join([str(error), *error.__cause__.__notes__])  # type: ignore[union-attr]
            is_told = "was forked" in told and "belongs to the parent" in told
            is_all = error.scheduled + error.unsent == prepared
            other = schedule(on(queue), LATER, 5)
            status = int(not is_told or not is_all or get_job(other.id) != other)
    finally:
        if child == 0:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stored == prepared
    assert len(hand.tokens()) == 3_001


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_error_of_a_call_that_is_not_the_servers_passes_through_with_a_note(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch, is_async: bool, at: int
) -> None:
    jobs = [on(queue).prepare(LATER, n) for n in range(1_000)]
    make, made = sending_many.storing_all, []

    def read(reply: Any) -> Any:
        raise RuntimeError("not of the server")

    def make_one_that_fails(*args: Any) -> Any:
        made.append(make(*args))
        return replace(made[-1], read=read) if len(made) == at + 1 else made[-1]

    monkeypatch.setattr(sending_many, "storing_all", make_one_that_fails)

    with pytest.raises(RuntimeError, match="not of the server") as caught:
        send_many(jobs, is_async)

    note = f"django-delayq: {500 * at} jobs are scheduled, 500 may be"
    assert caught.value.__notes__ == [note]


def test_job_that_was_not_prepared_is_told_with_what_is_stored(
    queue: str, hand: Hand
) -> None:
    jobs = [on(queue).prepare(LATER, n) for n in range(600)]
    found = get_job(schedule(on(queue), LATER, 1).id)

    with pytest.raises(MaybeScheduled) as failure:
        schedule_many([*jobs, found])

    assert isinstance(failure.value.__cause__, InvalidTask)
    assert failure.value.scheduled == jobs[:500]
    assert failure.value.unsent == jobs[500:]


def test_what_is_no_job_is_told_with_what_is_stored(queue: str, hand: Hand) -> None:
    """It is also what comes behind: nothing that is asked of a job may be asked of it."""
    jobs = [on(queue).prepare(LATER, n) for n in range(600)]
    mixed: list[Any] = [*jobs, 1, on(queue), 2]

    with pytest.raises(MaybeScheduled, match="1 is not a job") as failure:
        schedule_many(mixed)

    assert isinstance(failure.value.__cause__, InvalidTask)
    assert failure.value.scheduled == jobs[:500]
    assert failure.value.unsent == jobs[500:]
    schedule_many(failure.value.unsent)
    assert len(hand.tokens()) == 600


def test_what_is_no_job_is_refused_by_name(queue: str, hand: Hand) -> None:
    tasks: list[Any] = [on(queue), on(queue)]

    with pytest.raises(InvalidTask, match=r"is not a job.*prepare"):
        schedule_many(tasks)

    assert hand.tokens() == []


def test_interrupt_tells_how_many_are_stored(queue: str) -> None:
    def jobs() -> Iterator[Job[int]]:
        for n in range(1_600):
            yield on(queue).prepare(LATER, n)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupt:
        schedule_many(jobs())

    assert "jobs are scheduled" in "".join(interrupt.value.__notes__)


def test_order_of_many_jobs_with_one_start_time_is_kept_among_calls(
    queue: str, hand: Hand
) -> None:
    moment = datetime.now(UTC) + timedelta(milliseconds=300)
    for part in range(3):
        schedule_many([on(queue).prepare(moment, 10 * part + n) for n in range(10)])
    time.sleep(0.4)

    assert [item.args[0] for item in hand.take_all()] == list(range(30))


# Lost replies, and a server that dies.


@pytest.fixture
def proxied(
    settings: Any, queue: str, private_server: Callable[..., Server]
) -> Iterator[tuple[Proxy, Hand]]:
    """A server of the test's own behind a line that fails on demand, and a hand at the server itself."""
    server = private_server(**LASTING)
    proxy = Proxy(server)
    settings.DELAYQ = {
        "CONNECTION": proxy.url,
        "QUEUES": {queue: {}, f"{queue}-2": {}},
    }
    yield proxy, Hand(server.client(), queue)
    proxy.close()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_lost_reply_is_asked_for_again_and_the_job_stored_once(
    queue: str, proxied: tuple[Proxy, Hand], times: int, is_async: bool
) -> None:
    proxy, hand = proxied
    schedule(on(queue), LATER, 0).cancel()
    proxy.lose_reply_to(b"tests.jobs.samples.add", times)

    if is_async:
        job = asyncio.run(aschedule(on(queue), LATER, 1))
    else:
        job = schedule(on(queue), LATER, 1)

    assert hand.start_times() == {job.token: job.start_time_ms}


def test_request_that_never_arrived_is_sent_again(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    schedule(on(queue), LATER, 0).cancel()
    proxy.lose(b"tests.jobs.samples.add")

    job = schedule(on(queue), LATER, 1)

    assert hand.start_times() == {job.token: job.start_time_ms}


def test_server_that_stays_away_is_an_error_that_says_what_may_be(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    schedule(on(queue), LATER, 0).cancel()
    proxy.lose_reply_to(b"tests.jobs.samples.add", refuse=True)
    job = on(queue).prepare(LATER, 1)

    with pytest.raises(MaybeScheduled) as lost:
        schedule_many([job])

    assert lost.value.unsent == [job]
    assert job.state is State.UNCOMMITTED
    assert hand.tokens() == [job.token]
    proxy.is_refusing = False
    assert schedule_many(lost.value.unsent) == [job]
    assert hand.tokens() == [job.token]


def test_job_that_may_be_stored_is_cancelled_on_the_server(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    schedule(on(queue), LATER, 0).cancel()
    proxy.lose_reply_to(b"tests.jobs.samples.add", refuse=True)
    job = on(queue).prepare(LATER, 1)
    with pytest.raises(MaybeScheduled):
        schedule_many([job])
    proxy.is_refusing = False

    assert job.cancel()

    assert hand.tokens() == []
    assert job.state is State.CANCELLED


def test_lost_reply_in_the_middle_of_many_loses_none_and_stores_none_twice(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    jobs = [on(queue).prepare(LATER, n) for n in range(4_000)]
    proxy.lose_reply_to(jobs[2_100].token.encode())

    unsent: list[Any] = jobs
    try:
        schedule_many(jobs)
        unsent = []
    except MaybeScheduled as error:
        unsent = error.unsent
        assert unsent == jobs[len(jobs) - len(unsent) :]
    schedule_many(unsent)

    tokens = hand.tokens()
    assert len(tokens) == 4_000
    assert set(tokens) == {job.token for job in jobs}


@pytest.mark.parametrize("is_async", [False, True])
def test_server_that_dies_in_the_middle_names_the_jobs_not_known_to_be_stored(
    settings: Any, queue: str, private_server: Callable[..., Server], is_async: bool
) -> None:
    server = private_server(**LASTING)
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {queue: {}}}
    jobs = [on(queue).prepare(LATER, n) for n in range(3_000)]

    def dying() -> Iterator[Job[int]]:
        for n, job in enumerate(jobs):
            if n == 1_900:
                server.kill()
            yield job

    def send() -> None:
        if is_async:
            asyncio.run(aschedule_many(dying()))
        else:
            schedule_many(dying())

    with pytest.raises(MaybeScheduled) as lost:
        send()

    unsent = lost.value.unsent
    assert unsent == jobs[-len(unsent) :]
    assert 1_100 <= len(unsent) < 3_000
    assert f"{3_000 - len(unsent)} of 3000 jobs are scheduled" in str(lost.value)
    server.start()
    stored = set(Hand(server.client(), queue).tokens())
    assert {job.token for job in jobs[: -len(unsent)]} <= stored, "what it said is kept"
    schedule_many(unsent)
    tokens = Hand(server.client(), queue).tokens()
    assert len(tokens) == 3_000
    assert set(tokens) == {job.token for job in jobs}


# What cannot be scheduled: an error that says what and what to do, and nothing stored.


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(-1), "5", None, float("nan")])
def test_bad_delay(queue: str, hand: Hand, delay: Any) -> None:
    with pytest.raises(InvalidDelay):
        schedule(on(queue), delay, 1)

    assert hand.tokens() == []


def test_naive_datetime(queue: str) -> None:
    with pytest.raises(InvalidDelay, match="needs a time zone"):
        schedule(on(queue), datetime(2030, 1, 1), 1)


def test_unknown_queue_is_told_with_those_there_are(queue: str) -> None:
    with pytest.raises(QueueNotFound) as refused:
        schedule(samples.add.using(queue=queue + "x"), 0, 1)

    assert f"queue '{queue}x' is not configured" in str(refused.value)
    assert f"Did you mean '{queue}'?" in str(refused.value)


@pytest.mark.parametrize(
    ("task", "advice"),
    [
        (5, "pass the task itself, without calling it"),
        (None, "pass the task itself, without calling it"),
        ([samples.add], "pass the task itself, without calling it"),
        (print, "write a function in tasks.py that calls it, and decorate that"),
        (lambda: None, "write a function in tasks.py that calls it, and decorate that"),
        (samples.add.function, "; decorate the function with @delayed_task"),
    ],
    ids=["number", "None", "list", "builtin", "lambda", "function"],
)
def test_what_is_no_task_is_refused_with_advice(
    queue: str, task: Any, advice: str
) -> None:
    with pytest.raises(InvalidTask, match=advice):
        schedule(task, 0, 1)
    with pytest.raises(InvalidTask, match=advice):
        asyncio.run(aschedule(task, 0, 1))


def test_payload_that_is_too_large_is_told_with_both_sizes(
    settings: Any, queue: str, hand: Hand
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"MAX_PAYLOAD_BYTES": 200}
    task = samples.anything.using(queue=queue)
    schedule(task, LATER, "x" * 50)

    with pytest.raises(Exception, match=r"has \d+ bytes, more than .* 200;"):
        schedule(task, LATER, "x" * 150)

    assert len(hand.tokens()) == 1


# Repeats.


def send_many(jobs: Iterable[Job[Any]], is_async: bool) -> list[Job[Any]]:
    return asyncio.run(aschedule_many(jobs)) if is_async else schedule_many(jobs)


@pytest.fixture
def lost(queue: str, proxied: tuple[Proxy, Hand]) -> Job[int]:
    """A job that is stored, due, and whose sender had no reply."""
    proxy, _ = proxied
    schedule(on(queue), LATER, 0).cancel()
    proxy.lose_reply_to(b"tests.jobs.samples.add", refuse=True)
    job: Job[int] = on(queue).prepare(0, 1)
    with pytest.raises(MaybeScheduled) as failure:
        schedule_many([job])
    assert failure.value.unknown == failure.value.unsent == [job]
    assert "1 may be" in str(failure.value)
    proxy.is_refusing = False
    return job


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("succeed", State.SUCCEEDED),
        ("cancel", State.CANCELLED),
        ("take", State.UNKNOWN),
        ("wait", State.SCHEDULED),
    ],
)
def test_repeat_tells_what_became_of_the_job(
    proxied: tuple[Proxy, Hand],
    lost: Job[int],
    end: str,
    state: State,
    is_async: bool,
) -> None:
    _, hand = proxied
    if end == "cancel":
        assert get_job(lost.id).cancel()
    elif end != "wait":
        leased = hand.take()
        if end == "succeed":
            hand.succeed(leased, keep=False)

    sent = send_many([lost], is_async)

    assert sent == [lost]
    assert lost.state is state
    assert len(hand.tokens()) == (1 if end == "wait" else 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_repeat_that_the_server_could_not_tell_is_refused(
    queue: str, proxied: tuple[Proxy, Hand], lost: Job[int], is_async: bool
) -> None:
    _, hand = proxied
    hand.succeed(hand.take(), keep=False)
    # As it is half a minute later.
    hand.client.delete(hand.keys.ended)
    assert lost.draft.sent_ms is not None
    lost.draft.sent_ms -= 30_000
    other = on(queue).prepare(LATER, 2)

    with pytest.raises(MaybeScheduled, match=r"were sent more than 20 s ago") as late:
        send_many([lost, other], is_async)

    assert (late.value.scheduled, late.value.unsent) == ([other], [lost])
    assert late.value.unknown == [lost]
    assert hand.tokens() == [other.token], "it would run a second time"
    assert lost.refresh() is State.MISSING


@pytest.mark.parametrize("is_async", [False, True])
def test_repeat_that_becomes_too_late_while_the_next_job_is_made_is_refused(
    queue: str,
    proxied: tuple[Proxy, Hand],
    lost: Job[int],
    is_async: bool,
) -> None:
    _, hand = proxied
    hand.succeed(hand.take(), keep=False)
    other = on(queue).prepare(LATER, 2)

    def slowly() -> Iterator[Job[int]]:
        yield lost
        # As it is half a minute later.
        hand.client.delete(hand.keys.ended)
        assert lost.draft.sent_ms is not None
        lost.draft.sent_ms -= 30_000
        yield other

    with pytest.raises(MaybeScheduled, match=r"were sent more than 20 s ago") as late:
        send_many(slowly(), is_async)

    assert (late.value.scheduled, late.value.unsent) == ([other], [lost])
    assert hand.tokens() == [other.token], "it would run a second time"


def test_repeat_after_the_machine_was_suspended_is_refused(
    queue: str,
    proxied: tuple[Proxy, Hand],
    lost: Job[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, hand = proxied
    hand.succeed(hand.take(), keep=False)
    hand.client.delete(hand.keys.ended)
    gettime = time.clock_gettime
    monkeypatch.setattr(
        "django_delayq.clock.time.clock_gettime",
        lambda which: gettime(which) + 3_600 * (which == clock._COUNTS_SUSPENSION),
    )

    with pytest.raises(MaybeScheduled, match=r"were sent more than 20 s ago"):
        schedule_many([lost])

    assert hand.tokens() == [], "it would run a second time"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("trouble", ["away", "full"])
def test_error_of_a_repeat_does_not_say_that_the_job_is_not_stored(
    queue: str,
    proxied: tuple[Proxy, Hand],
    lost: Job[int],
    trouble: str,
    is_async: bool,
) -> None:
    proxy, hand = proxied
    if trouble == "away":
        proxy.is_refusing = True
    else:
        hand.client.config_set("maxmemory", 1)

    with pytest.raises(MaybeScheduled) as again:
        send_many([lost, on(queue).prepare(LATER, 2)], is_async)

    assert again.value.unknown == [lost]
    assert again.value.__cause__ is not None
    notes = "\n".join(again.value.__cause__.__notes__)
    assert f"{lost.id} may be stored or not" in notes
    assert "not stored" not in notes
    assert hand.tokens() == [lost.token]


@pytest.mark.parametrize("is_async", [False, True])
def test_prepared_job_that_was_cancelled_is_not_sent(
    queue: str, hand: Hand, is_async: bool
) -> None:
    jobs = [on(queue).prepare(LATER, number) for number in range(3)]

    assert jobs[1].cancel()

    assert send_many(jobs, is_async) == [jobs[0], jobs[2]]
    assert set(hand.tokens()) == {jobs[0].token, jobs[2].token}
    assert jobs[1].refresh() is State.CANCELLED


def test_job_sent_again_after_the_holder_of_its_key_has_ended_is_itself(
    queue: str, hand: Hand
) -> None:
    unique = on(queue).using(unique=True)
    holder = unique.schedule(LATER, 1)
    job = unique.prepare(LATER, 1)
    token = job.token
    schedule_many([job])
    assert (job, job.created) == (holder, False)
    holder.cancel()

    schedule_many([job])

    assert (job.token, job.created) == (token, True)
    assert job.cancel()
    assert hand.tokens() == [], "what was told to be cancelled would run"


@pytest.mark.parametrize("is_async", [False, True])
def test_lost_reply_is_not_asked_for_again_when_it_is_too_late(
    queue: str,
    proxied: tuple[Proxy, Hand],
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
) -> None:
    """A time-out of the socket may be longer than the server remembers."""
    proxy, hand = proxied
    schedule(on(queue), LATER, 0).cancel()
    monkeypatch.setattr(store_calls, "REPEAT_MS", 0)
    lost = proxy.lose_reply_to(b"tests.jobs.samples.add", 2)

    with pytest.raises(MaybeScheduled) as failure:
        send_many([on(queue).prepare(LATER, 1)], is_async)

    assert lost.wait(10)
    assert failure.value.__cause__ is not None
    notes = "\n".join(failure.value.__cause__.__notes__)
    assert "not repeated" in notes
    assert "may be stored or not" in notes
    assert "make the job first" not in notes
    assert "Pass error.unsent to schedule_many within" in str(failure.value)
    assert len(hand.tokens()) == 1


def test_answer_to_a_repeat_does_not_say_what_became_of_the_first(
    queue: str, proxied: tuple[Proxy, Hand]
) -> None:
    proxy, hand = proxied
    schedule(on(queue), LATER, 0).cancel()
    proxy.lose_reply_to(b"tests.jobs.samples.add", refuse=True)

    with pytest.raises(ConnectionError) as failure:
        schedule(on(queue), LATER, 1)

    assert "may be stored or not" in "".join(failure.value.__notes__)
    assert len(hand.tokens()) == 1


@pytest.mark.parametrize(
    ("delay", "argument", "error"),
    [
        (10**5000, 1, InvalidDelay),
        (-(10**5000), 1, InvalidDelay),
        (LATER, 10**5000, InvalidArguments),
        (LATER, "\ud800", InvalidArguments),
    ],
    ids=["delay", "negative delay", "argument", "surrogate"],
)
def test_what_no_text_can_hold_is_refused_with_an_error_of_ours(
    queue: str, hand: Hand, delay: Any, argument: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        schedule(samples.anything.using(queue=queue), delay, argument)

    assert hand.tokens() == []
