"""The page that finds jobs: ten round trips at most, and a link that continues."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from django_delayq import conf
from django_delayq.admin.job_search import (
    SearchForm,
    find_by_id,
    look,
    open_cursor,
    proposed_tasks,
)
from django_delayq.admin.visit import Visit
from django_delayq.exceptions import InvalidSearch
from django_delayq.jobs.actions import ACTIONS
from django_delayq.jobs.search import LISTED
from django_delayq.translations import unsearched_text


def find(visit: Visit) -> HttpResponse:
    """Ask what to look for, and show a page of what is found."""
    visit.check("view")
    names, asked = visit.queues_to("view"), visit.request.GET
    form = SearchForm(names, asked or None)
    context: dict[str, Any] = {
        "title": gettext("Find jobs"),
        "places": visit.places("search"),
        "form": form,
        "tasks": proposed_tasks(),
        "has_asked": bool(asked),
    }
    if not asked or not form.is_valid():
        return visit.render("search", context)
    search = form.filter
    cursor = None
    if sealed := asked.get("from"):
        cursor = open_cursor(sealed, search)
        if cursor is None:
            visit.message(
                gettext(
                    "The link is damaged or belongs to another search. The search starts from the beginning."
                ),
                messages.WARNING,
            )
    elif search.text:
        queues = conf.get_settings().queues_of(*names)
        found = find_by_id(search.text.strip(), queues)
        if found is not None:
            return HttpResponseRedirect(visit.job_url(found))
    try:
        seen = look(search, cursor, visit.per_page)
    except InvalidSearch as error:
        form.add_error(None, str(error))
        return visit.render("search", context)
    visit.tell_missing(seen.missing)
    here = visit.request.get_full_path()
    context |= {
        "seen": seen,
        "rows": [
            (row, row.token and visit.job_url(row.id, next=here)) for row in seen.rows
        ],
        "conditions": search.words,
        "unsearched": seen.unsearched and unsearched_text(seen.unsearched),
        "go_on_url": seen.cursor
        and visit.search_url(f"{search.query}&from={seen.cursor.seal(search)}"),
        "begin_url": cursor and visit.search_url(search.query),
        "filter": search.query,
        "here": here,
        **action_context(visit, search.states or tuple(LISTED), *search.queues),
    }
    return visit.render("search", context)


def action_context(visit: Visit, states: Any, *queues: str) -> dict[str, Any]:
    """Return what a list of jobs of some queues needs for its buttons."""
    return {
        "change_url": visit.reverse("bulk"),
        "actions": [
            action
            for action in ACTIONS.values()
            if action.states & set(states)
            and any(visit.may(action.right, queue) for queue in queues)
        ],
    }
