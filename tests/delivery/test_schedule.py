from typing import Any

import pytest
import redis

from django_delayq.delivery import storing
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.settling import Done
from django_delayq.delivery.states import State
from django_delayq.delivery.storing import NewJob, Scheduled
from django_delayq.wire import frame as frames
from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import (
    FIRST,
    LISTED,
    T0,
    UNLISTED,
    Bench,
    payload,
    token,
)


def test_jobs_wait_in_the_order_of_their_start_times_and_lie_in_that_of_their_offers(
    bench: Bench,
) -> None:
    replies = bench.schedule({"c": 3_000, "a": 1_000, "b": 2_000})

    assert replies == [Scheduled(due, "") for due in (3_000, 1_000, 2_000)]
    assert bench.state() == {
        "timeout_set": [("a", 1_000), ("b", 2_000), ("c", 3_000)],
        "delay_queue": ["c", "a", "b"],
        "locators": ["a", "b", "c"],
    }


def test_without_the_insertion_list_only_the_timeout_set_is_written(
    client: "redis.Redis[bytes]", queue_name: str
) -> None:
    bench = Bench(client, queue_name, insertion_list=False)

    bench.schedule({"a": 1_000})

    assert bench.state() == {"timeout_set": [("a", 1_000)], "locators": ["a"]}


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize(("listed", "mark"), [(True, LISTED), (False, UNLISTED)])
def test_frame_is_in_the_format_asked_for_and_its_eight_bytes_are_mark_and_number(
    bench: Bench, frame_format: FrameFormat, listed: bool, mark: bytes
) -> None:
    bench.schedule({"a": 0, "b": 1}, frame_format=frame_format, insertion_list=listed)

    assert bench.client.zrange(bench.keys.queue.timeout_set, 0, -1) == [
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
    bench: Bench, now: float, wait: str, start_time: int
) -> None:
    bench.now = now

    assert bench.schedule({"a": wait}) == [Scheduled(start_time, "")]

    assert bench.state()["timeout_set"] == [("a", start_time)]


@pytest.mark.parametrize("wait", ["+0", "+1", "=0"])
def test_score_is_written_as_an_integer_that_java_can_parse(
    bench: Bench, wait: str
) -> None:
    bench.now = 0.5

    bench.schedule({"a": wait})

    head = bench.client.execute_command(
        "ZRANGE", bench.keys.queue.timeout_set, 0, 0, "WITHSCORES"
    )
    score = bench.client.eval(
        "return redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]",
        1,
        bench.keys.queue.timeout_set,
    )
    assert len(head) > 0
    assert score.isdigit()


def test_the_servers_clock_decides_where_no_other_is_given(bench: Bench) -> None:
    before = bench.client.time()
    (reply,) = bench.run(
        storing.schedule(bench.keys, [NewJob(token("a"), "+5000", "", payload("a"))])
    )
    after = bench.client.time()

    start, end = (s * 1000 + us / 1000 for s, us in (before, after))
    assert start <= reply.start_time_ms - 5_000 <= end + 1


# Who is told of a new head.


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
    bench: Bench, before: dict[str, int], new: dict[str, int], published: list[int]
) -> None:
    bench.schedule(before)
    with bench.listening(bench.keys.queue.channel) as heard:
        bench.schedule(new)

        assert heard() == published


# Safe to repeat.


def test_token_that_waits_is_not_stored_again_and_keeps_its_start_time(
    any_bench: Bench,
) -> None:
    bench = any_bench
    bench.schedule({"a": 5_000})
    before = bench.state()
    bench.now = 100

    replies = bench.schedule({"a": 5_000}, again=True)

    assert replies == [Scheduled(5_000, "")]
    assert bench.state() == before


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
def test_token_is_stored_once_whatever_became_of_it(bench: Bench, life: str) -> None:
    bench.schedule({"a": 0})
    if life == "cancelled":
        bench.cancel("a")
    elif life == "moved":
        bench.reschedule("a", 700)
    elif life == "in the destination queue":
        bench.transfer()
    elif life == "noted":
        bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_001)
        bench.transfer()
        bench.cancel("a")
    else:
        job = bench.lease()
        if life == "retrying":
            bench.retry(job)
        elif life == "given back":
            bench.give_back(job)
        elif life == "dead":
            bench.bury(job)
        elif life == "quarantined":
            bench.bury(job, state=State.QUARANTINED)
        elif life in ("succeeded", "expired"):
            bench.acknowledge(job, state=State(life))
    bench.now = LEASE_END if life == "lease expired" else 10
    before = bench.state()

    (reply,) = bench.schedule({"a": 0}, again=True)

    assert reply.holder == ""
    assert bench.state() == before
    assert bench.counters()["offered"] == 1


