"""Limits: of a queue, which claims less; and of tasks, whose jobs are held until there is a slot or a moment."""

import json
from typing import Any

import pytest

from django_delayq.core import claim as claim_calls
from django_delayq.core import worker_code
from django_delayq.core.claim import Limited, Mode
from django_delayq.core.limit_slots import held_for
from django_delayq.core.rates import limit_text, numbers_of, read_rate
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import Change, State
from django_delayq.features.limits import calls as limit_calls
from django_delayq.transport.run import run
from tests.clock import at
from tests.core.rig import LEASE, OWNER, T0, Rig, name_in, names_of, token
from tests.servers import Server

STRIPE = "stripe\0acct"


def declare(rig: Rig, name: str = "stripe", **limit: Any) -> None:
    """Write what code says of a limit, as a worker does."""
    text = json.dumps({"code": numbers_of(**limit)})
    rig.client.hset(rig.keys.control, f"limit:{name}", text)


def slots(rig: Rig) -> int:
    return int(rig.client.zcard(rig.keys.slots))


# Of a queue.


def test_concurrency_of_a_queue_leases_no_more_than_that(rig: Rig) -> None:
    text = limit_text(concurrency=3)
    rig.schedule({f"j{n}": n for n in range(5)})
    rig.now = 10

    claimed = rig.claim(10, limit_text=text)

    assert names_of(claimed) == ["j0", "j1", "j2"]
    assert claimed.limits == Limited(True, True, 0)
    # It says when the first lease ends.
    assert claimed.wait_us == LEASE * 1000
    again = rig.claim(10, limit_text=text)
    assert (again.jobs, again.wait_us) == ([], LEASE * 1000)
    with rig.listening(rig.keys.channel) as heard:
        rig.acknowledge(claimed.jobs[1])
        assert heard() == [10]
    assert names_of(rig.claim(10, limit_text=text)) == ["j3"]


def test_leases_that_are_over_leave_their_room(rig: Rig) -> None:
    text = limit_text(concurrency=2)
    rig.schedule({"a": 0, "b": 0, "c": 0})
    rig.claim(10, limit_text=text)
    rig.now = LEASE

    claimed = rig.claim(10, limit_text=text)

    assert names_of(claimed) == ["a", "b"]
    assert [job.kills for job in claimed.jobs] == [1, 1]
    assert rig.claim(10, limit_text=text).jobs == []


def test_who_did_not_ask_for_more_is_not_held_back(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})

    claimed = rig.claim(1, limit_text=limit_text(concurrency=2))

    assert claimed.limits == Limited(False, True, 0)
    assert claimed.wait_us == 0


def test_rate_of_a_queue_admits_a_burst_and_then_one_each_interval(rig: Rig) -> None:
    text = limit_text(rate="10/s burst 3")
    rig.schedule({f"j{n}": 0 for n in range(9)})

    first = rig.claim(10, limit_text=text)

    assert len(first.jobs) == 3
    assert first.wait_us == 100_000
    rig.now = 99.9
    early = rig.claim(10, limit_text=text)
    assert (early.jobs, early.wait_us) == ([], 100)
    rig.now = 100
    assert len(rig.claim(10, limit_text=text).jobs) == 1
    rig.now = 10_000
    assert len(rig.claim(10, limit_text=text).jobs) == 3


def test_rate_of_a_queue_survives_a_clock_that_is_set_back(rig: Rig) -> None:
    text = limit_text(rate="10/m")
    rig.schedule({"a": 0, "b": 0})
    assert len(rig.claim(10, limit_text=text).jobs) == 1
    rig.is_served = False
    rig.now = -3_600_000
    rig.schedule({"c": 0})
    rig.is_checked = False

    claimed = rig.claim(10, limit_text=text)

    assert names_of(claimed) == ["c"]
    assert claimed.wait_us >= 0


def test_raised_rate_of_a_queue_counts_at_once(rig: Rig) -> None:
    rig.schedule({f"j{n}": 0 for n in range(5)})
    slow = limit_text(rate="1/h")
    assert names_of(rig.claim(10, limit_text=slow)) == ["j0"]
    assert rig.claim(10, limit_text=slow).jobs == []

    raised = limit_text(rate="10/s burst 3")
    assert names_of(rig.claim(10, limit_text=raised)) == ["j1"]
    rig.now = 100
    assert names_of(rig.claim(10, limit_text=raised)) == ["j2"]


