"""The states of a job, and how a change of one went."""

from enum import StrEnum


class State(StrEnum):
    """The state of a job.

    Example::

        if job.refresh() is State.DEAD:  # or: == "dead"
            print(job.error)
    """

    #: Prepared but not sent: it waits for the commit of a transaction, or for `schedule_many`. Only this process knows
    #: it.
    UNCOMMITTED = "uncommitted"
    #: Its start time is to come.
    SCHEDULED = "scheduled"
    #: Its start time has come and no worker has it: it is a frame, lies in the destination queue, or was given back.
    DUE = "due"
    RUNNING = "running"
    RETRYING = "retrying"
    #: The worker that had it does not know its task or its key; it is kept for one that does.
    HELD = "held"
    SUCCEEDED = "succeeded"
    #: It was a dead letter or quarantined, and was discarded: by hand, or because its time to be kept was over.
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    #: It passed its `expires`, and did not run.
    EXPIRED = "expired"
    #: Taken from a `BlockingQueue`, here or by Java.
    TAKEN = "taken"
    DEAD = "dead"
    QUARANTINED = "quarantined"
    #: The server knows the job but not where it is: deep in a destination queue, taken by Java, or begun before it was
    #: sent again.
    UNKNOWN = "unknown"
    #: The server knows no job of this id, or no longer; or the transaction that it waited for was rolled back.
    MISSING = "missing"


#: Where a job lies until somebody retries or discards it.
GRAVES = frozenset({State.DEAD, State.QUARANTINED})
#: States that the server remembers for a while after the job has gone.
OVER = frozenset(
    {State.SUCCEEDED, State.DISCARDED, State.CANCELLED, State.EXPIRED, State.TAKEN}
)


class Change(StrEnum):
    """How a call to cancel or move a job ended, unless that left the job alone; then its `State` is the answer."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    REPRIORITIZED = "reprioritized"
    #: The holder of a unique key has the arguments, or the start time, of a later call.
    REPLACED = "replaced"
    #: Its start time is as late, or as soon, as that call asked for.
    KEPT = "kept"
    #: The job lies in a long destination queue shared with Java: the change happens if one of our workers takes it.
    NOTED = "noted"
