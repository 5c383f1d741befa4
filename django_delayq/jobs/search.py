"""What `find_jobs` looks for: its arguments, checked, as a `Search`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django_delayq import conf
from django_delayq.core import search_calls
from django_delayq.core.search_calls import Window
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSearch
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.options import is_unicode
from django_delayq.redaction import show
from django_delayq.setting_fields import Values

Held = TypeVar("Held")

#: The states whose jobs a server can list.
LISTED = frozenset({*search_calls.PLACES.values(), State.DUE})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ENDED = (
    "the server does not keep ended jobs; for 30 s, get_job(id) says how one ended. ended_jobs() and `manage.py"
    " delayq_jobs list --state ended` show how the last jobs ended. The result of a task with keep_result is kept"
    " for longer, by the job's id"
)
#: Why jobs in the other states are not listed.
_UNLISTED = {
    State.UNCOMMITTED: "only the process that prepared a job knows it before its commit",
    State.SUCCEEDED: _ENDED,
    State.DISCARDED: _ENDED,
    State.CANCELLED: _ENDED,
    State.EXPIRED: _ENDED,
    State.TAKEN: _ENDED,
    State.UNKNOWN: "it means that a job with a known id was not found where it should be",
    State.MISSING: "it means that the server has no job with a given id",
}
#: Where to look instead, for words that people take for states.
_NO_STATES = {
    "ended": (
        "; how jobs have ended is in the list “Ended” of a queue's page, in ended_jobs(), and in `manage.py delayq_jobs list"
        " --state ended`"
    ),
    "failed": "; jobs that failed are retrying, or dead or quarantined",
}


class Moment(NamedTuple):
    """An end of a range: epoch ms, or ms from now."""

    ms: int
    is_relative: bool

    def at(self, now_ms: int) -> int:
        return self.ms + now_ms if self.is_relative else self.ms


class Search(NamedTuple):
    """The search; checked."""

    queues: tuple[str, ...]
    states: frozenset[State]
    task: str | None
    #: Case-folded.
    text: str | None
    first: Moment | None
    end: Moment | None
    limit: int | None

    @property
    def is_by_state(self) -> bool:
        """Whether nothing but queues and states says what fits."""
        return not any((self.task, self.text, self.first, self.end))

    def window(self, now_ms: int) -> Window:
        return Window(
            None if self.first is None else self.first.at(now_ms),
            None if self.end is None else self.end.at(now_ms),
        )


def search_for(
    *, queue: Any, state: Any, task: Any, text: Any, due: Any, limit: Any
) -> Search:
    """Return the search that the arguments of `find_jobs` describe.

    Raises:
        QueueNotFound, InvalidSearch: as `find_jobs`.
    """
    queues, states = _checked("queue", queue), _checked("state", state)
    if queue is None:
        queues = tuple(each.name for each in conf.get_settings().queues_of())
    first, end = _checked("due", due) or (None, None)
    return Search(
        queues,
        LISTED if states is None else states,
        _checked("task", task),
        _checked("text", text),
        first,
        end,
        _checked("limit", limit),
    )


def _checked(name: str, value: Any) -> Any:
    """Return what an argument stands for; None if nobody has given it."""
    if value is None:
        return None
    values = _ARGUMENTS[name]
    if not values.is_fit(value):
        raise InvalidSearch(f"{name} is {values.wanted}; got {show(value)}")
    return values.read(value)


def _queues_of(names: list[Any]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise InvalidSearch(f"a queue has a name, a string; got {show(name)}")
    # Nothing is found where nothing is looked for.
    parts = conf.get_settings().queues_of(*names) if names else []
    return tuple(each.name for each in parts)


def _states_of(states: list[Any]) -> frozenset[State]:
    listed = ", ".join(one for one in State if one in LISTED)
    found = set()
    for one in states:
        try:
            known = State(one)
        except ValueError:
            hint = _NO_STATES.get(one, "") if isinstance(one, str) else ""
            raise InvalidSearch(
                f"{show(one)} is not a state; the states that can be found are {listed}{hint}"
            ) from None
        if known in _UNLISTED:
            raise InvalidSearch(
                f"jobs that are {known} cannot be found: {_UNLISTED[known]}. The states that can be found are {listed}"
            )
        found.add(known)
    return frozenset(found)


def _range_of(due: Sequence[Any]) -> tuple[Moment | None, Moment | None]:
    first, end = map(_bound_of, due)
    if (
        first is not None
        and end is not None
        and first.is_relative == end.is_relative
        and first.ms > end.ms
    ):
        raise InvalidSearch(
            f"due begins after its end: {show(due)}; the earlier time comes first"
        )
    return first, end


def _bound_of(bound: Any) -> Moment | None:
    if bound is None:
        return None
    # Both ends are rounded up: start times are whole ms.
    if isinstance(bound, timedelta):
        return Moment(-(-bound // _MILLISECOND), is_relative=True)
    if not isinstance(bound, datetime):
        raise InvalidSearch(
            f"an end of due is an aware datetime, a timedelta from now, or None; got {show(bound)}, of type"
            f" {type(bound).__name__}"
        )
    if bound.utcoffset() is None:
        raise InvalidSearch(
            f"a datetime needs a time zone to say when it is; got {show(bound)}. django.utils.timezone.now() has one,"
            " make_aware() adds one"
        )
    return Moment(-((_EPOCH - bound) // _MILLISECOND), is_relative=False)


def _several(what: str, read: Callable[[list[Any]], Held]) -> Values[Held]:
    """Return the strings, and what has any number of items."""
    return Values[Held](
        lambda value: (
            isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)
        ),
        f"{what}, or several of them",
        lambda value: read([value] if isinstance(value, str) else list(value)),
    )


#: What each argument of `find_jobs` may be, unless it is None.
_ARGUMENTS: dict[str, Values[Any]] = {
    "queue": _several("a name", _queues_of),
    "state": _several("a State", _states_of),
    "task": Values[str](
        # A name that this process does not know is fine: jobs outlive the tasks that they name.
        lambda task: isinstance(task, DelayedTask | str) and task != "",
        "a function decorated with @delayed_task, or the name of one",
        lambda task: task.name if isinstance(task, DelayedTask) else task,
    ),
    "text": Values[str](
        lambda text: isinstance(text, str) and text != "" and is_unicode(text),
        "a string that is not empty (leave it out to find jobs with any text)",
        str.casefold,
    ),
    "due": Values[tuple[Moment | None, Moment | None]](
        lambda due: isinstance(due, tuple | list) and len(due) == 2,
        "a range, (start, end): aware datetimes, timedeltas from now, or None for an open end",
        _range_of,
    ),
    "limit": Values[int](
        lambda limit: (
            isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
        ),
        "a number of jobs, 0 or more, or None for all",
    ),
}