LEASE_END = 30_000


def test_token_taken_in_the_first_call_is_not_stored_again_by_the_second(
    bench: Bench,
) -> None:
    # Java's transfer and take leave nothing but the locator behind.
    bench.schedule({"a": 0})
    bench.java_transfer()
    assert bench.java_take() == "a"

    bench.schedule({"a": 0}, again=True)

    bench.is_checked = False
    assert bench.state() == {"locators": ["a"]}


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled"])
@pytest.mark.parametrize(("later", "is_known"), [(30_000, True), (30_001, False)])
def test_end_of_a_job_is_remembered_for_thirty_seconds(
    bench: Bench, outcome: str, later: int, is_known: bool
) -> None:
    bench.schedule({"a": 0})
    if outcome == "cancelled":
        bench.cancel("a")
    else:
        bench.acknowledge(bench.lease())
    bench.now = later

    bench.schedule({"a": 0}, again=True)

    assert bench.state().get("timeout_set", []) == ([] if is_known else [("a", later)])


def test_repeat_of_a_batch_stores_what_is_missing_only(bench: Bench) -> None:
    bench.schedule({"a": 100, "b": 200})
    bench.now = 100
    bench.lease()

    replies = bench.schedule({"a": 100, "b": 200, "c": 300}, again=True)

    assert [reply.start_time_ms for reply in replies[1:]] == [200, 400]
    assert bench.state()["timeout_set"] == [("b", 200), ("c", 400)]
    assert bench.counters()["offered"] == 3


# Bounds and numbers.


def test_equal_payloads_with_equal_start_times_stay_apart(any_bench: Bench) -> None:
    bench = any_bench
    jobs = [NewJob(token(f"j{n}"), "+7", "", b"same") for n in range(50)]

    bench.send(jobs)

    assert bench.client.zcard(bench.keys.queue.timeout_set) == 50
    bench.is_checked = False  # the payloads hold no token


def test_numbers_rise_over_calls_and_none_is_used_twice(bench: Bench) -> None:
    numbers = []
    for batch in range(4):
        bench.schedule(
            {f"j{batch}{n}": 0 for n in range(3)}, insertion_list=batch % 2 == 0
        )
        frames_ = bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
        numbers += [int.from_bytes(frame[3:9], "big") for frame in frames_]
        bench.acknowledge(*bench.claim().jobs)

    assert numbers == sorted(set(numbers))


def test_numbers_go_on_above_the_list_where_the_counters_are_gone(
    bench: Bench,
) -> None:
    bench.schedule({f"j{n}": 0 for n in range(20)})
    bench.client.delete(bench.keys.counters)

    bench.schedule({"n": 0})

    assert int.from_bytes(bench.frames()[-1][3:9], "big") > 20


def test_a_full_batch_of_unique_jobs_is_stored_by_one_call(any_bench: Bench) -> None:
    bench = any_bench
    jobs = [
        NewJob(token(f"j{n}"), f"+{n}", f"ek{n}", payload(f"j{n}"))
        for n in range(storing.SCHEDULE_BATCH)
    ]

    assert len(bench.send(jobs)) == storing.SCHEDULE_BATCH

    assert len(bench.state()["timeout_set"]) == storing.SCHEDULE_BATCH


def test_an_empty_call_changes_nothing(bench: Bench) -> None:
    assert bench.send([]) == []

    assert bench.leftovers() == []
    assert bench.counters() == {"offered": 0}


def test_payloads_of_any_bytes_arrive_as_they_are(any_bench: Bench) -> None:
    bench = any_bench
    bodies = [b"", b"\0", b"\xff" * 9, bytes(range(256)), b"\r\n", "ü€😀".encode()]

    bench.send(
        [NewJob(token(f"j{n}"), "+0", "", body) for n, body in enumerate(bodies)]
    )

    assert [job.payload for job in bench.claim(owner=b"12345678").jobs] == bodies
    bench.is_checked = False  # the payloads hold no token


