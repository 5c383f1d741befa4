"""A job whose arguments the function does not take waits for code that does: while a deploy rolls out, both run."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import (
    Batch,
    InvalidArguments,
    State,
    delayed_task,
    get_job,
    pause,
    resume,
    schedule,
)
from django_delayq.conf import QueueSettings
from django_delayq.core.hold import MAX_HELD_CALL, Shape
from django_delayq.core.reasons import Kind, Reason
from django_delayq.jobs import registry
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.options import TaskOptions
from django_delayq.testing import frozen_queue, immediate
from django_delayq.transport.clients import own_clients
from django_delayq.worker import held_jobs
from tests.backend import samples
from tests.core.rig import Rig
from tests.polling import wait_until
from tests.worker.project import tasks

RAN: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def ran() -> list[tuple[Any, ...]]:
    RAN.clear()
    return RAN


@delayed_task(max_attempts=3)
def charge(order_id: int, currency: str = "EUR") -> None:
    RAN.append((order_id, currency))


@delayed_task
async def acharge(order_id: int, currency: str = "EUR") -> None:
    RAN.append((order_id, currency))


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have this process run other code of a task."""

    def deploy(task: TaskDefinition, function: Callable[..., Any]) -> None:
        other = TaskDefinition(function, task.name, task.options)
        monkeypatch.setitem(registry._tasks, task.name, other)

    return deploy


def older(order: int) -> None:
    RAN.append(("older", order))


async def aolder(order: int) -> None:
    RAN.append(("older", order))


def newer(order_id: int, *, currency: str, note: str = "") -> None:
    RAN.append(("newer", order_id, currency))


@pytest.mark.parametrize(("task", "old"), [(charge, older), (acharge, aolder)])
def test_job_is_held_for_code_that_takes_its_arguments(
    deploy: Any, ran: list[Any], task: Any, old: Any
) -> None:
    with frozen_queue() as q:
        job = task.schedule(0, order_id=1)
        deploy(task, old)

        (held_,) = q.run_due()

        assert (held_.outcome, held_.task) == ("held", task.name)
        assert isinstance(held_.error, InvalidArguments)
        assert job.refresh() is State.HELD
        assert job.attempts == 0
        assert job.error is not None
        assert job.error["error"] == (
            f"InvalidArguments: {task.name}() does not take the arguments of the job here:"
            " missing argument 'order', unexpected 'order_id'; did you mean 'order'?"
        )
        # This code holds it, and does not take it up again and again.
        assert q.advance(minutes=1) == []
        # Nor does other code that does not take it.
        deploy(task, lambda: None)
        assert q.advance(minutes=1) == []

        deploy(task, task.function)
        (ended,) = q.advance(minutes=1)

        assert ended.outcome == "succeeded"
        assert ran == [(1, "EUR")]


def test_type_error_of_the_task_itself_is_a_failure(
    deploy: Any, ran: list[Any]
) -> None:
    def failing(order_id: int) -> None:
        older()  # type: ignore[call-arg]

    with frozen_queue() as q:
        charge.schedule(0, 1)
        deploy(charge, failing)

        assert [each.outcome for each in q.run_due()] == ["retrying"]


def test_job_that_no_code_takes_goes_to_quarantine_with_the_reason(
    deploy: Any, ran: list[Any]
) -> None:
    with frozen_queue() as q:
        job = charge.schedule(0, 1, "CHF")
        deploy(charge, older)
        q.run_due()

        q.advance(minutes=16)

        assert job.refresh() is State.QUARANTINED
        assert job.error is not None
        assert "1 positional argument too many" in job.error["error"]
        assert (
            "many. It was held, and no worker that can run it came"
            in job.error["error"]
        )
        # A person may still retry it.
        deploy(charge, charge.function)
        assert job.retry()
        assert [each.outcome for each in q.run_due()] == ["succeeded"]


def test_job_of_a_task_that_is_defined_in_a_function_is_held_with_that_reason() -> None:
    @delayed_task
    def inner() -> None: ...

    why = "A task defined in a function cannot be imported by a worker; define it at the top of a module"
    with frozen_queue() as q:
        job = inner.schedule(0)
        registry._tasks.pop(inner.name)
        q.run_due()

        assert job.refresh() is State.HELD
        assert job.error is not None
        assert why in job.error["error"]

        q.advance(minutes=16)

        assert job.refresh() is State.QUARANTINED
        assert f"{why}. It was held" in job.error["error"]
        assert "Put it in tasks.py" not in job.error["error"]


