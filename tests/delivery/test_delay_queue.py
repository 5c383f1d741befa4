"""The delay queue, Redisson's list of all that was offered, holds exactly the listed frames that wait, in order.

`Bench.check` states that at the end of every test; these look for what could break it.
"""

import random
from collections.abc import Callable

import pytest

from django_delayq.delivery import changing
from django_delayq.delivery.claiming import Mode
from django_delayq.wire.frame import FrameFormat, pack, unpack
from tests.delivery.bench import (
    FIRST,
    LISTED,
    T0,
    UNLISTED,
    Bench,
    listed_number,
    name_in,
    names_of,
)

TOMBSTONE = b"\0"
#: More than a call moves that pays for each frame with an LREM.
MORE = 500


def fill(bench: Bench, count: int, waits: Callable[[int], int]) -> list[str]:
    """Schedule in several calls; returns the names in order of their start times."""
    jobs = {f"j{n}": waits(n) for n in range(count)}
    names = list(jobs)
    for start in range(0, count, 500):
        bench.schedule({name: jobs[name] for name in names[start : start + 500]})
    return sorted(names, key=lambda name: (jobs[name], names.index(name)))


def drain(bench: Bench, limits: list[int], mode: Mode = Mode.DIRECT) -> list[str]:
    """Claim until nothing comes, checking the list after each claim; returns the names."""
    got: list[str] = []
    while True:
        limit = limits[len(got) % len(limits)]
        claimed = bench.claim(limit, mode=mode, transfer_limit=limit)
        bench.acknowledge(*claimed.jobs)
        bench.check()
        got += names_of(claimed)
        if not claimed.jobs and not claimed.transferred:
            return got


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize("order", ["as offered", "reversed", "random", "interleaved"])
def test_claims_in_any_order_take_each_frame_out_of_the_list(
    bench: Bench, frame_format: FrameFormat, order: str
) -> None:
    bench.frame_format = frame_format
    count = 1_500
    chance = random.Random(7)
    waits: dict[str, Callable[[int], int]] = {
        "as offered": lambda n: n,
        "reversed": lambda n: count - n,
        "random": lambda n: chance.randrange(count),
        "interleaved": lambda n: n % 7,
    }
    expected = fill(bench, count, waits[order])
    bench.now = count

    got = drain(bench, [100, 1, 37, 250, 2])

    assert sorted(got) == sorted(expected)
    assert order == "random" or got == expected
    assert bench.frames() == []


def test_transfers_in_random_order_take_each_frame_out_of_the_list(
    bench: Bench,
) -> None:
    chance = random.Random(8)
    fill(bench, 1_200, lambda n: chance.randrange(1_000))
    bench.now = 1_000

    while bench.transfer(90).moved:
        bench.check()

    assert len(bench.state()["destination"]) == 1_200


def test_cancel_finds_a_frame_at_either_end_and_in_the_middle(bench: Bench) -> None:
    fill(bench, 300, lambda n: 1_000 - n)

    for n in (0, 299, 150, 1, 298, 75, 225):
        assert bench.cancel(f"j{n}") == "cancelled"
        bench.check()

    assert len(bench.frames()) == 293


def test_gaps_in_the_numbers_do_not_hide_a_frame(bench: Bench) -> None:
    """Unlisted frames and cancelled ones take numbers, too."""
    chance = random.Random(9)
    for part in range(40):
        waits = {f"j{part}-{n}": chance.randrange(1_000) for n in range(50)}
        bench.schedule(waits, insertion_list=part % 3 != 0)
    for name in chance.sample([f"j{p}-{n}" for p in range(40) for n in range(50)], 700):
        bench.cancel(name)
    bench.check()
    bench.now = 1_000

    assert len(drain(bench, [100, 7])) == 1_300


