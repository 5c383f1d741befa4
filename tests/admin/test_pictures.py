"""Every page as it looks: light and dark, on a desktop and on a phone, with what a shop would have on it.

DELAYQ_PICTURES=FOLDER       write the picture of every page there: make pictures
DELAYQ_DOCS_PICTURES=FOLDER  copy those that the docs show there
"""

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_delayq import (
    Limit,
    cron,
    delayed_task,
    every,
    get_schedule,
    pause,
    set_limit,
    store_schedule,
)
from django_delayq.clock import epoch_ms
from django_delayq.core.progress import JobProgress, note_progress
from django_delayq.core.states import State
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.jobs.progress_report import stored_progress
from django_delayq.transport.run import run
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue, error
from tests.admin.visiting import SIZES, Visitor

pytestmark = pytest.mark.browser

#: What README and docs show.
IN_DOCS = ("queues", "queues-phone", "workers", "tasks", "queue", "job", "confirm")


@delayed_task(name="shop.tasks.cancel_unpaid")
def cancel_unpaid(order_id: int) -> None: ...


@delayed_task(name="shop.tasks.send_invoice", max_attempts=1)
def send_invoice(order_id: int) -> None: ...


@delayed_task(
    name="shop.tasks.send_reminder", limit=Limit("mail-provider", rate="20/s")
)
def send_reminder(address: str) -> None: ...


@delayed_task(name="shop.tasks.export_orders")
def export_orders(year: int) -> None: ...


class Shop:
    """Two queues with jobs in every state, as they are after an hour of work."""

    def __init__(self, queue: Queue, mail: Queue) -> None:
        self.queue, self.mail = queue, mail
        self.dead = self._give_up()
        queue.retrying(4702, task=cancel_unpaid.name, insertion_list=False)
        self.scheduled = [
            queue.schedule(
                500_000 + 97_000 * number,
                4711 + number,
                task=cancel_unpaid.name,
                insertion_list=False,
            )
            for number in range(6)
        ]
        mail.schedule(
            41_000, "zoe@example.com", task=send_reminder.name, insertion_list=False
        )
        living.measure_an_hour(queue)
        self.running = [
            queue.running(4800 + n, task=cancel_unpaid.name, insertion_list=False)
            for n in range(2)
        ]
        self._serve()

    def _serve(self) -> None:
        tokens = [job.token for job in self.running]
        living.serve(self.queue, *tokens, task=cancel_unpaid.name)
        living.serve(self.mail, pid=4712)

    def _give_up(self) -> str:
        raised = "ConnectionError: the mail server is down"
        trace = (
            "Traceback (most recent call last):\n"
            '  File "/srv/shop/tasks.py", line 20, in send_invoice\n'
            '    raise ConnectionError("the mail server is down")\n'
            f"{raised}\n"
        )
        why = error(raised, trace, "builtins.ConnectionError")
        return self.queue.dead(
            4688, task=send_invoice.name, error_text=why, insertion_list=False
        )

    def go_on(self) -> None:
        """Do what the pages of the docs have not, and others show."""
        queue, mail = self.queue, self.mail
        self._serve()
        refused = error("PermissionError: card 4711 is blocked")
        for number in range(3):
            queue.dead(4650 + number, task=cancel_unpaid.name, error_text=refused)
            queue.held_for_key(4660 + number)
        mail.quarantined(b"\x04\x3e\x02ab", b"no codec reads it")
        mail.quarantined("Größe: ein Wort von Java".encode(), b"no handler")
        mail.dead("zoe@example.com", task=send_reminder.name, error_text=refused)
        far = stored_progress(1_200, 5_000, "orders of June")
        job = self.running[0]
        progress = JobProgress(job.token, job.fence, far)
        run(queue.client, note_progress(queue.keys, [progress]))
        queue.schedule(0, 4900, task=cancel_unpaid.name)
        records = [
            EndRecord(
                f"{number:022}",
                cancel_unpaid.name if number % 3 else send_invoice.name,
                State.CANCELLED if number == 4 else State.SUCCEEDED,
                epoch_ms() - 7_000 * number,
                1.5 * number,
                31.0 + number,
                1 + (number == 2),
            )
            for number in range(8)
        ]
        run(queue.client, ended_calls.note_ended(queue.keys, records, keep=1_000))
        set_limit(mail.name, limit="mail-provider", rate="20/s")
        pause(mail.name, reason="the provider is down until 18:00")
        for name, when in (
            ("nightly-export", cron("0 3 * * *")),
            ("reminders", cron("30 8 * * 1-5")),
            ("heartbeat", every(timedelta(seconds=20))),
        ):
            store_schedule(name, export_orders, when, args=[2026], queue=queue.name)
        get_schedule("reminders", queue.name).pause(reason="holidays")


