"""The page of a queue's periodic schedules, and what its buttons do."""

import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.management import call_command
from django.test import Client
from django.utils import translation

from django_delayq import (
    cron,
    delayed_task,
    every,
    find_jobs,
    get_schedule,
    get_schedules,
    periodic,
    store_schedule,
)
from django_delayq.features.schedules.pages import row_of
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of, messages_of

HOURLY = every(timedelta(hours=1))


def define(queue: Queue, **options: Any) -> Any:
    @periodic(cron("0 9 * * 1-5", tz="Europe/Berlin"), queue=queue.name, **options)
    @delayed_task(name="admin.report")
    def report() -> None: ...

    return report


def page_of(browser: Client, queue: Queue) -> Any:
    return browser.get(url("schedules", queue.name))


@pytest.mark.parametrize(
    ("language", "interval", "occurrences"),
    [
        ("en", "Every 1 hour, 20 seconds", "At 09:00 on Monday through Friday (Europe/Berlin)"),
        ("de", "Alle 1 Stunde, 20 Sekunden", "0 9 * * 1-5 (Europe/Berlin)"),
        ("zh-hans", "每 1 小时、20 秒", "0 9 * * 1-5 (Europe/Berlin)"),
    ],
)  # fmt: skip
def test_occurrences_are_said_in_the_language_of_the_page(
    browser: Client, queue: Queue, language: str, interval: str, occurrences: str
) -> None:
    report = define(queue)
    store_schedule("often", report, every(3_620), queue=queue.name)

    with translation.override(language):
        said = {row.name: row.words for row in map(row_of, get_schedules(queue.name))}
        command = StringIO()
        call_command("delayq_schedules", queue=queue.name, stdout=command)

    assert said == {"often": interval, "admin.report": occurrences}
    assert f"  {interval}\n" in command.getvalue()
    assert f"  {occurrences}\n" in command.getvalue()


def post(browser: Client, queue: Queue, action: str, **more: str) -> Any:
    name = more.pop("name", "<daily>")
    response = browser.post(
        url("schedules", queue.name), {"name": name, "action": action, **more}
    )
    assert response["Location"] == url("schedules", queue.name)
    return page_of(browser, queue)


