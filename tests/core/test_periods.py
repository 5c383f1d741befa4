"""Schedules in the delivery layer: what moves one on, what replaces a waiting job, and that each occurrence has one job."""

import json
import random
import threading
from collections import Counter

import pytest
from redis.exceptions import ResponseError

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.store import NewJob, Target
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.transport.run import run
from tests.clock import at
from tests.core.rig import T0, Rig, name_in, names_of, payload, token


def waiting(rig):
    """Return the jobs that wait, and when each is due, in ms after T0."""
    return {name: at for name, at in rig.state().get("timeout_set", {}).items()}


def state_of(rig, name="s"):
    entry = rig.schedules()[name]
    fired = entry.state.fired_by(T0 + rig.now)
    return (
        entry.occurrence_ms,
        entry.state.token.rstrip("-"),
        fired and fired - T0,
        entry.state.behind_count,
    )


def test_first_occurrence_has_its_job_at_once(any_rig):
    assert any_rig.arrange("s", 50, job="a", code=b"definition")

    entry = any_rig.schedules()["s"]
    assert (entry.code, entry.stored, entry.change) == (b"definition", b"", b"")
    assert state_of(any_rig) == (50, "a", 0, 0)
    any_rig.now = 50
    assert names_of(any_rig.claim()) == ["a"]


def test_whoever_is_first_at_a_occurrence_stores_the_next_job_and_others_nothing(
    any_rig,
):
    any_rig.arrange("s", 50, job="a")
    any_rig.now = 50

    first = any_rig.advance("s", 50, {"b": 100}, 100)
    second = any_rig.advance("s", 50, {"c": 100}, 100)

    assert (first.has_moved, second.has_moved) == (True, False)
    assert first.occurrence_ms == second.occurrence_ms == T0 + 100
    assert state_of(any_rig) == (100, "b", 50, 0)
    any_rig.now = 100
    assert names_of(any_rig.claim()) == ["a", "b"]


def test_advance_whose_reply_was_lost_is_safe_to_repeat(rig):
    rig.arrange("s", 50, job="a")
    rig.now = 50

    rig.advance("s", 50, {"b": 100}, 100)
    again = rig.advance("s", 50, {"b": 100}, 100)

    assert not again.has_moved
    assert rig.client.zcard(rig.keys.queue.timeout_set) == 2


def test_schedule_of_another_definition_is_left_to_those_who_know_it(rig):
    rig.arrange("s", 50, job="a", print="p2")
    rig.now = 50

    assert not rig.advance("s", 50, {"b": 100}, 100, print="p1").has_moved
    assert state_of(rig) == (50, "a", 0, 0)


def test_missed_occurrences_get_their_jobs_in_one_step(rig):
    rig.arrange("s", 50, job="a")
    rig.now = 250

    moved = rig.advance("s", 50, {"b": 100, "c": 200, "d": 300}, 300, behind=2)

    assert moved == (moved.version, T0 + 300, True, False, 2)
    assert state_of(rig) == (300, "d", 200, 2)
    assert sorted(names_of(rig.claim())) == ["a", "b", "c"]


def test_schedule_without_a_further_occurrence_has_none(rig):
    rig.arrange("s", 50, job="a")
    rig.now = 50

    assert rig.advance("s", 50, {}, None).occurrence_ms is None
    assert state_of(rig) == (None, "", 50, 0)


def test_changed_definition_replaces_the_job_that_waits(any_rig):
    any_rig.arrange("s", 50, job="a", code=b"one")

    assert any_rig.arrange("s", 80, job="b", code=b"two", print="p2")

    assert state_of(any_rig) == (80, "b", 0, 0)
    assert any_rig.inspect("a").state == "cancelled"
    any_rig.now = 80
    assert names_of(any_rig.claim()) == ["b"]


def test_job_that_is_due_is_not_replaced(any_rig):
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.now = 60

    assert any_rig.arrange("s", 80, job="b", code=b"two", print="p2")

    assert state_of(any_rig) == (80, "b", 50, 0)
    any_rig.now = 80
    assert names_of(any_rig.claim()) == ["a", "b"]


