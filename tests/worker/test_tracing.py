"""OpenTelemetry and Sentry across the queue, with their real SDKs, which export into memory."""

from contextlib import contextmanager

import pytest
import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sentry_sdk.transport import Transport

from django_delayq import Backoff, Retry, conf, current_job, delayed_task, schedule
from django_delayq.context.otel import OpenTelemetry
from django_delayq.core.states import State
from django_delayq.jobs import contexts
from tests.polling import wait_until

MODES = pytest.mark.parametrize("is_async", [False, True])


@pytest.fixture
def travelling(configure):
    contexts.load.cache_clear()
    contexts._logged.clear()

    def travelling(*paths):
        configure()["CONTEXT"] = list(paths)
        conf.get_settings.cache_clear()

    yield travelling
    conf.get_settings.cache_clear()
    contexts.load.cache_clear()


@pytest.fixture
def two_tasks(queue_name):
    """A task that fails twice, then succeeds; and one that decides to run again, then succeeds: sync and async."""

    def body(what):
        if what == "fail":
            raise ValueError("as told")
        if what == "retry" and not current_job().attempts:
            raise Retry(0)

    async def abody(what):
        body(what)

    options = {
        "queue": queue_name,
        "max_attempts": 2,
        "backoff": Backoff(base=0, jitter=0),
    }
    return {
        False: delayed_task(name="shop.tasks.sync", **options)(body),
        True: delayed_task(name="shop.tasks.async", **options)(abody),
    }


@pytest.fixture
def provider():
    provider = TracerProvider(shutdown_on_exit=False)
    provider.exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(provider.exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(travelling, provider, monkeypatch):
    # A process can set its provider only once.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    travelling("django_delayq.context.otel.OpenTelemetry")

    def spans(kind=None):
        found = provider.exporter.get_finished_spans()
        return [span for span in found if kind in (None, span.kind)]

    return spans


def wait_for(job, state):
    wait_until(lambda: job.refresh() is state, description=f"{job} is {state}")


@MODES
def test_a_job_has_a_producer_span_and_a_consumer_span_in_a_new_trace_with_a_link(
    spans, provider, work, queue_name, two_tasks, is_async
):
    with provider.get_tracer("site").start_as_current_span("request") as request:
        job = schedule(two_tasks[is_async], 0, "")
    work()
    wait_for(job, State.SUCCEEDED)

    wait_until(lambda: spans(SpanKind.CONSUMER), description="the attempt is recorded")
    (producer,), (consumer,) = spans(SpanKind.PRODUCER), spans(SpanKind.CONSUMER)
    assert producer.name == f"schedule {queue_name}"
    assert producer.parent.span_id == request.get_span_context().span_id
    assert consumer.name == f"process {queue_name}"
    assert consumer.parent is None
    assert consumer.context.trace_id != producer.context.trace_id
    (link,) = consumer.links
    assert link.context.span_id == producer.context.span_id
    assert link.context.trace_id == producer.context.trace_id
    common = {
        "messaging.system": "delayq",
        "messaging.destination.name": queue_name,
        "messaging.message.id": job.id,
        "delayq.task": two_tasks[is_async].name,
    }
    assert producer.attributes == common | {
        "messaging.operation.name": "schedule",
        "messaging.operation.type": "send",
    }
    assert consumer.attributes == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "delayq.job.attempt": 1,
    }
    assert consumer.status.status_code is StatusCode.UNSET


@MODES
def test_each_failed_attempt_is_a_span_with_its_exception(
    spans, work, two_tasks, is_async
):
    job = schedule(two_tasks[is_async], 0, "fail")
    work()
    wait_for(job, State.DEAD)

    wait_until(lambda: len(spans(SpanKind.CONSUMER)) == 2, description="both are there")
    first, second = spans(SpanKind.CONSUMER)
    assert [span.attributes["delayq.job.attempt"] for span in (first, second)] == [1, 2]
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["error.type"] == "ValueError"
    assert [event.name for event in first.events] == ["exception"]


