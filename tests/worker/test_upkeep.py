"""What a worker does for a queue from time to time: one step a turn, and what it says of it."""

import os
import ssl

import pytest
import redis

from django_delayq import DelayedQueue, schedule
from django_delayq.clock import epoch_ms
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core import lease_ends, worker_code
from django_delayq.core import store as store_calls
from django_delayq.core.lease_ends import Rejected
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, new_token
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from django_delayq.worker import upkeep
from django_delayq.worker.outage import STEP_PAUSE_MS, StepPause
from django_delayq.worker.upkeep import ROUND_MS, Upkeep
from tests.clock import at
from tests.polling import wait_until
from tests.signed import signed
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    """Say nothing of limits between two steps."""
    monkeypatch.setattr(worker_code, "DECLARE_MS", float("inf"))


@pytest.fixture
def queue(configure, queue_name):
    """Return the test's queue with some options."""

    def queue(**options: object) -> QueueSettings:
        configure(options)
        return get_settings().queue(queue_name)

    return queue


def bury(client, settings, count, *, age_ms=0, state=State.DEAD, payload=None):
    """Put jobs aside, some time ago; returns their tokens."""
    keys = settings.keys
    tokens = [new_token() for _ in range(count)]
    if payload is None:
        jobs = [
            NewJob(token, "+0", "", signed("t", settings.name, token=token))
            for token in tokens
        ]
        run(client, store_calls.schedule(store_calls.Target(keys), jobs))
    else:
        client.rpush(keys.queue.destination, *[payload] * count)
    leased = run(
        client,
        at(
            (epoch_ms() + 10000) * 1000,
            claim_calls.claim(
                keys,
                owner=b"12345678",
                request=os.urandom(8),
                limit=500,
                lease_ms=60_000,
            ),
        ),
    ).jobs
    assert len(leased) == count
    run(
        client,
        at(
            (epoch_ms() - age_ms) * 1000,
            lease_ends.bury(
                keys,
                [Rejected(job.token, job.fence, b'{"error":"e"}') for job in leased],
                state=state,
            ),
        ),
    )


def one_round(looks_after: Upkeep) -> int:
    """Take turns up to the pause between two rounds; returns how many."""
    turns = 0
    while True:
        turns += 1
        looks_after.turn(0.0)
        if looks_after.next_ms == ROUND_MS:
            return turns


def count(client, settings, what):
    return client.zcard(getattr(settings.keys, what))


def test_an_error_of_whatever_kind_ends_a_round_and_not_all_rounds(
    client, queue, monkeypatch
):
    looks_after = Upkeep(client, queue(), b"owner--1")

    def fail(*args):
        raise ssl.SSLError("bad record")

    with monkeypatch.context() as broken:
        broken.setattr(client, "llen", fail)
        with pytest.raises(ssl.SSLError):
            looks_after.turn(0.0)

    assert looks_after.next_ms == STEP_PAUSE_MS[0]
    assert one_round(looks_after) == 1


def test_prefix_is_noted_before_the_first_claim_though_the_server_is_away_at_first(
    queue, settings, tmp_path, monkeypatch
):
    queue()
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "zqx-"}
    # Without limits and schedules, nothing else is to be done before the first claim.
    monkeypatch.setattr(upkeep, "all_limits", dict)
    away = redis.Redis(unix_socket_path=str(tmp_path / "nobody"))

    # The worker tries again: else nobody would notice a later change of PREFIX.
    with pytest.raises(redis.ConnectionError):
        Upkeep(away, get_settings().queue("default"), b"owner--1").begin()


def test_a_queue_whose_held_jobs_cannot_be_looked_at_is_claimed_from_in_time(
    client, queue, queue_name, work, records, caplog
):
    client.set(queue().keys.held, "no sorted set")
    # Known to the first claim only: nothing else would wake the worker.
    schedule(tasks.note.using(queue=queue_name), 1)

    work(cap_ms=NEVER_MS)

    wait_until(lambda: records.count("run") == 1, description="it has run")
    assert caplog.text.count("cannot be looked after") == 1
    assert "cannot be served" not in caplog.text


def test_dead_letters_are_kept_for_half_a_year(client, queue, caplog):
    settings = queue()
    bury(client, settings, 3, age_ms=180 * DAY_MS + 60_000)
    bury(client, settings, 2, age_ms=180 * DAY_MS - 600_000)

    one_round(Upkeep(client, settings, b"owner--1"))

    assert count(client, settings, "dead") == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"queue {settings.name}: 3 dead letters deleted, the oldest 180 days, 0:01:"
    )
    assert line.endswith("old (DEAD_TTL)")


