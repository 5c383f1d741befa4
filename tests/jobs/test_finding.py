"""`find_jobs`: what it finds, what it refuses, and what its changes of many jobs tell."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
import redis
from redis.exceptions import RedisError

from django_delayq import (
    Changed,
    FoundJobs,
    InvalidDelay,
    InvalidSearch,
    Job,
    MaybeChanged,
    QueueNotFound,
    State,
    afind_jobs,
    find_jobs,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.core import hold as hold_calls
from django_delayq.core import lease_ends, scripts, search_calls
from django_delayq.core.hold import Held, Hold
from django_delayq.core.lease_ends import Failed
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.search_calls import Found
from django_delayq.jobs import bulk, stored_results
from django_delayq.jobs import match as match_of_job
from django_delayq.jobs import walk as walking
from django_delayq.jobs.actions import DISCARD
from django_delayq.jobs.lookup import job_of
from django_delayq.transport.script import load_script
from django_delayq.transport.steps import perform
from tests.admin.filling import Queue
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.servers import Server

NOW = datetime.now(UTC)


@pytest.fixture(params=["sync", "async"])
def ids(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """List what is found by its ids, in either way of iterating."""

    async def alist(**sought: Any) -> list[str]:
        return [job.id async for job in afind_jobs(**sought)]

    if request.param == "sync":
        return lambda **sought: [job.id for job in find_jobs(**sought)]
    return lambda **sought: asyncio.run(alist(**sought))


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a method, or its twin on an event loop."""

    def call(found: FoundJobs[Any], name: str, *args: Any) -> Any:
        if request.param == "sync":
            return getattr(found, name)(*args)

        async def acall() -> Any:
            return await getattr(found, f"a{name}")(*args)

        return asyncio.run(acall())

    return call


