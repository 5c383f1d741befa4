"""The pauses of a queue, and of tasks on it, as each claim returns them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import Decoder
from django_delayq.transport.call import Call
from django_delayq.wire.delay import MAX_START_TIME_MS
from django_delayq.wording import Wording, gettext, joined, one_line

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredPauses(NamedTuple):
    """The pauses of a queue, as they are stored; each None if there is none."""

    of_queue: bytes | None
    of_tasks: bytes | None


class Pause(NamedTuple):
    """A pause of a queue, or of one task on it."""

    queue: str
    #: The name of the task; None: the queue itself is paused.
    task: str | None
    since: datetime
    #: End of the pause; None if only `resume` ends it.
    until: datetime | None
    #: Name of the person or program that paused it.
    by: str
    reason: str

    def __str__(self) -> str:
        return str(self.words)

    @property
    def words(self) -> Wording:
        """The pause in one line: what, since when and why."""
        if self.task is None:
            what = gettext(
                "queue {queue} has been paused since {since}",
                queue=self.queue,
                since=self.since,
            )
        else:
            what = gettext(
                "task {task} on queue {queue} has been paused since {since}",
                task=one_line(self.task),
                queue=self.queue,
                since=self.since,
            )
        until: str = ""
        if self.until is not None:
            until = gettext(", until {until}", until=self.until)
        # One line, whatever somebody has written.
        by, reason = one_line(self.by), one_line(self.reason)
        return joined(
            what=what,
            until=until,
            by=gettext(", by {by}", by=by) if by else "",
            reason=gettext(": {reason}", reason=reason) if reason else "",
        )

    @property
    def until_ms(self) -> float:
        """End of the pause, epoch ms; infinite if it has no end."""
        if self.until is None:
            return float("inf")
        return (self.until - _EPOCH) / timedelta(milliseconds=1)


def pauses(keys: DeliveryKeys) -> Call[list[Pause]]:
    """Read what is paused on a queue: itself first, then its tasks by name."""
    name = keys.queue.name

    def read(reply: list[Any]) -> list[Pause]:
        now_ms, *stored = reply
        return read_pauses(name, StoredPauses(*stored), now_ms)

    return bind("pauses", keys)(read)


def read_pauses(queue: str, stored: StoredPauses, now_ms: float) -> list[Pause]:
    """Read stored pauses, without those that are over; entries that our scripts have not written are left out."""
    found = [_read(queue, None, _decode(stored.of_queue), now_ms)]
    found += _of_tasks(queue, stored.of_tasks, now_ms)
    return [each for each in found if each is not None]


def _of_tasks(queue: str, text: bytes | None, now_ms: float) -> Iterator[Pause | None]:
    tasks = _decode(text)
    if isinstance(tasks, dict):
        for name in sorted(tasks):
            yield _read(queue, name, tasks[name], now_ms)


def _decode(text: bytes | None) -> Any:
    return None if text is None else _any.read(text)


_any = Decoder[Any](Any, "a pause cannot be read", holds_any=True)


def _read(queue: str, task: str | None, pause: Any, now_ms: float) -> Pause | None:
    if not isinstance(pause, dict):
        return None
    try:
        till_ms, since_ms = int(pause["till"]), int(pause["since"])
        if 0 != till_ms <= now_ms:
            return None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    since = _moment(since_ms)
    until = _moment(till_ms) if till_ms else None
    by, why = str(pause.get("by", "")), str(pause.get("why", ""))
    return Pause(queue, task, since, until, by, why)


def _moment(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(max(0, ms), MAX_START_TIME_MS))
