"""The same jobs over each version of the protocol, and over TLS: sites, workers, the admin's figures, the event loop."""

import asyncio
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
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
from django_delayq.clients.clients import own_clients
from django_delayq.conf import get_settings
from django_delayq.faults import describe_fault
from django_delayq.health.problems import Level, find_server_problems
from django_delayq.jobs import formats
from django_delayq.jobs.statistics import statistics_totals, tasks_statistics
from django_delayq.jobs.workers import workers
from django_delayq.showing.overview import look
from tests.polling import wait_until
from tests.servers import (
    Server,
    ServerUnavailable,
    available_kinds,
    binary_of,
    free_port,
)
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
        formats.forget()

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


# TLS: neither wheel brings a server that speaks it.


class Tls:
    """A server that speaks TLS alone, and the files of those who trust it, and whom it trusts."""

    def __init__(
        self, folder: Path, start: Callable[..., Server], **options: str
    ) -> None:
        trustme = pytest.importorskip("trustme")
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
        self.issue("server", "127.0.0.1")
        self.issue("client", "site.example.org")
        self._start, self._options = start, options

    def issue(self, name: str, host: str, **options: Any) -> None:
        made = self.authority.issue_cert(host, **options)
        made.private_key_pem.write_to_path(self.folder / f"{name}.key")
        made.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")

    def start(self) -> int:
        """Start it, and return its port."""
        port = free_port()
        self._start(
            **{
                "tls_port": str(port),
                "tls_cert_file": str(self.folder / "server.pem"),
                "tls_key_file": str(self.folder / "server.key"),
                "tls_ca_cert_file": str(self.folder / "ca.pem"),
                **self._options,
            }
        )
        return port

    def url(self, port: int, host: str = "127.0.0.1", **files: str) -> str:
        told = {"ssl_ca_certs": "ca.pem"} | files
        told = {name: f"{self.folder}/{file}" for name, file in told.items()}
        return f"rediss://{host}:{port}/0?" + "&".join(
            f"{name}={file}" for name, file in told.items()
        )


@pytest.fixture
def tls(server_kind: str, tmp_path: Path) -> Iterator[Callable[..., Tls]]:
    """Prepare servers that speak TLS; they end with the test."""
    if server_kind != available_kinds()[0]:
        pytest.skip("the server is the same for every kind")
    try:
        binary_of("redis7")
    except ServerUnavailable as error:
        if os.environ.get("DELAYQ_TEST_REQUIRE_SERVERS") == "1":
            pytest.fail(f"{error}, and DELAYQ_TEST_REQUIRE_SERVERS is set")
        pytest.skip(f"{error}, and the others speak no TLS")
    started: list[Server] = []

    def start(**options: str) -> Server:
        started.append(Server("redis7", options))
        return started[-1].start()

    yield lambda **options: Tls(tmp_path, start, **options)
    for server in started:
        server.stop()


@pytest.mark.parametrize("wants", ["no", "yes"])
def test_everything_works_over_tls(
    tls: Callable[..., Tls], over: Over, wants: str
) -> None:
    prepared = tls(tls_auth_clients=wants)
    ours = {"ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}
    port = prepared.start()
    over.do_everything(prepared.url(port, **(ours if wants == "yes" else {})))


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
    def test_authority_is_another(self, tls: Any, over: Over, is_async: bool) -> None:
        prepared = tls()
        port = prepared.start()

        url = prepared.url(port, ssl_ca_certs="other-ca.pem")
        fault = fault_of(over, url, is_async=is_async)

        assert "certificate is not accepted" in fault.what
        assert "ssl_ca_certs" in fault.hint

    def test_certificate_is_for_another_host(
        self, tls: Any, over: Over, is_async: bool
    ) -> None:
        prepared = tls()
        prepared.issue("server", "redis.example.org")
        port = prepared.start()

        fault = fault_of(over, prepared.url(port), is_async=is_async)

        assert "certificate is not accepted" in fault.what
        assert "127.0.0.1" in fault.message

    def test_certificate_has_expired(
        self, tls: Any, over: Over, is_async: bool
    ) -> None:
        prepared = tls()
        long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        prepared.issue("server", "127.0.0.1", not_after=long_ago)
        port = prepared.start()

        fault = fault_of(over, prepared.url(port), is_async=is_async)

        assert "certificate is not accepted" in fault.what
        assert "expired" in fault.message

    def test_port_speaks_tls_alone(self, tls: Any, over: Over, is_async: bool) -> None:
        port = tls().start()

        fault = fault_of(over, f"redis://127.0.0.1:{port}/0", is_async=is_async)

        assert "rediss://" in fault.hint

    def test_certificate_of_ours_is_missing(
        self, tls: Any, over: Over, is_async: bool
    ) -> None:
        prepared = tls(tls_auth_clients="yes")
        port = prepared.start()

        fault = fault_of(over, prepared.url(port), is_async=is_async)

        assert "ssl_certfile" in fault.hint
