"""What was put aside: dead letters and quarantine, replayed or discarded."""

import pytest

from django_delayq.delivery import looking
from django_delayq.delivery.states import State
from tests.delivery.bench import LEASE, T0, Bench, names_of, payload

ASIDE = pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])


def put_aside(bench: Bench, *names: str, state: State = State.DEAD) -> None:
    bench.schedule(dict.fromkeys(names, 0))
    jobs = bench.claim(len(names)).jobs
    bench.retry(*jobs, wait=0)
    bench.bury(*bench.claim(len(names)).jobs, state=state)


@ASIDE
def test_replayed_job_starts_over_with_its_first_attempt(
    bench: Bench, state: State
) -> None:
    put_aside(bench, "a", "b", state=state)
    bench.now = 50

    assert bench.replay("a", state=state) == 1

    assert bench.state()["returned"] == {"a": 50}
    job = bench.lease()
    assert (job.attempts, job.kills, job.start_time_ms) == (0, 0, T0 + 50)
    assert job.payload == payload("a")
    bench.acknowledge(job)
    assert list(bench.state()) == ["dead" if state is State.DEAD else "quarantine"]


@pytest.mark.parametrize(
    ("when", "due"), [("+0", 51), ("+500", 551), (f"={T0 + 900}", 900), ("=0", 51)]
)
def test_replay_is_never_early(bench: Bench, when: str, due: int) -> None:
    put_aside(bench, "a")
    bench.now = 50.5

    bench.replay("a", when=when)

    assert bench.state()["returned"] == {"a": due}


def test_replay_is_told_on_our_channel(bench: Bench) -> None:
    put_aside(bench, "a", "b")
    with bench.listening(bench.keys.channel) as heard:
        bench.replay("a", "b", when="+70")
        bench.replay("nobody")

        assert heard() == [70]


@ASIDE
@pytest.mark.parametrize("way", ["replay", "discard"])
def test_what_is_not_aside_is_left_alone(bench: Bench, way: str, state: State) -> None:
    bench.schedule({"leased": 0, "retrying": 1})
    bench.now = 1
    leased, retrying = bench.claim().jobs
    bench.retry(retrying)
    bench.schedule({"waiting": 500})
    other = State.QUARANTINED if state is State.DEAD else State.DEAD
    bench.bury(bench.lease(), state=other) if bench.schedule({"other": 0}) else None
    before = bench.state()

    call = bench.replay if way == "replay" else bench.discard
    names = ("leased", "retrying", "waiting", "other", "nobody")
    assert call(*names, state=state) == 0

    assert bench.state() == before
    assert bench.renew(leased) == []


@ASIDE
def test_discarded_job_leaves_nothing(bench: Bench, state: State) -> None:
    put_aside(bench, "a", "b", state=state)

    assert bench.discard("a", "b", "a", state=state) == 2

    assert bench.state() == {}
    assert bench.leftovers() == [bench.keys.claims]
    assert bench.inspect("a").state is State.FAILED


@pytest.mark.parametrize("way", ["replay", "discard"])
def test_hundreds_at_once(bench: Bench, way: str) -> None:
    names = [f"j{n}" for n in range(400)]
    put_aside(bench, *names)

    call = bench.replay if way == "replay" else bench.discard
    assert call(*names) == 400

    assert len(bench.claim(500).jobs) == (400 if way == "replay" else 0)


def test_job_can_die_and_be_replayed_again_and_again(bench: Bench) -> None:
    put_aside(bench, "a")
    for _ in range(3):
        bench.replay("a")
        bench.bury(bench.lease())

    assert list(bench.state()) == ["dead"]
    assert bench.counters()["dead"] == 4


def test_killed_job_can_be_replayed_and_is_given_its_kills_back(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.claim(max_kills=0)
    bench.now = LEASE
    bench.claim(max_kills=0)
    assert bench.inspect("a").kills == 1

    bench.replay("a")

    assert bench.lease(max_kills=0).kills == 0


def test_bad_frame_can_be_replayed_and_is_handed_out_whole(bench: Bench) -> None:
    bench.client.zadd(bench.keys.queue.timeout_set, {b"bad frame": T0})
    bench.claim()
    (row,) = bench.run(looking.page(bench.keys, State.QUARANTINED)).rows

    assert bench.replay(row.token, state=State.QUARANTINED) == 1

    job = bench.lease()
    assert (job.payload, job.is_foreign) == (b"bad frame", True)
    bench.bury(job, state=State.QUARANTINED, attempt_failed=False)
    assert bench.discard(row.token, state=State.QUARANTINED) == 1
    assert bench.state() == {}


def test_replayed_job_can_be_cancelled_and_moved_like_any_other(bench: Bench) -> None:
    put_aside(bench, "a", "b")
    bench.replay("a", "b", when="+500")

    assert bench.cancel("a") == "cancelled"
    assert bench.reschedule("b", 10) == ("rescheduled", 10)
    bench.now = 10
    assert names_of(bench.claim()) == ["b"]


def test_dead_letter_whose_payload_is_gone_is_not_replayed(bench: Bench) -> None:
    put_aside(bench, "a")
    bench.client.delete(bench.keys.payloads)

    assert bench.replay("a") == 0

    assert bench.claim().jobs == []
    bench.is_checked = False  # half of it is gone
