"""Workers and periodic schedules: each occurrence has one job, whoever runs; changes and deploys; time without workers."""

import itertools
import logging
import os
import secrets
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfoNotFoundError

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    InvalidSchedule,
    Limit,
    ScheduleNotFound,
    cron,
    current_job,
    delayed_task,
    every,
    find_jobs,
    get_job,
    get_schedule,
    get_schedules,
    pause,
    periodic,
    resume,
    store_schedule,
)
from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core import worker_code
from django_delayq.core.states import State
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules.known_schedules import loading
from django_delayq.features.schedules.worker import SchedulesOfQueue
from django_delayq.jobs import occurrences, registry
from django_delayq.testing import frozen_queue
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from django_delayq.worker.outage import STEP_PAUSE_MS
from django_delayq.worker.queue_state import QueueState
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.records import gate_of_test, record
from tests.worker.workers import part_in, part_of

NEVER = cron("0 0 1 1 *", tz="UTC")


def make(queue, when, *, name="beat", task="tests.beat", **options):
    """Define a periodic task; what it ran for is recorded."""

    @periodic(when, name=name, queue=queue, **options)
    @delayed_task(name=task)
    def beat(*args):
        job = current_job()
        occurrence = job.occurrence
        record(
            "run",
            occurrence=round(occurrence.timestamp() * 1000),
            schedule=job.schedule_name,
            args=args,
        )

    return beat


def occurrences_of(records):
    return [each["occurrence"] for each in records.all("run")]


def keys_of(queue):
    return get_settings().queue(queue).keys


def enrolled(queue, name="beat"):
    return wait_until(
        lambda: next(
            (
                each
                for each in get_schedules(queue)
                if each.name == name and each.is_enrolled
            ),
            None,
        ),
        description=f"{name} is enrolled",
    )


class Clock:
    """A process's `SchedulesOfQueue`, under a clock of the test's own."""

    def __init__(self, client, queue):
        self.periods = part_of(SchedulesOfQueue, client, get_settings().queue(queue))
        self.queue = queue

    def turn(self, now_ms=None, *, look=True):
        """Do all that is due at this time of the server."""
        if look:
            self.periods.next_ms = 0.0
        now_ms = epoch_ms() if now_ms is None else now_ms
        for _ in range(1_000):
            if not self.periods.turn(1.0, now_ms * 1000):
                return
        raise AssertionError("there is always more")


@pytest.fixture
def seen(caplog):
    caplog.set_level(logging.INFO, "django_delayq")
    return caplog


def waiting_occurrences(client, queue):
    """Return the occurrences whose jobs are in the queue, epoch ms."""
    keys = keys_of(queue)
    return [
        int(score)
        for _, score in client.zrange(keys.queue.timeout_set, 0, -1, withscores=True)
    ]


# Running.


@every_server
def test_worker_runs_a_job_at_each_occurrence(work, records, queue_name):
    make(queue_name, every(1), args=[7])
    work()

    wait_until(lambda: records.count("run") >= 3, description="three occurrences")

    occurrences = occurrences_of(records)
    assert [b - a for a, b in itertools.pairwise(occurrences)] == [1000] * (
        len(occurrences) - 1
    )
    assert all(occurrence % 1000 == 0 for occurrence in occurrences)
    first = records.all("run")[0]
    assert (first["schedule"], first["args"]) == ("beat", [7])


def test_several_workers_run_one_job_at_each_occurrence(work, records, queue_name):
    make(queue_name, every(1))
    for _ in range(4):
        work(threads=1)

    wait_until(lambda: records.count("run") >= 3, description="three occurrences")

    occurrences = occurrences_of(records)
    assert len(set(occurrences)) == len(occurrences)


def test_next_occurrence_has_a_job_that_is_like_any_other(work, queue_name):
    make(queue_name, NEVER)
    work()

    schedule = enrolled(queue_name)

    job = get_job(schedule.job_id)
    assert job.state is State.SCHEDULED
    assert job.task == "tests.beat"
    assert job.start_time == job.occurrence == schedule.next_occurrence
    assert job.schedule_name == "beat"
    assert job.cancel()


def test_schedule_whose_waiting_job_was_cancelled_goes_on(work, records, queue_name):
    make(queue_name, every(2))
    work()
    schedule = enrolled(queue_name)

    if get_job(schedule.job_id).cancel():
        wait_until(lambda: records.count("run"), description="a later occurrence")
        assert occurrences_of(records)[0] > schedule.next_occurrence.timestamp() * 1000


def test_schedule_goes_on_soon_after_its_connection_was_lost(work, queue_name):
    make(queue_name, every(1))
    worker = work()
    part = part_in(worker, queue_name, SchedulesOfQueue)
    wait_until(lambda: part._occurrences, description="it has looked")
    waits = []

    def lose(name, now_ms):
        del part._advance
        raise RedisConnectionError("gone")

    rest = part.rest

    def note(now_ms, error):
        rest(now_ms, error)
        waits.append(part.next_ms - now_ms)

    part.rest = note
    part._advance = lose

    wait_until(lambda: waits, description="its connection was lost")

    assert waits[0] == STEP_PAUSE_MS[0]
    wait_until(lambda: part._known is not None, description="it has looked again")


def test_several_schedules_of_one_task(work, queue_name):
    @periodic(every(timedelta(days=30)), name="monthly", queue=queue_name, args=["m"])
    @periodic(every(timedelta(days=7)), name="weekly", queue=queue_name, args=["w"])
    @delayed_task(name="tests.both")
    def both(which):
        """Do nothing."""

    work()

    assert enrolled(queue_name, "monthly").args == ["m"]
    assert enrolled(queue_name, "weekly").args == ["w"]


def test_queue_without_schedules_gets_no_keys(work, records, client, queue_name):
    worker = work()
    part = part_in(worker, queue_name, SchedulesOfQueue)
    wait_until(lambda: part.next_ms, description="a look")

    assert not client.exists(keys_of(queue_name).schedules)


def test_wrong_schedule_is_told_once_and_keeps_no_other_from_running(
    work, records, seen, queue_name
):
    make(queue_name, cron("0 0 31 2 *", tz="UTC"), name="never", task="tests.never")
    make(queue_name, cron("* * * * *", tz="Not/AZone"), name="lost", task="tests.lost")
    make(queue_name, every(1))
    work()

    wait_until(lambda: records.count("run") >= 1, description="an occurrence")

    told = [each.getMessage() for each in seen.records if "stops here" in each.msg]
    assert len(told) == 2
    assert any("never comes" in text for text in told)
    assert any("does not have time zone 'Not/AZone'" in text for text in told)


# Time without workers: occurrences of an hour, and a worker that comes back after three.

HOUR = 3_600_000
HOURLY = every(timedelta(hours=1))


def down(client, queue_name, catch_up, hours=3):
    """Enroll an hourly schedule, let hours pass without a worker, and have one come back; return what waits, in hours
    after the first occurrence."""
    make(queue_name, every(timedelta(hours=1)), catch_up=catch_up)
    first = Clock(client, queue_name)
    first.turn()
    (occurrence,) = waiting_occurrences(client, queue_name)
    Clock(client, queue_name).turn(occurrence + hours * HOUR + 60_000)
    return [
        (at - occurrence) // HOUR for at in waiting_occurrences(client, queue_name)
    ], occurrence


def test_of_missed_occurrences_one_job_runs(client, configure, queue_name):
    waits, _ = down(client, queue_name, "one")

    assert waits == [0, 4]


def test_all_missed_occurrences_have_their_jobs(client, configure, queue_name):
    waits, _ = down(client, queue_name, "all")

    assert waits == [0, 1, 2, 3, 4]


def test_missed_occurrences_are_left_out_and_the_waiting_one_expires(
    client, configure, queue_name
):
    waits, _ = down(client, queue_name, "none")

    assert waits == [0, 4]
    schedule = get_schedule("beat", queue_name)
    assert get_job(schedule.job_id).options == {"expires": 3600.0}


