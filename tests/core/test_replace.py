"""A call whose unique key another job holds: it changes that job wherever it waits, and waits behind it where it runs."""

import pytest

from django_delayq.core import replace as replace_calls
from django_delayq.core import store as store_calls
from django_delayq.core.claim import Mode
from django_delayq.core.lease_ends import Done
from django_delayq.core.replace import Replaced
from django_delayq.core.states import Change, State
from django_delayq.core.store import NewJob, Scheduled, tail_of
from tests.core.rig import T0, Rig, names_of, payload, token
from tests.core.test_limits import STRIPE, declare, slots

KEY = "ek"
BEHIND = tail_of(KEY, may_go_behind=True)


def new_payload(name: str) -> bytes:
    """Return other arguments of a job, which its signature covers."""
    return payload(name, 120, signature="other arguments")


def replace(
    rig: Rig,
    holder: str = "a",
    *,
    by: str = "b",
    wait: int | str = 0,
    moves: str = "",
    has_arguments: bool = True,
    tail: str | bytes = KEY,
    max_wait_ms: int | None = None,
) -> Replaced:
    when = wait if isinstance(wait, str) else f"+{wait}"
    return rig.run(
        replace_calls.replace(
            rig.keys,
            token(holder),
            NewJob(token(by), when, tail, payload(by)),
            payload=new_payload(holder) if has_arguments else b"",
            moves=moves,
            max_wait_ms=max_wait_ms,
        )
    )


def put(rig: Rig, place: str, tail: str | bytes = KEY) -> None:
    """Bring job a, which holds the key, to a place where it waits."""
    rig.send([NewJob(token("a"), "+100", tail, payload("a"))])
    if place == "timeout set":
        return
    rig.now = 100
    if place in ("destination", "moved"):
        rig.transfer()
        if place == "moved":
            rig.reschedule("a", 50)
        return
    job = rig.lease()
    if place == "retries":
        rig.retry(job, wait=50)
    elif place == "returned":
        rig.give_back(job)
    elif place == "held":
        rig.hold(job)
    else:
        assert place == "given up"
        rig.recover()


def assert_nothing_left(rig: Rig) -> None:
    # As the end of the worker's process does.
    rig.recover()
    assert rig.leftovers() == []


PLACES = [
    "timeout set",
    "destination",
    "moved",
    "retries",
    "returned",
    "held",
    "given up",
]


def payload_of(rig: Rig, name: str) -> bytes:
    return rig.inspect(name).payload


@pytest.mark.parametrize("place", PLACES)
def test_waiting_holder_gets_the_arguments_where_it_waits(
    any_rig: Rig, place: str
) -> None:
    rig = any_rig
    put(rig, place)
    before = rig.inspect("a")

    reply = replace(rig)

    assert reply.outcome is Change.REPLACED
    assert reply.seen == rig.inspect("a")
    assert reply.seen.payload == new_payload("a")
    assert rig.state()["unique"] == {"k": "a"}
    assert (reply.seen.attempts, reply.seen.kills) == (0, 0)
    if place in ("timeout set", "moved", "retries", "returned"):
        assert reply.seen.score_ms == before.score_ms
    rig.now += 100
    (job,) = rig.claim().jobs
    assert (job.token, job.payload) == (token("a"), new_payload("a"))
    assert not job.is_foreign
    rig.acknowledge(job)
    assert "unique" not in rig.state()
    assert_nothing_left(rig)


@pytest.mark.parametrize("place", PLACES)
def test_waiting_holder_is_put_off_wherever_it_waits(any_rig: Rig, place: str) -> None:
    rig = any_rig
    put(rig, place)
    now = int(rig.now)

    reply = replace(rig, wait=5_000, moves="later", has_arguments=False)

    assert reply.outcome is Change.REPLACED
    assert reply.seen is not None
    assert reply.seen.payload == payload("a")
    assert reply.seen.score_ms == T0 + now + 5_000
    rig.now = now + 4_999
    assert names_of(rig.claim()) == []
    rig.now = now + 5_000
    rig.acknowledge(rig.lease())
    assert_nothing_left(rig)


@pytest.mark.parametrize("place", ["timeout set", "moved", "retries"])
def test_waiting_holder_is_had_sooner(any_rig: Rig, place: str) -> None:
    rig = any_rig
    put(rig, place)
    now = int(rig.now)

    reply = replace(rig, wait=10, moves="sooner", has_arguments=False)

    assert reply.outcome is Change.REPLACED
    rig.now = now + 10
    assert names_of(rig.claim()) == ["a"]


