"""The insertion list of a living queue, filled and emptied: nothing lost, nothing twice, in the order of arrival."""

import itertools
import random
import threading

import pytest
import redis

from django_delayq.core.states import Change
from django_delayq.tools import frame_calls
from django_delayq.tools.frame_calls import FrameName, ListBusy, ListStep
from django_delayq.tools.insertion_list import Listing
from django_delayq.tools.pace import step_sizer
from django_delayq.tools.survey import take_survey
from django_delayq.wire.frame import FrameFormat, pack
from tests.clock import at
from tests.core.rig import T0, Rig, is_unlisted, name_in, names_of

OLD, NEW = FrameFormat.DLC0, FrameFormat.BC0LC0
pytestmark = pytest.mark.redis


@pytest.fixture(params=FrameFormat)
def frame_format(request: pytest.FixtureRequest) -> FrameFormat:
    return request.param


@pytest.fixture
def rig(
    client: "redis.Redis[bytes]", queue_name: str, frame_format: FrameFormat
) -> Rig:
    return Rig(client, queue_name, frame_format=frame_format)


def fill(rig: Rig, batch: int = 3) -> Listing:
    listing = Listing(rig.client, rig.keys, _sizer=step_sizer(batch))
    listing.fill()
    return listing


def empty(rig: Rig, batch: int = 3) -> Listing:
    rig.delisted |= rig.java_frames
    listing = Listing(rig.client, rig.keys, _sizer=step_sizer(batch))
    listing.empty()
    return listing


def waiting(rig: Rig) -> list[tuple[str, int]]:
    return sorted(rig.state().get("timeout_set", []))


def listed(rig: Rig) -> list[str]:
    return rig.state().get("delay_queue", [])


def test_filled_in_order_of_arrival(rig: Rig) -> None:
    waits = random.Random(1).sample(range(1_000), 40)
    for n, wait in enumerate(waits):
        rig.schedule({f"j{n}": wait}, insertion_list=False)
    before = waiting(rig)

    listing = fill(rig)

    assert listed(rig) == [f"j{n}" for n in range(40)]
    assert waiting(rig) == before
    assert listing.filled == 40
    rig.check()
    assert fill(rig).filled == 0


def test_emptied_and_filled_again_is_as_it_was(rig: Rig) -> None:
    for n in range(30):
        rig.schedule({f"j{n}": 7 * n % 10}, insertion_list=n % 3 != 0)
        if n % 4 == 0:
            rig.java_offer(f"x{n}", n)
    before = waiting(rig)

    emptied = empty(rig)

    assert (emptied.emptied, emptied.alone, listed(rig)) == (28, 0, [])
    assert waiting(rig) == before
    assert all(
        is_unlisted(frame)
        for frame in rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
        if frame not in rig.java_frames
    )
    rig.check()

    filled = fill(rig)
    rig.delisted.clear()

    assert filled.filled == 38
    assert waiting(rig) == before
    # Java's have no number: they come after ours, by start time.
    assert listed(rig) == [f"j{n}" for n in range(30)] + [
        f"x{n}" for n in range(0, 30, 4)
    ]
    rig.check()
    rig.now = 40
    claimed = rig.claim(100)
    assert len(claimed.jobs) == 38
    rig.check()


def test_every_job_is_found_moved_and_cancelled_whatever_its_list_went_through(
    rig: Rig,
) -> None:
    for step in (lambda: None, lambda: empty(rig), lambda: fill(rig)):
        rig.schedule({"a": 5_000, "b": 6_000, "c": 7_000}, unique="")
        step()
        rig.check()

        assert rig.inspect("a").start_time_ms == T0 + 5_000
        assert rig.cancel("a") is Change.CANCELLED
        outcome, start = rig.reschedule("b", 9_000)
        assert (outcome, start) == (Change.RESCHEDULED, 9_000)
        rig.check()
        assert rig.cancel("b") is Change.CANCELLED
        assert rig.cancel("c") is Change.CANCELLED
        rig.check()
        assert not rig.state()