@pytest.mark.parametrize(
    ("next_at", "change"),
    [
        (80, {"job": "b", "print": "p2", "code": b"two"}),
        (None, {"change": b"paused"}),
        (None, {"print": "", "code": ""}),
    ],
    ids=["replaced", "paused", "deleted"],
)
def test_job_of_a_occurrence_that_has_come_is_kept_while_it_waits_for_its_random_start(
    any_rig, next_at, change
):
    any_rig.arrange("s", 50, job="a", start=70, code=b"one")
    any_rig.now = 60

    assert any_rig.arrange("s", next_at, **change)

    assert any_rig.inspect("a").state == "scheduled"
    for entry in any_rig.schedules().values():
        assert entry.state.fired == str(T0 + 50)
    any_rig.now = 80
    assert names_of(any_rig.claim()) == (["a", "b"] if next_at else ["a"])


def test_job_that_was_moved_beyond_its_occurrence_is_that_of_its_occurrence_still(
    any_rig,
):
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.reschedule("a", 500)
    any_rig.now = 60

    assert any_rig.arrange("s", 80, job="b", code=b"two", print="p2")

    assert any_rig.inspect("a").state == "scheduled"
    assert state_of(any_rig) == (80, "b", 50, 0)


def test_occurrence_that_has_come_meanwhile_gets_no_second_job(any_rig):
    """Somebody has read the server's clock an occurrence before 50, and takes 50 for an occurrence to come."""
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.now = 50

    assert any_rig.arrange("s", 50, job="b", code=b"two", print="p2") == 0

    assert any_rig.schedules()["s"].code == b"one"
    assert names_of(any_rig.claim()) == ["a"]


def test_occurrence_that_another_has_moved_on_meanwhile_gets_no_second_job(rig):
    rig.arrange("s", 50, job="a", code=b"one")
    version = rig.advance("s", 0, {}, None).version
    rig.now = 50
    rig.advance("s", 50, {"b": 100}, 100)

    assert rig.arrange("s", 50, job="c", version=version, print="p2") == 0


DAY = 86_400_000


@pytest.mark.parametrize("ahead", [60_001, 10 * DAY])
def test_occurrence_that_a_clock_saw_which_has_been_set_back_since_counts_as_now(
    any_rig, ahead
):
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.now = ahead
    any_rig.advance("s", 50, {"b": ahead}, ahead)
    any_rig.advance("s", ahead, {"c": 2 * ahead}, 2 * ahead)
    any_rig.acknowledge(*any_rig.claim().jobs)
    any_rig.now = 0

    # The job of this occurrence has run already, by the clock that was ahead.
    assert any_rig.arrange("s", 50, job="a", code=b"two")

    assert state_of(any_rig) == (50, "a", 0, 0)
    any_rig.now = 50
    assert names_of(any_rig.claim()) == ["a"]


def test_occurrence_that_a_clock_saw_which_was_a_little_ahead_has_come(any_rig):
    """A replica whose clock is behind takes over."""
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.now = 60_000
    any_rig.advance("s", 50, {"b": 60_000}, 60_000)
    any_rig.advance("s", 60_000, {"c": 60_050}, 60_050)
    any_rig.acknowledge(*any_rig.claim().jobs)
    any_rig.now = 0

    assert any_rig.arrange("s", 50, job="a", code=b"two") == 0
    assert any_rig.arrange("s", 60_000, job="b", code=b"two") == 0
    assert any_rig.arrange("s", 60_050, job="c", code=b"two")
    assert any_rig.claim().jobs == []


def test_change_of_definitions_that_somebody_else_has_changed_is_refused(rig):
    rig.arrange("s", 50, job="a", code=b"one")

    assert rig.arrange("s", 80, job="b", version=1, code=b"two") == 0

    assert rig.schedules()["s"].code == b"one"
    assert state_of(rig) == (50, "a", 0, 0)


