"""Jobs with priorities: which come first, where the priority goes with them, and what a queue without them pays."""

import json
import random
from typing import Any

import pytest

from django_delayq.core import change as change_calls
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.claim import Leased, Mode
from django_delayq.core.hold import HELD_NAMES
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import Change, State
from django_delayq.core.store import tail_of
from tests.core.rig import LEASE, Rig, name_in, names_of, payload, token
from tests.core.test_limits import STRIPE, declare, loosen


@pytest.fixture
def ranked(any_rig: Rig) -> Rig:
    return any_rig


def drained(rig: Rig, limit: int = 10, **options: Any) -> list[str]:
    """Claim until nothing is due, and return the names in order."""
    names: list[str] = []
    for _ in range(1_000):
        claimed = rig.claim(limit, **options)
        names += names_of(claimed)
        if claimed.wait_us:
            return names
    raise AssertionError(f"it spins after {names}")


def reprioritize(rig: Rig, name: str, priority: int) -> Change | State:
    call = change_calls.reprioritize(rig.keys, token(name), priority)
    return rig.run(call)


def is_ranked(rig: Rig) -> bool:
    return rig.client.hexists(rig.keys.control, "ranked")


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_higher_priorities_come_first_and_equal_ones_by_start_time(ranked, limit):
    ranked.schedule({"a": 0, "b": 1}, priority=-5)
    ranked.schedule({"c": 2, "d": 1}, priority=7)
    ranked.schedule({"e": 0, "f": 3})
    ranked.schedule({"g": 3}, priority=100)
    ranked.schedule({"h": 0}, priority=-100)
    ranked.now = 5

    assert drained(ranked, limit) == ["g", "d", "c", "e", "f", "a", "b", "h"]
    assert not is_ranked(ranked)


def test_what_is_not_due_never_comes_early_whatever_its_priority(ranked):
    ranked.schedule({"later": 50}, priority=100)
    ranked.schedule({"now": 0}, priority=-100)

    claimed = ranked.claim()

    assert names_of(claimed) == ["now"]
    assert claimed.wait_us == 50_000
    ranked.now = 50
    assert names_of(ranked.claim()) == ["later"]


def test_jobs_that_waited_before_the_first_priority_count_as_zero(ranked):
    ranked.schedule({"old": 0, "older": 0})
    ranked.schedule({"low": 0}, priority=-1)
    ranked.schedule({"high": 0}, priority=1)
    ranked.schedule({"new": 1})
    ranked.now = 1

    assert drained(ranked) == ["high", "old", "older", "new", "low"]


def test_jobs_that_were_never_ranked_are_ranked_by_the_sweep(ranked):
    ranked.schedule({f"old{n}": 0 for n in range(150)})
    ranked.schedule({"low": 0}, priority=-1)

    ranked.run(sweep_calls.sweep(ranked.keys, "locators", count=1_000))

    assert ranked.client.zcard(ranked.keys.ranked) == 151
    assert drained(ranked, 20)[-1] == "low"


def test_retry_that_was_never_ranked_is_ranked_by_the_sweep(ranked):
    ranked.schedule({"zero": 0})
    ranked.schedule({f"low{n}": 0 for n in range(150)}, priority=-1)
    zero, *low = ranked.claim(151).jobs
    # Now no job has a rank.
    ranked.retry(zero, wait=2)
    ranked.retry(*low, wait=1)
    ranked.now = 2
    assert ranked.client.zcard(ranked.keys.ranked) == 150

    ranked.run(sweep_calls.sweep(ranked.keys, "headers", count=1_000))

    assert ranked.client.zcard(ranked.keys.ranked) == 151
    assert drained(ranked, 20)[0] == "zero"


def test_elements_in_the_destination_queue_have_their_turn(ranked):
    ranked.schedule({f"j{n}": 0 for n in range(9)}, priority=5)
    ranked.client.rpush(ranked.keys.queue.destination, b"java")

    assert "java" in names_of(ranked.claim(4))
    assert len(drained(ranked, 4)) == 6


