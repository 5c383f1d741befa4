"""What a task activates ends with it, and what a thread keeps for its tasks does not."""

import threading
from contextvars import ContextVar

import pytest
from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import connections
from django.utils import timezone, translation

from django_delayq import delayed_task, schedule
from django_delayq.worker import job_signals
from tests.polling import wait_until

of_a_task = ContextVar("of_a_task", default="nothing")


def caches_on(server):
    return {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": server.socket_url,
        }
    }


def state():
    return (
        translation.get_language(),
        timezone.get_current_timezone_name(),
        of_a_task.get(),
    )


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("time_limit", [None, 30])
def test_what_a_task_activates_does_not_reach_the_next_one(
    work, queue_name, is_async, time_limit
):
    seen = []

    def activate():
        seen.append(state())
        translation.activate("de")
        timezone.activate("Asia/Shanghai")
        of_a_task.set("mine")
        seen.append(state())

    async def activate_async():
        activate()

    task = delayed_task(queue=queue_name, name="activates", time_limit=time_limit)(
        activate_async if is_async else activate
    )
    for _ in range(3):
        schedule(task, 0)

    work(threads=1, coroutines=1)

    wait_until(lambda: len(seen) == 6, description="all have run")
    assert seen[1] == ("de", "Asia/Shanghai", "mine")
    assert seen[0] != seen[1]
    assert seen == seen[:2] * 3


def test_all_jobs_of_a_thread_share_its_connections(
    work, queue_name, settings, server, django_db_blocker
):
    settings.CACHES = caches_on(server)
    seen = []

    @delayed_task(queue=queue_name)
    def use():
        # The test database lives in memory, where Django never closes a connection by itself.
        connection = connections["default"]
        connection.ensure_connection()
        client = caches["default"]._cache.get_client()
        seen.append((id(connection.connection), client.client_id()))

    for _ in range(5):
        schedule(use, 0)

    with django_db_blocker.unblock():
        work(threads=1)
        wait_until(lambda: len(seen) == 5, description="all have run")

    assert len(set(seen)) == 1
    caches["default"].close()


def test_jobs_of_the_event_loop_share_caches_only_one_after_the_other(
    work, queue_name, settings, server
):
    settings.CACHES = caches_on(server)
    seen = []
    gate = threading.Event()

    @delayed_task(queue=queue_name)
    async def use():
        client = caches["default"]._cache.get_client()
        seen.append(client.client_id())
        await sync_to_async(gate.wait)(30)

    for _ in range(2):
        schedule(use, 0)
    worker = work(coroutines=2)
    wait_until(lambda: len(seen) == 2, description="both run")
    gate.set()
    wait_until(
        lambda: not worker.loop.dispatch.coroutines.count(),
        description="both have ended",
    )
    for _ in range(5):
        schedule(use, 0)
    wait_until(lambda: len(seen) == 7, description="all have run")

    assert len(set(seen[:2])) == 2
    assert set(seen[2:]) <= set(seen[:2])


def test_receivers_that_no_job_has_to_do_with_share_caches(settings, server):
    settings.CACHES = caches_on(server)
    seen = []
    signal_thread = job_signals.SignalThread()

    def hear():
        client = caches["default"]._cache.get_client()
        seen.append((threading.current_thread(), client.client_id()))

    for n in range(3):
        signal_thread.call(hear)
        wait_until(
            lambda n=n: len(seen) > n and not seen[n][0].is_alive(),
            description="the thread has ended",
        )

    threads, clients = zip(*seen, strict=True)
    assert len(set(threads)) == 3
    assert len(set(clients)) == 1
