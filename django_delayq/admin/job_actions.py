"""What can be done to one job: run it now or again, cancel it, discard it."""

from typing import Any, TypeVar

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext, gettext_lazy

from django_delayq import conf
from django_delayq.admin.job_page import context_of
from django_delayq.admin.paths import from_path_part
from django_delayq.admin.visit import Visit, queue_of
from django_delayq.calls.call import Call
from django_delayq.calls.running import run
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings
from django_delayq.delivery import changing, looking
from django_delayq.delivery.states import GRAVES, Change, State
from django_delayq.jobs.job import handle_of, kept_if_cancelled
from django_delayq.jobs.telling import BY_CALL, task_of
from django_delayq.models import Job
from django_delayq.showing import display
from django_delayq.signals import job_cancelled, tell
from django_delayq.translating import state_label

T = TypeVar("T")
#: Why a job could not be moved or cancelled.
_TOO_LATE = {
    State.RUNNING: gettext_lazy("Job {id} is running already: a worker was first."),
    State.SUCCEEDED: gettext_lazy("Job {id} has succeeded already."),
    State.FAILED: gettext_lazy("Job {id} was discarded already."),
    State.CANCELLED: gettext_lazy("Job {id} is cancelled already."),
    State.EXPIRED: gettext_lazy("Job {id} has expired already."),
    State.TAKEN: gettext_lazy("Job {id} was taken already."),
    State.DEAD: gettext_lazy(
        "Job {id} is a dead letter by now: discard it or run it again instead."
    ),
    State.QUARANTINED: gettext_lazy(
        "Job {id} is in quarantine by now: discard it or run it again instead."
    ),
    State.MISSING: gettext_lazy(
        "Job {id} is gone: it has ended, or was cancelled or taken."
    ),
}


def run_now(visit: Visit, queue: str, token: str) -> HttpResponse:
    """Make a job due now; a dead letter or a quarantined payload starts over."""
    visit.check_may_change()
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    act = _Act(visit, queue_of(queue), from_path_part(token))
    change: Change | State = act.run(changing.reschedule(act.keys, act.token, "+0"))[0]
    if change in GRAVES:
        if act.run(changing.replay(act.keys, [act.token], state=State(change))):
            act.succeed(
                CHANGE,
                gettext("Run again."),
                gettext("Job {id} starts over: it is due now."),
            )
        else:
            act.fail(State.MISSING)
    elif change is Change.RESCHEDULED:
        act.succeed(CHANGE, gettext("Run now."), gettext("Job {id} is due now."))
    elif change is Change.NOTED:
        act.note(
            CHANGE,
            gettext("Run now."),
            gettext(
                "Job {id} lies in a destination queue that is too long to search, or was taken by Java; it is due"
                " at once if a worker here takes it, but not if Java does."
            ),
        )
    else:
        act.fail(change)
    return HttpResponseRedirect(visit.next(visit.job_url(act.settings.name, act.token)))


def cancel(visit: Visit, queue: str, token: str) -> HttpResponse:
    """Ask, then cancel a job unless it runs."""
    visit.check_may_delete()
    if visit.request.method != "POST":
        return _confirm(visit, queue, token, "cancel")
    act = _Act(visit, queue_of(queue), from_path_part(token))
    keep, kept = (
        conf.keep_ended(act.settings.name),
        kept_if_cancelled([act.cancelled()]),
    )
    change = act.run(changing.cancel(act.keys, act.token, keep_ended=keep, kept=kept))
    if change is Change.CANCELLED:
        if job_cancelled.receivers:
            tell(job_cancelled, task_of(job := act.cancelled()), job, reason=BY_CALL)
        act.succeed(
            DELETION,
            gettext("Cancelled."),
            gettext("Job {id} is cancelled and will not run."),
        )
    elif change is Change.NOTED:
        act.note(
            DELETION,
            gettext("Cancelled."),
            gettext(
                "Job {id} lies in a destination queue that is too long to search, or was taken by Java; it will not"
                " run if a worker here takes it, but Java may run it."
            ),
        )
    else:
        act.fail(change)
    return HttpResponseRedirect(visit.next(visit.queue_url(act.settings.name)))


def discard(visit: Visit, queue: str, token: str) -> HttpResponse:
    """Ask, then delete a dead letter or a quarantined payload for good."""
    visit.check_may_delete()
    if visit.request.method != "POST":
        return _confirm(visit, queue, token, "discard")
    act = _Act(visit, queue_of(queue), from_path_part(token))
    if act.seen.state in GRAVES and act.run(
        changing.discard(act.keys, [act.token], state=act.seen.state)
    ):
        act.succeed(
            DELETION,
            gettext("Discarded."),
            gettext("Job {id} is discarded for good."),
        )
    else:
        act.fail(act.run(looking.inspect(act.keys, act.token)).state)
    return HttpResponseRedirect(visit.next(visit.queue_url(act.settings.name)))


def _confirm(visit: Visit, queue: str, token: str, action: str) -> HttpResponse:
    act = _Act(visit, queue_of(queue), from_path_part(token))
    context = context_of(visit, act.settings, act.token, act.seen)
    if act.seen.state is State.MISSING:
        return visit.render("gone", context, status=404)
    job_url = visit.job_url(act.settings.name, act.token)
    if not context[f"can_{action}"]:
        act.fail(act.seen.state)
        return HttpResponseRedirect(job_url)
    context |= {
        "title": gettext("Are you sure?"),
        "action": action,
        "job_url": job_url,
    }
    return visit.render("confirm", context)


class _Act:
    """An action on one job: its call, its message to the user, its entry in the admin's log."""

    def __init__(self, visit: Visit, settings: QueueSettings, token: str) -> None:
        self.visit, self.settings, self.token = visit, settings, token
        self.keys = settings.keys
        self.client = own_clients.of_thread()
        #: The job before the action; afterwards its task may be unknown.
        self.seen = self.run(looking.inspect(self.keys, token))

    def run(self, call: Call[T]) -> T:
        return run(self.client, call)

    @property
    def id(self) -> str:
        return f"{self.settings.name}:{self.token}"

    def cancelled(self) -> Any:
        """Return the handle of the job as it was before the action, cancelled since."""
        job = handle_of(self.id)
        job._take(self.seen)
        job.state = State.CANCELLED
        return job

    def succeed(self, flag: int, log: str, text: str) -> None:
        self._log(flag, log)
        self.visit.message(text.format(id=self.id), messages.SUCCESS)

    def note(self, flag: int, log: str, text: str) -> None:
        self._log(flag, log)
        self.visit.message(text.format(id=self.id), messages.WARNING)

    def fail(self, state: Change | State) -> None:
        """Say why the job could not be moved or cancelled."""
        template = _TOO_LATE.get(State(state)) or gettext("Job {id} is {state}.")
        text = template.format(id=self.id, state=state_label(state))
        self.visit.message(text, messages.WARNING)

    def _log(self, flag: int, message: str) -> None:
        task = display.read_content(
            self.seen.payload, len(self.seen.payload), self.settings
        ).task
        job = Job(id=display.clean(self.id))
        job.label = display.clean(f"{task} ({self.id})" if task else self.id)
        # ModelAdmin.log_deletions keeps no message, and cancelled differs from discarded.
        self.visit.log(job, flag, message)