@pytest.mark.parametrize("limit", [STRIPE, ""])
def test_claim_of_who_has_declared_needs_what_it_said_for_jobs_with_a_limit(
    rig: Rig, limit: str
) -> None:
    rig.schedule({"a": 0}, limit=limit)
    call = claim_calls.claim(
        rig.keys,
        owner=OWNER,
        request=rig.request(),
        limit=10,
        lease_ms=LEASE,
        has_slots=True,
        has_declared=True,
    )

    found: Any = rig.run(call)

    if not limit:
        assert names_of(found) == ["a"]
        return
    assert found is None
    says = worker_code.declare(
        rig.keys, (), owner=OWNER, loaded_ms=T0, has_schedules=True
    )
    rig.run(says)
    assert names_of(rig.run(call)) == ["a"]


def test_raised_rate_of_a_limit_lets_held_jobs_go_on_at_once(rig: Rig) -> None:
    declare(rig, rate="1/h burst 1")
    rig.schedule({f"j{n}": n for n in range(5)}, limit=STRIPE)
    rig.now = 5
    assert names_of(rig.claim()) == ["j0"]

    declare(rig, rate="10/s burst 1")
    loosen(rig)

    assert names_of(rig.claim()) == ["j2"]
    rig.now += 100
    assert names_of(rig.claim()) == ["j3"]
    # It has its moment, and keeps it.
    assert rig.inspect("j1").score_ms == T0 + 3_600_005


def test_shared_queue_goes_on_transferring_while_its_limit_is_full(rig: Rig) -> None:
    text = limit_text(concurrency=1)
    rig.schedule({"a": 0, "b": 1, "c": 50})
    rig.now = 2
    rig.claim(1, mode=Mode.SHARED, limit_text=text)
    assert len(rig.claim(5, mode=Mode.SHARED, limit_text=text).jobs) == 1

    held_back = rig.claim(5, mode=Mode.SHARED, limit_text=text)

    assert held_back.jobs == []
    assert held_back.wait_us == 48_000


# Of a task.


def test_job_whose_limit_is_full_is_held_with_the_reason(rig: Rig) -> None:
    declare(rig, concurrency=2)
    rig.schedule({f"j{n}": n for n in range(4)}, limit=STRIPE)
    rig.now = 5

    claimed = rig.claim()

    assert names_of(claimed) == ["j0", "j1"]
    assert claimed.limits == Limited(False, True, 0)
    assert claimed.wait_us == LEASE * 1000
    assert slots(rig) == 2
    seen = rig.inspect("j2")
    assert seen.state is State.HELD
    assert json.loads(seen.error)["error"] == "limit stripe acct: 2 of 2"
    assert rig.held_names().counts == {Reason(Kind.LIMIT, "stripe", "acct"): 2}


@pytest.mark.parametrize("way", ["acknowledge", "retry", "snooze", "bury", "give_back"])
def test_end_of_a_lease_lets_the_first_that_waits_go_on(rig: Rig, way: str) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0, "b": 1, "c": 2}, limit=STRIPE)
    rig.now = 5
    a = rig.claim().jobs[0]

    with rig.listening(rig.keys.channel) as heard:
        assert getattr(rig, way)(a) == []
        assert 5 in heard()

    assert rig.inspect("b").state is State.DUE
    assert rig.inspect("b").error == b""
    assert rig.inspect("c").state is State.HELD
    claimed = rig.claim()
    expected = "a" if way == "give_back" else "b"
    assert names_of(claimed) == [expected]
    assert slots(rig) == 1


def test_claim_says_which_limit_each_job_has(rig: Rig) -> None:
    rig.schedule({"a": 0}, limit=STRIPE)
    rig.schedule({"b": 1})
    rig.schedule({"c": 2}, limit="größe\0a b")
    rig.now = 5

    claimed = rig.claim(request=b"request1")

    limits = [STRIPE, None, "größe\0a b"]
    assert [job.limit for job in claimed.jobs] == limits
    again = rig.claim(request=b"request1")
    assert {name_in(job.payload): job.limit for job in again.jobs} == dict(
        zip("abc", limits, strict=True)
    )


