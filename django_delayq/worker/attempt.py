"""One attempt to run a job: from a lease to a verdict.

What happened is recorded, not reported: the loop settles it with the server, in batches.
"""

import asyncio
import logging
import re
from enum import StrEnum
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, cast

from django_delayq import logs
from django_delayq.clock import boottime_ms
from django_delayq.conf import get_settings
from django_delayq.core.hold import Held, Hold
from django_delayq.core.lease_ends import Done, Failed, Rejected
from django_delayq.core.states import State
from django_delayq.exceptions import (
    DelayqError,
    EncodeError,
    InvalidArguments,
    InvalidTask,
    LeaseLost,
    NotSigned,
    TaskNotFound,
)
from django_delayq.jobs import follow_ups, json_values, stored_results
from django_delayq.jobs.decisions import Cancel, Decision, Retry, Snooze
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.envelope import Follow
from django_delayq.jobs.exception_text import (
    cause_of,
    class_name,
    class_path_of,
    reason_of,
    text_of,
    text_of_decision,
    traceback_of,
    trimmed,
)
from django_delayq.jobs.middleware import blamed
from django_delayq.jobs.options import seconds
from django_delayq.masks import mask
from django_delayq.signals import heard
from django_delayq.worker import payload, time_limit
from django_delayq.worker.leased_job import Gate, LeasedJob, this_worker
from django_delayq.worker.payload import DoubleFound, Read

logger = logs.get_log("django_delayq.worker")

#: How long waiting callers can still read the failure of a dead letter, unless the task says otherwise: one hour.
FAILURE_TTL_MS = 3_600_000
#: The wait before the next attempt if an exception breaks everything that would compute one: a minute.
LAST_RESORT_DELAY_MS = 60_000
#: In one tuple, as every value that a function returns is compared with it.
_NEVER_RETURNED = (GeneratorType, AsyncGeneratorType, Decision)


class Verdict(StrEnum):
    """The outcome of a leased job, in the words of the log."""

    #: The state of the job from then on; None: it waits again as before, or for something.
    state: State | None
    #: The task was called, unless the attempt says `is_unrun`.
    has_run: bool
    #: The job has ended for good, or until somebody retries it.
    is_end: bool
    #: Level of its line in the log.
    level: int

    def __new__(
        cls, word: str, state: State | None, has_run: bool, is_end: bool, level: int
    ) -> "Verdict":
        member = str.__new__(cls, word)
        member._value_ = word
        member.state, member.has_run = state, has_run
        member.is_end, member.level = is_end, level
        return member

    SUCCEED = "succeeded", State.SUCCEEDED, True, True, logging.INFO
    RETRY = "retrying", State.RETRYING, True, False, logging.WARNING
    #: The task asked for it: the job runs again later, and nothing is counted.
    SNOOZE = "snoozed", None, True, False, logging.INFO
    #: The task asked for it.
    CANCEL = "cancelled", State.CANCELLED, True, True, logging.INFO
    BURY = "dead", State.DEAD, True, True, logging.ERROR
    QUARANTINE = "quarantined", State.QUARANTINED, False, True, logging.ERROR
    #: The job was too late to begin.
    EXPIRE = "expired", State.EXPIRED, False, True, logging.INFO
    #: The job waits for what its `Hold` names.
    HOLD = "held", None, False, False, logging.WARNING
    #: The job was not run, and nothing is counted.
    GIVE_BACK = "given_back", None, False, False, logging.INFO
    #: The job has run before.
    DROP = "double", State.MISSING, False, False, logging.INFO


