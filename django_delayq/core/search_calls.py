"""Reading everything that a queue holds, or its jobs in some states, in bounded calls, while the queue lives on."""

from collections.abc import Collection
from typing import Any, NamedTuple

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.decoder import score_of
from django_delayq.redaction import brief
from django_delayq.transport.call import Argument, Call
from django_delayq.transport.script import rows
from django_delayq.wire.frame import FrameFormat

#: Elements of one call: some 1.2 ms of the server's time among a million, half of that among few.
SEARCH_PAGE = 100
#: Bytes of payloads and errors that one call reads, approximately.
SEARCH_BYTES = 1 << 19
#: Bytes that are kept of an element in a place that is written down. A frame begins with 8 random ones.
SHORT = 64

#: Where jobs lie, in the order in which they are read, and their state there. In the first three, a job is scheduled
#: until it is due.
PLACES: dict[str, State] = {
    "timeout_set": State.SCHEDULED,
    "returned": State.SCHEDULED,
    "destination": State.DUE,
    "leases": State.RUNNING,
    "retries": State.RETRYING,
    "held": State.HELD,
    "dead": State.DEAD,
    "quarantine": State.QUARANTINED,
}
#: The places in which jobs wait in the order of their start times.
BY_START_TIME = frozenset({"timeout_set", "returned", "retries"})


class Window(NamedTuple):
    """A range of times, epoch ms; None: open at that end."""

    first_ms: int | None = None
    #: The first moment after it.
    end_ms: int | None = None

    def has(self, ms: int | None) -> bool:
        """Whether a time lies in it. No time lies only in a window that is open at both ends."""
        if ms is None:
            return self == ALWAYS
        return (self.first_ms is None or self.first_ms <= ms) and (
            self.end_ms is None or ms < self.end_ms
        )


ALWAYS = Window()


class Stretch(NamedTuple):
    """A place to be read, from the lowest to the highest score; None: all of it."""

    place: str
    lowest: int | None = None
    highest: int | None = None


@brief
class Place(NamedTuple):
    """How far a search has come."""

    #: What is still to be read.
    rest: tuple[Stretch, ...]
    #: The cursor in the first of these, as the script returned it.
    where: bytes = b""
    element: bytes = b""

    @property
    def is_at_end(self) -> bool:
        return not self.rest

    def shortened(self) -> "Place":
        """Return the same place in few bytes, however large the elements are beside which it lies.

        In a sorted set, the first bytes of a frame mark it, as they are random. In the destination queue the elements
        are left out; the next call finds its place by number, so it may repeat or skip elements there if others were
        taken from the head meanwhile.
        """
        if len(self.element) <= SHORT:
            return self
        if self.rest and self.rest[0].place == "destination":
            return self._replace(where=self.where.split(b" ")[0], element=b"")
        # These bytes lie behind all frames that begin like this one.
        return self._replace(element=self.element[:SHORT] + b"\xff" * 16)


@brief
class Found(NamedTuple):
    """One element of a queue."""

    #: A key of `PLACES`.
    place: str
    state: State
    #: Empty for an element that has no id.
    token: str
    #: When it is due, or was due first if it has begun; epoch ms.
    due_ms: int | None
    attempts: int
    kills: int
    unique: str
    payload: bytes
    error: bytes
    priority: int
    #: When it was due first, epoch ms; a change of its start time is one of that as well.
    first_ms: int | None


class FoundPage(NamedTuple):
    """The result of one call."""

    now_ms: int
    #: Where the next call goes on.
    place: Place
    found: list[Found]


def first_place(
    states: Collection[State], window: Window = ALWAYS, *, now_ms: int
) -> Place:
    """Return where a search for jobs in some states begins. It seeks by score where jobs are ordered by start time.

    The caller compares the jobs that it reads with the states and the window.
    """
    rest = []
    for place, state in PLACES.items():
        first_ms, last_ms = window
        if state is State.SCHEDULED:
            if State.SCHEDULED not in states:
                last_ms = now_ms if last_ms is None else min(last_ms, now_ms)
            if State.DUE not in states:
                first_ms = now_ms if first_ms is None else max(first_ms, now_ms)
            is_wanted = State.SCHEDULED in states or State.DUE in states
        else:
            is_wanted = state in states
        if not is_wanted:
            continue
        if place not in BY_START_TIME:
            rest.append(Stretch(place))
        elif first_ms is None or last_ms is None or first_ms <= last_ms:
            rest.append(Stretch(place, first_ms, last_ms))
    return Place(tuple(rest))


def search(
    keys: DeliveryKeys,
    place: Place,
    *,
    count: int = SEARCH_PAGE,
    byte_budget: int = SEARCH_BYTES,
    payload_bytes: int,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
) -> Call[FoundPage]:
    """Read on from a place. Of each payload it reads ``payload_bytes`` at most.

    A job that stays where it is comes once in a whole search, whatever comes and goes around it. There is one
    exception, in the destination queue: if between two calls jobs are taken from its head, and other jobs that the first
    call has read are taken from its middle, a job may come twice.
    """
    bounds = [
        (name, _score(lowest), _score(highest)) for name, lowest, highest in place.rest
    ]

    def read(reply: list[Any]) -> FoundPage:
        now_ms, done, where, element, flat = reply
        names = [stretch.place for stretch in place.rest]
        found = [_read_found(names, now_ms, row) for row in rows(flat, 10)]
        # A number that no script has made into a text is an index in the destination queue.
        if isinstance(where, int):
            where = str(where).encode()
        return FoundPage(now_ms, Place(place.rest[done:], where, element), found)

    return bind("search", keys)(
        read,
        count=count,
        budget=byte_budget,
        cut=payload_bytes,
        format=frame_format.number,
        where=place.where,
        element=place.element,
        places=bounds,
    )


def _score(bound: int | None) -> Argument:
    return "" if bound is None else bound


def _read_found(names: list[str], now_ms: int, row: tuple[Any, ...]) -> Found:
    number, token, due, attempts, kills, unique, payload, error, priority, first = row
    place = names[number - 1]
    state = PLACES[place]
    due_ms = _read_ms(due)
    if state is State.SCHEDULED and due_ms is not None and due_ms <= now_ms:
        state = State.DUE
    return Found(
        place,
        state,
        token.decode(errors="replace"),
        due_ms,
        attempts,
        kills,
        unique.decode(errors="replace"),
        payload,
        error,
        priority,
        _read_ms(first),
    )


def _read_ms(score: bytes | int) -> int | None:
    return score if isinstance(score, int) else score_of(score)
