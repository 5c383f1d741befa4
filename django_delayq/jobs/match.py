"""Whether an element of a queue is of a task and has a text: at a glance where that is possible, else decoded."""

import re
from collections.abc import Iterator
from typing import Any

from django_delayq.core.search_calls import Found
from django_delayq.jobs.arguments import has_sensitive, shown_arguments
from django_delayq.jobs.job import Job
from django_delayq.jobs.registry import find_task
from django_delayq.redaction import HIDDEN
from django_delayq.wire.signatures import JOB_START

#: Python refuses to print an integer of many more bits.
LONGEST_NUMBER = 4096
_PLAIN_NAME = re.compile(r"[\w.]+", re.ASCII)
_MAY_DIFFER = re.compile(r'["\\/\x00-\x1f\x7f-\x9f]')
#: What the payload of an encrypted job has.
_ENCRYPTED = b'\\"encrypted\\":\\"'
_NUMBER = re.compile(r"[\d.e+-]+")


def may_be_of(task: str | None, payload: bytes) -> bool:
    """Return False if a payload shows at a glance that it is of another task."""
    if task is None or not payload.startswith(JOB_START):
        return True
    # In any other name, JSON may have escaped something.
    return _PLAIN_NAME.fullmatch(task) is None or task.encode() in payload


def may_have(text: str | None, found: Found) -> bool:
    """Return False if one of our jobs shows at a glance, undecoded, that a case-folded text stands nowhere in it."""
    if (
        text is None
        or not found.payload.startswith(JOB_START)
        # JSON writes some characters in another way, and a number in more than one.
        or _MAY_DIFFER.search(text)
        or _NUMBER.fullmatch(text)
        # It is counted.
        or _ENCRYPTED in found.payload
        or b'"encrypted":"' in found.error
    ):
        return True
    for part in (found.payload, found.error):
        try:
            if b"\\u" in part or text in part.decode().casefold():
                return True
        except UnicodeDecodeError:
            return True
    return False


def has_text(job: Job[Any], found: Found, text: str) -> bool:
    """Return whether a case-folded text stands in a value of the arguments, or in the error, if they are not encrypted."""
    error = job.error or {}
    if "encrypted" not in error and any(
        text in each.casefold() for each in _strings_in(error)
    ):
        return True
    if job.is_encrypted:
        return False
    # What is not shown cannot be guessed either.
    if job.task is None:
        if has_sensitive(found.payload):
            return False
        return text in found.payload.decode(errors="replace").casefold()
    arguments: Any = [job.args, job.kwargs]
    task = find_task(job.task)
    if task is not None and task.base.sensitive:
        shown = shown_arguments(task, job.args, job.kwargs)
        arguments = [{name: value} for name, value in shown if value is not HIDDEN]
    return any(text in each.casefold() for each in _values_in(arguments))


def _strings_in(error: object) -> Iterator[str]:
    return (value for value in _leaves_of(error) if isinstance(value, str))


def _values_in(arguments: object) -> Iterator[str]:
    """Yield all strings and keys, and numbers and constants as JSON writes them."""
    for value in _leaves_of(arguments, with_keys=True):
        if isinstance(value, str):
            yield value
        elif value is None or isinstance(value, bool):
            yield {None: "null", True: "true", False: "false"}[value]
        elif isinstance(value, float) or value.bit_length() < LONGEST_NUMBER:
            yield repr(value)


def _leaves_of(value: object, *, with_keys: bool = False) -> Iterator[Any]:
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as items:
                if with_keys:
                    yield from items
                rest += items.values()
            case list() as items:
                rest += items
            case leaf:
                yield leaf
