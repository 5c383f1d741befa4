"""The timer of time limits, with its thread."""

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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from django_delayq.worker import time_limit as timer_module
from django_delayq.worker.time_limit import Timer
from tests.polling import wait_until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer("test-timer")
    yield timer
    timer.stop()


def forget() -> None:
    """Do nothing, as a function that waits."""


def test_function_runs_once_on_the_thread_of_the_timer(timer):
    ran_on = []
    last = threading.Event()

    timer.call_later(0.001, lambda: ran_on.append(threading.current_thread()))
    timer.call_later(0.1, last.set)

    assert last.wait(10)
    assert len(ran_on) == 1
    assert ran_on[0].name == "test-timer"
    assert ran_on[0].daemon


def test_cancelled_function_is_not_called(timer):
    calls = []
    last = threading.Event()
    cancelled = partial(calls.append, "cancelled")
    timer.call_later(0.1, cancelled)
    timer.call_later(0.1, partial(calls.append, "kept"))
    timer.call_later(0.2, last.set)

    timer.cancel(cancelled)
    timer.cancel(cancelled)

    assert last.wait(10)
    assert calls == ["kept"]


def test_function_can_cancel_another_that_is_due(timer):
    calls = []
    begun, go_on, last = threading.Event(), threading.Event(), threading.Event()
    second = partial(calls.append, "second")
    timer.call_later(0, begun.set)
    timer.call_later(0, partial(go_on.wait, 10))
    assert begun.wait(10)
    timer.call_later(0, partial(timer.cancel, second))
    timer.call_later(0, second)
    timer.call_later(0, last.set)

    go_on.set()

    assert last.wait(10)
    assert calls == []


def test_functions_run_in_the_order_in_which_they_are_due(timer):
    order = list(range(50))
    random.Random(1).shuffle(order)
    calls: list[int] = []

    with timer._lock:
        for n in order:
            timer.call_later(n / 1000, partial(calls.append, n))
        expected = sorted(timer._due, key=timer._due.__getitem__)

    wait_until(lambda: len(calls) == 50, description="all were called")
    assert calls == [function.args[0] for function in expected]


def test_cancelled_and_called_functions_are_freed(timer):
    class Big:
        def __call__(self) -> None:
            pass

    called, cancelled = Big(), Big()
    references = [weakref.ref(called), weakref.ref(cancelled)]
    timer.call_later(0, called)
    timer.call_later(60, cancelled)

    timer.cancel(cancelled)
    del called, cancelled

    wait_until(
        lambda: [reference() for reference in references] == [None, None],
        description="both are forgotten, though the timer lives",
    )


def test_exception_in_a_function_is_logged_and_stops_nothing(timer, caplog):
    def function_with_a_bug() -> None:
        raise LookupError("not here")

    last = threading.Event()

    timer.call_later(0, function_with_a_bug)
    timer.call_later(0, sys.exit)
    timer.call_later(0.02, last.set)

    assert last.wait(10), "the timer goes on"
    assert "function_with_a_bug" in caplog.text
    assert "LookupError: not here" in caplog.text
    assert "SystemExit" in caplog.text
    assert {record.name for record in caplog.records} == {"django_delayq.worker.timer"}


def test_no_thread_starts_before_the_first_function(timer):
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    assert "test-timer" not in names()

    timer.call_later(0.001, forget)
    timer.call_later(0.001, sum)

    assert names().count("test-timer") == 1


def test_thread_sleeps_until_the_first_function_is_due(timer):
    timer.start()
    wait_until(lambda: timer._looks_s == math.inf, description="it sleeps for ever")
    before_s = time.monotonic()

    timer.call_later(300, forget)
    timer.call_later(400, sum)
    wait_until(lambda: timer._looks_s < math.inf, description="it was woken")
    assert before_s + 300 <= timer._looks_s <= time.monotonic() + 300
    done = threading.Event()
    timer.call_later(0.01, done.set)

    assert done.wait(10), "an earlier one wakes it"
    wait_until(lambda: timer._looks_s > before_s + 299, description="it sleeps again")


def test_stop_ends_the_thread_and_calls_nothing_more(timer):
    calls = []
    begun, go_on = threading.Event(), threading.Event()
    timer.call_later(0, begun.set)
    timer.call_later(0, partial(go_on.wait, 10))
    assert begun.wait(10)
    timer.call_later(0, partial(calls.append, "late"))
    thread = timer._thread
    stopper = threading.Thread(target=timer.stop)
    stopper.start()
    wait_until(lambda: timer._is_stopped, description="stop() was called")

    go_on.set()
    stopper.join()
    timer.call_later(0, partial(calls.append, "after"))
    timer.stop()

    assert not thread.is_alive()
    assert calls == []


def test_timer_that_never_ran_can_be_stopped(timer):
    timer.stop()


def test_timer_that_nobody_used_is_freed():
    reference = weakref.ref(Timer("test-timer"))

    gc.collect()

    assert reference() is None


