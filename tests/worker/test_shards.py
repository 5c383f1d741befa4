"""Workers of a queue with shards: all shards are served in turns, and none is left behind."""

import signal
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import (
    State,
    every,
    find_jobs,
    schedule,
    schedule_many,
    store_schedule,
)
from django_delayq.conf import get_settings
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.shards import Pin, pin_shards, read_shards, shard_keys
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from tests.conftest import keys_of
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import kill

#: Scheduled this far ahead, a job waits for the length of any test.
LATER = 3_600


def note(queue: str, text: object, delay: float = 0) -> Any:
    return tasks.note.using(queue=queue).prepare(delay, text)


def texts(records: Any) -> list[Any]:
    return [line.get("text") for line in records.all("run")]


def number_of(queue: str) -> int:
    return run(own_clients.of_thread(), read_shards(DeliveryKeys.of(queue))).pin.number


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


def test_empty_queue_takes_the_number_of_the_worker(
    configure: Any, work: Any, records: Any, queue_name: str
) -> None:
    configure({"SHARDS": 4})
    schedule_many(note(queue_name, n) for n in range(16))
    work(is_burst=True).join()

    configure({"SHARDS": 2})
    work()
    wait_until(
        lambda: number_of(queue_name) == 2, description="the worker changes the number"
    )
    jobs = schedule_many(note(queue_name, n) for n in range(16, 40))

    wait_until(lambda: records.count("run") == 40, description="all jobs have run")
    assert {job.queue for job in jobs} == {f"{queue_name}:0", f"{queue_name}:1"}


@pytest.mark.parametrize(
    ("before", "then"),
    [(4, 2), (4, None), (None, 3)],
    ids=["fewer", "none", "first"],
)
@pytest.mark.parametrize("is_on_its_way", [False, True], ids=["carried", "forward"])
def test_what_follows_reaches_its_queue_whatever_shards_that_has_by_then(
    configure: Any,
    work: Any,
    records: Any,
    client: Any,
    queue_name: str,
    before: int | None,
    then: int | None,
    is_on_its_way: bool,
) -> None:
    configure({} if before is None else {"SHARDS": before}, first={})
    first = f"{queue_name}-first"
    schedule_many([note(queue_name, "pins the number")])
    work(is_burst=True).join()
    once = tasks.note.using(queue=queue_name, unique=True)
    for n in range(8):
        job = note(first, n, 0 if is_on_its_way else LATER)
        schedule_many([job.then(note(queue_name, n + 10), once.prepare(0, n + 20))])
    if is_on_its_way:
        leave_on_its_way(client, work, first, queue_name)

    configure({} if then is None else {"SHARDS": then}, first={})
    # Its forwards must not keep the queue from its new number.
    work([first, queue_name])
    find_jobs(queue=first).run_now()

    wait_until(lambda: records.count("run") >= 25, description="all jobs have run")
    assert sorted(filter(is_number, texts(records))) == sorted(
        n + tens for n in range(8) for tens in (0, 10, 20)
    )
    wait_until(
        lambda: not client.exists(get_settings().queue(first).keys.forwards),
        description="nothing is left to forward",
    )


def is_number(text: object) -> bool:
    return isinstance(text, int)


def leave_on_its_way(client: Any, work: Any, first: str, queue: str) -> None:
    """Run the jobs of the first queue, as if its worker had died before it forwarded what follows."""
    sent = [part.keys.sent for part in get_settings().queues_of(queue)]
    for key in sent:
        client.set(key, "refuses what follows")
    work([first], is_burst=True).join()
    client.delete(*sent)


def test_what_a_former_shard_has_got_does_not_follow_again(
    configure: Any, work: Any, records: Any, client: Any, queue_name: str
) -> None:
    configure({"SHARDS": 2}, first={})
    first = f"{queue_name}-first"
    schedule_many([note(first, "a").then(note(f"{queue_name}:1", "b"))])
    leave_on_its_way(client, work, first, queue_name)
    forwards = get_settings().queue(first).keys.forwards
    kept = client.zrange(forwards, 0, -1)
    work([first, queue_name], is_burst=True).join()
    client.zadd(forwards, dict.fromkeys(kept, 0))

    configure(first={})
    work([first, queue_name])

    wait_until(
        lambda: not client.exists(forwards), description="the forward is removed"
    )
    assert texts(records) == ["a", "b"]


