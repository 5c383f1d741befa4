"""The page of a queue's limits: what is in force, and changing it while workers run."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect

from django_delayq.admin.forms import LimitForm
from django_delayq.admin.visit import Visit
from django_delayq.conf import QueueSettings
from django_delayq.exceptions import DelayqError
from django_delayq.features.limits.api import (
    LimitInForce,
    clear_limit,
    concerning,
    limits,
    set_limit,
)
from django_delayq.translations import gettext, say


def show_limits(visit: Visit, queue: str) -> HttpResponse:
    """Show the limits of a queue and of tasks on it; set one, or forget what was set."""
    settings = visit.queue(queue)
    refused: dict[str, LimitForm] = {}
    if visit.request.method == "POST":
        visit.check("change", settings.name)
        name = visit.request.POST.get("limit", "")
        form = LimitForm(visit.request.POST)
        if "clear" in visit.request.POST:
            _clear(visit, settings, name)
        elif form.is_valid():
            _set(visit, settings, name, form.cleaned_data)
        else:
            refused[name] = form
        if not refused:
            return HttpResponseRedirect(visit.reverse("limits", settings.name))
    known = visit.part(lambda: limits(settings.name))
    found = list(concerning(settings, known))
    if not any(each.limit is None for each in found):
        found.insert(0, LimitInForce(settings.name, None, None, None, ""))
    context: dict[str, Any] = {
        "title": gettext("Limits of queue {queue}", queue=settings.name),
        "queue": settings,
        "back": visit.queue_url(settings.name),
        "rows": [
            (each, say(each.words), refused.get(each.limit or "") or _form_of(each))
            for each in found
        ],
        "may_change": visit.may("change", settings.name),
    }
    return visit.render("limits", context)


def _form_of(limit: LimitInForce) -> LimitForm:
    return LimitForm(
        initial={"concurrency": limit.concurrency, "rate": limit.rate or ""},
        auto_id=f"id_{limit.limit or ''}_%s",
    )


def _set(
    visit: Visit, settings: QueueSettings, name: str, said: dict[str, Any]
) -> None:
    limit = _limit_of(settings, name)
    wanted = limit._replace(
        concurrency=said["concurrency"], rate=said["rate"] or None, by=""
    )
    text = gettext(
        "Change the limit from “{before}” to “{after}”.",
        before=say(limit.words),
        after=say(wanted.words),
    )
    entry = visit.begin(settings, text)
    try:
        set_limit(
            settings.name,
            limit=name or None,
            concurrency=said["concurrency"],
            rate=said["rate"] or None,
        )
    except DelayqError as error:
        text, level = str(error), messages.ERROR
    else:
        text = gettext("The limit was changed. Workers apply it at once.")
        level = messages.SUCCESS
    entry.end(text)
    visit.message(text, level)


def _clear(visit: Visit, settings: QueueSettings, name: str) -> None:
    before = say(_limit_of(settings, name).words)
    text = gettext("Remove the limit “{before}”.", before=before)
    entry = visit.begin(settings, text)
    try:
        was_set = clear_limit(settings.name, limit=name or None)
    except DelayqError as error:
        entry.end(str(error))
        visit.message(str(error), messages.ERROR)
        return
    if was_set:
        text = gettext("The limit from the settings and the code applies again.")
        entry.end(f"{text} {say(_limit_of(settings, name).words)}")
        visit.message(text, messages.SUCCESS)
    else:
        text = gettext("No limit was set here. Nothing was changed.")
        entry.end(text)
        visit.message(text, messages.WARNING)


def _limit_of(settings: QueueSettings, name: str) -> LimitInForce:
    """Return a limit as it is in force; ``name`` is empty for that of the queue itself."""
    for limit in limits(settings.name):
        if (limit.limit or "") == name:
            return limit
    return LimitInForce(settings.name, name or None, None, None, "")


#: Address, page, and name of the address.
PAGES = [
    ("<str:queue>/limits/", show_limits, "limits"),
]
