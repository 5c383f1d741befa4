"""Tasks for the tests of `django_delayq.testing`, and what they did."""

from typing import Any

from django.utils import timezone

from django_delayq import (
    Backoff,
    Cancel,
    Limit,
    Retry,
    Snooze,
    current_job,
    delayed_task,
    queue_handler,
)

#: What ran, in order: the name, its argument, and when.
RAN: list[tuple[str, Any]] = []
MOMENTS: list[Any] = []


@delayed_task(keep_result=3_600)
def double(n: int) -> int:
    RAN.append(("double", n))
    MOMENTS.append(timezone.now())
    return 2 * n


@delayed_task(keep_result=3_600)
async def adouble(n: int) -> int:
    RAN.append(("adouble", n))
    return 2 * n


@delayed_task(unique=("n",))
def once(n: int, why: str = "") -> None:
    RAN.append(("once", n))


@delayed_task(unique=("n",), on_duplicate=("replace", "postpone"))
def latest(n: int, why: str = "") -> None:
    RAN.append(("latest", why))


@delayed_task
def grandparent(n: int) -> None:
    RAN.append(("grandparent begins", n))
    parent.schedule(0, "double")
    RAN.append(("grandparent ends", n))


@delayed_task(on_commit=True)
def committed(n: int) -> None:
    RAN.append(("committed", n))


@delayed_task(max_attempts=3, backoff=Backoff(base=60, factor=1, jitter=0))
def failing(n: int) -> None:
    RAN.append(("failing", n))
    raise ValueError(f"no {n}")


@delayed_task(max_attempts=2)
def cut_off(n: int) -> None:
    raise ConnectionError("gone")


@delayed_task
def deciding(what: str) -> None:
    job = current_job()
    assert job is not None
    RAN.append(("deciding", job.attempts))
    if what == "retry":
        raise Retry(30)
    if what == "snooze":
        raise Snooze(60)
    raise Cancel("not needed")


@delayed_task(expires=60)
def expiring(n: int) -> None:
    RAN.append(("expiring", n))


@delayed_task(expires=60, unique=("n",), on_duplicate="replace")
def expiring_once(n: int, why: str = "") -> None:
    RAN.append(("expiring_once", why))


@delayed_task(limit=Limit("tests-testing", rate="1/m burst 1"))
def limited(n: int) -> None:
    RAN.append(("limited", n))


@delayed_task
def chaining(n: int) -> None:
    RAN.append(("chaining", n))
    chaining.schedule(60, n + 1)


@delayed_task
def endless() -> None:
    endless.schedule(0)


@delayed_task
def parent(*names: str) -> None:
    """Schedule tasks of this module; note when they run by what is noted around them."""
    RAN.append(("parent begins", names))
    for name in names:
        task: Any = globals()[name]
        task.schedule(0, 1)
    RAN.append(("parent ends", names))


@delayed_task
async def aparent(*names: str) -> None:
    RAN.append(("parent begins", names))
    for name in names:
        task: Any = globals()[name]
        await task.aschedule(0, 1)
    RAN.append(("parent ends", names))


@delayed_task
def waiting() -> None:
    double.schedule(0, 1).wait(timeout=1)


@delayed_task(time_limit=0.05)
def slow() -> None:
    while True:
        pass


@queue_handler("orders")
def ordered(value: str) -> None:
    RAN.append(("ordered", value))


@delayed_task(queue="mail")
def mailed(n: int) -> None:
    RAN.append(("mailed", n))
