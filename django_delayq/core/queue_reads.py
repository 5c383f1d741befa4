"""Reading a queue: one job, a page of jobs in one state, counts, what is due in some time."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from django_delayq.core.bounds import BYTE_BUDGET
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.decoder import score_of, whole_number
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command
from django_delayq.transport.script import rows
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat

#: Bytes of each payload that a page shows.
PREVIEW_BYTES = 16_384
#: Times of one `ahead` call: 0.5 ms of the server.
MOST_AHEAD = 120
#: How jobs end, in the words of the counters.
ENDS = (
    State.SUCCEEDED,
    State.DEAD,
    State.EXPIRED,
    State.CANCELLED,
    State.QUARANTINED,
)
#: What HINCRBY writes.
_NUMBER = re.compile(rb"-?\d{1,19}")


@brief
class Inspected(NamedTuple):
    """One job as the server has it."""

    state: State
    #: The start time, the end of the lease, until when the job is held, or when it was put aside; epoch ms.
    score_ms: int
    attempts: int
    kills: int
    #: When the job was first due, epoch ms.
    start_time_ms: int
    payload: bytes
    error: bytes
    unique: str
    now_ms: int
    priority: int
    #: When the worker claimed it, epoch ms; None: it does not run, or that is not known.
    claimed_ms: int | None
    #: The attempts behind it, the last first: one JSON object a line.
    history: bytes
    #: The worker that has claimed it, as a killed attempt names it; empty: none.
    worker: str

    @property
    def due_ms(self) -> int:
        """When the job is due next, if it waits, or else when it was first due; epoch ms, 0 if that is not known."""
        waits = self.state in (State.SCHEDULED, State.DUE, State.RETRYING)
        return self.score_ms if waits else self.start_time_ms


def read_format(keys: DeliveryKeys) -> Command[int]:
    """Read the format of a queue, which is ours unless a later version has raised it."""
    return Command(("HMGET", keys.control, "format"), _read_format)


def _read_format(reply: list[bytes | None]) -> int:
    found = reply[0] or b""
    number = whole_number(found)
    return signatures.FORMAT if number is None else number


@brief
class PageRow(NamedTuple):
    """One element of a page."""

    #: Empty for a payload without a token.
    token: str
    score_ms: int | None
    attempts: int
    kills: int
    #: Its first bytes, `PREVIEW_BYTES` at most.
    payload: bytes
    payload_size: int
    error: bytes


class Page(NamedTuple):
    """Part of one set of a queue."""

    total: int
    rows: list[PageRow]


class Counts(NamedTuple):
    """A queue in numbers."""

    #: Jobs before their first attempt, due or not: frames in the timeout set, and returned jobs.
    waiting: int
    due: int
    #: Of those that wait, the ones without a frame: given back, moved out of the destination queue, or replayed.
    returned: int
    delay_queue: int
    destination: int
    running: int
    retrying: int
    #: Held for a worker that knows their tasks.
    held: int
    dead: int
    quarantined: int
    #: Start time of the first job that waits, epoch ms; None if no job waits.
    next_ms: int | None
    now_ms: int
    #: How many were offered, succeeded, retried, dead, cancelled, … since the queue began.
    counters: dict[str, int]
    #: For how long the first due job has waited since a pause or a limit of the queue held it back, or since its start time.
    late_ms: int = 0
    #: Jobs that follow ones of this queue and are on their way to others.
    forwards: int = 0

    @property
    def jobs(self) -> int:
        """Number of jobs that wait or run, from Java too: a queue of limited size counts these."""
        return (
            self.waiting + self.destination + self.running + self.retrying + self.held
        )

    @property
    def ended(self) -> dict[State, int]:
        """Number of jobs that have ended in each way since the queue began, without a worker too."""
        return {state: self.counters.get(state, 0) for state in ENDS}


def sum_of(counts: Sequence[Counts]) -> Counts:
    """Return the numbers of several queues together."""
    counters: Counter[str] = Counter()
    for each in counts:
        counters.update(each.counters)
    firsts = [each.next_ms for each in counts if each.next_ms is not None]
    numbers = counts[0]._fields[: counts[0]._fields.index("next_ms")]
    return counts[0]._replace(
        **{name: sum(getattr(each, name) for each in counts) for name in numbers},
        next_ms=min(firsts, default=None),
        now_ms=max(each.now_ms for each in counts),
        late_ms=max(each.late_ms for each in counts),
        forwards=sum(each.forwards for each in counts),
        # A queue tells what it counts, even where that is nothing.
        counters={name: counters[name] for each in counts for name in each.counters},
    )


def inspect(keys: DeliveryKeys, token: str) -> Call[Inspected]:
    """Read one job, wherever it is."""
    return bind("inspect", keys)(read_inspected, token=token)


def read_inspected(reply: list[Any]) -> Inspected:
    """Read what inspect.lua returns."""
    state, score, attempts, kills, due, payload, error, unique, now_ms, *rest = reply
    priority, claimed_ms, history, owner = rest
    return Inspected(
        State(state.decode()),
        score,
        attempts,
        kills,
        due,
        payload,
        error,
        unique.decode(errors="replace"),
        now_ms,
        priority,
        claimed_ms or None,
        history,
        owner.hex(),
    )


#: The states whose jobs can be paged through, and what their set holds.
PAGES: dict[State, str] = {
    State.SCHEDULED: "frames",
    State.DUE: "payloads",
    State.RUNNING: "tokens",
    State.RETRYING: "tokens",
    State.HELD: "tokens",
    State.DEAD: "tokens",
    State.QUARANTINED: "tokens",
}


def page(
    keys: DeliveryKeys,
    state: State,
    *,
    first: int = 0,
    count: int = 50,
    newest: bool = False,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Page]:
    """Read a page of the jobs in one state.

    SCHEDULED shows returned jobs and then the timeout set, each by start time; DUE shows the destination queue; the
    other states show our sets. ``frame_format`` as for `transfer`. A page has fewer rows than asked for if their
    payloads are so large that they would hold the server for long.
    """
    sets = {
        State.SCHEDULED: keys.queue.timeout_set,
        State.DUE: keys.queue.destination,
        State.RUNNING: keys.leases,
        State.RETRYING: keys.retries,
        State.HELD: keys.held,
        State.DEAD: keys.dead,
        State.QUARANTINED: keys.quarantine,
    }
    return bind("page", keys, set=sets[state])(
        _read_page,
        kind=PAGES[state],
        first=first,
        count=count,
        cut=PREVIEW_BYTES,
        is_reversed=int(newest),
        budget=byte_budget,
        format=frame_format.number,
    )


def _read_page(reply: list[Any]) -> Page:
    total, flat = reply
    return Page(
        total,
        [
            PageRow(token.decode(errors="replace"), score_of(score), *rest)
            for token, score, *rest in rows(flat, len(PageRow._fields))
        ],
    )


def counts(keys: DeliveryKeys) -> Call[Counts]:
    """Count a queue; O(log N)."""
    return bind("counts", keys)(_read_counts)


def _read_counts(reply: list[Any]) -> Counts:
    frames, due, delay_queue, destination, running, retrying, dead, quarantined = reply[
        :8
    ]
    first_ms, now_ms, returned, returned_due, held, held_till, forwards, numbers = (
        reply[8:]
    )
    # Fields without a number are not ours, and are left out.
    counters = {
        name.decode(errors="replace"): int(number)
        for name, number in zip(numbers[::2], numbers[1::2], strict=True)
        if _NUMBER.fullmatch(number)
    }
    # Every frame that we write takes one number.
    counters["offered"] = max(0, counters.pop("number", 0) - counters.pop("first", 0))
    first = first_ms if first_ms >= 0 else None
    if held_till > now_ms:
        # The clock was set back.
        held_till = 0
    return Counts(
        frames + returned,
        due + returned_due,
        returned,
        delay_queue,
        destination,
        running,
        retrying,
        held,
        dead,
        quarantined,
        first,
        now_ms,
        counters,
        0 if first is None else max(0, now_ms - max(first, held_till)),
        forwards,
    )


def ahead(keys: DeliveryKeys, ends_ms: Sequence[int]) -> Call[list[int]]:
    """Count the jobs that become due between one of up to `MOST_AHEAD` times from now, rising, and the next.

    The first number is of those between now and the first time. Jobs that are due already are in none.
    """
    if len(ends_ms) > MOST_AHEAD:
        raise ValueError(f"{len(ends_ms)} times are more than {MOST_AHEAD}")
    return bind("ahead", keys)(
        lambda reply: [later - sooner for sooner, later in pairwise(reply)],
        ends_ms=ends_ms,
    )
