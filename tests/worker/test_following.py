"""What follows a job: `then` and `on_dead`, in its own queue and in others."""

import os
import time

import pytest
from django.core.management import call_command

from django_delayq import (
    EncodeError,
    InvalidTask,
    JobNotFound,
    State,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core import forward_calls, hand_over, queue_reads
from django_delayq.core.durability import Durable
from django_delayq.core.followers import Following
from django_delayq.core.scripts import PACKAGES
from django_delayq.core.store import NewJob
from django_delayq.jobs import kept
from django_delayq.transport.bind import bind_in
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.worker import forward_removal
from django_delayq.worker import forwards as forwards_of_worker
from tests.chaos.history import hold_back
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.replicas import Replicated
from tests.worker.conftest import every_server
from tests.worker.project import tasks

healed: list[bool] = []


@delayed_task
def fail_until_healed() -> None:
    if not healed:
        raise ValueError


def note(queue, text, delay=0):
    return tasks.note.using(queue=queue).prepare(delay, text)


def texts(records):
    return [line.get("text") for line in records.all("run")]


def ran(records, *expected):
    wait_until(
        lambda: len(records.all("run")) >= len(expected),
        description=f"{expected} have run",
    )
    assert sorted(map(str, texts(records))) == sorted(map(str, expected))


def finish(worker):
    wait_until(lambda: not worker.is_running, description="the worker has ended")


@every_server
def test_chain_runs_in_its_order(work, records, queue_name) -> None:
    last = note(queue_name, "c")
    job = note(queue_name, "a").then(note(queue_name, "b").then(last))
    schedule_many([job])
    work()

    ran(records, "a", "b", "c")

    assert texts(records) == ["a", "b", "c"]
    wait_until(
        lambda: last.refresh() is State.SUCCEEDED, description="the last one has ended"
    )


def test_several_follow_one(work, records, queue_name) -> None:
    names = [f"b{n}" for n in range(20)]
    job = note(queue_name, "a").then(*(note(queue_name, name) for name in names))
    schedule_many([job])
    finish(work(is_burst=True))

    assert texts(records)[0] == "a"
    assert sorted(texts(records)) == sorted(["a", *names])


def test_what_follows_is_not_there_before_and_has_its_delay_after(
    work, records, queue_name
) -> None:
    later = note(queue_name, "b", 600)
    schedule_many([note(queue_name, "a", 600).then(later)])
    assert later.refresh() is State.MISSING
    with pytest.raises(JobNotFound):
        get_job(later.id)
    assert not later.cancel()

    (job,) = [later]
    schedule_many([note(queue_name, "x").then(other := note(queue_name, "y", 600))])
    finish(work(is_burst=True))

    assert job.refresh() is State.MISSING
    assert get_job(other.id).state is State.SCHEDULED
    assert other.cancel()


def test_job_that_died_is_followed_by_what_on_dead_says(
    work, records, queue_name
) -> None:
    task = tasks.fail.using(queue=queue_name, max_attempts=2, backoff=tasks.AT_ONCE)
    job = task.prepare(0).then(note(queue_name, "then"))
    schedule_many([job.on_dead(note(queue_name, "dead"))])
    work()
    ran(records, None, None, "dead")

    assert get_job(job.id).state is State.DEAD

    # Retried, it dies again, and is followed again.
    wait_until(
        lambda: get_job(job.id).state is State.DEAD, description="the job is dead"
    )
    assert job.retry()
    ran(records, None, None, "dead", None, None, "dead")


def test_dead_letter_that_succeeds_at_last_is_followed_by_what_then_says(
    work, records, queue_name
) -> None:
    healed.clear()
    job = fail_until_healed.using(queue=queue_name, max_attempts=1).prepare(0)
    schedule_many([job.then(note(queue_name, "then"))])
    work()
    wait_until(
        lambda: get_job(job.id).state is State.DEAD, description="the job is dead"
    )
    assert texts(records) == []

    healed.append(True)
    assert job.retry()

    ran(records, "then")


def test_cancelled_job_is_followed_by_none(work, records, queue_name) -> None:
    job = note(queue_name, "a", 600).then(note(queue_name, "then"))
    schedule_many([job.on_dead(note(queue_name, "dead"))])
    assert job.cancel()
    finish(work(is_burst=True))

    assert texts(records) == []


def test_follower_in_another_queue_runs_once(
    work, configure, records, queue_name, client
) -> None:
    configure(other={}, more={})
    other, more = f"{queue_name}-other", f"{queue_name}-more"
    job = note(queue_name, "a").then(
        note(other, "b").then(note(queue_name, "d")),
        note(more, "c"),
        note(queue_name, "e"),
    )
    schedule_many([job])
    work([queue_name, other, more])

    ran(records, *"abcde")
    keys = get_settings().queue(queue_name).keys
    wait_until(
        lambda: not client.exists(keys.forwards),
        description="nothing is left to forward",
    )


def test_job_that_loses_its_worker_too_often_is_followed(
    work, records, queue_name, client
) -> None:
    job = note(queue_name, "a").on_dead(note(queue_name, "dead"))
    schedule_many([job])
    keys = get_settings().queue(queue_name).keys

    def claim():
        call = claim_calls.claim(
            keys, owner=b"o" * 8, request=os.urandom(8), limit=1, lease_ms=2_000
        )
        return run(client, call).jobs

    # A delay of 0 is rounded up to the next millisecond.
    assert len(wait_until(claim, description="the job is due")) == 1
    run(client, claim_calls.recover(keys, owner=b"o" * 8))
    work(max_kills=0)

    ran(records, "dead")
    assert get_job(job.id).state is State.DEAD
    assert "died or lost the lease" in get_job(job.id).error["error"]


def test_wrong_followers_are_refused_when_they_are_named(configure, queue_name) -> None:
    configure(java={"REDISSON": "3.52.0"})
    first = note(queue_name, "a")
    for wrong in (tasks.note, "task", None, first):
        with pytest.raises(InvalidTask, match=r"then\(\)"):
            first.then(wrong)
    with pytest.raises(InvalidTask, match="1 to 100"):
        first.then()
    with pytest.raises(InvalidTask, match="1 to 100"):
        first.then(*(note(queue_name, n) for n in range(101)))
    twice = note(queue_name, "b")
    with pytest.raises(InvalidTask, match="twice"):
        first.then(twice, twice)
    first.then(twice)
    with pytest.raises(InvalidTask, match="already"):
        first.then(note(queue_name, "c"))
    with pytest.raises(InvalidTask, match="already"):
        note(queue_name, "d").then(twice)
    with pytest.raises(InvalidTask, match="follows another job"):
        schedule_many([twice])
    sent = schedule(tasks.note.using(queue=queue_name), 600)
    with pytest.raises(InvalidTask, match="it was sent"):
        sent.then(note(queue_name, "e"))
    with pytest.raises(InvalidTask, match="it was sent"):
        note(queue_name, "e").then(sent)
    with pytest.raises(InvalidTask, match="it is sent"):
        note(queue_name, "e").then(get_job(sent.id))
    with pytest.raises(InvalidTask, match="Redisson"):
        note(f"{queue_name}-java", "a").then(note(queue_name, "b"))
    cancelled = note(queue_name, "f")
    cancelled.cancel()
    with pytest.raises(InvalidTask, match="cancelled"):
        note(queue_name, "g").then(cancelled)


def test_chain_is_bounded_in_links_and_bytes(configure, queue_name, settings) -> None:
    configure()
    chain = note(queue_name, "x")
    for _ in range(31):
        chain = note(queue_name, "x").then(chain)
    with pytest.raises(InvalidTask, match="32"):
        note(queue_name, "x").then(chain)
    settings.DELAYQ = {**settings.DELAYQ, "MAX_PAYLOAD_BYTES": 1_000}
    with pytest.raises(EncodeError, match="all jobs that follow"):
        note(queue_name, "x" * 500).then(note(queue_name, "y" * 500))


# What breaks off on the way.


@pytest.fixture
def proxied(server, settings, queue_name, configure):
    """A server behind a line that fails on demand."""
    proxy = Proxy(server)
    settings.DELAYQ = {
        "CONNECTION": proxy.url,
        "QUEUES": {"default": {}, queue_name: {}, f"{queue_name}-other": {}},
    }
    yield proxy
    proxy.close()


def script_of(what, queue, other):
    """Return the hash of the script that stores followers with the end of the job before them, or in another queue."""
    if what == "received":
        keys = get_settings().queue(other).keys
        return bind_in(PACKAGES, "receive", keys)[0].sha.encode()
    keys, new = get_settings().queue(queue).keys, NewJob("", "", "", b"")
    following = Following([(0, new)])
    if what == "left":
        following = Following([], forwards=[(0, other, new)])
    named = following.keys(keys)
    return bind_in(PACKAGES, "acknowledge", keys, **named)[0].sha.encode()


@pytest.mark.parametrize("is_reply_lost", [True, False])
@pytest.mark.parametrize("what", ["here", "left", "received"])
def test_follower_is_stored_once_when_the_call_breaks_off(
    proxied, work, records, queue_name, what, is_reply_lost
) -> None:
    other = f"{queue_name}-other"
    target = queue_name if what == "here" else other
    work([queue_name, other])
    schedule_many([note(queue_name, "first").then(note(target, "follows"))])
    ran(records, "first", "follows")
    sha = script_of(what, queue_name, other)
    struck = (proxied.lose_reply_to if is_reply_lost else proxied.lose)(sha, 2)

    job = note(queue_name, "a").then(child := note(target, "b"))
    schedule_many([job])

    wait_until(struck.is_set, description="it breaks off")
    ran(records, "first", "follows", "a", "b")
    for each in (job, child):
        wait_until(
            lambda each=each: each.refresh() is State.SUCCEEDED,
            description="both have ended",
        )
    assert len(texts(records)) == 4


def test_what_follows_a_dead_letter_in_another_queue_runs(
    work, configure, records, queue_name
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    task = tasks.fail.using(queue=queue_name, max_attempts=1)
    schedule_many([task.prepare(0).on_dead(note(other, "dead"))])
    work([queue_name, other])

    ran(records, None, "dead")


def test_what_follows_a_retried_job_in_another_queue_runs_again(
    work, configure, records, queue_name
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    task = tasks.fail.using(queue=queue_name, max_attempts=1)
    (job,) = schedule_many([task.prepare(0).on_dead(note(other, "dead"))])
    for queue in (queue_name, other):
        finish(work([queue], is_burst=True))

    assert job.retry()
    for queue in (queue_name, other):
        finish(work([queue], is_burst=True))

    assert texts(records) == [None, "dead", None, "dead"]


@pytest.mark.parametrize(
    "codec", ["Kryo5Codec", "TypedJsonJacksonCodec", "StringCodec"]
)
def test_follower_on_a_shared_queue_is_written_in_its_codec(
    work, configure, records, queue_name, codec
) -> None:
    configure(java={"REDISSON": "3.52.0", "CODEC": codec})
    shared = f"{queue_name}-java"
    schedule_many([note(queue_name, "a").then(note(shared, "b"))])
    work([queue_name, shared])

    ran(records, "a", "b")


def test_follower_keeps_priority_unique_key_and_options(
    work, records, queue_name
) -> None:
    task = tasks.note.using(
        queue=queue_name, priority=7, unique=True, max_attempts=3, keep_result=60
    )
    child = task.prepare(600, "b")
    schedule_many([note(queue_name, "a").then(child)])
    finish(work(is_burst=True))

    found = get_job(child.id)

    assert found.state is State.SCHEDULED
    assert (found.priority, found.unique, found.args) == (7, child.unique, ["b"])
    assert found.options == {"max_attempts": 3, "keep_result": 60}
    held = schedule(task, 600, "b")
    assert not held.created
    assert held.id == child.id


def test_worker_that_stops_forwards_and_ends_what_has_run(
    work, configure, records, queue_name
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    jobs = [note(queue_name, n).then(note(other, f"{n}")) for n in range(50)]
    schedule_many(jobs)
    worker = work(is_burst=True)
    finish(worker)

    assert (
        run(
            own_clients.of_thread(),
            queue_reads.counts(get_settings().queue(other).keys),
        ).waiting
        == 50
    )
    assert len(texts(records)) == 50


def test_queue_that_cannot_take_what_follows_gets_it_later(
    work, configure, records, queue_name, client, caplog
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    source = get_settings().queue(queue_name).keys
    keys = get_settings().queue(other).keys
    client.set(keys.sent, "mine")
    job = note(queue_name, "a").then(note(other, "b"))
    schedule_many([job])
    work([queue_name, other])
    wait_until(
        lambda: job.refresh() is State.SUCCEEDED, description="it is acknowledged"
    )
    (waiting,) = run(client, forward_calls.forwards(source)).waiting
    assert waiting[:2] == (other, 1)
    told = f"queue {other} does not get what follows into it"
    wait_until(lambda: told in caplog.text, description="it is told of")
    client.delete(keys.sent)

    ran(records, "a", "b")

    assert texts(records) == ["a", "b"]
    wait_until(
        lambda: not client.exists(source.forwards),
        description="nothing is left to forward",
    )
    wait_until(
        lambda: f"queue {other} gets again what follows" in caplog.text,
        description="that is told of",
    )
    assert caplog.text.count(told) == 1


def test_what_waits_for_its_queue_is_signed_anew_where_it_is(
    work, configure, records, queue_name, client, settings
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    keys = get_settings().queue(other).keys

    def keys_are(*secrets):
        settings.DELAYQ = {**settings.DELAYQ, "KEYS": list(secrets)}

    keys_are("the key of before")
    client.set(keys.sent, "mine")
    job = note(queue_name, "a").then(note(other, "b"))
    schedule_many([job])
    finish(work(is_burst=True))
    assert job.refresh() is State.SUCCEEDED

    keys_are("the key of today", "the key of before")
    call_command("delayq_resign", queue_name)
    keys_are("the key of today")
    client.delete(keys.sent)
    work([queue_name, other])

    ran(records, "a", "b")


def test_burst_that_cannot_forward_ends_and_says_so(
    work, configure, queue_name, client
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    client.set(get_settings().queue(other).keys.sent, "mine")
    schedule_many([note(queue_name, "a").then(note(other, "b"))])
    worker = work(is_burst=True)
    finish(worker)

    assert worker.status == 1


def test_burst_forwards_what_others_have_left(
    work, configure, records, queue_name, client
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    source = get_settings().queue(queue_name).keys
    keys = get_settings().queue(other).keys
    client.set(keys.sent, "mine")
    schedule_many([note(queue_name, "a").then(note(other, "b"))])
    finish(work(is_burst=True))
    assert client.zcard(source.forwards) == 1
    client.delete(keys.sent)

    finish(work([queue_name, other], is_burst=True))

    assert texts(records) == ["a", "b"]
    assert not client.exists(source.forwards)


# The queue that gets them, and who answers for it.


@pytest.fixture
def pair(private_server, configure, settings):
    """A primary with a replica, behind an address that can lead to either."""
    pair = Replicated(private_server, 1)
    pair.proxy = Proxy(pair.primary)
    settings.DELAYQ = {**configure(other={}), "CONNECTION": pair.proxy.url}
    yield pair
    pair.proxy.close()


def all_forwarded(queue_name):
    keys = get_settings().queue(queue_name).keys
    wait_until(
        lambda: not run(own_clients.of_thread(), forward_calls.forwards(keys)).waiting,
        description="nothing is left to forward",
    )


def test_follower_survives_a_primary_that_is_replaced_before_its_removal(
    pair, work, records, queue_name, monkeypatch
) -> None:
    """The new primary has the forward, and not what the old one has stored for it."""
    other = f"{queue_name}-other"
    receive, moves = forwards_of_worker.receive, [1]

    def receive_and_move(*args, **named):
        if not moves:
            return receive(*args, **named)
        pair.wait_for_replicas()
        hold_back(pair.primary)
        received = receive(*args, **named)
        if not received.is_late:
            moves.pop()
            pair.proxy.lead_to(pair.promote())
            pair.proxy.cut()
        return received

    monkeypatch.setattr(forwards_of_worker, "receive", receive_and_move)
    monkeypatch.setattr(pair, "wait_for_replicas", once(pair.wait_for_replicas))
    child = note(other, "b")
    schedule_many([note(queue_name, "a").then(child)])
    work([queue_name])
    wait_until(lambda: not moves, description="another primary answers")

    all_forwarded(queue_name)

    counts = run(
        own_clients.of_thread(), queue_reads.counts(get_settings().queue(other).keys)
    )
    assert counts.waiting == 1
    finish(work([other], is_burst=True))
    assert texts(records) == ["a", "b"]


def once(function):
    """Return a function that does something the first time only."""
    left = [function]
    return lambda: left.pop()() if left else None


def test_follower_runs_before_a_replica_has_it_and_its_forward_stays_until_then(
    pair, work, records, queue_name, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(hand_over, "REPLICA", Durable(replicas=1, timeout=0.05))
    monkeypatch.setattr(forwards_of_worker, "LOOK_S", 0.2)
    monkeypatch.setattr(forwards_of_worker, "FRESH_MS", 0)
    other = f"{queue_name}-other"
    pair.replicas[0].suspend()
    try:
        schedule_many([note(queue_name, "a").then(note(other, "b"))])
        work([queue_name, other])
        ran(records, "a", "b")
        told = f"queue {other} has got what follows into it, but"
        wait_until(lambda: told in caplog.text, description="it is told of")
        keys = get_settings().queue(queue_name).keys
        (waiting,) = run(own_clients.of_thread(), forward_calls.forwards(keys)).waiting
        assert waiting.number == 1
    finally:
        pair.replicas[0].resume()

    all_forwarded(queue_name)

    assert texts(records) == ["a", "b"]
    assert caplog.text.count(told) == 1


def test_one_check_does_for_many_forwards(
    work, configure, queue_name, monkeypatch
) -> None:
    configure(other={})
    checks = []

    class Counted(hand_over.HandOver):
        def make(self, act):
            checks.append(time.monotonic())
            return super().make(act)

    monkeypatch.setattr(kept, "HandOver", Counted)
    jobs = [
        note(queue_name, f"{n}").then(note(f"{queue_name}-other", "b"))
        for n in range(100)
    ]
    schedule_many(jobs)
    worker = work()
    wait_until(
        lambda: all(job.refresh() is State.SUCCEEDED for job in jobs),
        description="all have ended",
    )
    all_forwarded(queue_name)
    worker.stop()

    took_ms = 1000 * (checks[-1] - checks[0])
    # One more as the worker stops.
    assert len(checks) <= 2 + took_ms / forward_removal.GATHER_MS
