"""Signed jobs on queues that a live Redisson shares: what both sides take out and put in again runs once, and nothing else.

One Java process a version has every codec, of one version for each format of frames: what is signed is one string,
whichever version carries it, and test_matrix.py has the codecs of all versions.
"""

import json
from collections import Counter
from itertools import product
from typing import Any, NamedTuple

import pytest
import redis

from django_delayq import (
    BlockingQueue,
    DelayedQueue,
    delayed_task,
    queue_handler,
    schedule,
)
from django_delayq.conf import get_settings
from django_delayq.core import queue_reads
from django_delayq.core.states import State
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.wire.signatures import LENGTH
from tests.interop.codecs import (
    TEXT,
    codecs_of,
    is_supported,
    java_name,
    python_codec,
    python_name,
)
from tests.interop.peers import Peer, PeerError, PeerOf
from tests.interop.values import describe, normal
from tests.polling import wait_until
from tests.servers import Server
from tests.worker.test_forged import FORGED, envelope_of
from tests.worker.workers import InlineWorker, counts

#: One of each frame format, both with many users.
VERSIONS = ("3.16.6", "4.7.0")
FRAMES = dict(zip(VERSIONS, ("dLc0", "Bc0Lc0"), strict=True))
#: A job is no number.
NUMBERS = ("LongCodec", "IntegerCodec", "DoubleCodec")
CELLS = [
    (version, codec)
    for version in VERSIONS
    for codec in codecs_of(version)
    if is_supported(version, codec) and codec not in NUMBERS
]
each_codec = pytest.mark.parametrize(("version", "codec"), CELLS)
#: Longer than any test.
LATER = 3_600
#: What codecs, and what reads JSON, change where they can.
ARGUMENTS = [
    'say "hi" \\ / \\" {"delayq":"x"}',
    "订单 Grüße 😀 \x7f \x00 \u2028",
    [1.0, -0.0, 1e16, 0.1, 1e300, 5e-324],
    [0, -1, 2**31, 2**53 + 1, -(2**63), 2**64, 10**40],
    {"a": {"b": [{"c": None}, {}], "@class": "java.util.HashMap"}, "": [[], [[]]]},
    None,
    True,
    [],
    {},
    "",
]

ran: list[tuple[Any, ...]] = []


@delayed_task
def carry(label: str, *args: Any, **kwargs: Any) -> None:
    """Note with which arguments it ran."""
    ran.append((label, args, kwargs))


class Shared:
    """Queues of one codec that a Java process shares."""

    def __init__(self, peer: Peer, codec: str, url: str, name: str) -> None:
        self.peer, self.codec = peer, codec
        self._url, self._name = url, name

    def queues(self, settings: Any, *labels: str) -> list[str]:
        """Configure queues; return their names."""
        options: dict[str, Any] = {"REDISSON": self.peer.version}
        if self.codec != "default":
            options["CODEC"] = python_codec(self.peer.version, self.codec)
        names = [f"{self._name}-{label}" for label in labels]
        settings.DELAYQ = {
            "CONNECTION": self._url,
            "QUEUES": {"default": {}, **dict.fromkeys(names, options)},
            # What nobody handles goes to quarantine at once.
            "WORKER": {"HOLD_UNKNOWN": 0},
        }
        return names

    def java(self, op: str, queue: str, **arguments: Any) -> Any:
        return self.peer.call(op, queue=queue, codec=java_name(self.codec), **arguments)


@pytest.fixture
def shared(
    version: str,
    codec: str,
    peer_of: PeerOf,
    interop_server: Server,
    name: str,
) -> Shared:
    ran.clear()
    return Shared(peer_of(version), codec, interop_server.url, name)


def work_off(*queues: str) -> None:
    """Run a worker until nothing is due."""
    worker = InlineWorker(queues, is_burst=True, threads=1).start()
    try:
        worker.join()
    finally:
        worker.stop(grace_s=0)


def quarantined(queue: str) -> list[Any]:
    keys = get_settings().queue(queue).keys
    page = queue_reads.page(keys, State.QUARANTINED, count=200)
    return run(own_clients.of_thread(), page).rows


# Taken out and put in again


class Step(NamedTuple):
    """Somebody takes a job out and puts it in again."""

    #: The delayed queue, where it waits; else what takes it from the destination queue.
    source: str
    #: The delayed queue or the destination queue.
    target: str
    is_java: bool


def steps(sources: tuple[str, ...], *, is_java: bool) -> list[Step]:
    return [
        Step(source, target, is_java)
        for source, target in product(sources, ("delayed", "destination"))
    ]


HERE = steps(("delayed", "poll"), is_java=False)
JAVA = steps(("delayed", "poll", "take"), is_java=True)
BACK = steps(("poll",), is_java=True)
#: Here and then in Java, and the other way round. What lies in the destination queue waits no more.
WAYS = [
    (first, second)
    for first, second in [*product(HERE, JAVA), *product(BACK, HERE)]
    if first.target == "delayed" or second.source != "delayed"
]


