"""Rights on one queue, given by a backend that knows objects: nothing of another queue is seen or changed."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import User
from django.test import Client

from django_delayq.admin import chosen
from django_delayq.admin.job_admin import _PAGES
from django_delayq.admin.job_search import Filter
from django_delayq.core import queue_reads
from django_delayq.core.states import State
from django_delayq.core.worker_registry import (
    RegistryKeys,
    RunningJob,
    WorkerInfo,
    register,
)
from django_delayq.features.pauses.api import paused
from django_delayq.models import Job
from django_delayq.transport.run import run
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_bulk import ids, over, post

SECRET_TASK = "salaries.tasks.pay"
SECRET = "four-hundred-euros"

#: By the name of a user, the rights and queues that `ByQueue` grants.
granted: dict[str, set[tuple[str, str]]] = {}


class ByQueue(BaseBackend):
    """What a project writes to give rights on a queue."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        if not isinstance(obj, Job):
            return False
        app, _, codename = perm.partition(".")
        return app == "django_delayq" and (
            (codename.removesuffix("_job"), obj.queue)
            in granted.get(user_obj.username, ())
        )


@pytest.fixture
def other(client: redis.Redis, queue: Queue, queue_name: str, settings: Any) -> Queue:
    """A queue beside the one of the user."""
    name = f"{queue_name}-salaries"
    queues = {**settings.DELAYQ["QUEUES"], name: {}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    return Queue(client, name)


@pytest.fixture
def restricted(
    queue: Queue, other: Queue, settings: Any, login: Callable[..., Client]
) -> Callable[..., Client]:
    """Log in somebody with rights on the first queue only: ``restricted("view")``."""
    settings.AUTHENTICATION_BACKENDS = [
        "django.contrib.auth.backends.ModelBackend",
        f"{__name__}.ByQueue",
    ]

    def log_in(*rights: str) -> Client:
        browser = login()
        name = User.objects.get(pk=browser.session["_auth_user_id"]).username
        granted[name] = {(right, queue.name) for right in rights}
        return browser

    return log_in


def fill(queue: Queue) -> list[str]:
    """Store a job in many states; returns the tokens."""
    return [
        queue.schedule(60_000, SECRET, task=SECRET_TASK),
        queue.running(SECRET).token,
        queue.retrying(SECRET),
        queue.held(SECRET),
        queue.dead(SECRET),
        queue.quarantined(SECRET.encode()),
    ]


#: The pages that are not of one queue or job.
OVERALL = {name for where, _, name in _PAGES if "<" not in where} | {"changelist"}


def test_pages_of_another_queue_refuse(
    restricted: Callable[..., Client], queue: Queue, other: Queue
) -> None:
    browser = restricted("view", "change", "delete")
    tokens = fill(other)
    for where, _, name in _PAGES:
        if name in OVERALL:
            continue
        for parts in [(token,) for token in tokens] if "job_id" in where else [()]:
            address = url(name, other.name, *parts)
            assert browser.get(address).status_code == 403, address
            for action in ("", "pause", "fire", "delete"):
                posted = {"action": action, "name": "x", "sure": "1", "concurrency": 1}
                assert browser.post(address, posted).status_code == 403, address
    assert not LogEntry.objects.exists()
    log = f"{url('changelist')}{other.name}_3A/change/"
    assert browser.get(log).status_code == 403


def test_pages_of_all_queues_show_nothing_of_another_queue(
    restricted: Callable[..., Client], login: Any, queue: Queue, other: Queue
) -> None:
    own = queue.schedule(60_000, "mine")
    living.measure_an_hour(queue)
    living.measure_an_hour(other)
    fill(other)
    running = [
        RunningJob(queue.name, queue.running(1).token, "shop.tasks.mine", 1),
        RunningJob(other.name, other.running(1).token, SECRET_TASK, 1),
    ]
    both = WorkerInfo("web1", 7, "1", 2, [queue.name, other.name], jobs=running)
    run(queue.client, register(RegistryKeys.of(), f"{queue.name}-both", both))
    living.serve(other, other.running(2).token, host="secret-host", task=SECRET_TASK)
    browser, everybody = restricted("view"), login("view")
    looks = [
        (url(name), query)
        for name in OVERALL - {"bulk"}
        for query in ({}, {"q": ""}, {"queue": other.name}, {"queue": queue.name})
    ]

    seen = [browser.get(*each) for each in looks]
    by_everybody = [everybody.get(*each) for each in looks]

    for marker in (other.name, "secret-host", SECRET, SECRET_TASK):
        # What is asked for by its name stands in the form again.
        assert not [
            address
            for (address, query), page in zip(looks, seen, strict=True)
            if marker in page.content.decode() and marker not in query.values()
        ]
        assert any(marker in page.content.decode() for page in by_everybody)
    assert {page.status_code for page in seen} == {200}
    assert f"{queue.name}:{own}" in seen[looks.index((url("search"), {"q": ""}))].text
    assert all(
        each in browser.get(url("workers")).text
        for each in ("web1:7", "shop.tasks.mine")
    )


def test_a_link_that_goes_on_shows_nothing_of_another_queue(
    restricted: Callable[..., Client], login: Any, queue: Queue, other: Queue
) -> None:
    for each in (queue, other):
        for number in range(120):
            each.schedule(60_000, number)
    page = login("view").get(url("search"), {"q": "", "task": ""})
    address = page.context["go_on_url"]
    assert address

    gone_on = restricted("view").get(address)

    assert "damaged or belongs to another search" in gone_on.text
    assert other.name not in gone_on.text


def test_only_jobs_of_the_own_queue_are_changed(
    restricted: Callable[..., Client], queue: Queue, other: Queue
) -> None:
    browser = restricted("view", "change", "delete")
    own, foreign = queue.schedule(60_000), other.schedule(60_000)
    both = [*ids(queue, own), *ids(other, foreign)]

    ticked = post(browser, "cancel", job=both, sure="1")
    named = post(browser, "cancel", **over(other), sure="1")

    assert ticked.status_code == 403
    assert "nothing was changed" in named.text
    assert queue.state(own) is State.SCHEDULED
    assert not LogEntry.objects.exists()

    post(browser, "cancel", all="1", filter=Filter().query, sure="1")

    assert queue.state(own) is State.CANCELLED
    assert other.state(foreign) is State.SCHEDULED
    assert [each.object_repr for each in LogEntry.objects.all()] == [
        f"queue {queue.name}"
    ]


def test_steps_end_once_a_right_is_taken(
    restricted: Callable[..., Client],
    queue: Queue,
    other: Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser = restricted("view", "delete")
    for each in granted.values():
        each |= {("view", other.name), ("delete", other.name)}
    monkeypatch.setattr(chosen, "STEP_JOBS", 100)
    for number in range(150):
        queue.schedule(60_000 + number)
    step = post(browser, "cancel", all="1", filter=Filter().query, sure="1")
    progress = {"progress": step.context["progress"]}
    for each in granted.values():
        each.discard(("delete", queue.name))

    refused = browser.post(url("bulk"), progress)

    assert refused.status_code == 403
    assert run(queue.client, queue_reads.counts(queue.keys)).waiting == 50


def test_a_worker_of_both_queues_takes_no_orders(
    restricted: Callable[..., Client], queue: Queue, other: Queue
) -> None:
    browser = restricted("view", "change")
    both = WorkerInfo("web1", 7, "1", 2, [queue.name, other.name])
    run(queue.client, register(RegistryKeys.of(), f"{queue.name}-both", both))
    own = living.serve(queue, host="own")

    def ask(worker_id: str) -> int:
        posted = {"worker": worker_id, "order": "quiet"}
        return browser.post(url("workers"), posted).status_code

    assert (ask(f"{queue.name}-both"), ask(own)) == (403, 200)
    rows = {
        row["name"]: row["orders"]
        for row in browser.get(url("workers")).context["rows"]
    }
    assert not rows["web1:7"]
    assert rows["own:4711"]


@pytest.mark.parametrize(
    ("rights", "can_pause"), [(["view"], False), (["view", "change"], True)]
)
def test_buttons_are_those_of_the_queue(
    restricted: Callable[..., Client],
    queue: Queue,
    rights: list[str],
    *,
    can_pause: bool,
) -> None:
    browser = restricted(*rights)
    token = queue.schedule(60_000)

    page = browser.get(url("queue", queue.name))
    job = browser.get(url("job", queue.name, token))
    answer = browser.post(url("pause", queue.name), {"minutes": "5", "reason": ""})

    assert page.status_code == job.status_code == 200
    assert ('id="pause"' in page.text) is can_pause
    assert ("run_now" in job.context["can"]) is can_pause
    assert (answer.status_code == 302) is can_pause
    assert bool(paused(queue.name)) is can_pause


def test_somebody_without_rights_sees_nothing(
    restricted: Callable[..., Client], queue: Queue
) -> None:
    browser = restricted()

    for name in OVERALL:
        assert browser.get(url(name)).status_code == 403
    assert browser.get(url("queue", queue.name)).status_code == 403
    assert "django_delayq" not in browser.get("/admin/").text
    assert "django_delayq" in restricted("view").get("/admin/").text


def test_a_right_on_all_queues_needs_no_backend(
    login: Callable[..., Client], queue: Queue, other: Queue
) -> None:
    browser = login("view")

    assert browser.get(url("queue", other.name)).status_code == 200
    assert browser.post(url("pause", other.name)).status_code == 403