def test_change_whose_reply_was_lost_is_known_by_its_repeat(rig):
    new = NewJob(token("a"), f"={T0 + 50}", "", payload("a"))
    call = schedule_calls.arrange(
        Target(rig.keys),
        "s",
        version=0,
        code=b"one",
        print="p1",
        next_ms=T0 + 50,
        job=new,
    )

    assert rig.run(call) == rig.run(call.again()) > 0
    assert rig.client.zcard(rig.keys.queue.timeout_set) == 1


def test_pause_cancels_the_job_that_waits_and_resume_goes_on(any_rig):
    any_rig.arrange("s", 50, job="a", code=b"one")

    any_rig.arrange("s", None, change=b"paused")
    assert state_of(any_rig) == (None, "", 0, 0)
    any_rig.now = 60
    assert names_of(any_rig.claim()) == []
    any_rig.arrange("s", 100, job="b", change="")
    any_rig.now = 100

    assert names_of(any_rig.claim()) == ["b"]
    assert any_rig.schedules()["s"].change == b""


def test_change_that_is_taken_back_before_its_occurrence_has_the_same_job_run(any_rig):
    """The token of an occurrence's job is always the same, and a token that was cancelled is remembered for a while."""
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.arrange("s", None, change=b"paused")

    any_rig.arrange("s", 50, job="a", change="")

    assert any_rig.inspect("a").state == "scheduled"
    any_rig.now = 50
    assert names_of(any_rig.claim()) == ["a"]


def test_schedule_whose_state_is_lost_gets_no_second_job_for_its_occurrence(any_rig):
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.client.delete(any_rig.keys.schedules)

    any_rig.arrange("s", 50, job="a", code=b"one")

    assert any_rig.client.zcard(any_rig.keys.queue.timeout_set) == 1
    assert state_of(any_rig) == (50, "a", 0, 0)
    any_rig.now = 50
    assert names_of(any_rig.claim()) == ["a"]


def test_job_that_was_run_before_its_occurrence_is_not_stored_again(any_rig):
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.reschedule("a", 0)
    (job,) = any_rig.claim().jobs

    any_rig.arrange("s", None, change=b"paused")
    any_rig.arrange("s", 50, job="a", change="")

    assert state_of(any_rig) == (50, "a", 0, 0)
    assert any_rig.inspect("a").state == "running"
    assert any_rig.client.zcard(any_rig.keys.queue.timeout_set) == 0
    any_rig.acknowledge(job)


@pytest.mark.parametrize("between", ["at once", "paused", "forgotten"])
def test_other_definition_gives_no_second_job_to_a_occurrence_whose_job_was_run_early(
    any_rig, between
):
    any_rig.arrange("s", 50, job="a", code=b"one")
    any_rig.reschedule("a", 0)
    (job,) = any_rig.claim().jobs
    any_rig.acknowledge(job)
    if between == "paused":
        any_rig.arrange("s", None, change=b"paused")
    if between == "forgotten":
        any_rig.client.delete(any_rig.keys.ended)

    assert any_rig.arrange("s", 50, job="b", code=b"two", print="p2")

    assert any_rig.client.zcard(any_rig.keys.queue.timeout_set) == 0
    assert state_of(any_rig)[0] == 50
    any_rig.now = 50
    assert any_rig.advance("s", 50, {"c": 100}, 100, print="p2").has_moved
    any_rig.now = 100
    assert names_of(any_rig.claim()) == ["c"]


def test_schedule_that_comes_to_a_occurrence_whose_job_was_run_early_passes_it(any_rig):
    any_rig.arrange("s", 100, job="a", code=b"one")
    any_rig.reschedule("a", 0)
    (job,) = any_rig.claim().jobs
    any_rig.acknowledge(job)
    any_rig.arrange("s", 50, job="b", code=b"two", print="p2")
    any_rig.now = 50

    early = any_rig.advance("s", 50, {"c": 100}, 100, print="p2")
    any_rig.now = 100
    after = any_rig.advance("s", 100, {"d": 150}, 150, print="p2")
    any_rig.now = 150

    assert (early.has_moved, early.is_early) == (True, True)
    assert (after.has_moved, after.is_early) == (True, False)
    assert names_of(any_rig.claim()) == ["b", "d"]


