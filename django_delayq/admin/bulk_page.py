"""Doing something to many jobs: to those that were ticked, or to all that a search finds.

A page asks first, and says how many and which. A large search is worked through in steps, one a request: each page says
how far they have come, and its button continues. The form carries the progress, signed; nothing is kept. A form is
for the user to whom it was shown, and for a while, because the jobs that a search finds change.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION
from django.core import signing
from django.http import (
    Http404,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
)

from django_delayq import conf
from django_delayq.admin.chosen import Named, Step, time_text
from django_delayq.admin.forms import PriorityForm, RescheduleForm
from django_delayq.admin.job_lists import Row, row_of, row_of_id
from django_delayq.admin.job_search import Filter, SearchForm, count_at_most, look
from django_delayq.admin.visit import Visit, add_outcome
from django_delayq.core.queue_reads import Inspected
from django_delayq.decoder import Decoder
from django_delayq.display import outcome
from django_delayq.display.texts import ROW_CHARACTERS, clean, cut
from django_delayq.display.time_texts import span_text
from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    JobNotFound,
    MaybeChanged,
    QueueNotFound,
)
from django_delayq.jobs import bulk
from django_delayq.jobs.actions import (
    ACTIONS,
    REPRIORITIZE,
    RESCHEDULE,
    Action,
    Details,
)
from django_delayq.jobs.bulk import Changed, Pages, Took
from django_delayq.jobs.job import NOW, Job
from django_delayq.jobs.lookup import handle_of
from django_delayq.jobs.walk import Mark
from django_delayq.models import Job as JobModel
from django_delayq.translations import gettext, list_text, ngettext, say, state_label
from django_delayq.transport.clients import own_clients
from django_delayq.transport.steps import Steps, perform
from django_delayq.wording import sentence

#: Jobs that the confirmation page shows.
SHOWN = 20
#: The most jobs that can be ticked: a page has no more rows.
MOST_TICKED = 500
#: How long a form holds after it was shown, in seconds. After that the page asks again, and shows what fits now.
FRESH_S = 15 * 60
_SALT = "django_delayq.admin.bulk"
#: Further questions of the confirmation page, by action.
_FORMS: dict[str, type[forms.Form]] = {
    RESCHEDULE.name: RescheduleForm,
    REPRIORITIZE.name: PriorityForm,
}


class Progress(msgspec.Struct, array_like=True):
    """How far the steps have come."""

    action: str
    query: str
    details: Details
    mark: Mark | None = None
    looked: int = 0
    total: int = 0
    won: int = 0
    lost: dict[str, int] = {}
    #: Primary keys of what was written into the admin's log.
    entries: list[int] = []

    def seal(self, user: str) -> str:
        """Sign it for a user."""
        return _sign([user, msgspec.json.encode(self).decode()])


class _OfAnother(Exception):
    """Raised when a form was shown to another user."""


def _sign(said: list[str]) -> str:
    return signing.dumps(said, salt=_SALT)


def _read_signed(text: str, user: str) -> tuple[str, bool]:
    """Return what `_sign` has signed for a user, and whether it is recent.

    Raises:
        BadSignature: we have not signed this.
        _OfAnother: it is for another user.
    """
    said = signing.loads(text, salt=_SALT)
    if not isinstance(said, list) or len(said) != 2:
        raise signing.BadSignature("it is not one of our forms")
    if said[0] != user:
        raise _OfAnother
    try:
        signing.loads(text, salt=_SALT, max_age=FRESH_S)
    except signing.SignatureExpired:
        return said[1], False
    return said[1], True


def _say_too_old(visit: Visit) -> None:
    text = gettext(
        "This form was too old, so nothing was changed. These jobs match now."
    )
    visit.message(text, messages.WARNING)


_progress = Decoder[Progress](Progress, trusted=True)


def open_progress(text: str, user: str) -> tuple[Progress, bool]:
    """Return what `Progress.seal` wrote, and whether it is recent."""
    try:
        progress, is_recent = _read_signed(text, user)
        return _progress.decode(progress), is_recent
    except (signing.BadSignature, DecodeError, TypeError) as error:
        raise Http404("this form does not say how far the steps have come") from error


@dataclass(frozen=True, slots=True)
class _Over:
    """The jobs that an action changes."""

    #: Those that were ticked; None: all that the search finds.
    jobs: list[Job[Any]] | None
    search: Filter

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The hidden fields of a form that name these jobs again."""
        if self.jobs is not None:
            return [("job", job.id) for job in self.jobs]
        return [("all", "1"), ("filter", self.search.query)]

    def digest(self, action: Action) -> str:
        """Return what stands for an action on these in the signature of a form."""
        return sha256(repr((action.name, self.fields)).encode()).hexdigest()


