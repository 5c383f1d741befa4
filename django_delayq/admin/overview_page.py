"""The overview: every queue in numbers, what is wrong, what is coming and what has happened. Three round trips.

Its pictures are of all queues together, or of the one that somebody chooses.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.http import HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_delayq import conf
from django_delayq.admin import job_lists
from django_delayq.admin.visit import Visit
from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import Counts
from django_delayq.core.states import State
from django_delayq.display.json_output import json_response
from django_delayq.display.overview import Overview, look
from django_delayq.display.overview_json import overview_data
from django_delayq.display.queue_status import MINUTES, QueueStatus
from django_delayq.display.time_texts import Moment, short_time_text, span_text
from django_delayq.faults import describe_fault
from django_delayq.features.statistics import charts
from django_delayq.features.statistics.api import Series, Span
from django_delayq.features.statistics.calls import Figures, Unit, total
from django_delayq.features.statistics.charts import Chart
from django_delayq.health import queue_problems
from django_delayq.health.worker_problems import LATE_MS
from django_delayq.translations import (
    gettext,
    ngettext,
    number_text,
    say_fault,
    say_problems,
)

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000


class Ahead(NamedTuple):
    """One chart of coming jobs: a number of periods of equal length."""

    key: str
    title: str | Promise
    times: int
    unit_ms: int

    @property
    def ends_ms(self) -> list[int]:
        return [(n + 1) * self.unit_ms for n in range(self.times)]


AHEAD = (
    Ahead("hour", gettext_lazy("Due in the next hour"), 60, _MINUTE_MS),
    Ahead("day", gettext_lazy("Due in the next day"), 24, _HOUR_MS),
    Ahead("weeks", gettext_lazy("Due in the next two weeks"), 14, _DAY_MS),
)
#: The ends of all of them, in order.
_ENDS_MS = sorted({end for each in AHEAD for end in each.ends_ms})


class Behind(NamedTuple):
    """How far back the pictures of what has happened go."""

    label: str | Promise
    unit: Unit
    spans: int


BEHIND = {
    "hour": Behind(gettext_lazy("the last hour"), Unit.MINUTE, 60),
    "day": Behind(gettext_lazy("the last day"), Unit.HOUR, 24),
    "week": Behind(gettext_lazy("the last week"), Unit.HOUR, 168),
}


def show_queues(
    visit: Visit, extra_context: dict[str, Any] | None = None
) -> HttpResponse:
    """Show every queue with its numbers, and what is wrong."""
    visit.check("view")
    settings = conf.get_settings()
    names, asked = visit.queues_to("view"), visit.request.GET
    span = asked.get("span", "hour")
    span = span if span in BEHIND else "hour"
    chosen = asked.get("queue", "")
    behind = BEHIND[span]
    is_hours = behind.unit is Unit.HOUR
    seen = look(
        _queues_of(visit),
        minutes=MINUTES if is_hours else behind.spans,
        hours=behind.spans if is_hours else 0,
        ahead_ms=_ENDS_MS,
    )
    drawn = [each for each in seen.queues if each.name == chosen] or seen.queues
    context = {
        "title": gettext("Queues"),
        "places": visit.places("changelist"),
        "problems": say_problems(seen.problems),
        "tiles": _tiles(seen),
        "minutes": MINUTES,
        "rows": [
            _row(visit, each)
            for queue in seen.queues
            for each in (queue, *(queue.shards if queue.name == chosen else ()))
        ],
        "tabs": job_lists.TABS.values(),
        "chosen": chosen if chosen in names else "",
        "names": names,
        "span": span,
        "spans": [(key, each.label) for key, each in BEHIND.items()],
        "ahead": _charts_ahead(drawn),
        "behind": _charts_behind(drawn, behind) if settings.statistics else [],
        "data_url": visit.reverse("overview_data"),
        **(extra_context or {}),
    }
    return visit.render_live("queues", context)


def _queues_of(visit: Visit) -> list[QueueSettings]:
    return conf.get_settings().queues_of(*visit.queues_to("view"))


def give_data(visit: Visit) -> HttpResponse:
    """Give the overview as JSON, to people and programs that are logged in."""
    visit.check("view")
    seen = look(_queues_of(visit))
    workers = list(filter(None, map(visit.shown, seen.workers or ())))
    return json_response(overview_data(seen._replace(workers=seen.workers and workers)))


def _row(visit: Visit, queue: QueueStatus) -> dict[str, Any]:
    settings = queue.settings
    row: dict[str, Any] = {"queue": settings, "url": visit.queue_url(settings.name)}
    counts = queue.counts
    if isinstance(counts, Exception):
        row["fault"] = say_fault(describe_fault(counts))
        return row
    figures = queue.recent
    return {
        **row,
        "counts": counts,
        "scheduled": counts.waiting - counts.due,
        "due": counts.due + counts.destination,
        "late": span_text(counts.late_ms) if counts.late_ms >= 1000 else "",
        "is_late": counts.late_ms >= LATE_MS and not queue.is_paused,
        "is_paused": queue.is_paused,
        "has_paused_tasks": any(each.task is not None for each in queue.pauses),
        "next": Moment.of(counts.next_ms, counts.now_ms),
        "cells": [
            (tab, count, _search_url(visit, settings, tab) if queue.shards else url)
            for tab, count, url in visit.tabs(settings, counts)
            if tab.state not in (State.SCHEDULED, State.DUE)
        ],
        "destination_url": visit.queue_url(settings.name, State.DUE),
        "is_list_long": counts.delay_queue > queue_problems.LONG_LIST,
        "full": say_problems(queue_problems.find_nearly_full(queue.facts())),
        "workers": None if queue.workers is None else len(queue.workers),
        "runs": figures.runs,
        "failures": figures.failures,
        "lateness": [
            short_time_text(figures.lateness.percentile(each)) for each in (50, 99)
        ]
        if figures.lateness.count
        else [],
    }


def _search_url(visit: Visit, queue: QueueSettings, tab: job_lists.Tab) -> str:
    return visit.search_url(urlencode({"queue": queue.name, "state": tab.state.value}))


class Tile(NamedTuple):
    """One number above all others."""

    label: str
    number: str
    note: str = ""
    is_bad: bool = False


def _tiles(seen: Overview) -> list[Tile]:
    counts = [each.counts for each in seen.queues if isinstance(each.counts, Counts)]
    figures = total(each.recent for each in seen.queues)
    due = sum(each.due + each.destination for each in counts)
    late_ms = max((each.late_ms for each in seen.queues), default=0)
    dead = sum(each.dead + each.quarantined for each in counts)
    late = (
        gettext("oldest {time}", time=span_text(late_ms))
        if due and late_ms >= 1000
        else ""
    )
    return [
        Tile(
            gettext("Scheduled"),
            number_text(sum(each.waiting - each.due for each in counts)),
        ),
        Tile(gettext("Due"), number_text(due), late, late_ms >= LATE_MS),
        Tile(gettext("Running"), number_text(sum(each.running for each in counts))),
        *_figures_tiles(figures),
        Tile(
            gettext("Dead and quarantined"),
            number_text(dead),
            "",
            dead > 0,
        ),
        *_workers_tile(seen),
    ]


def _figures_tiles(figures: Figures) -> list[Tile]:
    if not conf.get_settings().statistics:
        return []
    minutes = gettext("{count} min", count=MINUTES)
    share = figures.failures / figures.runs if figures.runs else 0
    failed = gettext("{number} failed", number=figures.failures)
    return [
        Tile(
            gettext("Runs in {time}", time=minutes),
            number_text(figures.runs),
            failed if figures.failures else "",
            share >= 0.1,
        ),
        Tile(
            gettext("Lateness p50 in {time}", time=minutes),
            short_time_text(figures.lateness.percentile(50)),
            f"p99 {short_time_text(figures.lateness.percentile(99))}"
            if figures.lateness.count
            else "",
        ),
    ]


def _workers_tile(seen: Overview) -> list[Tile]:
    if seen.workers is None:
        return []
    busy = sum(each.busy_threads + each.busy_coroutines for each in seen.workers)
    return [
        Tile(
            gettext("Workers"),
            number_text(len(seen.workers)),
            ngettext("{number} job running", "{number} jobs running", busy)
            if busy
            else "",
            not seen.workers,
        )
    ]


def _charts_ahead(queues: Sequence[QueueStatus]) -> list[Chart]:
    known = [each.ahead for each in queues if each.ahead]
    counted = dict(
        zip(_ENDS_MS, map(sum, zip(*known, strict=True)), strict=True)
        if known
        else ((end, 0) for end in _ENDS_MS)
    )
    found = []
    for each in AHEAD:
        counts, sooner = [], 0
        for end in each.ends_ms:
            # The times of other pictures lie between.
            counts.append(sum(counted[at] for at in _ENDS_MS if sooner < at <= end))
            sooner = end
        found.append(
            charts.bars_ahead(
                f"ahead-{each.key}", each.title, counts, each.unit_ms, each.ends_ms[-1]
            )
        )
    return found


def _charts_behind(queues: Sequence[QueueStatus], behind: Behind) -> list[Chart]:
    known = [
        series
        for each in queues
        if (series := each.hours if behind.unit is Unit.HOUR else each.minutes)
        is not None
    ]
    if not known:
        return []
    together = Series(
        behind.unit,
        [
            Span(spans[0].since, total(span.figures for span in spans))
            for spans in zip(*(each.spans for each in known), strict=True)
        ],
    )
    figures = [span.figures for span in together.spans]
    return [
        charts.bars_of_runs("runs", gettext("Runs"), together),
        charts.lines_of_times(
            "lateness",
            gettext("Lateness"),
            together,
            [each.lateness for each in figures],
        ),
        charts.lines_of_times(
            "duration",
            gettext("Duration"),
            together,
            [each.duration for each in figures],
        ),
    ]