def test_two_occurrences_whose_jobs_were_run_early_get_no_second_jobs(any_rig):
    for number, occurrence in enumerate((50, 100)):
        any_rig.arrange(
            "s", occurrence, job=f"a{occurrence}", code=b"one", print=f"p{number}"
        )
        any_rig.reschedule(f"a{occurrence}", 0)
        (job,) = any_rig.claim().jobs
        any_rig.acknowledge(job)
    any_rig.client.delete(any_rig.keys.ended)

    for number, occurrence in enumerate((50, 100, 50)):
        print = f"q{number}"
        assert any_rig.arrange("s", occurrence, job=f"b{number}", code=b"", print=print)

    assert any_rig.client.zcard(any_rig.keys.queue.timeout_set) == 0
    any_rig.now = 50
    assert any_rig.advance("s", 50, {"c": 100}, 100, print="q2").is_early
    any_rig.now = 100
    assert not any_rig.advance("s", 100, {"d": 150}, 150, print="q2").is_early
    any_rig.now = 150
    assert names_of(any_rig.claim()) == ["d"]


def test_occurrences_that_were_run_early_are_bounded(rig):
    for occurrence in range(200, 100, -1):
        rig.arrange(
            "s", occurrence, job=f"a{occurrence}", code=b"one", print=f"p{occurrence}"
        )
        rig.cancel(f"a{occurrence}")
    rig.arrange("s", 300, job="a300", code=b"one", print="p")

    state = json.loads(rig.client.hget(rig.keys.schedules, "state s"))

    assert state["early"].split() == [
        str(T0 + occurrence) for occurrence in range(101, 151)
    ]


#: How often each definition of the schedule comes.
STEPS = {"p1": 10, "p2": 15, "p3": 7}


@pytest.mark.parametrize("seed", range(6))
def test_no_occurrence_has_two_jobs_whatever_people_do_to_its_schedule(rig, seed):
    """Definitions change, jobs are run early or cancelled, the schedule rests, and the past is forgotten, at random."""
    chance = random.Random(seed)
    rig.now = 0
    print, is_paused, fired, started = "p1", False, 0, Counter()

    def after(occurrence):
        return occurrence // STEPS[print] * STEPS[print] + STEPS[print]

    def name_of(occurrence):
        return f"{print}m{occurrence}"

    def run_what_is_due():
        for job in rig.claim().jobs:
            started[name_in(job.payload).partition("m")[2]] += 1
            rig.acknowledge(job)

    def arrange():
        occurrence = after(max(rig.now, fired))
        given = {"job": name_of(occurrence)} if not is_paused else {}
        next_at = None if is_paused else occurrence
        assert rig.arrange("s", next_at, code=b"x", print=print, **given)

    def waiting_job():
        return rig.schedules()["s"].state.token.rstrip("-")

    arrange()
    for _ in range(400):
        match chance.choice(
            ["time", "early", "early", "cancel", "change", "change", "pause", "past"]
        ):
            case "time":
                rig.now += chance.randrange(1, 6)
                run_what_is_due()
                occurrence = rig.schedules()["s"].occurrence_ms
                if occurrence is not None and occurrence <= rig.now:
                    seen, new = occurrence, after(rig.now)
                    moved = rig.advance(
                        "s", seen, {name_of(new): new}, new, print=print
                    )
                    assert moved.has_moved
                    fired = seen
            case "early" if name := waiting_job():
                rig.reschedule(name, 0)
                run_what_is_due()
            case "cancel" if name := waiting_job():
                # An occurrence whose job was cancelled has had it.
                if rig.inspect(name).state == "scheduled":
                    rig.cancel(name)
                    started[name.partition("m")[2]] += 1
            case "change":
                print = chance.choice(list(STEPS))
                arrange()
            case "pause":
                is_paused = not is_paused
                arrange()
            case "past":
                rig.client.delete(rig.keys.ended)

    assert sum(started.values()) > 20
    assert [occurrence for occurrence, count in started.items() if count > 1] == []


