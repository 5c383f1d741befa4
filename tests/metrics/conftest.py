"""A queue and a hand to play the worker, users of every right, real workers, and what a machine does to ask."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.admin import conftest as of_admin
from tests.jobs import conftest as of_jobs
from tests.management import conftest as of_management
from tests.metrics.reading import Scrape
from tests.worker import conftest as of_worker

login = of_admin.login
queue = of_jobs.queue
hand = of_jobs.hand
writes = of_management.writes
records, configure, work, program = (
    of_worker.records,
    of_worker.configure,
    of_worker.work,
    of_worker.program,
)

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def get(settings: Any) -> Callable[..., Any]:
    """Ask for one of our pages: with the token, with what a test gives for it, or without one for None."""

    def get(page: str, *, token: str | None = TOKEN, client: Client | None = None):
        if "METRICS_TOKENS" not in settings.DELAYQ:
            settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKENS": [TOKEN]}
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return (client or Client()).get(f"/delayq/{page}", headers=headers)

    return get


@pytest.fixture
def scrape(get: Callable[..., Any]) -> Callable[[], Scrape]:
    """Read the metrics as Prometheus does."""

    def scrape() -> Scrape:
        response = get("metrics")
        assert response.status_code == 200, response.content
        return Scrape.of(response.content.decode())

    return scrape