def test_foreign_elements_count_as_zero(ranked):
    ranked.java_offer("java", 0)
    ranked.schedule({"low": 0}, priority=-1)
    ranked.schedule({"high": 1}, priority=1)
    ranked.now = 1

    assert drained(ranked) == ["high", "java", "low"]


def test_one_urgent_job_comes_before_many_that_wait(ranked):
    for start in range(0, 2_000, 200):
        ranked.schedule({f"l{n}": 0 for n in range(start, start + 200)}, priority=-3)
    ranked.schedule({"urgent": 0}, priority=3)

    assert names_of(ranked.claim(1)) == ["urgent"]
    assert len(drained(ranked, 100)) == 2_000


def test_waiting_jobs_gain_a_point_each_step(ranked):
    ranked.schedule({"low": 0})
    ranked.now = 1_000
    ranked.schedule({"nine": 0}, priority=9)
    ranked.schedule({"eleven": 0}, priority=11)

    assert drained(ranked, priority_step_ms=100) == ["eleven", "low", "nine"]


@pytest.mark.parametrize("step", [None, 50])
@pytest.mark.parametrize("limit", [1, 7, 40])
def test_order_is_that_of_a_sort(ranked, limit, step):
    chance = random.Random(limit)
    jobs = {
        f"j{n}": (chance.randrange(2_000), chance.choice([-2, 0, 0, 1, 5]))
        for n in range(300)
    }
    for name, (wait, priority) in jobs.items():
        ranked.schedule({name: wait}, priority=priority)
    ranked.now = 2_000

    def key(name: str) -> tuple[int, int]:
        wait, priority = jobs[name]
        return (-priority, wait) if step is None else (wait - priority * step, 0)

    found = drained(ranked, limit, priority_step_ms=step)

    assert sorted(found) == sorted(jobs)
    assert [key(name) for name in found] == sorted(map(key, jobs))


def test_retry_keeps_its_priority(ranked):
    ranked.schedule({"a": 0}, priority=9)
    ranked.schedule({"b": 0})
    ranked.retry(*ranked.claim().jobs, wait=10)
    ranked.schedule({"c": 10}, priority=5)
    ranked.now = 10

    assert drained(ranked) == ["a", "c", "b"]


def test_copy_of_a_retrying_job_does_not_cost_its_rank(ranked):
    ranked.schedule({"a": 0}, priority=5)
    ranked.retry(ranked.lease(), wait=50)
    ranked.schedule({"b": 10}, priority=1)
    ranked.java_offer(payload("a"), 10)
    ranked.now = 10
    assert names_of(ranked.claim()) == ["b"]

    assert ranked.client.zscore(ranked.keys.ranked, token("a")) is not None
    ranked.schedule({"c": 0}, priority=1)
    ranked.now = 50
    assert names_of(ranked.claim(1)) == ["a"]


def test_every_way_back_to_waiting_keeps_the_priority(ranked):
    for name in ("given", "held", "dead", "moved", "killed", "plain"):
        ranked.schedule({name: 0}, priority=0 if name == "plain" else 4)
    jobs = {job.token.rstrip("-"): job for job in ranked.claim().jobs}
    ranked.retry(jobs["plain"], wait=LEASE)
    ranked.give_back(jobs["given"])
    ranked.hold(jobs["held"])
    ranked.bury(jobs["dead"])
    ranked.retry(jobs["moved"], wait=99_999)
    ranked.reschedule("moved", LEASE)
    ranked.release("shop.new", name_limit=HELD_NAMES)
    ranked.replay("dead")
    ranked.now = LEASE

    assert [ranked.inspect(name).priority for name in jobs] == [
        0 if name == "plain" else 4 for name in jobs
    ]
    # The expired lease comes first, as always, and the one without a priority last.
    found = drained(ranked, 1)
    assert (found[0], found[-1]) == ("killed", "plain")
    assert sorted(found[1:-1]) == ["dead", "given", "held", "moved"]