def few_of(ways: list[tuple[Step, Step]]) -> list[tuple[Step, Step]]:
    """Return so many that each step occurs as first and as second wherever it does in all of them."""
    left = {place for way in ways for place in enumerate(way)}
    found = []
    for least in (2, 1):
        for way in ways:
            if len(left & {*enumerate(way)}) >= least:
                found.append(way)
                left -= {*enumerate(way)}
    return found


#: Each side writes with a codec what it has read with it, whatever was done before.
FEW = few_of(WAYS)


@each_codec
def test_a_job_that_both_sides_take_out_and_put_in_again_runs_once_as_it_was_scheduled(
    shared: Shared, settings: Any
) -> None:
    ways = WAYS if shared.codec == "default" else FEW
    queues = shared.queues(settings, *(str(n) for n in range(len(ways))))
    for queue, way in zip(queues, ways, strict=True):
        # Where it is to be taken from the destination queue, it has to be due.
        waits = [LATER if step.source == "delayed" else 0 for step in way]
        schedule(carry.using(queue=queue), waits[0], queue, *ARGUMENTS, of=ARGUMENTS)
        for step, wait in zip(way, [*waits[1:], 0], strict=True):
            take_out_and_put_in(shared, queue, step, wait)

    work_off(*queues)

    expected = repr((tuple(ARGUMENTS), {"of": ARGUMENTS}))
    for queue, way in zip(queues, ways, strict=True):
        # 1.0 equals 1, and is not written as that.
        found = [repr((args, kwargs)) for label, args, kwargs in ran if label == queue]
        left = counts(queue)
        assert found == [expected], (way, left)
        assert left.counters["succeeded"] == 1, (way, left)
        assert (left.waiting, left.destination, left.quarantined) == (0, 0, 0), way


def take_out_and_put_in(shared: Shared, queue: str, step: Step, wait_s: int) -> None:
    """Do a step; where the job is to be taken when it is due, whoever takes it transfers it, too."""
    if step.is_java:
        shared.java("hold", queue)
        value = shared.java(
            "poll_and_offer",
            queue,
            **{"from": step.source},
            to=step.target,
            delay_ms=wait_s * 1_000,
            timeout_ms=30_000,
        )
        shared.java("destroy", queue)
        assert value != ["null"]
        return
    with DelayedQueue(queue) as delayed, BlockingQueue(queue) as blocking:
        len(delayed)  # from now on it transfers
        value = delayed.poll() if step.source == "delayed" else blocking.poll(30)
        assert value is not None
        if step.target == "delayed":
            delayed.offer(value, wait_s)
        else:
            blocking.offer(value)


@each_codec
def test_a_job_that_java_moves_runs_in_its_own_queue_and_is_data_in_another(
    shared: Shared, settings: Any
) -> None:
    own, origin, other = shared.queues(settings, "own", "origin", "other")
    for queue, target in ((own, own), (origin, other)):
        schedule(carry.using(queue=queue), LATER, queue)
        moved = shared.java("poll_last_and_offer_first_to", queue, to=target)
        assert moved != ["null"]
        shared.java("destroy", queue)

    work_off(own, origin, other)

    assert ran == [(own, (), {})]
    [row] = quarantined(other)
    assert b"It looks like a job, but its signature" in row.error


@pytest.mark.parametrize("codec", ["StringCodec"])
@pytest.mark.parametrize(("version", "frame"), FRAMES.items())
def test_a_shard_is_a_queue_to_java(
    shared: Shared,
    settings: Any,
    interop_server: Server,
    interop_client: redis.Redis,
    name: str,
    frame: str,
) -> None:
    settings.DELAYQ = {
        "CONNECTION": interop_server.url,
        "QUEUES": {"default": {}, name: {"SHARDS": 2, "FRAME": frame}},
        "WORKER": {"HOLD_UNKNOWN": 0},
    }
    shards = [f"{name}:0", f"{name}:1"]
    jobs = [schedule(carry.using(queue=shard), 0.3, shard) for shard in shards]

    for shard, job in zip(shards, jobs, strict=True):
        shared.java("hold", shard)
        taken = shared.java("poll", shard, timeout_ms=30_000)
        assert f'"{job.token}"' in taken[1]
        assert shared.java("poll", shard, timeout_ms=1) == ["null"]
        shared.java("offer", shard, items=[[describe("Java's own"), 0]])
        wait_until(
            lambda name=shard: interop_client.llen(name) == 1,
            description="Java has transferred what it offered",
        )
        shared.java("destroy", shard)
    work_off(*shards)

    assert ran == []
    assert [len(quarantined(shard)) for shard in shards] == [1, 1]


# Forged


