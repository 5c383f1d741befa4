"""Jobs that were put aside: dead letters and quarantine, replayed or discarded."""

import pytest

from django_delayq.core import queue_reads
from django_delayq.core.states import State
from tests.core.rig import LEASE, T0, Rig, names_of, payload

ASIDE = pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])


def put_aside(rig: Rig, *names: str, state: State = State.DEAD) -> None:
    rig.schedule(dict.fromkeys(names, 0))
    jobs = rig.claim(len(names)).jobs
    rig.retry(*jobs, wait=0)
    rig.bury(*rig.claim(len(names)).jobs, state=state)


@ASIDE
def test_replayed_job_starts_over_with_its_first_attempt(
    rig: Rig, state: State
) -> None:
    put_aside(rig, "a", "b", state=state)
    rig.now = 50

    assert rig.replay("a", state=state) == 1

    assert rig.state()["returned"] == {"a": 50}
    job = rig.lease()
    assert (job.attempts, job.kills, job.start_time_ms) == (0, 0, T0 + 50)
    assert job.payload == payload("a")
    rig.acknowledge(job)
    assert list(rig.state()) == ["dead" if state is State.DEAD else "quarantine"]


@pytest.mark.parametrize(
    ("when", "due"), [("+0", 51), ("+500", 551), (f"={T0 + 900}", 900), ("=0", 51)]
)
def test_replay_is_never_early(rig: Rig, when: str, due: int) -> None:
    put_aside(rig, "a")
    rig.now = 50.5

    rig.replay("a", when=when)

    assert rig.state()["returned"] == {"a": due}


def test_replay_is_told_on_our_channel(rig: Rig) -> None:
    put_aside(rig, "a", "b")
    with rig.listening(rig.keys.channel) as heard:
        rig.replay("a", "b", when="+70")
        rig.replay("nobody")

        assert heard() == [70]


@ASIDE
@pytest.mark.parametrize("way", ["replay", "discard"])
def test_what_is_not_aside_is_left_alone(rig: Rig, way: str, state: State) -> None:
    rig.schedule({"leased": 0, "retrying": 1})
    rig.now = 1
    leased, retrying = rig.claim().jobs
    rig.retry(retrying)
    rig.schedule({"waiting": 500})
    other = State.QUARANTINED if state is State.DEAD else State.DEAD
    rig.bury(rig.lease(), state=other) if rig.schedule({"other": 0}) else None
    before = rig.state()

    call = rig.replay if way == "replay" else rig.discard
    names = ("leased", "retrying", "waiting", "other", "nobody")
    assert call(*names, state=state) == 0

    assert rig.state() == before
    assert rig.renew(leased) == []


@ASIDE
def test_discarded_job_leaves_nothing(rig: Rig, state: State) -> None:
    put_aside(rig, "a", "b", state=state)

    assert rig.discard("a", "b", "a", state=state) == 2

    assert rig.state() == {}
    assert rig.leftovers() == [rig.keys.claims]
    assert rig.inspect("a").state is State.DISCARDED


@pytest.mark.parametrize("way", ["replay", "discard"])
def test_hundreds_at_once(rig: Rig, way: str) -> None:
    names = [f"j{n}" for n in range(400)]
    put_aside(rig, *names)

    call = rig.replay if way == "replay" else rig.discard
    assert call(*names) == 400

    assert len(rig.claim(500).jobs) == (400 if way == "replay" else 0)


def test_job_can_die_and_be_replayed_again_and_again(rig: Rig) -> None:
    put_aside(rig, "a")
    for _ in range(3):
        rig.replay("a")
        rig.bury(rig.lease())

    assert list(rig.state()) == ["dead"]
    assert rig.counters()["dead"] == 4


def test_killed_job_can_be_replayed_and_is_given_its_kills_back(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.claim(max_kills=0)
    rig.now = LEASE
    rig.claim(max_kills=0)
    assert rig.inspect("a").kills == 1

    rig.replay("a")

    assert rig.lease(max_kills=0).kills == 0


def test_bad_frame_can_be_replayed_and_is_handed_out_whole(rig: Rig) -> None:
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad frame": T0})
    rig.claim()
    (row,) = rig.run(queue_reads.page(rig.keys, State.QUARANTINED)).rows

    assert rig.replay(row.token, state=State.QUARANTINED) == 1

    job = rig.lease()
    assert (job.payload, job.is_foreign) == (b"bad frame", True)
    rig.bury(job, state=State.QUARANTINED, attempt_failed=False)
    assert rig.discard(row.token, state=State.QUARANTINED) == 1
    assert rig.state() == {}


def test_replayed_job_can_be_cancelled_and_moved_like_any_other(rig: Rig) -> None:
    put_aside(rig, "a", "b")
    rig.replay("a", "b", when="+500")

    assert rig.cancel("a") == "cancelled"
    assert rig.reschedule("b", 10) == ("rescheduled", 10)
    rig.now = 10
    assert names_of(rig.claim()) == ["b"]


def test_dead_letter_whose_payload_is_gone_is_not_replayed(rig: Rig) -> None:
    put_aside(rig, "a")
    rig.client.delete(rig.keys.payloads)

    assert rig.replay("a") == 0

    assert rig.claim().jobs == []
    rig.is_checked = False  # half of it is gone
