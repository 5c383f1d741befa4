"""The actions on jobs: the one table that `find_jobs`, the admin and ``delayq_jobs`` work by.

Each action has its words, the jobs that it is for, who may do it, and the operation of `Job` that does it to one job.
`bulk` does it to many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_delayq.core.durability import Durability
from django_delayq.core.states import GRAVES, State
from django_delayq.jobs.job import NOW, Job
from django_delayq.transport.steps import Steps

#: States in which a job waits.
WAITING = frozenset({State.SCHEDULED, State.DUE, State.RETRYING, State.HELD})


class Details(NamedTuple):
    """The details of an action."""

    #: The new start time, as `parse_delay` returns it.
    when: str = NOW
    priority: int = 0


#: For actions that take none.
NO_DETAILS = Details()


class Counted(Protocol):
    """A text about a number of jobs, as `ngettext_lazy` returns it."""

    def format(self, *, count: int, **parts: object) -> str:
        """Return the text for ``count`` jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that can be done to jobs. Counted texts have ``{number}``, and texts of one job ``{id}``."""

    name: str
    #: Its verb in ``delayq_jobs``; "": it has none.
    verb: str = ""
    #: On its button.
    label: str | Promise
    #: In the help of ``delayq_jobs``.
    help: str | Promise = ""
    #: Asked before it is done to many jobs, and what the admin adds to that.
    question: Counted
    explanation: str | Promise
    #: Said of many jobs once it is done; of reprioritized ones with ``{priority}``.
    done: Counted
    #: Said of one job.
    done_one: str | Promise = ""
    #: Said of a job that a destination queue or Java has; "": it is left alone there.
    unknown_one: str | Promise = ""
    #: Said of the jobs in errors, in English.
    past: str
    #: It is for jobs in these states, and leaves others alone.
    states: frozenset[State]
    #: Jobs in this state need no change if they are among many.
    needless: State | None = None
    #: The action for jobs that this one leaves alone.
    instead: str
    #: It needs the permission to delete jobs, else to change them.
    deletes: bool = False
    #: It gives jobs another start time.
    moves: bool = False
    #: Does it to a job as it was at the last look; returns whether it is done.
    change: Callable[[Job[Any], Details, Durability | None], Steps[bool]]

    @property
    def right(self) -> Literal["change", "delete"]:
        """The permission that a user of the admin needs."""
        return "delete" if self.deletes else "change"


RUN_NOW = Action(
    name="run_now",
    verb="run",
    label=gettext_lazy("Run now"),
    help=gettext_lazy("make jobs that wait due now; dead letters need retry."),
    question=ngettext_lazy("Run {number} job now?", "Run {number} jobs now?", "count"),
    explanation=gettext_lazy("They become due at once."),
    done=ngettext_lazy("{number} job is due now", "{number} jobs are due now", "count"),
    done_one=gettext_lazy("{id} is due now"),
    unknown_one=gettext_lazy(
        "It is due at once if a worker here takes it, but not if Java does."
    ),
    past="due now",
    states=WAITING,
    needless=State.DUE,
    instead="retry",
    moves=True,
    change=lambda job, details, durable: job._moving(NOW, durable, "run_now"),
)
RETRY = Action(
    name="retry",
    verb="retry",
    label=gettext_lazy("Retry"),
    help=gettext_lazy(
        "retry dead letters and quarantined jobs, with all their attempts."
    ),
    question=ngettext_lazy("Retry {number} job?", "Retry {number} jobs?", "count"),
    explanation=gettext_lazy(
        "They have all their attempts again, and are due at once."
    ),
    done=ngettext_lazy("{number} job is retried", "{number} jobs are retried", "count"),
    done_one=gettext_lazy("{id} is retried: it is due now"),
    past="retried",
    states=GRAVES,
    instead="run_now",
    moves=True,
    change=lambda job, details, durable: job._retrying(durable, is_seen=True),
)
RESCHEDULE = Action(
    name="reschedule",
    verb="reschedule",
    label=gettext_lazy("Reschedule"),
    help=gettext_lazy("change the start time of waiting jobs."),
    question=ngettext_lazy(
        "Reschedule {number} job?", "Reschedule {number} jobs?", "count"
    ),
    explanation=gettext_lazy(
        "The jobs get the start time that you give here. Running jobs are not affected."
    ),
    done=ngettext_lazy(
        "{number} job is rescheduled", "{number} jobs are rescheduled", "count"
    ),
    done_one=gettext_lazy("{id} is rescheduled"),
    unknown_one=gettext_lazy("The change applies if a worker here takes it."),
    past="rescheduled",
    states=WAITING,
    instead="retry",
    moves=True,
    change=lambda job, details, durable: job._moving(details.when, durable),
)
REPRIORITIZE = Action(
    name="reprioritize",
    label=gettext_lazy("Change priority"),
    question=ngettext_lazy(
        "Change the priority of {number} job?",
        "Change the priority of {number} jobs?",
        "count",
    ),
    explanation=gettext_lazy(
        "Start times do not change. Among the due jobs of a queue, those with a higher priority run first."
    ),
    done=ngettext_lazy(
        "{number} job now has priority {priority}",
        "{number} jobs now have priority {priority}",
        "count",
    ),
    past="reprioritized",
    states=WAITING,
    instead="retry",
    change=lambda job, details, durable: job._reprioritizing(details.priority, durable),
)
CANCEL = Action(
    name="cancel",
    verb="cancel",
    label=gettext_lazy("Cancel"),
    help=gettext_lazy("cancel waiting jobs."),
    question=ngettext_lazy("Cancel {number} job?", "Cancel {number} jobs?", "count"),
    explanation=gettext_lazy(
        "Cancelled jobs are deleted. A job that a worker takes first runs all the same."
    ),
    done=ngettext_lazy(
        "{number} job is cancelled", "{number} jobs are cancelled", "count"
    ),
    done_one=gettext_lazy("{id} is cancelled and will not run"),
    unknown_one=gettext_lazy("Workers here will not run it, but Java may."),
    past="cancelled",
    states=WAITING,
    instead="discard",
    deletes=True,
    change=lambda job, details, durable: job._cancelling(durable),
)
DISCARD = Action(
    name="discard",
    verb="discard",
    label=gettext_lazy("Discard"),
    help=gettext_lazy("delete dead letters and quarantined payloads for good."),
    question=ngettext_lazy(
        "Discard {number} job for good?", "Discard {number} jobs for good?", "count"
    ),
    explanation=gettext_lazy("They will not run again, and nothing of them is kept."),
    done=ngettext_lazy(
        "{number} job is discarded", "{number} jobs are discarded", "count"
    ),
    done_one=gettext_lazy("{id} is discarded for good"),
    past="discarded",
    states=GRAVES,
    instead="cancel",
    deletes=True,
    change=lambda job, details, durable: job._discarding(durable, is_seen=True),
)
#: In the order of their buttons.
ACTIONS = {
    action.name: action
    for action in (RUN_NOW, RETRY, RESCHEDULE, REPRIORITIZE, CANCEL, DISCARD)
}
