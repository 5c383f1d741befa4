"""The wheel without a clock, and the timer with its thread."""

import gc
import math
import os
import random
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.clock import monotonic_ms
from django_delayq.exceptions import InvalidDelay
from django_delayq.worker.wheel import HashedWheelTimer, Timeout, Wheel
from tests.polling import wait_until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def timer() -> Iterator[HashedWheelTimer]:
    timer = HashedWheelTimer(tick_ms=5, ticks_per_wheel=16, name="test-wheel")
    yield timer
    timer.stop()


@pytest.fixture
def still_timer(fake_clock) -> Iterator[HashedWheelTimer]:
    """A timer whose clock stands still until told, for what must not depend on time."""
    timer = HashedWheelTimer(tick_ms=10, ticks_per_wheel=8, clock=fake_clock)
    yield timer
    timer.stop()


def timeout_in(wheel: Wheel, deadline_ms: float) -> Timeout:
    timeout = Timeout(HashedWheelTimer(), lambda: None)
    wheel.add(timeout, deadline_ms)
    return timeout


def forget() -> None:
    """Do nothing, as a callback."""


@pytest.mark.parametrize(
    ("deadline_ms", "tick"),
    [
        (0, 1),
        (0.001, 1),
        (9.999, 1),
        (10, 1),
        (10.001, 2),
        (79, 8),
        (80, 8),
        (81, 9),
        (1000, 100),
    ],
)
def test_timeout_is_due_at_the_first_tick_not_before_its_deadline(deadline_ms, tick):
    wheel = Wheel(10, 8)
    timeout = timeout_in(wheel, deadline_ms)

    before = [due for n in range(tick) for due in wheel.advance(n * 10)]
    before += wheel.advance(tick * 10 - 0.001)

    assert before == []
    assert wheel.advance(tick * 10) == [timeout]
    assert len(wheel) == 0


def test_deadline_that_has_passed_is_due_at_the_next_tick():
    wheel = Wheel(10, 8)
    wheel.advance(55)

    timeout = timeout_in(wheel, 20)

    assert wheel.advance(59) == []
    assert wheel.advance(60) == [timeout]


def test_timeouts_of_one_slot_keep_their_rounds_apart():
    wheel = Wheel(10, 8)
    third, first, second = (timeout_in(wheel, ms) for ms in (190, 30, 110))

    assert [wheel.advance(ms) for ms in (30, 110, 190)] == [[first], [second], [third]]


@pytest.mark.parametrize("now_ms", [50, 80, 81, 1_000, 1e9])
def test_late_advance_returns_all_that_is_due_in_order_of_ticks(now_ms):
    wheel = Wheel(10, 8)
    late, early, same = (timeout_in(wheel, ms) for ms in (50, 11, 15))
    timeout_in(wheel, 1e9 + 1)

    assert wheel.advance(now_ms) == [early, same, late]
    assert len(wheel) == 1


def test_time_that_goes_back_changes_nothing():
    wheel = Wheel(10, 8)
    wheel.advance(100)
    timeout = timeout_in(wheel, 105)

    assert wheel.advance(20) == []
    assert wheel.tick == 10
    assert wheel.advance(110) == [timeout]


def test_next_tick_skips_what_is_empty():
    wheel = Wheel(10, 8)
    assert wheel.next_tick() is None

    timeout_in(wheel, 1000)
    assert wheel.next_tick() == 8  # later than a turn: looked at again then
    far = timeout_in(wheel, 60)
    assert wheel.next_tick() == 6
    near = timeout_in(wheel, 20)
    assert wheel.next_tick() == 2

    wheel.remove(near)
    assert wheel.next_tick() == 6
    wheel.remove(far)
    wheel.advance(960)
    assert wheel.next_tick() == 100


def test_removing_is_final_and_may_be_repeated():
    wheel = Wheel(10, 8)
    gone, stays = timeout_in(wheel, 20), timeout_in(wheel, 20)

    wheel.remove(gone)
    wheel.remove(gone)

    assert len(wheel) == 1
    assert wheel.advance(20) == [stays]
    wheel.remove(stays)
    assert len(wheel) == 0


def test_wheel_keeps_nothing_of_what_was_removed():
    wheel = Wheel(10, 8)

    for ms in range(0, 10_000, 7):
        wheel.remove(timeout_in(wheel, ms))

    assert not any(wheel._slots)


def test_clear_returns_everything_in_order_of_ticks():
    wheel = Wheel(10, 8)
    late, early, same = (timeout_in(wheel, ms) for ms in (1000, 20, 15))

    assert wheel.clear() == [early, same, late]
    assert len(wheel) == 0
    assert wheel.clear() == []


