"""A program that schedules until the test has it stop, in every way there is; it writes down what is stored.

``python -m tests.worker.project.scheduler QUEUE FILE``: a line a job, its id and its number; it ends when FILE.stop exists.
"""

import asyncio
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import django

#: Every so manieth job waits until the test has it run.
EVERY = 4
LATER_S = 3_600
#: Between two jobs.
PAUSE_S = 0.01


def main(queue: str, path: Path) -> None:
    django.setup()
    from django_delayq import aschedule, schedule, schedule_many
    from tests.worker.project.tasks import pair

    task, stop = pair.using(queue=queue), Path(f"{path}.stop")

    def stored(n: int) -> list[Any]:
        delay = LATER_S if n % EVERY == 0 else 0
        if n % 3 == 0:
            return [schedule(task, delay, n, str(n))]
        if n % 3 == 1:
            return [asyncio.run(aschedule(task, delay, n, str(n)))]
        return schedule_many([task.prepare(delay, n, str(n))])

    with path.open("a", buffering=1) as file:
        for n in count():
            if stop.exists():
                return
            for job in stored(n):
                file.write(f"{job.id} {n}\n")
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
