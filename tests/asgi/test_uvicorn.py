"""`aschedule` in the async views of a site that uvicorn serves, by plain HTTP."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import uvicorn
from django.core.handlers.asgi import ASGIHandler

from django_delayq import find_jobs
from django_delayq.transport import clients
from tests.asgi import views
from tests.polling import wait_until
from tests.servers import Server

REQUESTS = 50
#: Longer than a loaded machine needs for any request.
TIMEOUT_S = 60.0
#: The server of the jobs does no work meanwhile; a test ends the pause.
PAUSE_MS = 120_000

Get = Callable[[str], dict[str, Any]]


@pytest.fixture
def jobs_server(private_server: Callable[..., Server], settings: Any) -> Server:
    server = private_server()
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {"asgi": {}}}
    settings.ROOT_URLCONF = "tests.asgi.views"
    # One sync middleware would give each request a thread.
    settings.MIDDLEWARE = []
    return server


class Site:
    """uvicorn in a thread of this process, which outlives it and so sees what it leaves behind."""

    def __init__(self) -> None:
        config = uvicorn.Config(
            ASGIHandler(), port=0, lifespan="off", log_config=None, access_log=False
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def start(self) -> "Site":
        self.thread.start()
        wait_until(
            lambda: self.server.started or not self.thread.is_alive(),
            description="uvicorn serves",
        )
        assert self.server.started
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()

    def get(self, path: str) -> dict[str, Any]:
        host, port = self.server.servers[0].sockets[0].getsockname()
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            found: dict[str, Any] = json.loads(body)
            return found
        finally:
            connection.close()


@pytest.fixture
def site(jobs_server: Server) -> Iterator[Site]:
    site = Site().start()
    yield site
    site.stop()


def test_concurrent_requests_schedule_and_lose_no_job(site: Site) -> None:
    with ThreadPoolExecutor(REQUESTS) as pool:
        told = list(
            pool.map(site.get, [f"/schedule/asgi/{n}" for n in range(REQUESTS)])
        )

    assert sorted(one["number"] for one in told) == list(range(REQUESTS))
    stored = {job.id: job.args for job in find_jobs(queue="asgi")}
    assert stored == {one["id"]: [one["number"]] for one in told}
    assert site.get(f"/jobs/{told[7]['id']}") == {
        "state": "scheduled",
        "args": [told[7]["number"]],
    }


def test_requests_that_wait_for_the_server_of_the_jobs_hold_up_no_other(
    site: Site, jobs_server: Server
) -> None:
    with jobs_server.client() as client, ThreadPoolExecutor(REQUESTS) as pool:
        client.execute_command("CLIENT", "PAUSE", PAUSE_MS, "WRITE")
        try:
            told = pool.map(site.get, [f"/schedule/asgi/{n}" for n in range(REQUESTS)])
            # Each look is a request of its own, which a blocked event loop would not answer.
            wait_until(
                lambda: site.get("/waiting")["waiting"] == REQUESTS,
                description="all requests wait for the server",
            )
            assert count_of(client) == 0
        finally:
            client.execute_command("CLIENT", "UNPAUSE")

        assert len({one["id"] for one in told}) == REQUESTS
        assert count_of(client) == REQUESTS
        assert site.get("/waiting") == {"waiting": 0}


def count_of(client: "redis.Redis[bytes]") -> int:
    return int(client.zcard("redisson_delay_queue_timeout:{asgi}"))


def test_clients_of_the_event_loop_are_closed_when_the_site_stops(
    jobs_server: Server,
) -> None:
    site = Site().start()
    with jobs_server.client() as client:
        before = len(client.client_list())
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(site.get, [f"/schedule/asgi/{n}" for n in range(REQUESTS)]))
        assert len(client.client_list()) > before
        loops = len(clients._of_loops)

        site.stop()

        wait_until(
            lambda: len(client.client_list()) == before,
            description="the server of the jobs sees no connection of the site",
        )
    assert len(clients._of_loops) == loops - 1
    assert not views.waiting
