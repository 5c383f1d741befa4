"""The admin's pages and actions, on a real server, by the eyes of Django's test client."""

import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from django_delayq import Durable, conf, signals
from django_delayq.admin import JobAdmin
from django_delayq.clock import epoch_ms
from django_delayq.core import hold as hold_calls
from django_delayq.core import lease_ends, queue_reads
from django_delayq.core.bounds import LATEST_MS
from django_delayq.core.forward_calls import forward_of
from django_delayq.core.hold import Held, Hold
from django_delayq.core.lease_ends import Failed
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, new_token
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.health import queue_problems
from django_delayq.jobs.decorator import delayed_task, queue_handler
from django_delayq.models import Job
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from tests.admin.conftest import url
from tests.admin.filling import TASK, Queue, error

STATES = ("scheduled", "due", "running", "retrying", "held", "dead", "quarantined")

own_site = admin.AdminSite(name="backstage")
own_site.register(Job, JobAdmin)
urlpatterns = [path("admin/", admin.site.urls), path("backstage/", own_site.urls)]


def content_of(response: Any) -> str:
    """Return what a person reads in the page's main part."""
    html = response.content.decode()
    html = html[html.index('id="content"') :]
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", " ", html)))


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


# Pages


def test_queues_are_listed_with_their_counts(browser: Client, queue: Queue) -> None:
    queue.schedule(7_200_000)
    queue.running()
    queue.dead()

    response = browser.get(url("changelist"))

    row = response.context["rows"][1]
    assert row["queue"].name == queue.name
    counts = row["counts"]
    assert (counts.waiting, counts.running, counts.dead) == (1, 1, 1)
    assert row["next"].relative in ("in 2 h", "in 1 h 59 min")
    assert f'href="{url("queue", queue.name)}?state=dead"' in response.content.decode()


def test_queue_that_is_configured_and_empty_is_shown(
    browser: Client, queue: Queue
) -> None:
    for state in STATES:
        response = browser.get(url("queue", queue.name), {"state": state})

        assert response.status_code == 200
        assert "This list is empty." in content_of(response)


def test_pending_jobs_show_id_task_arguments_due_state_and_attempts(
    browser: Client, queue: Queue
) -> None:
    later = queue.schedule(7_260_000, 2, name="b")
    sooner = queue.schedule(3_660_000, 1, name="a")

    response = browser.get(url("queue", queue.name))

    rows = [row for row, _ in response.context["rows"]]
    assert [row.token for row in rows] == [sooner, later]
    text = content_of(response)
    assert re.search(
        rf'{TASK} {queue.name}:{sooner} in 1 h (0|1)? ?.* 1, name="a" scheduled 0 .*:{later} .* 2, name="b"',
        text,
    )


@pytest.mark.parametrize("state", STATES[2:])
def test_job_of_every_state_is_listed_and_shown(
    browser: Client, queue: Queue, state: str
) -> None:
    token = {
        "running": lambda: queue.running(7).token,
        "retrying": lambda: queue.retrying(7),
        "held": lambda: queue.held(7),
        "dead": lambda: queue.dead(7),
        "quarantined": lambda: queue.quarantined(b"7"),
    }[state]()

    page = browser.get(url("queue", queue.name), {"state": state})
    response = browser.get(url("job", queue.name, token))

    ((row, job_url),) = page.context["rows"]
    assert (row.token, row.state) == (token, state)
    assert job_url.startswith(url("job", queue.name, token))
    assert response.status_code == 200
    text = content_of(response)
    assert f"State: {state}" in text
    assert f"{queue.name}:{token}" in text
    if state != "running":
        assert "it broke" in content_of(page)
        kind = "" if state == "held" else "builtins.ValueError .*"
        assert re.search(f"{kind}it broke", text)


def test_attempts_are_numbered_as_they_came_though_the_oldest_have_gone(
    browser: Client, queue: Queue
) -> None:
    token = queue.schedule(0)
    for number in range(1, 6):
        job = queue.take(token)
        # Two such errors are kept.
        told = error(f"attempt {number}", "x" * 12_000, at_ms=number)
        failed = Failed(job.token, job.fence, "+0", told)
        assert run(queue.client, lease_ends.retry(queue.keys, [failed])) == []

    shown = content_of(browser.get(url("job", queue.name, token)))

    assert "attempt 5" in shown
    assert "Attempt 4" in shown
    assert "attempt 4" in shown
    assert "Attempt 3" not in shown
    assert "Attempt 1" not in shown


def test_held_job_is_cancelled_or_run_now_like_one_that_waits(
    browser: Client, queue: Queue
) -> None:
    first, second = queue.held(1), queue.held(2)

    browser.post(url("run_now", queue.name, first))
    browser.post(url("cancel", queue.name, second))

    assert queue.state(first) is State.DUE
    assert queue.state(second) is State.CANCELLED


