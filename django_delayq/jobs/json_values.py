"""Turns the values of a call, and its result, into what JSON has; says what to pass instead of anything else."""

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.functional import LazyObject, Promise

from django_delayq.exceptions import InvalidArguments
from django_delayq.jobs.arguments import sensitive_texts
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.masks import mask
from django_delayq.redaction import SHOWN, show

#: The types of values that are JSON as they stand.
ATOMS = frozenset({int, str, bool, type(None)})
#: How deep lists and dicts of an argument may be nested.
MAX_DEPTH = 100


def plain(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as they come back from JSON, tuples as lists.

    Raises:
        InvalidArguments: one of them is not JSON; the message has its path and type.
    """
    # A short cut: most calls have one or two ids.
    for item in args:
        if type(item) not in ATOMS:
            break
    else:
        if not kwargs:
            return list(args), {}
    return (
        [
            item if type(item) in ATOMS else _plain(item, f"args[{i}]", 0)
            for i, item in enumerate(args)
        ],
        {
            name: item if type(item) in ATOMS else _plain(item, name, 0)
            for name, item in kwargs.items()
        },
    )


def named(
    error: InvalidArguments,
    task: TaskDefinition,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> InvalidArguments:
    """Return an error of `plain` that names the task of the call, and the parameter instead of its place."""
    given = {**task.call_signature.bind_partial(*args).arguments, **kwargs}
    try:
        plain((), given)
    except InvalidArguments as told:
        error = told
    # A path has the keys of dicts, and a message may have a value.
    message = mask(str(error), sensitive_texts(task, args, kwargs))
    return InvalidArguments(f"task {task.name!r}: {message}")


def plain_of(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Do as `plain`, with the error that `named` makes."""
    try:
        return plain(args, kwargs)
    except InvalidArguments as error:
        raise named(error, task, args, kwargs) from None


def plain_value(value: object, name: str) -> Any:
    """Return one value, such as a result, as `plain` does."""
    return _plain(value, name, 0)


def _plain(value: Any, path: str, depth: int) -> Any:
    # Subclasses are written as their base: a TextChoices member as a string, an IntegerChoices member as an int, a
    # value from a Java codec as its number or dict. This asks type(), not isinstance: a lazy object would answer for
    # the object that it stands for, and ask the database for that.
    cls = type(value)
    if cls in ATOMS:
        return value
    if depth > MAX_DEPTH:
        raise InvalidArguments(
            f"{path} is nested more than {MAX_DEPTH} deep; pass an id instead"
        )
    if issubclass(cls, str):
        return str.__str__(value)
    if issubclass(cls, int):
        return int.__int__(value)
    if issubclass(cls, float):
        if not math.isfinite(value):
            raise InvalidArguments(
                f"{path} is {float(value)!r}, which JSON does not have; pass None or a string instead"
            )
        return float.__float__(value)
    if issubclass(cls, dict):
        if hasattr(cls, "getlist"):
            raise InvalidArguments(
                f"{path} is a {cls.__qualname__}, which may have many values for a key, but JSON has only one; pass"
                " value.dict()"
                " for the last value of each key, or dict(value.lists()) for all of them"
            )
        for key in value:
            if not issubclass(type(key), str):
                raise InvalidArguments(
                    f"{path} has the key {show(key)} of type {type(key).__name__}; the keys of JSON are strings"
                )
        return {
            str.__str__(key): item
            if type(item) in ATOMS
            else _plain(
                item,
                f"{path}[{str.__repr__(key) if len(key) <= SHOWN else show(key)}]",
                depth + 1,
            )
            for key, item in value.items()
        }
    if issubclass(cls, list | tuple):
        return [
            item if type(item) in ATOMS else _plain(item, f"{path}[{i}]", depth + 1)
            for i, item in enumerate(value)
        ]
    raise InvalidArguments(
        f"{path} is of type {cls.__qualname__}, which is not JSON; pass {_instead_of(cls)} instead"
    )


#: What to pass instead of a value that is not JSON, by its type; the first that fits.
_INSTEAD: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Promise, "str(value)"),
    (LazyObject, "the primary key of what it stands for"),
    (Model, "its primary key, value.pk,"),
    (
        QuerySet,
        "a list of primary keys, such as list(value.values_list('pk', flat=True)),",
    ),
    ((date, time), "value.isoformat()"),
    (timedelta, "value.total_seconds()"),
    ((UUID, Decimal, PurePath), "str(value)"),
    ((bytes, bytearray, memoryview), "text, such as base64.b64encode(value).decode(),"),
    (Mapping, "dict(value)"),
    ((Set, ValuesView, Iterator, range, deque, array), "list(value)"),
    (Enum, "value.value"),
)


def _instead_of(cls: type) -> str:
    for types, advice in _INSTEAD:
        if issubclass(cls, types):
            return advice
    if is_dataclass(cls):
        return "dataclasses.asdict(value)"
    return "something that JSON has, such as an id,"
