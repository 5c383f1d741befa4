from typing import Any

import pytest
import redis

from django_delayq.core import store as store_calls
from django_delayq.core.claim import Mode
from django_delayq.core.lease_ends import Done
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, Scheduled
from django_delayq.transport.run import run
from django_delayq.wire import frame as frames
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import (
    FIRST,
    LISTED,
    T0,
    UNLISTED,
    Rig,
    payload,
    token,
)


def test_jobs_wait_in_the_order_of_their_start_times_and_lie_in_that_of_their_offers(
    rig: Rig,
) -> None:
    replies = rig.schedule({"c": 3_000, "a": 1_000, "b": 2_000})

    assert replies == [Scheduled(due, "") for due in (3_000, 1_000, 2_000)]
    assert rig.state() == {
        "timeout_set": [("a", 1_000), ("b", 2_000), ("c", 3_000)],
        "delay_queue": ["c", "a", "b"],
        "locators": ["a", "b", "c"],
    }


def test_without_the_insertion_list_only_the_timeout_set_is_written(
    client: "redis.Redis[bytes]", queue_name: str
) -> None:
    rig = Rig(client, queue_name, insertion_list=False)

    rig.schedule({"a": 1_000})

    assert rig.state() == {"timeout_set": [("a", 1_000)], "locators": ["a"]}


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize(("listed", "mark"), [(True, LISTED), (False, UNLISTED)])
def test_frame_is_in_the_format_asked_for_and_its_eight_bytes_are_mark_and_number(
    rig: Rig, frame_format: FrameFormat, listed: bool, mark: bytes
) -> None:
    rig.schedule({"a": 0, "b": 1}, frame_format=frame_format, insertion_list=listed)

    assert rig.client.zrange(rig.keys.queue.timeout_set, 0, -1) == [
        frames.pack(mark + number.to_bytes(6, "big"), payload(name), frame_format)
        for number, name in enumerate("ab", FIRST + 1)
    ]


@pytest.mark.parametrize(
    ("now", "wait", "start_time"),
    [
        (0, "+0", 0),
        (0, "+1500", 1_500),
        (0.001, "+0", 1),  # never early: what is left of this ms is added
        (0.999, "+5", 6),
        (1, "+5", 6),
        (0, f"={T0 + 70}", 70),
        (50.5, f"={T0 + 70}", 70),
        (50.5, f"={T0 + 51}", 51),
        (50.5, f"={T0 + 50}", 51),  # in the past: now
        (0, "=0", 0),
        (0, f"={2**53}", 2**53 - T0),
    ],
)
def test_start_time_is_now_rounded_up_plus_the_wait(
    rig: Rig, now: float, wait: str, start_time: int
) -> None:
    rig.now = now

    assert rig.schedule({"a": wait}) == [Scheduled(start_time, "")]

    assert rig.state()["timeout_set"] == [("a", start_time)]


@pytest.mark.parametrize("wait", ["+0", "+1", "=0"])
def test_score_is_written_as_an_integer_that_java_can_parse(
    rig: Rig, wait: str
) -> None:
    rig.now = 0.5

    rig.schedule({"a": wait})

    head = rig.client.execute_command(
        "ZRANGE", rig.keys.queue.timeout_set, 0, 0, "WITHSCORES"
    )
    score = rig.client.eval(
        "return redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]",
        1,
        rig.keys.queue.timeout_set,
    )
    assert len(head) > 0
    assert score.isdigit()


def test_the_servers_clock_decides_where_no_other_is_given(rig: Rig) -> None:
    before = rig.client.time()
    (reply,) = run(
        rig.client,
        store_calls.schedule(
            store_calls.Target(rig.keys),
            [NewJob(token("a"), "+5000", "", payload("a"))],
        ),
    )
    after = rig.client.time()

    start, end = (s * 1000 + us / 1000 for s, us in (before, after))
    assert start <= reply.start_time_ms - 5_000 <= end + 1


# Where a new head is published.


