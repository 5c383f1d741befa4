"""A key that goes out of use: what waits is signed anew where it is, whatever happens meanwhile."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import conf, schedule
from django_delayq.conf import get_keyring
from django_delayq.delivery import operations
from django_delayq.delivery.operations import State
from django_delayq.jobs import resigning
from django_delayq.jobs.resigning import Resigning, Tally
from django_delayq.wire.call import run
from tests.jobs import samples
from tests.jobs.hand import Hand
from tests.signed import opened

OLD, NEW = "the old secret of all", "the new secret of all"
LATER = 3_600


@pytest.fixture
def keys_are(settings: Any) -> Any:
    def use(*secrets: str) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "KEYS": list(secrets)}

    return use


def resign(hand: Hand, queue: str) -> Tally:
    found = Resigning(hand.client, conf.get_settings().queue(queue), get_keyring())
    for _ in found.steps():
        pass
    return found.tally


def on(queue: str) -> Any:
    return samples.add.using(queue=queue)


def key_of(payload: bytes) -> str:
    at = payload.index(b'"mac":"') + len(b'"mac":"1')
    return payload[at : at + 4].decode()


@pytest.mark.parametrize("listed", [True, False])
def test_what_waits_is_signed_with_the_new_key_and_stays_where_it_is(
    queue: str, hand: Hand, keys_are: Any, settings: Any, listed: bool
) -> None:
    options = {**settings.DELAYQ["QUEUES"].get(queue, {}), "INSERTION_LIST": listed}
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {**settings.DELAYQ["QUEUES"], queue: options},
    }
    keys_are(OLD)
    jobs = [schedule(on(queue), LATER + n, n, 1) for n in range(30)]
    before = [job.start_time_ms for job in jobs]
    waiting = hand.client.lrange(hand.keys.queue.delay_queue, 0, -1)

    keys_are(NEW, OLD)
    tally = resign(hand, queue)

    assert tally == Tally(signed=30)
    keys_are(NEW)
    for job, due in zip(jobs, before, strict=True):
        assert job.refresh() is State.SCHEDULED
        assert (job.start_time_ms, job.task) == (due, samples.add.name)
    after = hand.client.lrange(hand.keys.queue.delay_queue, 0, -1)
    assert [frame[:9] for frame in after] == [frame[:9] for frame in waiting]
    assert set(after) <= set(hand.client.zrange(hand.keys.queue.timeout_set, 0, -1))
    for job in jobs:
        assert job.run_now()
    ran = hand.take_all()
    assert sorted(call.args[0] for call in ran) == list(range(30))


def test_what_was_claimed_or_given_up_is_signed_too(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are(OLD)
    for n in range(3):
        schedule(on(queue), 0, n, 1)
    leased = [hand.take() for _ in range(3)]
    hand.retry(leased[0])
    hand.bury(leased[1])

    keys_are(NEW, OLD)
    assert resign(hand, queue) == Tally(signed=3)

    keys_are(NEW)
    again = hand.take()
    assert opened(again.payload, queue).args == [0, 1]
    payloads = hand.client.hvals(hand.keys.payloads)
    assert {key_of(payload) for payload in payloads} == {get_keyring().ids[0]}


def test_what_nobody_here_has_signed_stays_as_it_is(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are("the secret of another one")
    schedule(on(queue), LATER, 1, 1)
    frames = hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    foreign = get_keyring().ids[0]
    keys_are(NEW, OLD)

    tally = resign(hand, queue)

    assert tally == Tally(unknown={f"key {foreign}": 1})
    assert hand.client.zrange(hand.keys.queue.timeout_set, 0, -1) == frames


def test_run_that_is_repeated_finds_nothing_to_do(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resigning, "STEP", 4)
    keys_are(OLD)
    for n in range(10):
        schedule(on(queue), LATER, n, 1)
    keys_are(NEW, OLD)
    run_once = Resigning(hand.client, conf.get_settings().queue(queue), get_keyring())
    steps = run_once.steps()
    next(steps)
    steps.close()
    assert 0 < run_once.tally.signed < 10

    tally = resign(hand, queue)

    assert run_once.tally.signed + tally.signed == 10
    assert resign(hand, queue) == Tally(current=10)


def test_what_changed_meanwhile_is_left_alone(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are(OLD)
    schedule(on(queue), LATER, 1, 1)
    (frame,) = hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    hand.client.delete(hand.keys.queue.timeout_set, hand.keys.queue.delay_queue)

    items = [(0, frame, b"x")]
    call = operations.resign(hand.keys, operations.Where.FRAMES, items)

    assert run(hand.client, call) == 0
    assert not hand.client.exists(hand.keys.queue.timeout_set)


def test_command_says_what_it_did_and_whether_the_old_key_may_go(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are(OLD)
    job = schedule(on(queue), LATER, 1, 1)
    keys_are(NEW, OLD)
    out = StringIO()

    call_command("delayq_resign", queue, stdout=out)

    assert f"queue {queue}: 1 signed anew" in out.getvalue()
    assert f"Nothing here needs a key but {get_keyring().ids[0]!r}." in out.getvalue()
    assert job.refresh() is State.SCHEDULED
    keys_are("a secret of neither")
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq_resign", queue, stdout=out)
    assert "which is not here" in out.getvalue()
    with pytest.raises(CommandError, match="is not configured"):
        call_command("delayq_resign", "nowhere", stdout=StringIO())
