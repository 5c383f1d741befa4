"""Sentry: its queues page, traces across the queue, and the errors of tasks in a scope of their own.

``pip install "django-delayq[sentry]"``; the project calls ``sentry_sdk.init``, and without that this does nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import sentry_sdk
from sentry_sdk.tracing import TransactionSource

from django_delayq.clock import epoch_ms
from django_delayq.jobs.context import current_job
from django_delayq.jobs.contexts import being_scheduled
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.job import Job


class Sentry:
    """Tells Sentry what is scheduled, what runs, how late it is, and what it raises."""

    name = "sentry"

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
        if not client.is_active():
            return None
        if not _traces(client):
            return _Watched()
        job = current_job()
        return None if job is None else _traced(job, headers)


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

    __slots__ = ("_scope", "_scoped")

    def __enter__(self) -> None:
        self._scoped = sentry_sdk.isolation_scope()
        self._scope = self._scoped.__enter__()
        self._scope.clear_breadcrumbs()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # Not by isinstance: that reads the exception's `__class__`, which may raise.
            if error is None or issubclass(type(error), Decision):
                return
            if (job := current_job()) is not None:
                _send(self._scope, job, error)
        finally:
            # It has nothing to do with the error, which would cost it a search for its own frame.
            self._scoped.__exit__(None, None, None)


@contextmanager
def _traced(job: Job[Any], headers: Mapping[str, str]) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        transaction = sentry_sdk.continue_trace(
            dict(headers),
            op="queue.process",
            name=job.task or "?",
            source=TransactionSource.TASK,
            origin="auto.queue.delayq",
        )
        with sentry_sdk.start_transaction(transaction):
            _describe(transaction, job)
            try:
                yield
            except Decision:
                transaction.set_status("ok")
                raise
            except BaseException as error:
                _send(scope, job, error)
                raise
            transaction.set_status("ok")


def _send(scope: Any, job: Job[Any], error: BaseException) -> None:
    scope.set_tag("delayq.queue", job.queue)
    scope.set_tag("delayq.task", job.task or "")
    scope.set_context("delayq", {"job": job.id, "attempt": job.attempts + 1})
    sentry_sdk.capture_exception(error)


def _describe(transaction: Any, job: Job[Any]) -> None:
    transaction.set_data("messaging.system", "delayq")
    transaction.set_data("messaging.message.id", job.id)
    transaction.set_data("messaging.destination.name", job.queue)
    transaction.set_data("messaging.message.retry.count", job.attempts)
    if job.start_time_ms is not None:
        # By this machine's clock: Sentry shows it in whole ms, among other times of this machine.
        late_ms = max(0, epoch_ms() - job.start_time_ms)
        transaction.set_data("messaging.message.receive.latency", late_ms)
