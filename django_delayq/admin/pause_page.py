"""Pausing a queue, and resuming it or a task on it."""

from datetime import timedelta

from django.contrib import messages
from django.http import HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext

from django_delayq.admin.forms import PauseForm
from django_delayq.admin.visit import Visit, queue_of
from django_delayq.exceptions import TaskNotFound
from django_delayq.jobs.pausing import MAX_REASON, pause, resume
from django_delayq.showing import display


def pause_queue(visit: Visit, queue: str) -> HttpResponse:
    """Ask for how long and why, then pause a queue."""
    visit.check_may_change()
    settings = queue_of(queue)
    form = PauseForm(visit.request.POST if visit.request.method == "POST" else None)
    if visit.request.method != "POST" or not form.is_valid():
        context = {
            "title": gettext("Pause queue {queue}").format(queue=settings.name),
            "queue": settings,
            "back": visit.queue_url(settings.name),
            "form": form,
        }
        return visit.render("pause", context)
    minutes, reason = form.cleaned_data["minutes"], form.cleaned_data["reason"]
    pause(
        settings.name,
        until=None if minutes is None else timedelta(minutes=minutes),
        reason=reason,
        by=display.clean(visit.request.user.get_username())[:MAX_REASON],
    )
    visit.note_queue(
        settings,
        gettext("Paused."),
        gettext("Queue {queue} is paused.").format(queue=settings.name),
    )
    return HttpResponseRedirect(visit.queue_url(settings.name))


def resume_queue(visit: Visit, queue: str) -> HttpResponse:
    """Resume a queue; or a task on it, if the form names one."""
    visit.check_may_change()
    if visit.request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    settings, task = queue_of(queue), visit.request.POST.get("task") or None
    try:
        was_paused = resume(settings.name, task=task)
    except TaskNotFound:
        # It has gone from the code, and its pause has ended.
        was_paused = False
    names = {"queue": settings.name, "task": task}
    if was_paused and task is None:
        done, text = gettext("Resumed."), gettext("Queue {queue} is resumed.")
    elif was_paused:
        done = gettext("Resumed task {task}.")
        text = gettext("Task {task} on queue {queue} is resumed.")
    elif task is None:
        done, text = "", gettext("Queue {queue} is not paused any more.")
    else:
        text = gettext("Task {task} on queue {queue} is not paused any more.")
        done = ""
    if done:
        visit.note_queue(settings, done.format(**names), text.format(**names))
    else:
        visit.message(text.format(**names), messages.WARNING)
    return HttpResponseRedirect(visit.queue_url(settings.name))
