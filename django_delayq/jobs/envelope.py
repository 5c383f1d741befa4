"""What a job of ours looks like on the wire: a JSON object, its token first.

The scripts read the token at the front (``_job.lua``, token_of), so its place and its name are part of the format:
``{"delayq":"<22 characters>","task":"…","queue":"…","args":[…],"kwargs":{…},"options":{…}}``, the empty ones left out.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec
from django.db.models import Model, QuerySet
from django.utils.functional import LazyObject, Promise

from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    EncodeError,
    InvalidArguments,
)
from django_delayq.redaction import SHOWN, show
from django_delayq.wire.codecs import Codec


class Envelope(msgspec.Struct, omit_defaults=True):
    """One call that waits to be made."""

    #: The job's token. First, see above.
    delayq: str
    task: str
    #: The queue it was scheduled on, half of the job's id.
    queue: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    #: What `DelayedTask.using` changed, see TaskOptions.CARRIED.
    options: dict[str, Any] | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Envelope)
#: How a payload begins as we write it where no codec wraps it.
START = b'{"delayq":"'
#: The scripts look for the token's name in so many bytes.
TOKEN_BEFORE = 80
#: `peek_task` looks at so many bytes.
PEEK_BYTES = 512
_TASK = re.compile(rb'"delayq":"[\w-]{22}","task":("(?:[^"\\]|\\.)*")')
# Codecs whose payload of a JSON object is that object's JSON.
_PLAIN = frozenset(
    {
        "json",
        "StringCodec",
        "ByteArrayCodec",
        "TypedJsonJacksonCodec",
        "TypedJsonJackson3Codec",
    }
)
_ATOMS = frozenset({int, str, bool, type(None)})
#: Lists and dicts in each other that an argument may have.
MAX_DEPTH = 100


def encode(envelope: Envelope, codec: Codec | None = None) -> bytes:
    """Write an envelope; on a queue shared with Java as a value of the queue's codec: a string, else a map.

    Raises:
        InvalidArguments: the arguments hold text that is no Unicode, or a number that is too long.
        EncodeError: the queue's codec cannot hold it so that the scripts find the token.
    """
    try:
        text = _encoder.encode(envelope)
    except (ValueError, OverflowError) as error:
        # Half a surrogate pair, or an int of more than 4,300 digits.
        raise InvalidArguments(
            f"arguments of {envelope.task!r} cannot be written as JSON: {error}"
        ) from error
    if codec is None or codec.name in _PLAIN:
        return text
    for value in (text.decode(), msgspec.json.decode(text)):
        try:
            payload = codec.encode(value)
        except DelayqError:
            raise
        except Exception as error:  # a codec of the project's own
            raise EncodeError(
                f"{codec.name} failed: {type(error).__name__}: {error}"
            ) from error
        if b'"delayq":"' in payload[:TOKEN_BEFORE]:
            return payload
    raise EncodeError(
        f"a job cannot be scheduled on a queue with {codec.name}: the scripts would not find its token;"
        " set CODEC to StringCodec, or offer the value with DelayedQueue"
    )


def task_text(name: str) -> bytes:
    """Return a task's name as `peek_task` finds it: a JSON string."""
    return _encoder.encode(name)


def peek_task(payload: bytes) -> bytes | None:
    """Return the name of a job's task as a JSON string, without decoding the payload; None: it is not where we write it.

    It costs the same for every payload, so the claim loop can afford it. What it says is not checked: `decode` does.
    """
    # As we write it. A regular expression costs more, and this is done for each job.
    if payload[33:43] == b'","task":"' and payload.startswith(START):
        name = payload[42 : payload.find(b'"', 43, PEEK_BYTES) + 1]
        if name and b"\\" not in name:
            return name
    found = _TASK.search(payload, 0, PEEK_BYTES)
    return found[1] if found is not None else None


def is_readable(payload: bytes, max_foreign_bytes: int) -> bool:
    """Return whether `decode` may look at a payload: it is one that we write, or small enough for any codec."""
    return len(payload) <= max_foreign_bytes or payload.startswith(START)