class Attempt(LeasedJob):
    """A leased job, and what becomes of it here."""

    # Class attributes are the defaults: most attempts change few of them.
    #: None: still running.
    verdict: Verdict | None = None
    result = b""
    error = b""
    #: When a job that is to be repeated runs again, as `parse_delay` writes it.
    when = ""
    ended_ms = 0.0
    #: The exception that the task raised, for the log.
    exception: BaseException | None = None
    #: The log's explanation of the outcome.
    message = ""
    #: Its traceback without the values that the task has marked as sensitive, if there are any; for the log as well.
    masked = ""
    #: The job ends without having been run: it was too late, or lost its worker too often.
    is_unrun = False
    #: The server refused this end; it is told again later.
    is_refused = False
    #: Why the job is held, and for how long.
    hold: Hold | None = None
    #: Why the function cannot be called with the arguments; None: it can.
    misfit: InvalidArguments | None = None
    #: The lease ended before the attempt began.
    is_late = False
    #: The task does not react to its time limit.
    is_stuck = False
    #: The jobs that follow this one.
    follow: Follow | None = None
    #: Those of them that its end stores.
    bound: follow_ups.Bound | None = None
    #: What that adds to the size of the call for this end.
    extra_bytes = 0
    #: The job lost its worker too often, and is leased only to be buried.
    is_out_of_kills = False
    #: The attempt belongs on the event loop, as far as its undecoded payload shows.
    is_async = False
    # For those who tell of its end, and set only where somebody listens:
    #: What the function returned.
    value: object = None
    #: What it raised, or what its payload could not be read for.
    raised: BaseException | None = None
    #: Its end has been told.
    is_told = False
    #: What its task has said of its progress was written down.
    has_progress = False

    def _result_text(self, state: State, **told: Any) -> bytes:
        return stored_results.result_text(state, encrypt=self.encrypting, **told)

    def take(self, call: Read | BaseException) -> TaskDefinition | None:
        """Record what `read` returned, and return the task; None if the verdict is already clear."""
        if isinstance(call, BaseException):
            if heard.attempts:
                self.raised = call
            if isinstance(call, DoubleFound):
                self.verdict = Verdict.DROP
                return None
            is_unknown = isinstance(call, TaskNotFound)
            if self._hold_unread(call):
                return None
            kind = "task" if is_unknown else "payload"
            try:
                self._reject(Verdict.QUARANTINE, call, kind=kind)
            except BaseException:
                self._say_little(call, kind)
                self.verdict = Verdict.QUARANTINE
            return None
        (
            self.task,
            self.options,
            self.args,
            self.kwargs,
            self.follow,
            self.headers,
            self.expires_since_ms,
            self.later,
        ) = call
        if self.is_out_of_kills:
            self._bury_unrun()
            return None
        if not self.task.fits(self.args, self.kwargs):
            if not self._expire_if_late(boottime_ms()):
                self._take_misfit(self.task)
            return None
        for gate in self.gates:
            if self.task.name in gate.tasks and self._is_held_by(gate):
                return None
        return self.task

    def _hold_unread(self, error: BaseException) -> bool:
        """Hold a job that another worker may be able to read or to run."""
        hold: Hold | None = None
        if isinstance(error, NotSigned):
            hold = payload.of_key(self.queue.name, self.leased.payload, error)
            if hold is not None:
                self.unknown_task = error.missing
        elif isinstance(error, TaskNotFound):
            hold = payload.of_task(error)
            if hold is not None:
                self.unknown_task = hold.reason.name
        return self._hold(hold)

    def _take_misfit(self, task: TaskDefinition) -> None:
        wrong = task.misfit(self.args, self.kwargs)
        error = InvalidArguments(
            f"{task.name}() does not take the arguments of the job here: {wrong}"
        )
        self.misfit = error
        if heard.attempts:
            self.raised = error
        if not self._hold(payload.of_call(task, error, self.args, self.kwargs)):
            self._reject(Verdict.QUARANTINE, error, kind="task")

    def _is_held_by(self, gate: Gate) -> bool:
        """Return whether a gate holds the job, or has failed, so that it does not run now."""
        try:
            hold = gate.hold(self)
        except Exception as error:
            self.fail(error)
            return True
        return self._hold(hold)

    def _bury_unrun(self) -> None:
        """Record that the job lost its worker too often. A claim leaves that to a worker if others follow the job then."""
        text = (
            f"its worker died or lost the lease {self.leased.kills} times while it ran"
        )
        self.ended_ms = boottime_ms()
        self.is_unrun = True
        self.message = text
        self.error = self._error_text(text, "killed")
        self.result = self._result_text(State.DEAD, error=text)
        self._conclude(Verdict.BURY)

    def _conclude(self, verdict: Verdict) -> None:
        """Record the final verdict, with the jobs that follow it."""
        follow = self.follow
        if follow is not None:
            jobs = follow.then if verdict is Verdict.SUCCEED else ()
            if verdict is Verdict.BURY:
                jobs = follow.dead
            try:
                if jobs:
                    self.bound = follow_ups.bind(jobs, self.queue.name)
            except Exception as error:
                if verdict is Verdict.SUCCEED:
                    # What follows must not be lost: another attempt may write it.
                    self.follow = Follow(dead=follow.dead)
                    self.fail(error)
                    return
                logger.error(
                    "job %s (%s) is dead, and what follows it then cannot be written",
                    self.id,
                    self.name,
                    exc_info=error,
                    secrets=self.secrets,
                )
        if self.bound is not None:
            self.extra_bytes = self.bound.weight
        self.verdict = verdict

    def _hold(self, hold: Hold | None) -> bool:
        """Record that the job is held; return whether it is."""
        if hold is None:
            return False
        self.hold, self.message = hold, hold.why
        self.ended_ms = self.ended_ms or boottime_ms()
        self.verdict = Verdict.HOLD
        return True

    def holds_lease(self) -> bool:
        """Return whether the lease is still ours; if it ended before the job began, give the job back."""
        if self.has_lease:
            return True
        if not self.is_lost:
            # If nobody else has the job by now, it is free again at once. That counts as a kill only the second time in
            # a row: otherwise a job that takes longer than a lease to get to its start would never start.
            self.is_late = True
            self.give_back()
            self.message = "its lease ended before it began"
        return False

    def may_start(self) -> bool:
        """Decide at the last moment whether to run the job, and note the start."""
        now_ms = boottime_ms()
        if (self.is_lost or now_ms >= self.lease_end_ms) and not self.holds_lease():
            return False
        self.started_ms = now_ms
        options = self.options
        if options is None or options.expires is None:
            return True
        return not self._expire_if_late(now_ms)

    def _expire_if_late(self, now_ms: float) -> bool:
        """Record that it is too late to start the job, if it is."""
        options = self.options
        if options is not None and options.expires is not None:
            expires_s = seconds(options.expires)
            from_ms = max(self.leased.start_time_ms, self.expires_since_ms)
            since_ms = now_ms + self.server_minus_local_ms - from_ms
            if expires_s is not None and since_ms > expires_s * 1000:
                self.started_ms = now_ms
                self._expire(since_ms, expires_s, options.on_expiry)
                return True
        return False

    def _expire(self, since_ms: float, expires_s: float, policy: str) -> None:
        text = f"too late to matter: {since_ms / 1000:.3f} s after its start time, expires={expires_s:g} s"
        self.is_unrun = True
        self.message = text
        self.ended_ms = boottime_ms()
        at_ms = round(self.ended_ms + self.server_minus_local_ms)
        self.result = self._result_text(State.EXPIRED, error=text, at_ms=at_ms)
        if policy == "dead":
            self.error = self._error_text(text, "expired")
            self._conclude(Verdict.BURY)
        else:
            self.verdict = Verdict.EXPIRE

    def succeed(self, value: object) -> None:
        """Record that the function returned."""
        if value is not None and (mistake := _mistake_in(value)):
            self.fail(InvalidTask(f"{self.name} returned {mistake}"))
            return
        self.ended_ms = boottime_ms()
        if self.options is not None and self.options.keep_result is not None:
            try:
                self.result = self._result_text(
                    State.SUCCEEDED,
                    result=json_values.plain_value(value, "its result"),
                    last=self._last(),
                )
                self._check_size()
            except Exception as error:
                # The task has done its work, so it has succeeded all the same.
                text = text_of(error, self.secrets)
                logger.error(
                    "job %s (%s) succeeded, but its result cannot be kept: %s",
                    self.id,
                    self.name,
                    text,
                )
                self.result = self._result_text(
                    State.SUCCEEDED, error=text, last=self._last()
                )
        if self.follow is None:
            self.verdict = Verdict.SUCCEED
        else:
            self._conclude(Verdict.SUCCEED)

    def _last(self) -> dict[str, Any]:
        """Return what is kept with a result of the attempt that has just ended."""
        return {
            "attempts": self.leased.attempts,
            "kills": self.leased.kills,
            "began": round(self.started_ms + self.server_minus_local_ms),
            "at": round(self.ended_ms + self.server_minus_local_ms),
            "worker": this_worker(),
        }

    def _check_size(self) -> None:
        most = get_settings().max_payload_bytes
        if len(self.result) > most:
            raise EncodeError(
                f"it has {len(self.result):,} bytes, more than DELAYQ['MAX_PAYLOAD_BYTES'], {most:,}"
            )

    def give_up(self) -> None:
        """Record that the function ignores its time limit, so that its process has to be replaced."""
        is_reading = self.task is None
        error = (
            time_limit.exceeds(time_limit.READING, time_limit.READING_LIMIT_S)
            if is_reading
            else time_limit.exceeds(self.name, self.time_limit_s or 0.0)
        )
        error.add_note("It did not react, so its process was replaced.")
        if is_reading:
            self.take(error)
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Record that the function raised or ran too long: retry or bury the job. No exception can break this."""
        if heard.attempts:
            self.raised = error
        try:
            self._fail(error)
        except BaseException:
            # The exception is the project's code: its text, its class and its traceback may raise anything, SystemExit
            # included.
            self._fail_in_few_words(error)

    def _fail_in_few_words(self, error: BaseException) -> None:
        """Do as `fail`, but ask the exception only for the name of its class."""
        self._say_little(error, "failed")
        if self.leased.attempts + 1 < self.max_attempts:
            self.when = f"+{LAST_RESORT_DELAY_MS}"
            self.verdict = Verdict.RETRY
        else:
            self.result = self._result_text(State.DEAD, error=self.message)
            self._conclude(Verdict.BURY)

    def _say_little(self, error: BaseException, kind: str) -> None:
        self.ended_ms = self.ended_ms or boottime_ms()
        self.exception = None
        self.message = f"{class_name(error)}: (nothing more can be said of it)"
        self.error = self._error_text(self.message, kind)

    def _fail(self, error: BaseException) -> None:
        self.ended_ms = boottime_ms()
        assert self.task is not None
        assert self.options is not None
        if isinstance(error, Decision):
            self._decide(error)
            return
        if isinstance(error, LeaseLost) and not self.has_lease:
            # The task stopped because another worker may run the job. Only the server knows whether one does. If the
            # lease ends there, that counts as a kill, like the death of a worker, and not as a failure.
            self.is_lost = True
        if self.is_retried(error):
            self._note(error, "failed")
            self.when = self.backoff(self.leased.attempts + 1)
            self.verdict = Verdict.RETRY
        else:
            self._reject(Verdict.BURY, error, kind="failed")

    def _decide(self, decision: Decision) -> None:
        """Record what the task has decided."""
        if issubclass(type(decision), Retry):
            self._retry(cast("Retry", decision))
            return
        # A snooze without words, which a task may raise again and again, needs no secrets.
        says_more = decision.reason or cause_of(decision) is not None
        self.message = reason_of(decision, self.secrets if says_more else ())
        if issubclass(type(decision), Cancel):
            why = self.message or "by its task"
            self.result = self._result_text(
                State.CANCELLED, error=why, last=self._last()
            )
            self.verdict = Verdict.CANCEL
            return
        when = cast("Snooze", decision).when
        if _is_when(when):
            self.when = when
            self.verdict = Verdict.SNOOZE
        else:
            self._fail(_says_no_delay(decision))

    def _retry(self, decision: Retry) -> None:
        failures, most = self.leased.attempts + 1, self.max_attempts
        text = text_of_decision(decision, self.secrets)
        if decision.when and not _is_when(decision.when):
            self._fail(_says_no_delay(decision))
        elif failures < most:
            self._note(decision, "failed", text)
            self.when = decision.when or self.backoff(failures)
            self.verdict = Verdict.RETRY
            # It is a decision: where the task took it is no news for the log.
            self.exception, self.masked = None, ""
        else:
            text += f"; this was attempt {failures}, and max_attempts is {most}"
            self._reject(Verdict.BURY, decision, kind="failed", text=text)
            cause = cause_of(decision)
            if not self.secrets:
                self.exception = cause
            else:
                self.masked = "" if cause is None else traceback_of(cause, self.secrets)

    def _reject(
        self, verdict: Verdict, error: BaseException, *, kind: str, text: str = ""
    ) -> None:
        self._note(error, kind, text)
        self.result = self._result_text(State(verdict), error=self.message)
        self.ended_ms = self.ended_ms or boottime_ms()
        self._conclude(verdict)

    def _note(self, error: BaseException, kind: str, text: str = "") -> None:
        secrets = self.secrets
        self.message = text or text_of(error, secrets) + blamed(error)
        traceback = ""
        # Our own errors about a payload need no traceback: our line of code would tell the reader nothing.
        if kind == "failed" or not isinstance(error, DelayqError):
            self.exception = error.with_traceback(trimmed(error.__traceback__))
            traceback = traceback_of(error, secrets)
        if secrets:
            # A text of the caller may repeat one as well.
            self.message = mask(self.message, secrets)
            # The log would write the exception's own text.
            self.exception = None
            self.masked = traceback
        class_path = class_path_of(error) if kind == "failed" else ""
        self.error = self._error_text(self.message, kind, traceback, class_path)

    def _error_text(
        self, message: str, kind: str, traceback: str = "", class_path: str = ""
    ) -> bytes:
        began_ms = None
        if self.started_ms:
            began_ms = round(self.started_ms + self.server_minus_local_ms)
        return stored_results.error_text(
            message,
            kind=kind,
            traceback=traceback,
            at_ms=round((self.ended_ms or boottime_ms()) + self.server_minus_local_ms),
            began_ms=began_ms,
            worker=this_worker(),
            class_path=class_path,
            encrypt=self.encrypting,
        )

    def give_back(self) -> None:
        """Record that the job was not run, or that the worker's own end stopped it: nothing is counted."""
        self.verdict = Verdict.GIVE_BACK

    def as_done(self) -> Done:
        leased = self.leased
        if not self.result:
            return Done(leased.token, leased.fence)
        return Done(leased.token, leased.fence, self.result_ttl_ms, self.result)

    def as_failed(self) -> Failed:
        return Failed(
            self.leased.token,
            self.leased.fence,
            self.when,
            self.error,
        )

    def as_held(self) -> Held:
        assert self.hold is not None
        return Held(self.leased.token, self.leased.fence, self.hold)

    def as_rejected(self) -> Rejected:
        ttl_ms = (
            max(self.result_ttl_ms, FAILURE_TTL_MS)
            if self.result_ttl_ms is not None
            else None
        )
        return Rejected(
            self.leased.token, self.leased.fence, self.error, ttl_ms, self.result
        )

    def wait_ms(self) -> int:
        """How long a job that is to be repeated waits, as far as this process knows the server's clock."""
        number = int(self.when[1:])
        if self.when.startswith("+"):
            return number
        now_ms = boottime_ms() + self.server_minus_local_ms
        return max(0, number - round(now_ms))


