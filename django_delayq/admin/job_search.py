"""Looking for jobs: what the form asks for, how far a search has come, and what one page of it has found.

A page looks at a bounded number of jobs, and its link continues from there: nothing is kept between two of them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import msgspec
from django import forms
from django.core import signing
from django.utils import timezone
from django.utils.translation import gettext_lazy

from django_delayq import conf
from django_delayq.admin.job_lists import Row, row_of
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.core.search_calls import SEARCH_PAGE
from django_delayq.core.states import State
from django_delayq.decoder import Decoder
from django_delayq.display import texts
from django_delayq.display.time_texts import Moment
from django_delayq.exceptions import DecodeError, PartialAnswer
from django_delayq.jobs.find import FoundJobs, find_jobs
from django_delayq.jobs.registry import all_tasks
from django_delayq.jobs.search import LISTED
from django_delayq.jobs.walk import Mark
from django_delayq.translations import gettext, list_text, moment_text, state_label
from django_delayq.transport.clients import own_clients
from django_delayq.transport.plain_command import Command
from django_delayq.transport.several import run_all
from django_delayq.transport.steps import perform
from django_delayq.wire.signatures import TOKEN_LENGTH

#: Calls that one page makes to look for jobs; two more count them and ask for the time.
MOST_CALLS = 8
#: After this long a page makes no further call, s.
ENOUGH_S = 0.05
#: So many tasks are proposed.
MOST_TASKS = 200
#: No task, and no id, is longer.
LONGEST = 512
_SALT = "django_delayq.admin.job_search"


class SearchForm(forms.Form):
    """The jobs to look for."""

    q = forms.CharField(
        label=gettext_lazy("Text or ID"),
        required=False,
        max_length=LONGEST,
        help_text=gettext_lazy("Text in an argument or in the error, or the whole ID."),
    )
    task = forms.CharField(
        label=gettext_lazy("Task"),
        required=False,
        max_length=LONGEST,
        widget=forms.TextInput(attrs={"list": "delayq-tasks"}),
    )
    queue = forms.ChoiceField(label=gettext_lazy("Queue"), required=False)
    state = forms.MultipleChoiceField(
        label=gettext_lazy("State"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    due_from = forms.DateTimeField(
        label=gettext_lazy("Due from"),
        required=False,
        widget=forms.DateTimeInput(
            attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"
        ),
    )
    due_to = forms.DateTimeField(
        label=gettext_lazy("Due before"),
        required=False,
        widget=forms.DateTimeInput(
            attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"
        ),
    )

    use_required_attribute = False

    def __init__(self, names: Sequence[str], *args: Any, **kwargs: Any) -> None:
        """Make the form for somebody who may look into the queues of these names."""
        super().__init__(*args, **kwargs)
        self._names = tuple(names)
        queues = [(name, name) for name in names]
        fields: dict[str, Any] = self.fields
        fields["queue"].choices = [("", gettext("all queues")), *queues]
        fields["state"].choices = [
            (state.value, state_label(state)) for state in State if state in LISTED
        ]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        first, end = cleaned.get("due_from"), cleaned.get("due_to")
        if first is not None and end is not None and first >= end:
            self.add_error(
                "due_to",
                gettext("This must be later than “Due from”."),
            )
        return cleaned

    @property
    def filter(self) -> "Filter":
        """The search of a valid form."""
        cleaned = self.cleaned_data
        return Filter(
            cleaned["q"],
            cleaned["task"],
            cleaned["queue"],
            tuple(map(State, cleaned["state"])),
            cleaned["due_from"],
            cleaned["due_to"],
            self._names,
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """The search; checked."""

    text: str = ""
    task: str = ""
    queue: str = ""
    states: tuple[State, ...] = ()
    first: datetime | None = None
    end: datetime | None = None
    #: The names of the queues that are looked into unless ``queue`` says in which.
    names: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that are looked into."""
        return (self.queue,) if self.queue else self.names

    @property
    def query(self) -> str:
        """The query in the address of a page that looks for this."""
        pairs = [("q", self.text), ("task", self.task), ("queue", self.queue)]
        pairs += [("state", state.value) for state in self.states]
        for name, moment in (("due_from", self.first), ("due_to", self.end)):
            if moment is not None:
                local = (
                    timezone.localtime(moment) if timezone.is_aware(moment) else moment
                )
                pairs.append((name, local.strftime("%Y-%m-%dT%H:%M:%S")))
        return urlencode([(name, value) for name, value in pairs if value])

    @property
    def is_by_state(self) -> bool:
        """Whether nothing but queue and states says what fits, so that all fitting jobs can be counted."""
        return not (self.text or self.task or self.first or self.end)

    def jobs(self) -> FoundJobs[Any]:
        """Return the search itself."""
        first, end = (
            moment
            if moment is None or timezone.is_aware(moment)
            else timezone.make_aware(moment)
            for moment in (self.first, self.end)
        )
        return find_jobs(
            queue=self.queues,
            state=self.states or None,
            task=self.task or None,
            text=self.text or None,
            due=None if first is None and end is None else (first, end),
        )

    @property
    def words(self) -> list[str]:
        """Say what is looked for, a condition an item."""
        said = []
        if self.states:
            states = list_text([state_label(state) for state in self.states])
            said.append(gettext("state: {states}", states=states))
        for name, value in (
            (gettext("queue: {value}"), self.queue),
            (gettext("task: {value}"), self.task),
            (gettext("text: {value}"), self.text),
        ):
            if value:
                said.append(name.format(value=texts.clean(value)))
        for name, moment in (
            (gettext("due from {time}"), self.first),
            (gettext("due before {time}"), self.end),
        ):
            if moment is not None:
                said.append(name.format(time=moment_text(moment)))
        return said


