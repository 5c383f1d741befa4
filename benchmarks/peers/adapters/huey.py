"""Huey: ``RedisHuey``, ``schedule(delay=)``, results off. A Huey is one queue, so three queues are three consumers."""

import time

from huey import RedisHuey

from benchmarks.peers.adapters.adapter import (
    QUEUES,
    URL,
    About,
    Adapter,
    run,
    tool,
    versions,
)

h0, h1, h2 = hueys = [RedisHuey(f"q{i}", url=URL, results=False) for i in range(QUEUES)]


def job(payload):
    run(payload)


tasks = [huey.task(name="job")(job) for huey in hueys]


class HueyAdapter(Adapter):
    about = About(
        documentation=(
            "https://huey.readthedocs.io/en/latest/guide.html#scheduling-tasks",
            "https://huey.readthedocs.io/en/latest/consumer.html",
        ),
        layouts={
            "1": "huey_consumer -k thread -w 4, the scheduler looks every second (its minimum)",
            "2": "huey_consumer -k process -w 2, the scheduler looks every second",
        },
        redelivery="none: a task is popped before it runs (at most once)",
        notes="no bulk call; a delayed job goes through the ready queue first, and a worker moves it to the schedule",
    )

    def version(self):
        return versions("huey", "redis", "hiredis")

    def enqueue(self, due, queue, payload):
        if due is None:
            tasks[queue](payload)
        else:
            tasks[queue].schedule(args=(payload,), delay=max(0.0, due - time.time()))

    def workers(self, layout, queues):
        options = {"1": ["-k", "thread", "-w", "4"], "2": ["-k", "process", "-w", "2"]}[
            layout
        ]
        return [
            [tool("huey_consumer"), f"{__name__}.h{i}", "-q", "-n", *options]
            for i in range(queues)
        ]


ADAPTER = HueyAdapter()
