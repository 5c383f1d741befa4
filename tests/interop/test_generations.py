"""Redissons from both sides of 3.21.1 on one queue: they jam it, and are freed without a restart of theirs.

Who reads which frames, and why a jam delivers again, is told in docs/howto/upgrade-redisson.md. Several queues are
jammed side by side, as what takes long is to see Java's retries, each 5 s.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import override_settings

from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.tools.survey import JAVA_RETRY_MS
from tests.interop.peers import Peer
from tests.polling import wait_until
from tests.servers import Server

OLD, NEW = "3.16.6", "3.27.2"
GENERATION = {OLD: "Redisson up to 3.21.0", NEW: "Redisson from 3.21.1 on"}
TEXT = "StringCodec"
COUNT = 20
#: What comes sooner was not due to a retry.
AT_ONCE_MS = 3_000
GARBAGE = (b"no frame", b"a frame of nobody, with numbers that no Redisson reads")

Say = Callable[[str], None]


def items_of(version: str, count: int = COUNT) -> list[list[Any]]:
    """Elements of one side: three close together, then three of the other side."""
    first_ms = 1_000 if version == OLD else 1_060
    return [
        [["String", f"{version} {n}"], first_ms + 120 * (n // 3) + 5 * (n % 3)]
        for n in range(count)
    ]


@dataclass
class Shared:
    """A queue that Redissons hold, and what arrived at the consumer in one of them."""

    name: str
    consumer: Peer
    client: redis.Redis
    url: str
    #: Values that were offered.
    offered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.keys = DeliveryKeys.of(self.name)
        self.consumer.call("consume", queue=self.name, codec=TEXT, threads=1, take=True)

    def offer(self, peer: Peer, items: list[list[Any]]) -> None:
        self.offered |= {value for (_, value), _ in items}
        peer.call("offer", queue=self.name, codec=TEXT, items=items)

    def arrived(self) -> list[tuple[str, float]]:
        """What came, and at which epoch ms."""
        told = self.consumer.call("consumed", queue=self.name)
        return [(value, us / 1000) for value, us in told]

    def counts(self) -> Counter[str]:
        return Counter(value for value, _ in self.arrived())

    def duplicates(self) -> int:
        counts = self.counts()
        return counts.total() - len(counts)

    def is_repeated(self) -> bool:
        return self.duplicates() > 0

    def is_complete(self) -> bool:
        return set(self.counts()) == self.offered

    def content(self) -> tuple[Any, Any]:
        queue = self.keys.queue
        return (
            self.client.zrange(queue.timeout_set, 0, -1, withscores=True),
            self.client.lrange(queue.delay_queue, 0, -1),
        )

    def command(self, *arguments: str) -> tuple[int, str]:
        """Call ``manage.py delayq_frames``; return its exit status and what it printed."""
        output, status = StringIO(), 0
        with override_settings(DELAYQ={"CONNECTION": self.url}):
            try:
                call_command(
                    "delayq_frames",
                    self.name,
                    *arguments,
                    stdout=output,
                    stderr=StringIO(),
                )
            except SystemExit as end:
                status = int(str(end.code))
        return status, output.getvalue()


@dataclass
class Jams:
    """Four services, and the queues that they have jammed.

    Of each pair one stays, the one that consumes. The other is gone after the jam: the upgrade, or its rollback, is
    done.
    """

    #: By the version that stays.
    staying: dict[str, Peer]
    #: By the version that stays, and by what is to become of the queue.
    queues: dict[tuple[str, str], Shared]
    #: What the command said of each while all services lived.
    said: dict[str, str]
    #: One that the two that stay have jammed with each other.
    between: Shared
    #: By the version that holds it: one with what is no frame.
    spoilt: dict[str, Shared]


@pytest.fixture(scope="module")
def say(request: pytest.FixtureRequest) -> Say:
    """Print figures past pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}")

    return say