def test_job_that_gets_another_limit_frees_the_slot_of_its_old_one(rig: Rig) -> None:
    declare(rig, "old", concurrency=1)
    declare(rig, "new", concurrency=1)
    rig.schedule({"a": 0, "b": 1, "c": 2}, limit="old\0k")
    rig.now = 5
    (a,) = rig.claim().jobs

    rig.hold(a, task=held_for("new\0k"), hold_ms=None)

    assert slots(rig) == 0
    assert rig.inspect("a").state is State.DUE
    a, b = rig.claim().jobs
    # A worker does not look again at a limit that one has just given.
    assert (name_in(a.payload), a.limit, b.limit) == ("a", "", "old\0k")
    rig.hold(b, task=held_for("new\0k"), hold_ms=None)
    (c,) = rig.claim().jobs
    assert (name_in(c.payload), c.limit) == ("c", "old\0k")
    assert rig.held_names().counts == {Reason(Kind.LIMIT, "new", "k"): 1}
    rig.retry(a, wait=1)
    rig.acknowledge(c)
    (b,) = rig.claim().jobs
    assert (name_in(b.payload), b.limit) == ("b", "new\0k")
    rig.acknowledge(b)
    # With the next attempt, it looks again.
    rig.now += 1
    assert rig.lease().limit == "new\0k"
    assert slots(rig) == 1


#: Limits whose names and keys look like parts of others.
LIMITS = [
    "a\0",
    "a\0b",
    "a\0b c",
    "a:\0b",
    "a\0:b",
    "1:a\0b",
    "a\0001:b",
    "größe\0ü",
    "of schedule\0",
    "of schedule\0the night",
    "of schedule\0the night: b",
    "of\0schedule the night",
]


def test_no_limit_is_taken_for_another(rig: Rig) -> None:
    for name in {limit.partition("\0")[0] for limit in LIMITS}:
        declare(rig, name, concurrency=1)
    for number, limit in enumerate(LIMITS):
        rig.schedule({f"{part}{number}": 0 for part in "abc"}, limit=limit)
    jobs = {name_in(job.payload): job for job in rig.claim(50).jobs}
    assert jobs.keys() == {f"a{number}" for number in range(len(LIMITS))}
    assert rig.held_names(limit=50).counts == dict.fromkeys(map(held_for, LIMITS), 2)

    # Nothing goes round while the limits are full.
    for name in ("", "a", "of schedule"):
        assert rig.run(limit_calls.loosen(rig.keys, name=name)).released == 0
    for number in range(len(LIMITS)):
        rig.acknowledge(jobs[f"a{number}"])
        assert names_of(rig.claim(50)) == [f"b{number}"]
    # The leases of the others are deleted.
    rig.client.delete(rig.keys.leases)
    rig.is_checked = False
    loosen(rig)
    found = names_of(rig.claim(50))
    assert sorted(found) == sorted(f"c{number}" for number in range(len(LIMITS)))


def test_held_jobs_of_another_key_and_without_a_limit_go_on(rig: Rig) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0, "b": 1}, limit="stripe\0one")
    rig.schedule({"c": 2}, limit="stripe\0two")
    rig.schedule({"d": 3})
    rig.now = 5

    assert names_of(rig.claim()) == ["a", "c", "d"]


def test_lease_that_is_over_keeps_its_slot_for_its_own_job(rig: Rig) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0, "b": 1}, limit=STRIPE)
    rig.now = 2
    rig.claim()
    rig.recover()

    claimed = rig.claim()

    assert [(job.token, job.kills) for job in claimed.jobs] == [(token("a"), 1)]
    assert slots(rig) == 1


def test_job_that_is_out_of_kills_leaves_its_slot_to_the_next(rig: Rig) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0, "b": 1}, limit=STRIPE)
    rig.now = 2
    rig.claim()
    rig.recover()

    assert rig.claim(max_kills=0).jobs == []

    assert rig.inspect("a").state is State.DEAD
    assert names_of(rig.claim()) == ["b"]


def test_limit_that_nobody_knows_holds_nothing(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 1}, limit=STRIPE)
    rig.now = 2

    assert len(rig.claim().jobs) == 2
    assert slots(rig) == 2


def test_rate_of_a_key_gives_each_job_its_moment(rig: Rig) -> None:
    declare(rig, rate="10/s burst 1")
    rig.schedule({f"j{n}": n for n in range(4)}, limit=STRIPE)
    rig.now = 5

    assert names_of(rig.claim()) == ["j0"]
    assert rig.inspect("j1").score_ms % 1000 == 105
    assert rig.inspect("j2").state is State.HELD
    for number in range(1, 4):
        rig.now = 5 + 100 * number - 1
        assert rig.claim().jobs == []
        rig.now += 1
        claimed = rig.claim()
        assert names_of(claimed) == [f"j{number}"]
        assert rig.acknowledge(*claimed.jobs) == []
    assert rig.claim().wait_us == LEASE * 1000 - 300_000


