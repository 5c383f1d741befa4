"""A server that goes away and comes back, in all the ways that servers do."""

import contextlib
import random
import re
import signal
import socket
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import schedule, schedule_many
from django_delayq.core.claim import LOOKS_A_LEASE
from django_delayq.core.states import State
from django_delayq.transport.clients import own_clients
from django_delayq.transport.line import Line
from django_delayq.worker import outage
from tests.polling import wait_until
from tests.servers import LASTING
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS, counts


@pytest.fixture
def lasting(private_server, settings, queue_name, configure):
    """A server of this test's own that keeps what it has acknowledged."""
    server = private_server(**LASTING)
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {"default": {}, queue_name: {}},
        "WORKER": {"LEASE": 30},
    }
    return server


@every_server
def test_a_restart_in_the_middle_of_a_run_loses_nothing_and_restarts_no_worker(
    lasting, program, records, queue_name
):
    jobs = schedule_many(
        tasks.nap.using(queue=queue_name).prepare(0, 0.1) for _ in range(400)
    )
    worker = program("--queue", queue_name, "--processes", "2")
    wait_until(lambda: records.count("end") >= 50, description="it works")

    lasting.kill(signal.SIGKILL)
    children = worker.children()
    worker.wait_for_log("the server does not serve")
    lasting.start()
    wait_until(lambda: records.count("end") >= 200, description="it goes on")
    lasting.restart()

    wait_until(
        lambda: set(records.jobs("end")) == {job.id for job in jobs},
        description="all have run",
        timeout=90,
    )
    wait_until(
        lambda: counts(queue_name).counters["succeeded"] == 400,
        description="all are settled",
        timeout=90,
    )
    assert worker.children() == children
    worker.wait_for_log("the server is back")
    assert records.count("start") == 400


def test_a_worker_that_finds_no_server_waits_for_it(
    lasting, program, records, queue_name
):
    lasting.shutdown()
    worker = program("--queue", queue_name)
    worker.wait_for_log("the server does not serve, trying again until it does")

    lasting.start()
    schedule(tasks.note.using(queue=queue_name), 0)

    wait_until(lambda: records.count("run") == 1, description="it works")
    worker.wait_for_log("the server is back")
    warnings = [line for line in worker.log.splitlines() if " WARNING " in line]
    assert len(warnings) == 2, worker.log


def wait_for_attempts(worker):
    """Wait until several attempts to reach the server have failed."""
    wait_until(
        lambda: worker.log.count("DEBUG cannot listen to") >= 6,
        description="it has tried to connect again and again",
    )


def test_an_outage_is_told_once_and_names_no_channel(
    lasting, program, records, queue_name
):
    worker = program("--queue", queue_name, "--verbosity", "2")
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 1, description="it works")

    lasting.kill()
    worker.wait_for_log("the server does not serve")
    wait_for_attempts(worker)
    lasting.start()
    worker.wait_for_log("the server is back")

    told = [
        line
        for line in worker.log.splitlines()
        if re.search(" (WARNING|ERROR) ", line) and "append-only" not in line
    ]
    assert len(told) == 3, worker.log
    assert sum("another server answers at" in line for line in told) == 1
    assert not any("redisson_delay_queue" in line for line in told)


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_server_that_was_started_again_with_its_data_has_forgotten_nothing(
    lasting, work, records, settings, queue_name, caplog, prefix
):
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": prefix}
    worker = work()
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 1, description="it works")
    registering, changes = worker.loop._entry, own_clients.changes

    lasting.restart()
    wait_until(lambda: own_clients.changes > changes, description="it is noticed")
    now_s, now_us = own_clients.shared().time()
    schedule(tasks.note.using(queue=queue_name), 0)

    wait_until(lambda: records.count("run") == 2, description="it works again")
    wait_until(
        lambda: (registering._kept_ms or 0) > 1000 * now_s + now_us // 1000,
        description="it is listed again",
    )
    assert own_clients.changes == changes + 1
    assert caplog.text.count("another server answers at") == 1
    assert "forgotten" not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("redis://:wrong-one@127.0.0.1:{port}/0", "user and password"),
        ("redis://nobody:wrong-one@127.0.0.1:{port}/0", "user and password"),
        ("redis://127.0.0.1:{port}/0", "user and password"),
        ("redis://:right@127.0.0.1:{port}/99", "Correct its number"),
    ],
    ids=["password", "user", "none", "database"],
)
def test_wrong_connection_is_one_error_that_names_the_setting(
    private_server, program, settings, queue_name, wrong, said
):
    server = private_server(requirepass="right")
    settings.DELAYQ = {
        **settings.DELAYQ,
        "CONNECTION": wrong.format(port=server.port),
    }
    worker = program("--queue", queue_name, "--verbosity", "2")
    worker.wait_for_log(" ERROR ")
    wait_for_attempts(worker)

    told = [
        line for line in worker.log.splitlines() if re.search(" (WARNING|ERROR) ", line)
    ]
    assert len(told) == 1, worker.log
    assert said in told[0]
    assert "DELAYQ['CONNECTION']" in told[0]
    assert "wrong-one" not in worker.log


