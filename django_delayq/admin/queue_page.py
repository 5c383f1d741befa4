"""The pages of one queue: a page of one of its sets, and of the jobs that ended last; two round trips at most."""

from typing import Any

from django.http import Http404, HttpResponse, HttpResponseRedirect

from django_delayq import conf
from django_delayq.admin import job_lists
from django_delayq.admin.job_search import LONGEST, Filter
from django_delayq.admin.search_page import action_context
from django_delayq.admin.visit import ENDED, Visit
from django_delayq.conf import QueueSettings
from django_delayq.core import bounds, forward_calls, queue_reads, stored_pauses
from django_delayq.core import hold as hold_calls
from django_delayq.core.queue_reads import Counts
from django_delayq.core.states import GRAVES, State
from django_delayq.display.job_details import ask
from django_delayq.display.time_texts import Moment
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.limits.api import concerning, in_force
from django_delayq.health import queue_problems
from django_delayq.health.forward_problems import find_not_forwarded
from django_delayq.health.held_problems import find_held
from django_delayq.health.pause_problems import find_paused
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.jobs import registry
from django_delayq.translations import (
    counter_label,
    gettext,
    list_text,
    say,
    say_problems,
    state_label,
)

#: Counters of a queue that are not about jobs.
_INTERNAL_COUNTERS = frozenset({"sweeping"})


def show_queue(visit: Visit, queue: str) -> HttpResponse:
    """Show a page of one set of a queue: seven calls in one round trip."""
    settings = visit.queue(queue)
    if visit.request.GET.get("state") == ENDED:
        return _show_ended(visit, settings)
    tab = job_lists.TABS.get(visit.request.GET.get("state", State.SCHEDULED))  # type: ignore[call-overload]
    if tab is None:
        raise Http404(f"a queue has no page {visit.request.GET['state']!r}")
    number = job_lists.read_number(visit.request.GET.get("page", "1"), least=1)
    # If payloads are huge, a page comes in several parts.
    skip = job_lists.read_number(visit.request.GET.get("skip", "0")) % visit.per_page
    first = (number - 1) * visit.per_page + skip
    is_reversed = tab.is_sortable and visit.request.GET.get("order") == "reversed"
    calls: list[Any] = [
        queue_reads.counts(settings.keys),
        queue_reads.page(
            settings.keys,
            tab.state,
            first=first,
            count=visit.per_page - skip,
            newest=tab.is_newest_first is not is_reversed,
            frame_format=settings.frame_format,
        ),
        hold_calls.held_names(settings.keys),
        queue_reads.read_format(settings.keys),
        stored_pauses.pauses(settings.keys),
        limit_calls.limits(settings.keys),
        forward_calls.forwards(settings.keys),
    ]
    counts, page, held, its_format, pauses, limits, forwards = ask(calls)
    pager = job_lists.Pager.of(number, page.total, visit.per_page)
    if pager.is_beyond:
        return HttpResponseRedirect(
            visit.queue_url(
                settings.name, tab.state, pager.last, is_reversed=is_reversed
            )
        )
    rows = job_lists.rows_of(tab, page, first, counts.now_ms, settings)
    after = skip + len(rows)
    rest = pager.on_this_page(visit.per_page) - after

    def url_of(number: int, skip: int = 0) -> str:
        return visit.queue_url(
            settings.name, tab.state, number, skip, is_reversed=is_reversed
        )

    here = url_of(number, skip)
    facts = QueueFacts(
        name=settings.name,
        format=its_format,
        held=held,
        key_ids=conf.get_keyring().ids,
        pauses=pauses,
        forwards=forwards,
    )
    context = {
        **_context(visit, settings, tab, counts),
        "missing": [
            *say_problems(queue_problems.find_newer(facts)),
            *say_problems(find_held(facts)),
        ],
        "not_forwarded": say_problems(find_not_forwarded(facts)),
        "paused": [
            (problem, each.task or "")
            for each, problem in zip(
                pauses, say_problems(find_paused(facts)), strict=True
            )
        ],
        "is_paused": any(each.task is None for each in pauses),
        "limits_url": visit.reverse("limits", settings.name),
        "sort_url": tab.is_sortable
        and visit.queue_url(settings.name, tab.state, is_reversed=not is_reversed),
        "is_reversed": is_reversed,
        "is_descending": tab.is_newest_first is not is_reversed,
        "here": here,
        "filter": Filter(queue=settings.name, states=tab.states).query,
        "total": pager.total,
        "search_url": visit.search_url(),
        "search_states": tab.states,
        **action_context(visit, tab.states, settings.name),
        "limits": [
            say(each.words)
            for each in concerning(settings, in_force(settings, limits), held.counts)
        ],
        "may_change": visit.may("change", settings.name),
        "pause_url": visit.reverse("pause", settings.name),
        "resume_url": visit.reverse("resume", settings.name),
        "schedules_url": visit.reverse("schedules", settings.name),
        "rows": [(row, row.token and visit.job_url(row.id, next=here)) for row in rows],
        "first_place": first + 1,
        "last_place": first + len(rows),
        "rest": rest,
        "rest_url": url_of(number, after),
        "pager": pager,
        "links": pager.links(url_of, first=gettext("« first"), last=gettext("last »")),
    }
    return visit.render_live("queue", context)


