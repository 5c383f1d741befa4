"""The insertion list of a living queue, filled and emptied: nothing lost, nothing twice, in the order of arrival."""

import itertools
import random
import threading

import pytest
import redis

from django_delayq.delivery.states import Change
from django_delayq.repair import frames
from django_delayq.repair.frames import FrameName, ListBusy, ListStep
from django_delayq.repair.listing import Listing
from django_delayq.repair.pacing import StepSizer
from django_delayq.repair.survey import take_survey
from django_delayq.wire.frame import FrameFormat, pack
from tests.delivery.bench import T0, Bench, is_unlisted, name_in, names_of

OLD, NEW = FrameFormat.DLC0, FrameFormat.BC0LC0
pytestmark = pytest.mark.redis


@pytest.fixture(params=FrameFormat)
def frame_format(request: pytest.FixtureRequest) -> FrameFormat:
    return request.param


@pytest.fixture
def bench(
    client: "redis.Redis[bytes]", queue_name: str, frame_format: FrameFormat
) -> Bench:
    return Bench(client, queue_name, frame_format=frame_format)


def fill(bench: Bench, batch: int = 3) -> Listing:
    listing = Listing(bench.client, bench.keys, _sizer=StepSizer(batch))
    listing.fill()
    return listing


def empty(bench: Bench, batch: int = 3) -> Listing:
    bench.delisted |= bench.java_frames
    listing = Listing(bench.client, bench.keys, _sizer=StepSizer(batch))
    listing.empty()
    return listing


def waiting(bench: Bench) -> list[tuple[str, int]]:
    return sorted(bench.state().get("timeout_set", []))


def listed(bench: Bench) -> list[str]:
    return bench.state().get("delay_queue", [])


def test_filled_in_order_of_arrival(bench: Bench) -> None:
    waits = random.Random(1).sample(range(1_000), 40)
    for n, wait in enumerate(waits):
        bench.schedule({f"j{n}": wait}, insertion_list=False)
    before = waiting(bench)

    listing = fill(bench)

    assert listed(bench) == [f"j{n}" for n in range(40)]
    assert waiting(bench) == before
    assert listing.filled == 40
    bench.check()
    assert fill(bench).filled == 0


def test_emptied_and_filled_again_is_as_it_was(bench: Bench) -> None:
    for n in range(30):
        bench.schedule({f"j{n}": 7 * n % 10}, insertion_list=n % 3 != 0)
        if n % 4 == 0:
            bench.java_offer(f"x{n}", n)
    before = waiting(bench)

    emptied = empty(bench)

    assert (emptied.emptied, emptied.alone, listed(bench)) == (28, 0, [])
    assert waiting(bench) == before
    assert all(
        is_unlisted(frame)
        for frame in bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
        if frame not in bench.java_frames
    )
    bench.check()

    filled = fill(bench)
    bench.delisted.clear()

    assert filled.filled == 38
    assert waiting(bench) == before
    # Java's have no number: they come after ours, by start time.
    assert listed(bench) == [f"j{n}" for n in range(30)] + [
        f"x{n}" for n in range(0, 30, 4)
    ]
    bench.check()
    bench.now = 40
    claimed = bench.claim(100)
    assert len(claimed.jobs) == 38
    bench.check()


def test_every_job_is_found_moved_and_cancelled_whatever_its_list_went_through(
    bench: Bench,
) -> None:
    for step in (lambda: None, lambda: empty(bench), lambda: fill(bench)):
        bench.schedule({"a": 5_000, "b": 6_000, "c": 7_000}, unique="")
        step()
        bench.check()

        assert bench.inspect("a").start_time_ms == T0 + 5_000
        assert bench.cancel("a") is Change.CANCELLED
        outcome, start = bench.reschedule("b", 9_000)
        assert (outcome, start) == (Change.RESCHEDULED, 9_000)
        bench.check()
        assert bench.cancel("b") is Change.CANCELLED
        assert bench.cancel("c") is Change.CANCELLED
        bench.check()
        assert not bench.state()


