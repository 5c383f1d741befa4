"""Every action of the admin is recorded as done by who is logged in, and not by the account of the site's process."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_delayq import (
    delayed_task,
    every,
    get_schedule,
    limits,
    pause,
    paused,
    set_limit,
    store_schedule,
)
from django_delayq.jobs.actor import acting_as
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_workers_tasks import given_order


@delayed_task(name="admin.acted")
def acted() -> None: ...


@pytest.fixture
def schedule_name(queue: Queue) -> str:
    store_schedule("acted", acted, every(timedelta(hours=1)), queue=queue.name)
    return "acted"


def test_limit_says_who_has_set_it(browser: Client, queue: Queue) -> None:
    browser.post(url("limits", queue.name), {"limit": "", "concurrency": "2"})

    (limit,) = limits(queue.name)
    assert limit.by == "user0"


def test_pause_of_a_queue_says_who_has_paused_it(browser: Client, queue: Queue) -> None:
    browser.post(url("pause", queue.name), {"minutes": "", "reason": ""})

    (found,) = paused(queue.name)
    assert found.by == "user0"


def test_pause_of_a_schedule_says_who_has_paused_it(
    browser: Client, queue: Queue, schedule_name: str
) -> None:
    posted = {"name": schedule_name, "action": "pause"}
    browser.post(url("schedules", queue.name), posted)

    assert get_schedule(schedule_name, queue.name).paused_by == "user0"


@pytest.mark.parametrize("order", ["quiet", "stop"])
def test_order_says_to_its_process_who_has_given_it(
    browser: Client, queue: Queue, order: str
) -> None:
    worker = living.serve(queue)
    posted = {"worker": worker, "order": order, "sure": "1"}
    browser.post(url("workers"), posted)

    given = given_order(queue, worker)
    assert given is not None
    assert (given.do, given.by) == (order, "user0")


def _resume_queue(browser: Client, queue: Queue) -> None:
    pause(queue.name)
    browser.post(url("resume", queue.name))


def _clear_limit(browser: Client, queue: Queue) -> None:
    set_limit(queue.name, concurrency=1)
    browser.post(url("limits", queue.name), {"limit": "", "clear": "1"})


def _post_schedule(**posted: str) -> Callable[[Client, Queue], None]:
    def post(browser: Client, queue: Queue) -> None:
        store_schedule("acted", acted, every(timedelta(hours=1)), queue=queue.name)
        browser.post(url("schedules", queue.name), {"name": "acted", **posted})

    return post


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_resume_queue, "was resumed"),
        (_clear_limit, "is again as the code says"),
        (_post_schedule(action="resume"), "was resumed"),
        (_post_schedule(action="change", cron="1 9 * * *"), "has the times"),
        (_post_schedule(action="take-back"), "of its definition again"),
        (_post_schedule(action="delete"), "was deleted"),
    ],
)
def test_log_says_who_has_done_what_leaves_no_record(
    browser: Client,
    queue: Queue,
    caplog: pytest.LogCaptureFixture,
    act: Any,
    said: str,
) -> None:
    with caplog.at_level(logging.WARNING, "django_delayq.jobs"):
        act(browser, queue)

    (line,) = [text for text in caplog.messages if said in text]
    assert line.endswith(", by user0")


def test_name_with_a_line_break_makes_no_line_of_its_own(queue: Queue) -> None:
    with acting_as("ann\nERROR all is lost"):
        set_limit(queue.name, concurrency=2)

    (limit,) = limits(queue.name)
    assert limit.by == "ann ERROR all is lost"
