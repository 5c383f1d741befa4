"""Cancel, reschedule and inspect by id, in every state that a job can be in."""

from collections.abc import Callable

import pytest

from django_delayq.core.claim import Mode
from django_delayq.core.states import State
from tests.core.rig import LEASE, T0, Rig, names_of, payload


def scheduled(rig: Rig) -> None:
    rig.schedule({"a": 5_000}, unique="ek")


def due(rig: Rig) -> None:
    rig.schedule({"a": 5}, unique="ek")
    rig.now = 9


def in_destination(rig: Rig) -> None:
    due(rig)
    rig.transfer()


def in_destination_by_java(rig: Rig) -> None:
    due(rig)
    rig.java_transfer()


def deep_in_destination(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_000)
    in_destination(rig)


def running(rig: Rig) -> None:
    due(rig)
    rig.lease()


def lease_expired(rig: Rig) -> None:
    running(rig)
    rig.now += LEASE


def worker_dead(rig: Rig) -> None:
    running(rig)
    rig.recover()


def retrying(rig: Rig) -> None:
    due(rig)
    rig.retry(rig.lease(), wait=1_000, error=b'{"error":"e"}')


def given_back(rig: Rig) -> None:
    due(rig)
    rig.give_back(rig.lease())


def held(rig: Rig) -> None:
    due(rig)
    rig.hold(rig.lease())


def dead(rig: Rig) -> None:
    due(rig)
    rig.bury(rig.lease())


def quarantined(rig: Rig) -> None:
    due(rig)
    rig.bury(rig.lease(), state=State.QUARANTINED)


def succeeded(rig: Rig) -> None:
    due(rig)
    rig.acknowledge(rig.lease())


def expired(rig: Rig) -> None:
    due(rig)
    rig.acknowledge(rig.lease(), state=State.EXPIRED)


def taken(rig: Rig) -> None:
    due(rig)
    rig.acknowledge(rig.lease(), state=State.TAKEN)


def cancelled(rig: Rig) -> None:
    due(rig)
    rig.cancel("a")


def forgotten(rig: Rig) -> None:
    succeeded(rig)
    rig.now += 30_001


def missing(rig: Rig) -> None:
    pass


def taken_by_java(rig: Rig) -> None:
    in_destination_by_java(rig)
    rig.java_take()


def removed_by_java(rig: Rig) -> None:
    scheduled(rig)
    rig.java_remove(rig.client.zrange(rig.keys.queue.timeout_set, 0, 0)[0])


Life = Callable[[Rig], None]

#: Each state that a job can be in, the answers of cancel and of reschedule, and the state that inspect returns.
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
    any_rig: Rig, life: Life
) -> None:
    life(any_rig)

    assert any_rig.cancel("a") == LIVES[life][0]


@pytest.mark.parametrize(
    "life",
    [life for life, answers in LIVES.items() if answers[0] == "cancelled"],
    ids=lambda life: life.__name__,
)
def test_cancelled_job_is_gone_with_its_key_and_never_runs(
    any_rig: Rig, life: Life
) -> None:
    rig = any_rig
    life(rig)

    rig.cancel("a")

    assert rig.state() == {}
    assert set(rig.leftovers()) <= {rig.keys.claims}
    assert rig.inspect("a").state is State.CANCELLED
    assert rig.counters()["cancelled"] == 1
    rig.now += 10 * LEASE
    assert rig.claim().jobs == rig.claim(mode=Mode.SHARED).jobs == []


@pytest.mark.parametrize(
    "life",
    [life for life in LIVES if LIVES[life][0] not in ("cancelled", "noted", "missing")],
    ids=lambda life: life.__name__,
)
def test_cancel_that_comes_too_late_changes_nothing(rig: Rig, life: Life) -> None:
    life(rig)
    before = rig.state(), rig.counters()

    rig.cancel("a")

    assert (rig.state(), rig.counters()) == before


@pytest.mark.parametrize("life", [taken_by_java, removed_by_java])
@pytest.mark.parametrize("way", ["cancel", "reschedule"])
def test_what_is_kept_of_a_job_that_java_has_is_forgotten(
    rig: Rig, life: Life, way: str
) -> None:
    life(rig)
    assert rig.state() == {"unique": {"k": "a"}, "locators": ["a"]}

    if way == "cancel":
        rig.cancel("a")
    else:
        rig.reschedule("a", 0)

    assert rig.state() == {}


