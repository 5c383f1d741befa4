"""OpenTelemetry: a span where a job is scheduled, and one in a trace of its own for each attempt, linked to the first.

Attributes and names are those of the semantic conventions of messaging. ``pip install "django-delayq[otel]"``; the
project sets up the SDK; without one, this does nothing. Values that a task marks as sensitive are masked in the span of
its attempt.
"""

import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    ProxyTracer,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_delayq.jobs.context import current_job
from django_delayq.jobs.contexts import being_scheduled
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.job import Job
from django_delayq.masks import mask

_propagator = TraceContextTextMapPropagator()
#: No span is current in it. Nobody changes a context: each call makes another.
_NOTHING = Context()


class OpenTelemetry:
    """Trace jobs: a producer span where a job is scheduled, and a consumer span for each attempt.

    Example::

        DELAYQ = {"CONTEXT": ["django_delayq.context.otel.OpenTelemetry"]}
    """

    name = "otel"

    def __init__(self) -> None:
        # As long as the project has set no provider, this is the API's own, which follows the one that comes later.
        self._provider = trace.get_tracer_provider()
        # Of the project's provider.
        self._tracer: Tracer | None = None

    def capture(self) -> dict[str, str]:
        """Start a span where a job is scheduled, and return its id for the job."""
        if (tracer := self._find_tracer()) is None or (
            job := being_scheduled()
        ) is None:
            return {}
        span = tracer.start_span(
            f"schedule {job.queue}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes("schedule", "send", job.queue, job.task, job.id),
        )
        headers: dict[str, str] = {}
        _propagator.inject(headers, trace.set_span_in_context(span, _NOTHING))
        span.end()
        return headers

    def restore(
        self, headers: Mapping[str, str]
    ) -> AbstractContextManager[None] | None:
        """Record an attempt."""
        if (tracer := self._find_tracer()) is None or (job := current_job()) is None:
            return None
        source = trace.get_current_span(
            _propagator.extract(headers, _NOTHING)
        ).get_span_context()
        attributes = _attributes(
            "process", "process", job.queue, job.task or "", job.id
        )
        attributes["delayq.job.attempt"] = job.attempts + 1
        return _Attempt(
            tracer.start_span(
                f"process {job.queue}",
                # Not the trace of whoever scheduled it: that ended long ago, and one of them may schedule thousands.
                _NOTHING,
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=[Link(source)] if source.is_valid else None,
            ),
            job,
        )

    def _find_tracer(self) -> Tracer | None:
        """Return our tracer; None: the project has set no provider yet."""
        if self._tracer is None:
            # To ask `trace.get_tracer_provider` costs more: without a provider, it looks into the environment each time.
            tracer = self._provider.get_tracer("django_delayq")
            if isinstance(tracer, ProxyTracer):
                return None
            self._tracer = tracer
        return self._tracer


class _Attempt:
    """The span of an attempt, current as long as that lasts. A class, because a generator costs more for each job."""

    __slots__ = ("_job", "_span", "_token")

    def __init__(self, span: Span, job: Job[Any]) -> None:
        self._span = span
        self._job = job

    def __enter__(self) -> None:
        self._token: Token[Context] = contexts.attach(
            trace.set_span_in_context(self._span)
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        span = self._span
        try:
            if error is not None and span.is_recording():
                _note(span, self._job, error)
        finally:
            contexts.detach(self._token)
            span.end()


def _note(span: Span, job: Job[Any], error: BaseException) -> None:
    if isinstance(error, Decision):
        span.set_attribute("delayq.job.decision", type(error).__name__)
        return
    assert job.here is not None
    secrets = job.here.secrets()
    text = str(error)
    if secrets:
        text = mask(text, secrets)
        span.record_exception(
            error,
            attributes={
                "exception.message": text,
                "exception.stacktrace": mask(
                    "".join(traceback.format_exception(error)), secrets
                ),
            },
        )
    else:
        span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, text))


def _attributes(
    operation: str, kind: str, queue: str, task: str, job_id: str
) -> dict[str, str | int]:
    return {
        "messaging.system": "delayq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
        "delayq.task": task,
    }
