"""The same load on queues of Redisson's own and on queues of ours, at the same time on one server: how late is each?"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import redis

from django_delayq.wire.keys import QueueKeys
from tests.interop.peers import Peer
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
CODEC = "StringCodec"
QUEUES = 3


class Lateness(NamedTuple):
    """When elements came, less when they were due, in ms."""

    values: list[float]

    @classmethod
    def of(cls, arrived: Iterable[tuple[str, float]]) -> "Lateness":
        """Read ``number:due ms`` and when it came, epoch ms."""
        return cls(
            sorted(at_ms - float(text.partition(":")[2]) for text, at_ms in arrived)
        )

    def percentile(self, share: float) -> float:
        return self.values[round(share * (len(self.values) - 1))]

    def __str__(self) -> str:
        return (
            f"p50 {self.percentile(0.5):.1f}  p99 {self.percentile(0.99):.1f}"
            f"  max {self.values[-1]:.1f}  min {self.values[0]:.1f} ms"
        )


def run_stress(
    peer: Peer,
    client: redis.Redis,
    url: str,
    prefix: str,
    *,
    count: int,
    least_ms: int,
    most_ms: int,
) -> dict[str, Lateness]:
    """Load three queues of each side at once; return how late each side was, ``java`` and ``ours``.

    Each side is a process of its own that offers, transfers and consumes.

    Raises:
        AssertionError: an element is missing, or came twice.
    """
    names = {
        side: [f"{prefix}-{side}-{n}" for n in range(QUEUES)]
        for side in ("java", "ours")
    }
    for name in names["java"]:
        peer.call("consume", queue=name, codec=CODEC, threads=1, take=True)
        peer.call("hold", queue=name, codec=CODEC)
    ours = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.interop.python_side", url),
            *(str(count), str(least_ms), str(most_ms), *names["ours"]),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ours.stdin is not None
    assert ours.stdout is not None
    with ours.stdin, ours.stdout:
        assert ours.stdout.readline() == "ready\n"
        print("go", file=ours.stdin, flush=True)
        offering = [
            peer.begin(
                "offer_many",
                queue=name,
                codec=CODEC,
                kind="String",
                first=0,
                count=count,
                threads=1,
                least_ms=least_ms,
                most_ms=most_ms,
            )
            for name in names["java"]
        ]
        for each in offering:
            each.result(60)
        # Nobody is asked meanwhile: what is measured has the processors.
        time.sleep(most_ms / 1000)
        wait_until(
            lambda: (
                not any(
                    client.exists(*_keys_of(name))
                    for side in names.values()
                    for name in side
                )
            ),
            description="all has been taken",
            timeout=30,
        )
        ours.stdin.close()
        arrived = {"ours": json.loads(ours.stdout.read())}
    ours.wait()
    arrived["java"] = [
        (name, text, us / 1000)
        for name in names["java"]
        for text, us in peer.call("stop_consuming", queue=name)
    ]
    for name in names["java"]:
        peer.call("destroy", queue=name)
    for side, elements in arrived.items():
        assert len(elements) == QUEUES * count, f"{side}: {len(elements)} came"
        came = {(name, int(text.partition(":")[0])) for name, text, _ in elements}
        assert came == {
            (name, number) for name in names[side] for number in range(count)
        }
    return {
        side: Lateness.of((text, at_ms) for _, text, at_ms in elements)
        for side, elements in arrived.items()
    }


def _keys_of(name: str) -> list[str]:
    keys = QueueKeys.of(name)
    return [keys.timeout_set, keys.delay_queue, keys.destination, keys.own("leases")]
