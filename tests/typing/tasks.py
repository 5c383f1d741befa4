"""What a type checker knows of tasks and jobs: ``R:`` the type revealed on that line, ``E:`` the error found there."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, reveal_type

from django_delayq import (
    Batch,
    Cancel,
    FoundJobs,
    Job,
    Retry,
    Snooze,
    State,
    afind_jobs,
    aget_job,
    aschedule,
    aschedule_many,
    cron,
    current_job,
    delayed_task,
    ended_jobs,
    every,
    find_jobs,
    get_job,
    get_schedule,
    pause,
    paused,
    periodic,
    queue_handler,
    resume,
    schedule,
    schedule_many,
)
from django_delayq.testing import FrozenQueue


@delayed_task
def add(a: int, b: int = 0, *, note: str = "") -> int:
    return a + b


@delayed_task(queue="default", max_attempts=3)
def greet(name: str) -> str:
    return f"Hello, {name}"


@delayed_task
async def fetch(url: str) -> bytes:
    return url.encode()


@delayed_task(keep_result=60)
def forget() -> None: ...


@queue_handler("dest_queue1")
def handle(value: Any) -> int:
    return len(value)


# A task is called as its function is.

reveal_type(add)  # R: DelayedTask[[a: int, b: int =, *, note: str =], int]
reveal_type(add(1, note="x"))  # R: int
reveal_type(greet("x"))  # R: str
reveal_type(handle({}))  # R: int
add("1")  # E: arg-type
add()  # E: call-arg
add(1, colour="red")  # E: call-arg
greet(name=5)  # E: arg-type


# It is scheduled with the same arguments, and the job knows what it returns.

reveal_type(schedule(add, 5, 1, 2))  # R: Job[int]
reveal_type(add.schedule(5, 1, note="x"))  # R: Job[int]
reveal_type(greet.prepare(5, "x"))  # R: Job[str]
reveal_type(schedule(add, 5, 1).wait())  # R: int
reveal_type(schedule(greet, 5, "x").wait(timeout=3))  # R: str
schedule(add, 5)  # E: call-overload
schedule(add, 5, "1")  # E: call-overload
schedule(add, 5, 1, colour="red")  # E: arg-type, call-arg
add.schedule(5, "1")  # E: arg-type
greet.prepare(5)  # E: call-arg
schedule(add, "5", 1)  # E: call-overload
schedule(5, 5)  # E: call-overload
reveal_type(forget.schedule(5))  # R: Job[None]

for delay in (0, 1.5, Decimal("0.1"), timedelta(1), datetime(2030, 1, 1, tzinfo=UTC)):
    schedule(add, delay, 1)


# Options keep the signature.

once = add.using(max_attempts=1)
reveal_type(once)  # R: DelayedTask[[a: int, b: int =, *, note: str =], int]
once.schedule(5, "1")  # E: arg-type


# What is found by name or id is not known.

reveal_type(schedule("app.tasks.add", 5, 1, anything="goes"))  # R: Job[Any]
reveal_type(get_job("default:x"))  # R: Job[Any]
reveal_type(add.schedule(5, 1).created)  # R: bool
reveal_type(add.schedule(5, 1).replaced)  # R: bool
reveal_type(add.prepare(5, 1).then(greet.prepare(5, "x")))  # R: Job[int]
reveal_type(greet.prepare(5, "x").on_dead(add.prepare(5, 1)))  # R: Job[str]
add.prepare(5, 1).then(greet)  # E: arg-type
jobs: list[Job[Any]] = [greet.prepare(5, "x"), add.prepare(5, 1)]
reveal_type(schedule_many(jobs))  # R: list[Job[Any]]
reveal_type(schedule_many([add.prepare(5, 1)]))  # R: list[Job[int]]
reveal_type(schedule_many([fetch.prepare(5, "u")]))  # R: list[Job[bytes]]
reveal_type(schedule(add.prepare(5, 1)))  # R: Job[int]
reveal_type(schedule(get_job("default:x")))  # R: Job[Any]
schedule(add.prepare(5, 1), 5)  # E: call-overload
schedule_many([add])  # E: arg-type
add.prepare(5, 1).on_dead("greet")  # E: arg-type


# A batch knows what its callback returns, and its jobs.

batch = Batch(add.prepare(5, 1))
reveal_type(batch)  # R: Batch[int]
reveal_type(batch.callback.wait())  # R: int
reveal_type(batch.schedule([greet.prepare(5, "x")]))  # R: list[Job[str]]
reveal_type(Batch.of("default:x").left())  # R: int
reveal_type(Batch.of("default:x").callback)  # R: Job[Any]
Batch(add)  # E: arg-type
batch.schedule([add])  # E: arg-type
batch.schedule(add.prepare(5, 1))  # E: arg-type


async def later() -> None:
    reveal_type(await aschedule(add, 5, 1))  # R: Job[int]
    reveal_type(await add.aschedule(5, 1))  # R: Job[int]
    reveal_type(await (await aschedule(greet, 5, "x")).await_result())  # R: str
    reveal_type(await aget_job("default:x"))  # R: Job[Any]
    reveal_type(await aschedule_many([add.prepare(5, 1)]))  # R: list[Job[int]]
    reveal_type(await batch.aschedule([fetch.prepare(5, "u")]))  # R: list[Job[bytes]]
    await aschedule(add, 5, "1")  # E: call-overload
    reveal_type(await fetch("u"))  # R: bytes
    reveal_type(await (await fetch.aschedule(5, "u")).await_result())  # R: bytes


# What a task decides, and asks.

reveal_type(Retry())  # R: Retry
Retry(timedelta(1), "why")
Retry("soon")  # E: arg-type
Snooze(datetime(2030, 1, 1, tzinfo=UTC), "why")
Snooze()  # E: call-arg
Cancel("why")
Cancel(5)  # E: arg-type
if (job := current_job()) is not None:
    reveal_type(job.stopping)  # R: bool
    reveal_type(job.wait_for_stop(5))  # R: bool
current_job().check()  # E: union-attr


async def stop() -> None:
    if (job := current_job()) is not None:
        reveal_type(await job.await_stop(timedelta(1)))  # R: bool


# What is found is of the task that was looked for.

reveal_type(find_jobs(task=add, due=(None, timedelta(0))))  # R: FoundJobs[int]
reveal_type(find_jobs(queue=["a", "b"], state=State.DEAD))  # R: FoundJobs[Any]
reveal_type(find_jobs(state={"dead", State.HELD}, limit=5).count())  # R: int
reveal_type(find_jobs(text="x").cancel().won)  # R: int
reveal_type(find_jobs(text="x").run_now().lost)  # R: dict[State, int]
find_jobs(text=5)  # E: call-overload
reveal_type(ended_jobs("default", limit=5)[0].outcome)  # R: State
reveal_type(ended_jobs()[0].lateness_ms)  # R: float | None
ended_jobs(limit="5")  # E: arg-type
find_jobs("default")  # E: call-overload
found: FoundJobs[int] = find_jobs(task=add)
for each in found:
    reveal_type(each)  # R: Job[int]


async def look() -> None:
    async for each in afind_jobs(task=greet):
        reveal_type(each)  # R: Job[str]
    reveal_type((await afind_jobs().areschedule(5)).won)  # R: int


# What is paused is a queue by its name, or a task.

pause("mail", until=timedelta(minutes=5), reason="r")
pause(task=add)
pause("mail", task="shop.tasks.add", until=60)
pause(add)  # E: arg-type
pause(task=5)  # E: arg-type
reveal_type(resume("mail"))  # R: bool
reveal_type(paused()[0].until)  # R: datetime | None


# A periodic task is the task that it was.


@periodic(cron("0 9 * * 1-5", tz="UTC"), name="report", args=[1])
@periodic(every(timedelta(minutes=5)), catch_up="all", overlap=False, priority=5)
@delayed_task
def count(first: int = 0) -> int:
    return first


reveal_type(count)  # R: DelayedTask[[first: int =], int]
reveal_type(get_schedule("x").pause(reason="r").next_occurrence)  # R: datetime | None
reveal_type(get_schedule("report").fire())  # R: Job[Any]
periodic("0 9 * * *")  # E: arg-type
periodic(every(5), catch_up="some")  # E: arg-type


# A job of an async task is of what its coroutine returns.

reveal_type(fetch)  # R: DelayedTask[[url: str], Coroutine[Any, Any, bytes]]
reveal_type(schedule(fetch, 5, "u"))  # R: Job[bytes]
reveal_type(fetch.schedule(5, "u"))  # R: Job[bytes]
reveal_type(fetch.prepare(5, "u"))  # R: Job[bytes]
reveal_type(fetch.using(queue="mail").schedule(5, "u").wait())  # R: bytes
reveal_type(find_jobs(task=fetch))  # R: FoundJobs[bytes]
schedule(fetch, 5, 5)  # E: call-overload
fetch.schedule(5, 5)  # E: call-overload
fetch.prepare(5)  # E: call-overload


async def bring() -> None:
    job = await aschedule(fetch, 5, "u")
    reveal_type(job)  # R: Job[bytes]
    reveal_type(await fetch.aschedule(5, "u"))  # R: Job[bytes]
    reveal_type(await job.await_result())  # R: bytes
    await aschedule(fetch, 5)  # E: call-overload


# What the decorator cannot take.

delayed_task(5)  # E: call-overload


def takes_a_job(job: Job[int], call: Coroutine[Any, Any, bytes]) -> None: ...


takes_a_job(schedule(add, 5, 1), fetch("u"))
takes_a_job(schedule(greet, 5, "x"), fetch("u"))  # E: call-overload


# Time passes in the units of a timedelta.


def frozen(q: FrozenQueue) -> None:
    reveal_type(q.advance(hours=1, minutes=15))  # R: list[Ran]
    q.advance(timedelta(minutes=15))
    q.advance(900)
    q.advance(minuts=15)  # E: call-arg
    q.advance(minutes="15")  # E: arg-type


async def afrozen(q: FrozenQueue) -> None:
    reveal_type(await q.aadvance(days=1))  # R: list[Ran]
    await q.aadvance(day=1)  # E: call-arg
