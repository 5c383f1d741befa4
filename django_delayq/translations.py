"""Says in the current language what pages and commands show: wordings of lower layers, states, counters, dates, numbers.

Messages of exceptions and lines of logs are English in every language, so that they can be searched for.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.utils import formats, translation
from django.utils.functional import Promise
from django.utils.translation import pgettext_lazy

from django_delayq.faults import Fault
from django_delayq.health.problem import ServerProblem
from django_delayq.jobs.occurrences import When, in_zone
from django_delayq.wording import Value, Wording

#: A state as pages name it; a few say more than `State` does.
STATES = {
    "uncommitted": pgettext_lazy("state of a job", "uncommitted"),
    "scheduled": pgettext_lazy("state of a job", "scheduled"),
    "due": pgettext_lazy("state of a job", "due"),
    "running": pgettext_lazy("state of a job", "running"),
    "lease expired": pgettext_lazy("state of a job", "lease expired"),
    "retrying": pgettext_lazy("state of a job", "retrying"),
    "held": pgettext_lazy("state of a job", "held"),
    "succeeded": pgettext_lazy("state of a job", "succeeded"),
    "discarded": pgettext_lazy("state of a job", "discarded"),
    "cancelled": pgettext_lazy("state of a job", "cancelled"),
    "expired": pgettext_lazy("state of a job", "expired"),
    "taken": pgettext_lazy("state of a job", "taken"),
    "dead": pgettext_lazy("state of a job", "dead"),
    "quarantined": pgettext_lazy("state of a job", "quarantined"),
    "unreadable": pgettext_lazy("state of a job", "unreadable"),
    "unknown": pgettext_lazy("state of a job", "unknown"),
    "missing": pgettext_lazy("state of a job", "missing"),
}
#: What an attempt ended with.
_KINDS = {
    "failed": pgettext_lazy("end of an attempt", "failed"),
    "killed": pgettext_lazy("end of an attempt", "killed"),
    "expired": pgettext_lazy("end of an attempt", "expired"),
}
#: Counters of a queue that are named for no state.
_COUNTERS = {
    "offered": pgettext_lazy("so many jobs", "offered"),
    "retried": pgettext_lazy("so many jobs", "retried"),
    "snoozed": pgettext_lazy("so many jobs", "snoozed"),
    "doubles": pgettext_lazy("so many jobs", "doubles"),
    "vanished": pgettext_lazy("so many jobs", "vanished"),
}


def gettext(text: str, **values: Any) -> str:
    """Say a text in the current language, which also writes its numbers and times.

    Without values, return the template.
    """
    said = translation.gettext(text)
    return said.format_map(_written(values)) if values else said


def ngettext(one: str, many: str, number: int, **values: Any) -> str:
    """Say a text that depends on a number, which its forms call ``number``."""
    said = translation.ngettext(one, many, number)
    return said.format_map(_written(values | {"number": number}))


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _value_text(value) for name, value in values.items()}


def _value_text(value: Any) -> Any:
    if isinstance(value, datetime):
        return moment_text(value)
    return number_text(value) if isinstance(value, int | float) else value


def say(text: str) -> str:
    """Say a text of a lower layer in the current language; one that is no `Wording` stays as it is."""
    return text.said_by(_find, _Localized.of) if isinstance(text, Wording) else text


def say_problems(problems: Iterable[ServerProblem]) -> list[ServerProblem]:
    """Say problems in the current language."""
    return [
        problem._replace(message=say(problem.message), hint=say(problem.hint))
        for problem in problems
    ]


def say_fault(fault: Fault) -> Fault:
    """Say in the current language what an error means; its own text stays as it is."""
    return fault._replace(what=say(fault.what), hint=say(fault.hint))


def state_label(state: str) -> str:
    """Name a state."""
    return str(STATES[state]) if state in STATES else state


def kind_label(kind: str) -> str:
    """Name the end of an attempt; one that this version does not know keeps its name."""
    return str(_KINDS[kind]) if kind in _KINDS else kind


def counter_label(name: str) -> str:
    """Name a counter; one that this version does not know keeps its name."""
    return str(_COUNTERS[name]) if name in _COUNTERS else state_label(name)


def number_text(number: float) -> str:
    """Write a number with its thousands apart, and no decimals that are zero."""
    if isinstance(number, float):
        number = int(number) if number.is_integer() else round(number, 6)
    return formats.number_format(number, use_l10n=True, force_grouping=True)


def moment_text(moment: datetime) -> str:
    """Write a moment for people: in the current time zone, to the second, with the zone's name.

    A naive moment is one of that zone. `clock.iso_text` is for programs.
    """
    local = in_zone(moment)
    return f"{seconds_text(local)} {local.tzname()}"


def seconds_text(local: datetime) -> str:
    """Write what `in_zone` returned to the second, for a page that names the zone once.

    Its date is as the admin's own fields write dates.
    """
    order = str(formats.get_format("DATE_INPUT_FORMATS")[0])
    return local.strftime(f"{order} %H:%M:%S")


def list_text(items: Iterable[str]) -> str:
    """Write "a, b and c"."""
    *others, last = items
    if not others:
        return last
    told = others[0]
    for item in others[1:]:
        told = gettext("{others}, {next}", others=told, next=item)
    return gettext("{others} and {last}", others=told, last=last)


def unsearched_text(count: int) -> str:
    """Say that a text was not looked for in encrypted jobs."""
    return ngettext(
        "{number} encrypted job was not searched: a search for text does not read encrypted jobs",
        "{number} encrypted jobs were not searched: a search for text does not read encrypted jobs",
        count,
    )


def when_text(when: When) -> str:
    """Say when a schedule comes."""
    words = when.words
    if isinstance(words, Wording):
        return say(words)
    # What puts a cron expression into words speaks English only.
    is_english = (translation.get_language() or "en").startswith("en")
    return words if is_english else when.short


def _find(singular: str, plural: tuple[str, int] | None) -> str:
    if plural is None:
        return translation.gettext(singular)
    return translation.ngettext(singular, *plural)


class _Localized:
    """A value that formats itself by the current language, whatever the template's format says of digits."""

    @staticmethod
    def of(value: Value) -> Any:
        if isinstance(value, datetime):
            return _Moment(value)
        return value if isinstance(value, str | Promise) else _Number(value)


class _Number:
    def __init__(self, number: int) -> None:
        self._number = number

    def __format__(self, spec: str) -> str:
        return number_text(self._number) if "," in spec else format(self._number, spec)


class _Moment:
    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def __format__(self, spec: str) -> str:
        return moment_text(self._moment)
