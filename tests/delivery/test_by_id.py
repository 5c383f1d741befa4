"""Cancel, reschedule and inspect by id, in every state that a job can be in."""

from collections.abc import Callable

import pytest

from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import State
from tests.delivery.bench import LEASE, T0, Bench, names_of, payload


def scheduled(bench: Bench) -> None:
    bench.schedule({"a": 5_000}, unique="ek")


def due(bench: Bench) -> None:
    bench.schedule({"a": 5}, unique="ek")
    bench.now = 9


def in_destination(bench: Bench) -> None:
    due(bench)
    bench.transfer()


def in_destination_by_java(bench: Bench) -> None:
    due(bench)
    bench.java_transfer()


def deep_in_destination(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_000)
    in_destination(bench)


def running(bench: Bench) -> None:
    due(bench)
    bench.lease()


def lease_expired(bench: Bench) -> None:
    running(bench)
    bench.now += LEASE


def worker_dead(bench: Bench) -> None:
    running(bench)
    bench.recover()


def retrying(bench: Bench) -> None:
    due(bench)
    bench.retry(bench.lease(), wait=1_000, error=b'{"error":"e"}')


def given_back(bench: Bench) -> None:
    due(bench)
    bench.give_back(bench.lease())


def held(bench: Bench) -> None:
    due(bench)
    bench.hold(bench.lease())


def dead(bench: Bench) -> None:
    due(bench)
    bench.bury(bench.lease())


def quarantined(bench: Bench) -> None:
    due(bench)
    bench.bury(bench.lease(), state=State.QUARANTINED)


def succeeded(bench: Bench) -> None:
    due(bench)
    bench.acknowledge(bench.lease())


def expired(bench: Bench) -> None:
    due(bench)
    bench.acknowledge(bench.lease(), state=State.EXPIRED)


def taken(bench: Bench) -> None:
    due(bench)
    bench.acknowledge(bench.lease(), state=State.TAKEN)


def cancelled(bench: Bench) -> None:
    due(bench)
    bench.cancel("a")


def forgotten(bench: Bench) -> None:
    succeeded(bench)
    bench.now += 30_001


def missing(bench: Bench) -> None:
    pass


def taken_by_java(bench: Bench) -> None:
    in_destination_by_java(bench)
    bench.java_take()


def removed_by_java(bench: Bench) -> None:
    scheduled(bench)
    bench.java_remove(bench.client.zrange(bench.keys.queue.timeout_set, 0, 0)[0])


Life = Callable[[Bench], None]

#: Each way to be, the answer of cancel, of reschedule, and the state that inspect tells.
LIVES: dict[Life, tuple[str, str, str]] = {
    scheduled: ("cancelled", "rescheduled", "scheduled"),
    due: ("cancelled", "rescheduled", "due"),
    in_destination: ("cancelled", "rescheduled", "due"),
    in_destination_by_java: ("cancelled", "rescheduled", "due"),
    deep_in_destination: ("noted", "noted", "unknown"),
    running: ("running", "running", "running"),
    lease_expired: ("running", "running", "running"),
    worker_dead: ("cancelled", "rescheduled", "running"),
    retrying: ("cancelled", "rescheduled", "retrying"),
    given_back: ("cancelled", "rescheduled", "due"),
    held: ("cancelled", "rescheduled", "held"),
    dead: ("dead", "dead", "dead"),
    quarantined: ("quarantined", "quarantined", "quarantined"),
    succeeded: ("succeeded", "succeeded", "succeeded"),
    expired: ("expired", "expired", "expired"),
    taken: ("taken", "taken", "taken"),
    cancelled: ("cancelled", "cancelled", "cancelled"),
    forgotten: ("missing", "missing", "missing"),
    missing: ("missing", "missing", "missing"),
    taken_by_java: ("missing", "missing", "missing"),
    removed_by_java: ("missing", "missing", "missing"),
}
lives = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)


# Cancel.


@lives
def test_cancel_tells_what_it_did_or_the_state_it_left(
    any_bench: Bench, life: Life
) -> None:
    life(any_bench)

    assert any_bench.cancel("a") == LIVES[life][0]


@pytest.mark.parametrize(
    "life",
    [life for life, answers in LIVES.items() if answers[0] == "cancelled"],
    ids=lambda life: life.__name__,
)
def test_cancelled_job_is_gone_with_its_key_and_never_runs(
    any_bench: Bench, life: Life
) -> None:
    bench = any_bench
    life(bench)

    bench.cancel("a")

    assert bench.state() == {}
    assert set(bench.leftovers()) <= {bench.keys.claims}
    assert bench.inspect("a").state is State.CANCELLED
    assert bench.counters()["cancelled"] == 1
    bench.now += 10 * LEASE
    assert bench.claim().jobs == bench.claim(mode=Mode.SHARED).jobs == []


@pytest.mark.parametrize(
    "life",
    [life for life in LIVES if LIVES[life][0] not in ("cancelled", "noted", "missing")],
    ids=lambda life: life.__name__,
)
def test_cancel_that_comes_too_late_changes_nothing(bench: Bench, life: Life) -> None:
    life(bench)
    before = bench.state(), bench.counters()

    bench.cancel("a")

    assert (bench.state(), bench.counters()) == before


