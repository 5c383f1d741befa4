"""Schedules jobs at a steady rate until told to stop, and writes down what it was told of each.

``python -m tests.chaos.load QUEUE FILE PER_SECOND FIRST HOW``: a line a job, stored, refused or cancelled, numbered from
FIRST. HOW is ``sync``, or ``loop`` for the calls of an event loop. It ends when FILE.stop exists. Once FILE.eat exists,
it schedules the job that eats memory; once FILE.pause exists, it pauses that job's task.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import django
from redis.exceptions import RedisError

from tests.chaos.lines import append, now_ms

#: The longest delay of a job, and the longest time that it runs, ms.
MOST_DELAY_MS = 1_500
MOST_WORK_MS = 20
#: Of so many jobs one is cancelled at once.
CANCELLED = 25
#: What was refused is not tried again; after this time another job is.
AFTER_ERROR_S = 0.05


def main(queue: str, path: Path, per_second: float, first: int, how: str) -> None:
    django.setup()
    from django_delayq import aschedule, pause, schedule
    from django_delayq.calls.errors import may_have_run
    from django_delayq.exceptions import DelayqError
    from tests.chaos.tasks import eat, work

    act: Callable[..., Any] = schedule
    if how == "loop":
        runner = asyncio.Runner()

        def act(*args: Any) -> Any:
            return runner.run(aschedule(*args))

    task = work.using(queue=queue)
    stop, hungry, pausing = (
        Path(f"{path}.{what}") for what in ("stop", "eat", "pause")
    )
    drawn = random.Random(13 + first)
    next_ms = now_ms()
    for n in count(first):
        if stop.exists():
            return
        if hungry.exists():
            hungry.unlink()
            append(path, step="eater", job=schedule(eat.using(queue=queue), 0).id)
        if pausing.exists():
            pausing.unlink()
            pause(queue, task=eat)
            append(path, step="paused", after_ms=now_ms())
        is_cancelled = n % CANCELLED == CANCELLED - 1
        delay_ms = MOST_DELAY_MS if is_cancelled else drawn.randrange(MOST_DELAY_MS)
        before_ms = now_ms()
        told = {"n": n, "delay_ms": delay_ms, "before_ms": before_ms}
        try:
            job = act(task, delay_ms / 1000, n, drawn.randrange(MOST_WORK_MS))
            step = "stored"
            if is_cancelled:
                gone = runner.run(job.acancel()) if how == "loop" else job.cancel()
                step = "cancelled" if gone else "stored"
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
            append(path, step=step, job=job.id, after_ms=now_ms(), **told)
        # Evenly over the time that is left, without a rush after an outage.
        next_ms = max(next_ms + 1000 / per_second, now_ms() - 1000 / per_second)
        time.sleep(max(0.0, (next_ms - now_ms()) / 1000))


if __name__ == "__main__":
    queue, path, per_second, first, how = sys.argv[1:]
    main(queue, Path(path), float(per_second), int(first), how)
