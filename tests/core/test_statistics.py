"""What is measured of a queue."""

import math
import random
from collections import Counter

import msgspec
import pytest

from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.calls import (
    DAYS_KEPT,
    LAST_BUCKET,
    OTHER,
    Figures,
    Histogram,
    Outcome,
    Unit,
    bounds_us,
    bucket_of,
    sum_up,
    total,
)
from tests.core.rig import T0, Rig

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


def decode(stored: bytes) -> Figures:
    return sum_up([("", stored)])[""]


def add(
    rig: Rig, most_tasks: int = 1_000, *, is_packed: bool = False, **counted: int
) -> list[statistics_calls.Closed]:
    """Add what a process has counted: so many jobs of each task; and pack what is over, as it does."""
    found = {"": figures(sum(counted.values()))}
    found |= {name: figures(count) for name, count in counted.items()}
    closed = rig.run(
        statistics_calls.add_figures(rig.keys, found, most_tasks=most_tasks)
    )
    for each in closed if is_packed else []:
        assert rig.run(statistics_calls.pack_figures(rig.keys, each))
    return closed


def runs(rig: Rig, unit: Unit, count: int = 10, first: int = 0) -> dict[int, int]:
    """Return how many jobs ran in each minute or hour of the last ones, 0 being the present one."""
    read = rig.run(
        statistics_calls.read_figures(rig.keys, unit, first=first, count=count)
    )
    assert {name for _, name, _ in read.rows} <= {""}
    found = sum_up((read.now - moment, text) for moment, _, text in read.rows)
    return {moment: each.runs for moment, each in found.items()}


def task_runs(rig: Rig, unit: Unit, count: int = 10) -> dict[tuple[int, str], int]:
    read = rig.run(
        statistics_calls.read_figures(rig.keys, unit, count=count, of_tasks=True)
    )
    found = sum_up(
        ((read.now - moment, name), text) for moment, name, text in read.rows
    )
    return {key: each.runs for key, each in found.items()}


def day_runs(rig: Rig, count: int) -> dict[str, int]:
    """Return how many jobs of each task ran in the last days."""
    found = rig.run(statistics_calls.read_days(rig.keys, count=count))
    return {name: each.runs for name, each in found.items()}


def totals(rig: Rig) -> dict[str, int]:
    found = rig.run(statistics_calls.read_totals(rig.keys))
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

    assert decode(one.encode()) == one


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xc1",
        b"text",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode(["a", 1]),
        msgspec.msgpack.encode([[5, -3]]),
        msgspec.msgpack.encode([[1], ["a"]]),
        msgspec.msgpack.encode([[0.5]]),
        msgspec.msgpack.encode([[], [0] * (LAST_BUCKET + 2) + [9]]),
        msgspec.msgpack.encode([[], [], [], [4]]),
    ],
)
def test_figures_that_nobody_of_us_has_written_are_nothing(stored: bytes) -> None:
    assert decode(stored) == Figures()


def test_figures_of_a_later_version_are_read_as_far_as_this_one_knows_them() -> None:
    later = [[2, *[0] * 20, 7], [3, 1, *[0] * 400, 4], [], [5], [6, 7]]

    found = decode(msgspec.msgpack.encode(later))

    assert found == Figures(
        Counter({Outcome.SUCCEEDED: 2}), Histogram(Counter({0: 1}), 3)
    )


def test_sums_of_many_years_are_counted() -> None:
    busy = figures()
    busy.lateness.sum_us = 2**60

    assert (
        sum_up([("", busy.encode()), ("", busy.encode())])[""].lateness.sum_us == 2**61
    )


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


