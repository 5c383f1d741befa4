"""The overview, workers and tasks in Chromium, and pages that refresh themselves."""

from typing import Any

import pytest

from django_delayq.admin.job_admin import JobAdmin
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue, error
from tests.admin.test_browser_jobs import show
from tests.admin.visiting import Visitor

pytestmark = pytest.mark.browser


@pytest.fixture
def refresh_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages refresh themselves each second."""
    monkeypatch.setattr(JobAdmin, "refresh_s", 1)


def fill(queue: Queue, many: int = 1) -> list[str]:
    """Have a queue look as one that is used."""
    for n in range(200 * many):
        queue.schedule(40_000 + n * n * 83, n)
    for n in range(40):
        queue.schedule(3_700_000 + n * 1_900_000, n)
    for n in range(60):
        queue.schedule(90_000_000 + n * 19_000_000, n)
    for _ in range(3):
        queue.dead(4711, error_text=error("ConnectionError: the mail server is down"))
    queue.retrying(12, delay_ms=125_000)
    tokens = [queue.running(n).token for n in range(3)]
    living.measure_an_hour(queue)
    return tokens


def test_pages_of_a_site_at_work(visitor: Visitor, queue: Queue, settings: Any) -> None:
    tokens = fill(queue)
    first = living.serve(queue, *tokens[:2], task="shop.tasks.cancel_unpaid")
    second = living.serve(queue, tokens[2], host="web2", pid=812, version="0.9.1")
    quiet = living.serve(queue, host="web2", pid=813, state="quiet")

    visitor.open(url("changelist"))
    show(visitor, "overview")
    assert len(visitor.find(".delayq-chart svg")) == 6
    visitor.click("#chart-runs details summary") if False else None
    visitor.open(url("changelist") + "?span=day")
    show(visitor, "overview-day")
    visitor.open(url("workers"))
    show(visitor, "workers")
    assert len(visitor.find("#result_list tbody tr")) == 3
    visitor.open(url("tasks"))
    show(visitor, "tasks")
    assert "shop.tasks.cancel_unpaid" in visitor.texts("#result_list tbody th")
    visitor.open(url("queue", queue.name))
    show(visitor, "queue-live")
    for worker in (first, second, quiet):
        living.leave(queue, worker)
    visitor.open(url("changelist"))
    show(visitor, "overview-no-worker")
