"""The buttons of a job's page: each does an action, or schedules the job again."""

from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect

from django_delayq.admin.chosen import time_text
from django_delayq.admin.job_page import context_of
from django_delayq.admin.visit import LogEntries, Visit
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import OVER, State
from django_delayq.display import outcome
from django_delayq.display.job_details import ShownJob, ask
from django_delayq.display.payloads import read_content
from django_delayq.display.texts import clean
from django_delayq.exceptions import (
    DecodeError,
    JobNotFound,
    NotDurable,
    TaskNotFound,
)
from django_delayq.jobs import registry
from django_delayq.jobs.actions import ACTIONS, NO_DETAILS, Action
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import get_job
from django_delayq.jobs.prepare import prepare
from django_delayq.jobs.send_many import send_all
from django_delayq.models import Job as JobModel
from django_delayq.translations import gettext, say
from django_delayq.transport.clients import own_clients
from django_delayq.transport.steps import perform
from django_delayq.wording import sentence


def change_job(action: Action, visit: Visit, job_id: str) -> HttpResponse:
    """Do an action to one job; ask first if it deletes the job."""
    settings, token = visit.job(job_id, action.right)
    is_sure = visit.request.method == "POST"
    if not (is_sure or action.deletes):
        return HttpResponseNotAllowed(["POST"])
    (seen,) = ask([queue_reads.inspect(settings.keys, token)])
    job = Job[Any](settings.name, token, None, [], {})
    job._take(seen)
    if not is_sure:
        return _confirm(visit, settings, job, seen, action)
    begun = _sentence(action.label)
    if action.moves and job.state is State.SCHEDULED:
        start_time = time_text(seen.score_ms)
        begun += " " + gettext("Its start time was {time}.", time=start_time)
    entries = _log(visit, settings, seen, job.id, begun, is_deletion=action.deletes)
    error = ""
    try:
        is_done = job.state not in OVER and perform(
            own_clients.of_thread, action.change(job, NO_DETAILS, None)
        )
    except NotDurable as lacking:
        is_done, error = True, f" {_sentence(clean(lacking))}"
    text = _sentence(_text_of(action, job, is_done=is_done)) + error
    _tell(visit, entries, text, is_done=is_done and not error)
    there = visit.queue_url(job.queue) if action.deletes else visit.job_url(job.id)
    return HttpResponseRedirect(visit.next(there))


def schedule_again(visit: Visit, job_id: str) -> HttpResponse:
    """Schedule the call of a job that has ended once more, as another job; its record has the call."""
    settings, token = visit.job(job_id, "change")
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    (seen,) = ask([queue_reads.inspect(settings.keys, token)])
    old = f"{settings.name}:{token}"
    here = visit.job_url(old)
    try:
        job = get_job(old)
        task = registry.get_task(job.task) if job.task is not None else None
    except (JobNotFound, TaskNotFound, DecodeError) as error:
        visit.message(clean(error), messages.WARNING)
        return HttpResponseRedirect(here)
    if task is None or job.state in (State.DEAD, State.QUARANTINED, State.RUNNING):
        text = _sentence(outcome.left_text(_name_of(job), job.state))
        visit.message(text, messages.WARNING)
        return HttpResponseRedirect(here)
    begun = gettext("Schedule again, as another job.")
    entries = _log(visit, settings, seen, old, begun)
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
    _tell(visit, entries, text.format(id=old, other=again.id), is_done=again.created)
    return HttpResponseRedirect(visit.job_url(again.id))


def _with_options(task: TaskDefinition, job: Job[Any]) -> TaskDefinition:
    """Return the task of a job whose new jobs go to its queue, with the options of that call."""
    options = task.options.changed(
        queue=job.queue, encrypt=task.options.encrypt or job.is_encrypted
    ).with_carried(job.options or {})
    return TaskDefinition(task.function, task.name, options, task.base)


def _confirm(
    visit: Visit,
    settings: QueueSettings,
    job: Job[Any],
    seen: Inspected,
    action: Action,
) -> HttpResponse:
    decrypts = visit.may("view_encrypted", settings.name)
    context = context_of(visit, ShownJob(settings, job.token, seen, decrypts))
    if seen.state is State.MISSING:
        return visit.render("gone", context, status=404)
    job_url = visit.job_url(job.id)
    if action.name not in context["can"]:
        text = _sentence(_text_of(action, job, is_done=False))
        visit.message(text, messages.WARNING)
        return HttpResponseRedirect(job_url)
    context |= {
        "title": gettext("Are you sure?"),
        "action": action.name,
        "job_url": job_url,
    }
    return visit.render("confirm", context)


def _sentence(clause: object) -> str:
    return say(sentence(str(clause)))


def _name_of(job: Job[Any]) -> str:
    return gettext("Job {id}", id=job.id)


def _text_of(action: Action, job: Job[Any], *, is_done: bool) -> str:
    """Say how an action on a job went, or why it was left alone."""
    use = str(ACTIONS[action.instead].label)
    return outcome.text_of_one(
        action, _name_of(job), job.state, is_done=is_done, use=use
    )


def _log(
    visit: Visit,
    settings: QueueSettings,
    seen: Inspected,
    job_id: str,
    text: str,
    *,
    is_deletion: bool = False,
) -> LogEntries:
    """Write into the admin's log what is about to happen."""
    task = read_content(seen.payload, len(seen.payload), settings).task
    model = JobModel(id=clean(job_id))
    model.label = clean(f"{task} ({job_id})" if task else job_id)
    # ModelAdmin.log_deletions keeps no message, and cancelled differs from discarded.
    return visit.log(model, DELETION if is_deletion else CHANGE, text)


def _tell(visit: Visit, entries: LogEntries, text: str, *, is_done: bool) -> None:
    """Say how it went, here and in the admin's log."""
    visit.message(text, messages.SUCCESS if is_done else messages.WARNING)
    entries.end(text)