def test_page_shows_schedules_in_words_with_their_occurrences(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    assert "This queue has no schedules" in content_of(page_of(browser, queue))
    task = define(queue, name="<daily>")
    stored = store_schedule("shop 7", task, HOURLY, queue=queue.name)

    page = page_of(browser, queue)
    text = content_of(page)

    assert "<daily>" in text
    assert "<daily>" not in page.content.decode()
    assert "At 09:00 on Monday through Friday (Europe/Berlin)" in text
    # They are shown in the project's zone. The other schedule may come then as well.
    assert len(re.findall(r" 1[23]:45:00 \+0545", text)) >= 5
    assert "not on the server yet" in text
    assert "Every hour" in text
    token = stored.job_id.rpartition(":")[2]
    assert url("job", queue.name, token).encode() in page.content
    queue_page = browser.get(url("queue", queue.name))
    assert url("schedules", queue.name).encode() in queue_page.content


def test_job_of_a_schedule_says_so(browser: Client, queue: Queue) -> None:
    task = define(queue)
    stored = store_schedule("shop 7", task, HOURLY, queue=queue.name)

    token = stored.job_id.rpartition(":")[2]
    text = content_of(browser.get(url("job", queue.name, token)))

    assert "Schedule" in text
    assert "shop 7" in text


def test_schedule_is_paused_resumed_and_fired(browser: Client, queue: Queue) -> None:
    define(queue, name="<daily>")

    page = post(browser, queue, "pause", reason="the <b>bank</b>")
    found = get_schedule("<daily>", queue.name)
    assert (found.paused_by, found.paused_reason) == ("user0", "the <b>bank</b>")
    assert messages_of(page) == ["Schedule <daily> is paused."]
    assert "by user0: the <b>bank</b>" in content_of(page)
    assert "would be:" in content_of(page)
    page = post(browser, queue, "fire")
    (job,) = find_jobs(queue=queue.name)
    assert messages_of(page) == [
        f"Schedule <daily> was fired: job {job.id} is due now."
    ]
    assert messages_of(post(browser, queue, "resume")) == [
        "Schedule <daily> is resumed."
    ]
    assert not get_schedule("<daily>", queue.name).is_paused
    assert "would be:" not in content_of(page_of(browser, queue))

    entries = LogEntry.objects.order_by("pk")
    assert [entry.action_flag for entry in entries] == [CHANGE] * 3
    assert entries[0].change_message == (
        "Pause schedule <daily>. Reason: the <b>bank</b> → Schedule <daily> is paused."
    )


def test_change_of_occurrences_begins_with_the_zone_of_the_schedule(
    browser: Client, queue: Queue
) -> None:
    task = define(queue, name="<daily>")
    stored = {"stored": cron("0 1 * * *", tz="Asia/Tokyo"), "hourly": HOURLY}
    for name, when in stored.items():
        store_schedule(name, task, when, queue=queue.name)

    page = page_of(browser, queue).content.decode()

    fields = re.findall(r'name="tz" value="([^"]*)" placeholder', page)
    assert sorted(fields) == ["", "Asia/Tokyo", "Europe/Berlin"]


def test_schedule_gets_other_occurrences_and_its_own_again(
    browser: Client, queue: Queue
) -> None:
    define(queue, name="<daily>")

    page = post(browser, queue, "change", cron="30 4 * * *", tz="Asia/Tokyo")
    assert get_schedule("<daily>", queue.name).when == cron(
        "30 4 * * *", tz="Asia/Tokyo"
    )
    assert "runs at other times than its definition says" in content_of(page)
    page = post(browser, queue, "take-back")

    assert not get_schedule("<daily>", queue.name).is_overridden
    assert "As defined" not in content_of(page)


@pytest.mark.parametrize(
    ("posted", "told"),
    [
        ({"cron": "* * * * * *"}, "has six fields"),
        ({"cron": ""}, "has 0 fields"),
        ({"cron": "0 0 31 2 *"}, "never comes"),
        ({"cron": "0 0 * * *", "tz": "Mars/Olympus"}, "does not have time zone"),
        ({"cron": "0 0 * * *", "name": "gone"}, "no schedule is named 'gone'"),
    ],
)
def test_wrong_occurrences_are_told_and_change_nothing(
    browser: Client, queue: Queue, posted: dict[str, str], told: str
) -> None:
    define(queue, name="<daily>")

    page = post(browser, queue, "change", **posted)

    (message,) = messages_of(page)
    assert told in message
    assert not get_schedule("<daily>", queue.name).is_overridden


def test_stored_schedule_is_deleted_and_one_in_code_is_not(
    browser: Client, queue: Queue
) -> None:
    task = define(queue, name="<daily>")
    store_schedule("shop 7", task, HOURLY, queue=queue.name)

    page = post(browser, queue, "delete", name="shop 7")
    assert messages_of(page) == ["Schedule shop 7 is deleted."]
    assert LogEntry.objects.get().change_message == (
        "Delete schedule shop 7. → Schedule shop 7 is deleted."
    )
    page = post(browser, queue, "delete")

    assert "is in code" in messages_of(page)[0]
    assert [each.name for each in get_schedules(queue.name)] == ["<daily>"]


def test_unknown_action_is_not_found(browser: Client, queue: Queue) -> None:
    response = browser.post(url("schedules", queue.name), {"action": "explode"})

    assert response.status_code == 404


@pytest.mark.parametrize(
    ("permissions", "action", "status"),
    [
        (["view"], "pause", 403),
        (["view"], "fire", 403),
        (["view", "change"], "pause", 302),
        (["view", "change"], "delete", 403),
        (["view", "delete"], "change", 403),
    ],
)
def test_buttons_need_permissions(
    login: Any, queue: Queue, permissions: list[str], action: str, status: int
) -> None:
    define(queue, name="<daily>")
    browser = login(*permissions)

    assert page_of(browser, queue).status_code == 200
    response = browser.post(
        url("schedules", queue.name), {"name": "<daily>", "action": action}
    )

    assert response.status_code == status


def test_page_needs_a_permission(login: Any, queue: Queue) -> None:
    assert page_of(login(), queue).status_code == 403


def test_buttons_need_the_csrf_token(login: Any, queue: Queue) -> None:
    define(queue, name="<daily>")
    strict = login(is_superuser=True, enforce_csrf_checks=True)

    posted = {"name": "<daily>", "action": "pause"}
    assert strict.post(url("schedules", queue.name), posted).status_code == 403


def test_server_that_does_not_answer_is_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}

    assert page_of(browser, queue).status_code == 503
    posted = {"name": "x", "action": "pause"}
    assert browser.post(url("schedules", queue.name), posted).status_code == 503
