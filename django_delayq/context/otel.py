"""OpenTelemetry: a span where a job is scheduled, and one in a trace of its own for each attempt, linked to the first.

Attributes and names are those of the semantic conventions of messaging. ``pip install "django-delayq[otel]"``; the
project sets up the SDK, and without one this costs little and does nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_delayq.jobs.context import current_job
from django_delayq.jobs.contexts import being_scheduled
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.job import Job

_propagator = TraceContextTextMapPropagator()


class OpenTelemetry:
    """Traces jobs: a producer span in the trace of whoever schedules, and a consumer span for each attempt."""

    name = "otel"

    def __init__(self) -> None:
        # Of the API: it follows the provider that the project sets, also if that comes later.
        self._tracer = trace.get_tracer("django_delayq")

    def capture(self) -> dict[str, str]:
        """Record that a job is scheduled, and return what names that span."""
        if not _is_set_up() or (job := being_scheduled()) is None:
            return {}
        span = self._tracer.start_span(
            f"schedule {job.queue}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes("schedule", "send", job.queue, job.task, job.id),
        )
        headers: dict[str, str] = {}
        _propagator.inject(headers, trace.set_span_in_context(span))
        span.end()
        return headers

    def restore(
        self, headers: Mapping[str, str]
    ) -> AbstractContextManager[None] | None:
        """Record an attempt."""
        if not _is_set_up() or (job := current_job()) is None:
            return None
        return self._attempt(job, headers)

    @contextmanager
    def _attempt(self, job: Job[Any], headers: Mapping[str, str]) -> Iterator[None]:
        source = trace.get_current_span(
            _propagator.extract(headers, Context())
        ).get_span_context()
        attributes = _attributes(
            "process", "process", job.queue, job.task or "", job.id
        )
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            # Not the trace of whoever scheduled it: that ended long ago, and one of them may schedule thousands.
            Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes | {"delayq.job.attempt": job.attempts + 1},
            links=[Link(source)] if source.is_valid else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Decision as decision:
                span.set_attribute("delayq.job.decision", type(decision).__name__)
                raise
            except BaseException as error:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise


def _is_set_up() -> bool:
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


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