@pytest.fixture
def shop(queue: Queue, settings: Any) -> Shop:
    mail = Queue(queue.client, f"{queue.name}:mail")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue.name: {}, mail.name: {}}}
    return Shop(queue, mail)


class Painter:
    """Writes what the visitor sees, in one scheme of colours."""

    def __init__(self, visitor: Visitor, shop: Shop, scheme: str) -> None:
        self._visitor, self._scheme = visitor, scheme
        # Names that are used once are no sight; the longest comes first.
        self._shown_as = {
            shop.mail.name: "mail",
            shop.queue.name: "default",
            "user0": "admin",
        }

    def paint(self, name: str) -> None:
        """Write the page that is open, on a desktop and on a phone."""
        assert (self._visitor.brightness() > 384) is (self._scheme == "light"), name
        for size, (width, height) in SIZES.items():
            self._visitor.driver.set_window_size(width, height)
            self._visitor.check()
            if folder := os.environ.get("DELAYQ_PICTURES"):
                name_of_size = name if size == "desktop" else f"{name}-{size}"
                file = Path(folder) / f"{name_of_size}-{self._scheme}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                self._visitor.paint(file, self._shown_as, width)
                docs = os.environ.get("DELAYQ_DOCS_PICTURES")
                if docs and name_of_size in IN_DOCS:
                    shutil.copy(file, docs)
        self._visitor.driver.set_window_size(*SIZES["desktop"])

    def open(self, name: str, address: str) -> None:
        self._visitor.open(address)
        self.paint(name)

    def ask(self, name: str, address: str, *clicks: str) -> None:
        """Paint the question that comes after these clicks."""
        self._visitor.open(address)
        for selector in clicks:
            element = self._visitor.find(selector)[0]
            if element.get_attribute("type") == "checkbox":
                element.click()
            else:
                self._visitor.follow(element)
        self.paint(name)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_every_page(
    visitor: Visitor, shop: Shop, settings: Any, scheme: str
) -> None:
    queue, mail = shop.queue.name, shop.mail.name
    with visitor.prefers(scheme):
        painter = Painter(visitor, shop, scheme)
        painter.open("queues", url("changelist"))
        painter.open("workers", url("workers"))
        painter.open("tasks", url("tasks"))
        painter.open("queue", url("queue", queue))
        assert len(visitor.find("#result_list tbody tr")) == 6
        painter.open("job", url("job", queue, shop.dead))
        painter.open("confirm", url("cancel", queue, shop.scheduled[0]))

        shop.go_on()
        painter.open("warnings", url("changelist"))
        painter.ask("worker-stop", url("workers"), "button[value=stop]")
        painter.open("tasks-week", f"{url('tasks')}?span=week&sort=-task")
        for state in ("due", "running", "retrying", "held", "dead", "ended"):
            painter.open(f"queue-{state}", f"{url('queue', queue)}?state={state}")
        painter.open("queue-paused", url("queue", mail))
        painter.open("queue-quarantined", f"{url('queue', mail)}?state=quarantined")
        painter.open("schedules", url("schedules", queue))
        painter.open("limits", url("limits", mail))
        painter.open("pause", url("pause", queue))
        painter.open("job-running", url("job", queue, shop.running[0].token))
        painter.open("job-scheduled", url("job", queue, shop.scheduled[1]))
        painter.open("discard", url("discard", queue, shop.dead))
        painter.open("gone", url("job", queue, "nobody"))
        painter.open("search-empty", url("search"))
        painter.open("search", f"{url('search')}?state=dead&state=scheduled")
        painter.ask(
            "bulk-cancel",
            f"{url('search')}?state=scheduled",
            "button[value='cancel:all']",
        )
        painter.ask(
            "bulk-reschedule",
            f"{url('search')}?state=scheduled",
            "input[name=job]",
            "button[value='reschedule:ticked']",
        )
        settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}
        painter.open("fault", url("changelist"))