def test_job_is_given_another_priority_wherever_it_waits(ranked):
    ranked.schedule({"a": 0, "b": 0, "c": 0, "d": 1})
    first, second, third = ranked.claim(3).jobs
    ranked.retry(first, wait=1)
    ranked.give_back(second)
    ranked.hold(third)

    for name in "abcd":
        assert reprioritize(ranked, name, 3) is Change.REPRIORITIZED
        assert ranked.inspect(name).priority == 3
    ranked.schedule({"e": 1}, priority=2)
    ranked.now = 1

    assert drained(ranked) == ["b", "a", "d", "e"]
    ranked.release("shop.new")
    ranked.schedule({"f": 0}, priority=2)
    assert drained(ranked) == ["c", "f"]


def test_priority_can_be_taken_away(ranked):
    ranked.schedule({"a": 0}, priority=3)
    ranked.schedule({"b": 0}, priority=1)

    reprioritize(ranked, "a", 0)

    assert drained(ranked) == ["b", "a"]


def test_what_runs_or_has_gone_is_given_no_other_priority(ranked):
    ranked.schedule({"a": 0})
    job = ranked.lease()

    assert reprioritize(ranked, "a", 3) is State.RUNNING
    ranked.acknowledge(job)
    assert reprioritize(ranked, "a", 3) is State.SUCCEEDED
    assert reprioritize(ranked, "z", 3) is State.MISSING
    assert not is_ranked(ranked)


def test_unique_key_of_a_job_with_a_priority_is_held_and_freed(ranked):
    ranked.schedule({"a": 0}, unique="ek", priority=3)
    assert ranked.schedule({"b": 0}, unique="ek")[0].holder == "a"
    assert ranked.inspect("a").unique == "k"

    ranked.acknowledge(ranked.lease())

    assert ranked.schedule({"b": 0}, unique="sk", priority=-3)[0].holder == ""
    job = ranked.lease()
    # It was held to the start.
    assert ranked.schedule({"c": 9}, unique="sk")[0].holder == ""
    ranked.acknowledge(job)
    assert ranked.cancel("c") is Change.CANCELLED
    assert "unique" not in ranked.state()


def test_cancelled_job_leaves_the_ranks(ranked):
    ranked.schedule({"a": 0, "b": 5}, priority=3)

    ranked.cancel("a")
    ranked.cancel("b")

    assert ranked.client.zcard(ranked.keys.ranked) == 0
    assert drained(ranked) == []
    assert not is_ranked(ranked)


def test_rank_of_a_job_that_somebody_else_took_or_moved_stops_nothing(ranked):
    ranked.schedule({"taken": 0, "moved": 0, "stays": 0}, priority=3)
    frames = ranked.client.zrange(ranked.keys.queue.timeout_set, 0, -1)
    by_name = {frame[frame.index(b'"delayq":"') + 10 :][:5]: frame for frame in frames}
    ranked.java_remove(by_name[b"taken"])
    # A version that knows no priorities moves only the frame and its locator.
    ranked.reschedule("moved", 7)
    ranked.client.zadd(ranked.keys.ranked, {token("moved"): 97 * 2**42})
    ranked.client.zadd(ranked.keys.ranked, {"nobody": 0})

    assert drained(ranked) == ["stays"]
    ranked.now = 7
    assert drained(ranked) == ["moved"]
    ranked.client.delete(ranked.keys.locators)


@pytest.mark.parametrize("where", ["timeout_set", "retries", "returned"])
def test_job_that_a_version_without_ranks_has_moved_forward_is_due(ranked, where):
    ranked.schedule({"a": 0 if where != "timeout_set" else 9_000}, priority=3)
    if where == "retries":
        ranked.retry(ranked.lease(), wait=9_000)
    elif where == "returned":
        ranked.give_back(ranked.lease())
        ranked.reschedule("a", 9_000)
    before = ranked.client.zrange(ranked.keys.ranked, 0, -1, withscores=True)
    ranked.reschedule("a", 0)
    # It knows of no rank, which stays as it was.
    ranked.client.zadd(ranked.keys.ranked, dict(before))
    ranked.schedule({"b": 0}, priority=2)

    assert drained(ranked) == ["a", "b"]
    assert not is_ranked(ranked)