def decode(payload: bytes, codec: Codec | None = None) -> Envelope:
    """Read an envelope.

    Raises:
        DecodeError: it is not one of ours.
    """
    try:
        if payload.startswith(START) or codec is None or codec.name in _PLAIN:
            return _decoder.decode(payload)
        value = codec.decode(payload)
        if type(value) is str:  # a Char is no text of anybody's
            return _decoder.decode(value)
        if isinstance(value, dict):
            return msgspec.convert(value, Envelope)
        raise DecodeError(f"not a job of ours: a {type(value).__name__}", payload)
    except DelayqError:
        raise
    except Exception as error:  # of msgspec, or of a codec of the project's own
        raise DecodeError(f"not a job of ours: {error}", payload) from error


def plain(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as JSON will bring them back, tuples as lists.

    Raises:
        InvalidArguments: one of them is not JSON; the message has its path, value and type.
    """
    return (
        [
            item if type(item) in _ATOMS else _plain(item, f"args[{i}]", 0)
            for i, item in enumerate(args)
        ],
        {
            name: item if type(item) in _ATOMS else _plain(item, name, 0)
            for name, item in kwargs.items()
        },
    )


def plain_value(value: object, name: str) -> Any:
    """`plain` for one value, a result."""
    return _plain(value, name, 0)


def _plain(value: Any, path: str, depth: int) -> Any:
    # Subclasses are written as what they are: a TextChoices member as a string, an IntegerChoices member as an int,
    # what a codec of Java's brought as the number or dict that it is. By type() and not by isinstance: a lazy object
    # would say what it stands for, and ask the database for it.
    cls = type(value)
    if cls in _ATOMS:
        return value
    if depth > MAX_DEPTH:
        raise InvalidArguments(
            f"{path} is nested more than {MAX_DEPTH} deep; pass an id instead"
        )
    if issubclass(cls, str):
        return str.__str__(value)
    if issubclass(cls, int):
        return int(value)
    if issubclass(cls, float):
        if not math.isfinite(value):
            raise InvalidArguments(
                f"{path} is {float(value)!r}, which JSON does not have; pass None or a string instead"
            )
        return float(value)
    if issubclass(cls, dict):
        for key in value:
            if not issubclass(type(key), str):
                raise InvalidArguments(
                    f"{path} has the key {show(key)} of type {type(key).__name__}; the keys of JSON are strings"
                )
        return {
            str.__str__(key): item
            if type(item) in _ATOMS
            else _plain(
                item,
                f"{path}[{str.__repr__(key) if len(key) <= SHOWN else show(key)}]",
                depth + 1,
            )
            for key, item in value.items()
        }
    if issubclass(cls, list | tuple):
        return [
            item if type(item) in _ATOMS else _plain(item, f"{path}[{i}]", depth + 1)
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
    ((set, frozenset), "list(value)"),
    (Enum, "value.value"),
)


def _instead_of(cls: type) -> str:
    for types, advice in _INSTEAD:
        if issubclass(cls, types):
            return advice
    return "something that JSON has, such as an id,"


def result_text(
    state: str, *, result: object = None, error: str | None = None
) -> bytes:
    """Write how a job ended, for those who wait for its result."""
    body: dict[str, Any] = {"state": state}
    if error is not None:
        body["error"] = error
    else:
        body["result"] = result
    return _encoder.encode(body)


def read_result(text: bytes | str) -> dict[str, Any]:
    """Read what `result_text` wrote."""
    body: dict[str, Any] = msgspec.json.decode(text)
    return body


def error_text(error: str, *, kind: str, traceback: str = "", at_ms: int) -> bytes:
    """Write why an attempt failed, for the admin and the dead letter."""
    return _encoder.encode(
        {"error": error, "kind": kind, "traceback": traceback, "at": at_ms}
    )


def read_error(text: bytes) -> dict[str, Any] | None:
    """Read what `error_text`, or a script, wrote."""
    if not text:
        return None
    try:
        error = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return {"error": text.decode(errors="replace")}
    return error if isinstance(error, dict) else {"error": str(error)}
