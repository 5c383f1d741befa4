"""What can be done to one job by a button of its page: run it now, retry it, schedule it again, cancel it, discard it."""

from typing import Any, TypeVar

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext, gettext_lazy

from django_delayq import conf
from django_delayq.admin.actions import time_text
from django_delayq.admin.job_page import context_of
from django_delayq.admin.visit import Noted, Visit
from django_delayq.calls.call import Call
from django_delayq.calls.running import run
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings
from django_delayq.delivery import changing, looking
from django_delayq.delivery.states import GRAVES, Change, State
from django_delayq.exceptions import DecodeError, JobNotFound, TaskNotFound
from django_delayq.jobs import job as handles
from django_delayq.jobs import registry
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import get_job, handle_of, kept_if_cancelled
from django_delayq.jobs.preparing import prepare
from django_delayq.jobs.sending import send_all
from django_delayq.jobs.telling import BY_CALL, task_of
from django_delayq.models import Job
from django_delayq.showing import display
from django_delayq.signals import job_cancelled, tell
from django_delayq.translating import state_label

T = TypeVar("T")
#: Why a job could not be moved or cancelled.
_TOO_LATE = {
    State.RUNNING: gettext_lazy("Job {id} is already running: a worker took it first."),
    State.SUCCEEDED: gettext_lazy("Job {id} has already succeeded."),
    State.DISCARDED: gettext_lazy("Job {id} was already discarded."),
    State.CANCELLED: gettext_lazy("Job {id} was already cancelled."),
    State.EXPIRED: gettext_lazy("Job {id} has already expired."),
    State.TAKEN: gettext_lazy("Job {id} was already taken."),
    State.DEAD: gettext_lazy(
        "Job {id} is a dead letter by now: retry or discard it instead."
    ),
    State.QUARANTINED: gettext_lazy(
        "Job {id} is in quarantine by now: retry or discard it instead."
    ),
    State.MISSING: gettext_lazy(
        "Job {id} no longer exists: it has ended, or was cancelled or taken."
    ),
}


def run_now(visit: Visit, job_id: str) -> HttpResponse:
    """Make a job that waits due now."""
    settings, token = visit.job(job_id, "change")
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    act = _Act(visit, settings, token)
    begun = gettext("Run now.")
    if act.seen.state is State.SCHEDULED:
        template = gettext("Its start time was {time}.")
        begun += f" {template.format(time=time_text(act.seen.score_ms))}"
    act.begin(CHANGE, begun)
    change: Change | State = act.run(changing.reschedule(act.keys, act.token, "+0"))[0]
    if change is Change.RESCHEDULED:
        act.succeed(gettext("Job {id} is due now."))
    elif change is Change.NOTED:
        act.note(
            gettext(
                "Job {id} is in a destination queue that is too long to search, or Java took it. It is due at once if a worker here takes it, but not if Java does."
            ),
        )
    else:
        act.fail(change)
    return HttpResponseRedirect(visit.next(visit.job_url(act.id)))


def retry(visit: Visit, job_id: str) -> HttpResponse:
    """Retry a dead letter or a quarantined job."""
    settings, token = visit.job(job_id, "change")
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    act = _Act(visit, settings, token)
    act.begin(CHANGE, gettext("Retry."))
    if act.seen.state in GRAVES and act.run(
        changing.replay(act.keys, [act.token], state=act.seen.state)
    ):
        act.succeed(gettext("Job {id} is retried: it is due now."))
    else:
        act.fail(act.run(looking.inspect(act.keys, act.token)).state)
    return HttpResponseRedirect(visit.next(visit.job_url(act.id)))


def schedule_again(visit: Visit, job_id: str) -> HttpResponse:
    """Schedule the call of a job that has ended once more, as another job; its record has the call."""
    settings, token = visit.job(job_id, "change")
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    act = _Act(visit, settings, token)
    here = visit.job_url(act.id)
    try:
        job = get_job(act.id)
        task = registry.get_task(job.task) if job.task is not None else None
    except (JobNotFound, TaskNotFound, DecodeError) as error:
        visit.message(display.clean(error), messages.WARNING)
        return HttpResponseRedirect(here)
    if task is None or job.state in (State.DEAD, State.QUARANTINED, State.RUNNING):
        act.fail(job.state)
        return HttpResponseRedirect(here)
    act.begin(CHANGE, gettext("Schedule again, as another job."))
    same = _with_options(task, job)
    # At once, even where the request is a transaction: its page is shown next, and nothing here writes a row.
    (again,) = send_all([prepare(same, 0, job.args, job.kwargs)])
    if again.created:
        text = gettext(
            "Job {id} is scheduled once more, as job {other}: it is due now."
        )
    else:
        text = gettext(
            "Job {id} was not scheduled again: job {other} holds its unique key."
        )
    act.tell(
        text.format(id=act.id, other=again.id),
        messages.SUCCESS if again.created else messages.WARNING,
    )
    return HttpResponseRedirect(visit.job_url(again.id))


