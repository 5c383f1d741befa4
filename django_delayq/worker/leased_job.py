"""A leased job: until when it is ours, the call that it asks for, and the handle that its task gets."""

import os
import random
import socket
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

from django_delayq import logs
from django_delayq.clock import boottime_ms
from django_delayq.conf import QueueSettings, get_keyring
from django_delayq.core.claim import Leased
from django_delayq.core.hold import Hold
from django_delayq.core.states import State
from django_delayq.exceptions import (
    DecodeError,
    TimeLimitExceeded,
)
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import stored_results
from django_delayq.jobs.arguments import sensitive_texts
from django_delayq.jobs.attempt_handle import Here
from django_delayq.jobs.decisions import Cancel, Decision, Retry
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import TaskOptions, seconds
from django_delayq.jobs.progress_report import running_report
from django_delayq.jobs.stop import running_stop
from django_delayq.masks import WHOLE
from django_delayq.worker.payload import read

logger = logs.get_log("django_delayq.worker")

#: What a payload has that says when it was enqueued. Arguments may have it as well.
_AT = b'\\"at\\":'


class Gate(NamedTuple):
    """A reason to hold a job although this process can run it, and the tasks whose jobs it concerns."""

    #: The names of the tasks that it concerns: jobs of others cost nothing.
    tasks: Container[str]
    #: Says what a job is held for; None: it may run. An error that it raises counts as one of the task.
    hold: Callable[["LeasedJob"], Hold | None]


