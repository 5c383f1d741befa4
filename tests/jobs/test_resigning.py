"""A key that goes out of use: what waits is signed again where it is, whatever happens meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_delayq import conf, schedule, schedule_many
from django_delayq.conf import get_keyring
from django_delayq.core import claim as claim_calls
from django_delayq.core import hold as hold_calls
from django_delayq.core import queue_reads
from django_delayq.core import resign_calls as writing
from django_delayq.core import store as store_calls
from django_delayq.core.hold import Held, Hold
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.resign_calls import Where
from django_delayq.core.states import State
from django_delayq.management import progress_line
from django_delayq.tools import resign as resigning
from django_delayq.tools.resign import Resigning, Tally
from django_delayq.transport.run import run
from django_delayq.wire.signatures import FORMAT, Keyring
from tests.jobs import samples
from tests.jobs.hand import Hand
from tests.polling import wait_until
from tests.signed import opened, sealed, signed

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
    for n in range(4):
        schedule(on(queue), 0, n, 1)
    leased = [hand.take() for _ in range(4)]
    hand.retry(leased[0])
    hand.bury(leased[1])
    hand.bury(leased[2], State.QUARANTINED)

    keys_are(NEW, OLD)
    assert resign(hand, queue) == Tally(signed=4)

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


def test_keys_that_somebody_has_made_up_are_told_as_one(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are(NEW)
    forged = [
        sealed(b"x", queue, f"{n:022}", signature=f"2{n:04}{'0' * 32}")
        for n in range(50)
    ]
    hand.client.rpush(hand.keys.queue.destination, *forged)
    output = StringIO()

    with pytest.raises(SystemExit):
        call_command("delayq_resign", queue, stdout=output)

    told = output.getvalue()
    assert "30 that need the key …," in told
    assert "key 0049" in told
    assert "key 0000" not in told


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
    while not run_once.tally.signed:
        next(steps)
    steps.close()
    assert run_once.tally.signed < 10

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
    call = writing.resign(hand.keys, Where.FRAMES, items)

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

    assert f"queue {queue}: 1 signed again" in out.getvalue()
    assert (
        f"Nothing here needs any key except {get_keyring().ids[0]!r}." in out.getvalue()
    )
    assert job.refresh() is State.SCHEDULED
    keys_are("a secret of neither")
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq_resign", queue, stdout=out)
    assert "which this project does not have" in out.getvalue()
    with pytest.raises(CommandError, match="is not configured"):
        call_command("delayq_resign", "nowhere", stdout=StringIO())


def test_signing_goes_on_while_a_deep_destination_queue_is_drained(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resigning, "STEP", 8)
    keys_are(OLD)
    schedule_many([on(queue).prepare(0, n, 1) for n in range(100)])
    wait_until(
        lambda: run(hand.client, queue_reads.counts(hand.keys)).due == 100,
        description="all are due",
    )
    transferred = claim_calls.transfer(hand.keys, batch=100)
    assert run(hand.client, transferred).moved == 100
    keys_are(NEW, OLD)

    taken = []
    found = Resigning(hand.client, conf.get_settings().queue(queue), get_keyring())
    for n, _ in enumerate(found.steps()):
        # Somebody takes from the head between any two steps, and Java adds at the tail.
        if n < 20:
            taken.append(hand.client.lpop(hand.keys.queue.destination))
            hand.client.rpush(hand.keys.queue.destination, b"%d of Java's" % n)

    left = hand.client.lrange(hand.keys.queue.destination, 0, -1)
    ours = [payload for payload in left if payload.startswith(b"{")]
    assert (len(taken), len(left), len(ours)) == (20, 100, 80)
    assert {key_of(payload) for payload in ours} == {get_keyring().ids[0]}
    assert found.tally.late == 0


def test_signing_follows_what_is_scheduled_and_moved_meanwhile(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resigning, "STEP", 4)
    keys_are(OLD)
    jobs = [schedule(on(queue), LATER + n, n, 1) for n in range(30)]
    keys_are(NEW, OLD)

    found = Resigning(hand.client, conf.get_settings().queue(queue), get_keyring())
    steps = found.steps()
    for _ in range(6):
        next(steps)
    # To where the first look has been.
    assert jobs[-1].reschedule(5)
    for _ in steps:
        pass

    assert found.tally == Tally(signed=30)
    frames = hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    assert {key_of(frame) for frame in frames} == {get_keyring().ids[0]}


@pytest.mark.parametrize("listed", [True, False])
def test_jobs_that_are_due_at_one_moment_are_read_once_a_look(
    queue: str,
    hand: Hand,
    keys_are: Any,
    settings: Any,
    listed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resigning, "STEP", 5)
    options = {**settings.DELAYQ["QUEUES"], queue: {"INSERTION_LIST": listed}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": options}
    keys_are(OLD)
    noon = datetime.now(UTC) + timedelta(days=1)
    schedule_many(on(queue).prepare(noon, n, 1) for n in range(100))
    keys_are(NEW, OLD)

    found = Resigning(hand.client, conf.get_settings().queue(queue), get_keyring())
    steps = sum(1 for _ in found.steps())

    assert found.tally == Tally(signed=100)
    # Two looks, of each set that there is: twenty pages and an empty one; and what is nowhere else.
    assert steps <= 2 * (21 + (21 if listed else 1)) + 5


def test_somebody_who_goes_on_signing_with_the_old_key_is_told(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_are(OLD)
    payload = signed(samples.add.name, queue, 1, 1)
    keys_are(NEW, OLD)
    look = Resigning._look

    def look_and_come(self: Resigning) -> Any:
        hand.client.rpush(hand.keys.queue.destination, payload)
        return look(self)

    monkeypatch.setattr(Resigning, "_look", look_and_come)
    out = StringIO()

    with pytest.raises(SystemExit) as end:
        call_command("delayq_resign", queue, stdout=out)

    assert end.value.code == 1
    assert f"queue {queue}: 4 signed again" in out.getvalue()
    assert "processes still sign jobs with an older key, 1 during" in out.getvalue()
    assert "Nothing here needs" not in out.getvalue()


@pytest.mark.parametrize("keep", ["all", "the head", "the tail", "none"])
def test_frame_stays_in_the_list_wherever_it_is_by_now(
    queue: str, hand: Hand, keys_are: Any, settings: Any, keep: str
) -> None:
    listed = {**settings.DELAYQ["QUEUES"], queue: {"INSERTION_LIST": True}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": listed}
    keys_are(OLD)
    for n in range(60):
        schedule(on(queue), LATER + n, n, 1)
    keys_are(NEW, OLD)
    delay_queue = hand.keys.queue.delay_queue
    frames = hand.client.lrange(delay_queue, 0, -1)
    cut = {"all": (0, -1), "the head": (0, 9), "the tail": (-10, -1), "none": (1, 0)}
    hand.client.ltrim(delay_queue, *cut[keep])
    kept = hand.client.lrange(delay_queue, 0, -1)

    items = [("", frame, frame.replace(b"1", b"2")[17:]) for frame in frames]
    call = writing.resign(hand.keys, Where.FRAMES, items)

    assert run(hand.client, call) == 60
    after = hand.client.lrange(delay_queue, 0, -1)
    assert [frame[:9] for frame in after] == [frame[:9] for frame in kept]
    waiting = hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    assert set(after) <= set(waiting)
    assert len(waiting) == 60


def test_what_is_held_for_the_old_key_runs_with_the_new_one_alone(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are(OLD)
    for n in range(3):
        schedule(on(queue), 0, n, 1)
    reason = Reason(Kind.KEY, get_keyring().ids[0])
    leased = [hand.take() for _ in range(3)]
    keys_are(NEW)
    held = [Held(job.token, job.fence, Hold(reason, "")) for job in leased]
    hand.run(hold_calls.hold(hand.keys, held[:2]))
    assert hand.run(hold_calls.held_names(hand.keys)).counts == {reason: 2}
    keys_are(NEW, OLD)

    assert resign(hand, queue) == Tally(signed=3, released=2)
    # The third was in a worker's hands meanwhile.
    hand.run(hold_calls.hold(hand.keys, held[2:]))

    keys_are(NEW)
    assert sorted(call.args[0] for call in hand.take_all()) == [0, 1, 2]
    assert hand.client.zcard(hand.keys.held) == 0


@pytest.mark.parametrize(
    "codec", [None, "StringCodec", "JsonJacksonCodec", "LongCodec"]
)
def test_what_waits_in_an_earlier_codec_is_signed_in_the_present_one(
    queue: str, hand: Hand, keys_are: Any, settings: Any, codec: str | None
) -> None:
    def use(**options: Any) -> None:
        queues = settings.DELAYQ["QUEUES"]
        settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**queues, queue: options}}

    keys_are(OLD)
    use(REDISSON="3.52.0", CODEC="CborJacksonCodec")
    job = schedule(on(queue), LATER, 1, 2)
    pieces = schedule(on(queue), LATER, "x" * 5_000, "")
    keys_are(NEW, OLD)
    use(**{} if codec is None else {"REDISSON": "3.52.0", "CODEC": codec})

    tally = resign(hand, queue)

    name = codec or "json"
    assert tally == Tally(signed=1, unknown={f"codec other than {name}": 1})
    keys_are(NEW)
    assert job.refresh() is State.SCHEDULED
    assert (job.task, job.args) == (samples.add.name, [1, 2])
    assert pieces.refresh() is State.SCHEDULED
    keys = [
        key_of(frame)
        for frame in hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    ]
    assert sorted(keys) == sorted([get_keyring().ids[0], Keyring([OLD]).ids[0]])
    keys_are(NEW, OLD)
    told = StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq_resign", queue, stdout=told)
    assert f"1 that need the codec other than {name}" in told.getvalue()
    assert "You can remove" not in told.getvalue(), "the old key is needed yet"


def test_made_up_key_of_what_lies_in_quarantine_keeps_no_key_in_use(
    queue: str, hand: Hand, keys_are: Any
) -> None:
    keys_are(NEW)
    forged = sealed(b"{}", queue, store_calls.new_token(), signature="1none" + "a" * 32)
    hand.client.rpush(hand.keys.queue.destination, forged)
    hand.bury(hand.take(), State.QUARANTINED)

    assert resign(hand, queue) == Tally(foreign=1)


def test_steps_of_huge_payloads_are_small(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resigning, "STEP_BYTES", 45_000)
    keys_are(OLD)
    for _ in range(12):
        schedule(on(queue), 0, "x" * 10_000, "")
    jobs = [hand.take() for _ in range(12)]
    destination = hand.keys.queue.destination
    hand.client.rpush(destination, *(job.payload for job in jobs))
    keys_are(NEW, OLD)
    sizes = []
    write = Resigning._write

    def note(self: Resigning, where: Any, items: list[Any]) -> None:
        if where is Where.DESTINATION:
            sizes.append(len(items))
        write(self, where, items)

    monkeypatch.setattr(Resigning, "_write", note)

    assert resign(hand, queue).signed == 24

    assert sizes[0] == 1
    assert max(sizes) == 4


@contextmanager
def broken_off(
    error: BaseException, queue: str, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have ten jobs signed again in steps of four, of which the third fails."""
    monkeypatch.setattr(resigning, "STEP", 4)
    keys_are(OLD)
    for n in range(10):
        schedule(on(queue), LATER, n, 1)
    keys_are(NEW, OLD)
    write, calls = Resigning._write, []

    def break_off(self: Resigning, *args: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise error
        write(self, *args)

    with monkeypatch.context() as broken:
        broken.setattr(Resigning, "_write", break_off)
        yield


def test_interrupted_it_says_how_far_it_came_and_goes_on_when_it_is_run_again(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = StringIO()
    with (
        broken_off(KeyboardInterrupt(), queue, keys_are, monkeypatch),
        pytest.raises(CommandError, match="run the command again to continue"),
    ):
        call_command("delayq_resign", queue, stdout=out)
    assert "Nothing here" not in out.getvalue()
    assert f"queue {queue}: " in out.getvalue()

    call_command("delayq_resign", queue, stdout=out)

    old = repr(get_keyring().ids[1])
    assert (
        f"You can remove {old} when this has run for {queue}-2 as well."
        in out.getvalue()
    )
    call_command("delayq_resign", stdout=out)
    last = out.getvalue().splitlines()[-1]
    assert last.endswith(f"{get_keyring().ids[0]!r}. You can remove {old}.")
    frames = hand.client.zrange(hand.keys.queue.timeout_set, 0, -1)
    assert {key_of(frame) for frame in frames} == {get_keyring().ids[0]}


def test_server_that_goes_away_is_told_and_what_was_done_stands(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = redis.ConnectionError("Connection closed by server.")
    with (
        broken_off(gone, queue, keys_are, monkeypatch),
        pytest.raises(CommandError, match="The steps done so far stand"),
    ):
        call_command("delayq_resign", queue, stdout=StringIO())

    tally = resign(hand, queue)

    assert 0 < tally.signed < 10
    assert tally.signed + tally.current == 10


def test_queue_that_is_named_twice_is_gone_through_once(queue: str) -> None:
    out = StringIO()

    call_command("delayq_resign", queue, queue, stdout=out)

    assert out.getvalue().count(f"queue {queue}: ") == 1


def test_queue_in_a_later_format_is_left_alone(queue: str, hand: Hand) -> None:
    hand.client.hset(hand.keys.control, "format", FORMAT + 1)

    told = f"is in format {FORMAT + 1}, and this version reads format {FORMAT}"
    with pytest.raises(CommandError, match=told):
        call_command("delayq_resign", queue)


def test_what_an_earlier_version_held_for_its_format_is_released(
    queue: str, hand: Hand
) -> None:
    job = schedule(on(queue), 0, 1, 2)
    leased = hand.take()
    reason = Reason(Kind.FORMAT, str(FORMAT))
    held = Held(leased.token, leased.fence, Hold(reason, "no"))
    assert hand.run(hold_calls.hold(hand.keys, [held])) == []

    assert resign(hand, queue).released == 1

    assert job.refresh() is State.DUE


def test_long_work_shows_how_far_it_is(
    queue: str, hand: Hand, keys_are: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_line, "LOG_EVERY_S", 0.0)
    keys_are(OLD)
    for n in range(3):
        schedule(on(queue), LATER, n, 1)
    told = StringIO()

    call_command("delayq_resign", queue, stdout=StringIO(), stderr=told)

    assert f"queue {queue}: 3 of 3" in told.getvalue().splitlines()