@MODES
def test_a_span_of_an_attempt_has_no_sensitive_value(spans, work, queue_name, is_async):
    def leak(token):
        try:
            raise KeyError(token)
        except KeyError as error:
            raise ValueError(f"first {token[:60]!r}", token) from error

    async def aleak(token):
        leak(token)

    token = "tok-\n\\'\"-" + "".join(map(str, range(500)))
    task = delayed_task(
        name="shop.tasks.leak", queue=queue_name, max_attempts=1, sensitive=("token",)
    )(aleak if is_async else leak)
    job = schedule(task, 0, token)
    work()
    wait_for(job, State.DEAD)

    wait_until(lambda: spans(SpanKind.CONSUMER), description="the attempt is recorded")
    (span,) = spans(SpanKind.CONSUMER)
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "ValueError"
    assert "ValueError" in event.attributes["exception.stacktrace"]
    said = [span.status.description, *event.attributes.values()]
    for each in said:
        assert "tok-" not in each
        assert "123124125" not in each
    assert "***" in event.attributes["exception.message"]
    assert "***" in span.status.description


@MODES
def test_a_decision_is_no_error(spans, work, two_tasks, is_async):
    job = schedule(two_tasks[is_async], 0, "retry")
    work()
    wait_for(job, State.SUCCEEDED)

    wait_until(lambda: len(spans(SpanKind.CONSUMER)) == 2, description="both are there")
    first, _ = spans(SpanKind.CONSUMER)
    assert first.status.status_code is StatusCode.UNSET
    assert first.attributes["delayq.job.decision"] == "Retry"
    assert first.events == ()


def test_a_span_in_a_task_is_below_that_of_its_attempt(
    spans, provider, work, queue_name
):
    @delayed_task(queue=queue_name)
    def trace_more():
        with provider.get_tracer("task").start_as_current_span("more"):
            pass

    schedule(trace_more, 0)
    work()

    wait_until(lambda: spans(SpanKind.CONSUMER), description="the attempt is recorded")
    (consumer,), (more,) = spans(SpanKind.CONSUMER), spans(SpanKind.INTERNAL)
    assert more.parent.span_id == consumer.context.span_id


def test_without_a_provider_a_job_carries_nothing(travelling, queue_name, two_tasks):
    travelling("django_delayq.context.otel.OpenTelemetry")

    job = schedule(two_tasks[False], 600, "")

    assert b"headers" not in job.draft.new.payload
    assert OpenTelemetry().capture() == {}


def test_a_provider_that_the_project_sets_late_is_found(
    travelling, provider, queue_name, two_tasks, monkeypatch
):
    travelling("django_delayq.context.otel.OpenTelemetry")
    before = schedule(two_tasks[False], 600, "")
    # As `set_tracer_provider` does, which works only once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    after = schedule(two_tasks[False], 600, "")

    assert b"headers" not in before.draft.new.payload
    (span,) = provider.exporter.get_finished_spans()
    assert f"{span.context.span_id:016x}" in after.draft.new.payload.decode()


class _Memory(Transport):
    def __init__(self):
        super().__init__()
        self.items = []

    def capture_envelope(self, envelope):
        self.items += [item.payload.json for item in envelope.items]


@contextmanager
def sending(travelling, traces_sample_rate):
    transport = _Memory()
    client = sentry_sdk.Client(
        dsn="https://key@sentry.example/1",
        transport=transport,
        traces_sample_rate=traces_sample_rate,
        default_integrations=False,
    )
    before = sentry_sdk.get_global_scope().client
    sentry_sdk.get_global_scope().set_client(client)
    travelling("django_delayq.context.sentry.Sentry")
    yield transport.items
    sentry_sdk.get_global_scope().set_client(before)
    client.close()


@pytest.fixture
def sent(travelling):
    """What is sent to Sentry."""
    with sending(travelling, 1.0) as items:
        yield items


@pytest.fixture
def sent_untraced(travelling):
    """What is sent to Sentry by a project that traces nothing."""
    with sending(travelling, None) as items:
        yield items


def transactions(sent, op):
    return [
        item
        for item in sent
        if item
        and item.get("type") == "transaction"
        and item["contexts"]["trace"]["op"] == op
    ]


