"""Payloads as pages and commands show them: the call of a job, or bytes of others. Made without I/O.

Anybody may have written a payload, so each function takes any bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.core.queue_reads import PREVIEW_BYTES
from django_delayq.display.texts import ROW_CHARACTERS, clean, cut, size_text
from django_delayq.display.value_json import compact_json, pretty_json, value_text
from django_delayq.exceptions import DecodeError, NotSigned
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.arguments import (
    Argument,
    has_sensitive,
    is_sensitive,
    shown_arguments,
    task_in,
)
from django_delayq.jobs.envelope import Envelope, Follow, Follower
from django_delayq.jobs.follow_ups import home_of
from django_delayq.jobs.job import Job
from django_delayq.jobs.registry import get_handler
from django_delayq.queues.reading import read
from django_delayq.redaction import HIDDEN
from django_delayq.translations import gettext

#: Arguments of a call in a row of a table.
MOST_ARGUMENTS = 40
#: Bytes of a payload that a page shows as text, and as hexadecimal digits.
RAW_TEXT_BYTES, RAW_HEX_BYTES = 16_384, 2_048
#: The name of the task in the beginning of an envelope.
_TASK = re.compile(
    rb'"body":"\{\\"task\\":\\"((?:[^"\\]|\\\\(?:[^"\\]|\\.)){1,400})\\"'
)
_ARGUMENTS = re.compile(rb'\\"(?:args|kwargs)\\":')


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a payload."""

    #: Name of the task; for a foreign payload that of the queue's handler, or "".
    task: str
    is_foreign: bool
    #: The arguments in one line; of an unreadable payload, its beginning.
    arguments: str
    #: The arguments in full, by name as far as the task is known here.
    call: list[tuple[str, str]] = field(default_factory=list)
    #: Some of the arguments, or of those of jobs that follow, are sensitive, so the payload itself is not shown.
    is_sensitive: bool = False
    #: The server has the call encrypted.
    is_encrypted: bool = False
    #: When Django's tasks enqueued it, epoch ms; None: they did not.
    enqueued_ms: int | None = None
    #: The value that the queue's codec reads in a foreign payload.
    value: str | None = None
    #: The options of this one call.
    options: dict[str, Any] | None = None
    #: Name of the periodic schedule that it belongs to; "": none.
    schedule: str = ""
    #: The jobs that follow it, one a line: once it has succeeded, and once it is a dead letter.
    then: str = ""
    on_dead: str = ""
    #: Id of the callback of its batch; "": it is in none.
    batch: str = ""
    #: Why it cannot be read or trusted.
    fault: str = ""
    #: Nobody here can tell whether it is a job, because its key or format is unknown.
    is_unchecked: bool = False


def read_content(
    payload: bytes,
    size: int,
    queue: QueueSettings,
    *,
    in_full: bool = False,
    decrypts: bool = False,
) -> Content:
    """Read a payload of ``size`` bytes, or its beginning."""
    most = get_settings().max_foreign_bytes
    if len(payload) < size or not envelopes.is_readable(payload, most):
        return _read_beginning(payload[:PREVIEW_BYTES], size, queue)
    try:
        envelope = envelopes.open_payload(
            payload,
            queue.name,
            get_keyring(),
            queue.payload_codec,
            decrypts=decrypts,
        )
    except NotSigned as error:
        if error.missing:
            return _read_unchecked(payload, queue, error, in_full)
        content = _read_foreign(payload, queue, in_full)
        fault = content.fault or gettext(
            "This looks like a job, but {error}.", error=clean(error)
        )
        return replace(content, fault=cut(fault, 1000))
    except DecodeError:
        return _read_foreign(payload, queue, in_full)
    except Exception as error:  # a codec's bug, or one that cannot read this side's values: still a page
        return _unreadable(payload, queue, error)
    return _content_of(envelope, queue.name, in_full)


def _content_of(envelope: Envelope, queue: str, in_full: bool) -> Content:
    arguments = shown_arguments(envelope.task, envelope.args, envelope.kwargs)
    follow = envelope.follow or Follow()
    return Content(
        task=clean(envelope.task),
        is_foreign=False,
        arguments=gettext("encrypted") if envelope.encrypted else call_line(arguments),
        call=[(clean(each.name), value_text(each.value)) for each in arguments]
        if in_full
        else [],
        is_sensitive=_is_sensitive(envelope),
        is_encrypted=bool(envelope.flags & envelopes.IS_ENCRYPTED),
        enqueued_ms=envelope.at,
        options=envelope.options,
        schedule=clean(envelope.headers.get("schedule", "")),
        then=_followers(follow.then) if in_full else "",
        on_dead=_followers(follow.dead) if in_full else "",
        batch=clean(f"{queue}:{envelope.batch}") if envelope.batch else "",
    )


def call_line(arguments: Sequence[Argument]) -> str:
    """Write the arguments of a call in one line."""
    call = [
        f"{clean(each.name)}={value}" if each.name else value
        for each in arguments[:MOST_ARGUMENTS]
        for value in [value_text(each.value, compact_json)]
    ]
    if len(arguments) > MOST_ARGUMENTS:
        call.append("…")
    return cut(", ".join(call), ROW_CHARACTERS)


