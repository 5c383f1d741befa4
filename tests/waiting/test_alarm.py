import threading
import time

import pytest

from django_delayq.waiting.alarm import (
    AWAKE_MS,
    CAP_MS,
    MAX_LEAD_MS,
    MIN_LEAD_MS,
    Alarm,
    Lead,
)
from tests.polling import FakeClock


@pytest.fixture
def alarm(fake_clock: FakeClock) -> Alarm[str]:
    alarm: Alarm[str] = Alarm(clock=fake_clock)
    alarm.lead.ms = 2.0
    return alarm


def test_rings_early_by_the_lead_and_again_at_the_deadline(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    alarm.ring_in("q", 100_000)

    fake_clock.advance(97.9)
    assert alarm.wait(0) == set()
    fake_clock.advance(0.2)
    assert alarm.wait(0) == {"q"}
    alarm.ring_in("q", 1_000)
    fake_clock.advance(0.9)
    assert alarm.wait(0) == set()
    fake_clock.advance(0.1)
    assert alarm.wait(0) == {"q"}


def test_rings_once_where_the_deadline_is_nearer_than_the_lead(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    alarm.ring_in("q", 1_500)

    fake_clock.advance(1.4)
    assert alarm.wait(0) == set()
    fake_clock.advance(0.2)
    assert alarm.wait(0) == {"q"}


def test_rings_once_where_the_server_was_asked_a_moment_before_the_deadline(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    alarm.ring_in("q", int(AWAKE_MS * 1000))

    fake_clock.advance(AWAKE_MS - 0.1)
    assert alarm.wait(0) == set()
    fake_clock.advance(0.2)
    assert alarm.wait(0) == {"q"}
    assert alarm.early == set()


def test_says_which_keys_rang_only_because_their_deadline_is_near(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    for key in ("early", "woken"):
        alarm.ring_in(key, 100_000)
    alarm.ring_in("due", 98_000)
    fake_clock.advance(97)
    alarm.wait(0)
    alarm.ring_in("due", 1_000)

    fake_clock.advance(1.1)
    alarm.wake("woken")

    assert alarm.wait(0) == {"early", "woken", "due"}
    assert alarm.early == {"early"}


def test_rings_when_the_server_said_and_not_later_by_the_way_of_its_reply(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    told_ms = fake_clock()
    fake_clock.advance(0.4)

    alarm.ring_in("q", 1_000, told_ms)

    fake_clock.advance(0.5)
    assert alarm.wait(0) == set()
    fake_clock.advance(0.2)
    assert alarm.wait(0) == {"q"}


@pytest.mark.parametrize("wait_us", [-1, CAP_MS * 1000 + 1, 10**15])
def test_rings_at_the_cap_when_the_next_event_is_further_away_or_none_is_known(
    alarm: Alarm[str], fake_clock: FakeClock, wait_us: int
) -> None:
    alarm.ring_in("q", wait_us)

    fake_clock.advance(CAP_MS - 1)
    assert alarm.wait(0) == set()
    fake_clock.advance(1)
    assert alarm.wait(0) == {"q"}


def test_rings_again_after_the_cap_when_nobody_said_what_comes_next(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    alarm.ring_in("q", 0)
    assert alarm.wait(0) == {"q"}

    assert alarm.wait(0) == set()
    fake_clock.advance(CAP_MS)
    assert alarm.wait(0) == {"q"}


def test_each_queue_has_its_own_deadline(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    alarm.ring_in("a", 50_000)
    alarm.ring_in("b", 20_000)
    alarm.ring_in("c", 20_000)
    alarm.forget("c")

    fake_clock.advance(20)
    assert alarm.wait(0) == {"b"}
    fake_clock.advance(30)
    assert alarm.wait(0) == {"a"}


def test_a_later_answer_replaces_the_deadline(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    alarm.ring_in("q", 20_000)
    alarm.ring_in("q", 200_000)

    fake_clock.advance(100)
    assert alarm.wait(0) == set()


def test_wake_before_the_wait_is_kept_for_it(alarm: Alarm[str]) -> None:
    alarm.wake("q")
    alarm.wake("r")
    alarm.wake("q")

    assert alarm.wait() == {"q", "r"}
    assert alarm.wait(0) == set()


def test_wake_ends_a_wait_of_another_thread() -> None:
    alarm: Alarm[str] = Alarm(cap_ms=60_000)
    alarm.ring_in("q", -1)
    waker = threading.Timer(0.02, alarm.wake, ["q"])
    waker.start()

    begun = time.monotonic()
    assert alarm.wait() == {"q"}

    assert time.monotonic() - begun < 30
    waker.join()


def test_wait_ends_with_its_own_timeout() -> None:
    alarm: Alarm[str] = Alarm(cap_ms=60_000)
    alarm.ring_in("q", -1)

    assert alarm.wait(timeout_ms=5) == set()


def test_real_time_never_rings_before_the_second_deadline() -> None:
    alarm: Alarm[str] = Alarm()
    alarm.ring_in("q", 10_000)
    assert alarm.wait() == {"q"}

    # Nearer than the lead, which is what rings early.
    begun = time.monotonic()
    alarm.ring_in("q", 1_000)
    assert alarm.wait() == {"q"}

    assert time.monotonic() - begun >= 0.000_999


def test_lead_follows_what_answers_take_up_at_once_and_down_slowly() -> None:
    lead = Lead()
    for _ in range(200):
        lead.learn(0.05)
    low = lead.ms
    assert MIN_LEAD_MS <= low < 0.5

    for _ in range(4):
        lead.learn(1.7)
    assert lead.ms > 1.6

    lead.learn(0.05)
    assert lead.ms > 1.5


def test_lead_of_a_loaded_machine_stays_below_its_limit() -> None:
    lead = Lead()

    for _ in range(50):
        lead.learn(40)

    assert lead.ms == MAX_LEAD_MS


def test_alarm_learns_from_the_time_between_early_ring_and_answer(
    alarm: Alarm[str], fake_clock: FakeClock
) -> None:
    before = alarm.lead.ms
    alarm.ring_in("q", 100_000)
    fake_clock.advance(98.5)
    alarm.wait(0)
    fake_clock.advance(1.6)

    alarm.ring_in("q", 0)

    # It should have rung at 98 and was answered at 100.1.
    assert alarm.lead.ms == pytest.approx(before + 0.5 * (2.1 + 0.2 - before))
