"""The handle on one job, in every state it can meet, sync and async."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_delayq import (
    InvalidDelay,
    InvalidTask,
    Job,
    JobFailed,
    JobNotFound,
    QueueNotFound,
    State,
    TaskNotFound,
    aget_job,
    get_job,
    schedule,
)
from django_delayq.core import claim as claim_calls
from django_delayq.core import lease_ends, scripts
from django_delayq.jobs import result as results
from django_delayq.jobs import stored_results
from django_delayq.transport.script import load_script
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.queues.proxy import Proxy
from tests.servers import Server


def later(queue: str, delay: Any = LATER) -> Job[int]:
    return schedule(samples.add.using(queue=queue), delay, 1)


# Every state, and what each call of the handle answers there.

Life = Callable[[str, Hand], Job[Any]]


def scheduled(queue: str, hand: Hand) -> Job[Any]:
    return later(queue)


def due(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue, 0)
    while job.refresh() is not State.DUE:
        time.sleep(0.0005)
    return job


def running(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue, 0)
    hand.take()
    return job


def retrying(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue, 0)
    hand.retry(hand.take(), 3_600_000)
    return job


def dead(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue, 0)
    hand.bury(hand.take())
    return job


def quarantined(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue, 0)
    hand.bury(hand.take(), State.QUARANTINED)
    return job


def succeeded(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue, 0)
    hand.succeed(hand.take(), keep=False)
    return job


def cancelled(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue)
    get_job(job.id).cancel()
    return job


def missing(queue: str, hand: Hand) -> Job[Any]:
    job = later(queue)
    hand.client.delete(
        hand.keys.queue.timeout_set, hand.keys.queue.delay_queue, hand.keys.locators
    )
    return job


def unknown(queue: str, hand: Hand) -> Job[Any]:
    hand.client.rpush(hand.keys.queue.destination, *["x"] * 1_000)
    job = due(queue, hand)
    hand.run(claim_calls.transfer(hand.keys, batch=10))
    return job


#: state told by refresh; cancel; reschedule; run_now; retry and discard
LIVES: dict[Life, tuple[State, bool, bool, bool, bool]] = {
    scheduled: (State.SCHEDULED, True, True, True, False),
    due: (State.DUE, True, True, True, False),
    running: (State.RUNNING, False, False, False, False),
    retrying: (State.RETRYING, True, True, True, False),
    dead: (State.DEAD, False, False, False, True),
    quarantined: (State.QUARANTINED, False, False, False, True),
    succeeded: (State.SUCCEEDED, False, False, False, False),
    cancelled: (State.CANCELLED, True, False, False, False),
    missing: (State.MISSING, False, False, False, False),
    unknown: (State.UNKNOWN, False, False, False, False),
}
lives = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
Way = Callable[..., Any]


def both(name: str) -> Any:
    """Run a test with a method of the handle and with its async twin."""

    def sync_call(job: Job[Any], *args: Any) -> Any:
        return getattr(job, name)(*args)

    def async_call(job: Job[Any], *args: Any) -> Any:
        return asyncio.run(getattr(job, f"a{name}")(*args))

    return pytest.mark.parametrize(
        "call", [sync_call, async_call], ids=["sync", "async"]
    )


@lives
@both("refresh")
def test_refresh_tells_the_state(queue: str, hand: Hand, life: Life, call: Way) -> None:
    job = life(queue, hand)

    assert call(job) is LIVES[life][0]

    assert job.state is LIVES[life][0]


@lives
@both("cancel")
def test_cancel_is_true_where_the_job_will_not_run(
    queue: str, hand: Hand, life: Life, call: Way
) -> None:
    job = life(queue, hand)

    is_cancelled = call(job)

    assert is_cancelled is LIVES[life][1]
    if is_cancelled:
        assert job.state is job.refresh() is State.CANCELLED
        assert hand.claim() == []
    else:
        assert job.state is LIVES[life][0]


@lives
@both("reschedule")
def test_reschedule_is_true_where_the_job_has_its_new_time(
    queue: str, hand: Hand, life: Life, call: Way
) -> None:
    job = life(queue, hand)
    moment = datetime(2100, 1, 1, tzinfo=UTC)

    is_moved = call(job, moment)

    assert is_moved is LIVES[life][2]
    if is_moved:
        assert (job.state, job.start_time) == (State.SCHEDULED, moment)
        assert get_job(job.id).start_time == moment
    elif life is not unknown:
        assert job.state is job.refresh() is LIVES[life][0]


@lives
@both("run_now")
def test_run_now_makes_a_job_that_waits_due(
    queue: str, hand: Hand, life: Life, call: Way
) -> None:
    job = life(queue, hand)

    is_due = call(job)

    assert is_due is LIVES[life][3]
    if is_due:
        leased = hand.take()
        assert leased.token == job.token
        assert leased.attempts == (1 if life is retrying else 0)
    elif life is not unknown:
        assert job.state is job.refresh() is LIVES[life][0]


@pytest.mark.parametrize("life", [dead, quarantined, running])
def test_run_now_of_a_dead_letter_names_retry(
    queue: str, hand: Hand, caplog: pytest.LogCaptureFixture, life: Life
) -> None:
    job = life(queue, hand)

    assert not job.run_now()

    warned = [
        record.message
        for record in caplog.records
        if record.name == "django_delayq.jobs"
    ]
    assert warned == (
        []
        if life is running
        else [
            f"job {job.id} is {life.__name__}: run_now() is for jobs that wait; call retry() instead"
        ]
    )


@lives
@both("retry")
def test_retry_gives_what_is_aside_all_its_attempts(
    queue: str, hand: Hand, life: Life, call: Way
) -> None:
    job = life(queue, hand)

    is_retried = call(job)

    assert is_retried is LIVES[life][4]
    if is_retried:
        assert (job.state, job.attempts, job.kills) == (State.DUE, 0, 0)
        leased = hand.take()
        assert (leased.token, leased.attempts) == (job.token, 0)
    else:
        assert job.state is LIVES[life][0]


@lives
@both("discard")
def test_discard_deletes_what_is_aside(
    queue: str, hand: Hand, life: Life, call: Way
) -> None:
    job = life(queue, hand)

    is_discarded = call(job)

    assert is_discarded is LIVES[life][4]
    if is_discarded:
        assert job.state is job.refresh() is State.DISCARDED
        assert hand.client.exists(hand.keys.payloads, hand.keys.headers) == 0


@lives
@pytest.mark.parametrize(
    "find", [get_job, lambda id_: asyncio.run(aget_job(id_))], ids=["sync", "async"]
)
def test_get_job_finds_it_wherever_it_is(
    queue: str, hand: Hand, life: Life, find: Callable[[str], Job[Any]]
) -> None:
    job = life(queue, hand)
    if life is missing:
        with pytest.raises(JobNotFound, match="no job has the id"):
            find(job.id)
        return

    found = find(job.id)

    assert found == job
    assert found.state is LIVES[life][0]
    if life not in (succeeded, cancelled, unknown):  # then no payload is at hand
        assert (found.task, found.args, found.kwargs) == (samples.add.name, [1], {})


# What the handle tells.


def test_job_tells_attempts_kills_and_the_last_error(queue: str, hand: Hand) -> None:
    job = later(queue, 0)
    hand.retry(hand.take())
    hand.take()
    hand.die()
    leased = hand.take()
    assert leased.kills == 1

    job.refresh()

    assert (job.attempts, job.kills) == (1, 1)
    assert job.error == {
        "error": "ValueError: no",
        "kind": "failed",
        "traceback": "",
        "at": 5,
    }


def test_job_given_back_or_moved_waits_for_its_first_attempt(
    queue: str, hand: Hand
) -> None:
    job = later(queue, 0)
    hand.run(lease_ends.give_back(hand.keys, [hand.take()]))

    assert job.refresh() is State.DUE
    assert job.reschedule(LATER)
    assert job.refresh() is State.SCHEDULED


def test_job_whose_lease_ran_out_may_still_run_and_is_not_cancelled(
    queue: str, hand: Hand
) -> None:
    job = later(queue, 0)
    hand.take(lease_ms=1)
    time.sleep(0.003)

    assert not job.cancel()
    assert not job.reschedule(LATER)
    assert job.state is State.RUNNING


def test_job_whose_worker_is_known_to_be_dead_can_be_cancelled(
    queue: str, hand: Hand
) -> None:
    job = later(queue, 0)
    hand.take()
    hand.run(claim_calls.recover(hand.keys, owner=hand.owner))

    assert job.cancel()
    assert hand.claim() == []


def test_id_stays_the_same_through_its_whole_life(queue: str, hand: Hand) -> None:
    job = later(queue)
    ids = {job.id}
    for step in (
        lambda: job.reschedule(LATER * 2),
        lambda: job.run_now(),
        lambda: hand.retry(hand.take()),
        lambda: hand.bury(hand.take()),
        lambda: job.retry(),
    ):
        step()
        ids.add(get_job(job.id).id)

    assert len(ids) == 1


def test_jobs_are_equal_by_their_ids(queue: str) -> None:
    job = later(queue)

    assert get_job(job.id) == job
    assert hash(get_job(job.id)) == hash(job)
    assert job != later(queue)
    assert job != job.id
    assert repr(job) == f"<Job {job.id} tests.jobs.samples.add scheduled>"


def test_state_compares_with_its_text(queue: str) -> None:
    assert later(queue).state == "scheduled"


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        "x",
        ":",
        "q:",
        ":t",
        "nocolon",
        None,
        5,
        b"q:t",
        ["q:t"],
        "q:\ud800",
        "\ud800:t",
    ],
)
def test_what_is_no_id_is_not_found_and_shown_what_one_looks_like(
    queue: str, job_id: Any
) -> None:
    with pytest.raises(JobNotFound, match="is not a job id; one looks like"):
        get_job(job_id)
    with pytest.raises(JobNotFound, match="is not a job id"):
        asyncio.run(aget_job(job_id))


def test_id_of_a_queue_that_is_not_configured(queue: str) -> None:
    with pytest.raises(QueueNotFound):
        get_job("elsewhere:" + "x" * 22)


@pytest.mark.parametrize("token", ["x" * 22, "x", "f2-1-" + "0" * 16, "é", "a b"])
def test_id_that_no_job_has(queue: str, token: str) -> None:
    with pytest.raises(JobNotFound):
        get_job(f"{queue}:{token}")


@pytest.mark.parametrize("delay", [-1, "5", None, datetime(2030, 1, 1)])
def test_bad_delay_moves_nothing(queue: str, delay: Any) -> None:
    job = later(queue)
    before = job.start_time

    with pytest.raises(InvalidDelay):
        job.reschedule(delay)
    with pytest.raises(InvalidDelay):
        asyncio.run(job.areschedule(delay))

    job.refresh()
    assert job.start_time == before


def test_relative_move_counts_from_the_servers_clock(queue: str, hand: Hand) -> None:
    job = later(queue)
    seconds, microseconds = hand.client.time()

    job.reschedule(timedelta(minutes=1))

    asked_ms = seconds * 1_000 + microseconds // 1_000
    assert job.start_time_ms is not None
    assert 60_000 <= job.start_time_ms - asked_ms < 70_000


def test_foreign_element_has_a_handle_too(queue: str, hand: Hand) -> None:
    from django_delayq.wire.frame import FrameFormat, pack

    frame = pack(b"12345678", b"from Java", FrameFormat.BC0LC0)
    hand.client.zadd(hand.keys.queue.timeout_set, {frame: 4_000_000_000_000})
    (token,) = hand.tokens()

    job = get_job(f"{queue}:{token}")

    assert (job.task, job.state) == (None, State.SCHEDULED)
    assert repr(job).endswith("foreign scheduled>")
    with pytest.raises(InvalidTask):
        job.wait()
    assert job.cancel()


# Waiting for a result.

Wait = Callable[..., Any]


def wait_sync(job: Job[Any], timeout: float | None = None) -> Any:
    return job.wait(timeout)


def wait_async(job: Job[Any], timeout: float | None = None) -> Any:
    return asyncio.run(job.await_result(timeout))


both_waits = pytest.mark.parametrize(
    "wait", [wait_sync, wait_async], ids=["sync", "async"]
)


@pytest.fixture
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wait look soon whether the job is still there."""
    monkeypatch.setattr(results, "WAIT_SLICE_S", 0.05)