@pytest.mark.parametrize("why", ["HOLD_UNKNOWN is 0", "too many names"])
def test_job_that_cannot_be_held_goes_to_quarantine(
    deploy: Any, settings: Any, ran: list[Any], why: str
) -> None:
    def anything(**kwargs: int) -> None: ...

    deploy(charge, anything)
    names = {f"name_{number}": 1 for number in range(MAX_HELD_CALL // 4)}
    if why == "HOLD_UNKNOWN is 0":
        settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"HOLD_UNKNOWN": 0}}
        names = {"name": 1}
    task = delayed_task(name=charge.name)(anything)
    try:
        with frozen_queue() as q:
            job = task.schedule(0, **names)
            deploy(charge, older)

            (ended,) = q.run_due()

            assert ended.outcome == "quarantined"
            assert job.refresh() is State.QUARANTINED
            assert job.error is not None
            assert job.error["kind"] == "task"
            assert "missing argument 'order'" in job.error["error"]
    finally:
        registry._tasks[charge.name] = charge


def test_retry_keeps_its_attempts_while_it_is_held(deploy: Any, ran: list[Any]) -> None:
    def failing(order_id: int) -> None:
        raise ValueError("no")

    with frozen_queue() as q:
        job = charge.schedule(0, order_id=1)
        deploy(charge, failing)
        q.run_due()
        deploy(charge, older)
        q.advance(minutes=1)

        assert job.refresh() is State.HELD
        assert job.attempts == 1
        deploy(charge, charge.function)
        q.advance(minutes=1)
        assert ran == [(1, "EUR")]


def test_job_of_a_paused_task_is_held_for_the_code_first(
    deploy: Any, ran: list[Any]
) -> None:
    with frozen_queue() as q:
        job = charge.schedule(0, 1)
        pause("default", task=charge)
        deploy(charge, newer)
        q.run_due()
        assert job.refresh() is State.HELD
        resume("default", task=charge)
        q.advance(minutes=1)
        assert job.refresh() is State.HELD

        deploy(charge, charge.function)
        q.advance(minutes=1)

        assert ran == [(1, "EUR")]


def test_batch_waits_for_a_job_that_is_held(deploy: Any, ran: list[Any]) -> None:
    with frozen_queue() as q:
        batch = Batch(charge.prepare(0, 99))
        batch.schedule([charge.prepare(0, 1, currency="CHF")])
        # The callback fits, the job does not.
        deploy(charge, lambda order_id: RAN.append((order_id,)))
        q.advance(minutes=1)
        assert ran == []

        deploy(charge, charge.function)
        q.advance(minutes=1)

        assert ran == [(1, "CHF"), (99, "EUR")]


def test_job_that_follows_is_held_by_itself(deploy: Any, ran: list[Any]) -> None:
    with frozen_queue() as q:
        schedule(charge.prepare(0, 1).then(charge.prepare(0, 2, currency="CHF")))
        deploy(charge, lambda order_id: RAN.append((order_id,)))
        q.advance(minutes=1)
        assert ran == [(1,)]

        deploy(charge, charge.function)
        q.advance(minutes=1)

        assert ran == [(1,), (2, "CHF")]


def test_immediate_raises_what_a_worker_would_hold_for(
    deploy: Any, ran: list[Any]
) -> None:
    with immediate():
        deploy(charge, older)
        with pytest.raises(InvalidArguments, match="unexpected 'order_id'"):
            charge.schedule(0, order_id=1)


def test_worker_holds_and_runs_jobs_of_both_kinds_of_tasks(
    configure: Any,
    work: Any,
    queue_name: str,
    deploy: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_jobs, "LOOK_AT_HELD_MS", 50.0)
    job = schedule(tasks.note.using(queue=queue_name), 0, text="x")
    result = samples.add.using(queue_name=queue_name).enqueue(1, b=2)
    note, add = map(registry.get_task, (tasks.note.name, "tests.backend.samples.add"))
    deploy(note, lambda: None)
    deploy(add, lambda a: None)
    jobs = [job, get_job(result.id)]
    work()

    wait_until(
        lambda: all(each.refresh() is State.HELD for each in jobs),
        description="both are held",
    )
    for task in (note, add):
        monkeypatch.setitem(registry._tasks, task.name, task)

    wait_until(
        lambda: (
            job.refresh() in (State.SUCCEEDED, State.MISSING) and _is_finished(result)
        ),
        description="both have run",
    )
    assert result.return_value == 3


