"""The result of a job, as a caller gets it that waits for it: its value, or why there is none."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import monotonic_ms
from django_delayq.core.states import GRAVES, OVER, State
from django_delayq.exceptions import (
    InvalidTask,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
)
from django_delayq.jobs.registry import get_task
from django_delayq.redaction import show
from django_delayq.transport.plain_command import Command
from django_delayq.transport.steps import Pause, Steps
from django_delayq.wire.delay import parse_timeout_ms

#: How often a wait for a result checks that the job still exists.
WAIT_SLICE_S = 3.0
#: How often it looks if a full server refuses the blocking wait.
FULL_PAUSE_S = 0.1
#: States in which no result is to come.
_AT_REST = OVER | GRAVES | {State.MISSING}
#: What to raise to callers that wait, where it is not only JobFailed.
_ERRORS: dict[State, type[JobFailed]] = {
    State.CANCELLED: JobCancelled,
    State.EXPIRED: JobExpired,
}


def awaiting(
    job_id: str,
    key: str,
    look: Callable[[], Steps[State]],
    timeout: float | timedelta | None,
    silence_s: float | None,
) -> Steps[bytes | str | None]:
    """Wait for the end of a job and return the text of its result; None: it has ended without one.

    ``key`` is where the result is stored, and ``look`` reads the state of the job.

    Raises:
        TimeoutError: the job has not ended within ``timeout`` seconds.
        InvalidDelay: ``timeout`` is not a number of seconds.
    """
    deadline = None if timeout is None else monotonic_ms() + parse_timeout_ms(timeout)
    while True:
        slice_s = _next_slice(deadline, silence_s)
        text: bytes | str | None = None
        try:
            text = yield Command(("BLMOVE", key, key, "LEFT", "LEFT", f"{slice_s:.3f}"))
        except (RedisConnectionError, RedisTimeoutError):
            # The look below goes on; if that fails as well, the server is away.
            pass
        except OutOfMemoryError:
            # The command would store nothing new, but a full server refuses it all the same.
            yield Pause(1000 * min(slice_s, FULL_PAUSE_S))
        if text is not None:
            return text
        state = yield from look()
        try:
            text = yield Command(("LINDEX", key, 0))
        except (RedisConnectionError, RedisTimeoutError):
            # The server answered a moment ago; if it is away now, the next look shows it.
            continue
        # The script that ends a job also writes its result, and the result was looked for after the state.
        if text is not None or state in _AT_REST:
            return text
        if deadline is not None and monotonic_ms() >= deadline:
            unit = "" if isinstance(timeout, timedelta) else " s"
            raise TimeoutError(
                f"job {job_id} has not ended within {show(timeout)}{unit}; it is {state}"
            )


def _next_slice(deadline: float | None, silence_s: float | None) -> float:
    longest_s = min(WAIT_SLICE_S, silence_s / 2) if silence_s else WAIT_SLICE_S
    if deadline is None:
        return longest_s
    return max(0.01, min(longest_s, (deadline - monotonic_ms()) / 1000))


def value_of(job_id: str, body: dict[str, Any]) -> Any:
    """Return the value of a result that `stored_results.read_result` has read.

    Raises:
        JobFailed: it is the error of the job.
    """
    state: State = body["state"]
    if "error" in body and state is State.SUCCEEDED:
        raise JobFailed(
            f"job {job_id} has succeeded, but its result could not be stored: {body['error']}"
        )
    if "error" in body:
        raise _error_of(state)(f"job {job_id} is {state}: {body['error']}")
    return body.get("result")


def check_kept(
    job_id: str, task: str | None, options: dict[str, Any] | None, state: State
) -> None:
    """Make sure that a job keeps its result; ``options`` are those of its call.

    Raises:
        InvalidTask: it does not.
    """
    carried = options or {}
    if "keep_result" in carried:
        keeps = carried["keep_result"] is not None
    elif task is None:
        # After a job has ended, only the result itself shows that one was kept.
        keeps = state in OVER
    else:
        keeps = get_task(task).options.keep_result is not None
    if not keeps:
        raise InvalidTask(
            f"job {job_id} keeps no result, so there is nothing to wait for;"
            " decorate the task with keep_result=seconds, or use task.using(keep_result=seconds)"
        )


def unsent(job_id: str, state: State, *, is_left: bool) -> JobNotFound:
    """Return the error of a job that was not sent; ``is_left`` says whether it was left to a commit."""
    if not is_left:
        why = "schedule_many([job]) sends it"
    elif state is State.UNCOMMITTED:
        why = "it waits for the commit of its transaction; wait for it after that"
    else:
        why = (
            "its transaction was rolled back, or the server refused it after the commit"
        )
    return JobNotFound(f"job {job_id} was not sent: {why}")


def missing(
    job_id: str, state: State, error: dict[str, Any] | None
) -> JobNotFound | JobFailed:
    """Return the error of a job that has no result, and gets none: it has ended in ``state``."""
    if state is State.MISSING:
        return JobNotFound(
            f"job {job_id} no longer exists, and its result is no longer kept"
        )
    if state is State.SUCCEEDED:
        return JobNotFound(
            f"job {job_id} has succeeded, but its result was not kept, or is no longer kept"
        )
    return _error_of(state)(
        f"job {job_id} is {state}" + (f": {error.get('error')}" if error else "")
    )


def _error_of(state: State) -> type[JobFailed]:
    return _ERRORS.get(state, JobFailed)
