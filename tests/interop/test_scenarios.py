"""What people do with Redisson's delayed queues, and what goes wrong there, with a live Redisson on the other side."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from django_delayq.conf import QueueSettings
from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.tools.insertion_list import Listing
from django_delayq.wire.queue_keys import QueueKeys
from django_delayq.worker.upkeep import ROUND_MS, Upkeep
from tests.interop.peers import PeerOf
from tests.interop.stress import JavaSide, Load, PythonSide, run_stress
from tests.interop.trace import trace_of
from tests.polling import wait_until
from tests.servers import LASTING, Server

ROOT = Path(__file__).parents[2]
TEXT = "StringCodec"
#: One of each frame format, both with many users; and the reference.
old_and_new = pytest.mark.parametrize("version", ["3.16.6", "4.7.0"])
#: Redisson trusts two clocks that are cut to ms: up to this much early is normal there.
JAVA_EARLY_MS = 2


def text(value: str) -> list[str]:
    return ["String", value]


@old_and_new
def test_five_elements_offered_at_once_by_java_come_in_the_order_of_their_delays(
    version: str, peer_of: PeerOf, interop_server: Server, name: str
) -> None:
    peer = peer_of(version)
    # Its first call takes longer: "7 s" is the last one offered.
    peer.call("offer", queue=f"{name}-first", codec=TEXT, items=[[text("x"), 1]])
    delays_ms = {"10 s": 4000, "5 s": 2000, "3 s": 1200, "1 s": 400, "7 s": 2800}
    begun_ms = time.time() * 1000
    items = [[text(label), delay] for label, delay in delays_ms.items()]
    peer.call("offer", queue=name, codec=TEXT, items=items)

    arrived = []
    with BlockingQueue(name, codec=TEXT, connection=interop_server.url) as queue:
        for _ in delays_ms:
            value = queue.poll(20)
            arrived.append((value, time.time() * 1000 - begun_ms))

    assert [label for label, _ in arrived] == ["1 s", "3 s", "5 s", "7 s", "10 s"]
    for label, after_ms in arrived:
        assert after_ms >= delays_ms[label] - JAVA_EARLY_MS


@old_and_new
def test_five_elements_offered_at_once_by_python_come_in_the_order_of_their_delays(
    version: str, peer_of: PeerOf, interop_server: Server, name: str
) -> None:
    peer = peer_of(version)
    peer.call("consume", queue=name, codec=TEXT, threads=1, take=True)
    delays = {"10 s": 1.0, "5 s": 0.5, "3 s": 0.3, "1 s": 0.1, "7 s": 0.7}
    begun_ms = time.time() * 1000
    with DelayedQueue(
        name, codec=TEXT, frame_format=version, connection=interop_server.url
    ) as queue:
        for label, delay in delays.items():
            queue.offer(label, delay)

        wait_until(
            lambda: len(peer.call("consumed", queue=name)) == 5,
            description="Java has all five",
        )

    arrived = peer.call("stop_consuming", queue=name)
    assert [label for label, _ in arrived] == ["1 s", "3 s", "5 s", "7 s", "10 s"]
    for label, at_us in arrived:
        # Java reads its clock to the microsecond; the server's decided.
        assert at_us / 1000 - begun_ms >= delays[label] * 1000


@old_and_new
def test_three_queues_of_a_thousand_each_lose_nothing_and_ours_are_never_early(
    version: str,
    start_peer: Any,
    interop_server: Server,
    interop_client: redis.Redis,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    peer = start_peer(version, interop_server.url, options=())

    url = interop_server.url
    names = {
        side: [f"{name}-{side}-{n}" for n in range(3)] for side in ("java", "ours")
    }
    sides = {
        "java": JavaSide(peer, names["java"]),
        "ours": PythonSide(url, names["ours"]),
    }

    found = run_stress(sides, names, interop_client, Load())

    with capsys.disabled():
        for side, lateness in found.items():
            print(f"\n3 × 1,000 beside each other, {side} of {version}: {lateness}")
    assert min(found["ours"].values) >= 0
    assert min(found["java"].values) >= -JAVA_EARLY_MS


@old_and_new
def test_python_polls_that_end_as_an_element_falls_due_lose_none(
    version: str, peer_of: PeerOf, interop_server: Server, name: str
) -> None:
    # Redisson #3302: a BLPOP that pops as the client gives up loses the element.
    peer = peer_of(version)
    peer.call("hold", queue=name, codec=TEXT)
    rounds, wait_ms = 150, 20
    got: list[str] = []
    empty = 0
    with BlockingQueue(name, codec=TEXT, connection=interop_server.url) as queue:
        for number in range(rounds):
            # Around the moment at which the poll ends, some before and some after.
            delay_ms = wait_ms + number % 11 - 5
            items = [[text(str(number)), delay_ms]]
            offering = peer.begin("offer", queue=name, items=items)
            value = queue.poll(wait_ms / 1000)
            offering.result(10)
            empty += value is None
            got += [value] if value is not None else []
        while len(got) < rounds and (value := queue.poll(20)) is not None:
            got.append(value)

    assert sorted(got, key=int) == [str(number) for number in range(rounds)]
    assert 0 < empty < rounds, "no poll ended beside an element"


def test_java_polls_that_end_as_an_element_falls_due_leave_us_none_to_find(
    peer_of: PeerOf,
    interop_server: Server,
    interop_client: redis.Redis,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The same with Java's poll on elements that we transfer: what Redisson loses is counted, not asserted; what we
    # hold and transfer is all accounted for: popped by Java, or still in the destination queue.
    peer = peer_of("3.16.6")
    names = [f"{name}-{n}" for n in range(20)]
    delayed = [
        DelayedQueue(each, codec=TEXT, frame_format="3.16.6", connection=interop_client)
        for each in names
    ]
    for n, queue in enumerate(delayed):
        queue.offer("x", 1.0 + (n % 9 - 4) / 1000)

    polled = [
        peer.begin("poll", queue=each, codec=TEXT, timeout_ms=1000) for each in names
    ]
    for queue in delayed:
        wait_until(
            lambda queue=queue: len(queue) == 0, description="it was transferred"
        )
    found = sum(each.result(30) == text("x") for each in polled)
    lying = sum(interop_client.llen(each) for each in names)
    for queue in delayed:
        queue.destroy()

    with capsys.disabled():
        print(
            f"\nof 20 that fell due as Java's poll ended it has {found}, {lying} still lie there"
        )
    assert found + lying <= 20


@old_and_new
def test_what_the_only_transferring_java_left_arrives_after_its_restart_or_by_us(
    version: str,
    start_peer: Any,
    interop_server: Server,
    interop_client: redis.Redis,
    name: str,
) -> None:
    first = start_peer(version, interop_server.url)
    queues = f"{name}-again", f"{name}-ours"
    for queue in queues:
        items = [[text(str(n)), 3_000 + n] for n in range(20)]
        first.call("offer", queue=queue, codec=TEXT, items=items)
    first.kill()
    url = interop_server.url
    for queue in queues:
        left = interop_client.zcard(QueueKeys.of(queue).timeout_set)
        assert left == 20, "it was killed too late"

    with DelayedQueue(f"{name}-ours", codec=TEXT, connection=url):
        with BlockingQueue(f"{name}-ours", codec=TEXT, connection=url) as queue:
            taken = [queue.poll(20) for _ in range(20)]
    assert taken == [str(n) for n in range(20)]

    with BlockingQueue(f"{name}-again", codec=TEXT, connection=url) as queue:
        assert queue.poll(0.1) is None, "nobody transfers it"
        second = start_peer(version, url)
        second.call("hold", queue=f"{name}-again", codec=TEXT)
        assert [queue.poll(20) for _ in range(20)] == [str(n) for n in range(20)]


#: Offers twenty elements and transfers, until it is killed.
OFFERING = """
import sys, threading
from django_delayq.queues.delayed_queue import DelayedQueue
url, name, version = sys.argv[1:]
queue = DelayedQueue(name, codec="StringCodec", frame_format=version, connection=url)
for n in range(20):
    queue.offer(str(n), 3 + n / 1000)