@pytest.mark.parametrize("step", [None, 50])
@pytest.mark.parametrize("score", ["inf", "-inf", 1e300, -5, 201 * 2**42])
def test_score_that_is_no_rank_stops_nothing(ranked, score, step):
    ranked.schedule({"a": 0, "b": 0}, priority=3)
    ranked.client.zadd(ranked.keys.ranked, {token("a"): score, "nobody": score})

    assert sorted(drained(ranked, priority_step_ms=step)) == ["a", "b"]


def test_ranks_of_jobs_that_have_gone_cost_no_claim_each(ranked):
    ranks = {f"gone{n}": 95 * 2**42 + n for n in range(320)}
    ranked.schedule({"a": 0}, priority=1)
    ranked.client.zadd(ranked.keys.ranked, ranks)

    claims = 0
    while not ranked.claim(1).jobs:
        claims += 1
    assert claims <= 10


def test_worker_with_room_for_one_takes_what_others_offered(ranked):
    ranked.schedule({f"j{n}": 0 for n in range(3)}, priority=-5)
    ranked.schedule({"urgent": 0}, priority=5)
    ranked.client.rpush(ranked.keys.queue.destination, b"java")

    found = drained(ranked, 1)

    assert found[:2] == ["urgent", "java"]
    assert sorted(found[2:]) == ["j0", "j1", "j2"]


def test_suspect_keeps_its_priority_when_it_was_the_last_with_one(ranked):
    ranked.schedule({"a": 0}, priority=5)
    ranked.claim()
    assert not is_ranked(ranked)
    ranked.now = LEASE
    ranked.claim(safe_kills=0, takes_suspect=False, put_off_ms=0)
    ranked.schedule({"b": 0}, priority=1)

    assert drained(ranked) == ["a", "b"]


def test_rank_of_a_wrong_type_is_an_error_and_changes_nothing(ranked):
    ranked.schedule({"a": 0}, priority=3)
    ranked.client.delete(ranked.keys.ranked)
    ranked.client.set(ranked.keys.ranked, "no set")
    before = ranked.state()

    for call in (
        ranked.claim,
        lambda: ranked.cancel("a"),
        lambda: ranked.schedule({"b": 0}, priority=1),
    ):
        with pytest.raises(Exception, match="WRONGTYPE"):
            call()

    assert ranked.state() == before


def test_paused_queue_and_paused_task_keep_the_order_of_priorities(ranked):
    for name, priority in {"low": -5, "urgent": 5, "usual": 0, "held": 9}.items():
        ranked.schedule({name: 0}, priority=priority)
    (held,) = ranked.claim(1).jobs
    ranked.pause("shop.mail")
    ranked.hold(held, task=Reason(Kind.PAUSED, "shop.mail"), hold_ms=None)
    ranked.pause()
    before = ranked.state()

    assert ranked.claim().jobs == []
    assert ranked.claim_few() is None
    assert ranked.state() == before

    ranked.resume()
    ranked.resume("shop.mail")
    ranked.release(Reason(Kind.PAUSED, "shop.mail"), is_worker=False)
    assert names_of(ranked.claim()) == ["held", "urgent", "usual", "low"]


@pytest.mark.parametrize("step", [None, 100])
def test_job_that_its_worker_stopped_runs_in_its_old_place(ranked, step):
    ranked.schedule({"z": 0}, priority=1)
    job = ranked.lease()
    ranked.schedule({"a": 1, "b": 2}, priority=1)
    ranked.now = 1_000
    ranked.schedule({"urgent": 0}, priority=2)
    ranked.give_back(job, have_begun=True)

    found = drained(ranked, 1, priority_step_ms=step)

    assert found == (["urgent", "z", "a", "b"] if step is None else [*"zab", "urgent"])


@pytest.mark.parametrize("step", [None, 100])
def test_released_job_runs_in_its_old_place(ranked, step):
    ranked.schedule({"z": 0}, priority=1)
    ranked.hold(ranked.lease())
    ranked.schedule({"a": 1, "b": 2}, priority=1)
    ranked.now = 1_000
    ranked.schedule({"urgent": 0}, priority=2)
    ranked.release("shop.new")

    found = drained(ranked, 1, priority_step_ms=step)

    assert found == (["urgent", "z", "a", "b"] if step is None else [*"zab", "urgent"])


