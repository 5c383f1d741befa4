"""A backend for Django's tasks: ``TASKS = {"default": {"BACKEND": "django_delayq.backend.DelayqBackend"}}``.

Functions of Django's ``@task`` become jobs like those of ``@delayed_task``, run by the same workers.
docs/howto/django-tasks.md.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from django.apps import apps
from django.core import checks
from django.db import transaction
from django.utils import timezone

from django_delayq import conf
from django_delayq.backend.definition import (
    BackendTask,
    DelayqTask,
    Plan,
    check_path,
    plan_of,
    set_plan,
)
from django_delayq.backend.problems import find_problems, is_good
from django_delayq.backend.results import change, new_result, result_of
from django_delayq.backend.running import asend as asend_signal
from django_delayq.backend.running import send as send_signal
from django_delayq.backend.running import wrapped
from django_delayq.backend.upstream import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
)
from django_delayq.clock import epoch_ms
from django_delayq.exceptions import (
    DelayqError,
    InvalidDelay,
    InvalidResult,
    JobNotFound,
    QueueNotFound,
)
from django_delayq.exceptions import InvalidTask as NoTask
from django_delayq.jobs.job import Job, aget_job, get_job
from django_delayq.jobs.options import Seconds, TaskOptions
from django_delayq.jobs.preparing import prepare
from django_delayq.jobs.sending import asend, send
from django_delayq.wire.delay import parse_delay

__all__ = ["DelayqBackend", "DelayqTask"]

#: How long the results of tasks are kept, unless OPTIONS say otherwise: a day.
RESULT_TTL_S = 86_400


# Cached: each thread, and each event loop's context, has a backend of its own.
@lru_cache(maxsize=64)
def _defaults(
    on_commit: bool | str | None, result_ttl: Seconds, max_attempts: int | None
) -> TaskOptions:
    return TaskOptions(
        no_retry_on=(InvalidResult,),
        on_commit=on_commit,
        keep_result=result_ttl,
        max_attempts=max_attempts,
    )


class DelayqBackend(BaseTaskBackend):
    """Django's tasks as delayed jobs."""

    task_class = DelayqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        # Django makes backends while it imports tasks: nothing may be asked here, and nothing connected.
        super().__init__(alias, params)  # type: ignore[arg-type]
        options = self.options
        found = {
            name: options.get(name, default) if is_good(name, options) else default
            for name, default in (
                ("ON_COMMIT", None),
                ("RESULT_TTL", RESULT_TTL_S),
                ("MAX_ATTEMPTS", None),
            )
        }
        self._defaults = _defaults(*found.values())

    def validate_task(self, task: AnyTask) -> None:
        """Make sure that a task can be enqueued, and register its function.

        Raises:
            InvalidTask: of Django.
        """
        if not isinstance(task, DelayqTask):
            raise InvalidTask(
                f"task {task.module_path!r} was made for another backend, {type(task).__qualname__} is its class: decorate its"
                f" function with @task(backend={self.alias!r}), which can go to other backends with using(backend=…)"
            )
        if isinstance(task.run_after, timedelta):
            # What Django says about moments does not apply.
            super().validate_task(_Undeferred(task))  # type: ignore[arg-type]
        else:
            super().validate_task(task)
        try:
            if task.run_after is not None:
                parse_delay(_delay_of(task))
        except InvalidDelay as error:
            raise InvalidTask(
                f"run_after of task {task.module_path!r}: {error}"
            ) from error
        if task.priority:
            self._check_priority(task)
        set_plan(
            task, plan_of(task, self._defaults, partial(wrapped, sender=type(self)))
        )

    def _check_priority(self, task: DelayqTask) -> None:
        try:
            queue = conf.get_settings().queues.get(task.queue_name)
        except DelayqError:
            # `manage.py check` says what is wrong with DELAYQ, and enqueue() raises it.
            return
        if queue is not None and queue.is_shared:
            raise InvalidTask(
                f"priority={task.priority} of task {task.module_path!r}: queue {queue.name!r} is shared with Redisson, whose"
                " transfer knows no priorities; use a queue without REDISSON, or priority 0"
            )

    def enqueue(  # type: ignore[override]
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """Schedule a call of a task.

        Raises:
            InvalidTask: of Django: the task cannot be enqueued.
            TypeError, ValueError: an argument is not JSON, or does not fit the function.
            redis.exceptions.RedisError: the server's or connection's own error, with a note on what became of the job.
        """
        result, job, definition = self._prepare(task, args, kwargs)
        on_commit = definition.on_commit
        send(job, on_commit)
        if not job.created:
            return result_of(job, self.alias)
        if on_commit:
            self._tell_of_commit(result, job, on_commit)
        else:
            send_signal(task_enqueued, type(self), result)
        return result

    async def aenqueue(  # type: ignore[override]
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """`enqueue` on the event loop."""
        result, job, definition = self._prepare(task, args, kwargs)
        on_commit = definition.on_commit
        if on_commit:
            return await super().aenqueue(task, args, kwargs)  # type: ignore[arg-type]
        await asend(job)
        if not job.created:
            return result_of(job, self.alias)
        await asend_signal(task_enqueued, type(self), result)
        return result

    def _prepare(
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[AnyResult, Job[Any], BackendTask]:
        definition = self._definition_of(task)
        assert isinstance(task, DelayqTask)
        at_ms = epoch_ms()
        result = new_result(
            task,
            "",
            self.alias,
            args,
            kwargs,
            datetime.fromtimestamp(at_ms / 1000, UTC),
        )
        try:
            job = prepare(
                definition, _delay_of(task), result.args, result.kwargs, at_ms
            )
        except (QueueNotFound, NoTask, InvalidDelay) as error:
            raise InvalidTask(f"task {definition.name!r}: {error}") from error
        change(result, id=job.id)
        return result, job, definition

    def _definition_of(self, task: AnyTask) -> BackendTask:
        plan: Plan | None = getattr(task, "plan", None)
        # TASKS may have changed since, in a test for one.
        if (
            plan is None
            or plan.defaults is not self._defaults
            or (self.queues and task.queue_name not in self.queues)
        ):
            self.validate_task(task)
            plan = task.plan  # type: ignore[attr-defined]
            assert plan is not None
        check_path(task)
        return plan.definition

    def _tell_of_commit(
        self, result: AnyResult, job: Job[Any], on_commit: bool | str
    ) -> None:
        def tell() -> None:
            # If it could not be sent, that has been raised.
            if not job.is_unsent:
                send_signal(task_enqueued, type(self), result)

        using = None if on_commit is True else str(on_commit)
        transaction.on_commit(tell, using=using)

    def get_result(self, result_id: str) -> AnyResult:
        """Return what is known of a task by the id of its result.

        Raises:
            TaskResultDoesNotExist: it is not there, or is no longer kept, or is none of a task of Django's.
        """
        try:
            return result_of(get_job(result_id), self.alias)
        except (JobNotFound, QueueNotFound) as error:
            raise _missing(error) from error

    async def aget_result(self, result_id: str) -> AnyResult:
        """`get_result` on the event loop."""
        try:
            return result_of(await aget_job(result_id), self.alias)
        except (JobNotFound, QueueNotFound) as error:
            raise _missing(error) from error

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Report what is wrong with this backend's part of ``TASKS``."""
        return list(
            find_problems(self.alias, self.queues, self.options, apps.get_app_configs())
        )


class _Undeferred:
    """A task without its ``run_after``, for checks that know only moments."""

    run_after = None

    def __init__(self, task: AnyTask) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _delay_of(task: DelayqTask) -> int | datetime | timedelta:
    when = task.run_after
    if when is None:
        return 0
    if isinstance(when, datetime) and timezone.is_naive(when):
        # Without USE_TZ, Django's moments are those of TIME_ZONE.
        return timezone.make_aware(when, timezone.get_default_timezone())
    return when


def _missing(error: Exception) -> TaskResultDoesNotExist:
    return TaskResultDoesNotExist(str(error))