@pytest.mark.parametrize("place", PLACES)
def test_holder_that_is_late_or_soon_enough_is_left_as_it_is(
    any_rig: Rig, place: str
) -> None:
    rig = any_rig
    put(rig, place)
    before = rig.state()

    later = replace(rig, wait="=0", moves="later", has_arguments=False)
    sooner = replace(rig, wait=5_000, moves="sooner", by="c", has_arguments=False)

    if place not in ("destination", "returned", "held", "given up"):
        assert later.outcome is Change.KEPT
    assert sooner.outcome is Change.KEPT
    if later.outcome is Change.KEPT:
        assert rig.state() == before


def test_replacement_keeps_its_place_in_the_list(rig: Rig) -> None:
    rig.schedule({"first": 50}, insertion_list=True)
    rig.schedule({"a": 100}, unique=KEY, insertion_list=True)
    rig.schedule({"last": 70}, insertion_list=True)

    replace(rig, wait=500, moves="later")

    state = rig.state()
    assert state["delay_queue"] == ["first", "a", "last"]
    assert state["timeout_set"] == [("first", 50), ("last", 70), ("a", 500)]
    rig.now = 500
    assert names_of(rig.claim()) == ["first", "last", "a"]
    assert rig.client.llen(rig.keys.queue.delay_queue) == 0


def test_holder_deep_in_the_list_is_found_from_either_end(rig: Rig) -> None:
    for n in range(200):
        unique = f"ek{n}" if n in (1, 100, 198) else ""
        rig.schedule({f"j{n}": 100 + n}, unique=unique, insertion_list=True)

    for n in (1, 100, 198):
        assert (
            replace(rig, f"j{n}", by=f"b{n}", tail=f"ek{n}").outcome is Change.REPLACED
        )
        assert payload_of(rig, f"j{n}") == new_payload(f"j{n}")

    assert rig.state()["delay_queue"] == [f"j{n}" for n in range(200)]


def test_new_head_is_published(rig: Rig) -> None:
    rig.schedule({"a": 1_000}, unique=KEY)

    with rig.listening(rig.keys.redisson_channel) as heard:
        replace(rig, wait=10, moves="sooner")

        assert heard() == [10]


def test_retry_that_is_replaced_begins_anew_and_keeps_its_history(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    rig.retry(rig.lease(), wait=50, error=b'{"error":"no"}')

    reply = replace(rig)

    assert reply.seen is not None
    assert (reply.seen.state, reply.seen.attempts) == (State.SCHEDULED, 0)
    assert b"no" in reply.seen.history
    rig.now = 50
    assert rig.lease().attempts == 0


def test_retry_that_is_put_off_keeps_its_attempts(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    rig.retry(rig.lease(), wait=50)

    reply = replace(rig, wait=500, moves="later", has_arguments=False)

    assert reply.seen is not None
    assert (reply.seen.state, reply.seen.attempts) == (State.RETRYING, 1)


def test_priority_of_the_later_call_counts(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY, priority=5)
    rig.schedule({"x": 0}, priority=1)

    replace(rig, tail=tail_of(KEY, -5))

    assert rig.inspect("a").priority == -5
    assert names_of(rig.claim()) == ["x", "a"]


# Limits.


@pytest.fixture
def limited(rig: Rig) -> Rig:
    """A queue with a limit of one at a time, which a running job of another key uses up."""
    declare(rig, concurrency=1)
    rig.schedule({"x": 0}, limit=STRIPE)
    assert rig.lease().token == token("x")
    rig.schedule({"a": 0}, unique=KEY, limit=STRIPE)
    assert names_of(rig.claim()) == []
    assert rig.inspect("a").state is State.HELD
    return rig


def test_held_job_gets_the_limit_of_the_later_call(limited: Rig) -> None:
    replace(limited, tail=tail_of(KEY, 0, "stripe\0other"))

    assert names_of(limited.claim()) == ["a"]
    assert slots(limited) == 2


def test_held_job_of_the_same_limit_is_held_again(limited: Rig) -> None:
    replace(limited, tail=tail_of(KEY, 0, STRIPE))
    assert names_of(limited.claim()) == []
    assert limited.inspect("a").state is State.HELD

    header = limited.client.hget(limited.keys.headers, token("x"))
    limited.acknowledge(Done(token("x"), header[16:24]))

    assert limited.lease().payload == new_payload("a")


@pytest.mark.parametrize("moves", ["", "later"])
def test_job_whose_worker_died_leaves_its_slot_when_it_is_changed(
    rig: Rig, moves: str
) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0}, unique=KEY, limit=STRIPE)
    rig.lease()
    rig.schedule({"b": 0}, limit=STRIPE)
    rig.claim()
    rig.recover()

    replace(
        rig,
        by="c",
        wait=50,
        moves=moves,
        has_arguments=not moves,
        tail=tail_of(KEY, 0, STRIPE),
    )

    assert slots(rig) == 0
    jobs = rig.claim(1).jobs
    assert len(jobs) == slots(rig) == 1
    rig.acknowledge(*jobs)
    rig.now = 50
    rig.acknowledge(*rig.claim().jobs)
    assert_nothing_left(rig)