def test_payload_beyond_the_limit_is_shown_by_its_beginning_and_never_decoded(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MAX_FOREIGN_BYTES": 100}
    whole, cut = b'"' + b"x" * 98 + b'"', b'"' + b"x" * 99 + b'"'
    first, second = queue.quarantined(whole), queue.quarantined(cut)

    pages = [browser.get(url("job", queue.name, token)) for token in (first, second)]

    assert [page.context["content"].value is None for page in pages] == [False, True]
    assert pages[1].context["content"].arguments.endswith("(101 bytes)")


def test_job_is_shown_in_full(browser: Client, queue: Queue, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    token = queue.schedule(
        7_260_000,
        [1, {"a": None}],
        unique="eorder:7",
        options={"max_attempts": 9},
        who="Zoë",
    )
    seen = run(queue.client, queue_reads.inspect(queue.keys, token))

    text = content_of(browser.get(url("job", queue.name, token)))

    assert f"Task: {TASK} Not found: This process has no task" in text
    assert "State: scheduled – Waits for its start time." in text
    assert f"+0545 – in 2 h, {seen.score_ms} ms" in text or "in 2 h 1 min" in text
    assert "0 of 9 failed" in text
    assert 'Arguments 1. [ 1, { "a": null } ] who= "Zoë"' in text
    assert "Unique key: order:7" in text
    assert f"Payload: {len(seen.payload)} bytes" in text
    assert f'"delayq":"{token}"' in text


def test_registered_task_brings_its_attempts(browser: Client, queue: Queue) -> None:
    @delayed_task(name="tests.admin.registered", max_attempts=3)
    def registered() -> None: ...

    token = queue.schedule(60_000, task="tests.admin.registered")

    text = content_of(browser.get(url("job", queue.name, token)))

    assert "Not found" not in text
    assert "0 of 3 failed" in text


def test_kills_and_expired_leases_are_told(browser: Client, queue: Queue) -> None:
    token = queue.running().token
    queue.die()
    queue.take(token)
    queue.die()
    queue.take(token, lease_ms=1)

    page = browser.get(url("queue", queue.name), {"state": "running"})
    response = browser.get(url("job", queue.name, token))

    assert "lease expired 0 + 2 killed" in content_of(page)
    # This process does not know the task, nor how often it may fail.
    assert "0 failed + 2 killed" in content_of(response)
    assert "cancel" in response.context["can"]


def test_error_and_traceback_are_shown(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    why = error(
        "it is <b>broken</b>",
        traceback="Traceback:\n  File <stdin>",
        at_ms=1_790_000_000_000,
    )
    token = queue.dead(error_text=why)

    response = browser.get(url("job", queue.name, token))

    text = content_of(response)
    assert "it is <b>broken</b> Traceback: File <stdin>" in text
    assert "2026-09-21 19:58:20.000 +0545" in text
    assert b"<b>broken</b>" not in response.content


def test_foreign_payloads_have_a_page_while_they_wait(
    browser: Client, queue: Queue
) -> None:
    queue.offer(b'{"order": 5}')
    queue.offer(b"\xff\x00\xfe", 70_000)

    page = browser.get(url("queue", queue.name))
    texts = [content_of(browser.get(job_url)) for _, job_url in page.context["rows"]]

    assert "this queue has no handler here" in texts[0]
    assert 'Value: { "order": 5 }' in texts[0]
    assert "00000000 ff 00 fe" in texts[1]


def test_foreign_payload_names_the_handler_of_its_queue(
    browser: Client, queue: Queue
) -> None:
    @queue_handler(queue.name, name="tests.admin.handler")
    def handler(value: object) -> None: ...

    queue.offer(b'{"order": 5}')

    page = browser.get(url("queue", queue.name))
    job = browser.get(page.context["rows"][0][1])

    assert "tests.admin.handler foreign payload" in content_of(page)
    assert "Foreign payloads go to tests.admin.handler." in content_of(page)
    assert "Task: tests.admin.handler – the handler of this queue" in content_of(job)


def test_foreign_payload_has_the_attempts_of_its_handler(
    browser: Client, queue: Queue
) -> None:
    @queue_handler(queue.name, max_attempts=3)
    def handler(value: object) -> None: ...

    queue.push(b'{"order": 5}')
    (job,) = queue.claim()
    token = queue.bury(job, State.DEAD)

    text = content_of(browser.get(url("job", queue.name, token)))

    assert "1 of 3 failed" in text


def test_queue_in_a_later_format_says_so(browser: Client, queue: Queue) -> None:
    said = f"Queue {queue.name!r} has format 3, but this version of django-delayq reads format 2"
    page = url("queue", queue.name)
    assert said not in content_of(browser.get(page))

    queue.client.hset(queue.keys.control, "format", 3)

    assert said in content_of(browser.get(page))


def test_job_whose_key_is_missing_is_no_foreign_payload_and_says_what_to_do(
    browser: Client, queue: Queue, settings: Any
) -> None:
    @queue_handler(queue.name)
    def handler(value: object) -> None: ...

    settings.DELAYQ = {**settings.DELAYQ, "KEYS": ["the key that is lost"]}
    lost = conf.get_keyring().ids[0]
    tokens = [queue.held_for_key(number, task="shop.remind") for number in range(2)]
    queue.held_for_key(2, reason=Reason(Kind.FORMAT, "9"))
    queue.held_for_key(3, reason=Reason(Kind.TASK, "shop.tasks.new"))
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": ["the key that is here"]}

    address, held = url("queue", queue.name), {"state": "held"}
    page = browser.get(address, held)
    text = content_of(page)
    job = content_of(browser.get(url("job", queue.name, tokens[0])))

    assert (
        f"2 jobs are held: they are signed with key {lost!r}, which this project"
        in text
    )
    assert (
        "1 job is held: it has format 9, but this version of django-delayq reads format 2"
        in text
    )
    assert "to DELAYQ['KEYS'] if that is set, else to SECRET_KEY_FALLBACKS" in text
    rows = [row for row, _ in page.context["rows"]]
    assert {row.content.task for row in rows} == {"shop.remind", TASK}
    assert not any(row.content.is_foreign for row in rows)
    assert {row.moment.relative for row in rows} == {"as long as it takes"}
    assert text.count("as it says, not verified") == len(rows) == 4
    assert "Task: shop.remind – from the payload, not verified" in job
    assert f"Not checked: It is signed with the key {lost!r}, but this project" in job
    assert "Held until: as long as it takes" in job
    assert handler.name not in job

    settings.DELAYQ = {
        **settings.DELAYQ,
        "KEYS": ["the key that is here", "the key that is lost"],
    }
    text = content_of(browser.get(address, held))
    assert "which this project does not have" not in text
    assert "not checked" not in text


def test_destination_queue_shows_what_java_transferred(
    browser: Client, queue: Queue
) -> None:
    token = queue.schedule(0, 8)
    queue.transfer()
    queue.push(b'"text"')

    page = browser.get(url("queue", queue.name), {"state": "due"})

    rows = page.context["rows"]
    assert [(row.place, row.token) for row, _ in rows] == [(1, token), (2, "")]
    assert not rows[1][1]
    assert "State: due" in content_of(browser.get(rows[0][1]))


def test_members_that_are_no_frames_and_odd_scores_are_shown(
    browser: Client, queue: Queue
) -> None:
    queue.add_member(b"no frame", 1_900_000_000_000)
    queue.add_member(pack(b"12345678", b"1", FrameFormat.DLC0), 10**17 - 1)
    queue.add_member(pack(b"12345678", b"2", FrameFormat.BC0LC0), float("inf"))
    queue.add_member(pack(b"12345678", b"3", FrameFormat.BC0LC0), -1.5)

    response = browser.get(url("queue", queue.name))

    assert response.status_code == 200
    text = content_of(response)
    assert "not a Redisson frame; quarantined when it is due" in text
    assert "after the year 9999" in text
    for _, job_url in response.context["rows"]:
        assert not job_url or browser.get(job_url).status_code in (200, 404)


def test_huge_payloads_are_cut_and_their_size_is_told(
    browser: Client, queue: Queue
) -> None:
    token = queue.schedule(60_000, "x" * 3_000_000)
    size = len(run(queue.client, queue_reads.inspect(queue.keys, token)).payload)

    page = browser.get(url("queue", queue.name))
    job = browser.get(url("job", queue.name, token))

    assert f"({size:,} bytes)" in content_of(page)
    assert f"{size:,} bytes, the first 16,384 shown" in content_of(job)
    assert len(page.content) < 40_000
    assert len(job.content) < 200_000


@pytest.mark.parametrize(
    "suffix",
    ["a:b", "ünï", "{orders}", "a/b", "..", "?x=1#y", "<b>", "%2F", "_5F", " "],
)
def test_queues_with_odd_names_have_pages(
    browser: Client, queue: Queue, settings: Any, suffix: str
) -> None:
    name = f"{queue.name}{suffix}"
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {name: {}}}
    odd = Queue(queue.client, name)
    token = odd.schedule(60_000)

    link = re.search(
        rf'href="([^"]*)"[^>]*>{re.escape(name[: len(queue.name)])}',
        browser.get(url("changelist")).content.decode(),
    )
    assert link is not None
    page = browser.get(unescape(link[1]))
    job = browser.get(page.context["rows"][0][1])
    browser.post(url("cancel", name, token))

    assert f"ID: {name}:{token}".replace("  ", " ") in content_of(job)
    assert odd.state(token) is State.CANCELLED


def test_queue_that_is_not_configured_has_no_page(
    browser: Client, queue: Queue
) -> None:
    for name in ("queue", "job", "cancel", "run_now"):
        parts = ("nobody",) if name == "queue" else ("nobody", "x" * 22)
        assert browser.post(url(name, *parts)).status_code == 404
    assert browser.get(url("queue", queue.name), {"state": "odd"}).status_code == 404


def test_job_that_is_over_says_how_it_ended(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)
    browser.post(url("cancel", queue.name, token))

    response = browser.get(url("job", queue.name, token))

    assert response.status_code == 200
    text = content_of(response)
    assert "State: cancelled – Was cancelled. ID:" in text
    assert "foreign" not in text


def test_job_that_is_gone_says_so(browser: Client, queue: Queue) -> None:
    response = browser.get(url("job", queue.name, "x" * 22))

    assert response.status_code == 404
    assert (
        "ended more than half a minute ago, was taken, or never existed"
        in content_of(response)
    )


# Paging


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("3", 3), ("0", 1), ("-5", 1), ("", 1), ("x", 1), ("1e3", 1)],
)
def test_page_number_is_read_or_the_first(
    browser: Client, queue: Queue, text: str, number: int
) -> None:
    for _ in range(110):
        queue.schedule(60_000)

    response = browser.get(url("queue", queue.name), {"page": text})

    pager = response.context["pager"]
    assert (pager.number, pager.last, pager.total) == (number, 3, 110)
    assert len(response.context["rows"]) == (10 if number == 3 else 50)