def test_list_of_java_frames_among_ours_stays_exact(bench: Bench) -> None:
    chance = random.Random(10)
    for n in range(800):
        if chance.random() < 0.4:
            bench.java_offer(f"x{n}", chance.randrange(500))
        else:
            bench.schedule({f"j{n}": chance.randrange(500)})
    bench.now = 500

    assert len(drain(bench, [90, 3, 41])) == 800


def test_long_runs_of_java_frames_do_not_hide_ours(bench: Bench) -> None:
    for part in range(5):
        bench.schedule({f"j{part}": 10 * part})
        for n in range(300):
            bench.java_offer(f"x{part}-{n}", 1_000)
    bench.schedule({"last": 100})
    bench.now = 100

    assert names_of(bench.claim()) == [f"j{part}" for part in range(5)] + ["last"]


@pytest.mark.parametrize(
    ("waiting", "size", "moved"),
    [
        # Looked through once for all of them.
        (2_000, 1, MORE),
        # An LREM each: what they cost bounds the call, 4 + 600,000 / waiting.
        (30_000, 1, 24),
        # The same where its bytes are too many to be looked through.
        (2_000, 4_000, 304),
    ],
)
def test_call_moves_as_many_java_frames_as_the_list_allows(
    bench: Bench, waiting: int, size: int, moved: int
) -> None:
    chance = random.Random(3)
    queue = bench.keys.queue
    frames = [
        pack(chance.randbytes(8), b"x" * size, FrameFormat.BC0LC0)
        for _ in range(waiting)
    ]
    for start in range(0, waiting, 1_000):
        part = frames[start : start + 1_000]
        bench.client.rpush(queue.delay_queue, *part)
        bench.client.zadd(
            queue.timeout_set, {frame: chance.randrange(T0) for frame in part}
        )

    result = bench.transfer(batch=MORE, byte_budget=1 << 30)

    assert result.moved == moved
    left = set(bench.client.zrange(queue.timeout_set, 0, -1))
    assert len(left) == waiting - moved
    assert bench.client.lrange(queue.delay_queue, 0, -1) == [
        f for f in frames if f in left
    ]
    bench.is_checked = False


def fill_one_instant(bench: Bench, count: int) -> list[bytes]:
    """Put in Java's frames, and a few of ours, that are all due at one moment; return the list."""
    for n in range(count):
        if n % 50 == 7:
            bench.schedule({f"j{n}": 0})
        else:
            bench.java_offer(f"x{n}", 0, random_id=random.Random(n).randbytes(8))
    return bench.client.lrange(bench.keys.queue.delay_queue, 0, -1)


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED])
def test_of_one_instant_those_at_the_head_of_the_list_go_first(
    bench: Bench, mode: Mode
) -> None:
    frames = fill_one_instant(bench, 700)
    later = bench.java_offer("later", 1)

    if mode is Mode.SHARED:
        assert bench.transfer(batch=300).moved == 300
        got = bench.client.lrange(bench.keys.queue.destination, 0, -1)
    else:
        got = [each.payload for each in bench.claim(300).jobs]

    assert got == [unpack(frame).payload for frame in frames[:300]]
    left = bench.client.lrange(bench.keys.queue.delay_queue, 0, -1)
    assert left == [*frames[300:], later]
    bench.check()


def test_of_one_instant_those_behind_others_in_the_list_go_too(bench: Bench) -> None:
    waiting = [bench.java_offer(f"w{n}", 1_000_000) for n in range(60)]
    fill_one_instant(bench, 400)

    while bench.transfer(batch=40).moved:
        bench.check()

    left = bench.client.lrange(bench.keys.queue.delay_queue, 0, -1)
    assert left == waiting
    assert bench.client.llen(bench.keys.queue.destination) == 400