def doubled(queue: str, delay: Any = 0) -> Job[int]:
    return schedule(samples.double.using(queue=queue), delay, 2)


@both_waits
@pytest.mark.parametrize("result", [4, None, [], {"a": [1, None, "ü"]}, "", 0, 10**30])
def test_wait_returns_the_result_that_is_there(
    queue: str, hand: Hand, wait: Wait, result: Any
) -> None:
    job = doubled(queue)
    hand.succeed(hand.take(), result)

    assert wait(job) == result
    assert wait(job, 0.01) == result, "it stays for the others"
    assert job.state is State.SUCCEEDED


@both_waits
def test_wait_ends_when_the_job_does(queue: str, hand: Hand, wait: Wait) -> None:
    job = doubled(queue)
    leased = hand.take()
    thread = threading.Timer(0.05, hand.succeed, [leased, 4])
    thread.start()
    begun = time.monotonic()

    assert wait(job, 60) == 4

    assert time.monotonic() - begun < 30
    thread.join()


@both_waits
def test_wait_gives_up_after_its_timeout(queue: str, hand: Hand, wait: Wait) -> None:
    job = doubled(queue, LATER)
    begun = time.monotonic()

    with pytest.raises(
        TimeoutError, match=r"has not ended within 0.05 s; it is scheduled"
    ):
        wait(job, 0.05)

    assert 0.04 < time.monotonic() - begun < 30


