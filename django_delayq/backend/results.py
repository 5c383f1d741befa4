"""A job as a TaskResult of Django's tasks."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from django_delayq import conf
from django_delayq.backend.django_task import (
    OPTIONS,
    BackendTask,
    DelayqTask,
    unchecked,
)
from django_delayq.backend.upstream import (
    AnyResult,
    AnyTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
)
from django_delayq.core.states import State
from django_delayq.exceptions import (
    DelayqError,
    JobCancelled,
    JobExpired,
    JobFailed,
)
from django_delayq.jobs import registry
from django_delayq.jobs.job import Job
from django_delayq.jobs.json_values import ATOMS
from django_delayq.redaction import show

#: A state that is not here waits for an attempt, the first or another one.
_STATUS = {
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.CANCELLED: TaskResultStatus.FAILED,
    State.DEAD: TaskResultStatus.FAILED,
    State.EXPIRED: TaskResultStatus.FAILED,
    State.DISCARDED: TaskResultStatus.FAILED,
    State.QUARANTINED: TaskResultStatus.FAILED,
    State.TAKEN: TaskResultStatus.FAILED,
}
#: The class of the error of a job that has ended, where its task raised none.
ERRORS = {State.CANCELLED: JobCancelled, State.EXPIRED: JobExpired}
#: A job that is due so soon after its call was not deferred: the clocks of the caller and the server differ.
AT_ONCE = timedelta(seconds=1)
#: In place of the id of a worker that the server keeps no more: of a long history, the oldest attempts go.
UNKNOWN_WORKER = "unknown"


def normalized(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call as Django's tasks keep them.

    Raises:
        TypeError, ValueError: an argument is not JSON.
    """
    # What most calls pass is JSON as it stands, which takes less to see than to copy it as Django does.
    for item in args:
        if type(item) not in ATOMS:
            args = normalize_json(args)  # type: ignore[assignment]
            break
    else:
        args = list(args)
    return args, normalize_json(kwargs) if kwargs else {}  # type: ignore[return-value]


def new_result(
    task: AnyTask,
    result_id: str,
    alias: str,
    args: list[Any],
    kwargs: dict[str, Any],
    enqueued_at: datetime | None,
) -> AnyResult:
    """Return the result of a call that no worker has begun; its arguments are `normalized`."""
    if not _IS_KNOWN:
        return TaskResult(
            task=task,
            id=result_id,
            status=TaskResultStatus.READY,
            enqueued_at=enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=alias,
            errors=[],
            worker_ids=[],
        )
    result = object.__new__(TaskResult)
    set_field = object.__setattr__
    set_field(result, "task", task)
    set_field(result, "id", result_id)
    set_field(result, "status", _READY)
    set_field(result, "enqueued_at", enqueued_at)
    set_field(result, "started_at", None)
    set_field(result, "finished_at", None)
    set_field(result, "last_attempted_at", None)
    set_field(result, "args", args)
    set_field(result, "kwargs", kwargs)
    set_field(result, "backend", alias)
    set_field(result, "errors", [])
    set_field(result, "worker_ids", [])
    set_field(result, "_return_value", None)
    return result


_READY = TaskResultStatus.READY
#: Whether a result has the fields that `new_result` sets, and no others: then it need not be made by its `__init__`,
#: which takes several times as long.
_IS_KNOWN = {field.name for field in fields(TaskResult)} == {
    *("task", "id", "status", "enqueued_at", "started_at", "finished_at"),
    *("last_attempted_at", "args", "kwargs", "backend", "errors", "worker_ids"),
    "_return_value",
}


