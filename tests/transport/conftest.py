from typing import Any

import pytest
import redis

from django_delayq.transport import recovery
from tests.queues.proxy import Proxy
from tests.servers import ExternalServer, Server


@pytest.fixture
def proxy(server: Server | ExternalServer) -> Any:
    if isinstance(server, ExternalServer):
        pytest.skip("the proxy speaks to Unix sockets only")
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def through_proxy(proxy: Proxy) -> Any:
    """A client that never repeats a command by itself."""
    client = redis.Redis.from_url(
        proxy.url, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    )
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAUSES_S", (0.001, 0.001, 0.001))
