"""Times, payloads and errors as pages and commands show them: plain text of bounded length, made without I/O.

Nothing here is HTML; the templates escape it. Anybody may have written a payload or an error, so each function takes
any bytes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from django.utils import formats
from django.utils.translation import gettext_lazy

from django_delayq.codecs.values import Instant, JavaEnum, JavaObject, JavaValue
from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.delivery.looking import PREVIEW_BYTES, Inspected
from django_delayq.delivery.progress import ReadProgress
from django_delayq.delivery.states import State
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
from django_delayq.jobs.following import home_of
from django_delayq.jobs.job import Job
from django_delayq.jobs.occurrences import in_zone
from django_delayq.jobs.progress import as_progress
from django_delayq.jobs.registry import get_handler
from django_delayq.queues.reading import read
from django_delayq.redaction import HIDDEN, redact
from django_delayq.translating import gettext, ngettext, number_text, seconds_text

#: Arguments of a call in a row of a table.
MOST_ARGUMENTS = 40
#: Characters of the arguments, and of an error, in a row of a table.
ROW_CHARACTERS = 160
#: Characters of the arguments, and of a traceback, on a job's page.
PAGE_CHARACTERS = 65_536
#: Bytes of a payload that a page shows as text, and as hexadecimal digits.
RAW_TEXT_BYTES, RAW_HEX_BYTES = 16_384, 2_048

#: A job that is held for longer is held without end: `_held.lua` writes a hundred years for that.
HELD_WITHOUT_END_MS = 50 * 365 * 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The name of the task in the beginning of an envelope.
_TASK = re.compile(
    rb'"body":"\{\\"task\\":\\"((?:[^"\\]|\\\\(?:[^"\\]|\\.)){1,400})\\"'
)
_ARGUMENTS = re.compile(rb'\\"(?:args|kwargs)\\":')


# They change the direction in which a browser writes whatever follows, also what is not of the same text.
_TURNING = {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def clean(text: object) -> str:
    """Return text that can be sent, and that reads in the order in which it is written.

    JSON may hold half a surrogate pair, which would stop the response.
    """
    sendable = str(text).encode("utf-8", "backslashreplace").decode()
    return sendable if sendable.isascii() else sendable.translate(_TURNING)


def cut(text: str, limit: int) -> str:
    """Shorten text, with an ellipsis where something is missing."""
    return text if len(text) <= limit else text[:limit] + "…"


def size_text(size: int) -> str:
    """Write a number of bytes."""
    return ngettext("{number} byte", "{number} bytes", size)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of the server's clock."""

    #: Epoch ms.
    ms: int
    #: In the current time zone, to the second, as the current language writes dates; without the zone's name.
    in_seconds: str
    #: What follows it: the milliseconds, behind a point.
    fraction: str
    #: The zone's name, as it is at that time.
    zone: str
    #: As seen from the server's now: "in 2 h", "5 s ago".
    relative: str

    @classmethod
    def of(cls, ms: int | None, now_ms: int) -> "Moment | None":
        """Describe a time, if there is one; else return None."""
        if ms is None:
            return None
        try:
            moment = in_zone(_EPOCH + timedelta(milliseconds=ms))
            local, fraction = seconds_text(moment), f".{moment.microsecond // 1000:03}"
            zone = moment.tzname() or ""
        except OverflowError:
            # Java may wait beyond the end of Python's calendar.
            local = (
                gettext("after the year 9999")
                if ms > 0
                else gettext("before the year 1")
            )
            fraction = zone = ""
        return cls(ms, local, fraction, zone, relative_text(ms - now_ms))

    @classmethod
    def of_held(cls, ms: int, now_ms: int) -> "Moment":
        """Describe how long a job is held: until a time, or as long as it takes."""
        moment = cls.of(ms, now_ms)
        assert moment is not None
        if ms - now_ms < HELD_WITHOUT_END_MS:
            return moment
        return cls(ms, "", "", "", gettext("as long as it takes"))

    @property
    def local(self) -> str:
        """In the current time zone, to the millisecond."""
        return self.in_seconds + self.fraction

    @property
    def in_full(self) -> str:
        """In the current time zone, to the millisecond, with the zone's name."""
        return f"{self.local} {self.zone}".strip()


