"""One setting: a field of a frozen dataclass, made by `setting`.

Type, default, values and the ``#:`` comment of the field are all there is to say about a setting. Its key, its check,
the error and its row in docs/settings.md follow from them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from django_delayq.redaction import show
from django_delayq.suggestions import suggestion

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Default = TypeVar("Default")
#: What the field of a setting holds.
Held = TypeVar("Held", covariant=True)

#: In the metadata of a field, the name of its values and of what None means.
_DECLARED = "setting"


class Problem(NamedTuple):
    """A problem in the settings: where and what it is, and what to do."""

    id: str
    message: str
    hint: str


class Values(NamedTuple, Generic[Held]):
    """The values that a setting may have."""

    is_fit: Callable[[Any], bool]
    #: The values, as the error and the page say them.
    wanted: str
    #: What the dataclass holds of a value.
    read: Callable[[Any], Held] = lambda value: value
    #: What an error shows of a value that does not fit.
    show: Callable[[Any], str] = show


def count(least: int, most: int, of: str = "", zero: str = "") -> Values[int]:
    """Return the whole numbers of a range, such as a number of jobs. ``zero`` says what 0 stands for."""
    what = f"a number of {of}" if of else "a whole number"
    first = 1 if zero else least
    return Values[int](
        lambda value: isinstance(value, int) and _is_within(value, least, most),
        f"{what}, {first:,} to {most:,}" + (f", or 0 for {zero}" if zero else ""),
    )


def number(least: float, most: float, what: str, why: str = "") -> Values[float]:
    """Return all numbers of a range."""
    return Values[float](
        lambda value: _is_within(value, least, most),
        f"{what}, {least:,} to {most:,}" + (f"; {why}" if why else ""),
    )


def seconds(least: float, most: float) -> Values[float]:
    """Return the numbers of seconds of a range."""
    return number(least, most, "a number of seconds")


def _is_within(value: Any, least: float, most: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and least <= value <= most
    )


def list_of(is_fit: Callable[[Any], bool], wanted: str) -> Values[tuple[str, ...]]:
    """Return the lists and tuples of texts that fit."""
    return Values[tuple[str, ...]](
        lambda value: isinstance(value, list | tuple) and all(map(is_fit, value)),
        f"a list of {wanted}",
        tuple,
    )


def dict_of(wanted: str, read: Callable[[dict[str, Any]], T]) -> Values[T]:
    """Return the dicts, of which ``read`` makes what the field holds."""
    return Values[T](lambda value: isinstance(value, dict), f"a dict of {wanted}", read)


BOOLEAN = Values[bool](lambda value: isinstance(value, bool), "True or False")


class Setting(NamedTuple):
    """A setting of a dataclass."""

    #: Its key in the settings: the name of the field in capitals, without the unit.
    key: str
    field: str
    values: Values[Any]
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


def declare(values: Values[Any], none: str = "") -> Mapping[str, Any]:
    """Return the metadata that make a field a setting."""
    return {_DECLARED: (values, none)}


def setting(
    default: Default, values: Values[T], none: str = "", *, repr: bool = True
) -> Default | T:
    """Return a field that is a setting: for a type checker, what the field holds.

    ``none`` says what None means; without it, None is a wrong value.
    """
    return field(default=default, repr=repr, metadata=declare(values, none))


@cache
def settings_of(cls: "type[DataclassInstance]") -> dict[str, Setting]:
    """Return the settings of a dataclass by their keys."""
    found = {}
    for each in fields(cls):
        declared: tuple[Values[Any], str] | None = each.metadata.get(_DECLARED)
        if declared is not None:
            key = each.name.removesuffix("_s").upper()
            found[key] = Setting(key, each.name, *declared)
    return found


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
