"""A handle on one job: says where it is; cancels, moves, starts, retries or awaits it.

It asks the server by the job's id, and keeps only the answer of the last look. This module does not know how a job is
run.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from django_delayq import conf
from django_delayq.core import change as change_calls
from django_delayq.core import queue_reads
from django_delayq.core.durability import (
    Durability,
    Wait,
    as_durable,
    durably,
    silence_of,
)
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.progress import read_progress
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import GRAVES, OVER, Change, State
from django_delayq.exceptions import (
    InvalidTask,
    LeaseLost,
)
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import follow_ups, stored_results
from django_delayq.jobs import result as results
from django_delayq.jobs.attempt_handle import Here
from django_delayq.jobs.cancellation import cancel_calls, tell_cancelled
from django_delayq.jobs.draft import Draft
from django_delayq.jobs.options import check_durable, check_priority
from django_delayq.jobs.progress_report import Progress, as_progress, stored_progress
from django_delayq.jobs.record import Record, read_record, record_of
from django_delayq.jobs.stop import Stop
from django_delayq.logs import get_log
from django_delayq.masks import mask
from django_delayq.transport.call import Call
from django_delayq.transport.clients import own_clients
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps, aperform, perform
from django_delayq.wire.delay import (
    MAX_START_TIME_MS,
    MIN_START_TIME_MS,
    Delay,
    parse_delay,
    parse_timeout_ms,
)

logger = get_log("django_delayq.jobs")

#: What the job returns: of an async function, what its coroutine returns.
R_co = TypeVar("R_co", covariant=True)
J = TypeVar("J", bound="Job[Any]")
#: What makes a job that waits due now, as `parse_delay` returns it.
NOW = parse_delay(0)


class Job(Generic[R_co]):
    """One call of a task, scheduled or found by its id.

    The attributes show the job as it was at the last call: `schedule`, `get_job`, `refresh`, or another method.

    Example::

        job = schedule(cancel_unpaid, timedelta(minutes=15), order.pk)
        job.reschedule(timedelta(hours=1))
        if not job.cancel():
            print("too late:", job.state)
    """

    __slots__ = (
        "_at_ms",
        "_awaits_commit",
        "_claimed",
        "_draft",
        "_headers",
        "_is_encrypted",
        "_kept",
        "args",
        "attempts",
        "created",
        "error",
        "here",
        "history",
        "kills",
        "kwargs",
        "options",
        "priority",
        "queue",
        "replaced",
        "start_time_ms",
        "state",
        "task",
        "token",
        "unique",
    )

    def __init__(
        self,
        queue: str,
        token: str,
        task: str | None,
        args: list[Any],
        kwargs: dict[str, Any],
        draft: Draft | None = None,
    ) -> None:
        #: Name of the queue, the first part of the id.
        self.queue = queue
        #: The part of the id after the last colon.
        self.token = token
        #: Registered name of the task; None for a foreign payload.
        self.task = task
        #: Positional arguments of the task.
        self.args = args
        #: Keyword arguments of the task.
        self.kwargs = kwargs
        #: Options that `DelayedTask.using` changed for this call.
        self.options: dict[str, Any] | None = None
        #: Where the job was at the last look, a `State`.
        self.state = State.UNCOMMITTED
        #: Next start time by the server's clock, epoch ms; None if unknown.
        self.start_time_ms: int | None = None
        #: Number of failed attempts.
        self.attempts = 0
        #: Number of leases that expired because a worker died.
        self.kills = 0
        #: The last error, a dict with error, kind, traceback and at (epoch ms).
        self.error: dict[str, Any] | None = None
        #: Earlier attempts that the server still keeps, the last first: each as `error`, with ``began`` (epoch ms) and
        #: ``worker``. After a kill, ``worker`` is only the id in the worker's claims.
        self.history: Sequence[dict[str, Any]] = ()
        #: Priority among the due jobs of the queue, −100 to 100; higher comes first.
        self.priority = 0
        #: The unique key that the job holds, or "".
        self.unique = ""
        #: False if another job already held the unique key. This object is then that job.
        self.created = True
        #: True if this call changed that job: its arguments, its start time, or both.
        self.replaced = False
        self._draft = draft
        #: What the worker says that runs the job; None if the job does not run here. Tasks call `check` and `stopping`.
        self.here: Here | None = None

    def __getstate__(self) -> object:
        # A copy of a handle that waits for a commit can only ask the server: the hook sees none but the handle itself.
        found: Any = super().__getstate__()
        nothing, slots = found
        slots.pop("_awaits_commit", None)
        draft = self._draft
        if draft is not None and draft.awaits_commit is not None:
            waits = draft.awaits_commit()
            slots["_draft"] = None if waits else replace(draft, awaits_commit=None)
        return nothing, slots

    @property
    def id(self) -> str:
        """Id of the job, ``queue:token``. It never changes."""
        return f"{self.queue}:{self.token}"

    @property
    def start_time(self) -> datetime | None:
        """Next start time in UTC, by the server's clock; None if unknown, or outside the years 1 to 9999."""
        ms = self.start_time_ms
        # Java may have written a time that no datetime can show.
        if ms is None or not MIN_START_TIME_MS <= ms <= MAX_START_TIME_MS:
            return None
        return datetime.fromtimestamp(ms / 1000, UTC)

    @property
    def schedule_name(self) -> str:
        """Name of the periodic schedule that the job belongs to; empty if there is none."""
        return self._header("schedule")

    @property
    def occurrence(self) -> datetime | None:
        """The occurrence of its schedule for which the job was stored, in UTC; None: it belongs to no schedule."""
        text = self._header("occurrence")
        return (
            datetime.fromtimestamp(int(text) / 1000, UTC) if text.isdecimal() else None
        )

    def _header(self, name: str) -> str:
        # Only the few jobs that have headers have the slot: to fill it would cost each job.
        headers: dict[str, str] = getattr(self, "_headers", {})
        return headers.get(name, "")

    def take_headers(self, headers: dict[str, str], at_ms: int | None = None) -> None:
        """Take in what travels with the call: texts, and when it was enqueued."""
        if headers:
            self._headers = headers
        if at_ms is not None:
            self._at_ms = at_ms

    @property
    def enqueued_at(self) -> datetime | None:
        """Time in UTC when Django's tasks enqueued the job, by the clock of that process; None for other jobs."""
        # As with the headers, few jobs have the slot.
        at_ms = getattr(self, "_at_ms", None)
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)

    @property
    def is_encrypted(self) -> bool:
        """Whether the arguments are encrypted on the server. This object has them decrypted."""
        return getattr(self, "_is_encrypted", False)

    @property
    def kept(self) -> dict[str, Any] | None:
        """The record of its end, as `stored_results.result_text` writes it; None: nothing, or the job has not ended."""
        return getattr(self, "_kept", None)

    @property
    def claimed(self) -> tuple[int | None, str]:
        """When the worker claimed it that ran it at the last look, epoch ms, and the id by which that worker's claims go."""
        return getattr(self, "_claimed", (None, ""))

    def __repr__(self) -> str:
        # When a job has ended, the server knows only how it ended.
        task = self.task or ("" if self.state in OVER else "foreign")
        return f"<Job {' '.join(filter(None, (self.id, task, self.state)))}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def draft(self) -> Draft:
        """The call that this process has prepared.

        Raises:
            InvalidTask: the job was found by its id.
        """
        if self._draft is None:
            raise InvalidTask(
                f"job {self.id} was not made by prepare(), follows another job, is the callback of a batch, or is in the outbox, so it cannot be sent by itself;"
                " use reschedule() or run_now() once the server has it"
            )
        return self._draft

    def wait_for_commit(self, awaits_commit: Callable[[], bool]) -> None:
        """Be `UNCOMMITTED` while ``awaits_commit`` says so, also if an earlier commit has not sent the job."""
        self.draft.awaits_commit = awaits_commit
        if self.state is State.MISSING:
            self.state = State.UNCOMMITTED

    def leave_to_commit(self, awaits_commit: Callable[[], bool]) -> Draft:
        """Return the draft and drop it: a row of a transaction, or a batch, now owns the job.

        It is `UNCOMMITTED` while ``awaits_commit`` says so. After that only the server can say where it is.
        """
        draft = self.draft
        self.wait_for_commit(awaits_commit)
        self._draft = None
        self._awaits_commit: Callable[[], bool] | None = awaits_commit
        return draft

    def note_commit(self) -> None:
        """From now on only the server can say where it is; and a handle that keeps nothing of this process can be pickled."""
        self._awaits_commit = None
        if self._draft is not None and self._draft.sent_ms is not None:
            self._draft.awaits_commit = None

    @property
    def awaits_commit(self) -> bool:
        """Whether a commit that is still to come sends the job."""
        draft = self._draft
        if draft is None:
            return self._is_left
        return draft.awaits_commit is not None and draft.awaits_commit()

    @property
    def _is_left(self) -> bool:
        """Whether `leave_to_commit` has given it away, and the commit is still to come."""
        awaits_commit: Callable[[], bool] | None = getattr(self, "_awaits_commit", None)
        return awaits_commit is not None and awaits_commit()

    @property
    def is_unsent(self) -> bool:
        """Whether the job exists in this object only, as nothing was sent."""
        return self._draft is not None and self._draft.sent_ms is None

    @property
    def was_sent(self) -> bool:
        """Whether this process sent the job, so that the server may have it."""
        return self._draft is not None and self._draft.sent_ms is not None

    @property
    def _keys(self) -> DeliveryKeys:
        return conf.keys_of(self.queue)

    def then(self: J, *jobs: "Job[Any]") -> J:
        """Schedule other jobs for when this one succeeds; return this job.

        In ``task.prepare(0, 1).then(other.prepare(60, 2))``, all jobs are prepared and none was sent. This job carries
        the others, so pass only this one to `schedule_many`. Their delays count from its end. Jobs in the same queue
        are stored in the same step as its end. A chain is ``a.then(b.then(c))``.

        Raises:
            InvalidTask: one of them cannot follow, or this job already has followers.
            EncodeError: all jobs together are larger than MAX_PAYLOAD_BYTES.
        """
        return self._be_followed("then", jobs)

    def on_dead(self: J, *jobs: "Job[Any]") -> J:
        """Schedule other jobs for when this one becomes a dead letter; otherwise as `then`."""
        return self._be_followed("on_dead", jobs)

    def _be_followed(self: J, name: str, jobs: tuple["Job[Any]", ...]) -> J:
        others = [job._prepared if isinstance(job, Job) else job for job in jobs]
        follow_ups.join(name, self._prepared, others)
        for job in jobs:
            # From now on only the server can say where it is.
            job._draft = None
        return self

    @property
    def _prepared(self) -> follow_ups.Prepared:
        return follow_ups.Prepared(self.id, self.queue, self.state, self._draft)

    def check(self) -> None:
        """Raise `LeaseLost` if this worker no longer has the job's lease: ``current_job().check()``.

        Call it in a task before a step that must not happen twice. It does not ask the server, and costs almost
        nothing. In a process that the task forked, no lease is renewed.

        Example::

            def charge(order_id):
                payment = prepare_payment(order_id)
                current_job().check()
                payment.send()

        Raises:
            LeaseLost: the lease was lost, or was not renewed in time; the job may run elsewhere.
            InvalidTask: this is not what `current_job` returned.
        """
        if not self._running_here("it has no lease to check", "check()").has_lease():
            raise LeaseLost(
                f"the lease of job {self.id} is over, and it may be running elsewhere: stop writing"
            )

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Report the progress of the job: ``current_job().progress(40, 200, "pictures")``.

        Call it as often as you like, in threads and coroutines: the worker stores the last report, at most twice a
        second. When the lease has ended, nothing is stored. In tests without a worker it only checks its arguments.

        Raises:
            InvalidTask: an argument is not a number, or negative, or this job was not returned by `current_job`.
        """
        here = self._running_here("it makes no progress", "progress()")
        if text and (secrets := here.secrets()):
            text = mask(str(text), secrets)
        here.report(stored_progress(done, total, text, here.encrypt))

    @performed
    def read_progress(self) -> Steps[Progress | None]:
        """Return the last reported progress of the job; None if it does not run, or has reported none."""
        return as_progress((yield read_progress(self._keys, self.token)), self.token)

    aread_progress = aperformed(read_progress)

    @property
    def stopping(self) -> bool:
        """Whether the worker of this job is stopping: ``current_job().stopping``.

        A long task reads it where it can be interrupted, saves its progress, and raises ``Snooze(0)`` or returns.
        Reading it costs almost nothing. Once True, it stays True.

        Example::

            for page in pages_after(start):
                if current_job().stopping:
                    raise Snooze(0)
                export(page)

        Raises:
            InvalidTask: this is not what `current_job` returned.
        """
        return self._worker_stop("stopping").is_set

    def wait_for_stop(self, timeout: float | timedelta | None = None) -> bool:
        """Sleep for ``timeout``, or until the worker stops; return `stopping`. Without a timeout, sleep until it stops.

        Raises:
            InvalidDelay: ``timeout`` is not a number of seconds.
            InvalidTask: this is not what `current_job` returned.
        """
        stop = self._worker_stop("wait_for_stop()")
        return stop.wait(_timeout_ms(timeout))

    async def await_stop(self, timeout: float | timedelta | None = None) -> bool:
        """`wait_for_stop` on the event loop."""
        stop = self._worker_stop("await_stop()")
        return await stop.wait_async(_timeout_ms(timeout))

    def _worker_stop(self, name: str) -> Stop:
        return self._running_here("no worker of it can stop", name).stop

    def _running_here(self, so: str, name: str) -> Here:
        if self.here is None:
            raise InvalidTask(
                f"job {self.id} does not run here, so {so}; call current_job().{name} in its task"
            )
        return self.here

    def _look_here(self) -> State:
        """Return the state of a job that was not sent."""
        awaits_commit = self.draft.awaits_commit
        if (
            self.state is State.UNCOMMITTED
            and awaits_commit is not None
            and not awaits_commit()
        ):
            self.state = State.MISSING
        return self.state

    @performed
    def refresh(self) -> Steps[State]:
        """Read the job from the server and return its state. MISSING means that the server does not have the job.

        A job that waits for a commit is UNCOMMITTED, and MISSING after a rollback.
        """
        return self._refreshing()

    arefresh = aperformed(refresh)

    def _refreshing(self) -> Steps[State]:
        if self.is_unsent:
            return self._look_here()
        if self._is_left:
            return self.state
        return (yield from self._looking())

    def _looking(self) -> Steps[State]:
        seen = yield queue_reads.inspect(self._keys, self.token)
        state = self._take(seen)
        if state is State.MISSING or state in OVER:
            # Its result may be kept for longer than the server remembers the end.
            reply = yield read_record(self._keys, self.token)
            if (record := record_of(reply, self.token)) is not None:
                self._take_record(record, seen)
        return self.state

    def _lastingly(
        self,
        durable: Durability | None,
        operation: Callable[[Wait | None], Steps[bool]],
        advice: str,
    ) -> Steps[bool]:
        """Change the job, and make sure that the change is as durable as this call or the queue asks for."""
        waiting = self._waiting_for(durable)
        is_changed = yield from operation(waiting)
        if is_changed and waiting is not None:
            waiting.check([self], self.id, "changed", advice)
        return is_changed

    def _waiting_for(self, durable: Durability | None) -> Wait | None:
        if durable is None:
            return Wait.of(conf.durable_of(self.queue), self._keys)
        check_durable(durable)
        return Wait.of(as_durable(durable), self._keys)

    @performed
    def cancel(self, *, durable: Durability | None = None) -> Steps[bool]:
        """Cancel the job unless it runs. True means that it will not run.

        The job is either cancelled or run, never both. If the result is False, `state` says why. A job that waits for a
        commit is not sent. On a queue shared with Java, `state` is UNKNOWN if the job was deep in the destination
        queue: no Python worker will run it, but Java may have taken it.

        ``durable`` says which copies the call waits for, as for a task; None means the setting of the queue.

        Raises:
            InvalidTask: ``durable`` is something else.
            NotDurable: the job is cancelled, but too few replicas or disks have the change in time.
        """
        return self._cancelling(durable)

    acancel = aperformed(cancel)

    def _cancelling(self, durable: Durability | None) -> Steps[bool]:
        return self._lastingly(durable, self._cancel, _repeat("cancel"))

    def _cancel(self, waiting: Wait | None) -> Steps[bool]:
        if self.is_unsent:
            # This very object waits for the commit, which sees its state.
            self.state = State.CANCELLED
            return True
        if self._is_left:
            return False
        for call in cancel_calls(self.queue, [self]):
            reply = yield from durably(call, waiting)
            self._take_cancelled(reply[self.token])
        yield from tell_cancelled([self])
        return self.state is State.CANCELLED

    def _take_cancelled(self, change: Change | State) -> None:
        """Take in how a call of `cancel_calls` went with the job."""
        self.state = State.UNKNOWN if change is Change.NOTED else State(change)

    @performed
    def discard(self, *, durable: Durability | None = None) -> Steps[bool]:
        """Delete a dead letter or a quarantined payload for good. Return False if the job is neither.

        Raises:
            InvalidTask, NotDurable: as `cancel`.
        """
        return self._discarding(durable)

    adiscard = aperformed(discard)

    def _discarding(
        self, durable: Durability | None, *, is_seen: bool = False
    ) -> Steps[bool]:
        """Discard the job; with ``is_seen``, its state is known."""
        return self._leaving_grave(
            change_calls.discard,
            State.DISCARDED,
            durable,
            "If a failover brings it back, discard it again",
            is_seen=is_seen,
        )

    def _leaving_grave(
        self,
        call_of: Callable[..., Call[int]],
        state: State,
        durable: Durability | None,
        advice: str,
        *,
        is_seen: bool,
    ) -> Steps[bool]:
        """Take a dead letter, or a quarantined job, out of there, into another state."""

        def leave(waiting: Wait | None) -> Steps[bool]:
            if not is_seen:
                yield from self._refreshing()
            if self.state not in GRAVES:
                return False
            call = call_of(self._keys, [self.token], state=self.state)
            if (yield from durably(call, waiting)):
                self.state = state
                return True
            # Another process was first.
            yield from self._refreshing()
            return False

        return self._lastingly(durable, leave, advice)

    @performed
    def reschedule(
        self, delay: Delay, *, durable: Durability | None = None
    ) -> Steps[bool]:
        """Give the job another start time unless it runs; return whether it now has it. Id and attempts do not change.

        A job that waits for a commit is sent with the new delay, which counts from the commit.

        Raises:
            InvalidDelay: see `parse_delay`.
            InvalidTask, NotDurable: as `cancel`.
        """
        return self._moving(parse_delay(delay), durable)

    areschedule = aperformed(reschedule)

    def _moving(
        self, when: str, durable: Durability | None, name: str = "reschedule"
    ) -> Steps[bool]:
        return self._lastingly(
            durable, lambda waiting: self._move(when, waiting), _repeat(name)
        )

    def _move(self, when: str, waiting: Wait | None) -> Steps[bool]:
        if self.is_unsent:
            if self._look_here() is not State.UNCOMMITTED:
                return False
            self.draft.new = self.draft.new._replace(when=when)
            return True
        if self._is_left:
            return False
        call = change_calls.reschedule(self._keys, self.token, when)
        reply = yield from durably(call, waiting)
        change, start_time_ms = reply
        if isinstance(change, State):
            self.state = change
            return False
        is_moved = change is Change.RESCHEDULED
        self.state = State.SCHEDULED if is_moved else State.UNKNOWN
        self.start_time_ms = start_time_ms
        return is_moved

    @performed
    def reprioritize(
        self, priority: int, *, durable: Durability | None = None
    ) -> Steps[bool]:
        """Give the job another priority unless it runs; return whether it now has it.

        Its id, start time and attempts do not change.

        Raises:
            InvalidTask: the priority is not a whole number from −100 to 100, the queue is shared with Redisson, or a worker of
                an earlier version still serves the queue; or as `cancel`.
            NotDurable: as `cancel`.
        """
        return self._reprioritizing(priority, durable)

    areprioritize = aperformed(reprioritize)

    def _reprioritizing(self, priority: int, durable: Durability | None) -> Steps[bool]:
        return self._lastingly(
            durable,
            lambda waiting: self._reprioritize(priority, waiting),
            _repeat("reprioritize"),
        )

    def _reprioritize(self, priority: int, waiting: Wait | None) -> Steps[bool]:
        check_priority(priority, self.queue)
        if self.is_unsent:
            if self._look_here() is not State.UNCOMMITTED:
                return False
            draft = self.draft
            draft.extras = replace(draft.extras, priority=priority)
            self.priority = priority
            return True
        if self._is_left:
            return False
        call = change_calls.reprioritize(self._keys, self.token, priority)
        reply = yield from durably(call, waiting)
        if isinstance(reply, State):
            self.state = reply
            return False
        self.priority = priority
        return True

    @performed
    def run_now(self, *, durable: Durability | None = None) -> Steps[bool]:
        """Make a job that waits due now; return whether it is. A dead letter needs `retry`.

        Raises:
            InvalidTask, NotDurable: as `cancel`.
        """
        is_due = yield from self._moving(NOW, durable, "run_now")
        if self.state in GRAVES:
            logger.warning(
                "job %s is %s: run_now() is for jobs that wait; call retry() instead",
                self.id,
                self.state,
            )
        return is_due

    arun_now = aperformed(run_now)

    @performed
    def retry(self, *, durable: Durability | None = None) -> Steps[bool]:
        """Retry a dead letter or a quarantined job: it has all its attempts again, and is due now.

        Return False if the job is neither. Its id stays. A job that waits needs `run_now`.

        Raises:
            InvalidTask, NotDurable: as `cancel`.
        """
        return self._retrying(durable)

    aretry = aperformed(retry)

    def _retrying(
        self, durable: Durability | None, *, is_seen: bool = False
    ) -> Steps[bool]:
        """Retry the job; with ``is_seen``, its state is known."""
        is_due = yield from self._leaving_grave(
            change_calls.replay,
            State.DUE,
            durable,
            "If a failover makes it a dead letter again, retry it again",
            is_seen=is_seen,
        )
        if is_due:
            self.attempts = self.kills = 0
        return is_due

    def wait(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait for the end of the job and return its result. The task needs ``keep_result``.

        Example::

            total = schedule(add_up, 0, order.pk).wait(timeout=10)

        Raises:
            TimeoutError: the job has not ended within ``timeout`` seconds.
            JobFailed: the job ended without a result: it is a dead letter, cancelled or expired.
            JobNotFound: neither the job nor its result exists any more; or the job is not sent yet, because it waits for a
                commit that cannot come during this call.
            InvalidDelay: ``timeout`` is not a number of seconds.
            InvalidTask: the task does not keep its result.
        """
        client = own_clients.of_thread()
        return perform(client, self._waiting(timeout, silence_of(client)))

    def _waiting(
        self, timeout: float | timedelta | None, silence_s: float | None
    ) -> Steps[R_co]:
        self._check_waitable()
        key = self._keys.result(self.token)
        text = yield from results.awaiting(
            self.id, key, self._looking, timeout, silence_s
        )
        if text is None:
            raise results.missing(self.id, self.state, self.error)
        return self._result(text)

    async def await_result(self, timeout: float | timedelta | None = None) -> R_co:
        """`wait` on the event loop."""
        client = await own_clients.of_loop()
        return await aperform(client, self._waiting(timeout, silence_of(client)))

    def _take(self, seen: Inspected) -> State:
        self.state = seen.state
        if seen.payload:
            self._read(seen.payload)
        if seen.state is State.MISSING:
            return self.state
        if seen.due_ms:
            self.start_time_ms = seen.due_ms
        if seen.worker:
            self._claimed = (seen.claimed_ms, seen.worker)
        self.attempts, self.kills = seen.attempts, seen.kills
        self.error = stored_results.read_error(seen.error, self.token)
        self.unique, self.priority = seen.unique, seen.priority
        self.history = stored_results.read_history(seen.history, self.token)
        return self.state

    def _read(self, payload: bytes) -> None:
        envelope = envelopes.call_in(payload, self.queue)
        if envelope is None:
            return
        self.task, self.args, self.kwargs, self.options = (
            envelope.task,
            envelope.args,
            envelope.kwargs,
            envelope.options,
        )
        self.take_headers(envelope.headers, envelope.at)
        if envelope.flags & envelopes.IS_ENCRYPTED:
            self._is_encrypted = True

    def _take_record(self, record: Record, seen: Inspected) -> None:
        """Take in the record of the job, which has ended, and the last look at it."""
        self._take(record.over(seen))
        self._kept = record.body
        if (last := record.last_attempt) is not None:
            self.history = [last, *self.history]

    def _check_waitable(self) -> None:
        results.check_kept(self.id, self.task, self.options, self.state)
        if self.is_unsent:
            state = self._look_here()
            if state is State.CANCELLED:
                raise results.missing(self.id, state, self.error)
            is_left = self.draft.awaits_commit is not None
            raise results.unsent(self.id, state, is_left=is_left)
        if self._is_left:
            raise results.unsent(self.id, State.UNCOMMITTED, is_left=True)

    def _result(self, text: bytes | str) -> R_co:
        body = stored_results.read_result(text, self.token)
        self.state = body["state"]
        result: R_co = results.value_of(self.id, body)
        return result


def _repeat(name: str) -> str:
    """Say what to do if too few replicas or disks have a change that may be made twice."""
    return f"Call {name}() again to wait for them"


def _timeout_ms(timeout: float | timedelta | None) -> float:
    return float("inf") if timeout is None else parse_timeout_ms(timeout)