@both_waits
def test_wait_with_no_time_left_looks_once(queue: str, hand: Hand, wait: Wait) -> None:
    job = doubled(queue, LATER)
    with pytest.raises(TimeoutError):
        wait(job, 0)
    job.run_now()
    hand.succeed(hand.take(), 4)

    assert wait(job, 0) == 4


@pytest.mark.usefixtures("looking_often")
@both_waits
@pytest.mark.parametrize("is_kept", [True, False])
def test_wait_for_a_dead_letter_raises_with_its_error(
    queue: str, hand: Hand, wait: Wait, is_kept: bool
) -> None:
    job = doubled(queue)
    hand.bury(hand.take(), keep=is_kept)

    with pytest.raises(JobFailed, match=r"is dead: ValueError: no"):
        wait(job, 10)

    assert job.state is State.DEAD


@pytest.mark.usefixtures("looking_often")
@both_waits
def test_wait_for_a_job_that_killed_its_workers_raises(
    queue: str, hand: Hand, wait: Wait
) -> None:
    job = doubled(queue)
    hand.kill(hand.take(), max_kills=0)

    with pytest.raises(JobFailed, match="is dead: its worker died"):
        wait(job, 10)


@pytest.mark.usefixtures("looking_often")
@both_waits
@pytest.mark.parametrize(
    ("state", "said"),
    [(State.CANCELLED, "is cancelled"), (State.EXPIRED, "is expired")],
)
def test_wait_for_a_job_that_will_not_run_raises(
    queue: str, hand: Hand, wait: Wait, state: State, said: str
) -> None:
    job = doubled(queue)
    if state is State.CANCELLED:
        get_job(job.id).cancel()
    else:
        leased = hand.take()
        done = lease_ends.Done(leased.token, leased.fence)
        hand.run(lease_ends.acknowledge(hand.keys, [done], state=state))

    with pytest.raises(JobFailed, match=said):
        wait(job, 10)