def test_missed_occurrences_are_bounded(client, configure, seen, queue_name):
    waits, _ = down(client, queue_name, "all", hours=1_500)

    assert waits == [*range(1_001), 1_501]
    told = [each for each in seen.records if "missed more than" in each.msg]
    assert len(told) == 1


def test_job_that_expires_at_the_next_occurrence_keeps_its_own_earlier_end(
    client, configure, queue_name
):
    make(queue_name, every(timedelta(hours=1)), catch_up="none", expires=60)
    Clock(client, queue_name).turn()

    schedule = get_schedule("beat", queue_name)
    assert get_job(schedule.job_id).options == {"expires": 60.0}


@pytest.mark.parametrize("spread_ms", [1_800_000, 3 * HOUR])
def test_job_with_a_random_start_expires_at_the_next_occurrence(
    client, configure, monkeypatch, queue_name, spread_ms
):
    # The longest wait of those that may be chosen.
    monkeypatch.setattr(secrets, "randbelow", lambda most: most - 1)
    spread = timedelta(milliseconds=spread_ms)
    make(queue_name, HOURLY, catch_up="none", spread=spread)
    Clock(client, queue_name).turn()

    job = get_job(get_schedule("beat", queue_name).job_id)
    wait_ms = round((job.start_time - job.occurrence).total_seconds() * 1000)
    assert wait_ms == min(spread_ms, HOUR - 1)
    assert wait_ms + job.options["expires"] * 1000 == HOUR


# A server that has lost what it took, as after a failover to a replica that was behind.


class Replica:
    """What the schedules of a queue were, as a replica has it that is behind."""

    def __init__(self, client, queue):
        self._client, self._keys = client, keys_of(queue)
        self._kept = {key: client.dump(key) for key in self._all()}

    def take_over(self):
        """Have the queue be as it was."""
        self._client.delete(*self._all())
        for key, text in self._kept.items():
            self._client.restore(key, 0, text)

    def _all(self):
        keys = self._keys
        named = keys.schedules, keys.periods, keys.locators, keys.queue.timeout_set
        return [key for key in named if self._client.exists(key)]


@pytest.mark.parametrize("catch_up", ["one", "none", "all"])
def test_occurrence_whose_job_the_server_has_lost_has_one_again(
    client, configure, queue_name, catch_up
):
    make(queue_name, HOURLY, catch_up=catch_up)
    worker = Clock(client, queue_name)
    worker.turn()
    (first,) = waiting_occurrences(client, queue_name)
    behind = Replica(client, queue_name)
    worker.turn(first + 1, look=False)
    behind.take_over()

    worker.turn(first + HOUR + 1, look=False)

    occurrences = [first + n * HOUR for n in range(3)]
    assert waiting_occurrences(client, queue_name) == occurrences


def test_worker_that_reads_anew_stores_what_the_server_has_lost(
    client, configure, queue_name
):
    """It knows the last occurrence, whose job the server has lost, and which has come before the worker reads anew."""
    make(queue_name, HOURLY)
    worker = Clock(client, queue_name)
    worker.turn()
    before = miss(client, queue_name, 2)
    worker.periods._occurrences["beat"] = before + HOUR

    worker.periods.forget()
    worker.turn(look=False)

    jobs = [job.occurrence.timestamp() * 1000 for job in find_jobs(queue=queue_name)]
    assert sorted(jobs) == [before + HOUR, before + 2 * HOUR]


def test_occurrence_that_is_earlier_because_of_a_clock_is_not_passed_over(
    client, configure, queue_name
):
    """One worker has noticed that the clock was set back, and another one knows an occurrence of the time before."""
    make(queue_name, HOURLY)
    worker = Clock(client, queue_name)
    worker.turn()
    (first,) = waiting_occurrences(client, queue_name)
    behind = Replica(client, queue_name)
    worker.turn(first + 5 * HOUR, look=False)
    behind.take_over()

    worker.turn(first - 1)

    assert waiting_occurrences(client, queue_name) == [first]


def test_worker_enrolls_anew_once_another_server_answers(
    work, client, monkeypatch, queue_name
):
    # A process that hears that its code is the latest reads anew as well.
    monkeypatch.setattr(SchedulesOfQueue, "_note_latest", lambda self, is_latest: None)
    make(queue_name, NEVER)
    work()
    enrolled(queue_name)
    client.delete(keys_of(queue_name).schedules, keys_of(queue_name).periods)

    own_clients.note_change()

    wait_until(
        lambda: [each.is_enrolled for each in get_schedules(queue_name)] == [True],
        description="it is enrolled",
        timeout=30,
    )


def test_schedule_goes_on_soon_after_a_refusal_that_passes(
    private_server, settings, work, seen, monkeypatch, queue_name
):
    monkeypatch.setattr(SchedulesOfQueue, "_note_latest", lambda self, is_latest: None)
    server = private_server()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}
    # No job is due, so the claims before its occurrences are not refused.
    make(queue_name, every(1), spread=3_600)
    with server.client() as client:
        work()
        wait_until(lambda: waiting_occurrences(client, queue_name), description="a job")
        client.config_set("min-replicas-to-write", 1)
        refused = "cannot be looked after, trying again: NOREPLICAS"
        wait_until(lambda: refused in seen.text, description="it is refused")
        client.config_set("min-replicas-to-write", 0)
        count = len(waiting_occurrences(client, queue_name))

        wait_until(
            lambda: len(waiting_occurrences(client, queue_name)) >= count + 3,
            description="its occurrences go on",
            timeout=30,
        )


# What was missed before a schedule changes.


def miss(client, queue_name, hours):
    """Have the occurrences of some hours pass without a worker; return the one before them, whose job is out of the way."""
    schedule = get_schedule("beat", queue_name)
    get_job(schedule.job_id).cancel()
    occurrence = round(schedule.next_occurrence.timestamp() * 1000) - hours * HOUR
    client.zadd(keys_of(queue_name).periods, {"beat": occurrence})
    return occurrence


def come(queue_name):
    """Return the occurrences that have come and have a job in the queue, epoch ms, and the arguments of these jobs."""
    jobs = [(job.occurrence, job.args) for job in find_jobs(queue=queue_name)]
    jobs = sorted(each for each in jobs if each[0] <= datetime.now(UTC))
    return [round(at.timestamp() * 1000) for at, _ in jobs], [args for _, args in jobs]


def assert_one_after_the_other(jobs):
    """Make sure that jobs start in the order of their occurrences, and no two at once."""
    starts = [job.start_time for job in sorted(jobs, key=lambda job: job.occurrence)]
    assert starts == sorted(set(starts))


def deploy(monkeypatch, queue_name, when, **options):
    registry._tasks.clear()
    later(monkeypatch)
    make(queue_name, when, **options)


@pytest.mark.parametrize("hours", [2, 250])
@pytest.mark.parametrize("change", ["deploy", "take over", "override", "pause"])
def test_occurrences_that_were_missed_before_a_change_have_their_jobs(
    client, configure, monkeypatch, queue_name, change, hours
):
    rarely = every(timedelta(hours=7))
    old = Clock(client, queue_name)
    if change == "take over":
        make(queue_name, rarely, args=["of now"])
        old.turn()
        deploy(monkeypatch, queue_name, HOURLY, args=["died"], catch_up="all")
        Clock(client, queue_name).turn()
    else:
        make(queue_name, HOURLY, args=["of now"], catch_up="all")
        old.turn()
    occurrence, now_ms = miss(client, queue_name, hours), epoch_ms()

    match change:
        case "deploy":
            deploy(monkeypatch, queue_name, rarely, args=["of now"])
            Clock(client, queue_name).turn()
        case "take over":
            old.turn()
        case "override":
            get_schedule("beat", queue_name).override(rarely)
        case "pause":
            get_schedule("beat", queue_name).pause()

    occurrences, args = come(queue_name)
    assert occurrences == list(range(occurrence + HOUR, occurrences[-1] + 1, HOUR))
    assert occurrences[-1] > now_ms - HOUR
    assert args == len(occurrences) * [["of now"]]
    next_occurrence = get_schedule("beat", queue_name).next_occurrence
    if change == "pause":
        assert next_occurrence is None
    else:
        assert next_occurrence.timestamp() % (7 * 3_600) == 0


