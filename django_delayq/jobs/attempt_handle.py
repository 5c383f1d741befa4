"""What the attempt that runs a job gives the job's handle, for `Job.check`, `Job.progress` and `Job.stopping`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django_delayq.jobs import stored_results
from django_delayq.jobs.stop import Stop


class Here(NamedTuple):
    """The job as the worker that runs it reports it."""

    #: Whether the worker still has the lease.
    has_lease: Callable[[], bool]
    #: Whether the worker is to end.
    stop: Stop
    #: Calls the task; middleware gets there in the end.
    call: Callable[[], Any] | None = None
    #: The name of the worker, as the attempts of a job have it.
    worker: str = ""
    #: Whether the job will have ended once its task has raised this exception.
    ends_with: Callable[[BaseException], bool] = lambda error: True
    #: Takes how far the job is, as it is stored.
    report: Callable[[bytes], None] = lambda stored: None
    #: Returns how the values read that the task has marked as sensitive, for `masking.mask`.
    secrets: Callable[[], Sequence[str]] = tuple
    #: How long after it could run the attempt began, ms.
    late_ms: float = 0.0
    #: The token of the later call that has brought the arguments; empty: they are the job's first.
    later: str = ""
    #: Encrypts what the server gets of the job; None: that is not encrypted.
    encrypt: stored_results.Encrypt | None = None