@pytest.fixture(scope="module")
def jams(interop_server: Server, interop_client: redis.Redis) -> Iterator[Jams]:
    run = f"g-{uuid.uuid4().hex[:8]}"
    url = interop_server.url
    peers = [Peer(version, url) for version in (OLD, NEW, OLD, NEW)]
    try:
        for peer in peers:
            peer.wait_ready()
        yield _jam(run, url, interop_client, *peers)
    finally:
        for peer in peers:
            peer.kill()
        if found := [*interop_client.scan_iter(f"*{run}*", 10_000)]:
            interop_client.delete(*found)


def _jam(
    run: str,
    url: str,
    client: redis.Redis,
    old: Peer,
    new: Peer,
    leaving_old: Peer,
    leaving_new: Peer,
) -> Jams:
    def share(what: str, *peers: Peer) -> Shared:
        queue = Shared(f"{run}-{what}", peers[0], client, url)
        for peer in peers:
            peer.call("hold", queue=queue.name, codec=TEXT)
        for peer in peers:
            queue.offer(peer, items_of(peer.version))
        return queue

    mixed = {
        (staying.version, what): share(f"{staying.version}-{what}", staying, leaving)
        for staying, leaving in ((new, leaving_old), (old, leaving_new))
        for what in ("kept", "dropped")
    }
    between = share("between", new, old)
    spoilt = {
        peer.version: share(f"spoilt-{peer.version}", peer) for peer in (old, new)
    }
    for queue in spoilt.values():
        third_ms = client.zrange(queue.keys.queue.timeout_set, 2, 2, withscores=True)
        client.zadd(
            queue.keys.queue.timeout_set, {each: third_ms[0][1] for each in GARBAGE}
        )
    for queue in (*mixed.values(), between):
        wait_until(
            queue.is_repeated,
            description=f"{queue.name} was delivered again at a retry",
        )
    said = {queue.name: queue.command()[1] for queue in mixed.values()}
    leaving_old.kill()
    leaving_new.kill()
    return Jams({OLD: old, NEW: new}, mixed, said, between, spoilt)


def delivered_in(said: str) -> int:
    """Return how many frames the command calls delivered already."""
    found = re.search(r"ALREADY DELIVERED: ([\d,]+) frame", said)
    assert found, said
    return int(found[1].replace(",", ""))


def stay_clear_of_retries(queue: Shared) -> None:
    """Return when no retry of Java will come while a test counts."""

    def since_retry_ms() -> float:
        return (time.time() * 1000 - queue.arrived()[-1][1]) % JAVA_RETRY_MS

    # The next one is then further away than AT_ONCE_MS.
    wait_until(
        lambda: 500 < since_retry_ms() < 1_500, description="the last retry is over"
    )


@pytest.mark.parametrize("staying", [NEW, OLD], ids="to {}".format)
def test_jam_is_told_and_rewriting_it_frees_the_service_that_stayed(
    staying: str, jams: Jams, say: Say
) -> None:
    queue = jams.queues[staying, "kept"]
    said = jams.said[queue.name]
    delivered = delivered_in(said)
    stay_clear_of_retries(queue)
    jammed, repeated = set(queue.counts()), queue.duplicates()
    assert len(jammed) < len(queue.offered), "all came"
    assert repeated >= delivered > 0
    for generation in ("up to 3.21.0", "from 3.21.1 on"):
        assert f"\nSTUCK: Redisson {generation} stops at a " in said
    assert (
        f"  Each of its processes delivers the {delivered} due frame{'s' * (delivered > 1)} ahead of it again every 5 s."
        in said
    )

    before = queue.content()
    status, output = queue.command("--to", staying, "--dry-run")
    assert status == 1
    assert "Nothing was changed." in output
    assert queue.content() == before

    begun_ms = time.time() * 1000
    status, output = queue.command("--to", staying)
    took_ms = time.time() * 1000 - begun_ms
    assert status == 0, output

    wait_until(queue.is_complete, description="everything came")
    wait_until(lambda: queue.content() == ([], []), description="nothing is left")
    came_ms = [at_ms - begun_ms for _, at_ms in queue.arrived() if at_ms > begun_ms]
    again = queue.duplicates() - repeated
    say(
        f"{said}\n{output}"
        f"to {staying}: of {len(queue.offered)} elements {len(jammed)} came before, {repeated} times one of them again;"
        f" the command took {took_ms:.0f} ms; from its start it was {came_ms[0]:.0f} ms to the first, {came_ms[-1]:.0f}"
        f" ms to the last of {len(came_ms)}, {again} of which had come already"
    )
    assert came_ms[-1] < AT_ONCE_MS, "only at the retry"
    # Once more what the jam had delivered, as nobody could know that it was.
    assert again == delivered


