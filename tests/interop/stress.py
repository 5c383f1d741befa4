"""The same load on queues of Redisson's and on queues of ours: how late is each?"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import redis

from django_delayq.wire.queue_keys import QueueKeys
from tests.interop.peers import Peer
from tests.polling import wait_until

ROOT = Path(__file__).parents[2]
CODEC = "StringCodec"


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


class Load(NamedTuple):
    """What each queue of a side gets."""

    count: int = 1_000
    least_ms: int = 1_000
    most_ms: int = 5_000


Arrived = list[tuple[str, str, float]]


class JavaSide:
    """Queues that a Redisson offers to, transfers and consumes."""

    def __init__(self, peer: Peer, names: Sequence[str]) -> None:
        self._peer = peer
        self._names = names
        for name in names:
            peer.call("consume", queue=name, codec=CODEC, threads=1, take=True)
            peer.call("hold", queue=name, codec=CODEC)

    def begin(self, load: Load) -> None:
        """Begin to offer."""
        for name in self._names:
            self._peer.begin(
                "offer_many",
                queue=name,
                codec=CODEC,
                kind="String",
                first=0,
                threads=1,
                **load._asdict(),
            )

    def end(self) -> Arrived:
        """Return queue, element and epoch ms of everything that came."""
        arrived = [
            (name, text, us / 1000)
            for name in self._names
            for text, us in self._peer.call("stop_consuming", queue=name)
        ]
        for name in self._names:
            self._peer.call("destroy", queue=name)
        return arrived


class PythonSide:
    """Queues that we offer to, transfer and consume, in a process of their own."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.python_side", url, *names],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self, load: Load) -> None:
        print(*load, file=self._process.stdin, flush=True)

    def end(self) -> Arrived:
        told, _ = self._process.communicate()
        arrived: Arrived = json.loads(told)
        return arrived


def run_stress(
    sides: Mapping[str, JavaSide | PythonSide],
    names: Mapping[str, Sequence[str]],
    client: redis.Redis,
    load: Load,
) -> dict[str, Lateness]:
    """Load all sides at once; return how late each was.

    Raises:
        AssertionError: an element is missing, or came twice.
    """
    for side in sides.values():
        side.begin(load)
    # Nobody is asked meanwhile: what is measured has the processors.
    time.sleep(load.most_ms / 1000 + 0.5)
    wait_until(
        lambda: (
            not any(
                client.exists(*_keys_of(name))
                for label in sides
                for name in names[label]
            )
        ),
        description="all has been taken",
        timeout=60,
    )
    found = {}
    for label, side in sides.items():
        arrived = side.end()
        assert len(arrived) == len(names[label]) * load.count, (
            f"{label}: {len(arrived)}"
        )
        came = {(name, int(text.partition(":")[0])) for name, text, _ in arrived}
        assert came == {(name, n) for name in names[label] for n in range(load.count)}
        found[label] = Lateness.of((text, at_ms) for _, text, at_ms in arrived)
    return found


def _keys_of(name: str) -> list[str]:
    keys = QueueKeys.of(name)
    return [keys.timeout_set, keys.delay_queue, keys.destination, keys.own("leases")]