def test_job_that_was_cancelled_before_its_occurrence_is_not_made_anew_by_a_change(rig):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.cancel("a")

    assert rig.arrange("s", 50, job="b", code=b"two", print="p2")

    assert rig.client.zcard(rig.keys.queue.timeout_set) == 0


def test_change_may_leave_the_occurrence_and_its_job_alone(rig):
    rig.arrange("s", 50, job="a", code=b"one")

    rig.arrange("s", change=b"note")

    assert state_of(rig) == (50, "a", 0, 0)
    assert rig.schedules()["s"].change == b"note"


def test_deleted_schedule_leaves_nothing(rig):
    rig.arrange("s", 50, job="a", code=b"one", change=b"x")

    rig.arrange("s", None, print="", code="", change="")

    assert rig.schedules() == {}
    assert rig.client.hkeys(rig.keys.schedules) == [b"version"]
    assert not rig.client.exists(rig.keys.periods)
    assert rig.inspect("a").state == "cancelled"


def test_cancelled_job_of_a_occurrence_is_not_replaced_and_the_schedule_goes_on(rig):
    rig.arrange("s", 50, job="a")
    rig.cancel("a")
    rig.now = 50

    assert rig.advance("s", 50, {"b": 100}, 100).has_moved
    assert names_of(rig.claim()) == []


def test_moved_job_is_replaced_where_it_is(rig):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.reschedule("a", 500)

    rig.arrange("s", 80, job="b", code=b"two", print="p2")

    assert rig.inspect("a").state == "cancelled"


def test_queue_without_priorities_gets_no_ranks_from_a_schedule(rig):
    rig.arrange("s", 50, job="a")
    rig.advance("s", 50, {"b": 100}, 100)

    assert not rig.client.exists(rig.keys.ranked)


def test_queue_with_priorities_ranks_the_jobs_of_schedules(rig):
    rig.schedule({"first": 900}, priority=1)
    rig.arrange("s", 50, job="a")

    rig.advance("s", 50, {"b": 100}, 100, priority=5)

    assert rig.client.zcard(rig.keys.ranked) == 3
    rig.now = 100
    assert names_of(rig.claim()) == ["b", "a"]


def test_full_queue_takes_the_job_of_a_occurrence(rig):
    rig.schedule({"x": 500}, max_jobs=1)
    rig.arrange("s", 50, job="a")
    rig.now = 50

    rig.advance("s", 50, {"b": 100}, 100)

    assert names_of(rig.claim()) == ["a"]


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"no json",
        b"[]",
        b'{"token":5}',
        b"\xff",
        b'{"print":"p1"}',
        b'{"fired":"1e20"}',
        b'{"fired":"%b"}' % (b"9" * 5_000),
        b'{"fired":"99999999999999999"}',
    ],
)
def test_state_that_no_script_has_written_is_missing_and_stops_nothing(rig, state):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.client.hset(rig.keys.schedules, "state s", state)

    assert rig.schedules()["s"].state.fired_by(T0) == 0
    rig.advance("s", 50, {"b": 100}, 100)
    assert rig.arrange("s", 100, job="b", code=b"two") > 0

    assert state_of(rig)[0] == 100


@pytest.mark.parametrize("version", ["1e3", "12.5", " 12", "-5", "x"])
def test_version_that_no_script_has_written_keeps_no_change_out(rig, version):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.client.hset(rig.keys.schedules, "version", version)

    assert rig.arrange("s", 80, job="b", code=b"two", print="p2") > 0