@pytest.mark.parametrize("text", ["4", "99999999999999999999", "9" * 5000])
def test_page_beyond_the_last_leads_to_the_last(
    browser: Client, queue: Queue, text: str
) -> None:
    for _ in range(60):
        queue.schedule(60_000)

    response = browser.get(url("queue", queue.name), {"page": text})

    assert response.status_code == 302
    assert response["Location"] == f"{url('queue', queue.name)}?page=2"


def test_pages_are_linked(browser: Client, queue: Queue) -> None:
    for _ in range(160):
        queue.schedule(60_000)

    response = browser.get(url("queue", queue.name), {"page": "2"})

    base = url("queue", queue.name)
    assert response.context["links"] == [
        ("« first", base),
        ("‹ previous", base),
        ("next ›", f"{base}?page=3"),
        ("last »", f"{base}?page=4"),
    ]
    assert "51–100 of about 160" in content_of(response)


def test_a_page_with_all_there_is_says_how_many(browser: Client, queue: Queue) -> None:
    for _ in range(3):
        queue.schedule(60_000)

    response = browser.get(url("queue", queue.name))

    assert "1–3 of 3" in content_of(response)


@pytest.mark.parametrize("state", ["scheduled", "due", "dead"])
def test_page_of_huge_payloads_comes_in_parts(
    browser: Client, queue: Queue, state: str
) -> None:
    for number in range(7):
        if state == "scheduled":
            queue.schedule(60_000 + number, "x" * 500_000)
        elif state == "due":
            queue.push(b"x" * 500_000)
        else:
            queue.dead("x" * 500_000)

    places, address = [], f"{url('queue', queue.name)}?state={state}"
    while True:
        response = browser.get(address)
        places += [row.place for row, _ in response.context["rows"]]
        if response.context["rest"] <= 0:
            break
        assert "The payloads are large" in content_of(response)
        address = response.context["rest_url"]

    assert places == [1, 2, 3, 4, 5, 6, 7]
    assert len(response.context["rows"]) < 7


