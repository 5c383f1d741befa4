"""Claims of due frames, expired leases and retries; what the destination queue adds is in test_destination.py."""

import struct
from typing import Any

import pytest
from msgspec.structs import replace

from django_delayq.core import change as change_calls
from django_delayq.core import lease_ends, queue_reads, states
from django_delayq.core.claim import Mode
from django_delayq.core.states import State
from django_delayq.core.store import NewJob
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import (
    LEASE,
    LISTED,
    OWNER,
    T0,
    Rig,
    name_in,
    names_of,
    payload,
    token,
)

MODES = [Mode.DIRECT, Mode.SHARED]


# Never early, in order.


@pytest.mark.parametrize(
    ("start_time", "now", "is_due"),
    [
        (0, 0, True),
        (1_000, 999.999, False),
        (1_000, 1_000, True),
        (1_000, 1_000.001, True),
        (1_000, 0, False),
        (1, 0.999, False),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_job_is_claimed_from_its_start_time_on_and_not_a_microsecond_before(
    rig: Rig, mode: Mode, start_time: int, now: float, is_due: bool
) -> None:
    rig.schedule({"a": start_time})
    rig.now = now

    claimed = rig.claim(mode=mode)
    # In this mode the first call transfers, and the next one leases.
    jobs = claimed.jobs + (rig.claim(mode=mode).jobs if mode is Mode.SHARED else [])

    assert [job.token for job in jobs] == ([token("a")] if is_due else [])


@pytest.mark.parametrize("asked_at", [0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("wait", [0, 1, 250])
def test_no_fraction_of_a_millisecond_makes_a_job_early(
    rig: Rig, asked_at: float, wait: int
) -> None:
    rig.now = asked_at
    rig.schedule({"a": wait})
    rig.now = asked_at + wait - 0.001
    early = rig.claim().jobs
    rig.now = asked_at + wait + 0.999

    assert early == []
    assert names_of(rig.claim()) == ["a"]


def test_lease_holds_what_the_worker_needs(any_rig: Rig) -> None:
    rig = any_rig
    rig.now = 3.5
    rig.schedule({"a": 0})
    rig.now = 10.25

    claimed = rig.claim(request=b"\0\xff\r\n\t\x80ab")

    (job,) = claimed.jobs
    assert (job.token, job.payload) == (token("a"), payload("a"))
    assert (job.attempts, job.kills, job.is_foreign) == (0, 0, False)
    assert job.start_time_ms == T0 + 4
    assert job.fence == b"\0\xff\r\n\t\x80ab"
    assert claimed.now_us == T0 * 1000 + 10_250
    assert claimed.wait_us == LEASE * 1000 - 250
    assert rig.state() == {"leases": {"a": 10 + LEASE}}


def test_jobs_come_in_the_order_of_their_start_times(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"c": 30, "a": 10, "d": 40, "b": 20})
    rig.now = 100

    assert names_of(rig.claim()) == ["a", "b", "c", "d"]


def test_jobs_of_one_start_time_come_in_the_order_of_their_offers(
    any_rig: Rig,
) -> None:
    rig = any_rig
    for part in range(3):
        rig.schedule({f"j{part}{n}": 50 for n in (3, 1, 2)})
    rig.now = 50

    assert names_of(rig.claim()) == [f"j{p}{n}" for p in range(3) for n in (3, 1, 2)]


# Tables. Each row: what waits before, now, arguments of one claim, names claimed, state after, us until the next event.

TABLE: dict[str, tuple[Any, ...]] = {
    "nothing waits": ({}, 0, {}, [], {}, -1),
    "nothing is due": (
        {"a": 100},
        40,
        {},
        [],
        {"timeout_set": [("a", 100)], "delay_queue": ["a"], "locators": ["a"]},
        60_000,
    ),
    "one is due, one is not": (
        {"a": 100, "b": 150},
        100,
        {},
        ["a"],
        {
            "timeout_set": [("b", 150)],
            "delay_queue": ["b"],
            "leases": {"a": 100 + LEASE},
            "locators": ["b"],
        },
        50_000,
    ),
    "as many as there is room for": (
        {"a": 1, "b": 2, "c": 3},
        10,
        {"limit": 2},
        ["a", "b"],
        {
            "timeout_set": [("c", 3)],
            "delay_queue": ["c"],
            "leases": {"a": 10 + LEASE, "b": 10 + LEASE},
            "locators": ["c"],
        },
        0,
    ),
    "exactly as many as there are": (
        {"a": 1, "b": 2},
        10,
        {"limit": 2, "lease_ms": 500},
        ["a", "b"],
        {"leases": {"a": 510, "b": 510}},
        500_000,
    ),
    "no room": (
        {"a": 1},
        10,
        {"limit": 0},
        [],
        {"timeout_set": [("a", 1)], "delay_queue": ["a"], "locators": ["a"]},
        0,
    ),
    "a consumer of the destination queue only": (
        {"a": 1},
        10,
        {"mode": Mode.TAKE},
        [],
        {"timeout_set": [("a", 1)], "delay_queue": ["a"], "locators": ["a"]},
        -1,
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_claim(rig: Rig, row: str) -> None:
    before, now, arguments, claimed, after, wait_us = TABLE[row]
    rig.schedule(before)
    rig.now = now

    reply = rig.claim(**arguments)

    assert names_of(reply) == claimed
    assert rig.state() == after
    assert reply.wait_us == wait_us


def test_due_jobs_without_room_can_still_be_found_moved_and_cancelled(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0})
    rig.claim(1)

    assert rig.reschedule("b", 500) == ("rescheduled", 500)
    assert rig.cancel("c") == "cancelled"
    assert rig.claim().jobs == []


# Bounds.


@pytest.mark.parametrize("limit", [1, 7, 8, 9, 63, 500])
def test_one_claim_takes_up_to_five_hundred(any_rig: Rig, limit: int) -> None:
    rig = any_rig
    for part in range(2):
        rig.schedule({f"j{part}-{n}": 0 for n in range(300)})

    assert len(rig.claim(limit).jobs) == limit


def test_claim_asked_for_more_than_lua_can_unpack_loses_none(any_rig: Rig) -> None:
    rig = any_rig
    for part in range(9):
        rig.schedule({f"j{part}-{n}": 0 for n in range(500)})

    got = []
    while jobs := rig.claim(5_000, lease_ms=60_000).jobs:
        got += [job.token for job in jobs]

    assert len(got) == len(set(got)) == 4_500


def test_every_job_comes_once_whatever_the_limits_of_the_claims(
    any_rig: Rig,
) -> None:
    rig = any_rig
    expected = []
    for part in range(4):
        names = [f"j{part}-{n}" for n in range(150)]
        rig.schedule({name: 7 for name in names})
        expected += names
    rig.now = 7

    got: list[str] = []
    for limit in (1, 2, 100, 3, 250, 17, 500):
        claimed = rig.claim(limit)
        got += names_of(claimed)
        rig.acknowledge(*claimed.jobs)
        rig.check()

    assert got == expected


def test_claim_takes_few_payloads_of_a_megabyte_and_says_that_more_waits(
    any_rig: Rig,
) -> None:
    rig = any_rig
    for n in range(20):
        rig.schedule({f"j{n}": n}, size=1 << 20)
    rig.now = 100

    got = []
    while True:
        claimed = rig.claim(100)
        got += names_of(claimed)
        # Reads go in chunks that begin small, so they exceed the budget a little.
        assert 1 <= len(claimed.jobs) <= 10
        rig.acknowledge(*claimed.jobs)
        if len(got) == 20:
            break
        assert claimed.wait_us == 0

    assert got == [f"j{n}" for n in range(20)]


def test_payload_beyond_the_budget_is_claimed_alone_not_never(rig: Rig) -> None:
    rig.schedule({"a": 0}, size=5_000)

    assert names_of(rig.claim(byte_budget=100)) == ["a"]


def test_retries_and_expired_leases_of_a_megabyte_keep_to_the_budget_too(
    rig: Rig,
) -> None:
    for n in range(6):
        rig.schedule({f"j{n}": 0}, size=1 << 20)
        rig.retry(rig.lease(), wait=0)

    first = rig.claim()
    rig.now = LEASE
    second = rig.claim()

    assert (len(first.jobs), first.wait_us) == (1, 0)
    assert (len(second.jobs), second.wait_us) == (1, 0)


# A repeat: the reply was lost.


def test_repeat_of_a_request_returns_the_same_leases_and_takes_nothing_more(
    any_rig: Rig,
) -> None:
    rig = any_rig
    rig.schedule({f"j{n}": n for n in range(5)})
    rig.now = 10
    first = rig.claim(3, request=b"12345678")
    before = rig.state()

    again = rig.claim(3, request=b"12345678")

    assert sorted(again.jobs, key=lambda job: job.token) == first.jobs
    assert rig.state() == before


def test_repeat_of_a_request_that_found_nothing_may_find_something(
    rig: Rig,
) -> None:
    assert rig.claim(request=b"12345678").jobs == []
    rig.schedule({"a": 0})

    assert names_of(rig.claim(request=b"12345678")) == ["a"]


def test_repeat_leaves_out_what_somebody_else_has_by_now(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.claim(request=b"12345678", lease_ms=100)
    rig.now = 100
    assert names_of(rig.claim(1, owner=b"owner--2")) == ["a"]

    assert names_of(rig.claim(request=b"12345678")) == ["b"]


def test_repeat_of_an_older_request_is_a_new_claim(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.claim(1, request=b"request1")
    rig.schedule({"b": 0})
    rig.claim(1, request=b"request2")
    rig.schedule({"c": 0})

    assert names_of(rig.claim(1, request=b"request1")) == ["c"]


def test_repeat_returns_expired_retried_and_foreign_jobs_alike(rig: Rig) -> None:
    rig.schedule({"expired": 0})
    rig.claim()
    rig.now = LEASE
    rig.schedule({"retried": 0})
    rig.retry(
        *[job for job in rig.claim().jobs if name_in(job.payload) == "retried"],
        wait=0,
    )
    rig.now = 2 * LEASE
    rig.java_offer("foreign", 0)
    rig.schedule({"fresh": 0})
    first = rig.claim(request=b"12345678")
    assert len(first.jobs) == 4

    again = rig.claim(request=b"12345678")

    by_token = {job.token: job for job in again.jobs}
    # Nothing says any more since when they could run.
    assert by_token == {job.token: replace(job, held_ms=0) for job in first.jobs}


# Expired leases.


@pytest.mark.parametrize(
    ("lease_ms", "now", "is_expired"), [(500, 499.999, False), (500, 500, True)]
)
def test_lease_is_its_owners_until_its_end(
    rig: Rig, lease_ms: int, now: float, is_expired: bool
) -> None:
    rig.schedule({"a": 0})
    rig.lease(lease_ms=lease_ms)
    rig.now = now

    assert names_of(rig.claim(owner=b"owner--2")) == (["a"] if is_expired else [])


def test_expired_lease_counts_as_a_kill_and_not_as_an_attempt(rig: Rig) -> None:
    rig.schedule({"a": 0})
    counts = []
    for n in range(4):
        rig.now = n * LEASE
        job = rig.lease()
        counts.append((job.attempts, job.kills, job.start_time_ms))

    assert counts == [(0, n, T0) for n in range(4)]


def test_job_that_killed_too_many_workers_is_a_dead_letter_with_the_reason(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    for n in range(3):
        rig.now = n * LEASE
        assert names_of(rig.claim(max_kills=2)) == ["a"]
    rig.now = 3 * LEASE

    claimed = rig.claim(max_kills=2)

    assert claimed.jobs == []
    assert rig.state() == {"dead": {"a": 3 * LEASE}}
    seen = rig.inspect("a")
    assert (seen.state, seen.kills, seen.attempts) == ("dead", 3, 0)
    assert b"3 times" in seen.error
    assert b'"kind":"killed"' in seen.error
    assert rig.counters()["dead"] == 1


def test_no_limit_of_kills_means_that_it_comes_for_ever(rig: Rig) -> None:
    rig.schedule({"a": 0})
    for n in range(20):
        rig.now = n * LEASE
        assert names_of(rig.claim(max_kills=-1)) == ["a"]


# Suspects: jobs whose leases expired too often.


#: One expired lease makes a suspect.
RULE: dict[str, Any] = {"safe_kills": 0, "put_off_ms": 500}


def die(rig: Rig) -> None:
    """Let the process that holds all leases die, and its supervisor report that."""
    assert rig.recover(batch=1_000).next_rank == -1


def lose(rig: Rig, *names: str) -> None:
    """Let the leases of jobs expire: each is a suspect for the process that claims it next."""
    rig.schedule(dict.fromkeys(names, 0))
    assert names_of(rig.claim(len(names))) == list(names)
    die(rig)


@pytest.fixture(params=["expired", "retried"])
def suspects(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """A queue with three due suspects, all among the leases or all among the retries."""
    lose(rig, "a", "b", "c")
    if request.param == "retried":
        rig.give_back(*rig.claim().jobs)
    return rig


def test_of_several_suspects_one_is_leased_and_the_others_come_later(
    suspects: Rig,
) -> None:
    claimed = suspects.claim(**RULE)

    assert names_of(claimed) == ["a"]
    assert (claimed.put_off, claimed.wait_us) == (2, 500_000)
    assert suspects.state() == {
        "leases": {"a": LEASE},
        "retries": {"b": 500, "c": 500},
    }
    suspects.check()
    suspects.now = 500
    assert names_of(suspects.claim(**RULE)) == ["b"]


def test_who_dies_beside_suspects_that_were_put_off_counts_no_kill_for_them(
    suspects: Rig,
) -> None:
    for n in range(5):
        suspects.now = 500 * n
        claimed = suspects.claim(**RULE)
        assert names_of(claimed) == ["a"]
        assert claimed.jobs[0].kills == n + 1
        die(suspects)

    assert [suspects.inspect(name).kills for name in "bc"] == [1, 1]


def test_no_suspect_is_leased_beside_one_and_all_else_is(suspects: Rig) -> None:
    """Suspects that are put off fill no room, neither in number nor in bytes."""
    suspects.schedule({"fresh": 0, "later": 0})

    claimed = suspects.claim(1, takes_suspect=False, byte_budget=1, **RULE)

    assert (names_of(claimed), claimed.put_off) == (["fresh"], 3)
    # More waits now.
    assert claimed.wait_us == 0
    assert suspects.state()["retries"] == dict.fromkeys("abc", 500)


def test_suspects_hide_no_retry_behind_them(rig: Rig) -> None:
    rig.schedule({"retried": 1, **{f"s{n}": 0 for n in range(5)}})
    rig.now = 1
    *lost, failed = rig.claim().jobs
    rig.retry(failed, wait=0)
    die(rig)
    rig.give_back(*rig.claim(5).jobs)

    claimed = rig.claim(1, takes_suspect=False, **RULE)

    assert (names_of(claimed), claimed.put_off) == (["retried"], len(lost))


def test_one_call_puts_off_so_many_and_says_that_there_are_more(rig: Rig) -> None:
    lose(rig, *(f"s{n:04}" for n in range(600)))

    calls = [rig.claim(1, takes_suspect=False, **RULE) for _ in range(3)]

    assert [call.put_off for call in calls] == [500, 100, 0]
    assert [call.wait_us for call in calls] == [0, 500_000, 500_000]
    assert len(rig.state()["retries"]) == 600


def test_another_process_takes_a_suspect_that_one_has_put_off(rig: Rig) -> None:
    lose(rig, "a", "b")
    with rig.listening(rig.keys.channel) as heard:
        assert names_of(rig.claim(**RULE)) == ["a"]
        # It may not know of any lease.
        assert heard() == [500]

    rig.now = 500
    assert names_of(rig.claim(owner=b"owner--2", **RULE)) == ["b"]


def test_suspect_that_was_killed_too_often_is_buried_and_not_put_off(
    suspects: Rig,
) -> None:
    claimed = suspects.claim(takes_suspect=False, max_kills=0, **RULE)

    assert (names_of(claimed), claimed.put_off) == ([], 0)
    assert list(suspects.state()["dead"]) == ["a", "b", "c"]


def test_without_a_rule_all_suspects_are_leased(suspects: Rig) -> None:
    assert names_of(suspects.claim(takes_suspect=False)) == ["a", "b", "c"]


def test_suspect_that_is_put_off_keeps_its_history(rig: Rig) -> None:
    rig.schedule({"first": 0})
    rig.schedule({"u": 0}, unique="ek")
    rig.retry(*rig.claim().jobs, wait=0)
    rig.claim()
    die(rig)

    assert names_of(rig.claim(**RULE)) == ["first"]

    seen = rig.inspect("u")
    assert (seen.state, seen.attempts, seen.kills) == (State.RETRYING, 1, 1)
    assert rig.state()["unique"] == {"k": "u"}
    rig.now = 500
    job = rig.lease(owner=b"owner--2", **RULE)
    assert (name_in(job.payload), job.attempts, job.kills) == ("u", 1, 1)
    assert job.start_time_ms == T0


def test_suspect_that_is_put_off_is_still_known_to_have_been_late(rig: Rig) -> None:
    lose(rig, "a")
    job = rig.lease()
    call = lease_ends.give_back(rig.keys, [job], late=[job.token])
    rig.run(call)

    assert rig.claim(takes_suspect=False, **RULE).put_off == 1

    rig.now = 500
    assert rig.lease(**RULE).was_late


def test_claim_that_is_repeated_brings_its_suspect_again(suspects: Rig) -> None:
    request = suspects.request()
    first = suspects.claim(request=request, **RULE)

    again = suspects.claim(request=request, takes_suspect=False, **RULE)

    assert again.jobs == first.jobs
    assert names_of(again) == ["a"]
    assert again.put_off == 0


def test_expired_leases_come_first_then_retries_then_due_frames(rig: Rig) -> None:
    rig.schedule({"fresh": 200, "expired": 0, "retried": 1})
    rig.now = 1
    expired, retried = rig.claim(lease_ms=100).jobs
    rig.retry(retried, wait=99)
    rig.now = 200

    assert names_of(rig.claim(1)) == ["expired"]
    assert names_of(rig.claim(1)) == ["retried"]
    assert names_of(rig.claim(1)) == ["fresh"]
    assert rig.acknowledge(expired) == [0]


def test_hundreds_of_leases_that_expire_at_once_are_claimed_in_bounded_calls(
    rig: Rig,
) -> None:
    for part in range(3):
        rig.schedule({f"j{part}-{n}": 0 for n in range(400)})
    while rig.claim(500).jobs:
        pass
    rig.now = LEASE

    sizes = []
    while jobs := rig.claim(500).jobs:
        sizes.append(len(jobs))

    assert sizes == [500, 500, 200]


@pytest.mark.parametrize("how", ["retried", "returned"])
def test_reply_tells_the_next_event_without_what_it_leased(rig: Rig, how: str) -> None:
    rig.schedule({"a": 0})
    if how == "retried":
        rig.retry(rig.lease(), wait=0)
    else:
        rig.give_back(rig.lease())

    assert rig.claim().wait_us == LEASE * 1000


def test_takers_do_not_touch_retries(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.retry(rig.lease(), wait=0)

    taken = rig.claim(mode=Mode.TAKE)

    assert taken.jobs == []
    assert taken.wait_us == -1
    assert names_of(rig.claim()) == ["a"]


def test_taker_finds_what_another_taker_lost(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"x")
    rig.lease(mode=Mode.TAKE)
    rig.now = LEASE

    assert names_of(rig.claim(mode=Mode.TAKE)) == ["x"]


# The next event.


@pytest.mark.parametrize(
    ("retry_in", "lease_ms", "wait_us"),
    [(70, 90, 50_000), (30, 90, 30_000), (70, 20, 20_000), (0, 90, 0)],
)
def test_answer_tells_the_time_until_the_first_of_all_events(
    rig: Rig, retry_in: int, lease_ms: int, wait_us: int
) -> None:
    rig.schedule({"retried": 0})
    rig.retry(rig.lease(), wait=retry_in)
    rig.schedule({"leased": 0, "due": 50})
    claimed = rig.claim(lease_ms=lease_ms)

    if wait_us == 0:
        rig.give_back(*claimed.jobs)
        claimed = rig.claim(0)
        assert rig.claim(1).wait_us == 0
    else:
        assert claimed.wait_us == wait_us


def test_time_until_the_next_event_is_exact_to_the_microsecond(rig: Rig) -> None:
    rig.schedule({"a": 7})
    rig.now = 2.345

    assert rig.claim().wait_us == 4_655


def test_who_has_no_room_is_told_of_the_next_transfer_only(rig: Rig) -> None:
    rig.schedule({"leased": 0, "due": 50})
    rig.claim(lease_ms=10)
    rig.client.rpush(rig.keys.queue.destination, b"x")

    assert rig.claim(0, mode=Mode.SHARED).wait_us == 50_000


# What others leave behind.


def test_double_of_a_frame_is_dropped_and_counted(any_rig: Rig) -> None:
    """Two frames of one token: a schedule that was delivered twice, far apart."""
    rig = any_rig
    rig.schedule({"a": 0})
    rig.schedule({"a": 0})

    claimed = rig.claim()

    assert names_of(claimed) == ["a"]
    assert claimed.doubles == 1
    assert rig.counters()["doubles"] == 1


@pytest.mark.parametrize("life", ["leased", "retrying", "dead"])
def test_frame_whose_job_is_known_already_is_dropped(rig: Rig, life: str) -> None:
    rig.schedule({"a": 0})
    job = rig.lease()
    if life == "retrying":
        rig.retry(job)
    elif life == "dead":
        rig.bury(job)
    rig.java_offer(payload("a"), 0)

    claimed = rig.claim()

    assert (claimed.jobs, claimed.doubles) == ([], 1)
    assert rig.frames() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("later", "runs"), [(30_000, False), (30_001, True)])
def test_token_of_a_job_that_ended_is_forgotten_after_thirty_seconds(
    rig: Rig, mode: Mode, later: int, runs: bool
) -> None:
    rig.schedule({"a": 0})
    rig.acknowledge(rig.lease())
    rig.now = later
    rig.schedule({"a": 0})

    jobs = rig.claim(mode=mode).jobs or rig.claim(mode=mode).jobs

    assert len(jobs) == runs


def test_foreign_frames_are_leased_under_a_token_of_their_own(
    any_rig: Rig,
) -> None:
    rig = any_rig
    rig.java_offer("x", 5)
    rig.java_offer("x", 5)
    rig.now = 9

    one, two = rig.claim().jobs

    assert one.payload == two.payload == b"x"
    assert one.is_foreign
    assert two.is_foreign
    assert one.start_time_ms == T0 + 5
    assert len({one.token, two.token}) == 2
    assert {len(one.token), len(two.token)} == {signatures.TOKEN_LENGTH}
    assert rig.acknowledge(one, two) == []
    assert rig.state() == {}


@pytest.mark.parametrize("how", ["retried", "expired", "given back", "replayed"])
def test_foreign_job_is_foreign_in_every_attempt(rig: Rig, how: str) -> None:
    rig.java_offer("x", 0)
    job = rig.lease()
    if how == "retried":
        rig.retry(job, wait=0)
    elif how == "expired":
        rig.now = LEASE
    elif how == "given back":
        rig.retry(job, wait=0)
        rig.give_back(rig.lease())
    else:
        rig.bury(job)
        rig.run(change_calls.replay(rig.keys, [job.token]))

    again = rig.lease()

    assert again.is_foreign
    assert (again.token, again.payload) == (job.token, b"x")


@pytest.mark.parametrize("first", FrameFormat)
def test_frames_of_both_formats_come_in_order(rig: Rig, first: FrameFormat) -> None:
    rig.frame_format = first
    other = next(item for item in FrameFormat if item is not first)
    rig.schedule({"a": 1})
    rig.java_offer("x", 2, frame_format=other)
    rig.schedule({"b": 3}, frame_format=other)
    rig.java_offer("y", 4, frame_format=first)
    rig.schedule({"c": 5}, insertion_list=False)
    rig.now = 10

    assert names_of(rig.claim()) == ["a", "x", "b", "y", "c"]
    assert rig.frames() == []


BAD_FRAMES = [
    b"x",
    b"\0",
    b"x" * 15,
    b"x" * 16,
    b"\x08" + b"r" * 8 + (99).to_bytes(8, "little") + b"short",
    b"r" * 8 + (2).to_bytes(8, "little") + b"longer",
    LISTED + b"\0\0\0\0\0\1",
    b"\x08" + LISTED,
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", BAD_FRAMES)
def test_what_is_no_frame_goes_aside_with_the_reason_and_the_queue_goes_on(
    rig: Rig, mode: Mode, bad: bytes
) -> None:
    rig.schedule({"a": 0, "b": 20})
    rig.client.zadd(rig.keys.queue.timeout_set, {bad: T0 + 10})
    rig.client.rpush(rig.keys.queue.delay_queue, bad)
    rig.now = 30

    jobs = rig.claim(mode=mode).jobs or rig.claim(mode=mode).jobs

    assert [job.payload for job in jobs] == [payload("a"), payload("b")]
    (aside,) = rig.run(queue_reads.page(rig.keys, states.State.QUARANTINED)).rows
    assert (aside.payload, aside.payload_size) == (bad, len(bad))
    assert aside.score_ms == T0 + 30
    assert b"not a Redisson frame" in aside.error
    assert len(aside.token) == signatures.TOKEN_LENGTH
    assert rig.frames() == []
    assert rig.counters()["quarantined"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_many_bad_frames_do_not_hold_up_the_good_ones(rig: Rig, mode: Mode) -> None:
    bad = {b"bad%d" % n: T0 for n in range(250)}
    rig.client.zadd(rig.keys.queue.timeout_set, bad)
    rig.schedule({"a": 1})
    rig.now = 1

    for _ in range(4):
        if jobs := rig.claim(100, mode=mode).jobs:
            break

    assert [name_in(job.payload) for job in jobs] == ["a"]
    assert rig.client.zcard(rig.keys.quarantine) == 250


def test_payload_with_a_token_like_text_further_in_is_foreign(rig: Rig) -> None:
    bodies = [
        b'{"delayq":"short"}',
        b'{"delayq":"' + b"x" * 23 + b'"}',
        b'{"delayq":"' + b"x" * 21 + b'!"}',
        b'{"delayq":"' + b"\xff" * 22 + b'"}',
        b'{"delayq":"1","of":"0123456789"}',
        b" " * 80 + payload("a"),
        b'{"delayq": "' + token("a").encode() + b'"}',
    ]
    for body in bodies:
        rig.java_offer(body, 0)

    claimed = rig.claim()

    assert [(job.payload, job.is_foreign) for job in claimed.jobs] == [
        (body, True) for body in bodies
    ]


def test_payload_that_a_codec_wrapped_is_found_by_its_token(rig: Rig) -> None:
    wrapped = b"\x03\x40" + payload("a")
    rig.send([NewJob(token("a"), "+0", "", wrapped)])

    job = rig.lease()

    assert (job.token, job.is_foreign) == (token("a"), False)
    rig.is_checked = False  # the rules do not know its payload


# Keys of ours that somebody deleted.


@pytest.mark.parametrize("where", ["retries", "leases"])
def test_job_without_its_payload_goes_whole_is_counted_and_frees_its_key(
    rig: Rig, where: str
) -> None:
    rig.schedule({"a": 0}, unique="ek")
    job = rig.lease()
    if where == "retries":
        rig.retry(job, wait=0)
    rig.client.delete(rig.keys.payloads)
    rig.now = LEASE

    first, second = rig.claim(), rig.claim()

    assert (first.jobs, first.vanished) == ([], 1)
    assert (second.jobs, second.vanished, second.wait_us) == ([], 0, -1)
    assert rig.counters()["vanished"] == 1
    assert rig.leftovers() == []
    assert rig.schedule({"b": 5}, unique="ek")[0].holder == ""


@pytest.mark.parametrize("where", ["retries", "leases"])
@pytest.mark.parametrize("header", [None, b"", b"short", b"\xff" * 40])
def test_job_whose_header_cannot_be_read_begins_anew(
    rig: Rig, where: str, header: bytes | None
) -> None:
    rig.schedule({"a": 0, "b": 0})
    a, b = rig.claim().jobs
    if where == "retries":
        rig.retry(a, b, wait=0)
    rig.client.hdel(rig.keys.headers, a.token)
    if header is not None:
        rig.client.hset(rig.keys.headers, a.token, header)
    rig.now = LEASE

    assert rig.inspect("a").attempts == 0
    page = queue_reads.page(
        rig.keys, State.RETRYING if where == "retries" else State.RUNNING
    )
    assert rig.run(page).rows[0].attempts == 0
    if where == "leases":
        assert rig.renew(a) == [0]
    claimed = rig.claim()

    assert names_of(claimed) == ["a", "b"]
    assert claimed.jobs[0].attempts == 0
    assert rig.acknowledge(*claimed.jobs) == []


@pytest.mark.parametrize("locator", [b"", b"short", b"\xff" * 30])
def test_job_whose_locator_cannot_be_read_is_missing_by_its_id_and_runs(
    any_rig: Rig, locator: bytes
) -> None:
    rig = any_rig
    rig.schedule({"a": 5, "b": 5})
    rig.schedule({"u": 5}, unique="ek")
    for name in ("a", "u"):
        rig.client.hset(rig.keys.locators, token(name), locator)
    rig.now = 5

    assert rig.inspect("a").state is State.MISSING
    rig.schedule({"a": 9}, again=True)
    # Nobody can tell whether the holder of its key still waits.
    assert rig.schedule({"v": 0}, unique="ek")[0].holder == ""
    rig.client.hset(rig.keys.locators, token("a"), locator)

    assert sorted(names_of(rig.claim())) == ["a", "b", "u", "v"]
    assert rig.client.hlen(rig.keys.locators) == 0


def test_unreadable_locator_does_not_stop_a_transfer(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.client.hset(rig.keys.locators, token("a"), b"short")

    assert rig.transfer().moved == 2
    assert names_of(rig.claim(mode=Mode.SHARED)) == ["a", "b"]


@pytest.mark.parametrize("value", ["many", "", str(2**63 - 1), "1.5"])
def test_counter_that_is_no_number_begins_anew(rig: Rig, value: str) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0})
    names = "number", "succeeded", "retried", "dead", "offered"
    rig.client.hset(rig.keys.counters, mapping=dict.fromkeys(names, value))
    rig.counters()

    rig.schedule({"d": 0})
    rig.client.hset(rig.keys.counters, "number", value)
    jobs = rig.claim().jobs
    rig.acknowledge(jobs[0])
    rig.retry(jobs[1])
    rig.bury(jobs[2])

    assert sorted(job.token[0] for job in jobs) == ["a", "b", "c", "d"]
    counters = rig.counters()
    assert [counters[name] for name in names[1:4]] == [1, 1, 1]
    assert rig.frames() == []
    rig.is_checked = False


def test_owners_last_request_is_forgotten_with_a_claim_that_finds_something(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    rig.claim(request=b"request1")

    (request,) = rig.client.hgetall(rig.keys.claims).items()
    assert request == (OWNER, b"request1" + struct.pack("<d", T0 + LEASE))