@pytest.mark.parametrize("place", [0, 5, 150])
def test_of_one_instant_none_is_lost_where_a_crash_left_a_tombstone(
    bench: Bench, place: int
) -> None:
    frames = fill_one_instant(bench, 300)
    queue = bench.keys.queue
    bench.client.zrem(queue.timeout_set, frames[place])
    bench.client.lset(queue.delay_queue, place, TOMBSTONE)
    bench.client.hset(bench.keys.counters, "sweeping", 1)
    bench.is_checked = False

    assert bench.transfer(batch=100).moved == 100

    left = bench.client.lrange(queue.delay_queue, 0, -1)
    assert set(left) == set(bench.client.zrange(queue.timeout_set, 0, -1))
    assert len(left) == 199


# What a call does to take its frames out.


def removals_of(bench: Bench, call: Callable[[], object]) -> list[tuple[str, ...]]:
    """Return the commands with which a call writes to the delay queue, each with its numbers; LSETs as one."""
    marker = f"end of {bench.keys.queue.name}"
    told: list[tuple[str, ...]] = []
    with bench.client.monitor() as monitor:
        call()
        bench.client.echo(marker)
        while True:
            words = monitor.next_command()["command"].split(" ")
            name = words[0].upper()
            if name == "ECHO" and marker in " ".join(words):
                return told
            if len(words) < 2 or words[1] != bench.keys.queue.delay_queue:
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
    bench: Bench,
    due: list[range],
    removals: list[tuple[str, ...]],
    frame_format: FrameFormat,
) -> None:
    bench.frame_format = frame_format
    first = [n for part in due for n in part]
    # Whatever the order in which they are due.
    random.Random(14).shuffle(first)
    waits = {n: place for place, n in enumerate(first)}
    fill(bench, 600, lambda n: waits.get(n, 10_000))
    bench.now = 1_000
    got: list[str] = []

    told = removals_of(bench, lambda: got.extend(names_of(bench.claim(600))))

    assert got == [f"j{n}" for n in first]
    assert told == removals
    bench.check()


def test_a_large_batch_out_of_all_the_list_is_found_without_a_scan_for_each(
    bench: Bench,
) -> None:
    """Around each of them, no more is read than it takes."""
    chance = random.Random(15)
    names = [f"j{n}" for n in range(24_000)]
    for start in range(0, len(names), 500):
        part = {name: chance.randrange(24_000) for name in names[start : start + 500]}
        bench.schedule(part, size=400)
    for name in chance.sample(names, 800):
        bench.cancel(name)
    bench.now = 800
    left = len(bench.frames())

    while True:
        got: list[str] = []
        told = removals_of(
            bench, lambda got=got: got.extend(names_of(bench.claim(400)))
        )
        if not got:
            break
        assert [words[0] for words in told].count("LREM") <= 2, told
        left -= len(got)

    assert len(bench.frames()) == left < 24_000 - 800 - 600
    bench.check()


def test_many_that_are_cancelled_share_a_scan(bench: Bench) -> None:
    chance = random.Random(16)
    names = fill(bench, 1_000, lambda n: chance.randrange(10_000))
    wanted = chance.sample(names, 300)
    outcomes = {}

    told = removals_of(bench, lambda: outcomes.update(bench.cancel_many(wanted)))

    assert outcomes == dict.fromkeys(wanted, "cancelled")
    assert len(bench.frames()) == 700
    # Three calls.
    assert len([words for words in told if words[0] == "LREM"]) <= 6, told
    bench.check()


def test_of_javas_few_are_cancelled_with_one_call(bench: Bench) -> None:
    """Each is a scan."""
    bench.schedule({f"j{n}": 500 for n in range(20)})
    frames = [bench.java_offer(f"x{n}", 70) for n in range(10)]
    tokens = [f"f2-{T0 + 70}-{frame[1:9].hex()}" for frame in frames]

    calls = list(changing.cancel_many(bench.keys, tokens))
    outcomes = [outcome for call in calls for outcome in bench.run(call).values()]

    assert outcomes == ["cancelled"] * 10
    assert len(calls) == 3
    assert len(bench.frames()) == 20
    bench.check()


# The mark in Java's random bytes.


def mark(kind: bytes, number: int) -> bytes:
    return kind + number.to_bytes(6, "big")


