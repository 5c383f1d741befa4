"""A queue in a later format than this version reads: it gets nothing, moves nothing, and says so."""

import pytest

from django_delayq.core import queue_reads, worker_code
from django_delayq.core.rates import numbers_of
from django_delayq.exceptions import NewerFormat
from django_delayq.transport.run import run
from django_delayq.wire.signatures import FORMAT
from tests.core.rig import Rig, names_of

LATER = FORMAT + 1


def raise_format(rig: Rig) -> None:
    rig.client.hset(rig.keys.control, "format", LATER)


def lower_format(rig: Rig) -> None:
    rig.client.hdel(rig.keys.control, "format")


def test_queue_whose_format_nobody_has_raised_is_in_ours(rig):
    rig.schedule({"a": 0})
    rig.claim()

    assert rig.client.hget(rig.keys.control, "format") is None
    assert run(rig.client, queue_reads.read_format(rig.keys)) == FORMAT


@pytest.mark.parametrize("value", [b"none", b"", b"-1", b"1", b"\xff"])
def test_what_is_no_later_format_stops_nothing(rig, value):
    rig.client.hset(rig.keys.control, "format", value)
    rig.schedule({"a": 0, "b": 0})

    assert names_of(rig.claim(1)) == ["a"]
    assert rig.transfer().moved == 1
    assert run(rig.client, queue_reads.read_format(rig.keys)) <= FORMAT


def test_worker_gets_nothing_of_a_later_queue(rig):
    rig.schedule({"a": 0})
    raise_format(rig)
    before = rig.client.hgetall(rig.keys.control)

    claimed = rig.claim()

    found = names_of(claimed), claimed.newer_format, claimed.wait_us
    assert found == ([], LATER, -1)
    assert rig.client.hgetall(rig.keys.control) == before
    lower_format(rig)
    assert names_of(rig.claim()) == ["a"]


def test_nothing_is_transferred_on_a_later_queue(rig):
    rig.schedule({"a": 0})
    raise_format(rig)
    before = rig.state()

    told = f"is in format {LATER}, and this version reads format {FORMAT}: it does"
    with pytest.raises(NewerFormat, match=told):
        rig.transfer()

    assert rig.state() == before
    lower_format(rig)
    assert rig.transfer().moved == 1


def test_limits_of_a_later_queue_stay_as_they_are(rig):
    raise_format(rig)
    before = rig.client.hgetall(rig.keys.control)

    declared = [("mail", numbers_of(concurrency=1))]
    assert not rig.run(
        worker_code.declare(rig.keys, declared, owner=b"process1", loaded_ms=0)
    ).changed

    assert rig.client.hgetall(rig.keys.control) == before


def test_what_was_claimed_before_can_be_ended_once_the_queue_is_later(rig):
    rig.schedule({"a": 0, "b": 0, "c": 0})
    jobs = {job.token[0]: job for job in rig.claim().jobs}
    raise_format(rig)

    assert rig.renew(*jobs.values()) == []
    assert rig.acknowledge(jobs["a"]) == []
    assert rig.retry(jobs["b"]) == []
    assert rig.give_back(jobs["c"]) == []
    assert names_of(rig.claim()) == []
