"""What is measured of a queue."""

import math
import random
from collections import Counter
from itertools import chain

import msgspec
import pytest

from django_delayq.delivery import statistics
from django_delayq.delivery.statistics import (
    DAYS_KEPT,
    LAST_BUCKET,
    OTHER,
    Figures,
    Histogram,
    Outcome,
    Unit,
    bounds_us,
    bucket_of,
    decode_figures,
    open_tasks,
    sum_up,
    tasks_in,
    total,
    unpack_tasks,
)
from tests.delivery.rig import T0, Rig

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
#: So many ms before a minute, and an hour, begin.
START = HOUR_MS - T0 % HOUR_MS
DAY_START = 24 * HOUR_MS - T0 % (24 * HOUR_MS)


def histogram(*times_us: float) -> Histogram:
    return Histogram(Counter(map(bucket_of, times_us)), int(sum(times_us)))


def figures(
    count: int = 1, *, late_us: float = 1_000, took_us: float = 5_000
) -> Figures:
    return Figures(
        Counter({Outcome.SUCCEEDED: count}),
        histogram(*[late_us] * count),
        histogram(*[took_us] * count),
    )


def add(rig: Rig, most_tasks: int = 1_000, **counted: int) -> statistics.Packed | None:
    """Add what a process has counted: so many jobs of each task."""
    found = {"": figures(sum(counted.values()))}
    found |= {name: figures(count) for name, count in counted.items()}
    return rig.run(statistics.add_figures(rig.keys, found, most_tasks=most_tasks))


def runs(rig: Rig, unit: Unit, count: int = 10, first: int = 0) -> dict[int, int]:
    """Return how many jobs ran in each minute or hour of the last ones, 0 being the present one."""
    read = rig.run(statistics.read_figures(rig.keys, unit, first=first, count=count))
    found = {
        read.now - moment: decode_figures(text).runs
        for moment, text in read.stored.items()
    }
    if b"" in read.open:
        found[read.now - read.moment] = decode_figures(read.open[b""]).runs
    return found


def task_runs(rig: Rig, unit: Unit, count: int = 10) -> dict[tuple[int, str], int]:
    read = rig.run(statistics.read_figures(rig.keys, unit, count=count, of_tasks=True))
    return {
        (read.now - moment, name): decode_figures(text).runs
        for moment, name, text in tasks_in(read)
    }


def day_runs(rig: Rig, count: int) -> tuple[dict[str, int], list[int]]:
    """Return how many jobs of each task ran in the last days, and how many hours ago those hours are that no day has."""
    read = rig.run(statistics.read_days(rig.keys, count=count))
    now = rig.now_us // 3_600_000_000
    packed = [*read.days.values()]
    if read.missing:
        packed += rig.run(statistics.read_hours(rig.keys, read.missing))
    found = sum_up(chain(open_tasks(read), *map(unpack_tasks, packed)))
    return (
        {name: each.runs for name, each in found.items()},
        [now - hour for hour in read.missing],
    )


def totals(rig: Rig) -> dict[str, int]:
    found = rig.run(statistics.read_totals(rig.keys))
    return {name: each.runs for name, each in found.items()}


# Buckets.


def test_times_lie_in_their_buckets_which_follow_each_other() -> None:
    for bucket in range(LAST_BUCKET):
        least, most = bounds_us(bucket)

        assert bounds_us(bucket + 1)[0] == most
        assert bucket_of(least) == bucket
        assert bucket_of(math.nextafter(most, 0)) == bucket
        assert bucket == 0 or most / least <= 1.25


@pytest.mark.parametrize("us", [-5.0, 0.0, 0.99])
def test_less_than_a_microsecond_is_in_the_first_bucket(us: float) -> None:
    assert bucket_of(us) == 0