KINDS = pytest.mark.parametrize("kind", [LISTED, UNLISTED], ids=["listed", "unlisted"])


@KINDS
@pytest.mark.parametrize("number", [6, FIRST + 6, FIRST + 1_000, 2**48 - 1])
@pytest.mark.parametrize("frame_format", FrameFormat)
def test_mark_in_javas_random_bytes_leaves_nothing_in_the_list(
    bench: Bench, kind: bytes, number: int, frame_format: FrameFormat
) -> None:
    bench.schedule({"a": 5, "b": 1, "c": 4})
    bench.java_offer("x", 3, frame_format=frame_format, random_id=mark(kind, number))
    bench.schedule({"d": 2, "e": 0})
    bench.now = 10

    assert names_of(bench.claim(2)) == ["e", "b"]
    bench.check()
    assert names_of(bench.claim(3)) == ["d", "x", "c"]
    bench.check()
    assert names_of(bench.claim()) == ["a"]
    assert bench.frames() == []


PLACES = {
    "head": [0],
    "tail": [999],
    "middle": [500],
    "everywhere": list(range(0, 1_000, 10)),
}


def offer_among_a_thousand(bench: Bench, random_id: bytes, places: list[int]) -> int:
    """Fill the list with ours and, before some of them, Java's; returns how many there are."""
    chance = random.Random(11)
    bench.schedule({"first": 450})
    for n in range(1_000):
        if n in places:
            bench.java_offer(f"x{n}", chance.randrange(900), random_id=random_id)
        bench.schedule({f"j{n}": chance.randrange(900)})
    bench.java_offer("x", 900, random_id=random_id)
    bench.now = 900
    return 1_002 + len(places)


@KINDS
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("number", [FIRST, FIRST + 1_002, 2**47])
def test_marks_in_javas_random_bytes_do_not_hide_ours_in_a_long_list(
    bench: Bench, kind: bytes, places: str, number: int
) -> None:
    count = offer_among_a_thousand(bench, mark(kind, number), PLACES[places])

    assert len(drain(bench, [60, 5, 13])) == count

    assert bench.frames() == []


@KINDS
@pytest.mark.parametrize("number", [FIRST + n for n in (1, 500, 1_000)])
def test_mark_with_a_number_that_was_given_out_loses_no_job(
    bench: Bench, kind: bytes, number: int
) -> None:
    """One in 10^13 of Java's frames, with a million offered: its list may keep it, but each job comes once."""
    count = offer_among_a_thousand(bench, mark(kind, number), PLACES["everywhere"])
    bench.is_checked = False

    got = []
    while jobs := bench.claim(60).jobs:
        got += [name_in(job.payload) for job in jobs]
        bench.acknowledge(*jobs)

    assert len(got) == len(set(got)) == count
    assert bench.state().keys() <= {"delay_queue"}


@KINDS
def test_pseudo_token_of_a_frame_with_a_mark_cancels_it_whole(
    bench: Bench, kind: bytes
) -> None:
    bench.java_offer("x", 70, random_id=mark(kind, 5))

    assert bench.cancel(f"f2-{T0 + 70}-{mark(kind, 5).hex()}") == "cancelled"

    assert bench.frames() == []


def test_numbers_stay_within_their_six_bytes_whatever_lies_at_the_tail(
    bench: Bench,
) -> None:
    bench.java_offer("x", 500, random_id=mark(LISTED, 2**48 - 2))

    bench.schedule({f"j{n}": 9 - n for n in range(10)})

    ours = [frame for frame in bench.frames() if frame not in bench.java_frames]
    assert [listed_number(frame) for frame in ours] == list(
        range(FIRST + 1, FIRST + 11)
    )


# A server that stopped in the middle.


