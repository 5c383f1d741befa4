"""Workers of a queue with shards: all shards are served in turns, also those of other settings, and none is left behind."""

import random
import signal
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import (
    Limit,
    State,
    delayed_task,
    every,
    find_jobs,
    get_job,
    limits,
    pause,
    paused,
    resume,
    schedule,
    schedule_many,
    set_limit,
    store_schedule,
)
from django_delayq.calls.running import run
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.sharding import pin_shards
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import kill

#: Scheduled this far ahead, a job waits for the length of any test.
LATER = 3_600


@delayed_task(unique=True)
def once(number: int) -> None:
    """One at a time."""


@delayed_task(limit=Limit("shards-one", concurrency=1, key=lambda key: key))
def one_at_a_time(key: int) -> None:
    """One of a key at a time."""


def note(queue: str, text: object, delay: float = 0) -> Any:
    return tasks.note.using(queue=queue).prepare(delay, text)


def texts(records: Any) -> list[Any]:
    return [line.get("text") for line in records.all("run")]


def test_worker_runs_the_jobs_of_all_shards(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 4})
    work()
    jobs = schedule_many(note(queue_name, n) for n in range(40))

    wait_until(lambda: records.count("run") == 40, description="all jobs have run")

    assert sorted(texts(records)) == list(range(40))
    assert len({job.queue for job in jobs}) == 4
    wait_until(
        lambda: find_jobs(queue=queue_name).count() == 0, description="nothing is left"
    )


@pytest.mark.parametrize("is_weighted", [False, True], ids=["in order", "by weight"])
def test_shards_take_turns_while_one_has_a_backlog(
    configure: Any, work: Any, records: Any, queue_name: str, is_weighted: bool
) -> None:
    configure({"SHARDS": 3})
    full = [
        tasks.work_a_while.using(queue=f"{queue_name}:0").prepare(0, 2)
        for _ in range(600)
    ]
    schedule_many(full)
    schedule_many(note(f"{queue_name}:{n}", n) for n in (1, 2))

    work({queue_name: 1.0} if is_weighted else None, threads=1)
    wait_until(
        lambda: find_jobs(queue=queue_name).count() == 0,
        description="all jobs have ended",
    )

    # Of some hundred claims, each goes to one of three shards by chance.
    steps = [line["step"] for line in records.all()]
    last = len(steps) - 1 - steps[::-1].index("run")
    assert steps.count("run") == 2
    assert steps[:last].count("start") < 500


def test_limit_of_the_queue_holds_over_all_shards(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 2, "CONCURRENCY": 3})
    schedule_many(tasks.hold.using(queue=queue_name).prepare(0) for _ in range(24))

    work(threads=16)
    wait_until(lambda: records.count("start") == 3, description="three jobs run")

    assert find_jobs(queue=queue_name, state=State.RUNNING).count() == 3
    in_shards = [
        find_jobs(queue=f"{queue_name}:{n}", state=State.RUNNING).count()
        for n in range(2)
    ]
    assert in_shards == [2, 1]


def test_fewer_shards_leave_no_job_behind(
    configure: Any, work: Any, records: Any, queue_name: str, caplog: Any
) -> None:
    configure({"SHARDS": 4, "KEY_SHARDS": 2})
    jobs = schedule_many(note(queue_name, n) for n in range(40))
    assert len({job.queue for job in jobs}) == 4

    configure({"SHARDS": 2})
    work()
    wait_until(lambda: records.count("run") == 40, description="all jobs have run")

    assert sorted(texts(records)) == list(range(40))
    for number in (2, 3):
        assert f"shard {queue_name}:{number} is not in the settings" in caplog.text


def test_worker_that_runs_serves_shards_that_come(
    configure: Any, work: Any, records: Any, queue_name: str, client: Any
) -> None:
    configure({"SHARDS": 2})
    worker = work()
    schedule_many([note(queue_name, "before")])
    wait_until(lambda: texts(records) == ["before"], description="the worker works")

    # Another process has more of them. This one looks every minute.
    run(client, pin_shards(DeliveryKeys.of(queue_name), 4, 2))
    schedule_many([note(f"{queue_name}:3", "after")])

    def is_served() -> bool:
        worker.loop.queues[queue_name].upkeep.next_ms = 0.0
        worker.loop.alarm.wake(queue_name)
        return texts(records) == ["before", "after"]

    wait_until(is_served, description="the new shard is served")
    # It has a subscription as well, which wakes the worker at once.
    schedule_many([note(f"{queue_name}:3", "again")])
    wait_until(lambda: texts(records)[2:] == ["again"], description="it goes on")


def test_shards_that_come_keep_the_pause_and_limit_of_the_queue(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 2})
    schedule_many(note(queue_name, n) for n in range(8))
    pause(queue_name, reason="mending")
    set_limit(queue_name, concurrency=4)

    configure({"SHARDS": 4, "KEY_SHARDS": 2})
    schedule_many(note(queue_name, n) for n in range(8, 40))
    worker = work()
    wait_until(
        lambda: all(
            worker.loop.queues[f"{queue_name}:{n}"].has_begun for n in range(4)
        ),
        description="all shards are asked",
    )

    assert [each.queue for each in paused(queue_name)] == [queue_name]
    assert paused(f"{queue_name}:3")[0].reason == "mending"
    assert limits(f"{queue_name}:3")[0].concurrency == 2
    assert texts(records) == []
    resume(queue_name)
    wait_until(lambda: records.count("run") == 40, description="all jobs have run")
    # It is taken over once: what is said of a shard afterwards stays.
    worker.stop()
    pause(f"{queue_name}:0")
    again = work()
    wait_until(
        lambda: again.loop.queues[f"{queue_name}:3"].has_begun,
        description="the last shard is asked",
    )
    assert paused(f"{queue_name}:3") == []