@pytest.mark.parametrize("score", ["inf", "-inf", 1e300])
def test_occurrence_that_is_no_time_is_none(rig, score):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.client.zadd(rig.keys.periods, {"s": score})

    assert not rig.advance("s", 50, {"b": 100}, 100).has_moved
    rig.schedules()
    assert rig.arrange("s", 80, job="b", code=b"two", print="p2") > 0


def test_foreign_fields_are_left_out(rig):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.client.hset(
        rig.keys.schedules,
        mapping={b"\xff\xfe": 1, "code": 1, "other s": 1, "version": "x"},
    )

    assert list(rig.schedules()) == ["s"]
    assert rig.version() == 0


def test_many_schedules_are_read_in_pages(rig):
    for n in range(300):
        rig.arrange(f"s{n}", 50 + n, job=f"j{n}", code=b"x" * 100)

    entries, cursor, pages = {}, 0, 0
    while True:
        page = rig.run(schedule_calls.page(rig.keys, cursor, count=50))
        for each in page.fields:
            schedule_calls.add_field(entries, *each)
        cursor, pages = page.cursor, pages + 1
        if not cursor:
            break

    assert len(entries) == 300
    assert pages > 3
    assert all(entry.code and entry.occurrence_ms for entry in entries.values())


def test_wrong_type_of_a_key_changes_nothing(rig):
    rig.arrange("s", 50, job="a", code=b"one")
    rig.client.delete(rig.keys.periods)
    rig.client.set(rig.keys.periods, "text")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        rig.advance("s", 50, {"b": 100}, 100)

    assert "b" not in rig.state()["timeout_set"]
    rig.client.delete(rig.keys.periods)
    rig.is_checked = False


# Each occurrence has one job.


def run_occurrences(server, queue, occurrences, workers, *, seed):
    """Have threads move one schedule on through so many occurrences, each with its own client and a clock that they share.

    Now and then one forgets all it knows, as if it had been killed between a call and its reply. Returns the names of
    all jobs that were stored, each as often as it was.
    """
    keys = DeliveryKeys.of(queue)
    first = Rig(server.client(), queue, insertion_list=False)
    first.arrange("s", 5, job="m0")
    lock, clock = threading.Lock(), [5]
    failures: list[Exception] = []

    def job(number):
        return NewJob(
            token(f"m{number}"), f"={T0 + 5 * (number + 1)}", "", payload(f"m{number}")
        )

    def work(number):
        rng = random.Random(seed * 100 + number)
        client = server.client()
        try:
            seen = 5
            while seen <= 5 * occurrences:
                with lock:
                    clock[0] = max(clock[0], min(seen, 5 * (occurrences + 1)))
                    now_us = (T0 + clock[0]) * 1000
                if rng.random() < 0.05:
                    # Killed: it begins with what the server says.
                    score = client.zscore(keys.periods, "s")
                    seen = int(score) - T0
                    if seen > 5 * occurrences:
                        return
                count = rng.choice((1, 1, 1, 3))
                next_number = seen // 5
                new = [job(next_number + n) for n in range(count)]
                moved = run(
                    client,
                    at(
                        now_us,
                        schedule_calls.advance(
                            Target(keys, insertion_list=False),
                            "s",
                            new,
                            print="p1",
                            seen_ms=T0 + seen,
                            next_ms=T0 + 5 * (next_number + count),
                            fired_ms=T0 + seen,
                        ),
                    ),
                )
                if rng.random() < 0.05:
                    # The reply was lost: the call is made again.
                    continue
                seen = moved.occurrence_ms - T0
        except Exception as error:  # shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    client = first.client
    found = client.zrange(keys.queue.timeout_set, 0, -1)
    return [frame[17:][11:33].decode().rstrip("-") for frame in found]


def test_each_of_many_occurrences_has_exactly_one_job(server, queue_name):
    names = run_occurrences(server, queue_name, 400, 8, seed=1)

    assert len(names) == len(set(names)) >= 401
    numbers = sorted(int(name[1:]) for name in names)
    assert numbers == list(range(len(numbers)))