def test_cancelled_while_it_runs_is_refused_and_the_job_ends_as_it_ends(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()

    assert rig.cancel("a") is State.RUNNING

    assert rig.acknowledge(job) == []
    assert rig.inspect("a").state is State.SUCCEEDED


def test_cancel_takes_the_one_job_and_no_other(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 5, "b": 5, "c": 5})

    rig.cancel("b")

    rig.now = 5
    assert names_of(rig.claim()) == ["a", "c"]


@lives
def test_cancelling_many_does_to_each_what_is_done_to_one(
    any_rig: Rig, life: Life
) -> None:
    rig = any_rig
    life(rig)
    rig.schedule({"b": 50, "c": 70, "d": 60})

    outcomes = rig.cancel_many(["b", "a", "b", "nobody", "c"])

    told = LIVES[life][0]
    assert outcomes == {
        "b": "cancelled",
        "a": told,
        "nobody": "missing",
        "c": "cancelled",
    }
    assert rig.inspect("b").state is rig.inspect("c").state is State.CANCELLED
    if told == "cancelled":
        assert rig.inspect("a").state is State.CANCELLED
        assert "unique" not in rig.state()
    else:
        assert rig.cancel("a") == told
    had = {"cancelled"} & {told, life.__name__}
    assert rig.counters()["cancelled"] == 2 + len(had)
    rig.now += 100
    assert "d" in names_of(rig.claim(2_000))


def test_many_that_lie_in_the_destination_queue_are_cancelled_together(
    rig: Rig,
) -> None:
    rig.schedule({f"j{n}": 0 for n in range(300)}, unique="")
    rig.transfer(batch=500)
    wanted = [f"j{n}" for n in range(0, 300, 2)]

    assert rig.cancel_many(wanted) == dict.fromkeys(wanted, "cancelled")

    left = [f"j{n}" for n in range(1, 300, 2)]
    assert rig.state()["destination"] == left
    assert names_of(rig.claim(500)) == left


# Reschedule.


@lives
def test_reschedule_tells_what_it_did_or_the_state_it_left(
    any_rig: Rig, life: Life
) -> None:
    life(any_rig)
    start_time = -(-any_rig.now // 1) + 700

    outcome = any_rig.reschedule("a", 700)

    moved = LIVES[life][1] in ("rescheduled", "noted")
    assert outcome == (LIVES[life][1], start_time if moved else None)


@pytest.mark.parametrize(
    "life",
    [life for life, answers in LIVES.items() if answers[1] == "rescheduled"],
    ids=lambda life: life.__name__,
)
@pytest.mark.parametrize("wait", [0, 1, 100_000])
def test_moved_job_runs_at_its_new_time_once_and_not_before(
    any_rig: Rig, life: Life, wait: int
) -> None:
    rig = any_rig
    life(rig)
    before = rig.inspect("a")

    rig.reschedule("a", wait)

    moved_at = rig.now
    seen = rig.inspect("a")
    assert (seen.attempts, seen.kills, seen.unique) == (
        before.attempts,
        before.kills,
        "k",
    )
    if wait:
        rig.now = moved_at + wait - 0.001
        assert rig.claim().jobs == []
    rig.now = moved_at + wait
    job = rig.lease()
    assert (job.payload, job.attempts) == (payload("a"), before.attempts)
    assert job.start_time_ms == T0 + moved_at + wait
    rig.acknowledge(job)
    assert rig.state() == {}


@pytest.mark.parametrize(
    "life",
    [
        life
        for life in LIVES
        if LIVES[life][1] not in ("rescheduled", "noted", "missing")
    ],
    ids=lambda life: life.__name__,
)
def test_move_that_comes_too_late_changes_nothing(rig: Rig, life: Life) -> None:
    life(rig)
    before = rig.state(), rig.counters()

    rig.reschedule("a", 0)

    assert (rig.state(), rig.counters()) == before


@pytest.mark.parametrize(
    ("wait", "start_time"),
    [("+0", 101), (f"={T0 + 500}", 500), (f"={T0 + 50}", 101), ("=0", 101)],
)
def test_new_start_time_is_never_early_and_never_in_the_past(
    rig: Rig, wait: str, start_time: int
) -> None:
    rig.schedule({"a": 5_000})
    rig.now = 100.25

    assert rig.reschedule("a", wait) == ("rescheduled", start_time)

    assert rig.state()["timeout_set"] == [("a", start_time)]


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
    rig: Rig, moved: str, to: int, published: list[int]
) -> None:
    rig.schedule({"a": 1_000, "b": 2_000})
    with rig.listening(rig.keys.queue.channel) as heard:
        rig.reschedule(moved, to)

        assert heard() == published


