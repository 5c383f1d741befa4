"""Processes that serve a queue are noted there, so that one notices when a node has forgotten it."""

import pytest

from django_delayq.core import claim as claim_calls
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.sweep import SEEN_MS, CheckedIn
from tests.clock import at
from tests.core.rig import T0, Rig

ONE, OTHER = b"owner--1", b"owner--2"


def check_in(rig: Rig, owner: bytes) -> CheckedIn:
    """Note a process; returns times as ms after `T0`, -1 for never."""
    now_us = round((T0 + rig.now) * 1000)
    found = rig.run(at(now_us, sweep_calls.check_in(rig.keys, owner=owner)))
    return CheckedIn(max(found.before_ms - T0, -1), found.now_ms - T0)


def seen(rig: Rig) -> set[bytes]:
    fields = rig.client.hkeys(rig.keys.control)
    return {name[5:] for name in fields if name.startswith(b"seen:")}


def test_server_says_when_it_noted_a_process_before(rig):
    assert check_in(rig, ONE) == CheckedIn(-1, 0)
    rig.now = 1_000
    assert check_in(rig, OTHER) == CheckedIn(-1, 1_000)
    assert check_in(rig, ONE) == CheckedIn(0, 1_000)

    rig.client.delete(rig.keys.control)

    assert check_in(rig, ONE) == CheckedIn(-1, 1_000)


def test_process_that_leaves_is_forgotten(rig):
    check_in(rig, ONE)

    rig.run(claim_calls.leave(rig.keys, owner=ONE))

    assert seen(rig) == set()


def test_process_that_died_is_forgotten_after_some_minutes(rig):
    check_in(rig, ONE)
    rig.now += SEEN_MS
    check_in(rig, OTHER)
    assert seen(rig) == {ONE, OTHER}
    rig.now += 1

    check_in(rig, OTHER)

    assert seen(rig) == {OTHER}


def test_clock_that_was_set_back_makes_no_process_immortal(rig):
    rig.now += SEEN_MS + 1
    check_in(rig, ONE)
    rig.now = 0

    check_in(rig, OTHER)

    assert seen(rig) == {OTHER}


@pytest.mark.parametrize("value", [b"", b"x", b"\xff 1"])
def test_what_somebody_else_wrote_stops_nothing(rig, value):
    rig.client.hset(rig.keys.control, b"seen:" + ONE, value)

    assert check_in(rig, ONE).before_ms == -1
    assert check_in(rig, ONE).before_ms == 0


def test_thousand_processes_that_died_are_forgotten_at_once(rig):
    for n in range(1_000):
        check_in(rig, b"%08d" % n)
    rig.now += SEEN_MS + 1

    check_in(rig, ONE)

    assert seen(rig) == {ONE}


@pytest.mark.parametrize("owner", [b"\0" * 8, b"\xff\n\r \x00:%s", bytes(range(8))])
def test_owner_is_any_eight_bytes(rig, owner):
    check_in(rig, owner)

    assert check_in(rig, owner).before_ms == 0
