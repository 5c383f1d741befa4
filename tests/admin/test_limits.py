"""The page of a queue's limits."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq import Limit, conf, delayed_task, limits, set_limit
from django_delayq.core import worker_code
from django_delayq.core.reasons import Kind, Reason
from django_delayq.features.limits.api import LimitInForce, concerning
from django_delayq.transport.run import run
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of, messages_of


@delayed_task(name="admin.limited", limit=Limit("admin-bank", concurrency=3))
def limited() -> None: ...


def post(browser: Client, queue: Queue, **data: Any) -> Any:
    return browser.post(url("limits", queue.name), data, follow=True)


def test_limit_of_a_queue_is_set_changed_and_taken_back(
    browser: Client, queue: Queue
) -> None:
    assert "any number at a time" in content_of(browser.get(url("limits", queue.name)))

    page = post(browser, queue, limit="", concurrency="2", rate="20/s")
    assert messages_of(page) == ["The limit was changed. Workers apply it at once."]
    (limit,) = limits(queue.name)
    assert (limit.concurrency, limit.rate) == (2, "20/s")
    post(browser, queue, limit="", concurrency="", rate="5/m")
    (limit,) = limits(queue.name)
    assert (limit.concurrency, limit.rate) == (None, "5/m")
    page = post(browser, queue, limit="", clear="1")

    assert messages_of(page) == [
        "The limit from the settings and the code applies again."
    ]
    assert limits(queue.name) == []
    said = [entry.change_message for entry in LogEntry.objects.order_by("pk")]
    none, some, other = (
        f"queue {queue.name}: {numbers}"
        for numbers in (
            "any number at a time",
            "2 at a time, 20/s",
            "any number at a time, 5/m",
        )
    )
    changed = "The limit was changed. Workers apply it at once."
    assert said == [
        f"Change the limit from “{none}” to “{some}”. → {changed}",
        f"Change the limit from “{some}, set by user0” to “{other}”. → {changed}",
        f"Remove the limit “{other}, set by user0”. → The limit from the settings and the code applies again. {none}",
    ]


def test_limit_of_tasks_is_set(browser: Client, queue: Queue) -> None:
    set_limit(queue.name, limit="admin-bank", concurrency=3)

    post(browser, queue, limit="admin-bank", concurrency="9", rate="")

    (limit,) = limits(queue.name)
    assert (limit.limit, limit.concurrency) == ("admin-bank", 9)


def test_limits_of_a_queue_are_sentences_of_their_own(
    browser: Client, queue: Queue
) -> None:
    set_limit(queue.name, concurrency=2)
    set_limit(queue.name, limit="admin-bank", concurrency=3)

    page = content_of(browser.get(url("queue", queue.name)))

    assert page.count(". Limit: limit admin-bank") == 1


def test_queue_shows_the_limits_that_concern_it(
    browser: Client, queue: Queue, settings: Any
) -> None:
    @delayed_task(
        name="admin.of-it", queue=queue.name, limit=Limit("admin-mail", rate="9/s")
    )
    def of_it() -> None: ...

    declared = {"admin-bank": 3, "admin-mail": 4, "admin-unknown": 5}
    call = worker_code.declare(
        queue.keys,
        [(name, {"concurrency": most}) for name, most in declared.items()],
        owner=b"process1",
        loaded_ms=0,
    )
    assert run(queue.client, call).changed == 3

    def shown() -> list[list[str]]:
        page = browser.get(url("limits", queue.name))
        return [
            [limit for limit in declared if any(limit in line for line in lines)]
            for lines in (
                browser.get(url("queue", queue.name)).context["limits"],
                [text for _, text, _ in page.context["rows"]],
            )
        ]

    assert shown() == [["admin-mail", "admin-unknown"]] * 2
    # The limit of a task of another queue, once it is changed here.
    set_limit(queue.name, limit="admin-bank", concurrency=1)
    assert shown() == [list(declared)] * 2


def test_limit_that_holds_jobs_of_a_queue_concerns_it(queue: Queue) -> None:
    bank = LimitInForce(queue.name, "admin-bank", 3, None, "")
    settings = conf.get_settings().queue(queue.name)

    assert (
        list(
            concerning(
                settings,
                [bank],
                [Reason(Kind.LIMIT, "other"), Reason(Kind.TASK, "admin-bank")],
            )
        )
        == []
    )
    for key in ("", "a key"):
        held = Reason(Kind.LIMIT, "admin-bank", key)
        assert list(concerning(settings, [bank], [held])) == [bank]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"rate": "often"}, "“often” is not a rate"),
        ({"concurrency": "0"}, "greater than or equal to 1"),
        ({"concurrency": "many"}, "Enter a whole number."),
        ({"concurrency": "1" * 30}, "less than or equal to"),
    ],
)
def test_what_is_no_limit_is_told_beside_the_field(
    browser: Client, queue: Queue, said: dict[str, str], told: str
) -> None:
    page = post(browser, queue, limit="", **said)

    assert told in content_of(page)
    assert limits(queue.name) == []
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("action", ["set", "clear"])
def test_limit_of_no_task_is_told(browser: Client, queue: Queue, action: str) -> None:
    page = post(
        browser, queue, limit="no body", concurrency="1", rate="", **{action: "1"}
    )

    assert "limit='no body'" in messages_of(page)[0]


def test_limits_are_seen_by_viewers_and_changed_by_those_who_may(
    login: Callable[..., Client], queue: Queue
) -> None:
    viewer = login("view")

    assert b"Set this limit" not in viewer.get(url("limits", queue.name)).content
    assert post(viewer, queue, limit="", concurrency="1").status_code == 403
    assert login().get(url("limits", queue.name)).status_code == 403
    assert limits(queue.name) == []