@pytest.mark.parametrize("step", [None, 100])
@pytest.mark.parametrize(
    "rank", ["z" * 16, "9", "nan".rjust(16), "-inf".rjust(16), "0x" + "0" * 14, ""]
)
def test_held_member_without_a_rank_stops_nothing(ranked, rank, step):
    declare(ranked, concurrency=1)
    ranked.schedule({"l1": 0}, limit=STRIPE)
    first = ranked.lease()
    ranked.schedule({"l2": 0}, limit=STRIPE, priority=1)
    assert not ranked.claim(priority_step_ms=step).jobs
    held = Reason(Kind.LIMIT, *STRIPE.split("\0")).text
    # From all of its loop no script would come back, and the server would serve nobody.
    ranked.client.zadd(ranked.keys.held_tasks, {f"{held}\0{rank}\0nobody": 0})
    ranked.now = 1_000
    ranked.acknowledge(first)

    # It may take the turn of a job, until a worker looks what else may go on.
    loosen(ranked)
    assert drained(ranked, 1, priority_step_ms=step) == ["l2"]
    ranked.client.delete(ranked.keys.held_tasks)


def test_job_that_waited_for_its_limit_runs_in_its_old_place(ranked):
    declare(ranked, concurrency=1)
    ranked.schedule({"l1": 0, "l2": 1}, limit=STRIPE)
    ranked.now = 1
    first, *_ = ranked.claim().jobs
    ranked.schedule({"a": 1, "b": 2}, priority=1)
    ranked.schedule({"a0": 1, "a1": 2})
    ranked.schedule({"l3": 3}, limit=STRIPE)
    ranked.now = 1_000
    ranked.acknowledge(first)

    found = []
    while jobs := ranked.claim(1).jobs:
        found += [job.token.rstrip("-") for job in jobs]
        ranked.acknowledge(*jobs)

    assert found == ["a", "b", "l2", "a0", "a1", "l3"]


def one_at_a_time(rig: Rig, job: Leased, step: int | None = None) -> list[str]:
    """End a job, then each that goes on, and return their names in order."""
    found: list[str] = []
    rig.acknowledge(job)
    rig.now += 1
    while jobs := rig.claim(1, priority_step_ms=step).jobs:
        found += [name_in(job.payload) for job in jobs]
        rig.acknowledge(*jobs)
        rig.now += 1
    return found


@pytest.mark.parametrize("step", [None, 50])
@pytest.mark.parametrize("rate", [None, "1000/s burst 1"])
def test_jobs_that_a_limit_holds_go_on_in_the_order_of_their_priorities(
    ranked, step, rate
):
    declare(ranked, concurrency=1, rate=rate)
    ranked.schedule({"first": 0}, limit=STRIPE)
    first = ranked.lease()
    priorities = {"a": -10, "b": 0, "c": 0, "d": 100, "e": -10, "f": 1, "g": 2}
    for n, (name, priority) in enumerate(priorities.items()):
        ranked.schedule({name: 30 * n}, priority=priority, limit=STRIPE)
    ranked.now = 300
    assert ranked.claim(priority_step_ms=step).jobs == []
    assert ranked.client.zcard(ranked.keys.held) == len(priorities)

    found = one_at_a_time(ranked, first, step)

    assert "".join(found) == ("dgfbcae" if step is None else "dbcgfae")


@pytest.mark.parametrize("step", [None, 50])
def test_job_that_a_limit_holds_is_given_another_priority(ranked, step):
    declare(ranked, concurrency=1)
    ranked.schedule({"first": 0}, limit=STRIPE)
    first = ranked.lease()
    ranked.schedule({name: 0 for name in "abcdef"}, limit=STRIPE, priority=-1)
    ranked.claim(priority_step_ms=step)

    assert reprioritize(ranked, "c", 5) is Change.REPRIORITIZED
    assert reprioritize(ranked, "b", -5) is Change.REPRIORITIZED
    assert reprioritize(ranked, "e", 0) is Change.REPRIORITIZED
    ranked.cancel("e")

    assert "".join(one_at_a_time(ranked, first, step)) == "cadfb"