def test_what_takes_longer_than_twelve_days_is_in_the_last_bucket() -> None:
    assert bucket_of(1e20) == LAST_BUCKET


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_are_within_a_bucket_of_the_exact_ones(seed: int) -> None:
    rand = random.Random(seed)
    scale = rand.uniform(2, 14)
    times = [rand.lognormvariate(scale, rand.uniform(0.1, 3)) for _ in range(2_000)]
    found = Histogram()
    for start in range(0, len(times), 100):
        found.add(histogram(*times[start : start + 100]))

    times.sort()
    for percent in (1, 50, 90, 99, 99.9, 100):
        exact = times[math.ceil(percent / 100 * len(times)) - 1]
        told_us = found.percentile(percent) * 1_000
        assert exact / 1.25 <= told_us <= max(1.0, exact * 1.25)


def test_nothing_has_no_percentile() -> None:
    assert Histogram().percentile(50) is None
    assert Histogram().mean_ms is None


def test_histogram_folds_into_the_buckets_of_prometheus() -> None:
    found = histogram(500, 1_500, 1_500, 3_000_000)

    assert found.folded([1, 2, 1_000]) == [1, 3, 3]
    assert found.count == 4


def test_figures_are_read_as_they_were_written() -> None:
    one = figures(3, late_us=70_000_000)

    assert decode_figures(one.encode()) == one


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xc1",
        b"text",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode(["a", 1]),
        msgspec.msgpack.encode([5, -3]),
        msgspec.msgpack.encode([100_000, 3]),
        msgspec.msgpack.encode([-9_999, 3]),
        msgspec.msgpack.encode([-1]),
        b"\1" + msgspec.msgpack.encode([4, 1]),
        b"\2",
        b"\2\xc1",
        b"\2" + msgspec.msgpack.encode(["a", 1]),
        b"\2" + msgspec.msgpack.encode([4, 100_000]),
        b"\2" + msgspec.msgpack.encode([2**63, 2**63, 1, 1]),
    ],
)
def test_figures_that_nobody_of_us_has_written_are_nothing(stored: bytes) -> None:
    assert decode_figures(stored) == Figures()


def test_figures_of_a_later_version_are_read_as_far_as_this_one_knows_them() -> None:
    later = [-99, 7, -1, 2, 900, 4]

    found = decode_figures(msgspec.msgpack.encode(later))

    assert found == Figures(Counter({Outcome.SUCCEEDED: 2}))


# Keys of a queue.


def test_what_processes_add_is_summed_up_for_the_minute_the_hour_and_ever(
    rig: Rig,
) -> None:
    add(rig, mail=2)
    add(rig, mail=3, sms=1)

    for unit in Unit:
        assert runs(rig, unit) == {0: 6}
        assert task_runs(rig, unit) == {(0, "mail"): 5, (0, "sms"): 1}
    assert totals(rig) == {"": 6, "mail": 5, "sms": 1}


def test_minutes_that_are_over_are_kept_beside_the_present_one(rig: Rig) -> None:
    for count in (1, 2, 3):
        add(rig, mail=count, sms=1)
        rig.now += MINUTE_MS

    assert runs(rig, Unit.MINUTE) == {1: 4, 2: 3, 3: 2}
    assert task_runs(rig, Unit.MINUTE)[3, "mail"] == 1
    assert sum(runs(rig, Unit.HOUR).values()) == 9


def test_reading_leaves_out_the_first_ones(rig: Rig) -> None:
    for _ in range(5):
        add(rig, mail=1)
        rig.now += MINUTE_MS

    assert runs(rig, Unit.MINUTE, first=2, count=2) == {2: 1, 3: 1}
    assert runs(rig, Unit.MINUTE, first=0, count=1) == {}


def test_first_to_come_in_a_new_hour_packs_the_last_one_and_nothing_is_lost(
    rig: Rig,
) -> None:
    rig.now = START + 5
    add(rig, mail=2, sms=1)
    rig.now += HOUR_MS
    before = task_runs(rig, Unit.HOUR)

    packed = add(rig, mail=1)

    assert packed is not None
    assert rig.run(statistics.pack_hour(rig.keys, packed))
    assert not rig.run(statistics.pack_hour(rig.keys, packed))
    assert add(rig, mail=1) is None
    assert before == {(1, "mail"): 2, (1, "sms"): 1}
    assert task_runs(rig, Unit.HOUR) == {**before, (0, "mail"): 2}
    assert runs(rig, Unit.HOUR) == {0: 2, 1: 3}


