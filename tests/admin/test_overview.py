"""The overview: its numbers, its warnings, its pictures, and the same as JSON."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from redis.connection import AbstractConnection

from django_delayq import conf, pause, schedule_many
from django_delayq.core import queue_reads
from django_delayq.features.statistics import charts
from django_delayq.features.statistics.api import queue_statistics
from django_delayq.features.statistics.calls import Unit
from django_delayq.health import facts, queue_problems
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of
from tests.clock import at
from tests.jobs import samples
from tests.polling import wait_until

XSS = "</title></text></td><img src=x onerror='window.owned=1'><script>window.owned=1</script>"

#: Ours, and not the icons of Django's pages.
PICTURES = re.compile(r"<svg viewBox.*?</svg>", re.DOTALL)


def overview(browser: Client, **asked: str) -> Any:
    page = browser.get(url("changelist"), asked)
    assert page.status_code == 200
    return page


def row_of(page: Any, queue: Queue) -> dict[str, Any]:
    (row,) = [row for row in page.context["rows"] if row["queue"].name == queue.name]
    return dict(row)


def told(page: Any) -> str:
    """Return what is wrong, but with the queue that other tests use as well."""
    return "\n".join(
        f"{each.level}: {each.message} {each.hint}"
        for each in page.context["problems"]
        if "queue 'default'" not in each.message
    )


def chart(page: Any, key: str) -> Any:
    shown = [*page.context["ahead"], *page.context["behind"]]
    (found,) = [each for each in shown if each.key == key]
    return found


def test_queue_is_counted_by_state(browser: Client, queue: Queue) -> None:
    for _ in range(3):
        queue.schedule(7_200_000)
    queue.retrying()
    queue.dead()
    queue.quarantined(b"nothing that anybody reads")
    queue.held()
    queue.running()
    queue.schedule(0)
    wait_until(
        lambda: row_of(overview(browser), queue)["due"] == 1, description="a due job"
    )

    page = overview(browser)

    row = row_of(page, queue)
    assert (row["scheduled"], row["due"]) == (3, 1)
    assert [count for _, count, _ in row["cells"]] == [1, 1, 1, 1, 1]
    tiles = {tile.label: tile.number for tile in page.context["tiles"]}
    assert tiles["Scheduled"] == "3"
    assert tiles["Due"] == "1"
    assert tiles["Dead and quarantined"] == "2"


def test_figures_of_the_last_minutes_are_shown(browser: Client, queue: Queue) -> None:
    living.measure(
        queue,
        timedelta(minutes=1),
        shop__mail=living.figures_of(1_200, failed=30, late_ms=5, took_ms=80),
    )
    living.measure(
        queue, timedelta(minutes=30), shop__mail=living.figures_of(7, late_ms=9_000)
    )

    page = overview(browser)

    row = row_of(page, queue)
    assert (row["runs"], row["failures"]) == (1_200, 30)
    for time in row["lateness"]:
        number, unit = time.split()
        assert unit == "ms"
        assert 4 <= float(number) <= 6.25
    runs = chart(page, "runs")
    assert "1,207 in all, 30 failed" in runs.summary
    assert [each[1:] for each in runs.rows] == [["1,200", "30"], ["7", "0"]]
    assert runs.bars.count("M") == 2
    assert runs.hatched.count("M") == 1
    lateness = chart(page, "lateness")
    assert len(lateness.rows) == 2
    # Two points with a gap between them make no line.
    assert [(len(line.parts), len(line.dots)) for line in lateness.lines] == [
        (0, 2),
        (0, 2),
    ]
    assert f'd="{runs.hatched}" fill="url(#failed-runs)"' in page.content.decode()


@pytest.mark.parametrize(("span", "runs"), [("hour", 5), ("day", 12), ("week", 24)])
def test_pictures_go_back_as_far_as_one_asks(
    browser: Client, queue: Queue, span: str, runs: int
) -> None:
    living.measure(queue, timedelta(days=3), a=living.figures_of(12))
    living.measure(queue, timedelta(hours=3), a=living.figures_of(7))
    living.measure(queue, a=living.figures_of(5))

    page = overview(browser, span=span)

    assert f"{runs} in all" in chart(page, "runs").summary
    assert row_of(page, queue)["runs"] == 5


def test_pictures_are_of_all_queues_or_of_one(
    browser: Client, queue: Queue, settings: Any
) -> None:
    other = Queue(queue.client, f"{queue.name}-other")
    settings.DELAYQ["QUEUES"][other.name] = {}
    conf.forget_connections(setting="DELAYQ")
    queue.schedule(90_000)
    other.schedule(90_000)
    for each, many in ((queue, 2), (other, 3)):
        living.measure(each, a=living.figures_of(many))

    both = overview(browser)
    one = overview(browser, queue=other.name)

    for page, due, runs in ((both, 2, 5), (one, 1, 3)):
        assert f"{due} due" in chart(page, "ahead-hour").summary
        assert f"{runs} in all" in chart(page, "runs").summary
    assert f'<option value="{other.name}" selected>' in one.content.decode()
    assert overview(browser, queue="nobody", span="nothing").context["chosen"] == ""


def test_what_is_coming_is_counted_by_when_it_is_due(
    browser: Client, queue: Queue
) -> None:
    for delay_s in (115, 116, 3_000, 5 * 3600 + 60, 6 * 86_400 + 60, 20 * 86_400):
        queue.schedule(delay_s * 1_000)
    queue.retrying(delay_ms=117_000)

    page = overview(browser)

    assert [row[1] for row in chart(page, "ahead-hour").rows] == ["3", "1"]
    assert [row[1] for row in chart(page, "ahead-day").rows] == ["4", "1"]
    assert [row[1] for row in chart(page, "ahead-weeks").rows] == ["5", "1"]
    assert chart(page, "ahead-hour").rows[0][0] == "in 2 min"


def test_empty_pictures_say_so(browser: Client, queue: Queue) -> None:
    page = overview(browser)

    assert "Nothing is due in this time." in content_of(page)
    assert "Nothing ran in this time." in content_of(page)
    assert PICTURES.findall(page.content.decode()) == []


def test_pictures_are_told_to_a_screen_reader_and_need_no_style_of_their_own(
    browser: Client, queue: Queue
) -> None:
    queue.schedule(90_000)
    living.measure_an_hour(queue)

    html = overview(browser).content.decode()

    pictures = PICTURES.findall(html)
    assert len(pictures) == 6
    for picture in pictures:
        (named,) = re.findall(r'role="img" aria-labelledby="([^"]+)"', picture)
        for each in named.split():
            assert re.search(rf'<(title|desc) id="{each}">\w', picture)
    assert len(re.findall("<details><summary>As a table", html)) == 6
    assert " style=" not in html
    assert "<style" not in html
    scripts = re.findall(r"<script\b[^>]*>", html)
    assert [
        each for each in scripts if " src=" not in each and "json" not in each
    ] == []
    assert len(set(re.findall(r' id="([^"]+)"', html))) == len(
        re.findall(r' id="([^"]+)"', html)
    )


def test_nothing_measured_is_said(browser: Client, queue: Queue, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "STATISTICS": 0}

    page = overview(browser)

    assert "There are no statistics: STATISTICS is 0" in content_of(page)
    assert "Lateness p50 in 5 min" not in content_of(page)


# What is wrong


def test_queue_that_nobody_serves_is_told_with_the_command(
    browser: Client, queue: Queue
) -> None:
    queue.schedule(60_000)
    alone = overview(browser)
    living.serve(queue)

    served = overview(browser)

    assert f"delayq_worker --queue {queue.name}" in told(alone)
    assert told(served) == ""
    assert row_of(served, queue)["workers"] == 1


def test_worker_of_another_version_is_told(browser: Client, queue: Queue) -> None:
    living.serve(queue, version=f"0.0.1{XSS}")

    page = overview(browser)

    assert "Worker web1:4711 runs django-delayq 0.0.1" in told(page)
    assert b"<img" not in page.content


def test_pause_is_told_with_the_command(browser: Client, queue: Queue) -> None:
    pause(queue.name, reason=XSS)

    page = overview(browser)

    assert f"delayq_resume {queue.name}" in told(page)
    assert row_of(page, queue)["is_paused"]
    assert b"<img" not in page.content


def test_frames_that_the_redisson_of_a_queue_does_not_read_are_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ["QUEUES"][queue.name] = {"REDISSON": "3.27.2"}
    conf.forget_connections(setting="DELAYQ")
    queue.offer(b"one that it reads")
    before = told(overview(browser))
    frame = pack(b"\xff" * 8, b"x" * 40, FrameFormat.DLC0)
    queue.add_member(frame, 1_999_999_999_999)

    after = told(overview(browser))

    assert "format" not in before
    assert f"Of the next 2 frames of queue '{queue.name}', 1 has a format" in after
    assert f"delayq_frames {queue.name}" in after


def test_long_insertion_list_is_told_with_the_command(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_problems, "LONG_LIST", 1)
    for _ in range(2):
        queue.schedule()

    page = overview(browser)

    assert f"delayq_frames {queue.name} --list off" in told(page)


@pytest.mark.parametrize(
    ("known", "level", "wanted"),
    [
        ({"policy": "allkeys-lru", "maxmemory": 10**9}, "error", "drops whole queues"),
        ({"used_memory": 95, "maxmemory": 100}, "warning", "uses 95 bytes of 100"),
        ({"used_memory": 89, "maxmemory": 100}, "", ""),
        ({"used_memory": 95, "maxmemory": 0}, "", ""),
        ({"skew_ms": 61_500}, "warning", "61 s ahead of this machine's clock"),
        ({"skew_ms": -3_000}, "warning", "3 s behind this machine's clock"),
        ({"skew_ms": 1_999}, "", ""),
        ({"role": "replica"}, "error", "refuses writes"),
    ],
)
def test_what_is_wrong_with_the_server_is_told(
    browser: Client,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    known: dict[str, Any],
    level: str,
    wanted: str,
) -> None:
    monkeypatch.setattr(
        "django_delayq.display.overview.ask_nodes",
        lambda client: {"": facts.Facts(**known)},
    )

    found = told(overview(browser))

    assert wanted in found
    assert found.startswith(level)
    assert bool(found) == bool(wanted)


def test_account_that_may_not_read_the_registry_sees_all_else(
    browser: Client, queue: Queue, client: Any, settings: Any
) -> None:
    queue.schedule(60_000)
    name = f"user-{queue.name}"
    client.acl_setuser(
        name,
        enabled=True,
        passwords=["+secret"],
        categories=["+@all"],
        keys=[f"*{queue.name}*", "*default*"],
        channels=["*"],
    )
    try:
        path = client.connection_pool.connection_kwargs["path"]
        settings.DELAYQ = {
            **settings.DELAYQ,
            "CONNECTION": f"unix://{name}:secret@{path}",
        }
        page = overview(browser)
        workers = browser.get(url("workers"))
    finally:
        client.acl_deluser(name)

    assert row_of(page, queue)["scheduled"] == 1
    assert row_of(page, queue)["workers"] is None
    assert "No worker serves" not in told(page)
    assert "may not read the list of workers" in content_of(workers)


# What it costs, and who may see it


def test_overview_takes_three_round_trips(
    browser: Client, queue: Queue, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ["QUEUES"] |= {f"{queue.name}-{n}": {} for n in range(20)}
    conf.forget_connections(setting="DELAYQ")
    living.serve(queue)
    overview(browser)  # loads the scripts
    sent: list[object] = []
    send = AbstractConnection.send_packed_command

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(args)
        return send(self, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", count)
    overview(browser)

    assert len(sent) == 3


def test_overview_is_given_to_programs(
    login: Callable[..., Client], queue: Queue
) -> None:
    queue.schedule(60_000)
    living.serve(queue)
    living.measure(queue, a=living.figures_of(10, failed=2))

    found = login("view").get(url("overview_data"))

    assert found["Content-Type"] == "application/json"
    (its,) = [each for each in found.json()["queues"] if each["name"] == queue.name]
    assert (its["scheduled"], its["runs"], its["failures"]) == (1, 10, 2)
    (worker,) = found.json()["workers"]
    assert (worker["host"], worker["state"]) == ("web1", "working")
    problems_told = [each["message"] for each in found.json()["problems"]]
    assert not [each for each in problems_told if queue.name in each]


@pytest.mark.parametrize("name", ["changelist", "overview_data", "workers", "tasks"])
def test_pages_are_for_those_who_may_view(
    login: Callable[..., Client], queue: Queue, name: str
) -> None:
    assert login("view").get(url(name)).status_code == 200
    assert login().get(url(name)).status_code == 403
    assert Client().get(url(name)).status_code == 302


@pytest.mark.parametrize("name", ["overview_data", "workers", "tasks"])
def test_server_that_does_not_answer_is_told(
    browser: Client, queue: Queue, settings: Any, name: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}

    page = browser.get(url(name))

    assert page.status_code == 503
    assert "The server does not answer." in content_of(page)


def test_sentinels_that_do_not_answer_are_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    url_of_sentinels = "redis+sentinel://app:hunter2@127.0.0.1:1,127.0.0.1:2/mymaster"
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": url_of_sentinels}

    page = browser.get(url("overview_data"))

    assert page.status_code == 503
    assert "No Sentinel answers." in content_of(page)
    assert "hunter2" not in content_of(page)


def test_pages_that_refresh_themselves_have_the_script(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = queue.schedule(60_000)
    live = [
        url("changelist"),
        url("workers"),
        url("tasks"),
        url("queue", queue.name),
        url("queue", queue.name) + "?state=ended",
        url("job", queue.name, token),
    ]
    still = [url("search"), url("cancel", queue.name, token), url("limits", queue.name)]

    shown = {
        page: b"admin/live.js" in browser.get(page).content for page in live + still
    }
    monkeypatch.setattr("django_delayq.admin.job_admin.JobAdmin.refresh_s", 0)

    assert shown == dict.fromkeys(live, True) | dict.fromkeys(still, False)
    assert b"live.js" not in browser.get(live[0]).content


# Pictures


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (5, 5), (6, 6), (7, 8), (11, 12), (99, 100), (101, 120), (12_345, 15_000)]
)  # fmt: skip
def test_axis_ends_at_a_round_number(most: int, top: int) -> None:
    assert charts._nice(most) == top


def test_table_of_a_picture_names_the_zone(queue: Queue, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    living.measure_an_hour(queue)
    series = queue_statistics([queue.name], minutes=60)[queue.name]

    drawn = charts.bars_of_runs("runs", "Runs", series)

    assert drawn.heads[0] == "From (Asia/Kathmandu)"


def test_bars_stay_within_the_picture(browser: Client, queue: Queue) -> None:
    living.measure_an_hour(queue)
    series = queue_statistics([queue.name], minutes=60)[queue.name]
    assert series.unit is Unit.MINUTE

    drawn = charts.bars_of_runs("runs", "Runs", series)

    found = re.findall(r"M([\d.]+) ([\d.]+)v-([\d.]+)h([\d.]+)", drawn.bars)
    # Fewer than 57 if a minute has begun since the first was measured: the oldest is left out by now.
    assert len(found) == sum(span.figures.runs > 0 for span in series.spans) > 50
    for x, base, height, width in (map(float, each) for each in found):
        assert charts.LEFT <= x <= x + width <= charts.WIDTH - charts.RIGHT + 0.1
        assert charts.TOP - 0.1 <= base - height < base <= charts.Chart.base


def test_ahead_counts_between_times(queue: Queue) -> None:
    for delay_ms in (1_000, 90_000, 90_000, 160_000):
        queue.schedule(delay_ms)
    seconds, _ = queue.client.time()
    in_a_minute_us = (seconds + 60) * 1_000_000

    call = at(in_a_minute_us, queue_reads.ahead(queue.keys, [60_000, 61_000, 120_000]))

    assert run(queue.client, call) == [2, 0, 1]
    with pytest.raises(ValueError, match="121 times are more than 120"):
        queue_reads.ahead(queue.keys, range(121))


def test_queue_with_shards_is_one_row_that_opens_its_shards(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {"default": {}, queue.name: {"SHARDS": 2}},
    }
    task = samples.add.using(queue=queue.name)
    jobs = schedule_many(task.prepare(7_200, n) for n in range(10))

    page = overview(browser)
    names = [row["queue"].name for row in page.context["rows"]]
    row = row_of(page, queue)

    assert names == ["default", queue.name]
    assert row["scheduled"] == 10
    page = browser.get(row["url"])
    rows = {row["queue"].name: row for row in page.context["rows"]}
    assert list(rows) == ["default", queue.name, *(f"{queue.name}:{n}" for n in (0, 1))]
    for n in (0, 1):
        name = f"{queue.name}:{n}"
        count = sum(job.queue == name for job in jobs)
        assert rows[name]["scheduled"] == count
        shown = browser.get(rows[name]["url"])
        assert f"{count}" in content_of(shown)
    search = dict((tab.state.value, address) for tab, _, address in row["cells"])
    assert browser.get(search["dead"]).status_code == 200
    found = browser.get(url("search"), {"queue": queue.name})
    assert len(found.context["rows"]) == 10
