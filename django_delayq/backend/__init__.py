"""A backend for Django's tasks: ``TASKS = {"default": {"BACKEND": "django_delayq.backend.DelayqBackend"}}``.

Functions of Django's ``@task`` become jobs like those of ``@delayed_task``, run by the same workers.
docs/howto/django-tasks.md.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from time import time_ns
from typing import Any

from django.apps import apps
from django.core import checks
from django.utils import timezone

from django_delayq import conf
from django_delayq.backend.backend_checks import check_params, find_problems
from django_delayq.backend.backend_options import BackendOptions
from django_delayq.backend.django_task import (
    DelayqTask,
    Plan,
    check_path,
    definition_of,
    sensitive,
    set_plan,
)
from django_delayq.backend.results import (
    change,
    new_result,
    normalized,
    result_of,
    task_of,
)
from django_delayq.backend.running import asend, hears_enqueued, wrapped
from django_delayq.backend.upstream import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
)
from django_delayq.exceptions import (
    DelayqError,
    InvalidDelay,
    InvalidResult,
    InvalidSettings,
    JobNotFound,
    NotDurable,
    QueueNotFound,
)
from django_delayq.exceptions import InvalidTask as NoTask
from django_delayq.jobs.commit import Hook
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import aget_job, get_job
from django_delayq.jobs.options import Commit, TaskOptions
from django_delayq.jobs.prepare import prepare
from django_delayq.jobs.send import asend as asend_job
from django_delayq.jobs.send import send as send_job
from django_delayq.redaction import show
from django_delayq.testing import mode
from django_delayq.wire.delay import Delay, parse_delay

__all__ = ["DelayqBackend", "DelayqTask", "sensitive"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Cached: each thread, and each event loop's context, has a backend of its own.
@lru_cache(maxsize=64)
def _defaults(options: BackendOptions) -> TaskOptions:
    return TaskOptions(
        no_retry_on=(InvalidResult,),
        on_commit=options.on_commit,
        keep_result=options.result_ttl,
        max_attempts=options.max_attempts,
    )


class DelayqBackend(BaseTaskBackend):
    """Django's tasks as delayed jobs.

    Example::

        TASKS = {"default": {"BACKEND": "django_delayq.backend.DelayqBackend"}}
    """

    task_class = DelayqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def is_of_all_threads(self) -> bool:
        """Whether any thread may use it: Django makes one for each. Objects that are derived from it may keep state."""
        return type(self) is DelayqBackend

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        # Django makes backends while it imports tasks: nothing may be asked here, and nothing connected.
        check_params(alias, params)
        super().__init__(alias, params)  # type: ignore[arg-type]
        self._defaults = _defaults(BackendOptions.of(self.options))
        self._is_installed = False

    def validate_task(self, task: AnyTask) -> None:
        """Make sure that a task can be enqueued, and register its function.

        Raises:
            InvalidTask: of Django.
            InvalidSettings: the app is not installed.
        """
        self._check_installed()
        if not isinstance(task, DelayqTask):
            raise InvalidTask(
                f"task {task.module_path!r} belongs to another backend, as its class is {type(task).__qualname__}:"
                f" decorate its function with @task(backend={self.alias!r}); using(backend=…) sends a call to"
                " another backend"
            )
        when: Any = task.run_after
        if when is not None and not isinstance(when, datetime | timedelta):
            raise InvalidTask(
                f"run_after={show(when)} of task {task.module_path!r}: give an aware datetime, or a timedelta"
            )
        if isinstance(task.run_after, timedelta):
            # What Django says about moments does not apply.
            super().validate_task(_Undeferred(task))  # type: ignore[arg-type]
        else:
            super().validate_task(task)
        delay = _delay_of(task)
        try:
            parse_delay(delay)
        except InvalidDelay as error:
            raise InvalidTask(
                f"run_after of task {task.module_path!r}: {error}"
            ) from error
        if task.priority:
            self._check_priority(task)
        definition = definition_of(task, type(self), self._defaults, wrapped)
        set_plan(task, Plan(self, definition, delay))

    def _check_installed(self) -> None:
        # Without the app, `manage.py check` runs our checks only where something has imported Django's tasks before. So
        # tasks that are imported later, by a URLconf for one, raise here. While Django sets up, E020 is still to come.
        if self._is_installed or not apps.ready:
            return
        # Django has imported its module if the app is installed. The registry may lack it in a test with `available_apps`.
        if "django_delayq.apps" not in sys.modules:
            raise InvalidSettings(
                f"TASKS[{self.alias!r}] uses the backend of django_delayq, which is not in INSTALLED_APPS: add"
                " 'django_delayq' there"
            )
        self._is_installed = True

    def _check_priority(self, task: DelayqTask) -> None:
        try:
            queue = conf.get_settings().queues.get(task.queue_name)
        except DelayqError:
            # `manage.py check` says what is wrong with DELAYQ, and enqueue() raises it.
            return
        if queue is not None and queue.is_shared:
            raise InvalidTask(
                f"priority={task.priority} of task {task.module_path!r}: queue {queue.name!r} is shared with"
                " Redisson, which has no priorities; use a queue without REDISSON, or priority 0"
            )

    def enqueue(  # type: ignore[override]
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """Schedule a call of a task.

        Raises:
            InvalidTask: of Django: the task cannot be enqueued.
            InvalidSettings: the app is not installed.
            TypeError, ValueError: an argument is not JSON, or does not fit the function.
            redis.exceptions.RedisError: the server's or connection's own error, with a note on what became of the job.
            NotDurable: the job is stored, but too few replicas or disks have it in time.
        """
        plan = self._plan_of(task)
        job, result = self._prepare(task, plan, args, kwargs)
        at_once = mode.runs_at_once() if plan.definition.commit is None else None
        if at_once is None:
            return self._send(plan, job, result)
        # As Django's ImmediateBackend does it: the signal comes before the task starts.
        with at_once.afterwards():
            result = self._send(plan, job, result)
        result.refresh()
        return result

    def _send(self, plan: Plan, job: Job[Any], result: AnyResult) -> AnyResult:
        commit = plan.definition.commit
        try:
            send_job(job)
        except NotDurable:
            # It is stored, so whoever listens hears of it.
            if job.created and hears_enqueued():
                _note_sent(result, plan, job)
                task_enqueued.send_robust(type(self), task_result=result)
            raise
        if not job.created:
            return result_of(job, self.alias)
        if commit is not None and job.awaits_commit:
            self._tell_of_commit(result, plan, job, commit)
            return result
        _note_sent(result, plan, job)
        if hears_enqueued():
            task_enqueued.send_robust(type(self), task_result=result)
        return result

    async def aenqueue(  # type: ignore[override]
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """`enqueue` on the event loop."""
        plan = self._plan_of(task)
        if plan.definition.commit is not None:
            return await super().aenqueue(task, args, kwargs)  # type: ignore[arg-type]
        job, result = self._prepare(task, plan, args, kwargs)
        at_once = mode.runs_at_once()
        if at_once is None:
            return await self._asend(plan, job, result)
        async with at_once.aafterwards():
            result = await self._asend(plan, job, result)
        await result.arefresh()
        return result

    async def _asend(self, plan: Plan, job: Job[Any], result: AnyResult) -> AnyResult:
        try:
            await asend_job(job)
        except NotDurable:
            if job.created:
                _note_sent(result, plan, job)
                await asend(task_enqueued, type(self), result)
            raise
        if not job.created:
            return result_of(job, self.alias)
        _note_sent(result, plan, job)
        await asend(task_enqueued, type(self), result)
        return result

    def _prepare(
        self,
        task: AnyTask,
        plan: Plan,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[Job[Any], AnyResult]:
        if not plan.is_checked:
            self._check_installed()
            check_path(task)
            plan.is_checked = True
        args, kwargs = normalized(args, kwargs)
        at_ms = time_ns() // 1_000_000
        try:
            job = prepare(plan.definition, plan.delay, args, kwargs, at_ms)
        except (QueueNotFound, NoTask, InvalidDelay) as error:
            raise InvalidTask(f"task {task.module_path!r}: {error}") from error
        job.take_headers({}, at_ms)
        # By position: this takes half the time of the other ways to write it.
        enqueued_at = _EPOCH + timedelta(0, 0, 0, at_ms)
        result = new_result(task, job.id, self.alias, args, kwargs, enqueued_at)
        return job, result

    def _plan_of(self, task: AnyTask) -> Plan:
        """Return the plan of a task, or a new one: TASKS may have changed, in a test for one."""
        plan: Plan | None = getattr(task, "plan", None)
        if plan is None or not plan.counts or plan.alias != self.alias:
            self.validate_task(task)
            plan = task.plan  # type: ignore[attr-defined]
        assert plan is not None
        return plan

    def _tell_of_commit(
        self, result: AnyResult, plan: Plan, job: Job[Any], commit: Commit
    ) -> None:
        def tell() -> None:
            # If it could not be sent, that has been raised. A row of the outbox is sent by whoever finds it.
            if not job.is_unsent:
                _note_sent(result, plan, job)
                task_enqueued.send_robust(type(self), task_result=result)

        _Teller([job], tell).join(commit.using)

    def get_result(self, result_id: str) -> AnyResult:
        """Return the result with this id.

        Raises:
            TaskResultDoesNotExist: there is no such result, it is no longer kept, or the job does not belong to a Django task.
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
        """Check this backend's part of ``TASKS``."""
        return list(
            find_problems(self.alias, self.queues, self.options, apps.get_app_configs())
        )


class _Teller(Hook):
    """Says with the commit that a task is enqueued. It asks no server, so it is never given up."""

    def give_up(self, why: str) -> None:
        self.send()


def _note_sent(result: AnyResult, plan: Plan, job: Job[Any]) -> None:
    """Give a result the task as `get_result` finds it: with its moment to the millisecond, for one."""
    definition, task = plan.definition, result.task
    # Most calls change nothing of the decorated task, whose own copy the server would give back. A row of the outbox
    # has no moment yet.
    if job.start_time_ms is not None and (
        task is not definition.task or task.run_after is not None
    ):
        change(result, task=task_of(definition, job, result.backend))


class _Undeferred:
    """A task without its ``run_after``, for checks that know only times."""

    run_after = None

    def __init__(self, task: AnyTask) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _delay_of(task: DelayqTask) -> Delay:
    when = task.run_after
    if when is None:
        return 0
    if isinstance(when, datetime) and timezone.is_naive(when):
        # Without USE_TZ, Django's moments are those of TIME_ZONE.
        when = timezone.make_aware(when, timezone.get_default_timezone())
    return when


def _missing(error: Exception) -> TaskResultDoesNotExist:
    return TaskResultDoesNotExist(str(error))
