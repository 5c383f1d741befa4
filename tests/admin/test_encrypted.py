"""Who sees what is encrypted: on a job's page with a permission of its own, elsewhere nobody."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from redis import Redis

from django_delayq import Backoff, State, current_job, delayed_task, schedule
from django_delayq.admin.job_admin import JobAdmin
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.polling import wait_until
from tests.worker.workers import InlineWorker

CANARY = "c4nary"


@delayed_task(encrypt=True, keep_result=60, max_attempts=1, sensitive=("token",))
def guarded(what: str, text: str, token: str = "") -> str:
    current_job().progress(1, 2, f"{CANARY} so far")
    if what == "fail":
        raise ValueError(f"{CANARY} went wrong with {token}")
    return f"{CANARY} came back"


@pytest.fixture
def ended(queue: Queue) -> dict[str, Any]:
    """Jobs in each state that has something to show."""
    on = guarded.using(queue=queue.name, backoff=Backoff(base=0))
    jobs = {
        "dead": schedule(on, 0, "fail", f"{CANARY} argument", "s3cret-token"),
        "succeeded": schedule(on, 0, "return", f"{CANARY} argument"),
    }
    worker = InlineWorker([queue.name])
    worker.start()
    wait_until(
        lambda: all(job.refresh() == name for name, job in jobs.items()),
        description="they have ended",
    )
    worker.stop()
    jobs["scheduled"] = schedule(on, 3_600, "return", f"{CANARY} argument")
    return jobs


def page_of(client: Client, job: Any) -> str:
    return client.get(url("job", job.queue, job.token)).content.decode()


@pytest.mark.parametrize("state", ["dead", "succeeded", "scheduled"])
def test_page_of_a_job_decrypts_for_those_who_may(
    login: Callable[..., Client], ended: dict[str, Any], state: str
) -> None:
    job = ended[state]

    shut = page_of(login("view", "change", "delete"), job)
    opened = page_of(login("view", "view_encrypted"), job)

    assert CANARY not in shut
    assert "encrypted" in shut
    assert f"{CANARY} argument" in opened
    assert "s3cret-token" not in opened
    if state == "dead":
        assert f"{CANARY} went wrong with ***" in opened
        assert "Traceback" in opened
    if state == "succeeded":
        assert f"{CANARY} came back" in opened


def test_no_list_decrypts_for_anybody(
    browser: Client, queue: Queue, ended: dict[str, Any]
) -> None:
    pages = [
        browser.get(url("queue", queue.name), {"state": state})
        for state in ("scheduled", "dead", "ended")
    ]
    pages.append(browser.get(url("search"), {"task": guarded.name}))

    for page in pages:
        assert CANARY not in page.content.decode()
        assert "encrypted" in page.content.decode()


def test_search_says_that_it_looks_into_no_encrypted_job(
    browser: Client, queue: Queue, ended: dict[str, Any]
) -> None:
    page = browser.get(url("search"), {"q": f"{CANARY} argument"}).content.decode()

    assert "No matching jobs" in page
    assert "2 encrypted jobs were not searched" in page
    by_task = browser.get(url("search"), {"task": guarded.name}).content.decode()
    assert "were not searched" not in by_task


def test_right_to_decrypt_may_be_that_on_one_queue(
    login: Callable[..., Client],
    ended: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def has(self: Any, request: Any, obj: Any = None) -> bool:
        asked.append(obj.queue)
        return False

    monkeypatch.setattr(JobAdmin, "has_view_encrypted_permission", has)
    page = page_of(login(is_superuser=True), ended["dead"])

    assert CANARY not in page
    assert set(asked) == {ended["dead"].queue}


def test_job_that_is_scheduled_again_is_encrypted_as_well(
    login: Callable[..., Client],
    client: "Redis[bytes]",
    queue: Queue,
    ended: dict[str, Any],
) -> None:
    before = ended["succeeded"]
    somebody = login("view", "change")

    somebody.post(url("schedule_again", before.queue, before.token))

    frames = client.zrange(queue.keys.queue.timeout_set, 0, -1)
    assert len(frames) == 2
    assert CANARY.encode() not in b"".join(frames)


@pytest.mark.browser
def test_page_of_an_encrypted_job_is_read_in_a_browser(
    visitor: Any, login: Callable[..., Client], ended: dict[str, Any]
) -> None:
    job = ended["dead"]
    assert job.refresh() is State.DEAD
    for rights, is_shown in ((("view",), False), (("view", "view_encrypted"), True)):
        visitor.log_in(login(*rights))
        visitor.open(url("job", job.queue, job.token))
        text = visitor.driver.find_element("tag name", "body").text
        assert (f"{CANARY} argument" in text) is is_shown
        assert (f"{CANARY} went wrong" in text) is is_shown
        assert visitor.find_barriers() == []
