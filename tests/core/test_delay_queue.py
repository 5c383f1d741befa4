"""The delay queue, Redisson's list of all that was offered, holds exactly the listed frames that wait, in order.

`Rig.check` checks that at the end of every test; the tests here look for what could break it.
"""

import random
from collections.abc import Callable

import pytest

from django_delayq.core import change as change_calls
from django_delayq.core.claim import Mode
from django_delayq.wire.frame import FrameFormat, pack, unpack
from tests.core.rig import (
    FIRST,
    LISTED,
    T0,
    UNLISTED,
    Rig,
    listed_number,
    name_in,
    names_of,
)

TOMBSTONE = b"\0"
#: More frames than a call moves that pays for each with an LREM.
MORE = 500


def fill(rig: Rig, count: int, waits: Callable[[int], int]) -> list[str]:
    """Schedule in several calls; returns the names in order of their start times."""
    jobs = {f"j{n}": waits(n) for n in range(count)}
    names = list(jobs)
    for start in range(0, count, 500):
        rig.schedule({name: jobs[name] for name in names[start : start + 500]})
    return sorted(names, key=lambda name: (jobs[name], names.index(name)))


def drain(rig: Rig, limits: list[int], mode: Mode = Mode.DIRECT) -> list[str]:
    """Claim until nothing comes, checking the list after each claim; returns the names."""
    got: list[str] = []
    while True:
        limit = limits[len(got) % len(limits)]
        claimed = rig.claim(limit, mode=mode, transfer_limit=limit)
        rig.acknowledge(*claimed.jobs)
        rig.check()
        got += names_of(claimed)
        if not claimed.jobs and not claimed.transferred:
            return got


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize("order", ["as offered", "reversed", "random", "interleaved"])
def test_claims_in_any_order_take_each_frame_out_of_the_list(
    rig: Rig, frame_format: FrameFormat, order: str
) -> None:
    rig.frame_format = frame_format
    count = 1_500
    chance = random.Random(7)
    waits: dict[str, Callable[[int], int]] = {
        "as offered": lambda n: n,
        "reversed": lambda n: count - n,
        "random": lambda n: chance.randrange(count),
        "interleaved": lambda n: n % 7,
    }
    expected = fill(rig, count, waits[order])
    rig.now = count

    got = drain(rig, [100, 1, 37, 250, 2])

    assert sorted(got) == sorted(expected)
    assert order == "random" or got == expected
    assert rig.frames() == []


def test_transfers_in_random_order_take_each_frame_out_of_the_list(
    rig: Rig,
) -> None:
    chance = random.Random(8)
    fill(rig, 1_200, lambda n: chance.randrange(1_000))
    rig.now = 1_000

    while rig.transfer(90).moved:
        rig.check()

    assert len(rig.state()["destination"]) == 1_200


def test_cancel_finds_a_frame_at_either_end_and_in_the_middle(rig: Rig) -> None:
    fill(rig, 300, lambda n: 1_000 - n)

    for n in (0, 299, 150, 1, 298, 75, 225):
        assert rig.cancel(f"j{n}") == "cancelled"
        rig.check()

    assert len(rig.frames()) == 293


def test_gaps_in_the_numbers_do_not_hide_a_frame(rig: Rig) -> None:
    """Unlisted and cancelled frames take numbers as well."""
    chance = random.Random(9)
    for part in range(40):
        waits = {f"j{part}-{n}": chance.randrange(1_000) for n in range(50)}
        rig.schedule(waits, insertion_list=part % 3 != 0)
    for name in chance.sample([f"j{p}-{n}" for p in range(40) for n in range(50)], 700):
        rig.cancel(name)
    rig.check()
    rig.now = 1_000

    assert len(drain(rig, [100, 7])) == 1_300


def test_list_of_java_frames_among_ours_stays_exact(rig: Rig) -> None:
    chance = random.Random(10)
    for n in range(800):
        if chance.random() < 0.4:
            rig.java_offer(f"x{n}", chance.randrange(500))
        else:
            rig.schedule({f"j{n}": chance.randrange(500)})
    rig.now = 500

    assert len(drain(rig, [90, 3, 41])) == 800