@pytest.fixture
def paced(rig: Rig) -> Rig:
    """Job a of a limit with a rate has its moment at 100, and b is held behind it."""
    declare(rig, rate="10/s burst 1")
    rig.schedule({"x": 0}, limit=STRIPE)
    rig.lease()
    rig.schedule({"a": 0}, unique=KEY, limit=STRIPE)
    rig.claim()
    rig.schedule({"b": 0}, limit=STRIPE)
    rig.claim()
    assert rig.inspect("a").score_ms == T0 + 100
    assert rig.inspect("b").state is State.HELD
    return rig


@pytest.mark.parametrize("moves", ["", "later", "sooner"])
@pytest.mark.parametrize("has_arguments", [True, False])
def test_job_that_waits_for_its_moment_starts_then_however_often_it_is_changed(
    paced: Rig, moves: str, has_arguments: bool
) -> None:
    for n in range(10, 100, 20):
        paced.now = n
        replace(
            paced,
            by=f"b{n}",
            moves=moves,
            has_arguments=has_arguments,
            tail=tail_of(KEY, 0, STRIPE),
        )
        assert names_of(paced.claim()) == []
        assert paced.inspect("a").score_ms == T0 + 100

    paced.now = 100

    assert names_of(paced.claim()) == ["a"]
    assert paced.inspect("b").score_ms == T0 + 200


# The longest wait.

DEBOUNCED = tail_of("sk", notes_first=True)


@pytest.mark.parametrize("place", ["timeout set", "destination", "moved"])
def test_holder_is_put_off_for_the_longest_wait_at_most(
    any_rig: Rig, place: str
) -> None:
    rig = any_rig
    put(rig, place, DEBOUNCED)
    due = []

    for n in range(8):
        reply = replace(
            rig,
            by=f"b{n}",
            wait=100,
            moves="later",
            tail=DEBOUNCED,
            max_wait_ms=330,
        )
        if reply.seen is None:
            break
        due.append(reply.seen.score_ms - T0)
        rig.now += 50

    assert max(due) == 330
    assert due == sorted(due)
    rig.now = 330
    assert rig.lease().payload == new_payload("a")
    assert "unique" not in rig.state()


def test_holder_that_is_due_later_than_the_longest_wait_stays(rig: Rig) -> None:
    rig.send([NewJob(token("a"), "+1000", DEBOUNCED, payload("a"))])

    reply = replace(rig, wait=5_000, moves="later", tail=DEBOUNCED, max_wait_ms=100)

    assert reply.seen is not None
    assert reply.seen.score_ms == T0 + 1_000


def test_longest_wait_counts_from_the_call_that_asks_first_for_one(rig: Rig) -> None:
    rig.schedule({"a": 10}, unique="sk")
    rig.now = 5

    for n in range(3):
        reply = replace(
            rig, by=f"b{n}", wait=99, moves="later", tail=DEBOUNCED, max_wait_ms=100
        )
        rig.now += 50

    assert reply.seen is not None
    assert reply.seen.score_ms == T0 + 105


def test_what_a_run_keeps_does_not_outlive_it(rig: Rig) -> None:
    rig.send([NewJob(token("a"), "+0", DEBOUNCED, payload("a"))])

    job = rig.lease()

    assert rig.client.hget(rig.keys.headers, job.token)[39:] == b""
    rig.retry(job, wait=0)
    rig.acknowledge(rig.lease())
    assert_nothing_left(rig)


