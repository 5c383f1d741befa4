"""The cost of an operation does not depend on how many jobs wait. The server measures each call.

A loaded machine may interrupt a call, so the tests compare the median of many.
"""

from collections.abc import Callable, Iterator
from statistics import median

import pytest
import redis

from django_delayq.core import queue_reads
from django_delayq.core.states import State
from tests.core.rig import Rig
from tests.servers import Server

MANY = 20_000
#: Calls of which the median is compared.
CALLS = 60
#: The server also logs the commands inside scripts.
LOGGED = 10_000

Work = Callable[[Rig, int], object]
WORK: dict[str, Work] = {
    "schedule": lambda rig, n: rig.schedule({f"new{n}": 50 * n}),
    "cancel": lambda rig, n: rig.cancel(f"mine{n}"),
    "reschedule": lambda rig, n: rig.reschedule(f"mine{n}", 77 * n),
    "inspect": lambda rig, n: rig.inspect(f"mine{n}"),
    "claim": lambda rig, n: rig.claim(1),
    "counts": lambda rig, n: rig.counters(),
}


@pytest.fixture(scope="module")
def slow_server(server_kind: str) -> Iterator[Server]:
    """A server that logs how long each call took."""
    if server_kind == "external":
        pytest.skip("reconfigures its server; DELAYQ_TEST_URL is somebody's")
    options = {"slowlog_log_slower_than": "0", "slowlog_max_len": str(LOGGED)}
    server = Server(server_kind, options)
    yield server.start()
    server.stop()


def durations_in(client: "redis.Redis[bytes]") -> list[int]:
    log = client.slowlog_get(LOGGED)
    return [item["duration"] for item in log if item["command"].startswith(b"EVAL")]


@pytest.fixture(scope="module", params=["spread", "one time"])
def few_and_many(
    slow_server: Server, request: pytest.FixtureRequest
) -> tuple[Rig, Rig]:
    """A queue with few jobs, and one with many that start one after the other, or all at once."""
    client = slow_server.client()
    client.flushall()
    few, many = (Rig(client, name, insertion_list=False) for name in ("few", "many"))
    for start in range(0, MANY, 500):
        due = 5_000_000
        names = {
            f"j{n}": due if request.param == "one time" else due + n
            for n in range(start, start + 500)
        }
        many.schedule(names)
    return few, many


def cost_us(rig: Rig, work: Work) -> float:
    """Return the server's time for one call, with the same number of due jobs on every queue."""
    client = rig.client
    rig.schedule({f"mine{n}": n % 7 for n in range(CALLS)})
    rig.now += 10
    work(rig, 0)
    client.slowlog_reset()
    for n in range(1, CALLS):
        work(rig, n)
    durations = durations_in(client)
    assert len(durations) > CALLS / 2
    return median(durations)


@pytest.mark.parametrize("work", WORK)
def test_cost_is_the_same_with_many_jobs_waiting(
    few_and_many: tuple[Rig, Rig], work: str
) -> None:
    few, many = few_and_many

    costs = [(cost_us(few, WORK[work]), cost_us(many, WORK[work])) for _ in range(4)]

    alone, among_many = (min(column) for column in zip(*costs, strict=True))
    assert among_many < 2.5 * alone + 30


def test_pages_cost_the_same_at_the_beginning_of_many_jobs(slow_server: Server) -> None:
    client = slow_server.client()
    client.flushall()
    few, many = (Rig(client, name, insertion_list=False) for name in ("few", "many"))
    few.schedule({f"j{n}": n for n in range(50)})
    for start in range(0, MANY, 500):
        many.schedule({f"j{n}": n for n in range(start, start + 500)})

    def page_us(rig: Rig, first: int) -> float:
        client.slowlog_reset()
        for _ in range(9):
            call = queue_reads.page(rig.keys, State.SCHEDULED, first=first, count=50)
            assert len(rig.run(call).rows) == 50
        return median(durations_in(client))

    for first in (0, 10, MANY // 2, MANY - 50):
        costs = [(page_us(few, 0), page_us(many, first)) for _ in range(4)]
        alone, among_many = (min(column) for column in zip(*costs, strict=True))
        assert among_many < 2.5 * alone + 30