def change_jobs(visit: Visit) -> HttpResponse:
    """Ask whether to do something to jobs; then do it, or the next step of it."""
    request = visit.request
    visit.check("view")
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        return _change_jobs(visit)
    except _OfAnother:
        text = gettext("This form belongs to another user. Nothing was changed.")
        visit.message(text, messages.ERROR)
        return _back(visit)


def _change_jobs(visit: Visit) -> HttpResponse:
    request = visit.request
    if "progress" in request.POST:
        return _open_steps(visit, request.POST["progress"])
    # One button says both: what to do, and whether to all.
    name, _, scope = request.POST.get("action", "").partition(":")
    action_or_none = ACTIONS.get(name)
    if action_or_none is None:
        raise Http404(f"jobs have no action {name!r}")
    action = action_or_none
    visit.check(action.right)
    over = _read_over(visit, action, is_all=scope == "all" or "all" in request.POST)
    if over is None:
        return _back(visit)
    is_sent = "sure" in request.POST
    form = _form_of(action, request.POST if is_sent else None)
    is_sure = is_sent and _was_asked(visit, action, over)
    if not is_sure or (form is not None and not form.is_valid()):
        return _ask_first(visit, action, over, form)
    said = form.cleaned_data if form is not None else {}
    details = Details(said.get("when", NOW), said.get("priority", 0))
    if over.jobs is not None:
        return _change_named(visit, action, over.jobs, details)
    progress = Progress(action.name, over.search.query, details)
    return _continue(visit, action, over.search, progress)


def _form_of(action: Action, data: QueryDict | None = None) -> forms.Form | None:
    form = _FORMS.get(action.name)
    return None if form is None else form(data)


def _open_steps(visit: Visit, text: str) -> HttpResponse:
    """Continue a change in steps; ask again if its form is too old."""
    progress, is_recent = open_progress(text, visit.user_id)
    action = ACTIONS[progress.action]
    visit.check(action.right)
    search = _read_filter(visit, action, progress.query)
    if search is None:
        # It was valid, and is signed.
        raise Http404(
            "the queue that the steps work through is not configured any more"
        )
    if progress.mark is not None:
        visit.check(action.right, *progress.mark.queues)
    if is_recent:
        return _continue(visit, action, search, progress)
    _say_too_old(visit)
    return _ask_first(visit, action, _Over(None, search), _form_of(action))


def _was_asked(visit: Visit, action: Action, over: _Over) -> bool:
    """Whether the user was asked about just this a moment ago; says so if that was too long ago.

    Raises:
        _OfAnother: another user was asked.
    """
    asked = visit.request.POST.get("asked", "")
    try:
        digest, is_recent = _read_signed(asked, visit.user_id)
    except signing.BadSignature:
        return False
    if not is_recent:
        _say_too_old(visit)
    return is_recent and digest == over.digest(action)


def _back(visit: Visit) -> HttpResponse:
    return HttpResponseRedirect(visit.next(visit.search_url()))


def _read_over(visit: Visit, action: Action, *, is_all: bool) -> _Over | None:
    """Read what was ticked, or the search; None: nothing, and the page says so."""
    posted = visit.request.POST
    if is_all:
        search = _read_filter(visit, action, posted.get("filter", ""))
        if search is None:
            visit.message(
                gettext("The search could not be read; nothing was changed."),
                messages.ERROR,
            )
            return None
        return _Over(None, search)
    ids = posted.getlist("job")[:MOST_TICKED]
    jobs: list[Job[Any]] = []
    for job_id in dict.fromkeys(ids):
        try:
            jobs.append(handle_of(job_id))
        except (JobNotFound, QueueNotFound):
            visit.message(
                gettext(
                    "“{id}” is not the ID of a job. Nothing was changed.",
                    id=cut(clean(job_id), ROW_CHARACTERS),
                ),
                messages.ERROR,
            )
            return None
    visit.check(action.right, *{job.queue for job in jobs})
    if not jobs:
        visit.message(
            gettext("No job was selected. Nothing was changed."), messages.WARNING
        )
        return None
    return _Over(jobs, Filter())


