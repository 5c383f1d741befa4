"""What a task marks as sensitive is not in what its callers read: errors, warnings, reprs, and what a test prints."""

from datetime import timedelta
from typing import Any

import pytest

from django_delayq import (
    InvalidArguments,
    InvalidDelay,
    current_job,
    delayed_task,
    every,
    get_schedule,
    store_schedule,
)
from django_delayq.jobs import job as jobs
from django_delayq.jobs.progress_report import stored_progress
from django_delayq.testing import captured, frozen_queue


@delayed_task(sensitive=("card", "more"))
def pay(card: Any, order: int = 0, **more: Any) -> None: ...


@delayed_task(sensitive=("card",))
def say(card: Any, order: int) -> None:
    job = current_job()
    assert job is not None
    job.progress(1, 2, f"order {order}, card {card}")


@delayed_task(sensitive=("user_id",))
def welcome(user_id: int = 0) -> None: ...


@pytest.mark.parametrize(
    "card",
    [
        {"s3cret": object()},
        {"s3cret": {"s3cret": [object()]}},
        {"a": {b"s3cret": 1}},
        {("s3cret", 5): 1},
    ],
)
def test_refusal_of_an_argument_does_not_have_its_keys(card: Any) -> None:
    for call in (
        lambda: pay.schedule(0, card),
        lambda: pay.prepare(0, card=card),
        lambda: pay.schedule(0, 1, s3cret=card),
        lambda: store_schedule("pay", pay, every(3600), args=[card]),
    ):
        with pytest.raises(InvalidArguments) as caught:
            call()
        assert "s3cret" not in str(caught.value)
        assert "tests.jobs.test_sensitive.pay" in str(caught.value)


@pytest.mark.parametrize("wrong", ["s3cret", ["s3cret"], {"s3cret": 1}])
def test_refusal_of_a_delay_does_not_have_the_argument_in_its_place(wrong: Any) -> None:
    with pytest.raises(
        InvalidDelay, match=r"a delay is a number.*got .*\*\*\*"
    ) as caught:
        pay.schedule(wrong, 5)

    assert "s3cret" not in str(caught.value)


def test_question_whether_a_delay_was_forgotten_does_not_have_it() -> None:
    with pytest.raises(InvalidArguments, match=r"the delay, \*\*\* here") as caught:
        say.schedule(4927, 5)
    assert "4927" not in str(caught.value)

    with captured(), pytest.warns(UserWarning, match=r"in \*\*\* seconds") as warned:
        welcome.schedule(4927)
    assert "4927" not in str(warned[0].message)


def test_progress_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def keep(*said: Any) -> bytes:
        told.append(said)
        return stored_progress(*said)

    monkeypatch.setattr(jobs, "stored_progress", keep)
    with frozen_queue() as q:
        say.schedule(0, "s3cret", 7)
        q.run_due()

    assert [each[:3] for each in told] == [(1, 2, "order 7, card ***")]


def test_what_a_test_prints_does_not_have_it() -> None:
    with captured() as all_jobs:
        pay.schedule(60, "s3cret", order=7, token="s3cret")
        pay.schedule(timedelta(hours=1), card="s3cret")
        text = f"{all_jobs!r} {all_jobs[0]} {all_jobs[0]!r}"
    assert "s3cret" not in text
    assert "pay(***, order=7, ***=***) due in 0:01:00" in text
    assert "pay(card=***) due in 1:00:00" in text

    with frozen_queue() as q:
        pay.schedule(0, "s3cret", 7)
        (ran,) = q.run_due()
    assert "s3cret" not in repr(ran)
    assert str(ran).endswith("pay(***, 7): succeeded")


def test_schedule_keeps_it_and_does_not_show_it() -> None:
    with frozen_queue(periodic=True):
        store_schedule("pay", pay, every(3600), args=["s3cret"])
        found = get_schedule("pay")

    assert found.args == ["s3cret"]
    assert "s3cret" not in repr(found)
    assert "args=<list of 1>" in repr(found)
