"""Servers that cannot store a job: the error is theirs, with a note on what became of the job and what to do."""

import asyncio
import socketserver
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.views.debug import ExceptionReporter
from django.views.decorators.debug import sensitive_variables
from redis.exceptions import (
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from django_delayq import (
    InvalidSettings,
    Job,
    MaybeScheduled,
    State,
    aschedule,
    aschedule_many,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.wire import published_reply
from tests.conftest import keys_of
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.polling import wait_until
from tests.servers import LASTING, Server

Start = Callable[..., Server]


def schedule_by(way: str, task: Any) -> Job[int]:
    """Schedule in one of the ways there are; those for many raise the server's error as their cause."""
    if way == "sync":
        return schedule(task, LATER, 1)
    if way == "async":
        return asyncio.run(aschedule(task, LATER, 1))
    jobs = [task.prepare(LATER, 1)]
    try:
        return (
            schedule_many(jobs) if way == "many" else asyncio.run(aschedule_many(jobs))
        )[0]
    except MaybeScheduled as error:
        if error.unsent != jobs or error.__cause__ is None:
            raise
        raise error.__cause__ from None


ways = pytest.mark.parametrize("way", ["sync", "async", "many", "amany"])


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.fixture
def point_at(settings: Any, queue: str) -> Callable[[str], Any]:
    """Name another server; returns the task to schedule there."""

    def point(url: str) -> Any:
        settings.DELAYQ = settings.DELAYQ | {"CONNECTION": url}
        return samples.add.using(queue=queue)

    return point


@ways
def test_unreachable_server(point_at: Callable[[str], Any], way: str) -> None:
    task = point_at("unix:///dev/null/nobody")

    with pytest.raises(ConnectionError) as failure:
        schedule_by(way, task)

    notes = notes_of(failure.value)
    assert "DELAYQ['CONNECTION']" in notes
    assert "can this process reach it" in notes
    assert "not stored" in notes
    assert "may be" not in notes


@ways
def test_server_that_speaks_no_tls(point_at: Callable[[str], Any], way: str) -> None:
    """What fails before anything is sent has stored nothing, and says so."""

    class NoTls(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"-ERR what is this\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), NoTls) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        task = point_at(f"rediss://127.0.0.1:{listener.server_address[1]}/0")
        with pytest.raises(ConnectionError) as failure:
            schedule_by(way, task)
        listener.shutdown()
        thread.join()

    notes = notes_of(failure.value)
    assert "not stored" in notes
    assert "may be" not in notes


@ways
def test_server_that_misses_its_replicas(
    point_at: Callable[[str], Any], private_server: Start, way: str
) -> None:
    server = private_server()
    task = point_at(server.socket_url)
    client = server.client()
    schedule_by(way, task).cancel()
    before = keys_of(client, "")
    client.config_set("min-replicas-to-write", 1)

    with pytest.raises(ResponseError, match="NOREPLICAS") as failure:
        schedule_by(way, task)

    notes = notes_of(failure.value)
    assert "not stored" in notes
    assert "may be" not in notes
    assert keys_of(client, "") == before


@ways
def test_server_that_is_busy_with_somebodys_script(
    point_at: Callable[[str], Any], private_server: Start, way: str
) -> None:
    server = private_server(lua_time_limit="10")
    task = point_at(server.socket_url)
    schedule_by(way, task).cancel()

    def spin() -> None:
        with pytest.raises(ResponseError):
            server.client(socket_timeout=None).eval("while true do end", 0)

    thread = threading.Thread(target=spin)
    thread.start()
    wait_until(lambda: is_busy(server), description="the server is busy")
    try:
        with pytest.raises(ResponseError, match="BUSY") as failure:
            schedule_by(way, task)
    finally:
        server.client().script_kill()
        thread.join()

    notes = notes_of(failure.value)
    assert "not stored" in notes
    assert "may be" not in notes


def is_busy(server: Server) -> bool:
    try:
        return not server.client().ping()
    except ResponseError as error:
        return "BUSY" in str(error)


@ways
def test_full_server(
    point_at: Callable[[str], Any], private_server: Start, way: str
) -> None:
    server = private_server(maxmemory_policy="noeviction")
    task = point_at(server.socket_url)
    client = server.client()
    schedule_by(way, task).cancel()
    before = keys_of(client, "")
    client.config_set("maxmemory", 1)

    with pytest.raises(OutOfMemoryError) as failure:
        schedule_by(way, task)

    assert "not stored. The server is at its maxmemory" in notes_of(failure.value)
    client.config_set("maxmemory", 0)
    assert keys_of(client, "") == before


@ways
def test_replica(
    point_at: Callable[[str], Any], private_server: Start, queue: str, way: str
) -> None:
    replica = private_server()
    replica.client().replicaof("127.0.0.1", 1)
    task = point_at(replica.socket_url)

    with pytest.raises(ReadOnlyError) as failure:
        schedule_by(way, task)

    assert "is a replica and takes no writes. Name the primary" in notes_of(
        failure.value
    )
    assert replica.client().keys() == []


@ways
def test_key_of_another_application(
    point_at: Callable[[str], Any], private_server: Start, queue: str, way: str
) -> None:
    server = private_server()
    task = point_at(server.socket_url)
    client = server.client()
    client.set(f"redisson_delay_queue_timeout:{{{queue}}}", "somebody's")

    with pytest.raises(ResponseError, match="WRONGTYPE") as failure:
        schedule_by(way, task)

    assert "Give the queue another name" in notes_of(failure.value)
    assert len(client.keys()) == 1


@ways
def test_user_without_rights(
    point_at: Callable[[str], Any], private_server: Start, way: str
) -> None:
    server = private_server()
    client = server.client()
    client.acl_setuser(
        "web",
        enabled=True,
        passwords=["+secret"],
        keys=["other*"],
        categories=["+@all"],
    )
    task = point_at(server.socket_url + "&username=web&password=secret")

    with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)perm|acl"):
        schedule_by(way, task)

    assert client.keys() == []


@ways
def test_wrong_password(
    point_at: Callable[[str], Any], private_server: Start, way: str
) -> None:
    server = private_server(requirepass="secret")
    task = point_at(server.socket_url + "&password=wrong")

    with pytest.raises(RedisError, match="password") as failure:
        schedule_by(way, task)

    notes = notes_of(failure.value)
    assert "not stored. The server does not accept the account" in notes
    assert "may be" not in notes

    job = schedule_by(way, point_at(server.socket_url + "&password=secret"))
    assert job.state is State.SCHEDULED


@ways
def test_database_that_is_not_there(
    point_at: Callable[[str], Any], private_server: Start, way: str
) -> None:
    server = private_server(databases="2")
    task = point_at(server.socket_url.replace("db=0", "db=7"))

    with pytest.raises(RedisError, match="out of range") as failure:
        schedule_by(way, task)

    notes = notes_of(failure.value)
    assert "not stored. The server has no such database" in notes
    assert "may be" not in notes


def test_no_connection_configured(settings: Any, queue: str) -> None:
    del settings.DELAYQ["CONNECTION"]
    settings.DELAYQ = {**settings.DELAYQ, "TEST": "connection"}

    with pytest.raises(InvalidSettings, match=r"CONNECTION'\] is not set"):
        schedule(samples.add.using(queue=queue), LATER, 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda job: get_job(job.id),
        lambda job: job.refresh(),
        lambda job: job.cancel(),
        lambda job: job.reschedule(5),
        lambda job: job.run_now(),
        lambda job: job.retry(),
        lambda job: job.discard(),
    ],
)
def test_handle_whose_server_went_away_says_so(
    point_at: Callable[[str], Any], private_server: Start, use: Callable[[Any], Any]
) -> None:
    server = private_server()
    job = schedule(point_at(server.socket_url), LATER, 1)
    server.kill()

    with pytest.raises(ConnectionError):
        use(job)

    server.start()
    assert job.refresh() is State.MISSING


def test_thread_goes_on_after_its_server_came_back(
    point_at: Callable[[str], Any], private_server: Start
) -> None:
    server = private_server(**LASTING)
    task = point_at(server.socket_url)
    first = schedule(task, LATER, 1)
    server.kill()
    with pytest.raises(ConnectionError):
        schedule(task, LATER, 2)
    server.start()

    second = schedule(task, LATER, 3)

    assert first.refresh() is second.refresh() is State.SCHEDULED


def test_scripts_come_back_with_a_server_that_forgot_them(
    point_at: Callable[[str], Any], private_server: Start
) -> None:
    server = private_server()
    task = point_at(server.socket_url)
    job = schedule(task, LATER, 1)
    server.client().script_flush()

    assert job.refresh() is State.SCHEDULED
    jobs = schedule_many([task.prepare(LATER, n) for n in range(1_200)])
    server.client().script_flush()
    more = schedule_many([task.prepare(LATER, n) for n in range(1_200)])
    assert {job.state for job in jobs + more} == {State.SCHEDULED}


@ways
def test_user_of_no_channel_schedules_and_is_told_once_what_that_costs(
    point_at: Callable[[str], Any],
    private_server: Start,
    way: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis 7 gives a new user no channel; the job is stored by the time that the server refuses to publish it."""
    monkeypatch.setattr(published_reply, "_told", set())
    server = private_server()
    server.client().acl_setuser(
        "web",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        categories=["+@all"],
        reset_channels=True,
    )
    task = point_at(server.socket_url + "&username=web&password=secret")

    job = schedule_by(way, task)
    assert job.refresh() is State.SCHEDULED
    assert job.reschedule(5)
    assert job.cancel()
    assert schedule_by(way, task).refresh() is State.SCHEDULED

    (record,) = caplog.records
    assert "the account has no right to publish it" in record.getMessage()


@sensitive_variables()
def schedule_quietly(task: Any, secret: int) -> None:
    schedule(task, LATER, secret)


def test_djangos_error_mail_has_no_variables_below_a_function_that_hides_its_own(
    point_at: Callable[[str], Any], settings: Any, rf: Any
) -> None:
    """docs/howto/admin.md advises this."""
    settings.DEBUG = False
    task = point_at("unix:///dev/null/nobody")
    try:
        schedule_quietly(task, 47_114_711)
    except ConnectionError:
        reporter = ExceptionReporter(rf.get("/"), *sys.exc_info(), is_email=True)

    frames = reporter.get_traceback_frames()
    assert "send_now" in [frame["function"] for frame in frames]
    ours = frames[1:]
    assert not [frame for frame in ours if "47114711" in str(frame["vars"])]