def test_what_no_step_can_find_is_left_out_and_counted(bench: Bench) -> None:
    bench.java_offer("x", 5)
    timeout_set = bench.keys.queue.timeout_set
    for number, score in enumerate((T0 + 0.5, -5, float("inf"))):
        frame = pack(b"%08d" % number, b"odd", bench.frame_format)
        bench.client.zadd(timeout_set, {frame: score})
    bench.client.zadd(timeout_set, {b"no frame": T0, b"listed": T0})
    bench.client.rpush(bench.keys.queue.delay_queue, b"listed")

    listing = fill(bench)

    assert (listing.filled, listing.left_out) == (0, 4)
    assert len(bench.frames()) == 2
    bench.is_checked = False


@pytest.mark.parametrize("at", ["before", "behind"])
def test_what_is_in_the_list_alone_stays(bench: Bench, at: str) -> None:
    lone = pack(b"12345678", b"lone", NEW)
    push = bench.client.lpush if at == "before" else bench.client.rpush
    bench.schedule({f"j{n}": n for n in range(20)})
    push(bench.keys.queue.delay_queue, lone, b"no frame")

    listing = empty(bench)

    assert (listing.emptied, listing.alone) == (20, 2)
    assert sorted(bench.frames()) == sorted([lone, b"no frame"])
    again = empty(bench)
    assert (again.emptied, again.alone) == (0, 2)
    bench.is_checked = False


def test_what_came_meanwhile_is_left_in_the_list(bench: Bench) -> None:
    bench.schedule({f"j{n}": 1_000 for n in range(9)})
    steps = itertools.count()

    def offer(what: str, done: int, total: int) -> None:
        # As a process does that still keeps the list; it would go on for ever.
        bench.schedule({f"late{next(steps)}": 1_000})

    Listing(bench.client, bench.keys, offer, _sizer=StepSizer(3)).empty()

    count = next(steps)
    assert 1 <= count <= 9
    assert listed(bench) == [f"late{n}" for n in range(count)]
    bench.check()


def test_what_came_meanwhile_without_the_list_is_filled_in_too(bench: Bench) -> None:
    bench.schedule({f"j{n}": 1_000 for n in range(9)}, insertion_list=False)
    late = itertools.count()

    def offer(what: str, done: int, total: int) -> None:
        if what == "filling the list" and (n := next(late)) < 2:
            bench.schedule({f"late{n}": 1_000}, insertion_list=False)
            bench.schedule({f"listed{n}": 1_000}, insertion_list=True)

    listing = Listing(bench.client, bench.keys, offer, _sizer=StepSizer(3))
    listing.fill()

    assert listing.filled == 11
    assert sorted(listed(bench)) == sorted(
        [f"j{n}" for n in range(9)] + ["late0", "late1", "listed0", "listed1"]
    )
    bench.check()


def test_jobs_that_start_meanwhile_are_not_filled_in(bench: Bench) -> None:
    bench.schedule({f"j{n}": 0 for n in range(12)}, insertion_list=False)
    started: list[str] = []

    def claim(what: str, done: int, total: int) -> None:
        started.extend(names_of(bench.claim(2)))

    Listing(bench.client, bench.keys, claim, _sizer=StepSizer(3)).fill()

    assert started
    assert set(listed(bench)).isdisjoint(started)
    assert len(listed(bench)) == 12 - len(started)
    bench.check()


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("steps", range(9))
def test_run_that_is_interrupted_after_any_step_can_be_run_again(
    bench: Bench, is_on: bool, steps: int
) -> None:
    for n in range(40):
        bench.schedule({f"j{n}": n % 3}, insertion_list=not is_on)
    left = itertools.count(steps, -1)

    def interrupt(what: str, done: int, total: int) -> None:
        if what.endswith("ing the list") and next(left) == 0:
            raise KeyboardInterrupt

    first = Listing(bench.client, bench.keys, interrupt, _sizer=StepSizer(3))
    try:
        first.fill() if is_on else first.empty()
    except KeyboardInterrupt:
        # One more to take the list before the first look.
        assert first.steps == steps + 1 + is_on
    bench.check()

    again = fill(bench) if is_on else empty(bench)

    assert first.filled + again.filled == (40 if is_on else 0)
    assert first.emptied + again.emptied == (0 if is_on else 40)
    assert listed(bench) == ([f"j{n}" for n in range(40)] if is_on else [])
    bench.check()
    bench.now = 5
    assert len(bench.claim(100).jobs) == 40


