"""What a queue remembers of jobs that somebody may send again after their end."""

from collections.abc import Iterator

import pytest
from redis.exceptions import RedisError

from django_delayq.core import store as store_calls
from django_delayq.core.states import State
from django_delayq.core.store import ROW_MS, ROW_REPEAT_MS
from django_delayq.transport.run import run
from tests import conftest
from tests.core.rig import T0, Rig, names_of, token
from tests.servers import Server

#: Longer than the end of any job is known.
AFTER_MS = 60_000


def test_job_that_is_sent_again_after_its_end_is_not_stored(
    rig: Rig,
) -> None:
    rig.store_rows("a")
    rig.acknowledge(rig.lease())
    rig.now += AFTER_MS

    (again,) = rig.store_rows("a")

    assert again.beyond is State.UNKNOWN
    assert rig.claim().jobs == []


def test_job_that_was_kept_out_by_its_unique_key_stays_out(
    rig: Rig,
) -> None:
    rig.schedule({"holder": 0}, unique="ek")
    (kept_out,) = rig.store_rows("a", unique="ek")
    assert kept_out.holder == token("holder")
    rig.acknowledge(rig.lease())
    rig.now += AFTER_MS

    (again,) = rig.store_rows("a", unique="ek")

    assert again.beyond is State.UNKNOWN
    assert rig.claim().jobs == []


def test_row_is_remembered_for_a_year_and_since_when(rig: Rig) -> None:
    rig.store_rows("a")
    rig.now += 5_000
    rig.store_rows("a", "b")

    since = store_calls.when_sent(rig.keys, [token(name) for name in "abc"])

    assert run(rig.client, since) == [T0, T0 + 5_000, None]
    assert rig.client.zscore(rig.keys.sent, token("a")) == T0 + ROW_MS


def test_row_that_is_let_go_is_forgotten_a_while_later(rig: Rig) -> None:
    rig.store_rows("a", "b")

    names = [token("a"), token("never sent")]
    run(rig.client, store_calls.let_go(rig.keys, names, now_ms=T0))

    assert rig.client.zmscore(rig.keys.sent, [token("a"), token("b"), names[1]]) == [
        T0 + 2 * ROW_REPEAT_MS,
        T0 + ROW_MS,
        None,
    ]
    rig.now += 2 * ROW_REPEAT_MS + 1
    rig.store_rows("c")
    assert rig.client.zscore(rig.keys.sent, token("a")) is None


def test_row_that_waits_is_noted_when_it_is_sent(rig: Rig) -> None:
    """Somebody may have deleted what the queue remembered."""
    rig.store_rows("a")
    rig.client.delete(rig.keys.sent)

    rig.store_rows("a")

    assert rig.client.zscore(rig.keys.sent, token("a")) is not None
    assert len(rig.claim().jobs) == 1


@pytest.fixture(scope="module")
def own_server(server_kind: str) -> Iterator[Server]:
    """A server whose users nobody else needs."""
    if server_kind == "external":
        pytest.skip("makes users of its server; DELAYQ_TEST_URL is somebody's")
    server = Server(server_kind)
    yield server.start()
    server.stop()


@pytest.mark.parametrize("refused", ["zrem", "zadd", "rpush", "hset", "hincrby"])
def test_call_that_an_acl_stops_halfway_stores_nothing_and_its_repeat_stores_once(
    own_server: Server, queue_name: str, refused: str
) -> None:
    admin = own_server.client()
    admin.acl_setuser(
        "halfway",
        enabled=True,
        nopass=True,
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=[f"-{refused}"],
    )
    rig = Rig(admin, queue_name)

    def send() -> None:
        rig.store_rows("a", unique="ek")

    with own_server.client(username="halfway", password="") as rig.client:
        with pytest.raises(RedisError, match=r"(?i)perm|acl|can't run"):
            send()
    rig.client = admin
    # Those are no loss: a number that no frame carries, and that ranks were in use.
    harmless = {rig.keys.counters.encode(), rig.keys.control.encode()}
    assert set(conftest.keys_of(admin, queue_name)) <= harmless

    send()
    send()

    assert names_of(rig.claim()) == ["a"]