def test_job_waits_behind_a_running_holder_whose_header_is_spoilt(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    rig.lease()
    rig.client.hset(rig.keys.headers, token("a"), b"spoilt")

    assert rig.schedule({"b": 0}, unique=KEY, may_go_behind=True)[0].holder == ""

    assert rig.state()["unique"] == {"k": "b"}
    assert names_of(rig.claim()) == ["b"]


# A holder that does not wait.


def test_job_waits_behind_a_holder_that_runs_and_takes_its_key(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 0}, unique=KEY)
    running = rig.lease()

    assert rig.schedule({"b": 5}, unique=KEY, may_go_behind=True) == [Scheduled(5, "")]

    assert rig.state()["unique"] == {"k": "b"}
    rig.now = 10
    assert names_of(rig.claim()) == []
    assert rig.inspect("b").state is State.SCHEDULED
    rig.acknowledge(running)
    rig.now = 60
    job = rig.lease()
    assert job.token == token("b")
    assert job.start_time_ms == T0 + 5
    assert rig.state()["unique"] == {"k": "b"}
    rig.acknowledge(job)
    assert_nothing_left(rig)


@pytest.mark.parametrize("way", ["timeout set", "destination", "ranked"])
def test_job_behind_another_starts_when_that_has_ended_and_not_before(
    rig: Rig, way: str
) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    running = rig.lease()
    rig.schedule(
        {"b": 5},
        unique=KEY,
        may_go_behind=True,
        priority=5 if way == "ranked" else 0,
    )
    mode = Mode.SHARED if way == "destination" else Mode.DIRECT
    looks = 0
    for _ in range(1_000):
        rig.now += 20
        if rig.now > 15_000 and running is not None:
            rig.retry(running, wait=100)
            running = None
        rig.renew(running) if running else None
        before = rig.state()
        claimed = rig.claim(mode=mode)
        assert token("b") not in [job.token for job in claimed.jobs]
        looks += rig.state() != before
        if claimed.jobs:
            (again,) = claimed.jobs
            assert again.token == token("a")
            break
    assert looks < 60, "it does not spin"

    rig.acknowledge(again)
    rig.now += 2_001

    assert names_of(rig.claim(mode=mode)) == ["b"]


def test_jobs_after_one_that_waits_behind_another_are_not_held_up(rig: Rig) -> None:
    for n in range(30):
        rig.schedule({f"a{n}": 0}, unique=f"e{n}")
    rig.claim(30)
    for n in range(30):
        rig.schedule({f"b{n}": 1}, unique=f"e{n}", may_go_behind=True)
    rig.schedule({"x": 2})
    rig.now = 3

    claimed: list[str] = []
    for _ in range(5):
        claimed += names_of(rig.claim(10))

    assert claimed == ["x"]


@pytest.mark.parametrize("is_over", [False, True])
def test_one_claim_looks_at_all_jobs_that_wait_behind_others(
    rig: Rig, is_over: bool
) -> None:
    for n in range(30):
        rig.schedule({f"a{n}": 0}, unique=f"e{n}")
    running = rig.claim(30).jobs
    for n in range(30):
        rig.schedule({f"b{n}": n}, unique=f"e{n}", may_go_behind=True)
    rig.now = 40
    rig.claim(30)
    if is_over:
        rig.acknowledge(*running)
    rig.now = 3_000

    claimed = rig.claim(1)

    assert len(claimed.jobs) == is_over
    if not is_over:
        found = rig.client.zrange(rig.keys.returned, 0, -1, withscores=True)
        assert len(found) == 30
        # All are looked at together once more.
        assert len({score for _, score in found}) == 1