def change(result: AnyResult, **values: Any) -> None:
    """Set what Django's own backends set in the same way: the class is frozen for its users."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def error_of(path: str, text: str) -> TaskError:
    return TaskError(exception_class_path=path, traceback=text)


def class_path(cls: type[BaseException]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def result_of(job: Job[Any], alias: str) -> AnyResult:
    """Return what is known of a job, by the last look at it.

    Raises:
        TaskResultDoesNotExist: its call is no longer kept, or is none of a task of Django's.
    """
    result = new_result(
        _task_of(job, alias), job.id, alias, job.args, job.kwargs, job.enqueued_at
    )
    status = _STATUS.get(job.state, TaskResultStatus.READY)
    # The attempts of a job that has ended, the first one first; those that only say why it did not run have no start.
    past = list(reversed(job.history)) or ([job.error] if job.error else [])
    begun = [
        each
        for each in past
        if each.get("began") is not None and each.get("kind") != "expired"
    ]
    began = [_moment(each["began"]) for each in begun]
    workers = [str(each.get("worker") or UNKNOWN_WORKER) for each in begun]
    if status is TaskResultStatus.RUNNING:
        claimed_ms, worker = job.claimed
        began.append(_moment(claimed_ms))
        workers.append(worker or UNKNOWN_WORKER)
    most = job.attempts + job.kills + (job.state in (State.RUNNING, State.SUCCEEDED))
    errors = [
        error_of(
            each.get("class") or class_path(JobFailed),
            each.get("traceback") or str(each.get("error")),
        )
        for each in past
        if each.get("kind") == "failed"
    ]
    kept = job.kept or {}
    if status is TaskResultStatus.SUCCESSFUL and "error" in kept:
        # It says why what the task returned is not there.
        status = TaskResultStatus.FAILED
    if status is TaskResultStatus.FAILED:
        errors += _final_errors(job, past, kept)
    change(
        result,
        status=status,
        worker_ids=[UNKNOWN_WORKER] * (most - len(workers)) + workers,
        errors=errors,
        started_at=began[0] if began else None,
        last_attempted_at=began[-1] if began else None,
    )
    if result.is_finished:
        ended_ms = past[-1].get("at") if past else None
        change(result, finished_at=_moment(kept.get("at") or ended_ms))
    if status is TaskResultStatus.SUCCESSFUL:
        change(result, _return_value=kept.get("result"))
    return result


def _final_errors(
    job: Job[Any], past: Sequence[Mapping[str, Any]], kept: Mapping[str, Any]
) -> list[TaskError]:
    """Return the error that ended a job, if its task did not raise that itself."""
    last = past[-1] if past else {}
    if job.state is State.DEAD and last.get("kind") == "failed":
        return []
    cls = ERRORS.get(job.state, JobFailed)
    if last.get("kind") == "expired":
        # It was too late, and its task wants such jobs to be dead letters.
        cls = JobExpired
    elif job.state is State.DISCARDED and last.get("kind") == "failed":
        # It was a dead letter, which somebody has discarded.
        return []
    why = kept.get("error") or (job.error or {}).get("error") or f"it is {job.state}"
    return [error_of(class_path(cls), f"{cls.__name__}: {why}\n")]


def _task_of(job: Job[Any], alias: str) -> DelayqTask:
    if job.task is None:
        raise TaskResultDoesNotExist(
            f"job {job.id} is {job.state}, and its call is no longer stored"
        )
    known = registry.find_task(job.task)
    if not isinstance(known, BackendTask):
        why = (
            "is not registered here: import its module, or add it to DELAYQ['MODULES']"
            if known is None
            else "is not a Django task: use django_delayq.get_job(id)"
        )
        raise TaskResultDoesNotExist(
            f"job {job.id} belongs to task {show(job.task)}, which {why}"
        )
    return task_of(known, job, alias)


def task_of(definition: BackendTask, job: Job[Any], alias: str) -> DelayqTask:
    """Return the task of a call with what the server knows of its options, and when it is due."""
    carried = job.options or {}
    options = definition.base
    with suppress(DelayqError):
        # Another version may have written options that this one does not know.
        options = options.with_carried(carried)
    # Not by `using`, which refuses what TASKS refuses now: the job is there all the same.
    return unchecked(
        definition.task,
        priority=job.priority,
        queue_name=conf.get_settings().whole(job.queue),
        backend=alias,
        run_after=_run_after(job),
        **{name: getattr(options, name) for name in carried if name in OPTIONS},
    )


def _run_after(job: Job[Any]) -> datetime | None:
    """Return when a job is due that was deferred and still waits; None: it is not, or not any more."""
    if job.state is not State.SCHEDULED or job.start_time is None:
        return None
    if job.enqueued_at and job.start_time - job.enqueued_at < AT_ONCE:
        return None
    return job.start_time


def _moment(ms: Any) -> datetime | None:
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        # Anybody who can write to the server may have written it.
        return None