#: Why each is no job, as the quarantine says it; nothing where it has not even the form of one.
REASONS = {
    "unsigned": "",
    "signed_by_nobody": "is signed with the key 'AAAA'",
    "with_another_call": "does not fit",
    "with_another_token": "does not fit",
    "with_a_wrong_mac": "does not fit",
    "with_a_cut_mac": f"its signature has {LENGTH - 1} characters",
    "of_another_queue": "does not fit",
    "of_another_key": "is signed with the key 'none'",
    "of_another_format": "is written in format '9'",
}


def values_of(codec: str, forged: dict[str, str]) -> list[Any]:
    """What Java may offer that looks like a job: a map, and the text that a user typed, as far as the codec has them."""
    text = json.dumps(forged, separators=(",", ":"), ensure_ascii=False)
    if codec == "ByteArrayCodec":
        return [text.encode()]
    return [text] if codec in TEXT else [forged, text]


def offer_by_java(shared: Shared, queue: str, value: object) -> int:
    """Have Java offer a value both ways; return how often that was."""
    described = describe(value)
    shared.java("offer", queue, items=[[described, 0]])
    shared.java("put", queue, value=described)
    return 2


@each_codec
def test_what_java_forges_is_data_and_harms_no_job(
    shared: Shared, settings: Any
) -> None:
    handled, plain = shared.queues(settings, "handled", "plain")
    given: list[Any] = []
    queue_handler(handled, name=f"{handled}.handler")(lambda value: given.append(value))
    offered: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    victims = []
    codec_name = python_name(shared.peer.version, shared.codec)
    for queue in (handled, plain):
        victim = schedule(carry.using(queue=queue), LATER, queue, "of the victim")
        victims.append(victim)
        for forge in FORGED:
            for value in values_of(shared.codec, forge(envelope_of(victim), queue)):
                count = offer_by_java(shared, queue, value)
                if queue == handled:
                    offered[told(value)] += count
                else:
                    # Jackson without types writes no text for a job, so it is not looked into.
                    is_text = codec_name.startswith("Typed") and type(value) is str
                    reasons["" if is_text else REASONS[forge.__name__]] += count
        shared.java("destroy", queue)

    work_off(handled, plain)

    assert Counter(map(told, given)) == offered
    assert quarantined(handled) == []
    rows = quarantined(plain)
    assert len(rows) == reasons.total()
    for reason, count in reasons.items():
        if reason:
            assert sum(reason in row.error.decode() for row in rows) == count, reason
    assert not ran
    for victim in victims:
        assert victim.refresh() is State.SCHEDULED
        assert victim.run_now()
    work_off(handled, plain)
    assert sorted(label for label, *_ in ran) == sorted([handled, plain])
    assert len(given) == offered.total()


def told(value: object) -> str:
    return json.dumps(normal(describe(value)))


@each_codec
def test_what_java_copies_of_a_job_runs_no_second_time(
    shared: Shared, settings: Any
) -> None:
    [queue] = shared.queues(settings, "copied")
    victim = schedule(carry.using(queue=queue), LATER, queue)
    read = shared.java("peek", queue)

    def repeat() -> None:
        shared.java("offer", queue, items=[[read, 0]])
        shared.java("put", queue, value=read)

    repeat()
    work_off(queue)

    assert not ran
    assert counts(queue).counters["doubles"] == 2
    assert victim.refresh() is State.SCHEDULED
    assert victim.run_now()
    work_off(queue)
    assert len(ran) == 1

    repeat()
    shared.java("destroy", queue)
    work_off(queue)
    assert len(ran) == 1
    assert counts(queue).counters["doubles"] == 4
    assert quarantined(queue) == []


# Written by another codec


@each_codec
def test_a_job_that_java_writes_with_another_codec_runs_or_is_kept(
    shared: Shared, settings: Any
) -> None:
    others = [codec for version, codec in CELLS if version == shared.peer.version]
    queues = dict(zip(others, shared.queues(settings, *others), strict=True))
    for other, queue in list(queues.items()):
        schedule(carry.using(queue=queue), LATER, queue)
        if not is_rewritten(shared, queue, other):
            del queues[other]

    work_off(*queues.values())

    codec = python_name(shared.peer.version, shared.codec)
    runs = Counter(label for label, *_ in ran)
    assert runs[queues[shared.codec]] == 1
    for other, queue in queues.items():
        left = counts(queue)
        assert (left.waiting, left.destination, left.held) == (0, 0, 0), other
        assert runs[queue] + left.quarantined == 1, other
        if left.quarantined:
            [row] = quarantined(queue)
            error = row.error.decode()
            told = codec, "not one of our jobs", "not a job"
            assert any(each in error for each in told), error
            assert row.payload


def is_rewritten(shared: Shared, queue: str, other: str) -> bool:
    """Have Java take a job out and write it with another codec; False: that codec cannot write what Java has read."""
    codec = java_name(other)
    read = shared.java("peek", queue)
    try:
        shared.peer.call("encode", codec=codec, value=read)
    except PeerError:
        return False
    ways = {"from": "delayed", "to": "destination", "into": codec}
    assert shared.java("poll_and_offer", queue, **ways) == read
    shared.java("destroy", queue)
    return True
