"""Periodic schedules as a project sees them: listed, paused, changed, stored, fired. Workers move them on.

The effect of a change on the waiting job is in ``delivery``.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Unpack

import msgspec

from django_delayq import conf
from django_delayq.calls.steps import Steps
from django_delayq.calls.together import together
from django_delayq.clients.performing import aperformed, performed
from django_delayq.clock import boottime_ms, epoch_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery import looking, storing
from django_delayq.delivery.periods import KEPT, Entry
from django_delayq.delivery.states import State
from django_delayq.exceptions import (
    DelayqError,
    InvalidSchedule,
    InvalidTask,
    ScheduleNotFound,
    TaskNotFound,
)
from django_delayq.jobs import periodic as definitions
from django_delayq.jobs import sharding
from django_delayq.jobs.answers import asking, complete
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.envelope import OCCURRENCE, SCHEDULE
from django_delayq.jobs.job import Draft, Job
from django_delayq.jobs.known_schedules import Found, Known, loading
from django_delayq.jobs.occurrences import When, datetime_of
from django_delayq.jobs.options import CallOptions
from django_delayq.jobs.pausing import Task, actor, checked_text, name_of
from django_delayq.jobs.periodic import CatchUp, Change, CodeSchedule
from django_delayq.jobs.registry import get_task
from django_delayq.jobs.schedule_moves import found_elsewhere, loading_others
from django_delayq.jobs.schedule_writes import arrange, arranging
from django_delayq.logs import get_log
from django_delayq.redaction import brief, show

logger = get_log("django_delayq.jobs")

#: How many schedules somebody may store on a queue: each of its workers reads them all.
MAX_STORED = 1_000
#: So often somebody else may be quicker before a change gives up.
TRIES = 50


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
        yield from _pausing(self.queue, self.name, reason, by)
        return (yield from _getting(self.name, self.queue))

    apause = aperformed(pause)

    @performed
    def resume(self) -> Steps["Schedule"]:
        """Continue with its next occurrence; those that it has missed stay missed.

        Raises:
            ScheduleNotFound: it is gone.
        """
        yield from _resuming(self.queue, self.name)
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
        yield from _overriding(self.queue, self.name, when)
        return (yield from _getting(self.name, self.queue))

    aoverride = aperformed(override)

    @performed
    def fire(self) -> Steps[Job[Any]]:
        """Store a job of it that is due now, beside those of its occurrences, even if it is paused.

        Raises:
            ScheduleNotFound: it is gone.
        """
        return _firing(self.queue, self.name)

    afire = aperformed(fire)

    @performed
    def delete(self) -> Steps[bool]:
        """Delete it, and the job that waits unless its occurrence has come; return False if it was gone.

        Only for schedules that are stored, and those that have gone from code: workers would enroll any other again.

        Raises:
            InvalidSchedule: it is in code.
        """
        return _deleting(self.queue, self.name)

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
    for _ in range(TRIES):
        known = yield from loading(queue)
        entry = known.entries.get(name) or Entry()
        if entry.code or name in _in_code(queue.name):
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
    raise _too_busy(name)


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
        code = _in_code(each.name)
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


def _in_code(queue: str) -> dict[str, CodeSchedule]:
    return {
        schedule.name: schedule
        for schedule in definitions.all_schedules()
        if schedule.queue == queue
    }


def _getting(name: str, queue: str | None) -> Steps[Schedule]:
    settings = conf.get_settings()
    if queue is not None and queue not in settings.sharded:
        known = yield from loading(settings.queue(queue))
        one = known.find(name)
        if one is not None:
            # What a later version has written is not shown.
            with suppress(InvalidSchedule):
                return (yield from _showing(known, one, _in_code(queue)))
    all_found, missing = yield from _finding_all(queue)
    found = [schedule for schedule in all_found if schedule.name == name]
    if len(found) > 1:
        queues = ", ".join(schedule.queue for schedule in found)
        raise ScheduleNotFound(
            f"there are schedules named {show(name)} on several queues: {queues}; say which: get_schedule(name, queue)"
        )
    if not found:
        complete(all_found, missing)
        raise _not_found(name, [schedule.name for schedule in all_found])
    return found[0]


def _not_found(name: str, names: Sequence[str] = ()) -> ScheduleNotFound:
    known = f"; there are {', '.join(map(repr, names[:20]))}" if names else ""
    return ScheduleNotFound(f"no schedule is named {show(name)}{known}")


def _waiting_token(known: Known, entry: Entry) -> Steps[str]:
    """Return the token of the job that waits for the next occurrence; empty: it was cancelled, or run early."""
    token, occurrence_ms = entry.state.token, entry.occurrence_ms
    if not token or occurrence_ms is None:
        return ""
    job = yield looking.inspect(known.queue.keys, token)
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
    is_known = found.name in code
    if found.is_stored:
        try:
            get_task(definition.task)
            is_known = True
        except TaskNotFound:
            is_known = False
    paused_ms = change.paused_ms if change else 0
    fired_ms = state.fired_by(known.now_ms)
    return Schedule(
        found.name,
        found.queue.name,
        definition.task,
        when,
        definition.args,
        definition.kwargs,
        definition.options,
        definition.priority,
        definition.catch_up,
        not definition.drops,
        is_stored=found.is_stored,
        is_orphan=not is_known,
        is_overridden=change is not None and change.when is not None,
        is_encrypted=definition.encrypt,
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
    return Schedule(
        code.name,
        code.queue,
        definition.task,
        code.when,
        definition.args,
        definition.kwargs,
        definition.options,
        definition.priority,
        definition.catch_up,
        not definition.drops,
        is_encrypted=definition.encrypt,
        is_enrolled=False,
    )


# Changes.


def _finding(queue_name: str, name: str) -> Steps[tuple[Known, Found, bytes | str]]:
    """Return a schedule as the server knows it now; or as our code does, and then its definition to write with a change."""
    known = yield from loading(conf.get_settings().queue(queue_name))
    found = known.find(name)
    if found is not None:
        return known, found, KEPT
    queue = known.queue
    code = _in_code(queue.name).get(name)
    moved = known.read(name)
    if moved is not None:
        raise ScheduleNotFound(
            f"schedule {name!r} has moved from queue {queue.name!r} to {moved.definition.moved_to!r}; use"
            " get_schedule(name, queue)"
        )
    if code is None:
        raise _not_found(name)
    definition = msgspec.structs.replace(
        code.definition(), loaded_ms=definitions.LoadTime().by(known.now_ms)
    )
    others = yield from loading_others(queue)
    for other, _ in found_elsewhere(others, name, definition.task):
        raise InvalidSchedule(
            f"schedule {name!r} was not changed: it moves from queue {other.queue.name!r} to {queue.name!r} when a worker"
            " with this code starts; try again then"
        )
    found = Found(queue, name, Entry(), definition, None, False)
    return known, found, definitions.sealed(queue.name, "code", name, definition)


def _changing(queue_name: str, name: str, **changed: Any) -> Steps[None]:
    """Write a change beside a definition."""
    for _ in range(TRIES):
        known, found, code = yield from _finding(queue_name, name)
        values = dict(changed)
        if "paused_ms" in values:
            values["paused_ms"] = known.now_ms if values["paused_ms"] else 0
        change = msgspec.structs.replace(found.change or Change(), **values)
        text: bytes | str = ""
        if change != Change():
            text = definitions.sealed(known.queue.name, "change", found.name, change)
        changed_found = found._replace(change=change)
        if (yield from arranging(known, changed_found, code=code, change=text)):
            return
    raise _too_busy(name)


def _too_busy(name: str) -> InvalidSchedule:
    return InvalidSchedule(
        f"schedule {name!r} was not changed: other changes to schedules of its queue came first each time; try again"
    )


def _pausing(queue_name: str, name: str, reason: str, by: str) -> Steps[None]:
    by, reason = (
        checked_text(by or actor(), "by"),
        checked_text(reason, "reason"),
    )
    yield from _changing(queue_name, name, paused_ms=1, by=by, reason=reason)
    logger.warning(
        "schedule %s of queue %s is paused, by %s%s",
        name,
        queue_name,
        " ".join(by.split()),
        f": {' '.join(reason.split())}" if reason else "",
    )


def _resuming(queue_name: str, name: str) -> Steps[None]:
    yield from _changing(queue_name, name, paused_ms=0, by="", reason="")
    logger.warning(
        "schedule %s of queue %s was resumed, by %s",
        name,
        queue_name,
        actor(),
    )


def _overriding(queue_name: str, name: str, when: When | None) -> Steps[None]:
    if when is not None:
        if not isinstance(when, When):
            raise InvalidSchedule(
                f"override() takes cron(…), every(…) or None; got {show(when)}"
            )
        when.check()
    yield from _changing(
        queue_name, name, when=None if when is None else when.as_json()
    )
    logger.warning(
        "schedule %s of queue %s has %s, by %s",
        name,
        queue_name,
        "the times of its definition again" if when is None else f"the times {when}",
        actor(),
    )


def _firing(queue_name: str, name: str) -> Steps[Job[Any]]:
    known, found, _ = yield from _finding(queue_name, name)
    queue, definition = known.queue, found.definition
    code = None if found.is_stored else _in_code(queue.name).get(found.name)
    if code is not None:
        # No worker may have looked since somebody wrote an earlier definition back.
        definition = code.definition()
    yield from sharding.agreeing_on(queue.name)
    new = definitions.extra(queue, found.name, definition, known.now_ms)
    job: Job[Any] = Job(
        queue.name,
        new.token,
        definition.task,
        definition.args,
        definition.kwargs,
        Draft(new, sent_ms=boottime_ms()),
    )
    job.options, job.priority = definition.options or None, definition.priority
    (stored,) = yield storing.schedule(queue.target.unlimited, [new])
    job.state, job.start_time_ms = State.SCHEDULED, stored.start_time_ms
    job.take_headers({SCHEDULE: found.name, OCCURRENCE: str(known.now_ms)})
    return job


def _deleting(queue_name: str, name: str) -> Steps[bool]:
    queue = conf.get_settings().queue(queue_name)
    if name in _in_code(queue.name):
        known = yield from loading(queue)
        entry = known.entries.get(name)
        if entry is None or entry.code or not entry.stored:
            raise InvalidSchedule(
                f"schedule {name!r} is in code, and workers would enroll it again; delete its @periodic, or pause it"
            )
    for _ in range(TRIES):
        known = yield from loading(queue)
        if name not in known.entries:
            return False
        version: int = yield arrange(
            known,
            name,
            code="",
            stored="",
            change="",
            print="",
            next_ms=None,
        )
        if version:
            logger.warning(
                "schedule %s of queue %s was deleted, by %s",
                name,
                queue.name,
                actor(),
            )
            return True
    raise _too_busy(name)


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
