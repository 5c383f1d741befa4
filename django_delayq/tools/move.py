"""Moving what a queue holds from one server to another: a run of short, atomic steps that may end after any of them.

Workers, producers and Java continue meanwhile, on both servers. Of each page, in this order:

1. The source takes it out of its places and holds it. No worker there runs it from then on.
2. The target stores it, and remembers the number of the page.
3. The source deletes it.

A run that was interrupted continues with the page that the source still holds. If the target had stored it, its number
says so. So no job is lost, and none is stored twice.

``source`` does the first and the last step, ``target`` the second. ``direct`` joins them, and so do ``exports`` and
``imports`` through a file. Here is what these share, and what a server has that can move.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from redis.client import Redis
from redis.exceptions import ResponseError

from django_delayq.conf import QueueSettings
from django_delayq.core import prefixes, queue_reads, stored_pauses
from django_delayq.core.hand_over import HandOver, NotHandedOver
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.queue_reads import Counts
from django_delayq.core.shards import read_shards
from django_delayq.exceptions import DelayqError
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.transport.connections import nodes_of
from django_delayq.transport.run import run

#: Keys that one step looks at, to find a server's queues.
SCANNED = 1_000

T = TypeVar("T")


class CannotMove(DelayqError):
    """Raised when a queue cannot move to this server; nothing has moved then."""


class OtherTarget(CannotMove):
    """Raised when a queue is being moved to another server already."""


class SameQueue(CannotMove):
    """Raised when the queue to move is the one to move to."""


@dataclass(slots=True)
class Tally:
    """The result of a run so far."""

    #: Jobs, and elements of others, that the target has stored.
    moved: int = 0
    #: Of these, payloads that were signed anew.
    signed: int = 0
    #: Were on the target already, under the same id.
    known: int = 0
    #: Run without their unique key, because another job has it on the target.
    shared: int = 0
    #: Stay, because they belong to something that goes on there: a batch, or a job that runs.
    stay: int = 0
    #: Taken by the last walk that was made; above 0, jobs keep coming.
    late: int = 0
    #: Stored periodic schedules.
    schedules: int = 0
    #: Jobs that need a key which is not here, by its id.
    unknown: dict[str, int] = field(default_factory=dict)


def handed_over(hand_over: HandOver, act: Callable[[], T], where: str) -> T:
    """Do something at one end, and return its result once that end has it for good; again, if its primary is replaced.

    Raises:
        CannotMove: that takes too long.
    """
    try:
        return hand_over.make(act)
    except NotHandedOver as error:
        raise CannotMove(
            f"{where}: {error}. The source still has the jobs that are on their way. Run this again once that is solved, or with"
            " --no-wait, which waits for no replica."
        ) from error


def total_of(counts: Counts) -> int:
    """Return how many elements a queue holds that can move."""
    kept = counts.dead + counts.quarantined
    return counts.jobs - counts.running + kept


def left_of(counts: Counts) -> int:
    """Return how much of a queue is left: what can move, what runs, and what its workers are to forward."""
    return total_of(counts) + counts.running + counts.forwards


def queues_on(client: Redis, prefix: str = "", ours: str = "") -> list[str]:
    """Return the names of the queues that a server has under a prefix, as far as their keys show.

    ``ours`` is the prefix of the settings. Queues under it, and under other prefixes that are noted there, are left out.
    """
    noted = {ours}
    # The key may be another's, or not ours to read.
    with suppress(ResponseError):
        noted |= run(client, prefixes.noted_prefixes()).keys()
    # All names begin with an empty prefix, and prefixes may begin with one another.
    longer = [other for other in noted if other != prefix and other.startswith(prefix)]
    names = set()
    for start in ("delayq_counters:", "redisson_delay_queue_timeout:"):
        for key in _scan(client, f"{start}*"):
            name = key.decode(errors="replace").removeprefix(start)
            if name.startswith("{") and name.endswith("}") and name.count("{") == 1:
                name = name[1:-1]
            if name.startswith(prefix) and not any(map(name.startswith, longer)):
                names.add(name.removeprefix(prefix))
    return sorted(names)


def left_on(client: Redis, names: Iterable[str], prefix: str = "") -> list[str]:
    """Return those queues that hold something that can move, that runs, or that goes to other queues."""
    left = []
    for name in names:
        try:
            keys = DeliveryKeys.of(name, prefix)
            counts = run(client, queue_reads.counts(keys))
            is_left = left_of(counts) or _schedules_in(client, keys)
        except (ResponseError, DelayqError):
            # Its keys are not what they should be, or not ours to read.
            is_left = True
        # A name that is no text cannot be looked at.
        if is_left or "\ufffd" in name:
            left.append(name)
    return left


def _scan(client: Redis, pattern: str) -> Iterator[bytes]:
    for node in nodes_of(client):
        yield from node.scan_iter(match=pattern, count=SCANNED)


def check_shards(source: Redis, whole: QueueSettings) -> None:
    """Make sure that a queue has as many shards on the server that it leaves as in these settings.

    Raises:
        CannotMove: it has another number; nothing has moved.
    """
    there = run(source, read_shards(whole.keys))
    if not there.differs(whole.shards or 0):
        return
    raise CannotMove(
        f"queue {whole.name!r} of the source has SHARDS={there.pin.number or None}, and these settings say SHARDS={whole.shards}."
        " Export it with the settings of the source, and import the file here: that gives each job its shard. Nothing"
        " has moved."
    )


def _schedules_in(client: Redis, keys: DeliveryKeys) -> bool:
    names: list[Any] = client.hkeys(keys.schedules)
    return any(name.startswith(b"stored ") for name in names)


class Settings(msgspec.Struct):
    """The pauses and limits of a queue that somebody has set, as arguments of the calls that set them."""

    #: Task, empty for the queue itself; until; by; why.
    pauses: list[tuple[str, str, str, str]] = []
    #: Name, empty for that of the queue itself; changes; by.
    limits: list[tuple[str, dict[str, Any], str]] = []


def settings_of(client: Redis, queue: QueueSettings) -> Settings:
    """Read the pauses and limits that somebody has set."""
    found = Settings()
    for pause in run(client, stored_pauses.pauses(queue.keys)):
        until = "" if pause.until is None else f"={pause.until_ms:.0f}"
        found.pauses.append((pause.task or "", until, pause.by, pause.reason))
    for limit in run(client, limit_calls.limits(queue.keys)):
        if limit.set:
            found.limits.append((limit.name, limit.set, limit.by))
    return found


def keep_settings(client: Redis, queue: QueueSettings, settings: Settings) -> None:
    """Set pauses and limits, where somebody has not set others."""
    keys, there = queue.keys, settings_of(client, queue)
    known = {each[0] for each in there.pauses}
    for task, until, by, why in settings.pauses:
        if task not in known:
            call = pause_calls.pause(
                keys, task=task or None, until=until, by=by, reason=why
            )
            run(client, call)
    known = {each[0] for each in there.limits}
    for name, changes, by in settings.limits:
        if name not in known:
            run(client, limit_calls.set_limit(keys, changes, name=name, by=by))