_UNITS = (
    (86_400_000, gettext_lazy("{count} d")),
    (3_600_000, gettext_lazy("{count} h")),
    (60_000, gettext_lazy("{count} min")),
    (1000, gettext_lazy("{count} s")),
)


def relative_text(ms: int) -> str:
    """Say how far away a moment is, in two units at most: "in 2 h 5 min", "5 s ago", "now"."""
    if abs(ms) < 1000:
        return gettext("now")
    template = gettext("in {time}") if ms > 0 else gettext("{time} ago")
    return template.format(time=span_text(abs(ms)))


def span_text(ms: int) -> str:
    """Say how long a time of a second or more is, in two units at most: "2 h 5 min"."""
    if ms >= 3_652_500 * 86_400_000:
        return gettext("more than {count} years", count=10_000)
    left = ms
    first = next((i for i, (unit, _) in enumerate(_UNITS) if left >= unit), -1)
    parts = []
    for unit, name in _UNITS[first:][:2]:
        if left >= unit or first == -1:
            parts.append(name.format(count=left // unit))
        left %= unit
    return " ".join(parts)


def short_time_text(ms: float | None) -> str:
    """Write a measured time to two digits or so, as exact as those are; "-": nothing was measured."""
    if ms is None:
        return "-"
    if ms >= 60_000:
        return span_text(int(ms))
    if ms >= 1_000:
        return gettext("{count} s", count=_two_digits(ms / 1_000))
    if 0 < ms < 0.1:
        return gettext("{count} µs", count=_two_digits(ms * 1_000))
    return gettext("{count} ms", count=_two_digits(ms))


def _two_digits(number: float) -> str:
    if number >= 10:
        return f"{number:.0f}"
    return f"{number:.2g}".replace(".", formats.get_format("DECIMAL_SEPARATOR"))


class _Plain:
    """Turns values into readable JSON, up to a budget of characters.

    A decoder that follows Java's back references can make a tree of millions out of a hundred bytes; the budget stops it.
    """

    def __init__(self, budget: int) -> None:
        self._left = budget

    def __call__(self, value: object, depth: int = 0) -> Any:
        self._left -= 1
        if self._left <= 0 or depth > 120:
            return "…"
        match value:
            case None | bool() | float():
                return value
            case int():
                # Python refuses to print an integer of thousands of digits.
                return (
                    int(value)
                    if value.bit_length() < 4096
                    else f"<integer of {value.bit_length()} bits>"
                )
            case str():
                return self._text(str.__str__(value))
            case bytes() | bytearray():
                return self._text(f"<{len(value)} bytes> {bytes(value[:64]).hex()}")
            case dict():
                return self._mapping(value, depth)
            case list() | tuple() | Set():
                return self._items(value, depth)
            case JavaObject():
                return self._mapping(
                    {"@class": value.class_name, **value.fields}, depth
                )
            case JavaEnum():
                return self._text(f"{value.class_name}.{value.name}")
            case JavaValue():
                return self(value.value, depth + 1)
            case Instant():
                return f"{value.seconds}.{value.nano:09d} s since 1970"
            case _:
                return self._text(str(value))

    def _text(self, text: str) -> str:
        shown = redact(cut(text, max(self._left, 0)))
        self._left -= len(shown)
        return shown

    def _items(self, items: Any, depth: int) -> list[Any]:
        shown = []
        for item in islice(items, self._left):
            if self._left <= 0:
                break
            shown.append(self(item, depth + 1))
        return shown if len(shown) == len(items) else [*shown, "…"]

    def _mapping(self, items: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in items.items():
            if self._left <= 0:
                shown["…"] = "…"
                break
            name = (
                self._text(key)
                if isinstance(key, str)
                else self._text(json.dumps(self(key, depth + 1)))
            )
            shown[name] = self(item, depth + 1)
        return shown


def plain_value(value: object, limit: int = PAGE_CHARACTERS) -> Any:
    """Return a value as JSON can write it, of bounded size."""
    return _Plain(limit)(value)


def compact_json(value: object, limit: int = ROW_CHARACTERS) -> str:
    """Write a value in one line."""
    return cut(clean(json.dumps(_Plain(limit)(value), ensure_ascii=False)), limit)


def pretty_json(value: object, limit: int = PAGE_CHARACTERS) -> str:
    """Write a value in indented lines."""
    return cut(
        clean(json.dumps(_Plain(limit)(value), ensure_ascii=False, indent=2)), limit
    )


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
    #: When Django's tasks enqueued it, epoch ms; None: it is none of theirs.
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


def value_text(value: object, write: Callable[[object], str] = pretty_json) -> str:
    """Write an argument or a result."""
    return repr(value) if value is HIDDEN else write(value)


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


@dataclass(frozen=True, slots=True)
class ShownProgress:
    """How far a running job is, as its task has said."""

    #: "40 of 200, 20 %"
    words: str
    text: str
    #: From 0 to 100; None: the task has not said how much there is.
    percent: int | None
    at: Moment | None

    @classmethod
    def of(
        cls, read: ReadProgress | None, now_ms: int, token: str = ""
    ) -> "ShownProgress | None":
        """Describe progress, if there is any; else return None. For ``token`` see `as_progress`."""
        told = as_progress(read, token)
        if read is None or told is None:
            return None
        done, share = number_text(_whole(told.done)), told.share
        words, percent = done, None
        if told.total is not None and share is not None:
            percent = int(share * 100)
            words = gettext(
                "{done} of {total}, {percent} %",
                done=done,
                total=number_text(_whole(told.total)),
                percent=percent,
            )
        return cls(words, clean(told.text), percent, Moment.of(read.at_ms, now_ms))


def _whole(number: float) -> Any:
    return int(number) if number == int(number) else number


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt of a job failed, or why the job was quarantined."""

    message: str
    kind: str
    traceback: str
    at: Moment | None
    #: How long the attempt ran, ms; None: that is not known.
    took_ms: int | None = None
    #: Host and process id of its worker; after a kill, the id by which the worker's claims go.
    worker: str = ""

    @property
    def line(self) -> str:
        return cut(" ".join(self.message.split()), ROW_CHARACTERS)


def read_failure(error: bytes, now_ms: int, token: str = "") -> Failure | None:
    """Read an error as a worker or a script wrote it; with the token of its job, an encrypted one as well."""
    found = envelopes.read_error(error, token)
    if found is None:
        return None
    if not token and "encrypted" in found:
        found["error"] = gettext("encrypted")
    at, began = found.get("at"), found.get("began")
    took_ms = at - began if type(at) is int and type(began) is int else -1
    return Failure(
        message=cut(redact(clean(found.get("error") or "")), PAGE_CHARACTERS),
        kind=cut(clean(found.get("kind") or ""), ROW_CHARACTERS),
        traceback=cut(redact(clean(found.get("traceback") or "")), PAGE_CHARACTERS),
        at=Moment.of(at, now_ms)
        if isinstance(at, int) and not isinstance(at, bool)
        else None,
        took_ms=took_ms if took_ms >= 0 else None,
        worker=cut(clean(found.get("worker") or ""), ROW_CHARACTERS),
    )


def read_attempts(seen: Inspected, token: str = "") -> list[Failure]:
    """Read the attempts behind a job, the last first; for ``token`` see `read_failure`.

    The last error of a job that is held, or in quarantine, says why it is, and is of no attempt.
    """
    found = [
        read_failure(line, seen.now_ms, token)
        for line in seen.history.split(b"\n")
        if line
    ]
    attempts = [each for each in found if each is not None]
    last = read_failure(seen.error, seen.now_ms, token)
    is_reason = seen.state in (State.HELD, State.QUARANTINED)
    if last is None or is_reason or (attempts and last.at == attempts[0].at):
        return attempts
    return [last, *attempts]
