"""Sentry: its queues page, traces from the caller to the task, and the errors of tasks in their own scope.

``pip install "django-delayq[sentry]"``; the project calls ``sentry_sdk.init``; without that, this does nothing.
Values that a task marks as sensitive are masked in everything that an attempt sends.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import date
from functools import partial
from types import FrameType, TracebackType
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.utils import (  # type: ignore[attr-defined]  # where 2.15 has it
    AnnotatedValue,
    capture_internal_exceptions,
    current_stacktrace,
    event_from_exception,
    safe_repr,
)

from django_delayq.conf import get_settings
from django_delayq.jobs.arguments import sensitive_texts
from django_delayq.jobs.context import current_job
from django_delayq.jobs.contexts import being_scheduled, load
from django_delayq.jobs.decisions import Decision, Retry
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import Job
from django_delayq.jobs.prepare import prepare
from django_delayq.jobs.registry import find_task
from django_delayq.jobs.send_many import Sending
from django_delayq.masks import MOST_SECRETS, WHOLE, Masker
from django_delayq.redaction import MASK

#: The most values of an event that are looked at. The others are masked.
MOST_VALUES = 20_000
#: The deepest value of an event that is looked into. What it contains is shown as Python writes it.
DEEPEST = 12
#: How many failures are remembered, for the log records that repeat them.
MOST_SENT = 10_000
#: Fields of an event whose values decide how Sentry reads it.
_STRUCTURE = frozenset({"type", "event_id", "level", "platform"})
#: Parts of an event below which a project has put names and numbers.
_FREE = frozenset({"vars", "extra", "data", "tags", "contexts", "request", "user", "params", "attributes"})  # fmt: skip
#: Where calls are scheduled: the modules of the frames that have their arguments.
_OURS = ("django_delayq.jobs.", "django_delayq.backend.")
#: The loggers in which Django's tasks, and the package of that name, log each failure.
_DJANGOS = frozenset({"django.tasks", "django_tasks"})

# The failures that were sent: the attempt by the job's id, the oldest first. Threads share it without a lock, which a fork
# or a time limit could leave locked: each call of its methods is atomic.
_sent: OrderedDict[str, int] = OrderedDict()


class Sentry:
    """Report scheduled jobs, attempts, their lateness and final failures to Sentry.

    Example::

        DELAYQ = {"CONTEXT": ["django_delayq.context.sentry.Sentry"]}
    """

    name = "sentry"

    def __init__(self, *, every_attempt: bool = False) -> None:
        """``every_attempt``: send the failures of attempts that are retried as well, and the deaths of worker processes."""
        self._sends_every = every_attempt
        self._client: Any = None

    def warm(self) -> None:
        """Make the scopes of this thread: each attempt has a fork of them, and would make them first if there were none."""
        sentry_sdk.get_isolation_scope()
        sentry_sdk.get_current_scope()

    def capture(self) -> dict[str, str]:
        """Record that a job is scheduled, and return ``sentry-trace`` and ``baggage``."""
        if not _traces(sentry_sdk.get_client()) or (job := being_scheduled()) is None:
            return {}
        with sentry_sdk.start_span(
            op="queue.publish", name=job.task, origin="auto.queue.delayq"
        ) as span:
            span.set_data("messaging.system", "delayq")
            span.set_data("messaging.message.id", job.id)
            span.set_data("messaging.destination.name", job.queue)
            scope = sentry_sdk.get_current_scope()
            return dict(scope.iter_trace_propagation_headers(span=span))

    def restore(
        self, headers: Mapping[str, str]
    ) -> AbstractContextManager[None] | None:
        """Record an attempt, in a scope of its own."""
        client = sentry_sdk.get_client()
        if not client.is_active() or (job := current_job()) is None:
            return None
        if client is not self._client:
            _mask_telemetry(client)
            self._client = client
        if not _traces(client):
            return _Watched(job, self._sends_every)
        return _traced(job, headers, self._sends_every)


def _traces(client: Any) -> bool:
    # What it costs to start a transaction that is never sent is more than all the rest of an attempt. The options of a
    # client that is not active say so themselves.
    options = client.options
    return (
        options.get("traces_sample_rate") is not None
        or options.get("traces_sampler") is not None
    )


class _Watched:
    """Send what the task raises, from a scope of its own. A class, because a generator costs more for each job."""

    __slots__ = ("_job", "_scope", "_scoped", "_sends_every")

    def __init__(self, job: Job[Any], sends_every: bool) -> None:
        self._job = job
        self._sends_every = sends_every

    def __enter__(self) -> None:
        self._scoped = sentry_sdk.isolation_scope()
        self._scope = self._scoped.__enter__()
        _prepare(self._scope, self._job)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                _send(self._scope, self._job, error, self._sends_every)
        finally:
            # It has nothing to do with the error, which would cost it a search for its own frame.
            self._scoped.__exit__(None, None, None)


@contextmanager
def _traced(
    job: Job[Any], headers: Mapping[str, str], sends_every: bool
) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as scope:
        _prepare(scope, job)
        transaction = sentry_sdk.continue_trace(
            dict(headers),
            op="queue.process",
            name=job.task or "?",
            source="task",
            origin="auto.queue.delayq",
        )
        decision = None
        with sentry_sdk.start_transaction(transaction):
            _describe(transaction, job)
            try:
                yield
            except BaseException as error:
                _send(scope, job, error, sends_every)
                if not _is_decided(job, error):
                    raise
                # The end of the transaction would make any error a failure of it.
                decision = error
            transaction.set_status("ok")
        if decision is not None:
            raise decision


def _is_decided(job: Job[Any], error: BaseException) -> bool:
    """Whether an attempt ended as its task has decided, and not with a failure."""
    if not isinstance(error, Decision):
        return False
    assert job.here is not None
    return not (isinstance(error, Retry) and job.here.ends_with(error))


def _prepare(scope: Any, job: Job[Any]) -> None:
    # A job that is replayed may fail at the same attempt again, where only the worker sees it.
    _sent.pop(job.id, None)
    scope.clear_breadcrumbs()
    scope.add_event_processor(partial(_process, job))


def _send(scope: Any, job: Job[Any], error: BaseException, sends_every: bool) -> None:
    failure = _failure(job, error, sends_every)
    if failure is None:
        return
    attempt = job.attempts + 1
    scope.set_tag("delayq.queue", job.queue)
    scope.set_tag("delayq.task", job.task or "")
    scope.set_context("delayq", {"job": job.id, "attempt": attempt})
    _remember(job.id, attempt)
    assert job.here is not None
    with capture_internal_exceptions():
        event, hint = event_from_exception(
            failure,
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "delayq", "handled": False},
        )
        if isinstance(failure, Retry):
            said = f"attempt {attempt}"
            if job.here.ends_with(error):
                said += " was the last"
            value = event["exception"]["values"][-1]
            value["value"] = f"{value['value']} ({said})" if value["value"] else said
        sentry_sdk.capture_event(event, hint=hint)


def _remember(job_id: str, attempt: int) -> None:
    if len(_sent) >= MOST_SENT:
        with suppress(KeyError):
            _sent.popitem(last=False)
    _sent[job_id] = attempt


def _failure(
    job: Job[Any], error: BaseException, sends_every: bool
) -> BaseException | None:
    """Return what to send of the end of an attempt; None: it is not a failure, or the job is retried."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        # The worker ends, and the job goes back to its queue.
        return None
    assert job.here is not None
    if not isinstance(error, Decision):
        return error if sends_every or job.here.ends_with(error) else None
    if isinstance(error, Retry) and (sends_every or job.here.ends_with(error)):
        return error
    return None