def give_up(rig: Rig, name: str, how: str) -> None:
    if how == "cancel":
        rig.cancel(name)
    else:
        rig.reschedule(name, 60_000 if how == "postpone" else 0)


@pytest.mark.parametrize("how", ["cancel", "postpone", "run now"])
def test_moment_that_a_job_gives_up_is_the_next_ones(rig: Rig, how: str) -> None:
    declare(rig, rate="10/s burst 1")
    rig.schedule({f"j{n}": n for n in range(4)}, limit=STRIPE)
    rig.now = 5
    assert names_of(rig.claim()) == ["j0"]

    for number in (1, 2, 3):
        assert rig.inspect(f"j{number}").score_ms % 1000 == 105
        give_up(rig, f"j{number}", how)

    rig.schedule({"last": 0}, limit=STRIPE)
    assert rig.claim().jobs == []
    waiting = [rig.inspect(name) for name in ("j1", "j2", "j3", "last")]
    assert sum(each.score_ms == T0 + 105 for each in waiting) == 1


def test_rate_with_a_burst(rig: Rig) -> None:
    declare(rig, rate="1/s burst 2")
    rig.schedule({f"j{n}": n for n in range(5)}, limit=STRIPE)
    rig.now = 5

    assert names_of(rig.claim()) == ["j0", "j1"]
    rig.now = 1005
    assert names_of(rig.claim()) == ["j2"]


def loosen(rig: Rig) -> None:
    rig.run(limit_calls.loosen(rig.keys))


def test_moment_before_another_is_not_given_again(rig: Rig) -> None:
    declare(rig, rate="10/s burst 1")
    rig.schedule({f"j{n}": n for n in range(4)}, limit=STRIPE)
    rig.now = 5
    rig.claim()
    rig.now = 105
    # The moment of j1 has come, and nobody claims.
    loosen(rig)
    assert rig.inspect("j2").score_ms == T0 + 205

    rig.cancel("j1")
    rig.now = 205

    assert names_of(rig.claim()) == ["j2"]
    assert rig.inspect("j3").score_ms == T0 + 305


def test_moments_that_pass_while_workers_are_busy_are_not_made_up_for(rig: Rig) -> None:
    declare(rig, rate="10/m")
    rig.schedule({f"j{n}": n for n in range(9)}, limit=STRIPE)
    rig.now = 10
    rig.acknowledge(*rig.claim().jobs)

    # Each gets its moment, but nobody claims.
    for _ in range(8):
        rig.now += 6000
        loosen(rig)

    started = [rig.claim(1).jobs for _ in range(9)]
    assert sum(map(len, started)) <= 2


def test_job_that_misses_its_moment_for_a_slot_needs_another(rig: Rig) -> None:
    declare(rig, rate="10/m", concurrency=2)
    rig.schedule({"a": 0, "b": 0}, limit=STRIPE)
    assert names_of(rig.claim()) == ["a"]
    declare(rig, rate="10/m", concurrency=1)
    rig.now = 6000
    assert rig.claim(1).jobs == []
    assert rig.inspect("b").state is State.HELD

    rig.reschedule("b", 60_000)
    declare(rig, rate="10/m", concurrency=3)
    rig.now = 66_000
    rig.schedule({"c": 0}, limit=STRIPE)

    # The lease of a is over, and its second attempt is the one start that the rate has.
    assert names_of(rig.claim()) == ["a"]


def test_new_job_that_drops_is_cancelled_while_its_limit_is_full(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 1}, limit="periodic\0", drops=True, unique="ek")
    rig.schedule({"c": 1}, limit="periodic\0", drops=True)
    rig.now = 2

    claimed = rig.claim()

    assert names_of(claimed) == ["a"]
    assert claimed.limits == Limited(False, True, 1)
    assert rig.inspect("c").state is State.CANCELLED
    rig.acknowledge(*claimed.jobs)
    rig.schedule({"d": 0}, limit="periodic\0", drops=True)
    rig.now = 3
    assert names_of(rig.claim()) == ["d"]


def test_new_job_that_waits_for_its_turn_is_held_while_its_limit_is_full(
    rig: Rig,
) -> None:
    jobs = {"a": 0, "b": 1, "c": 2}
    rig.schedule(jobs, limit="periodic\0", drops=True, in_turn=True)
    rig.now = 2

    (first,) = rig.claim().jobs

    assert [rig.inspect(name).state for name in "abc"] == ["running", "held", "held"]
    rig.acknowledge(first)
    (second,) = rig.claim().jobs
    assert name_in(second.payload) == "b"
    assert rig.inspect("c").state == "held"
    rig.acknowledge(second)
    assert names_of(rig.claim()) == ["c"]