def _read_filter(visit: Visit, action: Action, query: str) -> Filter | None:
    """Read a search; it looks into the queues that the user may change so."""
    form = SearchForm(visit.queues_to(action.right), QueryDict(query))
    return form.filter if form.is_valid() else None


def _ask_first(
    visit: Visit, action: Action, over: _Over, form: forms.Form | None
) -> HttpResponse:
    """Show what would be changed, and ask for the rest."""
    if over.jobs is not None:
        rows, count, at_most = (
            _rows_of(visit, over.jobs),
            len(over.jobs),
            len(over.jobs),
        )
        is_exact = True
    else:
        seen = look(over.search, None, SHOWN)
        visit.tell_missing(seen.missing)
        rows, at_most = seen.rows, seen.total
        # A search that has come to its end has found all.
        is_exact = over.search.is_by_state or seen.cursor is None
        count = at_most if over.search.is_by_state else seen.found
    context = {
        "title": gettext("Are you sure?"),
        "action": action,
        "question": outcome.question_text(action, count) if is_exact else None,
        "label": action.label,
        "at_most": at_most,
        "rows": rows[:SHOWN],
        "more": count - len(rows[:SHOWN]) if is_exact else 0,
        "is_exact": is_exact,
        "conditions": over.search.words,
        "is_all": over.jobs is None,
        "fields": [
            *over.fields,
            ("asked", _sign([visit.user_id, over.digest(action)])),
        ],
        "form": form,
        "next": visit.next(visit.search_url()),
        "change_url": visit.reverse("bulk"),
    }
    return visit.render("bulk_confirm", context)


def _rows_of(visit: Visit, jobs: list[Job[Any]]) -> list[Row]:
    """Look where the jobs are, as far as they are shown."""
    shown = jobs[:SHOWN]
    named = Named(shown)
    seen = perform(own_clients.of_thread, _looking(named))
    visit.tell_missing(named.missing)
    # A job whose queue does not answer is changed all the same if the queue is back by then, so its id is shown.
    return [_row_of(job, seen.get(job.id)) for job in shown]


def _looking(named: Named) -> Steps[dict[str, Inspected]]:
    """Return what the server has of each job, by id."""
    seen: dict[str, Inspected] = {}
    while (jobs := (yield from named.next())) is not None:
        seen |= zip((job.id for job in jobs), named.page, strict=True)
    return seen


def _row_of(job: Job[Any], seen: Inspected | None) -> Row:
    if seen is None:
        return row_of_id(job.queue, job.token)
    queue = conf.get_settings().queue(job.queue)
    return row_of(queue, job.token, seen, str(job.state), None, seen.now_ms)


def _change_named(
    visit: Visit, action: Action, jobs: list[Job[Any]], details: Details
) -> HttpResponse:
    """Change the jobs that were ticked."""
    models = []
    for job in jobs:
        model = JobModel(id=clean(job.id))
        model.label = clean(job.id)
        models.append(model)
    flag = DELETION if action.deletes else CHANGE
    entries = visit.log(models, flag, _log_text(action, details))
    named = Named(jobs, moves_to=details.when)
    went: dict[str, str] = {}

    def took(job: Job[Any], is_won: bool) -> None:
        lost = {} if is_won else {job.state: 1}
        before = _from_to(action, named, job, details) if is_won else ""
        text = f"{_outcome(action, details, int(is_won), lost)} {before}"
        went[clean(job.id)] = text.strip()

    changed = _perform(visit, action, named, details, took)
    if isinstance(changed, Changed):
        entries.end(texts=went)
        _tell(visit, action, details, changed.won, changed.lost)
    else:
        entries.end(changed, went)
    return _back(visit)


