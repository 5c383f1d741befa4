"""A server that refuses a worker from its start ends it; one that has ever accepted it is waited for."""

import signal
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq import schedule
from django_delayq.core.states import State
from django_delayq.faults import describe_fault, is_refused
from django_delayq.transport.clients import own_clients
from django_delayq.worker import outage
from django_delayq.worker.outage import REFUSED_MS, Flag, Outage
from django_delayq.worker.process import REFUSED
from tests.conftest import skip_old_redis_py
from tests.polling import wait_until
from tests.servers import free_port
from tests.worker.project import tasks
from tests.worker.workers import kill

SOON = {"WORKER_TEST_REFUSED_MS": "300"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(outage, "monotonic_ms", lambda: now[0])
    return now


@pytest.fixture
def use(settings: Any, queue_name: str) -> Any:
    def use(url: str) -> None:
        settings.DELAYQ = {
            "CONNECTION": url,
            "QUEUES": {"default": {}, queue_name: {}},
        }

    return use


def refusals() -> list[Exception]:
    return [
        AuthenticationError("WRONGPASS invalid username-password pair"),
        ResponseError("DB index is out of range"),
        RedisConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify"),
        RedisConnectionError("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert"),
    ]


@pytest.mark.parametrize("refusal", refusals(), ids=str)
def test_ten_seconds_of_refusals_alone_are_the_end(
    clock: list[float], refusal: Exception
) -> None:
    it = Outage(1_000, Flag())

    it.note_error(refusal)
    clock[0] = REFUSED_MS - 1
    it.note_error(refusal)
    assert not it.is_hopeless
    clock[0] = REFUSED_MS
    it.note_error(refusal)
    assert it.is_hopeless


def test_another_error_in_between_begins_the_time_again(clock: list[float]) -> None:
    it = Outage(1_000, Flag())
    refusal = refusals()[0]

    it.note_error(refusal)
    clock[0] = REFUSED_MS - 1
    it.note_error(RedisConnectionError("Connection refused"))
    it.note_error(refusal)
    clock[0] = REFUSED_MS
    it.note_error(refusal)

    assert not it.is_hopeless


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            RedisConnectionError("Error 111 connecting to h:6379. Connection refused."),
            "Is the server of DELAYQ['CONNECTION'] up",
        ),
        (
            RedisConnectionError("Error -2 connecting. Name or service not known."),
            "Is the server of DELAYQ['CONNECTION'] up",
        ),
        # What a server without TLS makes of a handshake.
        (
            RedisTimeoutError("Timeout connecting to server"),
            "If the URL begins with rediss://, does the server speak TLS?",
        ),
        # What a server with TLS makes of plain text.
        (
            RedisConnectionError("Error while reading: Connection reset by peer"),
            "require a password, TLS (rediss://)",
        ),
        (
            AuthenticationError("WRONGPASS"),
            "Check user and password in DELAYQ['CONNECTION']",
        ),
    ],
    ids=str,
)
def test_an_outage_is_logged_once_with_what_to_check(
    error: Exception, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = Outage(1_000, Flag())

    it.note_error(error)
    it.note_error(error)

    (record,) = caplog.records
    assert hint in record.getMessage()
    assert f"({error})" in record.getMessage()
    assert "CONNECTION" in describe_fault(error).hint


@pytest.mark.parametrize("by", ["this", "another"])
def test_a_worker_that_was_ever_accepted_is_refused_in_vain(
    clock: list[float], by: str
) -> None:
    accepted = Flag()
    it = Outage(1_000, accepted)
    (it if by == "this" else Outage(1_000, accepted)).note_reply()

    for clock[0] in (0.0, 2 * REFUSED_MS):
        it.note_error(refusals()[0])

    assert not it.is_hopeless


@pytest.mark.parametrize(
    ("password", "url", "setting"),
    [
        (
            "right",
            "redis://:wrong@127.0.0.1:{port}/0",
            "user and password in DELAYQ['CONNECTION']",
        ),
        (
            "right",
            "redis://127.0.0.1:{port}/0",
            "Add user and password to DELAYQ['CONNECTION']",
        ),
        ("", "redis://127.0.0.1:{port}/99", "its number in DELAYQ['CONNECTION']"),
    ],
)
def test_a_refused_worker_ends_with_status_78_and_names_the_setting(
    use: Any,
    program: Any,
    private_server: Any,
    queue_name: str,
    password: str,
    url: str,
    setting: str,
) -> None:
    server = private_server(**({"requirepass": password} if password else {}))
    use(url.format(port=server.port))

    worker = program("--queue", queue_name, "--processes", "2", environment=SOON)

    assert worker.wait() == 78 == REFUSED, worker.log
    assert (
        "the server has refused every connection since this worker was started"
        in worker.log
    )
    assert setting in worker.log
    assert "wrong" not in worker.log.replace("settings are wrong", "")


def test_a_worker_whose_password_changes_goes_on_once_it_is_right_again(
    use: Any, program: Any, private_server: Any, records: Any, queue_name: str
) -> None:
    """Also a process that was started meanwhile, which itself was never accepted."""
    server = private_server(requirepass="first")
    use(f"redis://:first@127.0.0.1:{server.port}/0")
    worker = program("--queue", queue_name, environment=SOON)
    note = tasks.note.using(queue=queue_name)
    job = schedule(note, 0)
    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it works")

    with server.client(password="first") as admin:
        admin.config_set("requirepass", "second")
        assert kill(records.all("run")[0]["pid"], signal.SIGKILL)
        admin.client_kill_filter(_type="normal", skipme=True)
        worker.wait_for_log("does not accept the account")
        # The new process has been refused for longer than that.
        wait_until(
            lambda: _refusals(admin) > 10, description="it is refused again and again"
        )
        admin.config_set("requirepass", "first")

    job = schedule(note, 0)
    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it goes on")
    assert worker.stop() in (0, 1)


def _refusals(admin: Any) -> int:
    return int(admin.info("stats")["acl_access_denied_auth"])


def reached(use: Any, url: str) -> Exception:
    use(url)
    client = own_clients.make()
    with pytest.raises(RedisError) as told:
        client.ping()
    client.close()
    return told.value


def test_a_cluster_has_refused_only_if_all_its_nodes_have(
    use: Any, private_server: Any
) -> None:
    skip_old_redis_py()
    nodes = [
        private_server(cluster_enabled="yes", requirepass="right") for _ in range(2)
    ]
    ports = [node.port for node in nodes]

    def url(*ports: int) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redis+cluster://:wrong@{hosts}"

    assert is_refused(reached(use, url(*ports)))
    nobody = free_port()
    for order in ((ports[0], nobody), (nobody, ports[0])):
        assert not is_refused(reached(use, url(*order)))


def test_sentinels_have_refused_only_if_all_have(use: Any, private_server: Any) -> None:
    sentinels = [private_server("--sentinel", requirepass="right") for _ in range(2)]
    ports = [sentinel.port for sentinel in sentinels]

    def url(*ports: int, password: str = "wrong") -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redis+sentinel://{hosts}/mymaster/0?sentinel_password={password}"

    assert is_refused(reached(use, url(*ports)))
    # No Sentinel knows that name.
    assert is_refused(reached(use, url(*ports, password="right")))
    for password in ("wrong", "right"):
        some = url(ports[0], free_port(), password=password)
        assert not is_refused(reached(use, some))


def test_a_task_that_ends_its_process_with_78_ends_no_worker(
    program: Any, records: Any, queue_name: str
) -> None:
    worker = program("--queue", queue_name)
    schedule(tasks.end_process.using(queue=queue_name), 0, 78)
    worker.wait_for_log("ended with status 78")

    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") >= 1, description="it goes on")

    assert worker.is_running