def test_job_that_its_worker_stopped_comes_before_the_next_of_its_limit(rig):
    declare(rig, concurrency=1)
    rig.schedule({"z": 0}, limit=STRIPE)
    job = rig.lease()
    rig.schedule({"a": 0}, limit=STRIPE)
    assert rig.claim().jobs == []
    rig.now = 1_000
    rig.give_back(job, have_begun=True)

    assert names_of(rig.claim()) == ["z"]


def test_jobs_that_were_given_back_run_in_their_old_order_whether_they_had_begun_or_not(
    rig,
):
    rig.schedule({"z": 0, "b": 1, "c": 2, "a": 3, "y": 4})
    rig.now = 5
    jobs = rig.claim().jobs
    rig.now = 1_000
    rig.give_back(*jobs[1:3])
    rig.give_back(jobs[0], jobs[3], have_begun=True)
    rig.hold(jobs[4])
    rig.release("shop.new")

    assert names_of(rig.claim()) == ["z", "b", "c", "a", "y"]


def test_jobs_of_several_tasks_are_released_in_the_order_of_their_start_times(any_rig):
    any_rig.schedule({"a": 3, "b": 1, "c": 2, "d": 0})
    any_rig.now = 5
    jobs = {job.token.rstrip("-"): job for job in any_rig.claim().jobs}
    any_rig.hold(jobs["a"], jobs["b"], task="shop.a")
    any_rig.hold(jobs["c"], jobs["d"], task="shop.b")
    any_rig.release("shop.a", "shop.b")

    assert drained(any_rig, 1) == ["d", "b", "c", "a"]


def test_returned_job_with_another_priority_counts_from_its_start_time(ranked):
    ranked.schedule({"z": 0}, priority=1)
    ranked.give_back(ranked.lease(), have_begun=True)
    ranked.now = 500
    job = ranked.lease()
    ranked.schedule({"a": 0}, priority=2)
    ranked.now = 1_000
    ranked.give_back(job, have_begun=True)
    reprioritize(ranked, "z", 2)

    assert drained(ranked, 1) == ["z", "a"]


def test_suspects_hide_nothing_behind_them(ranked):
    ranked.schedule({"a": 0, "b": 0}, priority=5)
    ranked.claim()
    ranked.now = LEASE
    ranked.schedule({"c": 0})

    claimed = ranked.claim(safe_kills=0, takes_suspect=False, put_off_ms=1_000)

    assert (names_of(claimed), claimed.put_off) == (["c"], 2)
    ranked.now += 1_000
    assert drained(ranked) == ["a", "b"]


def test_queue_that_is_shared_now_forgets_its_ranks(ranked):
    ranked.schedule({"a": 0}, priority=3)

    ranked.claim(mode=Mode.SHARED)

    assert names_of(ranked.claim(mode=Mode.SHARED)) == ["a"]
    assert not ranked.client.exists(ranked.keys.ranked)
    assert not is_ranked(ranked)


def test_claim_is_bounded_whatever_has_gone(ranked):
    ranks = {f"gone{n}": 100 * 2**42 + n for n in range(5_000)}
    ranked.client.hset(ranked.keys.control, "ranked", 1)
    ranked.client.zadd(ranked.keys.ranked, ranks)
    ranked.schedule({"a": 0})

    assert drained(ranked, 500) == ["a"]
    assert ranked.client.zcard(ranked.keys.ranked) == 0


@pytest.mark.parametrize("priority", [-100, -1, 1, 27, 28, 100])
def test_tail_is_bytes_for_every_priority(priority):
    tail = tail_of("ek", priority)

    assert tail == b"x\0" + bytes([100 + priority]) + b"\0\0ek"
    assert tail_of("ek") == "ek"