def _is_finished(result: Any) -> bool:
    result.refresh()
    return bool(result.is_finished)


@pytest.mark.parametrize(
    "name",
    [
        "shop.tasks.charge",
        "",
        "[]",
        "[1,2]",
        '["a","b"]',
        '{"a":1}',
        "[" * 5_000,
        '["t.x",' + "[" * 5_000,
        '["t.x",99999999999999999999]',
        '["t.x",10001]',
        '["t.x",-1]',
        '["t.x",1.5]',
        '["t.x",true]',
        '["t.x",1,null]',
        '["t.x",1,2]',
    ],
)
def test_name_that_nobody_of_us_has_written_is_no_shape(name: str) -> None:
    assert Shape.of_held(name) is None


def test_name_with_a_count_beyond_any_call_stops_no_worker(
    deploy: Any, ran: list[Any]
) -> None:
    with frozen_queue() as q:
        charge.schedule(0, 1, "CHF")
        deploy(charge, older)
        q.run_due()
        deploy(charge, charge.function)
        call = f'["{charge.name}",99999999999999999999]'
        keys = QueueSettings(name="default").keys
        member = "\0".join((Reason(Kind.CALL, call).text, "0", "x"))
        own_clients.of_thread().zadd(keys.held_tasks, {member: 0})

        q.advance(minutes=1)

        assert ran == [(1, "CHF")]


@pytest.mark.parametrize("policy", ["drop", "dead"])
def test_job_that_is_too_late_expires_whether_its_arguments_fit_or_not(
    deploy: Any, policy: Any
) -> None:
    soon = charge.using(expires=5, on_expiry=policy)
    with frozen_queue() as q:
        job = soon.schedule(0, 1, "CHF")
        deploy(charge, older)
        pause("default")
        q.advance(minutes=1)
        resume("default")

        (ended,) = q.run_due()

        assert ended.outcome == ("expired" if policy == "drop" else "dead")
        assert job.refresh() is (State.EXPIRED if policy == "drop" else State.DEAD)


def test_worker_finds_the_calls_that_fit_behind_many_that_do_not(
    client: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(client, queue_name)
    monkeypatch.setattr(held_jobs, "MOST_SHAPES", 100)
    names = [Shape("a.task", number, ()).held_name for number in range(100, 205)]
    names.append(Shape(charge.name, 1, ()).held_name)
    rig.schedule({f"j{number}": 0 for number in range(len(names))})
    for job, name in zip(rig.claim(len(names)).jobs, names, strict=True):
        rig.hold(job, task=Reason(Kind.CALL, name), hold_ms=None)
    looking = held_jobs.HeldJobs(client, QueueSettings(name=queue_name))

    assert not looking.turn(0, 10)
    assert looking.turn(0, 10)


def test_shape_is_read_as_it_was_written() -> None:
    shape = Shape("shop.täsks.\0x", 2, ("a,b", "ü"))

    assert Shape.of_held(shape.held_name) == shape
    assert "\0" not in shape.held_name


def test_call_that_fits_is_held_under_no_name() -> None:
    task = TaskDefinition(charge.function, "x", TaskOptions())

    assert task.fits(range(2), {})
    assert not task.fits(range(3), {})


@pytest.mark.parametrize(
    "name",
    [
        "key abcd",
        "limit of-key k",
        "moving 1",
        "batch x",
        "4:task1:a",
        "grö ße:\0x",
    ],
)
def test_task_of_any_name_is_held_and_paused(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ran: list[Any],
    name: str,
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    task = delayed_task(name=name)(lambda: RAN.append((name,)))
    with frozen_queue() as q:
        job = task.schedule(0)
        monkeypatch.delitem(registry._tasks, name)
        (unknown,) = q.run_due()
        assert unknown.outcome == "held"

        monkeypatch.setitem(registry._tasks, name, task)
        pause("default", task=name)
        (paused,) = q.advance(minutes=1)
        assert paused.outcome == "held"
        assert q.advance(minutes=1) == []
        assert job.refresh() is State.HELD

        resume("default", task=name)
        (done,) = q.advance(minutes=1)

    assert (done.outcome, ran) == ("succeeded", [(name,)])
    # That the task is paused was logged already.
    assert [
        each.levelname for each in caplog.records if "outcome=held" in each.getMessage()
    ] == ["WARNING", "INFO"]
