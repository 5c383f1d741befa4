"""Schedules jobs at a steady rate until told to stop, and writes down what it was told of each.

``python -m tests.chaos.load QUEUE FILE PER_SECOND FIRST``: a line a job, stored or refused, numbered from FIRST. It ends when FILE.stop exists. Once
FILE.eat exists, it schedules the job that eats memory.
"""

import random
import sys
import time
from itertools import count
from pathlib import Path

import django
from redis.exceptions import RedisError

from tests.chaos.lines import append, now_ms

#: The longest delay of a job, and the longest time that it runs, ms.
MOST_DELAY_MS = 1_500
MOST_WORK_MS = 20
#: What was refused is not tried again; after this time another job is.
AFTER_ERROR_S = 0.05


def main(queue: str, path: Path, per_second: float, first: int) -> None:
    django.setup()
    from django_delayq import schedule
    from django_delayq.calls.errors import may_have_run
    from django_delayq.exceptions import DelayqError
    from tests.chaos.tasks import eat, work

    task, stop, hungry = (
        work.using(queue=queue),
        Path(f"{path}.stop"),
        Path(f"{path}.eat"),
    )
    drawn = random.Random(13 + first)
    next_ms = now_ms()
    for n in count(first):
        if stop.exists():
            return
        if hungry.exists():
            hungry.unlink()
            append(path, step="eater", job=schedule(eat.using(queue=queue), 0).id)
        delay_ms = drawn.randrange(MOST_DELAY_MS)
        before_ms = now_ms()
        told = {"n": n, "delay_ms": delay_ms, "before_ms": before_ms}
        try:
            job = schedule(task, delay_ms / 1000, n, drawn.randrange(MOST_WORK_MS))
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
            append(path, step="stored", job=job.id, after_ms=now_ms(), **told)
        # Evenly over the time that is left, without a rush after an outage.
        next_ms = max(next_ms + 1000 / per_second, now_ms() - 1000 / per_second)
        time.sleep(max(0.0, (next_ms - now_ms()) / 1000))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
