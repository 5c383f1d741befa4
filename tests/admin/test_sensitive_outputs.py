"""What a task marks as sensitive comes out nowhere: every page, command, log and error mail is walked."""

import html
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.contrib import admin
from django.core.management import get_commands
from django.test import Client
from django.urls import resolve, reverse
from django.utils.log import AdminEmailHandler

from django_delayq import (
    Batch,
    Cancel,
    Job,
    Retry,
    Snooze,
    State,
    current_job,
    delayed_task,
    every,
    schedule,
    store_schedule,
)
from django_delayq.jobs import actions
from django_delayq.metrics.urls import urlpatterns
from django_delayq.models import Job as DelayqJob
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_crawl import links_of
from tests.management.conftest import call
from tests.polling import wait_until
from tests.worker.workers import InlineWorker

__all__ = ["call"]

#: Every kind of value, none of which an id can have. What is looked for of them in all that comes out is in `TRACES`.
VALUES: dict[str, Any] = {
    "long": "tok_s3cret_" + "0123456789abcdef" * 40,
    "lines": "-----BEGIN s3cret-----\nMII+s3cret\n'\"<&\n-----END s3cret-----",
    "beyond ASCII": "s3cret ü\u2028 \\ é",
    "nested": {"deep": [{"s3cret-key": {"deeper": ["a s3cret in a list"]}}]},
    "number": 8_675_309_123,
    "negative": -867.5309,
    "short": "q¿7",
    "of one character": "ჯ",
    "of a short key": {"x¿": True},
}
TRACES = re.compile(
    r"s3cret|0123456789abcdef|8.?675.?309|867\.5309|ჯ|\\+u10ef|(\\+x|%)[eE]1"
    r"|¿|\\+(u00|x)bf|(\\+x|%)[cC]2"
)


class Told(Exception):
    """Says all that it knows."""


def tell(value: Any) -> str:
    """Write a value in every way in which texts do."""
    cut = str(value)
    return (
        f"{value} {value!r} {value!a} {[value]} {json.dumps([value])} {html.escape(str(value))}"
        f" {str(value).encode()!r} {json.dumps(json.dumps({'a': value}))} {json.dumps(value, ensure_ascii=False)}"
        f" {cut[:20]}… {cut[:200]}… …{cut[-20:]}"
    )


def _do(what: str, value: Any) -> Any:
    job = current_job()
    assert job is not None
    text = tell(value)
    job.progress(1, 2, text)
    if what == "waits":
        started.set()
        assert ending.wait(60)
    if what == "cancels":
        raise Cancel(text)
    if what == "snoozes":
        raise Snooze(3600, text)
    if what == "retries":
        raise Retry(3600, text) from Told(text)
    if what == "fails":
        error = Told(text)
        error.add_note(text)
        raise error from ExceptionGroup(text, [Told(text)])
    if what == "fails to return":
        return {value if isinstance(value, str) else 1: object()}
    return {"said": text, text: [value, {"all": value}]}


started, ending = threading.Event(), threading.Event()


@delayed_task(sensitive=("value",), max_attempts=1, keep_result=600)
def do(what: str, value: Any) -> Any:
    return _do(what, value)


@delayed_task(sensitive=("value",), max_attempts=1, keep_result=600)
async def ado(what: str, value: Any) -> Any:
    return _do(what, value)


@delayed_task(sensitive=("rest", "more"), max_attempts=1)
def take(*rest: Any, **more: Any) -> None:
    raise Told(f"{rest} {more}")


def leaks_of(text: str, where: str) -> list[str]:
    """Return what a text has of the values, with what stands around it."""
    found = []
    for read in (text, html.unescape(text)):
        for each in list(TRACES.finditer(read))[:3]:
            around = read[max(each.start() - 100, 0) : each.end() + 50]
            found.append(f"{where} has {each[0]!r}: {around!r}")
    return found


