"""Jobs that follow others into other queues: left by the end of those, and stored once where they belong."""

import re
from ast import literal_eval

import pytest

from django_delayq.core import forward_calls
from django_delayq.core import store as store_calls
from django_delayq.core.forward_calls import Forward, Waiting
from django_delayq.core.lease_ends import Done
from django_delayq.core.states import State
from django_delayq.transport.run import run
from tests.core.rig import LEASE, T0, Rig, names_of, token
from tests.core.tour import follower, forward
from tests.pages import ROOT

#: Longer than the end of any job is known.
AFTER_MS = 60_000


def left(rig: Rig, queue: str) -> list[Forward]:
    page = run(rig.client, forward_calls.page(rig.keys, queue, count=100))
    found = [forward_calls.read_forward(member) for member in page]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("way", ["acknowledge", "bury"])
def test_end_of_a_job_leaves_what_follows_into_other_queues(rig: Rig, way: str) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    rig.now = 10
    forwards = [
        (0, "other", follower("c", "+5", unique="ek")),
        (1, "more", follower("d")),
        (1, "other", follower("e")),
    ]

    end = rig.acknowledge if way == "acknowledge" else rig.bury
    reply = end(a, b, followers=[(1, follower("f"))], forwards=forwards)

    assert reply == [T0 + 10]
    assert rig.inspect("f").state is State.DUE
    jobs = {
        queue: [each.job for each in left(rig, queue)] for queue in ("other", "more")
    }
    told = {
        queue: [(each.token, each.when) for each in its] for queue, its in jobs.items()
    }
    assert told == {
        "other": [(token("c"), "+5"), (token("e"), "+0")],
        "more": [(token("d"), "+0")],
    }
    assert jobs["other"][0].tail == b"ek"
    rig.now = 30
    found = rig.forwards()
    assert found.now_ms == T0 + 30
    assert found.waiting == [
        Waiting("more", 1, T0 + 10),
        Waiting("other", 2, T0 + 10),
    ]


def test_what_waits_for_one_queue_can_be_deleted_by_hand(rig: Rig) -> None:
    """With the commands of the page, for other queues."""
    rig.schedule({"a": 0})
    (a,) = rig.claim().jobs
    names = ["gone", "gon", "gone2", "gone"]
    forwards = [(0, name, follower(f"f{n}")) for n, name in enumerate(names)]
    rig.acknowledge(a, forwards=forwards)
    page = (ROOT / "docs" / "howto" / "what-follows.md").read_text()
    tag = rig.keys.forwards.partition("{")[2]

    for command in ("ZLEXCOUNT", "ZREMRANGEBYLEX"):
        typed = re.findall(rf"^> {command} (.*)$", page, re.MULTILINE)
        key, *ends = map(literal_eval, re.findall(r'"[^"]*"', typed[0]))
        assert (
            rig.client.execute_command(command, key.replace("orders}", tag), *ends) == 2
        )

    assert [each.queue for each in rig.forwards().waiting] == ["gon", "gone2"]


@pytest.mark.parametrize("way", ["acknowledge", "bury"])
def test_end_with_a_lost_lease_leaves_nothing(rig: Rig, way: str) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    a.fence = b"other---"
    forwards = [(0, "other", follower("c")), (1, "other", follower("d"))]
    end = rig.acknowledge if way == "acknowledge" else rig.bury

    assert end(a, b, forwards=forwards) == [0, T0]

    assert [each.job.token for each in left(rig, "other")] == [token("d")]
    assert end(a, b, forwards=forwards) == [0, 1, T0]
    assert len(left(rig, "other")) == 1


