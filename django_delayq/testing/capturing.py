"""`captured` and `immediate`: what was scheduled is a list; and it runs at once, if a test wants that."""

import math
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from typing import Any, Protocol, TypeAlias, overload

from asgiref.sync import sync_to_async
from django.test import SimpleTestCase

from django_delayq import conf
from django_delayq.clients.server import Server
from django_delayq.clock import boottime_ms
from django_delayq.delivery.claiming import Leased
from django_delayq.delivery.states import State
from django_delayq.delivery.storing import NewJob
from django_delayq.exceptions import InvalidArguments, InvalidTask
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.arguments import call_text
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.envelope import Envelope, Follower
from django_delayq.jobs.following import home_of
from django_delayq.jobs.registry import get_task
from django_delayq.redaction import brief, show
from django_delayq.signals import job_scheduled
from django_delayq.testing import mode
from django_delayq.testing.connection import InProcessServer
from django_delayq.testing.recorder import (
    ENDED,
    Note,
    Recorder,
    epoch_now_ms,
    start_of,
)
from django_delayq.testing.running import arun_attempt, run_attempt
from django_delayq.wire.delay import Delay, parse_delay
from django_delayq.worker import job_signals
from django_delayq.worker.attempt import Attempt, Verdict

#: By so much a start time may differ from one that a test expects, where the code has asked for a moment and not for a
#: delay: time has passed between the two.
TOLERANCE_MS = 1_000
#: How many jobs an error lists.
LISTED = 20


class DjangoTask(Protocol):
    """A function of Django's ``@task``."""

    @property
    def module_path(self) -> str: ...


#: A task, or its name.
AnyTask: TypeAlias = TaskDefinition | DjangoTask | str


@brief
@dataclass(frozen=True)
class CapturedJob:
    """One job that was scheduled."""

    #: ``queue:token``, as `get_job` takes it.
    id: str
    queue: str
    #: The name of the task.
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: Options that `using` changed for this call.
    options: dict[str, Any]
    #: The wait that was asked for.
    due_in: timedelta
    #: When it is due, in UTC.
    start_time: datetime
    state: State
    priority: int
    #: The unique key that it holds, or "".
    unique: str
    #: What follows it, once it has succeeded, and once it is a dead letter. Their wait counts from its end.
    then: Sequence["CapturedJob"] = ()
    on_dead: Sequence["CapturedJob"] = ()

    def __str__(self) -> str:
        state = "" if self.state is State.SCHEDULED else f", {self.state}"
        # The clock of the server may be a ms ahead.
        due_in = timedelta(seconds=round(self.due_in.total_seconds(), 1))
        call = call_text(self.task, self.args, self.kwargs)
        return f"{call} due in {due_in}{state}"


