"""What `sensitive` marks stays out of the errors and the logs of Django's tasks, Django's own log included."""

import logging
import sys
from typing import Any

import pytest

from django_delayq import get_job
from django_delayq.backend import sensitive
from django_delayq.backend.running import Masked
from django_delayq.backend.upstream import InvalidTask, task_finished
from django_delayq.core.states import State
from django_delayq.jobs.arguments import shown_arguments
from django_delayq.redaction import HIDDEN
from django_delayq.testing import frozen_queue
from tests.backend.samples import task

SECRET = "s3cret\n'of two lines'"


@task
@sensitive("token", "more")
def refuse(order: int, token: str, **more: str) -> None:
    raise LookupError(f"order {order}: {token} and {more}")


@task
@sensitive("token", "more")
async def refuse_async(order: int, token: str, **more: str) -> None:
    raise LookupError(f"order {order}: {token} and {more}")


@task(takes_context=True)
@sensitive("token")
def with_context(context: Any, token: str) -> None:
    raise LookupError(token)


def charge(token: str) -> None: ...


def charge_in_context(context: Any) -> None: ...


@pytest.mark.parametrize("refusing", [refuse, refuse_async], ids=["sync", "async"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_no_error_and_no_log_has_the_value(
    caplog: pytest.LogCaptureFixture,
    refusing: Any,
    attempts: int,
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = []

    def receive(sender: Any, task_result: Any, **named: Any) -> None:
        seen.append((task_result.errors[-1].traceback, sys.exc_info()[1]))

    called = refusing.using(max_attempts=attempts)
    task_finished.connect(receive)
    try:
        with frozen_queue() as q:
            result = called.enqueue(4711, SECRET, key="an0ther")
            for _ in range(attempts):
                q.run_due()
                q.advance(3600)
            job = get_job(result.id)
            result.refresh()
    finally:
        task_finished.disconnect(receive)

    assert job.state is State.DEAD
    ((told, handled),) = seen
    # On the event loop, a receiver that is no coroutine runs in a thread, which may handle no exception.
    is_handled = handled is not None
    assert is_handled or refusing is refuse_async
    if is_handled:
        assert isinstance(handled, Masked)
        assert handled.__context__ is None
    log = "".join(
        f"{record.getMessage()}{caplog.handler.format(record)}"
        for record in caplog.records
    )
    whole = f"{job.error}{job.history}{result.errors}{told}{handled}{log}"
    for part in ("s3cret", "of two lines", "an0ther"):
        assert part not in whole, whole
    assert "order 4711: ***" in told
    assert "django.tasks" in {record.name for record in caplog.records} or (
        "django_tasks" in {record.name for record in caplog.records}
    )
    # Our log has it, and Django's where it can.
    assert log.count("LookupError: order 4711: ***") >= 1 + is_handled


def test_pages_show_the_arguments_without_it() -> None:
    name = refuse.module_path

    assert shown_arguments(name, [1, SECRET], {"key": "an0ther"}) == [
        ("order", 1),
        ("token", HIDDEN),
        ("", HIDDEN),
    ]
    assert shown_arguments(with_context.module_path, [SECRET], {}) == [
        ("token", HIDDEN)
    ]


def test_calls_with_other_options_have_it_as_well() -> None:
    with frozen_queue() as q:
        result = with_context.using(priority=5, max_attempts=1).enqueue(SECRET)
        q.run_due()
        job = get_job(result.id)

    assert job.state is State.DEAD
    assert "s3cret" not in f"{job.error}"


def test_names_have_to_be_those_of_parameters() -> None:
    with pytest.raises(InvalidTask, match=r"'tokn'.* Did you mean 'token'\?"):
        task(sensitive("tokn")(charge))
    with pytest.raises(
        InvalidTask, match="'context', which is not one of its parameters"
    ):
        task(takes_context=True)(sensitive("context")(charge_in_context))
    for wrong in ((), ("",), (1,)):
        with pytest.raises(InvalidTask, match="give the names of parameters"):
            sensitive(*wrong)  # type: ignore[arg-type]


def test_above_the_decorator_of_the_task_it_says_so() -> None:
    with pytest.raises(InvalidTask, match="put it below"):
        sensitive("token")(refuse)
