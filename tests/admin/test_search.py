"""Finding jobs on the admin's page: what is asked for, how far a search has come, and what it costs."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.test import Client
from django.utils import timezone

from django_delayq import delayed_task
from django_delayq.admin import job_search as search_module
from django_delayq.admin.job_search import Cursor, Filter, open_cursor
from django_delayq.core.states import State
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.jobs.walk import Mark
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from tests.admin.conftest import url
from tests.admin.filling import Queue, error
from tests.admin.test_job_admin import content_of, messages_of


def found(response: Any) -> list[str]:
    return [row.token for row, _ in response.context["rows"]]


def every(browser: Client, queue: Queue, **asked: Any) -> list[str]:
    """Go on until the end; return the tokens in the order in which pages show them."""
    page = browser.get(url("search"), {"queue": queue.name, **asked})
    tokens = found(page)
    for _ in range(1000):
        if (address := page.context["go_on_url"]) is None:
            return tokens
        page = browser.get(address)
        tokens += found(page)
    raise AssertionError("the search does not come to its end")


@pytest.mark.parametrize("place", ["changelist", "workers", "tasks", "search"])
def test_pages_of_all_queues_lead_to_each_other(
    browser: Client, queue: Queue, place: str
) -> None:
    page = browser.get(url(place)).content.decode()

    assert f'<a href="{url(place)}" aria-current="page">' in page
    for other in {"changelist", "workers", "tasks", "search"} - {place}:
        assert f'<li><a href="{url(other)}">' in page


def test_fields_of_times_name_the_zone(browser: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"

    page = content_of(browser.get(url("search")))

    assert "Due from (Asia/Kathmandu):" in page
    assert "Due before (Asia/Kathmandu):" in page


def test_jobs_are_found_by_state_and_queue(browser: Client, queue: Queue) -> None:
    waits, dead, held = queue.schedule(), queue.dead(1), queue.held(2)

    both = every(browser, queue, state=["scheduled", "dead"])

    assert both == [waits, dead]
    assert every(browser, queue) == [waits, held, dead]


def test_jobs_are_found_by_task(browser: Client, queue: Queue) -> None:
    queue.schedule()
    other = queue.schedule(task="shop.tasks.other")

    assert every(browser, queue, task="shop.tasks.other") == [other]


@pytest.mark.parametrize("text", ["ZOË", "no ROUTE", "4711"])
def test_jobs_are_found_by_argument_and_by_error(
    browser: Client, queue: Queue, text: str
) -> None:
    queue.schedule(60_000, "nobody")
    wanted = {
        "ZOË": lambda: queue.schedule(60_000, who="Zoë"),
        "no ROUTE": lambda: queue.dead(error_text=error("no route to host")),
        "4711": lambda: queue.schedule(60_000, 4711),
    }[text]()

    assert every(browser, queue, q=text) == [wanted]


def test_jobs_are_found_by_when_they_are_due(browser: Client, queue: Queue) -> None:
    tokens = [queue.schedule(hours * 3_600_000) for hours in (1, 3, 5)]
    local = timezone.localtime()

    shown = every(
        browser,
        queue,
        due_from=f"{local + timedelta(hours=2):%Y-%m-%dT%H:%M}",
        due_to=f"{local + timedelta(hours=4):%Y-%m-%dT%H:%M}",
    )

    assert shown == [tokens[1]]


@pytest.mark.parametrize("asked", ["id", "token"])
def test_id_leads_to_the_job(browser: Client, queue: Queue, asked: str) -> None:
    token = queue.schedule()
    text = f"{queue.name}:{token}" if asked == "id" else token

    response = browser.get(url("search"), {"q": f" {text} "})

    assert response.headers["Location"] == url("job", queue.name, token)


def test_id_of_no_job_is_looked_for_as_a_text(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000, "x" * 22)

    assert every(browser, queue, q="x" * 22) == [token]
    assert every(browser, queue, q=f"{queue.name}:{'y' * 22}") == []


def test_search_says_how_far_it_got_and_goes_on(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MOST_CALLS", 2)
    monkeypatch.setattr(search_module, "SEARCH_PAGE", 60)
    tokens = [queue.schedule(60_000 + number, number) for number in range(300)]

    first = browser.get(url("search"), {"queue": queue.name, "q": "299"})

    text = content_of(first)
    assert "No matching jobs so far. 110 of 300 jobs searched, 0 found." in text
    second = browser.get(first.context["go_on_url"])
    # The page begins with a small step, as all may fit.
    assert "220 of 300 jobs searched, 0 found." in content_of(second)
    last = browser.get(second.context["go_on_url"])
    assert "300 of 300 jobs searched, 1 found." in content_of(last)
    assert found(last) == [tokens[299]]
    assert last.context["go_on_url"] is None


def test_every_job_is_shown_once_though_it_goes_on_within_large_frames_and_equal_times(
    browser: Client, queue: Queue
) -> None:
    due_ms = 1_990_000_000_000
    for number in range(130):
        payload = queue.payload(f"{number:022}", "shop.tasks.large", "x" * 200)
        frame = pack(number.to_bytes(8, "big"), payload, FrameFormat.BC0LC0)
        queue.add_member(frame, due_ms)
    for number in range(70):
        queue.dead(number)

    shown = every(browser, queue)

    assert len(shown) == len(set(shown)) == 200


def test_destination_queue_is_walked_through(browser: Client, queue: Queue) -> None:
    queue.push(*(f"foreign {number} {'x' * 900}".encode() for number in range(130)))

    page = browser.get(url("search"), {"queue": queue.name, "state": "due"})
    count = len(page.context["rows"])
    while page.context["go_on_url"] is not None:
        page = browser.get(page.context["go_on_url"])
        count += len(page.context["rows"])

    assert count == 130


@pytest.mark.parametrize("damage", ["cut", "foreign", "other search"])
def test_damaged_link_begins_anew_and_says_so(
    browser: Client, queue: Queue, damage: str
) -> None:
    for number in range(60):
        queue.schedule(60_000 + number, number)
    asked = {"queue": queue.name}
    page = browser.get(url("search"), asked)
    sealed = re.search("from=([^&]+)", page.context["go_on_url"])
    assert sealed is not None
    text = {"cut": sealed[1][:-1], "foreign": "x:y:z", "other search": sealed[1]}
    if damage == "other search":
        asked["state"] = "scheduled"

    again = browser.get(url("search"), {**asked, "from": text[damage]})

    assert "starts from the beginning" in messages_of(again)[0]
    assert len(found(again)) == 50
    assert again.context["seen"].looked == 50


def test_cursor_is_small_however_large_the_jobs_are() -> None:
    mark = Mark(("q",), 1, 0, None, (), b"1990000000000", b"\xff" * 80)

    sealed = Cursor(mark, 5, 1).seal(Filter(queue="q"))

    assert len(sealed) < 400
    assert open_cursor(sealed, Filter(queue="q")) == Cursor(mark, 5, 1)
    assert open_cursor(sealed, Filter(queue="p")) is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"state": "succeeded"}, "succeeded is not one of the available choices"),
        ({"queue": "nobody"}, "nobody is not one of the available choices"),
        ({"due_from": "soon"}, "Enter a valid date/time."),
        (
            {"due_from": "2026-01-02T00:00", "due_to": "2026-01-01T00:00"},
            "This must be later than “Due from”.",
        ),
        ({"q": "x" * 600}, "at most 512 characters"),
        ({"task": "\0"}, "Null characters are not allowed."),
    ],
)
def test_malformed_search_is_told_beside_the_field(
    browser: Client, queue: Queue, asked: dict[str, str], told: str
) -> None:
    response = browser.get(url("search"), asked)

    assert response.status_code == 200
    assert told in content_of(response)
    assert "rows" not in response.context


def test_search_that_finds_nothing_says_so(browser: Client, queue: Queue) -> None:
    queue.schedule()

    response = browser.get(url("search"), {"queue": queue.name, "q": "nowhere"})

    text = content_of(response)
    assert "No matching jobs. 1 of 1 job searched, 0 found." in text
    assert "text: nowhere" in text


def test_search_makes_ten_round_trips_at_most(browser: Client, queue: Queue) -> None:
    for number in range(1600):
        queue.schedule(60_000 + number, number)
    trips = 0
    from redis.connection import Connection, UnixDomainSocketConnection

    def counting(send: Callable[..., Any]) -> Callable[..., Any]:
        def count(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal trips
            trips += 1
            return send(self, *args, **kwargs)

        return count

    asked = {"queue": queue.name, "q": "nowhere"}
    browser.get(url("search"), asked)  # connects, and loads the scripts
    send = Connection.send_packed_command
    with (
        mock.patch.object(Connection, "send_packed_command", counting(send)),
        mock.patch.object(
            UnixDomainSocketConnection, "send_packed_command", counting(send)
        ),
    ):
        page = browser.get(url("search"), asked)

    assert page.context["seen"].looked == 50 + 7 * search_module.SEARCH_PAGE
    assert trips <= 10


def test_somebody_who_may_only_view_finds_and_sees_no_button(
    login: Callable[..., Client], queue: Queue
) -> None:
    queue.schedule()

    response = login("view").get(url("search"), {"queue": queue.name})

    assert len(response.context["rows"]) == 1
    assert "ticked" not in content_of(response)
    assert b'type="checkbox" class="action-select"' not in response.content
    assert login().get(url("search")).status_code == 403


def test_sensitive_argument_is_neither_shown_nor_found(
    browser: Client, queue: Queue
) -> None:
    @delayed_task(name="tests.search.sensitive", sensitive=("token",))
    def sensitive(user: int, token: str) -> None: ...

    token = queue.schedule(60_000, 7, "s3cret", task=sensitive.name)

    shown = browser.get(url("search"), {"queue": queue.name, "task": sensitive.name})

    assert found(shown) == [token]
    assert "user=7, token=***" in content_of(shown)
    assert every(browser, queue, q="s3cret") == []
    assert every(browser, queue, q="7", task=sensitive.name) == [token]


def test_list_of_a_queue_is_sorted_from_either_end(
    browser: Client, queue: Queue
) -> None:
    tokens = [queue.schedule(60_000 + 1000 * number) for number in range(60)]

    page = browser.get(url("queue", queue.name), {"order": "reversed"})
    last = browser.get(url("queue", queue.name), {"order": "reversed", "page": "2"})
    beyond = browser.get(url("queue", queue.name), {"order": "reversed", "page": "9"})

    assert found(page) + found(last) == tokens[::-1]
    assert "order=reversed" in beyond.headers["Location"]


def test_ended_jobs_are_found_by_task_error_and_outcome(
    browser: Client, queue: Queue
) -> None:
    records = [
        EndRecord(f"{n:022}", "shop.send", State.DEAD, 1_790_000_000_000 + n, error=e)
        for n, e in enumerate(("no route 0", "no route 1", "no money"))
    ]
    other = EndRecord("x" * 22, "shop.other", State.SUCCEEDED, 1_790_000_000_000)
    run(queue.client, ended_calls.note_ended(queue.keys, [*records, other], keep=1000))

    def shown(**asked: str) -> list[str]:
        page = browser.get(url("queue", queue.name), {"state": "ended", **asked})
        return [record.token for record, *_ in page.context["rows"]]

    assert len(shown()) == 4
    assert shown(q="ROUTE 1") == [records[1].token]
    assert shown(task="shop.other") == [other.token]
    assert shown(q="dead") == [record.token for record in reversed(records)]
    assert shown(q=f"{queue.name}:{other.token}") == [other.token]
    nothing = browser.get(
        url("queue", queue.name), {"state": "ended", "q": "nothing of it"}
    )
    assert "4 jobs in this list, and none matches." in content_of(nothing)


def test_filter_says_what_it_looks_for() -> None:
    search = Filter(
        "Zoë",
        "shop.send",
        "mail",
        (State.DEAD, State.HELD),
        datetime(2026, 1, 1, tzinfo=UTC),
    )

    with timezone.override("UTC"):
        words = search.words

    assert words == [
        "state: dead and held",
        "queue: mail",
        "task: shop.send",
        "text: Zoë",
        "due from 2026-01-01 00:00:00 UTC",
    ]