@pytest.mark.parametrize("life", [taken_by_java, removed_by_java])
@pytest.mark.parametrize("way", ["cancel", "reschedule"])
def test_what_is_kept_of_a_job_that_java_has_is_forgotten(
    bench: Bench, life: Life, way: str
) -> None:
    life(bench)
    assert bench.state() == {"unique": {"k": "a"}, "locators": ["a"]}

    if way == "cancel":
        bench.cancel("a")
    else:
        bench.reschedule("a", 0)

    assert bench.state() == {}


def test_cancelled_while_it_runs_is_refused_and_the_job_ends_as_it_ends(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()

    assert bench.cancel("a") is State.RUNNING

    assert bench.acknowledge(job) == []
    assert bench.inspect("a").state is State.SUCCEEDED


def test_cancel_takes_the_one_job_and_no_other(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({"a": 5, "b": 5, "c": 5})

    bench.cancel("b")

    bench.now = 5
    assert names_of(bench.claim()) == ["a", "c"]


@lives
def test_cancelling_many_does_to_each_what_is_done_to_one(
    any_bench: Bench, life: Life
) -> None:
    bench = any_bench
    life(bench)
    bench.schedule({"b": 50, "c": 70, "d": 60})

    outcomes = bench.cancel_many(["b", "a", "b", "nobody", "c"])

    told = LIVES[life][0]
    assert outcomes == {
        "b": "cancelled",
        "a": told,
        "nobody": "missing",
        "c": "cancelled",
    }
    assert bench.inspect("b").state is bench.inspect("c").state is State.CANCELLED
    if told == "cancelled":
        assert bench.inspect("a").state is State.CANCELLED
        assert "unique" not in bench.state()
    else:
        assert bench.cancel("a") == told
    had = {"cancelled"} & {told, life.__name__}
    assert bench.counters()["cancelled"] == 2 + len(had)
    bench.now += 100
    assert "d" in names_of(bench.claim(2_000))


def test_many_that_lie_in_the_destination_queue_are_cancelled_together(
    bench: Bench,
) -> None:
    bench.schedule({f"j{n}": 0 for n in range(300)}, unique="")
    bench.transfer(batch=500)
    wanted = [f"j{n}" for n in range(0, 300, 2)]

    assert bench.cancel_many(wanted) == dict.fromkeys(wanted, "cancelled")

    left = [f"j{n}" for n in range(1, 300, 2)]
    assert bench.state()["destination"] == left
    assert names_of(bench.claim(500)) == left


# Reschedule.


@lives
def test_reschedule_tells_what_it_did_or_the_state_it_left(
    any_bench: Bench, life: Life
) -> None:
    life(any_bench)
    start_time = -(-any_bench.now // 1) + 700

    outcome = any_bench.reschedule("a", 700)

    moved = LIVES[life][1] in ("rescheduled", "noted")
    assert outcome == (LIVES[life][1], start_time if moved else None)


@pytest.mark.parametrize(
    "life",
    [life for life, answers in LIVES.items() if answers[1] == "rescheduled"],
    ids=lambda life: life.__name__,
)
@pytest.mark.parametrize("wait", [0, 1, 100_000])
def test_moved_job_runs_at_its_new_time_once_and_not_before(
    any_bench: Bench, life: Life, wait: int
) -> None:
    bench = any_bench
    life(bench)
    before = bench.inspect("a")

    bench.reschedule("a", wait)

    moved_at = bench.now
    seen = bench.inspect("a")
    assert (seen.attempts, seen.kills, seen.unique) == (
        before.attempts,
        before.kills,
        "k",
    )
    if wait:
        bench.now = moved_at + wait - 0.001
        assert bench.claim().jobs == []
    bench.now = moved_at + wait
    job = bench.lease()
    assert (job.payload, job.attempts) == (payload("a"), before.attempts)
    assert job.start_time_ms == T0 + moved_at + wait
    bench.acknowledge(job)
    assert bench.state() == {}


@pytest.mark.parametrize(
    "life",
    [
        life
        for life in LIVES
        if LIVES[life][1] not in ("rescheduled", "noted", "missing")
    ],
    ids=lambda life: life.__name__,
)
def test_move_that_comes_too_late_changes_nothing(bench: Bench, life: Life) -> None:
    life(bench)
    before = bench.state(), bench.counters()

    bench.reschedule("a", 0)

    assert (bench.state(), bench.counters()) == before


@pytest.mark.parametrize(
    ("wait", "start_time"),
    [("+0", 101), (f"={T0 + 500}", 500), (f"={T0 + 50}", 101), ("=0", 101)],
)
def test_new_start_time_is_never_early_and_never_in_the_past(
    bench: Bench, wait: str, start_time: int
) -> None:
    bench.schedule({"a": 5_000})
    bench.now = 100.25

    assert bench.reschedule("a", wait) == ("rescheduled", start_time)

    assert bench.state()["timeout_set"] == [("a", start_time)]


@pytest.mark.parametrize(
    ("moved", "to", "published"),
    [
        ("a", 100, [100]),
        ("a", 1_000, []),
        ("a", 9_000, []),
        ("b", 100, [100]),
        ("b", 1_000, []),
        ("b", 1_500, []),
    ],
)
def test_move_that_makes_a_new_head_is_published_for_java_and_us(
    bench: Bench, moved: str, to: int, published: list[int]
) -> None:
    bench.schedule({"a": 1_000, "b": 2_000})
    with bench.listening(bench.keys.queue.channel) as heard:
        bench.reschedule(moved, to)

        assert heard() == published


@pytest.mark.parametrize("life", [retrying, worker_dead, in_destination, given_back])
def test_move_of_what_is_ours_alone_is_told_on_our_channel(
    bench: Bench, life: Life
) -> None:
    life(bench)
    with (
        bench.listening(bench.keys.channel) as heard,
        bench.listening(bench.keys.queue.channel) as java_heard,
    ):
        bench.reschedule("a", 70)

        assert heard() == [bench.now + 70]
        assert java_heard() == []


def test_moved_back_and_forth_it_stays_one_job(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({"a": 100, "b": 100})
    for wait in (50, 50, 200, 0, 300, 10):
        assert bench.reschedule("a", wait) == ("rescheduled", wait)
        bench.check()

    assert bench.state()["timeout_set"] == [("a", 10), ("b", 100)]
    assert bench.cancel("a") == "cancelled"


def test_java_still_transfers_what_was_moved(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({"a": 100, "b": 200})
    bench.reschedule("b", 50)
    bench.now = 60

    assert bench.java_transfer() == 1

    assert bench.java_take() == "b"
    bench.is_checked = False  # its locator waits for the sweep


# Inspect.


@lives
def test_inspect_tells_the_state_and_changes_nothing(
    any_bench: Bench, life: Life
) -> None:
    bench = any_bench
    life(bench)
    before = bench.state()

    seen = bench.inspect("a")

    assert seen.state == LIVES[life][2]
    assert seen.now_ms == T0 + bench.now
    assert bench.state() == before
    bench.is_checked = life not in (taken_by_java, removed_by_java)


@pytest.mark.parametrize(
    ("life", "score"),
    [
        (scheduled, 5_000),
        (due, 5),
        (in_destination, 5),
        (running, 9 + LEASE),
        (retrying, 1_009),
        (given_back, 5),
        (dead, 9),
        (quarantined, 9),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_inspect_tells_start_time_lease_end_or_when_it_was_put_aside(
    any_bench: Bench, life: Life, score: int
) -> None:
    life(any_bench)

    seen = any_bench.inspect("a")

    assert seen.score_ms == T0 + score
    assert seen.start_time_ms == T0 + (5_000 if life is scheduled else 5)
    assert seen.payload == payload("a")
    assert seen.unique == ("" if life in (dead, quarantined) else "k")


@pytest.mark.parametrize(
    ("now", "state"), [(999.999, State.SCHEDULED), (1_000, State.DUE)]
)
def test_job_is_due_from_its_start_time_on(
    bench: Bench, now: float, state: State
) -> None:
    bench.schedule({"a": 1_000})
    bench.now = now

    assert bench.inspect("a").state is state


@pytest.mark.parametrize("way", ["cancel", "reschedule"])
@pytest.mark.parametrize("now", [LEASE - 0.001, LEASE, 10 * LEASE])
def test_lease_keeps_cancel_and_move_away_whether_it_has_run_out_or_not(
    bench: Bench, way: str, now: float
) -> None:
    """While the server is away nobody can renew, and the worker runs the job all the same."""
    bench.schedule({"a": 0})
    bench.lease()
    bench.now = now

    if way == "cancel":
        assert bench.cancel("a") == "running"
    else:
        assert bench.reschedule("a", 5)[0] == "running"


def test_inspect_tells_attempts_kills_and_error(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.retry(bench.lease(), wait=0, error=b'{"error":"first"}')
    bench.lease()
    bench.now = LEASE
    bench.lease()

    seen = bench.inspect("a")

    assert (seen.attempts, seen.kills) == (1, 1)
    assert seen.error == b'{"error":"first"}'


@pytest.mark.parametrize("life", [succeeded, cancelled, missing, forgotten])
def test_inspect_of_what_is_over_tells_no_more_than_how(
    bench: Bench, life: Life
) -> None:
    life(bench)

    seen = bench.inspect("a")

    assert (seen.score_ms, seen.attempts, seen.kills, seen.payload) == (0, 0, 0, b"")


@pytest.mark.parametrize("name", ["", "f2-1-2", "f3-1-" + "0" * 16, "f2-x", "\n", "%d"])
def test_id_of_no_job_is_missing_whatever_it_looks_like(
    bench: Bench, name: str
) -> None:
    bench.schedule({"a": 5})
    before = bench.state()

    assert bench.inspect(name).state is State.MISSING
    assert bench.cancel(name) is State.MISSING
    assert bench.reschedule(name, 0) == (State.MISSING, None)

    assert bench.state() == before