@pytest.mark.parametrize("staying", [NEW, OLD], ids="to {}".format)
def test_what_the_jam_delivered_and_was_dropped_does_not_come_once_more(
    staying: str, jams: Jams, say: Say
) -> None:
    queue = jams.queues[staying, "dropped"]
    delivered = delivered_in(jams.said[queue.name])
    stay_clear_of_retries(queue)
    jammed = set(queue.counts())

    begun_ms = time.time() * 1000
    status, output = queue.command("--to", staying, "--drop-delivered")

    assert status == 0, output
    assert f"  {delivered}  removed, already delivered" in output
    wait_until(queue.is_complete, description="everything came")
    wait_until(lambda: queue.content() == ([], []), description="nothing is left")
    late = [value for value, at_ms in queue.arrived() if at_ms > begun_ms]
    say(f"to {staying}, dropping: {len(jammed)} came before, {len(late)} after")
    assert sorted(late) == sorted(queue.offered - jammed)


@pytest.mark.parametrize("holding", [NEW, OLD])
def test_what_is_no_frame_goes_to_quarantine_and_java_goes_on(
    holding: str, jams: Jams, interop_client: redis.Redis, say: Say
) -> None:
    queue = jams.spoilt[holding]
    stay_clear_of_retries(queue)
    jammed, repeated = set(queue.counts()), queue.duplicates()
    assert len(jammed) < len(queue.offered), "all came"
    _, said = queue.command()
    assert re.search(
        rf"STUCK: {GENERATION[holding]} stops at [\d,]+ bytes that are not a frame",
        said,
    )

    begun_ms = time.time() * 1000
    status, output = queue.command("--to", holding)

    assert status == 0, output
    assert "  2  quarantined" in output
    wait_until(queue.is_complete, description="everything came")
    wait_until(lambda: queue.content() == ([], []), description="nothing is left")
    last_ms = queue.arrived()[-1][1] - begun_ms
    say(
        f"garbage under {holding}: of {len(queue.offered)} {len(jammed)} came before, {repeated} times one of them"
        f" again; from the command's start {last_ms:.0f} ms to the last, {queue.duplicates() - repeated} came again"
    )
    assert last_ms < AT_ONCE_MS, "only at the retry"
    tokens = interop_client.zrange(queue.keys.quarantine, 0, -1)
    kept = interop_client.hmget(queue.keys.payloads, tokens)
    assert sorted(kept) == sorted(GARBAGE)


def test_ours_empties_a_queue_that_two_redissons_have_jammed(
    jams: Jams, interop_server: Server, say: Say
) -> None:
    queue = jams.between
    _, said = queue.command()
    delivered = delivered_in(said)
    stay_clear_of_retries(queue)
    jammed, repeated = set(queue.counts()), queue.duplicates()
    assert len(jammed) < len(queue.offered), "all came"

    begun_ms = time.time() * 1000
    with DelayedQueue(queue.name, codec=TEXT, connection=interop_server.url):
        wait_until(queue.is_complete, description="everything came")
        wait_until(lambda: queue.content() == ([], []), description="nothing is left")
    last_ms = queue.arrived()[-1][1] - begun_ms
    again = queue.duplicates() - repeated
    say(
        f"ours joins a jam: of {len(queue.offered)} {len(jammed)} came before, {repeated} times one of them again;"
        f" {last_ms:.0f} ms to the last, {again} of which had come already"
    )
    # What a Redisson had delivered and left in the timeout set looks like any other element of a client without a list.
    assert again == delivered
    assert last_ms < AT_ONCE_MS