@given(
    tick_ms=st.sampled_from([0.1, 1, 3.3, 10, 100]) | st.floats(0.01, 1000),
    ticks_per_wheel=st.integers(1, 20),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "advance"]), st.floats(0, 5000)),
        max_size=60,
    ),
)
def test_wheel_agrees_with_a_list_that_is_searched(tick_ms, ticks_per_wheel, steps):
    timer = HashedWheelTimer()
    wheel = Wheel(tick_ms, ticks_per_wheel)
    model: dict[Timeout, float] = {}
    now_ms = 0.0
    for step, ms in steps:
        if step == "add":
            timeout = Timeout(timer, forget)
            wheel.add(timeout, now_ms + ms)
            model[timeout] = now_ms + ms
        elif step == "remove" and model:
            timeout = list(model)[int(ms) % len(model)]
            wheel.remove(timeout)
            del model[timeout]
        elif step == "advance":
            now_ms += ms
            due = wheel.advance(now_ms)
            assert all(model.pop(timeout) <= now_ms for timeout in due), "early"
        assert len(wheel) == len(model)
        assert all(deadline > now_ms - 2 * tick_ms for deadline in model.values()), (
            "forgotten"
        )
        if model:
            assert wheel.tick < wheel.next_tick() <= wheel.tick + ticks_per_wheel


def test_callback_runs_once_on_the_thread_of_the_timer(timer):
    ran_on = []

    timeout = timer.new_timeout(lambda: ran_on.append(threading.current_thread()), 1)

    wait_until(lambda: ran_on, description="it was called")
    assert ran_on[0].name == "test-wheel"
    assert ran_on[0].daemon
    assert timeout.is_expired
    assert not timeout.is_cancelled
    last = timer.new_timeout(forget, 50)
    wait_until(lambda: last.is_expired, description="some more ticks have passed")
    assert len(ran_on) == 1


def test_cancelled_timeout_is_not_called(still_timer, fake_clock):
    calls = []
    cancelled = still_timer.new_timeout(lambda: calls.append("cancelled"), 30)
    still_timer.new_timeout(lambda: calls.append("kept"), 30)

    assert cancelled.cancel()

    assert not cancelled.cancel()
    assert cancelled.is_cancelled
    assert not cancelled.is_expired
    fake_clock.advance(100)
    wait_until(lambda: calls, description="the tick was passed")
    assert calls == ["kept"]


def test_cancel_is_too_late_once_the_call_has_begun(timer):
    begun, go_on = threading.Event(), threading.Event()

    def callback() -> None:
        begun.set()
        go_on.wait(10)

    timeout = timer.new_timeout(callback, 1)
    assert begun.wait(10)

    assert not timeout.cancel()
    assert timeout.is_expired
    go_on.set()


def test_callback_can_cancel_another_of_the_same_tick(still_timer, fake_clock):
    calls = []
    blocker = threading.Event()
    still_timer.new_timeout(lambda: blocker.wait(10), 5)
    first = still_timer.new_timeout(lambda: calls.append(second.cancel()), 5)
    second = still_timer.new_timeout(lambda: calls.append("second"), 5)
    done = still_timer.new_timeout(forget, 5)

    fake_clock.advance(10)
    blocker.set()

    # The sleep is real, and ends at the time that its clock told when it began.
    wait_until(lambda: done.is_expired, description="all were called")
    assert calls == [True]
    assert first.is_expired
    assert second.is_cancelled


def test_cancelled_and_called_timeouts_keep_nothing_alive(timer):
    class Big:
        def __call__(self) -> None:
            pass

    called, cancelled = Big(), Big()
    references = [weakref.ref(called), weakref.ref(cancelled)]
    one, other = timer.new_timeout(called, 1), timer.new_timeout(cancelled, 60_000)

    other.cancel()
    wait_until(lambda: one.is_expired, description="it was called")
    del called, cancelled

    wait_until(
        lambda: [reference() for reference in references] == [None, None],
        description="both are forgotten, though their timeouts are still here",
    )
    assert timer.pending_timeouts == 0
    assert "cancelled" in repr(other)


def test_cancelled_timeout_is_freed_at_once(timer):
    timeout = timer.new_timeout(forget, 60_000)
    before = sys.getrefcount(timeout)

    timeout.cancel()

    assert sys.getrefcount(timeout) == before - 1
    assert timer.pending_timeouts == 0


def test_exception_in_a_callback_is_logged_and_stops_nothing(timer, caplog):
    def callback_with_a_bug() -> None:
        raise LookupError("not here")

    timer.new_timeout(callback_with_a_bug, 1)
    timer.new_timeout(sys.exit, 1)
    last = timer.new_timeout(forget, 20)

    wait_until(lambda: last.is_expired, description="the timer goes on")
    assert "callback_with_a_bug" in caplog.text
    assert "LookupError: not here" in caplog.text
    assert "SystemExit" in caplog.text
    assert {record.name for record in caplog.records} == {"django_delayq.worker.wheel"}


