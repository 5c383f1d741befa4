"""Nobody's job stands in another's way: scenarios with worker programs."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import schedule, schedule_many
from django_delayq.codecs import get_codec
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.transport.run import run
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.records import Records
from tests.worker.workers import WorkerProgram, counts

#: Short, so that what holds up a worker for seconds costs leases.
LEASE_S = 3


@pytest.fixture
def shop(
    configure: Any, program: Callable[..., WorkerProgram], queue_name: str
) -> Callable[..., WorkerProgram]:
    """Start a worker of one process for the test's queue, and for more whose names begin with its."""

    def start(*more: str, **environment: str) -> WorkerProgram:
        names = [queue_name, *(f"{queue_name}-{name}" for name in more)]
        queues = [word for name in names for word in ("--queue", name)]
        threads = environment.pop("threads", "2")
        arguments = ("--processes", "1", "--threads", threads, "--grace", "10")
        return program(*queues, *arguments, environment=environment)

    return start


def test_a_payload_that_takes_seconds_to_decode_costs_nobody_a_lease(
    configure: Any, shop: Any, records: Records, client: Any, queue_name: str
) -> None:
    configure(worker={"LEASE": LEASE_S}, java={"CODEC": "Kryo5Codec"})
    java = f"{queue_name}-java"
    value = [[number, str(number)] for number in range(120_000)]
    payload = get_codec("Kryo5Codec").encode(value)
    innocent = schedule(tasks.hold.using(queue=queue_name), 0)
    shop("java", WORKER_TEST_APPS="tests.faults.way", WAY_TEST_QUEUE=java)
    wait_until(lambda: records.count("start") == 1, description="the innocent one runs")

    client.rpush(java, payload)
    wait_until(
        lambda: counts(java).running == 1 or records.count("foreign"),
        description="the large one is taken",
    )
    # Due one after the other while it is decoded.
    schedule_many(
        tasks.note.using(queue=queue_name).prepare(number / 10) for number in range(20)
    )

    wait_until(
        lambda: records.count("foreign") == 1 and records.count("run") == 20,
        description="the large one and the quick ones have run",
        timeout=120,
    )
    records.let_go()
    wait_until(lambda: records.count("end") == 1, description="the innocent one ends")
    assert records.jobs("start") == [innocent.id]
    lines = records.all()
    assert {(line["attempt"], line["kills"]) for line in lines} == {(1, 0)}
    assert [line["size"] for line in records.all("foreign")] == [len(value)]
    assert counts(java).quarantined == 0


def test_two_suspects_leave_room_for_quick_jobs(
    configure: Any, shop: Any, records: Records, client: Any, queue_name: str
) -> None:
    suspects = schedule_many(
        tasks.hold.using(queue=queue_name).prepare(0) for _ in range(2)
    )
    kill_twice(client, queue_name, len(suspects))
    schedule_many(tasks.note.using(queue=queue_name).prepare(0) for _ in range(20))

    shop(threads="4")

    wait_until(
        lambda: records.count("start") == 1, description="the first suspect runs"
    )
    wait_until(
        lambda: records.count("run") == 20, description="the quick ones have run"
    )
    assert records.count("start") == 1
    assert records.count("end") == 0
    records.let_go()
    wait_until(lambda: records.count("end") == 2, description="both suspects have run")
    steps = [line["step"] for line in records.all() if line["step"] != "run"]
    assert steps == ["start", "end"] * 2
    assert {line["kills"] for line in records.all("start")} == {2}


def kill_twice(client: Any, queue: str, count: int) -> None:
    """Be two workers that die with everything they have claimed."""
    keys = get_settings().queue(queue).keys
    for number in range(2):
        owner = os.urandom(8)

        def claim(owner: bytes = owner) -> int:
            call = claim_calls.claim(
                keys,
                owner=owner,
                request=os.urandom(8),
                limit=count,
                lease_ms=60_000,
            )
            return len(run(client, call).jobs)

        claimed = 0
        while claimed < count:
            claimed += wait_until(claim, description=f"jobs are claimed, {number}")
        run(client, claim_calls.recover(keys, owner=owner))