# Foreign hands.


def test_repeat_after_a_claim_from_the_destination_queue_stores_nothing(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    bench.java_transfer()
    job = bench.lease(mode=Mode.SHARED)
    bench.schedule({"a": 0}, again=True)
    bench.acknowledge(Done(job.token, job.fence))
    bench.schedule({"a": 0}, again=True)

    assert bench.state() == {}


def test_no_key_is_left_when_all_jobs_ended(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({f"j{n}": n for n in range(30)}, unique="")
    bench.schedule({"u": 0}, unique="ek")
    bench.now = 100

    while jobs := bench.claim(7).jobs:
        bench.acknowledge(*jobs)

    # The last request of each owner stays: one field a process, taken away with it.
    assert bench.leftovers() == [bench.keys.claims]
    bench.recover()
    assert bench.leftovers() == []


# One job in a call of its own: what is not plain about it is left to the script for many.


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
    for name, send in (("alone", storing.store), ("many", _as_many)):
        bench = Bench(client, f"{queue_name}:{name}", frame_format=frame_format)
        case = PLAIN | special
        if not case["is_first"]:
            bench.schedule({"before": 500}, insertion_list=listed)
        wait = case["wait"]
        job = NewJob(
            token("a"),
            wait if isinstance(wait, str) else f"+{wait}",
            case["unique"],
            payload("a"),
        )
        call: Any = send(
            bench.keys,
            job,
            frame_format=frame_format,
            insertion_list=listed,
            now_us=bench.now_us,
        )
        with bench.listening(bench.keys.queue.channel) as heard:
            reply = bench.run(call.again() if case["again"] else call)
            told.append(
                (
                    reply,
                    heard(),
                    bench.state(),
                    bench.counters(),
                    client.zrange(bench.keys.queue.timeout_set, 0, -1, withscores=True),
                    client.lrange(bench.keys.queue.delay_queue, 0, -1),
                    client.hgetall(bench.keys.locators),
                )
            )
        bench.claim()
        bench.now = 1_000
        bench.acknowledge(*bench.claim().jobs)
        bench.recover()

    assert told[0] == told[1]


def _as_many(keys: DeliveryKeys, job: NewJob, **options: Any) -> Any:
    return storing.schedule(keys, [job], **options)


def test_job_alone_that_is_plain_costs_one_script_and_the_first_of_a_queue_two(
    bench: Bench,
) -> None:
    stats: list[int] = []
    for name in "ab":
        before = bench.client.info("commandstats").get("cmdstat_hincrby", {"calls": 0})
        bench.schedule({name: 5})
        after = bench.client.info("commandstats")["cmdstat_hincrby"]
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
    bench: Bench, spoilt: str, listed: bool
) -> None:
    bench.schedule({"before": 500}, insertion_list=listed)
    key = getattr(bench.keys, spoilt, None) or getattr(bench.keys.queue, spoilt)
    bench.client.delete(key)
    bench.client.set(key, "somebody's")
    before = {key: bench.client.dump(key) for key in bench.client.keys("*")}

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bench.schedule({"a": 700}, insertion_list=listed)

    bench.is_checked = False
    after = {key: bench.client.dump(key) for key in bench.client.keys("*")}
    assert after == before
    bench.client.delete(key)


def test_a_token_that_has_a_locator_is_stored_as_among_many(bench: Bench) -> None:
    bench.schedule({"before": 500, "a": 600})
    bench.client.zrem(bench.keys.queue.timeout_set, bench.frames()[-1])
    bench.client.rpop(bench.keys.queue.delay_queue)

    assert bench.schedule({"a": 700}) == [Scheduled(700, "")]

    assert bench.state()["timeout_set"] == [("before", 500), ("a", 700)]
    assert bench.cancel("a") == "cancelled"


@pytest.mark.parametrize("spoilt", [b"no number", b"9223372036854775807"])
def test_a_counter_that_holds_no_number_begins_anew(
    bench: Bench, spoilt: bytes
) -> None:
    bench.schedule({"before": 500})
    bench.client.hset(bench.keys.counters, "number", spoilt)

    assert bench.schedule({"a": 700}) == [Scheduled(700, "")]

    assert bench.counters()["offered"] == 1