@pytest.mark.parametrize(
    ("unit", "ms"), [(Unit.MINUTE, MINUTE_MS), (Unit.HOUR, HOUR_MS)]
)
def test_first_to_come_packs_what_is_over_and_nothing_is_lost(
    rig: Rig, unit: Unit, ms: int
) -> None:
    rig.now = DAY_START + 5
    add(rig, mail=2, sms=1)
    rig.now += ms
    before = task_runs(rig, unit)

    closed = [each for each in add(rig, mail=1) if each.unit is unit]

    assert len(closed) == 1
    assert rig.run(statistics_calls.pack_figures(rig.keys, closed[0]))
    assert not rig.run(statistics_calls.pack_figures(rig.keys, closed[0]))
    assert add(rig, mail=1) == []
    assert before == {(1, "mail"): 2, (1, "sms"): 1}
    assert task_runs(rig, unit) == {**before, (0, "mail"): 2}
    assert runs(rig, unit) == {0: 2, 1: 3}


def test_packed_hour_is_smaller_and_exact(rig: Rig) -> None:
    rig.now = DAY_START
    rand = random.Random(3)
    late, took = (
        histogram(*[rand.lognormvariate(8, 2) for _ in range(5_000)]) for _ in range(2)
    )
    mail = Figures(Counter({Outcome.SUCCEEDED: 4_999, Outcome.DEAD: 17}), late, took)
    counted = {"": mail, "mail": mail, "sms": mail}
    rig.run(statistics_calls.add_figures(rig.keys, counted, most_tasks=9))
    rig.now += HOUR_MS

    closed = add(rig, is_packed=True, mail=1)

    (hour,) = (each for each in closed if each.unit is Unit.HOUR)
    assert len(rig.client.hget(rig.keys.hours, hour.field)) < 0.6 * len(hour.tasks)
    for of_tasks in (False, True):
        call = statistics_calls.read_figures(
            rig.keys, Unit.HOUR, count=2, of_tasks=of_tasks
        )
        read = rig.run(call)
        found = sum_up(
            (name, text) for moment, name, text in read.rows if moment < read.now
        )
        assert found == ({"mail": mail, "sms": mail} if of_tasks else {"": mail})


@pytest.mark.parametrize("is_packed", [False, True])
def test_days_are_what_was_added_to_the_totals_since(rig: Rig, is_packed: bool) -> None:
    rig.now = DAY_START
    for hour in range(30):
        add(rig, is_packed=is_packed, mail=1, **{f"at{hour % 24}": 1})
        rig.now += HOUR_MS
    rig.now -= HOUR_MS

    assert day_runs(rig, 1) == {"mail": 6, **{f"at{hour}": 1 for hour in range(6)}}
    both = day_runs(rig, 2)
    assert both["mail"] == 30
    assert (both["at5"], both["at6"]) == (2, 1)
    assert day_runs(rig, 8) == both


def test_days_without_jobs_have_no_tasks(rig: Rig) -> None:
    rig.now = DAY_START + HOUR_MS
    add(rig, mail=1)
    rig.now += 2 * HOUR_MS

    assert day_runs(rig, 1) == {"mail": 1}
    rig.now += 24 * HOUR_MS
    assert day_runs(rig, 1) == {}
    assert day_runs(rig, 2) == {"mail": 1}
    rig.now += 24 * HOUR_MS
    add(rig, mail=10)
    assert day_runs(rig, 1) == day_runs(rig, 2) == {"mail": 10}
    assert day_runs(rig, 3) == {"mail": 11}


def test_figures_of_one_process_at_the_border_of_a_day_count_for_the_new_one(
    rig: Rig,
) -> None:
    rig.now = DAY_START - 1
    add(rig, mail=1)
    rig.now = DAY_START
    # Of many tasks, each call has some.
    add(rig, sms=10)
    add(rig, mail=100)

    assert day_runs(rig, 1) == {"sms": 10, "mail": 100}
    assert day_runs(rig, 2) == {"sms": 10, "mail": 101}


def test_day_is_forgotten_when_another_takes_its_place(rig: Rig) -> None:
    rig.now = DAY_START
    for _ in range(2 * DAYS_KEPT + 3):
        for _ in range(2):
            add(rig, is_packed=True, mail=1)
            rig.now += HOUR_MS
        rig.now += 22 * HOUR_MS
    rig.now -= 23 * HOUR_MS

    days = [name for name in rig.client.hkeys(rig.keys.hours) if name[:4] == b"day:"]
    assert len(days) == DAYS_KEPT
    for count in range(1, DAYS_KEPT + 1):
        assert day_runs(rig, count) == {"mail": 2 * count}