def test_long_runs_of_java_frames_do_not_hide_ours(rig: Rig) -> None:
    for part in range(5):
        rig.schedule({f"j{part}": 10 * part})
        for n in range(300):
            rig.java_offer(f"x{part}-{n}", 1_000)
    rig.schedule({"last": 100})
    rig.now = 100

    assert names_of(rig.claim()) == [f"j{part}" for part in range(5)] + ["last"]


@pytest.mark.parametrize(
    ("waiting", "size", "moved"),
    [
        # One pass through the list finds all of them.
        (2_000, 1, MORE),
        # Each takes an LREM: their cost bounds the call, to 4 + 600,000 / waiting.
        (30_000, 1, 24),
        # The same if the list has too many bytes for one pass.
        (2_000, 4_000, 304),
    ],
)
def test_call_moves_as_many_java_frames_as_the_list_allows(
    rig: Rig, waiting: int, size: int, moved: int
) -> None:
    chance = random.Random(3)
    queue = rig.keys.queue
    frames = [
        pack(chance.randbytes(8), b"x" * size, FrameFormat.BC0LC0)
        for _ in range(waiting)
    ]
    for start in range(0, waiting, 1_000):
        part = frames[start : start + 1_000]
        rig.client.rpush(queue.delay_queue, *part)
        rig.client.zadd(
            queue.timeout_set, {frame: chance.randrange(T0) for frame in part}
        )

    result = rig.transfer(batch=MORE, byte_budget=1 << 30)

    assert result.moved == moved
    left = set(rig.client.zrange(queue.timeout_set, 0, -1))
    assert len(left) == waiting - moved
    assert rig.client.lrange(queue.delay_queue, 0, -1) == [
        f for f in frames if f in left
    ]
    rig.is_checked = False


def fill_one_instant(rig: Rig, count: int) -> list[bytes]:
    """Put in Java's frames and a few of ours, all due at one moment; return the list."""
    for n in range(count):
        if n % 50 == 7:
            rig.schedule({f"j{n}": 0})
        else:
            rig.java_offer(f"x{n}", 0, random_id=random.Random(n).randbytes(8))
    return rig.client.lrange(rig.keys.queue.delay_queue, 0, -1)


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED])
def test_of_one_instant_those_at_the_head_of_the_list_go_first(
    rig: Rig, mode: Mode
) -> None:
    frames = fill_one_instant(rig, 700)
    later = rig.java_offer("later", 1)

    if mode is Mode.SHARED:
        assert rig.transfer(batch=300).moved == 300
        got = rig.client.lrange(rig.keys.queue.destination, 0, -1)
    else:
        got = [each.payload for each in rig.claim(300).jobs]

    assert got == [unpack(frame).payload for frame in frames[:300]]
    left = rig.client.lrange(rig.keys.queue.delay_queue, 0, -1)
    assert left == [*frames[300:], later]
    rig.check()


def test_of_one_instant_those_behind_others_in_the_list_go_too(rig: Rig) -> None:
    waiting = [rig.java_offer(f"w{n}", 1_000_000) for n in range(60)]
    fill_one_instant(rig, 400)

    while rig.transfer(batch=40).moved:
        rig.check()

    left = rig.client.lrange(rig.keys.queue.delay_queue, 0, -1)
    assert left == waiting
    assert rig.client.llen(rig.keys.queue.destination) == 400


@pytest.mark.parametrize("place", [0, 5, 150])
def test_of_one_instant_none_is_lost_where_a_crash_left_a_tombstone(
    rig: Rig, place: int
) -> None:
    frames = fill_one_instant(rig, 300)
    queue = rig.keys.queue
    rig.client.zrem(queue.timeout_set, frames[place])
    rig.client.lset(queue.delay_queue, place, TOMBSTONE)
    rig.client.hset(rig.keys.counters, "sweeping", 1)
    rig.is_checked = False

    assert rig.transfer(batch=100).moved == 100

    left = rig.client.lrange(queue.delay_queue, 0, -1)
    assert set(left) == set(rig.client.zrange(queue.timeout_set, 0, -1))
    assert len(left) == 199


# How a call takes its frames out.