def _describe(transaction: Any, job: Job[Any]) -> None:
    transaction.set_data("messaging.system", "delayq")
    transaction.set_data("messaging.message.id", job.id)
    transaction.set_data("messaging.destination.name", job.queue)
    transaction.set_data("messaging.message.retry.count", job.attempts)
    if job.here is not None:
        transaction.set_data(
            "messaging.message.receive.latency", round(job.here.late_ms)
        )


def _take_record(event: Any, hint: Any) -> Any:
    """Make the event of a log record one of its job; drop it if it repeats a failure that was sent, or ends no job."""
    record = hint.get("log_record") if hint else None
    if record is None:
        return event
    if (job := _job_of_djangos(record)) is not None:
        return None if job in _sent else event
    said = getattr(record, "delayq", None)
    if record.name != "django_delayq.worker" or not isinstance(said, dict):
        return event
    if "job" not in said:
        # A worker process has died. Its jobs run again, or an event says that they do not.
        return event if _sends_every() else None
    job, attempt = said["job"], said.get("attempt")
    if attempt is not None and _sent.get(job) == attempt:
        return None
    found = {"job": job} if attempt is None else {"job": job, "attempt": attempt}
    event.setdefault("contexts", {})["delayq"] = found
    event.setdefault("tags", {}).update(
        {"delayq.queue": job.rpartition(":")[0], "delayq.task": said["task"]}
    )
    for each in event.get("exception", {}).get("values", ()):
        each["mechanism"] = {
            **(each.get("mechanism") or {}),
            "type": "delayq",
            "handled": False,
        }
    return event


