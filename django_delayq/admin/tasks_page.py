"""The page of tasks: what was measured of each in some time, and its next periodic occurrence. A few round trips."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.http import HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_lazy

from django_delayq import conf
from django_delayq.admin import job_lists
from django_delayq.admin.visit import Visit
from django_delayq.clock import epoch_ms
from django_delayq.display.texts import clean
from django_delayq.display.time_texts import Moment, short_time_text
from django_delayq.exceptions import PartialAnswer
from django_delayq.features.schedules.api import get_schedules
from django_delayq.features.statistics.api import tasks_statistics
from django_delayq.features.statistics.calls import (
    OTHER,
    UNKNOWN,
    Figures,
    Histogram,
    Outcome,
)
from django_delayq.transport.clients import own_clients

#: Tasks that are shown, those that ran most; a queue may have more.
MOST_TASKS = 1_000
#: How far back, and what `tasks_statistics` is asked for: two hours are read quicker than sixty minutes, and two days
#: quicker than 24 hours.
SPANS: dict[str, tuple[str | Promise, dict[str, int]]] = {
    "hour": (gettext_lazy("this hour and the previous one"), {"hours": 2}),
    "day": (gettext_lazy("today and yesterday, UTC"), {"days": 2}),
    "week": (gettext_lazy("today and the week before, UTC"), {"days": 8}),
}


class Row(NamedTuple):
    """One task on one queue."""

    queue: str
    task: str
    figures: Figures
    #: When its next periodic job is due; None: it is not periodic.
    next: datetime | None


class Column(NamedTuple):
    """One column, and the order that it makes."""

    name: str
    title: str | Promise
    key: Callable[[Row], Any]
    #: Whether it is a number, the most first.
    is_number: bool = True


def _percentile(
    histogram: Callable[[Figures], Histogram], percent: float
) -> Callable[[Row], float]:
    return lambda row: histogram(row.figures).percentile(percent) or 0.0


#: What is counted under a name that no task has, so that no search finds it.
_COLLECTIVE = {
    UNKNOWN: gettext_lazy("(task unknown)"),
    OTHER: gettext_lazy("(other tasks)"),
}
#: Sorts after every moment.
_NEVER = float("inf")
COLUMNS = {
    column.name: column
    for column in (
        Column("task", gettext_lazy("Task"), lambda row: row.task.casefold(), False),
        Column("queue", gettext_lazy("Queue"), lambda row: row.queue, False),
        Column("runs", gettext_lazy("Runs"), lambda row: row.figures.runs),
        Column("failed", gettext_lazy("Failed"), lambda row: row.figures.failures),
        Column("retried", gettext_lazy("Retried"), lambda row: row.figures.outcomes[Outcome.RETRYING]),
        Column("lateness_p50", gettext_lazy("Lateness p50"), _percentile(lambda figures: figures.lateness, 50)),
        Column("lateness_p99", gettext_lazy("Lateness p99"), _percentile(lambda figures: figures.lateness, 99)),
        Column("duration_p50", gettext_lazy("Duration p50"), _percentile(lambda figures: figures.duration, 50)),
        Column("duration_p99", gettext_lazy("Duration p99"), _percentile(lambda figures: figures.duration, 99)),
        Column("next", gettext_lazy("Next periodic"), lambda row: row.next.timestamp() if row.next else _NEVER, False),
    )
}  # fmt: skip


def show_tasks(visit: Visit) -> HttpResponse:
    """Show a page of the tasks, in the order that somebody chooses."""
    visit.check("view")
    names, asked = visit.queues_to("view"), visit.request.GET
    settings = conf.get_settings()
    span = asked.get("span", "hour")
    span = span if span in SPANS else "hour"
    chosen = asked.get("queue", "")
    chosen = chosen if chosen in names else ""
    sort = asked.get("sort", "runs")
    column = COLUMNS.get(sort.removeprefix("-"), COLUMNS["runs"])
    is_reversed = sort.startswith("-")

    def url_of(**changed: Any) -> str:
        query = {
            "queue": chosen,
            "span": "" if span == "hour" else span,
            "sort": "" if sort == "runs" else sort,
            **changed,
        }
        query = {name: value for name, value in query.items() if value}
        address = visit.reverse("tasks")
        return f"{address}?{urlencode(query)}" if query else address

    rows = _read(visit, [chosen] if chosen else names, SPANS[span][1])
    total = len(rows)
    rows.sort(key=lambda row: (-row.figures.runs, row.task, row.queue))
    rows = rows[:MOST_TASKS]
    rows.sort(key=column.key, reverse=column.is_number is not is_reversed)
    number = job_lists.read_number(asked.get("page", "1"), least=1)
    pager = job_lists.Pager.of(number, len(rows), visit.per_page)
    if pager.is_beyond:
        return HttpResponseRedirect(url_of(page=pager.last if pager.last > 1 else ""))
    first = (number - 1) * visit.per_page
    now_ms = epoch_ms()
    context = {
        "title": gettext("Tasks"),
        "places": visit.places("tasks"),
        "is_measured": settings.statistics > 0,
        "columns": [
            (
                each,
                url_of(
                    sort=f"-{each.name}"
                    if each is column and not is_reversed
                    else each.name
                ),
                each is column
                and (
                    "descending" if each.is_number is not is_reversed else "ascending"
                ),
            )
            for each in COLUMNS.values()
        ],
        "rows": [
            _shown(visit, row, now_ms) for row in rows[first : first + visit.per_page]
        ],
        "names": names,
        "chosen": chosen,
        "span": span,
        "sort": "" if sort == "runs" else sort,
        "spans": [(key, label) for key, (label, _) in SPANS.items()],
        "more": total - len(rows),
        "pager": pager,
        "links": pager.links(lambda page: url_of(page=page if page > 1 else "")),
    }
    # A longer time is read for longer, and changes little within seconds.
    render = visit.render_live if span == "hour" else visit.render
    return render("tasks", context)


def _read(visit: Visit, names: Sequence[str], span: dict[str, int]) -> list[Row]:
    with own_clients.waiting_once():
        figures = visit.part(lambda: tasks_statistics(names, **span))
        try:
            schedules = get_schedules(names[0] if len(names) == 1 else None)
        except PartialAnswer as error:
            # The same queues are missing from the figures.
            schedules = error.found
    moments: dict[tuple[str, str], datetime | None] = {}
    for schedule in schedules:
        key = (conf.get_settings().whole(schedule.queue), schedule.task)
        if key[0] not in names:
            continue
        known, its = moments.get(key), schedule.next_occurrence
        moments[key] = min(filter(None, (known, its)), default=None)
    rows = [
        Row(name, task, each, moments.pop((name, task), None))
        for name, tasks in figures.items()
        for task, each in tasks.items()
    ]
    # Those that have not run in this time.
    rows += [
        Row(name, task, Figures(), moment) for (name, task), moment in moments.items()
    ]
    return rows


def _shown(visit: Visit, row: Row, now_ms: int) -> dict[str, Any]:
    figures = row.figures
    moment = row.next and Moment.of(int(row.next.timestamp() * 1000), now_ms)
    query = urlencode({"queue": row.queue, "task": row.task})
    collective = _COLLECTIVE.get(row.task)
    return {
        "task": clean(row.task) if collective is None else collective,
        "queue": row.queue,
        "url": visit.search_url(query) if collective is None else "",
        "queue_url": visit.queue_url(row.queue),
        "runs": figures.runs,
        "failures": figures.failures,
        "retried": figures.outcomes[Outcome.RETRYING],
        "times": [
            (COLUMNS[name].title, short_time_text(histogram.percentile(percent)))
            for name, histogram, percent in (
                ("lateness_p50", figures.lateness, 50),
                ("lateness_p99", figures.lateness, 99),
                ("duration_p50", figures.duration, 50),
                ("duration_p99", figures.duration, 99),
            )
        ],
        "next": moment,
    }