def removals_of(rig: Rig, call: Callable[[], object]) -> list[tuple[str, ...]]:
    """Return the commands with which a call writes to the delay queue, each with its numbers; several LSETs are one."""
    marker = f"end of {rig.keys.queue.name}"
    told: list[tuple[str, ...]] = []
    with rig.client.monitor() as monitor:
        call()
        rig.client.echo(marker)
        while True:
            words = monitor.next_command()["command"].split(" ")
            name = words[0].upper()
            if name == "ECHO" and marker in " ".join(words):
                return told
            if len(words) < 2 or words[1] != rig.keys.queue.delay_queue:
                continue
            if name == "LTRIM":
                told.append((name, words[2], words[3]))
            elif name == "LREM":
                told.append((name, words[2]))
            elif name == "LSET" and ("LSET",) not in told:
                told.append((name,))


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize(
    ("due", "removals"),
    [
        ([range(100)], [("LTRIM", "100", "-1")]),
        ([range(500, 600)], [("LTRIM", "0", "-101")]),
        ([range(60), range(560, 600)], [("LTRIM", "60", "-41")]),
        ([range(600)], [("LTRIM", "600", "-1")]),
        ([range(7, 107)], [("LSET",), ("LREM", "100")]),
        ([range(490, 590)], [("LSET",), ("LREM", "-100")]),
        (
            [range(3, 43), range(540, 590)],
            [("LSET",), ("LREM", "40"), ("LREM", "-50")],
        ),
        (
            [range(10), range(20, 30), range(560, 565), range(595, 600)],
            [("LSET",), ("LTRIM", "10", "-6"), ("LREM", "10"), ("LREM", "-5")],
        ),
    ],
    ids=[
        "head",
        "tail",
        "both ends",
        "all",
        "near the head",
        "near the tail",
        "near both ends",
        "runs and others",
    ],
)
def test_a_call_cuts_runs_off_and_scans_from_the_nearer_end(
    rig: Rig,
    due: list[range],
    removals: list[tuple[str, ...]],
    frame_format: FrameFormat,
) -> None:
    rig.frame_format = frame_format
    first = [n for part in due for n in part]
    # Whatever the order in which they are due.
    random.Random(14).shuffle(first)
    waits = {n: place for place, n in enumerate(first)}
    fill(rig, 600, lambda n: waits.get(n, 10_000))
    rig.now = 1_000
    got: list[str] = []

    told = removals_of(rig, lambda: got.extend(names_of(rig.claim(600))))

    assert got == [f"j{n}" for n in first]
    assert told == removals
    rig.check()


def test_a_large_batch_out_of_all_the_list_is_found_without_a_scan_for_each(
    rig: Rig,
) -> None:
    """Around each frame, the search reads no more than it needs."""
    chance = random.Random(15)
    names = [f"j{n}" for n in range(24_000)]
    for start in range(0, len(names), 500):
        part = {name: chance.randrange(24_000) for name in names[start : start + 500]}
        rig.schedule(part, size=400)
    for name in chance.sample(names, 800):
        rig.cancel(name)
    rig.now = 800
    left = len(rig.frames())

    while True:
        got: list[str] = []
        told = removals_of(rig, lambda got=got: got.extend(names_of(rig.claim(400))))
        if not got:
            break
        assert [words[0] for words in told].count("LREM") <= 2, told
        left -= len(got)

    assert len(rig.frames()) == left < 24_000 - 800 - 600
    rig.check()


def test_many_that_are_cancelled_share_a_scan(rig: Rig) -> None:
    chance = random.Random(16)
    names = fill(rig, 1_000, lambda n: chance.randrange(10_000))
    wanted = chance.sample(names, 300)
    outcomes = {}

    told = removals_of(rig, lambda: outcomes.update(rig.cancel_many(wanted)))

    assert outcomes == dict.fromkeys(wanted, "cancelled")
    assert len(rig.frames()) == 700
    # Three calls.
    assert len([words for words in told if words[0] == "LREM"]) <= 6, told
    rig.check()


