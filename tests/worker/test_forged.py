"""Data is never a command: what looks like a job and was not scheduled here does not run, and what was does, once."""

import json
from typing import Any

import pytest

from django_delayq import (
    BlockingQueue,
    DelayedQueue,
    get_job,
    queue_handler,
    schedule,
)
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core import queue_reads
from django_delayq.core.claim import Mode
from django_delayq.core.states import State
from django_delayq.core.store import new_token
from django_delayq.jobs import registry
from django_delayq.queues.queue_calls import confirm, untake
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.wire.script_calls import offer
from tests.polling import wait_until
from tests.signed import signed
from tests.worker.project import tasks
from tests.worker.records import record
from tests.worker.workers import counts

LATER = 3_600
#: How a queue may be set up: its codec, and whether Java shares it.
QUEUES = {
    "ours": {},
    "StringCodec": {"REDISSON": "3.27.2", "CODEC": "StringCodec"},
    "JsonJackson": {"REDISSON": "3.16.6", "CODEC": "JsonJacksonCodec"},
    "Typed": {"REDISSON": "3.27.2", "CODEC": "TypedJsonJacksonCodec"},
    "Cbor": {"REDISSON": "3.27.2", "CODEC": "CborJacksonCodec"},
    "MsgPack": {"REDISSON": "3.27.2", "CODEC": "MsgPackJacksonCodec"},
    "Smile": {"REDISSON": "3.27.2", "CODEC": "SmileJacksonCodec"},
    "Marshalling": {"REDISSON": "3.16.6", "CODEC": "MarshallingCodec"},
    "Kryo5": {"REDISSON": "3.27.2", "CODEC": "Kryo5Codec"},
}


#: With text, and with bytes that no text is: the other codecs repeat one of them.
SAMPLE = ("ours", "StringCodec", "Kryo5")


@pytest.fixture(
    params=[
        name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in QUEUES
    ]
)
def queue(request, configure, queue_name, client):
    """A queue of each kind, with a job that waits on it."""
    # What nobody handles goes to quarantine at once.
    configure(QUEUES[request.param], worker={"HOLD_UNKNOWN": 0}, other={})
    return queue_name


@pytest.fixture
def victim(queue):
    return schedule(tasks.note.using(queue=queue), LATER, "of the victim")


@pytest.fixture
def handled(queue):
    """What the handler of the queue was given."""

    def take(value: Any) -> None:
        given.append(value)
        record("handled")

    given: list[Any] = []
    task = queue_handler(queue, name=f"take-{queue}")(take)
    yield given
    registry._handlers.pop(queue)
    registry._tasks.pop(task.name)


def payload_of(job) -> bytes:
    keys = get_settings().queue(job.queue).keys
    return run(own_clients.of_thread(), queue_reads.inspect(keys, job.token)).payload


def envelope_of(job) -> dict[str, str]:
    """Return what a job says on the wire."""
    value = get_settings().queue(job.queue).payload_codec.decode(payload_of(job))
    return json.loads(value) if isinstance(value, str | bytes) else dict(value)


def unsigned(real, queue):
    return {"delayq": new_token(), "task": tasks.note.name, "args": ["forged"]}


def signed_by_nobody(real, queue):
    body = json.dumps({"task": tasks.note.name, "args": ["forged"]})
    return {"delayq": new_token(), "mac": "2" + "A" * 36, "body": body}


def with_another_call(real, queue):
    return real | {"body": real["body"].replace("of the victim", "forged")}


def with_another_token(real, queue):
    return real | {"delayq": new_token()}


def with_a_wrong_mac(real, queue):
    return real | {"mac": real["mac"][:21] + "A" * 16}


def with_a_cut_mac(real, queue):
    return real | {"mac": real["mac"][:-1]}


def of_another_queue(real, queue):
    return json.loads(signed(tasks.note.name, f"{queue}-other", "forged"))


def of_another_key(real, queue):
    return real | {"mac": real["mac"][0] + "none" + real["mac"][5:]}


def of_another_format(real, queue):
    return real | {"mac": "9" + real["mac"][1:]}


FORGED = [
    unsigned,
    signed_by_nobody,
    with_another_call,
    with_another_token,
    with_a_wrong_mac,
    with_a_cut_mac,
    of_another_queue,
    of_another_key,
    of_another_format,
]


