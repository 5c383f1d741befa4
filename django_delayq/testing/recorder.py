"""A server that only notes what is sent to it: for tests that look at what was scheduled, and need no Lua.

It answers the calls that a job's handle makes before the job runs. To those who read queues, limits or schedules it is an
empty server; to any other call it says that it cannot. Nothing falls due here.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from django_delayq import conf
from django_delayq.core.shards import Held, Pin
from django_delayq.core.states import Change, State
from django_delayq.core.store import NewJob
from django_delayq.jobs import envelope as envelopes
from django_delayq.redaction import brief
from django_delayq.transport.script import LOADED
from django_delayq.wire.signatures import TOKEN_LENGTH

#: States in which a job has ended, or was given up.
ENDED = frozenset(
    {
        State.SUCCEEDED,
        State.DISCARDED,
        State.CANCELLED,
        State.EXPIRED,
        State.DEAD,
        State.QUARANTINED,
    }
)
#: Those after which a server knows only the state, and what is kept of the result.
_GONE = ENDED - {State.DEAD, State.QUARANTINED}
#: What holds a unique key, and what can be changed.
_WAITS = frozenset({State.SCHEDULED, State.RETRYING, State.HELD})
#: How a payload names jobs that follow its own, and its batch.
_LINKS = (b'\\"follow\\":{', b'\\"batch\\":\\"')


@brief
@dataclass(eq=False, slots=True)
class Note:
    """One job that was sent."""

    queue: str
    token: str
    #: As `parse_delay` writes it.
    when: str
    payload: bytes
    unique: bytes
    priority: int
    batch: str
    #: When it came, and when it is due, epoch ms.
    noted_ms: int
    start_ms: int
    state: State = State.SCHEDULED
    attempts: int = 0
    error: bytes = b""
    #: What is kept of its end for those who wait for it.
    result: bytes = b""

    def move(self, when: str, now_ms: int) -> None:
        self.when, self.noted_ms = when, now_ms
        self.start_ms = start_of(when, now_ms)


@dataclass(slots=True)
class Open:
    """A batch whose callback waits."""

    callback: Note
    is_open: bool = True


@dataclass(slots=True)
class Notes:
    """All that was sent, in order."""

    jobs: list[Note] = field(default_factory=list)
    by_token: dict[str, Note] = field(default_factory=dict)
    batches: dict[str, Open] = field(default_factory=dict)


def start_of(when: str, now_ms: int) -> int:
    number = int(when[1:])
    return now_ms + number if when[0] == "+" else max(number, now_ms)


class Recorder:
    """Answers as a server would on which no worker runs."""

    def __init__(self, name: str = "captured()") -> None:
        """``name`` is what messages call it."""
        self._name = name
        self._lock = threading.RLock()
        self.notes = Notes()

    def clear(self) -> None:
        with self._lock:
            self.notes = Notes()

    # As a server.

    def execute(self, command: tuple[Any, ...]) -> Any:
        with self._lock:
            name = _text(command[0])
            if name == "EVALSHA":
                return self._call(command)
            if name == "EVAL":
                source = _bytes(command[1])
                sha = sha1(source, usedforsecurity=False).hexdigest()
                return self._call((name, sha, *command[2:]))
            answer = _COMMANDS.get(name)
            if name.split()[0] in _REFUSED:
                raise ResponseError(f"unknown command '{name}': this is a test")
            if answer is None:
                raise self._cannot(name)
            return answer(self, *map(_text, command[1:]))

    def _call(self, command: tuple[Any, ...]) -> Any:
        sha = _text(command[1])
        script = LOADED.get(sha)
        if script is None:
            raise NoScriptError("No matching script.")
        count = int(command[2])
        answer = _SCRIPTS.get(script.name)
        if answer is None:
            raise self._cannot(script.name)
        queue = _queue_of(map(_text, command[3 : 3 + count]))
        return answer(self, queue, script.named(command[3 + count :]))

    def _cannot(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"{self._name} only records scheduled jobs, and cannot answer {what!r}: use frozen_queue(), where everything works, or"
            " a server"
        )

    def conclude(self, reply: Any) -> None:
        """Nothing follows."""

    async def aconclude(self, reply: Any) -> None:
        """Nothing follows."""

    # Scripts.

    def _pin_shards(self, queue: str, args: dict[str, Any]) -> Any:
        # A queue has the number of shards that the settings say.
        whole = conf.get_settings().sharded.get(queue)
        pin = Pin.new(whole.shards or 0).text if whole is not None else ""
        return [pin.encode(), *Held(), 0]

    def _store(self, queue: str, args: dict[str, Any]) -> Any:
        payload = _bytes(args["payload"])
        start = 11
        token = payload[start : start + TOKEN_LENGTH].decode()
        note = self.note(queue, NewJob(token, _text(args["when"]), "", payload))
        return note.start_ms

    def _schedule(self, queue: str, args: dict[str, Any]) -> Any:
        reply: list[Any] = [b"", None]
        others: list[Any] = []
        for index, (token, when, tail, payload) in enumerate(args["jobs"]):
            new = NewJob(_text(token), _text(when), tail, _bytes(payload))
            note = self.note(queue, new)
            holder = "" if note.token == new.token else note.token
            start_ms = start_of(new.when, epoch_now_ms()) if holder else note.start_ms
            reply.append(start_ms)
            if holder:
                others += [index, holder.encode()]
                reply[1] = others
        return reply

    def note(self, queue: str, new: NewJob) -> Note:
        """Note a job; return it, or the job that holds its unique key."""
        known = self.notes.by_token.get(new.token)
        if known is not None:
            return known
        unique, priority, batch = read_tail(_bytes(new.tail))
        if unique:
            for other in self.notes.jobs:
                if (
                    other.queue == queue
                    and other.unique == unique
                    and other.state in _WAITS
                    and not _is_too_late(other)
                ):
                    return other
        note = self._noted(queue, new, unique, priority, batch)
        self.noted(note)
        return note

    def _noted(
        self, queue: str, new: NewJob, unique: bytes, priority: int, batch: str
    ) -> Note:
        now_ms = epoch_now_ms()
        note = Note(
            queue,
            new.token,
            new.when,
            new.payload,
            unique,
            priority,
            batch,
            now_ms,
            start_of(new.when, now_ms),
        )
        self.notes.jobs.append(note)
        self.notes.by_token[note.token] = note
        return note

    def noted(self, note: Note) -> None:
        """Do something about a job that was noted."""

    def _open(self, queue: str, args: dict[str, Any]) -> Any:
        token, when = _text(args["token"]), _text(args["when"])
        if token in self.notes.batches:
            return 0
        tail = _bytes(args["tail"])
        new = NewJob(token, when, tail, _bytes(args["payload"]))
        note = self._noted(queue, new, *read_tail(tail))
        note.state = State.HELD
        self.notes.batches[note.token] = Open(note)
        return 1

    def _close(self, queue: str, args: dict[str, Any]) -> Any:
        batch = self.notes.batches.get(_text(args["token"]))
        if batch is None or not batch.is_open:
            return 0
        batch.is_open = False
        self.note_left(batch.callback.token)
        return 1

    def _withdraw(self, queue: str, args: dict[str, Any]) -> Any:
        token = _text(args["token"])
        if token not in self.notes.batches or self._left(token):
            return 0
        self.notes.jobs.remove(self.notes.batches.pop(token).callback)
        del self.notes.by_token[token]
        return 1

    def _left(self, token: str) -> int:
        return sum(
            job.batch == token and job.state not in ENDED for job in self.notes.jobs
        )

    def note_left(self, token: str) -> None:
        """Start the callback of a batch if all of its jobs have ended."""
        batch = self.notes.batches.get(token)
        if batch is None or batch.is_open or self._left(token):
            return
        callback = batch.callback
        if callback.state is State.HELD:
            callback.state = State.SCHEDULED
            callback.move(callback.when, epoch_now_ms())
            self.noted(callback)

    def _inspect(self, queue: str, args: dict[str, Any]) -> Any:
        return self._seen(self.notes.by_token.get(_text(args["token"])))

    def _seen(self, note: Note | None) -> list[Any]:
        now_ms = epoch_now_ms()
        if note is None or note.state in _GONE:
            state = State.MISSING if note is None else note.state
            # It is kept with the result.
            payload = note.payload if note is not None and note.result else b""
            seen = [state.value.encode(), 0, 0, 0, 0, payload, b"", b"", now_ms]
            return [*seen, 0, 0, b"", b""]
        state = note.state
        if state is State.SCHEDULED and note.start_ms <= now_ms:
            state = State.DUE
        start_ms = note.start_ms
        if state is State.HELD and note.when.startswith("+"):
            # The wait of a callback begins when its batch has ended.
            start_ms = note.noted_ms
        return [
            state.value.encode(),
            start_ms,
            note.attempts,
            0,
            start_ms,
            note.payload,
            note.error,
            note.unique[1:],
            now_ms,
            note.priority,
            0,
            b"",
            # It runs in no worker.
            b"",
        ]

    def _cancel(self, queue: str, args: dict[str, Any]) -> Any:
        text = _bytes(args["text"])
        return [
            self._cancelled(_text(token), text if _text(ttl_ms) else b"")
            for token, ttl_ms in args["jobs"]
        ]

    def _cancelled(self, token: str, result: bytes) -> bytes:
        note = self.notes.by_token.get(token)
        if note is None:
            return State.MISSING.value.encode()
        if note.state in _WAITS:
            note.state, note.result = State.CANCELLED, result
            self.note_left(note.batch)
            return Change.CANCELLED.value.encode()
        return note.state.value.encode()

    def _reschedule(self, queue: str, args: dict[str, Any]) -> Any:
        note = self.notes.by_token.get(_text(args["token"]))
        if note is None or note.state not in _WAITS:
            state = State.MISSING if note is None else note.state
            return [state.value.encode(), 0, b""]
        note.move(_text(args["when"]), epoch_now_ms())
        if note.state is State.HELD:
            # A new time outweighs what it was held for.
            note.state = State.SCHEDULED
            self.noted(note)
        return [Change.RESCHEDULED.value.encode(), note.start_ms, b""]

    def _reprioritize(self, queue: str, args: dict[str, Any]) -> Any:
        note = self.notes.by_token.get(_text(args["token"]))
        if note is None or note.state not in _WAITS:
            state = State.MISSING if note is None else note.state
            return state.value.encode()
        note.priority = int(args["priority"])
        return Change.REPRIORITIZED.value.encode()

    def _replace(self, queue: str, args: dict[str, Any]) -> Any:
        moves, longest = _text(args["moves"]), _text(args["longest_ms"])
        payload = _bytes(args["payload"])
        note = self.notes.by_token.get(_text(args["holder"]))
        if note is None or note.state not in _WAITS:
            state = State.MISSING if note is None else note.state
            return [state.value.encode(), [], b"", b"", b""]
        mac = sha1(note.payload).digest()
        is_linked = any(link in note.payload for link in _LINKS)
        if payload and is_linked and _bytes(args["linked"]) != mac:
            return [b"linked", [], note.payload, mac, b""]
        now_ms = epoch_now_ms()
        start_ms, is_changed = start_of(_text(args["when"]), now_ms), False
        if moves == "later" and longest:
            start_ms = min(start_ms, note.noted_ms + int(longest))
        better = {"later": start_ms > note.start_ms, "sooner": start_ms < note.start_ms}
        if better.get(moves):
            note.start_ms, note.when, is_changed = start_ms, f"={start_ms}", True
        if payload:
            note.payload, is_changed = payload, True
            _, note.priority, _ = read_tail(_bytes(args["tail"]))
        change = Change.REPLACED if is_changed else Change.KEPT
        return [change.value.encode(), self._seen(note), b"", b"", b""]

    # Scripts that read: what an empty server replies.

    def _counts(self, queue: str, args: dict[str, Any]) -> Any:
        return [*[0] * 8, -1, epoch_now_ms(), *[0] * 5, []]

    def _forwards(self, queue: str, args: dict[str, Any]) -> Any:
        return [epoch_now_ms(), []]

    def _ahead(self, queue: str, args: dict[str, Any]) -> Any:
        return [0] * (1 + len(args["ends_ms"]))

    def _search(self, queue: str, args: dict[str, Any]) -> Any:
        return [epoch_now_ms(), len(args["places"]), b"", b"", []]

    def _schedules(self, queue: str, args: dict[str, Any]) -> Any:
        return [epoch_now_ms() * 1_000, b"0", b"0", []]

    def _workers(self, queue: str, args: dict[str, Any]) -> Any:
        return [epoch_now_ms(), 0, []]

    def _pauses(self, queue: str, args: dict[str, Any]) -> Any:
        return [epoch_now_ms(), None, None]

    def _zero_of(self, queue: str, args: dict[str, Any]) -> Any:
        return [0, []]

    def _figures(self, queue: str, args: dict[str, Any]) -> Any:
        length_ms = 60_000 if _text(args["unit"]) == "minute" else 3_600_000
        return [epoch_now_ms() // length_ms, 0, [], [b""] * int(args["count"])]

    def _days(self, queue: str, args: dict[str, Any]) -> Any:
        return [b"", []]

    def _none(self, queue: str, args: dict[str, Any]) -> Any:
        return 0

    def _nothing(self, queue: str, args: dict[str, Any]) -> Any:
        return None

    # Commands.

    def _time(self) -> list[bytes]:
        seconds, ms = divmod(epoch_now_ms(), 1_000)
        return [b"%d" % seconds, b"%d" % (ms * 1_000)]

    def _zero(self, *keys: str) -> int:
        return 0

    def _pong(self) -> bytes:
        return b"PONG"

    def _hmget(self, key: str, *fields: str) -> Any:
        # Of a batch, how many of its jobs are left.
        return [
            b"%d" % self._left(field) if field in self.notes.batches else None
            for field in fields
        ]

    def _hgetall(self, key: str) -> dict[bytes, bytes]:
        return {}

    def _result(self, key: str) -> list[bytes]:
        note = self.notes.by_token.get(key[-TOKEN_LENGTH:])
        return [note.result] if note is not None and note.result else []

    def _lrange(self, key: str, *between: str) -> Any:
        return self._result(key)

    def _lindex(self, key: str, index: str) -> Any:
        found = self._result(key)
        return found[0] if found else None

    def _wait(self, replicas: str, timeout_ms: str) -> int:
        return int(replicas)

    def _waitaof(self, local: str, replicas: str, timeout_ms: str) -> list[int]:
        return [int(local), int(replicas)]

    def _blmove(self, key: str, *rest: str) -> Any:
        if found := self._result(key):
            return found[0]
        raise TimeoutError(self.why_endless())

    def why_endless(self) -> str:
        """Say why a wait for a job that has not ended is an error."""
        return f"{self._name} runs no job later, so this wait would never end: the job has not ended"


_Answer = Callable[[Recorder, str, dict[str, Any]], Any]
_SCRIPTS: dict[str, _Answer] = {
    "pin_shards": Recorder._pin_shards,
    "store": Recorder._store,
    "schedule": Recorder._schedule,
    "open": Recorder._open,
    "close": Recorder._close,
    "withdraw_callback": Recorder._withdraw,
    "inspect": Recorder._inspect,
    "cancel": Recorder._cancel,
    "reschedule": Recorder._reschedule,
    "reprioritize": Recorder._reprioritize,
    "replace": Recorder._replace,
    "replay": Recorder._none,
    "discard": Recorder._none,
    "fence": Recorder._none,
    "read_progress": Recorder._nothing,
    "counts": Recorder._counts,
    "forwards": Recorder._forwards,
    "ahead": Recorder._ahead,
    "search": Recorder._search,
    "page": Recorder._zero_of,
    "held_names": Recorder._zero_of,
    "pauses": Recorder._pauses,
    "schedules": Recorder._schedules,
    "read_workers": Recorder._workers,
    "read_ended": Recorder._zero_of,
    "read_figures": Recorder._figures,
    "read_days": Recorder._days,
}
#: Commands about the server itself, which many a server refuses.
_REFUSED = frozenset({"ACL", "CLIENT", "CONFIG", "HELLO", "INFO", "SUBSCRIBE"})
_COMMANDS: dict[str, Callable[..., Any]] = {
    "HMGET": Recorder._hmget,
    "HGETALL": Recorder._hgetall,
    "LRANGE": Recorder._lrange,
    "LINDEX": Recorder._lindex,
    "BLMOVE": Recorder._blmove,
    "WAIT": Recorder._wait,
    "WAITAOF": Recorder._waitaof,
    "TIME": Recorder._time,
    "PING": Recorder._pong,
    "LLEN": Recorder._zero,
    "ZCARD": Recorder._zero,
    "HLEN": Recorder._zero,
    "EXISTS": Recorder._zero,
}


def epoch_now_ms() -> int:
    # What freezegun and time-machine move.
    return int(time.time() * 1000)


def _is_too_late(note: Note) -> bool:
    call = envelopes.claimed_call(note.payload)
    expires_s = (call.options or {}).get("expires")
    if expires_s is None:
        return False
    late_ms: float = max(note.start_ms, call.since) + expires_s * 1000
    return epoch_now_ms() > late_ms


def read_tail(tail: bytes) -> tuple[bytes, int, str]:
    """Return the unique key, with its kind, the priority and the batch that `tail_of` wrote."""
    if tail[:1] != b"x":
        return tail, 0, ""
    flags, priority = tail[1], tail[2] - 100
    at = 5 + int.from_bytes(tail[3:5], "big")
    at += 18 * bool(flags & 64) + TOKEN_LENGTH * bool(flags & 128)
    batch = b""
    if flags & 16:
        batch, at = tail[at : at + TOKEN_LENGTH], at + TOKEN_LENGTH
    return tail[at:], priority, batch.decode()


def _queue_of(keys: Iterable[str]) -> str:
    """Return the queue to which keys belong; those that only name others have no colon."""
    for key in keys:
        start, _, tag = key.partition(":")
        if start == "redisson_delay_queue_timeout" or start.startswith("delayq_"):
            is_wrapped = tag.startswith("{") and tag.endswith("}")
            return conf.get_settings().name_of(tag[1:-1] if is_wrapped else tag)
    return ""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