def leave_tombstones(bench: Bench, *indexes: int) -> None:
    """Leave the list as a server does that stops between the first LSET and the LREM."""
    bench.client.hset(bench.keys.counters, "sweeping", 1)
    for index in indexes:
        frame = bench.client.lindex(bench.keys.queue.delay_queue, index)
        assert frame is not None
        bench.client.zrem(bench.keys.queue.timeout_set, frame)
        bench.client.lset(bench.keys.queue.delay_queue, index, TOMBSTONE)


@pytest.mark.parametrize(
    "next_call",
    ["claim", "shared claim", "transfer", "cancel", "cancel in a long list"],
)
def test_tombstones_of_a_crash_are_swept_by_the_next_script_that_touches_the_list(
    bench: Bench, next_call: str
) -> None:
    count = 200 if "long" in next_call else 9
    fill(bench, count, lambda n: n)
    leave_tombstones(bench, 1, 4, 5)
    bench.now = 1_000

    if next_call == "claim":
        bench.claim(2)
    elif next_call == "shared claim":
        bench.claim(2, mode=Mode.SHARED, transfer_limit=2)
    elif next_call == "transfer":
        bench.transfer(2)
    else:
        bench.cancel("j7")

    assert TOMBSTONE not in bench.frames()
    bench.is_checked = False  # what was lost with the crash are locators, for the sweep
    waiting = bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
    assert sorted(bench.frames()) == sorted(waiting)
    assert not bench.client.hexists(bench.keys.counters, "sweeping")


def test_open_flag_without_tombstones_costs_nothing_but_a_look(bench: Bench) -> None:
    fill(bench, 9, lambda n: n)
    bench.client.hset(bench.keys.counters, "sweeping", 1)
    bench.now = 5

    bench.claim()

    assert len(bench.frames()) == 3


def test_nobody_sees_a_tombstone_while_claims_run(bench: Bench) -> None:
    """A script is atomic, so this holds by itself, as long as no script leaves one at its end."""
    chance = random.Random(12)
    fill(bench, 1_000, lambda n: chance.randrange(100))
    bench.now = 100

    while jobs := bench.claim(77).jobs:
        assert TOMBSTONE not in bench.frames()
        bench.acknowledge(*jobs)


# Switching the list off and on.


def test_frames_leave_the_list_with_their_jobs_after_it_was_switched_off(
    bench: Bench,
) -> None:
    bench.schedule({"a": 1, "b": 2}, insertion_list=True)
    bench.schedule({"c": 3, "d": 4}, insertion_list=False)
    assert bench.state()["delay_queue"] == ["a", "b"]
    bench.now = 3

    assert names_of(bench.claim()) == ["a", "b", "c"]

    assert bench.frames() == []


def test_list_deleted_as_a_whole_stops_nothing(bench: Bench) -> None:
    bench.schedule({"a": 1, "b": 2, "c": 3})
    bench.client.delete(bench.keys.queue.delay_queue)
    bench.now = 2

    assert names_of(bench.claim()) == ["a", "b"]
    assert bench.cancel("c") == "cancelled"


def test_frames_missing_from_the_list_stop_nothing(bench: Bench) -> None:
    """Java's jammed transfer takes them out of the list and leaves them in the timeout set."""
    fill(bench, 300, lambda n: n)
    for frame in bench.frames()[::3]:
        bench.client.lrem(bench.keys.queue.delay_queue, 1, frame)
    bench.now = 400
    bench.is_checked = False

    got = []
    while jobs := bench.claim(50).jobs:
        got += [name_in(job.payload) for job in jobs]
        bench.acknowledge(*jobs)

    assert got == [f"j{n}" for n in range(300)]
    assert bench.leftovers() == [bench.keys.claims]


def test_reschedule_does_no_list_work(bench: Bench) -> None:
    fill(bench, 20, lambda n: n)
    before = bench.frames()

    for n in range(20):
        bench.reschedule(f"j{n}", 100 - n)

    assert bench.frames() == before
    bench.now = 100
    assert names_of(bench.claim(20)) == [f"j{n}" for n in reversed(range(20))]