@pytest.mark.parametrize("is_on", [True, False])
def test_step_whose_reply_was_lost_is_done_once(bench: Bench, is_on: bool) -> None:
    bench.schedule({f"j{n}": 5 for n in range(6)}, insertion_list=not is_on)
    lone = bench.java_offer("x", 5)
    if is_on:
        bench.client.delete(bench.keys.queue.delay_queue)
        names = [FrameName(T0 + 5, bench.frame_format, _id_of(lone))]
        call = frames.enlist(bench.keys, names, run="me", step=1)
    else:
        call = frames.delist(bench.keys, run="me", step=1, batch=4)

    first = bench.run(call)
    state = bench.state(), bench.frames()
    again = bench.run(call.again())

    assert first == again == (ListStep(1, 1) if is_on else ListStep(4, 0))
    assert (bench.state(), bench.frames()) == state
    bench.is_checked = False


def _id_of(frame: bytes) -> bytes:
    return frame[1:9] if frame[:1] == b"\x08" else frame[:8]


def test_second_run_beside_the_first_is_refused_until_it_ended(bench: Bench) -> None:
    bench.schedule({f"j{n}": 5 for n in range(6)}, insertion_list=False)
    refused = []

    def start_another(what: str, done: int, total: int) -> None:
        if what == "filling the list":
            with pytest.raises(
                ListBusy, match=f"{bench.keys.queue.name}.* half a minute"
            ):
                empty(bench)
            refused.append(done)

    Listing(bench.client, bench.keys, start_another, _sizer=StepSizer(3)).fill()

    assert refused
    assert empty(bench).emptied == 6


def test_run_that_was_killed_is_in_nobodys_way_for_long(bench: Bench) -> None:
    bench.schedule({"a": 5, "b": 5})
    bench.run(
        frames.delist(bench.keys, run="dead", step=1, batch=1, now_us=bench.now_us)
    )
    later = frames.delist(
        bench.keys, run="me", step=1, batch=1, now_us=bench.now_us + 30_000_000
    )
    with pytest.raises(ListBusy):
        bench.run(
            frames.delist(
                bench.keys, run="me", step=1, batch=1, now_us=bench.now_us + 29_999_000
            )
        )

    assert bench.run(later) == ListStep(1, 0)


def test_dead_run_is_in_nobodys_way_where_the_clock_was_set_back(bench: Bench) -> None:
    bench.schedule({"a": 5, "b": 5})
    ahead_us = bench.now_us + 7_200_000_000
    bench.run(frames.delist(bench.keys, run="dead", step=1, batch=1, now_us=ahead_us))

    assert bench.run(frames.delist(bench.keys, run="me", step=1, batch=1)).seen == 1


def test_run_that_looked_before_another_filled_the_list_fills_nothing_in_twice(
    bench: Bench,
) -> None:
    for n in range(5):
        bench.java_offer(f"x{n}", 1_000)
    lone = Bench(bench.client, bench.keys.queue.name, frame_format=bench.frame_format)
    bench.client.delete(bench.keys.queue.delay_queue)
    others: list[Listing] = []

    def fill_another(what: str, done: int, total: int) -> None:
        if what == "reading the delay queue" and not others:
            # The half minute of this one is over, as where its look took long.
            bench.client.hdel(bench.keys.control, "listing")
            others.append(fill(lone))

    with pytest.raises(ListBusy):
        Listing(bench.client, bench.keys, fill_another).fill()

    assert others[0].filled == len(bench.frames()) == 5
    bench.check()


@pytest.mark.parametrize("what", ["reading the timeout set", "reading the delay queue"])
def test_another_is_refused_while_the_first_one_looks(bench: Bench, what: str) -> None:
    bench.schedule({"a": 5}, insertion_list=False)
    refused = []

    def start_another(now: str, done: int, total: int) -> None:
        if now == what:
            with pytest.raises(ListBusy):
                fill(bench)
            refused.append(done)

    Listing(bench.client, bench.keys, start_another).fill()

    assert refused
    assert listed(bench) == ["a"]