@MODES
def test_sentry_sees_who_published_and_what_was_processed(
    sent, work, queue_name, two_tasks, is_async
):
    with sentry_sdk.start_transaction(op="http.server", name="request") as request:
        job = schedule(two_tasks[is_async], 0, "")
    work()
    wait_for(job, State.SUCCEEDED)

    wait_until(
        lambda: transactions(sent, "queue.process"), description="the attempt is sent"
    )
    (site,) = transactions(sent, "http.server")
    (published,) = site["spans"]
    assert published["op"] == "queue.publish"
    assert published["data"]["messaging.message.id"] == job.id
    assert published["data"]["messaging.destination.name"] == queue_name
    (processed,) = transactions(sent, "queue.process")
    told = processed["contexts"]["trace"]
    assert processed["transaction"] == two_tasks[is_async].name
    assert told["trace_id"] == request.trace_id
    assert told["parent_span_id"] == published["span_id"]
    assert told["status"] == "ok"
    assert told["data"]["messaging.message.id"] == job.id
    assert told["data"]["messaging.message.retry.count"] == 0
    assert told["data"]["messaging.message.receive.latency"] >= 0


@MODES
def test_the_failure_that_ends_a_job_is_sent_from_a_scope_of_its_own(
    sent, work, queue_name, two_tasks, is_async
):
    job = schedule(two_tasks[is_async], 0, "fail")
    work()
    wait_for(job, State.DEAD)

    wait_until(
        lambda: len(transactions(sent, "queue.process")) == 2,
        description="both attempts are sent",
    )
    (error,) = [item for item in sent if item and "exception" in item]
    assert error["exception"]["values"][0]["value"] == "as told"
    assert error["tags"] == {
        "delayq.queue": queue_name,
        "delayq.task": two_tasks[is_async].name,
    }
    # The attempt before it was retried.
    assert error["contexts"]["delayq"] == {"job": job.id, "attempt": 2}
    assert (
        error["contexts"]["trace"]["span_id"]
        == (transactions(sent, "queue.process")[1]["contexts"]["trace"]["span_id"])
    )


@MODES
def test_without_traces_only_exceptions_are_sent_each_from_a_scope_of_its_own(
    sent_untraced, work, queue_name, is_async
):
    def body(what):
        sentry_sdk.set_tag(what, "yes")
        if what == "retry" and not current_job().attempts:
            raise Retry(0)
        if what == "fail":
            raise ValueError("as told")

    async def abody(what):
        body(what)

    task = delayed_task(name="shop.tasks.tag", queue=queue_name, max_attempts=2)(
        abody if is_async else body
    )
    well, decided, failing = (
        schedule(task.using(max_attempts=most), 0, what)
        for what, most in (("well", 2), ("retry", 2), ("fail", 1))
    )
    work(threads=1)
    wait_for(well, State.SUCCEEDED)
    wait_for(decided, State.SUCCEEDED)
    wait_for(failing, State.DEAD)

    (error,) = sent_untraced
    assert error["exception"]["values"][0]["value"] == "as told"
    # No tag of the two others.
    assert error["tags"] == {
        "fail": "yes",
        "delayq.queue": queue_name,
        "delayq.task": "shop.tasks.tag",
    }
    assert error["contexts"]["delayq"] == {"job": failing.id, "attempt": 1}


def test_a_decision_of_a_task_is_no_exception(sent, work, two_tasks):
    job = schedule(two_tasks[False], 0, "retry")
    work()
    wait_for(job, State.SUCCEEDED)

    wait_until(
        lambda: len(transactions(sent, "queue.process")) == 2,
        description="both attempts are sent",
    )
    assert [item for item in sent if item and "exception" in item] == []


def test_without_sentrys_client_a_job_carries_nothing(travelling, two_tasks):
    travelling("django_delayq.context.sentry.Sentry")

    assert b"headers" not in schedule(two_tasks[False], 600, "").draft.new.payload


def test_all_of_them_travel_together(spans, sent, travelling, work, two_tasks):
    travelling(
        "django_delayq.context.Locale",
        "django_delayq.context.otel.OpenTelemetry",
        "django_delayq.context.sentry.Sentry",
    )
    job = schedule(two_tasks[False], 0, "")
    work()
    wait_for(job, State.SUCCEEDED)

    wait_until(
        lambda: spans(SpanKind.CONSUMER) and transactions(sent, "queue.process"),
        description="both have heard of it",
    )