@pytest.mark.parametrize("catch_up", ["one", "none"])
def test_definition_that_left_missed_occurrences_out_does_so_until_it_changes(
    client, configure, monkeypatch, queue_name, catch_up
):
    make(queue_name, HOURLY, catch_up=catch_up)
    Clock(client, queue_name).turn()
    miss(client, queue_name, 6)

    deploy(monkeypatch, queue_name, HOURLY, catch_up="all", args=["new"])
    Clock(client, queue_name).turn()

    assert come(queue_name) == ([], [])


def test_occurrences_that_were_missed_before_a_change_are_bounded(
    client, configure, monkeypatch, seen, queue_name
):
    make(queue_name, HOURLY, catch_up="all")
    Clock(client, queue_name).turn()
    occurrence = miss(client, queue_name, 1_500)

    deploy(monkeypatch, queue_name, HOURLY, args=["new"])
    Clock(client, queue_name).turn()

    occurrences, _ = come(queue_name)
    assert occurrences == [occurrence + n * HOUR for n in range(1, 1_001)]
    told = [each for each in seen.records if "missed more than" in each.msg]
    assert len(told) == 1


def test_worker_that_is_killed_while_it_catches_up_leaves_out_nothing(
    client, configure, monkeypatch, queue_name
):
    """An old worker goes on where the new one stopped, and another new one changes the definition after that."""
    make(queue_name, HOURLY, args=["old"], catch_up="all")
    old = Clock(client, queue_name)
    old.turn()
    occurrence = miss(client, queue_name, 6)
    deploy(monkeypatch, queue_name, HOURLY, args=["new"], catch_up="all")

    def die(*args, **options):
        raise RedisConnectionError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(schedule_calls, "arrange", die)
        with pytest.raises(RedisConnectionError):
            Clock(client, queue_name).turn()
    between, _ = come(queue_name)
    assert len(between) >= 5
    # Three hours more without a worker, as far as the old one can tell.
    client.zadd(keys_of(queue_name).periods, {"beat": between[-1] - 3 * HOUR})
    for job in find_jobs(queue=queue_name):
        if round(job.occurrence.timestamp() * 1000) > between[-1] - 3 * HOUR:
            job.cancel()
    old.turn()
    Clock(client, queue_name).turn()

    occurrences, args = come(queue_name)
    assert occurrences == list(range(occurrence + HOUR, occurrences[-1] + 1, HOUR))
    assert {"new"} < {each for (each,) in args}
    assert get_schedule("beat", queue_name).args == ["new"]


def test_missed_occurrence_whose_job_was_run_early_gets_no_second_one(
    client, configure, queue_name
):
    make(queue_name, HOURLY, catch_up="all")
    worker = Clock(client, queue_name)
    worker.turn()
    occurrence = miss(client, queue_name, 6)
    keys = keys_of(queue_name)
    state = msgspec.json.decode(client.hget(keys.schedules, "state beat"))
    early = occurrence + 3 * HOUR
    state["early"] = str(early)
    client.hset(keys.schedules, "state beat", msgspec.json.encode(state))
    client.hincrby(keys.schedules, "version", 1)

    worker.turn()

    occurrences, _ = come(queue_name)
    left_out = {*range(occurrence + HOUR, occurrences[-1], HOUR)} - {*occurrences}
    assert left_out == {early}


# Deploys.


def later(monkeypatch):
    """From now on, code is loaded later than before."""
    monkeypatch.setattr(worker_code, "LOADED_MS", worker_code.LOADED_MS + 1000)


def test_changed_code_replaces_the_waiting_job(
    client, configure, monkeypatch, queue_name
):
    make(queue_name, NEVER)
    Clock(client, queue_name).turn()
    before = get_schedule("beat", queue_name)
    registry._tasks.clear()
    later(monkeypatch)
    make(queue_name, cron("0 0 2 1 *", tz="UTC"))

    Clock(client, queue_name).turn()

    after = get_schedule("beat", queue_name)
    assert str(after.when) == "cron('0 0 2 1 *', tz='UTC')"
    assert after.next_occurrence.day == 2
    assert get_job(before.job_id).state is State.CANCELLED
    assert len(waiting_occurrences(client, queue_name)) == 1


def test_earlier_code_leaves_a_later_definition_alone_and_does_not_move_it_on(
    client, configure, monkeypatch, queue_name
):
    make(queue_name, every(timedelta(hours=1)))
    old = Clock(client, queue_name)
    old.turn()
    registry._tasks.clear()
    later(monkeypatch)
    make(queue_name, every(timedelta(hours=2)))
    Clock(client, queue_name).turn()
    schedule = get_schedule("beat", queue_name)
    at = schedule.next_occurrence.timestamp() * 1000

    old.turn()
    old.turn(int(at) + 10, look=False)

    assert get_schedule("beat", queue_name) == schedule


def test_definition_whose_workers_are_gone_is_taken_over(
    client, configure, monkeypatch, queue_name
):
    """A deploy was broken off: its worker enrolled its definition and ended, and the workers before it live."""
    make(queue_name, every(timedelta(hours=1)))
    old = Clock(client, queue_name)
    old.turn()
    registry._tasks.clear()
    later(monkeypatch)
    make(queue_name, every(timedelta(hours=2)))
    Clock(client, queue_name).turn()
    keys = keys_of(queue_name)
    client.zadd(keys.periods, {"beat": epoch_ms() - 61_000})

    old.turn()

    assert get_schedule("beat", queue_name).when == every(timedelta(hours=1))


# A schedule that a deploy moves to another queue.


@pytest.fixture
def other(configure, queue_name):
    """Configure two queues; return the name of the second."""
    configure(other={})
    return f"{queue_name}-other"


def jobs_of_occurrences(*queues):
    """Return the queue of each job that waits, by its occurrence, epoch ms."""
    found = {}
    for queue in queues:
        for job in find_jobs(queue=queue):
            occurrence = round(job.occurrence.timestamp() * 1000)
            assert occurrence not in found
            found[occurrence] = queue
    return found


class Before:
    """`periods.arrange`; before one of its calls, something happens."""

    def __init__(self, step, happen):
        self._step, self._happen = step, happen
        self._arrange, self._calls = schedule_calls.arrange, itertools.count()

    def __call__(self, *args, **options):
        if next(self._calls) == self._step:
            self._happen()
        return self._arrange(*args, **options)


def die():
    raise RedisConnectionError("killed")


@pytest.mark.parametrize("catch_up", ["one", "none", "all"])
def test_schedule_that_moves_to_another_queue_has_one_job_a_occurrence(
    client, monkeypatch, queue_name, other, catch_up
):
    make(queue_name, HOURLY, catch_up=catch_up)
    old = Clock(client, queue_name)
    old.turn()
    before = get_schedule("beat", queue_name)

    code = dict(registry._tasks)
    deploy(monkeypatch, other, HOURLY, catch_up=catch_up)
    Clock(client, other).turn()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_tasks", code)
        old.turn()
    Clock(client, other).turn()

    schedule = get_schedule("beat", other)
    assert [each.queue for each in get_schedules()] == [other]
    assert get_job(before.job_id).state is State.CANCELLED
    occurrence = round(schedule.next_occurrence.timestamp() * 1000)
    assert jobs_of_occurrences(queue_name, other) == {occurrence: other}
    assert schedule.is_enrolled
    assert not schedule.is_orphan


