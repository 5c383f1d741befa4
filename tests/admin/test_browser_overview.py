"""The overview, workers and tasks in Chromium, and pages that refresh themselves."""

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.admin.job_admin import JobAdmin
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue, error
from tests.admin.test_browser_jobs import show
from tests.admin.visiting import SIZES, Visitor
from tests.polling import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages refresh themselves each second."""
    monkeypatch.setattr(JobAdmin, "refresh_s", 1)


def fill(queue: Queue) -> list[str]:
    """Have a queue look as one that is used."""
    for n in range(200):
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


def has_text(visitor: Visitor, selector: str, text: str) -> Callable[[], bool]:
    """Look for a text without holding on to elements: a page that refreshes itself may drop them."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].some("
        "each => each.textContent.includes(arguments[1]))"
    )
    return lambda: bool(visitor.driver.execute_script(script, selector, text))


def test_pictures_of_a_site_at_work(visitor: Visitor, queue: Queue) -> None:
    tokens = fill(queue)
    first = living.serve(queue, *tokens[:2], task="shop.tasks.cancel_unpaid")
    second = living.serve(queue, tokens[2], host="web2", pid=812, version="0.9.1")
    quiet = living.serve(queue, host="web2", pid=813, state="quiet")

    visitor.open(url("workers"))
    show(visitor, "workers")
    assert len(visitor.find("#result_list tbody tr")) == 3
    visitor.open(url("changelist"))
    show(visitor, "overview")
    assert len(visitor.find(".delayq-chart svg")) == 6
    visitor.open(url("changelist") + "?span=day")
    show(visitor, "overview-day")
    visitor.open(url("tasks"))
    show(visitor, "tasks")
    assert "shop.tasks.cancel_unpaid" in visitor.texts("#result_list tbody th")
    for worker in (first, second, quiet):
        living.leave(queue, worker)
    visitor.open(url("changelist"))
    show(visitor, "overview-no-worker")
    assert any(
        "No worker serves" in text for text in visitor.texts(".delayq-problems li")
    )


def test_failures_stand_apart_from_the_runs_on_a_phone(
    visitor: Visitor, queue: Queue
) -> None:
    failed = living.figures_of(5, failed=3, late_ms=8, took_ms=4)
    living.measure(queue, shop__tasks__send=failed)
    visitor.driver.set_window_size(*SIZES["phone"])

    visitor.open(url("changelist"))
    marks = visitor.driver.execute_script(
        "return [...document.querySelectorAll('#result_list td.number > div')]"
        ".map(each => [each.innerText.trim(), getComputedStyle(each, '::before').content])"
    )

    assert ["3 failed", '" · "'] in marks
    assert {mark for _, mark in marks} == {'" · "'}


def test_list_refreshes_itself_and_keeps_what_a_person_has_done(
    visitor: Visitor, queue: Queue, quick: None
) -> None:
    tokens = [queue.schedule(7_200_000 + n * 1_000, n) for n in range(3)]
    visitor.open(url("queue", queue.name))
    boxes = visitor.find("input[name=job]")
    boxes[1].click()
    text = visitor.find("#find-text")[0]
    text.send_keys("half a wor")
    visitor.driver.execute_script(
        "window.stays = document.querySelectorAll('#result_list tbody tr')[1]"
    )

    queue.client.zrem(
        queue.keys.queue.timeout_set,
        queue.client.zrange(queue.keys.queue.timeout_set, 0, 0)[0],
    )
    added = queue.schedule(3_600_000, "new")

    wait_until(has_text(visitor, "#result_list", added), description="the new row")
    wait_until(
        lambda: not has_text(visitor, "#result_list", tokens[0])(),
        description="the row that has gone",
    )
    # The same elements, not others like them.
    assert boxes[1].is_selected()
    assert visitor.driver.execute_script("return window.stays.isConnected")
    assert visitor.driver.switch_to.active_element == text
    assert text.get_property("value") == "half a wor"
    visitor.check()


def test_overview_refreshes_itself_until_somebody_pauses_it_by_keyboard(
    visitor: Visitor, queue: Queue, quick: None
) -> None:
    queue.schedule(90_000)
    visitor.open(url("changelist"))
    has_scheduled = lambda number: has_text(  # noqa: E731
        visitor, ".delayq-tiles div:first-child .count", number
    )
    wait_until(has_scheduled("1"), description="one job")
    summary = visitor.find("#chart-ahead-hour summary")[0]
    summary.send_keys(" ")
    queue.schedule(90_000)
    wait_until(has_scheduled("2"), description="two jobs")
    assert visitor.find("#chart-ahead-hour details")[0].get_property("open")

    button = visitor.find("#delayq-live-bar button")[0]
    assert button.text == "Pause"
    button.send_keys("\n")

    assert visitor.texts("#delayq-live-bar .said") == ["Does not refresh itself"]
    asked = "return performance.getEntriesByType('resource').filter(e => e.initiatorType == 'fetch').length"
    before = visitor.driver.execute_script(asked)
    assert before >= 1
    visitor.open(url("changelist"))
    assert visitor.texts("#delayq-live-bar .said") == ["Does not refresh itself"]
    assert visitor.driver.execute_script(asked) == 0
    visitor.find("#delayq-live-bar button")[0].click()
    queue.schedule(90_000)
    wait_until(has_scheduled("3"), description="three jobs")


def test_page_says_that_the_server_did_not_answer_and_goes_on_when_it_does(
    visitor: Visitor, queue: Queue, quick: None, settings: Any
) -> None:
    visitor.open(url("changelist"))
    usual = settings.DELAYQ
    settings.DELAYQ = {**usual, "CONNECTION": "unix:///dev/null/nobody"}

    wait_until(
        has_text(visitor, ".delayq-live .said", "The server did not answer."),
        description="the word that it is old",
    )
    assert visitor.find("#result_list tbody tr")
    settings.DELAYQ = usual

    wait_until(
        has_text(visitor, ".delayq-live .said", "Refreshes itself"),
        description="a page that is fresh again",
    )


def test_worker_is_stopped_from_its_page(visitor: Visitor, queue: Queue) -> None:
    living.serve(queue, queue.running(17).token)

    visitor.open(url("workers"))
    visitor.click("button[value=stop]")
    assert visitor.texts("#question") == ["Stop web1:4711?"]
    show(visitor, "worker-stop")
    visitor.click("input[name=sure]")

    (message,) = visitor.texts(".messagelist li")
    assert message.startswith("Worker web1:4711 begins to stop")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_anybody_from_using_a_page(
    visitor: Visitor, queue: Queue, scheme: str
) -> None:
    tokens = fill(queue)
    living.serve(queue, *tokens[:2], version="0.9.1")
    living.serve(queue, host="web2", state="quiet")
    pages = (
        url("changelist"),
        url("workers"),
        url("tasks"),
        url("search"),
        url("queue", queue.name),
        url("queue", queue.name) + "?state=dead",
        url("job", queue.name, tokens[0]),
    )

    found = {}
    with visitor.prefers(scheme):
        for page in pages:
            visitor.open(page)
            found[page] = visitor.find_barriers()

    assert {page: told for page, told in found.items() if told} == {}
