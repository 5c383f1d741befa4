"""What can be done to jobs, to one or to many: how it is named, what it needs, how it is carried out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_delayq.admin.forms import PriorityForm, RescheduleForm
from django_delayq.admin.visit import Right
from django_delayq.calls.steps import Steps
from django_delayq.calls.together import together
from django_delayq.delivery.states import GRAVES, State
from django_delayq.jobs import bulk
from django_delayq.jobs.answers import leaving_out
from django_delayq.jobs.bulk import Changed, Pages, Took
from django_delayq.jobs.finding import Mark, Walk, ask_time, target_of
from django_delayq.jobs.job import Job
from django_delayq.showing.display import Moment

#: A step changes so many jobs at most, and makes no further call after so long, s.
STEP_JOBS = 2_000
STEP_S = 2.0

#: What a form of an action has said, by field.
Said = dict[str, Any]
_WAITING = frozenset({State.SCHEDULED, State.DUE, State.RETRYING, State.HELD})


@dataclass(frozen=True, slots=True)
class Action:
    """One of them."""

    name: str
    #: On its button.
    label: str | Promise
    #: Asked before it is done to so many jobs.
    question: Any
    #: What it means.
    note: str | Promise
    #: Told afterwards of so many jobs.
    done: Any
    #: What it is done to: jobs in these states; it leaves others alone.
    states: frozenset[State]
    steps: Callable[[Pages, Said, Took], Steps[Changed]]
    #: It needs the right to delete, else the right to change.
    deletes: bool = False
    #: What it asks beside whether one is sure.
    form: type[forms.Form] | None = None
    #: Whether it gives jobs another start time; returns it as `parse_delay` does.
    moves_to: Callable[[Said], str] | None = None

    @property
    def right(self) -> Right:
        """The permission that a user needs for it."""
        return "delete" if self.deletes else "change"


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "run_now",
            gettext_lazy("Run now"),
            ngettext_lazy("Run {count} job now?", "Run {count} jobs now?"),
            gettext_lazy("They become due at once."),
            ngettext_lazy("{count} job is due now.", "{count} jobs are due now."),
            _WAITING,
            lambda pages, said, took: bulk.running_now(pages, took),
            moves_to=lambda said: "+0",
        ),
        Action(
            "retry",
            gettext_lazy("Retry"),
            ngettext_lazy("Retry {count} job?", "Retry {count} jobs?"),
            gettext_lazy("They have all their attempts again, and are due at once."),
            ngettext_lazy("{count} job is retried.", "{count} jobs are retried."),
            GRAVES,
            lambda pages, said, took: bulk.retrying(pages, took),
            moves_to=lambda said: "+0",
        ),
        Action(
            "reschedule",
            gettext_lazy("Reschedule"),
            ngettext_lazy("Reschedule {count} job?", "Reschedule {count} jobs?"),
            gettext_lazy("The jobs get the start time that you give here. Running jobs are not affected."),
            ngettext_lazy("{count} job is rescheduled.", "{count} jobs are rescheduled."),
            _WAITING,
            lambda pages, said, took: bulk.rescheduling(pages, took),
            form=RescheduleForm,
            moves_to=lambda said: str(said["when"]),
        ),
        Action(
            "reprioritize",
            gettext_lazy("Change priority"),
            ngettext_lazy("Change the priority of {count} job?", "Change the priority of {count} jobs?"),
            gettext_lazy("Start times do not change. Among the due jobs of a queue, those with a higher priority run first."),
            ngettext_lazy("{count} job now has priority {priority}.", "{count} jobs now have priority {priority}."),
            _WAITING,
            lambda pages, said, took: bulk.reprioritizing(pages, said["priority"], took),
            form=PriorityForm,
        ),
        Action(
            "cancel",
            gettext_lazy("Cancel"),
            ngettext_lazy("Cancel {count} job?", "Cancel {count} jobs?"),
            gettext_lazy("Cancelled jobs are deleted. A job that a worker takes first runs all the same."),
            ngettext_lazy("{count} job is cancelled.", "{count} jobs are cancelled."),
            _WAITING,
            lambda pages, said, took: bulk.cancelling(pages, took),
            deletes=True,
        ),
        Action(
            "discard",
            gettext_lazy("Discard"),
            ngettext_lazy("Discard {count} job for good?", "Discard {count} jobs for good?"),
            gettext_lazy("They will not run again, and nothing of them is kept."),
            ngettext_lazy("{count} job is discarded.", "{count} jobs are discarded."),
            GRAVES,
            lambda pages, said, took: bulk.discarding(pages, took),
            deletes=True,
        ),
    )
}  # fmt: skip


def actions_on(states: Sequence[State] | frozenset[State]) -> list[Action]:
    """Return what can be done to jobs in some of these states."""
    return [action for action in ACTIONS.values() if action.states & set(states)]


def time_text(ms: int) -> str:
    """Write a time of the server for the admin's log."""
    moment = Moment.of(ms, ms)
    assert moment is not None
    return f"{moment.in_seconds} {moment.zone}".strip()


class Named:
    """The jobs that somebody has named, as pages of a change."""

    def __init__(self, jobs: Sequence[Job[Any]], *, moves_to: str = "+0") -> None:
        # A page is of one queue.
        self._jobs = sorted(jobs, key=lambda job: job.queue)
        self._moves_to = moves_to
        self.target_ms = 0
        #: The start time and the priority of each, as they were found, by id.
        self.before: dict[str, tuple[int | None, int | None]] = {}
        #: The error of each queue that cannot be read, by its name.
        self.missing: dict[str, Exception] = {}

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Look where the next of them are."""
        while self._jobs:
            if not self.target_ms:
                self.target_ms = target_of(self._moves_to, (yield ask_time()))
            queue = self._jobs[0].queue
            batch = [job for job in self._jobs[: bulk.BATCH] if job.queue == queue]
            seen = yield from together([job._refreshing() for job in batch])
            error = next((each for each in seen if isinstance(each, Exception)), None)
            if error is not None:
                yield from self.leave_out(queue, error)
                continue
            self._jobs = self._jobs[len(batch) :]
            for job in batch:
                self.before[job.id] = (job.start_time_ms, job.priority)
            return iter(batch)
        return None

    def leave_out(self, queue: str, error: Exception) -> Steps[None]:
        """See `Walk.leave_out`."""
        rest = {job.queue: None for job in self._jobs if job.queue != queue}
        left = yield from leaving_out(self.missing, queue, error, list(rest))
        self._jobs = [job for job in self._jobs if job.queue in left]


class Step:
    """Some of the jobs of a search, as pages of a change: as many as fit into one request."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._deadline = monotonic() + STEP_S
        self._jobs = 0
        #: How many jobs it has looked at.
        self.looked = 0

    @property
    def target_ms(self) -> int:
        return self._walk.target_ms

    @property
    def mark(self) -> Mark:
        """Where the next step begins."""
        return self._walk.mark

    @property
    def missing(self) -> dict[str, Exception]:
        """See `Walk.missing`."""
        return self._walk.missing

    def leave_out(self, queue: str, error: Exception) -> Steps[None]:
        """See `Walk.leave_out`."""
        return self._walk.leave_out(queue, error)

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Find some more, unless this was enough for one request."""
        if self._jobs >= STEP_JOBS or monotonic() >= self._deadline:
            return None
        page = yield from self._walk.read()
        if page is None:
            return None
        self.looked += page.looked
        return self._counted(fit.job for fit in page.fits)

    def _counted(self, jobs: Iterator[Job[Any]]) -> Iterator[Job[Any]]:
        for job in jobs:
            self._jobs += 1
            yield job
