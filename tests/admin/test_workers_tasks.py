"""The pages of workers and of tasks."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import Client

from django_delayq import cron, delayed_task
from django_delayq.admin import workers_page
from django_delayq.core.worker_registry import RegistryKeys, WorkerInfo, register
from django_delayq.features.schedules.api import store_schedule
from django_delayq.features.statistics.calls import OTHER, UNKNOWN
from django_delayq.jobs.workers import Order, read_order, workers
from django_delayq.transport import run as running
from django_delayq.transport.run import run
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of, messages_of
from tests.admin.test_overview import XSS


def given_order(queue: Queue, worker_id: str) -> Order | None:
    """Return what a process is told when it says that it lives."""
    seconds, micros = queue.client.time()
    now_ms = seconds * 1000 + micros // 1000
    info = WorkerInfo("web1", 4711, "1", 2, [queue.name])
    sealed = run(queue.client, register(RegistryKeys.of(), worker_id, info)).order
    return read_order(worker_id, sealed, now_ms) if sealed else None


def order_for(queue: Queue, worker_id: str) -> str | None:
    order = given_order(queue, worker_id)
    return order.do if order is not None else None


@pytest.fixture
def alone(queue: Queue) -> Iterator[None]:
    """No process of another test is on the server, and what a test registers is there for no other."""
    queue.client.delete(*RegistryKeys.of())
    yield
    queue.client.delete(*RegistryKeys.of())


def test_process_is_shown_with_what_it_runs(browser: Client, queue: Queue) -> None:
    job = queue.running(17).token
    living.serve(queue, job, task="shop.tasks.send_reminder")

    page = browser.get(url("workers"))

    text = content_of(page)
    assert "web1:4711" in text
    assert "working" in text
    assert "1 of 8 threads busy" in text
    assert "up for 2 h 5 min" in text
    link = f'<a href="{url("job", queue.name, job)}">shop.tasks.send_reminder</a>'
    assert link in page.content.decode()
    assert browser.get(url("job", queue.name, job)).status_code == 200


def test_next_occurrences_of_tasks_name_the_zone(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    living.serve(queue, queue.running(17).token)
    living.measure_an_hour(queue)

    page = content_of(browser.get(url("tasks")))

    assert "Next periodic (Asia/Kathmandu)" in page


def test_many_processes_are_paged_and_those_that_are_not_read_are_counted(
    browser: Client, queue: Queue, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_page, "MOST_WORKERS", 200)
    for pid in range(230):
        living.serve(queue, host="many", pid=1_000 + pid)

    first = browser.get(url("workers"))
    second = browser.get(url("workers"), {"page": "2"})
    beyond = browser.get(url("workers"), {"page": "99"})

    assert first.context["unread"] == 30
    assert "and 30 more on this server" in content_of(first)
    names = [row["name"] for page in (first, second) for row in page.context["rows"]]
    assert len(names) == len(set(names)) == 100
    assert "page 1 of 4" in content_of(first)
    assert beyond["Location"] == f"{url('workers')}?page=4"
    assert len([each for each in workers(queue.name)]) == 230


def test_a_thousand_processes_are_read_in_two_round_trips(
    browser: Client, queue: Queue, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(1_150):
        living.serve(queue, host="crowd", pid=pid)
    browser.get(url("workers"))
    exchanges = []
    monkeypatch.setattr(
        running,
        "send",
        lambda client, exchange, *where, send=running.send: (
            exchanges.append(len(exchange.calls)) or send(client, exchange, *where)
        ),
    )

    page = browser.get(url("workers"))

    assert page.context["pager"].total == 1_000
    assert exchanges == [9]
    assert len(workers(queue.name)) == 1_150


def test_no_worker_is_said_with_the_command(browser: Client, queue: Queue) -> None:
    page = browser.get(url("workers"))

    assert "No worker runs. Start one: manage.py delayq_worker" in content_of(page)


def test_what_a_worker_says_of_itself_is_no_markup(
    browser: Client, queue: Queue
) -> None:
    living.serve(queue, f"{XSS}", host=XSS, task=XSS, version=XSS)

    html = browser.get(url("workers")).content.decode()
    overview = browser.get(url("changelist")).content.decode()

    assert "onerror=&#x27;" in html
    assert "<img" not in html + overview


@pytest.mark.parametrize(
    ("order", "said", "logged"),
    [
        (
            "quiet",
            "Worker web1:4711 stops claiming jobs",
            "Quiet.",
        ),
        ("stop", "Worker web1:4711 begins to stop", "Stop."),
    ],
)
def test_process_is_given_an_order_after_being_asked(
    browser: Client, queue: Queue, order: str, said: str, logged: str
) -> None:
    worker = living.serve(queue, queue.running().token)
    posted = {"worker": worker, "order": order}

    asked = browser.post(url("workers"), posted)
    assert "web1:4711" in asked.context["question"]
    assert order_for(queue, worker) is None
    page = browser.post(url("workers"), {**posted, "sure": "1"}, follow=True)

    assert order_for(queue, worker) == order
    (message,) = messages_of(page)
    assert message.startswith(said)
    entry = LogEntry.objects.get()
    assert entry.action_flag == CHANGE
    assert entry.change_message == f"{logged} → {message}"
    assert entry.object_repr == "worker web1:4711"
    address = entry.get_admin_url()
    assert address is not None
    assert browser.get(address)["Location"] == url("workers")


def test_process_that_has_gone_is_said_to_have_gone(
    browser: Client, queue: Queue
) -> None:
    worker = living.serve(queue)
    posted = {"worker": worker, "order": "stop"}
    assert browser.post(url("workers"), posted).status_code == 200
    living.leave(queue, worker)

    page = browser.post(url("workers"), {**posted, "sure": "1"}, follow=True)

    assert messages_of(page) == ["This process no longer exists."]
    assert not LogEntry.objects.exists()


def test_order_that_does_not_exist_is_refused(browser: Client, queue: Queue) -> None:
    worker = living.serve(queue)

    page = browser.post(
        url("workers"), {"worker": worker, "order": "dance", "sure": "1"}, follow=True
    )

    assert messages_of(page) == [
        "This page is not valid. Use the buttons of the workers page."
    ]
    assert order_for(queue, worker) is None


def test_who_may_not_change_has_no_button_and_gets_403(
    login: Callable[..., Client], queue: Queue
) -> None:
    worker = living.serve(queue)
    viewer = login("view")

    page = viewer.get(url("workers"))
    posted = {"worker": worker, "order": "stop", "sure": "1"}
    refused = viewer.post(url("workers"), posted)

    assert b'name="order"' not in page.content
    assert b'name="order"' in login("view", "change").get(url("workers")).content
    assert refused.status_code == 403
    assert order_for(queue, worker) is None


# Tasks


def tasks(browser: Client, **asked: str) -> list[tuple[str, int, int]]:
    page = browser.get(url("tasks"), asked)
    assert page.status_code == 200
    return [(row["task"], row["runs"], row["failures"]) for row in page.context["rows"]]


@pytest.fixture
def measured(queue: Queue) -> Queue:
    """Three tasks: one that is quick and fails, one that is slow, one that ran yesterday."""
    living.measure(queue, timedelta(hours=20), backup=living.figures_of(1, failed=1))
    living.measure(
        queue,
        mail=living.figures_of(100, failed=9, late_ms=1, took_ms=5),
        report=living.figures_of(3, late_ms=700, took_ms=9_000),
    )
    return queue


def test_tasks_are_listed_with_their_figures(browser: Client, measured: Queue) -> None:
    page = browser.get(url("tasks"), {"queue": measured.name})

    first, second = page.context["rows"]
    assert (first["task"], first["runs"], first["failures"], first["retried"]) == (
        "mail",
        100,
        9,
        9,
    )
    late, _, took, _ = [time for _, time in second["times"]]
    assert late.endswith(" ms")
    assert 560 <= float(late.split()[0]) <= 875
    assert took.endswith(" s")
    assert f"?queue={measured.name}&amp;task=mail" in page.content.decode()


def test_tasks_are_those_of_the_time_that_one_asks_for(
    browser: Client, measured: Queue
) -> None:
    asked = {"queue": measured.name}

    assert [name for name, *_ in tasks(browser, **asked)] == ["mail", "report"]
    day = tasks(browser, **asked, span="day")
    assert [name for name, *_ in day] == ["mail", "report", "backup"]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("runs", "mail"),
        ("-runs", "backup"),
        ("task", "backup"),
        ("-task", "report"),
        ("failed", "mail"),
        ("lateness_p99", "report"),
        ("duration_p50", "report"),
        ("-duration_p50", "mail"),
        ("nonsense", "mail"),
        ("__class__", "mail"),
    ],
)
def test_tasks_are_sorted_by_any_column(
    browser: Client, measured: Queue, sort: str, first: str
) -> None:
    found = tasks(browser, queue=measured.name, span="day", sort=sort)

    assert found[0][0] == first
    assert len(found) == 3


def test_only_the_figures_of_the_last_hours_refresh_themselves(
    browser: Client, measured: Queue
) -> None:
    asked = {"queue": measured.name}

    assert b"delayq-live-bar" in browser.get(url("tasks"), asked).content
    for span in ("day", "week"):
        page = browser.get(url("tasks"), {**asked, "span": span})
        assert b"delayq-live-bar" not in page.content


def test_periodic_task_shows_when_it_is_next_due(browser: Client, queue: Queue) -> None:
    @delayed_task(name="tasks.nightly", queue=queue.name)
    def nightly() -> None: ...

    store_schedule("nightly", nightly, cron("0 3 * * *"), queue=queue.name)

    page = browser.get(url("tasks"), {"queue": queue.name})

    (row,) = page.context["rows"]
    assert (row["task"], row["runs"]) == ("tasks.nightly", 0)
    assert row["next"].relative.startswith("in ")


def test_task_of_a_queue_with_shards_leads_to_the_list_of_its_shards(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue.name: {"SHARDS": 2}}}

    @delayed_task(name="tasks.nightly", queue=queue.name)
    def nightly() -> None: ...

    store_schedule("nightly", nightly, cron("0 3 * * *"), queue=queue.name)

    (row,) = browser.get(url("tasks"), {"queue": queue.name}).context["rows"]
    led_to = browser.get(row["queue_url"])

    names = [each["queue"].name for each in led_to.context["rows"]]
    assert names == [queue.name, f"{queue.name}:0", f"{queue.name}:1"]


@pytest.mark.parametrize(
    ("name", "shown"), [(UNKNOWN, "(task unknown)"), (OTHER, "(other tasks)")]
)
def test_name_that_stands_for_several_tasks_leads_nowhere(
    browser: Client, queue: Queue, name: str, shown: str
) -> None:
    living.measure(queue, **{name: living.figures_of(3)})

    page = browser.get(url("tasks"), {"queue": queue.name})

    assert f">{shown}</th>" in page.content.decode()
    (row,) = page.context["rows"]
    assert not row["url"]


def test_a_thousand_tasks_are_paged(browser: Client, queue: Queue) -> None:
    living.measure(queue, **{f"t{n:04}": living.figures_of(n + 1) for n in range(120)})

    asked = {"queue": queue.name}
    first = tasks(browser, **asked)
    last = tasks(browser, **asked, page="3")
    beyond = browser.get(url("tasks"), {**asked, "page": "99"})

    assert (len(first), first[0][0]) == (50, "t0119")
    assert (len(last), last[-1][0]) == (20, "t0000")
    assert beyond["Location"] == f"{url('tasks')}?queue={queue.name}&page=3"


def test_names_of_tasks_are_no_markup(browser: Client, queue: Queue) -> None:
    living.measure(queue, **{XSS: living.figures_of(1)})

    html = browser.get(url("tasks"), {"queue": queue.name}).content.decode()

    assert "onerror=&#x27;" in html
    assert "<img" not in html