def test_worker_that_was_cut_off_leaves_nothing_beside_the_one_that_took_over(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    lost = rig.lease()
    rig.now = LEASE + 1
    ours = rig.lease(owner=b"owner--2")
    rig.acknowledge(ours, forwards=[(0, "other", follower("b"))])
    rig.now += 1

    rig.acknowledge(lost, forwards=[(0, "other", follower("b"))])

    assert len(left(rig, "other")) == 1


def test_result_stays_beside_forwards(rig: Rig) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    done = Done(job.token, job.fence, 60_000, b"result")

    rig.acknowledge(done, forwards=[(0, "other", follower("b"))])

    kept = rig.client.lrange(rig.keys.result(job.token), 0, -1)
    assert kept == [b"result", job.payload, b""]


def test_forward_that_is_read_back_is_the_one_that_was_left(rig: Rig) -> None:
    rig.schedule({"a": 0})
    new = follower("b", "=1700000000123", unique="ek", priority=3)

    (ended_ms,) = rig.acknowledge(rig.lease(), forwards=[(0, "other", new)])

    assert left(rig, "other") == [
        forward_calls.forward_of("other", new, ended_ms)._replace(
            job=new._replace(
                tail=new.tail if isinstance(new.tail, bytes) else new.tail.encode()
            )
        )
    ]


def test_delay_counts_from_the_end_of_the_job_before(rig: Rig) -> None:
    rig.now = 20

    rig.receive(forward("a", "+50"), forward("b", "+5"), forward("c", f"={T0 + 30}"))

    starts = [rig.inspect(name).start_time_ms - T0 for name in "abc"]
    # What should have begun by now begins now.
    assert starts == [50, 20, 30]


def test_forward_is_stored_once_however_late_it_comes_again(rig: Rig) -> None:
    assert rig.receive(forward("a")).stored == {token("a")}
    rig.acknowledge(rig.lease())
    rig.now += AFTER_MS

    assert rig.receive(forward("a")).stored == set()
    assert rig.claim().jobs == []


def test_forward_that_its_unique_key_kept_out_stays_out(rig: Rig) -> None:
    rig.schedule({"holder": 0}, unique="ek")
    assert rig.receive(forward("a", unique="ek")).stored == set()
    rig.acknowledge(rig.lease())
    rig.now += AFTER_MS

    assert rig.receive(forward("a", unique="ek")).stored == set()


def test_holder_that_java_has_taken_keeps_nothing_out(rig: Rig) -> None:
    rig.schedule({"holder": 90}, unique="ek")
    rig.client.delete(rig.keys.queue.timeout_set, rig.keys.queue.delay_queue)

    assert rig.receive(forward("a", unique="ek")).stored == {token("a")}

    # A sweep does that.
    rig.client.hdel(rig.keys.locators, token("holder"))


def test_job_that_ends_again_after_a_replay_is_followed_again(rig: Rig) -> None:
    new = follower("a")
    rig.receive(forward_calls.forward_of("queue", new, T0))
    rig.acknowledge(rig.lease())

    rig.now = 2
    again = forward_calls.forward_of("queue", new, T0 + 1)

    assert rig.receive(again).stored == {token("a")}
    # It waits, so that of a third end is not needed.
    assert rig.receive(forward_calls.forward_of("queue", new, T0 + 2)).stored == set()
    assert names_of(rig.claim()) == ["a"]


def test_call_that_comes_too_late_stores_nothing(rig: Rig) -> None:
    """Its sender was cut off. Others have stored it, and it was forgotten."""
    received = rig.receive(forward("a"), good_ms=-1)

    assert received.is_late
    assert received.now_ms == T0
    assert rig.inspect("a").state is State.MISSING


def test_what_was_let_go_is_known_for_longer_than_a_call_is_good(rig: Rig) -> None:
    rig.receive(forward("a"))
    rig.acknowledge(rig.lease())
    run(rig.client, store_calls.let_go(rig.keys, [forward("a").name], now_ms=T0))
    rig.now += forward_calls.GOOD_MS
    rig.receive(forward("b"))

    assert rig.receive(forward("a"), good_ms=0).stored == set()

    rig.now += forward_calls.GOOD_MS + 1
    rig.receive(forward("c"))
    assert rig.client.zscore(rig.keys.sent, forward("a").name) is None


def test_full_queue_takes_what_is_forwarded(rig: Rig) -> None:
    rig.schedule({"a": 0}, max_jobs=1)

    assert len(rig.receive(forward("b"), forward("c")).stored) == 2


def test_what_an_earlier_version_has_sent_is_not_stored_again(rig: Rig) -> None:
    """Its worker died before the end of the job before it. The next end, after a replay, counts."""
    rig.client.zadd(rig.keys.sent, {token("a"): T0 + 7 * 86_400_000})

    assert rig.receive(forward("a")).stored == set()
    assert rig.receive(forward("a")).stored == set()

    again = forward_calls.forward_of("queue", follower("a"), T0 + 1)
    assert rig.receive(again).stored == {token("a")}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"other",
        b"other\0",
        b"other\0" + b"9" * 15 + b"-" * 22,
        b"other\0" + b"9" * 15 + b"-" * 22 + b"\x93\xa2x5\xc4\0\xc4\0",
        b"other\0" + b"x" * 15 + b"-" * 22 + b"\x93\xa2+5\xc4\0\xc4\0",
        b"\xff\0\xff",
    ],
)
def test_what_nobody_of_us_has_left_is_passed_over(rig: Rig, text: bytes) -> None:
    rig.client.zadd(rig.keys.forwards, {text: 0})
    rig.schedule({"a": 0})
    rig.acknowledge(rig.lease(), forwards=[(0, "other", follower("b"))])

    assert [each.job.token for each in left(rig, "other")] == [token("b")]
    assert "other" in [each.queue for each in rig.forwards().waiting]