def test_worker_with_another_number_forwards_nothing(
    configure: Any, work: Any, records: Any, queue_name: str, caplog: Any
) -> None:
    configure({"SHARDS": 4}, first={})
    first = f"{queue_name}-first"
    schedule_many([note(f"{queue_name}:3", "later", LATER)])

    configure({"SHARDS": 2}, first={})
    once = tasks.note.using(queue=queue_name, unique=True)
    schedule_many(note(first, n).then(once.prepare(0, n + 10)) for n in range(8))
    worker = work([first])
    wait_until(lambda: records.count("run") == 8, description="the first have run")
    wait_until(
        lambda: "does not get what follows into it" in caplog.text,
        description="the queue does not get the others",
    )
    worker.stop()
    assert find_jobs(queue=f"{queue_name}:0").count() == 0

    configure({"SHARDS": 4}, first={})
    work([first, queue_name])

    wait_until(lambda: records.count("run") == 16, description="all have run")


def test_worker_with_another_number_waits_until_the_queue_is_empty(
    configure: Any, work: Any, records: Any, queue_name: str, caplog: Any
) -> None:
    configure({"SHARDS": 2}, other={})
    jobs = schedule_many(note(queue_name, n, LATER) for n in range(16))
    configure({"SHARDS": 4}, other={})
    worker = work([queue_name, f"{queue_name}-other"])
    schedule(tasks.note.using(queue=f"{queue_name}-other"), 0, "served")

    wait_until(lambda: texts(records) == ["served"], description="the other is served")
    wait_until(
        lambda: worker.loop.queues[f"{queue_name}:0"].problem, description="it is told"
    )
    assert "SHARDS=2, and the settings say SHARDS=4" in caplog.text
    assert "(jobs: 16)" in worker.loop.queues[f"{queue_name}:0"].problem

    client = own_clients.of_thread()
    for job in jobs:
        keys = DeliveryKeys.of(job.queue)
        client.delete(keys.queue.timeout_set, keys.locators)
    wait_until(
        lambda: number_of(queue_name) == 4, description="it gives its own number"
    )
    schedule_many(note(queue_name, n) for n in range(16))
    wait_until(lambda: records.count("run") == 17, description="all jobs have run")


def test_worker_stops_serving_a_queue_that_gets_another_number(
    configure: Any, work: Any, records: Any, queue_name: str, client: Any, caplog: Any
) -> None:
    configure({"SHARDS": 2})
    worker = work()
    schedule_many([note(queue_name, "before")])
    wait_until(lambda: texts(records) == ["before"], description="the worker works")

    # Another process has changed it. This one looks every minute.
    keys = DeliveryKeys.of(queue_name)
    old = run(client, read_shards(keys)).pin
    new = Pin.new(4)
    run(client, pin_shards(keys, old, new))
    for number in range(2):
        run(client, pin_shards(shard_keys(keys, number), old.opened, new.opened))

    def has_stopped() -> bool:
        for name, queue in worker.loop.queues.items():
            queue.upkeep.next_ms = 0.0
            worker.loop.alarm.wake(name)
        return all("SHARDS=4" in queue.problem for queue in worker.loop.queues.values())

    wait_until(has_stopped, description="no shard is served")


@pytest.mark.parametrize("options", [{"SHARDS": 3}, {}], ids=["shards", "none"])
def test_worker_writes_the_number_again_that_the_server_has_forgotten(
    configure: Any,
    work: Any,
    records: Any,
    queue_name: str,
    client: Any,
    options: dict[str, Any],
) -> None:
    configure(options)
    worker = work()
    schedule_many([note(queue_name, "before")])
    wait_until(lambda: texts(records) == ["before"], description="the worker works")
    for key in keys_of(client, queue_name):
        client.delete(key)
    schedule_many([note(queue_name, "between")])

    def is_written() -> bool:
        for name, queue in worker.loop.queues.items():
            queue.upkeep.next_ms = 0.0
            worker.loop.alarm.wake(name)
        return number_of(queue_name) == options.get("SHARDS", 0)

    wait_until(is_written, description="the number is there")
    schedule_many([note(queue_name, "after")])
    wait_until(
        lambda: sorted(texts(records)) == ["after", "before", "between"],
        description="it goes on",
    )


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
