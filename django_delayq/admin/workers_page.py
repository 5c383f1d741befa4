"""The page of workers: which process runs what, and the two orders that it can be given. Two round trips at most."""

from typing import Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.http import HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from django_delayq import __version__, conf
from django_delayq.admin import job_lists
from django_delayq.admin.visit import Visit
from django_delayq.display.texts import clean
from django_delayq.display.time_texts import span_text
from django_delayq.faults import is_forbidden
from django_delayq.health.worker_problems import find_missing_workers
from django_delayq.jobs.workers import (
    Worker,
    WorkerState,
    first_workers,
    quiet_worker,
    stop_worker,
    workers,
)
from django_delayq.models import Job
from django_delayq.translations import gettext, say_problems
from django_delayq.transport.errors import is_of_node

#: Processes of the server that are read; there may be more.
MOST_WORKERS = 1_000
#: What stands before the name of a process in the admin's log. No queue has an empty name.
_WORKER = ":worker"

STATES = {
    WorkerState.WORKING: gettext_lazy("working"),
    WorkerState.QUIET: gettext_lazy("quiet"),
    WorkerState.STOPPING: gettext_lazy("stopping"),
}


class Order(NamedTuple):
    """An order for a process."""

    name: str
    #: On its button.
    label: str | Promise
    question: str | Promise
    #: What it means.
    note: str | Promise
    #: What is said afterwards, and written into the admin's log before.
    done: str | Promise
    log: str | Promise
    #: The states of a process that need not be told that.
    obeyed: frozenset[WorkerState]


ORDERS = {
    order.name: order
    for order in (
        Order(
            "quiet",
            gettext_lazy("Quiet"),
            gettext_lazy("Quiet {worker}?"),
            gettext_lazy("The process finishes the jobs that it has and claims no more. It stays quiet until it is stopped. Other processes are not affected."),
            gettext_lazy("Worker {worker} stops claiming jobs within 5 seconds."),
            gettext_lazy("Quiet."),
            frozenset({WorkerState.QUIET, WorkerState.STOPPING}),
        ),
        Order(
            "stop",
            gettext_lazy("Stop"),
            gettext_lazy("Stop {worker}?"),
            gettext_lazy("Running jobs have the time in GRACE to end. Jobs that have not ended by then run again on another worker. The process is not replaced."),
            gettext_lazy("Worker {worker} begins to stop within 5 seconds."),
            gettext_lazy("Stop."),
            frozenset({WorkerState.STOPPING}),
        ),
    )
}  # fmt: skip


def show_workers(visit: Visit) -> HttpResponse:
    """Show the processes of workers; or ask whether to give one of them an order, and give it."""
    visit.check("view")
    if visit.request.method == "POST":
        return _give_order(visit)
    try:
        found, unread = first_workers(MOST_WORKERS)
    except RedisError as error:
        if not is_forbidden(error) and not is_of_node(error):
            raise
        away = [] if is_forbidden(error) else find_missing_workers(error)
        return visit.render_live(
            "workers",
            {
                "title": gettext("Workers"),
                "places": visit.places("workers"),
                "problems": say_problems(away),
            },
        )
    found = [each for each in found if visit.shown(each) is not None]
    number = job_lists.read_number(visit.request.GET.get("page", "1"), least=1)
    pager = job_lists.Pager.of(number, len(found), visit.per_page)

    def url_of(number: int) -> str:
        address = visit.reverse("workers")
        return f"{address}?page={number}" if number > 1 else address

    if pager.is_beyond:
        return HttpResponseRedirect(url_of(pager.last))
    first = (number - 1) * visit.per_page
    context = {
        "title": gettext("Workers"),
        "places": visit.places("workers"),
        "is_known": True,
        "rows": [_row(visit, each) for each in found[first : first + visit.per_page]],
        "unread": unread,
        "pager": pager,
        "links": pager.links(url_of),
        "may_change": bool(visit.queues_to("change")),
    }
    return visit.render_live("workers", context)


def _row(visit: Visit, worker: Worker) -> dict[str, Any]:
    # How long ago counts by the server's clock, like what the worker said.
    now_ms = int(worker.seen_at.timestamp() * 1000)
    settings = conf.get_settings()
    may_order = all(visit.may("change", each) for each in worker.queues)
    worker = visit.shown(worker) or worker
    jobs = []
    for job in worker.jobs:
        is_known = settings.find(job.id.rpartition(":")[0]) is not None
        url = visit.job_url(job.id) if is_known else ""
        since_ms = now_ms - int(job.since.timestamp() * 1000)
        jobs.append(
            (clean(job.task or ""), clean(job.id), url, span_text(max(0, since_ms)))
        )
    runs = worker.busy_threads + worker.busy_coroutines
    return {
        "worker": worker,
        "name": clean(worker.name),
        "version": clean(worker.version),
        "is_other_version": worker.version != __version__,
        "queues": [clean(each) for each in worker.queues],
        "state": STATES[worker.state],
        "is_working": worker.state is WorkerState.WORKING,
        "memory": filesizeformat(worker.memory) if worker.memory else "",
        "up": span_text(max(0, now_ms - int(worker.started_at.timestamp() * 1000))),
        "jobs": jobs,
        "more": max(0, runs - len(jobs)),
        "orders": [
            order
            for order in ORDERS.values()
            if worker.state not in order.obeyed and may_order
        ],
    }


def _give_order(visit: Visit) -> HttpResponse:
    visit.check("change")
    posted, back = visit.request.POST, visit.reverse("workers")
    order = ORDERS.get(posted.get("order", ""))
    worker_id = posted.get("worker", "")
    worker = next((each for each in workers() if each.id == worker_id), None)
    if order is None:
        visit.message(
            gettext("This page is not valid. Use the buttons of the workers page."),
            messages.ERROR,
        )
        return HttpResponseRedirect(back)
    if worker is None:
        visit.message(gettext("This process no longer exists."), messages.WARNING)
        return HttpResponseRedirect(back)
    # The order stops its work on every queue that it serves.
    visit.check("change", *worker.queues)
    name = clean(worker.name)
    if "sure" not in posted:
        context = {
            "title": order.label,
            "places": visit.places("workers"),
            "back": back,
            "order": order,
            "question": str(order.question).format(worker=name),
            "row": _row(visit, worker),
        }
        return visit.render("worker_order", context)
    model = Job(id=f"{_WORKER}:{name}")
    model.label = gettext("worker {worker}", worker=name)
    entry = visit.log(model, CHANGE, str(order.log))
    is_there = (quiet_worker if order.name == "quiet" else stop_worker)(worker.id)
    text = (
        str(order.done).format(worker=name)
        if is_there
        else gettext("This process no longer exists.")
    )
    entry.end(text)
    visit.message(text, messages.SUCCESS if is_there else messages.WARNING)
    return HttpResponseRedirect(back)


def is_of_worker(name: str) -> bool:
    """Whether what stands before the last colon of an id in the admin's log names a worker."""
    return name.startswith(f"{_WORKER}:") and name not in conf.get_settings().queues
