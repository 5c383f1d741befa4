"""The page of all queues: one round trip."""

from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext

from django_delayq import conf
from django_delayq.admin import pages
from django_delayq.admin.visit import Visit
from django_delayq.calls.call import Call
from django_delayq.calls.several import run_all
from django_delayq.clients.clients import own_clients
from django_delayq.delivery import looking, pausing
from django_delayq.faults import describe_fault
from django_delayq.health import problems
from django_delayq.showing import display
from django_delayq.translating import say, say_fault, say_problems


def show_queues(
    visit: Visit, extra_context: dict[str, Any] | None = None
) -> HttpResponse:
    """Show every queue with its counts."""
    visit.check_may_view()
    queues = list(conf.get_settings().queues.values())
    calls: list[Call[Any]] = [looking.counts(queue.keys) for queue in queues]
    calls += [pausing.pauses(queue.keys) for queue in queues]
    found = run_all(own_clients.of_thread(), calls)
    replies, pauses = found[: len(queues)], found[len(queues) :]
    if replies and all(isinstance(reply, Exception) for reply in replies):
        raise replies[0]
    rows = []
    for queue, reply, paused in zip(queues, replies, pauses, strict=True):
        row: dict[str, Any] = {"queue": queue, "url": visit.queue_url(queue.name)}
        if isinstance(reply, Exception):
            row["fault"] = say_fault(describe_fault(reply))
        else:
            row["counts"] = reply
            row["pauses"] = (
                []
                if isinstance(paused, Exception)
                else [say(each.words) for each in paused]
            )
            row["next"] = display.Moment.of(reply.next_ms, reply.now_ms)
            row["cells"] = visit.tabs(queue, reply)
            row["is_list_long"] = reply.delay_queue > problems.LONG_LIST
            row["full"] = say_problems(
                problems.find_nearly_full(queue.name, reply.jobs, queue.max_jobs)
            )
        rows.append(row)
    context = {
        "title": gettext("Queues"),
        "rows": rows,
        "tabs": pages.TABS.values(),
        **(extra_context or {}),
    }
    return visit.render("queues", context)
