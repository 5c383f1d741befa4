"""What a claim ends by itself is in its reply, and in that of its repeat; other claims pay nothing for it."""

import pytest

from django_delayq.core.claim import Claimed, EndedHere, Mode
from django_delayq.core.states import State
from tests.core.rig import T0, Rig, names_of, token


def told(claimed: Claimed) -> list[EndedHere]:
    return list(claimed.ends or ())


def test_a_claim_that_ends_nothing_says_nothing(rig: Rig) -> None:
    rig.schedule({"a": 0})

    assert rig.claim().ends is None
    assert rig.claim().ends is None


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_that_its_full_limit_drops_is_told_again_by_a_repeat(
    rig: Rig, others: int
) -> None:
    rig.schedule({"a": 0}, limit="periodic\0", drops=True)
    rig.claim()
    rig.schedule({"b": 0}, limit="periodic\0", drops=True)
    rig.schedule({f"other{n}": 0 for n in range(others)})
    request = rig.request()

    first = rig.claim(request=request)
    again = rig.claim(request=request)

    (end,) = told(first)
    assert (end.token, end.state) == (token("b"), State.CANCELLED)
    assert "periodic" in end.why
    assert told(again) == told(first)
    assert names_of(again) == names_of(first) == [f"other{n}" for n in range(others)]
    assert rig.claim().ends is None


def test_a_job_that_a_note_cancels_is_told_with_its_task(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.claim(0, mode=Mode.SHARED)
    rig.client.hset(rig.keys.notes, token("a"), "cancel")

    claimed = rig.claim(mode=Mode.SHARED)

    assert [(end.token, end.state) for end in told(claimed)] == [
        (token("a"), State.CANCELLED)
    ]
    assert names_of(claimed) == ["b"]


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED])
def test_a_frame_that_nobody_can_read_is_told_as_quarantined(
    rig: Rig, mode: Mode
) -> None:
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad frame": T0})

    (end,) = told(rig.claim(mode=mode))

    assert (end.state, end.task) == (State.QUARANTINED, "")
    assert rig.client.zrange(rig.keys.quarantine, 0, -1) == [end.token.encode()]
