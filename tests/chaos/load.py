"""Schedules jobs at a steady rate until told to stop, and writes down what it was told of each.

``python -m tests.chaos.load QUEUE FILE PER_SECOND FIRST HOW``: a line a job, stored or refused, and another one if it is
cancelled, numbered from FIRST. HOW is ``sync``, ``loop`` for the calls of an event loop, ``unheard`` where no thread can
listen to the Sentinels, or ``then:QUEUE``, where a job in that queue follows each and none is cancelled. It ends when
FILE.stop exists. Once FILE.eat exists, it schedules the job that eats memory; while FILE.pause exists, it pauses that
job's task again and again.
"""

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import django
from redis.exceptions import RedisError

from tests.chaos.lines import append, now_ms

#: The longest delay of a job, and the longest time that it runs, ms.
MOST_DELAY_MS = 1_500
MOST_WORK_MS = 20
#: Of so many jobs one is cancelled, a while after it was stored. And with so many the eater is paused once.
CANCELLED = 25
CANCEL_AFTER_MS = 500
#: What to add to the number of a job for the one that follows it, and for the one that would if it were dead.
FOLLOWER, MOURNER = 500_000, 750_000
#: What was refused is not tried again; after this time another job is.
AFTER_ERROR_S = 0.05


#: The module of `may_have_run`; a deploy begins with an earlier version, which has it elsewhere.
ERRORS = (
    "django_delayq.transport.errors"
    if find_spec("django_delayq.transport")
    else "django_delayq.calls.errors"
)


def main(queue: str, path: Path, per_second: float, first: int, how: str) -> None:
    django.setup()
    from django_delayq import apause, aschedule, pause, schedule, schedule_many
    from django_delayq.exceptions import DelayqError

    may_have_run = import_module(ERRORS).may_have_run
    from tests.chaos.tasks import eat, work

    if how == "unheard":
        # Not where this program runs with an earlier version.
        from tests.failovers import without_threads

        without_threads().__enter__()
    runner = asyncio.Runner()

    def on_loop(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return runner.run(make(*args, **kwargs))

    is_loop = how == "loop"
    act: Callable[..., Any] = partial(on_loop, aschedule) if is_loop else schedule
    halt: Callable[..., Any] = partial(on_loop, apause) if is_loop else pause
    target = how.removeprefix("then:") if how.startswith("then:") else None
    task = work.using(queue=queue)
    stop, hungry, pausing = (
        Path(f"{path}.{what}") for what in ("stop", "eat", "pause")
    )
    drawn = random.Random(13 + first)
    #: Jobs to cancel later, each with its line in FILE.
    doomed: deque[tuple[Any, dict[str, Any]]] = deque()
    next_ms = now_ms()

    def try_to(change: Callable[[], Any], done: str, **told: Any) -> None:
        """Change something that is there, and write down that it is done, or may be."""
        before_ms = now_ms()
        try:
            step = done if change() is not False else ""
        except (RedisError, DelayqError):
            step = f"{done}?"
            time.sleep(AFTER_ERROR_S)
        if step:
            append(path, step=step, **told, before_ms=before_ms, after_ms=now_ms())

    for n in count(first):
        if stop.exists():
            return
        if hungry.exists():
            hungry.unlink()
            append(path, step="eater", job=schedule(eat.using(queue=queue), 0).id)
        is_cancelled = target is None and n % CANCELLED == CANCELLED - 1
        if is_cancelled and pausing.exists():
            why = f"pause {n}."
            try_to(lambda: halt(queue, task=eat, reason=why), "paused", why=why)  # noqa: B023 - called at once
        if doomed and now_ms() > doomed[0][1]["before_ms"] + CANCEL_AFTER_MS:
            job, told = doomed.popleft()
            cancel = partial(on_loop, job.acancel) if is_loop else job.cancel
            try_to(cancel, "cancelled", n=told["n"], job=job.id, delay_ms=0)
        delay_ms = MOST_DELAY_MS if is_cancelled else drawn.randrange(MOST_DELAY_MS)
        before_ms = now_ms()
        told = {"n": n, "delay_ms": delay_ms, "before_ms": before_ms}
        try:
            if target is None:
                job = act(task, delay_ms / 1000, n, drawn.randrange(MOST_WORK_MS))
            else:
                job = task.prepare(delay_ms / 1000, n, drawn.randrange(MOST_WORK_MS))
                child = work.using(queue=target).prepare(0, n + FOLLOWER, 1)
                job.then(child).on_dead(task.prepare(0, n + MOURNER, 1))
                schedule_many([job])
        except (RedisError, DelayqError) as error:
            may = not isinstance(error, RedisError) or may_have_run(error)
            append(
                path,
                step="maybe" if may else "refused",
                error=f"{type(error).__name__}: {error}",
                after_ms=now_ms(),
                **told,
            )
            time.sleep(AFTER_ERROR_S)
        else:
            told |= {"job": job.id, "after_ms": now_ms()}
            append(path, step="stored", **told)
            if target is not None:
                follower = {"n": n + FOLLOWER, "job": child.id}
                append(path, step="stored", **{**told, **follower})
            if is_cancelled:
                doomed.append((job, told))
        # Evenly over the time that is left, without a rush after an outage.
        next_ms = max(next_ms + 1000 / per_second, now_ms() - 1000 / per_second)
        time.sleep(max(0.0, (next_ms - now_ms()) / 1000))


if __name__ == "__main__":
    queue, path, per_second, first, how = sys.argv[1:]
    main(queue, Path(path), float(per_second), int(first), how)
