"""What `get_result` says of a task, from its call to the end of its record, on a real server with a real worker."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone as django_timezone

from django_delayq import find_jobs, get_job
from django_delayq.backend.upstream import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from django_delayq.backoff import Backoff
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from django_delayq.exceptions import (
    InvalidResult,
    JobCancelled,
    JobExpired,
    JobFailed,
)
from django_delayq.jobs import registry
from django_delayq.testing import captured, immediate
from tests.admin.conftest import url
from tests.backend import samples
from tests.polling import wait_until

AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
READY, RUNNING, FAILED, SUCCESSFUL = TaskResultStatus


def forget_end(client: Any, queue: str) -> None:
    """Do what 30 s do: the server forgets how jobs ended."""
    client.delete(get_settings().queue(queue).keys.ended)


def classes(result: Any) -> list[type]:
    return [error.exception_class for error in result.errors]


def test_result_of_a_call_is_ready_and_is_the_call(configure, queue_name) -> None:
    before = django_timezone.now() - timedelta(milliseconds=1)

    result = samples.add.using(queue_name=queue_name).enqueue(1, b=2)

    assert (result.status, result.args, result.kwargs) == (READY, [1], {"b": 2})
    assert (result.attempts, result.errors, result.is_finished) == (0, [], False)
    assert before <= result.enqueued_at <= django_timezone.now()
    assert len(result.id) <= 64
    assert task_backends["default"].get_result(result.id) == result
    assert get_job(result.id).state in (State.SCHEDULED, State.DUE)


@pytest.mark.parametrize(
    "options",
    [
        {"run_after": datetime(2050, 1, 1, 12, 0, 0, 123_456, UTC)},
        {"run_after": datetime(2050, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))},
        {"run_after": timedelta(hours=1, microseconds=5)},
        {"run_after": timedelta(milliseconds=1)},
        {"max_attempts": 3, "backoff": Backoff(base=1), "time_limit": timedelta(1)},
        {"expires": 5, "on_expiry": "dead", "priority": 7},
        {"unique": True, "spread": 60, "run_after": timedelta(hours=1)},
    ],
)
async def test_result_of_a_call_is_what_get_result_finds(
    configure, queue_name, options
) -> None:
    """With its moment as the server has it, and the options that travel with the job."""
    task = samples.add.using(queue_name=queue_name, **options)

    result = await sync_to_async(task.enqueue)(1)
    aresult = await task.aenqueue(2)

    backend = task_backends["default"]
    assert await sync_to_async(backend.get_result)(result.id) == result
    assert await backend.aget_result(aresult.id) == aresult
    for name in ("max_attempts", "backoff", "expires", "on_expiry"):
        if name in options:
            assert getattr(result.task, name) == options[name]
    if isinstance(options.get("run_after"), datetime):
        off = abs(result.task.run_after - options["run_after"])
        assert off < timedelta(milliseconds=1)


async def test_task_that_runs_within_its_call_has_its_value_at_once(
    configure, records
) -> None:
    with immediate(raises=False):
        results = [
            await sync_to_async(samples.add.enqueue)(1, b=2),
            await samples.add.aenqueue(1, b=2),
            await samples.add_async.aenqueue(1, b=2),
        ]
        failed = await samples.fail.aenqueue("x")
    for result in results:
        assert (result.status, result.return_value) == (SUCCESSFUL, 3)
        assert result.attempts == 1
    assert failed.status in (FAILED, READY)
    assert classes(failed) == [LookupError]
    with captured():
        assert samples.add.enqueue(1).status is READY


@pytest.mark.parametrize("name", ["add", "add_async"])
def test_success_has_its_value_times_and_worker(
    burst, configure, queue_name, client, name
) -> None:
    task = getattr(samples, name).using(queue_name=queue_name)
    result = task.enqueue(1, b=2)
    burst()

    for is_forgotten in (False, True):
        if is_forgotten:
            forget_end(client, queue_name)
        result = task.get_result(result.id)

        assert (result.status, result.return_value) == (SUCCESSFUL, 3)
        assert (result.args, result.kwargs) == ([1], {"b": 2})
        assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
        assert result.started_at == result.last_attempted_at
        assert result.started_at <= result.finished_at
        assert result.task.func is task.func


def test_record_is_kept_for_a_day_or_for_result_ttl(
    burst, configure, queue_name, client, settings
) -> None:
    task = samples.add.using(queue_name=queue_name)
    first = task.enqueue(1)
    settings.TASKS = {
        "default": {
            **settings.TASKS["default"],
            "OPTIONS": {"RESULT_TTL": timedelta(minutes=1)},
        }
    }
    second = task.enqueue(1)
    burst()

    keys = get_settings().queue(queue_name).keys
    left = [
        client.ttl(keys.result(result.id.partition(":")[2]))
        for result in (first, second)
    ]

    assert 86_300 < left[0] <= 86_400
    assert 0 < left[1] <= 60


@pytest.mark.parametrize("name", ["fail", "fail_async"])
def test_failure_has_an_error_for_each_attempt(
    burst, configure, queue_name, client, name
) -> None:
    task = getattr(samples, name).using(
        queue_name=queue_name, max_attempts=2, backoff=AT_ONCE
    )
    result = task.enqueue("no such thing")
    burst()
    wait_until(
        lambda: burst() or task.get_result(result.id).is_finished,
        description="the second attempt has failed",
    )

    result.refresh()

    assert result.status == FAILED
    assert classes(result) == [LookupError, LookupError]
    for error in result.errors:
        assert error.traceback.endswith("LookupError: no such thing\n")
        assert "django_delayq" not in error.traceback
    assert result.attempts == 2
    assert result.enqueued_at <= result.started_at < result.last_attempted_at
    assert result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_discarded_dead_letter_keeps_its_record(
    burst, configure, queue_name, client
) -> None:
    result = samples.fail.using(queue_name=queue_name, max_attempts=1).enqueue("x")
    burst()

    assert get_job(result.id).discard()
    forget_end(client, queue_name)
    result.refresh()

    assert (result.status, classes(result)) == (FAILED, [LookupError])
    assert (result.attempts, result.args) == (1, ["x"])
    assert result.finished_at >= result.started_at


def test_base_exception_fails_at_once(burst, configure, queue_name) -> None:
    result = samples.leave.using(queue_name=queue_name, backoff=AT_ONCE).enqueue()
    burst()

    result.refresh()

    assert (result.status, classes(result)) == (FAILED, [SystemExit])


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("lambda", TypeError),
        ("set", TypeError),
        ("bytes", ValueError),
        ("nan", TypeError),
        ("big", InvalidResult),
    ],
)
def test_value_that_cannot_be_kept_fails_and_is_not_tried_again(
    burst, configure, queue_name, records, kind, cause
) -> None:
    result = samples.odd.using(queue_name=queue_name, backoff=AT_ONCE).enqueue(kind)
    burst()

    result.refresh()

    assert (result.status, result.attempts) == (FAILED, 1)
    (error,) = result.errors
    assert issubclass(error.exception_class, cause)
    assert "samples.odd returned" in error.traceback
    assert records.count("run") == 1


def test_cancelled_job_has_failed_and_keeps_its_record(
    configure, queue_name, client
) -> None:
    result = samples.add.using(
        queue_name=queue_name, run_after=timedelta(hours=1)
    ).enqueue(1)
    assert get_job(result.id).cancel()

    for is_forgotten in (False, True):
        if is_forgotten:
            forget_end(client, queue_name)
        result.refresh()

        assert (result.status, classes(result)) == (FAILED, [JobCancelled])
        assert (result.attempts, result.started_at, result.args) == (0, None, [1])
        assert result.finished_at is not None


def test_jobs_that_a_search_cancels_keep_their_records(
    configure, queue_name, client
) -> None:
    task = samples.add.using(queue_name=queue_name, run_after=timedelta(hours=1))
    results = [task.enqueue(n) for n in range(3)]
    plain = samples.plain.using(queue=queue_name, keep_result=None).schedule(60, 1)

    assert find_jobs(queue=queue_name).cancel().won == 4
    forget_end(client, queue_name)

    for n, result in enumerate(results):
        result.refresh()
        assert (result.status, result.args) == (FAILED, [n])
    keys = get_settings().queue(queue_name).keys
    assert not client.exists(keys.result(plain.token))


def test_task_that_cancels_itself_has_failed(burst, configure, queue_name) -> None:
    result = samples.cancel_itself.using(queue_name=queue_name).enqueue()
    burst()

    result.refresh()

    assert (result.status, result.attempts) == (FAILED, 1)
    assert classes(result) == [JobCancelled]
    assert "not needed" in result.errors[0].traceback


@pytest.mark.parametrize("policy", ["drop", "dead"])
def test_expired_job_has_failed(burst, configure, queue_name, client, policy) -> None:
    result = samples.add.using(
        queue_name=queue_name,
        expires=0.001,
        on_expiry=policy,
        run_after=django_timezone.now() - timedelta(minutes=1),
    ).enqueue(1)
    # A moment in the past means now: the job is too late once a worker comes later than that.
    job = get_job(result.id)
    wait_until(
        lambda: (django_timezone.now() - job.start_time).total_seconds() > 0.05,
        description="the job is too late",
    )
    burst()
    forget_end(client, queue_name)

    result.refresh()

    assert (result.status, classes(result)) == (FAILED, [JobExpired])
    assert (result.attempts, result.started_at) == (0, None)
    assert result.finished_at >= result.enqueued_at


def test_running_task_has_its_worker_and_start(
    burst, work, configure, queue_name, records, client
) -> None:
    result = samples.hold.using(queue_name=queue_name).enqueue()
    work()
    wait_until(lambda: records.count("start"), description="the task runs")

    result.refresh()

    assert (result.status, result.attempts) == (RUNNING, 1)
    assert result.started_at is not None
    assert result.finished_at is None
    records.let_go()
    wait_until(
        lambda: result.refresh() or result.is_finished, description="the task has ended"
    )
    assert (result.return_value, result.attempts) == ("held", 1)


def test_context_knows_the_attempts_before(
    burst, configure, queue_name, client
) -> None:
    task = samples.fail_until.using(queue_name=queue_name, backoff=AT_ONCE)
    result = task.enqueue(3)
    wait_until(
        lambda: burst() or task.get_result(result.id).is_finished,
        description="the third attempt has ended",
    )

    result.refresh()

    assert result.status == SUCCESSFUL
    told = result.return_value
    assert (told["id"], told["attempt"], told["status"]) == (result.id, 3, "RUNNING")
    assert told["errors"] == ["builtins.ConnectionError"] * 2
    assert told["workers"] == result.worker_ids
    assert (result.attempts, len(set(result.worker_ids))) == (3, 1)


def test_async_task_takes_the_context_beside_its_arguments(
    burst, configure, queue_name
) -> None:
    result = samples.tell_context.using(queue_name=queue_name).enqueue(word="w")
    burst()

    result.refresh()

    assert result.return_value == ["w", 1, [], {"word": "w"}]


def test_task_that_snoozes_is_ready_again_and_counts_one_attempt(
    burst, configure, queue_name, records
) -> None:
    task = samples.snooze_once.using(queue_name=queue_name)
    result = task.enqueue()
    wait_until(
        lambda: burst() or task.get_result(result.id).is_finished,
        description="the task has ended",
    )

    result.refresh()

    assert (result.return_value, result.attempts, result.errors) == ("awake", 1, [])


def test_deferred_task_waits_for_its_moment(burst, configure, queue_name) -> None:
    # To the millisecond, as the server has it.
    later = (django_timezone.now() + timedelta(hours=1)).replace(microsecond=5_000)
    task = samples.add.using(queue_name=queue_name)
    moment, wait = (
        task.using(run_after=later).enqueue(1),
        task.using(run_after=timedelta(hours=2)).enqueue(1),
    )
    burst()

    assert moment.task.run_after == later
    assert (task.get_result(moment.id).status, get_job(moment.id).state) == (
        READY,
        State.SCHEDULED,
    )
    found = task.get_result(moment.id).task.run_after
    assert abs(found - later) < timedelta(milliseconds=2)
    lead = get_job(wait.id).start_time - get_job(moment.id).start_time
    assert timedelta(minutes=59) < lead < timedelta(minutes=61)


def test_higher_priority_comes_first(
    burst, configure, queue_name, client, records
) -> None:
    task = samples.echo.using(queue_name=queue_name)
    results = [task.using(priority=p).enqueue(p) for p in (0, -5, 50, 5)]

    burst(threads=1)

    assert [each["args"] for each in records.all("run")] == [[50], [5], [0], [-5]]
    assert task.get_result(results[2].id).task.priority == 0
    # The priority of a job that waits is known.
    assert (
        task.using(priority=7, run_after=timedelta(hours=1)).enqueue().task.priority
        == 7
    )


def test_quarantined_job_has_failed(burst, configure, queue_name) -> None:
    result = samples.add.using(queue_name=queue_name).enqueue(1)
    known = registry._tasks.pop(samples.add.module_path)
    try:
        configure(worker={"HOLD_UNKNOWN": 0})
        burst()
    finally:
        registry._tasks[samples.add.module_path] = known
    assert get_job(result.id).state is State.QUARANTINED

    result.refresh()

    assert (result.status, classes(result)) == (FAILED, [JobFailed])


@pytest.mark.parametrize(
    "id", ["123", "", "nowhere:123", "default:0123456789012345678901"]
)
def test_missing_result_does_not_exist(configure, id) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        samples.add.get_result(id)


async def test_missing_result_does_not_exist_on_the_event_loop(configure) -> None:
    with pytest.raises(TaskResultDoesNotExist, match="no job has the id"):
        await samples.add.aget_result("default:0123456789012345678901")


def test_job_of_a_delayed_task_is_no_result(configure, queue_name) -> None:
    job = samples.plain.using(queue=queue_name).schedule(60, 1)

    with pytest.raises(TaskResultDoesNotExist, match=r"get_job\(id\)"):
        samples.add.get_result(job.id)


def test_task_that_is_not_registered_here_is_no_result(configure, queue_name) -> None:
    result = samples.add.using(queue_name=queue_name).enqueue(1)
    del registry._tasks[samples.add.module_path]

    with pytest.raises(TaskResultDoesNotExist, match=r"add it to DELAYQ\['MODULES'\]"):
        samples.echo.get_result(result.id)


async def test_async_call_and_its_result(configure, queue_name, burst) -> None:
    task = samples.add_async.using(queue_name=queue_name)

    result = await task.aenqueue(2, b=3)
    await sync_to_async(burst)()
    await result.arefresh()

    assert (result.return_value, result.attempts) == (5, 1)
    assert (await task.aget_result(result.id)).status == SUCCESSFUL


def test_result_whose_record_was_deleted_does_not_exist(
    configure, queue_name, burst, client
) -> None:
    result = samples.add.using(queue_name=queue_name).enqueue(1)
    burst()
    keys = get_settings().queue(queue_name).keys
    client.delete(keys.result(result.id.partition(":")[2]))

    with pytest.raises(TaskResultDoesNotExist, match="no longer stored"):
        result.refresh()


def test_mismatch_is_told(configure, queue_name) -> None:
    result = samples.add.using(queue_name=queue_name).enqueue(1)

    with pytest.raises(Exception, match="Task does not match"):
        samples.echo.get_result(result.id)


@pytest.mark.django_db
def test_job_that_the_admin_cancels_keeps_its_record(
    configure, queue_name, client, admin_client
) -> None:
    task = samples.add.using(queue_name=queue_name, run_after=timedelta(hours=1))
    result = task.enqueue(1)

    page = url("cancel", queue_name, result.id.partition(":")[2])
    assert admin_client.post(page).status_code == 302
    forget_end(client, queue_name)

    result.refresh()
    assert (result.status, classes(result)) == (FAILED, [JobCancelled])


def test_wait_says_by_its_class_how_a_job_ended(configure, queue_name, burst) -> None:
    task = samples.plain.using(queue=queue_name, expires=0.001)
    cancelled, late = task.schedule(60, 1), task.schedule(0, 1)
    cancelled.cancel()
    wait_until(
        lambda: (django_timezone.now() - late.start_time).total_seconds() > 0.05,
        description="the job is too late",
    )
    burst()

    with pytest.raises(JobCancelled, match="cancelled before it ran"):
        cancelled.wait(5)
    with pytest.raises(JobExpired, match="too late to matter"):
        late.wait(5)


def test_result_of_a_queue_with_shards_names_the_queue(
    burst, configure, queue_name
) -> None:
    configure({"SHARDS": 3})
    task = samples.add.using(queue_name=queue_name)
    results = [task.enqueue(n) for n in range(8)]

    assert {result.task.queue_name for result in results} == {queue_name}
    assert len({result.id.rpartition(":")[0] for result in results}) > 1
    burst()

    for result in results:
        result = task.get_result(result.id)
        assert result.status == SUCCESSFUL
        assert result.task.queue_name == queue_name


def test_results_and_errors_of_an_encrypted_queue_are_those_of_any(
    configure, queue_name, burst, client
) -> None:
    configure({"ENCRYPT": True})
    done = samples.add.using(queue_name=queue_name).enqueue(20, b=22)
    failed = samples.fail.using(queue_name=queue_name, max_attempts=1).enqueue("c4nary")

    burst()

    done.refresh()
    failed.refresh()
    assert (done.status, done.return_value, done.args) == (SUCCESSFUL, 42, [20])
    assert failed.status is FAILED
    assert "c4nary" in failed.errors[0].traceback
    for key in client.scan_iter(f"*{queue_name}*"):
        assert b"c4nary" not in client.dump(key)


def test_result_that_was_changed_is_not_taken_for_none(
    configure, queue_name, burst, client
) -> None:
    configure({"ENCRYPT": True})
    done = samples.add.using(queue_name=queue_name).enqueue(20, b=22)
    burst()
    keys = get_settings().queue(queue_name).keys
    kept = keys.result(done.id.partition(":")[2])
    changed = {"state": "succeeded", "encrypted": "1", "result": "forged"}
    client.lset(kept, 0, json.dumps(changed))

    done.refresh()

    assert done.status is FAILED
    assert "cannot be decrypted" in done.errors[-1].traceback