@pytest.mark.usefixtures("looking_often")
@both_waits
def test_wait_after_the_result_is_gone_raises(
    queue: str, hand: Hand, wait: Wait
) -> None:
    job = doubled(queue)
    hand.succeed(hand.take(), 4)
    hand.client.delete(hand.keys.result(job.token), hand.keys.ended)

    with pytest.raises(JobNotFound, match="its result is no longer kept"):
        wait(job, 10)


@both_waits
def test_wait_for_a_task_that_keeps_no_result_is_refused(
    queue: str, wait: Wait
) -> None:
    with pytest.raises(InvalidTask, match="keep_result=seconds"):
        wait(later(queue))


@both_waits
@pytest.mark.parametrize("by_id", [False, True])
def test_wait_for_a_call_that_keeps_no_result_of_its_task_is_refused(
    queue: str, wait: Wait, by_id: bool
) -> None:
    job = schedule(samples.double.using(queue=queue, keep_result=None), 0, 1)

    with pytest.raises(InvalidTask, match="keeps no result"):
        wait(get_job(job.id) if by_id else job, 0)


@both_waits
def test_wait_by_id_in_another_process(queue: str, hand: Hand, wait: Wait) -> None:
    job = doubled(queue)
    found = get_job(job.id)
    hand.succeed(hand.take(), 4)

    assert wait(found, 10) == 4


