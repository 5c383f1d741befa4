"""Claims of due frames, expired leases and retries; what the destination queue adds is in test_destination.py."""

import struct
from typing import Any

import pytest

from django_delayq.delivery import changing, looking, settling, states
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import State
from django_delayq.delivery.storing import NewJob
from django_delayq.wire import signing
from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import (
    LEASE,
    LISTED,
    OWNER,
    T0,
    Bench,
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
    bench: Bench, mode: Mode, start_time: int, now: float, is_due: bool
) -> None:
    bench.schedule({"a": start_time})
    bench.now = now

    claimed = bench.claim(mode=mode)
    # In this mode the first call transfers, and the next one leases.
    jobs = claimed.jobs + (bench.claim(mode=mode).jobs if mode is Mode.SHARED else [])

    assert [job.token for job in jobs] == ([token("a")] if is_due else [])


@pytest.mark.parametrize("asked_at", [0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("wait", [0, 1, 250])
def test_no_fraction_of_a_millisecond_makes_a_job_early(
    bench: Bench, asked_at: float, wait: int
) -> None:
    bench.now = asked_at
    bench.schedule({"a": wait})
    bench.now = asked_at + wait - 0.001
    early = bench.claim().jobs
    bench.now = asked_at + wait + 0.999

    assert early == []
    assert names_of(bench.claim()) == ["a"]


def test_lease_holds_what_the_worker_needs(any_bench: Bench) -> None:
    bench = any_bench
    bench.now = 3.5
    bench.schedule({"a": 0})
    bench.now = 10.25

    claimed = bench.claim(request=b"\0\xff\r\n\t\x80ab")

    (job,) = claimed.jobs
    assert (job.token, job.payload) == (token("a"), payload("a"))
    assert (job.attempts, job.kills, job.is_foreign) == (0, 0, False)
    assert job.start_time_ms == T0 + 4
    assert job.fence == b"\0\xff\r\n\t\x80ab"
    assert claimed.now_us == T0 * 1000 + 10_250
    assert claimed.wait_us == LEASE * 1000 - 250
    assert bench.state() == {"leases": {"a": 10 + LEASE}}


def test_jobs_come_in_the_order_of_their_start_times(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({"c": 30, "a": 10, "d": 40, "b": 20})
    bench.now = 100

    assert names_of(bench.claim()) == ["a", "b", "c", "d"]


def test_jobs_of_one_start_time_come_in_the_order_of_their_offers(
    any_bench: Bench,
) -> None:
    bench = any_bench
    for part in range(3):
        bench.schedule({f"j{part}{n}": 50 for n in (3, 1, 2)})
    bench.now = 50

    assert names_of(bench.claim()) == [f"j{p}{n}" for p in range(3) for n in (3, 1, 2)]


# Tables: what waits before, one claim, what is there after. Each row:
# before, now, arguments of the claim, names claimed, state after, us until the next event.

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
def test_claim(bench: Bench, row: str) -> None:
    before, now, arguments, claimed, after, wait_us = TABLE[row]
    bench.schedule(before)
    bench.now = now

    reply = bench.claim(**arguments)

    assert names_of(reply) == claimed
    assert bench.state() == after
    assert reply.wait_us == wait_us


def test_due_jobs_without_room_can_still_be_found_moved_and_cancelled(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0, "b": 0, "c": 0})
    bench.claim(1)

    assert bench.reschedule("b", 500) == ("rescheduled", 500)
    assert bench.cancel("c") == "cancelled"
    assert bench.claim().jobs == []


# Bounds.


@pytest.mark.parametrize("limit", [1, 7, 8, 9, 63, 500])
def test_one_claim_takes_up_to_five_hundred(any_bench: Bench, limit: int) -> None:
    bench = any_bench
    for part in range(2):
        bench.schedule({f"j{part}-{n}": 0 for n in range(300)})

    assert len(bench.claim(limit).jobs) == limit


def test_claim_asked_for_more_than_lua_can_unpack_loses_none(any_bench: Bench) -> None:
    bench = any_bench
    for part in range(9):
        bench.schedule({f"j{part}-{n}": 0 for n in range(500)})

    got = []
    while jobs := bench.claim(5_000, lease_ms=60_000).jobs:
        got += [job.token for job in jobs]

    assert len(got) == len(set(got)) == 4_500


def test_every_job_comes_once_whatever_the_limits_of_the_claims(
    any_bench: Bench,
) -> None:
    bench = any_bench
    expected = []
    for part in range(4):
        names = [f"j{part}-{n}" for n in range(150)]
        bench.schedule({name: 7 for name in names})
        expected += names
    bench.now = 7

    got: list[str] = []
    for limit in (1, 2, 100, 3, 250, 17, 500):
        claimed = bench.claim(limit)
        got += names_of(claimed)
        bench.acknowledge(*claimed.jobs)
        bench.check()

    assert got == expected


def test_claim_takes_few_payloads_of_a_megabyte_and_says_that_more_waits(
    any_bench: Bench,
) -> None:
    bench = any_bench
    for n in range(20):
        bench.schedule({f"j{n}": n}, size=1 << 20)
    bench.now = 100

    got = []
    while True:
        claimed = bench.claim(100)
        got += names_of(claimed)
        # Read in chunks that begin small, so a little beyond the budget.
        assert 1 <= len(claimed.jobs) <= 10
        bench.acknowledge(*claimed.jobs)
        if len(got) == 20:
            break
        assert claimed.wait_us == 0

    assert got == [f"j{n}" for n in range(20)]


def test_payload_beyond_the_budget_is_claimed_alone_not_never(bench: Bench) -> None:
    bench.schedule({"a": 0}, size=5_000)

    assert names_of(bench.claim(byte_budget=100)) == ["a"]


def test_retries_and_expired_leases_of_a_megabyte_keep_to_the_budget_too(
    bench: Bench,
) -> None:
    for n in range(6):
        bench.schedule({f"j{n}": 0}, size=1 << 20)
        bench.retry(bench.lease(), wait=0)

    first = bench.claim()
    bench.now = LEASE
    second = bench.claim()

    assert (len(first.jobs), first.wait_us) == (1, 0)
    assert (len(second.jobs), second.wait_us) == (1, 0)


# A repeat: the reply was lost.


def test_repeat_of_a_request_returns_the_same_leases_and_takes_nothing_more(
    any_bench: Bench,
) -> None:
    bench = any_bench
    bench.schedule({f"j{n}": n for n in range(5)})
    bench.now = 10
    first = bench.claim(3, request=b"12345678")
    before = bench.state()

    again = bench.claim(3, request=b"12345678")

    assert sorted(again.jobs, key=lambda job: job.token) == first.jobs
    assert bench.state() == before


def test_repeat_of_a_request_that_found_nothing_may_find_something(
    bench: Bench,
) -> None:
    assert bench.claim(request=b"12345678").jobs == []
    bench.schedule({"a": 0})

    assert names_of(bench.claim(request=b"12345678")) == ["a"]


def test_repeat_leaves_out_what_somebody_else_has_by_now(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 0})
    bench.claim(request=b"12345678", lease_ms=100)
    bench.now = 100
    assert names_of(bench.claim(1, owner=b"owner--2")) == ["a"]

    assert names_of(bench.claim(request=b"12345678")) == ["b"]


def test_repeat_of_an_older_request_is_a_new_claim(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.claim(1, request=b"request1")
    bench.schedule({"b": 0})
    bench.claim(1, request=b"request2")
    bench.schedule({"c": 0})

    assert names_of(bench.claim(1, request=b"request1")) == ["c"]


def test_repeat_returns_expired_retried_and_foreign_jobs_alike(bench: Bench) -> None:
    bench.schedule({"expired": 0})
    bench.claim()
    bench.now = LEASE
    bench.schedule({"retried": 0})
    bench.retry(
        *[job for job in bench.claim().jobs if name_in(job.payload) == "retried"],
        wait=0,
    )
    bench.now = 2 * LEASE
    bench.java_offer("foreign", 0)
    bench.schedule({"fresh": 0})
    first = bench.claim(request=b"12345678")
    assert len(first.jobs) == 4

    again = bench.claim(request=b"12345678")

    by_token = {job.token: job for job in again.jobs}
    assert by_token == {job.token: job for job in first.jobs}


# Expired leases.


@pytest.mark.parametrize(
    ("lease_ms", "now", "is_expired"), [(500, 499.999, False), (500, 500, True)]
)
def test_lease_is_its_owners_until_its_end(
    bench: Bench, lease_ms: int, now: float, is_expired: bool
) -> None:
    bench.schedule({"a": 0})
    bench.lease(lease_ms=lease_ms)
    bench.now = now

    assert names_of(bench.claim(owner=b"owner--2")) == (["a"] if is_expired else [])


def test_expired_lease_counts_as_a_kill_and_not_as_an_attempt(bench: Bench) -> None:
    bench.schedule({"a": 0})
    counts = []
    for n in range(4):
        bench.now = n * LEASE
        job = bench.lease()
        counts.append((job.attempts, job.kills, job.start_time_ms))

    assert counts == [(0, n, T0) for n in range(4)]


def test_job_that_killed_too_many_workers_is_a_dead_letter_with_the_reason(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    for n in range(3):
        bench.now = n * LEASE
        assert names_of(bench.claim(max_kills=2)) == ["a"]
    bench.now = 3 * LEASE

    claimed = bench.claim(max_kills=2)

    assert claimed.jobs == []
    assert bench.state() == {"dead": {"a": 3 * LEASE}}
    seen = bench.inspect("a")
    assert (seen.state, seen.kills, seen.attempts) == ("dead", 3, 0)
    assert b"3 times" in seen.error
    assert b'"kind":"killed"' in seen.error
    assert bench.counters()["dead"] == 1


def test_no_limit_of_kills_means_that_it_comes_for_ever(bench: Bench) -> None:
    bench.schedule({"a": 0})
    for n in range(20):
        bench.now = n * LEASE
        assert names_of(bench.claim(max_kills=-1)) == ["a"]


# Suspects: jobs whose leases expired too often.


#: One expired lease makes a suspect.
RULE: dict[str, Any] = {"safe_kills": 0, "put_off_ms": 500}


def die(bench: Bench) -> None:
    """Let the process of all that is leased be dead, as its supervisor tells."""
    assert bench.recover(batch=1_000).next_rank == -1


def lose(bench: Bench, *names: str) -> None:
    """Have jobs whose lease has expired: each is a suspect for whoever claims it next."""
    bench.schedule(dict.fromkeys(names, 0))
    assert names_of(bench.claim(len(names))) == list(names)
    die(bench)


@pytest.fixture(params=["expired", "retried"])
def suspects(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    """A queue with three suspects that are due, all among the leases or all among the retries."""
    lose(bench, "a", "b", "c")
    if request.param == "retried":
        bench.give_back(*bench.claim().jobs)
    return bench


def test_of_several_suspects_one_is_leased_and_the_others_come_later(
    suspects: Bench,
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
    suspects: Bench,
) -> None:
    for n in range(5):
        suspects.now = 500 * n
        claimed = suspects.claim(**RULE)
        assert names_of(claimed) == ["a"]
        assert claimed.jobs[0].kills == n + 1
        die(suspects)

    assert [suspects.inspect(name).kills for name in "bc"] == [1, 1]


def test_no_suspect_is_leased_beside_one_and_all_else_is(suspects: Bench) -> None:
    """What is put off fills no room: neither in number nor in bytes."""
    suspects.schedule({"fresh": 0, "later": 0})

    claimed = suspects.claim(1, takes_suspect=False, byte_budget=1, **RULE)

    assert (names_of(claimed), claimed.put_off) == (["fresh"], 3)
    # More waits now.
    assert claimed.wait_us == 0
    assert suspects.state()["retries"] == dict.fromkeys("abc", 500)


def test_suspects_hide_no_retry_behind_them(bench: Bench) -> None:
    bench.schedule({"retried": 1, **{f"s{n}": 0 for n in range(5)}})
    bench.now = 1
    *lost, failed = bench.claim().jobs
    bench.retry(failed, wait=0)
    die(bench)
    bench.give_back(*bench.claim(5).jobs)

    claimed = bench.claim(1, takes_suspect=False, **RULE)

    assert (names_of(claimed), claimed.put_off) == (["retried"], len(lost))


def test_one_call_puts_off_so_many_and_says_that_there_are_more(bench: Bench) -> None:
    lose(bench, *(f"s{n:04}" for n in range(600)))

    calls = [bench.claim(1, takes_suspect=False, **RULE) for _ in range(3)]

    assert [call.put_off for call in calls] == [500, 100, 0]
    assert [call.wait_us for call in calls] == [0, 500_000, 500_000]
    assert len(bench.state()["retries"]) == 600


def test_another_process_takes_a_suspect_that_one_has_put_off(bench: Bench) -> None:
    lose(bench, "a", "b")
    with bench.listening(bench.keys.channel) as heard:
        assert names_of(bench.claim(**RULE)) == ["a"]
        # It may know of no lease.
        assert heard() == [500]

    bench.now = 500
    assert names_of(bench.claim(owner=b"owner--2", **RULE)) == ["b"]


def test_suspect_that_was_killed_too_often_is_buried_and_not_put_off(
    suspects: Bench,
) -> None:
    claimed = suspects.claim(takes_suspect=False, max_kills=0, **RULE)

    assert (names_of(claimed), claimed.put_off) == ([], 0)
    assert list(suspects.state()["dead"]) == ["a", "b", "c"]


def test_without_a_rule_all_suspects_are_leased(suspects: Bench) -> None:
    assert names_of(suspects.claim(takes_suspect=False)) == ["a", "b", "c"]


def test_suspect_that_is_put_off_keeps_its_history(bench: Bench) -> None:
    bench.schedule({"first": 0})
    bench.schedule({"u": 0}, unique="ek")
    bench.retry(*bench.claim().jobs, wait=0)
    bench.claim()
    die(bench)

    assert names_of(bench.claim(**RULE)) == ["first"]

    seen = bench.inspect("u")
    assert (seen.state, seen.attempts, seen.kills) == (State.RETRYING, 1, 1)
    assert bench.state()["unique"] == {"k": "u"}
    bench.now = 500
    job = bench.lease(owner=b"owner--2", **RULE)
    assert (name_in(job.payload), job.attempts, job.kills) == ("u", 1, 1)
    assert job.start_time_ms == T0


def test_suspect_that_is_put_off_is_still_known_to_have_been_late(bench: Bench) -> None:
    lose(bench, "a")
    job = bench.lease()
    call = settling.give_back(bench.keys, [job], late=[job.token], now_us=bench.now_us)
    bench.run(call)

    assert bench.claim(takes_suspect=False, **RULE).put_off == 1

    bench.now = 500
    assert bench.lease(**RULE).was_late


def test_claim_that_is_repeated_brings_its_suspect_again(suspects: Bench) -> None:
    request = suspects.request()
    first = suspects.claim(request=request, **RULE)

    again = suspects.claim(request=request, takes_suspect=False, **RULE)

    assert again.jobs == first.jobs
    assert names_of(again) == ["a"]
    assert again.put_off == 0


def test_expired_leases_come_first_then_retries_then_due_frames(bench: Bench) -> None:
    bench.schedule({"fresh": 200, "expired": 0, "retried": 1})
    bench.now = 1
    expired, retried = bench.claim(lease_ms=100).jobs
    bench.retry(retried, wait=99)
    bench.now = 200

    assert names_of(bench.claim(1)) == ["expired"]
    assert names_of(bench.claim(1)) == ["retried"]
    assert names_of(bench.claim(1)) == ["fresh"]
    assert bench.acknowledge(expired) == [0]


def test_hundreds_of_leases_that_expire_at_once_are_claimed_in_bounded_calls(
    bench: Bench,
) -> None:
    for part in range(3):
        bench.schedule({f"j{part}-{n}": 0 for n in range(400)})
    while bench.claim(500).jobs:
        pass
    bench.now = LEASE

    sizes = []
    while jobs := bench.claim(500).jobs:
        sizes.append(len(jobs))

    assert sizes == [500, 500, 200]


@pytest.mark.parametrize("how", ["retried", "returned"])
def test_reply_tells_the_next_event_without_what_it_leased(
    bench: Bench, how: str
) -> None:
    bench.schedule({"a": 0})
    if how == "retried":
        bench.retry(bench.lease(), wait=0)
    else:
        bench.give_back(bench.lease())

    assert bench.claim().wait_us == LEASE * 1000


def test_takers_do_not_touch_retries(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.retry(bench.lease(), wait=0)

    taken = bench.claim(mode=Mode.TAKE)

    assert taken.jobs == []
    assert taken.wait_us == -1
    assert names_of(bench.claim()) == ["a"]


def test_taker_finds_what_another_taker_lost(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"x")
    bench.lease(mode=Mode.TAKE)
    bench.now = LEASE

    assert names_of(bench.claim(mode=Mode.TAKE)) == ["x"]


# The next event.


@pytest.mark.parametrize(
    ("retry_in", "lease_ms", "wait_us"),
    [(70, 90, 50_000), (30, 90, 30_000), (70, 20, 20_000), (0, 90, 0)],
)
def test_answer_tells_the_time_until_the_first_of_all_events(
    bench: Bench, retry_in: int, lease_ms: int, wait_us: int
) -> None:
    bench.schedule({"retried": 0})
    bench.retry(bench.lease(), wait=retry_in)
    bench.schedule({"leased": 0, "due": 50})
    claimed = bench.claim(lease_ms=lease_ms)

    if wait_us == 0:
        bench.give_back(*claimed.jobs)
        claimed = bench.claim(0)
        assert bench.claim(1).wait_us == 0
    else:
        assert claimed.wait_us == wait_us


def test_time_until_the_next_event_is_exact_to_the_microsecond(bench: Bench) -> None:
    bench.schedule({"a": 7})
    bench.now = 2.345

    assert bench.claim().wait_us == 4_655


def test_who_has_no_room_is_told_of_the_next_transfer_only(bench: Bench) -> None:
    bench.schedule({"leased": 0, "due": 50})
    bench.claim(lease_ms=10)
    bench.client.rpush(bench.keys.queue.destination, b"x")

    assert bench.claim(0, mode=Mode.SHARED).wait_us == 50_000


# What others leave behind.


def test_double_of_a_frame_is_dropped_and_counted(any_bench: Bench) -> None:
    """Two frames of one token: a schedule that was delivered twice, far apart."""
    bench = any_bench
    bench.schedule({"a": 0})
    bench.schedule({"a": 0})

    claimed = bench.claim()

    assert names_of(claimed) == ["a"]
    assert claimed.doubles == 1
    assert bench.counters()["doubles"] == 1


@pytest.mark.parametrize("life", ["leased", "retrying", "dead"])
def test_frame_whose_job_is_known_already_is_dropped(bench: Bench, life: str) -> None:
    bench.schedule({"a": 0})
    job = bench.lease()
    if life == "retrying":
        bench.retry(job)
    elif life == "dead":
        bench.bury(job)
    bench.java_offer(payload("a"), 0)

    claimed = bench.claim()

    assert (claimed.jobs, claimed.doubles) == ([], 1)
    assert bench.frames() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("later", "runs"), [(30_000, False), (30_001, True)])
def test_token_of_a_job_that_ended_is_forgotten_after_thirty_seconds(
    bench: Bench, mode: Mode, later: int, runs: bool
) -> None:
    bench.schedule({"a": 0})
    bench.acknowledge(bench.lease())
    bench.now = later
    bench.schedule({"a": 0})

    jobs = bench.claim(mode=mode).jobs or bench.claim(mode=mode).jobs

    assert len(jobs) == runs


def test_foreign_frames_are_leased_under_a_token_of_their_own(
    any_bench: Bench,
) -> None:
    bench = any_bench
    bench.java_offer("x", 5)
    bench.java_offer("x", 5)
    bench.now = 9

    one, two = bench.claim().jobs

    assert one.payload == two.payload == b"x"
    assert one.is_foreign
    assert two.is_foreign
    assert one.start_time_ms == T0 + 5
    assert len({one.token, two.token}) == 2
    assert {len(one.token), len(two.token)} == {signing.TOKEN_LENGTH}
    assert bench.acknowledge(one, two) == []
    assert bench.state() == {}


@pytest.mark.parametrize("how", ["retried", "expired", "given back", "replayed"])
def test_foreign_job_is_foreign_in_every_attempt(bench: Bench, how: str) -> None:
    bench.java_offer("x", 0)
    job = bench.lease()
    if how == "retried":
        bench.retry(job, wait=0)
    elif how == "expired":
        bench.now = LEASE
    elif how == "given back":
        bench.retry(job, wait=0)
        bench.give_back(bench.lease())
    else:
        bench.bury(job)
        bench.run(changing.replay(bench.keys, [job.token], now_us=bench.now_us))

    again = bench.lease()

    assert again.is_foreign
    assert (again.token, again.payload) == (job.token, b"x")


@pytest.mark.parametrize("first", FrameFormat)
def test_frames_of_both_formats_come_in_order(bench: Bench, first: FrameFormat) -> None:
    bench.frame_format = first
    other = next(item for item in FrameFormat if item is not first)
    bench.schedule({"a": 1})
    bench.java_offer("x", 2, frame_format=other)
    bench.schedule({"b": 3}, frame_format=other)
    bench.java_offer("y", 4, frame_format=first)
    bench.schedule({"c": 5}, insertion_list=False)
    bench.now = 10

    assert names_of(bench.claim()) == ["a", "x", "b", "y", "c"]
    assert bench.frames() == []


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
    bench: Bench, mode: Mode, bad: bytes
) -> None:
    bench.schedule({"a": 0, "b": 20})
    bench.client.zadd(bench.keys.queue.timeout_set, {bad: T0 + 10})
    bench.client.rpush(bench.keys.queue.delay_queue, bad)
    bench.now = 30

    jobs = bench.claim(mode=mode).jobs or bench.claim(mode=mode).jobs

    assert [job.payload for job in jobs] == [payload("a"), payload("b")]
    (aside,) = bench.run(looking.page(bench.keys, states.State.QUARANTINED)).rows
    assert (aside.payload, aside.payload_size) == (bad, len(bad))
    assert aside.score_ms == T0 + 30
    assert b"not a Redisson frame" in aside.error
    assert len(aside.token) == signing.TOKEN_LENGTH
    assert bench.frames() == []
    assert bench.counters()["quarantined"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_many_bad_frames_do_not_hold_up_the_good_ones(bench: Bench, mode: Mode) -> None:
    bad = {b"bad%d" % n: T0 for n in range(250)}
    bench.client.zadd(bench.keys.queue.timeout_set, bad)
    bench.schedule({"a": 1})
    bench.now = 1

    for _ in range(4):
        if jobs := bench.claim(100, mode=mode).jobs:
            break

    assert [name_in(job.payload) for job in jobs] == ["a"]
    assert bench.client.zcard(bench.keys.quarantine) == 250


def test_payload_with_a_token_like_text_further_in_is_foreign(bench: Bench) -> None:
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
        bench.java_offer(body, 0)

    claimed = bench.claim()

    assert [(job.payload, job.is_foreign) for job in claimed.jobs] == [
        (body, True) for body in bodies
    ]


def test_payload_that_a_codec_wrapped_is_found_by_its_token(bench: Bench) -> None:
    wrapped = b"\x03\x40" + payload("a")
    bench.send([NewJob(token("a"), "+0", "", wrapped)])

    job = bench.lease()

    assert (job.token, job.is_foreign) == (token("a"), False)
    bench.is_checked = False  # its payload is not one that the rules know


# Keys of ours that somebody deleted.


@pytest.mark.parametrize("where", ["retries", "leases"])
def test_job_without_its_payload_goes_whole_is_counted_and_frees_its_key(
    bench: Bench, where: str
) -> None:
    bench.schedule({"a": 0}, unique="ek")
    job = bench.lease()
    if where == "retries":
        bench.retry(job, wait=0)
    bench.client.delete(bench.keys.payloads)
    bench.now = LEASE

    first, second = bench.claim(), bench.claim()

    assert (first.jobs, first.vanished) == ([], 1)
    assert (second.jobs, second.vanished, second.wait_us) == ([], 0, -1)
    assert bench.counters()["vanished"] == 1
    assert bench.leftovers() == []
    assert bench.schedule({"b": 5}, unique="ek")[0].holder == ""


@pytest.mark.parametrize("where", ["retries", "leases"])
@pytest.mark.parametrize("header", [None, b"", b"short", b"\xff" * 40])
def test_job_whose_header_cannot_be_read_begins_anew(
    bench: Bench, where: str, header: bytes | None
) -> None:
    bench.schedule({"a": 0, "b": 0})
    a, b = bench.claim().jobs
    if where == "retries":
        bench.retry(a, b, wait=0)
    bench.client.hdel(bench.keys.headers, a.token)
    if header is not None:
        bench.client.hset(bench.keys.headers, a.token, header)
    bench.now = LEASE

    assert bench.inspect("a").attempts == 0
    page = looking.page(
        bench.keys, State.RETRYING if where == "retries" else State.RUNNING
    )
    assert bench.run(page).rows[0].attempts == 0
    if where == "leases":
        assert bench.renew(a) == [0]
    claimed = bench.claim()

    assert names_of(claimed) == ["a", "b"]
    assert claimed.jobs[0].attempts == 0
    assert bench.acknowledge(*claimed.jobs) == []


@pytest.mark.parametrize("locator", [b"", b"short", b"\xff" * 30])
def test_job_whose_locator_cannot_be_read_is_missing_by_its_id_and_runs(
    any_bench: Bench, locator: bytes
) -> None:
    bench = any_bench
    bench.schedule({"a": 5, "b": 5})
    bench.schedule({"u": 5}, unique="ek")
    for name in ("a", "u"):
        bench.client.hset(bench.keys.locators, token(name), locator)
    bench.now = 5

    assert bench.inspect("a").state is State.MISSING
    bench.schedule({"a": 9}, again=True)
    # Nobody can tell whether its holder still waits.
    assert bench.schedule({"v": 0}, unique="ek")[0].holder == ""
    bench.client.hset(bench.keys.locators, token("a"), locator)

    assert sorted(names_of(bench.claim())) == ["a", "b", "u", "v"]
    assert bench.client.hlen(bench.keys.locators) == 0


def test_unreadable_locator_does_not_stop_a_transfer(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 0})
    bench.client.hset(bench.keys.locators, token("a"), b"short")

    assert bench.transfer().moved == 2
    assert names_of(bench.claim(mode=Mode.SHARED)) == ["a", "b"]


@pytest.mark.parametrize("value", ["many", "", str(2**63 - 1), "1.5"])
def test_counter_that_is_no_number_begins_anew(bench: Bench, value: str) -> None:
    bench.schedule({"a": 0, "b": 0, "c": 0})
    names = "number", "succeeded", "retried", "dead", "offered"
    bench.client.hset(bench.keys.counters, mapping=dict.fromkeys(names, value))
    bench.counters()

    bench.schedule({"d": 0})
    bench.client.hset(bench.keys.counters, "number", value)
    jobs = bench.claim().jobs
    bench.acknowledge(jobs[0])
    bench.retry(jobs[1])
    bench.bury(jobs[2])

    assert sorted(job.token[0] for job in jobs) == ["a", "b", "c", "d"]
    counters = bench.counters()
    assert [counters[name] for name in names[1:4]] == [1, 1, 1]
    assert bench.frames() == []
    bench.is_checked = False


def test_owners_last_request_is_forgotten_with_a_claim_that_finds_something(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    bench.claim(request=b"request1")

    (request,) = bench.client.hgetall(bench.keys.claims).items()
    assert request == (OWNER, b"request1" + struct.pack("<d", T0 + LEASE))
