"""Sends prepared jobs to the server: `send`, `schedule_many` and their async versions."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, islice
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from msgspec.structs import astuple, replace
from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq import conf
from django_delayq.calls.call import Call
from django_delayq.calls.command import Command
from django_delayq.calls.errors import (
    LOST,
    mark_unsent,
    may_have_run,
    node_named_by,
    nothing_sent,
)
from django_delayq.calls.neighbours import Neighbours
from django_delayq.calls.running import arun, run
from django_delayq.calls.several import Behind, run_stream
from django_delayq.calls.steps import Steps, aperform, perform
from django_delayq.clients.clients import own_clients
from django_delayq.clock import boottime_ms
from django_delayq.delivery import limits, replacing, storing
from django_delayq.delivery.durability import (
    Told,
    Wait,
    durably,
    fence,
    silence_of,
)
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.looking import counts
from django_delayq.delivery.states import Change, State
from django_delayq.delivery.storing import NewJob, Scheduled, tail_of
from django_delayq.exceptions import (
    DecodeError,
    EncodeError,
    InvalidTask,
    MaybeScheduled,
    OtherShards,
    QueueFull,
)
from django_delayq.faults import describe_fault
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import outbox, sharding
from django_delayq.jobs.commit import Hook, is_awaited, promised
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.duplicates import OnHolder
from django_delayq.jobs.job import NO_EXTRAS, Draft, Job
from django_delayq.jobs.once import alias_within
from django_delayq.jobs.options import Commit
from django_delayq.jobs.telling import Telling, task_of
from django_delayq.redaction import show
from django_delayq.signals import atell, job_scheduled, tell

R = TypeVar("R")
#: Bytes of payload in one call of the schedule script, about.
SCHEDULE_BYTES = 1 << 20
#: So often a call tries to change the job that holds its unique key, if that begins or goes each time.
MOST_MEETINGS = 20
#: What to do about a full queue.
ADVICE = "Pass error.unsent to {} once workers have made room, start more workers, or raise MAX_JOBS"
#: What to do about a job that may be stored: if its caller has no handle, and if it has one.
PREPARE = (
    " To be able to repeat it safely, make the job first: job = task.prepare(delay, ...), then"
    f" schedule(job), and again within {limits.REPEAT_MS // 1000} s."
)
AGAIN = f" To repeat it safely, pass the job to schedule_many within {limits.REPEAT_MS // 1000} s."


# `send` and `asend` are written twice: as steps they would cost `schedule` another 5 % of its processor time.


def send(job: Job[R]) -> Job[R]:
    """Send a prepared job, now or with the commit of the transaction."""
    commit = job.draft.commit
    if commit is not None and _is_left(commit, job.task):
        try:
            _leave_to_commits([job])
        except RedisError as error:
            explain(error, [job])
            raise
        return job
    return _send(job)


def _send(job: Job[R], *, is_promised: bool = False) -> Job[R]:
    """Send a prepared job now.

    ``is_promised`` says that a full queue takes the job all the same, because the caller has a promise that it runs.
    """
    draft = job.draft
    sent_ms = draft.sent_ms
    waiting = None if draft.extras is NO_EXTRAS else _waiting_for(job)
    try:
        client = _connected(own_clients.of_thread)
        if not sharding.is_agreed(job.queue):
            perform(client, sharding.agreeing_on(job.queue))
        call = _store(job.queue, draft, is_promised)
        if waiting is None:
            stored = run(client, call)
        else:
            stored = perform(client, durably(call, waiting))
        _take(job, stored[0])
        if not job.created and draft.extras.duplicates is not None:
            meeting = _meeting(job, draft.extras.duplicates, waiting, is_promised)
            perform(client, meeting)
    except RedisError as error:
        _forget_sending([draft], [sent_ms], error)
        if sharding.is_refused(error):
            perform(own_clients.of_thread, sharding.asking_why(job.queue))
        explain(error, [job], AGAIN if is_promised else PREPARE)
        raise
    if job.created:
        if job_scheduled.receivers:
            tell(job_scheduled, task_of(job), job)
    elif draft.extras.duplicates is None:
        job.refresh()
    if waiting is not None:
        _check_durable(waiting, [job])
    return job


async def asend(job: Job[R]) -> Job[R]:
    """`send` on the event loop. Django's thread for the database owns its transaction, so that thread adds the hook.

    The event loop itself has no transaction. So the job is sent at once, unless its task or the call asks for a commit.
    """
    draft = job.draft
    if draft.commit is not None and draft.commit.is_written:
        return await sync_to_async(send)(job)
    sent_ms = draft.sent_ms
    waiting = None if draft.extras is NO_EXTRAS else _waiting_for(job)
    try:
        client = await own_clients.of_loop()
        if not sharding.is_agreed(job.queue):
            await aperform(client, sharding.agreeing_on(job.queue))
        call = _store(job.queue, draft)
        if waiting is None:
            stored = await arun(client, call)
        else:
            stored = await aperform(client, durably(call, waiting))
        _take(job, stored[0])
        if not job.created and draft.extras.duplicates is not None:
            await aperform(client, _meeting(job, draft.extras.duplicates, waiting))
    except RedisError as error:
        _forget_sending([draft], [sent_ms], error)
        if sharding.is_refused(error):
            await aperform(own_clients.of_loop, sharding.asking_why(job.queue))
        explain(error, [job])
        raise
    if job.created:
        if job_scheduled.receivers:
            await atell(job_scheduled, task_of(job), job)
    elif draft.extras.duplicates is None:
        await job.arefresh()
    if waiting is not None:
        _check_durable(waiting, [job])
    return job


def send_elsewhere(
    task: TaskDefinition, job: Job[R], error: RedisError, make: Callable[[], Job[R]]
) -> Job[R]:
    """Send a call to another shard, as the node of the shard that its job had drawn cannot be reached.

    ``make`` makes a job of the same call. Nobody has the id of ``job`` yet.

    Raises:
        redis.exceptions.RedisError: ``error``, if its job may be stored, or has to be in that shard; or that of the last
            shard.
    """
    tried: set[str] = set()
    while True:
        drawing = _drawing_anew(task, job, error, make, tried)
        other: Job[R] | None = perform(own_clients.of_thread, drawing)
        if other is None:
            raise error
        try:
            return send(other)
        except RedisError as again:
            job, error = other, again


async def asend_elsewhere(
    task: TaskDefinition, job: Job[R], error: RedisError, make: Callable[[], Job[R]]
) -> Job[R]:
    """`send_elsewhere` on the event loop."""
    tried: set[str] = set()
    while True:
        drawing = _drawing_anew(task, job, error, make, tried)
        other: Job[R] | None = await aperform(own_clients.of_loop, drawing)
        if other is None:
            raise error
        try:
            return await asend(other)
        except RedisError as again:
            job, error = other, again


def _drawing_anew(
    task: TaskDefinition,
    job: Job[R],
    error: RedisError,
    make: Callable[[], Job[R]],
    tried: set[str],
) -> Steps[Job[R] | None]:
    """Return a new job of a call in a shard that may answer; None: it has to stay. ``tried`` are those that do not."""
    settings, options = conf.get_settings(), task.options
    whole = settings.sharded.get(options.queue)
    if whole is None or options.limit is not None or options.unique:
        return None
    if may_have_run(error) or node_named_by(error) is None or job.was_sent:
        return None
    commit = job.draft.commit
    if commit is not None and _is_left(commit, task.name):
        return None
    tried.add(job.queue)
    shards = settings.parts_of(whole)
    names = [shard.keys.queue.destination for shard in shards]
    lies_there: list[bool] = yield Neighbours(error, names)
    tried.update(shard.name for shard in compress(shards, lies_there))
    if all(shard.name in tried for shard in shards):
        return None
    while (other := make()).queue in tried:
        pass
    return other


def _leave_to_commits(jobs: Iterable[Job[Any]]) -> None:
    """Have the next commit of its database send each job. Those that are for the outbox become rows.

    Raises:
        QueueFull, redis.exceptions.RedisError: a queue has no room for them, or cannot be asked. No job is left to a
            commit.
        InvalidSettings: they are to be rows, and the app with the table is not installed.
    """
    rows: list[tuple[Job[Any], Commit]] = []
    hooked: dict[str, list[Job[Any]]] = {}
    # A job that comes twice is one job.
    for job in {id(job): job for job in jobs}.values():
        commit = job.draft.commit
        if commit is None or job.awaits_commit:
            continue
        # A task with `once` does nothing when it runs again: what it sends after its commit must not get lost before that.
        is_once = alias_within() == commit.using
        if commit.in_outbox or (is_once and job.draft.extras.duplicates is None):
            rows.append((job, commit))
        else:
            hooked.setdefault(commit.using, []).append(job)
    # An error here must leave nothing behind, so all queues are asked before the first row and the first hook.
    for using, waiting in hooked.items():
        check_room(using, waiting)
    for job, commit in rows:
        outbox.needed(f"outbox=True of task {job.task!r}").write(job, commit)
    for using, waiting in hooked.items():
        if len(waiting) == 1:
            hook = Hook(waiting, partial(_send_promised, waiting[0]))
        else:
            hook = Hook(waiting, partial(_send_all_promised, waiting))
        for job in waiting:
            job.wait_for_commit(hook.awaits_commit())
        hook.join(using)


def _send_promised(job: Job[Any]) -> None:
    # It may have been withdrawn; or somebody sent it meanwhile, and that caller knows how it went.
    if job.is_unsent and job.state is not State.CANCELLED:
        _send(job, is_promised=True)


def _send_all_promised(jobs: Sequence[Job[Any]]) -> None:
    send_all([job for job in jobs if job.is_unsent], is_promised=True)


def check_room(using: str, jobs: Sequence[Job[Any]], *, beside: int = 0) -> None:
    """Ask queues of limited size whether jobs of an open transaction fit, as far as that can be known before its commit.

    ``beside`` is how many other jobs each queue has to hold then.

    A job with a unique key is not counted: it needs no room if another one holds the key.

    Raises:
        QueueFull: a queue has no room for its jobs.
        redis.exceptions.RedisError: it cannot be asked.
    """
    queues: dict[str, list[Job[Any]]] = {}
    for job in jobs:
        queues.setdefault(job.queue, []).append(job)
    for queue, new in queues.items():
        found = conf.get_settings().find(queue)
        if found is None or found.max_jobs is None:
            continue
        new = [job for job in new if not job.unique]
        if not new:
            continue
        # Whatever became of the question, no job was sent.
        with nothing_sent():
            count = run(own_clients.of_thread(), counts(found.keys)).jobs
        coming = promised(using, queue) + beside
        if count + coming + len(new) > found.max_jobs:
            raise _queue_full(queue, count, new, coming=coming)


def _waiting_for(job: Job[Any]) -> Wait | None:
    return Wait.of(job.draft.extras.durable, conf.keys_of(job.queue))


def _check_durable(waiting: Wait, jobs: Sequence[Job[Any]]) -> None:
    """Raise the error if jobs were stored and are not durable in time.

    Raises:
        NotDurable: too few replicas or disks have them.
    """
    waiting.check(
        jobs,
        "stored",
        "They still run, unless the primary fails before enough copies exist. To wait again, pass error.jobs to"
        f" schedule_many within {limits.REPEAT_MS // 1000} s: no job is stored twice",
    )


def _meeting(
    job: Job[Any],
    wanted: OnHolder,
    waiting: Wait | None,
    is_promised: bool = False,
) -> Steps[None]:
    """Do to the job that holds the unique key of this one what this call asks for.

    Raises:
        MaybeScheduled: each of many times, that job had begun, or had gone, when it was to be changed; or it is on its
            way to another server, or others follow it and it cannot be read here.
        EncodeError: with what stays of that job, this one is larger than MAX_PAYLOAD_BYTES.
        QueueFull: it has gone, and the queue has no room for this one.
    """
    for _ in range(MOST_MEETINGS):
        if (yield from _changing_holder(job, wanted, waiting)):
            return
        call = _store(job.queue, job.draft, is_promised)
        _take(job, (yield from durably(call, waiting))[0])
        if job.created:
            return
    raise MaybeScheduled(
        f"job {job.queue}:{job.draft.new.token} of {job.task!r} is not stored: the job that holds its unique key"
        f" {job.unique!r} started or ended {MOST_MEETINGS} times while this call tried to change it. Pass"
        " error.unsent to schedule_many",
        [job],
    )


def _changing_holder(
    job: Job[Any], wanted: OnHolder, waiting: Wait | None
) -> Steps[bool]:
    """Change the job that holds the unique key, unless it runs or has gone; return whether that is done."""
    draft, settings = job.draft, conf.get_settings().queue(job.queue)
    if wanted.replaces and draft.extras.expires_ms:
        # Its own start time may be later than that of the job, which it keeps.
        draft = replace(draft, extras=replace(draft.extras, since_ms=draft.asked_ms))
    linked: replacing.Linked | None = None
    for _ in range(MOST_MEETINGS):
        payload, call = b"", None if linked is None else _opened(job, settings, linked)
        if wanted.replaces:
            payload = envelopes.signed_as(
                draft.new.payload,
                job.token,
                settings,
                conf.get_keyring(),
                linked=call,
                since_ms=draft.extras.since_ms,
            )
        if call is not None:
            # The tail says whether others follow a dead letter.
            extras = replace(draft.extras, follow=call.follow)
            draft = replace(draft, extras=extras)
        new = written([draft])[0][0]
        reply = yield from durably(
            replacing.replace(
                settings.keys,
                job.token,
                new,
                payload=payload,
                moves=wanted.moves,
                max_wait_ms=wanted.max_wait_ms,
                linked=b"" if linked is None else linked.mac,
            ),
            waiting,
        )
        if not isinstance(reply, replacing.Linked):
            break
        linked = reply
    else:
        return False
    if reply.outcome is State.HELD:
        raise MaybeScheduled(
            f"job {job.queue}:{draft.new.token} of {job.task!r} is not stored: the job that holds its unique key"
            f" {job.unique!r} is being moved to another server by delayq_export and delayq_import. Schedule this one"
            " there, or here once the move is done",
            [job],
        )
    if reply.seen is None:
        return False
    job.replaced = reply.outcome is Change.REPLACED
    job._take(reply.seen)
    return True


def _opened(
    job: Job[Any], settings: conf.QueueSettings, linked: replacing.Linked
) -> envelopes.Envelope:
    """Read the call of a job that holds the unique key of another.

    Raises:
        MaybeScheduled: it cannot be read.
    """
    try:
        return envelopes.open_payload(
            linked.payload,
            job.queue,
            conf.get_keyring(),
            settings.payload_codec,
            decrypts=False,
        )
    except DecodeError as error:
        raise MaybeScheduled(
            f"job {job.queue}:{job.draft.new.token} of {job.task!r} is not stored: other jobs may follow {job.id}, which holds its"
            f" unique key {job.unique!r}, and would be lost, because that job cannot be read here: {error}. Schedule"
            " this one"
            " where its key is known, or cancel that job",
            [job],
        ) from error


def _connected(get_client: Callable[[], Redis]) -> Redis:
    # A new client connects at once.
    with nothing_sent():
        return get_client()


def _forget_sending(
    drafts: Sequence[Draft], before: Sequence[float | None], error: Exception
) -> None:
    if not may_have_run(error):
        for draft, sent_ms in zip(drafts, before, strict=True):
            draft.sent_ms = sent_ms


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


def _store(
    queue: str, draft: Draft, is_promised: bool = False
) -> Call[list[Scheduled]]:
    configured = conf.get_settings()
    # Almost every queue is found at once. Each job that is scheduled pays for what is here.
    settings = configured.queues.get(queue) or configured.queue(queue)
    if draft.extras is NO_EXTRAS:
        # Almost every job.
        new, has_batches = draft.new, False
    else:
        (new,), has_batches = written([draft])
    call = storing.store(
        settings.keys,
        new,
        frame_format=settings.frame_format,
        insertion_list=settings.keeps_list,
        shards=settings.shards or 0,
        max_jobs=None if is_promised else settings.max_jobs,
        has_batches=has_batches,
    )
    if draft.sent_ms is None:
        draft.sent_ms = boottime_ms()
        return call
    return _noted(call, [draft])


def _call(
    queue: str,
    drafts: Sequence[Draft],
    is_promised: bool = False,
) -> Call[list[Scheduled]]:
    settings = conf.get_settings().queue(queue)
    new, has_batches = written(drafts)
    call = storing.schedule(
        settings.keys,
        new,
        frame_format=settings.frame_format,
        insertion_list=settings.keeps_list,
        shards=settings.shards or 0,
        max_jobs=None if is_promised else settings.max_jobs,
        has_batches=has_batches,
    )
    return _noted(call, drafts)


def written(drafts: Sequence[Draft]) -> tuple[list[NewJob], bool]:
    """Return drafts as they are stored, with their tails, and whether one of them is in a batch."""
    has_batches = False
    new = [draft.new for draft in drafts]
    # Almost always none. `schedule_many` pays with each job for what is here, so one line looks at all of them.
    for i in [i for i, draft in enumerate(drafts) if draft.extras is not NO_EXTRAS]:
        priority, limit, wanted, follow, batch, _, expires_ms, since_ms = astuple(
            drafts[i].extras
        )
        has_batches = has_batches or batch != ""
        tail = tail_of(
            str(new[i].tail),
            priority,
            limit,
            notes_first=wanted is not None and wanted.max_wait_ms is not None,
            # Even a task whose key is free from the start on: Java may have its job, or it had another unique_until.
            may_go_behind=wanted is not None,
            has_on_dead=follow is not None and bool(follow.dead),
            batch=batch,
            expires_ms=expires_ms,
            since_ms=since_ms,
        )
        new[i] = new[i]._replace(tail=tail)
    return new, has_batches


def _noted(
    call: Call[list[Scheduled]], drafts: Sequence[Draft]
) -> Call[list[Scheduled]]:
    """Return the call, as a repeat if one of its jobs may have been sent before; note that all are sent now."""
    now_ms = boottime_ms()
    first_ms = now_ms
    is_repeat = False
    for draft in drafts:
        if draft.sent_ms is None:
            draft.sent_ms = now_ms
        else:
            is_repeat = True
            first_ms = min(first_ms, draft.sent_ms)
    if is_repeat:
        call = replace(call.again(), window_ms=call.window_ms - (now_ms - first_ms))
    return call


def _is_too_late(sent_ms: float) -> bool:
    """Whether sending a job again could run it twice, as the server may have forgotten that it ended."""
    return boottime_ms() - sent_ms > limits.REPEAT_MS


def _take(job: Job[Any], scheduled: Scheduled) -> None:
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
            raise _queue_full(job.queue, scheduled.count, [job])
        # This was a repeat: the job was stored the first time, and has begun or ended since.
        return
    job.start_time_ms, job.state = scheduled.start_time_ms, State.SCHEDULED
    if scheduled.holder:
        # Another job holds the key; the reply does not say when that job is due.
        job.draft.asked_ms = scheduled.start_time_ms
        job.token, job.created, job.start_time_ms = scheduled.holder, False, None


def _again(job: Job[Any]) -> str:
    """Return what sends a job again."""
    return "schedule() of the same Batch" if job.draft.extras.batch else "schedule_many"


def _queue_full(
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
        f" DELAYQ['QUEUES'][{name!r}]['MAX_JOBS'] is {total:,}{share}. {ADVICE.format(_again(refused[0]))}",
        queue=queue,
        count=count + coming,
        limit=limit,
        unsent=refused,
    )


def _most_in_a_call(job: Job[Any]) -> int:
    """Return how many jobs one call sends to its queue: never more than the queue may hold, or none would ever be stored."""
    settings = conf.get_settings().find(job.queue)
    limit = settings.max_jobs if settings else None
    if limit is None:
        return storing.SCHEDULE_BATCH
    # The callback of a batch takes a place.
    room = limit - 1 if job.draft.extras.batch else limit
    return max(1, min(storing.SCHEDULE_BATCH, room))


def schedule_many(jobs: Iterable[Job[R]]) -> list[Job[R]]:
    """Send jobs that ``task.prepare(delay, …)`` made, many in one call; return the stored jobs.

    It is not atomic as a whole. Cancelled jobs are not sent.

    In a transaction, the commit sends the jobs, unless their task has ``on_commit=False``. Jobs that wait for the
    commit are at the end of the list, and ``uncommitted`` until then. Jobs with ``outbox=True`` become rows, in a
    transaction or not.

    Example::

        jobs = schedule_many([remind.prepare(3600, order.pk) for order in orders])

    Raises:
        MaybeScheduled: an error of the server, or of the iterable ``jobs``, interrupted the call. ``scheduled`` holds the
            stored jobs, ``unsent`` all others, and ``unknown`` the jobs of ``unsent`` that may be stored. Sending ``unsent``
            again is safe for 20 s, and refused later. ``job.refresh()`` says whether a job is stored.
        QueueFull: a queue has no room for some of the jobs. It has the same three lists.
        NotDurable: all jobs are stored, but too few replicas or disks have them in time.
    """
    return _send_many(_Sending(jobs, waits=_is_left))


def _send_many(sending: "_Sending") -> list[Job[Any]]:
    _stream(sending)
    if not sending.has_failed:
        try:
            _leave_to_commits(sending.left)
        except (RedisError, QueueFull) as error:
            sending.fail(error)
        except BaseException as error:
            sending.note(error)
            raise
    return sending.finish()


def _is_left(commit: Commit, task: str | None) -> bool:
    return is_awaited(commit, task) or commit.in_outbox


def send_all(jobs: Iterable[Job[R]], *, is_promised: bool = False) -> list[Job[R]]:
    """Send prepared jobs now; see `_send` for ``is_promised``.

    Raises:
        MaybeScheduled, QueueFull, NotDurable: as `schedule_many`.
    """
    sending = _Sending(jobs, is_promised=is_promised)
    _stream(sending)
    return sending.finish()


def _stream(sending: "_Sending") -> None:
    try:
        stream = sending.calls()
        for call in islice(filter(None, stream), 1):
            # This call goes alone: it brings the script to a server that has not seen it.
            sending.take(_run_or_error(call, sending.waiting_for_oldest()))
            perform(own_clients.of_thread, sending.meeting())
        if sending.failure is None:
            with own_clients.lent() as client:
                whole = chain(stream, sending.waits(silence_of(client)))
                for reply in run_stream(client, whole, sending.make_elsewhere):
                    sending.take(reply)
                    # The stream occupies this client.
                    perform(own_clients.of_thread, sending.meeting())
        perform(own_clients.of_thread, sending.asking_why())
    except RedisError as error:
        sending.fail(error)
    except BaseException as error:
        sending.note(error)
        raise


async def aschedule_many(jobs: Iterable[Job[R]]) -> list[Job[R]]:
    """Do what `schedule_many` does, on the event loop, which has no transaction.

    Jobs wait for a commit only if their task has ``on_commit``.
    """
    sending = _Sending(jobs, waits=_asks_for)
    await _astream(sending)
    if sending.left and not sending.has_failed:
        return await sync_to_async(_send_many)(sending.for_left())
    return sending.finish()


async def asend_all(jobs: Iterable[Job[R]]) -> list[Job[R]]:
    """`send_all` on the event loop."""
    sending = _Sending(jobs)
    await _astream(sending)
    return sending.finish()


def _asks_for(commit: Commit, task: str | None) -> bool:
    return commit.is_written


async def _astream(sending: "_Sending") -> None:
    try:
        await aperform(await own_clients.of_loop(), sending.steps())
    except BaseException as error:
        sending.note(error)
        raise


def _run_or_error(
    call: Call[list[Scheduled]], waiting: Wait | None
) -> list[Scheduled] | Exception:
    try:
        return perform(_connected(own_clients.of_thread), durably(call, waiting))
    except RedisError as error:
        return error


class _Parked(NamedTuple):
    """The batch of a shard while jobs of others come."""

    jobs: list[Job[Any]]
    drafts: list[Draft]
    #: Bytes of the payloads.
    size: int
    tokens: set[str]
    #: How many jobs one call may take.
    most: int


class _Sending:
    """The jobs of one `schedule_many`: batches under way, stored jobs, and the others."""

    def __init__(
        self,
        jobs: Iterable[Job[Any]],
        *,
        waits: Callable[[Commit, str | None], bool] | None = None,
        is_promised: bool = False,
    ) -> None:
        """``waits`` says whether jobs are left for a commit; None: none is."""
        self._jobs = iter(jobs)
        self._waits = waits
        # What `waits` said last, and of what.
        self._commit: Commit | None = None
        self._does_wait = False
        self._is_promised = is_promised
        #: Jobs that are left for a commit.
        self.left: list[Job[Any]] = []
        self._batch: list[Job[Any]] = []
        self._drafts: list[Draft] = []
        #: Of a queue with shards, the batches of the other shards, by their names: jobs of all shards come in turns.
        self._parked: dict[str, _Parked] = {}
        #: The place of each of those jobs among all, by its identity.
        self._places: dict[int, int] = {}
        # Whether a job so far may change another that holds its unique key.
        self._may_meet = False
        #: For each batch under way: jobs, drafts, and when each draft was first sent before this call.
        self._under_way: deque[
            tuple[list[Job[Any]], list[Draft], list[float | None]]
        ] = deque()
        self._sent: list[Job[Any]] = []
        self._unsent: list[Job[Any]] = []
        self._too_late: list[Job[Any]] = []
        #: Jobs whose unique keys others hold, which are to be changed.
        self._met: list[Job[Any]] = []
        #: Jobs that are stored, and of which that is to be told.
        self._new: list[Job[Any]] = []
        #: Whether no more calls are made, though the server could be asked.
        self._is_stopped = False
        self.failure: Exception | None = None
        # The queue whose call failed first.
        self._failed_at = ""
        #: What the calls so far have to wait for.
        self.waiting: Wait | None = None
        # How many calls there were. The first one waits by itself.
        self._calls = 0
        #: The keys of each queue, by the first that its calls name.
        self._keys_behind: dict[str, DeliveryKeys] = {}

    def calls(self) -> Iterator[Call[list[Scheduled]] | None]:
        """Yield one call for each batch, for a stream that does not wait for replies; end at the first error.

        It also ends once a reply says that a queue is full. It yields None where the replies have to be read first.
        """
        try:
            for queue, drafts in self._batches():
                if self._may_meet:
                    # What an earlier job of a key has met is changed before a later one can make a job behind it.
                    yield None
                    if self._is_stopped:
                        self._forget_last()
                        return
                if not sharding.is_agreed(queue):
                    # The stream occupies its own client, so another one asks.
                    perform(own_clients.of_thread, sharding.agreeing_on(queue))
                self._calls += 1
                call = _call(queue, drafts, self._is_promised)
                self._keys_behind[call.keys[0]] = conf.keys_of(queue)
                yield call
                if self._is_stopped:
                    return
        except Exception as error:
            self._fail_to_make(error)

    def waits(self, silence_s: float | None) -> Iterator[Behind]:
        """Yield what ends a stream: WAIT covers all that its connection wrote before.

        On a cluster, no other connection may wait: by then another node may hold the slot, without the jobs.
        """
        waiting = self.waiting
        if waiting is None or self._calls < 2 or self.failure is not None:
            return
        wait = waiting.durable.command(silence_s)
        yield Behind(
            lambda last: (
                Command(fence(self._keys_behind[last.keys[0]]).full_command()),
                wait,
            )
        )

    def waiting_for_oldest(self) -> Wait | None:
        """Return what the oldest call under way waits for."""
        (job, *_), _, _ = self._under_way[0]
        return self._waiting_at(job.queue)

    def make_elsewhere(self, call: Call[list[Scheduled]]) -> list[Scheduled]:
        """Make the oldest call under way again, as its node no longer has the slot."""
        waiting = self.waiting_for_oldest()
        return perform(own_clients.of_thread, durably(call, waiting))

    def for_left(self) -> "_Sending":
        """Return what sends the jobs that are left, or leaves them to a commit; it has sent what this has."""
        rest = _Sending(self.left, waits=_is_left)
        rest._sent, rest.waiting = self._sent, self.waiting
        return rest

    def steps(self) -> Steps[None]:
        """Make one call after the other and read the replies; end at the first error."""
        batches = self._batches()
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                queue, drafts = batch
                yield from sharding.agreeing_on(queue)
                call = _call(queue, drafts, self._is_promised)
            except Exception as error:
                self._fail_to_make(error)
                return
            # Any other error of the call passes through, as in `schedule_many`: it is not the server's.
            try:
                reply = yield from durably(call, self._waiting_at(queue))
            except RedisError as error:
                self.take(error)
                yield from self.asking_why()
                return
            self.take(reply)
            yield from self.meeting()
            if self._is_stopped:
                return

    def asking_why(self) -> Steps[None]:
        """Find out whether the server refused a call because its queue has got another number of shards."""
        if self.failure is None or not sharding.is_refused(self.failure):
            return
        try:
            yield from sharding.asking_why(self._failed_at)
        except OtherShards as error:
            error.__cause__ = self.failure
            self.failure = error

    def _waiting_at(self, queue: str) -> Wait | None:
        """Return what a call to a queue waits for: the fence has to lie on the same node."""
        if self.waiting is not None:
            self.waiting.keys = conf.keys_of(queue)
        return self.waiting

    def _forget_last(self) -> None:
        """Let the jobs of the last batch be as they were: it is not sent."""
        _, drafts, before = self._under_way[-1]
        for draft, sent_ms in zip(drafts, before, strict=True):
            draft.sent_ms = sent_ms

    def _fail_to_make(self, error: Exception) -> None:
        # The iterable of jobs raised it, or a job was not prepared: nothing of this batch was sent.
        if isinstance(error, RedisError):
            mark_unsent(error)
        self.fail(error)

    def _batches(self) -> Iterator[tuple[str, list[Draft]]]:
        """Yield a queue and the drafts that one call sends to it, bounded in number and size."""
        size, tokens, most, queue, is_other = 0, set[str](), 0, "", False
        for job in self._jobs:
            if not isinstance(job, Job):
                raise InvalidTask(
                    f"{show(job)} is not a job, so it cannot be sent; schedule_many takes what task.prepare(delay, …) returns"
                )
            draft = job.draft
            new = draft.new
            if draft.extras is not NO_EXTRAS:
                self._note_extras(job)
            if job.state is State.CANCELLED and job.is_unsent:
                # Its `cancel` has promised that the job will not run.
                continue
            if draft.commit is not None and self._is_left(job, draft.commit):
                continue
            full = None
            if job.queue != queue and self._parks(queue, job.queue):
                self._parked[queue] = _Parked(
                    self._batch, self._drafts, size, tokens, most
                )
                self._batch, self._drafts, size, tokens, most = self._parked.pop(
                    job.queue, _Parked([], [], 0, set(), 0)
                )
                queue = job.queue
            if not self._batch:
                queue, most = job.queue, _most_in_a_call(job)
            elif (
                len(self._batch) >= most
                or size + len(new.payload) > SCHEDULE_BYTES
                or job.queue != queue
                # A job that comes twice is a repeat, and only a whole call can be a repeat.
                or new.token in tokens
            ):
                full = self._take_batch()
                is_other = job.queue != queue
                size, tokens, most = 0, set(), _most_in_a_call(job)
                queue = job.queue
            # These are kept before the call is handed out: after an error this generator is not resumed.
            self._batch.append(job)
            self._drafts.append(draft)
            size += len(new.payload)
            tokens.add(new.token)
            if self._places:
                self._places[id(job)] = len(self._places)
            if full is not None:
                yield full
            if is_other:
                is_other = False
                yield from self._take_parked()
        last = self._take_batch()
        if last is not None:
            yield last
        yield from self._take_parked()

    def _is_left(self, job: Job[Any], commit: Commit) -> bool:
        """Whether a job is left for a commit; note that."""
        if self._waits is None:
            return False
        if commit is not self._commit:
            self._commit, self._does_wait = commit, self._waits(commit, job.task)
        # What may be stored already is sent again soon enough to be found.
        if not self._does_wait or job.was_sent:
            return False
        self.left.append(job)
        return True

    def _note_extras(self, job: Job[Any]) -> None:
        extras = job.draft.extras
        if extras.duplicates is not None:
            self._may_meet = True
        if extras.durable is None:
            return
        if self.waiting is None:
            self.waiting = _waiting_for(job)
        else:
            self.waiting.add(extras.durable)

    def _take_batch(self) -> tuple[str, list[Draft]] | None:
        batch, self._batch = self._batch, []
        drafts, self._drafts = self._drafts, []
        return self._begin(batch, drafts)

    def _take_parked(self) -> Iterator[tuple[str, list[Draft]]]:
        while self._parked:
            # What was not handed out stays in place: after an error this generator is not resumed.
            batch, drafts, *_ = self._parked.pop(next(iter(self._parked)))
            begun = self._begin(batch, drafts)
            if begun is not None:
                yield begun

    def _parks(self, queue: str, other: str) -> bool:
        """Whether the batch of a queue waits while jobs of another come: both are shards of one."""
        if not self._batch:
            return False
        settings = conf.get_settings()
        if not settings.sharded or settings.whole(queue) != settings.whole(other):
            return False
        if not self._places:
            self._places = {id(job): n for n, job in enumerate(self._batch)}
        return True

    def _begin(
        self, batch: list[Job[Any]], drafts: list[Draft]
    ) -> tuple[str, list[Draft]] | None:
        """Return the part of a batch that may be sent; None if it is empty.

        Whether a job may be sent again is decided here, not when it came: the jobs after it may have taken long to
        make.
        """
        sent_ms = [draft.sent_ms for draft in drafts]
        # No clock counts from 0, so what was sent is true.
        if any(sent_ms):
            is_late = [sent is not None and _is_too_late(sent) for sent in sent_ms]
            self._too_late += compress(batch, is_late)
            is_left = [not late for late in is_late]
            batch = list(compress(batch, is_left))
            drafts = list(compress(drafts, is_left))
            sent_ms = list(compress(sent_ms, is_left))
        if not batch:
            return None
        self._under_way.append((batch, drafts, sent_ms))
        return batch[0].queue, drafts

    def take(self, reply: Any) -> None:
        """Take in the reply to the oldest call under way, or behind them, those to `waits`."""
        if not self._under_way:
            self._take_told(reply)
            return
        batch, drafts, before = self._under_way.popleft()
        if isinstance(reply, Exception):
            self.fail(reply)
            if self.failure is reply:
                self._failed_at = batch[0].queue
            _forget_sending(drafts, before, reply)
            self._unsent += batch
            return
        try:
            for job, scheduled in zip(batch, reply, strict=True):
                _take(job, scheduled)
        except QueueFull:
            self._take_refusal(batch, reply)
            return
        self._sent += batch
        if self._may_meet:
            self._note_met(batch)
        if job_scheduled.receivers:
            self._note_new(batch)

    def _take_told(self, reply: Any) -> None:
        assert self.waiting is not None
        if isinstance(reply, LOST):
            # The server that has them may be gone. A repeat stores what the next one lacks, and waits anew.
            self.fail(reply)
            self._unsent += self._sent
            self._sent = []
        elif isinstance(reply, Told | Exception):
            self.waiting.take(reply)

    def _note_new(self, jobs: Iterable[Job[Any]]) -> None:
        self._new += [job for job in jobs if job.created]

    def _note_met(self, jobs: Iterable[Job[Any]]) -> None:
        self._met += [
            job
            for job in jobs
            if not job.created and job.draft.extras.duplicates is not None
        ]

    def meeting(self) -> Steps[None]:
        """Change the jobs that hold the unique keys of jobs whose reply was read, one after the other.

        Before that, send the signals of those that are stored.
        """
        if self._new:
            new, self._new = self._new, []
            yield Telling(job_scheduled, new)
        met, self._met = self._met, []
        for n, job in enumerate(met):
            wanted = job.draft.extras.duplicates
            assert wanted is not None
            try:
                yield from _meeting(job, wanted, self._waiting_at(job.queue))
                if job_scheduled.receivers and job.created:
                    yield Telling(job_scheduled, [job])
            except (RedisError, QueueFull, MaybeScheduled, EncodeError) as error:
                self.fail(error)
                self._is_stopped = True
                # Jobs of one holder are equal, but they are not the same.
                left = {id(each) for each in met[n:]}
                self._sent = [each for each in self._sent if id(each) not in left]
                self._unsent += met[n:]
                return

    def _take_refusal(self, batch: list[Job[Any]], reply: list[Scheduled]) -> None:
        """Take in the reply to a call whose new jobs a full queue refused; others it knows, or they gave way."""
        known: list[Job[Any]] = []
        refused, count = [], 0
        for job, scheduled in zip(batch, reply, strict=True):
            try:
                _take(job, scheduled)
                known.append(job)
            except QueueFull:
                refused.append(job)
                count = scheduled.count
        for _, drafts, _ in self._under_way:
            for draft in drafts:
                if draft.sent_ms is None:
                    # The job came twice, and its second call, made already, may find room.
                    draft.sent_ms = boottime_ms()
        self._sent += known
        self._note_met(known)
        if job_scheduled.receivers:
            self._note_new(known)
        self._unsent += refused
        self.fail(_queue_full(batch[0].queue, count, refused))
        self._is_stopped = True

    def fail(self, error: Exception) -> None:
        """Keep the first error."""
        self.failure = self.failure or error

    def note(self, error: BaseException) -> None:
        """Add to an error that passes through, mostly an interrupt, how many jobs are stored."""
        unknown = sum(len(batch) for batch, _, _ in self._under_way)
        # Outside a transaction, each row is committed at once.
        rows = sum(not job.is_unsent and not job.awaits_commit for job in self.left)
        error.add_note(
            f"django-delayq: {len(self._sent) + rows} jobs are scheduled, {unknown} may be"
        )

    @property
    def has_failed(self) -> bool:
        """Whether `finish` raises the error of a job that is not known to be stored."""
        return self.failure is not None or bool(self._too_late)

    def finish(self) -> list[Job[Any]]:
        """Return the jobs, or raise an error that holds the jobs not known to be stored."""
        if self._places:
            # The calls went from shard to shard.
            self._sent.sort(key=lambda job: self._places.get(id(job), -1))
        if not self.has_failed:
            if self.waiting is not None:
                _check_durable(self.waiting, self._sent)
            return self._sent + self.left
        for batch, _, _ in self._under_way:
            self._unsent += batch
        self._unsent += self._batch
        for parked in self._parked.values():
            self._unsent += parked.jobs
        self._unsent += self.left
        try:
            # Only jobs: nothing else could be sent a second time.
            self._unsent += (job for job in self._jobs if isinstance(job, Job))
        except Exception as error:
            self.failure = self.failure or error
            self.failure.add_note(
                f"django-delayq: the iterable of jobs failed, so its remaining jobs are not known: {error!r}"
            )
        unsent = self._too_late + self._unsent
        unknown = [job for job in unsent if job.was_sent]
        is_ours = isinstance(self.failure, RedisError | QueueFull | None)
        if self.failure is not None and not is_ours and not self._sent and not unknown:
            raise self.failure
        if isinstance(self.failure, RedisError):
            # The error that holds them says how to send them again.
            explain(self.failure, unknown or unsent, advice="")
        text = (
            f"{len(self._sent)} of {len(self._sent) + len(unsent)} jobs are scheduled"
        )
        if unknown:
            text += f", {len(unknown)} may be"
        if len(unsent) > len(unknown):
            text += f", {len(unsent) - len(unknown)} are not"
        if self.waiting is not None and self._sent:
            text += f" (the call did not wait until {self.waiting.durable} had them)"
        full = self.failure if isinstance(self.failure, QueueFull) else None
        seconds = limits.REPEAT_MS // 1000
        if full is not None:
            text += f": {full}"
            if unknown:
                text += f". Pass those that may be scheduled within {seconds} s"
        else:
            if self.failure is not None:
                text += f": {type(self.failure).__name__}: {self.failure}".rstrip(".")
            if self._unsent:
                text += f". Pass error.unsent to {_again(unsent[0])} within {seconds} s: no job is stored twice"
        if self._too_late:
            text += (
                f". {len(self._too_late)} of them, {self._too_late[0].id} first, were sent more than {seconds} s ago"
                " and are not sent again, because the server may have run and forgotten them. Ask job.refresh():"
                " MISSING means that the job has ended or was never stored, any other state that it is stored"
            )
        if full is not None:
            raise QueueFull(
                text,
                queue=full.queue,
                count=full.count,
                limit=full.limit,
                unsent=unsent,
                scheduled=self._sent,
                unknown=unknown,
            )
        raise MaybeScheduled(
            text, unsent, scheduled=self._sent, unknown=unknown
        ) from self.failure