def test_of_javas_few_are_cancelled_with_one_call(rig: Rig) -> None:
    """Each takes a scan."""
    rig.schedule({f"j{n}": 500 for n in range(20)})
    frames = [rig.java_offer(f"x{n}", 70) for n in range(10)]
    tokens = [f"f2-{T0 + 70}-{frame[1:9].hex()}" for frame in frames]

    calls = list(change_calls.cancel_many(rig.keys, tokens))
    outcomes = [outcome for call in calls for outcome in rig.run(call).values()]

    assert outcomes == ["cancelled"] * 10
    assert len(calls) == 3
    assert len(rig.frames()) == 20
    rig.check()


# The mark in Java's random bytes.


def mark(kind: bytes, number: int) -> bytes:
    return kind + number.to_bytes(6, "big")


KINDS = pytest.mark.parametrize("kind", [LISTED, UNLISTED], ids=["listed", "unlisted"])


@KINDS
@pytest.mark.parametrize("number", [6, FIRST + 6, FIRST + 1_000, 2**48 - 1])
@pytest.mark.parametrize("frame_format", FrameFormat)
def test_mark_in_javas_random_bytes_leaves_nothing_in_the_list(
    rig: Rig, kind: bytes, number: int, frame_format: FrameFormat
) -> None:
    rig.schedule({"a": 5, "b": 1, "c": 4})
    rig.java_offer("x", 3, frame_format=frame_format, random_id=mark(kind, number))
    rig.schedule({"d": 2, "e": 0})
    rig.now = 10

    assert names_of(rig.claim(2)) == ["e", "b"]
    rig.check()
    assert names_of(rig.claim(3)) == ["d", "x", "c"]
    rig.check()
    assert names_of(rig.claim()) == ["a"]
    assert rig.frames() == []


PLACES = {
    "head": [0],
    "tail": [999],
    "middle": [500],
    "everywhere": list(range(0, 1_000, 10)),
}


def offer_among_a_thousand(rig: Rig, random_id: bytes, places: list[int]) -> int:
    """Fill the list with our frames, some behind a frame of Java's; returns how many there are."""
    chance = random.Random(11)
    rig.schedule({"first": 450})
    for n in range(1_000):
        if n in places:
            rig.java_offer(f"x{n}", chance.randrange(900), random_id=random_id)
        rig.schedule({f"j{n}": chance.randrange(900)})
    rig.java_offer("x", 900, random_id=random_id)
    rig.now = 900
    return 1_002 + len(places)


@KINDS
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("number", [FIRST, FIRST + 1_002, 2**47])
def test_marks_in_javas_random_bytes_do_not_hide_ours_in_a_long_list(
    rig: Rig, kind: bytes, places: str, number: int
) -> None:
    count = offer_among_a_thousand(rig, mark(kind, number), PLACES[places])

    assert len(drain(rig, [60, 5, 13])) == count

    assert rig.frames() == []


@KINDS
@pytest.mark.parametrize("number", [FIRST + n for n in (1, 500, 1_000)])
def test_mark_with_a_number_that_was_given_out_loses_no_job(
    rig: Rig, kind: bytes, number: int
) -> None:
    """One in 10^13 of Java's frames, with a million offered: the list may keep it, but each job comes once."""
    count = offer_among_a_thousand(rig, mark(kind, number), PLACES["everywhere"])
    rig.is_checked = False

    got = []
    while jobs := rig.claim(60).jobs:
        got += [name_in(job.payload) for job in jobs]
        rig.acknowledge(*jobs)

    assert len(got) == len(set(got)) == count
    assert rig.state().keys() <= {"delay_queue"}


@KINDS
def test_pseudo_token_of_a_frame_with_a_mark_cancels_it_whole(
    rig: Rig, kind: bytes
) -> None:
    rig.java_offer("x", 70, random_id=mark(kind, 5))

    assert rig.cancel(f"f2-{T0 + 70}-{mark(kind, 5).hex()}") == "cancelled"

    assert rig.frames() == []


def test_numbers_stay_within_their_six_bytes_whatever_lies_at_the_tail(
    rig: Rig,
) -> None:
    rig.java_offer("x", 500, random_id=mark(LISTED, 2**48 - 2))

    rig.schedule({f"j{n}": 9 - n for n in range(10)})

    ours = [frame for frame in rig.frames() if frame not in rig.java_frames]
    assert [listed_number(frame) for frame in ours] == list(
        range(FIRST + 1, FIRST + 11)
    )


