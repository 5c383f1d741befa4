"""A queue is paused and resumed on its page."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import Client

from django_delayq import delayed_task, pause, paused
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of, messages_of


@delayed_task(name="admin.paused")
def mail() -> None: ...


def test_queue_is_paused_for_a_while_with_a_reason(
    browser: Client, queue: Queue
) -> None:
    asked = browser.get(url("pause", queue.name))
    assert asked.status_code == 200
    assert paused(queue.name) == []

    response = browser.post(
        url("pause", queue.name), {"minutes": "30", "reason": "the <b>bank</b>"}
    )

    (found,) = paused(queue.name)
    assert (found.task, found.reason, found.by) == (None, "the <b>bank</b>", "user0")
    assert found.until is not None
    lasts = found.until - found.since
    assert timedelta(minutes=30) <= lasts < timedelta(minutes=31)
    assert response["Location"] == url("queue", queue.name)
    page = browser.get(url("queue", queue.name))
    assert messages_of(page) == [f"Queue {queue.name} is paused."]
    assert "by user0: the <b>bank</b>" in content_of(page)
    assert "<b>bank" not in page.content.decode()
    assert b"Resume the queue" in page.content
    assert url("pause", queue.name).encode() not in page.content


def test_queue_is_paused_until_somebody_resumes_it(
    browser: Client, queue: Queue
) -> None:
    browser.post(url("pause", queue.name), {"minutes": "", "reason": ""})
    (found,) = paused(queue.name)
    assert found.until is None

    response = browser.post(url("resume", queue.name))

    assert paused(queue.name) == []
    assert response["Location"] == url("queue", queue.name)
    page = browser.get(url("queue", queue.name))
    assert messages_of(page)[-1] == f"Queue {queue.name} is resumed."
    assert b"Pause this queue" in page.content


def test_paused_task_is_resumed_on_the_page_of_its_queue(
    browser: Client, queue: Queue
) -> None:
    pause(queue.name)
    pause(queue.name, task=mail)
    assert b"Resume the task" in browser.get(url("queue", queue.name)).content

    browser.post(url("resume", queue.name), {"task": mail.name})

    (left,) = paused(queue.name)
    assert left.task is None


@pytest.mark.parametrize("task", ["", "admin.paused", "gone.for.good", "\0 \n"])
def test_what_is_not_paused_any_more_is_told(
    browser: Client, queue: Queue, task: str
) -> None:
    browser.post(url("resume", queue.name), {"task": task})

    (text,) = messages_of(browser.get(url("queue", queue.name)))
    assert text.endswith("is no longer paused.")
    assert LogEntry.objects.get().change_message.endswith("is no longer paused.")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"minutes": "0"}, "greater than or equal to 1"),
        ({"minutes": "soon"}, "whole number"),
        ({"minutes": "1" * 30}, "less than or equal"),
        ({"reason": "x" * 501}, "at most 500 characters"),
    ],
)
def test_what_cannot_be_is_told_beside_the_field(
    browser: Client, queue: Queue, sent: dict[str, str], told: str
) -> None:
    response = browser.post(url("pause", queue.name), sent)

    assert told in content_of(response)
    assert paused(queue.name) == []


def test_log_of_the_admin_has_who_did_what_and_leads_to_the_queue(
    browser: Client, queue: Queue
) -> None:
    browser.post(url("pause", queue.name))
    browser.post(url("resume", queue.name))
    browser.post(url("pause", queue.name), {"minutes": "90", "reason": "the bank"})

    entries = LogEntry.objects.order_by("pk")
    assert [(each.object_repr, each.change_message) for each in entries] == [
        (f"queue {queue.name}", f"{begun} → Queue {queue.name} is {done}.")
        for begun, done in (
            ("Pause until resumed.", "paused"),
            ("Resume.", "resumed"),
            ("Pause for 90 minutes. Reason: the bank", "paused"),
        )
    ]
    assert {each.action_flag for each in entries} == {CHANGE}
    address = entries[0].get_admin_url()
    assert address is not None
    response = browser.get(address)
    assert response["Location"] == url("queue", queue.name)


@pytest.mark.parametrize(
    ("rights", "may"), [((), False), (("view",), False), (("change",), True)]
)
def test_right_to_change_decides(
    login: Callable[..., Client], queue: Queue, rights: Any, may: bool
) -> None:
    browser = login(*rights)
    page = browser.get(url("queue", queue.name)).content
    assert (b"Pause this queue" in page) is may

    assert (browser.get(url("pause", queue.name)).status_code == 200) is may
    assert (browser.post(url("pause", queue.name)).status_code == 302) is may
    assert bool(paused(queue.name)) is may
    pause(queue.name)
    page = browser.get(url("queue", queue.name)).content
    assert (b"Resume the queue" in page) is may
    assert (browser.post(url("resume", queue.name)).status_code == 302) is may
    assert bool(paused(queue.name)) is not may


def test_both_need_the_csrf_token_and_resuming_a_post(
    login: Callable[..., Client], queue: Queue
) -> None:
    strict = login(is_superuser=True, enforce_csrf_checks=True)
    assert strict.post(url("pause", queue.name)).status_code == 403
    pause(queue.name)
    assert strict.post(url("resume", queue.name)).status_code == 403
    assert strict.get(url("resume", queue.name)).status_code == 405
    assert len(paused(queue.name)) == 1


def test_unknown_queue_is_not_found(browser: Client, queue: Queue) -> None:
    assert browser.post(url("pause", "nobody")).status_code == 404
    assert browser.post(url("resume", "nobody")).status_code == 404


def test_server_that_does_not_answer_is_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}

    for name in ("pause", "resume"):
        assert browser.post(url(name, queue.name)).status_code == 503
