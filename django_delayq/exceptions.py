"""The errors of this package, one class for each decision that a caller can take.

DelayqError
├── EncodeError        a value that the format cannot hold
├── DecodeError        bytes that cannot be read; keeps .data
│   └── NotSigned      it looks like a job that this project did not sign; keeps .missing
├── NewerFormat        a later version writes to the queue; update this one
├── InvalidDelay       a delay that is negative, naive, or not a time
├── InvalidTask        a function that cannot be a task, or an option or job that does not fit
├── InvalidArguments   a call that does not fit its task's signature
├── TaskNotFound       a name without a registered task in this process
├── QueueNotFound      a name that is not in DELAYQ["QUEUES"]
├── InvalidSearch      something that find_jobs cannot search for
├── InvalidSchedule    a cron expression, an interval, or a schedule that is not valid
├── ScheduleNotFound   a name that no schedule has
├── JobNotFound        an id that no job has, or no longer has
├── JobFailed          the job that wait() waits for ended without a result
│   ├── JobCancelled   somebody cancelled it
│   └── JobExpired     it expired before it started
├── InvalidResult      a function of Django's @task returned a value that cannot be stored
├── MaybeScheduled     an error interrupted the call; .scheduled are stored, .unsent are not, .unknown may be
├── NotDurable         stored or changed, but not on as many replicas or disks as requested; .jobs
├── QueueFull          the queue holds MAX_JOBS jobs; .unsent can be sent again when there is room
├── MaybeChanged       an error interrupted a change of found jobs; .won and .lost are counts, .unknown may be changed
├── PartialAnswer      some queues did not answer; .found is the result of the others, .missing names them
├── LeaseLost          the job may be running elsewhere; stop writing
├── TimeLimitExceeded  a task ran longer than its time limit
├── InvalidSettings    also django.core.exceptions.ImproperlyConfigured
│   └── OtherShards    the queue was created with another number of SHARDS; .theirs and .ours
└── EmbeddedServerError the embedded Valkey did not start

Retry, Snooze and Cancel, which a task raises to decide about its job, are not errors: they are in
jobs/decisions.py, and derive from BaseException.

Errors of the server and of the connection (redis.exceptions.*) pass through unchanged, unless
one of the classes above adds a decision to them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured


class DelayqError(Exception):
    """Base class of the errors of this package.

    Example::

        try:
            schedule(remind, 3600, order.pk)
        except DelayqError:
            logger.exception("order %s gets no reminder", order.pk)
    """


class EncodeError(DelayqError, ValueError):
    """Raised when a value cannot be written in the format of its queue or codec.

    Example::

        schedule(remind, 60, "x" * 2_000_000)  # raises EncodeError: larger than MAX_PAYLOAD_BYTES
    """


class DecodeError(DelayqError, ValueError):
    """Raised when bytes cannot be read: ``data`` has them, and ``offset`` is where reading stopped.

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
    """Raised when a payload looks like a job, but this process cannot verify its signature.

    ``missing`` names what the process needs for that: ``key Ab3d``, ``format 3`` or ``codec other than StringCodec``.
    It is empty if the signature is wrong.
    """

    def __init__(self, message: str, *, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


class NewerFormat(DelayqError):
    """Raised when a queue is in a later format that this version cannot read. The queue is not changed."""


class InvalidDelay(DelayqError, ValueError):
    """Raised when a delay is negative, a naive datetime, or not a time.

    Example::

        schedule(remind, -60, order.pk)  # raises InvalidDelay
    """


class InvalidTask(DelayqError, TypeError):
    """Raised when a function cannot be a task, or an option or a job does not fit the task or call.

    Example::

        schedule(print, 60)  # raises InvalidTask: it is not decorated
    """


class InvalidArguments(DelayqError, TypeError):
    """Raised when the arguments of a call do not fit the signature of its task.

    Example::

        schedule(remind, 60, order)  # raises InvalidArguments: a model is not JSON
    """


class TaskNotFound(DelayqError, LookupError):
    """Raised when no task has this name. ``task`` is the name; it is empty if a queue has no handler.

    Example::

        schedule("shop.tasks.misspelt", 60)  # raises TaskNotFound
    """

    def __init__(self, message: str, task: str | None = None) -> None:
        super().__init__(message)
        self.task = task


class QueueNotFound(DelayqError, LookupError):
    """Raised when a queue is not in ``DELAYQ["QUEUES"]``.

    Example::

        remind.using(queue="misspelt").schedule(60)  # raises QueueNotFound
    """


class InvalidSearch(DelayqError, ValueError):
    """Raised when `find_jobs` cannot search for this.

    Example::

        find_jobs(state="succeeded")  # raises InvalidSearch: ended jobs are not kept
    """


class InvalidSchedule(DelayqError, ValueError):
    """Raised when a cron expression, an interval or a periodic schedule is not valid.

    Example::

        cron("61 * * * *")  # raises InvalidSchedule
    """


class ScheduleNotFound(DelayqError, LookupError):
    """Raised when no periodic schedule has this name.

    Example::

        get_schedule("misspelt")  # raises ScheduleNotFound
    """


class JobNotFound(DelayqError, LookupError):
    """Raised when no job has this id, or the job no longer exists.

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
    """Raised when the job that ``wait()`` waits for expired before it started.

    Example::

        try:
            total = job.wait(timeout=10)
        except JobExpired:
            print("too late")
    """


class InvalidResult(DelayqError, TypeError):
    """Raised when a function of Django's ``@task`` returns a value that is not JSON, or too large.

    Example::

        @task
        def report():
            return {1, 2}  # a set is not JSON: the attempt fails with InvalidResult
    """


class MaybeScheduled(DelayqError):
    """Raised when an error interrupts the storing of jobs or elements.

    ``scheduled`` holds the stored jobs, ``unsent`` all others. Sending these again is safe for some seconds, and
    refused later. ``unknown`` holds the jobs of ``unsent`` that may be stored, because their reply was lost; the rest
    are not stored. For elements of a `DelayedQueue` or `BlockingQueue`, the lists are empty.

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
    """Raised when jobs are stored or changed, but too few replicas or disks have them in time; see `Durable`.

    ``jobs`` holds those jobs, and ``job`` is the first of them. ``wanted`` is the number of replicas that were
    requested, ``acknowledged`` the number that have the jobs. ``is_on_disk`` is whether the primary has them on disk,
    if requested.

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

    ``queue`` is its name. ``unsent`` holds the jobs that are not stored; sending them again is safe at any time. After
    `schedule_many`, ``scheduled`` holds the stored jobs, and ``unknown`` the jobs of ``unsent`` that may be stored, as
    in `MaybeScheduled`.

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
    """Raised when an error interrupts a change of the jobs that `find_jobs` finds.

    ``won`` is the number of changed jobs. ``lost`` is the number of jobs that were left alone, by their `State`.
    ``unknown`` holds the jobs that may be changed, because their reply was lost: at most some hundred for each node.
    All other jobs are unchanged. ``missing`` has the error of each queue that was not finished, by its name; it is
    empty if the whole call stopped. Make the same call again to continue.

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
    """Raised when some of several queues did not answer.

    ``found`` is the result from the other queues; it is None after a loop over `find_jobs`, which has yielded their
    jobs. ``missing`` has the error of each queue that did not answer, by its name.

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
    """Raised by ``current_job().check()`` when the lease has ended: the job may be running elsewhere.

    Example::

        current_job().check()  # raises LeaseLost: do not catch it
    """


class TimeLimitExceeded(DelayqError):
    """Raised in a task that runs longer than its time limit.

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
    """Raised when ``DELAYQ`` is not valid.

    Example::

        DELAYQ = {"QUEUES": {"mail": {"MAX_ATEMPTS": 3}}}  # raises InvalidSettings: a misspelt key
    """


class OtherShards(InvalidSettings):
    """Raised when a queue was created with another number of ``SHARDS`` than the settings have. Nothing was changed.

    Example::

        try:
            schedule(remind, 3600, order.pk)
        except OtherShards as error:
            logger.error("%s has %d shards, not %d", error.queue, error.theirs, error.ours)
    """

    def __init__(self, message: str, *, queue: str, theirs: int, ours: int) -> None:
        super().__init__(message)
        self.queue = queue
        #: The number of shards that the queue has on the server; 0: none.
        self.theirs = theirs
        #: The number that the settings have; 0: none.
        self.ours = ours
