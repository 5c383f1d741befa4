"""What a type checker knows of the options of tasks, handlers, calls and schedules: all of them, and no other."""

from datetime import timedelta
from typing import reveal_type

from django_delayq import (
    Backoff,
    Durable,
    Limit,
    astore_schedule,
    cron,
    delayed_task,
    every,
    periodic,
    queue_handler,
    store_schedule,
)


def key_of(address: str) -> str:
    return address.casefold()


# Every option, each with a value of another kind than the others have.


@delayed_task(
    name="mail.send",
    queue="mail",
    max_attempts=3,
    backoff=Backoff(base=30, factor=2),
    retry_on=(ConnectionError, TimeoutError),
    no_retry_on=BrokenPipeError,
    time_limit=20,
    unique=("address",),
    unique_until="start",
    on_duplicate=("replace", "postpone"),
    max_wait=timedelta(hours=1),
    expires=1.5,
    on_expiry="dead",
    priority=-5,
    limit=Limit("mail", concurrency=3),
    sensitive=("address",),
    encrypt=True,
    keep_result=60,
    spread=timedelta(minutes=5),
    durable=Durable(replicas=1, disk=True),
    on_commit="default",
)
def send(address: str) -> str:
    return address


@delayed_task(unique=True, retry_on=OSError, on_commit=True, on_duplicate="sooner")
async def measure(address: str) -> int:
    return len(address)


@delayed_task(unique=key_of, time_limit=None, limit=None, on_commit=None)
def unlimited(address: str) -> None: ...


reveal_type(send)  # R: DelayedTask[[address: str], str]
reveal_type(send.schedule(5, "x"))  # R: Job[str]
reveal_type(measure.schedule(5, "x"))  # R: Job[int]
reveal_type(unlimited.schedule(5, "x"))  # R: Job[None]


@queue_handler("orders", name="orders.take", max_attempts=3, retry_on=OSError)
def take(value: object) -> int:
    return 1


reveal_type(take.schedule(5, {}))  # R: Job[int]


# A misspelt one, and a value that it cannot have.

delayed_task(max_atempts=3)  # E: call-overload
delayed_task(max_attempts="3")  # E: call-overload
delayed_task(on_expiry="die")  # E: call-overload
delayed_task(unique_until="begin")  # E: call-overload
delayed_task(on_duplicate="later")  # E: call-overload
delayed_task(retry_on="OSError")  # E: call-overload
delayed_task(retry_on=(OSError("x"),))  # E: arg-type
delayed_task(backoff=30)  # E: call-overload
delayed_task(time_limit="20")  # E: call-overload
delayed_task(limit="mail")  # E: call-overload
delayed_task(keep_results=60)  # E: call-overload
delayed_task(durable="disc")  # E: call-overload
delayed_task(name=5)  # E: call-overload

queue_handler("orders", keep_results=60)  # E: call-arg
queue_handler("orders", priority="high")  # E: arg-type
queue_handler("orders", queue="mail")  # E: call-arg
queue_handler("orders", limit=Limit("mail", concurrency=3))  # E: call-arg

# What only the decorator takes.

send.using(queue="mail", priority=5, expires=timedelta(1), max_attempts=1)
send.using(max_atempts=1)  # E: call-arg
send.using(durable=False).schedule(5, "x").cancel(durable="disk")
send.schedule(5, "x").reschedule(9, durable=2)
send.using(durable="disc")  # E: arg-type
send.schedule(5, "x").cancel(durable="disc")  # E: arg-type
send.using(spread="5 min")  # E: arg-type
send.using(name="other")  # E: call-arg
send.using(retry_on=OSError)  # E: call-arg
send.using(limit=None)  # E: call-arg

moments = cron("0 9 * * 1-5")
periodic(moments, name="report", expires=60, queue="mail", overlap=False)
periodic(moments, expire=60)  # E: call-arg
periodic(every(5), priority="high")  # E: arg-type
periodic(moments, retry_on=OSError)  # E: call-arg

stored = store_schedule("report", send, moments, args=["x"], spread=60)
reveal_type(stored)  # R: Schedule
store_schedule("report", send, moments, spreads=60)  # E: call-arg
store_schedule("report", "mail.send", moments, keep_result="1 h")  # E: arg-type


async def store() -> None:
    await astore_schedule("report", send, moments, replace=True, max_attempts=1)
    await astore_schedule("report", send, moments, max_atempts=1)  # E: call-arg
