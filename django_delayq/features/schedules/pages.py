"""The page of a queue's periodic schedules: its rows, and what its buttons do. It reads all schedules of the queue."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.conf import settings as django_settings
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_delayq.admin.visit import Right, Visit, with_reason
from django_delayq.conf import QueueSettings
from django_delayq.display.texts import clean, cut
from django_delayq.exceptions import DelayqError
from django_delayq.features.schedules.api import Schedule, get_schedule, get_schedules
from django_delayq.features.schedules.schedule_texts import (
    enrolment_text,
    occurrences_of,
    pause_text,
)
from django_delayq.jobs.actor import MAX_REASON
from django_delayq.jobs.occurrences import Cron, cron
from django_delayq.translations import gettext, moment_text, when_text


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule, as texts."""

    name: str
    task: str
    words: str
    #: The next occurrences, in the zone of the schedule.
    occurrences: list[str]
    last: str
    #: What else is to be known of it, and why it does not come.
    notes: list[str]
    faults: list[str]
    is_paused: bool
    is_overridden: bool
    is_deletable: bool
    #: Name of the time zone of a cron expression; "": the project's.
    tz: str
    #: The job of the next occurrence; "": none waits.
    job_id: str


def row_of(schedule: Schedule) -> Row:
    """Describe a schedule."""
    notes, faults = [], []
    if schedule.is_stored:
        notes.append(gettext("stored"))
    if schedule.is_overridden:
        notes.append(gettext("runs at other times than its definition says"))
    if not schedule.overlap:
        notes.append(gettext("its jobs do not overlap"))
    notes += filter(None, [enrolment_text(schedule)])
    if schedule.is_orphan:
        faults.append(
            gettext("orphan: this process has no such task")
            if schedule.is_stored
            else gettext("orphan: the code of this process has no such schedule")
        )
    faults += filter(None, [pause_text(schedule)])
    last = schedule.last_occurrence
    return Row(
        clean(schedule.name),
        clean(schedule.task),
        clean(when_text(schedule.when)),
        occurrences_of(schedule),
        moment_text(last) if last is not None else "",
        [clean(note) for note in notes],
        [clean(fault) for fault in faults],
        schedule.is_paused,
        schedule.is_overridden,
        schedule.is_stored or schedule.is_orphan,
        (isinstance(schedule.when, Cron) and schedule.when.tz) or "",
        schedule.job_id,
    )


@dataclass(frozen=True, slots=True)
class Action:
    """One action of the page, and the message that it shows."""

    #: Changes the schedule by the posted form, and returns the message to show.
    act: Callable[[Schedule, Mapping[str, str]], str]
    #: What the admin's log has of it before it is done.
    log: str | Promise
    #: It needs the right to delete.
    deletes: bool = False

    @property
    def right(self) -> Right:
        """The permission that a user needs for it."""
        return "delete" if self.deletes else "change"


def _pause(schedule: Schedule, posted: Mapping[str, str]) -> str:
    reason = posted.get("reason", "")[:MAX_REASON]
    schedule.pause(reason=reason)
    return gettext("Schedule {name} is paused.", name=schedule.name)


def _resume(schedule: Schedule, posted: Mapping[str, str]) -> str:
    schedule.resume()
    return gettext("Schedule {name} is resumed.", name=schedule.name)


def _fire(schedule: Schedule, posted: Mapping[str, str]) -> str:
    return gettext(
        "Schedule {name} was fired: job {id} is due now.",
        name=schedule.name,
        id=schedule.fire().id,
    )


def _change(schedule: Schedule, posted: Mapping[str, str]) -> str:
    when = cron(posted.get("cron", ""), tz=posted.get("tz", "").strip() or None)
    schedule.override(when)
    return gettext(
        "Schedule {name} has new times: {times}.",
        name=schedule.name,
        times=when_text(when),
    )


def _take_back(schedule: Schedule, posted: Mapping[str, str]) -> str:
    schedule.override(None)
    return gettext(
        "Schedule {name} has the times of its definition again.", name=schedule.name
    )


def _delete(schedule: Schedule, posted: Mapping[str, str]) -> str:
    template = (
        gettext("Schedule {name} is deleted.")
        if schedule.delete()
        else gettext("Schedule {name} no longer exists.")
    )
    return template.format(name=schedule.name)


ACTIONS = {
    "pause": Action(_pause, gettext_lazy("Pause schedule {name}.")),
    "resume": Action(_resume, gettext_lazy("Resume schedule {name}.")),
    "fire": Action(_fire, gettext_lazy("Fire schedule {name}.")),
    "change": Action(
        _change,
        gettext_lazy(
            "Change the times of schedule {name} from “{before}” to “{after}”."
        ),
    ),
    "take-back": Action(
        _take_back,
        gettext_lazy("Take back the times “{before}” of schedule {name}."),
    ),
    "delete": Action(_delete, gettext_lazy("Delete schedule {name}."), deletes=True),
}


def _wanted(posted: Mapping[str, str]) -> str:
    """Return the times that the user entered, for the admin's log."""
    return cut(" ".join([posted.get("cron", ""), posted.get("tz", "")]).strip(), 200)


def show_schedules(visit: Visit, queue: str) -> HttpResponse:
    """Show the periodic schedules of a queue; pause, resume, fire, change or delete one."""
    settings = visit.queue(queue)
    if visit.request.method == "POST":
        _change_schedule(visit, settings)
        return HttpResponseRedirect(visit.reverse("schedules", settings.name))
    found = visit.part(lambda: get_schedules(settings.name))
    rows = [row_of(each) for each in found]
    context = {
        "title": gettext("Schedules of queue {queue}", queue=settings.name),
        "queue": settings,
        "back": visit.queue_url(settings.name),
        "rows": [(row, row.job_id and visit.job_url(row.job_id)) for row in rows],
        "time_zone": django_settings.TIME_ZONE,
        "may_change": visit.may("change", settings.name),
        "may_delete": visit.may("delete", settings.name),
    }
    return visit.render("schedules", context)


def _change_schedule(visit: Visit, settings: QueueSettings) -> None:
    posted = visit.request.POST.dict()
    action = ACTIONS.get(str(posted.get("action")))
    if action is None:
        raise Http404(f"a schedule has no action {posted.get('action')!r}")
    visit.check(action.right, settings.name)
    name = str(posted.get("name"))
    try:
        schedule = get_schedule(name, settings.name)
    except DelayqError as error:
        visit.message(str(error), messages.WARNING)
        return
    begun = str(action.log).format(
        name=name, before=when_text(schedule.when), after=_wanted(posted)
    )
    reason = posted.get("reason", "") if action is ACTIONS["pause"] else ""
    entry = visit.begin(settings, with_reason(begun, str(reason)[:MAX_REASON]))
    try:
        text, level = action.act(schedule, posted), messages.SUCCESS
    except DelayqError as error:
        text, level = str(error), messages.WARNING
    entry.end(text)
    visit.message(text, level)


#: Address, page, and name of the address.
PAGES = [
    ("<str:queue>/schedules/", show_schedules, "schedules"),
]