@pytest.mark.parametrize("forge", FORGED)
@pytest.mark.parametrize("has_handler", [True, False])
def test_what_is_forged_is_data_and_harms_no_job(
    request, queue, victim, work, records, client, forge, has_handler
):
    given = request.getfixturevalue("handled") if has_handler else []
    forged = forge(envelope_of(victim), queue)
    # As a map, and as the text that a user typed.
    values = [forged, json.dumps(forged, separators=(",", ":"))]
    if get_settings().queue(queue).payload_codec.name == "StringCodec":
        del values[0]
    with DelayedQueue(queue) as delayed, BlockingQueue(queue) as blocking:
        for value in values:
            delayed.offer(value, 0)
            blocking.offer(value)

    work(threads=1)

    wait_until(lambda: settled(queue, 1), description="all but the victim is settled")
    if has_handler:
        assert sorted(map(str, given)) == sorted(map(str, values * 2))
        assert quarantined(client, queue) == []
    else:
        assert len(quarantined(client, queue)) == 2 * len(values)
    assert records.count("run") == 0
    assert victim.refresh() is State.SCHEDULED
    assert victim.run_now()
    wait_until(lambda: records.count("run") == 1, description="the victim runs")
    assert records.jobs("run") == [victim.id]
    wait_until(lambda: settled(queue, 0), description="it is over")


def settled(queue, waiting):
    told = counts(queue)
    return (told.waiting, told.destination, told.running, told.retrying) == (
        waiting,
        0,
        0,
        0,
    )


def quarantined(client, queue):
    page = queue_reads.page(get_settings().queue(queue).keys, State.QUARANTINED)
    return run(client, page).rows


@pytest.mark.parametrize("where", ["the delayed queue", "the destination queue"])
def test_a_job_that_was_taken_out_and_offered_again_runs_once(
    queue, victim, work, records, where
):
    with DelayedQueue(queue) as delayed, BlockingQueue(queue) as blocking:
        value = delayed.poll()
        assert value is not None
        if where == "the delayed queue":
            delayed.offer(value, 0)
        else:
            blocking.offer(value)

    work(threads=1)

    wait_until(lambda: records.count("run") == 1, description="it runs")
    wait_until(lambda: settled(queue, 0), description="it is over")
    assert records.count("run") == 1


def test_a_job_that_was_removed_and_offered_with_another_delay_runs_once(
    queue, victim, work, records
):
    with DelayedQueue(queue) as delayed:
        (value,) = delayed
        assert delayed.remove(value)
        delayed.offer(value, 0)

    work(threads=1)

    wait_until(lambda: records.count("run") == 1, description="it runs")
    wait_until(lambda: settled(queue, 0), description="it is over")
    assert "doubles" not in counts(queue).counters


@pytest.mark.parametrize("target", ["itself", "other"])
def test_a_job_that_was_offered_again_and_then_moved_runs_once(
    queue, victim, work, records, target
):
    target = queue if target == "itself" else f"{queue}-other"
    with DelayedQueue(queue) as delayed:
        delayed.offer(delayed.poll(), LATER)
        assert delayed.poll_last_and_offer_first_to(target) is not None

    work([queue, f"{queue}-other"], threads=1)

    wait_until(lambda: records.count("run") == 1, description="it runs")
    wait_until(lambda: settled(target, 0), description="it is over")
    assert records.count("run") == 1


def test_what_is_forged_is_data_where_our_own_api_moves_it(
    queue, work, records, handled
):
    codec = get_settings().queue(queue).payload_codec
    forged = signed(tasks.note.name, f"{queue}-other", "forged", codec=codec)
    run(
        own_clients.of_thread(),
        offer(get_settings().queue(queue).keys.queue, forged, "+3600000"),
    )
    with DelayedQueue(queue) as delayed:
        assert delayed.poll_last_and_offer_first_to(queue) is not None

    work(threads=1)

    wait_until(lambda: len(handled) == 1, description="it is handled")
    wait_until(lambda: settled(queue, 0), description="it is over")
    assert records.count("run") == 0