class Cursor(msgspec.Struct, array_like=True):
    """How far a search has come, and how much it has looked at and found until there."""

    mark: Mark
    looked: int
    found: int

    def seal(self, search: Filter) -> str:
        """Write it for an address. Only the same search of the same site can read it."""
        text = msgspec.json.encode(self).decode()
        return signing.dumps(text, salt=_salt_of(search), compress=True)


def _salt_of(search: Filter) -> str:
    # Where it looks is part of it: a link of somebody with more rights shows nobody else more.
    text = f"{search.query} {search.names}"
    return f"{_SALT}:{hashlib.sha256(text.encode()).hexdigest()}"


_cursor = Decoder[Cursor](Cursor, trusted=True)


def open_cursor(text: str, search: Filter) -> Cursor | None:
    """Read what `Cursor.seal` wrote; None: it is damaged, or belongs to another search."""
    try:
        found = signing.loads(text, salt=_salt_of(search))
        return _cursor.decode(found)
    except (signing.BadSignature, DecodeError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Look:
    """One page of the results of a search."""

    rows: list[Row]
    #: How much was looked at from the beginning on, and how much there is to look at, at most.
    looked: int
    total: int
    #: How many were found from the beginning on.
    found: int
    #: Where the next page goes on; None: this is the last.
    cursor: Cursor | None
    #: Encrypted jobs of this page's search, in which nobody looks for the text.
    unsearched: int
    #: The error of each queue that cannot be read, by its name.
    missing: dict[str, Exception]


def look(search: Filter, cursor: Cursor | None, per_page: int) -> Look:
    """Look for jobs until a page is full, in ten calls at most.

    Raises:
        InvalidSearch: nothing can be found by this; the message says why.
    """
    jobs = search.jobs()
    total, missing = count_at_most(jobs)
    looked, found = (cursor.looked, cursor.found) if cursor is not None else (0, 0)
    walk = jobs.walk(cursor.mark if cursor is not None else None)
    walk.pass_over(missing)
    rows: list[Row] = []
    deadline, count = monotonic() + ENOUGH_S, per_page
    settings = conf.get_settings()
    for _ in range(MOST_CALLS):
        page = perform(own_clients.of_thread, walk.read(count))
        if page is None:
            break
        queue = settings.queue(page.queue)
        before = len(rows)
        for fit in page.fits:
            seen = fit.found
            moment = Moment.of(seen.due_ms, page.now_ms)
            state = str(seen.state)
            rows.append(row_of(queue, seen.token, seen, state, moment, page.now_ms))
        looked += page.looked
        if len(rows) >= per_page or monotonic() >= deadline:
            break
        # What fits rarely is looked for in larger steps; what fits always, no further than the page goes.
        is_rare = 2 * (len(rows) - before) < page.looked
        count = SEARCH_PAGE if is_rare else per_page - len(rows)
    found += len(rows)
    mark = walk.mark
    return Look(
        rows,
        looked,
        max(total, looked),
        found,
        None if mark.is_at_end else Cursor(mark, looked, found),
        walk.unsearched,
        missing | walk.missing,
    )


def count_at_most(jobs: FoundJobs[Any]) -> tuple[int, dict[str, Exception]]:
    """Return how many jobs a walk looks at, at most, and the errors of the queues that it cannot read."""
    try:
        return jobs.count_at_most(), {}
    except PartialAnswer as error:
        return error.found, error.missing


def proposed_tasks() -> list[str]:
    """Return the names of the first tasks of this process."""
    return [task.name for task in all_tasks()[:MOST_TASKS]]


def find_by_id(text: str, queues: Sequence[QueueSettings]) -> str | None:
    """Return the id of the job whose id, or token, a text is; one round trip. None: there is no such job."""
    name, colon, token = text.rpartition(":")
    if len(token) != TOKEN_LENGTH and not colon:
        return None
    asked = [queue for queue in queues if not colon or queue.name == name]
    calls: list[Any] = []
    for queue in asked:
        calls += (
            queue_reads.inspect(queue.keys, token),
            # Of a job that has ended, its record may be left.
            Command(("LLEN", queue.keys.result(token))),
        )
    replies = run_all(own_clients.of_thread(), calls)
    for queue, seen, kept in zip(asked, replies[::2], replies[1::2], strict=True):
        if isinstance(seen, Exception) or isinstance(kept, Exception):
            # The search says so.
            continue
        if seen.state is not State.MISSING or kept:
            return f"{queue.name}:{token}"
    return None