def test_hours_that_are_packed_are_read_by_the_day(rig: Rig) -> None:
    rig.now = DAY_START
    for hour in range(30):
        if (packed := add(rig, mail=1, **{f"at{hour % 24}": 1})) is not None:
            assert rig.run(statistics.pack_hour(rig.keys, packed))
        rig.now += HOUR_MS
    rig.now -= HOUR_MS

    today, missing = day_runs(rig, 1)
    assert today == {"mail": 6, **{f"at{hour}": 1 for hour in range(6)}}
    assert missing == []
    both, missing = day_runs(rig, 2)
    assert both["mail"] == 30
    assert (both["at5"], both["at6"]) == (2, 1)
    assert missing == []


def test_hour_that_nobody_has_packed_is_read_by_itself(rig: Rig) -> None:
    rig.now = DAY_START
    for hour in range(4):
        packed = add(rig, mail=10**hour)
        if packed is not None and hour != 2:
            rig.run(statistics.pack_hour(rig.keys, packed))
        rig.now += HOUR_MS
    rig.now -= HOUR_MS

    assert day_runs(rig, 1) == ({"mail": 1_111}, [2])


def test_hour_that_is_open_still_after_a_pause_is_in_its_day(rig: Rig) -> None:
    rig.now = DAY_START + HOUR_MS
    add(rig, mail=1)
    rig.now += 2 * HOUR_MS

    assert day_runs(rig, 1) == ({"mail": 1}, [3, 1, 0])
    rig.now += 24 * HOUR_MS
    assert day_runs(rig, 1)[0] == {}
    assert day_runs(rig, 2)[0] == {"mail": 1}


def test_two_that_pack_hours_of_one_day_at_once_lose_neither(rig: Rig) -> None:
    rig.now = DAY_START
    add(rig, mail=1)
    rig.now += HOUR_MS
    first = add(rig, mail=10)
    rig.now += HOUR_MS
    second = add(rig, mail=100)
    assert first is not None
    assert second is not None

    assert rig.run(statistics.pack_hour(rig.keys, second))
    assert rig.run(statistics.pack_hour(rig.keys, first))

    assert day_runs(rig, 1) == ({"mail": 111}, [2])


def test_day_is_forgotten_when_another_takes_its_place(rig: Rig) -> None:
    rig.now = DAY_START
    for _ in range(2 * DAYS_KEPT + 3):
        for _ in range(2):
            if (packed := add(rig, mail=1)) is not None:
                rig.run(statistics.pack_hour(rig.keys, packed))
            rig.now += HOUR_MS
        rig.now += 22 * HOUR_MS
    rig.now -= 23 * HOUR_MS

    days = [name for name in rig.client.hkeys(rig.keys.hours) if name[:4] == b"day:"]
    assert len(days) == DAYS_KEPT
    for count in range(1, DAYS_KEPT + 1):
        assert day_runs(rig, count)[0] == {"mail": 2 * count}


def test_buckets_of_a_day_are_exact(rig: Rig) -> None:
    rig.now = DAY_START
    rand = random.Random(3)
    whole = Histogram()
    for _ in range(20):
        took = histogram(*[rand.lognormvariate(8, 2) for _ in range(300)])
        counted = {"mail": Figures(Counter({Outcome.DEAD: 300}), Histogram(), took)}
        counted[""] = counted["mail"]
        call = statistics.add_figures(rig.keys, counted, most_tasks=9)
        if (packed := rig.run(call)) is not None:
            rig.run(statistics.pack_hour(rig.keys, packed))
        whole.add(took)
        rig.now += HOUR_MS
    rig.now -= HOUR_MS

    read = rig.run(statistics.read_days(rig.keys, count=1))
    found = sum_up(chain(open_tasks(read), *map(unpack_tasks, read.days.values())))

    assert found["mail"] == Figures(Counter({Outcome.DEAD: 6_000}), Histogram(), whole)


