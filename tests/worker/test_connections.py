"""The same jobs over each version of the protocol, and over TLS: sites, workers, the admin's figures, the event loop."""

import asyncio
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    BlockingQueue,
    DelayedQueue,
    aschedule,
    aschedule_many,
    ended_jobs,
    find_jobs,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.conf import get_settings
from django_delayq.display.overview import look
from django_delayq.faults import describe_fault
from django_delayq.features.statistics.api import statistics_totals, tasks_statistics
from django_delayq.health.problem import Level
from django_delayq.health.problems import find_server_problems
from django_delayq.jobs.workers import workers
from django_delayq.transport.clients import own_clients
from tests.polling import wait_until
from tests.servers import Server
from tests.tls import KIND, OURS, Tls
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS

LATER = 3600


class Over:
    """Everything over the connections of one URL."""

    def __init__(self, settings: Any, work: Any, records: Any, name: str) -> None:
        self._settings, self._work = settings, work
        self._records, self.name = records, name

    def use(self, url: str) -> None:
        """Point the settings at a server."""
        self._settings.DELAYQ = {
            "CONNECTION": url,
            "QUEUES": {"default": {}, self.name: {}},
        }

    def do_everything(self, url: str) -> None:
        """Schedule, change, run, look and move elements, by sync and async calls."""
        self.use(url)
        name, note = self.name, tasks.note.using(queue=self.name)
        # Only a message wakes it before the test ends.
        worker = self._work([name], cap_ms=NEVER_MS)
        now = [schedule(note, 0.2, "one")]
        now += schedule_many(note.prepare(0.1, i) for i in range(20))
        now.append(schedule(tasks.fail_until.using(queue=name), 0, 2))
        added = schedule(tasks.add.using(queue=name), 0, 20, 22)
        later = schedule(note, LATER)
        assert later.reschedule(2 * LATER)
        assert get_job(later.id).state == "scheduled"
        later.run_now()
        gone = schedule(note, LATER)
        assert gone.cancel()
        assert find_jobs(queue=name, text=gone.id).count() == 0
        now.append(later)

        async def on_the_loop() -> None:
            now.append(await aschedule(note, 0, "loop"))
            now.extend(await aschedule_many(note.prepare(0, i) for i in range(3)))
            job = await aschedule(tasks.add_async.using(queue=name), 0, 1, 2)
            assert await job.await_result(60) == 3
            assert await find_jobs(queue=name).acount() >= 0

        asyncio.run(on_the_loop())
        assert added.wait(60) == 42
        wait_until(
            lambda: set(self._records.jobs("run")) >= {job.id for job in now},
            description="all have run",
        )
        wait_until(
            lambda: find_jobs(queue=name).count() == 0, description="all have ended"
        )
        (queue,) = look([get_settings().queue(name)]).queues
        assert queue.counts.counters["succeeded"] == len(now) + 2
        assert queue.counts.counters["retried"] == 1
        wait_until(
            lambda: {job.id for job in now} <= {job.id for job in ended_jobs(name)},
            description="they are remembered",
        )
        assert worker.owner.hex() in {each.id for each in workers()}
        # It writes what it has measured every ten seconds, and at its end.
        worker.stop()
        wait_until(
            lambda: statistics_totals([name])[name].queue.runs == len(now) + 3,
            description="they are measured",
        )
        assert tasks_statistics(hours=1)
        found = find_server_problems(own_clients.of_thread(), [name])
        assert not [each for each in found if each.level is Level.ERROR], found
        self._move_elements(url)

    def _move_elements(self, url: str) -> None:
        own = f"{self.name}-elements"
        delayed, blocking = (
            DelayedQueue(own, connection=url),
            BlockingQueue(own, connection=url),
        )
        delayed.offer("at once", 0)
        delayed.offer("later", LATER)
        assert blocking.poll(60) == "at once"
        assert delayed.read_all() == ["later"]
        assert delayed.poll() == "later"

        async def on_the_loop() -> None:
            await delayed.aoffer("again", 0.05)
            assert await blocking.atake() == "again"
            await delayed.adestroy()
            await blocking.aclose()

        asyncio.run(on_the_loop())


@pytest.fixture
def over(
    configure: Any, settings: Any, work: Any, records: Any, queue_name: str
) -> Over:
    return Over(settings, work, records, queue_name)


@every_server
@pytest.mark.parametrize("protocol", [2, 3])
def test_everything_works_over_each_version_of_the_protocol(
    server: Server, over: Over, protocol: int
) -> None:
    over.do_everything(f"{server.url}?protocol={protocol}")


@pytest.fixture
def serve(tls: Tls) -> Iterator[Callable[..., int]]:
    """Start servers that speak TLS alone, and return their ports; they end with the test."""
    started: list[Server] = []

    def serve(**options: str) -> int:
        started.append(Server(KIND, tls.options() | options))
        return started[-1].start().port

    yield serve
    for server in started:
        server.stop()


@pytest.mark.parametrize("wants", ["no", "yes"])
def test_everything_works_over_tls(
    tls: Tls, serve: Callable[..., int], over: Over, wants: str
) -> None:
    port = serve(tls_auth_clients=wants)
    over.do_everything(tls.url(port, **(OURS if wants == "yes" else {})))


def fault_of(over: Over, url: str, *, is_async: bool) -> Any:
    over.use(url)
    note = tasks.note.using(queue=over.name)

    def call() -> None:
        if is_async:
            asyncio.run(aschedule(note, LATER))
        else:
            schedule(note, LATER)

    with pytest.raises(RedisConnectionError) as caught:
        call()
    return describe_fault(caught.value)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
class TestWhatIsWrong:
    def test_authority_is_another(
        self, tls: Tls, serve: Any, over: Over, is_async: bool
    ) -> None:
        port = serve()

        url = tls.url(port, ssl_ca_certs="other-ca.pem")
        fault = fault_of(over, url, is_async=is_async)

        assert "certificate is not accepted" in fault.what
        assert "ssl_ca_certs" in fault.hint

    def test_certificate_is_for_another_host(
        self, tls: Tls, serve: Any, over: Over, is_async: bool
    ) -> None:
        tls.issue("server", "redis.example.org")
        port = serve()

        fault = fault_of(over, tls.url(port), is_async=is_async)

        assert "certificate is not accepted" in fault.what
        assert "127.0.0.1" in fault.message

    def test_certificate_has_expired(
        self, tls: Tls, serve: Any, over: Over, is_async: bool
    ) -> None:
        long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        tls.issue("server", "127.0.0.1", not_after=long_ago)
        port = serve()

        fault = fault_of(over, tls.url(port), is_async=is_async)

        assert "certificate is not accepted" in fault.what
        assert "expired" in fault.message

    def test_port_speaks_tls_alone(
        self, tls: Tls, serve: Any, over: Over, is_async: bool
    ) -> None:
        port = serve()

        fault = fault_of(over, f"redis://127.0.0.1:{port}/0", is_async=is_async)

        assert "rediss://" in fault.hint

    def test_certificate_of_ours_is_missing(
        self, tls: Tls, serve: Any, over: Over, is_async: bool
    ) -> None:
        port = serve(tls_auth_clients="yes")

        fault = fault_of(over, tls.url(port), is_async=is_async)

        assert "ssl_certfile" in fault.hint