class Heard(logging.Handler):
    """Keeps all that is logged, as a handler may write it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        own = {name: each for name, each in vars(record).items() if name != "exc_info"}
        self.texts.append((record.name, f"{self.format(record)} {own!r}"))


class Mails(AdminEmailHandler):
    """Keeps what Django writes to the admins. How mails are sent differs with its version."""

    sent: ClassVar[list[str]] = []

    def send_mail(self, *said: Any, **more: Any) -> None:
        self.sent.append(f"{said} {more}")


@pytest.fixture
def heard(settings: Any) -> Iterator[Heard]:
    settings.ADMINS = [("Ann", "ann@example.com")]
    root, handler = logging.getLogger(), Heard()
    mails = Mails(include_html=True)
    mails.setLevel(logging.ERROR)
    ours = logging.getLogger("django_delayq")
    before = root.level, ours.level
    for each in (root, ours):
        each.setLevel(logging.DEBUG)
    root.addHandler(handler)
    root.addHandler(mails)
    yield handler
    Mails.sent.clear()
    root.removeHandler(handler)
    root.removeHandler(mails)
    root.setLevel(before[0])
    ours.setLevel(before[1])


ENDS = ("returns", "fails", "cancels", "snoozes", "retries", "fails to return")


@pytest.fixture
def filled(queue: Queue, settings: Any, heard: Heard) -> Iterator[list[Job[Any]]]:
    """Jobs with every value, in every state; one runs."""
    started.clear()
    ending.clear()
    jobs: list[Job[Any]] = []
    here, there = do.using(queue=queue.name), ado.using(queue=queue.name)
    for name, value in VALUES.items():
        jobs += [here.schedule(0, what, value) for what in ENDS]
        jobs.append(there.schedule(0, "fails", value))
        text = str(value)
        jobs.append(take.using(queue=queue.name).schedule(0, value, **{text: value}))
        waiting = here.prepare(7200, "returns", value)
        waiting.then(here.prepare(60, "returns", value))
        waiting.on_dead(here.prepare(60, "returns", value))
        jobs += [schedule(waiting), here.schedule(3600, "returns", value)]
        callback = here.prepare(60, "returns", value)
        jobs.append(callback)
        Batch(callback).schedule([here.prepare(3600, "returns", value)])
        store_schedule(name, do, every(3600), args=["fails", value], queue=queue.name)
    jobs[-1].cancel()
    jobs.append(here.schedule(0, "waits", VALUES["long"]))
    worker = InlineWorker([queue.name]).start()
    try:
        assert started.wait(60)
        over = {State.SCHEDULED, State.HELD, State.RETRYING, *ENDED, State.DEAD}
        for job in jobs[:-1]:
            wait_until(lambda job=job: job.refresh() in over, description=f"{job!r}")
        wait_until(jobs[-1].read_progress, description="its progress is written")
        yield jobs
    finally:
        ending.set()
        worker.stop()


ENDED = (State.SUCCEEDED, State.CANCELLED, State.EXPIRED, State.DISCARDED)


#: Pages that ask whether to do something to one job.
ASKING = ("django_delayq_job_cancel", "django_delayq_job_discard")


class Walk:
    """Goes through pages, and notes what they have of the values."""

    def __init__(self, browser: Client) -> None:
        self._browser = browser
        self.leaks: list[str] = []
        self.names: set[str] = set()

    def get(self, *addresses: str) -> None:
        """Look at pages, and at all that they lead to."""
        todo, seen = [*addresses], set()
        while todo:
            address = todo.pop()
            path, _, query = address.partition("?")
            # A list in another order is the same page, and the questions about jobs are alike.
            name = resolve(path).url_name
            kind = (
                name if name in ASKING else path,
                frozenset(
                    each if each.startswith("state=") else each.partition("=")[0]
                    for each in query.split("&")
                    if each and not each.startswith(("next=", "order=", "sort="))
                ),
            )
            if kind in seen:
                continue
            seen.add(kind)
            page = self._look(address, self._browser.get(address, follow=True))
            if "html" in page.headers["Content-Type"]:
                todo += [target for target, _ in links_of(page, address)]

    def post(self, address: str, data: dict[str, Any]) -> None:
        self._look(address, self._browser.post(address, data, follow=True))

    def _look(self, address: str, page: Any) -> Any:
        assert page.status_code in (200, 404), (address, page.content)
        self.names.add(resolve(address.partition("?")[0]).url_name)
        self.leaks += leaks_of(page.content.decode(), address)
        return page


def test_no_page_has_a_value(
    filled: list[Job[Any]], queue: Queue, browser: Client
) -> None:
    walk = Walk(browser)
    jobs = [url("job", queue.name, job.token) for job in filled]
    walk.get(url("changelist"), *jobs)
    walk.get(*(reverse(f"delayq_metrics:{route.name}") for route in urlpatterns))
    walk.get(f"{url('search')}?text=s3cr", f"{url('search')}?queue={queue.name}")
    # Every question and every outcome; each ends what some of the jobs wait for.
    for action in actions.ACTIONS:
        some = {"action": action, "job": [job.id for job in filled]}
        walk.post(url("bulk"), some)
        said = {"minutes": "90", "priority": "7"}
        walk.post(url("bulk"), {**some, **said, "confirmed": "1", "post": "yes"})
    for name in ("run_now", "retry", "schedule_again", "cancel", "discard"):
        for job in filled[::5]:
            walk.post(url(name, queue.name, job.token), {})
    for name in ("pause", "resume", "schedules", "limits"):
        walk.post(url(name, queue.name), {"name": "long", "action": "fire"})
    walk.get("/admin/", *jobs)

    assert walk.leaks == []
    names = {route.name for route in admin.site._registry[DelayqJob].get_urls()}
    assert names - walk.names == set()


#: What each command is asked, where it shows jobs or what is made of them; "Q" is the queue, "IDS" are the jobs.
COMMANDS = {
    "delayq_jobs": [
        "list --queue Q --limit 1000",
        "list --queue Q --json",
        "list --queue Q --state ended --limit 1000",
        "list --queue Q --state ended --json",
        "show IDS",
        "show -v 2 IDS",
        "show --json IDS",
        "run --queue Q --dry-run",
        "retry --queue Q --dry-run",
        "cancel --queue Q --dry-run",
        "discard --queue Q --dry-run",
        "reschedule --queue Q --dry-run --in 3600",
        "cancel --yes IDS",
    ],
    "delayq_schedules": [
        "",
        "--json",
        "--fire long",
        "--pause short",
        "--delete lines",
    ],
    "delayq_status": ["", "--json"],
    "delayq_health": [""],
    "delayq_frames": ["Q"],
    "delayq_pause": ["Q --reason r"],
    "delayq_resume": ["Q"],
    "delayq_resign": ["Q"],
    "delayq_export": ["--queue Q FILE"],
    "delayq_import": ["FILE"],
    "delayq_outbox": [""],
    # Its log is that of the worker's threads.
    "delayq_worker": [],
}


@pytest.mark.django_db(databases="__all__")
def test_no_command_prints_a_value(
    filled: list[Job[Any]], queue: Queue, call: Any, tmp_path: Path
) -> None:
    file = str(tmp_path / "export")
    leaks: list[str] = []
    for name, asked in COMMANDS.items():
        for arguments in asked:
            words = [
                {"Q": queue.name, "FILE": file}.get(word, word)
                for word in arguments.split()
                if word != "IDS"
            ]
            ids = [job.id for job in filled] if "IDS" in arguments else []
            said = call(name, *words, *ids)
            leaks += leaks_of(said.out + said.err, f"{name} {arguments}")

    assert leaks == []
    known = {name for name in get_commands() if name.startswith("delayq_")}
    assert known == set(COMMANDS)


def test_no_log_and_no_mail_has_a_value(
    filled: list[Job[Any]], queue: Queue, heard: Heard
) -> None:
    leaks: list[str] = []
    for name, text in heard.texts:
        leaks += leaks_of(text, f"a line of {name}")
    for each in Mails.sent:
        leaks += leaks_of(each, "a mail")

    assert leaks == []
    assert any("Told" in text for _, text in heard.texts)
    assert any("Traceback" in each and "html" in each for each in Mails.sent)