def test_job_that_is_due_on_the_queue_before_is_that_of_its_occurrence(
    client, monkeypatch, queue_name, other
):
    make(queue_name, every(1), spread=3_600)
    Clock(client, queue_name).turn()
    before = get_schedule("beat", queue_name)
    wait_until(
        lambda: datetime.now(UTC) > before.next_occurrence, description="it is due"
    )

    deploy(monkeypatch, other, HOURLY)
    Clock(client, other).turn()

    occurrences = jobs_of_occurrences(queue_name, other)
    assert occurrences[round(before.next_occurrence.timestamp() * 1000)] == queue_name
    assert sorted(occurrences.values()) == [queue_name, other]
    assert get_schedule("beat", other).last_occurrence == before.next_occurrence


@pytest.mark.parametrize("step", [0, 1, 2])
def test_occurrences_that_were_missed_before_a_schedule_moved_have_their_jobs(
    client, monkeypatch, queue_name, other, step
):
    """A worker is killed after each of the steps."""
    make(queue_name, HOURLY, args=["old"], catch_up="all")
    Clock(client, queue_name).turn()
    occurrence = miss(client, queue_name, 6)
    deploy(monkeypatch, other, HOURLY, args=["new"], catch_up="all")
    with monkeypatch.context() as patch:
        patch.setattr(schedule_calls, "arrange", Before(step, die))
        with pytest.raises(RedisConnectionError):
            Clock(client, other).turn()
    Clock(client, other).turn()

    occurrences = jobs_of_occurrences(queue_name, other)
    come = [each for each in sorted(occurrences) if each <= epoch_ms()]
    assert come == list(range(occurrence + HOUR, come[-1] + 1, HOUR))
    assert set(occurrences.values()) == {other}
    assert all(job.args == ["new"] for job in find_jobs(queue=other))
    assert_one_after_the_other(find_jobs(queue=other))


def test_schedule_with_missed_occurrences_is_not_taken_back_at_once(
    client, monkeypatch, queue_name, other
):
    """After an outage, old and new workers start side by side."""
    make(queue_name, HOURLY, catch_up="all")
    old = Process(client, queue_name)
    miss(client, queue_name, 6)
    code, arrange, calls = (
        dict(registry._tasks),
        schedule_calls.arrange,
        itertools.count(),
    )

    def take_back(target, *args, **options):
        if target.keys == keys_of(queue_name) and next(calls) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(schedule_calls, "arrange", arrange)
                patch.setattr(registry, "_tasks", code)
                old.turn()
        return arrange(target, *args, **options)

    deploy(monkeypatch, other, HOURLY, catch_up="all")
    monkeypatch.setattr(schedule_calls, "arrange", take_back)
    Process(client, other)

    assert next(calls) > 1
    assert [each.queue for each in get_schedules()] == [other]
    assert set(jobs_of_occurrences(queue_name, other).values()) == {other}


def test_schedule_that_has_not_arrived_moves_to_the_queue_of_later_code(
    client, configure, monkeypatch, queue_name
):
    """The worker that moves it is killed between its two steps; then a deploy names a third queue."""
    configure(second={}, third={})
    second, third = f"{queue_name}-second", f"{queue_name}-third"
    make(queue_name, HOURLY, args=["old"], catch_up="all")
    Clock(client, queue_name).turn()
    occurrence = miss(client, queue_name, 6)
    deploy(monkeypatch, second, HOURLY, catch_up="all")
    with monkeypatch.context() as patch:
        patch.setattr(schedule_calls, "arrange", Before(1, die))
        with pytest.raises(RedisConnectionError):
            Clock(client, second).turn()
    deploy(monkeypatch, third, HOURLY, catch_up="all")
    Clock(client, third).turn()

    occurrences = jobs_of_occurrences(queue_name, second, third)
    come = [each for each in sorted(occurrences) if each <= epoch_ms()]
    assert come == list(range(occurrence + HOUR, come[-1] + 1, HOUR))
    assert set(occurrences.values()) == {third}


@pytest.mark.parametrize("hours", [-1, 1])
def test_schedule_that_never_arrives_comes_back_after_a_minute_by_any_clock(
    client, monkeypatch, queue_name, other, hours
):
    """The worker that moves it is killed between its two steps, perhaps while the server's clock is ahead."""
    make(queue_name, HOURLY)
    old = Clock(client, queue_name)
    old.turn()
    with monkeypatch.context() as patch:
        code = dict(registry._tasks)
        deploy(patch, other, HOURLY)
        patch.setattr(schedule_calls, "arrange", Before(1, die))
        with pytest.raises(RedisConnectionError):
            Clock(client, other).turn()
        registry._tasks.clear()
        registry._tasks.update(code)
    old.turn()
    assert jobs_of_occurrences(queue_name, other) == {}
    note = perform(client, loading(old.periods._settings)).read("beat").definition
    moved = msgspec.structs.replace(note, moved_ms=epoch_ms() + hours * HOUR)
    text = definitions.sealed(queue_name, "code", "beat", moved)
    client.hset(keys_of(queue_name).schedules, "code beat", text)
    client.hincrby(keys_of(queue_name).schedules, "version", 1)

    old.turn()

    assert set(jobs_of_occurrences(queue_name, other).values()) == {queue_name}


def test_stopped_worker_brings_no_schedule_that_has_come_back_meanwhile(
    client, monkeypatch, queue_name, other
):
    """A worker is stopped between its two steps, and goes on when the code before holds again."""
    make(queue_name, HOURLY)
    Clock(client, queue_name).turn()
    deploy(monkeypatch, other, HOURLY)
    code, arrange = dict(registry._tasks), schedule_calls.arrange

    def stop():
        with monkeypatch.context() as patch:
            patch.setattr(schedule_calls, "arrange", arrange)
            deploy(patch, queue_name, HOURLY)
            Clock(client, queue_name).turn()
        registry._tasks.clear()
        registry._tasks.update(code)

    monkeypatch.setattr(schedule_calls, "arrange", Before(1, stop))
    Clock(client, other).turn()

    assert len(jobs_of_occurrences(queue_name, other)) == 1
    assert sum(each.is_enrolled for each in get_schedules()) == 1


def test_schedule_that_comes_back_goes_by_the_queue_that_had_it_last(
    client, configure, monkeypatch, queue_name
):
    """A worker was killed before it could note on the first queue that the schedule had arrived on the second."""
    # Notes are read in the order of the settings.
    configure(third={}, second={}, first={})
    first, second, third = (f"{queue_name}-{n}" for n in ("first", "second", "third"))
    make(first, HOURLY)
    Clock(client, first).turn()
    deploy(monkeypatch, second, HOURLY)
    with monkeypatch.context() as patch:
        patch.setattr(schedule_calls, "arrange", Before(2, die))
        with pytest.raises(RedisConnectionError):
            Clock(client, second).turn()
    deploy(monkeypatch, third, HOURLY)
    Clock(client, third).turn()
    get_schedule("beat", third).pause()

    deploy(monkeypatch, second, HOURLY)
    Clock(client, second).turn()

    assert get_schedule("beat", second).is_paused


def test_arrival_is_noted_though_another_schedule_changes_meanwhile(
    client, monkeypatch, queue_name, other
):
    make(queue_name, HOURLY)
    Clock(client, queue_name).turn()
    get_schedule("beat", queue_name).pause()
    deploy(monkeypatch, other, HOURLY)

    def change():
        client.hincrby(keys_of(queue_name).schedules, "version", 1)

    with monkeypatch.context() as patch:
        patch.setattr(schedule_calls, "arrange", Before(2, change))
        Clock(client, other).turn()
    registry._tasks.clear()
    assert get_schedule("beat", other).delete()
    deploy(monkeypatch, queue_name, HOURLY)
    Clock(client, queue_name).turn()

    assert not get_schedule("beat", queue_name).is_paused


