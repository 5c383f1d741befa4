"""No repr of a record shows what may be the arguments of a call."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import msgspec
import pytest

import django_delayq
from django_delayq.core.claim import Leased
from django_delayq.core.search_calls import Found
from django_delayq.core.store import NewJob
from django_delayq.features.schedules.api import Schedule
from django_delayq.features.schedules.periodic import Definition
from django_delayq.jobs.envelope import Envelope
from django_delayq.testing.captured_jobs import CapturedJob
from django_delayq.testing.frozen import Ran

SECRET = "s3cret"
#: Fields of bytes that hold no call, nor what came of one.
HARMLESS = {
    # Names that we have made.
    "fence", "owner", "order", "request",
    # Places in a set.
    "cursor", "where", "random_id", "mac",
    # Pauses and figures, as they are stored.
    "of_queue", "of_tasks", "Closed.tasks", "Read.rows",
    # Limits and moments, as they are stored; options.
    "StoredLimit.code", "StoredLimit.set", "Change.when", "Content.options",
}  # fmt: skip
#: A container of anything, as those of arguments are.
OF_ANYTHING = re.compile(
    r"(collections\.abc\.)?(list|tuple|dict|Sequence|Mapping)\[(str, )?(typing\.Any|object)(, \.\.\.)?\]( \| None)?"
)
#: Records of what no job has: rules of the settings, and what a codec makes of a class of Java.
OTHERS = {
    "django_delayq.codecs",
    "django_delayq.transport.several",
    "django_delayq.transport",
    "django_delayq.waiting",
}


def records() -> Iterator[type]:
    """Yield every class of the package whose repr lists its fields."""
    seen = set()
    for found in pkgutil.walk_packages(django_delayq.__path__, "django_delayq."):
        module = importlib.import_module(found.name)
        for cls in vars(module).values():
            if (
                inspect.isclass(cls)
                and cls not in seen
                and cls.__module__ == module.__name__
                and not any(cls.__module__.startswith(other) for other in OTHERS)
                and (
                    is_dataclass(cls)
                    or issubclass(cls, msgspec.Struct)
                    or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
                )
            ):
                seen.add(cls)
                yield cls


def value_of(cls: type, name: str) -> Any:
    """Return what a field may hold, as its annotation says: a secret, if that may be of a call."""
    annotation = next(
        str(inspect.get_annotations(base)[name])
        for base in cls.__mro__
        if name in inspect.get_annotations(base)
    )
    if {name, f"{cls.__name__}.{name}"} & HARMLESS or "Callable" in annotation:
        return 0
    if "bytes" in annotation:
        is_one = annotation in ("<class 'bytes'>", "bytes | None", "str | bytes")
        return SECRET.encode() if is_one else [SECRET.encode()]
    return [SECRET] if OF_ANYTHING.fullmatch(annotation) else 0


def filled(cls: Any) -> Any:
    """Return a record with a secret in every field that may have one; None: it has no such field."""
    values = {name: value_of(cls, name) for name in cls.__match_args__}
    if not any(values.values()):
        return None
    if issubclass(cls, msgspec.Struct):
        return cls(**values)
    if issubclass(cls, tuple):
        return tuple.__new__(cls, values.values())
    record = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


RECORDS = [record for cls in records() if (record := filled(cls)) is not None]


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: type(each).__qualname__)
def test_repr_of_a_record_has_no_call(record: Any) -> None:
    assert SECRET not in repr(record)


def test_every_record_that_has_a_call_was_looked_at() -> None:
    known = {NewJob, Leased, Envelope, Definition, Schedule, Found, CapturedJob, Ran}

    assert known <= set(map(type, RECORDS))