@pytest.mark.parametrize(
    ("before", "new", "published"),
    [
        ({}, {"n": 5_000}, [5_000]),
        ({"a": 5_000}, {"n": 5_001}, []),
        ({"a": 5_000}, {"n": 5_000}, []),
        ({"a": 5_000}, {"n": 4_999}, [4_999]),
        ({"a": 5_000}, {"n": 6_000, "m": 4_000, "o": 4_500}, [4_000]),
    ],
)
def test_start_time_is_published_once_where_it_is_a_new_head(
    rig: Rig, before: dict[str, int], new: dict[str, int], published: list[int]
) -> None:
    rig.schedule(before)
    with rig.listening(rig.keys.queue.channel) as heard:
        rig.schedule(new)

        assert heard() == published


# Safe to repeat.


def test_token_that_waits_is_not_stored_again_and_keeps_its_start_time(
    any_rig: Rig,
) -> None:
    rig = any_rig
    rig.schedule({"a": 5_000})
    before = rig.state()
    rig.now = 100

    replies = rig.schedule({"a": 5_000}, again=True)

    assert replies == [Scheduled(5_000, "")]
    assert rig.state() == before


@pytest.mark.parametrize(
    "life",
    [
        "leased",
        "lease expired",
        "retrying",
        "given back",
        "dead",
        "quarantined",
        "succeeded",
        "expired",
        "cancelled",
        "moved",
        "in the destination queue",
        "noted",
    ],
)
def test_token_is_stored_once_whatever_became_of_it(rig: Rig, life: str) -> None:
    rig.schedule({"a": 0})
    if life == "cancelled":
        rig.cancel("a")
    elif life == "moved":
        rig.reschedule("a", 700)
    elif life == "in the destination queue":
        rig.transfer()
    elif life == "noted":
        rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_001)
        rig.transfer()
        rig.cancel("a")
    else:
        job = rig.lease()
        if life == "retrying":
            rig.retry(job)
        elif life == "given back":
            rig.give_back(job)
        elif life == "dead":
            rig.bury(job)
        elif life == "quarantined":
            rig.bury(job, state=State.QUARANTINED)
        elif life in ("succeeded", "expired"):
            rig.acknowledge(job, state=State(life))
    rig.now = LEASE_END if life == "lease expired" else 10
    before = rig.state()

    (reply,) = rig.schedule({"a": 0}, again=True)

    assert reply.holder == ""
    assert rig.state() == before
    assert rig.counters()["offered"] == 1


LEASE_END = 30_000


def test_token_taken_in_the_first_call_is_not_stored_again_by_the_second(
    rig: Rig,
) -> None:
    # Java's transfer and take leave nothing but the locator behind.
    rig.schedule({"a": 0})
    rig.java_transfer()
    assert rig.java_take() == "a"

    rig.schedule({"a": 0}, again=True)

    rig.is_checked = False
    assert rig.state() == {"locators": ["a"]}


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled"])
@pytest.mark.parametrize(
    ("later", "is_known"),
    [(30_000, True), (30_001, False), (-60_000, True), (-60_001, False)],
)
def test_end_of_a_job_is_remembered_for_thirty_seconds(
    rig: Rig, outcome: str, later: int, is_known: bool
) -> None:
    rig.schedule({"a": 0})
    if outcome == "cancelled":
        rig.cancel("a")
    else:
        rig.acknowledge(rig.lease())
    rig.now = later

    rig.schedule({"a": 0}, again=True)

    assert rig.state().get("timeout_set", []) == ([] if is_known else [("a", later)])


def test_repeat_of_a_batch_stores_what_is_missing_only(rig: Rig) -> None:
    rig.schedule({"a": 100, "b": 200})
    rig.now = 100
    rig.lease()

    replies = rig.schedule({"a": 100, "b": 200, "c": 300}, again=True)

    assert [reply.start_time_ms for reply in replies[1:]] == [200, 400]
    assert rig.state()["timeout_set"] == [("b", 200), ("c", 400)]
    assert rig.counters()["offered"] == 3