def test_what_somebody_has_changed_and_run_early_moves_with_a_schedule(
    client, monkeypatch, queue_name, other
):
    make(queue_name, NEVER)
    Clock(client, queue_name).turn()
    schedule = get_schedule("beat", queue_name).override(every(timedelta(days=30)))
    assert get_job(schedule.job_id).cancel()

    deploy(monkeypatch, other, NEVER)
    Clock(client, other).turn()

    moved = get_schedule("beat", other)
    assert moved.is_overridden
    assert moved.next_occurrence == schedule.next_occurrence + timedelta(days=30)
    assert jobs_of_occurrences(queue_name, other) == {}


def test_schedule_that_was_paused_is_paused_on_its_next_queue(
    client, monkeypatch, queue_name, other
):
    make(queue_name, HOURLY)
    Clock(client, queue_name).turn()
    get_schedule("beat", queue_name).pause(reason="migration")

    deploy(monkeypatch, other, HOURLY)
    Clock(client, other).turn()

    assert get_schedule("beat", other).paused_reason == "migration"
    assert jobs_of_occurrences(queue_name, other) == {}
    assert get_schedule("beat", other).resume().next_occurrence is not None
    assert list(jobs_of_occurrences(queue_name, other).values()) == [other]


@pytest.mark.parametrize("end", ["in order", "kill", "stuck"])
def test_schedule_comes_back_if_nobody_with_the_code_that_moved_it_lives(
    client, monkeypatch, queue_name, other, end
):
    make(queue_name, HOURLY)
    Clock(client, queue_name).turn()
    deploy(monkeypatch, other, HOURLY)
    new = Process(client, other)
    deploy(monkeypatch, queue_name, HOURLY)
    monkeypatch.setattr(worker_code, "LOADED_MS", worker_code.LOADED_MS - 5_000)
    back = Process(client, queue_name)

    back.turn()
    assert set(jobs_of_occurrences(queue_name, other).values()) == {other}
    match end:
        case "in order":
            new.leave()
        case "kill":
            new.age(worker_code.SILENT_MS + 1)
        case "stuck":
            # It lives, and does not move it on.
            get_job(get_schedule("beat", other).job_id).cancel()
            client.zadd(keys_of(other).periods, {"beat": epoch_ms() - 61_000})
    back.turn()

    schedule = get_schedule("beat", queue_name)
    assert schedule.next_occurrence > datetime.now(UTC)
    occurrence = round(schedule.next_occurrence.timestamp() * 1000)
    assert jobs_of_occurrences(queue_name, other)[occurrence] == queue_name
    assert [each.queue for each in get_schedules()] == [queue_name]


def test_many_new_schedules_cost_few_looks_at_other_queues(
    client, monkeypatch, queue_name, other
):
    for n in range(40):
        make(queue_name, HOURLY, name=f"beat{n}", task=f"tests.beat{n}")
    page, pages = schedule_calls.page, []

    def note(keys, *args, **options):
        pages.append(keys)
        return page(keys, *args, **options)

    monkeypatch.setattr(schedule_calls, "page", note)

    Clock(client, queue_name).turn()

    # Ten are enrolled at a time, after a look at each queue.
    assert len(waiting_occurrences(client, queue_name)) == 40
    assert len(pages) <= 16


def test_nobody_changes_a_schedule_on_the_queue_that_it_leaves(
    client, monkeypatch, queue_name, other
):
    make(queue_name, HOURLY)
    Clock(client, queue_name).turn()
    before = get_schedule("beat", queue_name)
    deploy(monkeypatch, other, HOURLY)

    with pytest.raises(InvalidSchedule, match="it moves from queue"):
        get_schedule("beat", other).pause()
    Clock(client, other).turn()
    with pytest.raises(ScheduleNotFound, match="has moved from queue"):
        before.pause()


@pytest.mark.parametrize("catch_up", ["one", "all"])
def test_jobs_of_a_schedule_that_moves_do_not_run_at_once_if_they_may_not_overlap(
    client, monkeypatch, work, records, queue_name, other, catch_up
):
    def define(queue):
        @periodic(every(1), name="beat", queue=queue, overlap=False, catch_up=catch_up)
        @delayed_task(name="tests.beat")
        def beat():
            record("begin", queue=queue)
            wait_until(gate_of_test().exists, description="the test lets go")
            record("end", queue=queue)

    define(queue_name)
    old = work([queue_name])
    wait_until(lambda: records.count("begin"), description="one runs")
    periods_of_old = part_in(old, queue_name, SchedulesOfQueue)

    def rest(now_ms):
        # It would look at the code of the new worker, which is in this process as well.
        periods_of_old.next_ms = now_ms + 60_000

    monkeypatch.setattr(periods_of_old, "_look", rest)
    registry._tasks.clear()
    later(monkeypatch)
    define(other)
    new = work([other])
    periods_of_new = part_in(new, other, SchedulesOfQueue)
    wait_until(lambda: periods_of_new._moves, description="it waits for the job")
    assert records.count("begin") == 1

    records.let_go()
    wait_until(
        lambda: any(each["queue"] == other for each in records.all("begin")),
        description="it runs on the next queue",
    )

    assert old.is_running
    whole = records.all()
    for begin, end in zip(whole[::2], whole[1::2], strict=False):
        assert (begin["step"], end["step"]) == ("begin", "end")
        assert begin["queue"] == end["queue"]


def test_age_of_code_counts_and_not_the_clock_of_the_machine(configure, queue_name):
    make(queue_name, HOURLY)
    settings = get_settings().queue(queue_name)
    now = datetime(2001, 1, 1, tzinfo=UTC)
    with frozen_queue(now=now, periodic=True) as q:
        q.run_due()
        known = perform(own_clients.of_thread, loading(settings))

    found = known.find("beat")
    assert 0 < found.definition.loaded_ms <= now.timestamp() * 1000


def loaded_of(client, queue_name):
    """Return the keys of a queue, and the definition that it has from code."""
    keys = keys_of(queue_name)
    text = client.hget(keys.schedules, "code beat")
    body = definitions.unsealed(queue_name, "code", "beat", text)
    return keys, definitions.definitions.decode(body)


def test_definition_that_was_loaded_while_the_clock_of_the_server_was_ahead_is_replaced(
    client, configure, monkeypatch, queue_name
):
    make(queue_name, HOURLY)
    Clock(client, queue_name).turn()
    keys, body = loaded_of(client, queue_name)
    ahead = msgspec.structs.replace(body, loaded_ms=body.loaded_ms + 240 * HOUR)
    text = definitions.sealed(queue_name, "code", "beat", ahead)
    client.hset(keys.schedules, "code beat", text)

    deploy(monkeypatch, queue_name, NEVER)
    worker = Clock(client, queue_name)
    worker.periods._queue.upkeep.load_time.ms = ahead.loaded_ms
    worker.turn()

    assert get_schedule("beat", queue_name).when == NEVER
    assert loaded_of(client, queue_name)[1].loaded_ms < ahead.loaded_ms


class Process(Clock):
    """A process that has just begun, with its `Upkeep`."""

    def __init__(self, client, queue):
        super().__init__(client, queue)
        settings = get_settings().queue(queue)
        self.client, self.keys = client, settings.keys
        self.owner = os.urandom(8)
        state = QueueState(client, settings, 1, self.owner, [SchedulesOfQueue])
        self.upkeep, (self.periods,) = state.upkeep, state.parts
        self.upkeep.begin()
        self.turn()

    def age(self, ms):
        """Have what it has said of its code be older."""
        field = b"code:" + self.owner
        said = msgspec.json.decode(self.client.hget(self.keys.control, field))
        aged = {each: str(int(said[each]) - ms) for each in ("since", "at")}
        self.client.hset(self.keys.control, field, msgspec.json.encode(said | aged))

    def tell(self):
        """Do what each process does every 15 s."""
        self.upkeep.ask_whether_latest()
        # A worker asks this after each claim.
        self.periods.is_due(1.0, None)
        self.turn(look=False)

    def leave(self):
        """End in order."""
        run(self.client, claim_calls.leave(self.keys, owner=self.owner))


