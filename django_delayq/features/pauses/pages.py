"""Pausing a queue, and resuming it or a task on it."""

from datetime import timedelta

from django.contrib import messages
from django.http import HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect

from django_delayq.admin.forms import PauseForm
from django_delayq.admin.visit import Visit, with_reason
from django_delayq.exceptions import TaskNotFound
from django_delayq.features.pauses.api import pause, resume
from django_delayq.translations import gettext, ngettext


def pause_queue(visit: Visit, queue: str) -> HttpResponse:
    """Ask for how long and why, then pause a queue."""
    settings = visit.queue(queue, "change")
    form = PauseForm(visit.request.POST if visit.request.method == "POST" else None)
    if visit.request.method != "POST" or not form.is_valid():
        context = {
            "title": gettext("Pause queue {queue}", queue=settings.name),
            "queue": settings,
            "back": visit.queue_url(settings.name),
            "form": form,
        }
        return visit.render("pause", context)
    minutes, reason = form.cleaned_data["minutes"], form.cleaned_data["reason"]
    begun = (
        gettext("Pause until resumed.")
        if minutes is None
        else ngettext(
            "Pause for {number} minute.", "Pause for {number} minutes.", minutes
        )
    )
    entry = visit.begin(settings, with_reason(begun, reason))
    pause(
        settings.name,
        until=None if minutes is None else timedelta(minutes=minutes),
        reason=reason,
    )
    text = gettext("Queue {queue} is paused.", queue=settings.name)
    entry.end(text)
    visit.message(text, messages.SUCCESS)
    return HttpResponseRedirect(visit.queue_url(settings.name))


def resume_queue(visit: Visit, queue: str) -> HttpResponse:
    """Resume a queue; or a task on it, if the form names one."""
    settings = visit.queue(queue, "change")
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    task = visit.request.POST.get("task") or None
    names = {"queue": settings.name, "task": task}
    begun = gettext("Resume.") if task is None else gettext("Resume task {task}.")
    entry = visit.begin(settings, begun.format(**names))
    try:
        was_paused = resume(settings.name, task=task)
    except TaskNotFound:
        # It has gone from the code, and its pause has ended.
        was_paused = False
    if was_paused and task is None:
        text = gettext("Queue {queue} is resumed.")
    elif was_paused:
        text = gettext("Task {task} on queue {queue} is resumed.")
    elif task is None:
        text = gettext("Queue {queue} is no longer paused.")
    else:
        text = gettext("Task {task} on queue {queue} is no longer paused.")
    text = text.format(**names)
    entry.end(text)
    visit.message(text, messages.SUCCESS if was_paused else messages.WARNING)
    return HttpResponseRedirect(visit.queue_url(settings.name))


#: Address, page, and name of the address.
PAGES = [
    ("<str:queue>/pause/", pause_queue, "pause"),
    ("<str:queue>/resume/", resume_queue, "resume"),
]