def test_buckets_of_a_day_are_exact(rig: Rig) -> None:
    rand = random.Random(3)
    whole = Histogram()
    for hour in range(-20, 20):
        rig.now = DAY_START + hour * HOUR_MS
        took = histogram(*[rand.lognormvariate(8, 2) for _ in range(300)])
        counted = {"mail": Figures(Counter({Outcome.DEAD: 300}), Histogram(), took)}
        call = statistics_calls.add_figures(rig.keys, counted, most_tasks=9)
        for closed in rig.run(call):
            rig.run(statistics_calls.pack_figures(rig.keys, closed))
        if hour >= 0:
            whole.add(took)

    found = rig.run(statistics_calls.read_days(rig.keys, count=1))

    assert found["mail"] == Figures(Counter({Outcome.DEAD: 6_000}), Histogram(), whole)


@pytest.mark.parametrize("garbage", [b"", b"x", b"\0" * 8, b"\xff" * 30])
def test_day_that_others_wrote_is_written_anew(rig: Rig, garbage: bytes) -> None:
    rig.now = DAY_START
    add(rig, mail=1)
    day = rig.now_us // 86_400_000_000
    rig.client.hset(rig.keys.hours, f"day:{day % DAYS_KEPT}", garbage)

    assert day_runs(rig, 1) == {}
    rig.client.hset(rig.keys.hours, "day", garbage)
    add(rig, mail=10)

    assert day_runs(rig, 1) == {"mail": 10}


def test_totals_that_somebody_has_deleted_count_from_then_on(rig: Rig) -> None:
    rig.now = DAY_START - 1
    add(rig, mail=7)
    rig.now += 1
    add(rig, mail=1)
    rig.client.delete(rig.keys.totals)
    add(rig, mail=2)

    assert totals(rig) == {"": 2, "mail": 2}
    assert day_runs(rig, 1) == {"mail": 2}


def test_day_begins_when_the_clock_first_says_so(rig: Rig) -> None:
    rig.now = DAY_START - 24 * HOUR_MS
    add(rig, mail=1)
    rig.now += 25 * HOUR_MS
    add(rig, mail=2)
    rig.now -= 23 * HOUR_MS
    add(rig, mail=4)

    assert day_runs(rig, 1) == {"mail": 7}
    rig.now = DAY_START + HOUR_MS
    add(rig, mail=8)
    assert day_runs(rig, 1) == {"mail": 14}
    assert day_runs(rig, 2) == {"mail": 15}


def test_clock_that_was_set_back_over_midnight_loses_nothing_of_the_day_before(
    rig: Rig,
) -> None:
    rig.now = DAY_START - 2_000
    add(rig, mail=1)
    rig.now = DAY_START
    add(rig, mail=2)
    rig.now = DAY_START - 1_000
    add(rig, mail=4)

    assert day_runs(rig, 1) == {"mail": 7}
    rig.now = DAY_START + 1_000
    add(rig, mail=8)
    assert day_runs(rig, 1) == {"mail": 14}
    assert day_runs(rig, 2) == {"mail": 15}


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
        add(rig, is_packed=True, mail=1)
        rig.now += HOUR_MS

    assert max(keys) == 5
    assert rig.client.hlen(rig.keys.minutes) <= 2 * 481
    assert rig.client.hlen(rig.keys.hours) <= 2 * 2_161 + 1 + DAYS_KEPT
    assert len(runs(rig, Unit.HOUR, count=9_999)) == 2_160
    assert totals(rig)["mail"] == 3_200