@pytest.mark.parametrize("end", ["in order", "kill"])
def test_definition_of_the_latest_code_of_living_processes_holds(
    client, configure, monkeypatch, queue_name, end
):
    def when():
        return get_schedule("beat", queue_name).when

    make(queue_name, HOURLY)
    lives = Process(client, queue_name)
    deploy(monkeypatch, queue_name, NEVER)
    comes = Process(client, queue_name)
    lives.tell()
    lives.turn()
    assert when() == NEVER

    lives.age(worker_code.SILENT_MS // 2)
    lives.tell()
    assert when() == NEVER

    if end == "in order":
        comes.leave()
    else:
        comes.age(worker_code.SILENT_MS + 1)
    lives.tell()
    assert when() == HOURLY

    # It was cut off, and is there again.
    comes.turn()
    assert when() == NEVER
    lives.turn()
    assert when() == NEVER


def test_schedule_that_has_gone_from_code_is_an_orphan_until_somebody_deletes_it(
    client, configure, queue_name
):
    make(queue_name, NEVER)
    Clock(client, queue_name).turn()
    registry._tasks.clear()

    Clock(client, queue_name).turn()
    schedule = get_schedule("beat", queue_name)
    assert schedule.is_orphan
    assert schedule.delete()

    assert get_schedules(queue_name) == []
    assert waiting_occurrences(client, queue_name) == []
    assert not schedule.delete()


def test_what_somebody_has_deleted_from_the_server_is_enrolled_again(
    client, configure, queue_name
):
    make(queue_name, NEVER)
    keys = keys_of(queue_name)
    worker = Clock(client, queue_name)
    worker.turn()

    for deleted in ([keys.schedules], [keys.periods, keys.schedules]):
        client.delete(*deleted)
        worker.turn()
        assert get_schedule("beat", queue_name).next_occurrence is not None
    assert len(waiting_occurrences(client, queue_name)) == 1


def test_server_whose_clock_was_ahead_for_a_while_gets_its_occurrences_back(
    client, configure, queue_name
):
    make(queue_name, every(timedelta(hours=1)))
    worker = Clock(client, queue_name)
    worker.turn()
    occurrence = waiting_occurrences(client, queue_name)[0]
    worker.turn(occurrence + 720 * HOUR, look=False)
    assert waiting_occurrences(client, queue_name) == [
        occurrence,
        occurrence + 721 * HOUR,
    ]

    worker.turn(occurrence - 10, look=False)

    # The job of the first occurrence still waits.
    waits = waiting_occurrences(client, queue_name)
    schedule = get_schedule("beat", queue_name)
    assert waits[0] == occurrence
    assert (
        waits[-1]
        == schedule.next_occurrence.timestamp() * 1000
        <= occurrence + 2 * HOUR
    )


@pytest.mark.parametrize("catch_up", ["one", "none", "all"])
@pytest.mark.parametrize("who", ["worker", "new worker", "person"])
def test_schedule_goes_on_after_occurrences_of_a_clock_that_was_ahead_have_come(
    client, configure, queue_name, who, catch_up
):
    make(queue_name, every(timedelta(hours=1)), catch_up=catch_up)
    worker = Clock(client, queue_name)
    worker.turn()
    occurrence = waiting_occurrences(client, queue_name)[0]
    worker.turn(occurrence + 240 * HOUR, look=False)
    worker.turn(occurrence + 241 * HOUR, look=False)

    match who:
        case "worker":
            worker.turn(occurrence - 10, look=False)
        case "new worker":
            Clock(client, queue_name).turn()
        case "person":
            get_schedule("beat", queue_name).pause().resume()

    schedule = get_schedule("beat", queue_name)
    assert (
        occurrence
        <= schedule.next_occurrence.timestamp() * 1000
        <= occurrence + 2 * HOUR
    )
    assert schedule.last_occurrence <= datetime.now(UTC)


@pytest.mark.parametrize("change", [None, "deploy", "override"])
def test_occurrences_of_a_clock_that_was_a_little_ahead_do_not_come_again(
    client, configure, monkeypatch, queue_name, change
):
    make(queue_name, every(10), catch_up="all")
    Clock(client, queue_name).turn()
    (occurrence,) = waiting_occurrences(client, queue_name)
    # These jobs have run by the time at which the clock is set back.
    Clock(client, queue_name).turn(occurrence + 30_000)
    frames = keys_of(queue_name).queue.timeout_set
    assert client.zremrangebyscore(frames, 0, occurrence + 30_000) == 4

    if change == "override":
        get_schedule("beat", queue_name).override(every(5))
    elif change == "deploy":
        deploy(monkeypatch, queue_name, every(5), catch_up="all")
    Clock(client, queue_name).turn()

    step_ms = 5_000 if change else 10_000
    assert waiting_occurrences(client, queue_name) == [occurrence + 30_000 + step_ms]


def test_clock_that_is_set_back_while_the_loop_has_no_room_is_noticed(
    client, configure, queue_name
):
    make(queue_name, every(timedelta(hours=1)))
    worker = Clock(client, queue_name)
    worker.turn()
    occurrence = waiting_occurrences(client, queue_name)[0]
    worker.turn(occurrence + 240 * HOUR, look=False)
    client.hincrby(keys_of(queue_name).schedules, "version", 1)

    # Nobody has told the time: it learns it from what it reads.
    worker.periods.next_ms = 0.0
    for _ in range(3):
        worker.periods.turn(monotonic_ms(), None)

    schedule = get_schedule("beat", queue_name)
    assert (
        occurrence
        <= schedule.next_occurrence.timestamp() * 1000
        <= occurrence + 2 * HOUR
    )


@pytest.mark.parametrize("deleted", ["occurrences", "states"])
def test_what_somebody_has_deleted_is_missed_at_the_next_occurrence_at_the_latest(
    client, configure, queue_name, deleted
):
    make(queue_name, every(timedelta(hours=1)))
    make(queue_name, every(timedelta(hours=1)), name="other", task="tests.other")
    keys = keys_of(queue_name)
    worker = Clock(client, queue_name)
    worker.turn()
    occurrence = waiting_occurrences(client, queue_name)[0]
    if deleted == "occurrences":
        client.delete(keys.periods)
    else:
        client.hdel(keys.schedules, "state beat", "state other")

    worker.turn(occurrence + 10, look=False)

    assert client.zcard(keys.periods) == 2
    # The look found what is missing, and read everything again.
    assert len(worker.periods._occurrences) == 2


def test_zone_that_this_machine_has_lost_is_told_and_stops_no_other_schedule(
    client, configure, monkeypatch, seen, queue_name
):
    task = make(queue_name, every(timedelta(hours=1)))
    when = cron("* * * * *", tz="Europe/Berlin")
    store_schedule("lost", task, when, queue=queue_name)
    client.delete(keys_of(queue_name).periods)
    known_zone = occurrences._known_zone

    def known(name):
        if name == "Europe/Berlin":
            raise ZoneInfoNotFoundError(name)
        return known_zone(name)

    monkeypatch.setattr(occurrences, "_known_zone", known)

    Clock(client, queue_name).turn()

    assert "schedule lost stops here" in seen.text
    assert get_schedule("beat", queue_name).next_occurrence is not None


def test_change_on_a_machine_without_the_zone_leaves_out_what_was_missed_and_says_so(
    client, configure, monkeypatch, seen, queue_name
):
    make(queue_name, cron("0 * * * *", tz="Europe/Berlin"), catch_up="all")
    Clock(client, queue_name).turn()
    miss(client, queue_name, 6)

    def known(name):
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(occurrences, "_known_zone", known)
    schedule = get_schedule("beat", queue_name).override(HOURLY)

    assert "what schedule beat has missed is left out" in seen.text
    assert come(queue_name) == ([], [])
    assert schedule.next_occurrence is not None


@pytest.mark.parametrize("is_changed", [False, True])
def test_worker_without_the_new_key_leaves_alone_what_is_signed_with_it(
    client, configure, monkeypatch, settings, queue_name, is_changed
):
    """A deploy brings a new key and new occurrences; a worker of before would write its own definition, and so on for ever."""
    plain = configure()
    settings.DELAYQ = {**plain, "KEYS": ["the key of before"]}
    make(queue_name, every(timedelta(hours=1)))
    old = Clock(client, queue_name)
    old.turn()
    settings.DELAYQ = {**plain, "KEYS": ["the key of today", "the key of before"]}
    if is_changed:
        get_schedule("beat", queue_name).override(every(timedelta(hours=2)))
    else:
        registry._tasks.clear()
        later(monkeypatch)
        make(queue_name, every(timedelta(hours=2)))
        Clock(client, queue_name).turn()
    schedule = get_schedule("beat", queue_name)
    settings.DELAYQ = {**plain, "KEYS": ["the key of before"]}

    old.turn()

    settings.DELAYQ = {**plain, "KEYS": ["the key of today", "the key of before"]}
    assert get_schedule("beat", queue_name) == schedule
    # Where nobody with the new key is left, the worker takes it over.
    settings.DELAYQ = {**plain, "KEYS": ["the key of before"]}
    client.zadd(keys_of(queue_name).periods, {"beat": epoch_ms() - 61_000})
    old.periods._known = None
    old.turn()
    assert get_schedule("beat", queue_name).when == every(timedelta(hours=1))
    assert (
        get_schedule("beat", queue_name).next_occurrence.timestamp() * 1000 > epoch_ms()
    )


def test_schedules_are_signed_anew_so_that_a_key_can_be_retired(
    client, configure, settings, queue_name
):
    """A pause and a stored schedule outlive the key that they were made with."""
    settings.SECRET_KEY = "old"
    task = make(queue_name, NEVER)
    Clock(client, queue_name).turn()
    get_schedule("beat", queue_name).pause()
    store_schedule("stored", task, NEVER, queue=queue_name)
    job_id = get_schedule("stored", queue_name).job_id

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    Clock(client, queue_name).turn()
    settings.SECRET_KEY_FALLBACKS = []

    beat, stored = get_schedules(queue_name)
    assert beat.is_paused
    assert (stored.is_stored, stored.job_id) == (True, job_id)


def test_wrong_type_of_the_keys_of_schedules_keeps_no_job_from_running(
    work, records, client, seen, queue_name
):
    @delayed_task(name="tests.plain", queue=queue_name)
    def plain():
        record("plain")

    keys = keys_of(queue_name)
    client.set(keys.schedules, "text")
    make(queue_name, every(1))
    work()
    wait_until(lambda: "cannot be looked after" in seen.text, description="it is told")

    plain.schedule(0)

    wait_until(lambda: records.count("plain"), description="the job has run")
    client.delete(keys.schedules)


def test_forged_definition_is_told_and_not_obeyed(client, configure, seen, queue_name):
    make(queue_name, NEVER)
    worker = Clock(client, queue_name)
    worker.turn()
    keys = keys_of(queue_name)
    body = msgspec.json.encode({"task": "tests.beat", "when": {"every": 1000}})
    real = client.hget(keys.schedules, "code beat")
    client.hset(
        keys.schedules,
        mapping={
            "stored forged": b"0" * 36 + body,
            "change beat": real[:36] + b'{"paused_ms":1}',
            # What is signed for one place is nothing at another.
            "stored copied": real,
            "version": 7,
        },
    )

    worker.turn()

    (schedule,) = get_schedules(queue_name)
    assert (schedule.name, schedule.is_paused) == ("beat", False)
    assert "stored data of schedule 'forged' is ignored" in seen.text
    assert len(waiting_occurrences(client, queue_name)) == 1


# Changes from outside.


def test_paused_schedule_rests_until_it_is_resumed(work, records, queue_name):
    make(queue_name, every(1))
    work()
    wait_until(lambda: records.count("run"), description="an occurrence")

    paused = get_schedule("beat", queue_name).pause(reason="migration")
    assert paused.is_paused
    assert (paused.paused_reason, paused.next_occurrence) == ("migration", None)
    count = records.count("run")
    job = paused.fire()
    wait_until(lambda: records.count("run") > count, description="it was fired")
    assert job.refresh() in (State.SUCCEEDED, State.RUNNING)
    resumed = paused.resume()

    assert not resumed.is_paused
    count = records.count("run")
    wait_until(lambda: records.count("run") >= count + 2, description="two occurrences")


def test_occurrences_of_a_paused_queue_are_missed(work, records, client, queue_name):
    make(queue_name, every(1))
    work()
    wait_until(lambda: records.count("run"), description="an occurrence")

    def pause_while_one_waits():
        pause(queue_name)
        job = get_job(get_schedule("beat", queue_name).job_id)
        if job.state in (State.SCHEDULED, State.DUE):
            return job
        # The worker had claimed it just before.
        resume(queue_name)
        return None

    job = wait_until(
        pause_while_one_waits, description="a pause between two occurrences"
    )
    wait_until(lambda: job.refresh() is State.DUE, description="it is due")
    later = get_schedule("beat", queue_name).next_occurrence + timedelta(seconds=2)
    wait_until(lambda: epoch_ms() > later.timestamp() * 1000, description="two more")
    assert len(waiting_occurrences(client, queue_name)) == 1
    count = records.count("run")
    resume(queue_name)

    wait_until(lambda: records.count("run") >= count + 2, description="it goes on")
    first, second = occurrences_of(records)[count : count + 2]
    assert second - first >= 3_000


@pytest.mark.parametrize("change", ["override", "pause", "deploy"])
def test_job_that_waits_for_its_random_start_runs_if_its_schedule_changes_then(
    client, configure, monkeypatch, queue_name, change
):
    make(queue_name, every(1), spread=3_600)
    Clock(client, queue_name).turn()
    schedule = get_schedule("beat", queue_name)
    wait_until(
        lambda: epoch_ms() > schedule.next_occurrence.timestamp() * 1000,
        description="its occurrence has come",
    )

    match change:
        case "override":
            schedule.override(NEVER)
        case "pause":
            schedule.pause()
        case "deploy":
            registry._tasks.clear()
            later(monkeypatch)
            make(queue_name, NEVER)
            Clock(client, queue_name).turn()

    assert get_job(schedule.job_id).state in (State.SCHEDULED, State.DUE)
    assert get_schedule("beat", queue_name).last_occurrence == schedule.next_occurrence


def test_override_gives_other_occurrences_until_it_is_taken_back(
    work, records, queue_name
):
    make(queue_name, NEVER)
    work()
    schedule = enrolled(queue_name)

    changed = schedule.override(every(1))
    assert changed.is_overridden
    wait_until(lambda: records.count("run") >= 2, description="two occurrences")
    back = changed.override(None)

    assert not back.is_overridden
    assert (back.when, back.next_occurrence.month) == (NEVER, 1)


def test_override_survives_new_code(client, configure, monkeypatch, queue_name):
    make(queue_name, NEVER)
    Clock(client, queue_name).turn()
    get_schedule("beat", queue_name).override(every(timedelta(hours=5)))
    registry._tasks.clear()
    later(monkeypatch)
    make(queue_name, cron("0 0 2 1 *", tz="UTC"))

    Clock(client, queue_name).turn()

    schedule = get_schedule("beat", queue_name)
    assert schedule.when == every(timedelta(hours=5))
    assert schedule.override(None).when == cron("0 0 2 1 *", tz="UTC")


def test_stored_schedule_runs_and_ends_with_its_deletion(work, records, queue_name):
    task = make(f"{queue_name}", NEVER)
    work()
    enrolled(queue_name)

    stored = store_schedule("stored", task, every(1), args=[1], queue=queue_name)
    assert stored.is_stored
    wait_until(lambda: records.count("run") >= 2, description="two occurrences")
    assert stored.delete()

    assert {each["schedule"] for each in records.all("run")} == {"stored"}
    assert [each.name for each in get_schedules(queue_name)] == ["beat"]


def test_schedule_in_code_cannot_be_deleted(client, configure, queue_name):
    make(queue_name, NEVER)
    Clock(client, queue_name).turn()

    with pytest.raises(InvalidSchedule, match="is in code"):
        get_schedule("beat", queue_name).delete()


def test_worker_hears_of_a_change_without_looking(work, records, queue_name):
    task = make(queue_name, NEVER)
    worker = work()
    enrolled(queue_name)
    part = part_in(worker, queue_name, SchedulesOfQueue)
    wait_until(lambda: part._known is not None, description="it has looked")

    store_schedule("soon", task, every(1), queue=queue_name)

    wait_until(lambda: "soon" in part._occurrences, description="it knows")


def test_worker_that_missed_the_message_looks_once_its_subscription_stands(
    monkeypatch, work, records, queue_name
):
    task = make(queue_name, NEVER)
    worker = work()
    enrolled(queue_name)
    part = part_in(worker, queue_name, SchedulesOfQueue)
    wait_until(lambda: part._known is not None, description="it has looked")
    monkeypatch.setattr(SchedulesOfQueue, "wakes", frozenset({b"what nobody sends"}))
    store_schedule("soon", task, every(1), queue=queue_name)
    wait_until(lambda: records.count("run"), description="its first occurrence")

    worker.loop.message_came(queue_name, None)

    wait_until(lambda: "soon" in part._occurrences, description="it knows")


def test_worker_without_room_moves_its_schedules_on(work, records, client, queue_name):
    make(queue_name, every(1), catch_up="all")

    @delayed_task(name="tests.long", queue=queue_name)
    def long():
        wait_until(
            lambda: len(seen_occurrences) >= 3,
            description="three occurrences are stored",
        )

    seen_occurrences: set[int] = set()

    def look():
        seen_occurrences.update(waiting_occurrences(client, queue_name))
        return len(seen_occurrences) >= 3

    long.schedule(0)
    work(threads=1)

    wait_until(look, description="three occurrences are stored")


def _has_turned(worker, enough):
    return worker.loop.turns >= enough


def test_schedules_of_a_paused_queue_rest_while_another_queue_has_all_threads(
    configure, work, records, client, queue_name
):
    configure(other={})
    make(queue_name, every(1), catch_up="all")

    @delayed_task(name="tests.long", queue=f"{queue_name}-other")
    def long():
        record("start")
        wait_until(gate_of_test().exists, description="the test lets go")

    worker = work([queue_name, f"{queue_name}-other"], threads=1)
    wait_until(lambda: records.count("run"), description="an occurrence")
    pause(queue_name)
    queue = worker.loop.queues[queue_name]
    wait_until(lambda: queue.is_paused, description="the worker knows")
    long.schedule(0)
    wait_until(lambda: records.count("start"), description="it has the thread")
    part = part_in(worker, queue.settings.name, SchedulesOfQueue)
    wait_until(
        lambda: (monotonic_ms() + part._offset_ms) * 1000 >= part.due_us,
        description="an occurrence has come",
    )
    stored = waiting_occurrences(client, queue_name)

    for _ in range(3):
        enough = worker.loop.turns + 2
        # A message wakes the loop, which has no room and does not learn anew that the queue is paused.
        client.publish(keys_of(queue_name).channel, 0)
        wait_until(partial(_has_turned, worker, enough), description="it looked")

    assert waiting_occurrences(client, queue_name) == stored
    gate_of_test().touch()


def test_next_job_is_dropped_while_one_runs_if_they_may_not_overlap(
    work, records, client, queue_name
):
    @periodic(every(1), name="beat", queue=queue_name, overlap=False)
    @delayed_task(name="tests.beat")
    def beat():
        record("run", occurrence=round(current_job().occurrence.timestamp() * 1000))
        wait_until(gate_of_test().exists, description="the test lets go")

    work()
    wait_until(lambda: records.count("run") >= 1, description="one runs")
    keys = keys_of(queue_name)

    def dropped():
        return int(client.hget(keys.counters, "cancelled") or 0)

    wait_until(lambda: dropped() >= 2, description="two occurrences are dropped")
    assert records.count("run") == 1
    records.let_go()
    wait_until(lambda: records.count("run") >= 2, description="it goes on")


def test_limit_that_a_task_gets_after_its_schedule_was_stored_is_told_of_once(
    client, configure, seen, queue_name
):
    task = make(queue_name, every(timedelta(hours=1)))
    when = every(timedelta(hours=1))
    store_schedule("alone", task, when, queue=queue_name, overlap=False)
    store_schedule("others", task, when, queue=queue_name)
    task.options = task.options.changed(limit=Limit("late", concurrency=2))

    clock = Clock(client, queue_name)
    clock.turn()
    clock.turn()

    said = [line for line in seen.messages if "which applies instead" in line]
    assert said == [
        f"queue {queue_name}: schedule alone was stored with overlap=False, but its task now has the limit late, which applies"
        " instead"
    ]
    assert get_schedule("alone", queue_name).next_occurrence is not None


def test_every_missed_occurrence_runs_and_none_beside_another_if_all_are_caught_up_with(
    work, records, client, queue_name
):
    @periodic(every(1), name="beat", queue=queue_name, overlap=False, catch_up="all")
    @delayed_task(name="tests.beat")
    def beat():
        occurrence = round(current_job().occurrence.timestamp() * 1000)
        record("begin", occurrence=occurrence)
        wait_until(gate_of_test().exists, description="the test lets go")
        record("end", occurrence=occurrence)

    work(threads=4)
    wait_until(lambda: records.count("begin") == 1, description="one runs")
    keys = keys_of(queue_name)

    wait_until(lambda: client.zcard(keys.held) >= 3, description="three wait")
    assert records.count("begin") == 1
    records.let_go()
    wait_until(lambda: records.count("end") >= 4, description="they run")

    assert client.hget(keys.counters, "cancelled") is None
    whole = records.all()
    occurrences = [each["occurrence"] for each in whole]
    for begin, end in zip(whole[::2], whole[1::2], strict=False):
        assert (begin["step"], end["step"]) == ("begin", "end")
        assert begin["occurrence"] == end["occurrence"]
    assert occurrences[::2] == list(range(occurrences[0], occurrences[-1] + 1, 1000))


@pytest.mark.parametrize("hours", [6, 250])
def test_missed_occurrences_start_one_after_the_other(
    client, configure, queue_name, hours
):
    """Those of one start time would be held in the order of their tokens."""
    make(queue_name, HOURLY, catch_up="all", overlap=False)
    Clock(client, queue_name).turn()
    miss(client, queue_name, hours)

    Clock(client, queue_name).turn()

    jobs = list(find_jobs(queue=queue_name))
    assert len(jobs) >= hours
    assert_one_after_the_other(jobs)


def test_slot_whose_lease_was_deleted_stops_no_schedule_without_overlap(
    work, records, client, queue_name
):
    name = "every second: für 2"
    make(queue_name, every(1), name=name, overlap=False, catch_up="all")
    keys = keys_of(queue_name)
    client.zadd(keys.slots, {f"{definitions.OWN_LIMIT}\0{name}\0{'t' * 22}": 0})

    work()

    wait_until(lambda: records.count("run") >= 3, description="it runs")
    assert client.zcard(keys.slots) <= 1


def test_queue_of_java_gets_the_jobs_of_schedules(configure, work, records, queue_name):
    configure({"REDISSON": "3.52.0", "CODEC": "StringCodec"})
    make(queue_name, every(1))
    work()

    wait_until(lambda: records.count("run") >= 2, description="two occurrences")


def test_burst_worker_stores_the_next_job_and_ends(
    configure, records, work, queue_name
):
    make(queue_name, NEVER)
    worker = work(is_burst=True)

    wait_until(lambda: not worker.is_running, description="it has ended")

    assert get_schedule("beat", queue_name).next_occurrence is not None
