"""Batches: jobs that belong together, and a callback that starts once all of them have ended."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.steps import Steps, aperform, perform
from django_delayq.clients.clients import own_clients
from django_delayq.delivery import batching
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.states import State
from django_delayq.exceptions import InvalidTask
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import formats
from django_delayq.jobs.job import Draft, Job
from django_delayq.jobs.sending import aschedule_many, schedule_many, written
from django_delayq.redaction import show

#: Why the callback is held, for people.
WHY = "It starts once all jobs of its batch have ended."


class Batch:
    """Jobs of one queue that belong together, and their callback: a job that starts once all of them have ended.

    ``Batch(report.prepare(0, 2026)).schedule([resize.prepare(0, photo) for photo in photos])``: all jobs are prepared,
    and none was sent. A job ends when it succeeds, becomes a dead letter, expires, is cancelled or is put into
    quarantine. Until then the callback is held; its delay counts from the last end. Nobody sends it but the batch.
    """

    def __init__(self, callback: Job[Any]) -> None:
        """Take the callback.

        Raises:
            InvalidTask: it was sent, follows another job, can be held by a unique key, or its queue is shared.
        """
        draft = _draft_of(callback, "callback")
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
        #: The job that starts in the end. Its id is that of the batch.
        self.callback = callback
        self._draft = draft
        self._count = 0
        self._is_closed = False
        # From now on only the server can say where it is.
        callback._draft = None

    def __repr__(self) -> str:
        return f"<Batch {self.callback.id}>"

    def schedule(self, jobs: Iterable[Job[Any]]) -> list[Job[Any]]:
        """Send all jobs of the batch as `schedule_many` does, and then leave the callback to their ends.

        It returns the stored jobs. A job that is not stored, because another holds its unique key, does not count. After
        an error, the jobs that were stored run, and the callback waits for this to be called again, with ``error.unsent``.

        Raises:
            InvalidTask: there is no job; or one of them was sent, is in another queue, or cannot be in a batch. None was
                sent.
            MaybeScheduled, QueueFull: not all are stored, as `schedule_many` says.
        """
        joined = self._join(jobs)
        stored = schedule_many(joined)
        try:
            perform(own_clients.of_thread, self._closing())
        except RedisError as error:
            self._explain(error)
            raise
        return stored

    async def aschedule(self, jobs: Iterable[Job[Any]]) -> list[Job[Any]]:
        """`schedule` on the event loop."""
        joined = self._join(jobs)
        stored = await aschedule_many(joined)
        try:
            await aperform(own_clients.of_loop, self._closing())
        except RedisError as error:
            self._explain(error)
            raise
        return stored

    def left(self) -> int:
        """Return how many jobs of the batch have not ended."""
        return perform(own_clients.of_thread, self._counting())

    async def aleft(self) -> int:
        """`left` on the event loop."""
        return await aperform(own_clients.of_loop, self._counting())

    def _counting(self) -> Steps[int]:
        keys = DeliveryKeys.of(self.callback.queue)
        left: int = yield batching.count_left(keys, self.callback.token)
        return left

    def _join(self, jobs: Iterable[Job[Any]]) -> list[Job[Any]]:
        """Check all jobs, and then mark them as jobs of this batch."""
        if self._is_closed:
            raise InvalidTask(
                f"batch {self.callback.id} was scheduled already, and its callback may have started: make a new Batch"
            )
        found = list(jobs)
        if not found and not self._count:
            raise InvalidTask(
                f"batch {self.callback.id} has no job, so none would ever end and start its callback; give it one, or schedule"
                " the callback by itself"
            )
        joining = []
        for job in found:
            if isinstance(job, Job) and self._has(job):
                continue
            draft = _draft_of(job, "part")
            if job.queue != self.callback.queue:
                raise InvalidTask(
                    f"job {job.id} cannot be part of batch {self.callback.id}: all jobs of a batch are in one queue, that of its"
                    f" callback, {self.callback.queue!r}; prepare it with task.using(queue={self.callback.queue!r})"
                )
            joining.append(draft)
        for draft in joining:
            self._mark(draft)
        self._count += len(joining)
        return found

    def _has(self, job: Job[Any]) -> bool:
        draft = job._draft
        return draft is not None and draft.extras.batch == self.callback.token

    def _mark(self, draft: Draft) -> None:
        draft.extras = replace(draft.extras, batch=self.callback.token)
        least = draft.extras.least_format
        if draft.format < least:
            queue = conf.get_settings().queue(self.callback.queue)
            payload = envelopes.signed_anew(
                draft.new.payload, queue, conf.get_keyring(), least
            )
            draft.format = least
            if payload is not None:
                draft.new = draft.new._replace(payload=payload)

    def _closing(self) -> Steps[None]:
        callback, draft = self.callback, self._draft
        settings = conf.get_settings().queues[callback.queue]
        known = yield from formats.finding(callback.queue)
        (new,), _, _ = written([draft], settings, known)
        closed = yield batching.close(settings.keys, new, WHY)
        self._is_closed = True
        callback.state = State.HELD if closed.start_time_ms is None else State.SCHEDULED
        callback.start_time_ms = closed.start_time_ms

    def _explain(self, error: RedisError) -> None:
        error.add_note(
            f"django-delayq: all jobs of batch {self.callback.id} are scheduled; whether its callback waits for them is not"
            " known. Call schedule([]) of the same Batch again, which is safe for 20 s."
        )


def _draft_of(job: object, what: str) -> Draft:
    """Return what was prepared of a job, if it can be the ``what`` of a batch."""
    if not isinstance(job, Job):
        raise InvalidTask(
            f"the {what} of a batch is a job that was prepared, task.prepare(delay, …), and not {show(job)}"
        )
    draft = job._draft
    if draft is None or draft.sent_ms is not None or draft.awaits_commit is not None:
        why = "it was sent" if draft is not None else "it is sent or follows others"
        raise InvalidTask(
            f"job {job.id} cannot be {what} of a batch, as {why} already: prepare a new one"
        )
    if draft.extras.batch:
        raise InvalidTask(
            f"job {job.id} cannot be {what} of a batch: it is part of another one"
        )
    if job.state is State.CANCELLED:
        raise InvalidTask(f"job {job.id} cannot be {what} of a batch: it is cancelled")
    if draft.extras.duplicates is not None:
        raise InvalidTask(
            f"job {job.id} cannot be {what} of a batch: its task has on_duplicate, and would change a job that waits instead"
            " of being stored; use task.using(on_duplicate='keep')"
        )
    return draft
