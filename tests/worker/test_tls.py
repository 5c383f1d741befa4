"""Sentinels and clusters that speak TLS alone, to us and among themselves: their failovers, and what is wrong there."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import RedisError
from redis.sentinel import Sentinel

from django_delayq import BlockingQueue, Durable, aschedule, get_job, schedule
from django_delayq.exceptions import MaybeScheduled
from django_delayq.transport import sentinels
from django_delayq.transport.sentinels import PrimaryNotFound
from django_delayq.transport.server import Server as OfTheServer
from tests.clusters import TestCluster
from tests.conftest import skip_old_redis_py
from tests.polling import wait_until
from tests.sentinels import NAME, PATIENT_MS, Watched
from tests.servers import Server, free_port
from tests.tls import KIND, OURS, Tls
from tests.worker.project import tasks
from tests.worker.test_connections import LATER, Over, fault_of, over, serve

__all__ = ["over", "serve"]


@pytest.fixture
def tls_cluster(tls: Tls) -> Iterator[Callable[..., TestCluster]]:
    """Start a cluster; options are those of `TestCluster`, and ``names`` of the certificates of its nodes."""
    skip_old_redis_py()
    started: list[TestCluster] = []

    def start(names: tuple[str, ...] = (), **options: Any) -> TestCluster:
        cluster = TestCluster(KIND, tls=tls, **options)
        started.append(cluster)
        for node, name in zip(cluster.nodes, names, strict=False):
            node.options |= tls.options(name)
        return cluster.start()

    yield start
    for cluster in started:
        cluster.stop()


def check_that_work_goes_on(
    over: Over, program: Any, records: Any, *, replicas: int, fail_over: Any
) -> None:
    """Have a worker program run jobs before and after a failover, with jobs that were stored before it."""
    note = tasks.note.using(queue=over.name)
    worker = program("--queue", over.name, "--processes", "1").wait_for_processes()

    def have_run(jobs: list[str]) -> None:
        wait_until(
            lambda: set(jobs) <= set(records.jobs("run")),
            description=f"{jobs} have run; the worker's log: {worker.log}",
        )

    have_run([schedule(note, 0).id, asyncio.run(aschedule(note, 0)).id])
    kept = schedule(note.using(durable=Durable(replicas=replicas, timeout=30)), LATER)

    fail_over()

    after: list[str] = []

    def again() -> bool:
        try:
            after.append(schedule(note, 0).id)
            after.append(asyncio.run(aschedule(note, 0)).id)
        except (RedisError, MaybeScheduled):
            return False
        return True

    wait_until(again, description="the new primary stores jobs")
    assert kept.state == "scheduled"
    kept.run_now()
    have_run([kept.id, *after])
    wait_until(lambda: get_job(kept.id).state == "succeeded", description="it is told")
    assert worker.stop() == 0


def test_work_goes_on_after_a_failover_of_sentinels(
    tls_watched: Watched, over: Over, program: Any, records: Any
) -> None:
    def fail_over() -> None:
        tls_watched.set_down_after()
        tls_watched.fail_over("kill")
        tls_watched.set_down_after(PATIENT_MS)

    tls_watched.set_down_after(PATIENT_MS)
    over.use(tls_watched.url)
    check_that_work_goes_on(over, program, records, replicas=2, fail_over=fail_over)


def test_work_goes_on_after_a_failover_of_a_cluster(
    tls_cluster: Any, over: Over, program: Any, records: Any
) -> None:
    cluster = tls_cluster()
    over.use(cluster.url)

    def fail_over() -> None:
        cluster.holder_of(over.name).kill()

    check_that_work_goes_on(over, program, records, replicas=1, fail_over=fail_over)


class TestSentinels:
    """What one Sentinel, which has not yet been told of a primary, is asked."""

    @pytest.fixture
    def sentinel(self, tls: Tls) -> Iterator[Server]:
        sentinel = Server(KIND, tls.options("sentinel"), arguments=("--sentinel",))
        tls.issue("sentinel", "127.0.0.1")
        yield sentinel.start()
        sentinel.stop()

    def url(self, tls: Tls, sentinel: Server, **files: str) -> str:
        return tls.url(sentinel.port, **files).replace(
            f"rediss://127.0.0.1:{sentinel.port}/0",
            f"rediss+sentinel://127.0.0.1:{sentinel.port}/{NAME}/0",
        )

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_certificate_that_is_not_trusted(
        self, tls: Tls, sentinel: Server, over: Over, is_async: bool
    ) -> None:
        url = self.url(tls, sentinel, **OURS, ssl_ca_certs="other-ca.pem")

        fault = fault_of(over, url, is_async=is_async)

        assert fault.what == "The Sentinels' certificate is not accepted."
        assert f"127.0.0.1:{sentinel.port} (" in fault.message
        assert "ssl_ca_certs" in fault.message
        assert "ssl_ca_certs" in fault.hint

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_certificate_of_ours_is_missing(
        self, tls: Tls, sentinel: Server, over: Over, is_async: bool
    ) -> None:
        fault = fault_of(over, self.url(tls, sentinel), is_async=is_async)

        assert fault.what == "No Sentinel answers."
        assert "ssl_certfile" in fault.hint

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_primary_has_a_certificate_for_another_host(
        self, tls: Tls, sentinel: Server, over: Over, serve: Any, is_async: bool
    ) -> None:
        tls.issue("server", "redis.example.org")
        port = serve()
        with sentinel.client() as client:
            client.execute_command("SENTINEL", "MONITOR", NAME, "127.0.0.1", port, 1)

        fault = fault_of(over, self.url(tls, sentinel, **OURS), is_async=is_async)

        assert fault.what == "The server's certificate is not accepted."
        assert "127.0.0.1" in fault.message
        assert "announce" in fault.hint

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_certificates_are_read_once_for_many_questions_and_then_again(
        self,
        tls: Tls,
        sentinel: Server,
        monkeypatch: pytest.MonkeyPatch,
        is_async: bool,
    ) -> None:
        with sentinel.client() as client:
            client.execute_command("SENTINEL", "MONITOR", NAME, "127.0.0.1", 1, 1)
        url = self.url(tls, sentinel, **OURS)
        asked = OfTheServer.at(url).arguments["sentinels"]
        monkeypatch.setattr(sentinels, "CONTEXT_KEPT_S", 600)

        def find() -> int:
            return (asyncio.run(asked.afind()) if is_async else asked.find()).port

        assert find() == 1
        os.replace(tls.folder / "other-ca.pem", tls.folder / "ca.pem")
        assert find() == 1

        monkeypatch.setattr(sentinels, "CONTEXT_KEPT_S", 0)
        with pytest.raises(PrimaryNotFound, match="has a certificate that is accepted"):
            find()


def test_sentinels_without_tls_lead_to_servers_with_it(tls: Tls) -> None:
    """As a URL cannot say: its scheme holds for both."""
    watched = Watched(KIND, tls=tls)
    plain = [free_port() for _ in watched.sentinels]
    for sentinel, port in zip(watched.sentinels, plain, strict=True):
        # They also listen with TLS, for each other.
        sentinel.options["port"] = str(port)
    with watched:
        manager = Sentinel([("127.0.0.1", port) for port in plain])
        client = manager.master_for(NAME, ssl=True, **tls.files(**OURS))
        queue = BlockingQueue("mixed", connection=client)

        queue.put("a")
        assert asyncio.run(queue.apoll()) == "a"

        queue.close()
        client.close()
        for each in manager.sentinels:
            each.close()


class TestCertificatesOfNodes:
    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_no_node_is_trusted(
        self, tls: Tls, serve: Any, over: Over, is_async: bool
    ) -> None:
        skip_old_redis_py()
        port = serve(cluster_enabled="yes", tls_cluster="yes")
        url = tls.url(port, **OURS, ssl_ca_certs="other-ca.pem")
        url = url.replace("rediss://", "rediss+cluster://")

        fault = fault_of(over, url, is_async=is_async)

        assert fault.what == "The server's certificate is not accepted."
        assert "no node of the cluster can be reached: " in fault.message
        assert f"127.0.0.1:{port}" in fault.message
        assert "ssl_ca_certs" in fault.hint

    def test_one_node_has_a_certificate_for_another_host(
        self, tls: Tls, tls_cluster: Any, over: Over
    ) -> None:
        tls.issue("elsewhere", "redis.example.org")
        cluster = tls_cluster(("server", "elsewhere"), primaries=2, replicas=0)
        (there,), (elsewhere,) = cluster.names_on_each()
        over.name = there
        over.use(cluster.url)
        assert schedule(tasks.note.using(queue=there), LATER).state == "scheduled"

        over.name = elsewhere
        for is_async in (False, True):
            fault = fault_of(over, cluster.url, is_async=is_async)

            assert fault.what == "The server's certificate is not accepted."
            assert f"127.0.0.1:{cluster.nodes[1].port}" in fault.message
            assert "announce" in fault.hint
