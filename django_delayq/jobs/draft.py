"""The call that a process has prepared: what of a job is there before the server has it."""

import weakref
from collections.abc import Callable
from typing import Protocol

import msgspec

from django_delayq.core.durability import Durable
from django_delayq.core.store import NewJob
from django_delayq.jobs.duplicates import OnHolder
from django_delayq.jobs.envelope import Follow
from django_delayq.jobs.options import Commit


class Extras(msgspec.Struct, frozen=True, gc=False):
    """Attributes that few jobs have."""

    priority: int = 0
    #: As `tail_of` takes it.
    limit: str = ""
    #: What becomes of a job that holds its unique key and waits; None: nothing.
    duplicates: OnHolder | None = None
    #: The jobs that follow it; its payload carries them.
    follow: Follow | None = None
    #: The token of the callback of its batch.
    batch: str = ""
    #: What the call that stores it waits for; None: nothing.
    durable: Durable | None = None
    #: For how long after its start time it holds its unique key, ms; 0: without a limit.
    expires_ms: int = 0
    #: From when that counts, epoch ms, if that is later.
    since_ms: int = 0


NO_EXTRAS = Extras()


# A draft is in no reference cycle; tracking it for the garbage collector would cost `schedule_many` 3 %.
class Draft(msgspec.Struct, gc=False):
    """The call that this process has prepared, and whether it was sent."""

    #: Its tail is the unique key; `store_calls` adds the extras.
    new: NewJob
    #: The commit that sends it; None: it is sent at once.
    commit: Commit | None = None
    extras: Extras = NO_EXTRAS
    #: When the server may first have received it, by `boottime_ms`; None: nothing was sent.
    sent_ms: float | None = None
    #: Whether its commit is still to come; None: it does not wait for a commit.
    awaits_commit: Callable[[], bool] | None = None
    #: When it was to be due, epoch ms by the server's clock, if another job holds its unique key.
    asked_ms: int = 0


class CommitHook(Protocol):
    """The hook of a commit, which sends jobs."""

    #: Whether it was called, however that ended.
    has_run: bool


def awaits_commit(hook: CommitHook) -> Callable[[], bool]:
    """Return what says whether the commit that calls a hook is still to come."""
    # The database connection holds the hook until the commit, and drops it with a rollback.
    held = weakref.ref(hook)

    def is_to_come() -> bool:
        waiting = held()
        return waiting is not None and not waiting.has_run

    return is_to_come
