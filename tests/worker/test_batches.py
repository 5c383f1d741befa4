"""Batches: jobs, and a callback that starts once all of them have ended."""

import asyncio

import pytest
from asgiref.sync import async_to_sync
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from django_delayq import (
    Batch,
    InvalidTask,
    JobNotFound,
    QueueFull,
    State,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.conf import get_settings
from django_delayq.core.scripts import PACKAGES
from django_delayq.features.batches import api as batches
from django_delayq.features.batches import calls as batch_calls
from django_delayq.transport.bind import bind_in
from tests import replicas
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.replicas import Replicated
from tests.worker.conftest import every_server
from tests.worker.project import tasks


@delayed_task(unique=True)
def once(number: int) -> None:
    """One at a time."""


def note(queue, text, delay=0):
    return tasks.note.using(queue=queue).prepare(delay, text)


def texts(records):
    return [line.get("text") for line in records.all("run")]


def finish(worker):
    wait_until(lambda: not worker.is_running, description="the worker has ended")


def sync_way(batch, jobs):
    return batch.schedule(jobs)


def async_way(batch, jobs):
    return async_to_sync(batch.aschedule)(jobs)


@every_server
@pytest.mark.parametrize("way", [sync_way, async_way])
def test_callback_runs_once_after_all_jobs_of_the_batch(
    work, configure, records, queue_name, way
) -> None:
    configure()
    callback = note(queue_name, "last")
    batch = Batch(callback)

    stored = way(batch, (note(queue_name, n) for n in range(1_200)))

    assert len(stored) == batch.left() == async_to_sync(batch.aleft)() == 1_200
    assert callback.state is State.HELD
    seen = get_job(callback.id)
    assert seen.state is State.HELD
    assert "batch" in seen.error["error"]
    finish(work(is_burst=True))
    ran = texts(records)
    assert ran[-1] == "last"
    assert sorted(ran[:-1]) == list(range(1_200))
    assert batch.left() == 0
    assert callback.refresh() is State.SUCCEEDED


def test_jobs_that_fail_end_the_batch_as_well(
    work, configure, records, queue_name
) -> None:
    configure()
    dying = tasks.fail.using(queue=queue_name, max_attempts=2).prepare(0)
    batch = Batch(note(queue_name, "last"))
    later = note(queue_name, "later", 600)
    batch.schedule([dying, note(queue_name, "a"), later])
    worker = work()
    wait_until(lambda: batch.left() == 1, description="two have ended")
    assert "last" not in texts(records)

    assert later.cancel()

    wait_until(lambda: "last" in texts(records), description="the callback runs")
    assert get_job(dying.id).state is State.DEAD
    assert worker.is_running


def test_delay_of_the_callback_counts_from_the_last_end(
    work, configure, records, queue_name
) -> None:
    configure()
    callback = note(queue_name, "last", 600)
    Batch(callback).schedule([note(queue_name, "a")])

    finish(work(is_burst=True))

    assert texts(records) == ["a"]
    assert get_job(callback.id).state is State.SCHEDULED
    assert callback.refresh() is State.SCHEDULED
    assert callback.cancel()


def test_callback_and_jobs_may_be_followed_by_others(
    work, configure, records, queue_name
) -> None:
    configure()
    callback = note(queue_name, "last").then(note(queue_name, "after all"))
    job = note(queue_name, "a").then(note(queue_name, "after a", 600))
    Batch(callback).schedule([job])

    finish(work(is_burst=True))

    assert texts(records) == ["a", "last", "after all"]


def test_job_that_is_not_stored_does_not_count(
    work, configure, records, queue_name
) -> None:
    configure()
    task = once.using(queue=queue_name)
    schedule(task, 600, 1)
    batch = Batch(note(queue_name, "last"))

    jobs = batch.schedule([task.prepare(0, 1)])

    assert not jobs[0].created
    finish(work(is_burst=True))
    assert texts(records) == ["last"]


def test_batch_that_meets_a_full_queue_goes_on_with_what_was_not_stored(
    work, configure, records, queue_name
) -> None:
    configure({"MAX_JOBS": 4})  # one of them is the callback
    batch = Batch(note(queue_name, "last"))
    with pytest.raises(QueueFull) as full:
        batch.schedule([note(queue_name, n) for n in range(5)])
    assert "error.unsent to schedule() of the same Batch" in full.value.__notes__[-1]
    worker = work(is_burst=True)
    finish(worker)
    assert sorted(texts(records)) == [0, 1, 2]

    batch.schedule(full.value.unsent)

    finish(work(is_burst=True))
    *ran, last = texts(records)
    assert (sorted(ran), last) == ([0, 1, 2, 3, 4], "last")


@pytest.mark.parametrize("way", [sync_way, async_way])
def test_batch_that_a_full_queue_refuses_leaves_nothing_there(
    work, configure, records, queue_name, client, way
) -> None:
    configure({"MAX_JOBS": 3})
    keys = get_settings().queue(queue_name).keys
    waiting = [schedule(tasks.note.using(queue=queue_name), 600) for _ in range(2)]
    batches = [Batch(note(queue_name, f"last {n}")) for n in range(5)]
    jobs = [[note(queue_name, n)] for n in range(5)]

    for batch, each in zip(batches, jobs, strict=True):
        with pytest.raises(QueueFull) as full:
            way(batch, each)
        assert "schedule() of the same Batch" in str(full.value)
        assert "none of its jobs was sent" in full.value.__notes__[-1]
    assert not client.exists(keys.held, keys.batches)

    for job in waiting:
        assert job.cancel()
    way(batches[0], jobs[0])
    finish(work(is_burst=True))
    assert texts(records) == [0, "last 0"]


def test_job_that_another_keeps_out_of_a_full_queue_leaves_nothing_of_its_batch(
    work, configure, records, queue_name, client
) -> None:
    """The reply to it is the other job, so it is scheduled; but no job of the batch is stored."""
    configure({"MAX_JOBS": 2})
    keys = get_settings().queue(queue_name).keys
    task = once.using(queue=queue_name)
    waiting = [schedule(task, 600, 1), schedule(task, 600, 2)]
    batch = Batch(note(queue_name, "last"))
    with pytest.raises(QueueFull) as full:
        batch.schedule([task.prepare(0, 1), note(queue_name, 0)])
    (merged,) = full.value.scheduled
    assert merged.id == waiting[0].id

    assert not client.exists(keys.held, keys.batches)

    for job in waiting:
        assert job.cancel()
    batch.schedule(full.value.unsent)
    finish(work(is_burst=True))
    assert texts(records) == [0, "last"]


def test_callback_of_a_refused_begin_is_the_callers_again(
    monkeypatch, work, configure, records, queue_name
) -> None:
    configure()
    callback, job = note(queue_name, "last"), note(queue_name, 0)

    def refuse(*args):
        raise OutOfMemoryError("OOM command not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(batch_calls, "open_batch", refuse)
        with pytest.raises(OutOfMemoryError):
            Batch(callback).schedule([job])
    with pytest.raises(InvalidTask, match="has no job"):
        Batch(callback).schedule([])
    # The job belongs to the batch that was given up.
    Batch(callback).schedule([note(queue_name, 1)])

    finish(work(is_burst=True))
    assert texts(records) == [1, "last"]


def test_batch_is_scheduled_by_one_thread(configure, queue_name) -> None:
    configure()
    batch = Batch(note(queue_name, "last"))
    told = []

    def jobs():
        yield note(queue_name, 0)
        with pytest.raises(InvalidTask, match="is being scheduled already"):
            batch.schedule([note(queue_name, 1)])
        told.append(True)

    batch.schedule(jobs())

    assert told == [True]
    assert batch.left() == 1


def test_wrong_batches_are_refused_before_anything_is_sent(
    configure, queue_name, client
) -> None:
    configure(java={"REDISSON": "3.52.0"}, other={})
    keys = get_settings().queue(queue_name).keys
    good = note(queue_name, "good")
    for wrong in (tasks.note, "task", None):
        with pytest.raises(InvalidTask, match="callback of a batch"):
            Batch(wrong)
        with pytest.raises(InvalidTask, match="part of a batch"):
            Batch(note(queue_name, "x")).schedule([good, wrong])
    with pytest.raises(InvalidTask, match="iterable"):
        Batch(note(queue_name, "x")).schedule(good)
    with pytest.raises(InvalidTask, match="has no job"):
        Batch(note(queue_name, "x")).schedule([])
    configure({"MAX_JOBS": 1}, java={"REDISSON": "3.52.0"}, other={})
    with pytest.raises(InvalidTask, match="MAX_JOBS"):
        Batch(note(queue_name, "x"))
    configure(java={"REDISSON": "3.52.0"}, other={})
    with pytest.raises(InvalidTask, match="Redisson"):
        Batch(note(f"{queue_name}-java", "x"))
    with pytest.raises(InvalidTask, match="unique="):
        Batch(once.using(queue=queue_name).prepare(0, 1))
    with pytest.raises(InvalidTask, match="in one queue"):
        Batch(note(queue_name, "x")).schedule([good, note(f"{queue_name}-other", "y")])
    changing = once.using(queue=queue_name, on_duplicate="replace")
    with pytest.raises(InvalidTask, match="on_duplicate"):
        Batch(note(queue_name, "x")).schedule([good, changing.prepare(0, 1)])
    cancelled = note(queue_name, "c")
    cancelled.cancel()
    with pytest.raises(InvalidTask, match="cancelled"):
        Batch(note(queue_name, "x")).schedule([good, cancelled])
    callback = note(queue_name, "x")
    with pytest.raises(InvalidTask, match="is the callback"):
        Batch(callback).schedule([good, callback])
    assert not client.exists(keys.queue.timeout_set, keys.batches)

    batch = Batch(callback)
    batch.schedule([good])
    with pytest.raises(InvalidTask, match="the callback of a batch"):
        schedule_many([callback])
    with pytest.raises(InvalidTask, match="the callback of a batch"):
        Batch(callback)
    with pytest.raises(InvalidTask, match="already"):
        batch.schedule([note(queue_name, "more")])
    with pytest.raises(InvalidTask, match="it was sent"):
        Batch(note(queue_name, "x")).schedule([good])


def test_job_of_a_batch_can_neither_follow_nor_join_another(
    configure, queue_name
) -> None:
    configure({"MAX_JOBS": 2})
    jobs = [note(queue_name, "a"), note(queue_name, "b")]
    batch = Batch(note(queue_name, "x"))
    schedule(tasks.note.using(queue=queue_name), 600)
    with pytest.raises(QueueFull):
        batch.schedule(jobs)

    with pytest.raises(InvalidTask, match="part of a batch"):
        note(queue_name, "d").then(jobs[0])
    with pytest.raises(InvalidTask, match="another one"):
        Batch(note(queue_name, "y")).schedule(jobs)


@pytest.mark.parametrize("what", ["open", "close"])
@pytest.mark.parametrize("is_reply_lost", [True, False])
def test_callback_runs_once_when_a_call_breaks_off(
    server, settings, work, records, queue_name, is_reply_lost, what
) -> None:
    proxy = Proxy(server)
    settings.DELAYQ = {
        "CONNECTION": proxy.url,
        "QUEUES": {"default": {}, queue_name: {}},
    }
    try:
        Batch(note(queue_name, "first")).schedule([note(queue_name, 0)])
        keys = get_settings().queue(queue_name).keys
        sha = bind_in(PACKAGES, what, keys)[0].sha.encode()
        struck = (proxy.lose_reply_to if is_reply_lost else proxy.lose)(sha, 1)

        Batch(note(queue_name, "last")).schedule([note(queue_name, 1)])

        wait_until(struck.is_set, description="it breaks off")
        finish(work(is_burst=True))
        assert sorted(map(str, texts(records))) == ["0", "1", "first", "last"]
    finally:
        proxy.close()


@pytest.mark.parametrize("name", ["open_batch", "close_batch"])
def test_batch_that_an_error_cuts_off_goes_on(
    monkeypatch, work, configure, records, queue_name, name
) -> None:
    configure()
    jobs = [note(queue_name, n) for n in range(3)]
    batch = Batch(note(queue_name, "last"))

    def fail(*args):
        raise RedisConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(batch_calls, name, fail)
        with pytest.raises(RedisConnectionError) as cut:
            batch.schedule(jobs)
    (told,) = cut.value.__notes__
    assert f"batch {batch.callback.id} does not start" in told
    assert ("none of its jobs" if name == "open_batch" else "schedule([])") in told
    finish(work(is_burst=True))
    ran = [] if name == "open_batch" else [0, 1, 2]
    assert sorted(texts(records)) == ran

    batch.schedule(jobs if name == "open_batch" else [])

    finish(work(is_burst=True))
    *ran, last = texts(records)
    assert (sorted(ran), last) == ([0, 1, 2], "last")


@pytest.mark.parametrize("way", [sync_way, async_way])
@pytest.mark.parametrize("has_ended", [True, False])
def test_callback_whose_storing_a_failover_has_lost_is_stored_again(
    private_server, settings, monkeypatch, work, records, queue_name, way, has_ended
) -> None:
    """The replica that becomes the primary was behind when the callback was stored."""
    pair = Replicated(private_server, 1)
    second = private_server(
        replicaof=f"127.0.0.1 {pair.replicas[0].port}", **replicas.QUICK
    )
    queues = {"default": {}, queue_name: {}}
    settings.DELAYQ = {"CONNECTION": pair.primary.socket_url, "QUEUES": queues}
    with second.client() as client:
        wait_until(
            lambda: client.info("replication")["master_link_status"] == "up",
            description="the new primary has a replica",
        )
    new = pair.promote()
    task = tasks.note.using(queue=queue_name, durable=1)
    batch = Batch(task.prepare(0, "last"))
    send, asend = batches.send_all, batches.asend_all

    def fail_over() -> None:
        settings.DELAYQ = {"CONNECTION": new.socket_url, "QUEUES": queues}

    def send_there(jobs, **options):
        fail_over()
        sent = send(jobs, **options)
        if has_ended:
            finish(work(is_burst=True))
        return sent

    async def asend_there(jobs):
        fail_over()
        sent = await asend(jobs)
        if has_ended:
            await asyncio.to_thread(lambda: finish(work(is_burst=True)))
        return sent

    monkeypatch.setattr(batches, "send_all", send_there)
    monkeypatch.setattr(batches, "asend_all", asend_there)

    way(batch, [task.prepare(0, n) for n in range(3)])

    finish(work(is_burst=True))
    *ran, last = texts(records)
    assert (sorted(ran), last) == ([0, 1, 2], "last")
    assert batch.left() == 0


def test_batch_is_found_by_the_id_of_its_callback(
    work, configure, records, queue_name
) -> None:
    configure()
    callback = note(queue_name, "last")
    Batch(callback).schedule([note(queue_name, 0), note(queue_name, 1, 600)])

    found = Batch.of(callback.id)

    assert found.left() == 2
    finish(work(is_burst=True))
    assert found.left() == async_to_sync(found.aleft)() == 1
    with pytest.raises(InvalidTask, match="already"):
        found.schedule([note(queue_name, 2)])
    with pytest.raises(JobNotFound):
        Batch.of("nothing")
    assert callback.run_now()
    finish(work(is_burst=True))
    assert texts(records) == [0, "last"]