@pytest.mark.parametrize("garbage", [b"", b"x", b"\0" * 8, b"\xff" * 30])
def test_day_that_others_wrote_is_written_anew(rig: Rig, garbage: bytes) -> None:
    rig.now = DAY_START
    add(rig, mail=1)
    day = rig.now_us // 86_400_000_000
    rig.client.hset(rig.keys.hours, f"day:{day % DAYS_KEPT}", garbage)
    rig.now += HOUR_MS

    assert day_runs(rig, 1) == ({"mail": 1}, [0])
    packed = add(rig, mail=10)
    assert packed is not None
    assert rig.run(statistics.pack_hour(rig.keys, packed))

    assert day_runs(rig, 1) == ({"mail": 11}, [])


@pytest.mark.parametrize("seed", range(10))
def test_packed_hour_is_smaller_and_only_the_shares_of_buckets_are_rounded(
    rig: Rig, seed: int
) -> None:
    rig.now = START
    rand = random.Random(seed)
    late, took = (
        histogram(*[rand.lognormvariate(8, 2) for _ in range(5_000)]) for _ in range(2)
    )
    mail = Figures(Counter({Outcome.SUCCEEDED: 4_999, Outcome.DEAD: 17}), late, took)
    counted = {"": mail, "mail": mail}
    rig.run(statistics.add_figures(rig.keys, counted, most_tasks=9))
    rig.now += HOUR_MS
    packed = add(rig, mail=1)
    assert packed is not None

    rig.run(statistics.pack_hour(rig.keys, packed))

    whole, tasks = rig.client.hmget(rig.keys.hours, packed.hour, f"{packed.hour}:tasks")
    assert len(whole) < len(packed.whole)
    assert len(tasks) < len(packed.tasks)
    for text in (whole, dict(unpack_tasks(tasks))["mail"]):
        found = decode_figures(text)
        assert found.outcomes == mail.outcomes
        for one, exact in ((found.lateness, late), (found.duration, took)):
            assert (one.count, one.sum_us) == (exact.count, exact.sum_us)
            assert one.buckets.keys() == exact.buckets.keys()
            for bucket, number in exact.buckets.items():
                is_rounded = number > 15
                assert abs(one.buckets[bucket] - number) <= is_rounded * number / 7


def test_rounding_gives_a_lonely_slow_job_no_company(rig: Rig) -> None:
    hour = figures(99_999)
    hour.duration.add(histogram(60e6))
    stored = hour.encode()
    packed = statistics.Packed(7, stored, b"\0")
    rig.client.hset(rig.keys.hours, mapping={"7": stored, "7:tasks": packed.tasks})

    rig.run(statistics.pack_hour(rig.keys, packed))

    assert decode_figures(rig.client.hget(rig.keys.hours, "7")) == hour


def test_hour_with_numbers_that_nobody_of_us_has_written_is_packed_without_them(
    rig: Rig,
) -> None:
    rig.now = START
    add(rig, mail=1, sms=1)
    huge = msgspec.msgpack.encode([-(2**63), 1, 2**63, 2, 2**64 - 1, 3])
    rig.client.hset(rig.keys.hour, mapping={"task:": huge, "task:mail": huge})
    rig.now += HOUR_MS
    packed = add(rig, mail=1)
    assert packed is not None

    assert rig.run(statistics.pack_hour(rig.keys, packed))

    assert runs(rig, Unit.HOUR) == {0: 1}
    assert task_runs(rig, Unit.HOUR) == {(0, "mail"): 1, (1, "mail"): 0, (1, "sms"): 1}


def test_tasks_beyond_the_bound_count_as_others(rig: Rig) -> None:
    add(rig, most_tasks=2, a=1, b=2, c=4)
    add(rig, most_tasks=2, b=8, d=16)

    assert totals(rig) == {"": 31, "a": 1, "b": 10, OTHER: 20}
    assert task_runs(rig, Unit.MINUTE) == {(0, "a"): 1, (0, "b"): 10, (0, OTHER): 20}