def test_slot_whose_lease_was_deleted_drops_no_later_job(rig: Rig) -> None:
    rig.schedule({"a": 0}, limit="periodic\0", drops=True)
    rig.claim()
    rig.client.delete(rig.keys.leases)
    rig.now = 1
    rig.schedule({"b": 0, "c": 0}, limit="periodic\0", drops=True)
    rig.now = 2

    claimed = rig.claim()

    assert names_of(claimed) == ["b"]
    assert rig.inspect("c").state is State.CANCELLED
    assert slots(rig) == 1
    rig.is_checked = False


def test_repeat_of_a_claim_says_that_there_are_limits(rig: Rig) -> None:
    declare(rig, concurrency=1)
    rig.schedule({"a": 0, "b": 0}, limit=STRIPE)
    first = rig.claim(request=b"12345678")

    again = rig.claim(request=b"12345678")

    assert names_of(again) == names_of(first) == ["a"]
    assert again.limits is not None
    assert again.limits.has_slots


def test_limits_of_one_name_are_read_whatever_stands_beside_them(rig: Rig) -> None:
    control = rig.keys.control
    rig.client.hset(control, "queue_limit", '{"set":{"concurrency":2}}')
    rig.client.hset(control, "limit:", '{"code":{"concurrency":3}}')

    found = rig.run(limit_calls.limits(rig.keys))

    assert [each.name for each in found] == ["", ""]


def test_claim_of_a_few_leaves_limits_to_the_whole_claim(rig: Rig) -> None:
    rig.schedule({"z": 0}, insertion_list=False)
    rig.claim()
    rig.schedule({"a": 0, "b": 0}, limit=STRIPE, insertion_list=False)

    assert rig.claim_few() is None


@pytest.mark.parametrize(
    "stored",
    [b"x", b"[]", b'{"code":[],"set":1}', b'{"code":{"concurrency":1e999,"rate":5}}'],
)
def test_limits_and_paces_that_no_script_has_written_stop_nothing(
    rig: Rig, stored: bytes
) -> None:
    keys = rig.keys
    written = {"limit:stripe": stored, "queue_limit": stored, "pace": "nan"}
    rig.client.hset(keys.control, mapping=written)
    rig.client.zadd(keys.paces, {STRIPE: float("inf")})
    rig.schedule({"a": 0, "b": 0}, limit=STRIPE)

    assert len(rig.claim(limit_text=limit_text(rate="10/s")).jobs) == 2
    declared = [("stripe", numbers_of(rate="10/s"))]
    call = worker_code.declare(keys, declared, owner=b"process1", loaded_ms=0)
    assert rig.run(call).changed == 1
    rig.schedule({"c": 0}, limit=STRIPE)
    rig.now += 1
    assert len(rig.claim().jobs) == 1
    assert rig.run(limit_calls.set_limit(keys, numbers_of(concurrency=1))) == 1
    assert (
        next(each.set for each in rig.run(limit_calls.limits(keys)))["concurrency"] == 1
    )


def owner_of(loaded_ms: int) -> bytes:
    return b"%08d" % (loaded_ms % 10**8)


def say(rig: Rig, most: int, *, loaded_ms: int) -> int:
    """Say that a limit is so many at a time, as a process whose code was loaded then."""
    declared = [("stripe", numbers_of(concurrency=most))]
    call = worker_code.declare(
        rig.keys, declared, owner=owner_of(loaded_ms), loaded_ms=loaded_ms
    )
    return rig.run(call).changed


def code_of(rig: Rig) -> Any:
    (limit,) = rig.run(limit_calls.limits(rig.keys))
    return limit.code["concurrency"]


def test_limit_of_the_latest_code_of_living_processes_counts(rig: Rig) -> None:
    rig.now = 1_000_000
    assert say(rig, 5, loaded_ms=10) == 1
    assert say(rig, 1, loaded_ms=20) == 1
    # A process of the old code restarts, and says so again and again.
    for _ in range(10):
        rig.now += worker_code.DECLARE_MS
        assert say(rig, 5, loaded_ms=10) == 0
        assert say(rig, 1, loaded_ms=20) == 0
    # Another with later code comes and goes.
    assert say(rig, 7, loaded_ms=30) == 1
    rig.now += worker_code.SILENT_MS
    assert say(rig, 1, loaded_ms=20) == 0
    rig.now += 1

    assert say(rig, 5, loaded_ms=10) == 1
    assert say(rig, 1, loaded_ms=20) == 1

    assert code_of(rig) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_latest_code_is_read_in_each_protocol_of_redis(
    rig: Rig, server: Server, protocol: int
) -> None:
    call = at(
        1000000000,
        worker_code.declare(
            rig.keys, [], owner=owner_of(20), loaded_ms=20, has_schedules=True
        ),
    )
    rig.run(call)

    with server.client(protocol=protocol) as client:
        assert run(client, worker_code.latest_code(rig.keys, 1_000_000)) == 20


