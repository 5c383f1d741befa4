"""``@periodic`` and schedules on the server: what they accept, show and change, in code and by the command."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_delayq import (
    EncodeError,
    InvalidArguments,
    InvalidSchedule,
    InvalidTask,
    Limit,
    QueueNotFound,
    ScheduleNotFound,
    TaskNotFound,
    aget_schedule,
    aget_schedules,
    astore_schedule,
    cron,
    delayed_task,
    every,
    find_jobs,
    get_job,
    get_schedule,
    get_schedules,
    periodic,
    store_schedule,
)
from django_delayq.checks import check_settings
from django_delayq.clock import iso_text
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from django_delayq.features.schedules import known_schedules
from django_delayq.features.schedules.api import MAX_STORED
from django_delayq.features.schedules.known_schedules import Known, loading
from django_delayq.features.schedules.periodic import MAX_NAME, all_schedules
from django_delayq.features.schedules.worker import SchedulesOfQueue
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import registry
from django_delayq.translations import moment_text
from django_delayq.transport.clients import own_clients
from tests.polling import wait_until
from tests.servers import ExternalServer, Server
from tests.worker.workers import part_of

NEVER = cron("0 0 1 1 *", tz="UTC")
HOURLY = every(timedelta(hours=1))


def define(queue, when=NEVER, /, task="tests.periodic", limit=None, **options):
    @periodic(when, queue=queue, **options)
    @delayed_task(name=task, limit=limit)
    def beat(first=None, /, second=None):
        """Do nothing."""

    return beat


def enroll(queue):
    """Play a worker that has started."""
    each = part_of(
        SchedulesOfQueue, own_clients.of_thread(), get_settings().queue(queue)
    )
    while each.turn(1.0, None):
        pass


def call(*arguments: str) -> str:
    out = io.StringIO()
    call_command("delayq_schedules", *arguments, stdout=out)
    return out.getvalue()


# The decorator.


def test_decorated_task_is_the_task_with_a_schedule(queue):
    task = define(queue, args=[1], kwargs={"second": 2}, priority=5, expires=60)

    (schedule,) = all_schedules()

    assert task.name == schedule.name == "tests.periodic"
    assert (schedule.queue, schedule.task, schedule.when) == (queue, task, NEVER)
    definition = schedule.definition()
    assert (definition.args, definition.kwargs) == ([1], {"second": 2})
    assert (definition.priority, definition.options) == (5, {"expires": 60.0})


def test_decorator_without_occurrences_is_told():
    with pytest.raises(InvalidSchedule, match="@periodic takes cron"):

        @periodic
        @delayed_task
        def beat():
            """Do nothing."""


def test_decorators_in_the_wrong_order_are_told():
    with pytest.raises(InvalidTask, match="@periodic has to be above @delayed_task"):

        @delayed_task
        @periodic(NEVER)
        def beat():
            """Do nothing."""


def test_decorator_above_other_options_is_told(queue):
    task = define(queue)

    with pytest.raises(InvalidTask, match="give the options to @periodic"):
        periodic(HOURLY, name="other")(task.using(priority=5))

    assert [schedule.name for schedule in task.schedules] == [task.name]


def test_schedules_of_one_task_need_names(queue):
    with pytest.raises(InvalidSchedule, match="give each @periodic a name="):

        @periodic(HOURLY)
        @periodic(NEVER)
        @delayed_task(name="tests.twice")
        def beat():
            """Do nothing."""


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"name": ""}, InvalidSchedule, "a name of one line"),
        ({"name": 5}, InvalidSchedule, "a name of one line"),
        ({"name": "a\nb"}, InvalidSchedule, "a name of one line"),
        ({"name": "a\0b"}, InvalidSchedule, "a name of one line"),
        ({"name": "\ud800"}, InvalidSchedule, "name="),
        ({"name": "ä" * 65}, InvalidSchedule, f"has {MAX_NAME} bytes at most"),
        ({"args": "text"}, InvalidSchedule, "give a list"),
        ({"args": 5}, InvalidSchedule, "give a list"),
        ({"kwargs": [1]}, InvalidSchedule, "give a dict"),
        ({"catch_up": "some"}, InvalidSchedule, "give 'one', 'none' or 'all'"),
        ({"catch_up": None}, InvalidSchedule, "give 'one', 'none' or 'all'"),
        ({"args": [object()]}, InvalidArguments, "which is not JSON"),
        ({"unique": True}, InvalidTask, "is unique, so it cannot be periodic"),
        ({"priority": 101}, InvalidTask, "priority=101"),
        ({"retry_on": ValueError}, InvalidTask, "retry_on cannot be changed"),
        ({"colour": 5}, InvalidTask, "unknown option 'colour' of a schedule"),
        ({"catchup": "all"}, InvalidTask, "Did you mean 'catch_up'?"),
        ({"overlaps": False}, InvalidTask, "known are name, args, kwargs, catch_up, o"),
        ({"arg": [1]}, InvalidTask, "Did you mean 'args'?"),
        ({"max_attempt": 1}, InvalidTask, "Did you mean 'max_attempts'?"),
        ({"overlap": 0}, InvalidSchedule, "give True or False"),
        (
            {"overlap": False, "limit": Limit("x", concurrency=1)},
            InvalidTask,
            "would be a second one",
        ),
    ],
)
def test_wrong_schedule_is_refused_where_it_is_written(queue, options, error, told):
    with pytest.raises(error, match=told):
        define(queue, **options)


def test_misspelt_option_of_a_stored_schedule_is_named_with_the_right_one(queue):
    with pytest.raises(InvalidTask, match=r"Did you mean 'args'\?"):
        store_schedule("x", define(queue), HOURLY, queue=queue, arg=[1])


@pytest.mark.parametrize("when", [None, "* * * * *", 300, timedelta(1)])
def test_occurrences_are_of_cron_or_every(queue, when):
    with pytest.raises(InvalidSchedule, match="give cron"):
        define(queue, when)


# Checks.


def problems():
    return [
        (each.id.rpartition(".")[2], each.msg)
        for each in check_settings()
        if "schedule" in each.msg.lower()
    ]


@pytest.mark.parametrize(
    ("when", "options", "told"),
    [
        (cron("0 0 31 2 *", tz="UTC"), {}, "never comes"),
        (cron("0 0 * * *", tz="Mars/Olympus"), {}, "does not have time zone"),
        (NEVER, {"args": [1, 2, 3]}, "1 positional argument too many"),
        (NEVER, {"kwargs": {"third": 1}}, "unexpected 'third'"),
        (NEVER, {"args": ["x" * 2_000_000]}, "more than DELAYQ"),
    ],
)
def test_check_tells_what_depends_on_machine_and_settings(queue, when, options, told):
    define(queue, when, **options)

    ((id, text),) = problems()
    assert id == "E013"
    assert told in text


def test_check_tells_a_task_that_needs_arguments(queue):
    @periodic(HOURLY, queue=queue)
    @delayed_task(name="tests.needs")
    def needs(order_id):
        """Do nothing."""

    ((id, text),) = problems()
    assert id == "E013"
    assert "missing argument 'order_id'" in text


def test_check_tells_a_queue_that_is_not_configured(queue):
    define("nowhere")

    ((id, text),) = problems()
    assert id == "E013"
    assert ".." not in text


def test_check_tells_two_schedules_of_one_name(queue):
    define(queue, name="report")
    define(queue, name="report", task="tests.other")
    define(f"{queue}-2", name="report", task="tests.third")

    ((id, text),) = problems()
    assert id == "E014"
    assert "'report'" in text
    assert len(all_schedules()) == 2


def test_check_has_nothing_to_say_of_a_good_schedule(queue):
    define(queue, args=[1])

    assert problems() == []


# On the server.


def test_schedule_in_code_is_listed_before_and_after_a_worker_enrolls_it(queue):
    define(queue, args=[7], catch_up="none")

    (before,) = get_schedules(queue)
    enroll(queue)
    after = get_schedule("tests.periodic")

    assert (before.is_enrolled, before.next_occurrence) == (False, None)
    assert after.is_enrolled
    assert (after.task, after.args, after.catch_up) == ("tests.periodic", [7], "none")
    assert (after.next_occurrence.month, after.next_occurrence.day) == (1, 1)
    assert not any((after.is_orphan, after.is_paused, after.is_stored))
    assert after.occurrences(2)[0] == after.next_occurrence
    assert get_job(after.job_id).occurrence == after.next_occurrence


@pytest.mark.parametrize("how", ["cancel", "run_now"])
def test_occurrence_whose_job_was_cancelled_or_run_early_is_not_the_next(queue, how):
    define(queue)
    enroll(queue)
    before = get_schedule("tests.periodic")
    first, second, third = before.occurrences(3)
    assert before.next_occurrence == first

    assert getattr(get_job(before.job_id), how)()
    after = before.refresh()

    assert (after.next_occurrence, after.job_id) == (second, "")
    assert after.occurrences(2) == [second, third]
    assert get_schedules(queue) == [after]
    (listed,) = json.loads(call("--json"))
    assert listed["next"] == listed["occurrences"][0] == iso_text(second)
    assert moment_text(first) not in call()
    # A change of the definition and back keeps in mind which occurrences have had their jobs.
    again = after.override(cron("0 0 2 1 *")).override(None)
    assert again.next_occurrence == second


def test_job_that_was_moved_and_waits_still_is_that_of_the_next_occurrence(queue):
    define(queue)
    enroll(queue)
    before = get_schedule("tests.periodic")

    assert get_job(before.job_id).reschedule(timedelta(hours=1))

    assert before.refresh() == before


def test_occurrence_that_came_without_a_worker_is_the_next_while_its_job_waits(queue):
    define(queue, every(1))
    enroll(queue)
    schedule = get_schedule("tests.periodic")
    wait_until(
        lambda: schedule.next_occurrence < datetime.now(UTC),
        description="its occurrence",
    )

    assert schedule.refresh() == schedule
    assert get_job(schedule.job_id).cancel()
    after = schedule.refresh()
    assert after.next_occurrence > schedule.next_occurrence
    assert after.job_id == ""


def test_schedules_of_a_queue_that_is_not_configured(queue):
    with pytest.raises(QueueNotFound):
        get_schedules("nowhere")


def test_unknown_schedule_is_told_with_those_that_there_are(queue):
    define(queue)

    with pytest.raises(ScheduleNotFound, match="there are 'tests\\.periodic'"):
        get_schedule("report")


def test_schedules_of_one_name_on_two_queues_are_told_apart(queue):
    define(queue, name="report")
    define(f"{queue}-2", name="report", task="tests.other")

    with pytest.raises(ScheduleNotFound, match="say which"):
        get_schedule("report")
    assert get_schedule("report", f"{queue}-2").task == "tests.other"


def test_schedule_can_be_changed_before_a_worker_enrolls_it(queue):
    define(queue)

    paused = get_schedule("tests.periodic").pause(reason="not yet", by="ann")
    enroll(queue)

    assert paused.refresh() == paused
    assert (paused.paused_by, paused.paused_reason) == ("ann", "not yet")
    assert (paused.next_occurrence, paused.job_id) == (None, "")
    assert find_jobs(queue=queue).count() == 0
    assert paused.resume().next_occurrence is not None


def test_pause_cancels_the_waiting_job(queue):
    define(queue)
    enroll(queue)
    schedule = get_schedule("tests.periodic")

    schedule.pause()

    assert get_job(schedule.job_id).state is State.CANCELLED


@pytest.mark.parametrize("reason", [5, "x" * 501, "\ud800"])
def test_wrong_reason_is_refused(queue, reason):
    define(queue)

    with pytest.raises(EncodeError, match="reason="):
        get_schedule("tests.periodic").pause(reason=reason)


def test_schedule_whose_limit_has_no_key_hides_no_other(queue, caplog):
    define(queue)
    bad = Limit("stripe", concurrency=1, key=lambda account, **_: account)
    define(queue, task="tests.keyless", limit=bad)

    found = get_schedules()

    assert [schedule.name for schedule in found] == ["tests.periodic"]
    assert "schedule tests.keyless is left out" in caplog.text


def test_fired_job_is_due_at_once_and_moves_nothing(queue, hand):
    define(queue, args=[7], priority=5)
    enroll(queue)
    schedule = get_schedule("tests.periodic")

    job = schedule.fire()

    assert job.schedule_name == "tests.periodic"
    assert schedule.refresh() == schedule
    leased = hand.take()
    call = envelopes.claimed_call(leased.payload)
    assert (leased.token, call.args) == (job.token, [7])
    assert call.headers["schedule"] == "tests.periodic"
    assert job.occurrence == get_job(job.id).occurrence is not None


def test_fired_job_enters_a_full_queue(settings, queue, client):
    settings.DELAYQ["QUEUES"][queue] = {"MAX_JOBS": 1}
    settings.DELAYQ = {**settings.DELAYQ}
    define(queue)
    enroll(queue)

    assert get_schedule("tests.periodic").fire().refresh() in (
        State.DUE,
        State.SCHEDULED,
    )


def test_override_that_never_comes_is_refused(queue):
    define(queue)
    schedule = get_schedule("tests.periodic")

    with pytest.raises(InvalidSchedule, match="never comes"):
        schedule.override(cron("0 0 31 2 *", tz="UTC"))
    with pytest.raises(InvalidSchedule, match="takes cron"):
        schedule.override("* * * * *")


# Stored.


def test_stored_schedule_has_its_job_at_once(queue):
    task = define(queue)

    stored = store_schedule(
        "shop 7", task, HOURLY, args=[7], catch_up="all", queue=queue, priority=3
    )

    assert (stored.is_stored, stored.is_orphan, stored.priority) == (True, False, 3)
    assert (stored.args, stored.catch_up, stored.when) == ([7], "all", HOURLY)
    job = get_job(stored.job_id)
    assert (job.args, job.state, job.schedule_name) == ([7], State.SCHEDULED, "shop 7")


def test_stored_schedule_takes_the_name_of_a_task(queue):
    define(queue)

    assert store_schedule("x", "tests.periodic", HOURLY, queue=queue).is_stored


def test_stored_schedule_has_the_options_of_using(queue):
    task = define(queue).using(queue=queue, priority=5, expires=60)

    stored = store_schedule("x", task, HOURLY, priority=6)

    assert (stored.queue, stored.priority) == (queue, 6)
    assert stored.options == {"expires": 60.0}
    for option in ({"unique": True}, {"outbox": True}):
        with pytest.raises(InvalidTask):
            store_schedule("y", task.using(**option), HOURLY)


def test_name_that_is_taken_is_refused_or_replaced(queue):
    task = define(queue)
    first = store_schedule("x", task, HOURLY, args=[1], queue=queue)

    with pytest.raises(InvalidSchedule, match="say replace=True"):
        store_schedule("x", task, NEVER, queue=queue)
    second = store_schedule("x", task, NEVER, args=[2], queue=queue, replace=True)

    assert second.args == [2]
    assert get_job(first.job_id).state is State.CANCELLED
    with pytest.raises(InvalidSchedule, match="is in code"):
        store_schedule("tests.periodic", task, NEVER, queue=queue, replace=True)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"name": ""}, InvalidSchedule),
        ({"task": "tests.nothing"}, TaskNotFound),
        ({"when": None}, InvalidSchedule),
        ({"when": cron("0 0 31 2 *", tz="UTC")}, InvalidSchedule),
        ({"when": cron("0 0 * * *", tz="Mars/Olympus")}, InvalidSchedule),
        ({"args": [1, 2, 3]}, InvalidArguments),
        ({"args": [object()]}, InvalidArguments),
        ({"args": ["x" * 2_000_000]}, EncodeError),
        ({"catch_up": "some"}, InvalidSchedule),
        ({"queue": "nowhere"}, QueueNotFound),
        ({"unique": True}, InvalidTask),
        ({"priority": 500}, InvalidTask),
        ({"task": 5}, InvalidTask),
        ({"limit": None}, InvalidTask),
        ({"overlap": None}, InvalidSchedule),
    ],
)
def test_wrong_schedule_is_not_stored(queue, changed, error):
    define(queue)
    given: dict[str, Any] = {
        "name": "x",
        "task": "tests.periodic",
        "when": HOURLY,
        "queue": queue,
        **changed,
    }

    with pytest.raises(error):
        store_schedule(given.pop("name"), given.pop("task"), given.pop("when"), **given)

    assert [each.name for each in get_schedules(queue)] == ["tests.periodic"]


def test_stored_schedules_are_bounded(queue, monkeypatch):
    monkeypatch.setattr("django_delayq.features.schedules.api.MAX_STORED", 2)
    task = define(queue)
    for name in "ab":
        store_schedule(name, task, HOURLY, queue=queue)

    with pytest.raises(InvalidSchedule, match="2 stored schedules, and takes no more"):
        store_schedule("c", task, HOURLY, queue=queue)
    assert MAX_STORED == 1_000
    assert store_schedule("b", task, NEVER, queue=queue, replace=True)


def test_stored_schedule_whose_task_is_gone_is_an_orphan_and_can_be_deleted(queue):
    task = define(queue)
    stored = store_schedule("x", task, HOURLY, queue=queue)
    registry._tasks.clear()

    assert stored.refresh().is_orphan
    assert stored.delete()
    with pytest.raises(ScheduleNotFound):
        stored.refresh()


# On the event loop.


async def test_twins_on_the_event_loop_do_the_same(queue):
    task = define(queue)

    schedule = await aget_schedule("tests.periodic")
    assert (await schedule.apause(reason="x")).is_paused
    assert not (await schedule.aresume()).is_paused
    assert (await schedule.aoverride(HOURLY)).when == HOURLY
    assert (await schedule.aoverride(None)).when == NEVER
    assert (await schedule.afire()).state is State.SCHEDULED
    stored = await astore_schedule("x", task, HOURLY, queue=queue)
    assert len(await aget_schedules(queue)) == 2
    assert await stored.arefresh() == stored
    assert await stored.adelete()


# Limits.


def test_check_tells_a_limit_whose_key_function_does_not_take_the_arguments(queue):
    limit = Limit("account", concurrency=1, key=lambda first, second: 1 / 0)

    define(queue, args=[1, 2], limit=limit)

    ((id, text),) = problems()
    assert id == "E013"
    assert "has no key for schedule" in text
    assert "ZeroDivisionError" in text


def test_jobs_of_a_schedule_have_the_limit_of_their_task(queue):
    limit = Limit("account", concurrency=1, key=lambda first, second=None: first)

    define(queue, args=["ann"], limit=limit)

    assert all_schedules()[0].definition().limit == "account\0ann"
    assert get_schedule("tests.periodic").overlap


# Others at the same time.


def test_change_that_another_was_quicker_with_is_made_again(queue, monkeypatch):
    task = define(queue)
    enroll(queue)
    schedule = get_schedule("tests.periodic")
    others = iter(range(3))

    def interrupted(queue_settings):
        known = yield from loading(queue_settings)
        number = next(others, None)
        if number is not None:
            # Between our look and our change.
            known = Known(known.queue, known.version - 1, known.now_us, known.entries)
        return known

    monkeypatch.setattr("django_delayq.features.schedules.changes.loading", interrupted)

    assert schedule.pause().is_paused
    assert next(others, None) is None
    assert task.name


# The command.


def test_command_lists_schedules_in_words_with_their_occurrences(
    queue: str, server: Server | ExternalServer
) -> None:
    assert call("--queue", queue) == "there are no schedules\n"
    define(queue, cron("0 9 * * 1-5", tz="Europe/Berlin"))

    with timezone.override("Europe/Berlin"):
        text = call("--queue", queue)
    assert f"tests.periodic (queue {queue}, task tests.periodic)" in text
    assert "At 09:00 on Monday through Friday (Europe/Berlin)" in text
    assert "not on the server yet" in text
    (occurrences,) = [line for line in text.splitlines() if line.startswith("  next: ")]
    assert occurrences.count(" 09:00:00 CE") == 5
    enroll(queue)
    assert "not on the server yet" not in call("--queue", queue)


def test_command_prints_json(queue: str) -> None:
    define(queue)
    enroll(queue)

    (found,) = json.loads(call("--queue", queue, "--json"))

    assert found["name"] == "tests.periodic"
    assert len(found["occurrences"]) == 5
    assert found["next"] == found["occurrences"][0]
    assert found["job"].startswith(queue)


def test_command_pauses_resumes_fires_and_deletes(queue: str) -> None:
    task = define(queue)
    store_schedule("stored", task, HOURLY, queue=queue)

    assert call("--pause", "stored", "--reason", "why\nnot") == "stored is paused\n"
    assert ": why not\n" in call("--queue", queue)
    assert call("--resume", "stored").startswith("stored runs next at 20")
    assert call("--fire", "stored").startswith(f"job {queue}:")
    assert call("--delete", "stored") == "stored is deleted\n"
    with pytest.raises(CommandError, match="no schedule is named 'stored'"):
        call("--delete", "stored")
    with pytest.raises(CommandError, match="is in code"):
        call("--delete", "tests.periodic")
    with pytest.raises(CommandError, match="needs --pause"):
        call("--reason", "x")


def test_command_shows_an_orphan_and_what_was_overridden(queue: str) -> None:
    define(queue)
    get_schedule("tests.periodic").override(HOURLY)
    assert "other times than its definition says" in call("--queue", queue)
    registry._tasks.clear()

    assert "orphan: no code here has it" in call("--queue", queue)


def test_schedules_that_are_ignored_are_logged_once_and_not_without_end(
    queue: str,
    client: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_schedules, "MOST_TOLD", 3)
    forged = {f"stored forged{number}": "x" * 50 for number in range(5)}
    client.hset(get_settings().queue(queue).keys.schedules, mapping=forged)

    for _ in range(2):
        assert get_schedules(queue) == []

    told = [each for each in caplog.records if "is ignored" in each.getMessage()]
    assert len(told) == 3