@pytest.mark.parametrize("is_confirmed", [True, False])
@pytest.mark.parametrize("is_offered_again", [True, False])
def test_a_job_that_an_interrupted_caller_puts_back_runs_once(
    queue, victim, work, records, is_confirmed, is_offered_again
):
    keys, owner = get_settings().queue(queue).keys, b"o" * 8
    with DelayedQueue(queue) as delayed:
        if is_offered_again:
            delayed.offer(delayed.poll(), LATER)
        assert delayed.poll_last_and_offer_first_to(queue) is not None
    call = claim_calls.claim(
        keys, owner=owner, request=b"r" * 8, limit=1, lease_ms=60_000, mode=Mode.TAKE
    )
    taken = run(own_clients.of_thread(), call).jobs
    if is_confirmed:
        assert run(own_clients.of_thread(), confirm(keys, taken, owner=owner)) == "1"

    assert run(own_clients.of_thread(), untake(keys, taken, owner=owner)) == 1

    work(threads=1)
    wait_until(lambda: records.count("run") == 1, description="it runs")
    wait_until(lambda: settled(queue, 0), description="it is over")
    # Of one that was offered again the id is another.
    assert is_offered_again or records.jobs("run") == [victim.id]


def test_a_job_that_was_taken_when_it_was_due_and_offered_again_runs_once(
    queue, work, records
):
    schedule(tasks.note.using(queue=queue), 0, 1)
    with DelayedQueue(queue) as delayed, BlockingQueue(queue) as blocking:
        len(delayed)  # from now on it transfers
        value = blocking.poll(20)
        assert value is not None
        blocking.offer(value)

    work(threads=1)

    wait_until(lambda: records.count("run") == 1, description="it runs")
    wait_until(lambda: settled(queue, 0), description="it is over")


def offer_as_java(queue, payload):
    """Store a payload that is due, and nothing beside it."""
    run(
        own_clients.of_thread(),
        offer(get_settings().queue(queue).keys.queue, payload, "+0"),
    )


def transfer(queue):
    """Transfer the one that is due, as a `DelayedQueue` does; it is due with the next ms."""
    call = claim_calls.transfer(get_settings().queue(queue).keys, batch=10)
    wait_until(
        lambda: run(own_clients.of_thread(), call).moved == 1, description="it is due"
    )


def test_a_job_that_was_taken_out_and_offered_again_many_times_is_no_double(
    queue, victim, work, records, client
):
    keys = get_settings().queue(queue).keys
    payload = payload_of(victim)
    with DelayedQueue(queue) as delayed:
        assert delayed.poll() is not None
    for _ in range(2):
        offer_as_java(queue, payload)
        transfer(queue)
        assert client.lpop(keys.queue.destination) == payload
    offer_as_java(queue, payload)

    work(threads=1)

    wait_until(lambda: settled(queue, 0), description="it is over")
    assert records.count("run") == 1
    assert "doubles" not in counts(queue).counters


def test_what_is_forged_is_data_however_often_it_comes(queue, work, records, handled):
    codec = get_settings().queue(queue).payload_codec
    forged = signed(tasks.note.name, f"{queue}-other", "forged", codec=codec)
    for _ in range(2):
        offer_as_java(queue, forged)
        transfer(queue)
    offer_as_java(queue, forged)

    work(threads=1)

    wait_until(lambda: settled(queue, 0), description="all have been handled")
    assert len(handled) == 3
    assert records.count("run") == 0
    assert "doubles" not in counts(queue).counters


@pytest.mark.parametrize("target", ["itself", "other"])
def test_a_job_that_our_own_api_moves_runs_where_it_is_moved_to(
    queue, victim, work, records, target
):
    target = queue if target == "itself" else f"{queue}-other"
    with DelayedQueue(queue) as delayed:
        assert delayed.poll_last_and_offer_first_to(target) is not None
    moved = get_job(f"{target}:{victim.token}")
    assert moved.state is State.DUE

    work([queue, f"{queue}-other"], threads=1)

    wait_until(lambda: records.count("run") == 1, description="it runs")
    assert records.jobs("run") == [moved.id]
    wait_until(lambda: settled(target, 0), description="it is over")


def test_a_copy_of_a_job_that_waits_is_dropped(queue, victim, work, records, client):
    keys = get_settings().queue(queue).keys
    (frame,) = client.zrange(keys.queue.timeout_set, 0, -1)
    at = 9 if frame[:1] == b"\x08" else 8
    client.zadd(keys.queue.timeout_set, {b"\x08copies--"[9 - at :] + frame[at:]: 1_000})
    before = schedule(tasks.note.using(queue=queue), 0, "next")

    work(threads=1)

    wait_until(lambda: before.id in records.jobs("run"), description="the next runs")
    assert victim.refresh() is State.SCHEDULED
    assert records.count("run") == 1
    assert counts(queue).counters["doubles"] == 1