@pytest.mark.parametrize("life", [retrying, worker_dead, in_destination, given_back])
def test_move_of_what_is_ours_alone_is_told_on_our_channel(
    rig: Rig, life: Life
) -> None:
    life(rig)
    with (
        rig.listening(rig.keys.channel) as heard,
        rig.listening(rig.keys.queue.channel) as java_heard,
    ):
        rig.reschedule("a", 70)

        assert heard() == [rig.now + 70]
        assert java_heard() == []


def test_moved_back_and_forth_it_stays_one_job(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 100, "b": 100})
    for wait in (50, 50, 200, 0, 300, 10):
        assert rig.reschedule("a", wait) == ("rescheduled", wait)
        rig.check()

    assert rig.state()["timeout_set"] == [("a", 10), ("b", 100)]
    assert rig.cancel("a") == "cancelled"


def test_java_still_transfers_what_was_moved(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 100, "b": 200})
    rig.reschedule("b", 50)
    rig.now = 60

    assert rig.java_transfer() == 1

    assert rig.java_take() == "b"
    rig.is_checked = False  # its locator waits for the sweep


# Inspect.


@lives
def test_inspect_tells_the_state_and_changes_nothing(any_rig: Rig, life: Life) -> None:
    rig = any_rig
    life(rig)
    before = rig.state()

    seen = rig.inspect("a")

    assert seen.state == LIVES[life][2]
    assert seen.now_ms == T0 + rig.now
    assert rig.state() == before
    rig.is_checked = life not in (taken_by_java, removed_by_java)


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
    any_rig: Rig, life: Life, score: int
) -> None:
    life(any_rig)

    seen = any_rig.inspect("a")

    assert seen.score_ms == T0 + score
    assert seen.start_time_ms == T0 + (5_000 if life is scheduled else 5)
    assert seen.payload == payload("a")
    assert seen.unique == ("" if life in (dead, quarantined) else "k")


@pytest.mark.parametrize(
    ("now", "state"), [(999.999, State.SCHEDULED), (1_000, State.DUE)]
)
def test_job_is_due_from_its_start_time_on(rig: Rig, now: float, state: State) -> None:
    rig.schedule({"a": 1_000})
    rig.now = now

    assert rig.inspect("a").state is state


@pytest.mark.parametrize("way", ["cancel", "reschedule"])
@pytest.mark.parametrize("now", [LEASE - 0.001, LEASE, 10 * LEASE])
def test_lease_keeps_cancel_and_move_away_whether_it_has_run_out_or_not(
    rig: Rig, way: str, now: float
) -> None:
    """While the server is away, nobody can renew a lease, yet the worker runs the job."""
    rig.schedule({"a": 0})
    rig.lease()
    rig.now = now

    if way == "cancel":
        assert rig.cancel("a") == "running"
    else:
        assert rig.reschedule("a", 5)[0] == "running"


def test_inspect_tells_attempts_kills_and_error(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.retry(rig.lease(), wait=0, error=b'{"error":"first"}')
    rig.lease()
    rig.now = LEASE
    rig.lease()

    seen = rig.inspect("a")

    assert (seen.attempts, seen.kills) == (1, 1)
    assert seen.error == b'{"error":"first"}'


@pytest.mark.parametrize("life", [succeeded, cancelled, missing, forgotten])
def test_inspect_of_what_is_over_tells_no_more_than_how(rig: Rig, life: Life) -> None:
    life(rig)

    seen = rig.inspect("a")

    assert (seen.score_ms, seen.attempts, seen.kills, seen.payload) == (0, 0, 0, b"")


@pytest.mark.parametrize("name", ["", "f2-1-2", "f3-1-" + "0" * 16, "f2-x", "\n", "%d"])
def test_id_of_no_job_is_missing_whatever_it_looks_like(rig: Rig, name: str) -> None:
    rig.schedule({"a": 5})
    before = rig.state()

    assert rig.inspect(name).state is State.MISSING
    assert rig.cancel(name) is State.MISSING
    assert rig.reschedule(name, 0) == (State.MISSING, None)

    assert rig.state() == before