def test_dead_letters_begin_with_the_newest(browser: Client, queue: Queue) -> None:
    first, second = queue.dead(1), queue.dead(2)
    queue.client.zadd(queue.keys.dead, {first: 1000, second: 2000})

    response = browser.get(url("queue", queue.name), {"state": "dead"})

    assert [row.token for row, _ in response.context["rows"]] == [second, first]


def test_many_dead_letters_are_warned_of_before_any_is_deleted(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ["QUEUES"][queue.name] = {"MAX_DEAD": 4}
    conf.forget_connections(setting="DELAYQ")
    for _ in range(3):
        queue.dead()
    before = content_of(browser.get(url("queue", queue.name)))
    queue.dead()

    after = content_of(browser.get(url("queue", queue.name)))

    assert "MAX_DEAD" not in before
    assert "This queue has 4 dead letters, more than 4 (MAX_DEAD)" in after


def test_limited_queue_shows_how_many_jobs_it_holds_and_warns_when_it_is_nearly_full(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ["QUEUES"][queue.name] = {"MAX_JOBS": 5}
    conf.forget_connections(setting="DELAYQ")
    for _ in range(4):
        queue.schedule()
    before = content_of(browser.get(url("queue", queue.name)))
    listed_before = content_of(browser.get(url("changelist")))
    queue.push(b"x")

    after = content_of(browser.get(url("queue", queue.name)))

    assert "Holds 4 of 5 jobs (MAX_JOBS)." in before
    assert "takes no new jobs" not in before
    assert "holds 4 of 5" in listed_before
    assert "holds 5 of 5 jobs (MAX_JOBS). When it is full, it takes no new" in after
    listed = browser.get(url("changelist"))
    assert '<div class="fault">holds 5 of 5</div>' in listed.content.decode()


def test_queue_shows_what_another_queue_does_not_get(
    browser: Client, queue: Queue
) -> None:
    keys = conf.get_settings().queue(queue.name).keys
    for age_ms in (60_000, 1_000):
        new = NewJob(new_token(), "+0", "", b"{}")
        member = forward_of("other", new, epoch_ms() - age_ms).member
        own_clients.of_thread().zadd(keys.forwards, {member: 0})

    told = f"2 jobs that follow jobs of queue {queue.name!r} have not reached queue 'other'"
    assert told in content_of(browser.get(url("queue", queue.name)))
    assert told in content_of(browser.get(url("changelist")))


def test_pause_is_shown_wherever_its_queue_is_and_on_the_jobs_it_concerns(
    browser: Client, queue: Queue
) -> None:
    job, other = queue.schedule(), queue.schedule(task="shop.tasks.other")
    addresses = {
        "list": url("changelist"),
        "queue": url("queue", queue.name),
        "job": url("job", queue.name, job),
        "other": url("job", queue.name, other),
    }

    def shown(text: str) -> set[str]:
        return {
            name
            for name, address in addresses.items()
            if text in content_of(browser.get(address))
        }

    assert shown("has been paused since") == set()
    run(queue.client, pause_calls.pause(queue.keys, task=TASK, reason="<b>bug</b>"))
    assert shown(f"ask {TASK} on queue {queue.name} has been paused since") == {
        "list",
        "queue",
        "job",
    }
    assert "<b>bug</b>" not in browser.get(addresses["list"]).content.decode()
    assert shown(f"delayq_resume {queue.name} --task {TASK}") == {
        "list",
        "queue",
        "job",
    }

    run(queue.client, pause_calls.pause(queue.keys, by="ann", reason="migration"))
    assert shown(f"ueue {queue.name} has been paused since") == set(addresses)
    assert shown(", by ann: migration") == set(addresses)


def test_held_job_of_a_paused_task_says_so(browser: Client, queue: Queue) -> None:
    token = queue.schedule(0)
    run(queue.client, pause_calls.pause(queue.keys, task=TASK))
    lease = queue.take(token)
    reason = Reason(Kind.PAUSED, TASK)
    held = Held(lease.token, lease.fence, Hold(reason, "it is paused: bug"))
    run(queue.client, hold_calls.hold(queue.keys, [held]))

    shown = content_of(browser.get(url("job", queue.name, token)))
    listed = content_of(browser.get(url("queue", queue.name) + "?state=held"))

    assert "it is paused: bug" in shown
    assert "it is paused: bug" in listed


def test_long_insertion_list_is_warned_of(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue_problems.LONG_LIST == 100_000
    monkeypatch.setattr(queue_problems, "LONG_LIST", 2)
    for _ in range(2):
        queue.schedule()
    before = content_of(browser.get(url("queue", queue.name)))
    queue.schedule()

    after = content_of(browser.get(url("queue", queue.name)))

    assert "INSERTION_LIST" not in before
    assert f"['QUEUES']['{queue.name}']['INSERTION_LIST'] to False" in after
    assert "3 in the insertion list" in content_of(browser.get(url("changelist")))


# Actions


def test_run_now_makes_a_job_due_and_is_logged(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)

    response = browser.post(url("run_now", queue.name, token), follow=True)

    assert queue.state(token) is State.DUE
    assert messages_of(response) == [f"Job {queue.name}:{token} is due now."]
    entry = LogEntry.objects.get()
    assert entry.action_flag == CHANGE
    begun, _, then = entry.change_message.partition(" → ")
    assert begun.startswith("Run now. Its start time was 2")
    assert [then] == messages_of(response)
    assert entry.object_id == f"{queue.name}:{token}"
    assert entry.object_repr == f"{TASK} ({queue.name}:{token})"
    log_link = entry.get_admin_url()
    assert log_link is not None
    shown = browser.get(log_link, follow=True)
    assert shown.context["id"] == f"{queue.name}:{token}"


def test_page_that_names_a_job_prints_its_whole_id_with_a_button_that_copies_it(
    browser: Client, queue: Queue
) -> None:
    job, dead = queue.schedule(60_000), queue.dead()
    record = EndRecord(dead, TASK, State.DEAD, 1_790_000_000_000, 1.5, 2.5, 1)
    run(queue.client, ended_calls.note_ended(queue.keys, [record], keep=100))

    for address, token in (
        (url("queue", queue.name), job),
        (f"{url('queue', queue.name)}?state=dead", dead),
        (f"{url('queue', queue.name)}?state=ended", dead),
        (f"{url('search')}?queue={queue.name}&state=scheduled", job),
        (url("job", queue.name, job), job),
    ):
        page = browser.get(address).content.decode()
        shown = f'<span class="id quiet">{queue.name}:{token}</span>'
        assert f'{shown} <button type="button" class="delayq-copy"' in page, address
        assert f'aria-label="Copy the ID {queue.name}:{token}"' in page, address


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
def test_retry_gives_a_buried_job_all_its_attempts(
    browser: Client, queue: Queue, state: State
) -> None:
    token = queue.dead() if state is State.DEAD else queue.quarantined(b"1")

    response = browser.post(url("retry", queue.name, token), follow=True)

    assert messages_of(response) == [
        f"Job {queue.name}:{token} is retried: it is due now."
    ]
    assert queue.take(token).attempts == 0
    (told,) = messages_of(response)
    assert LogEntry.objects.get().change_message == f"Retry. → {told}"


@pytest.mark.parametrize(
    ("state", "where"),
    [(State.DEAD, "is a dead letter"), (State.QUARANTINED, "is in quarantine")],
)
def test_run_now_leaves_a_buried_job_to_retry(
    browser: Client, queue: Queue, state: State, where: str
) -> None:
    token = queue.dead() if state is State.DEAD else queue.quarantined(b"1")

    response = browser.post(url("run_now", queue.name, token), follow=True)

    assert messages_of(response) == [
        f"Job {queue.name}:{token} {where} by now: retry or discard it instead."
    ]
    assert queue.state(token) is state


def test_retry_leaves_a_job_that_waits_alone(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)

    response = browser.post(url("retry", queue.name, token), follow=True)

    assert messages_of(response) == [
        f"Job {queue.name}:{token} is left alone: it is scheduled; use Run now."
    ]
    assert queue.state(token) is State.SCHEDULED


def test_run_now_tells_that_a_worker_was_first(browser: Client, queue: Queue) -> None:
    token = queue.running().token

    response = browser.post(url("run_now", queue.name, token), follow=True)

    text = f"Job {queue.name}:{token} is already running: a worker took it first."
    assert messages_of(response) == [text]
    assert LogEntry.objects.get().change_message == f"Run now. → {text}"


def test_cancel_asks_first(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000, "argument")

    response = browser.get(url("cancel", queue.name, token))

    assert queue.state(token) is State.SCHEDULED
    text = content_of(response)
    assert "Are you sure?" in text
    assert "argument" in text


def test_cancel_ends_a_job_and_is_logged(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)

    response = browser.post(url("cancel", queue.name, token), follow=True)

    assert queue.state(token) is State.CANCELLED
    assert messages_of(response) == [
        f"Job {queue.name}:{token} is cancelled and will not run."
    ]
    entry = LogEntry.objects.get()
    assert entry.action_flag == DELETION
    assert entry.change_message == f"Cancel. → {messages_of(response)[0]}"


def test_cancel_is_told_as_a_signal(browser: Client, queue: Queue) -> None:
    told: list[tuple[str, State, str]] = []

    def hear(job: Any, reason: str, **named: Any) -> None:
        told.append((job.id, job.state, reason))

    token = queue.schedule(60_000)
    signals.job_cancelled.connect(hear)
    try:
        browser.post(url("cancel", queue.name, token))
    finally:
        signals.job_cancelled.disconnect(hear)

    job_id = f"{queue.name}:{token}"
    assert told == [(job_id, State.CANCELLED, "by a call of cancel()")]


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("running", "is already running: a worker took it first."),
        ("dead", "is a dead letter by now: retry or discard it instead."),
        ("missing", "no longer exists: it has ended, or was cancelled or taken."),
        ("succeeded", "has already succeeded."),
    ],
)
def test_cancel_tells_which_side_won(
    browser: Client, queue: Queue, ending: str, text: str
) -> None:
    token = "x" * 22
    if ending == "dead":
        token = queue.dead()
    elif ending != "missing":
        job = queue.running()
        token = job.token
        if ending == "succeeded":
            done = lease_ends.Done(job.token, job.fence)
            run(queue.client, lease_ends.acknowledge(queue.keys, [done]))

    response = browser.post(url("cancel", queue.name, token), follow=True)

    told = f"Job {queue.name}:{token} {text}"
    assert messages_of(response) == [told]
    assert LogEntry.objects.get().change_message == f"Cancel. → {told}"


def test_cancel_of_a_running_job_is_refused_before_it_asks(
    browser: Client, queue: Queue
) -> None:
    token = queue.running().token

    response = browser.get(url("cancel", queue.name, token), follow=True)

    assert response.redirect_chain[0][0] == url("job", queue.name, token)
    assert "is already running" in messages_of(response)[0]


@pytest.mark.parametrize("action", ["run_now", "cancel"])
def test_job_deep_in_the_destination_queue_gets_a_note(
    browser: Client, queue: Queue, action: str
) -> None:
    token = queue.schedule(0)
    queue.push(*[b"1"] * 1050)
    queue.transfer()

    response = browser.post(url(action, queue.name, token), follow=True)

    assert queue.state(token) is State.UNKNOWN
    assert "too long to search, or Java took it." in messages_of(response)[0]
    assert queue.client.hexists(queue.keys.notes, token)
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize("action", ["run_now", "retry", "cancel", "discard"])
def test_change_of_a_job_is_as_durable_as_its_queue_asks_for_or_says_so(
    browser: Client, queue: Queue, settings: Any, action: str
) -> None:
    durable = Durable(replicas=1, timeout=0.01)
    queues = {queue.name: {"DURABLE": durable}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    is_grave = action in ("retry", "discard")
    token = queue.dead() if is_grave else queue.schedule(60_000)
    before = queue.state(token)

    (told,) = messages_of(browser.post(url(action, queue.name, token), follow=True))

    assert queue.state(token) is not before
    assert "of 1 replicas have acknowledged it" in told
    assert LogEntry.objects.get().change_message.endswith(f" → {told}")


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
def test_discard_asks_and_deletes_for_good(
    browser: Client, queue: Queue, state: State
) -> None:
    token = queue.dead() if state is State.DEAD else queue.quarantined(b"1")

    question = browser.get(url("discard", queue.name, token))
    assert queue.state(token) is state
    response = browser.post(url("discard", queue.name, token), follow=True)

    assert "Discard this job for good?" in content_of(question)
    assert queue.state(token) is State.DISCARDED
    assert messages_of(response) == [f"Job {queue.name}:{token} is discarded for good."]
    (told,) = messages_of(response)
    assert LogEntry.objects.get().change_message == f"Discard. → {told}"


def test_discard_of_a_job_that_was_retried_tells_so(
    browser: Client, queue: Queue
) -> None:
    token = queue.schedule(60_000)

    response = browser.post(url("discard", queue.name, token), follow=True)

    assert queue.state(token) is State.SCHEDULED
    assert messages_of(response) == [
        f"Job {queue.name}:{token} is left alone: it is scheduled; use Cancel."
    ]


@pytest.mark.parametrize("action", ["run_now", "retry", "cancel", "discard"])
def test_action_leads_back_to_where_one_came_from(
    browser: Client, queue: Queue, action: str
) -> None:
    here = f"{url('queue', queue.name)}?state=retrying&page=3"
    is_grave = action in ("retry", "discard")
    token = queue.dead() if is_grave else queue.schedule(60_000)

    response = browser.post(url(action, queue.name, token), {"next": here})

    assert response["Location"] == here


@pytest.mark.parametrize(
    "next_", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\x"]
)
def test_action_does_not_lead_to_another_site(
    browser: Client, queue: Queue, next_: str
) -> None:
    token = queue.schedule(60_000)

    shown = browser.get(url("job", queue.name, token), {"next": next_})
    response = browser.post(url("cancel", queue.name, token), {"next": next_})

    assert shown.context["back"] == url("queue", queue.name)
    assert response["Location"] == url("queue", queue.name)


# Permissions


@pytest.mark.parametrize("action", ["run_now", "retry", "schedule_again"])
def test_change_takes_a_post_only(browser: Client, queue: Queue, action: str) -> None:
    token = queue.schedule(60_000)

    assert browser.get(url(action, queue.name, token)).status_code == 405
    assert queue.state(token) is State.SCHEDULED


@pytest.mark.parametrize("action", ["run_now", "retry", "cancel", "discard"])
def test_actions_need_the_csrf_token(
    login: Callable[..., Client], queue: Queue, action: str
) -> None:
    browser = login(is_superuser=True, enforce_csrf_checks=True)
    is_grave = action in ("retry", "discard")
    token = queue.dead() if is_grave else queue.schedule(60_000)
    state = queue.state(token)

    response = browser.post(url(action, queue.name, token))

    assert response.status_code == 403
    assert queue.state(token) is state


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [
        ((), set()),
        (("view",), {"see"}),
        (("change",), {"see", "run_now", "retry"}),
        (("delete",), set()),
        (("view", "delete"), {"see", "cancel", "discard"}),
        (
            ("view", "change", "delete"),
            {"see", "run_now", "retry", "cancel", "discard"},
        ),
    ],
)
def test_rights_decide(
    login: Callable[..., Client],
    queue: Queue,
    rights: tuple[str, ...],
    allowed: set[str],
) -> None:
    browser = login(*rights)
    # A job each: one that was made due changes its state by itself, a millisecond later.
    jobs = {
        "run_now": queue.schedule(60_000),
        "retry": queue.dead(),
        "cancel": queue.schedule(60_000),
        "discard": queue.dead(),
    }
    seen = {
        url("changelist"),
        url("queue", queue.name),
        url("job", queue.name, jobs["cancel"]),
    }

    done = set()
    if all(browser.get(page).status_code == 200 for page in seen):
        done.add("see")
    for action, token in jobs.items():
        state = queue.state(token)
        response = browser.post(url(action, queue.name, token))
        assert response.status_code in (302, 403)
        if response.status_code == 302:
            done.add(action)
        else:
            assert queue.state(token) is state
            assert browser.get(url(action, queue.name, token)).status_code == 403

    assert done == allowed


def test_buttons_are_those_that_one_may_press(
    login: Callable[..., Client], queue: Queue
) -> None:
    waiting, dead = queue.schedule(60_000), queue.dead()
    viewer, everyone = login("view"), login("view", "change", "delete")

    for token in (waiting, dead):
        assert (
            b'class="submit-row"'
            not in viewer.get(url("job", queue.name, token)).content
        )
    assert b"Run now" in everyone.get(url("job", queue.name, waiting)).content
    assert b"Cancel this job" in everyone.get(url("job", queue.name, waiting)).content
    assert b"Retry" in everyone.get(url("job", queue.name, dead)).content
    assert b"Discard" in everyone.get(url("job", queue.name, dead)).content


def test_visitors_are_asked_to_log_in(queue: Queue, db: None) -> None:
    for page in (url("changelist"), url("queue", queue.name)):
        response = Client().get(page)
        assert response.status_code == 302
        assert response["Location"].startswith(reverse("admin:login"))


def test_sidebar_shows_the_pages_to_who_may_see_them(
    login: Callable[..., Client], queue: Queue
) -> None:
    assert b"Queues and jobs" in login("view").get("/admin/").content
    assert b"Queues and jobs" not in login().get("/admin/").content


def test_nothing_can_be_added(browser: Client, queue: Queue) -> None:
    assert b"/django_delayq/job/add/" not in browser.get("/admin/").content
    assert browser.get("/admin/django_delayq/job/add/").status_code == 404


# Trouble


def test_server_that_does_not_answer_is_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}

    for page in (
        url("changelist"),
        url("queue", queue.name),
        url("job", queue.name, "x" * 22),
        url("cancel", queue.name, "x" * 22),
    ):
        response = browser.get(page)
        assert response.status_code == 503
        text = content_of(response)
        assert "The server does not answer." in text
        assert "/dev/null/nobody" in text
    assert browser.post(url("run_now", queue.name, "x" * 22)).status_code == 503


