"""What became of jobs that were sent: what a reply says of a job, and what an error means for it."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq import conf
from django_delayq.clock import boottime_ms
from django_delayq.core import bounds
from django_delayq.core.durability import Wait
from django_delayq.core.states import State
from django_delayq.core.store import Scheduled
from django_delayq.exceptions import QueueFull
from django_delayq.faults import describe_fault
from django_delayq.jobs.draft import Draft
from django_delayq.jobs.job import Job
from django_delayq.transport.errors import may_have_run

#: What to do about a full queue.
ADVICE = "Pass error.unsent to {} once workers have made room, start more workers, or raise MAX_JOBS"
#: What to do about a job that may be stored: if its caller has no handle, and if it has one.
PREPARE = (
    " To be able to repeat it safely, make the job first: job = task.prepare(delay, ...), then"
    f" schedule(job), and again within {bounds.REPEAT_MS // 1000} s."
)
AGAIN = f" To repeat it safely, pass the job to schedule_many within {bounds.REPEAT_MS // 1000} s."


def take(job: Job[Any], scheduled: Scheduled) -> None:
    """Take in what became of a job.

    Raises:
        QueueFull: it was not stored.
    """
    if scheduled.beyond is None and not scheduled.holder and job.created:
        job.start_time_ms, job.state = scheduled.start_time_ms, State.SCHEDULED
        return
    if scheduled.beyond is State.TAKEN and job.draft.extras.duplicates is not None:
        # This was a repeat: the first time, the call changed the job that held its unique key.
        job.created, job.replaced = False, True
        return
    if not job.created and not scheduled.holder:
        # The job that held its unique key has ended, and this job was sent again: now the key is its own.
        job.token, job.created, job.replaced = job.draft.new.token, True, False
    if scheduled.beyond is not None:
        job.state = scheduled.beyond
        if job.state is State.UNCOMMITTED:
            # Not even before, if this was a repeat. So it can be sent again, however late.
            job.draft.sent_ms = None
            raise queue_full(job.queue, scheduled.count, [job])
        # This was a repeat: the job was stored the first time, and has begun or ended since.
        return
    job.start_time_ms, job.state = scheduled.start_time_ms, State.SCHEDULED
    if scheduled.holder:
        # Another job holds the key; the reply does not say when that job is due.
        job.draft.asked_ms = scheduled.start_time_ms
        job.token, job.created, job.start_time_ms = scheduled.holder, False, None


def queue_full(
    queue: str, count: int, refused: list[Job[Any]], *, coming: int = 0
) -> QueueFull:
    """Return the error. ``coming`` is how many other jobs a commit will store."""
    settings = conf.get_settings()
    found, name = settings.find(queue), settings.whole(queue)
    limit = (found.max_jobs if found else None) or 0
    whole = settings.sharded.get(name)
    share = "" if whole is None else f", of which a shard has {limit:,}"
    total = limit if whole is None else whole.max_jobs or 0
    more = "another job" if len(refused) == 1 else f"{len(refused):,} more jobs"
    others = f", {coming:,} come with the commit" if coming else ""
    return QueueFull(
        f"queue {queue!r} has no room for {more}: it holds {count:,} that wait or run{others}, and"
        f" DELAYQ['QUEUES'][{name!r}]['MAX_JOBS'] is {total:,}{share}. {ADVICE.format(again(refused[0]))}",
        queue=queue,
        count=count + coming,
        limit=limit,
        unsent=refused,
    )


def again(job: Job[Any]) -> str:
    """Return what sends a job again."""
    return "schedule() of the same Batch" if job.draft.extras.batch else "schedule_many"


def explain(error: RedisError, jobs: Sequence[Job[Any]], advice: str = PREPARE) -> None:
    """Add a note to a server's error: what it means for these jobs, and what to do.

    ``advice`` is for jobs that may be stored.
    """
    names = ", ".join(job.id for job in jobs[:3]) + (
        f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
    )
    if not names:
        return
    if may_have_run(error):
        became = f"no reply to scheduling {names}, which may be stored or not."
        if not isinstance(error, RedisConnectionError | RedisTimeoutError):
            became = f"{names} may be stored or not: the server stopped halfway."
    elif any(job.was_sent for job in jobs):
        # This error belongs to a repeat, and says nothing about the first try.
        became = f"{names} may be stored or not: no reply came when it was sent before."
    else:
        became, advice = f"{names}: not stored.", ""
    fault = describe_fault(error)
    error.add_note(f"django-delayq: {became} {fault.what} {fault.hint}{advice}")


def forget_sending(
    drafts: Sequence[Draft], before: Sequence[float | None], error: Exception
) -> None:
    if not may_have_run(error):
        for draft, sent_ms in zip(drafts, before, strict=True):
            draft.sent_ms = sent_ms


def is_too_late(sent_ms: float) -> bool:
    """Whether sending a job again could run it twice, as the server may have forgotten that it ended."""
    return boottime_ms() - sent_ms > bounds.REPEAT_MS


def waiting_for(job: Job[Any]) -> Wait | None:
    return Wait.of(job.draft.extras.durable, conf.keys_of(job.queue))


def check_durable(waiting: Wait, jobs: Sequence[Job[Any]]) -> None:
    """Raise the error if jobs were stored and are not durable in time.

    Raises:
        NotDurable: too few replicas or disks have them.
    """
    waiting.check(
        jobs,
        jobs[0].id if jobs else "",
        "stored",
        "They still run, unless the primary fails before enough copies exist. To wait again, pass error.jobs to"
        f" schedule_many within {bounds.REPEAT_MS // 1000} s: no job is stored twice",
    )