@pytest.mark.parametrize(
    ("options", "left"), [({"DEAD_TTL": None}, 2), ({"DEAD_TTL": 3_600}, 0)]
)
def test_how_long_dead_letters_are_kept_is_a_setting(client, queue, options, left):
    settings = queue(**options)
    bury(client, settings, 2, age_ms=1_000 * DAY_MS)

    one_round(Upkeep(client, settings, b"owner--1"))

    assert count(client, settings, "dead") == left


def test_nearly_full_queue_is_told_once_until_half_of_it_was_free(
    client, queue, caplog
):
    settings = queue(MAX_JOBS=10)
    looks_after = Upkeep(client, settings, b"owner--1")
    jobs = [schedule(tasks.note.using(queue=settings.name), 1_000) for _ in range(8)]
    one_round(looks_after)
    assert caplog.records == []

    for _ in range(2):
        for _ in range(9 - len(jobs)):
            jobs.append(schedule(tasks.note.using(queue=settings.name), 1_000))
        for _ in range(2):
            one_round(looks_after)
        # Not again while it is half full.
        jobs.pop().cancel()
        one_round(looks_after)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == (
            f"Queue {settings.name!r} holds 9 of 10 jobs (MAX_JOBS). When it is full, it takes no new jobs."
            f" Start more workers, or raise DELAYQ['QUEUES'][{settings.name!r}]['MAX_JOBS']."
        )
        caplog.clear()
        while len(jobs) > 5:
            jobs.pop().cancel()
        one_round(looks_after)


def test_dead_letters_by_number_are_warned_of_and_go_after_a_day(client, queue, caplog):
    settings = queue(MAX_DEAD=10)
    looks_after = Upkeep(client, settings, b"owner--1")
    bury(client, settings, 7, age_ms=2 * DAY_MS)
    one_round(looks_after)
    assert caplog.records == []

    bury(client, settings, 1)
    one_round(looks_after)
    one_round(looks_after)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "has 8 dead letters, and keeps 10 (MAX_DEAD)" in line
    caplog.clear()

    bury(client, settings, 5)
    one_round(looks_after)

    assert count(client, settings, "dead") == 10
    (line,) = [record.getMessage() for record in caplog.records]
    assert ": 3 dead letters deleted, the oldest 2 days, 0:0" in line
    assert line.endswith("old (MAX_DEAD)")

    bury(client, settings, 5)
    one_round(looks_after)
    # Four are old enough, the others were buried today.
    assert count(client, settings, "dead") == 11


