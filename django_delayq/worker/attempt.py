"""One attempt to run a job: from a lease to an outcome.

What happened is recorded, not reported: the loop settles it with the server, in batches.
"""

import logging
import random
import threading
import traceback as tracebacks
from typing import Any

from django_delayq.clock import epoch_ms, monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery.operations import Done, Failed, Leased, Rejected, State
from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    InvalidArguments,
    TaskNotFound,
    TimeLimitExceeded,
)
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import TaskOptions, seconds
from django_delayq.jobs.registry import get_handler, get_task
from django_delayq.transfer.wheel import Timeout

logger = logging.getLogger("django_delayq.worker")

#: Characters of a traceback that are kept with the job.
TRACEBACK_LIMIT = 8_000
#: How long the failure of a dead letter is kept for those who wait, where the task does not say: one hour.
FAILURE_TTL_MS = 3_600_000


class Attempt:
    """A leased job with its task, and what became of it."""

    # Class attributes are the defaults: most attempts change few of them.
    task: DelayedTask[Any, Any] | None = None
    options: TaskOptions | None = None
    args: list[Any] = []  # noqa: RUF012  replaced, never changed
    kwargs: dict[str, Any] = {}  # noqa: RUF012  likewise
    #: SUCCEEDED, RETRYING, DEAD, EXPIRED, QUARANTINED; SCHEDULED: given back; None: still running.
    outcome: State | None = None
    result = b""
    error = b""
    retry_delay_ms = 0
    started_ms = 0.0
    ended_ms = 0.0
    #: Another may have the job: what becomes of it here changes nothing.
    is_lost = False
    #: Guards the two below; only attempts with a time limit have one.
    lock: "threading.Lock | None" = None
    #: The thread that may be interrupted.
    running_in: int | None = None
    timed_out = False
    #: The timer of the time limit.
    timeout: Timeout | None = None

    def __init__(
        self,
        queue: QueueSettings,
        leased: Leased,
        lease_end_ms: float,
        offset_ms: float,
    ) -> None:
        self.queue = queue
        self.leased = leased
        #: Until when the lease is ours, by our monotonic clock; moved on by renewals.
        self.lease_end_ms = lease_end_ms
        #: Added to our monotonic clock it gives the server's, epoch ms.
        self.server_minus_local_ms = offset_ms

    @property
    def id(self) -> str:
        return f"{self.queue.name}:{self.leased.token}"

    @property
    def name(self) -> str:
        return self.task.name if self.task is not None else "?"

    def prepare(self) -> bool:
        """Find the task and read the arguments; False where that already decides the outcome."""
        try:
            if self.leased.is_foreign:
                self._prepare_foreign()
            else:
                envelope = envelopes.decode(
                    self.leased.payload, self.queue.payload_codec
                )
                self.task = get_task(envelope.task)
                self.options = self.task.options.with_carried(envelope.options)
                self.args, self.kwargs = envelope.args, envelope.kwargs
        except DelayqError as error:
            self._reject(
                State.QUARANTINED,
                error,
                kind=_QUARANTINE_KINDS.get(type(error), "payload"),
            )
            return False
        return True

    def _prepare_foreign(self) -> None:
        handler = get_handler(self.queue.name)
        if handler is None:
            raise TaskNotFound(
                f"an element that is no job of ours lies in queue {self.queue.name!r}, which has no handler;"
                f" register one with @queue_handler({self.queue.name!r})"
            )
        self.task, self.options = handler, handler.options
        self.args = [self.queue.payload_codec.decode(self.leased.payload)]

    def may_start(self) -> bool:
        """Decide at the last moment whether the job is still to be run, and note the start."""
        now_ms = monotonic_ms()
        self.started_ms = now_ms
        if now_ms >= self.lease_end_ms or self.is_lost:
            self.is_lost = True
            return False
        options = self.options
        if options is not None and options.expires is not None:
            expires_s = seconds(options.expires)
            late_ms = self.late_ms
            if expires_s is not None and late_ms > expires_s * 1000:
                self._expire(late_ms, expires_s, options.on_expiry)
                return False
        return True

    @property
    def late_ms(self) -> float:
        """How long after its first start time the attempt began, by the server's clock."""
        return self.started_ms + self.server_minus_local_ms - self.leased.start_time_ms

    def _expire(self, late_ms: float, expires_s: float, policy: str) -> None:
        text = f"too late to matter: {late_ms / 1000:.3f} s after its start time, expires={expires_s:g} s"
        if policy == "dead":
            self.error = envelopes.error_text(text, kind="expired", at_ms=epoch_ms())
            self.outcome = State.DEAD
        else:
            self.outcome = State.EXPIRED
        self.result = envelopes.result_text(State.EXPIRED, error=text)
        self.ended_ms = monotonic_ms()

    @property
    def time_limit_s(self) -> float | None:
        options = self.options
        if options is not None and options.time_limit is not None:
            return seconds(options.time_limit)
        return self.queue.time_limit_s

    def succeed(self, value: object) -> None:
        """The function returned."""
        self.ended_ms = monotonic_ms()
        if self.options is not None and self.options.keep_result is not None:
            try:
                self.result = envelopes.result_text(
                    State.SUCCEEDED, result=envelopes.plain_value(value, "its result")
                )
            except InvalidArguments as error:
                logger.error("job %s (%s) succeeded, but %s", self.id, self.name, error)
                self.result = envelopes.result_text(State.SUCCEEDED, error=str(error))
        self.outcome = State.SUCCEEDED

    def fail(self, error: BaseException) -> None:
        """The function raised, or ran too long: again later, or never again."""
        self.ended_ms = monotonic_ms()
        assert self.task is not None
        assert self.options is not None
        base = self.task.base
        failures = self.leased.attempts + 1
        most = self.options.max_attempts or self.queue.max_attempts
        is_retryable = isinstance(error, TimeLimitExceeded) or (
            isinstance(error, base.retry_on) and not isinstance(error, base.no_retry_on)
        )
        if is_retryable and failures < most:
            self.error = _describe(error)
            backoff = self.options.backoff or self.queue.retry
            self.retry_delay_ms = backoff.delay_ms(failures, random.random())
            self.outcome = State.RETRYING
        else:
            self._reject(State.DEAD, error, kind="failed")

    def _reject(self, state: State, error: BaseException, *, kind: str) -> None:
        self.error = _describe(error, kind)
        self.result = envelopes.result_text(
            state, error=f"{type(error).__name__}: {error}"
        )
        self.ended_ms = self.ended_ms or monotonic_ms()
        self.outcome = state

    def give_back(self) -> None:
        """It was not run, or was stopped by the worker's own end: nothing counts."""
        self.outcome = State.SCHEDULED

    @property
    def result_ttl_ms(self) -> int | None:
        keep = self.options.keep_result if self.options is not None else None
        kept_s = seconds(keep) if keep is not None else None
        return round(kept_s * 1000) if kept_s is not None else None

    def as_done(self) -> Done:
        if not self.result:
            return Done(self.leased.token, self.leased.fence)
        return Done(
            self.leased.token, self.leased.fence, self.result_ttl_ms, self.result
        )

    def as_failed(self) -> Failed:
        return Failed(
            self.leased.token, self.leased.fence, self.retry_delay_ms, self.error
        )

    def as_rejected(self) -> Rejected:
        ttl_ms = (
            max(self.result_ttl_ms, FAILURE_TTL_MS)
            if self.result_ttl_ms is not None
            else None
        )
        return Rejected(
            self.leased.token, self.leased.fence, self.error, ttl_ms, self.result
        )

    def job(self) -> Job[Any]:
        """The handle that `current_job` returns."""
        job: Job[Any] = Job(
            self.queue.name, self.leased.token, self.name, self.args, self.kwargs
        )
        job.state = State.RUNNING
        job.attempts, job.kills = self.leased.attempts, self.leased.kills
        return job

    def log(self) -> None:
        """Write the one line that a job's end is worth."""
        outcome = self.outcome
        level = (
            logging.INFO
            if outcome in (State.SUCCEEDED, State.SCHEDULED, State.EXPIRED)
            else logging.WARNING
        )
        if outcome in (State.DEAD, State.QUARANTINED):
            level = logging.ERROR
        if not logger.isEnabledFor(level):
            return
        late_ms = self.late_ms if self.started_ms else 0.0
        took_ms = self.ended_ms - self.started_ms if self.started_ms else 0.0
        word = _WORDS[outcome] if outcome is not None else "lost"
        fields: dict[str, Any] = {
            "job": self.id,
            "task": self.name,
            "outcome": word,
            "attempt": self.leased.attempts + 1,
            "late_ms": round(late_ms, 1),
            "took_ms": round(took_ms, 1),
        }
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        if outcome is State.RETRYING:
            fields["retry_in_ms"] = self.retry_delay_ms
            text += f" retry_in_ms={self.retry_delay_ms}"
        if self.error:
            body = envelopes.read_error(self.error) or {}
            text += f" error={body.get('error')!r}"
            if body.get("traceback"):
                text += f"\n{body['traceback'].rstrip()}"
        logger.log(level, "%s", text, extra={"delayq": fields})


_QUARANTINE_KINDS = {DecodeError: "payload", TaskNotFound: "task"}
_WORDS = {
    State.SUCCEEDED: "succeeded",
    State.RETRYING: "retrying",
    State.DEAD: "dead",
    State.EXPIRED: "expired",
    State.QUARANTINED: "quarantined",
    State.SCHEDULED: "given_back",
}


def _describe(error: BaseException, kind: str = "failed") -> bytes:
    text = ""
    if error.__traceback__ is not None:
        text = "".join(tracebacks.format_exception(error))[-TRACEBACK_LIMIT:]
    message = f"{type(error).__name__}: {error}"
    return envelopes.error_text(
        message.encode(errors="replace").decode(),
        kind=kind,
        traceback=text.encode(errors="replace").decode(),
        at_ms=epoch_ms(),
    )