def test_what_no_step_can_find_is_left_out_and_counted(rig: Rig) -> None:
    rig.java_offer("x", 5)
    timeout_set = rig.keys.queue.timeout_set
    for number, score in enumerate((T0 + 0.5, -5, float("inf"))):
        frame = pack(b"%08d" % number, b"odd", rig.frame_format)
        rig.client.zadd(timeout_set, {frame: score})
    rig.client.zadd(timeout_set, {b"no frame": T0, b"listed": T0})
    rig.client.rpush(rig.keys.queue.delay_queue, b"listed")

    listing = fill(rig)

    assert (listing.filled, listing.left_out) == (0, 4)
    assert len(rig.frames()) == 2
    rig.is_checked = False


@pytest.mark.parametrize("at", ["before", "behind"])
def test_what_is_in_the_list_alone_stays(rig: Rig, at: str) -> None:
    lone = pack(b"12345678", b"lone", NEW)
    push = rig.client.lpush if at == "before" else rig.client.rpush
    rig.schedule({f"j{n}": n for n in range(20)})
    push(rig.keys.queue.delay_queue, lone, b"no frame")

    listing = empty(rig)

    assert (listing.emptied, listing.alone) == (20, 2)
    assert sorted(rig.frames()) == sorted([lone, b"no frame"])
    again = empty(rig)
    assert (again.emptied, again.alone) == (0, 2)
    rig.is_checked = False


def test_what_came_meanwhile_is_left_in_the_list(rig: Rig) -> None:
    rig.schedule({f"j{n}": 1_000 for n in range(9)})
    steps = itertools.count()

    def offer(what: str, done: int, total: int) -> None:
        # As a process does that still keeps the list; it would go on for ever.
        rig.schedule({f"late{next(steps)}": 1_000})

    Listing(rig.client, rig.keys, offer, _sizer=step_sizer(3)).empty()

    count = next(steps)
    assert 1 <= count <= 9
    assert listed(rig) == [f"late{n}" for n in range(count)]
    rig.check()


def test_what_came_meanwhile_without_the_list_is_filled_in_too(rig: Rig) -> None:
    rig.schedule({f"j{n}": 1_000 for n in range(9)}, insertion_list=False)
    late = itertools.count()

    def offer(what: str, done: int, total: int) -> None:
        if what == "adding frames to the list" and (n := next(late)) < 2:
            rig.schedule({f"late{n}": 1_000}, insertion_list=False)
            rig.schedule({f"listed{n}": 1_000}, insertion_list=True)

    listing = Listing(rig.client, rig.keys, offer, _sizer=step_sizer(3))
    listing.fill()

    assert listing.filled == 11
    assert sorted(listed(rig)) == sorted(
        [f"j{n}" for n in range(9)] + ["late0", "late1", "listed0", "listed1"]
    )
    rig.check()


def test_jobs_that_start_meanwhile_are_not_filled_in(rig: Rig) -> None:
    rig.schedule({f"j{n}": 0 for n in range(12)}, insertion_list=False)
    started: list[str] = []

    def claim(what: str, done: int, total: int) -> None:
        started.extend(names_of(rig.claim(2)))

    Listing(rig.client, rig.keys, claim, _sizer=step_sizer(3)).fill()

    assert started
    assert set(listed(rig)).isdisjoint(started)
    assert len(listed(rig)) == 12 - len(started)
    rig.check()


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("steps", range(9))
def test_run_that_is_interrupted_after_any_step_can_be_run_again(
    rig: Rig, is_on: bool, steps: int
) -> None:
    for n in range(40):
        rig.schedule({f"j{n}": n % 3}, insertion_list=not is_on)
    left = itertools.count(steps, -1)

    def interrupt(what: str, done: int, total: int) -> None:
        if what.endswith(" the list") and next(left) == 0:
            raise KeyboardInterrupt

    first = Listing(rig.client, rig.keys, interrupt, _sizer=step_sizer(3))
    try:
        first.fill() if is_on else first.empty()
    except KeyboardInterrupt:
        # One more to take the list before the first look.
        assert first.steps == steps + 1 + is_on
    rig.check()

    again = fill(rig) if is_on else empty(rig)

    assert first.filled + again.filled == (40 if is_on else 0)
    assert first.emptied + again.emptied == (0 if is_on else 40)
    assert listed(rig) == ([f"j{n}" for n in range(40)] if is_on else [])
    rig.check()
    rig.now = 5
    assert len(rig.claim(100).jobs) == 40


