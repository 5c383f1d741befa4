"""Forgetting what belongs to no job any more, deleting what is too old, noting which processes serve a queue."""

from enum import StrEnum
from typing import Any, NamedTuple

from django_delayq.core.bounds import BYTE_BUDGET, MAX_BATCH
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.transport.call import Call
from django_delayq.wire import signatures

#: The hashes that `sweep` looks through, in this order: a note goes once its locator has gone. Then the sets that are
#: scored by time.
SWEPT = (
    *("locators", "headers", "errors", "unique", "notes", "progress", "claims"),
    *("ended", "sent", "paces"),
)


class Swept(NamedTuple):
    """The reply to a `sweep` call."""

    #: Where to go on; 0 at the end.
    cursor: int
    #: Fields forgotten, and jobs ranked: there may be more to do.
    forgotten: int


def sweep(
    keys: DeliveryKeys, which: str = "locators", *, cursor: int = 0, count: int = 100
) -> Call[Swept]:
    """Forget what belongs to no job or process any more, or is over, in one key of `SWEPT`.

    The call looks at about ``count`` fields or members.
    """
    return bind("sweep", keys, swept=keys.key(which))(
        _read_swept, which=which, cursor=cursor, count=count
    )


def _read_swept(reply: list[Any]) -> Swept:
    cursor, forgotten = reply
    return Swept(int(cursor), forgotten)


#: How long a queue remembers a process that serves it. Each is noted every minute.
SEEN_MS = 180_000


class CheckedIn(NamedTuple):
    """The reply to a `check_in` call, in epoch ms by the server's clock."""

    #: When this process was noted before, as far as the server knows; 0: never.
    before_ms: int
    now_ms: int


def check_in(keys: DeliveryKeys, *, owner: bytes) -> Call[CheckedIn]:
    """Note that a process serves a queue. A node that does not know the last time has lost data since."""
    return bind("check_in", keys)(
        lambda reply: CheckedIn(*reply),
        owner=owner,
        kept_ms=SEEN_MS,
        read_format=signatures.FORMAT,
    )


class Which(StrEnum):
    """The numbers of jobs that `expire` deletes."""

    ALL = "all"
    #: Payloads that others have offered.
    FOREIGN = "foreign"
    #: Jobs of ours.
    JOBS = "jobs"


class Expired(NamedTuple):
    """The reply to an `expire` call."""

    deleted: int
    left: int
    #: The rank to go on with, or -1 at the end.
    next_rank: int
    #: When the oldest deleted one had been put aside, epoch ms; -1: nothing was deleted.
    oldest_ms: int


def expire(
    keys: DeliveryKeys,
    *,
    state: State = State.DEAD,
    age_ms: int,
    kept: int = 0,
    which: Which = Which.ALL,
    first_rank: int = 0,
    batch: int = MAX_BATCH,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Expired]:
    """Delete dead letters (or quarantined payloads) that are too old, the oldest first, from a rank on.

    ``kept`` of them stay, however old.
    """
    return bind(
        "expire", keys, graves=keys.dead if state is State.DEAD else keys.quarantine
    )(
        lambda reply: Expired(*reply),
        age_ms=age_ms,
        kept=kept,
        which=which,
        first=first_rank,
        batch=batch,
        budget=byte_budget,
    )