# Bounds and numbers.


def test_equal_payloads_with_equal_start_times_stay_apart(any_rig: Rig) -> None:
    rig = any_rig
    jobs = [NewJob(token(f"j{n}"), "+7", "", b"same") for n in range(50)]

    rig.send(jobs)

    assert rig.client.zcard(rig.keys.queue.timeout_set) == 50
    rig.is_checked = False  # the payloads hold no token


def test_numbers_rise_over_calls_and_none_is_used_twice(rig: Rig) -> None:
    numbers = []
    for batch in range(4):
        rig.schedule(
            {f"j{batch}{n}": 0 for n in range(3)}, insertion_list=batch % 2 == 0
        )
        frames_ = rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
        numbers += [int.from_bytes(frame[3:9], "big") for frame in frames_]
        rig.acknowledge(*rig.claim().jobs)

    assert numbers == sorted(set(numbers))


def test_numbers_go_on_above_the_list_where_the_counters_are_gone(
    rig: Rig,
) -> None:
    rig.schedule({f"j{n}": 0 for n in range(20)})
    rig.client.delete(rig.keys.counters)

    rig.schedule({"n": 0})

    assert int.from_bytes(rig.frames()[-1][3:9], "big") > 20


def test_a_full_batch_of_unique_jobs_is_stored_by_one_call(any_rig: Rig) -> None:
    rig = any_rig
    jobs = [
        NewJob(token(f"j{n}"), f"+{n}", f"ek{n}", payload(f"j{n}"))
        for n in range(store_calls.SCHEDULE_BATCH)
    ]

    assert len(rig.send(jobs)) == store_calls.SCHEDULE_BATCH

    assert len(rig.state()["timeout_set"]) == store_calls.SCHEDULE_BATCH


def test_an_empty_call_changes_nothing(rig: Rig) -> None:
    assert rig.send([]) == []

    assert rig.leftovers() == []
    assert rig.counters() == {"offered": 0}


def test_payloads_of_any_bytes_arrive_as_they_are(any_rig: Rig) -> None:
    rig = any_rig
    bodies = [b"", b"\0", b"\xff" * 9, bytes(range(256)), b"\r\n", "ü€😀".encode()]

    rig.send([NewJob(token(f"j{n}"), "+0", "", body) for n, body in enumerate(bodies)])

    assert [job.payload for job in rig.claim(owner=b"12345678").jobs] == bodies
    rig.is_checked = False  # the payloads hold no token


# Foreign hands.


