"""Every page with long names, on a desktop and on a phone, in each language: nothing scrolls sideways, is cut, overlaps or runs together.

DELAYQ_TEST_SCREENSHOTS=FOLDER  keep a picture of every page
"""

import os
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
from django_delayq.admin import chosen
from django_delayq.admin.job_admin import JobAdmin
from django_delayq.clock import epoch_ms
from django_delayq.core.progress import JobProgress, note_progress
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.statistics.calls import UNKNOWN
from django_delayq.jobs.progress_report import stored_progress
from django_delayq.transport.run import run
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue, error
from tests.admin.visiting import SIZES, Visitor

pytestmark = pytest.mark.browser

TASK = "shop.integrations.accounting.tasks.send_monthly_statement_to_every_customer"
SHORT = "shop.orders.cancel_unpaid"
HOST = "delayq-worker-7d9f8b6c5d-x2x9q.eu-central-1.compute.internal"
LIMIT = "payment-provider-sandbox-eu-central-1"
REASON = "The provider's maintenance window was extended until tomorrow morning."
#: What sticks out of the window or of a box that cuts it, and texts that lie on one another or have no space between.
MEASURE = r"""
const [width, found] = [document.documentElement.clientWidth, []];
const name = (each) => `${each.tagName.toLowerCase()}${each.id ? '#' + each.id : ''}.${each.getAttribute('class') || ''}`
  + ` "${each.textContent.trim().replace(/\s+/g, ' ').slice(0, 60)}"`;
const root = document.documentElement;
if (root.scrollWidth > width) found.push(`the page scrolls: ${root.scrollWidth} > ${width}`);
const isHidden = (each) => each.closest('.visually-hidden, .hidden, thead[hidden], defs, title, desc, option, script, style')
  || !each.checkVisibility({ visibilityProperty: true });
const style = new Map();
const styleOf = (each) => style.get(each) || style.set(each, getComputedStyle(each)).get(each);
const isClipped = (each) => {
  for (let box = each; box && box !== document.body; box = box.parentElement)
    if (styleOf(box).clipPath !== 'none' || styleOf(box).position === 'absolute' && box.offsetWidth === 1) return true;
  return false;
};
const elements = [...document.querySelectorAll('#content-main *, .breadcrumbs, .breadcrumbs *, .messagelist *')];
for (const each of elements) {
  if (isHidden(each) || isClipped(each)) continue;
  const box = each.getBoundingClientRect();
  if (!box.width || !box.height) continue;
  if (box.right > width + 1 || box.left < -1) {
    let inside = each.parentElement;
    while (inside && !['auto', 'scroll'].includes(styleOf(inside).overflowX)) inside = inside.parentElement;
    if (!inside) found.push(`beyond the window: ${name(each)}`);
  }
  for (let around = each.parentElement; around && around.id !== 'content'; around = around.parentElement) {
    const overflow = styleOf(around).overflowX;
    // A dump of bytes has a width of its own, and so have the tables of charts.
    if (overflow === 'visible' && around.tagName !== 'svg' || around.matches('pre.dump, .delayq-chart details')) continue;
    if (each.matches('pre.dump, pre.dump *, .delayq-chart details *')) break;
    const outer = around.getBoundingClientRect();
    if (box.right > outer.right + 1 || box.left < outer.left - 1) found.push(`cut by ${name(around).slice(0, 40)}: ${name(each)}`);
    break;
  }
}
const texts = [];
const walker = document.createTreeWalker(document.getElementById('content-main'), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  if (!node.data.trim() || isHidden(node.parentElement) || isClipped(node.parentElement)) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) if (box.width > 1) texts.push([box, node]);
}
for (let i = 0; i < texts.length; i++) {
  for (let j = i + 1; j < texts.length; j++) {
    const [[one, first], [two, second]] = [texts[i], texts[j]];
    if (first === second) continue;
    const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
    const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
    if (across > 2 && down > 4) found.push(`on one another: "${first.data.trim().slice(0, 40)}" and "${second.data.trim().slice(0, 40)}"`);
  }
}
for (let i = 1; i < texts.length; i++) {
  const [[one, first], [two, second]] = [texts[i - 1], texts[i]];
  if (first === second || one.bottom <= two.top + 4 || two.bottom <= one.top + 4) continue;
  if (Math.abs(two.left - one.right) < 1 && /\S$/.test(first.data) && /^[^\s.,:;)]/.test(second.data))
    found.push(`run together: "${first.data.trim().slice(-40)}" and "${second.data.trim().slice(0, 40)}"`);
}
return [...new Set(found)];
"""