# A server that stopped in the middle.


def leave_tombstones(rig: Rig, *indexes: int) -> None:
    """Leave the list as it is when the server stops between the first LSET and the LREM."""
    rig.client.hset(rig.keys.counters, "sweeping", 1)
    for index in indexes:
        frame = rig.client.lindex(rig.keys.queue.delay_queue, index)
        assert frame is not None
        rig.client.zrem(rig.keys.queue.timeout_set, frame)
        rig.client.lset(rig.keys.queue.delay_queue, index, TOMBSTONE)


@pytest.mark.parametrize(
    "next_call",
    ["claim", "shared claim", "transfer", "cancel", "cancel in a long list"],
)
def test_tombstones_of_a_crash_are_swept_by_the_next_script_that_touches_the_list(
    rig: Rig, next_call: str
) -> None:
    count = 200 if "long" in next_call else 9
    fill(rig, count, lambda n: n)
    leave_tombstones(rig, 1, 4, 5)
    rig.now = 1_000

    if next_call == "claim":
        rig.claim(2)
    elif next_call == "shared claim":
        rig.claim(2, mode=Mode.SHARED, transfer_limit=2)
    elif next_call == "transfer":
        rig.transfer(2)
    else:
        rig.cancel("j7")

    assert TOMBSTONE not in rig.frames()
    rig.is_checked = False  # the crash left locators, for the sweep
    waiting = rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
    assert sorted(rig.frames()) == sorted(waiting)
    assert not rig.client.hexists(rig.keys.counters, "sweeping")


def test_open_flag_without_tombstones_costs_nothing_but_a_look(rig: Rig) -> None:
    fill(rig, 9, lambda n: n)
    rig.client.hset(rig.keys.counters, "sweeping", 1)
    rig.now = 5

    rig.claim()

    assert len(rig.frames()) == 3


def test_nobody_sees_a_tombstone_while_claims_run(rig: Rig) -> None:
    """A script is atomic, so nobody sees one as long as no script leaves one at its end."""
    chance = random.Random(12)
    fill(rig, 1_000, lambda n: chance.randrange(100))
    rig.now = 100

    while jobs := rig.claim(77).jobs:
        assert TOMBSTONE not in rig.frames()
        rig.acknowledge(*jobs)


# Switching the list off and on.


def test_frames_leave_the_list_with_their_jobs_after_it_was_switched_off(
    rig: Rig,
) -> None:
    rig.schedule({"a": 1, "b": 2}, insertion_list=True)
    rig.schedule({"c": 3, "d": 4}, insertion_list=False)
    assert rig.state()["delay_queue"] == ["a", "b"]
    rig.now = 3

    assert names_of(rig.claim()) == ["a", "b", "c"]

    assert rig.frames() == []


def test_list_deleted_as_a_whole_stops_nothing(rig: Rig) -> None:
    rig.schedule({"a": 1, "b": 2, "c": 3})
    rig.client.delete(rig.keys.queue.delay_queue)
    rig.now = 2

    assert names_of(rig.claim()) == ["a", "b"]
    assert rig.cancel("c") == "cancelled"


def test_frames_missing_from_the_list_stop_nothing(rig: Rig) -> None:
    """A jammed transfer of Java's takes frames out of the list and leaves them in the timeout set."""
    fill(rig, 300, lambda n: n)
    for frame in rig.frames()[::3]:
        rig.client.lrem(rig.keys.queue.delay_queue, 1, frame)
    rig.now = 400
    rig.is_checked = False

    got = []
    while jobs := rig.claim(50).jobs:
        got += [name_in(job.payload) for job in jobs]
        rig.acknowledge(*jobs)

    assert got == [f"j{n}" for n in range(300)]
    assert rig.leftovers() == [rig.keys.claims]


def test_reschedule_does_no_list_work(rig: Rig) -> None:
    fill(rig, 20, lambda n: n)
    before = rig.frames()

    for n in range(20):
        rig.reschedule(f"j{n}", 100 - n)

    assert rig.frames() == before
    rig.now = 100
    assert names_of(rig.claim(20)) == [f"j{n}" for n in reversed(range(20))]