def test_a_worker_can_be_stopped_while_the_server_is_away(
    lasting, program, records, queue_name
):
    worker = program("--queue", queue_name, "--grace", "1")
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    lasting.kill()
    records.let_go()
    wait_until(lambda: records.count("end") == 1, description="it has ended")
    worker.signal(signal.SIGTERM)

    # It could not say how the job ended, so that will run again.
    assert worker.wait(60) == 1
    assert "could not report ended jobs to the server" in worker.log
    lasting.start()
    assert job.refresh() is State.RUNNING


def test_a_worker_looks_and_tries_again_often_enough_within_a_short_lease(
    lasting, work, records, queue_name, monkeypatch
):
    lease_s = 2
    worker = work(lease_s=lease_s)
    pauses = []
    wait_for_server = worker.loop._wait_for_server

    def waiting(error):
        wait_for_server(error)
        pauses.append(worker.loop._outage.pause_ms)

    monkeypatch.setattr(worker.loop, "_wait_for_server", waiting)
    lasting.kill()

    # Doubled for ever it would be 1 s by then, and who comes back so late finds its leases taken.
    wait_until(lambda: len(pauses) >= 6, description="it has tried often")
    assert max(pauses) == 1000 * lease_s / LOOKS_A_LEASE
    assert worker.loop.alarm.cap_ms == 1000 * lease_s / LOOKS_A_LEASE


def test_the_worker_says_that_the_server_is_back_as_soon_as_it_has_answered(
    lasting, work, records, queue_name, caplog
):
    # Nothing wakes it afterwards: no cap, no renewal, no end of a job.
    work(cap_ms=NEVER_MS, lease_s=600)
    schedule(tasks.hold.using(queue=queue_name), 5)
    lasting.kill()
    wait_until(lambda: "does not serve" in caplog.text, description="it is away")
    assert "the server is back" not in caplog.text

    lasting.start()

    wait_until(lambda: "the server is back" in caplog.text, description="it is back")
    assert caplog.text.count("the server is back") == 1


def test_jobs_that_end_while_the_server_is_away_are_settled_when_it_is_back(
    lasting, work, records, queue_name
):
    work(threads=4)
    jobs = [schedule(tasks.hold.using(queue=queue_name), 0) for _ in range(3)]
    failing = schedule(tasks.fail.using(queue=queue_name, max_attempts=1), 0.2)
    wait_until(lambda: records.count("start") == 3, description="they run")
    wait_until(lambda: records.count("run") == 1, description="one has failed")

    lasting.kill()
    records.let_go()
    wait_until(lambda: records.count("end") == 3, description="they have ended")
    lasting.start()

    wait_until(
        lambda: counts(queue_name).counters.get("succeeded") == 3,
        description="they are settled",
    )
    wait_until(lambda: failing.refresh() is State.DEAD, description="it is settled")
    assert [job.refresh() for job in jobs] == [State.SUCCEEDED] * 3
    assert records.count("start") == 3


@every_server
def test_lost_subscriptions_and_forgotten_scripts_are_made_again(
    lasting, work, records, queue_name
):
    # No safety wake-up in the time of this test.
    work(cap_ms=NEVER_MS)
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 1, description="it works")
    client = lasting.client()
    channel = f"redisson_delay_queue_channel:{{{queue_name}}}"
    wait_until(
        lambda: client.pubsub_numsub(channel)[0][1] == 1, description="it listens"
    )

    assert client.client_kill_filter(_type="pubsub") >= 1
    client.script_flush()

    wait_until(
        lambda: client.pubsub_numsub(channel)[0][1] == 1, description="it listens again"
    )
    job = schedule(tasks.note.using(queue=queue_name), 3600)
    job.run_now()
    wait_until(lambda: records.count("run") == 2, description="it works again")


