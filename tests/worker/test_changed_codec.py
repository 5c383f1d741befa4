"""Jobs that wait while REDISSON or CODEC of their queue changes run as if nothing had changed."""

import pytest

from django_delayq import delayed_task, schedule
from django_delayq.backoff import Backoff
from django_delayq.codecs import get_codec
from django_delayq.conf import get_keyring, get_settings
from django_delayq.core import hold as hold_calls
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.health.held_problems import find_held
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.jobs import registry
from django_delayq.transport.run import run
from tests.polling import wait_until
from tests.signed import signed
from tests.worker.project import tasks
from tests.worker.records import record
from tests.worker.workers import counts

LATER = 3_600
#: Each way in which payloads are written, as a queue's settings.
WAYS = {
    "ours": {},
    "text": {"REDISSON": "3.52.0", "CODEC": "StringCodec"},
    "jackson": {"REDISSON": "3.52.0", "CODEC": "JsonJacksonCodec"},
    "kryo": {"REDISSON": "3.52.0", "CODEC": "Kryo5Codec"},
    "river": {"REDISSON": "3.16.6", "CODEC": "MarshallingCodec"},
    "cbor": {"REDISSON": "3.52.0", "CODEC": "CborJacksonCodec"},
    "smile": {"REDISSON": "3.52.0", "CODEC": "SmileJacksonCodec"},
}
#: Text that codecs write in different ways.
TEXT = 'a "b" \\ é 漢 😀 \n'
#: `CborJacksonCodec` writes text as long as this in pieces.
LONG = "x" * 5_000


@pytest.fixture
def fails():
    """Whether jobs of `job_of` fail."""
    return [True]


@pytest.fixture
def tried(fails):
    """A task whose jobs wait for an hour once they have failed."""

    def try_it(text):
        if fails:
            raise tasks.Wrong
        record("run", text=text)

    name = "test-changed-codec"
    yield delayed_task(name=name, backoff=Backoff(base=LATER, jitter=0))(try_it)
    registry._tasks.pop(name)


@pytest.fixture
def unknown():
    """A task that the first worker does not know."""
    name = "test-forgotten-codec"
    yield delayed_task(name=name)(tasks.note.function)
    registry._tasks.pop(name, None)


@pytest.mark.parametrize("before", WAYS)
def test_job_runs_after_each_change_of_the_codec_whatever_it_waits_for(
    configure, work, records, queue_name, tried, fails, unknown, before
):
    others = [name for name in WAYS if name != before]
    queues = [f"{queue_name}-{name}" for name in others]
    configure(None, **{name: WAYS[before] for name in others})
    jobs = {}
    for queue in queues:
        jobs[queue, "retried"] = schedule(tried.using(queue=queue), 0, TEXT)
        once = tried.using(queue=queue, max_attempts=1)
        jobs[queue, "dead"] = schedule(once, 0, TEXT)
        jobs[queue, "held"] = schedule(unknown.using(queue=queue), 0, TEXT)
    registry._tasks.pop(unknown.name)
    first = work(queues)
    expected = {
        "retried": State.RETRYING,
        "dead": State.DEAD,
        "held": State.HELD,
    }
    for (_, how), job in jobs.items():
        wait_until(
            lambda job=job, how=how: job.refresh() is expected[how],
            description=f"a job is {how}",
        )
    first.stop()
    for queue in queues:
        jobs[queue, "due"] = schedule(tasks.note.using(queue=queue), 0, TEXT)
        jobs[queue, "delayed"] = schedule(tasks.note.using(queue=queue), LATER, TEXT)

    configure(None, **{name: WAYS[name] for name in others})
    registry.register(unknown)
    fails.clear()
    second = work(queues)
    for (_, how), job in jobs.items():
        if how in ("retried", "delayed"):
            assert job.run_now(), how
        elif how == "dead":
            assert job.retry()

    ran = {job.id: f"{queue} {how}" for (queue, how), job in jobs.items()}
    wait_until(lambda: len(records.jobs("run")) >= len(ran), description="all have run")
    second.stop()
    assert sorted(ran[job] for job in records.jobs("run")) == sorted(ran.values())
    assert {line["text"] for line in records.all("run")} == {TEXT}
    for queue in queues:
        told = counts(queue)
        assert (told.dead, told.quarantined, told.held, told.retrying) == (0, 0, 0, 0)