def _from_to(action: Action, named: Named, job: Job[Any], details: Details) -> str:
    """Say what a job had before, if the action gives it another start time or priority."""
    start_ms, priority = named.before[job.id]
    if action is REPRIORITIZE:
        before, after = f"{priority or 0:+d}", f"{details.priority:+d}"
    elif action.moves and start_ms is not None:
        before, after = time_text(start_ms), time_text(named.target_ms)
    else:
        return ""
    return gettext("Before: {before}. Requested: {after}.", before=before, after=after)


def _continue(
    visit: Visit, action: Action, search: Filter, progress: Progress
) -> HttpResponse:
    """Do one step of a change of all that a search finds."""
    jobs, details = search.jobs(), progress.details
    walk = jobs.walk(progress.mark, moves_to=details.when if action.moves else None)
    if progress.mark is None:
        progress.total, missing = count_at_most(jobs)
        # The steps leave them out, so this is said once.
        visit.tell_missing(missing)
        walk.pass_over(missing)
        queues = [name for name in jobs.queues if name not in missing]
        progress.entries = _log_search(visit, action, search, queues, details)
    step = Step(walk)
    changed = _perform(visit, action, step, details)
    if not isinstance(changed, Changed):
        won, lost = progress.won, progress.lost
        so_far = f"{_outcome(action, details, won, lost)} " if won or lost else ""
        add_outcome(progress.entries, f"{so_far}{changed}")
        return _back(visit)
    progress.mark, progress.looked = step.mark, progress.looked + step.looked
    progress.won += changed.won
    progress.lost = dict(Counter(progress.lost) + Counter(changed.lost))
    said = _outcome(action, details, progress.won, progress.lost)
    add_outcome(progress.entries, said)
    if progress.mark.is_at_end:
        _tell(visit, action, details, progress.won, progress.lost)
        return _back(visit)
    total = max(progress.total, progress.looked)
    context = {
        "title": gettext(
            "{action}: {done} of about {total}",
            action=action.label,
            done=progress.looked,
            total=total,
        ),
        "action": action,
        "said": said,
        "looked": progress.looked,
        "total": total,
        "conditions": search.words,
        "progress": progress.seal(visit.user_id),
        "next": visit.next(visit.search_url()),
        "change_url": visit.reverse("bulk"),
    }
    return visit.render("bulk_progress", context)


def _perform(
    visit: Visit,
    action: Action,
    pages: Pages,
    details: Details,
    took: Took = lambda job, is_won: None,
) -> Changed | str:
    """Change jobs and return the message to the user, which says how far it came if it broke off."""
    try:
        return perform(
            own_clients.of_thread, bulk.changing(pages, action, details, took)
        )
    except MaybeChanged as error:
        told = clean(error)
    except DelayqError as error:
        notes = getattr(error, "__notes__", [])
        told = clean(" ".join([f"{error}.", *notes]))
    visit.message(told, messages.ERROR)
    return told


def _log_text(action: Action, details: Details) -> str:
    text = str(action.label)
    if action is REPRIORITIZE:
        text += f" ({details.priority:+d})"
    elif action is RESCHEDULE:
        how, ms = details.when[0], int(details.when[1:])
        text += f" ({time_text(ms) if how == '=' else f'+{span_text(ms)}'})"
    return say(sentence(text))


def _log_search(
    visit: Visit,
    action: Action,
    search: Filter,
    queues: Sequence[str],
    details: Details,
) -> list[int]:
    """Write into the admin's log what is about to happen, an entry a queue."""
    conditions = "; ".join(search.words) or gettext("all jobs")
    text = clean(f"{_log_text(action, details)} {conditions}.")
    flag = DELETION if action.deletes else CHANGE
    return [visit.log(visit.queue_model(name), flag, text).pk for name in queues]


def _outcome(action: Action, details: Details, won: int, lost: Any) -> str:
    """Say how many were changed, and how many were left alone and why."""
    said = say(sentence(outcome.done_text(action, won, details)))
    if left := sum(lost.values()):
        why = list_text(
            gettext("{count} {state}", count=count, state=state_label(state))
            for state, count in lost.items()
        )
        said += " " + ngettext(
            "{number} was left alone: {why}.",
            "{number} were left alone: {why}.",
            left,
            why=why,
        )
    return said


def _tell(visit: Visit, action: Action, details: Details, won: int, lost: Any) -> None:
    level = messages.SUCCESS if won or not lost else messages.WARNING
    visit.message(_outcome(action, details, won, lost), level)