def test_process_that_ends_takes_along_what_it_said_of_its_code(rig: Rig) -> None:
    say(rig, 5, loaded_ms=10)
    say(rig, 1, loaded_ms=20)

    assert say(rig, 5, loaded_ms=10) == 0
    rig.run(claim_calls.leave(rig.keys, owner=owner_of(20)))

    assert say(rig, 5, loaded_ms=10) == 1
    assert code_of(rig) == 5
    rig.run(claim_calls.leave(rig.keys, owner=owner_of(10)))
    assert not [name for name in rig.client.hkeys(rig.keys.control) if b"code:" in name]


def test_processes_that_say_nothing_any_more_are_forgotten(rig: Rig) -> None:
    rig.now = 1_000_000
    say(rig, 1, loaded_ms=20)
    rig.now += worker_code.SILENT_MS + 1

    say(rig, 5, loaded_ms=10)

    fields = rig.client.hkeys(rig.keys.control)
    assert [name[5:] for name in fields if name[:5] == b"code:"] == [owner_of(10)]


def latest(rig: Rig, loaded_ms: int) -> bool:
    """Say that code has schedules; return whether no living process has later code with any."""
    call = worker_code.declare(
        rig.keys, [], owner=owner_of(loaded_ms), loaded_ms=loaded_ms, has_schedules=True
    )
    return rig.run(call).is_latest


def test_process_is_the_latest_once_those_with_later_code_had_time_to_speak(
    rig: Rig,
) -> None:
    rig.now = 1_000_000
    assert not latest(rig, 20)
    assert not latest(rig, 10)
    rig.now += worker_code.SILENT_MS // 2
    assert not latest(rig, 10)
    assert latest(rig, 20)

    # One that has just begun, and all after the server was away.
    rig.run(claim_calls.leave(rig.keys, owner=owner_of(20)))
    assert not latest(rig, 5)
    assert latest(rig, 10)
    rig.now += worker_code.SILENT_MS + 1
    assert not latest(rig, 10)


def test_limit_of_code_that_was_loaded_while_the_clock_was_ahead_is_replaced(
    rig: Rig,
) -> None:
    rig.now = 1_000_000
    say(rig, 5, loaded_ms=T0 + rig.now + 86_400_000)

    assert say(rig, 1, loaded_ms=10) == 1

    assert code_of(rig) == 1


@pytest.mark.parametrize(
    "text",
    [
        "fast",
        "0/s",
        "-1/s",
        "1/0s",
        "1/8d",
        "100001/s",
        "1/s burst 0",
        "１/s",
        "1/s\n",
        5,
    ],
)
def test_what_is_no_rate_is_not_read(text: object) -> None:
    assert read_rate(text) is None


# Cancels of many at once.


@pytest.mark.parametrize("turns", [1, -1])
def test_jobs_that_are_cancelled_together_leave_nothing(rig: Rig, turns: int) -> None:
    declare(rig, concurrency=1)
    names = [f"j{n}" for n in range(5)]
    rig.schedule({name: n for n, name in enumerate(names)}, limit=STRIPE)
    rig.now = 10
    rig.claim()
    # Its worker has died, so it has a slot that no process uses.
    rig.recover()

    outcomes = rig.cancel_many(names[::turns])

    assert set(outcomes.values()) == {Change.CANCELLED}
    left = {key.partition(":")[0] for key in rig.leftovers()}
    assert left <= {"delayq_claims"}


def test_jobs_that_stay_go_on_once_others_are_cancelled(rig: Rig) -> None:
    declare(rig, concurrency=1)
    rig.schedule({f"j{n}": n for n in range(5)}, limit=STRIPE)
    rig.now = 10
    rig.claim()
    rig.recover()

    rig.cancel_many(["j0", "j1", "j2"])

    assert names_of(rig.claim()) == ["j3"]
    assert slots(rig) == 1