def call_of(job: Job[Any], *, decrypts: bool = False) -> str:
    """Write the arguments of a job in one line."""
    if job.is_encrypted and not decrypts:
        return gettext("encrypted")
    return call_line(shown_arguments(job.task, job.args, job.kwargs))


def _is_sensitive(call: Envelope) -> bool:
    rest = [call]
    while rest:
        call = rest.pop()
        if is_sensitive(call.task):
            return True
        follow = call.follow or Follow()
        rest += (job.call for job in (*follow.then, *follow.dead))
    return False


def _masked(content: Content, payload: bytes) -> Content:
    """Take out of what shows a payload as it is whatever may be sensitive in that."""
    if not has_sensitive(payload):
        return content
    return replace(content, arguments=repr(HIDDEN), value=None, is_sensitive=True)


def _followers(jobs: Sequence[Follower]) -> str:
    return "\n".join(
        clean(f"{job.call.task} {home_of(job).name}:{job.token}") for job in jobs
    )


def _read_unchecked(
    payload: bytes, queue: QueueSettings, missing: NotSigned, in_full: bool
) -> Content:
    try:
        call = envelopes.claimed_call(payload, queue.payload_codec)
        content = _content_of(call, queue.name, in_full)
    except Exception:  # whatever a codec or a value does
        content = _read_beginning(payload[:PREVIEW_BYTES], len(payload), queue)
        if content.is_foreign:
            content = _masked(Content("", False, raw_line(payload)), payload)
    fault = f"{clean(missing)}."
    fault = fault[0].upper() + fault[1:]
    return replace(content, fault=cut(fault, 1000), is_unchecked=True)


def _read_beginning(payload: bytes, size: int, queue: QueueSettings) -> Content:
    note = f" ({size_text(size)})"
    found = _TASK.search(payload[:1024])
    if found is None:
        content = Content(_handler(queue), True, raw_line(payload) + note)
        return _masked(content, payload)
    task = clean(task_in(found))
    arguments = _ARGUMENTS.search(payload, found.end())
    rest = payload[arguments.start() if arguments else found.end() :]
    # The body is a string, in which nothing but these is escaped.
    line = raw_line(re.sub(rb'\\(["\\])', rb"\1", rest)) + note
    return _masked(Content(task, False, line), payload)


def _read_foreign(payload: bytes, queue: QueueSettings, in_full: bool) -> Content:
    try:
        value = read(queue.payload_codec, payload, queue.name)
    except Exception as error:
        return _unreadable(payload, queue, error)
    content = Content(
        task=_handler(queue),
        is_foreign=True,
        arguments=compact_json(value),
        value=pretty_json(value) if in_full else None,
    )
    return _masked(content, payload)


def _unreadable(payload: bytes, queue: QueueSettings, error: Exception) -> Content:
    fault = (
        str(error)
        if isinstance(error, DecodeError)
        else f"{type(error).__name__}: {error}"
    )
    content = Content(
        _handler(queue), True, raw_line(payload), fault=cut(clean(fault), 1000)
    )
    return _masked(content, payload)


def _handler(queue: QueueSettings) -> str:
    handler = get_handler(queue.name)
    return handler.name if handler else ""


def raw_line(payload: bytes, limit: int = ROW_CHARACTERS) -> str:
    """Show the beginning of bytes, as text if it is text, else as hexadecimal digits."""
    text = _as_text(payload[: 4 * limit], is_whole=len(payload) <= 4 * limit)
    if text is not None:
        return cut(" ".join(text.split()), limit)
    return cut(payload[: limit // 2 + 1].hex(), limit)


def _as_text(payload: bytes, *, is_whole: bool) -> str | None:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        # A character that was cut in two at the end does not make it binary.
        if is_whole or error.start < len(payload) - 3:
            return None
        text = payload[: error.start].decode()
    printable = sum(char.isprintable() or char in "\r\n\t" for char in text)
    return text if printable == len(text) else None


@dataclass(frozen=True, slots=True)
class Raw:
    """A payload as it is."""

    size: int
    #: Its beginning as text; None: it is no text.
    text: str | None
    #: Its beginning as a hex dump; None: it is text.
    dump: str | None
    #: Bytes of it that are shown.
    shown: int

    @property
    def is_cut(self) -> bool:
        return self.shown < self.size


def read_raw(payload: bytes) -> Raw:
    """Show a payload as text or as a hex dump, its beginning at least."""
    part = payload[:RAW_TEXT_BYTES]
    text = _as_text(part, is_whole=len(part) == len(payload))
    if text is not None:
        return Raw(len(payload), text, None, len(part))
    part = payload[:RAW_HEX_BYTES]
    return Raw(len(payload), None, hex_dump(part), len(part))


def hex_dump(data: bytes) -> str:
    """Write bytes as offset, 16 hexadecimal pairs and ASCII, a line each."""
    lines = []
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        ascii_ = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(
            f"{offset:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {ascii_}"
        )
    return "\n".join(lines)