def test_keys_and_fields_are_bounded_however_long_it_goes_on(rig: Rig) -> None:
    keys = set()
    for _ in range(600):
        add(rig, mail=1)
        rig.now += MINUTE_MS
        keys.add(len(rig.leftovers()))
    for _ in range(2_600):
        packed = add(rig, mail=1)
        if packed is not None:
            rig.run(statistics.pack_hour(rig.keys, packed))
        rig.now += HOUR_MS

    assert max(keys) == 5
    assert rig.client.hlen(rig.keys.minutes) <= 2 * 480 + 3
    assert rig.client.hlen(rig.keys.hours) <= 2 * 2_160 + 3 + DAYS_KEPT
    assert len(runs(rig, Unit.HOUR, count=9_999)) == 2_160
    assert totals(rig)["mail"] == 3_200


def test_a_day_without_jobs_leaves_no_old_minutes(rig: Rig) -> None:
    for _ in range(100):
        add(rig, mail=1)
        rig.now += MINUTE_MS
    rig.now += 24 * HOUR_MS

    add(rig, mail=1)

    assert rig.client.hlen(rig.keys.minutes) <= 3
    assert runs(rig, Unit.MINUTE, count=480) == {0: 1}


def test_clock_that_was_set_back_over_the_hour_loses_no_hour_and_no_minute(
    rig: Rig,
) -> None:
    rig.now = START - 1
    add(rig, a=1_000)
    rig.now = START
    packed = add(rig, a=1)
    assert packed is not None
    assert rig.run(statistics.pack_hour(rig.keys, packed))

    rig.now = START - 2_000
    assert add(rig, a=1) is None
    for unit in Unit:
        assert runs(rig, unit) == {0: 2, 1: 1_000}
        assert task_runs(rig, unit) == {(0, "a"): 2, (1, "a"): 1_000}
    rig.now = START + 1_000
    assert add(rig, a=1) is None

    for unit in Unit:
        assert runs(rig, unit) == {0: 3, 1: 1_000}
        assert task_runs(rig, unit) == {(0, "a"): 3, (1, "a"): 1_000}


def test_clock_that_was_set_back_loses_no_total(rig: Rig) -> None:
    add(rig, mail=1)
    rig.now += 2 * HOUR_MS
    add(rig, mail=1)
    rig.now -= HOUR_MS
    add(rig, mail=1)

    assert totals(rig) == {"": 3, "mail": 3}
    assert runs(rig, Unit.HOUR) == {0: 1, 1: 1}


def stored_runs(rig: Rig, unit: Unit) -> int:
    """Count the jobs in every minute or hour that the server has, past and future ones included."""
    keys = rig.keys
    closed, now = (
        (keys.minutes, keys.minute) if unit is Unit.MINUTE else (keys.hours, keys.hour)
    )
    found = [
        text for field, text in rig.client.hgetall(closed).items() if field.isdigit()
    ]
    return sum(
        decode_figures(text).runs for text in [*found, rig.client.hget(now, "task:")]
    )


def test_clock_that_was_set_back_by_hours_adds_to_the_minutes_that_are_over(
    rig: Rig,
) -> None:
    rig.now = START
    for minute in range(3):
        rig.now = START + minute * MINUTE_MS
        add(rig, a=1, b=10)
    rig.now = START + 2 * HOUR_MS
    add(rig, a=100)

    rig.now = START + MINUTE_MS
    assert add(rig, a=1_000, c=1) is not None

    assert runs(rig, Unit.MINUTE) == {0: 1_012, 1: 11}
    assert task_runs(rig, Unit.MINUTE) == {
        (0, "a"): 1_001,
        (0, "b"): 10,
        (0, "c"): 1,
        (1, "a"): 1,
        (1, "b"): 10,
    }
    assert runs(rig, Unit.HOUR) == {0: 1_034}
    rig.now = START + 2 * HOUR_MS
    add(rig, a=1)
    assert runs(rig, Unit.MINUTE, 200) == {0: 101, 118: 11, 119: 1_012, 120: 11}
    assert runs(rig, Unit.HOUR) == {0: 101, 2: 1_034}