@pytest.mark.parametrize("delay_ms", [-1, -0.001, -math.inf, math.inf, math.nan])
def test_delay_that_is_no_time_is_refused(timer, delay_ms):
    with pytest.raises(InvalidDelay, match="delay_ms"):
        timer.new_timeout(forget, delay_ms)

    assert timer.pending_timeouts == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"tick_ms": 0},
        {"tick_ms": math.nan},
        {"tick_ms": math.inf},
        {"ticks_per_wheel": 0},
    ],
)
def test_wheel_that_cannot_turn_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HashedWheelTimer(**wrong)


def test_no_thread_starts_before_the_first_timeout(timer):
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    assert "test-wheel" not in names()

    timer.new_timeout(forget, 1)
    timer.start()

    assert names().count("test-wheel") == 1


def test_thread_sleeps_without_end_while_nothing_waits(timer):
    timer.start()
    wait_until(lambda: timer._sleeps_until == math.inf, description="it sleeps")

    timeout = timer.new_timeout(forget, 1)

    wait_until(lambda: timeout.is_expired, description="it was woken")
    wait_until(lambda: timer._sleeps_until == math.inf, description="it sleeps again")


def test_thread_sleeps_past_empty_ticks(fake_clock):
    timer = HashedWheelTimer(tick_ms=1000, ticks_per_wheel=512, clock=fake_clock)

    timer.new_timeout(forget, 300_000)
    wait_until(lambda: timer._sleeps_until == 300, description="it sleeps to that tick")
    timer.new_timeout(forget, 400_000)
    timer.new_timeout(forget, 200_000)

    wait_until(
        lambda: timer._sleeps_until == 200, description="it sleeps to the earlier tick"
    )
    timer.stop()


def test_earlier_timeout_wakes_the_thread(timer):
    timer.new_timeout(forget, 3_600_000)
    wait_until(lambda: timer._sleeps_until > 0, description="it sleeps")

    early = timer.new_timeout(forget, 10)

    wait_until(lambda: early.is_expired, description="it was called")


def test_remaining_rounds_count_whole_turns(still_timer, fake_clock):
    delays_ms = (0, 80, 81, 160, 161, 1000)
    timeouts = [still_timer.new_timeout(forget, ms) for ms in delays_ms]

    assert [timeout.remaining_rounds for timeout in timeouts] == [0, 0, 1, 1, 2, 12]
    fake_clock.advance(85)
    assert [timeout.remaining_rounds for timeout in timeouts] == [0, 0, 0, 0, 1, 11]
    assert (still_timer.tick_ms, still_timer.ticks_per_wheel) == (10, 8)


def test_stop_returns_what_was_not_called(timer):
    calls = []
    gone = timer.new_timeout(forget, 1000)
    late = timer.new_timeout(lambda: calls.append("late"), 2000)
    early = timer.new_timeout(lambda: calls.append("early"), 1000)
    gone.cancel()
    thread = timer._thread

    unprocessed = timer.stop()

    assert unprocessed == [early, late]
    assert not thread.is_alive()
    assert not any(one.is_cancelled or one.is_expired for one in unprocessed)
    assert timer.stop() == []
    assert early.cancel()
    assert calls == []


def test_stop_returns_what_was_due_but_not_reached(still_timer, fake_clock):
    begun, go_on = threading.Event(), threading.Event()

    def callback() -> None:
        begun.set()
        go_on.wait(10)

    running = still_timer.new_timeout(callback, 5)
    reached_never = [still_timer.new_timeout(forget, 5) for _ in range(3)]
    fake_clock.advance(10)
    assert begun.wait(10)
    unprocessed: list[Timeout] = []
    stopper = threading.Thread(target=lambda: unprocessed.extend(still_timer.stop()))
    stopper.start()
    wait_until(lambda: still_timer._is_stopped, description="stop() was called")
    go_on.set()
    stopper.join()

    assert unprocessed == reached_never
    assert running.is_expired
    assert not any(one.is_expired for one in reached_never)


def test_stopped_timer_takes_no_timeouts(timer):
    timer.new_timeout(forget, 1000)
    timer.stop()

    with pytest.raises(RuntimeError, match="stopped"):
        timer.new_timeout(forget, 1)
    with pytest.raises(RuntimeError, match="stopped"):
        timer.start()


def test_timer_that_never_ran_can_be_stopped(timer):
    assert timer.stop() == []

    with pytest.raises(RuntimeError, match="stopped"):
        timer.new_timeout(forget, 1)