def test_repeat_after_a_claim_from_the_destination_queue_stores_nothing(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    rig.java_transfer()
    job = rig.lease(mode=Mode.SHARED)
    rig.schedule({"a": 0}, again=True)
    rig.acknowledge(Done(job.token, job.fence))
    rig.schedule({"a": 0}, again=True)

    assert rig.state() == {}


def test_no_key_is_left_when_all_jobs_ended(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({f"j{n}": n for n in range(30)}, unique="")
    rig.schedule({"u": 0}, unique="ek")
    rig.now = 100

    while jobs := rig.claim(7).jobs:
        rig.acknowledge(*jobs)

    # The last request of each owner stays: one field for each process, deleted when the process ends.
    assert rig.leftovers() == [rig.keys.claims]
    rig.recover()
    assert rig.leftovers() == []


# One job in a call of its own. Whatever is not plain about it is left to the script for many jobs.


PLAIN = {"unique": "", "again": False, "is_first": False, "wait": 700}
LISTS = pytest.mark.parametrize("listed", [True, False])
FORMATS = pytest.mark.parametrize("frame_format", FrameFormat)


@LISTS
@FORMATS
@pytest.mark.parametrize(
    "special",
    [
        {},
        {"unique": "ek"},
        {"again": True},
        {"is_first": True},
        {"wait": 0},
        {"wait": "=0"},
        {"wait": f"={T0 + 900}"},
        {"unique": "sk", "is_first": True, "again": True},
    ],
)
def test_one_job_alone_is_stored_as_among_many(
    client: "redis.Redis[bytes]",
    queue_name: str,
    frame_format: FrameFormat,
    listed: bool,
    special: dict[str, Any],
) -> None:
    told: list[Any] = []
    for name, send in (("alone", store_calls.store), ("many", _as_many)):
        rig = Rig(client, f"{queue_name}:{name}", frame_format=frame_format)
        case = PLAIN | special
        if not case["is_first"]:
            rig.schedule({"before": 500}, insertion_list=listed)
        wait = case["wait"]
        job = NewJob(
            token("a"),
            wait if isinstance(wait, str) else f"+{wait}",
            case["unique"],
            payload("a"),
        )
        call: Any = send(store_calls.Target(rig.keys, frame_format, listed), job)
        with rig.listening(rig.keys.queue.channel) as heard:
            reply = rig.run(call.again() if case["again"] else call)
            told.append(
                (
                    reply,
                    heard(),
                    rig.state(),
                    rig.counters(),
                    client.zrange(rig.keys.queue.timeout_set, 0, -1, withscores=True),
                    client.lrange(rig.keys.queue.delay_queue, 0, -1),
                    client.hgetall(rig.keys.locators),
                )
            )
        rig.claim()
        rig.now = 1_000
        rig.acknowledge(*rig.claim().jobs)
        rig.recover()

    assert told[0] == told[1]


def _as_many(target: store_calls.Target, job: NewJob) -> Any:
    return store_calls.schedule(target, [job])


def test_job_alone_that_is_plain_costs_one_script_and_the_first_of_a_queue_two(
    rig: Rig,
) -> None:
    stats: list[int] = []
    for name in "ab":
        before = rig.client.info("commandstats").get("cmdstat_hincrby", {"calls": 0})
        rig.schedule({name: 5})
        after = rig.client.info("commandstats")["cmdstat_hincrby"]
        stats.append(after["calls"] - before["calls"])

    assert stats == [2, 1]


@pytest.mark.parametrize(
    ("spoilt", "listed"),
    [
        ("timeout_set", True),
        ("timeout_set", False),
        ("locators", True),
        ("locators", False),
        ("delay_queue", True),
    ],
)
def test_nothing_is_left_of_a_job_that_meets_a_key_of_another_type(
    rig: Rig, spoilt: str, listed: bool
) -> None:
    rig.schedule({"before": 500}, insertion_list=listed)
    key = getattr(rig.keys, spoilt, None) or getattr(rig.keys.queue, spoilt)
    rig.client.delete(key)
    rig.client.set(key, "somebody's")
    before = {key: rig.client.dump(key) for key in rig.client.keys("*")}

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        rig.schedule({"a": 700}, insertion_list=listed)

    rig.is_checked = False
    after = {key: rig.client.dump(key) for key in rig.client.keys("*")}
    assert after == before
    rig.client.delete(key)


def test_a_token_that_has_a_locator_is_stored_as_among_many(rig: Rig) -> None:
    rig.schedule({"before": 500, "a": 600})
    rig.client.zrem(rig.keys.queue.timeout_set, rig.frames()[-1])
    rig.client.rpop(rig.keys.queue.delay_queue)

    assert rig.schedule({"a": 700}) == [Scheduled(700, "")]

    assert rig.state()["timeout_set"] == [("before", 500), ("a", 700)]
    assert rig.cancel("a") == "cancelled"


@pytest.mark.parametrize("spoilt", [b"no number", b"9223372036854775807"])
def test_a_counter_that_holds_no_number_begins_anew(rig: Rig, spoilt: bytes) -> None:
    rig.schedule({"before": 500})
    rig.client.hset(rig.keys.counters, "number", spoilt)

    assert rig.schedule({"a": 700}) == [Scheduled(700, "")]

    assert rig.counters()["offered"] == 1