def test_stopped_timer_forgets_what_waited(timer):
    function = partial(forget)
    reference = weakref.ref(function)
    timer.call_later(60, function)

    timer.stop()
    del function

    assert reference() is None


def test_stopped_timer_takes_no_more():
    timer = Timer("test-timer")
    timer.start()
    timer.stop()
    function = partial(forget)
    reference = weakref.ref(function)

    timer.call_later(60, function)
    del function

    assert reference() is None


def test_finaliser_may_cancel_what_is_due_while_the_timer_looks(timer, monkeypatch):
    calls, done = [], threading.Event()
    cancelled, later = partial(calls.append, "cancelled"), partial(calls.append, "late")
    read_s = time.monotonic

    def monotonic() -> float:
        now_s = read_s()
        # As a finaliser may, wherever the thread of the timer is.
        if threading.current_thread() is timer._thread:
            timer.cancel(cancelled)
        return now_s

    monkeypatch.setattr(timer_module, "time", SimpleNamespace(monotonic=monotonic))
    timer.call_later(0, cancelled)
    wait_until(lambda: not timer._due, description="nothing is left")
    with timer._lock:
        timer.call_later(0, cancelled)
        timer.call_later(300, later)
    timer.call_later(0.01, done.set)

    assert done.wait(10), "the thread goes on"
    assert calls == [], "nor is one called early"


@pytest.fixture
def failed_timer(timer: Timer, monkeypatch) -> Timer:
    """A timer whose thread could not start when it was first used."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            timer.call_later(0, forget)
    return timer


def test_thread_that_could_not_start_is_started_by_the_next_call(failed_timer):
    done = threading.Event()

    failed_timer.call_later(0, done.set)

    assert done.wait(10)


def test_timer_whose_thread_could_not_start_can_be_stopped(failed_timer):
    failed_timer.stop()


def test_function_may_add_another(timer):
    done = threading.Event()

    timer.call_later(0, partial(timer.call_later, 0, done.set))

    assert done.wait(10)


def test_lock_may_be_taken_again_by_its_holder(timer):
    """A finaliser runs wherever memory is asked for: also where the timer holds its lock."""
    timer.call_later(60, forget)

    with timer._lock:
        timer.cancel(forget)
        timer.call_later(60, forget)


def test_many_threads_add_and_cancel_at_once(timer):
    calls, cancelled, errors = [], [], []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            mine = []
            for n in range(500):
                mine.append(partial(calls.append, (seed, n)))
                timer.call_later(rng.uniform(0, 0.05), mine[-1])
                if n % 3 == 0:
                    gone = mine.pop(rng.randrange(len(mine)))
                    timer.cancel(gone)
                    cancelled.append(gone.args[0])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    wait_until(
        lambda: len({*calls, *cancelled}) == 2000,
        description="each was called or cancelled",
    )
    assert errors == []
    assert len(calls) == len(set(calls))


def test_in_real_time_nothing_is_early_and_lateness_does_not_add_up(timer):
    rng = random.Random(1)

    def lateness_s() -> list[float]:
        """Return how late each of many was that were added at once, by their deadlines."""
        late_s: list[tuple[float, float]] = []

        def add(delay_s: float) -> None:
            due_s = time.monotonic() + delay_s
            timer.call_later(
                delay_s, lambda: late_s.append((due_s, time.monotonic() - due_s))
            )

        begin_s = time.monotonic()
        for _ in range(600):
            add(rng.uniform(0, 1.5))
        wait_until(lambda: len(late_s) == 600, description="all were called")
        assert time.monotonic() - begin_s >= 1.4
        return [late for _, late in sorted(late_s)]

    def is_in_time() -> bool:
        lateness = lateness_s()
        assert min(lateness) >= 0
        # The best of many tells how the timer counts, the others how busy the machine is.
        return statistics.quantiles(lateness[-200:], n=20)[0] < 0.015

    # A machine that stands still is late with all of them, and not each time.
    assert any(is_in_time() for _ in range(5))


FORKING = """
import os, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
from django_delayq.worker.time_limit import Timer

timer = Timer("timer")
calls = []
soon = threading.Event()
timer.call_later(0.001, soon.set)
assert soon.wait(30)
timer.call_later(3.0, lambda: calls.append("inherited"))
{before_fork}
if os.fork() == 0:
    done = threading.Event()
    timer.call_later(3.1, lambda: calls.append("child"))
    timer.call_later(3.2, done.set)
    assert done.wait(30), "no thread in the child"
    assert calls == ["child"], calls
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
    with timer._lock:
        held.set()
        time.sleep(0.1)
threading.Thread(target=hold, daemon=True).start()
held.wait()
""",
    ],
    ids=["idle", "locked"],
)
def test_forked_child_starts_with_an_empty_timer_of_its_own(before_fork):
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c"),
            textwrap.dedent(FORKING.replace("{before_fork}", before_fork)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "fine"
