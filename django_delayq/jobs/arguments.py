"""The arguments of a call as people are shown them: by name, and without those that the task has marked as sensitive."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.registry import find_task
from django_delayq.masks import MOST_SECRETS, WHOLE, Masker, texts_of
from django_delayq.redaction import HIDDEN, MASK

# The name of a task in an envelope's body, which is a JSON string: that of its call, or of a job that follows it.
_TASK = re.compile(rb'\\"task\\":\\"((?:[^"\\]|\\\\(?:[^"\\]|\\.)){1,2000})\\"')


class Argument(NamedTuple):
    """One argument of a call."""

    #: Of the parameter; "": the task is not known here, takes any number of them, or a sensitive parameter takes names.
    name: str
    #: `redaction.HIDDEN` in place of a sensitive one.
    value: Any


def shown_arguments(
    task: TaskDefinition | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Argument]:
    """Return the arguments of a call in their order, by name as far as the task is known in this process."""
    definition = find_task(task) if isinstance(task, str) else task
    if definition is None:
        return [
            *(Argument("", value) for value in args),
            *map(Argument._make, kwargs.items()),
        ]
    sensitive = definition.base.sensitive
    return [
        Argument(name if parameter == name else "", HIDDEN)
        if parameter in sensitive
        else Argument(name, value)
        for parameter, name, value in _bound(definition, args, kwargs)
    ]


def masked_call(
    task: TaskDefinition | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call as they were given, with `redaction.HIDDEN` in place of what is sensitive."""
    shown = shown_arguments(task, args, kwargs)
    given, named = shown[: len(args)], shown[len(args) :]
    return (
        [each.value for each in given],
        {each.name or MASK: each.value for each in named},
    )


def call_text(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Write a call for a developer, as code would make it: ``shop.tasks.charge(4711, token=***)``."""
    given, named = masked_call(task, args, kwargs)
    parts = [*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())]
    return f"{task}({', '.join(parts)})"


def masked_result(
    task: str | None, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Any:
    """Return what a call has returned, for people, without what was sensitive in its arguments."""
    definition = find_task(task) if task is not None else None
    if definition is None or not definition.base.sensitive:
        return result
    return Masker(sensitive_texts(definition, args, kwargs)).mask_value(result)


def is_sensitive(task: str) -> bool:
    """Return whether a task of this process has marked arguments as sensitive."""
    definition = find_task(task)
    return definition is not None and definition.base.sensitive != ()


def has_sensitive(payload: bytes) -> bool:
    """Return whether a payload, or its beginning, names a task with sensitive arguments, even if Java wrote it.

    It may be the task of its own call, or that of a job that follows.
    """
    return any(is_sensitive(task_in(found)) for found in _TASK.finditer(payload))


def task_in(found: re.Match[bytes]) -> str:
    """Return the name of a task from the text of a JSON string within a JSON string."""
    try:
        name: str = json.loads(json.loads(b'"\\"%b\\""' % found[1]))
    except ValueError:
        return found[1].decode(errors="backslashreplace")
    return name


def sensitive_texts(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return what the sensitive values of a call look like in a text, the longest first; `WHOLE`: they are too many.

    This may take long, and a task may change its arguments: see `Attempt.secrets`.
    """
    found: set[str] = set()
    for parameter, name, value in _bound(task, args, kwargs):
        if parameter in task.base.sensitive:
            # A name that any number of them are taken by is one of the caller's.
            own = value if parameter == name else {name: value}
            for text in texts_of(own):
                found.add(text)
                if len(found) > MOST_SECRETS:
                    return [*WHOLE]
    return sorted(found, key=lambda text: (-len(text), text))


def _bound(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """Yield the parameter, the name and the value of each argument. A call of an earlier version may fit no longer."""
    rest = list(args)
    takes_more = takes_names = ""
    parameters = task.call_signature.parameters
    for name, parameter in parameters.items():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            takes_more = name
        elif parameter.kind is Parameter.VAR_KEYWORD:
            takes_names = name
        elif rest and parameter.kind is not Parameter.KEYWORD_ONLY:
            yield name, name, rest.pop(0)
    for value in rest:
        yield takes_more, "", value
    for name, value in kwargs.items():
        yield (name if name in parameters else takes_names), name, value
