"""A node of a cluster that hangs is waited for once by whatever asks several queues, and not once for each of them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.test import Client

from django_delayq import PartialAnswer, find_jobs, get_schedules
from django_delayq.server_checks import check_server
from django_delayq.transport.exchange import Address
from tests.admin import conftest as of_admin
from tests.admin.conftest import url
from tests.faults import lame as of_lame
from tests.faults.lame import Lame
from tests.management import conftest as of_management
from tests.management.conftest import Call
from tests.metrics import conftest as of_metrics

whole, filled, hanging = of_lame.whole, of_lame.filled, of_lame.hanging
asked = of_lame.asked
call, login, browser = of_management.call, of_admin.login, of_admin.browser
get, scrape = of_metrics.get, of_metrics.scrape


class Asker:
    """Somebody at a shell, at a terminal, at a browser, or Prometheus."""

    def __init__(self, call: Call, browser: Client, scrape: Callable[[], Any]) -> None:
        self.call, self.browser, self.scrape = call, browser, scrape


@pytest.fixture
def asker(call: Call, browser: Client, scrape: Callable[[], Any]) -> Asker:
    return Asker(call, browser, scrape)


@pytest.mark.parametrize(
    ("ask", "tries"),
    [
        # A call is made once more when its reply was lost; and a search asks any node for the time.
        (lambda asker: get_schedules(), 2),
        (lambda asker: list(find_jobs()), 3),
        (lambda asker: asker.call("delayq_jobs", "list"), 3),
        # Where several things are asked, the node is asked for the first of them only.
        (lambda asker: asker.call("delayq_status"), 1),
        (lambda asker: asker.call("delayq_health"), 1),
        (lambda asker: check_server(), 1),
        (lambda asker: asker.scrape(), 1),
        (lambda asker: asker.browser.get(url("changelist")), 1),
        (lambda asker: asker.browser.get(url("tasks")), 1),
    ],
    ids=[
        "get_schedules",
        "find_jobs",
        "delayq_jobs",
        "delayq_status",
        "delayq_health",
        "check",
        "metrics",
        "overview",
        "tasks",
    ],
)
def test_silent_node_is_waited_for_once(
    hanging: Lame,
    asker: Asker,
    asked: list[Address],
    ask: Callable[[Asker], Any],
    tries: int,
) -> None:
    with suppress(PartialAnswer):
        ask(asker)

    assert 1 <= len(asked) <= tries
