"""A job whose signature, format or locator was spoilt on the server: a clear state, and nothing is lost."""

import pytest

from django_delayq import queue_handler, schedule
from django_delayq.conf import get_settings
from django_delayq.core import hold as hold_calls
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.exceptions import NotSigned
from django_delayq.jobs import registry
from django_delayq.transport.run import run
from django_delayq.wire.signatures import LENGTH
from django_delayq.worker import payload
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.records import record
from tests.worker.workers import counts

LATER = 3_600
QUEUES = {"ours": {}, "shared": {"REDISSON": "3.27.2", "CODEC": "StringCodec"}}


@pytest.fixture(params=QUEUES)
def queue(request, configure, queue_name):
    configure(QUEUES[request.param])
    return queue_name


@pytest.fixture
def keys(queue):
    return get_settings().queue(queue).keys


@pytest.fixture
def job(queue):
    return schedule(tasks.note.using(queue=queue), LATER, "of a job")


@pytest.fixture(autouse=True)
def handler(queue):
    """What the queue's handler must not be given."""

    def take(value):
        record("handled")

    task = queue_handler(queue, name=f"take-{queue}")(take)
    yield
    registry._handlers.pop(queue)
    registry._tasks.pop(task.name)


@pytest.fixture
def rewrite(client, keys):
    """Change a part of the one frame that waits, and make it due."""

    def rewrite(old, new):
        (frame,) = client.zrange(keys.queue.timeout_set, 0, -1)
        changed = frame.replace(old, new)
        assert len(changed) == len(frame)
        assert changed != frame
        client.zrem(keys.queue.timeout_set, frame)
        client.zadd(keys.queue.timeout_set, {changed: 1_000})
        if client.llen(keys.queue.delay_queue):
            client.lset(keys.queue.delay_queue, 0, changed)

    return rewrite


def mac_of(client, keys):
    (frame,) = client.zrange(keys.queue.timeout_set, 0, -1)
    at = frame.index(b'"mac":"') + 7
    return frame[at : at + LENGTH]


def is_settled(queue):
    told = counts(queue)
    return not (told.waiting or told.destination or told.running or told.retrying)


def test_job_whose_signature_has_wrong_bytes_goes_to_quarantine_and_runs_when_it_is_mended(
    client, queue, keys, job, rewrite, work, records
):
    mac = mac_of(client, keys)
    # Its locator knows the first half of the MAC, and takes it for the job.
    spoilt = mac[:-8] + b"AAAAAAAA"
    rewrite(mac, spoilt)

    work(threads=1)

    wait_until(
        lambda: job.refresh() is State.QUARANTINED, description="it is in quarantine"
    )
    assert "does not fit its token, its queue" in job.error["error"]
    assert (records.count("run"), records.count("handled")) == (0, 0)
    payload = client.hget(keys.payloads, job.token)
    client.hset(keys.payloads, job.token, payload.replace(spoilt, mac))
    assert job.retry()
    wait_until(lambda: records.count("run") == 1, description="it runs")
    assert records.jobs("run") == [job.id]


def test_job_of_an_unknown_format_is_held_and_told_once(
    client, queue, keys, job, rewrite, work, records, caplog
):
    mac = mac_of(client, keys)
    rewrite(mac, b"9" + mac[1:])

    work(threads=1)

    wait_until(lambda: job.refresh() is State.HELD, description="it is held")
    wait_until(lambda: "holds jobs until" in caplog.text, description="that is told")
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1
    assert "a worker comes that has the format 9" in errors[0].getMessage()
    assert run(client, hold_calls.held_names(keys)).counts == {
        Reason(Kind.FORMAT, "9"): 1
    }
    assert (job.attempts, job.kills) == (0, 0)
    assert (records.count("run"), records.count("handled")) == (0, 0)


def test_only_so_many_missing_keys_are_logged(monkeypatch, caplog):
    told = set()
    monkeypatch.setattr(payload, "_told", told)
    monkeypatch.setattr(payload, "MOST_TOLD", 2)

    for key in ("key 0001", "key 0002", "key 0001", "key 0003"):
        payload._log_missing("mail", NotSigned("why", missing=key))

    assert len(caplog.records) == len(told) == 2


@pytest.mark.parametrize("how", ["cut", "zeros", "another's", "gone"])
def test_job_whose_locator_lacks_the_signature_runs_once_all_the_same(
    client, queue, keys, job, work, records, how
):
    locator = client.hget(keys.locators, job.token)
    spoilt = {
        "cut": locator[:17],
        "zeros": locator[:17] + bytes(16) + locator[33:],
        "another's": locator[:17] + b"A" * 16 + locator[33:],
    }
    if how == "gone":
        client.hdel(keys.locators, job.token)
    else:
        client.hset(keys.locators, job.token, spoilt[how])
    (frame,) = client.zrange(keys.queue.timeout_set, 0, -1)
    client.zadd(keys.queue.timeout_set, {frame: 1_000})

    work(threads=1)

    wait_until(lambda: records.count("run") == 1, description="it runs")
    wait_until(lambda: is_settled(queue), description="it is over")
    assert (records.count("run"), records.count("handled")) == (1, 0)
    (line,) = records.all("run")
    assert line["text"] == "of a job"