def test_quarantined_jobs_stay_and_foreign_payloads_go_after_a_month(
    client, queue, caplog
):
    settings = queue()
    old = {"age_ms": 31 * DAY_MS, "state": State.QUARANTINED}
    bury(client, settings, 2, **old)
    bury(client, settings, 3, payload=b"foreign", **old)
    bury(client, settings, 1, payload=b"foreign", state=State.QUARANTINED)

    one_round(Upkeep(client, settings, b"owner--1"))

    assert count(client, settings, "quarantine") == 3
    assert ": 3 quarantined payloads deleted, the oldest 31 days" in caplog.text
    assert "(QUARANTINE_TTL)" in caplog.text

    settings = queue(QUARANTINED_JOBS_TTL=DAY_MS // 1000)
    one_round(Upkeep(client, settings, b"owner--1"))
    assert count(client, settings, "quarantine") == 1


@pytest.mark.parametrize("options", [{}, {"REDISSON": "3.16.6"}])
def test_what_java_took_is_forgotten_on_every_queue(client, queue, options):
    settings = queue(**options)
    keys = settings.keys
    jobs = [NewJob(new_token(), "+0", f"e{n}", b"payload") for n in range(300)]
    run(client, store_calls.schedule(store_calls.Target(keys), jobs))
    client.delete(keys.queue.timeout_set, keys.queue.delay_queue)
    client.hset(keys.notes, jobs[0].token, "cancel")
    client.hset(keys.claims, b"12345678", b"87654321")

    looks_after = Upkeep(client, settings, b"owner--1")
    one_round(looks_after)
    one_round(looks_after)  # a note goes once its locator has gone

    assert client.exists(keys.locators, keys.unique, keys.notes, keys.claims) == 0


@pytest.mark.parametrize("depth", [900, 5_000])
def test_jobs_in_a_deep_destination_queue_are_not_forgotten_and_run(
    client, queue, queue_name, work, records, depth
):
    settings = queue(REDISSON="3.16.6")
    keys = settings.keys
    destination = keys.queue.destination

    def transfer(task):
        job = schedule(task.using(queue=queue_name), 0)
        wait_until(
            lambda: run(client, claim_calls.transfer(keys, batch=1)).moved,
            description="it is transferred",
        )
        return job

    jobs = [transfer(tasks.note)]
    for _ in range(2):
        client.rpush(destination, *[b"of somebody else"] * (depth // 2))
        jobs.append(transfer(tasks.note))
    taken = [transfer(tasks.note) for _ in range(3)]
    client.rpop(destination, len(taken))  # Java was first
    looks_after = Upkeep(client, settings, b"owner--1")

    one_round(looks_after)

    # Above 1,000 nothing is forgotten, and below what lies there is not.
    left = {job.token for job in jobs} | {job.token for job in taken if depth > 1_000}
    assert {token.decode() for token in client.hkeys(keys.locators)} == left
    client.lrem(destination, 0, b"of somebody else")
    one_round(looks_after)
    left = {job.token for job in jobs}
    assert {token.decode() for token in client.hkeys(keys.locators)} == left
    work()
    wait_until(lambda: records.count("run") >= 3, description="they run")
    assert sorted(records.jobs("run")) == sorted(job.id for job in jobs)
    assert client.hlen(keys.locators) == 0


def test_a_round_of_a_large_queue_is_many_short_turns(client, queue):
    settings = queue(INSERTION_LIST=False)
    for _ in range(10):
        jobs = [NewJob(new_token(), "+99999999", "", b"payload") for _ in range(500)]
        run(
            client,
            store_calls.schedule(
                store_calls.Target(settings.keys, insertion_list=False), jobs
            ),
        )

    assert one_round(Upkeep(client, settings, b"owner--1")) > 30
    assert client.hlen(settings.keys.locators) == 5_000


def test_what_a_large_queue_keeps_of_the_past_is_looked_at_every_minute(client, queue):
    """Its locators alone take longer than that, and keep nothing else waiting."""
    settings = queue(INSERTION_LIST=False)
    keys = settings.keys
    for _ in range(20):
        jobs = [NewJob(new_token(), "+99999999", "", b"payload") for _ in range(500)]
        run(
            client,
            store_calls.schedule(store_calls.Target(keys, insertion_list=False), jobs),
        )
    looks_after = Upkeep(client, settings, b"owner--1")
    looks_after.turn(0.0)
    bury(client, settings, 3, age_ms=200 * DAY_MS)
    client.hset(keys.claims, b"12345678", b"87654321")

    while looks_after.next_ms <= 1.2 * ROUND_MS:
        looks_after.turn(looks_after.next_ms)

    assert client.hlen(keys.locators) == 10_000
    assert client.exists(keys.claims, keys.dead) == 0


def test_queue_that_cannot_be_looked_after_says_so_once(client, queue, caplog):
    settings = queue()
    client.set(settings.keys.notes, "another application's")
    looks_after = Upkeep(client, settings, b"owner--1")

    for _ in range(3):
        one_round(looks_after)

    (line,) = [record.getMessage() for record in caplog.records]
    assert "cannot be looked after, trying again: " in line
    assert "WRONGTYPE" in line


@pytest.mark.parametrize(
    ("error", "pauses_ms"),
    [
        (redis.ResponseError("NOREPLICAS Not enough good replicas"), "short"),
        (redis.ConnectionError("reset by peer"), "short"),
        (redis.ResponseError("WRONGTYPE Operation against a key"), "long"),
        (redis.exceptions.NoPermissionError("this user has no permissions"), "long"),
        (ValueError("an error of ours"), "long"),
    ],
)
def test_only_what_a_person_has_to_mend_rests_for_a_minute(error, pauses_ms):
    pause = StepPause()

    pauses = [pause.after(error) for _ in range(7)]
    pause.note_success()

    if pauses_ms == "short":
        assert pauses == [200, 400, 800, 1_600, 3_200, 5_000, 5_000]
        assert pause.after(error) == 200
    else:
        assert set(pauses) == {60_000}


def test_a_worker_looks_after_its_queue_and_leaves_nothing(work, client, queue):
    settings = queue()
    bury(client, settings, 3, age_ms=181 * DAY_MS)
    client.delete(settings.keys.claims)

    worker = work()
    wait_until(
        lambda: count(client, settings, "dead") == 0, description="they are deleted"
    )
    worker.stop()

    assert client.exists(settings.keys.claims, settings.keys.payloads) == 0


# A queue that Java shares, and the settings do not know.


def stranger(client, settings):
    """Listen as a Java client does, that transfers; returns what to close."""
    pubsub = client.pubsub()
    pubsub.subscribe(settings.keys.queue.channel)
    assert pubsub.get_message(timeout=10)["type"] == "subscribe"
    return pubsub


def java_offers(client, settings, delay_ms=DAY_MS):
    frame = pack(b"java1234", b"x", FrameFormat.BC0LC0)
    client.zadd(settings.keys.queue.timeout_set, {frame: epoch_ms() + delay_ms})
    client.rpush(settings.keys.queue.delay_queue, frame)


def test_frames_of_java_on_a_queue_without_redisson_are_one_warning(
    client, queue, caplog
):
    settings = queue()
    schedule(tasks.note.using(queue=settings.name), 1_000)
    looks_after = Upkeep(client, settings, b"owner--1")
    one_round(looks_after)
    assert not caplog.messages

    java_offers(client, settings)
    for _ in range(3):
        one_round(looks_after)

    (told,) = caplog.messages
    assert f"queue {settings.name} holds frames that are not ours" in told
    assert f"DELAYQ['QUEUES']['{settings.name}']['REDISSON']" in told
    assert f"manage.py delayq_frames {settings.name} --list on" in told


def test_subscriber_that_is_not_ours_is_one_warning_where_it_stays(
    client, queue, caplog
):
    settings = queue()
    looks_after = Upkeep(client, settings, b"owner--1")
    with stranger(client, settings) as pubsub:
        one_round(looks_after)
        # It may be one of ours that has not got to the other channel yet.
        assert not caplog.messages
        pubsub.subscribe(settings.keys.channel)
        assert pubsub.get_message(timeout=10)["type"] == "subscribe"
        one_round(looks_after)
        pubsub.unsubscribe(settings.keys.channel)
        assert pubsub.get_message(timeout=10)["type"] == "unsubscribe"
        one_round(looks_after)
        assert not caplog.messages

        for _ in range(3):
            one_round(looks_after)

    (told,) = caplog.messages
    assert f"queue {settings.name} has a subscriber that is not ours" in told
    assert "REDISSON" in told


@pytest.mark.parametrize(
    "options",
    [
        {"REDISSON": "4.7.0", "CODEC": "StringCodec"},
        {"REDISSON": "4.7.0", "CODEC": "StringCodec", "INSERTION_LIST": False},
        {"INSERTION_LIST": True},
    ],
)
def test_java_on_a_queue_whose_settings_know_of_it_is_no_news(
    client, queue, caplog, options
):
    settings = queue(**options)
    java_offers(client, settings)
    looks_after = Upkeep(client, settings, b"owner--1")
    with stranger(client, settings):
        for _ in range(3):
            one_round(looks_after)

    assert not caplog.messages


def test_frames_that_the_redisson_of_the_queue_does_not_read_are_told_once(
    client, queue, caplog
):
    settings = queue(REDISSON="3.16.6", CODEC="StringCodec")
    looks_after = Upkeep(client, settings, b"owner--1")
    schedule(tasks.note.using(queue=settings.name), 1_000)
    one_round(looks_after)
    assert not caplog.messages

    java_offers(client, settings)
    for _ in range(3):
        one_round(looks_after)

    (told,) = caplog.messages
    assert (
        f"Of the next 2 frames of queue {settings.name!r}, 1 has a format that Redisson 3.16.6"
        in told
    )
    assert f"manage.py delayq_frames {settings.name}" in told
    client.delete(settings.keys.queue.timeout_set)
    one_round(looks_after)
    java_offers(client, settings)
    one_round(looks_after)
    assert len(caplog.messages) == 2


def test_workers_and_queue_objects_of_ours_are_no_strangers(
    client, queue, queue_name, work, caplog
):
    settings = queue()
    work()
    keys = settings.keys
    with DelayedQueue(queue_name, connection=client) as delayed:
        delayed.offer("x", 1_000)
        wait_until(
            lambda: all(
                count == 2
                for _, count in client.pubsub_numsub(keys.queue.channel, keys.channel)
            ),
            description="both listen",
        )
        looks_after = Upkeep(client, settings, b"owner--1")
        for _ in range(3):
            one_round(looks_after)

    assert "not ours" not in caplog.text


def test_user_who_may_not_count_subscribers_is_told_of_frames(
    client, server, queue, queue_name, caplog
):
    settings = queue()
    rules = ("reset", "on", ">pw", "~*", "&*", "+@all", "-pubsub")
    client.execute_command("ACL", "SETUSER", queue_name, *rules)
    restricted = server.client(username=queue_name, password="pw")
    try:
        with stranger(client, settings):
            looks_after = Upkeep(restricted, settings, b"owner--1")
            for _ in range(3):
                one_round(looks_after)
            assert not caplog.messages
            java_offers(client, settings)
            one_round(looks_after)
    finally:
        client.execute_command("ACL", "DELUSER", queue_name)

    assert "holds frames that are not ours" in caplog.text
