"""Every link of every page leads somewhere, and one that shows a number leads to as many rows."""

import re
from collections import deque
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest
from django.test import Client

from django_delayq.conf import keys_of
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_layout import fill

ROOT = "/admin/django_delayq/"
#: Characters that a URL or a page may trip over.
ODD = "a/b: 100% {ü}_5F"
PREFIX = "zqx-"


class Links(HTMLParser):
    """Collects the address and the text of each link, and the rows of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.rows = 0
        self._open: str | None = None
        self._text = ""

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        values = dict(attributes)
        self.rows += (tag, values.get("scope"), values.get("class")) == (
            "th",
            "row",
            "name",
        )
        if tag == "a" and values.get("href"):
            self._open, self._text = values["href"], ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open is not None:
            self.found.append((self._open, " ".join(self._text.split())))
            self._open = None


def links_of(page: Any, address: str) -> Iterator[tuple[str, str]]:
    links = Links()
    links.feed(page.content.decode())
    for target, text in links.found:
        target = urldefrag(urljoin(address, target))[0]
        if target.startswith(ROOT):
            yield target, text


@pytest.mark.parametrize(
    ("suffix", "prefix"), [("", ""), (ODD, ""), ("", PREFIX)], ids=["", "odd", "prefix"]
)
def test_every_link_answers_and_shows_what_it_promises(
    browser: Client, queue: Queue, settings: Any, suffix: str, prefix: str
) -> None:
    odd = Queue(queue.client, f"{queue.name}{suffix}")
    other = Queue(queue.client, f"{queue.name}:transactional_mail")
    queues = {odd.name: {"MAX_JOBS": 20}, other.name: {}, "sharded": {"SHARDS": 2}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues, "PREFIX": prefix}
    for each in (odd, other):
        each.keys = keys_of(each.name)
    fill(odd, other)

    todo = deque([(url("changelist"), "", "")])
    seen, wrong = set(), []
    while todo:
        address, text, origin = todo.popleft()
        if address in seen:
            continue
        seen.add(address)
        page = browser.get(address, follow=True)
        if page.status_code != 200:
            wrong.append(f"{page.status_code} of {address}, {text!r} on {origin}")
        # What the server calls a queue is on no page.
        assert PREFIX.encode() not in page.content
        if "html" not in page.headers["Content-Type"]:
            continue
        links = Links()
        links.feed(page.content.decode())
        # In the overview, and on the tabs of a queue.
        promised = re.fullmatch("(?:[A-Z][a-z ]+ )?([0-9]+)", text)
        if promised and links.rows != int(promised[1]):
            wrong.append(f"{links.rows} rows at {address}, {text!r} on {origin}")
        todo += ((target, text, address) for target, text in links_of(page, address))

    assert not wrong
    # Each kind of page was there.
    for part in (
        "_workers/",
        "_tasks/",
        "_find/",
        "/schedules/",
        "/limits/",
        "/cancel/",
        "/discard/",
        ".json",
    ):
        assert any(part in address for address in seen), part
