"""Where a job is in its life, and how a change of it went."""

from enum import StrEnum


class State(StrEnum):
    """Where a job is in its life."""

    #: Waits for the commit of a database transaction; the server does not know it yet.
    UNCOMMITTED = "uncommitted"
    SCHEDULED = "scheduled"
    DUE = "due"
    RUNNING = "running"
    RETRYING = "retrying"
    #: A worker had it that does not know its task; kept for one that does.
    HELD = "held"
    SUCCEEDED = "succeeded"
    #: Failed for good, and not kept: a dead letter that was discarded.
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Too late to matter; it did not run.
    EXPIRED = "expired"
    #: Taken from a `BlockingQueue`, here or by Java.
    TAKEN = "taken"
    DEAD = "dead"
    QUARANTINED = "quarantined"
    #: The server did not find it: it is in a destination queue too long to be searched, or Java has taken it.
    UNKNOWN = "unknown"
    #: The server knows no job of this id (any more).
    MISSING = "missing"


class Change(StrEnum):
    """How a call to cancel or move a job ended, where it is not a `State` that it was left in."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    #: The job lies in a long destination queue shared with Java: done if one of our workers takes it.
    NOTED = "noted"
