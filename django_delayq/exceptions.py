"""The errors of this package, one class for each decision that a caller can take.

DelayqError
├── EncodeError        a value that the format cannot hold
├── DecodeError        bytes that cannot be read; keeps .data
│   └── NotSigned      it looks like a job that this project did not sign; keeps .missing
├── NewerFormat        a later version writes to the queue; update this one
├── InvalidDelay       a delay that is negative, naive, or not a time
├── InvalidTask        something that cannot be a task, an option, or a job to send
├── InvalidArguments   a call that does not fit its task's signature
├── TaskNotFound       a name without a registered task in this process
├── QueueNotFound      a name that is not in DELAYQ["QUEUES"]
├── InvalidSearch      something that find_jobs cannot look for
├── InvalidSchedule    a cron expression, an interval, or a schedule that cannot be
├── ScheduleNotFound   a name that no schedule has
├── JobNotFound        an id that no job has (any more)
├── JobFailed          the job that wait() waits for ended without a result
│   ├── JobCancelled   somebody cancelled it
│   └── JobExpired     it was too late to matter, and was not started
├── InvalidResult      what a function of Django's @task returned cannot be kept
├── MaybeScheduled     an error on the way; .scheduled are stored, .unsent are not, .unknown may be
├── NotDurable         stored or changed, but not on as many replicas or disks as asked; .jobs
├── QueueFull          the queue holds MAX_JOBS jobs; .unsent can be sent again when there is room
├── MaybeChanged       an error while found jobs were changed; .won and .lost are counts, .unknown may be changed
├── PartialAnswer      some queues did not answer; .found is what the others said, .missing names them
├── LeaseLost          the job may be running elsewhere; stop writing
├── TimeLimitExceeded  a task ran longer than its time limit
├── EmbeddedServerError the embedded Valkey did not start
└── InvalidSettings    also django.core.exceptions.ImproperlyConfigured

What a task raises to decide about its job is no error: Retry, Snooze and Cancel are in
jobs/decisions.py, and derive from BaseException.

Errors of the server and of the connection (redis.exceptions.*) pass through untouched, unless
one of the classes above adds a decision to them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured


class DelayqError(Exception):
    """Base of every error that this package raises by itself.

    Example::

        try:
            schedule(remind, 3600, order.pk)
        except DelayqError:
            logger.exception("order %s gets no reminder", order.pk)
    """


class EncodeError(DelayqError, ValueError):
    """Raised when a value cannot be written in the format asked for.

    Example::

        schedule(remind, 60, "x" * 2_000_000)  # raises EncodeError: larger than MAX_PAYLOAD_BYTES
    """


class DecodeError(DelayqError, ValueError):
    """Raised when bytes cannot be read; ``data`` keeps them, ``offset`` says where reading stopped.

    Example::

        try:
            value = BlockingQueue("payments").poll()
        except DecodeError as error:
            print(error.data[:20], error.offset)
    """

    def __init__(
        self, message: str, data: bytes = b"", offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.data = data
        self.offset = offset


class NotSigned(DecodeError):
    """Raised when a payload looks like a job that this project has not signed.

    ``missing`` names what this process lacks to check it: ``key Ab3d``, ``format 3`` or ``codec other than
    StringCodec``; else it is empty.
    """

    def __init__(self, message: str, *, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


class NewerFormat(DelayqError):
    """Raised when a queue is in a later format, which this version cannot read. It leaves the queue alone."""


class InvalidDelay(DelayqError, ValueError):
    """Raised when a delay is negative, a naive datetime, or not a time at all.

    Example::

        schedule(remind, -60, order.pk)  # raises InvalidDelay
    """


class InvalidTask(DelayqError, TypeError):
    """Raised when something cannot be a task, an option of one, or a job to send or wait for.

    Example::

        schedule(print, 60)  # raises InvalidTask: it is not decorated
    """


class InvalidArguments(DelayqError, TypeError):
    """Raised when the arguments of a call do not fit the signature of its task.

    Example::

        schedule(remind, 60, order)  # raises InvalidArguments: a model is not JSON
    """


class TaskNotFound(DelayqError, LookupError):
    """Raised when no task has this name; ``task`` is the name, or empty if a queue has no handler.

    Example::

        schedule("shop.tasks.misspelt", 60)  # raises TaskNotFound
    """

    def __init__(self, message: str, task: str | None = None) -> None:
        super().__init__(message)
        self.task = task


class QueueNotFound(DelayqError, LookupError):
    """Raised when a queue is not configured in ``DELAYQ["QUEUES"]``.

    Example::

        remind.using(queue="misspelt").schedule(60)  # raises QueueNotFound
    """


class InvalidSearch(DelayqError, ValueError):
    """Raised when `find_jobs` is asked for something that cannot be looked for.

    Example::

        find_jobs(state="succeeded")  # raises InvalidSearch: ended jobs are not kept
    """


class InvalidSchedule(DelayqError, ValueError):
    """Raised when a cron expression, an interval or a periodic schedule cannot be used as it stands.

    Example::

        cron("61 * * * *")  # raises InvalidSchedule
    """


class ScheduleNotFound(DelayqError, LookupError):
    """Raised when no periodic schedule has this name.

    Example::

        get_schedule("misspelt")  # raises ScheduleNotFound
    """


class JobNotFound(DelayqError, LookupError):
    """Raised when no job has this id, or none has it any more.

    Example::

        try:
            job = get_job(order.job_id)
        except JobNotFound:
            job = None  # it ended a while ago
    """


class JobFailed(DelayqError):
    """Raised when the job that ``wait()`` waits for ended without a result.

    Example::

        try:
            total = job.wait(timeout=10)
        except JobFailed as error:
            print(error)
    """


class JobCancelled(JobFailed):
    """Raised when the job that ``wait()`` waits for was cancelled.

    Example::

        try:
            total = job.wait(timeout=10)
        except JobCancelled as error:
            print("cancelled:", error)
    """


class JobExpired(JobFailed):
    """Raised when the job that ``wait()`` waits for was too late to matter, and so was not started.

    Example::

        try:
            total = job.wait(timeout=10)
        except JobExpired:
            print("too late")
    """


class InvalidResult(DelayqError, TypeError):
    """Raised when a function of Django's ``@task`` returns what is not JSON, or is too large to be kept.

    Example::

        @task
        def report():
            return {1, 2}  # a set is not JSON: the attempt fails with InvalidResult
    """


class MaybeScheduled(DelayqError):
    """Raised when an error came up while jobs or elements were being stored.

    ``scheduled`` holds the stored jobs, ``unsent`` all others. Sending those again is safe for some seconds, and
    refused later. ``unknown`` holds those of ``unsent`` that may be stored because their reply was lost; the rest are
    not stored. The lists are empty if bare elements were offered.

    Example::

        try:
            schedule_many(jobs)
        except MaybeScheduled as error:
            schedule_many(error.unsent)
    """

    def __init__(
        self,
        message: str,
        unsent: Sequence[Any] = (),
        *,
        scheduled: Sequence[Any] = (),
        unknown: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.unsent = list(unsent)
        self.scheduled = list(scheduled)
        self.unknown = list(unknown)


class NotDurable(DelayqError):
    """Raised when jobs are stored or changed, but too few replicas or disks have that in time: see `Durable`.

    ``jobs`` holds those jobs, ``job`` the first of them. ``wanted`` replicas were asked for, and ``acknowledged`` have
    it; ``is_on_disk`` says whether the primary has it on disk, if that was asked.

    Example::

        try:
            job = charge.using(durable=1).schedule(0, order.pk)
        except NotDurable as error:
            job = error.job  # stored, but a failover may lose it
    """

    def __init__(
        self,
        message: str,
        jobs: Sequence[Any] = (),
        *,
        acknowledged: int = 0,
        wanted: int = 0,
        is_on_disk: bool = False,
    ) -> None:
        super().__init__(message)
        self.jobs = list(jobs)
        self.acknowledged = acknowledged
        self.wanted = wanted
        self.is_on_disk = is_on_disk

    @property
    def job(self) -> Any:
        return self.jobs[0]


class QueueFull(DelayqError):
    """Raised when a queue has no room for new jobs: ``count`` wait or run, and ``limit`` is its ``MAX_JOBS``.

    ``queue`` is its name. ``unsent`` holds the jobs that are not stored; sending them again is safe at any time. Of
    `schedule_many`, ``scheduled`` holds the stored jobs, and ``unknown`` those of ``unsent`` for which the last
    sentence of `MaybeScheduled` holds.

    Example::

        try:
            schedule(remind, 3600, order.pk)
        except QueueFull as error:
            print(error.queue, "holds", error.count, "of", error.limit)
    """

    def __init__(
        self,
        message: str,
        *,
        queue: str = "",
        count: int = 0,
        limit: int = 0,
        unsent: Sequence[Any] = (),
        scheduled: Sequence[Any] = (),
        unknown: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.count = count
        self.limit = limit
        self.unsent = list(unsent)
        self.scheduled = list(scheduled)
        self.unknown = list(unknown)


class MaybeChanged(DelayqError):
    """Raised when an error came up while the jobs that `find_jobs` finds were being changed.

    ``won`` is how many jobs are changed. ``lost`` says how many were left alone, by the `State` they were left in.
    ``unknown`` holds the jobs, some hundred of a node at most, that may be changed or not because their reply was lost.
    All other jobs are as they were. ``missing`` has the error of each queue that was not worked through, by its name; it
    is empty if the call broke off. The same call again goes on.

    Example::

        try:
            find_jobs(queue="mail").cancel()
        except MaybeChanged as error:
            print(error.won, "cancelled;", len(error.unknown), "unknown")
    """

    def __init__(
        self,
        message: str,
        *,
        won: int = 0,
        lost: Mapping[Any, int] | None = None,
        unknown: Sequence[Any] = (),
        missing: Mapping[str, Exception] | None = None,
    ) -> None:
        super().__init__(message)
        self.won = won
        self.lost = dict(lost or {})
        self.unknown = list(unknown)
        self.missing = dict(missing or {})


class PartialAnswer(DelayqError):
    """Raised when several queues were asked, and some of them did not answer.

    ``found`` is what the function would have returned, from the other queues; None after a loop over `find_jobs`, which
    has yielded their jobs. ``missing`` has the error of each queue that did not answer, by its name.

    Example::

        try:
            found = paused()
        except PartialAnswer as error:
            found = error.found
            print("no answer from", *error.missing)
    """

    def __init__(
        self,
        message: str,
        *,
        found: Any = None,
        missing: Mapping[str, Exception] | None = None,
    ) -> None:
        super().__init__(message)
        self.found = found
        self.missing = dict(missing or {})


class LeaseLost(DelayqError):
    """Raised by ``current_job().check()`` when the lease is over: the job may be running elsewhere.

    Example::

        current_job().check()  # raises LeaseLost: do not catch it
    """


class TimeLimitExceeded(DelayqError):
    """Raised inside a task that runs longer than its time limit.

    Example::

        @delayed_task(time_limit=30)
        def fetch(url):
            try:
                download(url)
            except TimeLimitExceeded:
                remove_partial_file(url)
                raise
    """


class EmbeddedServerError(DelayqError):
    """Raised when the embedded Valkey cannot be started or reached."""


class InvalidSettings(DelayqError, ImproperlyConfigured):
    """Raised when ``DELAYQ`` cannot be used as it stands.

    Example::

        DELAYQ = {"QUEUES": {"mail": {"MAX_ATEMPTS": 3}}}  # raises InvalidSettings: a misspelt key
    """