@both_waits
def test_wait_by_id_after_the_end(queue: str, hand: Hand, wait: Wait) -> None:
    job = doubled(queue)
    hand.succeed(hand.take(), 4)
    found = get_job(job.id)
    # What is kept with the result says which task it was.
    assert repr(found) == f"<Job {job.id} {job.task} succeeded>"

    assert wait(found, 10) == 4


@both_waits
def test_wait_by_id_while_the_result_is_kept_and_nothing_else_is(
    queue: str, hand: Hand, wait: Wait
) -> None:
    job = doubled(queue)
    hand.succeed(hand.take(), 4)
    hand.client.delete(hand.keys.ended)
    found = get_job(job.id)
    assert found.state is State.SUCCEEDED

    assert wait(found, 10) == 4


@both_waits
def test_wait_by_id_for_a_result_that_was_not_kept_ends(
    queue: str, hand: Hand, wait: Wait
) -> None:
    job = later(queue)
    job.run_now()
    hand.succeed(hand.take(), keep=False)

    with pytest.raises(JobNotFound, match="has succeeded, but its result was not kept"):
        wait(get_job(job.id), 10)


@both_waits
def test_wait_where_the_call_asked_for_its_result(
    queue: str, hand: Hand, wait: Wait
) -> None:
    job = schedule(samples.add.using(queue=queue, keep_result=60), 0, 1)
    hand.succeed(hand.take(), 1)

    assert (
        wait(get_job(job.id) if job.refresh() is not State.SUCCEEDED else job, 10) == 1
    )


def test_wait_for_a_job_whose_task_is_not_registered_here(
    queue: str, hand: Hand
) -> None:
    job = doubled(queue, LATER)
    job.task = "elsewhere.task"

    with pytest.raises(TaskNotFound):
        job.wait()


def test_many_wait_for_one_result(queue: str, hand: Hand) -> None:
    job = doubled(queue)
    leased = hand.take()
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(job.wait(30))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()

    hand.succeed(leased, 4)

    for thread in threads:
        thread.join()
    assert results == [4] * 8


