"""Two walks that are recorded: of a job from `schedule()` to its end, and of an element as Redisson offers it.

A worker inside this process runs them on a real server, in burst mode: it ends when nothing is due any more.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from django.test.utils import override_settings

from django_delayq import delayed_task, queue_handler, schedule
from django_delayq.jobs import outbox
from django_delayq.wire.queue_keys import QueueKeys
from tests.polling import wait_until
from tests.queues.java import now_ms
from tests.walk.recorder import Recorder, Step
from tests.worker.workers import InlineWorker

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "frames.jsonl"
#: The Redisson that wrote the element, and the setting of its queue.
REDISSON = "3.27.2"
#: What the job is called with, and how it is recognised before it has a token.
ARGUMENT = "the argument of the walk"
#: What a step of a job that was given back holds: no thread came to run it within 50 ms, so this walk shows the load.
STALLED = "Attempt.give_back"
#: Walks of a job before a worker that always gives it back is a failure.
TRIES = 100

ran: list[object] = []


@delayed_task(name="tests.walk")
def walked(value: object) -> None:
    ran.append(value)


def golden_element() -> dict[str, Any]:
    """Return the first element that this Redisson wrote with its default codec."""
    rows = map(json.loads, GOLDEN.read_text("utf-8").splitlines())
    return next(row for row in rows if row["version"] == REDISSON and row["default"])


def walk_of_job(client: redis.Redis, queue: str) -> "Walk":
    """Record a job from the call of `schedule()` to the end that the server is told."""

    def offer() -> None:
        schedule(walked.using(queue=queue), 0.001, ARGUMENT)

    return _undisturbed(client, queue, offer, {ARGUMENT.encode()}, ARGUMENT)


def walk_of_element(client: redis.Redis, queue: str) -> "Walk":
    """Record an element from the commands of Redisson's offer to the end that the server is told."""
    row = golden_element()
    frame, payload = bytes.fromhex(row["frame"]), bytes.fromhex(row["destination"][0])
    keys = QueueKeys.of(queue)
    queue_handler(queue, name=f"handler of {queue}")(walked.function)

    def offer() -> None:
        client.zadd(keys.timeout_set, {frame: row["score"]})
        client.rpush(keys.delay_queue, frame)
        client.publish(keys.channel, int(row["score"]))

    return _undisturbed(
        client, queue, offer, {payload, row["value"].encode()}, row["value"]
    )


class Walk:
    """What was recorded, and which of it had the job in hand."""

    def __init__(self, steps: list[Step], texts: set[bytes]) -> None:
        self.steps = steps
        held = [step for step in steps if step.holds(texts)]
        # From its lease on, a job is known by its token alone.
        self._texts = texts.union(*(step.tokens for step in held))

    def in_hand(self) -> list[Step]:
        """Return the steps with the job among their arguments, each behind the one that called it."""
        return [step for step in self.steps if step.holds(self._texts)]


def walks_apart(url: str, queue: str) -> tuple["Walk", "Walk"]:
    """Record both walks in a process of its own, on queues whose names begin like this.

    Python 3.11 may never return from a line that it traces in a process that has run thousands of tests.
    """
    code = (
        "import pickle, sys, django; django.setup()\n"
        "from tests.walk import walks\n"
        "pickle.dump(walks.both(*sys.argv[1:]), sys.stdout.buffer)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, url, queue],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdout=subprocess.PIPE,
        check=True,
    )
    recorded: tuple[Walk, Walk] = pickle.loads(told.stdout)
    return recorded


def both(url: str, queue: str) -> tuple["Walk", "Walk"]:
    """Record both walks here, as in a project without the app of the outbox."""
    outbox.install(None)
    delayq = {
        "CONNECTION": url,
        "QUEUES": {queue: {}, f"{queue}-java": {"REDISSON": REDISSON}},
    }
    with override_settings(DELAYQ=delayq), redis.Redis.from_url(url) as client:
        return walk_of_job(client, queue), walk_of_element(client, f"{queue}-java")


def _undisturbed(
    client: redis.Redis,
    queue: str,
    offer: Callable[[], None],
    texts: set[bytes],
    value: object,
) -> Walk:
    # The first walk loads scripts and connects; later ones show what each job takes.
    _record(client, queue, offer, value)
    for _ in range(TRIES):
        steps = _record(client, queue, offer, value)
        if all(step.function.name != STALLED for step in steps):
            return Walk(steps, texts)
    raise AssertionError(f"the worker gave back the job on each of {TRIES} walks")


def _record(
    client: redis.Redis, queue: str, offer: Callable[[], None], value: object
) -> list[Step]:
    ran.clear()
    keys = QueueKeys.of(queue)
    worker = InlineWorker([queue], is_burst=True, threads=1)
    with Recorder(walked.function.__code__) as recorder:
        offer()
        wait_until(
            lambda: client.zcount(keys.timeout_set, 0, now_ms(client)),
            description="the job is due",
        )
        try:
            worker.start().join()
        finally:
            worker.stop()
    assert ran == [value]
    return recorder.steps