def test_clock_that_was_set_back_to_a_packed_hour_leaves_the_present_one_open(
    rig: Rig,
) -> None:
    rig.now = START - 1
    add(rig, a=1_000)
    rig.now = START + HOUR_MS
    packed = add(rig, a=1)
    assert packed is not None
    rig.run(statistics.pack_hour(rig.keys, packed))

    rig.now = START - 1
    assert add(rig, a=1) is None

    assert runs(rig, Unit.HOUR) == {0: 2, 2: 1_000}
    assert task_runs(rig, Unit.HOUR) == {(0, "a"): 2, (2, "a"): 1_000}
    assert runs(rig, Unit.MINUTE) == {0: 1_001}


@pytest.mark.parametrize("seed", range(4))
def test_no_figure_is_lost_or_counted_twice_wherever_the_clock_goes(
    rig: Rig, seed: int
) -> None:
    chance = random.Random(seed)
    count = 0
    for _ in range(150):
        # All within the eight hours that minutes are kept.
        rig.now = chance.randrange(7 * 60) * MINUTE_MS
        for _ in range(chance.randrange(1, 4)):
            packed = add(rig, a=3, b=chance.randrange(2))
            count = totals(rig)[""]
            if packed is not None and chance.random() < 0.5:
                rig.run(statistics.pack_hour(rig.keys, packed))
            rig.now += chance.randrange(MINUTE_MS)

        assert stored_runs(rig, Unit.MINUTE) == count
        assert stored_runs(rig, Unit.HOUR) == count


def test_clock_that_was_wrong_by_years_leaves_nothing_of_them(rig: Rig) -> None:
    rig.now = START
    years = 20 * 365 * 24 * HOUR_MS
    add(rig, a=1)
    for there in (-years, years, -years, 0):
        for minute in range(3):
            rig.now = START + there + minute * HOUR_MS
            add(rig, a=1)
    rig.now = START + 100 * 24 * HOUR_MS
    add(rig, a=1)

    assert totals(rig)[""] == 14
    for unit, closed in ((Unit.MINUTE, rig.keys.minutes), (Unit.HOUR, rig.keys.hours)):
        assert runs(rig, unit, 600) == {0: 1}
        assert set(rig.client.hkeys(closed)) <= {b"oldest"}


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\x01\xa1x"]
)
def test_what_others_wrote_into_our_hashes_is_missing_and_breaks_nothing(
    rig: Rig, garbage: bytes
) -> None:
    rig.now = START
    add(rig, mail=1, sms=1)
    keys = rig.keys
    for key in (keys.minute, keys.hour, keys.totals):
        rig.client.hset(key, "task:mail", garbage)
        rig.client.hset(key, "?", garbage)
    for key in (keys.minutes, keys.hours):
        rig.client.hset(key, "oldest", garbage)

    add(rig, mail=2)
    rig.now += HOUR_MS
    rig.client.hset(keys.minute, "moment", garbage)
    packed = add(rig, mail=4)
    assert packed is not None
    rig.run(statistics.pack_hour(keys, packed))
    field = f"{packed.hour}:tasks"
    assert task_runs(rig, Unit.HOUR) == {
        (0, "mail"): 4,
        (1, "mail"): 2,
        (1, "sms"): 1,
    }
    assert runs(rig, Unit.MINUTE) == {0: 4}
    for kind in (b"\1", b"\2"):
        rig.client.hset(keys.hours, field, kind + garbage)
        assert task_runs(rig, Unit.HOUR) == {(0, "mail"): 4}
    rig.client.hset(keys.hours, field, garbage)
    assert task_runs(rig, Unit.HOUR) == {(0, "mail"): 4}


def test_total_of_parts_is_their_sum() -> None:
    found = total([figures(1), figures(2)])

    assert (found.runs, found.failures) == (3, 0)
    assert found.lateness.sum_us == 3_000
