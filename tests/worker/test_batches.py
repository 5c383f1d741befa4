"""Batches: jobs, and a callback that starts once all of them have ended."""

import pytest
from asgiref.sync import async_to_sync
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    Batch,
    InvalidTask,
    QueueFull,
    State,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.calls.script import bind
from django_delayq.conf import get_settings
from django_delayq.delivery.binding import PACKAGES
from tests.polling import wait_until
from tests.queues.proxy import Proxy
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
    configure({"MAX_JOBS": 3})
    batch = Batch(note(queue_name, "last"))
    with pytest.raises(QueueFull) as full:
        batch.schedule([note(queue_name, n) for n in range(5)])
    worker = work(is_burst=True)
    finish(worker)
    assert sorted(texts(records)) == [0, 1, 2]

    batch.schedule(full.value.unsent)

    finish(work(is_burst=True))
    *ran, last = texts(records)
    assert (sorted(ran), last) == ([0, 1, 2, 3, 4], "last")


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
    with pytest.raises(InvalidTask, match="has no job"):
        Batch(note(queue_name, "x")).schedule([])
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
    Batch(callback)
    with pytest.raises(InvalidTask, match="already"):
        Batch(callback)
    with pytest.raises(InvalidTask):
        schedule_many([callback])
    assert not client.exists(keys.queue.timeout_set, keys.batches)

    batch = Batch(note(queue_name, "x"))
    batch.schedule([good])
    with pytest.raises(InvalidTask, match="already"):
        batch.schedule([note(queue_name, "more")])
    with pytest.raises(InvalidTask, match="it was sent"):
        Batch(note(queue_name, "x")).schedule([good])


def test_job_of_a_batch_can_neither_follow_nor_join_another(
    configure, queue_name
) -> None:
    configure({"MAX_JOBS": 1})
    jobs = [note(queue_name, "a"), note(queue_name, "b")]
    batch = Batch(note(queue_name, "x"))
    schedule(tasks.note.using(queue=queue_name), 600)
    with pytest.raises(QueueFull):
        batch.schedule(jobs)

    with pytest.raises(InvalidTask, match="part of a batch"):
        note(queue_name, "d").then(jobs[0])
    with pytest.raises(InvalidTask, match="another one"):
        Batch(note(queue_name, "y")).schedule(jobs)


@pytest.mark.parametrize("is_reply_lost", [True, False])
def test_callback_is_stored_once_when_the_closing_breaks_off(
    server, settings, work, configure, records, queue_name, is_reply_lost
) -> None:
    configure()
    proxy = Proxy(server)
    settings.DELAYQ = {
        "CONNECTION": proxy.url,
        "QUEUES": {"default": {}, queue_name: {}},
    }
    try:
        Batch(note(queue_name, "first")).schedule([note(queue_name, 0)])
        keys = get_settings().queue(queue_name).keys
        sha = bind(PACKAGES, "close", keys)[0].sha.encode()
        struck = (proxy.lose_reply_to if is_reply_lost else proxy.lose)(sha, 1)

        try:
            batch = Batch(note(queue_name, "last"))
            batch.schedule([note(queue_name, 1)])
        except RedisConnectionError:
            batch.schedule([])

        wait_until(struck.is_set, description="it breaks off")
        work()
        wait_until(lambda: len(texts(records)) == 4, description="all have run")
        assert sorted(map(str, texts(records))) == ["0", "1", "first", "last"]
    finally:
        proxy.close()
