"""The admin's pages in Chromium, as a person meets them: looked at, clicked through, and no script of a stranger run.

DELAYQ_TEST_REQUIRE_BROWSER=1   a missing Chromium fails these tests
DELAYQ_TEST_SCREENSHOTS=FOLDER  keep a picture of every page
"""

from typing import Any
from urllib.parse import urlencode

import pytest

from django_delayq import paused
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.wire.frame import FrameFormat, pack
from tests.admin.conftest import url
from tests.admin.filling import Queue, error
from tests.admin.visiting import SIZES, Visitor

pytestmark = pytest.mark.browser

#: An attack in every place that a page shows.
XSS = "</pre></td></title><img src=x onerror='window.owned=1'><script>window.owned=1</script>"


def test_person_runs_a_scheduled_job_now(visitor: Visitor, queue: Queue) -> None:
    token = queue.schedule(7_500_000, 42, "hello", customer={"name": "Zoë", "id": 7})

    visitor.open(url("changelist"))
    visitor.click(f"th a[href='{url('queue', queue.name)}']")
    visitor.click("#result_list tbody th a")
    assert queue.state(token) is State.SCHEDULED
    visitor.click("button[name=run_now]")

    assert f"Job {queue.name}:{token} is due now." in visitor.texts(".messagelist li")
    assert queue.state(token) is State.DUE


def test_person_cancels_a_job_after_being_asked(visitor: Visitor, queue: Queue) -> None:
    token = queue.schedule(7_500_000)

    visitor.open(url("job", queue.name, token))
    visitor.click("a.deletelink")
    assert queue.state(token) is State.SCHEDULED
    visitor.picture("cancel")
    visitor.click("form[method=post] input[type=submit][value^=Yes]")

    assert visitor.texts(".messagelist li") == [
        f"Job {queue.name}:{token} is cancelled and will not run."
    ]
    assert queue.state(token) is State.CANCELLED


def test_person_pauses_a_queue_and_resumes_it(visitor: Visitor, queue: Queue) -> None:
    visitor.open(url("queue", queue.name))
    visitor.click("#pause")
    assert paused(queue.name) == []
    visitor.find("input[name=minutes]")[0].send_keys("30")
    visitor.find("input[name=reason]")[0].send_keys("the bank is down")
    visitor.click("input[name=pause]")

    shown = visitor.texts(".messagelist li")
    assert shown[0] == f"Queue {queue.name} is paused."
    assert ": the bank is down." in shown[1]
    assert len(paused(queue.name)) == 1
    visitor.click(".delayq-resume button")

    assert visitor.texts(".messagelist li") == [f"Queue {queue.name} is resumed."]
    assert paused(queue.name) == []


def test_person_turns_pages(visitor: Visitor, queue: Queue) -> None:
    for number in range(120):
        queue.schedule(60_000 + 1000 * number, number)

    visitor.open(url("queue", queue.name))
    assert len(visitor.find("#result_list tbody tr")) == 50
    visitor.picture("pages")
    visitor.follow(visitor.driver.find_element("link text", "next ›"))
    assert "51–100 of about 120" in visitor.texts(".paginator")[0]
    visitor.follow(visitor.driver.find_element("link text", "last »"))
    assert len(visitor.find("#result_list tbody tr")) == 20
    visitor.follow(visitor.driver.find_element("link text", "« first"))
    assert "1–50 of about 120" in visitor.texts(".paginator")[0]


def test_table_has_the_width_of_the_page_and_the_paginator_stands_below(
    visitor: Visitor, queue: Queue
) -> None:
    for number in range(60):
        queue.schedule(60_000 + 1000 * number, number)

    for address in (url("changelist"), url("queue", queue.name)):
        visitor.open(address)
        page, table, paginator = (
            visitor.driver.find_element("css selector", selector).rect
            for selector in ("#content-main", "#result_list", ".paginator")
        )
        assert table["width"] == pytest.approx(page["width"], abs=2)
        assert paginator["y"] >= table["y"] + table["height"]


def test_breadcrumbs_look_as_those_of_django(visitor: Visitor, queue: Queue) -> None:
    looks = """
        const shown = document.querySelector('.breadcrumbs');
        const style = getComputedStyle(shown);
        const link = getComputedStyle(shown.querySelector('a'));
        return [style.backgroundColor, style.color, link.color, style.paddingLeft, style.paddingTop];
    """
    for size in SIZES.values():
        visitor.driver.set_window_size(*size)
        visitor.open("/admin/auth/user/add/")
        django = visitor.driver.execute_script(looks)
        for address in (url("changelist"), url("queue", queue.name)):
            visitor.open(address)
            ours = visitor.driver.execute_script(looks)
            # On narrow screens the padding of Django 6.1's is that of wide ones.
            compared = 5 if size == SIZES["desktop"] else 3
            assert ours[:compared] == django[:compared]
    visitor.driver.set_window_size(*SIZES["desktop"])