def _with_options(task: TaskDefinition, job: handles.Job[Any]) -> TaskDefinition:
    """Return the task of a job whose new jobs go to its queue, with the options of that call."""
    options = task.options.changed(
        queue=job.queue, encrypt=task.options.encrypt or job.is_encrypted
    ).with_carried(job.options or {})
    return TaskDefinition(task.function, task.name, options, task.base)


def cancel(visit: Visit, job_id: str) -> HttpResponse:
    """Ask, then cancel a job unless it runs."""
    settings, token = visit.job(job_id, "delete")
    if visit.request.method != "POST":
        return _confirm(_Act(visit, settings, token), "cancel")
    act = _Act(visit, settings, token)
    keep = conf.keep_ended(act.settings.name)
    kept = kept_if_cancelled([act.cancelled()])
    act.begin(DELETION, gettext("Cancel."))
    change = act.run(changing.cancel(act.keys, act.token, keep_ended=keep, kept=kept))
    if change is Change.CANCELLED:
        if job_cancelled.receivers:
            tell(job_cancelled, task_of(job := act.cancelled()), job, reason=BY_CALL)
        act.succeed(gettext("Job {id} is cancelled and will not run."))
    elif change is Change.NOTED:
        act.note(
            gettext(
                "Job {id} is in a destination queue that is too long to search, or Java took it. Workers here will not run it, but Java may."
            ),
        )
    else:
        act.fail(change)
    return HttpResponseRedirect(visit.next(visit.queue_url(act.settings.name)))


def discard(visit: Visit, job_id: str) -> HttpResponse:
    """Ask, then delete a dead letter or a quarantined payload for good."""
    settings, token = visit.job(job_id, "delete")
    if visit.request.method != "POST":
        return _confirm(_Act(visit, settings, token), "discard")
    act = _Act(visit, settings, token)
    act.begin(DELETION, gettext("Discard."))
    if act.seen.state in GRAVES and act.run(
        changing.discard(act.keys, [act.token], state=act.seen.state)
    ):
        act.succeed(gettext("Job {id} is discarded for good."))
    else:
        act.fail(act.run(looking.inspect(act.keys, act.token)).state)
    return HttpResponseRedirect(visit.next(visit.queue_url(act.settings.name)))


def _confirm(act: "_Act", action: str) -> HttpResponse:
    visit = act.visit
    context = context_of(visit, act.settings, act.token, act.seen)
    if act.seen.state is State.MISSING:
        return visit.render("gone", context, status=404)
    job_url = visit.job_url(act.id)
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
        self._noted: Noted | None = None

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

    def begin(self, flag: int, text: str) -> None:
        """Write into the admin's log what is about to happen."""
        task = display.read_content(
            self.seen.payload, len(self.seen.payload), self.settings
        ).task
        job = Job(id=display.clean(self.id))
        job.label = display.clean(f"{task} ({self.id})" if task else self.id)
        # ModelAdmin.log_deletions keeps no message, and cancelled differs from discarded.
        self._noted = self.visit.note(job, flag, text)

    def succeed(self, text: str) -> None:
        self.tell(text.format(id=self.id), messages.SUCCESS)

    def note(self, text: str) -> None:
        self.tell(text.format(id=self.id), messages.WARNING)

    def tell(self, text: str, level: int) -> None:
        """Say how it went, here and in the admin's log."""
        self.visit.message(text, level)
        if self._noted is not None:
            self._noted.end(text)

    def fail(self, state: Change | State) -> None:
        """Say why the job was left alone, here and in the admin's log."""
        template = _TOO_LATE.get(State(state)) or gettext("Job {id} is {state}.")
        text = str(template).format(id=self.id, state=state_label(state))
        self.tell(text, messages.WARNING)
