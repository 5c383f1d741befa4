"""Jobs that a test has captured: a list, and assertions about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias, overload

from django_delayq import conf
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidArguments, InvalidTask
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import json_values
from django_delayq.jobs.arguments import call_text
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.envelope import Envelope, Follower
from django_delayq.jobs.follow_ups import home_of
from django_delayq.jobs.registry import get_task
from django_delayq.redaction import brief, show
from django_delayq.testing.recorder import Note, Recorder, start_of
from django_delayq.wire.delay import Delay, parse_delay

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
    return json_values.plain_value(list(value) if name == "args" else dict(value), name)


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
