"""What the Python adapters share: the protocol of README.md, and the job. Standard library only."""

import asyncio
import contextlib
import importlib.metadata
import inspect
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.records import Recorder, payload_of

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379/0")
HOST = os.environ.get("BENCH_HOST", "127.0.0.1")
PORT = int(os.environ.get("BENCH_PORT", "6379"))
#: Whether a crash is met with settings for a quick redelivery, not with the peer's defaults.
IS_TUNED = os.environ.get("BENCH_CRASH") == "tuned"
#: Queues are called q0, q1, q2.
QUEUES = 3
#: Jobs of a bulk call, unless the peer has no such call and sends this many at a time in other ways.
BULK = 500
AT_A_TIME = 50

_records_path = os.environ.get("BENCH_RECORDS")
_recorder = Recorder(_records_path) if _records_path else None

#: When a job is due, in epoch seconds (None: now), its queue's number, and its payload.
Item = tuple[float | None, int, str]


def run(payload: str) -> None:
    """Do what a job does, in a thread or a process."""
    assert _recorder is not None
    index, due, work_s = _recorder.start(payload)
    if work_s:
        time.sleep(work_s)
        _recorder.end(index, due)


async def run_async(payload: str) -> None:
    """Do what a job does, on an event loop."""
    assert _recorder is not None
    index, due, work_s = _recorder.start(payload)
    if work_s:
        await asyncio.sleep(work_s)
        _recorder.end(index, due)


def tool(name: str) -> str:
    """Return the path of a console script of this environment."""
    return str(Path(sys.executable).with_name(name))


def versions(*names: str) -> str:
    """Return the versions of distributions that are installed here."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def this(*arguments: str) -> list[str]:
    """Return the command that runs an adapter's own worker."""
    return [sys.executable, "-m", "benchmarks.peers.adapters", *arguments]


@dataclass(frozen=True, kw_only=True)
class About:
    """What an adapter says of its peer."""

    #: The pages of its documentation that the adapter follows.
    documentation: Sequence[str]
    #: What runs, by layout: "1" and "2" are one process and the documented way to use two cores, "1t" and "2t" the
    #: same tuned.
    layouts: Mapping[str, str]
    #: How jobs of a killed worker are documented to run again.
    redelivery: str
    #: What many jobs are sent with, or None where there is nothing for that.
    bulk: str | None = None
    #: The settings of a crash: "default", and "tuned" where a redelivery can be had sooner.
    crash: Mapping[str, str] = field(default_factory=lambda: {"default": "defaults"})
    #: After how many seconds at most a job of a killed worker runs again, with each of them. None: never.
    redelivered_s: Mapping[str, float | None] = field(
        default_factory=lambda: {"default": None}
    )
    notes: str = ""
    #: Where jobs are kept beside the server, or None.
    store: str | None = None


class Adapter:
    """A peer behind the protocol. Subclasses say how it is used; with ``is_async`` their results are awaited."""

    about: About
    #: Whether `open`, `enqueue` and `enqueue_bulk` return awaitables.
    is_async = False

    def version(self) -> str:
        raise NotImplementedError

    def open(self) -> Any:
        """Prepare to enqueue."""

    def enqueue(self, due: float | None, queue: int, payload: str) -> Any:
        raise NotImplementedError

    def enqueue_bulk(self, items: Sequence[Item]) -> Any:
        raise NotImplementedError

    def stored_bytes(self) -> int:
        """Return what a ``store`` holds."""
        return 0

    def workers(self, layout: str, queues: int) -> list[Any]:
        """Return the processes of a layout: a command each, or ``{"argv": …, "env": …}``."""
        raise NotImplementedError

    def work(self, *arguments: str) -> None:
        """Be a worker, where the peer has no command for that."""
        raise NotImplementedError

    def main(self, arguments: Sequence[str]) -> None:
        """Run one command of the protocol."""
        command, *rest = arguments
        if command == "describe":
            print(json.dumps({"version": self.version(), **asdict(self.about)}))
        elif command == "workers":
            layout, queues = rest
            found = self.workers(layout, int(queues))
            print(
                json.dumps([w if isinstance(w, dict) else {"argv": w} for w in found])
            )
        elif command == "produce":
            self._produce()
        elif command == "work":
            self.work(*rest)
        else:
            sys.exit(f"unknown command {command}")

    def _produce(self) -> None:
        coroutine = self._serve()
        if self.is_async:
            asyncio.run(coroutine)
        else:
            # It never waits then, and Django's ORM refuses to run where an event loop does.
            with contextlib.suppress(StopIteration):
                coroutine.send(None)

    async def _serve(self) -> None:
        await _done(self.open())
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            operation = {
                "enqueue": self._enqueue,
                "paced": self._paced,
                "bytes": self._bytes,
            }[request.pop("op")]
            try:
                reply = {"ok": True, **await operation(**request)}
            except Exception as error:
                # The harness writes it in place of the figures.
                traceback.print_exc()
                reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), flush=True)

    async def _enqueue(
        self,
        n: int,
        due: dict[str, Any],
        start: int = 0,
        queue: int = 0,
        mode: str = "single",
        work_ms: int = 0,
    ) -> dict[str, Any]:
        begun = time.time()
        if mode == "bulk":
            for low in range(0, n, BULK):
                items = [
                    (at, queue, payload_of(start + k, at or begun, work_ms))
                    for k in range(low, min(n, low + BULK))
                    for at in [_due_of(due, k)]
                ]
                await _done(self.enqueue_bulk(items))
        else:
            for k in range(n):
                at = _due_of(due, k)
                sent = self.enqueue(
                    at, queue, payload_of(start + k, at or begun, work_ms)
                )
                if self.is_async:
                    await sent
        return {"n": n, "t0": begun, "t1": time.time()}

    async def _paced(
        self,
        queues: int,
        per_queue: int,
        interval: float,
        least_s: float,
        most_s: float,
        seed: int,
    ) -> dict[str, Any]:
        randomly = random.Random(seed)
        begun = time.time()
        lag = 0.0
        count = 0
        for k in range(per_queue):
            for queue in range(queues):
                slot = begun + k * interval + queue * interval / queues
                while (now := time.time()) < slot:
                    if self.is_async:
                        await asyncio.sleep(slot - now)
                    else:
                        time.sleep(slot - now)
                lag = max(lag, now - slot)
                due = round(now + randomly.uniform(least_s, most_s), 3)
                await _done(self.enqueue(due, queue, payload_of(count, due, 0)))
                count += 1
        return {"n": count, "t0": begun, "t1": time.time(), "lag": lag}

    async def _bytes(self) -> dict[str, Any]:
        return {"bytes": self.stored_bytes()}


def _due_of(due: dict[str, Any], k: int) -> float | None:
    if due["kind"] == "now":
        return None
    # A whole millisecond, which is what the finest of the peers keeps.
    return round(float(due["t"]) + k * float(due.get("step", 0)), 3)


async def _done(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


async def gathered(
    enqueue: Callable[..., Awaitable[Any]], items: Sequence[Item]
) -> None:
    """Enqueue many, `AT_A_TIME` at once: bulk for peers without a call for that."""
    for low in range(0, len(items), AT_A_TIME):
        await asyncio.gather(*(enqueue(*item) for item in items[low : low + AT_A_TIME]))