class TestHistory:
    def test_every_attempt_that_failed_or_was_killed_is_kept_the_last_first(
        self, ranked
    ):
        ranked.schedule({"a": 0})
        ranked.retry(ranked.lease(), wait=0, error=b'{"error":"first"}')
        job = ranked.lease()
        ranked.now = LEASE
        ranked.bury(ranked.lease())

        lines = ranked.inspect("a").history.split(b"\n")

        assert lines[0] == b'{"error":"e"}'
        assert b'"killed"' in lines[1]
        assert b"lost the lease" in lines[1]
        assert lines[2:] == [b'{"error":"first"}']
        assert job.kills == 0

    def test_claim_says_since_when_a_job_runs(self, ranked):
        ranked.now = 5
        ranked.schedule({"a": 0})
        job = ranked.lease()

        assert ranked.inspect("a").claimed_ms == ranked.now_us // 1000
        ranked.retry(job, wait=9)
        assert ranked.inspect("a").claimed_ms is None

    def test_nothing_of_it_is_left_behind(self, ranked):
        for name in "abc":
            ranked.schedule({name: 0})
        jobs = ranked.claim().jobs
        ranked.retry(*jobs, wait=0)
        first, second, third = ranked.claim().jobs
        ranked.acknowledge(first)
        ranked.bury(second)
        ranked.discard(second.token.rstrip("-"))
        ranked.retry(third)
        ranked.cancel(third.token.rstrip("-"))

        assert ranked.leftovers() == [ranked.keys.claims]

    def test_history_is_bounded_by_bytes_and_keeps_the_last(self, ranked):
        ranked.schedule({"a": 0})
        for n in range(12):
            error = b'{"n":%d,"error":"%b"}' % (n, b"x" * 5_000)
            ranked.retry(ranked.lease(), wait=0, error=error)

        lines = ranked.inspect("a").history.split(b"\n")

        assert [json.loads(line)["n"] for line in lines] == [11, 10, 9, 8, 7, 6]

    def test_one_long_error_is_kept_whole(self, ranked):
        ranked.schedule({"a": 0})
        ranked.retry(ranked.lease(), error=b'{"error":"%b"}' % (b"x" * 70_000))

        assert len(ranked.inspect("a").history) > 70_000

    def test_history_stays_through_a_replay(self, ranked):
        ranked.schedule({"a": 0})
        ranked.bury(ranked.lease())

        ranked.replay("a")

        assert ranked.inspect("a").history == b'{"error":"e"}'

    def test_vanished_job_takes_its_history_along(self, ranked):
        ranked.schedule({"a": 0})
        ranked.claim()
        ranked.client.delete(ranked.keys.payloads)
        ranked.now = LEASE

        assert ranked.claim().vanished == 1

        assert ranked.leftovers() == []


@pytest.mark.parametrize("limit", [7, 100])
def test_ranked_jobs_of_one_moment_are_found_with_a_few_reads_each(ranked, limit):
    chance = random.Random(11)
    names = [f"j{n}" for n in range(1_200)]
    priorities = {name: chance.choice([-5, -1, 2, 3, 9]) for name in names}
    for part in range(0, 1_200, 300):
        for priority in (-5, -1, 2, 3, 9):
            batch = [n for n in names[part : part + 300] if priorities[n] == priority]
            ranked.schedule(
                dict.fromkeys(batch, 500),
                priority=priority,
                insertion_list=part < 600,
            )
    for n in range(300):
        lead = chance.choice([b"\0", b"\xd9L", b"\xd9U", b"\xff"])
        ranked.java_offer(f"x{n}", 500, random_id=(lead + chance.randbytes(8))[:8])
    gone = chance.sample(names, 200)
    for name in gone:
        assert ranked.cancel(name) == "cancelled"
    ranked.now = 500
    before = ranked.client.info("commandstats")["cmdstat_zrange"]["calls"]

    drained_names = [
        name for name in drained(ranked, limit) if not name.startswith("x")
    ]

    reads = ranked.client.info("commandstats")["cmdstat_zrange"]["calls"] - before
    assert sorted(drained_names) == sorted(set(names) - set(gone))
    found = [priorities[name] for name in drained_names]
    assert found == sorted(found, reverse=True)
    # Eight without interpolation.
    assert reads < 6 * len(names)
