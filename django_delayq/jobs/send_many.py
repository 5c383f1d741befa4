"""Sends many prepared jobs to the server: `schedule_many`, and what sends without a look at transactions."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.clock import boottime_ms
from django_delayq.core import bounds
from django_delayq.core.durability import Told, Wait, durably, fence, silence_of
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.core.store import Scheduled
from django_delayq.exceptions import (
    EncodeError,
    InvalidTask,
    MaybeScheduled,
    OtherShards,
    QueueFull,
)
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.caller_signals import Telling
from django_delayq.jobs.commit_hooks import is_left, leave_to_commits
from django_delayq.jobs.draft import NO_EXTRAS, Draft
from django_delayq.jobs.holders import meeting
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import Commit
from django_delayq.jobs.outcomes import (
    again,
    check_durable,
    explain,
    forget_sending,
    is_too_late,
    queue_full,
    take,
    waiting_for,
)
from django_delayq.jobs.send import send_promised
from django_delayq.jobs.store_calls import SCHEDULE_BYTES, most_in_a_call, storing_all
from django_delayq.redaction import show
from django_delayq.signals import job_scheduled
from django_delayq.transport.call import Call
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import LOST, mark_unsent
from django_delayq.transport.plain_command import Command
from django_delayq.transport.several import Behind, run_stream
from django_delayq.transport.steps import Steps, aperform, perform

R = TypeVar("R")


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
    return _send_many(Sending(jobs, waits=is_left))


def _send_many(sending: "Sending") -> list[Job[Any]]:
    _stream(sending)
    if not sending.has_failed:
        try:
            leave_to_commits(sending.left, _send_promised)
        except (RedisError, QueueFull) as error:
            sending.fail(error)
        except BaseException as error:
            sending.note(error)
            raise
    return sending.finish()


def send_all(jobs: Iterable[Job[R]], *, is_promised: bool = False) -> list[Job[R]]:
    """Send prepared jobs now; see `send_now` for ``is_promised``.

    Raises:
        MaybeScheduled, QueueFull, NotDurable: as `schedule_many`.
    """
    sending = Sending(jobs, is_promised=is_promised)
    _stream(sending)
    return sending.finish()


def _stream(sending: "Sending") -> None:
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
    sending = Sending(jobs, waits=_asks_for)
    await _astream(sending)
    if sending.left and not sending.has_failed:
        return await sync_to_async(_send_many)(sending.for_left())
    return sending.finish()


async def asend_all(jobs: Iterable[Job[R]]) -> list[Job[R]]:
    """`send_all` on the event loop."""
    sending = Sending(jobs)
    await _astream(sending)
    return sending.finish()


def _asks_for(commit: Commit, task: str | None) -> bool:
    return commit.is_written


async def _astream(sending: "Sending") -> None:
    try:
        await aperform(await own_clients.of_loop(), sending.steps())
    except BaseException as error:
        sending.note(error)
        raise


def _run_or_error(
    call: Call[list[Scheduled]], waiting: Wait | None
) -> list[Scheduled] | Exception:
    try:
        return perform(own_clients.of_thread(), durably(call, waiting))
    except RedisError as error:
        return error


def _send_promised(jobs: Sequence[Job[Any]]) -> None:
    """Send the jobs of a hook, whose transaction has been committed."""
    if len(jobs) == 1:
        send_promised(jobs)
    else:
        send_all([job for job in jobs if job.is_unsent], is_promised=True)


class _Parked(NamedTuple):
    """The batch of a shard while jobs of others come."""

    jobs: list[Job[Any]]
    drafts: list[Draft]
    #: Bytes of the payloads.
    size: int
    tokens: set[str]
    #: How many jobs one call may take.
    most: int


class Sending:
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
                if not shard_agreement.is_agreed(queue):
                    # The stream occupies its own client, so another one asks.
                    perform(own_clients.of_thread, shard_agreement.agreeing_on(queue))
                self._calls += 1
                call = storing_all(queue, drafts, self._is_promised)
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

    def for_left(self) -> "Sending":
        """Return what sends the jobs that are left, or leaves them to a commit; it has sent what this has."""
        rest = Sending(self.left, waits=is_left)
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
                yield from shard_agreement.agreeing_on(queue)
                call = storing_all(queue, drafts, self._is_promised)
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
        if self.failure is None or not shard_agreement.is_refused(self.failure):
            return
        try:
            yield from shard_agreement.asking_why(self._failed_at)
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
                queue, most = job.queue, most_in_a_call(job)
            elif (
                len(self._batch) >= most
                or size + len(new.payload) > SCHEDULE_BYTES
                or job.queue != queue
                # A job that comes twice is a repeat, and only a whole call can be a repeat.
                or new.token in tokens
            ):
                full = self._take_batch()
                is_other = job.queue != queue
                size, tokens, most = 0, set(), most_in_a_call(job)
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
            self.waiting = waiting_for(job)
        else:
            self.waiting.add(extras.durable)

    def _take_batch(self) -> tuple[str, list[Draft]] | None:
        batch, self._batch = self._batch, []
        drafts, self._drafts = self._drafts, []
        return self._begin(batch, drafts)

    def _take_parked(self) -> Iterator[tuple[str, list[Draft]]]:
        while self._parked:
            # An error ends this generator, so batches that were not yielded yet stay parked.
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
        # A time is never 0, so every job that was sent has a true value here.
        if any(sent_ms):
            is_late = [sent is not None and is_too_late(sent) for sent in sent_ms]
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
            forget_sending(drafts, before, reply)
            self._unsent += batch
            return
        refused: list[Job[Any]] = []
        for job, scheduled in zip(batch, reply, strict=True):
            try:
                take(job, scheduled)
            except QueueFull:
                refused.append(job)
                count = scheduled.count
        if refused:
            self._note_refused(refused, count)
            # The others it knows, or they gave way.
            out = set(map(id, refused))
            batch = [job for job in batch if id(job) not in out]
        self._sent += batch
        if self._may_meet:
            self._met += [
                job
                for job in batch
                if not job.created and job.draft.extras.duplicates is not None
            ]
        if job_scheduled.receivers:
            self._new += [job for job in batch if job.created]

    def _take_told(self, reply: Any) -> None:
        assert self.waiting is not None
        if isinstance(reply, LOST):
            # The server that has them may be gone. A repeat stores what the next one lacks, and waits anew.
            self.fail(reply)
            self._unsent += self._sent
            self._sent = []
        elif isinstance(reply, Told | Exception):
            self.waiting.take(reply)

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
                yield from meeting(job, wanted, self._waiting_at(job.queue))
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

    def _note_refused(self, refused: list[Job[Any]], count: int) -> None:
        """Note that a full queue, which holds ``count`` jobs, has refused new ones of a call."""
        for _, drafts, _ in self._under_way:
            for draft in drafts:
                if draft.sent_ms is None:
                    # The job came twice, and its second call, made already, may find room.
                    draft.sent_ms = boottime_ms()
        self._unsent += refused
        self.fail(queue_full(refused[0].queue, count, refused))
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
                check_durable(self.waiting, self._sent)
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
        seconds = bounds.REPEAT_MS // 1000
        if full is not None:
            text += f": {full}"
            if unknown:
                text += f". Pass those that may be scheduled within {seconds} s"
        else:
            if self.failure is not None:
                text += f": {type(self.failure).__name__}: {self.failure}".rstrip(".")
            if self._unsent:
                text += f". Pass error.unsent to {again(unsent[0])} within {seconds} s: no job is stored twice"
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