def _sends_every() -> bool:
    """Whether the project asks for every failure; true if it has not set up our context."""
    loaded = [
        getattr(each.restore, "__self__", None) for each in load(get_settings().context)
    ]
    ours = [each for each in loaded if isinstance(each, Sentry)]
    return not ours or any(each._sends_every for each in ours)


add_global_event_processor(_take_record)


def _mask_calls(event: Any, hint: Any) -> Any:
    """Mask what is sensitive in the error of a call that schedules: frames have its arguments, and the payload."""
    raised = hint.get("exc_info") if hint else None
    if not raised or raised[1] is None:
        return event
    try:
        secrets = _secrets_of_calls(raised[1])
        if secrets is None:
            return event
        for each in event.get("exception", {}).get("values", ()):
            _drop_variables(each)
        return _Masking(secrets).mask(event)
    except Exception:
        # Without masks, nothing may be sent.
        return None


add_global_event_processor(_mask_calls)


def _secrets_of_calls(error: BaseException) -> Sequence[str] | None:
    """Return how the sensitive values read of the calls that an error has kept from being scheduled; None: there are none."""
    calls: list[tuple[TaskDefinition, Sequence[Any], Mapping[str, Any]]] = []
    jobs: dict[int, Job[Any]] = {}
    for frame in _frames(error):
        if frame.f_code is prepare.__code__:
            local = frame.f_locals
            calls.append((local["task"], local["args"], local["kwargs"]))
        elif frame.f_globals.get("__name__", "").startswith(_OURS):
            for value in list(frame.f_locals.values()):
                jobs.update((id(job), job) for job in _jobs_in(value))
    for job in jobs.values():
        for name, in_order, by_name in _calls_of(job):
            if (known := find_task(name)) is not None:
                calls.append((known, in_order, by_name))
    calls = [each for each in calls if each[0].base.sensitive]
    if len(calls) > MOST_SECRETS:
        return WHOLE
    texts: set[str] = set()
    for task, args, kwargs in calls:
        texts.update(sensitive_texts(task, args, kwargs))
    return [*texts] if calls else None