def test_no_page_runs_what_a_stranger_wrote(visitor: Visitor, queue: Queue) -> None:
    queue.schedule(60_000, XSS, task=XSS, unique=f"e{XSS}", **{XSS: XSS})
    dead = queue.dead(XSS, task=XSS, error_text=error(XSS, traceback=XSS, kind=XSS))
    strange = queue.quarantined(XSS.encode(), b"no JSON " + XSS.encode())
    running = queue.running(XSS, task=XSS)
    retrying = queue.retrying(XSS, task=XSS)
    queue.push(XSS.encode())
    queue.offer(XSS.encode())

    visitor.open(url("changelist"))
    for state in ("scheduled", "due", "running", "retrying", "dead", "quarantined"):
        visitor.open(f"{url('queue', queue.name)}?state={state}")
        assert visitor.find("#result_list tbody tr")
    for token in (dead, strange, running.token, retrying):
        visitor.open(url("job", queue.name, token))
        assert "<script>" in visitor.driver.find_element("id", "content").text
    for asked in ("state=dead", urlencode({"q": XSS}), urlencode({"task": XSS})):
        visitor.open(f"{url('search')}?queue={queue.name}&{asked}")
        assert visitor.find("#result_list tbody tr")
        visitor.click("button[value='retry:all']")
        assert "<script>" in visitor.driver.find_element("id", "which").text
    visitor.open(f"{url('search')}?{urlencode({'queue': XSS, 'from': XSS})}")
    visitor.open(
        f"{url('queue', queue.name)}?{urlencode({'state': 'ended', 'q': XSS})}"
    )
    visitor.open(url("discard", queue.name, dead))
    visitor.click("form[method=post] input[type=submit][value^=Yes]")
    visitor.open(url("job", queue.name, XSS))
    visitor.open("/admin/")
    assert "onerror" in visitor.driver.find_element("id", "recent-actions-module").text


def test_person_sees_which_key_is_missing(
    visitor: Visitor, queue: Queue, settings: Any
) -> None:
    before = settings.DELAYQ
    settings.DELAYQ = {**before, "KEYS": ["the key that is lost"]}
    tokens = [queue.held_for_key(number, who="Zoë") for number in range(3)]
    queue.held_for_key(4, reason=Reason(Kind.FORMAT, "9"))
    settings.DELAYQ = {**before, "KEYS": ["the key that is here"]}

    visitor.open(f"{url('queue', queue.name)}?state=held")
    told = visitor.texts(".messagelist li.error")
    visitor.picture("queue-held")
    visitor.open(url("job", queue.name, tokens[0]))
    visitor.picture("job-held")

    assert len(told) == 2
    assert "3 jobs are held: they are signed with key" in " ".join(told)


def test_pages_look_like_the_admin(
    visitor: Visitor, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {
            queue.name: {"REDISSON": "3.16.6", "CODEC": "StringCodec"},
            f"{queue.name}:odd{{ü}}": {},
        },
    }
    trace = "Traceback (most recent call last):\n" + "".join(
        f'  File "/srv/shop/tasks.py", line {n}, in send\n    deliver(to={"y" * 150!r})\n'
        for n in range(12)
    )
    why = error("ConnectionError: " + "no route to host " * 20, trace)
    dead = queue.dead(17, error_text=why)
    queue.retrying(18, delay_ms=125_000)
    strange = queue.quarantined(bytes(range(256)) * 40)
    queue.running(19)
    tokens = [
        queue.schedule(8_100_000, 4711, "contest closes", at="2026-12-01T18:00:00Z"),
        queue.schedule(95_000, ["x" * 300], text="word " * 300, deep={"a": [1, {}]}),
        queue.schedule(864_000_000, "n" * 20_000),
        queue.schedule(300, unique="eshop:1", options={"max_attempts": 2}),
    ]
    queue.offer("Größe: ein Wort von Java".encode(), 7_000)
    queue.offer(bytes(range(256)) * 20, 8_000)
    queue.add_member(b"no frame at all", 1_900_000_000_000)
    queue.add_member(pack(b"12345678", b"late", FrameFormat.BC0LC0), 10**16)
    queue.push(b"plain text", queue.payload(tokens[0][::-1]), b"\x04\x3e\x02ab")

    visitor.open("/admin/")
    visitor.picture("index")
    visitor.open(url("changelist"))
    visitor.picture("queues")
    for state in ("scheduled", "due", "running", "retrying", "dead", "quarantined"):
        visitor.open(f"{url('queue', queue.name)}?state={state}")
        visitor.picture(f"queue-{state}")
    for number, token in enumerate((*tokens, dead, strange)):
        visitor.open(url("job", queue.name, token))
        visitor.picture(f"job-{number}")
    visitor.open(url("discard", queue.name, dead))
    visitor.picture("discard")
    visitor.open(url("job", queue.name, "nobody"))
    visitor.picture("gone")
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}
    visitor.open(url("changelist"))
    visitor.picture("fault")
