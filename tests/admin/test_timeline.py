"""The page of one job: its arguments by name, its life, and what is left of it after its end."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import translation
from django.utils.translation import gettext

from django_delayq import delayed_task, get_job, schedule
from django_delayq.clock import epoch_ms
from django_delayq.core import lease_ends, queue_reads
from django_delayq.core.lease_ends import Done, Failed
from django_delayq.core.progress import (
    JobProgress,
    StoredProgress,
    encode,
    note_progress,
)
from django_delayq.core.states import State
from django_delayq.core.worker_registry import (
    RegistryKeys,
    WorkerInfo,
    register,
    unregister,
)
from django_delayq.display import timeline
from django_delayq.display.attempts import Failure
from django_delayq.display.timeline import Stretch, stretches_of
from django_delayq.jobs import stored_results
from django_delayq.jobs.envelope import Envelope, Follow, Follower
from django_delayq.transport.run import run
from tests.admin.conftest import url
from tests.admin.filling import OWNER, Queue, error
from tests.admin.test_job_admin import content_of, messages_of
from tests.polling import wait_until

LIBRARY = (
    '  File "/usr/lib/python3.12/json/__init__.py", line 3, in loads\n    fail()\n'
)
INSTALLED = r'  File "C:\venv\Lib\site-packages\shop\x.py", line 3, in f' + "\n"
OWN = '  File "/srv/shop/tasks.py", line 3, in send\n    loads(text)\n    ^^^^^^^^^^^\n'


@delayed_task(name="admin.timeline.refund", keep_result=60, sensitive=("secret",))
def refund(order_id: int, *items: str, secret: str = "", **more: Any) -> str:
    return f"refunded {order_id}"


def page_of(browser: Client, queue: Queue, token: str) -> str:
    return content_of(browser.get(url("job", queue.name, token)))


def test_task_is_the_title_and_arguments_have_names(
    browser: Client, queue: Queue
) -> None:
    token = queue.schedule(
        60_000, 7, "a", "b", task=refund.name, secret="s3cret", other=None
    )

    response = browser.get(url("job", queue.name, token))

    assert response.context["title"] == refund.name
    assert 'Arguments order_id= 7 2. "a" 3. "b" secret= *** other= null' in content_of(
        response
    )


def test_payload_with_a_sensitive_argument_is_not_shown(
    browser: Client, queue: Queue
) -> None:
    small = queue.schedule(60_000, 7, task=refund.name, secret="s3cret")
    large = queue.schedule(60_000, 7, task=refund.name, secret="s3cret" * 20_000)

    for address in (
        url("job", queue.name, small),
        url("job", queue.name, large),
        url("queue", queue.name),
        url("cancel", queue.name, small),
    ):
        page = browser.get(address)
        assert page.status_code == 200
        assert b"s3cret" not in page.content
        assert "***" in content_of(page)
    assert "not shown, because some arguments are marked" in page_of(
        browser, queue, small
    )


def test_payload_with_a_sensitive_argument_of_a_job_that_follows_is_not_shown(
    browser: Client, queue: Queue
) -> None:
    refunded = Envelope(refund.name, [7], {"secret": "s3cret"})
    follow = Follow([Follower("F" * 22, queue.name, "+0", refunded)])
    small = queue.schedule_call(Envelope("shop.tasks.send", [1], follow=follow))
    # A list shows the beginning of a payload that it does not read, and here that is the job that follows.
    large = Envelope("shop.tasks.send", headers={"x": "y" * 20_000}, follow=follow)
    queue.schedule_call(large)

    for address in (
        url("job", queue.name, small),
        url("cancel", queue.name, small),
        url("queue", queue.name),
    ):
        page = browser.get(address)
        assert page.status_code == 200
        assert b"s3cret" not in page.content
    assert "not shown, because some arguments are marked" in page_of(
        browser, queue, small
    )


@pytest.mark.parametrize("harm", ["signature", "key", "end", "body"])
def test_payload_that_cannot_be_trusted_keeps_what_is_sensitive(
    browser: Client, queue: Queue, harm: str
) -> None:
    good = queue.payload("T" * 22, refund.name, 7, secret="s3cret")
    at = good.index(b'"mac":"') + len('"mac":"')
    payload = {
        "signature": good[: at + 20] + b"______" + good[at + 26 :],
        "key": good[: at + 1] + b"____" + good[at + 5 :],
        "end": good[:-3],
        "body": good.replace(b'\\"args\\":[7]', b'\\"args\\":7'),
    }[harm]
    assert payload != good
    token = queue.quarantined(payload)

    for address in (
        url("job", queue.name, token),
        url("discard", queue.name, token),
        f"{url('queue', queue.name)}?state=quarantined",
    ):
        page = browser.get(address)
        assert page.status_code == 200
        assert b"s3cret" not in page.content
    assert "***" in content_of(page)
    # Nor can it be guessed.
    assert not browser.get(url("search"), {"q": "s3cre"}).context["rows"]


def test_life_is_told_in_the_order_of_time(browser: Client, queue: Queue) -> None:
    token, now_ms = queue.schedule(0, 7, task=refund.name), epoch_ms()
    for number in (1, 2):
        job = queue.take(token)
        told = stored_results.error_text(
            f"broke {number}",
            kind="failed",
            traceback="Traceback (most recent call last):\n" + OWN,
            at_ms=now_ms + number * 1000,
            began_ms=now_ms,
            worker="web-1/4711",
        )
        delay = "+0" if number == 1 else "+600000"
        failed = Failed(job.token, job.fence, delay, told)
        assert run(queue.client, lease_ends.retry(queue.keys, [failed])) == []

    events = browser.get(url("job", queue.name, token)).context["events"]

    assert [event.label for event in events] == [
        "First due",
        "Attempt 1",
        "Attempt 2",
        "Next attempt",
    ]
    assert events[1].facts == ["ran for 1.000 s", "worker web-1/4711", "failed"]
    assert [event.error for event in events] == ["", "broke 1", "broke 2", ""]
    assert [event.is_open for event in events] == [False, False, False, True]


@pytest.mark.parametrize(
    ("kind", "german", "chinese"),
    [
        ("failed", "fehlgeschlagen", "失败"),
        ("killed", "Worker-Tod", "worker 死亡"),
        ("expired", "abgelaufen", "已过期"),
        # A later version may have written it.
        ("tired", "tired", "tired"),
    ],
)
def test_the_end_of_an_attempt_is_said_in_the_readers_language(
    kind: str, german: str, chinese: str
) -> None:
    failure = Failure(message="", kind=kind, traceback="", at=None)
    for language, text in (("de", german), ("zh-hans", chinese), ("en", kind)):
        with translation.override(language):
            assert timeline._attempt(1, failure).facts == [text]


def test_page_of_a_job_whose_task_is_unknown_guesses_no_number_of_attempts(
    browser: Client, queue: Queue
) -> None:
    page = content_of(browser.get(url("job", queue.name, queue.held(7))))

    assert "0 failed" in page
    assert "of 10 failed" not in page
    assert "ms; then it goes to quarantine" in page


def test_held_job_says_what_becomes_of_it_in_the_readers_language(
    queue: Queue,
) -> None:
    seen = run(queue.client, queue_reads.inspect(queue.keys, queue.held(7)))

    with translation.override("zh-hans"):
        (event,) = timeline._now(seen, "held", "", "")

    assert event.facts == ["随后移入隔离区"]


def test_banner_is_said_in_the_readers_language() -> None:
    with translation.override("de"):
        banner = gettext("django-delayq {version} on {server}")
        shown = banner.format(version="1.0", server=gettext("the embedded server"))

    assert shown == "django-delayq 1.0, Server: eingebetteter Server"


def test_dead_letter_that_was_retried_is_due_again_after_its_first_attempt(
    browser: Client, queue: Queue
) -> None:
    token = queue.dead(7, error_text=error("broke 1"))
    get_job(f"{queue.name}:{token}").retry()
    queue.bury(queue.take(token), State.DEAD, error("broke 2"))

    events = browser.get(url("job", queue.name, token)).context["events"]

    assert [event.label for event in events] == [
        "Attempt 1",
        "Due again",
        "Attempt 2",
        "Dead since",
    ]
    assert [event.error for event in events] == ["broke 1", "", "broke 2", ""]
    moments = [event.moment.ms for event in events if event.moment is not None]
    assert moments == sorted(moments)


def test_retry_that_was_moved_is_first_due_at_no_later_moment(
    browser: Client, queue: Queue
) -> None:
    token = queue.retrying(7)
    get_job(f"{queue.name}:{token}").reschedule(3600)

    events = browser.get(url("job", queue.name, token)).context["events"]

    assert [event.label for event in events] == ["Attempt 1", "Next attempt"]


def test_reason_of_a_job_that_is_held_is_no_attempt(
    browser: Client, queue: Queue
) -> None:
    token = queue.held(7)

    events = browser.get(url("job", queue.name, token)).context["events"]

    assert [event.label for event in events] == ["First due", "Held until"]
    assert events[-1].error == "it broke"


def test_dead_letter_ends_its_life_and_can_be_retried(
    browser: Client, queue: Queue
) -> None:
    token = queue.dead(7, error_text=error("no route"))

    response = browser.get(url("job", queue.name, token))

    events = response.context["events"]
    assert [event.label for event in events][-2:] == ["Attempt 1", "Dead since"]
    assert not events[-1].is_open
    assert b'name="retry">Retry' in response.content
    assert b'name="run_now"' not in response.content


@pytest.mark.parametrize(
    ("options", "dead", "foreign"),
    [
        (
            {},
            "Used all its attempts. It is kept until it is retried or discarded, and for 180 d at most (DEAD_TTL).",
            "and for 30 d at most (QUARANTINE_TTL).",
        ),
        (
            {"DEAD_TTL": None, "QUARANTINE_TTL": 7_200},
            "Used all its attempts. It is kept until it is retried or discarded.",
            "and for 2 h at most (QUARANTINE_TTL).",
        ),
    ],
)
def test_job_that_was_given_up_says_how_long_it_is_kept(
    browser: Client,
    queue: Queue,
    settings: Any,
    options: dict[str, Any],
    dead: str,
    foreign: str,
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue.name: options}}

    page = browser.get(url("job", queue.name, queue.dead(7)))
    assert dead in content_of(page)
    assert page.context["events"][-1].note == dead
    page = browser.get(url("job", queue.name, queue.quarantined(b"a word of Java")))
    assert page.context["events"][-1].note.endswith(foreign)


def test_running_job_says_since_when_and_by_whom(browser: Client, queue: Queue) -> None:
    token = queue.running(7).token

    (*_, event) = browser.get(url("job", queue.name, token)).context["events"]

    assert event.label == "Runs since"
    assert event.facts[0] == "worker 4f574e45522d3031"
    assert event.facts[1].startswith("lease ends in ")
    info = WorkerInfo("web-1", 4711)
    run(queue.client, register(RegistryKeys.of(), OWNER.hex(), info))
    (*_, event) = browser.get(url("job", queue.name, token)).context["events"]
    run(queue.client, unregister(RegistryKeys.of(), OWNER.hex()))
    assert event.facts[0] == "worker web-1:4711"


@pytest.mark.parametrize(
    ("told", "words", "percent"),
    [
        (StoredProgress(40, 200, "pictures"), "40 of 200, 20 %", 20),
        (StoredProgress(1234.5, None, "rows"), "1,234.5", None),
        (StoredProgress(9, 3), "9 of 3, 100 %", 100),
        (StoredProgress(0, 0), "0", None),
    ],
)
def test_running_job_says_how_far_it_is(
    browser: Client,
    queue: Queue,
    told: StoredProgress,
    words: str,
    percent: int | None,
) -> None:
    job = queue.running(7)
    noted = JobProgress(job.token, job.fence, encode(told))
    run(queue.client, note_progress(queue.keys, [noted]))

    response = browser.get(url("job", queue.name, job.token))

    shown = response.context["progress"]
    assert (shown.words, shown.percent, shown.text) == (words, percent, told.text)
    assert (b"<progress" in response.content) is (percent is not None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("no traceback", [Stretch("no traceback")]),
        (
            "Traceback:\n" + OWN + LIBRARY + LIBRARY + OWN + "Error: x\n",
            [
                Stretch("Traceback:\n" + OWN.rstrip("\n")),
                Stretch(LIBRARY + LIBRARY.rstrip("\n"), "2 library frames"),
                Stretch(OWN + "Error: x"),
            ],
        ),
        (
            INSTALLED + "Error: x",
            [Stretch(INSTALLED.rstrip("\n"), "1 library frame"), Stretch("Error: x")],
        ),
        ("    cut in the middle\n" + OWN, [Stretch("    cut in the middle\n" + OWN.rstrip("\n"))]),
    ],
)  # fmt: skip
def test_own_code_is_shown_and_libraries_are_folded(
    text: str, expected: list[Stretch]
) -> None:
    assert stretches_of(text) == expected


@pytest.fixture
def ended(queue: Queue) -> str:
    """The id of a job that has ended, with its record."""
    job = schedule(refund.using(queue=queue.name), 0, 7, secret="s3cret")
    leased = wait_until(queue.claim, description="the job")[0]
    result = stored_results.result_text(
        State.SUCCEEDED,
        result="refunded 7",
        last={"attempts": 0, "kills": 0, "began": 1, "at": 2, "worker": "web-1"},
    )
    done = Done(leased.token, leased.fence, 60_000, result)
    run(queue.client, lease_ends.acknowledge(queue.keys, [done]))
    # Half a minute later the server has forgotten the job.
    queue.client.delete(queue.keys.ended)
    return job.id


def test_record_of_an_ended_job_has_a_page(
    browser: Client, queue: Queue, ended: str
) -> None:
    response = browser.get(url("job", queue.name, ended.rpartition(":")[2]))

    text = content_of(response)
    assert response.status_code == 200
    assert "succeeded" in text
    assert "order_id= 7 secret= ***" in text
    assert 'Result "refunded 7"' in text


def test_record_of_a_dead_letter_that_is_gone_says_that_it_was_discarded(
    browser: Client, queue: Queue
) -> None:
    token = "discarded0discarded000"
    key = queue.keys.result(token)
    queue.client.rpush(
        key, stored_results.result_text(State.DEAD, error="ValueError: x")
    )
    queue.client.expire(key, 60)

    response = browser.get(url("job", queue.name, token))

    text = content_of(response)
    assert response.status_code == 200
    assert "State: discarded" in text
    assert "ValueError: x" in text
    assert get_job(f"{queue.name}:{token}").state is State.DISCARDED


def test_ended_job_is_scheduled_again_as_another(
    browser: Client, queue: Queue, ended: str
) -> None:
    token = ended.rpartition(":")[2]
    shown = browser.get(url("job", queue.name, token))
    assert b'name="schedule_again"' in shown.content

    page = browser.post(url("schedule_again", queue.name, token), follow=True)

    (told,) = messages_of(page)
    assert told.startswith(f"Job {ended} is scheduled once more, as job {queue.name}:")
    other = told.split(" as job ")[1].partition(": it")[0]
    again = get_job(other)
    assert (again.task, again.args, again.kwargs) == (
        refund.name,
        [7],
        {"secret": "s3cret"},
    )
    assert other != ended
    assert LogEntry.objects.get().change_message == (
        f"Schedule again, as another job. → {told}"
    )


@pytest.mark.parametrize("state", ["nobody", "running", "dead"])
def test_only_what_has_ended_is_scheduled_again(
    browser: Client, queue: Queue, state: str
) -> None:
    token = {
        "nobody": lambda: "x" * 22,
        "running": lambda: queue.running(7, task=refund.name).token,
        "dead": lambda: queue.dead(7, task=refund.name),
    }[state]()

    page = browser.post(url("schedule_again", queue.name, token), follow=True)

    (told,) = messages_of(page)
    wanted = {
        "nobody": "no job has the id",
        "running": "is already running",
        "dead": "is a dead letter by now",
    }
    assert wanted[state] in told
    assert not LogEntry.objects.exists()


def test_schedule_again_needs_the_right_to_change(
    login: Callable[..., Client], queue: Queue, ended: str
) -> None:
    token = ended.rpartition(":")[2]
    viewer = login("view", "delete")

    assert (
        b'name="schedule_again"'
        not in viewer.get(url("job", queue.name, token)).content
    )
    assert viewer.post(url("schedule_again", queue.name, token)).status_code == 403


def test_page_open_on_a_job_that_has_just_run_says_so(
    browser: Client, queue: Queue
) -> None:
    job = queue.running(7)
    run(queue.client, lease_ends.acknowledge(queue.keys, [Done(job.token, job.fence)]))

    page = browser.post(url("run_now", queue.name, job.token), follow=True)

    assert messages_of(page) == [f"Job {queue.name}:{job.token} has already succeeded."]
    assert "succeeded" in content_of(page)


def test_undecodable_payload_of_a_megabyte_has_a_page(
    browser: Client, queue: Queue
) -> None:
    token = queue.quarantined(b"\x80" + b"\xfe\x00" * (1 << 19))

    response = browser.get(url("job", queue.name, token))
    listed = browser.get(url("queue", queue.name), {"state": "quarantined"})
    found = browser.get(url("search"), {"queue": queue.name, "q": "nothing"})

    assert "1,048,577 bytes, the first 2,048 shown" in content_of(response)
    assert len(response.content) < 100_000
    assert len(listed.context["rows"]) == 1
    assert found.status_code == 200