def test_ours_keeps_a_queue_going_that_two_redissons_hold(
    jams: Jams, interop_server: Server, say: Say
) -> None:
    new, old = jams.staying[NEW], jams.staying[OLD]
    queue = Shared(
        f"{jams.between.name}-ours", new, jams.between.client, jams.between.url
    )
    for peer in (new, old):
        peer.call("hold", queue=queue.name, codec=TEXT)
    with DelayedQueue(queue.name, codec=TEXT, connection=interop_server.url):
        begun_ms = time.time() * 1000
        for peer in (new, old):
            queue.offer(peer, items_of(peer.version))

        wait_until(queue.is_complete, description="everything came")
        wait_until(lambda: queue.content() == ([], []), description="nothing is left")

    last_due_ms = max(
        delay for peer in (new, old) for _, delay in items_of(peer.version)
    )
    last_ms = queue.arrived()[-1][1] - begun_ms - last_due_ms
    say(
        f"ours beside both: {len(queue.offered)} elements, {queue.duplicates()} came twice, the last {last_ms:.0f} ms"
        " after the last was due"
    )
    assert last_ms < AT_ONCE_MS


@pytest.mark.parametrize("target", [NEW, OLD], ids="to {}".format)
def test_following_a_rolling_upgrade_or_rollback_nothing_is_lost_and_nothing_jams(
    target: str, jams: Jams, say: Say
) -> None:
    # One side transfers and consumes, and offers, too; the other goes on offering, and tries to transfer.
    fleet, others = jams.staying[target], jams.staying[OLD if target == NEW else NEW]
    queue = Shared(
        f"{jams.between.name}-to-{target}", fleet, jams.between.client, jams.between.url
    )
    for peer in (fleet, others):
        peer.call("hold", queue=queue.name, codec=TEXT)
    chance = random.Random(5)
    due_ms: dict[str, float] = {}

    def offer(peer: Peer, what: str, least_ms: int, most_ms: int) -> None:
        value, delay_ms = f"{peer.version} {what}", chance.randint(least_ms, most_ms)
        due_ms[value] = time.time() * 1000 + delay_ms
        queue.offer(peer, [[["String", value], delay_ms]])

    def latest_ms(what: str) -> float:
        return max(at_ms - due_ms[v] for v, at_ms in queue.arrived() if what in v)

    with following(queue, target) as child:
        begun = time.monotonic()
        for n in range(60):
            wait_until(
                lambda n=n: time.monotonic() > begun + n * 0.03,
                description="the next is to be offered",
            )
            offer(others, f"late {n}", 8_000, 10_000)
            if n % 3 == 0:
                offer(fleet, f"late {n}", 8_000, 10_000)
        wait_until(queue.is_complete, description="everything came")
        late, duplicates = len(queue.offered), queue.duplicates()
        # Sooner than it looks, where no new head is announced.
        for n in range(20):
            offer(others, f"soon {n}", 50, 1_000)
            offer(fleet, f"soon {n}", 50, 1_000)
        wait_until(queue.is_complete, description="everything came")
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=60)

    say(
        f"{output}following to {target}: {late} elements due in 8 to 10 s, {duplicates} times one came again, up to"
        f" {latest_ms('late'):.0f} ms late; {len(queue.offered) - late} due within 1 s,"
        f" {queue.duplicates() - duplicates} times one came again, up to {latest_ms('soon'):.0f} ms late"
    )
    assert child.returncode == 0
    assert "0  still in another format" in output
    assert duplicates == 0
    assert latest_ms("late") < AT_ONCE_MS, "it was stuck until a retry"


@contextmanager
def following(queue: Shared, target: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command with ``--follow`` in a process of its own."""
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "django", "delayq_frames", queue.name),
            *("--to", target, "--follow"),
        ],
        env=os.environ
        | {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DELAYQ_TEST_URL": queue.url,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert "Still running" in child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()
