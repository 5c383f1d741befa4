"""Delayed jobs for Django on Redis or Valkey, on Redisson's delayed-queue wire."""

from typing import TYPE_CHECKING

from django_delayq.backoff import Backoff
from django_delayq.core.durability import Durable
from django_delayq.core.states import State
from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    EmbeddedServerError,
    EncodeError,
    InvalidArguments,
    InvalidDelay,
    InvalidResult,
    InvalidSchedule,
    InvalidSearch,
    InvalidSettings,
    InvalidTask,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LeaseLost,
    MaybeChanged,
    MaybeScheduled,
    NewerFormat,
    NotDurable,
    NotSigned,
    OtherShards,
    PartialAnswer,
    QueueFull,
    QueueNotFound,
    ScheduleNotFound,
    TaskNotFound,
    TimeLimitExceeded,
)
from django_delayq.features.batches.api import Batch
from django_delayq.features.ended.api import EndedJob, aended_jobs, ended_jobs
from django_delayq.features.limits.api import (
    LimitInForce,
    aclear_limit,
    alimits,
    aset_limit,
    clear_limit,
    limits,
    set_limit,
)
from django_delayq.features.pauses.api import (
    Pause,
    apause,
    apaused,
    aresume,
    pause,
    paused,
    resume,
)
from django_delayq.features.schedules.api import (
    Schedule,
    aget_schedule,
    aget_schedules,
    astore_schedule,
    get_schedule,
    get_schedules,
    store_schedule,
)
from django_delayq.features.schedules.periodic import periodic
from django_delayq.features.statistics.calls import Figures, Histogram
from django_delayq.jobs.bulk import Changed
from django_delayq.jobs.context import current_job
from django_delayq.jobs.decisions import Cancel, Retry, Snooze
from django_delayq.jobs.decorator import DelayedTask, delayed_task, queue_handler
from django_delayq.jobs.find import FoundJobs, afind_jobs, find_jobs
from django_delayq.jobs.job import Job
from django_delayq.jobs.limit import Limit
from django_delayq.jobs.lookup import aget_job, get_job
from django_delayq.jobs.occurrences import cron, every
from django_delayq.jobs.progress_report import Progress
from django_delayq.jobs.schedule import aschedule, schedule
from django_delayq.jobs.send_many import aschedule_many, schedule_many
from django_delayq.jobs.workers import (
    Worker,
    WorkerJob,
    WorkerState,
    aquiet_worker,
    astop_worker,
    aworkers,
    quiet_worker,
    stop_worker,
    workers,
)
from django_delayq.later import import_later

if TYPE_CHECKING:
    from django_delayq.display.overview_json import overview_data
    from django_delayq.features.statistics.api import (
        Series,
        Span,
        Totals,
        aqueue_statistics,
        astatistics_totals,
        atask_statistics,
        atasks_statistics,
        queue_statistics,
        statistics_totals,
        task_statistics,
        tasks_statistics,
    )
    from django_delayq.queues.blocking_queue import BlockingQueue
    from django_delayq.queues.delayed_queue import DelayedQueue

__version__ = "0.1.0"

__all__ = [
    # tasks and jobs
    "Backoff",
    "Batch",
    "Cancel",
    "Changed",
    "DelayedTask",
    "Durable",
    "EndedJob",
    "FoundJobs",
    "Job",
    "Progress",
    "Retry",
    "Snooze",
    "State",
    "aended_jobs",
    "afind_jobs",
    "aget_job",
    "aschedule",
    "aschedule_many",
    "current_job",
    "delayed_task",
    "ended_jobs",
    "find_jobs",
    "get_job",
    "queue_handler",
    "schedule",
    "schedule_many",
    # pauses
    "Pause",
    "apause",
    "apaused",
    "aresume",
    "pause",
    "paused",
    "resume",
    # periodic schedules
    "Schedule",
    "aget_schedule",
    "aget_schedules",
    "astore_schedule",
    "cron",
    "every",
    "get_schedule",
    "get_schedules",
    "periodic",
    "store_schedule",
    # limits
    "Limit",
    "LimitInForce",
    "aclear_limit",
    "alimits",
    "aset_limit",
    "clear_limit",
    "limits",
    "set_limit",
    # workers and statistics
    "Figures",
    "Histogram",
    "Series",
    "Span",
    "Totals",
    "Worker",
    "WorkerJob",
    "WorkerState",
    "aqueue_statistics",
    "aquiet_worker",
    "astatistics_totals",
    "astop_worker",
    "atask_statistics",
    "atasks_statistics",
    "aworkers",
    "overview_data",
    "queue_statistics",
    "quiet_worker",
    "statistics_totals",
    "stop_worker",
    "task_statistics",
    "tasks_statistics",
    "workers",
    # Redisson's objects
    "BlockingQueue",
    "DelayedQueue",
    # errors
    "DecodeError",
    "DelayqError",
    "EmbeddedServerError",
    "EncodeError",
    "InvalidArguments",
    "InvalidDelay",
    "InvalidResult",
    "InvalidSchedule",
    "InvalidSearch",
    "InvalidSettings",
    "InvalidTask",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "LeaseLost",
    "MaybeChanged",
    "MaybeScheduled",
    "NewerFormat",
    "NotDurable",
    "OtherShards",
    "NotSigned",
    "PartialAnswer",
    "QueueFull",
    "QueueNotFound",
    "ScheduleNotFound",
    "TaskNotFound",
    "TimeLimitExceeded",
]

_LATER = {
    "django_delayq.features.statistics.api": (
        "Series",
        "Span",
        "Totals",
        "aqueue_statistics",
        "astatistics_totals",
        "atask_statistics",
        "atasks_statistics",
        "queue_statistics",
        "statistics_totals",
        "task_statistics",
        "tasks_statistics",
    ),
    "django_delayq.queues.blocking_queue": ("BlockingQueue",),
    "django_delayq.queues.delayed_queue": ("DelayedQueue",),
    "django_delayq.display.overview_json": ("overview_data",),
}
__getattr__ = import_later(
    __name__, {name: module for module, names in _LATER.items() for name in names}
)