def _calls_of(job: Job[Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield the calls of a job and of those that follow it."""
    if job.task is not None:
        yield job.task, job.args, job.kwargs
    rest = [] if job._draft is None else [job._draft.extras.follow]
    while rest:
        follow = rest.pop()
        for each in () if follow is None else (*follow.then, *follow.dead):
            yield each.call.task, each.call.args, each.call.kwargs
            rest.append(each.call.follow)


def _jobs_in(value: Any) -> Iterator[Job[Any]]:
    # Not by isinstance: that reads the value's `__class__`, which may run code.
    kind = type(value)
    if kind is Job:
        yield value
    elif kind is Sending:
        for each in vars(value).values():
            if type(each) is list:
                yield from _jobs_in(each)
    elif kind is list or kind is tuple:
        yield from (each for each in value if type(each) is Job)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an error, and of those that led to it."""
    rest, seen = [error], set()
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        traceback = each.__traceback__
        while traceback is not None:
            yield traceback.tb_frame
            traceback = traceback.tb_next
        rest += [led for led in (each.__cause__, each.__context__) if led is not None]
        if issubclass(type(each), BaseExceptionGroup):
            rest += each.exceptions  # type: ignore[attr-defined]


def _drop_variables(value: Any) -> None:
    """Leave out the variables of our frames and of those below: a payload writes a value as no list of forms has it."""
    stack = value.get("stacktrace") or {}
    is_below = False
    for frame in stack.get("frames", ()):
        module = frame.get("module") or ""
        is_below = is_below or module.startswith(_OURS)
        if is_below or module.startswith("redis."):
            frame.pop("vars", None)


def _job_of_djangos(record: Any) -> str | None:
    """Return the id of the job whose failure Django's tasks have logged."""
    if record.name in _DJANGOS and isinstance(record.args, tuple) and record.args:
        return str(record.args[0])
    return None


def _process(job: Job[Any], event: Any, hint: Any) -> Any:
    """Mask what is sensitive in an event of an attempt: an error, a message or a transaction."""
    record = hint.get("log_record") if hint else None
    if record is not None and _job_of_djangos(record) == job.id:
        # Django logs the exception within the attempt. The end of that sends it, with the job's id.
        _forget_last_seen()
        return None
    assert job.here is not None
    try:
        if not (secrets := job.here.secrets()):
            return event
        _add_stack(event)
        return _Masking(secrets).mask(event)
    except Exception:
        # Without masks, nothing may be sent.
        return None


def _forget_last_seen() -> None:
    # The SDK notes an exception before it asks us, and would drop its second event.
    found = sentry_sdk.get_client().get_integration(DedupeIntegration)
    if found is not None:
        found._last_seen.set(None)


def _add_stack(event: Any) -> None:
    """Add the stack that ``attach_stacktrace`` asks for. The SDK would add it unmasked, after the last processor."""
    options = sentry_sdk.get_client().options
    if (
        not options.get("attach_stacktrace")
        or {"exception", "stacktrace", "threads"} & event.keys()
    ):
        return
    if event.get("type") == "transaction":
        # Older versions of the SDK add one here as well.
        event["threads"] = {"values": []}
        return
    stack = current_stacktrace(
        include_local_variables=options.get("include_local_variables", True),
        max_value_length=options.get("max_value_length"),
    )
    thread = {"stacktrace": stack, "crashed": False, "current": True}
    event["threads"] = {"values": [thread]}


def _mask_telemetry(client: Any) -> None:
    """Mask what no scope processes: logs, metrics and streamed spans. The project's own hooks are called afterwards."""
    options = client.options
    experiments = options.get("_experiments")
    for name in ("before_send_log", "before_send_metric", "before_send_span"):
        before = options.get(name) or (experiments or {}).get(name)
        if isinstance(before, _BeforeSend):
            continue
        hook = _BeforeSend(before)
        options[name] = hook
        if isinstance(experiments, dict):
            # Where older versions of the SDK look.
            experiments[name] = hook


class _BeforeSend:
    """A hook of Sentry's client."""

    __slots__ = ("_before",)

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, item: Any, hint: Any) -> Any:
        job = current_job()
        secrets = () if job is None or job.here is None else job.here.secrets()
        if secrets:
            item = _Masking(secrets).mask(item)
        return item if self._before is None else self._before(item, hint)


class _Masking:
    """Masks the secrets of one job in one event."""

    def __init__(self, secrets: Any) -> None:
        self._masker = Masker(secrets)
        self._left = MOST_VALUES
        # Frames repeat the same values.
        self._texts: dict[str, str] = {}

    def mask(self, event: Any) -> Any:
        """Return an event without the secrets."""
        return {
            name: value
            if name in _STRUCTURE
            else self._mask(value, 1, is_free=name in _FREE)
            for name, value in event.items()
        }

    def _mask(self, value: Any, depth: int, *, is_free: bool) -> Any:
        self._left -= 1
        if self._left < 0:
            return MASK
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if value is None or isinstance(value, bool | date):
            return value
        if isinstance(value, int | float):
            if not is_free:
                return value
            written = repr(value)
            return value if self._text(written) == written else MASK
        if isinstance(value, AnnotatedValue):
            inner = self._mask(value.value, depth, is_free=is_free)
            return AnnotatedValue(inner, value.metadata)
        if depth < DEEPEST:
            if isinstance(value, Mapping):
                return {
                    self._text(str(name)) if is_free else name: self._mask(
                        each, depth + 1, is_free=is_free or name in _FREE
                    )
                    for name, each in value.items()
                }
            if isinstance(value, list | tuple | set | frozenset):
                return [self._mask(each, depth + 1, is_free=is_free) for each in value]
        return self._text(safe_repr(value))

    def _text(self, text: str) -> str:
        if (masked := self._texts.get(text)) is None:
            masked = self._texts[text] = self._masker.mask(text)
        return masked