@delayed_task(name=SHORT)
def cancel_unpaid(order_id: int) -> None: ...


@delayed_task(
    name=TASK, limit=Limit(LIMIT, concurrency=3, rate="20/s"), sensitive=("iban",)
)
def send_statement(customer_number: str, iban: str, **options: Any) -> None: ...


def fill(queue: Queue, other: Queue) -> dict[str, str]:
    """Put jobs with long names into every state of one queue; returns tokens."""
    raised = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='accounting.internal.example.com', port=443)"
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/srv/shop/releases/20261127093011/shop/integrations/accounting/tasks.py", line 1041, in send\n'
        f"    raise ConnectionError({raised!r})\n"
        f"{raised}\n"
    )
    why = error(raised, trace, "requests.exceptions.ConnectionError", at_ms=epoch_ms())
    long = {"customer_number": "DE-2026-0000123456789", "iban": "DE" + "0" * 20}
    for number in range(3):
        queue.schedule(500_000 + 97_000 * number, 4711 + number, task=SHORT)
        queue.dead(4650 + number, task=SHORT, error_text=why)
    queue.offer("Größe: ein Wort von Java".encode())
    running = queue.running(task=TASK, **long)
    far = stored_progress(1_234_567, 50_000_000, "statements of all customers")
    note = JobProgress(running.token, running.fence, far)
    tokens = {
        "running": running.token,
        "retrying": queue.retrying(task=TASK, error_text=why, **long),
        "held": queue.held(4),
        "unread": queue.held_for_key(reason=Reason(Kind.FORMAT, "9")),
        "dead": queue.dead(task=TASK, error_text=why, **long),
        "quarantined": queue.quarantined(bytes(range(256)) * 4),
        "scheduled": queue.schedule(
            90_000_000, task=TASK, unique="customer:DE-2026-0000123456789", **long
        ),
        "ended": "x" * 22,
    }
    run(queue.client, note_progress(queue.keys, [note]))
    queue.push(b"17")
    records = [
        EndRecord(
            token, task, outcome, epoch_ms() - 7_000, 1_234_567.8, 1_234_567.8, 12, told
        )
        for token, task, outcome, told in (
            (tokens["ended"], SHORT, State.SUCCEEDED, ""),
            (tokens["dead"], TASK, State.DEAD, raised),
            ("y" * 22, TASK, State.CANCELLED, ""),
        )
    ]
    run(queue.client, ended_calls.note_ended(queue.keys, records, keep=100))
    living.measure_an_hour(queue)
    figures = living.figures_of(1_234_567, failed=98_765, late_ms=900, took_ms=90_000)
    living.measure(queue, **{TASK: figures, UNKNOWN: living.figures_of(3)})
    living.serve(queue, *(tokens[each] for each in ("running",)), task=TASK, host=HOST)
    living.serve(other, host="web2", pid=813, state="quiet", version="0.9.1rc1.dev20")
    store_schedule(
        "nightly-statements-of-every-customer",
        send_statement,
        cron("*/20 3,4,5 1-15 * 1-5", tz="America/Argentina/Buenos_Aires"),
        kwargs=long,
        queue=queue.name,
    )
    often = every(timedelta(seconds=20))
    store_schedule("heartbeat", cancel_unpaid, often, args=[1], queue=queue.name)
    paused = get_schedule("heartbeat", queue.name)
    paused.pause(reason=REASON, by="firstname.lastname@example.com")
    paused.override(cron("0 9 * * 1-5"))
    set_limit(queue.name, concurrency=1_000, rate="2000/m")
    set_limit(queue.name, limit=LIMIT, rate="20/s")
    run(queue.client, pause_calls.pause(queue.keys, task=TASK, by="ann", reason=REASON))
    pause(other.name, until=3600, reason=REASON, by="firstname.lastname@example.com")
    return tokens


