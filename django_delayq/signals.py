"""Django signals about jobs, sent in the process where the event happens.

``sender`` is the task, or None if it is unknown; ``job`` is the `Job`. docs/howto/signals.md says when each signal is
sent, and with which arguments. An error of a receiver is logged, and does not change the job.
"""

from collections.abc import Sequence
from typing import Any

from django.dispatch import Signal

from django_delayq.logs import class_name, get_log

logger = get_log("django_delayq.signals")


class _Heard:
    """Whether anybody listens, for those who would have to look at many signals for each job."""

    def __init__(self) -> None:
        #: A receiver was connected to one of the signals about attempts. It stays True: who takes the receivers away
        #: may put them back behind our back, and all that it costs then is a look at each signal.
        self.attempts = False


heard = _Heard()


class JobSignal(Signal):
    """A signal about jobs."""

    def __init__(self, name: str, *, is_of_attempts: bool = True) -> None:
        super().__init__()
        self.name = name
        self._is_of_attempts = is_of_attempts

    def connect(self, *args: Any, **kwargs: Any) -> None:
        super().connect(*args, **kwargs)
        if self._is_of_attempts:
            heard.attempts = True

    def _log_robust_failure(self, receiver: object, err: Exception) -> None:
        """Say nothing: `tell` logs the error together with the job."""

    def __repr__(self) -> str:
        return f"<JobSignal {self.name}>"


#: The server has stored a new job.
job_scheduled = JobSignal("job_scheduled", is_of_attempts=False)
#: A worker is about to call the task.
job_started = JobSignal("job_started")
#: The task has returned. Also sends ``result``.
job_succeeded = JobSignal("job_succeeded")
#: The task has failed, or asked for it, and the job runs again. Also sends ``exception``, ``reason``, and ``retry_in``, a timedelta.
job_retried = JobSignal("job_retried")
#: The job becomes a dead letter. Also sends ``exception``, ``reason``.
job_dead = JobSignal("job_dead")
#: The job was too late to begin, and is dropped. Also sends ``reason``.
job_expired = JobSignal("job_expired")
#: The job cannot be read, or has no task, and goes to quarantine. Also sends ``exception``, ``reason``.
job_quarantined = JobSignal("job_quarantined")
#: The job will not run, as somebody or the task itself has cancelled it. Also sends ``reason``.
job_cancelled = JobSignal("job_cancelled")


def tell(signal: JobSignal, sender: object, job: Any, **named: Any) -> None:
    """Call the receivers of a signal here and now; log what they raise."""
    try:
        responses = signal.send_robust(sender, job=job, **named)
    except SystemExit as error:
        log_failure(signal, job, "a receiver", error)
        return
    _log_failures(signal, job, responses)


async def atell(signal: JobSignal, sender: object, job: Any, **named: Any) -> None:
    """Do as `tell`, on the event loop: async receivers run there, sync ones in a thread."""
    _log_failures(signal, job, await signal.asend_robust(sender, job=job, **named))


def _log_failures(
    signal: JobSignal, job: Any, responses: Sequence[tuple[Any, Any]]
) -> None:
    for receiver, response in responses:
        if isinstance(response, Exception):
            where = getattr(receiver, "__module__", "")
            name = getattr(receiver, "__qualname__", type(receiver).__qualname__)
            log_failure(signal, job, f"the receiver {where}.{name}", response)


def log_failure(signal: JobSignal, job: Any, who: str, error: BaseException) -> None:
    """Log what a receiver raised, together with the job."""
    logger.error(
        "job %s (%s): %s of %s raised %s; this changes nothing about the job",
        job.id,
        job.task or "?",
        who,
        signal.name,
        class_name(error),
        exc_info=error,
        # A receiver may raise what it was given.
        secrets=() if job.here is None else job.here.secrets(),
    )