def test_wrong_settings_are_told(browser: Client, queue: Queue, settings: Any) -> None:
    settings.DELAYQ = {"CONNECTIONS": "redis://localhost"}

    response = browser.get(url("changelist"))

    assert response.status_code == 503
    assert "unknown key 'CONNECTIONS'" in content_of(response)


def test_missing_connection_is_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {"TEST": "connection"}

    response = browser.get(url("changelist"))

    assert response.status_code == 503
    assert "DELAYQ['CONNECTION'] is not set" in content_of(response)


def test_missing_password_is_told(
    browser: Client, queue: Queue, settings: Any, private_server: Callable[..., Any]
) -> None:
    server = private_server(requirepass="secret")
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}

    response = browser.get(url("changelist"))

    assert response.status_code == 503
    text = content_of(response)
    # Older versions of redis-py do not ask before the first command.
    assert "requires a password, and got none" in text or "ask for a password" in text
    assert "secret" not in text


def test_one_queue_in_trouble_does_not_hide_the_others(
    browser: Client, queue: Queue, settings: Any
) -> None:
    other = f"{queue.name}-other"
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue.name: {}, other: {}}}
    queue.client.set(queue.keys.queue.timeout_set, "not ours")
    Queue(queue.client, other).schedule(60_000)

    page = browser.get(url("changelist"))
    response = browser.get(url("queue", queue.name))

    assert page.status_code == 200
    assert "Something else uses a key of this queue." in content_of(page)
    assert page.context["rows"][1]["counts"].waiting == 1
    assert response.status_code == 503
    assert "WRONGTYPE" in content_of(response)