@pytest.mark.parametrize("is_on", [True, False])
def test_step_whose_reply_was_lost_is_done_once(rig: Rig, is_on: bool) -> None:
    rig.schedule({f"j{n}": 5 for n in range(6)}, insertion_list=not is_on)
    lone = rig.java_offer("x", 5)
    if is_on:
        rig.client.delete(rig.keys.queue.delay_queue)
        names = [FrameName(T0 + 5, rig.frame_format, _id_of(lone))]
        call = frame_calls.enlist(rig.keys, names, run="me", step=1)
    else:
        call = frame_calls.delist(rig.keys, run="me", step=1, batch=4)

    first = rig.run(call)
    state = rig.state(), rig.frames()
    again = rig.run(call.again())

    assert first == again == (ListStep(1, 1) if is_on else ListStep(4, 0))
    assert (rig.state(), rig.frames()) == state
    rig.is_checked = False


def _id_of(frame: bytes) -> bytes:
    return frame[1:9] if frame[:1] == b"\x08" else frame[:8]


def test_second_run_beside_the_first_is_refused_until_it_ended(rig: Rig) -> None:
    rig.schedule({f"j{n}": 5 for n in range(6)}, insertion_list=False)
    refused = []

    def start_another(what: str, done: int, total: int) -> None:
        if what == "adding frames to the list":
            with pytest.raises(
                ListBusy, match=f"{rig.keys.queue.name}.* half a minute"
            ):
                empty(rig)
            refused.append(done)

    Listing(rig.client, rig.keys, start_another, _sizer=step_sizer(3)).fill()

    assert refused
    assert empty(rig).emptied == 6


def test_run_that_was_killed_is_in_nobodys_way_for_long(rig: Rig) -> None:
    rig.schedule({"a": 5, "b": 5})
    rig.run(frame_calls.delist(rig.keys, run="dead", step=1, batch=1))
    later = at(
        rig.now_us + 30000000, frame_calls.delist(rig.keys, run="me", step=1, batch=1)
    )
    with pytest.raises(ListBusy):
        rig.run(
            at(
                rig.now_us + 29999000,
                frame_calls.delist(rig.keys, run="me", step=1, batch=1),
            )
        )

    assert rig.run(later) == ListStep(1, 0)


def test_dead_run_is_in_nobodys_way_where_the_clock_was_set_back(rig: Rig) -> None:
    rig.schedule({"a": 5, "b": 5})
    ahead_us = rig.now_us + 7_200_000_000
    rig.run(at(ahead_us, frame_calls.delist(rig.keys, run="dead", step=1, batch=1)))

    assert rig.run(frame_calls.delist(rig.keys, run="me", step=1, batch=1)).seen == 1


def test_run_that_looked_before_another_filled_the_list_fills_nothing_in_twice(
    rig: Rig,
) -> None:
    for n in range(5):
        rig.java_offer(f"x{n}", 1_000)
    lone = Rig(rig.client, rig.keys.queue.name, frame_format=rig.frame_format)
    rig.client.delete(rig.keys.queue.delay_queue)
    others: list[Listing] = []

    def fill_another(what: str, done: int, total: int) -> None:
        if what == "reading the delay queue" and not others:
            # The half minute of this one is over, as where its look took long.
            rig.client.hdel(rig.keys.control, "listing")
            others.append(fill(lone))

    with pytest.raises(ListBusy):
        Listing(rig.client, rig.keys, fill_another).fill()

    assert others[0].filled == len(rig.frames()) == 5
    rig.check()


