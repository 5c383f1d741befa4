"""What one call carries to the server is bounded, whatever a program schedules."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from django_delayq import (
    EncodeError,
    InvalidArguments,
    aschedule_many,
    delayed_task,
    schedule_many,
)
from django_delayq.jobs import send_many as sending_many
from django_delayq.jobs.decorator import MAX_NAME
from django_delayq.jobs.prepare import MAX_UNIQUE_KEY
from django_delayq.jobs.store_calls import SCHEDULE_BYTES
from tests.jobs import samples
from tests.jobs.conftest import LATER


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Jobs and bytes of each call that is made."""
    made: list[tuple[int, int]] = []
    call = sending_many.storing_all

    def measured(queue: str, drafts: Any, *more: Any) -> Any:
        described = call(queue, drafts, *more)
        size = sum(len(str(arg)) for arg in described.args if type(arg) is not bytes)
        size += sum(len(arg) for arg in described.args if type(arg) is bytes)
        made.append((len(drafts), size))
        return described

    monkeypatch.setattr(sending_many, "storing_all", measured)
    return made


@delayed_task(name="n" * MAX_NAME, unique=lambda n: f"{n}".rjust(MAX_UNIQUE_KEY, "k"))
def long_key(n: int) -> None: ...


def send_many(jobs: Iterable[Any], is_async: bool) -> int:
    if is_async:
        return len(asyncio.run(aschedule_many(jobs)))
    return len(schedule_many(jobs))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_call_of_many_small_jobs_has_500_of_them(
    queue: str, calls: list[tuple[int, int]], is_async: bool
) -> None:
    task = samples.add.using(queue=queue)

    assert send_many((task.prepare(LATER, n) for n in range(5_100)), is_async) == 5_100

    assert [jobs for jobs, _ in calls] == [500] * 10 + [100]
    assert max(size for _, size in calls) < 150_000


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_call_has_payloads_of_a_mebibyte_or_one_payload(
    queue: str, calls: list[tuple[int, int]], is_async: bool
) -> None:
    task = samples.anything.using(queue=queue)
    sizes = [10, 600_000, 600_000, 1_000_000, 10, 10, 1_000_000, 10]

    send_many((task.prepare(LATER, text="x" * size) for size in sizes), is_async)

    assert [jobs for jobs, _ in calls] == [2, 1, 3, 2]
    assert all(size < SCHEDULE_BYTES + 2_000 for _, size in calls)


def test_longest_unique_keys_and_names_leave_a_call_below_two_mebibytes(
    queue: str, calls: list[tuple[int, int]]
) -> None:
    task = long_key.using(queue=queue)

    schedule_many(task.prepare(LATER, n) for n in range(1_000))

    assert [jobs for jobs, _ in calls] == [500, 500]
    assert all(size < 2 << 20 for _, size in calls)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("x" * 5_000,), {}),
        (([["x" * 100] * 10] * 5,), {}),
        (tuple(range(3_000)), {}),
        ((), {"text": "x" * 5_000}),
        ((), {f"k{n}": n for n in range(1_000)}),
        ((), {"k" * 5_000: 1}),
        ((10**4_200,), {}),
    ],
    ids=["text", "list", "many", "kwarg", "kwargs", "name of a kwarg", "number"],
)
@pytest.mark.parametrize("options", [{}, {"REDISSON": "3.52.0"}], ids=str)
def test_payload_has_one_limit_for_all_its_parts(
    settings: Any, queue: str, args: Any, kwargs: Any, options: Any
) -> None:
    settings.DELAYQ = settings.DELAYQ | {
        "MAX_PAYLOAD_BYTES": 4_000,
        "QUEUES": {queue: options},
    }

    with pytest.raises(EncodeError, match=r"bytes, more than .*4,000; store the data"):
        samples.anything.using(queue=queue).prepare(LATER, *args, **kwargs)


def test_options_of_a_call_are_part_of_its_payload(settings: Any, queue: str) -> None:
    settings.DELAYQ = settings.DELAYQ | {"MAX_PAYLOAD_BYTES": 1_000}

    with pytest.raises(EncodeError, match=r"bytes, more than"):
        samples.anything.using(queue=queue, max_attempts=10**4_000).prepare(LATER)


@pytest.mark.parametrize(
    "task", [samples.once, samples.once_for_user], ids=["all", "by name"]
)
def test_unique_key_of_huge_arguments_is_short(queue: str, task: Any) -> None:
    job = task.using(queue=queue).prepare(LATER, "x" * 500_000)

    assert len(job.unique) < 100


def test_unique_key_of_a_function_is_limited(queue: str) -> None:
    with pytest.raises(InvalidArguments, match=r"returned a key of 1,025 bytes"):
        long_key.using(queue=queue, unique=lambda n: "k" * 1_025).prepare(LATER, 1)