def test_every_connection_of_the_worker_may_be_cut_at_any_time(
    lasting, work, records, queue_name
):
    work()
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(i / 200, i) for i in range(400)
    )
    client = lasting.client()

    while len(records.all("run")) < 400:
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub")
        seen = records.count("run")
        wait_until(
            lambda seen=seen: records.count("run") > min(399, seen + 30),
            description="it goes on",
        )

    wait_until(lambda: counts(queue_name).running == 0, description="all is settled")
    # A reply that was lost is asked for again: nothing waits for a lease to expire, and nothing runs twice.
    assert sorted(records.jobs("run")) == sorted(job.id for job in jobs)
    assert {line["kills"] for line in records.all("run")} == {0}


class Gate:
    """Stands between a worker and its server, and can swallow replies."""

    def __init__(self, path, target):
        self._target = str(target)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.url = f"unix://{path}?db=0"
        #: How many replies of scripts to lose, with their connections.
        self.to_lose = 0
        self.lost = 0
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            outer = socket.socket(socket.AF_UNIX)
            outer.connect(self._target)
            self._sockets += [inner, outer]
            state = {"scripts": False}
            for source, sink, is_reply in ((inner, outer, False), (outer, inner, True)):
                threading.Thread(
                    target=self._pump, args=(source, sink, is_reply, state), daemon=True
                ).start()

    def _pump(self, source, sink, is_reply, state):
        try:
            while data := source.recv(65536):
                if not is_reply:
                    state["scripts"] = b"EVAL" in data
                elif state["scripts"] and self.to_lose > 0:
                    self.to_lose -= 1
                    self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self):
        for each in self._sockets:
            each.close()


@every_server
def test_lost_replies_lose_and_repeat_nothing(
    lasting, work, records, queue_name, settings, tmp_path
):
    gate = Gate(lasting.directory / "gate", lasting.socket_path)
    direct = settings.DELAYQ
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(i / 300) for i in range(300)
    )
    failing = schedule(tasks.fail_until.using(queue=queue_name), 0.2, 4)
    try:
        settings.DELAYQ = {**direct, "CONNECTION": gate.url}
        worker = work()
        settings.DELAYQ = direct
        for seen in range(0, 300, 25):
            wait_until(
                lambda seen=seen: len(set(records.jobs("run"))) > seen,
                description="it goes on",
            )
            before = gate.lost
            gate.to_lose = 1
            wait_until(
                lambda before=before: gate.lost > before, description="one is lost"
            )
        wait_until(
            lambda: failing.refresh() is State.SUCCEEDED, description="it is done"
        )
        wait_until(
            lambda: len(set(records.jobs("run"))) == 301, description="all have run"
        )
        wait_until(
            lambda: counts(queue_name).running == 0, description="all is settled"
        )
        gate.to_lose = 0
        worker.stop()
    finally:
        gate.close()

    assert gate.lost >= 6
    assert sorted(records.jobs("run")) == sorted(
        [*(job.id for job in jobs), *[failing.id] * 4]
    )
    assert counts(queue_name).counters["succeeded"] == 301
    assert counts(queue_name).counters["retried"] == 3
    assert {line["kills"] for line in records.all("run")} == {0}


def test_connections_that_cannot_be_made_lose_nothing(
    lasting, work, queue_name, monkeypatch
):
    # Nothing takes long, so the next claim is sent before the jobs of the last one are handed out.
    monkeypatch.setattr(outage, "BACKOFF_MS", (1.0, 1.0))
    worker = work(lease_s=120)
    pool = worker.loop._parts.client.connection_pool
    get_connection, chosen, failures = pool.get_connection, random.Random(1), []

    def get_or_fail():
        if chosen.random() < 0.3:
            failures.append(1)
            raise RedisConnectionError("no more of them")
        return get_connection()

    pool.get_connection = get_or_fail
    make_ready = Line._make_ready

    def lose_and_make_ready(line):
        # Else one connection would do for all.
        line.close()
        make_ready(line)

    monkeypatch.setattr(Line, "_make_ready", lose_and_make_ready)
    scheduled = 0

    while len(failures) <= 10:
        schedule_many(
            tasks.nothing.using(queue=queue_name).prepare(0) for _ in range(1000)
        )
        scheduled += 1000
        # A lost lease would be found again after 120 s.
        wait_until(
            lambda all_=scheduled: counts(queue_name).counters.get("succeeded") == all_,
            description="all have run",
            timeout=90,
        )
    assert counts(queue_name).running == 0