def test_first_shards_keep_the_pause_of_the_queue(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({})
    schedule(tasks.note.using(queue=queue_name), 0, 0)
    pause(queue_name, reason="mending")

    configure({"SHARDS": 2})
    schedule_many(note(queue_name, n) for n in range(1, 20))
    worker = work()
    wait_until(
        lambda: all(
            worker.loop.queues[name].has_begun
            for name in (queue_name, f"{queue_name}:0", f"{queue_name}:1")
        ),
        description="all are asked",
    )

    assert {each.reason for each in paused(f"{queue_name}:1")} == {"mending"}
    assert texts(records) == []
    resume(queue_name)
    wait_until(lambda: records.count("run") == 20, description="all jobs have run")


def test_queue_that_gets_shards_runs_what_it_held_before(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({})
    jobs = schedule_many(note(queue_name, n) for n in range(8))

    configure({"SHARDS": 3})
    assert [get_job(job.id).args for job in jobs] == [[n] for n in range(8)]
    schedule_many(note(queue_name, n) for n in range(8, 16))
    work()

    wait_until(lambda: records.count("run") == 16, description="all jobs have run")
    assert sorted(texts(records)) == list(range(16))


def test_queue_that_loses_its_shards_runs_what_they_held(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 3})
    jobs = schedule_many(note(queue_name, n) for n in range(16))

    configure({})
    assert [get_job(job.id).args for job in jobs] == [[n] for n in range(16)]
    work()

    wait_until(lambda: records.count("run") == 16, description="all jobs have run")
    assert sorted(texts(records)) == list(range(16))


def test_worker_with_another_number_of_keys_serves_the_other_queues(
    configure: Any, work: Any, records: Any, queue_name: str, client: Any, caplog: Any
) -> None:
    configure({"SHARDS": 4}, other={})
    run(client, pin_shards(DeliveryKeys.of(queue_name), 2, 2))
    worker = work([queue_name, f"{queue_name}-other"])
    schedule(tasks.note.using(queue=f"{queue_name}-other"), 0, "served")

    wait_until(lambda: texts(records) == ["served"], description="the other is served")

    assert (
        f"['{queue_name}']['KEY_SHARDS'] to 2"
        in worker.loop.queues[f"{queue_name}:0"].problem
    )
    assert "cannot be served, trying again" in caplog.text


def test_schedule_of_code_and_stored_one_run_once_a_moment(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 3})
    stored = store_schedule(
        "often",
        tasks.note,
        every(timedelta(seconds=1)),
        args=["tick"],
        queue=queue_name,
    )
    work()
    work()

    wait_until(lambda: records.count("run") >= 2, description="two moments have come")

    jobs = records.jobs("run")
    assert len(set(jobs)) == len(jobs)
    assert {job.rpartition(":")[0] for job in jobs} == {stored.queue}


@pytest.mark.parametrize("seed", range(4))
def test_key_has_one_holder_while_the_number_of_shards_changes(
    configure: Any, queue_name: str, work: Any, seed: int
) -> None:
    chance = random.Random(seed)
    with_keys = chance.choice((0, 1, 3))
    if not with_keys:
        # What was stored without shards stays there.
        configure({})
        schedule(once.using(queue=queue_name), LATER, 0)
    held: dict[int, str] = {}
    for _ in range(12):
        shards = chance.choice((1, 2, 3, 4, 7))
        configure({"SHARDS": shards, "KEY_SHARDS": with_keys})
        for number in chance.sample(range(20), 12):
            job = schedule(once.using(queue=queue_name), LATER, number)
            if number in held:
                assert not job.created
                assert job.id == held[number]
            held[number] = job.id
        for number in chance.sample(sorted(held), len(held) // 3):
            assert get_job(held.pop(number)).cancel()

    waiting = Counter(job.unique for job in find_jobs(queue=queue_name, task=once))
    most = {name: count for name, count in waiting.items() if count > 1}
    assert most == {}
    assert waiting.total() >= len(held)
    work(is_burst=True).join()
    assert find_jobs(queue=queue_name, state=State.SCHEDULED).count() >= len(held)


def test_killed_processes_lose_no_job_of_any_shard(
    configure: Any, program: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 4}, worker={"LEASE": 5})
    worker = program("--queue", queue_name, "--processes", "2", "--threads", "4")
    jobs = schedule_many(
        tasks.work_a_while.using(queue=queue_name).prepare(0, 5) for _ in range(400)
    )
    for round in range(3):
        left = len(jobs) - 100 * (round + 1)
        wait_until(
            lambda left=left: find_jobs(queue=queue_name).count() <= left,
            description="some jobs have run",
        )
        kill(worker.wait_for_processes().children()[0], signal.SIGKILL)

    wait_until(
        lambda: find_jobs(queue=queue_name).count() == 0,
        description="all jobs have ended",
        timeout=60,
    )

    assert set(records.jobs("end")) == {job.id for job in jobs}