@pytest.fixture
def unread(client, configure, work, queue_name):
    """A job that the queue's codec does not read, held by a worker."""
    configure(WAYS["cbor"])
    job = schedule(tasks.note.using(queue=queue_name, unique=True), 0, LONG)
    configure(WAYS["text"])
    worker = work()
    wait_until(lambda: job.refresh() is State.HELD, description="it is held")
    worker.stop()
    return job


def test_job_whose_text_only_its_codec_reads_is_held_until_that_is_back(
    client, configure, work, records, queue_name, unread, caplog
):
    job, keys = unread, get_settings().queue(queue_name).keys

    held = run(client, hold_calls.held_names(keys))

    assert held.counts == {Reason(Kind.CODEC, "StringCodec"): 1}
    assert (job.attempts, job.kills) == (0, 0)
    (line,) = [
        each.getMessage()
        for each in caplog.get_records("setup")
        if each.levelname == "ERROR"
    ]
    assert "StringCodec does not read it, and it looks like CborJacksonCodec" in line
    assert "Set CODEC and REDISSON of the queue" in line
    (problem,) = find_held(
        QueueFacts(name=queue_name, held=held, key_ids=get_keyring().ids)
    )
    assert "StringCodec cannot read it" in problem.message
    # Another codec that does not read it either.
    configure(WAYS["kryo"])
    worker = work()
    wait_until(
        lambda: (
            run(client, hold_calls.held_names(keys)).counts
            == {Reason(Kind.CODEC, "Kryo5Codec"): 1}
        ),
        description="it is held for the other",
    )
    worker.stop()
    assert records.count("run") == 0
    configure(WAYS["cbor"])
    work()
    wait_until(lambda: records.jobs("run") == [job.id], description="it runs")
    assert records.all("run")[0]["text"] == LONG


def test_job_that_is_held_for_its_codec_can_be_cancelled(client, queue_name, unread):
    assert unread.cancel()

    keys = get_settings().queue(queue_name).keys
    assert run(client, hold_calls.held_names(keys)).counts == {}
    assert not client.hexists(keys.payloads, unread.token)


def test_job_that_is_held_for_its_codec_keeps_no_later_call_out(
    configure, work, records, queue_name, unread
):
    later = schedule(tasks.note.using(queue=queue_name, unique=True), 0, LONG)

    assert later.created
    worker = work()
    wait_until(lambda: records.jobs("run") == [later.id], description="it runs")
    worker.stop()
    configure(WAYS["cbor"])
    work()
    wait_until(
        lambda: records.jobs("run") == [later.id, unread.id],
        description="the other runs as well",
    )


def test_job_in_another_codec_that_lacks_its_key_is_held_for_that(
    client, configure, work, records, queue_name, settings
):
    configure(WAYS["kryo"])
    job = schedule(tasks.note.using(queue=queue_name), 0, TEXT)
    (old,) = get_keyring().ids
    configure(WAYS["text"])
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": ["a key of this test alone"]}
    worker = work()
    wait_until(lambda: job.refresh() is State.HELD, description="it is held")
    keys = get_settings().queue(queue_name).keys
    assert run(client, hold_calls.held_names(keys)).counts == {Reason(Kind.KEY, old): 1}
    worker.stop()

    configure(WAYS["text"])
    work()

    wait_until(lambda: records.jobs("run") == [job.id], description="it runs")


def test_job_that_java_offers_again_in_another_codec_runs(
    client, configure, work, records, queue_name
):
    configure(WAYS["text"])
    queue = get_settings().queue(queue_name)
    client.rpush(
        queue.keys.queue.destination,
        signed(tasks.note.name, queue_name, TEXT, codec=get_codec("Kryo5Codec")),
    )

    work()

    wait_until(lambda: records.count("run") == 1, description="it runs")
    assert records.all("run")[0]["text"] == TEXT