def test_wait_stays_below_the_time_out_of_the_socket(
    settings: Any, queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers nothing while it waits, and must not be taken for dead."""
    url = settings.DELAYQ["CONNECTION"]
    joined = f"{url}{'&' if '?' in url else '?'}socket_timeout=1.6"
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": joined}
    job = doubled(queue, LATER)
    slices: list[float] = []

    def next_slice(*args: Any) -> float:
        slices.append(given(*args))
        return slices[-1]

    given = results._next_slice
    monkeypatch.setattr(results, "_next_slice", next_slice)
    with pytest.raises(TimeoutError, match=r"has not ended within 2 s"):
        job.wait(2)
    with pytest.raises(TimeoutError, match=r"has not ended within 2 s"):
        asyncio.run(job.await_result(2))

    assert max(slices) == 0.8
    assert slices.count(0.8) >= 2


@both_waits
def test_wait_ends_with_the_job_on_a_full_server(
    settings: Any, queue: str, private_server: Callable[..., Server], wait: Wait
) -> None:
    server = private_server(maxmemory_policy="noeviction")
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": server.socket_url}
    client = server.client()
    hand = Hand(client, queue)
    job = doubled(queue)
    leased = hand.take()
    client.config_set("maxmemory", 1)
    timer = threading.Timer(0.15, hand.succeed, [leased, 4])
    timer.start()

    assert wait(job, 20) == 4

    timer.join()


@pytest.fixture
def proxy(settings: Any, queue: str, server: Any) -> Iterator[Proxy]:
    """What stands between the site and its server."""
    proxy = Proxy(server)
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
    yield proxy
    proxy.close()


@both_waits
def test_wait_goes_on_when_its_connection_is_cut(
    queue: str, hand: Hand, proxy: Proxy, wait: Wait
) -> None:
    job = doubled(queue)
    leased = hand.take()
    timers = [
        threading.Timer(0.05, proxy.cut),
        threading.Timer(0.15, proxy.cut),
        threading.Timer(0.3, hand.succeed, [leased, 4]),
    ]
    for timer in timers:
        timer.start()

    assert wait(job, 20) == 4

    for timer in timers:
        timer.join()


@both_waits
def test_wait_goes_on_when_the_reply_to_its_look_is_lost(
    queue: str, hand: Hand, proxy: Proxy, wait: Wait
) -> None:
    job = doubled(queue)
    leased = hand.take()
    lost = proxy.lose_reply_to(b"LINDEX")
    ender = threading.Thread(
        target=lambda: lost.wait(60) and hand.succeed(leased, 4), daemon=True
    )
    ender.start()

    assert wait(job, 60) == 4

    ender.join()


# Uniqueness, through the API.


def test_second_call_with_the_same_arguments_returns_the_first_job(
    queue: str, hand: Hand
) -> None:
    task = samples.once.using(queue=queue)
    first = schedule(task, LATER, 5)

    second = schedule(task, 10, user=5, kind="mail")

    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    assert hand.tokens() == [first.token]
    assert second.cancel()
    assert schedule(task, LATER, 5).created


@pytest.mark.parametrize(
    ("args", "kwargs", "is_same"),
    [
        ((5,), {}, True),
        ((5,), {"kind": "mail"}, True),
        ((), {"kind": "mail", "user": 5}, True),
        ((6,), {}, False),
        ((5,), {"kind": "push"}, False),
        (("5",), {}, False),
    ],
)
def test_arguments_are_compared_as_the_function_sees_them(
    queue: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_same: bool
) -> None:
    task = samples.once.using(queue=queue)
    schedule(task, LATER, 5)

    assert schedule(task, LATER, *args, **kwargs).created is not is_same


def test_chosen_parameters_alone_make_the_key(queue: str, hand: Hand) -> None:
    task = samples.once_for_user.using(queue=queue)
    schedule(task, 0, 5, "one")

    assert not schedule(task, 0, 5, "another").created
    assert schedule(task, LATER, 6, "one").created
    hand.take()  # it is held to the start only
    assert schedule(task, LATER, 5, "third").created


def test_function_makes_the_key(queue: str) -> None:
    task = samples.anything.using(queue=queue, unique=lambda *args, **kw: str(args[0]))
    job = schedule(task, LATER, 1, x=1)

    assert job.unique == "tests.jobs.samples.anything:1"
    assert not schedule(task, LATER, 1, x=2).created
    assert get_job(job.id).unique == job.unique


@pytest.mark.parametrize("key", ["", None, 5])
def test_bad_key_of_a_function_is_refused(queue: str, key: Any) -> None:
    task = samples.anything.using(queue=queue, unique=lambda *args: key)

    with pytest.raises(TypeError, match="return a string that is not empty"):
        schedule(task, LATER, 1)


def test_key_of_a_function_that_is_too_long_is_refused(queue: str) -> None:
    def schedule_with(key: str) -> Job[Any]:
        task = samples.anything.using(queue=queue, unique=lambda *args: key)
        return schedule(task, LATER, 1)

    assert schedule_with("é" * 512).created
    with pytest.raises(TypeError, match=r"a key of 1,026 bytes.* at most 1,024"):
        schedule_with("é" * 513)


def test_two_tasks_do_not_share_a_key(queue: str) -> None:
    schedule(samples.once.using(queue=queue), LATER, 5)
    other = samples.add.using(queue=queue, unique=True)

    assert schedule(other, LATER, 5).created


def test_job_found_instead_is_the_holder_in_every_call(queue: str, hand: Hand) -> None:
    task = samples.once.using(queue=queue)
    first = schedule(task, 0, 5)
    second = schedule(task, 0, 5)
    hand.retry(hand.take(), 60_000)

    assert second.refresh() is State.RETRYING
    assert second.run_now()
    assert hand.take().token == first.token


def test_many_jobs_of_one_key_are_one(queue: str, hand: Hand) -> None:
    from django_delayq import schedule_many

    task = samples.once.using(queue=queue)
    jobs = schedule_many([task.prepare(LATER, n % 3) for n in range(30)])

    assert len(hand.tokens()) == 3
    assert len({job.id for job in jobs}) == 3
    assert [job.created for job in jobs] == [True] * 3 + [False] * 27


# A handle on the event loop.


async def test_async_calls_of_one_loop_share_a_client(queue: str) -> None:
    jobs = [later(queue) for _ in range(20)]

    async def use(job: Job[int]) -> bool:
        await job.arefresh()
        await job.areschedule(LATER * 2)
        return await job.acancel()

    done: list[Awaitable[bool]] = [use(job) for job in jobs]
    assert await asyncio.gather(*done) == [True] * 20


def test_clients_are_closed_with_their_loops(queue: str, hand: Hand) -> None:
    job = later(queue)
    before = hand.client.info("clients")["connected_clients"]

    for _ in range(10):
        asyncio.run(job.arefresh())

    after = hand.client.info("clients")["connected_clients"]
    assert after <= before + 2


def test_wait_after_retry_waits_for_the_new_attempt(queue: str, hand: Hand) -> None:
    job = schedule(samples.double.using(queue=queue), 0, 21)
    hand.bury(hand.take(), keep=True)
    with pytest.raises(JobFailed, match="ValueError: no"):
        job.wait(5)

    assert job.retry()

    with pytest.raises(TimeoutError):
        job.wait(0.01)
    hand.succeed(hand.take(), 42)
    assert job.wait(5) == 42


@pytest.mark.parametrize("do", ["retry", "discard", "reschedule", "cancel"])
def test_call_whose_reply_was_lost_tells_what_it_did(
    settings: Any, server: Server, queue: str, hand: Hand, do: str
) -> None:
    job = later(queue, 0)
    leased = hand.take()
    if do in ("retry", "discard"):
        hand.bury(leased)
    else:
        hand.retry(leased, 3_600_000)
    proxy = Proxy(server)
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
    job.refresh()
    script = "replay" if do == "retry" else do
    sha = load_script(scripts.PACKAGES, script).sha.encode()
    # It brings the script to the server, which is not what is tested.
    hand.client.script_load(load_script(scripts.PACKAGES, script).source)
    lost = proxy.lose_reply_to(sha)
    try:
        assert getattr(job, do)(*([5] if do == "reschedule" else []))
    finally:
        proxy.close()
    assert lost.wait(10)


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
def test_what_is_no_timeout_is_refused(queue: str, timeout: Any) -> None:
    job = schedule(samples.double.using(queue=queue), LATER, 21)

    with pytest.raises(InvalidDelay, match="timeout"):
        job.wait(timeout)
    with pytest.raises(InvalidDelay, match="timeout"):
        asyncio.run(job.await_result(timeout))


@pytest.mark.parametrize(
    "timeout", [0, -1, -(10**5000), timedelta(0)], ids=["0", "-1", "long", "timedelta"]
)
def test_wait_of_no_time_looks_once(queue: str, timeout: Any) -> None:
    job = schedule(samples.double.using(queue=queue), LATER, 21)

    with pytest.raises(TimeoutError, match="has not ended within"):
        job.wait(timeout)


@pytest.mark.parametrize("text", [" default:0Vb3", "default:0Vb3\n"])
def test_id_with_space_around_it_is_refused_for_that(text: str) -> None:
    with pytest.raises(JobNotFound, match="leave out the space around it"):
        get_job(text)


def test_result_that_could_not_be_kept_is_told_as_such(queue: str) -> None:
    job = samples.add.using(queue=queue).prepare(LATER, 1, 2)
    text = stored_results.result_text(
        State.SUCCEEDED, error="InvalidArguments: it is a set", at_ms=1
    )

    with pytest.raises(
        JobFailed,
        match=r"has succeeded, but its result could not be stored: InvalidArguments: it is a set",
    ):
        job._result(text)