@pytest.mark.parametrize("what", ["reading the timeout set", "reading the delay queue"])
def test_another_is_refused_while_the_first_one_looks(rig: Rig, what: str) -> None:
    rig.schedule({"a": 5}, insertion_list=False)
    refused = []

    def start_another(now: str, done: int, total: int) -> None:
        if now == what:
            with pytest.raises(ListBusy):
                fill(rig)
            refused.append(done)

    Listing(rig.client, rig.keys, start_another).fill()

    assert refused
    assert listed(rig) == ["a"]


def test_nothing_stays_in_the_list_where_the_counters_were_lost(rig: Rig) -> None:
    rig.schedule({f"j{n}": 5 for n in range(20)}, insertion_list=False)
    rig.client.delete(rig.keys.counters)

    fill(rig)
    rig.schedule({f"k{n}": 5 for n in range(40)})
    assert rig.cancel("j3") is Change.CANCELLED
    rig.now = 10
    rig.acknowledge(*rig.claim(100).jobs)

    assert rig.frames() == []
    assert rig.state() == {}


def test_steps_are_bounded_in_bytes(rig: Rig) -> None:
    rig.schedule({f"j{n}": 5 for n in range(20)}, size=1_000)
    delist = frame_calls.delist(rig.keys, run="me", step=1, batch=20, byte_budget=3_000)

    assert 1 <= rig.run(delist).seen <= 4

    empty_again = Listing(rig.client, rig.keys, _run="me", steps=1)
    empty_again.empty()
    names = [
        FrameName(int(score), rig.frame_format, _id_of(frame))
        for frame, score in rig.client.zrange(
            rig.keys.queue.timeout_set, 0, -1, withscores=True
        )
    ]
    enlist = frame_calls.enlist(rig.keys, names, run="me", step=1, byte_budget=3_000)
    assert 1 <= rig.run(enlist).seen <= 4


def test_unit_that_only_looks_like_ours_is_listed_with_a_mark_that_fits(
    rig: Rig,
) -> None:
    # One in 65,536 of Java's: its number was never given out.
    rig.java_frames.discard(rig.java_offer("x", 5, random_id=b"\xd9U\x7fabcde"))
    rig.client.delete(rig.keys.queue.delay_queue)

    fill(rig)

    assert listed(rig) == ["x"]
    assert rig.frames() == rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
    rig.check()


def test_frames_of_an_emptied_list_do_not_count_as_delivered(rig: Rig) -> None:
    for n in range(3):
        rig.java_offer(f"x{n}", 0)
    empty(rig)
    rig.java_offer("y", 0)

    survey = take_survey(rig.client, rig.keys)

    assert (survey.is_emptied, survey.delivered) == (True, [])
    fill(rig)
    rig.delisted.clear()
    survey = take_survey(rig.client, rig.keys)
    assert (survey.is_emptied, survey.delivered) == (False, [])
    assert survey.listed.total() == 4
    rig.check()


@pytest.mark.parametrize("is_on", [True, False])
def test_workers_producers_and_java_go_on_meanwhile(rig: Rig, is_on: bool) -> None:
    rng = random.Random(7)
    names = [f"j{n}" for n in range(300)]
    for name in names:
        rig.schedule({name: rng.randrange(200)}, insertion_list=not is_on)
    ended, failures = threading.Event(), []
    client = redis.Redis(connection_pool=rig.client.connection_pool)
    other = Rig(client, rig.keys.queue.name, frame_format=rig.frame_format)
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
                    rig.java_frames.add(other.java_offer(f"x{n}", rng.randrange(50)))
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
            listing = Listing(rig.client, rig.keys, _sizer=step_sizer(5))
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
