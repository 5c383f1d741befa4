"""What belongs to a job beside itself, on its page: what follows it, its batch, its limit; and the limits of a queue."""

from django.test import Client

from django_delayq import Batch, Limit, delayed_task, schedule_many, set_limit
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of


@delayed_task(name="admin.charge", limit=Limit("admin-stripe", concurrency=3))
def charge() -> None: ...


@delayed_task(name="admin.receipt")
def receipt() -> None: ...


@delayed_task(name="admin.alert")
def alert() -> None: ...


def page_of(browser: Client, queue: Queue, token: str) -> str:
    return content_of(browser.get(url("job", queue.name, token)))


def test_page_of_a_job_names_what_follows_it_and_its_limit(
    browser: Client, queue: Queue
) -> None:
    then = receipt.using(queue=queue.name).prepare(0)
    dead = alert.using(queue=queue.name).prepare(0)
    first = charge.using(queue=queue.name).prepare(3600).then(then).on_dead(dead)
    schedule_many([first])

    page = page_of(browser, queue, first.token)

    assert f"Then: admin.receipt {then.id}" in page
    assert f"When dead: admin.alert {dead.id}" in page
    assert "Limit: admin-stripe" in page


def test_pages_of_a_batch_say_where_its_callback_is_and_how_many_jobs_are_left(
    browser: Client, queue: Queue
) -> None:
    each = receipt.using(queue=queue.name)
    batch = Batch(alert.using(queue=queue.name).prepare(0))
    jobs = batch.schedule([each.prepare(3600), each.prepare(3600), each.prepare(3600)])
    jobs[0].cancel()

    callback = page_of(browser, queue, batch.callback.token)
    member = page_of(browser, queue, jobs[1].token)

    assert "Jobs of its batch: 2" in callback
    assert f"Batch: {batch.callback.id}" in member
    assert "Jobs of its batch" not in member


def test_page_of_a_queue_says_what_its_limits_are(
    browser: Client, queue: Queue
) -> None:
    assert "Limited" not in content_of(browser.get(url("queue", queue.name)))
    set_limit(queue.name, rate="20/s")

    page = content_of(browser.get(url("queue", queue.name)))

    assert f"Limit: queue {queue.name}: any number at a time, 20/s, set by" in page
