"""The page of one job, in full."""

from dataclasses import replace
from typing import Any, NamedTuple

from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from django_delayq.admin.paths import from_path_part
from django_delayq.admin.visit import Visit
from django_delayq.admin.workers_page import is_of_worker
from django_delayq.calls.command import Command
from django_delayq.conf import QueueSettings
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.looking import Inspected
from django_delayq.delivery.states import OVER, State
from django_delayq.exceptions import DecodeError
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.actions import (
    ACTIONS,
    CANCEL,
    REPRIORITIZE,
    RESCHEDULE,
    RUN_NOW,
)
from django_delayq.jobs.registry import find_task
from django_delayq.redaction import brief
from django_delayq.showing import display
from django_delayq.showing.job import ShownJob, ask, look_at
from django_delayq.translating import state_label

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
    record = None
    if job.seen.state in OVER or job.seen.state is State.MISSING:
        (record,) = ask([read_record(settings.keys, token)])
    if record is not None:
        if decrypts:
            body = envelopes.decrypted_result(record.body, token)
            record = record._replace(body=body)
        job = replace(job, seen=record.over(job.seen))
    context = context_of(visit, job)
    context["record"] = record
    context["result"] = "" if record is None else record.result(settings)
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
        "title": job.content.task or gettext("Job {id}").format(id=job.id),
        "queue": job.queue,
        "id": job.id,
        "state": job.state,
        "state_label": state_label(job.state),
        "facts": job.facts,
        "events": job.events,
        "content": job.content,
        "raw": None if job.content.is_sensitive else display.read_raw(payload),
        "size": display.size_text(len(payload)) if payload else "",
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


def _is_whole(content: display.Content) -> bool:
    """Whether a payload is a call of a task of this process, signed by us."""
    return not (content.is_foreign or content.is_unchecked or content.fault) and (
        find_task(content.task) is not None
    )


@brief
class Record(NamedTuple):
    """The record of an ended job, kept as long as its result."""

    state: State
    payload: bytes
    history: bytes
    #: As `envelopes.read_result` returns it.
    body: dict[str, Any]

    def over(self, seen: Inspected) -> Inspected:
        """Return what was seen of the job, with this in the place of what the server has forgotten."""
        last = self.body.get("last") or {}
        return seen._replace(
            state=self.state,
            payload=self.payload,
            history=self.history,
            attempts=last.get("attempts", 0),
            kills=last.get("kills", 0),
        )

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody has decrypted it."""
        return isinstance(self.body.get("encrypted"), str)

    def result(self, settings: QueueSettings) -> str:
        """Its return value, as JSON; empty: it is not kept."""
        if self.is_encrypted:
            return gettext("encrypted")
        if "result" not in self.body:
            return ""
        return display.result_text(self.body["result"], self.payload, settings)

    @property
    def error(self) -> str:
        """Why it ended without a result."""
        return display.cut(
            display.clean(self.body.get("error") or ""), display.PAGE_CHARACTERS
        )


def read_record(keys: DeliveryKeys, token: str) -> Command[Record | None]:
    """Read the record of an ended job; None: there is none, or it cannot be read."""
    return Command(("LRANGE", keys.result(token), 0, 2), _read_record)


def _read_record(reply: list[bytes]) -> Record | None:
    if not reply:
        return None
    try:
        body = envelopes.read_result(reply[0])
    except DecodeError:
        return None
    payload, history = reply[1:] if len(reply) == 3 else (b"", b"")
    return Record(body["state"], payload, history, body)