def test_a_day_without_jobs_shows_no_old_minutes(rig: Rig) -> None:
    for _ in range(100):
        add(rig, mail=1)
        rig.now += MINUTE_MS
    rig.now += 24 * HOUR_MS

    add(rig, mail=1)

    assert runs(rig, Unit.MINUTE, count=480) == {0: 1}


@pytest.mark.parametrize("is_packed", [False, True])
def test_clock_that_was_set_back_over_the_hour_loses_no_hour_and_no_minute(
    rig: Rig, is_packed: bool
) -> None:
    rig.now = START - 1
    add(rig, a=1_000)
    rig.now = START
    add(rig, is_packed=is_packed, a=1)

    rig.now = START - 2_000
    add(rig, is_packed=is_packed, a=1, b=1)
    for unit in Unit:
        assert runs(rig, unit) == {0: 1_002}
        assert task_runs(rig, unit) == {(0, "a"): 1_001, (0, "b"): 1}
    rig.now = START + 1_000
    add(rig, is_packed=is_packed, a=1)

    for unit in Unit:
        assert runs(rig, unit) == {0: 2, 1: 1_002}
        assert task_runs(rig, unit) == {(0, "a"): 2, (1, "a"): 1_001, (1, "b"): 1}


def test_clock_that_was_set_back_loses_no_total(rig: Rig) -> None:
    add(rig, mail=1)
    rig.now += 2 * HOUR_MS
    add(rig, mail=1)
    rig.now -= HOUR_MS
    add(rig, mail=1)

    assert totals(rig) == {"": 3, "mail": 3}
    assert runs(rig, Unit.HOUR) == {0: 1, 1: 1}


def test_what_was_packed_before_more_came_for_it_stays_as_it_is(rig: Rig) -> None:
    rig.now = START - 1
    add(rig, a=1)
    rig.now = START
    first = add(rig, a=10)
    rig.now = START - 1
    add(rig, a=100)
    rig.now = START
    second = add(rig, a=1_000)

    def packed(closed: list[statistics_calls.Closed]) -> dict[Unit, bool]:
        return {
            each.unit: rig.run(statistics_calls.pack_figures(rig.keys, each))
            for each in closed
            if each.field[:4] != "day:"
        }

    assert packed(first) == dict.fromkeys(Unit, False)
    assert packed(second) == dict.fromkeys(Unit, True)
    for unit in Unit:
        assert task_runs(rig, unit) == {(0, "a"): 1_010, (1, "a"): 101}


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
    add(rig, a=1_000, c=1)

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


@pytest.mark.parametrize("seed", range(4))
def test_no_figure_is_lost_or_counted_twice_wherever_the_clock_goes(
    rig: Rig, seed: int
) -> None:
    chance = random.Random(seed)
    expected: dict[Unit, Counter[tuple[int, str]]] = {unit: Counter() for unit in Unit}
    for _ in range(150):
        # All within the eight hours that minutes are kept.
        rig.now = START + chance.randrange(7 * 60) * MINUTE_MS
        for _ in range(chance.randrange(1, 4)):
            counted = {"a": 3, "b": chance.randrange(2)}
            for unit in Unit:
                moment = rig.now_us // 1_000_000 // unit.seconds
                expected[unit] += {(moment, name): n for name, n in counted.items()}
            closed = add(rig, **counted)
            for each in closed if chance.random() < 0.5 else []:
                rig.run(statistics_calls.pack_figures(rig.keys, each))
            rig.now += chance.randrange(MINUTE_MS)
    rig.now = START + 8 * HOUR_MS - 1
    for unit, count in ((Unit.MINUTE, 480), (Unit.HOUR, 8)):
        now = rig.now_us // 1_000_000 // unit.seconds
        found: Counter[tuple[int, str]] = Counter()
        for first in range(0, count, statistics_calls.TASKS_BATCH):
            call = statistics_calls.read_figures(
                rig.keys,
                unit,
                first=first,
                count=min(count, statistics_calls.TASKS_BATCH),
                of_tasks=True,
            )
            for moment, name, text in rig.run(call).rows:
                found[moment, name] += decode(text).runs
        assert found == expected[unit]
        whole = {now - ago: n for ago, n in runs(rig, unit, count).items()}
        assert sum(whole.values()) == expected[unit].total()