def test_callback_may_add_and_stop(timer):
    thread = []

    def callback() -> None:
        timer.new_timeout(timer.stop, 1)
        thread.append(threading.current_thread())

    timer.new_timeout(callback, 1)

    wait_until(
        lambda: thread and not thread[0].is_alive(), description="the thread has ended"
    )


def test_lock_may_be_taken_again_by_its_holder(timer):
    """A finaliser runs wherever memory is asked for: also where the timer holds its lock."""
    timeout = timer.new_timeout(forget, 60_000)

    with timer._wakeup:
        assert timeout.cancel()
        timer.new_timeout(forget, 60_000)


def test_timer_that_nobody_used_is_freed():
    reference = weakref.ref(HashedWheelTimer())

    gc.collect()

    assert reference() is None


def test_many_threads_add_and_cancel_at_once(timer):
    calls, cancelled, errors = [], [], []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            mine = []
            for n in range(500):
                mine.append(
                    timer.new_timeout(lambda: calls.append(1), rng.uniform(0, 50))
                )
                if n % 3 == 0:
                    cancelled.append(mine.pop(rng.randrange(len(mine))).cancel())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    wait_until(
        lambda: timer.pending_timeouts == 0, description="nothing waits any more"
    )
    wait_until(
        lambda: len(calls) + sum(cancelled) >= 2000,
        description="each was called or cancelled",
    )
    assert errors == []
    assert len(calls) + sum(cancelled) == 2000


def test_in_real_time_nothing_is_early_and_lateness_does_not_add_up(timer):
    rng = random.Random(1)

    def lateness_ms() -> list[float]:
        """Return how late each of many was that were added at once, by their deadlines."""
        late_ms: list[tuple[float, float]] = []

        def add(delay_ms: float) -> None:
            deadline_ms = monotonic_ms() + delay_ms
            timer.new_timeout(
                lambda: late_ms.append((deadline_ms, monotonic_ms() - deadline_ms)),
                delay_ms,
            )

        begin_s = time.monotonic()
        for _ in range(600):
            add(rng.uniform(0, 1500))
        wait_until(lambda: len(late_ms) == 600, description="all were called")
        assert time.monotonic() - begin_s >= 1.4
        return [late for _, late in sorted(late_ms)]

    def is_in_time() -> bool:
        lateness = lateness_ms()
        assert min(lateness) >= 0
        # The best of many tells how the timer counts, the others how busy the machine is.
        return statistics.quantiles(lateness[-200:], n=20)[0] < 15

    # With nothing to wait for it would begin anew.
    timer.new_timeout(forget, 600_000)
    # A machine that stands still is late with all of them, and not each time.
    assert any(is_in_time() for _ in range(5))


FORKING = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
from django_delayq.worker.wheel import HashedWheelTimer

timer = HashedWheelTimer(tick_ms=5, name="wheel")
calls = []
soon = timer.new_timeout(lambda: None, 1)
while not soon.is_expired:
    time.sleep(0.001)

inherited = timer.new_timeout(lambda: calls.append("inherited"), 3_000)
{before_fork}
if os.fork() == 0:
    assert timer.pending_timeouts == 0, timer
    done = threading.Event()
    timer.new_timeout(lambda: calls.append("child"), 3_100)
    timer.new_timeout(done.set, 3_200)
    assert done.wait(30), "no thread in the child"
    assert calls == ["child"], calls
    assert inherited.cancel()
    os._exit(0)
_, status = os.wait()
assert status == 0, status
deadline = time.monotonic() + 30
while calls != ["inherited"]:
    assert time.monotonic() < deadline, calls
    time.sleep(0.001)
print("fine")
"""


@pytest.mark.parametrize(
    "before_fork",
    [
        "",
        # Another thread holds the lock at the moment of the fork, and does not live in the child.
        """
held = threading.Event()
def hold():
    with timer._wakeup:
        held.set()
        time.sleep(0.1)
threading.Thread(target=hold, daemon=True).start()
held.wait()
""",
    ],
    ids=["idle", "locked"],
)
def test_forked_child_starts_with_an_empty_wheel_of_its_own(before_fork):
    assert run(FORKING.replace("{before_fork}", before_fork)) == "fine"


def test_callback_that_forks_leaves_no_second_timer_behind():
    told = run("""
        import os, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from django_delayq.worker.wheel import HashedWheelTimer

        timer = HashedWheelTimer(tick_ms=5)
        pids, called = [], []
        timer.new_timeout(lambda: pids.append(os.fork()), 5)
        timer.new_timeout(lambda: called.append(os.write(1, b"called ")), 5)
        while not (pids and called):
            time.sleep(0.001)
        # The child's copy of the timer's thread ends by itself, and the child with it.
        pid, status = os.waitpid(pids[0], 0)
        assert status == 0, status
        os.write(1, b"fine")
    """)

    assert told == "called fine"


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