class Captured(Sequence[CapturedJob]):
    """Scheduled jobs in order, in their present state, without cancelled ones."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def jobs(self) -> list[CapturedJob]:
        """All of them."""
        return [
            _captured(note)
            for note in self._recorder.notes.jobs
            if note.state is not State.CANCELLED
        ]

    @overload
    def __getitem__(self, index: int) -> CapturedJob: ...
    @overload
    def __getitem__(self, index: slice) -> list[CapturedJob]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.jobs[index]

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"<captured: {self.listed()}>"

    def listed(self) -> str:
        """Return the jobs as text, one per line."""
        jobs = self.jobs
        if not jobs:
            return "nothing was scheduled"
        lines = [f"  {n}. {job}" for n, job in enumerate(jobs[:LISTED], 1)]
        if len(jobs) > LISTED:
            lines.append(f"  and {len(jobs) - LISTED} more")
        return "\n".join(["scheduled were:", *lines])

    def clear(self) -> None:
        """Remove all jobs from the list."""
        self._recorder.clear()

    def of(
        self,
        task: AnyTask,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        due_in: Delay | None = None,
        queue: str | None = None,
    ) -> list[CapturedJob]:
        """Return the jobs of a task with these arguments and options. Those that you leave out may have any value.

        Raises:
            InvalidTask, TaskNotFound: ``task`` is not a task.
            InvalidDelay, InvalidArguments: no job can have these options or arguments.
        """
        name = _name_of(task)
        found = [
            note
            for note in self._recorder.notes.jobs
            if note.state is not State.CANCELLED
            and (queue is None or queue in (note.queue, _whole(note.queue)))
            and (due_in is None or _is_due(note, due_in))
        ]
        wanted_args = None if args is None else _plain(args, "args", Sequence)
        wanted_kwargs = None if kwargs is None else _plain(kwargs, "kwargs", Mapping)
        return [
            job
            for job in map(_captured, found)
            if job.task == name and _is_call(job, wanted_args, wanted_kwargs)
        ]

    def count(self, task: AnyTask | None = None, **like: Any) -> int:
        """Count the jobs that `of` finds; without a task, all jobs."""
        return len(self) if task is None else len(self.of(task, **like))

    def assert_scheduled(
        self,
        task: AnyTask,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        due_in: Delay | None = None,
        queue: str | None = None,
        count: int | None = None,
    ) -> CapturedJob:
        """Check that `of` finds a job, or ``count`` jobs; return the first."""
        like: dict[str, Any] = {
            "args": args,
            "kwargs": kwargs,
            "due_in": due_in,
            "queue": queue,
        }
        found = self.of(task, **like)
        if not found or count not in (None, len(found)):
            times = (
                ""
                if count is None
                else f" {count} time{'s' * (count != 1)}, but {len(found)}"
            )
            raise AssertionError(
                f"{_described(task, like)} was not scheduled{times}; {self.listed()}"
            )
        return found[0]

    def assert_not_scheduled(self, task: AnyTask | None = None, **like: Any) -> None:
        """Check that `of` finds no job; without a task, that no job was scheduled."""
        found = self.jobs if task is None else self.of(task, **like)
        if found:
            what = "something" if task is None else _described(task, like)
            raise AssertionError(
                f"{what} was scheduled, {len(found)} time{'s' * (len(found) != 1)}; {self.listed()}"
            )


def _is_call(job: "CapturedJob", args: Any, kwargs: Any) -> bool:
    """Whether a job has these arguments, None for any, or gives the same parameters in another way."""
    if args in (None, job.args) and kwargs in (None, job.kwargs):
        return True
    bind = get_task(job.task).call_signature.bind
    try:
        wanted = bind(*(args or ()), **(kwargs or {}))
        return bool(wanted == bind(*job.args, **job.kwargs))
    except TypeError:
        return False


def _whole(queue: str) -> str:
    return conf.get_settings().whole(queue)


def _name_of(task: object) -> str:
    """Return the name under which a task is registered.

    Raises:
        InvalidTask: this is not a task. TaskNotFound: no task has this name.
    """
    if isinstance(task, TaskDefinition):
        return task.name
    # Django's tasks are not imported here: on Django 5.2 they need a package that most projects do not have.
    name = getattr(task, "module_path", task)
    if not isinstance(name, str):
        raise InvalidTask(f"{show(task)} is not a task; give the task or its name")
    return get_task(name).name


def _described(task: object, like: Mapping[str, Any]) -> str:
    given = [f"{name}={value!r}" for name, value in like.items() if value is not None]
    return f"{_name_of(task)}{' with ' + ', '.join(given) if given else ''}"


def _plain(value: Any, name: str, kind: type) -> Any:
    """Return the arguments that a test expects as they come out of a payload: a tuple is a list there.

    Raises:
        InvalidArguments: they are of another kind, or are not JSON.
    """
    fits = isinstance(value, kind) and not isinstance(value, str | bytes)
    if not fits:
        example = "args=(42,)" if name == "args" else "kwargs={'order_id': 42}"
        raise InvalidArguments(
            f"{name} takes what the task is called with, such as {example}; got {show(value)}"
        )
    return envelopes.plain_value(list(value) if name == "args" else dict(value), name)


def _is_due(note: Note, due_in: Delay) -> bool:
    """Whether a job was scheduled with this delay."""
    wanted = parse_delay(due_in)
    wanted_ms = start_of(wanted, note.noted_ms)
    # Two moments that were made of "now" differ by the time in between.
    is_exact = wanted[0] == note.when[0] == "+"
    return abs(note.start_ms - wanted_ms) <= (1 if is_exact else TOLERANCE_MS)


def _captured(note: Note) -> CapturedJob:
    codec = conf.get_settings().queue(note.queue).payload_codec
    call = envelopes.claimed_call(note.payload, codec)
    call = envelopes.decrypted(call, note.token, conf.get_keyring())
    return _job_of(
        note.queue,
        note.token,
        call,
        timedelta(milliseconds=note.start_ms - note.noted_ms),
        note.start_ms,
        note.state,
        note.priority,
        note.unique[1:].decode(errors="replace"),
    )


def _follower(job: Follower, start_ms: int) -> CapturedJob:
    at_ms = start_of(job.when, start_ms)
    wait = timedelta(milliseconds=at_ms - start_ms)
    unique = job.unique[1:]
    return _job_of(
        home_of(job).name,
        job.token,
        envelopes.decrypted(job.call, job.token, conf.get_keyring()),
        wait,
        at_ms,
        State.UNCOMMITTED,
        job.priority,
        unique,
    )


def _job_of(
    queue: str,
    token: str,
    call: Envelope,
    due_in: timedelta,
    start_ms: int,
    state: State,
    priority: int,
    unique: str,
) -> CapturedJob:
    follow = call.follow
    return CapturedJob(
        f"{queue}:{token}",
        queue,
        call.task,
        call.args,
        call.kwargs,
        call.options or {},
        due_in,
        datetime.fromtimestamp(start_ms / 1000, UTC),
        state,
        priority,
        unique,
        [_follower(job, start_ms) for job in follow.then] if follow else (),
        [_follower(job, start_ms) for job in follow.dead] if follow else (),
    )


@dataclass(eq=False, slots=True)
class _Turn:
    """The jobs that run within one call, and their first error."""

    of: "Immediate"
    to_run: deque[Note]
    error: BaseException | None = None
    is_over: bool = False


#: The turn of the job that runs here: what that job sends runs after it.
_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


class Immediate(Recorder):
    """Runs each job as soon as it was noted, in the thread that sent it; what a job sends runs after that job."""

    def __init__(self, *, raises: bool = True) -> None:
        super().__init__("immediate()")
        self._raises = raises
        # By thread: what its call has sent. No other call of the thread comes between `execute` and `conclude`.
        self._sent = threading.local()

    def clear(self) -> None:
        super().clear()
        vars(self._sent).clear()

    def noted(self, note: Note) -> None:
        turn = self._turn_here()
        if turn is not None:
            turn.to_run.append(note)
        else:
            vars(self._sent).setdefault("notes", deque()).append(note)

    def why_endless(self) -> str:
        if self._turn_here() is None:
            return super().why_endless()
        return (
            f"{self._name} runs what a job schedules after that job, so this wait within a job would never end: look at the"
            " result outside of it, or have the one job follow the other with then()"
        )

    def conclude(self, reply: Any) -> None:
        with self.afterwards():
            # What the call has sent runs at the end.
            pass

    async def aconclude(self, reply: Any) -> None:
        async with self.aafterwards():
            pass

    @contextmanager
    def afterwards(self) -> Iterator[None]:
        """Run jobs sent within this context when it ends; inside a job, after that job."""
        with self._begun() as turn:
            yield
            while turn.to_run:
                note, attempt = self._begin(turn)
                for queue, jobs in self._end(turn, note, attempt, run_attempt(attempt)):
                    job_signals.send_scheduled_here(queue, jobs)

    @asynccontextmanager
    async def aafterwards(self) -> AsyncIterator[None]:
        """`afterwards` on the event loop."""
        with self._begun() as turn:
            yield
            while turn.to_run:
                note, attempt = self._begin(turn)
                error = await arun_attempt(attempt)
                for queue, jobs in self._end(turn, note, attempt, error):
                    await sync_to_async(job_signals.send_scheduled_here)(queue, jobs)

    def _turn_here(self) -> _Turn | None:
        """Return the turn of the job that makes this call; None: none of our jobs does."""
        turn = _turn.get()
        if turn is None or turn.of is not self or turn.is_over:
            # A coroutine or a thread that a job has started may outlive the turn.
            return None
        return turn

    @contextmanager
    def _begun(self) -> Iterator[_Turn]:
        """Yield what is to run within this call; at the end, raise what the test gets to see of it."""
        if self._turn_here() is not None:
            yield _Turn(self, deque())
            return
        turn = _Turn(self, vars(self._sent).pop("notes", deque()))
        token = _turn.set(turn)
        try:
            yield turn
        finally:
            turn.is_over = True
            _turn.reset(token)
        if turn.error is not None and self._raises:
            raise _passed_on(turn.error)

    def _begin(self, turn: _Turn) -> tuple[Note, Attempt]:
        note = turn.to_run.popleft()
        note.state = State.RUNNING
        leased = Leased(
            note.token, note.attempts, 0, note.start_ms, note.payload, False, b""
        )
        # Whatever its delay, it runs at the moment for which it was scheduled.
        offset_ms = note.start_ms - boottime_ms()
        queue = conf.get_settings().queue(note.queue)
        return note, Attempt(queue, leased, math.inf, offset_ms, gates=None)

    def _end(
        self, turn: _Turn, note: Note, attempt: Attempt, error: BaseException | None
    ) -> list[tuple[str, list[NewJob]]]:
        """Take in how an attempt ended; return the jobs that its end has stored, by queue, for those who listen."""
        # That it carries jobs for another queue is no state of its own here: all are noted.
        verdict = attempt.verdict
        assert verdict is not None
        attempt.log()
        turn.error = turn.error or _error_of(attempt, verdict, error)
        note.state = _STATES.get(verdict, State.SCHEDULED)
        note.error, note.result = attempt.error, attempt.result
        if verdict is Verdict.RETRY:
            note.attempts += 1
        if verdict in (Verdict.RETRY, Verdict.SNOOZE):
            note.move(attempt.when, epoch_now_ms())
        stored: list[tuple[str, list[NewJob]]] = []
        if attempt.bound is not None:
            stored = [(note.queue, attempt.bound.here)]
            stored += attempt.bound.elsewhere.items()
            for queue, jobs in stored:
                for job in jobs:
                    self.note(queue, job)
        if note.batch and note.state in ENDED:
            self.note_left(note.batch)
        return stored if job_scheduled.receivers else []


def _error_of(
    attempt: Attempt, verdict: Verdict, error: BaseException | None
) -> BaseException | None:
    """Return the error of an attempt that the test gets to see."""
    if verdict in (Verdict.SUCCEED, Verdict.SNOOZE, Verdict.CANCEL):
        return None
    if isinstance(error, Decision):
        # The task has decided for itself; only that its last attempt is used up is an error.
        return attempt.exception if verdict is Verdict.BURY else None
    return error or attempt.exception or RuntimeError(attempt.message)


_STATES = {
    Verdict.SUCCEED: State.SUCCEEDED,
    Verdict.RETRY: State.RETRYING,
    Verdict.SNOOZE: State.SCHEDULED,
    Verdict.CANCEL: State.CANCELLED,
    Verdict.BURY: State.DEAD,
    Verdict.QUARANTINE: State.QUARANTINED,
    Verdict.EXPIRE: State.EXPIRED,
    Verdict.HOLD: State.HELD,
}


def _passed_on(error: BaseException) -> BaseException:
    """Return the error of a task as `schedule` can raise it.

    Those of redis-py, and time-outs, would be taken for errors of the server that the job was sent to.
    """
    if isinstance(error, OSError) or type(error).__module__.startswith("redis"):
        wrapped = RuntimeError(f"the task raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped
    return error


@contextmanager
def captured() -> Iterator[Captured]:
    """Collect scheduled jobs in a list, without running them and without a server.

    A job within a transaction of your code is collected when that commits. Unique keys work, and you can read, move and
    cancel jobs.

    Example::

        with captured() as jobs:
            place(order)
        jobs.assert_scheduled(cancel_unpaid, args=[order.pk], due_in=timedelta(minutes=15))
    """
    recorder = Recorder()
    with mode.serving(InProcessServer.to(recorder)):
        yield Captured(recorder)


@contextmanager
def immediate(*, raises: bool = True) -> Iterator[Captured]:
    """Run each job as soon as it is scheduled or its transaction commits, in this thread, without its delay.

    Jobs that a job schedules run after it, in order, before the first call returns. That call raises the first error of
    the tasks when all jobs have run, unless ``raises`` is False. ``Retry``, ``Snooze`` and ``Cancel`` work as in a worker,
    but no job runs a second time.

    Example::

        with immediate():
            schedule(cancel_unpaid, timedelta(minutes=15), order.pk)
        order.refresh_from_db()
    """
    recorder = Immediate(raises=raises)
    with mode.serving(InProcessServer.to(recorder)):
        yield Captured(recorder)


@cache
def _of_test(is_immediate: bool) -> Recorder:
    """Return the recorder of a mode that no test has asked for. It is emptied for each test."""
    watch_tests()
    return Immediate() if is_immediate else Recorder()


@cache
def watch_tests() -> None:
    """Have each test of Django's classes begin without the jobs of earlier tests, whatever runs the tests.

    Django sends no signal when a test begins. A test may renew what Django renews for each test, such as ``mail.outbox``.
    """
    call = SimpleTestCase.__call__

    @wraps(call)
    def begin(self: SimpleTestCase, result: Any = None) -> None:
        clear_captured()
        call(self, result)

    SimpleTestCase.__call__ = begin  # type: ignore[method-assign]


def captured_server() -> Server:
    """Return the server of tests that ask for none."""
    return InProcessServer.to(_of_test(False))


def immediate_server() -> Server:
    """Return the server of tests whose settings say ``immediate``."""
    return InProcessServer.to(_of_test(True))


def clear_captured() -> None:
    """Forget what was scheduled before this test."""
    for is_immediate in (False, True):
        _of_test(is_immediate).clear()
    # Nobody who does not use it imports it.
    frozen = sys.modules.get("django_delayq.testing.frozen")
    if frozen is not None:
        frozen.clear_frozen()