# The model


def test_no_page_asks_the_database_for_jobs(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)

    with CaptureQueriesContext(
        connection,
    ) as queries:
        browser.get("/admin/")
        browser.get(url("changelist"))
        browser.get(url("queue", queue.name))
        browser.post(url("run_now", queue.name, token), follow=True)

    assert queries.captured_queries
    assert not [q for q in queries.captured_queries if "delayq_job" in q["sql"]]


def test_model_is_empty_without_a_table(
    db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from django.core.management import call_command

    assert "django_delayq_job" not in connection.introspection.table_names()
    with CaptureQueriesContext(connection) as queries:
        assert list(Job.objects.all()) == []
        assert Job._base_manager.count() == 0
        call_command("dumpdata", "django_delayq", "--all")
    assert queries.captured_queries == []
    assert capsys.readouterr().out.strip() == "[]"


def test_no_migration_is_missing(db: None) -> None:
    from django.core.management import call_command

    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_migrate_makes_four_permissions(db: None) -> None:
    from django.contrib.auth.models import Permission

    ours = Permission.objects.filter(content_type__app_label="django_delayq")
    assert sorted(ours.values_list("codename", "name")) == [
        ("change_job", "Can change job"),
        ("delete_job", "Can delete job"),
        ("view_encrypted_job", "Can view what is encrypted of a job"),
        ("view_job", "Can view job"),
    ]


# Sites


@pytest.mark.urls("tests.admin.test_job_admin")
def test_pages_work_on_a_site_of_ones_own(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)
    dead = queue.dead()

    index = browser.get(url("changelist", site="backstage"))
    page = browser.get(url("queue", queue.name, site="backstage"))
    job = browser.get(url("job", queue.name, token, site="backstage"))
    asked = browser.get(url("discard", queue.name, dead, site="backstage"))
    done = browser.post(url("cancel", queue.name, token, site="backstage"))

    for response in (index, page, job, asked):
        assert response.status_code == 200
        assert b"/backstage/django_delayq/job/" in response.content
        assert b'"/admin/' not in response.content
    assert done["Location"].startswith("/backstage/")


def test_pages_keep_to_a_strict_content_security_policy(
    browser: Client, queue: Queue, settings: Any
) -> None:
    csp = pytest.importorskip("django.utils.csp", reason="came with Django 6.0").CSP
    settings.MIDDLEWARE = [
        "django.middleware.csp.ContentSecurityPolicyMiddleware",
        *settings.MIDDLEWARE,
    ]
    settings.SECURE_CSP = {"default-src": [csp.NONCE]}
    options = {**settings.TEMPLATES[0]["OPTIONS"]}
    options["context_processors"] = [
        *options["context_processors"],
        "django.template.context_processors.csp",
    ]
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "OPTIONS": options}]
    token = queue.dead(error_text=error("x", traceback="y"))

    for page in (
        url("changelist"),
        url("queue", queue.name),
        url("job", queue.name, token),
        url("discard", queue.name, token),
    ):
        response = browser.get(page)
        html = response.content.decode()
        nonce = re.search("'nonce-([^']+)'", response["Content-Security-Policy"])
        assert nonce is not None
        assert html.count(f'nonce="{nonce[1]}"') >= 3
        assert " style=" not in html
        assert re.search("<style(?! nonce=)", html) is None


