"""What reaches Sentry: one event for a job that failed for good, and nothing that its task has marked as sensitive."""

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from contextlib import contextmanager

import pytest
import sentry_sdk
from django.db import transaction
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_delayq import (
    Backoff,
    Cancel,
    Retry,
    Snooze,
    conf,
    current_job,
    delayed_task,
    get_job,
    pause,
    resume,
    schedule,
    schedule_many,
)
from django_delayq.apps import load_contexts
from django_delayq.backend import sensitive
from django_delayq.context import sentry as context
from django_delayq.context.sentry import Sentry
from django_delayq.core.states import State
from django_delayq.jobs import contexts
from django_delayq.testing import frozen_queue
from tests.backend.samples import task as django_task
from tests.polling import wait_until
from tests.worker.sentried.apps import ENVIRONMENT
from tests.worker.sentried.tasks import charge, decline, die

#: A token with everything that is written in another way somewhere.
TOKEN = "t0k/3n+\"'\\\n  ü%" + hashlib.shake_256(b"no period").hexdigest(1_600)
AT_ONCE = Backoff(base=0, jitter=0)
every_attempt = Sentry(every_attempt=True)


class Memory(Transport):
    def __init__(self):
        super().__init__()
        self.items = []

    def capture_envelope(self, envelope):
        self.items += [(item.type, item.payload.json) for item in envelope.items]


@contextmanager
def sentry(configure, path="django_delayq.context.sentry.Sentry", **options):
    """Set Sentry up with its logging, in a way that ends with the test; yield what is sent."""
    contexts.load.cache_clear()
    configure()["CONTEXT"] = [path]
    conf.get_settings.cache_clear()
    context._sent.clear()
    transport = Memory()
    client = sentry_sdk.Client(
        dsn="https://key@sentry.example/1",
        transport=transport,
        default_integrations=False,
        integrations=[LoggingIntegration(), DedupeIntegration()],
        **options,
    )
    scope = sentry_sdk.get_global_scope()
    before = scope.client
    scope.set_client(client)
    try:
        with sentry_sdk.isolation_scope():
            yield transport.items
    finally:
        scope.set_client(before)
        client.close()
        contexts.load.cache_clear()
        conf.get_settings.cache_clear()


def errors(sent):
    return [item for kind, item in sent if kind == "event"]


def forms(token):
    """Return how a token may be written."""
    return [
        token,
        repr(token)[1:-1],
        json.dumps(token)[1:-1],
        json.dumps(token, ensure_ascii=False)[1:-1],
        repr(json.dumps(token))[2:-2],
        token[:40],
        repr(token)[1:40],
        token[-40:],
        "3n+",
        token[1000:1012],
    ]