def _mistake_in(value: object) -> str | None:
    """Say what a function returned by mistake: what runs only once somebody awaits it or loops over it, or a decision."""
    if isinstance(value, CoroutineType):
        # Otherwise Python would warn that it was never awaited; our own message says so.
        value.close()
        kind = "a coroutine"
    elif isinstance(value, _NEVER_RETURNED):
        if isinstance(value, Decision):
            return f"a {class_name(value)}, which decides nothing unless it is raised"
        kind = "a generator"
    elif hasattr(type(value), "__await__") and not isinstance(value, asyncio.Future):
        # A future is not lazy: what it stands for runs by itself.
        kind = f"an awaitable {type(value).__name__}"
    else:
        return None
    return (
        f"{kind}, whose body has not run, and nobody runs it. A decorator around an async def has to be async def"
        " itself, and await it; elsewhere, await or loop over what you return"
    )


def _is_when(when: object) -> bool:
    # A subclass may have put anything there, and a script would stop halfway at what is no number.
    return isinstance(when, str) and re.fullmatch(r"[+=][0-9]{1,16}", when) is not None


def _says_no_delay(decision: Decision) -> InvalidTask:
    name = class_name(decision)
    return InvalidTask(
        f"{name} says no delay: let its __init__ call super().__init__(delay), and leave `when` alone"
    )
