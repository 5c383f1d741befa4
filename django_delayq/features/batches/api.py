"""Batches: jobs that belong together, and a callback that starts once all of them have ended."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from asgiref.sync import sync_to_async
from msgspec.structs import replace
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.clock import boottime_ms
from django_delayq.core import bounds
from django_delayq.core.durability import Wait, durably
from django_delayq.core.states import State
from django_delayq.exceptions import (
    InvalidTask,
    MaybeScheduled,
    NotDurable,
    QueueFull,
)
from django_delayq.features.batches import calls as batch_calls
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.caller_signals import Telling
from django_delayq.jobs.commit import Hook, is_awaited
from django_delayq.jobs.commit_hooks import check_room
from django_delayq.jobs.draft import Draft, awaits_commit
from django_delayq.jobs.follow_ups import written_anew
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import handle_of
from django_delayq.jobs.options import Commit
from django_delayq.jobs.outcomes import explain
from django_delayq.jobs.send_many import asend_all, send_all
from django_delayq.jobs.store_calls import written
from django_delayq.redaction import show
from django_delayq.signals import job_scheduled
from django_delayq.transport.call import Call
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import may_have_run
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps, aperform, perform

#: What the callback returns.
R = TypeVar("R")
T = TypeVar("T")

#: What to do about a callback that is not durable.
WAITS_NOT = "It still starts, unless the primary fails before enough copies exist"
#: Why the callback is held, for people.
WHY = "It starts once all jobs of its batch have ended."


class Batch(Generic[R]):
    """Jobs of one queue, and a callback that starts when all of them have ended.

    ``Batch(report.prepare(0, 2026)).schedule([resize.prepare(0, photo) for photo in photos])`` sends the
    prepared callback and the prepared jobs together. A job ends when it succeeds, becomes a dead letter, expires, is
    cancelled or goes to quarantine. The callback is held until all jobs have ended. Its delay counts from the last end.
    """

    def __init__(self, callback: Job[R]) -> None:
        """Take the callback.

        Raises:
            InvalidTask: it was sent, belongs to others, has a unique key, or its queue is shared with Redisson.
        """
        draft = _draft_of(callback, "the callback")
        if callback.unique:
            raise InvalidTask(
                f"job {callback.id} cannot be the callback of a batch: its task has unique=, so another job may hold its key"
                " when the batch ends, and nothing would start; use a task without it"
            )
        if conf.get_settings().queue(callback.queue).is_shared:
            raise InvalidTask(
                f"queue {callback.queue!r} is shared with Redisson, so Java may take its jobs, and a batch would not learn of"
                " their ends; use a queue without REDISSON"
            )
        if conf.get_settings().queue(callback.queue).max_jobs == 1:
            raise InvalidTask(
                f"queue {callback.queue!r} holds one job (MAX_JOBS), but a batch needs at least two, its callback"
                " and a job; raise MAX_JOBS, or use another queue"
            )
        #: The job that starts in the end. Its id is that of the batch.
        self.callback = callback
        # None: the batch was found by its id.
        self._draft: Draft | None = draft
        # Whether a job of it may be stored.
        self._has_jobs = False
        # Of two threads that schedule it, one would close it under the other.
        self._is_busy = Lock()
        # Whether the hook that sends it is still to come; None: there is none.
        self._awaits_commit: Callable[[], bool] | None = None
        # Whether the server may have the callback; whether it has; and whether no more jobs come.
        self._is_sent = self._is_begun = self._is_closed = False
        # When that was said first, by `boottime_ms`.
        self._closing_ms: float | None = None

    @classmethod
    def of(cls, callback_id: str) -> "Batch[Any]":
        """Return the batch whose callback has this id, for `left`. It takes no more jobs.

        Raises:
            JobNotFound, QueueNotFound: this is not the id of a job.
        """
        batch: Batch[Any] = cls.__new__(cls)
        batch.callback = handle_of(callback_id)
        batch._draft, batch._has_jobs, batch._is_busy = None, True, Lock()
        batch._awaits_commit = None
        batch._is_sent = batch._is_begun = batch._is_closed = True
        return batch

    def __repr__(self) -> str:
        return f"<Batch {self.callback.id}>"

    def schedule(self, jobs: Iterable[Job[T]]) -> list[Job[T]]:
        """Store the callback, send all jobs of the batch as `schedule_many` does, and close the batch.

        It returns the jobs that `schedule_many` returns. The batch does not wait for a job that is not stored because
        another job holds its unique key. After an error, the stored jobs run, and the callback stays held. Then call
        this method again with ``error.unsent``, or with ``[]`` to leave those jobs out.

        In a transaction, the commit does all of this, unless the callback's task has ``on_commit=False``. Until then,
        the callback and all jobs are ``uncommitted``.

        Raises:
            InvalidTask: the batch has no jobs, or one of them was sent already, is in another queue, or cannot be part of a
                batch. Nothing was sent.
            MaybeScheduled, QueueFull: not all jobs are stored; see `schedule_many`.
            NotDurable: all jobs and the callback are stored, but too few replicas or disks have them in time.
        """
        with self._scheduling():
            joined = self._join(jobs)
            draft = self._draft
            commit = None if draft is None or self._is_sent else draft.commit
            if commit is not None:
                # A batch is no row, whatever its callback would be by itself.
                commit = Commit(commit.using, is_written=commit.is_written)
            if commit is None or not is_awaited(commit, self.callback.task):
                return self._store(joined)
            hook = Hook([self.callback, *joined], partial(self._store_promised, joined))
            try:
                check_room(commit.using, joined, beside=1)
            except RedisError as error:
                explain(error, joined)
                raise
            # From now on only the hook sends it.
            self._awaits_commit = awaits_commit(hook)
            self.callback.leave_to_commit(self._awaits_commit)
            for job in joined:
                job.wait_for_commit(awaits_commit(hook))
            hook.join(commit.using)
        return joined

    def _store_promised(self, jobs: list[Job[T]]) -> None:
        with self._scheduling():
            # Until it is sent, it can be scheduled again.
            does_wait, draft = self._awaits_commit, self._draft
            self._awaits_commit, self.callback._draft = None, draft
            self.callback.note_commit()
            try:
                self._store([job for job in jobs if job.is_unsent], is_promised=True)
            finally:
                if draft is not None:
                    # If it is not sent, it is missing, as any other job of this commit.
                    draft.awaits_commit = does_wait

    def _store(
        self, joined: list[Job[T]], *, is_promised: bool = False
    ) -> list[Job[T]]:
        perform(own_clients.of_thread, self._beginning())
        short: NotDurable | None = None
        try:
            stored = send_all(joined, is_promised=is_promised)
        except QueueFull as error:
            perform(own_clients.of_thread, self._withdrawing(error))
            raise
        except NotDurable as error:
            # All are stored, so the callback may start when they have ended.
            short = error
        perform(own_clients.of_thread, self._closing(short))
        return stored

    async def aschedule(self, jobs: Iterable[Job[T]]) -> list[Job[T]]:
        """Do what `schedule` does, on the event loop, which has no transaction.

        It waits for a commit only if the callback's task has ``on_commit``.
        """
        draft = self._draft
        if draft is not None and draft.commit is not None and draft.commit.is_written:
            return await sync_to_async(self.schedule)(jobs)
        with self._scheduling():
            joined = self._join(jobs)
            await aperform(own_clients.of_loop, self._beginning())
            short: NotDurable | None = None
            try:
                stored = await asend_all(joined)
            except QueueFull as error:
                await aperform(own_clients.of_loop, self._withdrawing(error))
                raise
            except NotDurable as error:
                short = error
            await aperform(own_clients.of_loop, self._closing(short))
        return stored

    @performed
    def left(self) -> Steps[int]:
        """Return how many jobs of the batch have not ended."""
        keys = conf.keys_of(self.callback.queue)
        left: int = yield batch_calls.count_left(keys, self.callback.token)
        return left

    aleft = aperformed(left)

    def _join(self, jobs: Iterable[Job[T]]) -> list[Job[T]]:
        """Check all jobs, and then mark them as jobs of this batch."""
        if self._is_closed:
            raise InvalidTask(
                f"batch {self.callback.id} was scheduled already, and its callback may have started: make a new Batch"
            )
        if self._awaits_commit is not None and not self._awaits_commit():
            # The transaction was rolled back, or its commit gave up before the hook.
            self._awaits_commit = None
            self._take_back()
        if not self._is_sent:
            # Somebody may have used it meanwhile.
            _draft_of(self.callback, "the callback")
        if not isinstance(jobs, Iterable):
            raise InvalidTask(
                f"the jobs of a batch are an iterable, such as a list; got {show(jobs)}. For a single job, write"
                " schedule([job])"
            )
        found = list(jobs)
        if not found and not self._is_begun:
            raise InvalidTask(
                f"batch {self.callback.id} has no jobs, so its callback would never start; give it one, or send only"
                " the callback with schedule_many([callback])"
            )
        joining = []
        for job in found:
            if isinstance(job, Job) and self._has(job):
                continue
            draft = _draft_of(job, "part")
            if job is self.callback:
                raise InvalidTask(
                    f"job {job.id} is the callback of the batch, so it cannot also be one of its jobs"
                )
            if job.queue != self.callback.queue and not self._can_move(job, draft):
                raise InvalidTask(
                    f"job {job.id} cannot be part of batch {self.callback.id}: all jobs of a batch are in one queue, that of its"
                    f" callback, {self.callback.queue!r}; prepare it with task.using(queue={self.callback.queue!r})"
                )
            joining.append((job, draft, self._payload_of(draft)))
        for job, draft, payload in joining:
            # Of a queue with shards, all jobs of a batch are in one.
            job.queue = self.callback.queue
            draft.new = draft.new._replace(payload=payload)
            draft.extras = replace(draft.extras, batch=self.callback.token)
        return found

    def _can_move(self, job: Job[Any], draft: Draft) -> bool:
        """Whether a job can go to the shard of the callback, as no key holds it in its own."""
        settings = conf.get_settings()
        if settings.whole(job.queue) != settings.whole(self.callback.queue):
            return False
        if job.unique or draft.extras.limit:
            raise InvalidTask(
                f"job {job.id} cannot be part of batch {self.callback.id}: its unique key or its limit is kept in shard"
                f" {job.queue!r}, and all jobs of a batch are in one shard, that of its callback,"
                f" {self.callback.queue!r}; use a queue without SHARDS, or a task without unique= and limit="
            )
        return True

    def _has(self, job: Job[Any]) -> bool:
        draft = job._draft
        return draft is not None and draft.extras.batch == self.callback.token

    def _payload_of(self, draft: Draft) -> bytes:
        """Return the payload of a job that says that it is part of this batch."""
        queue, token = self.callback.queue, draft.new.token
        call = envelopes.claimed_call(draft.new.payload)
        call.batch = self.callback.token
        return written_anew(call, token, queue, "and the name of its batch")

    def _beginning(self) -> Steps[None]:
        callback, draft = self.callback, self._draft
        if self._is_begun or draft is None:
            return
        yield from shard_agreement.agreeing_on(callback.queue)
        # From now on only the server can say where it is.
        self._is_sent, callback._draft = True, None
        try:
            # `_closing` waits for this as well.
            yield self._opening(draft)
        except RedisError as error:
            if not may_have_run(error):
                self._take_back()
            if shard_agreement.is_refused(error):
                yield from shard_agreement.asking_why(callback.queue)
            raise
        callback.state = State.HELD
        self._is_begun = True

    def _opening(self, draft: Draft) -> Call[bool]:
        (new,), _ = written([draft])
        queue = conf.get_settings().queue(self.callback.queue)
        return batch_calls.open_batch(queue.keys, new, WHY, queue.shards or 0)

    def _withdrawing(self, error: QueueFull) -> Steps[None]:
        """Take the callback away again if a full queue has taken no job: a batch that is given up leaves nothing there."""
        # One that another job of its unique key has kept out is scheduled, and none of the batch.
        self._has_jobs |= any(job.created for job in error.scheduled + error.unknown)
        if self._has_jobs:
            return
        try:
            yield batch_calls.withdraw_batch(
                conf.keys_of(self.callback.queue), self.callback.token
            )
        except RedisError as lost:
            error.add_note(
                f"django-delayq: its callback may still be there, held: {lost!r}"
            )
            return
        self._take_back()

    def _take_back(self) -> None:
        self._is_sent = self._is_begun = False
        self.callback._draft, self.callback.state = self._draft, State.UNCOMMITTED

    def _closing(self, short: NotDurable | None) -> Steps[None]:
        """Say that no more jobs come; ``short`` says that those before are not durable.

        Raises:
            NotDurable: that, or the callback is not durable.
        """
        draft, keys = self._draft, conf.keys_of(self.callback.queue)
        assert draft is not None
        waiting = Wait.of(draft.extras.durable, keys)
        call = batch_calls.close_batch(keys, self.callback.token)
        if self._closing_ms is None:
            self._closing_ms = boottime_ms()
        is_new = yield from durably(call, waiting)
        yield from self.callback._refreshing()
        is_soon = boottime_ms() - self._closing_ms <= bounds.REPEAT_MS
        if not is_new and self.callback.state is State.MISSING and is_soon:
            # The server has lost the callback, as in a failover after it was stored. The jobs that came later are counted
            # all the same. Of a batch that was closed long ago, it may have run and be forgotten.
            yield self._opening(draft)
            yield from durably(call, waiting)
            yield from self.callback._refreshing()
        self._is_closed = True
        if job_scheduled.receivers:
            yield Telling(job_scheduled, [self.callback])
        if short is not None:
            raise short
        if waiting is not None:
            waiting.check([self.callback], self.callback.id, "stored", WAITS_NOT)

    @contextmanager
    def _scheduling(self) -> Iterator[None]:
        if not self._is_busy.acquire(blocking=False):
            raise InvalidTask(
                f"batch {self.callback.id} is being scheduled already, by another thread or coroutine: schedule it"
                " once, with all of its jobs"
            )
        try:
            yield
        except (RedisError, MaybeScheduled, QueueFull) as error:
            if not self._is_begun:
                advice = "none of its jobs was sent: pass them to schedule() of the same Batch again"
            elif isinstance(error, RedisError):
                advice = (
                    "all of its jobs were sent: call schedule([]) of the same Batch"
                )
            else:
                advice = (
                    "pass error.unsent to schedule() of the same Batch; or [] to leave out the jobs that are not"
                    " stored"
                )
            error.add_note(
                f"django-delayq: the callback of batch {self.callback.id} does not start yet: {advice}"
            )
            raise
        finally:
            self._is_busy.release()


def _draft_of(job: object, what: str) -> Draft:
    """Return what was prepared of a job, if it can be ``what`` of a batch: the callback, or part."""
    if not isinstance(job, Job):
        raise InvalidTask(
            f"{what} of a batch has to be a job that task.prepare(delay, …) made; got {show(job)}. Prepare the task,"
            " do not call it"
        )
    draft = job._draft
    why = ""
    if draft is None:
        why = "it was sent, follows another job, or is the callback of a batch, already"
    elif job.awaits_commit:
        why = "it waits for a commit already"
    elif draft.sent_ms is not None:
        why = "it was sent already"
    elif draft.extras.batch:
        why = "it is part of another one"
    elif job.state is State.CANCELLED:
        why = "it is cancelled"
    if draft is None or why:
        raise InvalidTask(
            f"job {job.id} cannot be {what} of a batch, as {why}; prepare a new one"
        )
    if draft.extras.duplicates is not None:
        raise InvalidTask(
            f"job {job.id} cannot be {what} of a batch: its task has on_duplicate, so it might change a waiting job"
            " instead of being stored; use task.using(on_duplicate='keep')"
        )
    return draft