def test_clock_that_was_wrong_by_years_shows_nothing_of_them(rig: Rig) -> None:
    rig.now = START
    years = 20 * 365 * 24 * HOUR_MS
    add(rig, a=1)
    for there in (-years, years, -years, 0):
        for minute in range(3):
            rig.now = START + there + minute * HOUR_MS
            add(rig, is_packed=True, a=1)
    assert runs(rig, Unit.HOUR, 9) == {0: 1, 1: 1, 2: 2}
    assert day_runs(rig, 8) == {"a": 13}
    rig.now = START + 100 * 24 * HOUR_MS
    add(rig, a=1)

    assert totals(rig)[""] == 14
    assert day_runs(rig, 8) == {"a": 1}
    for unit in Unit:
        assert runs(rig, unit, 600) == {0: 1}


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\x92\x01\xa1x"]
)
def test_what_others_wrote_into_our_hashes_is_missing_and_breaks_nothing(
    rig: Rig, garbage: bytes
) -> None:
    rig.now = DAY_START
    add(rig, mail=1, sms=1)
    keys = rig.keys
    for key in (keys.minute, keys.hour, keys.totals):
        rig.client.hset(key, "task:sms", garbage)
        rig.client.hset(key, "?", garbage)

    add(rig, mail=2)
    rig.now += HOUR_MS
    rig.client.hset(keys.minute, "moment", garbage)
    slot = rig.now_us // 3_600_000_000 % 2_161 - 1
    for field in (f"{slot}", f"{slot}:tasks"):
        rig.client.hset(keys.hours, field, garbage)
    (hour,) = add(rig, is_packed=True, mail=4)
    assert task_runs(rig, Unit.HOUR) == {
        (0, "mail"): 4,
        (1, "mail"): 3,
        (1, "sms"): 0,
    }
    assert runs(rig, Unit.MINUTE) == {0: 4}
    for kind in (b"", b"\1", b"\2"):
        rig.client.hset(keys.hours, hour.field, hour.tasks[:4] + kind + garbage)
        assert task_runs(rig, Unit.HOUR) == {(0, "mail"): 4}
    rig.client.hset(keys.hours, hour.field, garbage)
    assert task_runs(rig, Unit.HOUR) == {(0, "mail"): 4}


@pytest.mark.parametrize(
    "foreign",
    [
        {"a": 1},
        [{"a": 1}],
        [[], [], {"a": 1}],
        [[], [], {"1": 1}],
        [[0.5]],
        [[-1]],
        [[1e300]],
        [["1"]],
        [[None]],
        [[], [], [[]]],
        ["text"],
        [7, 5, 130, 5],
    ],
)
def test_what_others_wrote_is_replaced_by_what_is_added(rig: Rig, foreign) -> None:
    for key in (rig.keys.minute, rig.keys.hour, rig.keys.totals):
        rig.client.hset(key, "task:mail", msgspec.msgpack.encode(foreign))

    add(rig, mail=2)

    assert totals(rig) == {"": 2, "mail": 2}


@pytest.mark.parametrize("unit", list(Unit))
def test_unit_says_how_many_slots_take_turns(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, unit: Unit
) -> None:
    monkeypatch.setattr(Unit, "slots", property(lambda unit: 4))
    rig.now = DAY_START
    for _ in range(9):
        rig.now += unit.seconds * 1_000
        add(rig, mail=1)

    key = rig.keys.minutes if unit is Unit.MINUTE else rig.keys.hours
    slots = {name for name in rig.client.hkeys(key) if name.isdigit()}
    assert slots == {b"0", b"1", b"2", b"3"}
    assert runs(rig, unit, count=9) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_total_of_parts_is_their_sum() -> None:
    found = total([figures(1), figures(2)])

    assert (found.runs, found.failures) == (3, 0)
    assert found.lateness.sum_us == 3_000
