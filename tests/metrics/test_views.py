"""Who may read the metrics and the overview, and what both say when there is no server."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from django_delayq import pause, schedule
from django_delayq.core.forward_calls import forward_of
from django_delayq.core.store import NewJob, new_token
from django_delayq.core.worker_registry import RunningJob
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.management.conftest import Writes, serve
from tests.metrics.conftest import TOKEN
from tests.metrics.reading import Scrape
from tests.metrics.test_exposition import note
from tests.servers import Server

#: What the page has to say in full.
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "monitor.md"
BOTH = pytest.mark.parametrize("page", ["metrics", "overview.json"])
NOBODY_ANSWERS = "unix:///dev/null/nobody"


@BOTH
def test_prefix_of_the_queues_is_left_out(
    settings: Any, queue: str, get: Callable[..., Any], page: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "zqx-"}
    schedule(samples.add.using(queue=queue), LATER, 1)

    content = get(page).content.decode()

    assert queue in content
    assert "zqx-" not in content


# Who may


@BOTH
def test_token_opens(queue: str, get: Callable[..., Any], page: str) -> None:
    response = get(page)

    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]


def test_metrics_say_their_format(queue: str, get: Callable[..., Any]) -> None:
    assert get("metrics")["Content-Type"] == (
        "text/plain; version=0.0.4; charset=utf-8"
    )


@BOTH
@pytest.mark.parametrize(
    ("token", "why"),
    [
        (f"{TOKEN}x", "The token is not in DELAYQ['METRICS_TOKENS']."),
        (TOKEN[:-1], "The token is not in"),
        ("", "The token is not in"),
        ("\xff\xfe", "The token is not in"),
        (None, "'Authorization: Bearer TOKEN', or log in to the admin as staff."),
    ],
)
def test_anybody_else_is_told_how_to_come_in(
    queue: str, get: Callable[..., Any], page: str, token: str | None, why: str
) -> None:
    response = get(page, token=token)

    assert response.status_code == 403
    assert why in response.content.decode()
    assert TOKEN not in response.content.decode()
    assert response["Content-Type"] == "text/plain"


@BOTH
def test_without_a_token_in_the_settings_none_is_accepted(
    queue: str, settings: Any, get: Callable[..., Any], page: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKENS": []}

    for token in (TOKEN, "", "None"):
        response = get(page, token=token)

        assert response.status_code == 403
        assert "['METRICS_TOKENS'] is empty" in response.content.decode()


@BOTH
def test_an_old_and_a_new_token_are_accepted_together(
    queue: str, settings: Any, get: Callable[..., Any], page: str
) -> None:
    new = "a-new-token-of-16"
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKENS": [new, TOKEN]}

    assert [get(page, token=each).status_code for each in (new, TOKEN, f"{new}x")] == [
        200,
        200,
        403,
    ]


@BOTH
@pytest.mark.parametrize("right", ["view", "change"])
def test_staff_that_may_see_jobs_comes_in_by_its_session(
    queue: str, get: Callable[..., Any], login: Callable[..., Client], page: str, right
) -> None:
    assert get(page, token=None, client=login(right)).status_code == 200


@BOTH
@pytest.mark.parametrize("rights", [(), ("delete",)])
def test_staff_that_may_not_see_jobs_does_not(
    queue: str, get: Callable[..., Any], login: Callable[..., Client], page: str, rights
) -> None:
    response = get(page, token=None, client=login(*rights))

    assert response.status_code == 403
    assert "needs the permission django_delayq.view_job" in response.content.decode()


@BOTH
@pytest.mark.parametrize("is_active", [True, False])
def test_superuser_who_is_not_staff_or_not_active_does_not(
    queue: str, get: Callable[..., Any], db: None, page: str, is_active: bool
) -> None:
    user = User.objects.create_user(
        "u", is_superuser=True, is_staff=not is_active, is_active=is_active
    )
    client = Client()
    client.force_login(user)

    assert get(page, token=None, client=client).status_code == 403


@BOTH
def test_token_needs_no_session_and_passes_where_a_login_is_required(
    queue: str, settings: Any, get: Callable[..., Any], page: str
) -> None:
    required = "django.contrib.auth.middleware.LoginRequiredMiddleware"
    with_login = [*settings.MIDDLEWARE, required]
    for middleware in ([], with_login):
        settings.MIDDLEWARE = middleware

        assert get(page).status_code == 200
        assert get(page, token=None).status_code == 403


@BOTH
def test_only_reading_is_allowed(queue: str, page: str) -> None:
    assert Client().post(f"/delayq/{page}").status_code == 405


# Without a server


def test_metrics_without_a_server_say_so_in_a_number(
    settings: Any, get: Callable[..., Any]
) -> None:
    """Prometheus drops the body of an error, and would take the site for what is down."""
    settings.DELAYQ = {"CONNECTION": NOBODY_ANSWERS}

    response = get("metrics")

    text = response.content.decode()
    assert response.status_code == 200
    assert Scrape.of(text).values == {("delayq_up", frozenset()): 0}
    assert text.startswith("# The server does not answer. ")


def test_overview_without_a_server_says_what_to_do(
    settings: Any, get: Callable[..., Any]
) -> None:
    settings.DELAYQ = {"CONNECTION": NOBODY_ANSWERS}

    response = get("overview.json")

    told = response.json()
    assert response.status_code == 503
    assert told["what"] == "The server does not answer."
    assert "up, and can this process reach it" in told["hint"]
    assert "nobody" in told["fault"]


def test_server_that_hangs_is_asked_once(
    private_server: Callable[..., Server],
    settings: Any,
    scrape: Callable[[], Scrape],
    writes: Writes,
) -> None:
    """Prometheus waits for ten seconds, and the time-out of a connection is five."""
    hanging = private_server()
    settings.DELAYQ = {"CONNECTION": f"{hanging.socket_url}&socket_timeout=3"}
    assert scrape()("delayq_up") == 1
    hanging.suspend()

    asked = writes.during(scrape)

    hanging.resume()
    assert asked == 1
    assert scrape()("delayq_up") == 1


# The overview


def test_overview_has_queues_workers_and_problems(
    queue: str, hand: Hand, get: Callable[..., Any]
) -> None:
    job = schedule(samples.add.using(queue=queue), LATER, 1)
    pause(f"{queue}-2")
    note(hand, 5_000, 5_000)
    running = RunningJob(queue, "T", samples.add.name)
    serve(hand, queue, jobs=[running], version="0.0.1")

    told = get("overview.json").json()

    one, two = told["queues"]
    assert (one["name"], one["scheduled"], one["workers"]) == (queue, 1, 1)
    assert (one["runs"], one["failures"]) == (2, 0)
    assert one["duration_p50_ms"] == pytest.approx(5, rel=0.25)
    assert (two["paused"], two["lateness_p99_ms"]) == (True, None)
    (worker,) = told["workers"]
    assert worker["jobs"][0]["id"] == f"{queue}:T"
    messages = " ".join(each["message"] for each in told["problems"])
    assert f"queue {queue}-2 has been paused" in messages.lower()
    assert "runs django-delayq 0.0.1" in messages
    assert told["server"]["role"] == "primary"
    assert job.token not in json.dumps(told)


def test_page_describes_every_key_of_the_overview(
    queue: str, hand: Hand, get: Callable[..., Any]
) -> None:
    running = RunningJob(queue, "T", samples.add.name)
    serve(hand, queue, jobs=[running], version="0.0.1")
    told = get("overview.json").json()
    text = PAGE.read_text("utf-8").partition("## The overview as JSON")[2]

    described = set(re.findall(r"`(\w+)`", text.partition("\n## ")[0]))

    assert _keys(told) <= described


def test_page_describes_every_metric_and_its_kind_and_labels(
    queue: str, hand: Hand, get: Callable[..., Any]
) -> None:
    note(hand, 1_000)
    forward = forward_of("other", NewJob(new_token(), "+0", "", b""), 0)
    hand.client.zadd(hand.keys.forwards, {forward.member: 0})
    found = Scrape.of(get("metrics").content.decode())
    rows = re.findall(
        r"^\| (`delayq_.*?) \| (\w+) \|(.*?)\| ",
        PAGE.read_text("utf-8"),
        re.MULTILINE,
    )

    described = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for names, kind, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }

    if "delayq_node_up" not in found.kinds:
        # A single server has no nodes.
        assert described.pop("delayq_node_up") == ("gauge", {"node"})
    assert described == {
        name: (
            kind,
            {
                label
                for (each, labels) in found.values
                if re.sub("_(bucket|sum|count)$", "", each) == name
                for label, _ in labels
            },
        )
        for name, kind in found.kinds.items()
    }


def _keys(told: Any) -> set[str]:
    if isinstance(told, dict):
        return set(told) | set().union(*map(_keys, told.values()))
    return set().union(*map(_keys, told)) if isinstance(told, list) else set()


@pytest.mark.parametrize("broken", ["leases", "control", "minute"])
def test_queue_that_cannot_be_read_says_why_and_hides_no_other(
    queue: str,
    hand: Hand,
    client: "redis.Redis[bytes]",
    get: Callable[..., Any],
    broken: str,
) -> None:
    note(hand, 1_000)
    other = Hand(client, f"{queue}-2")
    client.lpush(other.keys.key(broken), "of somebody else")

    one, two = get("overview.json").json()["queues"]

    assert one["runs"] == 1
    if broken != "minute":
        assert set(two) == {"name", "fault"}
        assert "WRONGTYPE" in two["fault"]
    else:
        assert (two["running"], two["runs"], two["lateness_p50_ms"]) == (0, None, None)


def test_overview_of_many_queues_takes_few_round_trips(
    server: Server,
    queue_name: str,
    settings: Any,
    get: Callable[..., Any],
    writes: Writes,
) -> None:
    queues = {f"{queue_name}-{n}": {} for n in range(20)}
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": queues}
    get("overview.json")

    assert writes.during(lambda: get("overview.json")) <= 10