def test_next_call_meets_the_job_that_waits_behind(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    running = rig.lease()
    rig.schedule({"b": 5}, unique=KEY, may_go_behind=True)

    assert rig.schedule({"c": 5}, unique=KEY, may_go_behind=True)[0].holder == "b"
    assert replace(rig, "b", by="c", tail=BEHIND).outcome is Change.REPLACED

    rig.now = 5
    assert names_of(rig.claim()) == []
    rig.acknowledge(running)
    rig.now = 60
    assert rig.lease().payload == new_payload("b")


def test_cancelled_job_gives_the_key_back_to_the_one_that_it_waited_behind(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    running = rig.lease()
    rig.schedule({"b": 5}, unique=KEY, may_go_behind=True)

    rig.cancel("b")

    assert rig.state()["unique"] == {"k": "a"}
    assert rig.schedule({"c": 5}, unique=KEY)[0].holder == "a"
    rig.acknowledge(running)
    assert "unique" not in rig.state()


def test_cancelled_job_leaves_the_key_free_once_the_other_has_ended(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    running = rig.lease()
    rig.schedule({"b": 5}, unique=KEY, may_go_behind=True)
    rig.acknowledge(running)

    rig.cancel("b")

    assert_nothing_left(rig)


@pytest.mark.parametrize("end", ["dead", "vanished"])
def test_job_behind_one_that_never_succeeds_starts_all_the_same(
    rig: Rig, end: str
) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    running = rig.lease()
    rig.schedule({"b": 5}, unique=KEY, may_go_behind=True)
    if end == "dead":
        rig.bury(running)
    else:
        rig.client.hdel(rig.keys.headers, running.token)
        rig.client.hdel(rig.keys.payloads, running.token)
        rig.client.zrem(rig.keys.leases, running.token)

    rig.now = 60

    assert names_of(rig.claim()) == ["b"]


def test_job_waits_behind_nobody_if_the_key_is_free(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY, may_go_behind=True)

    assert rig.client.hvals(rig.keys.locators)[0].endswith(b"ek")
    assert len(rig.client.hvals(rig.keys.locators)[0]) == 21 + len(KEY)
    assert names_of(rig.claim()) == ["a"]


def test_two_calls_at_once_make_one_job_behind(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    rig.lease()
    jobs = [NewJob(token(name), "+5", BEHIND, payload(name)) for name in "bc"]

    assert [reply.holder for reply in rig.send(jobs)] == ["", "b"]


@pytest.mark.parametrize("end", ["runs", "cancelled", "dead", "another holds the key"])
def test_holder_that_does_not_wait_any_more_is_left_alone(rig: Rig, end: str) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    if end == "cancelled":
        rig.cancel("a")
    elif end == "another holds the key":
        rig.client.hset(rig.keys.unique, "k", token("z"))
        rig.is_checked = False
    else:
        job = rig.lease()
        if end == "dead":
            rig.bury(job)
    before = rig.state()

    reply = replace(rig)

    assert reply.seen is None
    assert isinstance(reply.outcome, State)
    assert rig.state() == before


def test_key_of_a_job_that_has_gone_is_freed(rig: Rig) -> None:
    rig.client.hset(rig.keys.unique, "k", token("a"))

    assert replace(rig).outcome is State.MISSING

    assert_nothing_left(rig)


# Repeats.


@pytest.mark.parametrize("place", PLACES)
def test_repeat_changes_nothing_even_after_the_job_has_begun(
    any_rig: Rig, place: str
) -> None:
    rig = any_rig
    put(rig, place)
    assert replace(rig, moves="later", wait=10).outcome is Change.REPLACED
    before = rig.state()

    assert replace(rig, moves="later", wait=10).outcome is Change.REPLACED
    assert rig.state() == before

    rig.now += 100
    job = rig.lease()
    before = rig.state()
    reply = replace(rig, moves="later", wait=10)
    assert reply.outcome is Change.REPLACED
    assert reply.seen is not None
    assert reply.seen.state is State.RUNNING
    assert rig.state() == before
    rig.acknowledge(job)


def test_repeat_of_a_call_that_changed_another_job_stores_nothing(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique=KEY)
    replace(rig)
    rig.acknowledge(rig.lease())

    call = store_calls.schedule(
        store_calls.Target(rig.keys), [NewJob(token("b"), "+0", KEY, payload("b"))]
    )
    (reply,) = rig.run(call.again())

    assert reply.beyond is State.TAKEN
    assert "timeout_set" not in rig.state()


# Forged and broken data.


@pytest.mark.parametrize(
    "tail",
    [
        b"x",
        b"xxxxx",
        b"x\xff\x64\0\0",
        b"x\xff\x64\0\0ek",
        b"x\x40\x64\0\0\1",
        b"x\xc0\x64\xff\xff",
        b"x\x80\x64\0\0" + b"?" * 22 + b"ek",
        b"x\xc0\x64\0\0" + b"\xff" * 28 + b"ek",
    ],
)
def test_spoilt_tail_stops_no_script(rig: Rig, tail: bytes) -> None:
    rig.is_checked = False
    rig.schedule({"a": 0}, unique=KEY)
    locator = rig.client.hget(rig.keys.locators, token("a"))
    rig.client.hset(rig.keys.locators, token("a"), locator[:21] + tail)

    rig.schedule({"b": 0}, unique=KEY, may_go_behind=True)
    replace(rig)
    rig.inspect("a")
    rig.reschedule("a", 0)
    assert "a" in names_of(rig.claim(1)) + names_of(rig.claim(1))


@pytest.mark.parametrize("holder", [b"f2-1700000000100-6a617661", b"", b"x" * 22])
def test_forged_holder_is_displaced(rig: Rig, holder: bytes) -> None:
    rig.java_offer("x", 100)
    rig.client.hset(rig.keys.unique, "k", holder)

    assert rig.schedule({"b": 0}, unique=KEY, may_go_behind=True)[0].holder == ""

    assert rig.state()["unique"] == {"k": "b"}
