"""The page of a queue's periodic schedules: its rows, and what its buttons do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils import timezone

from django_delayq.admin.display import clean
from django_delayq.exceptions import InvalidSchedule
from django_delayq.jobs.moments import cron
from django_delayq.jobs.pausing import MAX_REASON
from django_delayq.jobs.schedules import Schedule

#: How many moments of each schedule are shown.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule, as texts."""

    name: str
    task: str
    words: str
    #: The next moments, in the zone of the schedule.
    moments: list[str]
    last: str
    #: What is out of the ordinary.
    notes: list[str]
    is_paused: bool
    is_overridden: bool
    is_deletable: bool
    #: The job of the next moment; "": none waits.
    token: str


def row_of(schedule: Schedule) -> Row:
    """Describe a schedule."""
    notes = []
    if schedule.is_stored:
        notes.append("stored")
    if schedule.is_overridden:
        notes.append("has other moments than its definition")
    if not schedule.overlap:
        notes.append("its jobs do not overlap")
    if not schedule.is_enrolled:
        notes.append("not enrolled yet: the first worker that starts does that")
    if schedule.is_orphan:
        notes.append(
            "orphan: this process knows no such task"
            if schedule.is_stored
            else "orphan: the code of this process has no such schedule"
        )
    if schedule.paused_since is not None:
        since = timezone.localtime(schedule.paused_since)
        reason = f": {schedule.paused_reason}" if schedule.paused_reason else ""
        notes.append(
            f"paused since {since:%Y-%m-%d %H:%M:%S}, by {schedule.paused_by}{reason}"
        )
    try:
        moments = [f"{each:%Y-%m-%d %H:%M:%S %z}" for each in schedule.moments(SHOWN)]
    except InvalidSchedule as error:
        moments = [str(error)]
    last = schedule.last_moment
    return Row(
        clean(schedule.name),
        clean(schedule.task),
        clean(schedule.words),
        moments,
        f"{timezone.localtime(last):%Y-%m-%d %H:%M:%S}" if last is not None else "",
        [clean(note) for note in notes],
        schedule.is_paused,
        schedule.is_overridden,
        schedule.is_stored or schedule.is_orphan,
        schedule.job_id.rpartition(":")[2],
    )


@dataclass(frozen=True, slots=True)
class Action:
    """What a button does, and what is said of it."""

    #: Takes the schedule and what was posted; returns what the schedule is now.
    act: Callable[[Schedule, Mapping[str, str], str], str]
    #: It needs the right to delete.
    deletes: bool = False


def _pause(schedule: Schedule, posted: Mapping[str, str], by: str) -> str:
    reason = posted.get("reason", "")[:MAX_REASON]
    schedule.pause(reason=reason, by=clean(by)[:MAX_REASON])
    return "is paused"


def _resume(schedule: Schedule, posted: Mapping[str, str], by: str) -> str:
    schedule.resume()
    return "is resumed"


def _fire(schedule: Schedule, posted: Mapping[str, str], by: str) -> str:
    return f"was fired: job {schedule.fire().id} is due now"


def _change(schedule: Schedule, posted: Mapping[str, str], by: str) -> str:
    when = cron(posted.get("cron", ""), tz=posted.get("tz", "").strip() or None)
    schedule.override(when)
    return f"has other moments: {when.words}"


def _take_back(schedule: Schedule, posted: Mapping[str, str], by: str) -> str:
    schedule.override(None)
    return "has the moments of its definition again"


def _delete(schedule: Schedule, posted: Mapping[str, str], by: str) -> str:
    return "is deleted" if schedule.delete() else "was gone already"


ACTIONS = {
    "pause": Action(_pause),
    "resume": Action(_resume),
    "fire": Action(_fire),
    "change": Action(_change),
    "take-back": Action(_take_back),
    "delete": Action(_delete, deletes=True),
}