class Looker:
    """Measures the pages that are open."""

    def __init__(self, visitor: Visitor, language: str) -> None:
        self._visitor, self._language = visitor, language
        self.found: dict[str, list[str]] = {}

    def look(self, name: str) -> None:
        folder = os.environ.get("DELAYQ_TEST_SCREENSHOTS")
        driver = self._visitor.driver
        for size, (width, height) in SIZES.items():
            driver.set_window_size(width, height)
            if found := driver.execute_script(MEASURE):
                self.found[f"{name}, {size}"] = found
            if folder is not None:
                file = Path(folder) / f"{name}-{size}-{self._language}.png"
                self._visitor.paint(file, {}, width)
        driver.set_window_size(*SIZES["desktop"])

    def open(self, name: str, address: str) -> None:
        self._visitor.driver.get(f"{self._visitor.base}{address}")
        self.look(name)

    def ask(self, name: str, address: str, selector: str) -> None:
        """Look at the page that comes after a click."""
        self._visitor.driver.get(f"{self._visitor.base}{address}")
        self._visitor.follow(self._visitor.find(selector)[0])
        self.look(name)


@pytest.fixture
def looker(
    visitor: Visitor, settings: Any, monkeypatch: pytest.MonkeyPatch, language: str
) -> Looker:
    settings.LANGUAGE_CODE = language
    # A page that is measured stays as it is.
    monkeypatch.setattr(JobAdmin, "refresh_s", 3_600)
    monkeypatch.setattr(chosen, "STEP_JOBS", 1)
    return Looker(visitor, language)


@pytest.mark.parametrize("language", ["en", "de", "zh-hans"])
def test_nothing_scrolls_sideways_is_cut_overlaps_or_runs_together(
    looker: Looker, queue: Queue, settings: Any
) -> None:
    other = Queue(queue.client, f"{queue.name}:transactional_mail")
    shared = {"REDISSON": "3.16.6", "MAX_JOBS": 20, "MAX_DEAD": 1}
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {queue.name: shared, other.name: {}},
    }
    tokens = fill(queue, other)
    its_queue, search = url("queue", queue.name), url("search")

    looker.open("overview", url("changelist"))
    looker.open("overview-week", f"{url('changelist')}?span=week")
    looker.open("workers", url("workers"))
    looker.ask("worker-stop", url("workers"), "button[value=stop]")
    looker.open("tasks", url("tasks"))
    for state in ("scheduled", "due", "running", "retrying", "held", "dead"):
        looker.open(f"queue-{state}", f"{its_queue}?state={state}")
    for state in ("quarantined", "ended"):
        looker.open(f"queue-{state}", f"{its_queue}?state={state}")
    looker.open("queue-paused", url("queue", other.name))
    looker.open("schedules", url("schedules", queue.name))
    looker.open("limits", url("limits", queue.name))
    looker.open("pause", url("pause", queue.name))
    for state, token in tokens.items():
        looker.open(f"job-{state}", url("job", queue.name, token))
    looker.open("cancel", url("cancel", queue.name, tokens["scheduled"]))
    looker.open("discard", url("discard", queue.name, tokens["dead"]))
    looker.open("search", search)
    looker.open("search-found", f"{search}?state=dead&state=scheduled&state=held")
    looker.open("search-none", f"{search}?q=nothing&due_from=2026-01-02T00:00")
    looker.ask("bulk-cancel", f"{search}?state=scheduled", "button[value^='cancel:a']")
    looker.ask("bulk-move", f"{search}?q=4711", "button[value='reschedule:all']")
    looker.ask("bulk-step", f"{search}?state=dead", "button[value='retry:all']")
    looker._visitor.follow(looker._visitor.find("input[name=sure]")[0])
    looker.look("bulk-progress")
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}
    looker.open("fault", url("changelist"))

    lines = [f"{page}: {line}" for page, all in looker.found.items() for line in all]
    assert not lines, "\n".join(lines)