def test_nothing_stays_in_the_list_where_the_counters_were_lost(bench: Bench) -> None:
    bench.schedule({f"j{n}": 5 for n in range(20)}, insertion_list=False)
    bench.client.delete(bench.keys.counters)

    fill(bench)
    bench.schedule({f"k{n}": 5 for n in range(40)})
    assert bench.cancel("j3") is Change.CANCELLED
    bench.now = 10
    bench.acknowledge(*bench.claim(100).jobs)

    assert bench.frames() == []
    assert bench.state() == {}


def test_steps_are_bounded_in_bytes(bench: Bench) -> None:
    bench.schedule({f"j{n}": 5 for n in range(20)}, size=1_000)
    delist = frames.delist(bench.keys, run="me", step=1, batch=20, byte_budget=3_000)

    assert 1 <= bench.run(delist).seen <= 4

    empty_again = Listing(bench.client, bench.keys, _run="me", steps=1)
    empty_again.empty()
    names = [
        FrameName(int(score), bench.frame_format, _id_of(frame))
        for frame, score in bench.client.zrange(
            bench.keys.queue.timeout_set, 0, -1, withscores=True
        )
    ]
    enlist = frames.enlist(bench.keys, names, run="me", step=1, byte_budget=3_000)
    assert 1 <= bench.run(enlist).seen <= 4


def test_unit_that_only_looks_like_ours_is_listed_with_a_mark_that_fits(
    bench: Bench,
) -> None:
    # One in 65,536 of Java's: its number was never given out.
    bench.java_frames.discard(bench.java_offer("x", 5, random_id=b"\xd9U\x7fabcde"))
    bench.client.delete(bench.keys.queue.delay_queue)

    fill(bench)

    assert listed(bench) == ["x"]
    assert bench.frames() == bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
    bench.check()


def test_frames_of_an_emptied_list_do_not_count_as_delivered(bench: Bench) -> None:
    for n in range(3):
        bench.java_offer(f"x{n}", 0)
    empty(bench)
    bench.java_offer("y", 0)

    survey = take_survey(bench.client, bench.keys)

    assert (survey.is_emptied, survey.delivered) == (True, [])
    fill(bench)
    bench.delisted.clear()
    survey = take_survey(bench.client, bench.keys)
    assert (survey.is_emptied, survey.delivered) == (False, [])
    assert survey.listed.total() == 4
    bench.check()


@pytest.mark.parametrize("is_on", [True, False])
def test_workers_producers_and_java_go_on_meanwhile(bench: Bench, is_on: bool) -> None:
    rng = random.Random(7)
    names = [f"j{n}" for n in range(300)]
    for name in names:
        bench.schedule({name: rng.randrange(200)}, insertion_list=not is_on)
    ended, failures = threading.Event(), []
    client = redis.Redis(connection_pool=bench.client.connection_pool)
    other = Bench(client, bench.keys.queue.name, frame_format=bench.frame_format)
    done: list[str] = []

    def live() -> None:
        try:
            for n in itertools.count():
                if ended.is_set():
                    return
                name = f"new{n}"
                other.schedule({name: rng.randrange(50)}, insertion_list=is_on)
                names.append(name)
                if n % 5 == 0:
                    names.append(f"x{n}")
                    bench.java_frames.add(other.java_offer(f"x{n}", rng.randrange(50)))
                other.now += 0.3
                jobs = other.claim(3).jobs
                other.acknowledge(*jobs)
                done.extend(name_in(job.payload) for job in jobs)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        for _ in range(3):
            listing = Listing(bench.client, bench.keys, _sizer=StepSizer(5))
            listing.fill() if is_on else listing.empty()
    finally:
        ended.set()
        thread.join(60)
    assert not failures
    other.now += 1_000
    while jobs := other.claim(100).jobs:
        other.acknowledge(*jobs)
        done.extend(name_in(job.payload) for job in jobs)

    assert sorted(done) == sorted(names)
    assert other.state() == {}
    assert other.frames() == []