@pytest.fixture
def few_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each call read few jobs."""
    search = search_calls.search

    def short(*args: Any, **kwargs: Any) -> Any:
        return search(*args, **{**kwargs, "count": 3})

    monkeypatch.setattr(walking.search_calls, "search", short)


def scheduled(queue: str, *args: Any, delay: Any = LATER, **kwargs: Any) -> Job[Any]:
    return schedule(samples.anything.using(queue=queue), delay, *args, **kwargs)


def one_of_each(queue: str, hand: Hand) -> dict[State, Job[Any]]:
    """Bring a job into each state that can be listed."""
    jobs = {}
    for state in (State.RUNNING, State.RETRYING, State.HELD, State.DEAD):
        jobs[state] = scheduled(queue, state, delay=0)
        leased = hand.take()
        if state is State.RETRYING:
            hand.retry(leased, 3_600_000)
        elif state is State.HELD:
            reason = Reason(Kind.TASK, "gone")
            held = Held(leased.token, leased.fence, Hold(reason, "no task gone"))
            assert hand.run(hold_calls.hold(hand.keys, [held])) == []
        elif state is State.DEAD:
            hand.bury(leased)
    jobs[State.QUARANTINED] = scheduled(queue, State.QUARANTINED, delay=0)
    hand.bury(hand.take(), State.QUARANTINED)
    jobs[State.SCHEDULED] = scheduled(queue, State.SCHEDULED)
    jobs[State.DUE] = scheduled(queue, State.DUE, delay=NOW)
    # What is due now is due at the next full millisecond.
    wait_until(lambda: jobs[State.DUE].refresh() is State.DUE, description="it is due")
    assert [job.refresh() for job in jobs.values()] == list(jobs)
    return jobs


# What is found.


def test_jobs_are_found_by_their_states(
    queue: str, hand: Hand, ids: Callable[..., list[str]], few_a_call: None
) -> None:
    jobs = one_of_each(queue, hand)

    assert {state: ids(queue=queue, state=state) for state in jobs} == {
        state: [job.id] for state, job in jobs.items()
    }
    assert sorted(ids(queue=queue)) == sorted(job.id for job in jobs.values())
    assert sorted(ids(queue=queue, state=["dead", State.HELD])) == sorted(
        [jobs[State.DEAD].id, jobs[State.HELD].id]
    )


def test_found_job_shows_what_a_look_by_its_id_shows(queue: str, hand: Hand) -> None:
    one_of_each(queue, hand)
    schedule(samples.once.using(queue=queue, max_attempts=3), LATER, 5, kind="x")

    found = list(find_jobs(queue=queue))

    assert len(found) == 8
    for job in found:
        seen = get_job(job.id)
        for name in ("state", "task", "args", "kwargs", "options", "start_time_ms"):
            assert getattr(job, name) == getattr(seen, name), (job, name)
        for name in ("attempts", "kills", "error", "unique"):
            assert getattr(job, name) == getattr(seen, name), (job, name)


def test_jobs_of_several_queues_are_found(
    queue: str, ids: Callable[..., list[str]]
) -> None:
    other = f"{queue}-2"
    one, two = scheduled(queue), scheduled(other)

    assert ids(queue=queue) == [one.id]
    assert ids(queue=[other, queue, other]) == [two.id, one.id]
    assert sorted(ids()) == sorted([one.id, two.id])
    assert ids(queue=[]) == []


def test_jobs_are_found_by_their_task(
    queue: str, ids: Callable[..., list[str]]
) -> None:
    one = schedule(samples.add.using(queue=queue), LATER, 1)
    scheduled(queue, "tests.jobs.samples.add")

    assert ids(task=samples.add) == [one.id]
    assert ids(task="tests.jobs.samples.add") == [one.id]
    assert ids(task="tests.jobs.samples.gone") == []
    assert ids(task='a "name" like no other') == []


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("invoice 4711", True),
        ("INVOICE", True),
        ("zoë", True),
        ("who", True),
        ("deep", True),
        ("true", True),
        ("null", True),
        ("2.5", True),
        ("9000", True),
        ('say "hi"\\', True),
        ("it broke", True),
        ("valueerror", False),
        ("false", False),
        ("invoice 4712", False),
        ('"who"', False),
        ("2.59000", False),
        ("anything", False),
    ],
)
def test_text_is_found_in_one_value_of_the_arguments_or_in_the_error(
    queue: str, hand: Hand, text: str, is_there: bool
) -> None:
    job = scheduled(
        queue,
        "Invoice 4711",
        [{"deep": [2.5, 9000, True]}],
        'say "hi"\\',
        who="Zoë",
        more=None,
        delay=0,
    )
    leased = hand.take()
    error = stored_results.error_text("It broke", kind="x.Failure", at_ms=5)
    failed = Failed(leased.token, leased.fence, "+3600000", error)
    assert hand.run(lease_ends.retry(hand.keys, [failed])) == []
    scheduled(queue, "something else")

    assert [each.id for each in find_jobs(text=text)] == [job.id] * is_there


def test_jobs_are_found_by_when_they_are_due(
    queue: str, hand: Hand, ids: Callable[..., list[str]], few_a_call: None
) -> None:
    jobs = [scheduled(queue, delay=LATER + 60 * n) for n in range(20)]
    times = [job.start_time for job in jobs]

    def between(first: Any, end: Any, **sought: Any) -> list[str]:
        return ids(due=(first, end), **sought)

    assert between(times[5], times[8]) == [job.id for job in jobs[5:8]]
    assert between(None, times[2]) == [job.id for job in jobs[:2]]
    assert between(times[18], None, state="scheduled") == [job.id for job in jobs[18:]]
    assert between(times[3], times[3]) == []
    half = timedelta(seconds=30)
    assert between(times[5] - half, timedelta(seconds=LATER + 7.5 * 60)) == [
        job.id for job in jobs[5:8]
    ]
    assert between(None, timedelta(0)) == []


def test_due_is_compared_with_the_start_time_in_every_state(
    queue: str, hand: Hand
) -> None:
    jobs = one_of_each(queue, hand)
    waiting = {State.SCHEDULED, State.RETRYING}

    # A range leaves its end out, and one of the jobs may have become due in this very millisecond.
    soon = timedelta(milliseconds=1)
    past = {job.state for job in find_jobs(due=(None, soon))}
    future = {job.state for job in find_jobs(due=(soon, None))}

    assert past == set(jobs) - waiting
    assert future == waiting


def test_window_reads_no_more_than_what_is_due_in_it(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_many(
        samples.add.using(queue=queue).prepare(LATER + n, n) for n in range(500)
    )
    read: list[int] = []
    fitting = walking.Walk._fitting

    def noted(self: Any, queue: str, page: Any) -> Any:
        read.append(len(page.found))
        return fitting(self, queue, page)

    monkeypatch.setattr(walking.Walk, "_fitting", noted)
    window = (timedelta(seconds=LATER + 100.5), timedelta(seconds=LATER + 109.5))

    assert [job.args for job in find_jobs(queue=queue, due=window)] in (
        [[n] for n in range(101, 110)],
        # A second may have passed since they were scheduled.
        *([[n] for n in range(101 + k, 110 + k)] for k in range(1, 60)),
    )
    assert sum(read) <= 10


def test_no_more_are_found_than_asked_for(
    queue: str, ids: Callable[..., list[str]], few_a_call: None
) -> None:
    jobs = [scheduled(queue, n, delay=LATER + n) for n in range(8)]

    assert ids(limit=5) == [job.id for job in jobs[:5]]
    assert ids(limit=0) == []
    assert find_jobs(limit=5).cancel() == Changed(5, {})
    assert ids() == [job.id for job in jobs[5:]]


def test_elements_of_others_are_found(queue: str, hand: Hand) -> None:
    java = Queue(hand.client, queue)
    java.offer(b'{"order": "4711 from J\xc3\xb6rg"}')
    java.push(b"lying")

    waits, lying = find_jobs(queue=queue)

    assert (waits.task, waits.state, waits.args) == (None, State.SCHEDULED, [])
    assert (lying.task, lying.state, lying.token) == (None, State.DUE, "")
    assert get_job(waits.id).state is State.SCHEDULED
    assert list(find_jobs(text="JÖRG")) == [waits]
    assert list(find_jobs(task=samples.add)) == []
    assert not lying.cancel()
    assert find_jobs(queue=queue).cancel() == Changed(1, {State.DUE: 1})


def test_times_and_errors_that_nobody_can_show_hide_no_job(
    queue: str, hand: Hand
) -> None:
    java = Queue(hand.client, queue)
    deep = java.retrying()
    hand.client.hset(hand.keys.errors, deep, b"[" * 10_000 + b"]" * 10_000)
    java.add_member(b"long ago", -(10**15))
    java.add_member(b"far away", 1e300)

    found = list(find_jobs(queue=queue))

    assert [job.start_time for job in found[:2]] == [None, None]
    assert found[2].token == deep
    assert found[2].error is not None
    assert found[2].error["error"].startswith("[[[")
    assert list(find_jobs(text="[[[")) == [found[2]]


def test_nothing_is_asked_of_the_server_before_the_first_job_is_wanted(
    settings: Any,
) -> None:
    settings.DELAYQ = {"CONNECTION": "unix:///nowhere", "QUEUES": {"mail": {}}}

    found = find_jobs(queue="mail", state="dead", text="x")

    assert repr(found) == "<FoundJobs queues=['mail'] states=['dead'] text='x'>"
    with pytest.raises(RedisError):
        next(iter(found))


def test_search_begins_anew_each_time(queue: str) -> None:
    found = find_jobs(queue=queue)
    assert list(found) == []
    job = scheduled(queue)

    assert list(found) == list(found) == [job]


def test_jobs_that_stay_are_found_once_while_workers_drain_and_producers_add(
    queue: str, hand: Hand, few_a_call: None
) -> None:
    stay = [scheduled(queue, n, delay=LATER + n // 4) for n in range(60)]
    rest = [scheduled(queue, n, delay=LATER + n // 3) for n in range(60)]
    scheduled(queue, delay=0)
    for n in range(40):
        scheduled(queue, n, delay=0)
    hand.take()
    found = Counter[str]()

    for n, job in enumerate(find_jobs(queue=queue)):
        found[job.id] += 1
        if n % 3 == 0:
            for leased in hand.claim(1):
                hand.succeed(leased, keep=False)
        if rest:
            other = rest.pop()
            assert other.reschedule(n) if n % 2 else other.cancel()
        if n < 200:
            scheduled(queue, n, delay=LATER + n)

    assert {job.id: found[job.id] for job in stay} == {job.id: 1 for job in stay}


# Counting.


def test_jobs_are_counted(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None
) -> None:
    jobs = one_of_each(queue, hand)
    hand.client.rpush(hand.keys.queue.destination, "lying")

    counts = {state: do(find_jobs(queue=queue, state=state), "count") for state in jobs}

    assert counts == dict.fromkeys(jobs, 1) | {State.DUE: 2}
    assert do(find_jobs(queue=queue), "count") == 8
    assert do(find_jobs(queue=queue, limit=3), "count") == 3
    assert do(find_jobs(queue=queue, task=samples.anything), "count") == 7
    assert do(find_jobs(queue=queue, task=samples.add), "count") == 0


# Changing what is found.


def test_found_jobs_are_cancelled(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None
) -> None:
    jobs = one_of_each(queue, hand)
    mine = [scheduled(queue, n) for n in range(10)]

    changed = do(find_jobs(queue=queue), "cancel")

    assert changed == Changed(
        14, {State.RUNNING: 1, State.DEAD: 1, State.QUARANTINED: 1}
    )
    assert {job.refresh() for job in mine} == {State.CANCELLED}
    left = {state for state, job in jobs.items() if job.refresh() is state}
    assert left == {State.RUNNING, State.DEAD, State.QUARANTINED}


def test_found_jobs_are_rescheduled_once_though_they_come_to_lie_ahead(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None
) -> None:
    jobs = one_of_each(queue, hand)
    mine = [scheduled(queue, n, delay=60 + n) for n in range(10)]
    far = scheduled(queue, delay=10 * LATER)

    changed = do(find_jobs(queue=queue), "reschedule", 2 * LATER)

    assert changed == Changed(
        15, {State.RUNNING: 1, State.DEAD: 1, State.QUARANTINED: 1}
    )
    for job in (*mine, far, jobs[State.DUE], jobs[State.HELD]):
        job.refresh()
    times = {job.start_time_ms for job in (*mine, far, jobs[State.DUE])}
    assert len(times) == 1
    assert jobs[State.HELD].state is State.SCHEDULED


def test_jobs_that_have_the_new_start_time_already_are_left_alone(queue: str) -> None:
    when = datetime(2100, 1, 1, tzinfo=UTC)
    scheduled(queue, delay=when)
    scheduled(queue)

    assert find_jobs(queue=queue).reschedule(when) == Changed(1, {})
    assert find_jobs(queue=queue).reschedule(when) == Changed(0, {})


@pytest.mark.parametrize("delay", [0, NOW])
def test_found_jobs_are_rescheduled_to_now_once(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None, delay: Any
) -> None:
    jobs = [scheduled(queue, n) for n in range(20)]

    assert do(find_jobs(queue=queue), "reschedule", delay) == Changed(20, {})

    assert len(hand.take_all()) == len(jobs)


def test_found_jobs_are_run_now(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None
) -> None:
    one_of_each(queue, hand)
    for n in range(10):
        scheduled(queue, n)

    lost = dict.fromkeys((State.RUNNING, State.DEAD, State.QUARANTINED), 1)
    assert do(find_jobs(queue=queue), "run_now") == Changed(14, lost)

    assert len(hand.take_all()) == 14


def test_found_jobs_are_retried(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None
) -> None:
    jobs = one_of_each(queue, hand)
    graves = {State.DEAD, State.QUARANTINED}

    changed = do(find_jobs(queue=queue), "retry")

    assert changed == Changed(2, dict.fromkeys(set(jobs) - graves, 1))
    assert do(find_jobs(queue=queue, state=graves), "count") == 0


def test_found_jobs_are_discarded(
    queue: str, hand: Hand, do: Callable[..., Any], few_a_call: None
) -> None:
    jobs = one_of_each(queue, hand)

    changed = do(find_jobs(queue=queue), "discard")

    assert changed.won == 2
    assert changed.lost == dict.fromkeys(set(jobs) - {State.DEAD, State.QUARANTINED}, 1)
    assert do(find_jobs(queue=queue), "count") == 5


def test_jobs_that_somebody_else_has_changed_first_are_lost_by_where_they_are(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(scheduled(queue, delay=0))
        hand.bury(hand.take())
    found = list(find_jobs(queue=queue))
    assert len(found) == 3

    class Stale:
        target_ms = 0
        missing: ClassVar[dict[str, Exception]] = {}
        pages = iter([iter(found)])

        def next(self) -> Any:
            yield from ()
            return next(self.pages, None)

    jobs[0].discard()
    jobs[1].retry()
    wait_until(lambda: jobs[1].refresh() is State.DUE, description="it is due")
    changed = perform(hand.client, bulk.changing(Stale(), DISCARD))

    assert changed == Changed(1, {State.DISCARDED: 1, State.DUE: 1})


def test_no_job_is_no_error(queue: str, do: Callable[..., Any]) -> None:
    for name, *args in (
        ("cancel",),
        ("reschedule", 5),
        ("run_now",),
        ("retry",),
        ("discard",),
    ):
        assert do(find_jobs(queue=queue), name, *args) == Changed(0, {})


# A server that fails on the way.


@pytest.fixture
def proxy(settings: Any, queue: str, server: Any) -> Iterator[Proxy]:
    proxy = Proxy(server)
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
    yield proxy
    proxy.close()


def fill(queue: str, hand: Hand, way: str, count: int) -> None:
    for n in range(count):
        scheduled(queue, n, delay=0 if way in ("discard", "retry") else LATER)
    if way in ("discard", "retry"):
        for leased in hand.take_many(count):
            hand.bury(leased)


WAYS = {
    "cancel": ("cancel", ()),
    "reschedule": ("reschedule", (5 * LATER,)),
    "retry": ("retry", ()),
    "discard": ("discard", ()),
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_lost_reply_changes_no_count(
    queue: str, hand: Hand, proxy: Proxy, do: Callable[..., Any], way: str
) -> None:
    fill(queue, hand, way, 30)
    script = load_script(scripts.PACKAGES, "replay" if way == "retry" else way)
    hand.client.script_load(script.source)
    lost = proxy.lose_reply_to(script.sha.encode())
    name, args = WAYS[way]

    assert do(find_jobs(queue=queue), name, *args) == Changed(30, {})

    assert lost.is_set()


@ways
def test_server_that_goes_away_on_the_way_leaves_an_account(
    queue: str,
    hand: Hand,
    proxy: Proxy,
    do: Callable[..., Any],
    few_a_call: None,
    way: str,
) -> None:
    fill(queue, hand, way, 30)
    script = load_script(scripts.PACKAGES, "replay" if way == "retry" else way)
    hand.client.script_load(script.source)
    # The third of ten pages.
    seen = 0
    passes = proxy._loss_for

    def third(data: bytes) -> Any:
        nonlocal seen
        seen += script.sha.encode() in data
        if seen == 3:
            proxy.lose_reply_to(script.sha.encode(), refuse=True)
            seen += 1
        return passes(data)

    proxy._loss_for = third  # type: ignore[method-assign]
    name, args = WAYS[way]

    with pytest.raises(MaybeChanged) as caught:
        do(find_jobs(queue=queue), name, *args)

    error = caught.value
    assert (error.won, error.lost, len(error.unknown)) == (6, {}, 3)
    assert isinstance(error.__cause__, RedisError)
    assert error.unknown[0].id in str(error)
    assert "6 jobs are" in str(error)
    proxy.is_refusing = False
    assert {job.queue for job in error.unknown} == {queue}
    again = do(find_jobs(queue=queue), name, *args)
    # The unknown three were changed, and are not changed again.
    won = 24 if way == "reschedule" else 21
    if way == "reschedule":
        assert again.won in (won, 30)
    else:
        # Those that were retried are found once more, where they wait.
        assert again == Changed(won, {State.DUE: 9} if way == "retry" else {})


def test_server_that_cannot_be_reached_has_changed_nothing(
    queue: str, proxy: Proxy, do: Callable[..., Any]
) -> None:
    proxy.is_refusing = True

    with pytest.raises(MaybeChanged, match="0 jobs are cancelled") as caught:
        do(find_jobs(queue=queue), "cancel")

    assert caught.value.unknown == []


def test_full_server_lets_found_jobs_be_changed(
    settings: Any, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {"full": {}}}
    client = server.client()
    found = find_jobs(queue="full")
    schedule_many(samples.add.using(queue="full").prepare(LATER, n) for n in range(30))
    client.config_set("maxmemory", 1)

    assert found.reschedule(2 * LATER) == Changed(30, {})
    assert found.run_now() == Changed(30, {})
    assert found.cancel() == Changed(30, {})


def test_error_of_the_server_is_that_of_a_call_that_changed_nothing(
    client: "redis.Redis[bytes]", queue: str, hand: Hand, do: Callable[..., Any]
) -> None:
    for n in range(5):
        scheduled(queue, n)
    client.set(hand.keys.held_tasks, "text")

    with pytest.raises(MaybeChanged, match="WRONGTYPE") as caught:
        do(find_jobs(queue=queue), "reschedule", 5)

    assert (caught.value.won, caught.value.unknown) == (0, [])
    client.delete(hand.keys.held_tasks)
    assert do(find_jobs(queue=queue), "reschedule", 5) == Changed(5, {})


def test_interrupt_says_how_far_it_came(
    queue: str, few_a_call: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(9):
        scheduled(queue, n)
    following = walking.Walk.next
    pages = iter("ab")

    def interrupted(self: Any) -> Any:
        if next(pages, None) is None:
            raise KeyboardInterrupt
        return (yield from following(self))

    monkeypatch.setattr(walking.Walk, "next", interrupted)

    with pytest.raises(KeyboardInterrupt) as caught:
        find_jobs(queue=queue).cancel()

    assert caught.value.__notes__ == ["django-delayq: 6 jobs are cancelled"]


# Bad input.


@pytest.mark.parametrize(
    ("sought", "words"),
    [
        ({"state": "succeeded"}, "keep_result"),
        ({"state": "failed"}, "'failed' is not a state.*retrying, or dead or quarant"),
        ({"state": "discarded"}, "does not keep ended jobs.*ended_jobs.*--state ended"),
        ({"state": State.MISSING}, "no job with a given id"),
        ({"state": ["dead", "cancelled"]}, "does not keep ended jobs"),
        ({"state": "uncommitted"}, "before its commit"),
        ({"state": "deed"}, "'deed' is not a state"),
        ({"state": 5}, "state is a State, or several"),
        ({"state": [5]}, "5 is not a state"),
        ({"queue": 5}, "queue is a name, or several"),
        ({"queue": b"mail"}, "queue is a name, or several"),
        ({"queue": [None]}, "a queue has a name"),
        ({"task": print}, "task is a function decorated"),
        ({"task": ""}, "task is a function decorated"),
        ({"text": ""}, "not empty"),
        ({"text": 5}, "not empty"),
        ({"text": "\ud800"}, "not empty"),
        ({"limit": -1}, "limit is a number"),
        ({"limit": True}, "limit is a number"),
        ({"due": NOW}, "due is a range"),
        ({"due": (NOW,)}, "due is a range"),
        ({"due": (5, None)}, "timedelta from now, or None; got 5"),
        ({"due": (datetime(2030, 1, 1), None)}, "time zone"),
        ({"due": (NOW, NOW - timedelta(1))}, "begins after its end"),
        ({"due": (timedelta(1), timedelta(0))}, "begins after its end"),
    ],
)
def test_what_cannot_be_looked_for_is_refused_at_the_call(
    queue: str, sought: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSearch, match=words):
        find_jobs(**sought)
    with pytest.raises(InvalidSearch, match=words):
        afind_jobs(**sought)


def test_queue_that_is_not_configured_is_refused_at_the_call(queue: str) -> None:
    with pytest.raises(QueueNotFound, match="nowhere"):
        find_jobs(queue=[queue, "nowhere"])


def test_delay_that_is_none_is_refused_before_anything_is_moved(
    queue: str, do: Callable[..., Any]
) -> None:
    job = scheduled(queue)

    with pytest.raises(InvalidDelay):
        do(find_jobs(queue=queue), "reschedule", -1)

    assert list(find_jobs(queue=queue)) == [job]


def test_key_of_the_wrong_type_is_the_servers_error(
    client: "redis.Redis[bytes]", queue: str, hand: Hand
) -> None:
    client.set(hand.keys.dead, "text")

    with pytest.raises(RedisError, match="WRONGTYPE"):
        list(find_jobs(queue=queue))

    client.delete(hand.keys.dead)


@pytest.mark.parametrize("state", ["dead", "retrying"])
def test_jobs_that_come_back_while_a_change_goes_on_are_changed_once(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A worker runs between two pages, and what it runs fails again."""
    jobs = schedule_many(
        samples.add.using(queue=queue).prepare(0, n, n) for n in range(250)
    )

    def fail(leased: Any) -> None:
        if state == "dead":
            hand.bury(leased)
        else:
            hand.retry(leased, 60_000)

    for leased in hand.take_many(len(jobs)):
        fail(leased)
    walk, pages = walking.Walk.next, 0

    def next_page(self: walking.Walk) -> Any:
        nonlocal pages
        pages += 1
        assert pages < 30, "it meets its own changes for ever"
        for leased in hand.claim(500):
            fail(leased)
        return (yield from walk(self))

    monkeypatch.setattr(walking.Walk, "next", next_page)

    found = find_jobs(queue=queue, state=state)
    changed = found.retry() if state == "dead" else found.run_now()

    assert 0 < changed.won <= len(jobs)


