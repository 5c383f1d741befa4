"""Nothing grows without bound, nothing holds the server: on real worker programs."""

import time

from django_delayq import schedule, schedule_many
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts


def test_processes_that_come_and_go_leave_nothing_on_the_server(
    lasting, programs, records, queue_name
):
    """With --max-jobs each process ends after a few jobs, as it does with each deployment."""
    client = lasting.client()
    keys = get_settings().queue(queue_name).keys
    (worker,) = programs(1, "--max-jobs", "2")
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0) for _ in range(12)
    )
    wait_until(
        lambda: all(job.refresh() is State.SUCCEEDED for job in jobs),
        description="all have run",
    )

    worker.stop()

    assert len({line["pid"] for line in records.all("run")}) >= 6
    assert client.hlen(keys.claims) == 0


def test_unreadable_things_stop_neither_the_queue_nor_its_jobs(
    lasting, programs, records, queue_name
):
    client = lasting.client()
    keys = get_settings().queue(queue_name).keys
    note = tasks.note.using(queue=queue_name)
    waiting, unlocated = schedule(note, 3), schedule(note, 3)
    client.hset(keys.locators, unlocated.id.rpartition(":")[2], b"garbage")
    for name in ("number", "succeeded", "offered"):
        client.hset(keys.counters, name, "garbage")
    # A lease without a payload, and one without a header that can be read.
    now_ms = time.time_ns() // 1_000_000
    client.zadd(keys.leases, {"a" * 22: now_ms, "b" * 22: now_ms})
    client.hset(keys.headers, mapping={"a" * 22: b"short", "b" * 22: b""})

    programs(1)
    late = schedule(note, 0)

    wait_until(lambda: records.count("run") == 3, description="all have run")
    wait_until(lambda: counts(queue_name).running == 0, description="all have ended")
    # What ended is known for 30 s, and this machine may be slow.
    assert {waiting.refresh(), late.refresh()} <= {State.SUCCEEDED, State.MISSING}
    assert counts(queue_name).counters["vanished"] == 2
    assert client.hlen(keys.headers) == 0
