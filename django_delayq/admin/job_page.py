"""The page of one job, in full."""

from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from django_delayq.admin.paths import from_path_part
from django_delayq.admin.visit import Visit, ask, queue_of
from django_delayq.conf import QueueSettings
from django_delayq.delivery import batching, looking, pausing
from django_delayq.delivery.looking import Inspected
from django_delayq.delivery.states import GRAVES, State
from django_delayq.health import problems
from django_delayq.showing import display, fields
from django_delayq.translating import say_problems

_CANCELLABLE = frozenset(
    {State.SCHEDULED, State.DUE, State.RETRYING, State.HELD, State.UNKNOWN}
)


def show_job(visit: Visit, queue: str, token: str) -> HttpResponse:
    """Show one job in full, and what it waits for: three calls in one round trip."""
    visit.check_may_view()
    settings, token = queue_of(queue), from_path_part(token)
    seen, pauses, left = ask(
        [
            looking.inspect(settings.keys, token),
            pausing.pauses(settings.keys),
            batching.count_left(settings.keys, token),
        ]
    )
    context = context_of(visit, settings, token, seen, left)
    concerned = (None, context["content"].task)
    context["paused"] = say_problems(
        problems.find_paused(pause for pause in pauses if pause.task in concerned)
    )
    if seen.state is State.MISSING:
        return visit.render("gone", context, status=404)
    return visit.render("job", context)


def lead_from_log(visit: Visit, object_id: str) -> HttpResponse:
    """Lead from the admin's log to a job's page."""
    name, colon, token = from_path_part(object_id).rpartition(":")
    if not colon:
        # A token that happens to read "change".
        return show_job(visit, object_id, "change")
    visit.check_may_view()
    if not token:
        # What was done to a queue.
        return HttpResponseRedirect(
            visit.queue_url(queue_of(name, is_quoted=False).name)
        )
    return HttpResponseRedirect(
        visit.job_url(queue_of(name, is_quoted=False).name, token)
    )


def context_of(
    visit: Visit,
    settings: QueueSettings,
    token: str,
    seen: Inspected,
    batch_left: int = 0,
) -> dict[str, Any]:
    content = display.read_content(
        seen.payload, len(seen.payload), settings, in_full=True
    )
    failure = display.read_failure(seen.error, seen.now_ms)
    state = fields.state_text(seen.state, seen.score_ms, seen.now_ms)
    has_expired = state == "lease expired"
    waits = (
        seen.state in (State.SCHEDULED, State.RETRYING, State.HELD, State.UNKNOWN)
        or has_expired
    )
    job_id, back = (
        f"{settings.name}:{token}",
        visit.next(visit.queue_url(settings.name)),
    )
    urls = {
        name: visit.job_url(settings.name, token, view=name, next=back)
        for name in ("run_now", "cancel", "discard")
    }
    may_change, may_delete = (
        visit.may_change,
        visit.may_delete,
    )
    return {
        "title": gettext("Job {token}").format(token=token),
        "queue": settings,
        "token": token,
        "id": job_id,
        "sections": fields.sections_of(
            job_id,
            seen,
            state,
            content,
            failure,
            display.read_earlier(seen),
            settings,
            batch_left,
        ),
        "content": content,
        "raw": display.read_raw(seen.payload),
        "size": display.size_text(len(seen.payload)),
        "urls": urls,
        "back": back,
        "here": visit.request.get_full_path(),
        "can_run_now": may_change and waits,
        "can_run_again": may_change and seen.state in GRAVES,
        "can_cancel": may_delete and (seen.state in _CANCELLABLE or has_expired),
        "can_discard": may_delete and seen.state in GRAVES,
    }
