"""Periodic schedules as a project sees them: listed, paused, changed, stored, fired. Workers move them on.

The scripts change the job that waits.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Unpack

from django_delayq import conf
from django_delayq.clock import epoch_ms
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.core.states import State
from django_delayq.exceptions import (
    DelayqError,
    InvalidSchedule,
    InvalidTask,
    ScheduleNotFound,
)
from django_delayq.features.schedules import changes
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules.calls import KEPT, Entry
from django_delayq.features.schedules.known_schedules import Found, Known, loading
from django_delayq.features.schedules.periodic import CatchUp, CodeSchedule, Definition
from django_delayq.features.schedules.writes import arranging
from django_delayq.jobs.answers import asking, complete
from django_delayq.jobs.caller_signals import task_of
from django_delayq.jobs.decorator import DelayedTask, Task, name_of
from django_delayq.jobs.job import Job
from django_delayq.jobs.occurrences import When, datetime_of
from django_delayq.jobs.options import CallOptions
from django_delayq.jobs.registry import get_task
from django_delayq.logs import get_log
from django_delayq.redaction import brief, show
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

logger = get_log("django_delayq.jobs")

#: How many schedules somebody may store on a queue: each of its workers reads them all.
MAX_STORED = 1_000


@brief
@dataclass(frozen=True)
class Schedule:
    """A periodic schedule, as it was at the last call. `refresh` reads it again.

    Example::

        schedule = get_schedule("shop.tasks.report")
        print(schedule.words, schedule.occurrences(3))
        schedule.pause(reason="holidays")
    """

    name: str
    queue: str
    #: Name of its task.
    task: str
    #: Its occurrences: what `cron` or `every` has made.
    when: When
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Options of its jobs that differ from its task's.
    options: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    catch_up: CatchUp = "one"
    #: False: while one of its jobs runs, the next is dropped; or it waits, if `catch_up` is "all".
    overlap: bool = True
    #: It is stored, and not in code.
    is_stored: bool = False
    #: No task of this process is so named, or its code has no such schedule any more.
    is_orphan: bool = False
    #: Whether `override` has given it other times than its definition has.
    is_overridden: bool = False
    #: The server has its arguments encrypted.
    is_encrypted: bool = False
    #: The server knows it. A schedule in code is enrolled by the first worker that starts.
    is_enrolled: bool = True
    #: When it was paused, in UTC; None: it is not.
    paused_since: datetime | None = None
    paused_by: str = ""
    paused_reason: str = ""
    #: The next occurrence that has a job, in UTC: not one whose job was cancelled, or run early. None: there is none.
    next_occurrence: datetime | None = None
    #: The last occurrence that has come, in UTC.
    last_occurrence: datetime | None = None
    #: The id of the job that waits for the next occurrence; empty: it is not stored yet, or there is no such occurrence.
    job_id: str = ""
    #: The occurrences to come whose jobs were cancelled or run early, epoch ms.
    _had: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None

    @property
    def words(self) -> str:
        """When it comes, in words."""
        return self.when.words

    def occurrences(self, count: int = 5) -> list[datetime]:
        """Return the next occurrences by the clock of this machine, in the schedule's time zone, whether or not it is paused.

        An occurrence whose job was cancelled, or run early, is not among them.

        Raises:
            InvalidSchedule: this machine does not know the zone.
        """
        coming = (at for at in self.when.occurrences(epoch_ms()) if at not in self._had)
        return [datetime_of(at, self.when.zone) for at in islice(coming, count)]

    @performed
    def refresh(self) -> Steps["Schedule"]:
        """Read the schedule from the server again.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return _getting(self.name, self.queue)

    arefresh = aperformed(refresh)

    @performed
    def pause(self, *, reason: str = "", by: str = "") -> Steps["Schedule"]:
        """Have it rest until `resume`: the job that waits is cancelled, unless its occurrence has come.

        Raises:
            ScheduleNotFound: it is gone.
        """
        yield from changes.pausing(self.queue, self.name, reason, by)
        return (yield from _getting(self.name, self.queue))

    apause = aperformed(pause)

    @performed
    def resume(self) -> Steps["Schedule"]:
        """Continue with its next occurrence; those that it has missed stay missed.

        Raises:
            ScheduleNotFound: it is gone.
        """
        yield from changes.resuming(self.queue, self.name)
        return (yield from _getting(self.name, self.queue))

    aresume = aperformed(resume)

    @performed
    def override(self, when: When | None) -> Steps["Schedule"]:
        """Give it other times than its definition has; with None, those of its definition again.

        The job that waits is replaced in the same step. The change holds until it is taken back, through deploys as well.

        Raises:
            InvalidSchedule: these occurrences never come.
            ScheduleNotFound: it is gone.
        """
        yield from changes.overriding(self.queue, self.name, when)
        return (yield from _getting(self.name, self.queue))

    aoverride = aperformed(override)

    @performed
    def fire(self) -> Steps[Job[Any]]:
        """Store a job of it that is due now, beside those of its occurrences, even if it is paused.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return changes.firing(self.queue, self.name)

    afire = aperformed(fire)

    @performed
    def delete(self) -> Steps[bool]:
        """Delete it, and the job that waits unless its occurrence has come; return False if it was gone.

        Only for schedules that are stored, and those that have gone from code: workers would enroll any other again.

        Raises:
            InvalidSchedule: it is in code.
        """
        return changes.deleting(self.queue, self.name)

    adelete = aperformed(delete)


@performed
def get_schedules(queue: str | None = None) -> Steps[list[Schedule]]:
    """Return the schedules of a queue, by default of every queue in the settings, ordered by name.

    Example::

        late = [each.name for each in get_schedules() if each.is_paused]

    Raises:
        QueueNotFound: the queue is not configured.
        PartialAnswer: some queues did not answer; ``found`` has the schedules of the others.
    """
    found, missing = yield from _finding_all(queue)
    return complete(found, missing)


aget_schedules = aperformed(get_schedules)


@performed
def get_schedule(name: str, queue: str | None = None) -> Steps[Schedule]:
    """Return the schedule with this name.

    Example::

        get_schedule("shop.tasks.report").fire()

    Raises:
        ScheduleNotFound: there is none, or several queues have one and ``queue`` is not given.
        QueueNotFound: the queue is not configured.
        PartialAnswer: some queues did not answer, and the others do not have it.
    """
    return _getting(name, queue)


aget_schedule = aperformed(get_schedule)


@performed
def store_schedule(
    name: str,
    task: Task,
    when: When,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    catch_up: CatchUp = "one",
    overlap: bool = True,
    replace: bool = False,
    **options: Unpack[CallOptions],
) -> Steps[Schedule]:
    """Store a schedule on the server, in addition to the schedules in code. The options are those of `periodic`.

    It stays until it is deleted. With ``replace``, it replaces a stored schedule of the same name; otherwise the name
    must be free.

    Example::

        store_schedule(f"report-{user.pk}", report, cron("0 9 * * *", tz=user.zone), args=[user.pk], replace=True)

    Raises:
        InvalidSchedule, InvalidTask, InvalidArguments, EncodeError, TaskNotFound, QueueNotFound: nothing was stored.
    """
    found_task = get_task(name_of(task))
    if isinstance(task, DelayedTask):
        options = {**definitions.options_by_using(task), **options}  # type: ignore[typeddict-item]
    definitions.check_names(options)
    if not isinstance(found_task, DelayedTask):
        raise InvalidTask(
            f"{found_task.name!r} is a Django task, which has no schedules: give a @delayed_task that enqueues it"
        )
    schedule = definitions.schedule_of(
        found_task, when, name, args, kwargs, catch_up, overlap, options
    )
    definitions.check(schedule)
    definition = schedule.definition()
    queue = conf.get_settings().queue(schedule.queue)
    text = definitions.sealed(queue.name, "stored", name, definition)
    if queue.shard_of is not None:
        yield from _checking_others(name, queue)
    for _ in range(changes.TRIES):
        known = yield from loading(queue)
        entry = known.entries.get(name) or Entry()
        if entry.code or name in definitions.schedules_on(queue.name):
            raise InvalidSchedule(
                f"schedule {name!r} of queue {queue.name!r} is in code; override() gives it other times, or choose"
                " another name"
            )
        if entry.stored and not replace:
            raise InvalidSchedule(
                f"a schedule named {name!r} is stored on queue {queue.name!r} already; say replace=True to replace it"
            )
        if not entry.stored and _count_stored(known) >= MAX_STORED:
            raise InvalidSchedule(
                f"queue {queue.name!r} has {MAX_STORED:,} stored schedules, and takes no more: each of its workers reads"
                " all of them"
            )
        is_new = not entry.stored
        # What an earlier schedule of this name may have left is not for this one.
        change = None if is_new else known.change_of(name)
        found = Found(queue, name, entry, definition, change, True)
        gone = "" if is_new else KEPT
        if (yield from arranging(known, found, stored=text, change=gone)):
            logger.info("schedule %s is stored on queue %s: %s", name, queue.name, when)
            return (yield from _getting(name, queue.name))
    raise changes.too_busy(name)


astore_schedule = aperformed(store_schedule)


def _finding_all(
    queue: str | None,
) -> Steps[tuple[list[Schedule], dict[str, Exception]]]:
    """Return the schedules of the queues that can be read, and the errors of the others."""
    settings = conf.get_settings()
    schedules: list[Schedule] = []
    queues = settings.queues_of(queue)
    answers = yield from asking(queues, map(loading, queues))
    for each, known in answers.of(queues):
        code = definitions.schedules_on(each.name)
        shown = yield from together(
            [_showing(known, found, code) for found in known.found()]
        )
        for one in shown:
            if isinstance(one, Schedule):
                schedules.append(one)
            elif not isinstance(one, InvalidSchedule):
                raise one
        enrolled = {
            schedule.name for schedule in schedules if schedule.queue == each.name
        }
        for name in code.keys() - enrolled:
            try:
                schedules.append(_shown_code(code[name]))
            except DelayqError as error:
                # Workers leave it out as well, and say so.
                logger.error("schedule %s is left out: %s", name, error)
    schedules.sort(key=lambda schedule: (schedule.name, schedule.queue))
    return schedules, answers.missing


def _getting(name: str, queue: str | None) -> Steps[Schedule]:
    settings = conf.get_settings()
    if queue is not None and queue not in settings.sharded:
        known = yield from loading(settings.queue(queue))
        one = known.find(name)
        if one is not None:
            # What a later version has written is not shown.
            with suppress(InvalidSchedule):
                return (
                    yield from _showing(known, one, definitions.schedules_on(queue))
                )
    all_found, missing = yield from _finding_all(queue)
    found = [schedule for schedule in all_found if schedule.name == name]
    if len(found) > 1:
        queues = ", ".join(schedule.queue for schedule in found)
        raise ScheduleNotFound(
            f"there are schedules named {show(name)} on several queues: {queues}; say which: get_schedule(name, queue)"
        )
    if not found:
        complete(all_found, missing)
        raise changes.not_found(name, [schedule.name for schedule in all_found])
    return found[0]


def _waiting_token(known: Known, entry: Entry) -> Steps[str]:
    """Return the token of the job that waits for the next occurrence; empty: it was cancelled, or run early."""
    token, occurrence_ms = entry.state.token, entry.occurrence_ms
    if not token or occurrence_ms is None:
        return ""
    job = yield queue_reads.inspect(known.queue.keys, token)
    # A start time is rounded up to whole ms, so that of a job that runs now may lie 1 ms ahead.
    is_early = job.score_ms <= job.now_ms + 1 and job.now_ms < occurrence_ms
    is_waiting = job.state in (State.SCHEDULED, State.DUE) and not is_early
    return token if is_waiting else ""


def _coming(found: Found, had: Collection[int], now_ms: int) -> int | None:
    """Return the next occurrence that has a job, epoch ms; None: there is none, or this machine does not know the zone."""
    occurrence_ms = found.entry.occurrence_ms
    if occurrence_ms is None or occurrence_ms not in had:
        return occurrence_ms
    if found.definition.catch_up != "all":
        occurrence_ms = max(occurrence_ms, now_ms)
    try:
        return next(
            (at for at in found.when.occurrences(occurrence_ms) if at not in had), None
        )
    except InvalidSchedule:
        return None


def _showing(
    known: Known, found: Found, code: Mapping[str, CodeSchedule]
) -> Steps[Schedule]:
    """Say what a schedule is, after a look at the job that waits.

    Raises:
        InvalidSchedule: a later version may have written it.
    """
    definition, change, entry = found.definition, found.change, found.entry
    when, state, occurrence_ms = found.when, entry.state, entry.occurrence_ms
    token = yield from _waiting_token(known, entry)
    had = (
        {*state.early_ms, occurrence_ms}
        if occurrence_ms and not token
        else state.early_ms
    )
    next_ms = _coming(found, had, known.now_ms)
    if found.is_stored:
        is_known = task_of(definition) is not None
    else:
        is_known = found.name in code
    paused_ms = change.paused_ms if change else 0
    fired_ms = state.fired_by(known.now_ms)
    return _shown(
        found.name,
        found.queue.name,
        when,
        definition,
        is_stored=found.is_stored,
        is_orphan=not is_known,
        is_overridden=change is not None and change.when is not None,
        paused_since=datetime_of(paused_ms) if paused_ms else None,
        paused_by=change.by if change else "",
        paused_reason=change.reason if change else "",
        next_occurrence=None if next_ms is None else _time_of(next_ms),
        last_occurrence=_time_of(fired_ms) if fired_ms else None,
        job_id=f"{found.queue.name}:{token}" if token else "",
        _had=frozenset(had),
    )


def _time_of(ms: int) -> datetime | None:
    """Return a time of the server; None: no calendar has it, so our scripts have not written it."""
    try:
        return datetime_of(ms)
    except OverflowError:
        return None


def _shown_code(code: CodeSchedule) -> Schedule:
    definition = code.definition()
    return _shown(code.name, code.queue, code.when, definition, is_enrolled=False)


def _shown(
    name: str, queue: str, when: When, definition: Definition, **more: Any
) -> Schedule:
    return Schedule(
        name,
        queue,
        definition.task,
        when,
        definition.args,
        definition.kwargs,
        definition.options,
        definition.priority,
        definition.catch_up,
        not definition.drops,
        is_encrypted=definition.encrypt,
        **more,
    )


def _checking_others(name: str, queue: QueueSettings) -> Steps[None]:
    """Make sure that no other shard has a schedule of this name: its task's limit may have led it there."""
    for part in conf.get_settings().queues_of(queue.shard_of):
        if part.name == queue.name:
            continue
        known = yield from loading(part)
        if name in known.entries:
            raise InvalidSchedule(
                f"a schedule named {name!r} is in shard {part.name!r}, and by the limit of its task this one belongs to"
                f" {queue.name!r}; delete that one first, or choose another name"
            )


def _count_stored(known: Known) -> int:
    return sum(1 for entry in known.entries.values() if entry.stored)
