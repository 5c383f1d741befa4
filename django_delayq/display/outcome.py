"""Texts about the outcome of an action on jobs."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_delayq.core.states import State
from django_delayq.jobs.actions import ACTIONS, NO_DETAILS, Action, Details
from django_delayq.translations import gettext, number_text, state_label

#: Of a job that has ended, that runs, or that needs another action.
_TOO_LATE = {
    State.RUNNING: gettext_lazy("{id} is already running: a worker took it first"),
    State.SUCCEEDED: gettext_lazy("{id} has already succeeded"),
    State.DISCARDED: gettext_lazy("{id} was already discarded"),
    State.CANCELLED: gettext_lazy("{id} was already cancelled"),
    State.EXPIRED: gettext_lazy("{id} has already expired"),
    State.TAKEN: gettext_lazy("{id} was already taken"),
    State.DEAD: gettext_lazy(
        "{id} is a dead letter by now: retry or discard it instead"
    ),
    State.QUARANTINED: gettext_lazy(
        "{id} is in quarantine by now: retry or discard it instead"
    ),
    State.MISSING: gettext_lazy(
        "{id} no longer exists: it has ended, or was cancelled or taken"
    ),
}


def question_text(action: Action, count: int) -> str:
    """Ask whether to do an action to many jobs."""
    return action.question.format(count=count, number=number_text(count))


def done_text(action: Action, count: int, details: Details = NO_DETAILS) -> str:
    """Say that an action was done to many jobs; without a full stop."""
    return action.done.format(
        count=count, number=number_text(count), priority=details.priority
    )


def text_of_one(
    action: Action, name: str, state: State, *, is_done: bool, use: str = ""
) -> str:
    """Say how an action on one job went; without a full stop.

    ``state`` is where the job is now. ``use`` is what the reader calls the action that is for jobs in that state.
    """
    if is_done:
        return str(action.done_one).format(id=name)
    return _left_by(action, name, state, action.unknown_one, use)


def rehearsed_text(action: Action, name: str, state: State, use: str) -> str:
    """Say how an action on one job would go; without a full stop. See `text_of_one`."""
    if state in action.states:
        return gettext(
            "{id} would be changed: it is {state}", id=name, state=state_label(state)
        )
    then = gettext("The change would apply only if a worker here takes it.")
    return _left_by(action, name, state, action.unknown_one and then, use)


def _left_by(
    action: Action, name: str, state: State, then: str | Promise, use: str
) -> str:
    """Say why an action leaves a job alone; ``then`` is what it does if a destination queue or Java has the job."""
    if state is State.UNKNOWN and then:
        return gettext(
            "{id} is in a destination queue that is too long to search, or Java took it. {then}",
            id=name,
            then=then,
        )
    return left_text(
        name, state, use if state in ACTIONS[action.instead].states else ""
    )


def left_text(name: str, state: State, use: str = "") -> str:
    """Say why a job was left alone; without a full stop."""
    template = _TOO_LATE.get(state) or (
        gettext("{id} is left alone: it is {state}; use {verb}")
        if use
        else gettext("{id} is left alone: it is {state}")
    )
    return str(template).format(id=name, state=state_label(state), verb=use)
