"""Lists, search, one job and what is done to many, in Chromium; without script, as nothing here has any."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from django_delayq import delayed_task
from django_delayq.admin.job_admin import JobAdmin
from django_delayq.core.states import State
from tests.admin.conftest import url
from tests.admin.filling import TASK, Queue, error
from tests.admin.visiting import SIZES, Visitor
from tests.polling import wait_until

pytestmark = pytest.mark.browser

TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/orders/tasks.py", line 41, in cancel_unpaid\n'
    "    gateway.refund(order)\n"
    "    ~~~~~~~~~~~~~~^^^^^^^\n"
    '  File "/srv/venv/lib/python3.12/site-packages/gateway/client.py", line 210, in refund\n'
    "    return self._post(order)\n"
    '  File "/srv/venv/lib/python3.12/site-packages/gateway/client.py", line 88, in _post\n'
    "    raise Refused(reply)\n"
    '  File "/srv/shop/orders/errors.py", line 7, in __init__\n'
    "    super().__init__(reply.text)\n"
    "gateway.Refused: card 4711 is blocked\n"
)


def show(visitor: Visitor, name: str) -> None:
    """Keep pictures of the page, light and dark, on a desktop and on a phone, if DELAYQ_TEST_SCREENSHOTS says where."""
    folder = os.environ.get("DELAYQ_TEST_SCREENSHOTS")
    for scheme in ("light", "dark"):
        with visitor.prefers(scheme):
            for size, (width, height) in SIZES.items():
                visitor.driver.set_window_size(width, height)
                visitor.check()
                if folder is not None:
                    # As high as what it shows.
                    whole = visitor.driver.execute_script(
                        "return document.documentElement.scrollHeight"
                    )
                    visitor.driver.set_window_size(width, max(height, whole + 150))
                    visitor.driver.save_screenshot(
                        str(Path(folder) / f"{name}-{scheme}-{size}.png")
                    )
    visitor.driver.set_window_size(*SIZES["desktop"])


def test_380_dead_letters_are_retried_in_three_clicks_while_a_worker_claims(
    visitor: Visitor, queue: Queue
) -> None:
    for number in range(380):
        queue.dead(number)
    taken: list[str] = []
    is_over = threading.Event()

    def claim() -> None:
        while not is_over.is_set():
            taken.extend(job.token for job in queue.claim(20))

    worker = threading.Thread(target=claim)
    worker.start()
    try:
        visitor.open(url("queue", queue.name))
        visitor.follow(visitor.driver.find_element("partial link text", "Dead letters"))
        visitor.click("button[value='retry:all']")
        assert visitor.texts("#question") == ["Retry 380 jobs?"]
        visitor.click("input[name=sure]")
    finally:
        is_over.set()
        worker.join()

    assert visitor.texts(".messagelist li") == ["380 jobs are retried."]
    taken += [job.token for job in queue.claim(400)]
    assert len(set(taken)) == 380


def test_person_finds_moves_and_cancels_what_is_ticked(
    visitor: Visitor, queue: Queue
) -> None:
    wanted = [queue.schedule(7_200_000, f"order of Zoë {n}") for n in range(3)]
    other = queue.schedule(7_200_000, "somebody else")

    visitor.open(url("search"))
    show(visitor, "search-empty")
    visitor.find("input[name=q]")[0].send_keys("ZOË")
    visitor.click("#find")
    assert len(visitor.find("#result_list tbody tr")) == 3
    show(visitor, "search")
    for box in visitor.find("input[name=job]")[:2]:
        box.click()
    visitor.click("button[value='reschedule:ticked']")
    visitor.find("input[name=minutes]")[0].send_keys("600")
    show(visitor, "reschedule")
    visitor.click("input[name=sure]")
    assert visitor.texts(".messagelist li") == ["2 jobs are rescheduled."]
    visitor.click("button[value='cancel:all']")
    assert len(visitor.find("#which li")) == 3
    show(visitor, "cancel-all")
    visitor.click("input[name=sure]")

    assert visitor.texts(".messagelist li") == ["3 jobs are cancelled."]
    assert {queue.state(token) for token in wanted} == {State.CANCELLED}
    assert queue.state(other) is State.SCHEDULED


def test_id_is_copied_or_at_least_selected_by_a_click(
    visitor: Visitor, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAdmin, "refresh_s", 0)
    token = queue.schedule(7_200_000, 1)
    job_id = f"{queue.name}:{token}"
    said = lambda: visitor.texts("#delayq-copied")[0]  # noqa: E731

    for address in (url("queue", queue.name), url("job", queue.name, token)):
        visitor.open(address)
        visitor.driver.execute_script(
            "navigator.clipboard.writeText = async text => { window.copied = text; }"
        )
        visitor.find(".delayq-copy")[0].send_keys("\n")
        wait_until(lambda: said() == "The ID is copied.", description="it says so")
        assert visitor.driver.execute_script("return window.copied") == job_id

        visitor.open(address)
        visitor.driver.execute_script(
            "navigator.clipboard.writeText = async () => { throw new Error('denied'); };"
            "document.execCommand = () => false"
        )
        visitor.find(".delayq-copy")[0].click()
        wait_until(
            lambda: said().startswith("The ID is selected"), description="it says so"
        )
        selected = visitor.driver.execute_script("return getSelection().toString()")
        assert selected == job_id


def test_job_tells_its_life_and_shows_the_projects_own_code(
    visitor: Visitor, queue: Queue
) -> None:
    @delayed_task(name="shop.tasks.cancel_unpaid", sensitive=("token",))
    def cancel_unpaid(order_id: int, token: str, notify: bool = True) -> None: ...

    why = error("gateway.Refused: card 4711 is blocked", TRACE, "gateway.Refused")
    job = queue.retrying(4711, "s3cret", task=cancel_unpaid.name, error_text=why)

    visitor.open(url("job", queue.name, job))
    show(visitor, "job")

    assert visitor.texts("#content h1") == [cancel_unpaid.name]
    shown = visitor.driver.find_element("id", "content").text
    assert "order_id=\n4711\ntoken=\n***" in shown
    assert "s3cret" not in visitor.driver.page_source
    own, folded, again = visitor.find(".delayq-trace > *")
    assert "gateway.refund(order)" in own.text
    assert folded.text == "2 library frames"
    assert "card 4711 is blocked" in again.text


def test_two_people_act_at_once(
    visitor: Visitor, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page that refreshes itself takes the button away as soon as somebody looks at it again.
    monkeypatch.setattr(JobAdmin, "refresh_s", 0)
    token = queue.schedule(7_200_000, 1)

    visitor.open(url("job", queue.name, token))
    queue.client.delete(queue.keys.queue.timeout_set)
    first = queue.schedule(7_200_000, 2)
    visitor.open(url("job", queue.name, first))
    page = visitor.driver.current_window_handle
    visitor.driver.switch_to.new_window("tab")
    visitor.open(url("cancel", queue.name, first))
    visitor.click("form[method=post] input[type=submit][value^=Yes]")
    visitor.driver.close()
    visitor.driver.switch_to.window(page)
    visitor.click("button[name=run_now]")

    assert visitor.texts(".messagelist li") == [
        f"Job {queue.name}:{first} was already cancelled."
    ]


def test_lists_fold_on_a_phone(visitor: Visitor, queue: Queue, settings: Any) -> None:
    for number in range(4):
        queue.schedule(60_000 + 90_000 * number, number, "word " * 20)
    for number in range(3):
        queue.dead(number, error_text=error("ConnectionError: no route to host", TRACE))

    visitor.open(url("queue", queue.name))
    show(visitor, "list")
    visitor.open(f"{url('queue', queue.name)}?state=dead")
    show(visitor, "list-dead")
    visitor.open(f"{url('queue', queue.name)}?state=ended")
    show(visitor, "list-ended")
    visitor.open(url("limits", queue.name))
    show(visitor, "limits")
    visitor.driver.set_window_size(*SIZES["phone"])
    visitor.open(url("queue", queue.name))
    (row, *_) = visitor.find("#result_list tbody tr")
    width = visitor.driver.execute_script("return document.documentElement.clientWidth")
    assert row.rect["width"] <= width
    assert TASK in row.text
    visitor.driver.set_window_size(*SIZES["desktop"])
