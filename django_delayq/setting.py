"""One setting: a field of a frozen dataclass, made by `setting`.

Type, default, values and the ``#:`` comment of the field are all there is to say about a setting. Its key, its check,
the error and its row in docs/settings.md follow from them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django_delayq.redaction import show
from django_delayq.suggestions import suggestion

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


class Problem(NamedTuple):
    """A problem in the settings: where and what it is, and what to do."""

    id: str
    message: str
    hint: str


class Values(NamedTuple):
    """The values that a setting may have."""

    is_fit: Callable[[Any], bool]
    #: The values, as the error and the page say them.
    wanted: str
    #: What the dataclass holds of a value.
    read: Callable[[Any], Any] = lambda value: value
    #: What an error shows of a value that does not fit.
    show: Callable[[Any], str] = show


def count(least: int, most: int, of: str = "", zero: str = "") -> Values:
    """Return the whole numbers of a range, such as a number of jobs. ``zero`` says what 0 stands for."""
    what = f"a number of {of}" if of else "a whole number"
    first = 1 if zero else least
    return Values(
        lambda value: isinstance(value, int) and _is_within(value, least, most),
        f"{what}, {first:,} to {most:,}" + (f", or 0 for {zero}" if zero else ""),
    )


def number(least: float, most: float, what: str, why: str = "") -> Values:
    """Return all numbers of a range."""
    return Values(
        lambda value: _is_within(value, least, most),
        f"{what}, {least:,} to {most:,}" + (f"; {why}" if why else ""),
    )


def seconds(least: float, most: float) -> Values:
    """Return the numbers of seconds of a range."""
    return number(least, most, "a number of seconds")


def _is_within(value: Any, least: float, most: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and least <= value <= most
    )


def list_of(is_fit: Callable[[Any], bool], wanted: str) -> Values:
    """Return the lists and tuples of what fits."""
    return Values(
        lambda value: isinstance(value, list | tuple) and all(map(is_fit, value)),
        f"a list of {wanted}",
        tuple,
    )


BOOLEAN = Values(lambda value: isinstance(value, bool), "True or False")
DICT = Values(lambda value: isinstance(value, dict), "a dict of options")


class Setting(NamedTuple):
    """A setting of a dataclass."""

    #: Its key in the settings: the name of the field in capitals, without the unit.
    key: str
    field: str
    values: Values
    #: What None means; empty: None is a wrong value.
    none: str

    @property
    def wanted(self) -> str:
        """The values, as the error and the page say them."""
        return self.values.wanted + (f", or None for {self.none}" if self.none else "")

    def is_fit(self, value: Any) -> bool:
        """Return whether it may have a value."""
        return self.values.is_fit(value) or (bool(self.none) and value is None)

    def read(self, value: Any) -> Any:
        """Return what the field holds of a value."""
        return None if value is None else self.values.read(value)


def declare(values: Values, none: str = "") -> Mapping[str, Any]:
    """Return the metadata that make a field a setting."""
    return {"values": values, "none": none}


def setting(default: T, values: Values, none: str = "", *, repr: bool = True) -> T:
    """Return a field that is a setting. ``none`` says what None means; without it, None is a wrong value."""
    return field(default=default, repr=repr, metadata=declare(values, none))


@cache
def settings_of(cls: "type[DataclassInstance]") -> dict[str, Setting]:
    """Return the settings of a dataclass by their keys."""
    found = [
        Setting(each.name.removesuffix("_s").upper(), each.name, **each.metadata)
        for each in fields(cls)
        if each.metadata
    ]
    return {each.key: each for each in found}


def find_wrong(
    path: str,
    value: Mapping[Any, Any],
    cls: "type[DataclassInstance]",
    *,
    place_of: Callable[[Any], str] = lambda key: "",
    ids: tuple[str, str] = ("E002", "E003"),
) -> Iterator[Problem]:
    """Yield each unknown key and each wrong value of a dict. ``place_of`` says where an unknown key belongs."""
    known = settings_of(cls)
    unknown_id, wrong_id = ids
    for key, item in value.items():
        if key not in known:
            yield Problem(
                unknown_id,
                f"{path} has an unknown key {show(key)}.",
                place_of(key)
                or suggestion(key, known).strip()
                or f"Known are {', '.join(known)}.",
            )
        elif not known[key].is_fit(item):
            yield Problem(
                wrong_id,
                f"{path}[{key!r}] is {known[key].values.show(item)}.",
                f"Give {known[key].wanted}.",
            )


def read_fields(
    cls: "type[DataclassInstance]", value: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a dataclass for a dict in which `find_wrong` finds nothing."""
    known = settings_of(cls)
    return {known[key].field: known[key].read(item) for key, item in value.items()}