class LeasedJob:
    """A job that this process has leased, with its call once its payload was read."""

    # Class attributes are the defaults: most jobs change few of them.
    task: TaskDefinition | None = None
    options: TaskOptions | None = None
    args: list[Any] = []  # noqa: RUF012  replaced, never changed
    kwargs: dict[str, Any] = {}  # noqa: RUF012  likewise
    #: From when `expires` counts, epoch ms by the server's clock, if that is later than the start time.
    expires_since_ms = 0
    #: The token of the later call that has brought the arguments.
    later = ""
    #: The texts that travel with the call.
    headers: dict[str, str] = {}  # noqa: RUF012  likewise
    _secrets: Sequence[str] | None = None
    started_ms = 0.0
    #: Another worker may have the job: what becomes of it here changes nothing.
    is_lost = False
    #: The name of the task that this process does not know, or the key or the format that it lacks.
    unknown_task = ""

    def __init__(
        self,
        queue: QueueSettings,
        leased: Leased,
        lease_end_ms: float,
        offset_ms: float,
        gates: Sequence[Gate] = (),
    ) -> None:
        self.queue = queue
        self.leased = leased
        #: When our lease ends, by `boottime_ms`; the watchdog moves this on.
        self.lease_end_ms = lease_end_ms
        #: What to add to `boottime_ms` for the server's clock, epoch ms.
        self.server_minus_local_ms = offset_ms
        self.gates = gates

    @property
    def id(self) -> str:
        return f"{self.queue.name}:{self.leased.token}"

    @property
    def name(self) -> str:
        return self.task.name if self.task is not None else self.unknown_task or "?"

    @property
    def secrets(self) -> Sequence[str]:
        """How the values read that the task has marked as sensitive.

        Most attempts need none, and they may take long: they are made at the first use. The task may have changed its
        arguments by then, so the payload is read again.
        """
        if self.task is None or not self.task.base.sensitive:
            return ()
        if self._secrets is None:
            try:
                call = read(self.queue, self.leased)
                if isinstance(call, BaseException):
                    raise call
                task, _, args, kwargs, *_ = call
                self._secrets = sensitive_texts(task, args, kwargs)
            except TimeLimitExceeded:
                # The limit of the task itself, which has struck here.
                raise
            except BaseException:
                self._secrets = WHOLE
        return self._secrets

    @property
    def encrypts(self) -> bool:
        """Whether what the server gets of its end is encrypted."""
        return self.queue.encrypt or (self.options is not None and self.options.encrypt)

    @property
    def encrypting(self) -> stored_results.Encrypt | None:
        return self._encrypt if self.encrypts else None

    def _encrypt(self, use: str, text: bytes) -> str:
        try:
            return get_keyring().encrypt(use, self.leased.token, text)
        except Exception:
            # A job has to end all the same, and this must not be written as it is.
            logger.exception(
                "job %s (%s): its %s cannot be encrypted, and is left out",
                self.id,
                self.name,
                use,
            )
            return ""

    @property
    def has_lease(self) -> bool:
        """Whether no other worker can have the job: our lease was not refused, and has not run out."""
        return not self.is_lost and boottime_ms() < self.lease_end_ms

    @property
    def late_ms(self) -> float:
        """How long after it could begin the attempt began, by the server's clock: see `Leased.held_ms`."""
        leased = self.leased
        began_ms = self.started_ms + self.server_minus_local_ms
        # No job starts early: our estimate of the server's clock is off by a little.
        return max(0.0, began_ms - leased.start_time_ms - leased.held_ms)

    @property
    def time_limit_s(self) -> float | None:
        options = self.options
        if options is not None and options.time_limit is not None:
            return seconds(options.time_limit)
        return self.queue.time_limit_s

    @property
    def result_ttl_ms(self) -> int | None:
        keep = self.options.keep_result if self.options is not None else None
        kept_s = seconds(keep) if keep is not None else None
        return round(kept_s * 1000) if kept_s is not None else None

    def is_retried(self, error: BaseException) -> bool:
        """Whether the job runs again after an exception that is not a decision."""
        assert self.task is not None
        base = self.task.base
        return (
            isinstance(error, (*base.retry_on, TimeLimitExceeded))
            and not isinstance(error, base.no_retry_on)
            and self.leased.attempts + 1 < self.max_attempts
        )

    def ends_with(self, error: BaseException) -> bool:
        """Whether the job will have ended once its task has raised this."""
        if not self.has_lease:
            return False
        if not issubclass(type(error), Decision):
            return not self.is_retried(error)
        if issubclass(type(error), Retry):
            return self.leased.attempts + 1 >= self.max_attempts
        return issubclass(type(error), Cancel)

    @property
    def max_attempts(self) -> int:
        most = self.options.max_attempts if self.options is not None else None
        return self.queue.max_attempts if most is None else most

    def backoff(self, failures: int) -> str:
        own = self.options.backoff if self.options is not None else None
        return f"+{(own or self.queue.retry).delay_ms(failures, random.random())}"

    def job(self, call: Callable[[], Any] | None = None) -> Job[Any]:
        """The handle that `current_job` returns; ``call`` is for the middleware that gets it."""
        job: Job[Any] = Job(
            self.queue.name, self.leased.token, self.name, self.args, self.kwargs
        )
        job.state = State.RUNNING
        job.attempts, job.kills = self.leased.attempts, self.leased.kills
        job.start_time_ms = self.leased.start_time_ms
        job.here = Here(
            lambda: self.has_lease,
            running_stop.get(),
            call,
            this_worker(),
            self.ends_with,
            partial(running_report.get(), self),
            lambda: self.secrets,
            self.late_ms,
            self.later,
            self.encrypting,
        )
        job.take_headers(self.headers, self._enqueued_ms())
        return job

    def _enqueued_ms(self) -> int | None:
        """When Django's tasks enqueued the job; None: it is not one of their jobs."""
        payload = self.leased.payload
        if payload is None or _AT not in payload:
            return None
        with suppress(DecodeError):
            return envelopes.open_payload(
                payload,
                self.queue.name,
                get_keyring(),
                self.queue.payload_codec,
                decrypts=False,
            ).at
        return None


def this_worker() -> str:
    return _worker_named(os.getpid())


@cache
def _worker_named(pid: int) -> str:
    # Every handle has the name, and the host's is a system call.
    return f"{socket.gethostname()}:{pid}"
