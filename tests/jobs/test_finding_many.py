"""Many jobs: what a search costs the server, call by call, and how many calls it takes."""

from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
import redis

from django_delayq import find_jobs
from django_delayq.core import search_calls
from django_delayq.core.states import State
from django_delayq.transport.run import run
from tests.admin.filling import Queue
from tests.admin.test_many_jobs import JOBS, fill
from tests.servers import Server

#: Elements that one call may read.
MOST = 1_000
#: And the commands that it may run for each of them.
COMMANDS_AN_ELEMENT = 4

pytestmark = pytest.mark.slow


def calls_in(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(stats[name]["calls"] for name in names if name in stats)


def commands_in(client: redis.Redis) -> int:
    """Return how many commands ran, those of scripts included."""
    return sum(each["calls"] for each in client.info("commandstats").values())


def test_search_through_many_jobs_is_bounded(
    settings: Any, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {"many": {"INSERTION_LIST": False}},
    }
    queue = Queue(server.client(), "many")
    fill(queue, JOBS)
    dead = queue.dead(1)
    client = queue.client
    list(find_jobs(queue="many", state="dead"))  # loads the scripts and connects
    find_jobs(queue="many").count()

    place = search_calls.first_place([*State], now_ms=0)
    found = 0
    while not place.is_at_end:
        client.config_resetstat()
        page = run(
            client, search_calls.search(queue.keys, place, payload_bytes=1 << 20)
        )
        assert len(page.found) <= MOST
        # What a call takes, `benchmarks.finding` measures.
        assert commands_in(client) <= COMMANDS_AN_ELEMENT * len(page.found) + 100
        found += len(page.found)
        place = page.place
    assert found == JOBS + 1

    window = (timedelta(hours=1), timedelta(hours=1, seconds=100))
    for sought, fits in (
        ({"state": "scheduled"}, True),
        ({"state": "dead"}, True),
        ({"state": "running"}, False),
        ({"state": "scheduled", "due": window}, True),
        ({"state": "scheduled", "due": (timedelta(days=3), None)}, False),
        ({"limit": 0}, False),
    ):
        client.config_resetstat()
        first = list(islice(find_jobs(queue="many", **sought), 1))
        assert bool(first) is fits, sought
        assert calls_in(client) <= 1, sought
    assert [job.token for job in find_jobs(state="dead", text="it broke")] == [dead]

    client.config_resetstat()
    assert find_jobs(queue="many").count() == JOBS + 1
    assert calls_in(client) <= 1
