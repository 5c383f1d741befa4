"""The admin's log as a trail: each change that the admin offers, and each that fails, says what, on what, and how it went."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.test import Client
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import MaybeChanged, delayed_task, every, store_schedule
from django_delayq.admin import bulk_page
from django_delayq.admin.job_admin import _PAGES
from django_delayq.admin.workers_page import ORDERS
from django_delayq.core.states import GRAVES, State
from django_delayq.features.pauses import pages as pause_pages
from django_delayq.features.schedules.pages import ACTIONS as SCHEDULE_ACTIONS
from django_delayq.jobs.actions import ACTIONS
from django_delayq.jobs.bulk import Changed
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_bulk import over, post
from tests.admin.test_job_admin import messages_of

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+"
#: What a form says of what no page shows.
SECRET = "s3cr3t-s3cr3t"


@delayed_task(name="admin.trail.pay", sensitive=("secret",))
def pay(order: int, secret: str = "") -> None: ...


#: What is done, by the name of what offers it; it returns the ids of the entries' objects.
Change = Callable[[Client, Queue], list[str]]
CHANGES: dict[str, tuple[Change, int, str, str]] = {}


def change(name: str, flag: int, begun: str, then: str) -> Callable[[Change], Change]:
    """Register a change, with what the log says: regular expressions of what was begun, and how it went."""

    def register(made: Change) -> Change:
        CHANGES[name] = (made, flag, begun, then)
        return made

    return register


def of_queue(queue: Queue) -> list[str]:
    return [f"{queue.name}:"]


def on_job(page: str, make: Callable[[Queue], str]) -> Change:
    def made(browser: Client, queue: Queue) -> list[str]:
        token = make(queue)
        browser.post(url(page, queue.name, token))
        return [f"{queue.name}:{token}"]

    return made


def scheduled(queue: Queue) -> str:
    return queue.schedule(60_000, 7, SECRET, task=pay.name)


def dead(queue: Queue) -> str:
    return queue.dead(7, SECRET, task=pay.name)


change("run_now", CHANGE, f"Run now. Its start time was {TIME}.", "Job .* is due now.")(
    on_job("run_now", scheduled)
)
change("retry", CHANGE, "Retry.", "Job .* is retried: it is due now.")(
    on_job("retry", dead)
)
change("cancel", DELETION, "Cancel.", "Job .* is cancelled and will not run.")(
    on_job("cancel", scheduled)
)
change("discard", DELETION, "Discard.", "Job .* is discarded for good.")(
    on_job("discard", dead)
)


def bulk(action: str, *, is_all: bool, **more: str) -> Change:
    def made(browser: Client, queue: Queue) -> list[str]:
        is_grave = ACTIONS[action].states == GRAVES
        tokens = [(dead if is_grave else scheduled)(queue) for _ in range(2)]
        if not is_all:
            # One that is left alone, as a worker was first.
            tokens.append(queue.running(7, SECRET, task=pay.name).token)
        names = [f"{queue.name}:{token}" for token in tokens]
        what: dict[str, Any] = {"job": names}
        if is_all:
            what = over(queue, State.DEAD if is_grave else State.SCHEDULED)
        post(browser, action, sure="1", **what, **more)
        return of_queue(queue) if is_all else names

    return made


for action, label, done, more in (
    ("run_now", "Run now", "due now", {}),
    ("retry", "Retry", "retried", {}),
    ("reschedule", r"Reschedule \(\+1 h 30 min\)", "rescheduled", {"minutes": "90"}),
    ("reprioritize", r"Change priority \(\+7\)", "priority 7", {"priority": "7"}),
    ("cancel", "Cancel", "cancelled", {}),
    ("discard", "Discard", "discarded", {}),
):
    flag = DELETION if ACTIONS[action].deletes else CHANGE
    before = (
        " Before: \\+0. Requested: \\+7."
        if action == "reprioritize"
        else rf"( Before: {TIME}. Requested: {TIME}.)?"
        if ACTIONS[action].moves
        else ""
    )
    change(
        f"bulk {action} ticked",
        flag,
        f"{label}.",
        rf"1 job .*{done}.{before}|0 jobs .* 1 was left alone: 1 running.",
    )(bulk(action, is_all=False, **more))
    change(
        f"bulk {action} all",
        flag,
        rf"{label}. state: \w+; queue: .*",
        rf"2 jobs .*{done}.",
    )(bulk(action, is_all=True, **more))


def on_schedule(action: str, *before: str, **more: str) -> Change:
    def made(browser: Client, queue: Queue) -> list[str]:
        store_schedule(
            "shop", pay, every(timedelta(hours=1)), queue=queue.name, args=[7, SECRET]
        )
        for each in (*before, action):
            posted = {"name": "shop", "action": each, "cron": "1 9 * * *", "tz": "UTC"}
            LogEntry.objects.all().delete()
            browser.post(url("schedules", queue.name), posted | more)
        return of_queue(queue)

    return made


for action, before, begun, then in (
    ("pause", (), "Pause schedule shop. Reason: bank", "Schedule shop is paused."),
    ("resume", ("pause",), "Resume schedule shop.", "Schedule shop is resumed."),
    ("fire", (), "Fire schedule shop.", "Schedule shop was fired: job .* is due now."),
    (
        "change",
        (),
        "Change the times of schedule shop from “Every hour” to “1 9 . . . UTC”.",
        "Schedule shop has new times: .*",
    ),
    (
        "take-back",
        ("change",),
        "Take back the times “At 09:01.*” of schedule shop.",
        "Schedule shop has the times of its definition again.",
    ),
    ("delete", (), "Delete schedule shop.", "Schedule shop is deleted."),
):
    change(f"schedule {action}", CHANGE, begun, then)(
        on_schedule(action, *before, reason="bank")
    )


def on_worker(order: str) -> Change:
    def made(browser: Client, queue: Queue) -> list[str]:
        posted = {"worker": living.serve(queue), "order": order, "sure": "1"}
        browser.post(url("workers"), posted)
        return [":worker:web1:4711"]

    return made


change("worker quiet", CHANGE, "Quiet.", "Worker .* within 5 seconds.")(
    on_worker("quiet")
)
change("worker stop", CHANGE, "Stop.", "Worker .* within 5 seconds.")(on_worker("stop"))


def posted(page: str, *sent: dict[str, str]) -> Change:
    def made(browser: Client, queue: Queue) -> list[str]:
        for each in sent:
            LogEntry.objects.all().delete()
            browser.post(url(page, queue.name), each)
        return of_queue(queue)

    return made


PAUSE = {"minutes": "5", "reason": "bank"}
LIMIT = {"limit": "", "concurrency": "2", "rate": "20/s"}
change("pause", CHANGE, "Pause for 5 minutes. Reason: bank", "Queue .* is paused.")(
    posted("pause", PAUSE)
)


@change("resume", CHANGE, "Resume.", "Queue .* is resumed.")
def _(browser: Client, queue: Queue) -> list[str]:
    posted("pause", PAUSE)(browser, queue)
    return posted("resume", {})(browser, queue)


change(
    "limits set",
    CHANGE,
    "Change the limit from “.*: any number at a time” to “.*: 2 at a time, 20/s”.",
    "The limit was changed. Workers apply it at once.",
)(posted("limits", LIMIT))
change(
    "limits clear",
    CHANGE,
    "Remove the limit “.*: 2 at a time, 20/s, set by user0”.",
    "The limit from the settings and the code applies again. .*: any number at a time",
)(posted("limits", LIMIT, {"limit": "", "clear": "1"}))


def test_every_change_of_the_admin_is_among_these() -> None:
    offered = {"run_now", "retry", "cancel", "discard", "pause", "resume"}
    offered |= {"limits set", "limits clear"}
    offered |= {
        f"bulk {name} {scope}" for name in ACTIONS for scope in ("ticked", "all")
    }
    offered |= {f"schedule {name}" for name in SCHEDULE_ACTIONS}
    offered |= {f"worker {name}" for name in ORDERS}
    pages = {name for _, _, name in _PAGES}

    assert set(CHANGES) == offered
    # Those that only show, and `schedule_again`, which tests/admin/test_timeline.py has.
    assert pages - {
        *("run_now", "retry", "schedule_again", "cancel", "discard"),
        *("pause", "resume"),
        *("limits", "bulk", "schedules", "workers"),
    } == {"search", "tasks", "overview_data", "job", "queue"}


@pytest.mark.parametrize("name", CHANGES)
def test_change_says_what_on_what_and_how_it_went(
    browser: Client, queue: Queue, name: str
) -> None:
    made, flag, begun, then = CHANGES[name]

    ids = made(browser, queue)

    entries = list(LogEntry.objects.select_related("user"))
    assert sorted(str(entry.object_id) for entry in entries) == sorted(ids)
    for entry in entries:
        said = entry.change_message
        assert re.fullmatch(f"({begun}) → ({then})", said), said
        assert (entry.action_flag, entry.user.username) == (flag, "user0")
        assert SECRET not in said + entry.object_repr


def test_change_that_breaks_off_is_not_told_as_done(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RedisConnectionError("the secret address")

    monkeypatch.setattr(pause_pages, "pause", fail)

    page = browser.post(url("pause", queue.name), {"reason": "bank"})

    assert page.status_code == 503
    assert LogEntry.objects.get().change_message == (
        "Pause until resumed. Reason: bank → Interrupted by ConnectionError. The change may or may not have been made."
    )


@pytest.mark.parametrize("is_all", [True, False])
def test_bulk_change_that_breaks_off_says_how_far_it_came(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch, is_all: bool
) -> None:
    tokens = [scheduled(queue) for _ in range(3)]
    perform = bulk_page.perform

    def fail(*args: Any) -> Any:
        """Change the jobs, and lose the reply to the last of them."""
        changed = perform(*args)
        if isinstance(changed, Changed):
            raise MaybeChanged("2 jobs are cancelled.", won=2, lost={}, unknown=[])
        return changed

    monkeypatch.setattr(bulk_page, "perform", fail)
    names = [f"{queue.name}:{token}" for token in tokens]
    what: dict[str, Any] = over(queue, State.SCHEDULED) if is_all else {"job": names}

    page = post(browser, "cancel", sure="1", **what)

    assert messages_of(page) == ["2 jobs are cancelled."]
    said = {entry.change_message for entry in LogEntry.objects.all()}
    if is_all:
        (only,) = said
        assert only.endswith("→ 2 jobs are cancelled.")
    else:
        # Each job whose change is known says so.
        assert said == {"Cancel. → 1 job is cancelled."}


def test_what_steers_a_terminal_does_not_get_into_the_log(
    browser: Client, queue: Queue
) -> None:
    browser.post(url("resume", queue.name), {"task": "a\x1b[2Jb\0"})
    browser.post(
        url("schedules", queue.name),
        {"name": "shop", "action": "fire", "reason": "\x1b[31m"},
    )
    token = queue.schedule(60_000, task="evil\x1b]0;title\x07")
    browser.post(url("run_now", queue.name, token))

    for entry in LogEntry.objects.all():
        said = f"{entry.object_id}{entry.object_repr}{entry.change_message}"
        assert said.isprintable(), said


def test_reason_cannot_look_like_an_outcome(browser: Client, queue: Queue) -> None:
    browser.post(url("pause", queue.name), {"reason": "x → Queue is resumed."})

    begun, then = LogEntry.objects.get().change_message.split(" → ")
    assert begun.endswith("Reason: x Queue is resumed.")
    assert then.endswith("is paused.")
