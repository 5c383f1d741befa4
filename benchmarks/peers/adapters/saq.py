"""SAQ: ``enqueue(scheduled=)``, ``ttl=-1`` (no results).

``scheduled`` is in whole epoch seconds: rounded up here, so that no job is early.
"""

import math

from saq import Queue

from benchmarks.peers.adapters.adapter import (
    IS_TUNED,
    QUEUES,
    URL,
    About,
    Adapter,
    gathered,
    run_async,
    tool,
    versions,
)

queues = [Queue.from_url(URL, name=f"q{i}") for i in range(QUEUES)]


async def job(ctx, *, payload):
    await run_async(payload)


def _settings(queue, concurrency=10):
    settings = {"queue": queues[queue], "functions": [job], "concurrency": concurrency}
    if IS_TUNED:
        settings["timers"] = {"sweep": 5}
    return settings


settings0, settings1, settings2 = (_settings(queue) for queue in range(QUEUES))
tuned0, tuned1, tuned2 = (_settings(queue, 100) for queue in range(QUEUES))


class SaqAdapter(Adapter):
    is_async = True
    about = About(
        documentation=(
            "https://github.com/tobymao/saq#example",
            "https://saq-py.readthedocs.io/en/latest/",
        ),
        bulk="asyncio.gather of 50 (no bulk call)",
        layouts={
            "1": "saq --workers 1, concurrency 10 (default)",
            "2": "saq --workers 2, concurrency 10",
            "1t": "saq --workers 1, concurrency 100",
            "2t": "saq --workers 2, concurrency 100",
        },
        crash={
            "default": "timeout 10 s, retries 1, swept every 60 s (defaults)",
            "tuned": "timeout 2 s, retries 3, swept every 5 s",
        },
        redelivered_s={"default": None, "tuned": 10},
        redelivery="none by default: with retries=1 the sweep, every 60 s, aborts what passed its timeout of 10 s",
        notes="the scheduler looks every second, at whole seconds",
    )

    def version(self):
        return versions("saq", "redis", "hiredis")

    async def open(self):
        for queue in queues:
            await queue.connect()

    def enqueue(self, due, queue, payload):
        options = {"timeout": 2, "retries": 3} if IS_TUNED else {}
        if due is not None:
            options["scheduled"] = math.ceil(due)
        return queues[queue].enqueue("job", payload=payload, ttl=-1, **options)

    def enqueue_bulk(self, items):
        return gathered(self.enqueue, items)

    def workers(self, layout, queues):
        kind = "tuned" if layout.endswith("t") else "settings"
        return [
            [tool("saq"), f"{__name__}.{kind}{i}", "--workers", layout[0]]
            for i in range(queues)
        ]


ADAPTER = SaqAdapter()