@every_server
def test_busy_threads_keep_no_async_job_waiting(
    configure: Any, shop: Any, records: Records, queue_name: str
) -> None:
    configure(other={})
    other = f"{queue_name}-other"
    busy = schedule_many(
        tasks.hold.using(queue=queue_name).prepare(0) for _ in range(2)
    )
    shop("other")
    wait_until(lambda: records.count("start") == 2, description="both threads are busy")

    # Those of another queue first, then some that lie behind sync jobs of their own.
    schedule(tasks.note_async.using(queue=other), 0, "other")
    wait_until(lambda: records.count("run") == 1, description="one of another queue")
    sync = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0, "sync") for _ in range(50)
    )
    schedule(tasks.note_async.using(queue=queue_name), 0, "same")
    schedule(tasks.note_async.using(queue=other), 0, "other")
    wait_until(lambda: records.count("run") == 3, description="one of the same queue")

    assert {line["text"] for line in records.all("run")} == {"other", "same"}
    assert records.count("end") == 0
    waiting = counts(queue_name)
    assert (waiting.retrying, waiting.quarantined, waiting.dead) == (0, 0, 0)
    records.let_go()
    wait_until(
        lambda: (records.count("run"), records.count("end")) == (53, 2),
        description="the sync ones have run, and the busy ones have ended",
    )
    assert {job.id for job in sync} < set(records.jobs("run"))
    assert {job.id for job in busy} == set(records.jobs("end"))
    assert {(line["attempt"], line["kills"]) for line in records.all()} == {(1, 0)}


def test_busy_coroutines_keep_no_sync_job_waiting(
    configure: Any, work: Any, records: Records, queue_name: str
) -> None:
    schedule_many(tasks.hold_async.using(queue=queue_name).prepare(0) for _ in range(2))
    work(threads=2, coroutines=2)
    wait_until(lambda: records.count("start") == 2, description="both are busy")

    later = schedule_many(
        tasks.note_async.using(queue=queue_name).prepare(0) for _ in range(20)
    )
    first = schedule(tasks.note.using(queue=queue_name), 0)

    wait_until(lambda: records.count("run") == 1, description="the sync one has run")
    assert records.jobs("run") == [first.id]
    records.let_go()
    wait_until(lambda: records.count("run") == 21, description="the others have run")
    assert {job.id for job in later} < set(records.jobs("run"))
    assert {line["attempt"] for line in records.all()} == {1}


def test_a_worker_with_nothing_but_sync_jobs_before_it_looks_past_them_once_a_second(
    configure: Any, work: Any, records: Records, queue_name: str
) -> None:
    schedule_many(tasks.hold.using(queue=queue_name).prepare(0) for _ in range(2))
    worker = work(threads=2)
    wait_until(lambda: records.count("start") == 2, description="both are busy")
    looks = []
    claim = worker.loop.dispatch.hand_out

    def hand_out(queue: Any, reply: Any, only: Any, *more: Any) -> None:
        looks.append((only, len(reply.jobs)))
        claim(queue, reply, only, *more)

    worker.loop.dispatch.hand_out = hand_out
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0) for _ in range(200)
    )

    wait_until(lambda: len(looks) >= 4, description="it looks")
    begun_ms, at_first = worker.loop.queues[queue_name].had_ms, len(looks)
    wait_until(lambda: len(looks) >= at_first + 2, description="it looks again")

    took_ms = worker.loop.queues[queue_name].had_ms - begun_ms
    assert took_ms > 900 * (len(looks) - at_first - 1)
    assert max(count for only, count in looks) <= 100
    records.let_go()
    wait_until(lambda: records.count("run") == 200, description="all have run")
    assert set(records.jobs("run")) == {job.id for job in jobs}


def test_a_channel_that_the_acl_forbids_leaves_the_other_queues_theirs(
    private_server: Any, settings: Any, shop: Any, records: Records, queue_name: str
) -> None:
    server = private_server()
    admin = server.client()
    other = f"{queue_name}-other"
    ours = [get_settings().queue(queue_name).keys]
    allowed = [keys.queue.channel for keys in ours] + [keys.channel for keys in ours]
    admin.acl_setuser(
        "app",
        enabled=True,
        passwords=["+pw"],
        commands=["+@all"],
        keys=["*"],
        channels=allowed,
        reset_channels=True,
    )
    queues: dict[str, Any] = {"default": {}, queue_name: {}, other: {}}
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": queues}
    url = server.socket_url.replace("unix://", "unix://app:pw@")
    mine = settings.DELAYQ
    settings.DELAYQ = {**mine, "CONNECTION": url}
    worker = shop("other")
    settings.DELAYQ = mine

    def listeners(channel: str) -> int:
        return int(admin.pubsub_numsub(channel)[0][1])

    for channel in allowed:
        wait_until(
            lambda channel=channel: listeners(channel) == 1,
            description=f"{channel} is listened to; {worker.log}",
        )
    forbidden = get_settings().queue(other).keys.channel
    assert listeners(forbidden) == 0
    schedule(tasks.note.using(queue=queue_name), 0)
    schedule(tasks.note.using(queue=other), 0)
    wait_until(lambda: records.count("run") == 2, description="both have run")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert worker.log.count(f"no right to listen to channel {forbidden}") == 1
