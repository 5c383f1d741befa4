"""taskiq with taskiq-redis: ``RedisStreamBroker``, ``ListRedisScheduleSource``, ``schedule_by_time``, no results.

The scheduler is a process of its own. By default it looks every 60 s, which makes a job up to a minute late; the
layouts have it look every second.
"""

from datetime import UTC, datetime

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

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

TUNED = {"idle_timeout": 5_000, "unacknowledged_lock_timeout": 5}
broker = RedisStreamBroker(
    URL,
    queue_name="tq:q0",
    additional_streams={"tq:q1": ">", "tq:q2": ">"},
    **(TUNED if IS_TUNED else {}),
)
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])


async def job(payload: str) -> None:
    await run_async(payload)


tasks = [
    broker.task(task_name=f"job{i}", queue_name=f"tq:q{i}")(job) for i in range(QUEUES)
]


class TaskiqAdapter(Adapter):
    is_async = True
    about = About(
        documentation=(
            "https://taskiq-python.github.io/guide/scheduling-tasks.html#dynamic-scheduling",
            "https://github.com/taskiq-python/taskiq-redis#readme",
        ),
        bulk="asyncio.gather of 50 (no bulk call)",
        layouts={
            "1": "taskiq worker --workers 1 (100 async tasks), scheduler --update-interval 1",
            "2": "taskiq worker --workers 2 (default), scheduler --update-interval 1",
        },
        crash={
            "default": "stream idle_timeout 600 s (default)",
            "tuned": "stream idle_timeout 5 s, unacknowledged_lock_timeout 5 s",
        },
        redelivered_s={"default": 600, "tuned": 10},
        redelivery="stream idle_timeout 600 s; claimed only after a later message arrives",
        notes="the schedule source reads and parses the current minute's jobs again at every look",
    )

    def version(self):
        return versions("taskiq", "taskiq-redis", "redis", "hiredis")

    async def open(self):
        await broker.startup()
        await source.startup()

    def enqueue(self, due, queue, payload):
        if due is None:
            return tasks[queue].kiq(payload)
        return tasks[queue].schedule_by_time(
            source, datetime.fromtimestamp(due, UTC), payload
        )

    def enqueue_bulk(self, items):
        return gathered(self.enqueue, items)

    def workers(self, layout, queues):
        quiet = ["--log-level", "WARNING"]
        return [
            [
                tool("taskiq"),
                "worker",
                f"{__name__}:broker",
                "--workers",
                layout,
                *quiet,
            ],
            [
                tool("taskiq"),
                "scheduler",
                f"{__name__}:scheduler",
                "--update-interval",
                "1",
                *quiet,
            ],
        ]


ADAPTER = TaskiqAdapter()
