"""Changing many jobs from the admin: asked before, told after, in steps, by those who may."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_delayq.admin import bulk_page, chosen
from django_delayq.admin.bulk_page import Progress
from django_delayq.admin.job_search import Filter
from django_delayq.core import queue_reads
from django_delayq.core.states import State
from django_delayq.jobs.actions import Details
from django_delayq.transport.run import run
from tests.admin.conftest import url
from tests.admin.filling import TASK, Queue
from tests.admin.test_job_admin import content_of, messages_of
from tests.servers import Server


def ids(queue: Queue, *tokens: str) -> list[str]:
    return [f"{queue.name}:{token}" for token in tokens]


def over(queue: Queue, *states: State, **more: Any) -> dict[str, str]:
    """What a form sends that means all jobs in some states."""
    return {"all": "1", "filter": Filter(queue=queue.name, states=states, **more).query}


def post(browser: Client, action: str, **data: Any) -> Any:
    """Post a form; one that says that its user is sure is first asked for."""
    sent = {"action": action, **data}
    if "sure" in data:
        asked = browser.post(url("bulk"), sent, follow=True).context
        sent |= dict(asked["fields"]) if asked and "fields" in asked else {}
        sent |= data
    return browser.post(url("bulk"), sent, follow=True)


def post_sent(browser: Client, action: str, fields: dict[str, Any], **data: Any) -> Any:
    """Post the fields of a form that was shown before."""
    sent = {"action": action, **fields, **data}
    return browser.post(url("bulk"), sent, follow=True)


@pytest.mark.parametrize(
    ("action", "more", "state"),
    [
        ("run_now", {}, State.DUE),
        ("reschedule", {"minutes": "90"}, State.SCHEDULED),
        ("reprioritize", {"priority": "7"}, State.SCHEDULED),
        ("cancel", {}, State.CANCELLED),
    ],
)
def test_ticked_jobs_are_changed_after_a_question(
    browser: Client, queue: Queue, action: str, more: dict[str, str], state: State
) -> None:
    ticked = [queue.schedule(60_000, number) for number in range(2)]
    other = queue.schedule(60_000)
    before = run(queue.client, queue_reads.inspect(queue.keys, other))

    asked = post(browser, f"{action}:ticked", job=ids(queue, *ticked))

    text = content_of(asked)
    assert "2 jobs" in text
    assert f"{TASK}(0) {queue.name}:{ticked[0]} scheduled" in text
    assert not LogEntry.objects.exists()
    done = post(browser, action, job=ids(queue, *ticked), sure="1", **more)

    assert messages_of(done)[0].startswith("2 jobs ")
    assert [queue.state(token) for token in ticked] == [state, state]
    after = run(queue.client, queue_reads.inspect(queue.keys, other))
    assert after._replace(now_ms=0) == before._replace(now_ms=0)
    flag = DELETION if action == "cancel" else CHANGE
    assert {
        (entry.action_flag, entry.object_id) for entry in LogEntry.objects.all()
    } == {(flag, f"{queue.name}:{token}") for token in ticked}


@pytest.mark.parametrize(
    ("action", "state"), [("retry", State.DUE), ("discard", State.DISCARDED)]
)
@pytest.mark.parametrize("grave", [State.DEAD, State.QUARANTINED])
def test_all_of_a_list_are_changed(
    browser: Client, queue: Queue, action: str, state: State, grave: State
) -> None:
    tokens = [
        queue.dead(number)
        if grave is State.DEAD
        else queue.quarantined(f"foreign {number}".encode())
        for number in range(30)
    ]
    waits = queue.schedule()

    asked = post(browser, f"{action}:all", **over(queue, grave))
    assert "30 jobs" in content_of(asked)
    assert "and 10 more" in content_of(asked)
    done = post(browser, action, sure="1", **over(queue, grave))

    assert messages_of(done)[0].startswith("30 jobs ")
    assert {queue.state(token) for token in tokens} == {state}
    assert queue.state(waits) is State.SCHEDULED
    (entry,) = LogEntry.objects.all()
    assert entry.object_id == f"{queue.name}:"
    before, _, after = entry.change_message.partition(" → ")
    assert before.endswith(f"state: {grave}; queue: {queue.name}.")
    assert after == messages_of(done)[0]


def test_job_that_a_worker_has_is_lost_and_told(browser: Client, queue: Queue) -> None:
    running, waits = queue.running(1), queue.schedule(60_000, 2)

    done = post(browser, "cancel", job=ids(queue, running.token, waits), sure="1")

    assert messages_of(done) == ["1 job is cancelled. 1 was left alone: 1 running."]
    assert queue.state(running.token) is State.RUNNING


def test_large_change_is_made_in_steps_that_say_how_far_they_are(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "STEP_JOBS", 100)
    tokens = [queue.schedule(60_000 + number, number) for number in range(250)]
    running = queue.running()
    states = (State.SCHEDULED, State.RUNNING)

    page = post(browser, "cancel", sure="1", **over(queue, *states))

    seen = []
    while "progress" in page.context:
        seen.append(content_of(page))
        page = browser.post(
            url("bulk"), {"progress": page.context["progress"]}, follow=True
        )
    assert "100 jobs are cancelled." in seen[0]
    assert "100 of about 251" in seen[0]
    assert "200 jobs are cancelled." in seen[1]
    assert messages_of(page) == ["250 jobs are cancelled. 1 was left alone: 1 running."]
    assert {queue.state(token) for token in tokens} == {State.CANCELLED}
    assert queue.state(running.token) is State.RUNNING
    (entry,) = LogEntry.objects.all()
    assert entry.change_message.endswith(messages_of(page)[0])


def test_jobs_of_a_filter_are_rescheduled_to_one_time_once(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "STEP_JOBS", 100)
    tokens = [queue.schedule(60_000 + number, number) for number in range(150)]
    other = queue.schedule(60_000, task="shop.tasks.other")

    page = post(
        browser,
        "reschedule",
        sure="1",
        minutes="600",
        **over(queue, State.SCHEDULED, task=TASK),
    )
    while "progress" in page.context:
        page = browser.post(
            url("bulk"), {"progress": page.context["progress"]}, follow=True
        )

    assert messages_of(page) == ["150 jobs are rescheduled."]
    times = {
        run(queue.client, queue_reads.inspect(queue.keys, token)).score_ms
        for token in tokens
    }
    assert len(times) == 1
    seen = run(queue.client, queue_reads.inspect(queue.keys, other))
    assert seen.score_ms not in times


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, "Give either a number of minutes or a time."),
        (
            {"minutes": "5", "at": "2999-01-01T00:00"},
            "Give either a number of minutes or a time.",
        ),
        ({"at": "2020-01-01T00:00"}, "This time has passed."),
        ({"minutes": "-1"}, "greater than or equal to 0"),
        ({"minutes": "nan"}, "Enter a number."),
        ({"minutes": "1" * 40}, "less than or equal to"),
        ({"at": "soon"}, "Enter a valid date/time."),
    ],
)
def test_reschedule_that_cannot_be_is_told_and_changes_nothing(
    browser: Client, queue: Queue, said: dict[str, str], told: str
) -> None:
    token = queue.schedule()
    before = run(queue.client, queue_reads.inspect(queue.keys, token)).score_ms

    page = post(browser, "reschedule", job=ids(queue, token), sure="1", **said)

    assert told in content_of(page)
    seen = run(queue.client, queue_reads.inspect(queue.keys, token))
    assert seen.score_ms == before
    assert not LogEntry.objects.exists()


def test_job_is_rescheduled_to_a_moment(browser: Client, queue: Queue) -> None:
    token = queue.schedule()
    moment = (timezone.now() + timedelta(days=3)).replace(microsecond=0)

    post(
        browser,
        "reschedule",
        job=ids(queue, token),
        sure="1",
        at=f"{timezone.localtime(moment):%Y-%m-%dT%H:%M:%S}",
    )

    seen = run(queue.client, queue_reads.inspect(queue.keys, token))
    assert seen.score_ms == moment.timestamp() * 1000


def test_reschedule_of_a_running_job_says_that_a_worker_has_it(
    browser: Client, queue: Queue
) -> None:
    job = queue.running()

    page = post(browser, "reschedule", job=ids(queue, job.token), sure="1", minutes="5")

    assert messages_of(page) == ["0 jobs are rescheduled. 1 was left alone: 1 running."]


@pytest.mark.parametrize("said", [{}, {"priority": "101"}, {"priority": "high"}])
def test_priority_that_cannot_be_changes_nothing(
    browser: Client, queue: Queue, said: dict[str, str]
) -> None:
    token = queue.schedule()

    page = post(browser, "reprioritize", job=ids(queue, token), sure="1", **said)

    assert page.context["form"].errors
    assert run(queue.client, queue_reads.inspect(queue.keys, token)).priority == 0


def test_priority_on_a_queue_that_has_none_is_told(
    browser: Client, queue: Queue, settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {queue.name: {"REDISSON": "3.16.6", "CODEC": "StringCodec"}},
    }
    token = queue.schedule()

    page = post(browser, "reprioritize", job=ids(queue, token), sure="1", priority="5")

    assert "is shared with Redisson" in messages_of(page)[0]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "No job was selected. Nothing was changed."),
        ({"job": "no id"}, "“no id” is not the ID of a job. Nothing was changed."),
        (
            {"job": "nobody:" + "x" * 22},
            f"“nobody:{'x' * 22}” is not the ID of a job. Nothing was changed.",
        ),
        (
            {"all": "1", "filter": "state=succeeded"},
            "The search could not be read; nothing was changed.",
        ),
    ],
)
def test_what_cannot_be_changed_is_told(
    browser: Client, queue: Queue, data: dict[str, str], told: str
) -> None:
    page = post(browser, "cancel", sure="1", **data)

    assert messages_of(page) == [told]
    assert not LogEntry.objects.exists()


def test_form_without_an_action_or_with_a_forged_progress_leads_nowhere(
    browser: Client, queue: Queue
) -> None:
    assert browser.post(url("bulk"), {"action": "explode"}).status_code == 404
    assert browser.post(url("bulk"), {"progress": "x:y"}).status_code == 404
    assert browser.get(url("bulk")).status_code == 405


@pytest.mark.parametrize(
    ("rights", "action", "status"),
    [
        ((), "run_now", 403),
        (("view",), "run_now", 403),
        (("view",), "cancel", 403),
        (("view", "change"), "run_now", 200),
        (("view", "change"), "reschedule", 200),
        (("view", "change"), "reprioritize", 200),
        (("view", "change"), "retry", 200),
        (("view", "change"), "cancel", 403),
        (("view", "change"), "discard", 403),
        (("view", "delete"), "cancel", 200),
        (("view", "delete"), "discard", 200),
        (("view", "delete"), "run_now", 403),
    ],
)
def test_action_needs_its_own_right(
    login: Callable[..., Client],
    queue: Queue,
    rights: tuple[str, ...],
    action: str,
    status: int,
) -> None:
    token = queue.schedule()

    response = login(*rights).post(
        url("bulk"), {"action": action, "job": ids(queue, token)}
    )

    assert response.status_code == status
    assert queue.state(token) is State.SCHEDULED


def test_lists_have_the_buttons_that_their_reader_may_use(
    login: Callable[..., Client], queue: Queue
) -> None:
    queue.schedule()
    queue.dead()

    def buttons(*rights: str, state: str = "scheduled") -> set[str]:
        page = login("view", *rights).get(url("queue", queue.name), {"state": state})
        return {action.name for action in page.context["actions"]}

    assert buttons() == set()
    assert buttons("change") == {"run_now", "reschedule", "reprioritize"}
    assert buttons("delete") == {"cancel"}
    assert buttons("change", "delete", state="dead") == {"retry", "discard"}
    assert buttons("change", "delete", state="running") == set()


def test_steps_over_a_queue_that_has_gone_from_the_settings_end(
    browser: Client, queue: Queue
) -> None:
    sealed = Progress("cancel", "queue=gone", Details()).seal(
        str(User.objects.get().pk)
    )

    assert browser.post(url("bulk"), {"progress": sealed}).status_code == 404


def test_steps_go_on_only_for_somebody_who_may(
    browser: Client,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chosen, "STEP_JOBS", 100)
    for number in range(150):
        queue.schedule(60_000 + number, number)
    page = post(browser, "cancel", sure="1", **over(queue, State.SCHEDULED))
    progress = {"progress": page.context["progress"]}

    User.objects.update(is_superuser=False)

    assert browser.post(url("bulk"), progress).status_code == 403
    assert run(queue.client, queue_reads.counts(queue.keys)).waiting == 50


#: What a form that is too old leads to.
TOO_OLD = "This form was too old, so nothing was changed. These jobs match now."


@pytest.mark.parametrize("is_all", [True, False])
def test_form_that_was_shown_long_ago_asks_again(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch, is_all: bool
) -> None:
    first = queue.schedule(60_000, 1)
    what: dict[str, Any] = (
        over(queue, State.SCHEDULED) if is_all else {"job": ids(queue, first)}
    )
    shown = dict(post(browser, "cancel", **what).context["fields"])
    later = queue.schedule(60_000, 2)

    with monkeypatch.context() as patch:
        patch.setattr(bulk_page, "FRESH_S", -1)
        again = post_sent(browser, "cancel", shown, sure="1")

    assert messages_of(again) == [TOO_OLD]
    assert ("2 jobs" if is_all else "1 job") in content_of(again)
    assert not LogEntry.objects.exists()
    assert {queue.state(first), queue.state(later)} == {State.SCHEDULED}
    fields = dict(again.context["fields"])
    done = post_sent(browser, "cancel", fields, sure="1")
    assert "cancelled" in messages_of(done)[0]
    assert queue.state(first) is State.CANCELLED


def test_form_of_one_question_is_no_answer_to_another(
    browser: Client, queue: Queue
) -> None:
    token, other = queue.schedule(60_000, 1), queue.schedule(60_000, 2)
    shown = dict(post(browser, "cancel", job=ids(queue, token)).context["fields"])

    page = post_sent(browser, "cancel", {**shown, "job": ids(queue, other)}, sure="1")

    assert "1 job" in content_of(page)
    assert queue.state(other) is State.SCHEDULED
    assert not LogEntry.objects.exists()


def test_form_that_another_user_was_shown_changes_nothing(
    browser: Client,
    login: Callable[..., Client],
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chosen, "STEP_JOBS", 100)
    for number in range(150):
        queue.schedule(60_000 + number, number)
    what = over(queue, State.SCHEDULED)
    shown = dict(post(browser, "cancel", **what).context["fields"])
    steps = post(browser, "cancel", sure="1", **what).context["progress"]
    entries = LogEntry.objects.count()
    other = login("view", "delete")

    answered = [
        post_sent(other, "cancel", shown, sure="1"),
        other.post(url("bulk"), {"progress": steps}, follow=True),
    ]

    told = "This form belongs to another user. Nothing was changed."
    assert [messages_of(each) for each in answered] == [[told], [told]]
    assert run(queue.client, queue_reads.counts(queue.keys)).waiting == 50
    assert LogEntry.objects.count() == entries


def test_step_that_was_shown_long_ago_asks_again(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "STEP_JOBS", 100)
    for number in range(150):
        queue.schedule(60_000 + number, number)
    page = post(browser, "cancel", sure="1", **over(queue, State.SCHEDULED))
    progress = {"progress": page.context["progress"]}
    later = queue.schedule(120_000)

    with monkeypatch.context() as patch:
        patch.setattr(bulk_page, "FRESH_S", -1)
        again = browser.post(url("bulk"), progress, follow=True)

    assert messages_of(again) == [TOO_OLD]
    assert "51 jobs" in content_of(again)
    assert queue.state(later) is State.SCHEDULED
    assert run(queue.client, queue_reads.counts(queue.keys)).waiting == 51


def test_server_that_goes_away_in_a_change_is_told(
    browser: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    token = queue.schedule()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}

    page = browser.post(
        url("bulk"), {"action": "cancel", "job": ids(queue, token), "sure": "1"}
    )

    assert page.status_code in (302, 503)
    shown = browser.get(url("search"), {"queue": queue.name})
    assert shown.status_code == 503
    assert "/dev/null/nobody" in shown.content.decode()


def test_server_that_takes_no_writes_is_told_in_plain_words(
    browser: Client, settings: Any, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {"default": {}}}
    queue = Queue(server.client(), "default")
    token = queue.schedule()
    server.client().replicaof("127.0.0.1", 1)

    page = post(browser, "run_now", job=ids(queue, token), sure="1")

    told = " ".join([*messages_of(page), content_of(page)])
    assert "replica" in told
    server.client().replicaof("NO", "ONE")
    assert queue.state(token) is State.SCHEDULED


@pytest.mark.parametrize(
    ("action", "state"), [("run_now", State.DUE), ("cancel", State.CANCELLED)]
)
def test_full_server_lets_jobs_be_changed(
    browser: Client,
    settings: Any,
    private_server: Callable[..., Server],
    action: str,
    state: State,
) -> None:
    server = private_server()
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {"default": {}}}
    queue = Queue(server.client(), "default")
    token = queue.schedule()
    server.client().config_set("maxmemory", 1)

    page = post(browser, action, job=ids(queue, token), sure="1")

    assert messages_of(page)[0].startswith("1 job is ")
    assert queue.state(token) is state


def test_change_of_priorities_says_which(browser: Client, queue: Queue) -> None:
    token = queue.schedule(60_000)

    page = post(browser, "reprioritize", job=ids(queue, token), sure="1", priority="7")

    assert messages_of(page) == ["1 job now has priority 7."]


def test_ticked_jobs_of_several_queues_are_each_cancelled_in_their_own(
    browser: Client, queue: Queue, settings: Any
) -> None:
    other = Queue(queue.client, f"{queue.name}-2")
    queues = {**settings.DELAYQ["QUEUES"], other.name: {}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    jobs = [(each, each.schedule(60_000)) for each in (queue, other, queue)]
    named = [f"{each.name}:{token}" for each, token in jobs]

    done = post(browser, "cancel", job=named, sure="1")

    assert messages_of(done)[0].startswith("3 jobs ")
    assert {each.state(token) for each, token in jobs} == {State.CANCELLED}