def _texts(value, path):
    if isinstance(value, dict):
        for key, each in value.items():
            yield path, str(key)
            yield from _texts(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _texts(each, f"{path}.{number}")
    else:
        yield path, str(value)


def assert_hidden(sent, token=TOKEN):
    written = json.dumps(sent, default=repr)
    texts = list(_texts(sent, ""))
    for form in forms(token):
        found = [(path, text[:300]) for path, text in texts if form in text]
        assert not found, (form, found[0])
    assert "***" in written


def _chain(token, body):
    try:
        try:
            raise KeyError(token)
        except KeyError:
            raise ValueError(f"context {body}")  # noqa: B904
    except ValueError as error:
        raise RuntimeError(f"cause {token[:200]}") from error


def _group(token, body):
    inner = ValueError(body)
    inner.add_note(f"a note: {body!r}")
    raise ExceptionGroup(token, [inner, ExceptionGroup("more", [KeyError(token)])])


def _truncated(token, body):
    raise ValueError(f"first {token[:200]}, last {token[-40:]}, and {token[:60]!r}...")


class Holder:
    def __init__(self, token):
        self.token = token

    def __repr__(self):
        return f"<Holder of {self.token}>"


def _locals(token, body):
    holder, encoded, deep = Holder(token), token.encode(), {token: [(token, {1: body})]}
    raise ValueError(len(f"{holder}{encoded!r}{deep}"))


WAYS = {"chain": _chain, "group": _group, "truncated": _truncated, "locals": _locals}


def spread(token):
    """Put a token into each part of an event."""
    body = json.dumps({"token": token})
    logging.getLogger("shop").warning("a breadcrumb with %s", token, extra={"x": body})
    sentry_sdk.set_tag("token", token[:100])
    sentry_sdk.set_extra("token", Holder(token))
    sentry_sdk.set_context("mine", {"token": [token], token: 1})
    sentry_sdk.set_user({"id": token})
    sentry_sdk.add_breadcrumb(message=token, data={"body": body})
    with sentry_sdk.start_span(op="db", name=f"SELECT '{token}'") as span:
        span.set_data("body", body)
    sentry_sdk.capture_message(f"a message with {body!r}")
    logging.getLogger("shop").error("an error with %s", token)
    return body


@delayed_task(sensitive=("token",), max_attempts=1)
def leak(token, way):
    WAYS[way](token, spread(token))


@delayed_task(sensitive=("token",), max_attempts=1)
async def aleak(token, way):
    await asyncio.sleep(0)
    WAYS[way](token, spread(token))


@pytest.mark.parametrize("task", [leak, aleak], ids=["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("traces", [None, 1.0], ids=["untraced", "traced"])
def test_nothing_that_an_attempt_sends_has_a_sensitive_value(
    configure, task, way, traces
):
    with (
        sentry(configure, traces_sample_rate=traces, attach_stacktrace=True) as sent,
        frozen_queue() as q,
    ):
        job = task.schedule(0, TOKEN, way)
        q.run_due()
        assert job.refresh() is State.DEAD

    # Two messages of the task, and its failure.
    assert len(errors(sent)) == 3
    assert len([kind for kind, _ in sent if kind == "transaction"]) == bool(traces)
    assert_hidden(sent)
    failure = errors(sent)[-1]
    # What surrounds the value stays.
    frames = failure["exception"]["values"][-1]["stacktrace"]["frames"]
    assert frames[-1]["function"] == f"_{way}"
    assert failure["contexts"]["delayq"]["job"] == job.id
    assert errors(sent)[0]["threads"]["values"][0]["stacktrace"]["frames"]


# Sentry itself leaves out what is named token.
@delayed_task
def lead():
    pass


@delayed_task(sensitive=("letter",))
def receive(letter, order=0):
    pass


def _too_large(letter):
    receive.schedule(0, letter, order="x" * conf.get_settings().max_payload_bytes)


def _no_json(letter):
    receive.schedule(0, {letter})


def _no_delay(letter):
    receive.schedule("soon", letter=letter)


def _no_fit(letter):
    schedule(receive, 0, letter, 1, 2)


def _not_stored(letter):
    receive.schedule(0, letter)


def _not_stored_with_others(letter):
    schedule_many(receive.prepare(0, letter) for _ in range(2))


def _not_stored_with_what_follows(letter):
    schedule(lead.prepare(0).then(receive.prepare(0, letter)))


CALLS = [
    _too_large,
    _no_json,
    _no_delay,
    _no_fit,
    _not_stored,
    _not_stored_with_others,
    _not_stored_with_what_follows,
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_the_error_of_a_call_that_schedules_has_no_sensitive_value(
    configure, settings, call
):
    with sentry(configure) as sent:
        settings.DELAYQ = settings.DELAYQ | {"CONNECTION": "unix:///dev/null/nobody"}
        try:
            call(TOKEN)
        except Exception as error:
            sentry_sdk.capture_exception(error)

    (event,) = errors(sent)
    assert_hidden(sent)
    frames = event["exception"]["values"][-1]["stacktrace"]["frames"]
    # What surrounds the value stays.
    assert call.__name__ in [frame["function"] for frame in frames]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_a_commit_cannot_send_is_one_event(configure, settings):
    with sentry(configure) as sent:
        settings.DELAYQ = settings.DELAYQ | {"CONNECTION": "unix:///dev/null/nobody"}
        try:
            with transaction.atomic():
                _not_stored(TOKEN)
        except Exception as error:
            sentry_sdk.capture_exception(error)

    assert len(errors(sent)) == 1


def test_contexts_are_there_before_the_first_call(configure):
    with sentry(configure):
        load_contexts()

        assert contexts.load.cache_info().currsize == 1


def test_logs_that_an_attempt_sends_have_no_sensitive_value(configure):
    logs = pytest.importorskip("sentry_sdk.logger", reason="an SDK without logs")
    kept = []

    def keep(log, hint):
        kept.append(log)
        return log

    @delayed_task(name="shop.tasks.logs", sensitive=("token",))
    def say(token):
        logs.warning("a log with {token}", token=token)
        logs.info(f"another with {token[:50]}", attributes={"body": repr(token)})

    with sentry(configure, enable_logs=True, before_send_log=keep), frozen_queue() as q:
        logs.info("outside {token}", token=TOKEN)
        say.schedule(0, TOKEN)
        q.run_due()

    bodies = [log["body"] for log in kept]
    assert TOKEN in bodies[0]
    assert "a log with ***" in bodies
    assert "another with ***" in bodies
    assert_hidden(kept[1:])


def test_an_event_that_cannot_be_masked_is_not_sent(configure, monkeypatch):
    def fail(self, event):
        raise RuntimeError("no masks")

    monkeypatch.setattr(context._Masking, "mask", fail)
    with sentry(configure, traces_sample_rate=1.0) as sent, frozen_queue() as q:
        job = leak.schedule(0, TOKEN, "chain")
        q.run_due()
        assert job.refresh() is State.DEAD

    # The log of the worker is there, which has its own masks.
    assert [kind for kind, _ in sent if kind != "event"] == []
    assert [each for each in errors(sent) if "exception" in each] == []


def test_an_event_of_very_many_values_is_masked_where_nobody_looks(configure):
    masking = context._Masking(["secret"])

    masked = masking.mask({"extra": {"long": ["a secret"] * context.MOST_VALUES}})

    assert set(masked["extra"]["long"]) == {"a ***", "***"}


@delayed_task(max_attempts=3, backoff=AT_ONCE)
def fail(order):
    raise ValueError(f"order {order}, attempt {current_job().attempts + 1}")


def tags_of(task):
    return {"delayq.queue": "default", "delayq.task": task.name}


def run_to_the_end(job):
    with frozen_queue() as q:
        job = job.schedule(0, 4711)
        for _ in range(3):
            q.run_due()
            q.advance(60)
        job.refresh()
    return job


@pytest.mark.parametrize("traces", [None, 1.0], ids=["untraced", "traced"])
def test_only_the_failure_that_ends_a_job_is_an_error_event(configure, traces):
    with sentry(configure, traces_sample_rate=traces) as sent:
        job = run_to_the_end(fail)

    assert job.state is State.DEAD
    (event,) = errors(sent)
    (value,) = event["exception"]["values"]
    assert value["value"] == "order 4711, attempt 3"
    assert event["contexts"]["delayq"] == {"job": job.id, "attempt": 3}
    assert event["tags"] == tags_of(fail)
    assert value["mechanism"] == {"type": "delayq", "handled": False}
    assert "logentry" not in event


def test_every_attempt_is_an_error_event_where_a_project_asks_for_it(configure):
    with sentry(configure, "tests.worker.test_sentry.every_attempt") as sent:
        run_to_the_end(fail)

    assert [each["contexts"]["delayq"]["attempt"] for each in errors(sent)] == [1, 2, 3]


@delayed_task(max_attempts=2)
def decide(what):
    if what == "retry":
        raise Retry(0, "no answer") from OSError("refused")
    if what == "bare retry":
        raise Retry
    if what == "retry alone":
        raise Retry(0, "no answer")
    raise {"cancel": Cancel("enough"), "snooze": Snooze(3_600)}[what]


@pytest.mark.parametrize(
    ("what", "sent_as"),
    [
        ("cancel", []),
        ("snooze", []),
        ("retry", [["refused", "no answer (attempt 2 was the last)"]]),
        ("retry alone", [["no answer (attempt 2 was the last)"]]),
        ("bare retry", [["attempt 2 was the last"]]),
    ],
)
def test_a_decision_is_sent_only_as_the_failure_that_ends_a_job(
    configure, what, sent_as
):
    with sentry(configure) as sent, frozen_queue() as q:
        decide.schedule(0, what)
        q.run_due()
        q.advance(10)

    assert [
        [value["value"] for value in each["exception"]["values"]]
        for each in errors(sent)
    ] == sent_as


@pytest.mark.parametrize(
    ("what", "statuses"),
    [
        ("cancel", ["ok"]),
        ("snooze", ["ok"]),
        ("retry", ["ok", "internal_error"]),
    ],
)
def test_the_transaction_of_a_decision_is_a_failure_only_if_it_ends_a_job_as_one(
    configure, what, statuses
):
    with sentry(configure, traces_sample_rate=1.0) as sent, frozen_queue() as q:
        decide.schedule(0, what)
        q.run_due()
        q.advance(10)

    attempts = [
        item["contexts"]["trace"] for kind, item in sent if kind == "transaction"
    ]
    assert [
        each["status"] for each in attempts if each["op"] == "queue.process"
    ] == statuses


def test_a_retry_is_sent_where_a_project_asks_for_every_attempt(configure):
    with (
        sentry(configure, "tests.worker.test_sentry.every_attempt") as sent,
        frozen_queue() as q,
    ):
        decide.schedule(0, "retry")
        q.run_due()

    assert [
        (
            each["contexts"]["delayq"]["attempt"],
            each["exception"]["values"][-1]["value"],
        )
        for each in errors(sent)
    ] == [
        (1, "no answer (attempt 1)"),
        (2, "no answer (attempt 2 was the last)"),
    ]


def test_an_attempt_forgets_what_was_sent_for_an_earlier_one(configure):
    with sentry(configure), frozen_queue() as q:
        job = decide.schedule(0, "snooze")
        context._sent[job.id] = 1
        q.run_due()

        assert job.id not in context._sent


class Shared(OrderedDict):
    """Is changed by another thread whenever somebody goes through it."""

    def __iter__(self):
        raise RuntimeError("OrderedDict mutated during iteration")


def test_the_oldest_failure_is_forgotten_while_other_threads_fail(monkeypatch):
    monkeypatch.setattr(context, "MOST_SENT", 2)
    monkeypatch.setattr(context, "_sent", Shared())

    for job_id in ("a", "b", "c"):
        context._remember(job_id, 1)

    assert ["a" in context._sent, "b" in context._sent] == [False, True]


@django_task
def refuse(order, token):
    raise LookupError(f"order {order}: {token}")


@django_task
@sensitive("token")
async def arefuse_in_secret(order, token):
    raise LookupError(f"order {order}: {token}")


@pytest.mark.parametrize(
    "task", [refuse, arefuse_in_secret], ids=["plain", "sensitive"]
)
def test_djangos_tasks_are_one_event_as_well(configure, task):
    with sentry(configure) as sent, frozen_queue() as q:
        result = task.using(max_attempts=1).enqueue(4711, TOKEN)
        q.run_due()
        assert get_job(result.id).state is State.DEAD

    (event,) = errors(sent)
    assert event["contexts"]["delayq"] == {"job": result.id, "attempt": 1}
    assert event["exception"]["values"][-1]["type"] == "LookupError"
    if task is not refuse:
        assert_hidden(event)


@delayed_task(max_attempts=1)
def forget_to_loop():
    return (each for each in "lazy")


def test_a_failure_that_only_the_worker_sees_is_an_event_of_its_log(configure):
    with sentry(configure) as sent, frozen_queue() as q:
        forget_to_loop.schedule(0)
        q.run_due()

    (event,) = errors(sent)
    assert event["logger"] == "django_delayq.worker"
    (value,) = event["exception"]["values"]
    assert "returned a generator" in value["value"]
    assert value["mechanism"] == {"type": "delayq", "handled": False}
    assert event["tags"] == tags_of(forget_to_loop)
    # Sentry groups events by the format of their message, and shows that as their title.
    assert event["logentry"]["message"].startswith(
        f"job=%s task={forget_to_loop.name} outcome=dead attempt=%s"
    )


@delayed_task(on_expiry="dead", expires=1)
def too_late():
    pass


def test_a_job_that_expires_as_a_dead_letter_is_an_event_with_its_tags(configure):
    with sentry(configure) as sent, frozen_queue() as q:
        job = too_late.schedule(0)
        pause("default")
        q.advance(10)
        resume("default")
        q.run_due()
        assert job.refresh() is State.DEAD

    (event,) = errors(sent)
    assert event["contexts"]["delayq"] == {"job": job.id}
    assert event["tags"] == tags_of(too_late)


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("django_delayq.context.sentry.Sentry", 0),
        ("tests.worker.test_sentry.every_attempt", 1),
    ],
)
def test_the_death_of_a_worker_process_is_an_event_only_where_a_project_asks_for_it(
    configure, path, count
):
    with sentry(configure, path) as sent:
        logging.getLogger("django_delayq.worker").error(
            "worker process 7 was killed", extra={"delayq": {"process": 7}}
        )

    assert len(errors(sent)) == count


def test_a_job_that_kills_its_workers_is_one_event_with_its_tags(
    configure, program, tmp_path, queue_name
):
    delayq = configure()
    delayq["CONTEXT"] = ["django_delayq.context.sentry.Sentry"]
    delayq["WORKER"] = {"MAX_KILLS": 0}
    path = tmp_path / "sentry"
    job = schedule(die.using(queue=queue_name), 0)
    worker = program(
        "--queue",
        queue_name,
        environment={
            "WORKER_TEST_APPS": "tests.worker.sentried",
            ENVIRONMENT: str(path),
        },
    )
    worker.wait_for_log("was killed by signal 9")
    wait_until(lambda: job.refresh() is State.DEAD, description="it is dead")
    wait_until(path.exists, description="something is sent")
    worker.stop()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (event,) = [each["item"] for each in lines if each["type"] == "event"]
    assert event["contexts"]["delayq"] == {"job": job.id}
    assert event["tags"] == {"delayq.queue": queue_name, "delayq.task": die.name}


def test_a_job_that_the_worker_gives_back_is_no_failure(configure):
    job = None

    @delayed_task(name="shop.tasks.stopped", max_attempts=1)
    def stopped():
        nonlocal job
        job = current_job()

    with sentry(configure), frozen_queue() as q:
        stopped.schedule(0)
        q.run_due()

    assert context._failure(job, asyncio.CancelledError(), True) is None
    assert context._failure(job, SystemExit(1), False) is not None


def test_a_worker_program_sends_one_event_for_a_job_and_hides_its_token(
    configure, program, tmp_path, queue_name, server
):
    configure()["CONTEXT"] = ["django_delayq.context.sentry.Sentry"]
    path = tmp_path / "sentry"
    token = "tok_" + "0123456789abcdef" * 100
    masked = schedule(charge.using(queue=queue_name), 0, 4711, token)
    plain = schedule(decline.using(queue=queue_name), 0, 4712)
    program(
        "--queue",
        queue_name,
        environment={
            "WORKER_TEST_APPS": "tests.worker.sentried",
            ENVIRONMENT: str(path),
        },
    )
    for job in (masked, plain):
        wait_until(
            lambda job=job: job.refresh() is State.DEAD, description=f"{job} is dead"
        )

    def lines():
        text = path.read_text() if path.exists() else ""
        return [
            json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line
        ]

    wait_until(
        lambda: [each["type"] for each in lines()].count("transaction") == 4,
        description="all attempts are sent",
    )
    events = [each["item"] for each in lines() if each["type"] == "event"]
    told = {each["contexts"]["delayq"]["job"]: each for each in events}
    assert len(events) == len(told) == 2
    assert told[masked.id]["contexts"]["delayq"]["attempt"] == 3
    assert (
        "order 4711, attempt 3" in told[masked.id]["exception"]["values"][-1]["value"]
    )
    text = path.read_text()
    assert "tok_" not in text
    assert "89abcdef01" not in text