def test_found_job_has_its_priority_and_its_unique_key(queue: str, hand: Hand) -> None:
    task = samples.add.using(queue=queue, unique=("a",), priority=7)
    job = task.schedule(LATER, 1, 2)

    (found,) = find_jobs(queue=queue)

    assert (found.priority, found.unique) == (7, job.unique)
    assert job.refresh() is State.SCHEDULED
    assert (job.priority, job.unique) == (found.priority, found.unique)


#: Values in which a text may be written in another way than in JSON.
WRITTEN = (
    "Zoë", "ZOË", "STRAßE", "straße", "ſ", "\u212a", "İ", "a\"b", "a\\b", "a/b", "\n", "\x01", "\x7f", "\u2028",
    "😀", 1e16, 1.5e-7, 0.1, -0.0, 10**30, 12345, True, None, "true", "1e16", "e", "", "  ", "\\u00eb",
)  # fmt: skip


def test_glance_at_a_payload_never_passes_over_what_has_the_text(
    queue: str,
) -> None:
    texts = {str(value) for value in WRITTEN} | {str(value)[:2] for value in WRITTEN}
    for value in WRITTEN:
        for args, kwargs in (([value], {}), ([], {"k": {str(value): [value]}})):
            job = samples.anything.using(queue=queue).prepare(0, *args, **kwargs)
            error = stored_results.error_text(f"E: {value}", kind="failed", at_ms=1)
            for part in (b"", error):
                found = found_of(job.draft.new.payload, part)
                known = job_of(queue, found)
                for text in filter(None, map(str.casefold, texts)):
                    if match_of_job.has_text(known, found, text):
                        assert match_of_job.may_have(text, found), (text, found.payload)


def test_glance_at_a_payload_passes_over_what_has_not_the_text(
    queue: str,
) -> None:
    job = samples.anything.using(queue=queue).prepare(0, "Zoë", who=7)

    found = found_of(job.draft.new.payload)

    assert not match_of_job.may_have("somebody else", found)
    assert match_of_job.may_have("zoë", found)


def found_of(payload: bytes, error: bytes = b"") -> Found:
    return Found(
        "timeout_set", State.SCHEDULED, "x" * 22, 1, 0, 0, "", payload, error, 0, 1
    )