def _show_ended(visit: Visit, settings: QueueSettings) -> HttpResponse:
    """Show a page of how the last jobs of a queue ended: two calls in one round trip, and one more to look for some."""
    number = job_lists.read_number(visit.request.GET.get("page", "1"), least=1)
    sought = {name: visit.request.GET.get(name, "")[:LONGEST] for name in ("q", "task")}
    first = (number - 1) * visit.per_page
    counts, page = ask(
        [
            queue_reads.counts(settings.keys),
            ended_calls.read_ended(settings.keys, first=first, count=visit.per_page),
        ]
    )
    total, records = page.total, ended_calls.read_records(page.stored)
    if any(sought.values()):
        fitting = _find_ended(settings, page.total, **sought)
        total, records = len(fitting), fitting[first : first + visit.per_page]
    pager = job_lists.Pager.of(number, total, visit.per_page)
    if pager.is_beyond:
        return HttpResponseRedirect(
            visit.ended_url(settings.name, pager.last, **sought)
        )
    context = {
        "title": gettext("Queue {queue}: ended jobs", queue=settings.name),
        "queue": settings,
        "tabs": visit.tabs(settings, counts),
        "ended_url": visit.ended_url(settings.name),
        "schedules_url": visit.reverse("schedules", settings.name),
        "is_ended": True,
        "sought": sought,
        "remembered": page.total,
        "rows": [
            (
                record,
                Moment.of(record.ended_ms, counts.now_ms),
                state_label(record.outcome),
                # Of the others nothing is left to show.
                record.token
                and (record.outcome in GRAVES or _keeps_record(record.task))
                and visit.job_url(f"{settings.name}:{record.token}"),
            )
            for record in records
        ],
        "pager": pager,
        "links": pager.links(
            lambda page: visit.ended_url(settings.name, page, **sought),
            gettext("‹ newer"),
            gettext("older ›"),
            first=gettext("« newest"),
            last=gettext("oldest »"),
        ),
    }
    return visit.render_live("ended", context)


def _find_ended(
    settings: QueueSettings, total: int, q: str, task: str
) -> list[EndRecord]:
    """Return the records with a task, and with a text in their error, their id or their outcome."""
    calls = [
        ended_calls.read_ended(settings.keys, first=first)
        for first in range(0, min(total, bounds.MOST_ENDED), ended_calls.ENDED_BATCH)
    ]
    stored = [text for page in ask(calls) for text in page.stored]
    text = q.strip().casefold()
    return [
        record
        for record in ended_calls.read_records(stored)
        if (not task or record.task == task)
        and any(
            text in each.casefold()
            for each in (
                record.error,
                f"{settings.name}:{record.token}",
                state_label(record.outcome),
            )
        )
    ]


def _keeps_record(name: str) -> bool:
    """Whether more may be left of the jobs of a task than how they ended."""
    task = registry.find_task(name)
    return task is not None and task.base.keep_result is not None


def _since_it_began(counts: Counts) -> str:
    """Say what has become of the jobs of a queue; "" if nothing has yet."""
    labelled = sorted(
        (counter_label(name), number)
        for name, number in counts.counters.items()
        if number and name not in _INTERNAL_COUNTERS
    )
    parts = [
        gettext("{count} {state}", count=number, state=label)
        for label, number in labelled
    ]
    return list_text(parts) if parts else ""


def _context(
    visit: Visit, settings: QueueSettings, tab: job_lists.Tab, counts: Counts
) -> dict[str, Any]:
    handler = registry.get_handler(settings.name)
    return {
        "title": gettext("Queue {queue}", queue=settings.name),
        "queue": settings,
        "tab": tab,
        "tabs": visit.tabs(settings, counts),
        "ended_url": visit.ended_url(settings.name),
        "counts": counts,
        "next": Moment.of(counts.next_ms, counts.now_ms),
        "since_it_began": _since_it_began(counts),
        # Its name only: a template would call the task.
        "handler": handler.name if handler else "",
        "is_list_long": counts.delay_queue > queue_problems.LONG_LIST,
        "full": say_problems(
            queue_problems.find_nearly_full(
                QueueFacts(
                    name=settings.name, jobs=counts.jobs, max_jobs=settings.max_jobs
                )
            )
        ),
        "has_many_dead": settings.many_dead is not None
        and counts.dead >= settings.many_dead,
        "long_list": queue_problems.LONG_LIST,
    }
