"""The page of one job, in full."""

from typing import Any

from django.http import Http404, HttpResponse, HttpResponseRedirect

from django_delayq.admin.paths import from_path_part
from django_delayq.admin.visit import Visit
from django_delayq.admin.workers_page import is_of_worker
from django_delayq.core.states import OVER, State
from django_delayq.display.job_details import ShownJob, look_at
from django_delayq.display.payloads import Content, read_raw
from django_delayq.display.texts import size_text
from django_delayq.jobs.actions import (
    ACTIONS,
    CANCEL,
    REPRIORITIZE,
    RESCHEDULE,
    RUN_NOW,
)
from django_delayq.jobs.registry import find_task
from django_delayq.translations import gettext, state_label

#: Where a destination queue or Java has the job, it can still be moved and cancelled. Its lease may have expired.
_LATE = {
    "unknown": (RUN_NOW, RESCHEDULE, REPRIORITIZE, CANCEL),
    "lease expired": (RUN_NOW, CANCEL),
}


def show_job(visit: Visit, job_id: str) -> HttpResponse:
    """Show one job in full, and what it waits for: one round trip, and one more once it runs or has ended."""
    settings, token = visit.job(job_id)
    decrypts = visit.may("view_encrypted", settings.name)
    job = look_at(settings, token, decrypts=decrypts)
    context = context_of(visit, job)
    context["result"], context["error"] = job.result, job.error
    context["progress"] = job.progress
    context["paused"] = job.paused
    if job.seen.state is State.MISSING:
        return visit.render("gone", context, status=404)
    return visit.render_live("job", context)


def lead_from_log(visit: Visit, object_id: str) -> HttpResponse:
    """Lead from the admin's log to a job's page."""
    name, colon, token = from_path_part(object_id).rpartition(":")
    if not colon:
        raise Http404(f"{object_id!r} is neither a job nor a queue nor a worker")
    if is_of_worker(name):
        return HttpResponseRedirect(visit.reverse("workers"))
    queue = visit.queue(name, is_quoted=False)
    # Without a token, it is what was done to the queue.
    url = visit.job_url(f"{queue.name}:{token}") if token else visit.queue_url(name)
    return HttpResponseRedirect(url)


def context_of(visit: Visit, job: ShownJob) -> dict[str, Any]:
    """Return what the page of a job shows, and which buttons it has."""
    payload = job.seen.payload
    back = visit.next(visit.queue_url(job.queue.name))
    return {
        "title": job.content.task or gettext("Job {id}", id=job.id),
        "queue": job.queue,
        "id": job.id,
        "state": job.state,
        "state_label": state_label(job.state),
        "facts": job.facts,
        "events": job.events,
        "content": job.content,
        "raw": None if job.content.is_sensitive else read_raw(payload),
        "size": size_text(len(payload)) if payload else "",
        "urls": {
            name: visit.job_url(job.id, view=name, next=back)
            for name in ("run_now", "retry", "schedule_again", "cancel", "discard")
        },
        "change_url": visit.reverse("bulk"),
        "back": back,
        "here": visit.request.get_full_path(),
        "can": _offered(visit, job),
    }


def _offered(visit: Visit, job: ShownJob) -> set[str]:
    """Return the names of what the buttons of the page do."""
    where, queue = job.seen.state, job.queue
    found = {
        action.name
        for action in ACTIONS.values()
        if (where in action.states or action in _LATE.get(job.state, ()))
        and where is not action.needless
        and not (action is REPRIORITIZE and queue.is_shared)
        and visit.may(action.right, queue.name)
    }
    if where in OVER and _is_whole(job.content):
        found |= {"schedule_again"} if visit.may("change", queue.name) else set()
    return found


def _is_whole(content: Content) -> bool:
    """Whether a payload is a call of a task of this process, signed by us."""
    return not (content.is_foreign or content.is_unchecked or content.fault) and (
        find_task(content.task) is not None
    )
