"""The seven pages of a queue, their rows, and the arithmetic of page numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_lazy

from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import Counts, Inspected, Page, PageRow
from django_delayq.core.search_calls import Found
from django_delayq.core.states import State
from django_delayq.display.attempts import Failure, read_failure
from django_delayq.display.fields import state_text
from django_delayq.display.payloads import Content, read_content
from django_delayq.display.texts import size_text
from django_delayq.display.time_texts import Moment
from django_delayq.translations import state_label

#: No set of the server has as many elements; the limit keeps ranks within what the server reads as a number.
LAST_PAGE = 10**9


@dataclass(frozen=True, slots=True)
class Tab:
    """One of a queue's sets, as the page of a queue shows it."""

    state: State
    title: str | Promise
    #: What the set holds.
    help: str | Promise
    #: What its scores mean; "": it has none.
    time_title: str | Promise
    #: Field of `Counts`.
    count: str
    is_newest_first: bool = False
    has_attempts: bool = True
    has_errors: bool = False

    @property
    def is_sortable(self) -> bool:
        """Whether the set has an order that can be read from either end."""
        return bool(self.time_title)

    @property
    def states(self) -> tuple[State, ...]:
        """The states that its jobs are in, as a search knows them."""
        if self.state is State.SCHEDULED:
            return (State.SCHEDULED, State.DUE)
        return (self.state,)


TABS = {
    tab.state: tab
    for tab in (
        Tab(
            State.SCHEDULED,
            gettext_lazy("Scheduled"),
            gettext_lazy(
                "Jobs that wait for their start time, the earliest first, and due jobs that no worker has had room for yet."
                " Jobs that were given back, snoozed or moved before their first attempt come first, and so do retried dead letters."
            ),
            gettext_lazy("Due"),
            "waiting",
            has_attempts=False,
        ),
        Tab(
            State.DUE,
            gettext_lazy("Destination queue"),
            gettext_lazy(
                "Due payloads, in the order in which a worker here or Java will take them."
            ),
            "",
            "destination",
            has_attempts=False,
        ),
        Tab(
            State.RUNNING,
            gettext_lazy("Running"),
            gettext_lazy(
                "Jobs that a worker runs. The worker renews their leases as long as it lives."
            ),
            gettext_lazy("Lease ends"),
            "running",
        ),
        Tab(
            State.RETRYING,
            gettext_lazy("Retrying"),
            gettext_lazy(
                "Jobs that wait for another attempt, after a failure or after their worker died."
            ),
            gettext_lazy("Next attempt"),
            "retrying",
            has_errors=True,
        ),
        Tab(
            State.HELD,
            gettext_lazy("Held"),
            gettext_lazy(
                "Jobs that cannot start yet. No worker knows their task or the key that signs them, their task is paused, their limit is full, or their batch has not ended. The next job to be quarantined comes first; only jobs with an unknown task are quarantined."
            ),
            gettext_lazy("Held until"),
            "held",
            has_errors=True,
        ),
        Tab(
            State.DEAD,
            gettext_lazy("Dead letters"),
            gettext_lazy("Jobs that are out of attempts; the latest comes first."),
            gettext_lazy("Dead since"),
            "dead",
            is_newest_first=True,
            has_errors=True,
        ),
        Tab(
            State.QUARANTINED,
            gettext_lazy("Quarantine"),
            gettext_lazy(
                "Payloads that nobody here can read or run, each with the reason; the latest comes first."
            ),
            gettext_lazy("Quarantined since"),
            "quarantined",
            is_newest_first=True,
            has_errors=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """One element of a page."""

    #: From 1 on, in the set.
    place: int
    #: "": it has no id.
    token: str
    moment: Moment | None
    content: Content
    state: str
    attempts: int
    kills: int
    failure: Failure | None
    size: str
    #: Name of the queue.
    queue: str

    @property
    def id(self) -> str:
        """Its name in a form; "": it has no id."""
        return f"{self.queue}:{self.token}" if self.token else ""

    @property
    def state_label(self) -> str:
        return state_label(self.state)


def row_of(
    queue: QueueSettings,
    token: str,
    seen: PageRow | Found | Inspected,
    state: str,
    moment: Moment | None,
    now_ms: int,
    *,
    size: int | None = None,
    place: int = 0,
) -> Row:
    """Make the row of an element. ``size`` is that of its payload, if not all of it was read."""
    size = len(seen.payload) if size is None else size
    return Row(
        place,
        token,
        moment,
        read_content(seen.payload, size, queue),
        state,
        seen.attempts,
        seen.kills,
        read_failure(seen.error, now_ms),
        size_text(size),
        queue.name,
    )


def row_of_id(queue: str, token: str) -> Row:
    """Make the row of a job of which nothing but its id is known."""
    content = Content("", True, "")
    return Row(0, token, None, content, State.UNKNOWN, 0, 0, None, "", queue)


def rows_of(
    tab: Tab, page: Page, first: int, now_ms: int, queue: QueueSettings
) -> list[Row]:
    """Make the rows of a page that the server returned."""
    return [
        _row(tab, row, first + i + 1, now_ms, queue) for i, row in enumerate(page.rows)
    ]


def _row(tab: Tab, seen: PageRow, place: int, now_ms: int, queue: QueueSettings) -> Row:
    moment = Moment.of(seen.score_ms, now_ms) if tab.time_title else None
    if tab.state is State.HELD and seen.score_ms is not None:
        moment = Moment.of_held(seen.score_ms, now_ms)
    state = state_text(tab.state, seen.score_ms, now_ms)
    row = row_of(
        queue,
        seen.token,
        seen,
        state,
        moment,
        now_ms,
        size=seen.payload_size,
        place=place,
    )
    if tab.state is not State.SCHEDULED or seen.token:
        return row
    fault = gettext("not a Redisson frame; quarantined when it is due")
    content = Content("", True, row.content.arguments, fault=fault)
    return replace(row, content=content, state="unreadable")


@dataclass(frozen=True, slots=True)
class Pager:
    """Where a page lies among all of them."""

    number: int
    last: int
    total: int

    @classmethod
    def of(cls, number: int, total: int, per_page: int) -> "Pager":
        return cls(number, max(1, -(-total // per_page)), total)

    @property
    def is_beyond(self) -> bool:
        """Whether there is no such page (any more)."""
        return self.number > self.last

    def on_this_page(self, per_page: int) -> int:
        """Return how many elements this page has."""
        return min(per_page, self.total - (self.number - 1) * per_page)

    @property
    def previous(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        return self.number + 1 if self.number < self.last else None

    def links(
        self,
        url_of: Callable[[int], str],
        previous: str = "",
        next: str = "",
        *,
        first: str = "",
        last: str = "",
    ) -> list[tuple[str, str | None]]:
        """Return the labels of the links to other pages, with their addresses; None: there is no such page."""
        targets = (
            (first, 1 if self.previous else None),
            (previous or gettext("‹ previous"), self.previous),
            (next or gettext("next ›"), self.next),
            (last, self.last if self.next else None),
        )
        return [
            (label, url_of(target) if target else None)
            for label, target in targets
            if label
        ]


def read_number(text: str, *, least: int = 0) -> int:
    """Read a number from a URL; invalid input gives the minimum."""
    try:
        return min(max(least, int(text)), LAST_PAGE) if len(text) <= 20 else LAST_PAGE
    except ValueError:
        return least


def count_of(tab: Tab, counts: Counts) -> int:
    """Return how many elements a tab has."""
    number: int = getattr(counts, tab.count)
    return number