print("offered", flush=True)
threading.Event().wait()
"""


@old_and_new
def test_what_the_only_transferring_python_left_arrives_by_java_or_after_its_restart(
    version: str, peer_of: PeerOf, interop_server: Server, name: str
) -> None:
    names = [f"{name}-java", f"{name}-again"]
    url = interop_server.url
    for each in names:
        process = subprocess.Popen(
            [sys.executable, "-c", OFFERING, url, each, version],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == "offered\n"
        process.kill()
        process.wait()

    peer = peer_of(version)
    peer.call("hold", queue=names[0], codec=TEXT)
    taken = peer.call("take", queue=names[0], codec=TEXT, count=20, timeout_ms=20_000)
    assert taken == [text(str(n)) for n in range(20)]

    assert peer.call("take", queue=names[1], codec=TEXT, count=1, timeout_ms=10) == []
    with DelayedQueue(names[1], codec=TEXT, connection=url):
        taken = peer.call(
            "take", queue=names[1], codec=TEXT, count=20, timeout_ms=20_000
        )
    assert taken == [text(str(n)) for n in range(20)]


@old_and_new
def test_a_server_restart_under_both_loses_nothing(
    version: str,
    start_peer: Any,
    interop_server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server(interop_server.kind, LASTING)
    server.start()
    try:
        peer = start_peer(version, server.url)
        names = {"java": "restart-java", "ours": "restart-ours"}
        delayed = DelayedQueue(names["ours"], codec=TEXT, connection=server.url)
        came: list[tuple[str, float]] = []
        is_over = threading.Event()

        def consume() -> None:
            with BlockingQueue(
                names["ours"], codec=TEXT, connection=server.url
            ) as queue:
                while not is_over.is_set():
                    try:
                        value = queue.poll(0.5)
                    except redis.ConnectionError:
                        # As a program does that goes on: the next call waits for the server.
                        is_over.wait(0.02)
                        continue
                    if value is not None:
                        came.append((value, time.time()))

        consumer = threading.Thread(target=consume)
        consumer.start()
        # Some at once, and some only after the restart.
        delays_ms = [*range(100, 1_270, 30), 6_000]
        items = [[text(str(n)), delay] for n, delay in enumerate(delays_ms)]
        peer.call("offer", queue=names["java"], codec=TEXT, items=items)
        for n, delay_ms in enumerate(delays_ms):
            delayed.offer(str(n), delay_ms / 1000)
        java = peer.begin(
            "take", queue=names["java"], codec=TEXT, count=1, timeout_ms=20_000
        )
        java.result(30)
        wait_until(lambda: came, description="it has begun")

        server.kill()
        server.restart()
        back_s = time.time()

        wait_until(
            lambda: len({value for value, _ in came}) == 40,
            description="all of ours came",
        )
        peer.call("consume", queue=names["java"], codec=TEXT, threads=1, timeout_ms=500)
        wait_until(
            lambda: (
                len({v for v, us in peer.call("consumed", queue=names["java"]) if us})
                == 39
            ),
            description="all of Java's came",
        )
        is_over.set()
        consumer.join()
        delayed.destroy()
        ours_s = min(at_s for _, at_s in came if at_s > back_s) - back_s
        told = peer.call("stop_consuming", queue=names["java"])
        java_s = min(us / 1e6 for _, us in told if us / 1e6 > back_s) - back_s
        with capsys.disabled():
            print(
                f"\nafter a restart of the server the first came {ours_s:.2f} s after it was"
                f" back, with {version} alone {java_s:.2f} s"
            )
    finally:
        server.stop()
    assert ours_s < 3


def test_the_recorded_trace_is_what_the_server_hears(
    interop_server: Server,
) -> None:
    recorded = Path(__file__).with_name("trace.txt").read_text("utf-8")
    # Nobody else is to be heard.
    server = Server(interop_server.kind).start()
    try:
        found = trace_of(server)
    finally:
        server.stop()

    assert f"{found}\n" == recorded, (
        "run python -m tests.interop.trace > tests/interop/trace.txt"
    )


def test_a_name_mapper_of_java_is_part_of_our_name(
    start_peer: Any, interop_server: Server, interop_client: redis.Redis, name: str
) -> None:
    for version in ("3.16.6", "4.7.0"):
        peer = start_peer(version, interop_server.url, prefix="app:")
        short = f"{name}-{version}"
        keys = QueueKeys.of(f"app:{short}")

        peer.call(
            "offer", queue=short, codec=TEXT, items=[[text("from Java"), 600_000]]
        )

        assert interop_client.zcard(keys.timeout_set) == 1
        assert interop_client.llen(keys.delay_queue) == 1
        url = interop_server.url
        with DelayedQueue(
            f"app:{short}", codec=TEXT, frame_format=version, connection=url
        ) as ours:
            assert ours.poll() == "from Java"
            ours.offer("from Python", 0.01)
            taken = peer.call(
                "take", queue=short, codec=TEXT, count=1, timeout_ms=20_000
            )
            assert taken == [text("from Python")]
        assert f"{{app:{short}}}" in keys.timeout_set


@old_and_new
def test_list_that_was_emptied_and_filled_is_one_that_java_looks_into(
    version: str,
    peer_of: PeerOf,
    interop_server: Server,
    interop_client: redis.Redis,
    name: str,
) -> None:
    peer = peer_of(version)
    keys = DeliveryKeys.of(name)

    def java(op: str, **arguments: Any) -> Any:
        return peer.call(op, queue=name, codec=TEXT, **arguments)

    java("offer", items=[[text("java 1"), 600_000], [text("java 2"), 500_000]])
    with DelayedQueue(
        name,
        codec=TEXT,
        frame_format=version,
        insertion_list=False,
        connection=interop_server.url,
    ) as unlisted:
        for n in (1, 2, 3):
            unlisted.offer(f"python {n}", 600 - n)
        assert java("size") == 2
        assert not java("remove", value=text("python 1"))
        assert len(unlisted) == 5

        filled = Listing(interop_client, keys)
        filled.fill()

        assert filled.filled == 3
        assert java("read_all") == [
            text(value)
            for value in ("java 1", "java 2", "python 1", "python 2", "python 3")
        ]
        assert java("remove", value=text("python 2"))
        assert len(unlisted) == 4

        emptied = Listing(interop_client, keys)
        emptied.empty()

        assert (emptied.emptied, emptied.alone) == (4, 0)
        assert java("size") == 0
        assert len(unlisted) == 4
        # Whoever has no list to look into still transfers and takes.
        unlisted.offer("python 4", 0.01)
        assert java("take", count=1, timeout_ms=20_000) == [text("python 4")]

        Listing(interop_client, keys).fill()

        assert java("read_all") == [
            text(value) for value in ("python 1", "python 3", "java 2", "java 1")
        ]
        assert java("remove", value=text("java 2"))
        assert unlisted.read_all() == ["python 3", "python 1", "java 1"]


@old_and_new
def test_java_that_only_listens_is_noticed(
    version: str,
    start_peer: Any,
    interop_server: Server,
    interop_client: redis.Redis,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = QueueSettings(name=name)
    looks_after = Upkeep(interop_client, settings, b"owner--1")

    def one_round() -> None:
        looks_after.turn(0.0)
        while looks_after.next_ms != ROUND_MS:
            looks_after.turn(0.0)

    for _ in range(3):
        one_round()
    assert not caplog.messages
    peer = start_peer(version, interop_server.url)
    # An element of each side's transfer; then nothing is left of it but the subscription.
    peer.call("offer", queue=name, codec=TEXT, items=[[text("x"), 1]])
    assert peer.call("take", queue=name, codec=TEXT, count=1, timeout_ms=20_000)

    for _ in range(3):
        one_round()

    (told,) = caplog.messages
    assert f"queue {name} has a subscriber that is not ours" in told