def test_nothing_breaks_where_the_admin_is_not_installed(tmp_path: Path) -> None:
    code = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_delayq"],
    SECRET_KEY="of this test alone",
    DELAYQ={"CONNECTION": "redis://localhost"},
)
django.setup()
from django.core.management import call_command
call_command("check")
import sys
assert "django_delayq.admin" not in sys.modules
assert "django.contrib.admin" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_has_ended_is_listed_with_the_newest_first(
    browser: Client, queue: Queue
) -> None:
    ends = [
        EndRecord(
            f"{n:022}", TASK, State.SUCCEEDED, 1_700_000_000_000 + n, 1.5, 20.5, 1
        )
        for n in range(60)
    ]
    dead = EndRecord(
        "d" * 22, TASK, State.DEAD, 1_700_000_001_000, 3, 4, 5, "Wrong: <b>x</b>"
    )
    run(queue.client, ended_calls.note_ended(queue.keys, [*ends, dead], keep=100))

    response = browser.get(url("queue", queue.name), {"state": "ended"})

    html = response.content.decode()
    assert [row[0].token for row in response.context["rows"]][:2] == [
        "d" * 22,
        f"{59:022}",
    ]
    assert f'href="{url("job", queue.name, "d" * 22)}' in html
    assert "<b>x</b>" not in html
    assert re.search(r"dead 3.0 4.0 5 Wrong: <b>x</b>", content_of(response))
    assert f"{59:022} succeeded 1.5 20.5 1 -" in content_of(response)
    assert "page 1 of 2" in content_of(response)
    assert (
        url("queue", queue.name) + "?state=ended"
        in browser.get(url("queue", queue.name)).content.decode()
    )


def test_page_of_the_ended_that_is_none_leads_to_the_last(
    browser: Client, queue: Queue
) -> None:
    response = browser.get(url("queue", queue.name), {"state": "ended", "page": "7"})

    assert response.url == url("queue", queue.name) + "?state=ended"
    text = content_of(browser.get(response.url))
    assert "This list is empty." in text
    assert "up to 1,000 (KEEP_ENDED)" in text


def test_what_nobody_of_us_wrote_among_the_ended_breaks_no_page(
    browser: Client, queue: Queue
) -> None:
    for odd in (
        EndRecord("", TASK, State.DEAD, 0),
        EndRecord("t", "", State.EXPIRED, LATEST_MS, float("inf"), float("nan")),
    ):
        run(queue.client, ended_calls.note_ended(queue.keys, [odd], keep=100))
    queue.client.rpush(queue.keys.last_ended, b"\xc1")

    assert browser.get(url("queue", queue.name), {"state": "ended"}).status_code == 200


def test_queue_that_remembers_nothing_says_so(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "KEEP_ENDED": 0}

    response = browser.get(url("queue", queue.name), {"state": "ended"})

    assert "does not keep ended jobs" in content_of(response)
