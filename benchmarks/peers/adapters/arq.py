"""arq: ``enqueue_job(_defer_until=)``, results not kept."""

from datetime import UTC, datetime

from arq import create_pool
from arq.connections import RedisSettings

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

SETTINGS = RedisSettings.from_dsn(URL)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"arq": {"level": "WARNING"}},
}


async def job(ctx, payload):
    await run_async(payload)


def _settings(queue, **options):
    if IS_TUNED:
        options["job_timeout"] = 2
    # arq reads the class's own __dict__, not what it inherits.
    own = {
        "functions": [job],
        "redis_settings": SETTINGS,
        "queue_name": f"arq:q{queue}",
    }
    return type(
        "WorkerSettings", (), {**own, "keep_result": 0, "log_results": False, **options}
    )


W0, W1, W2 = (_settings(queue) for queue in range(QUEUES))
T0, T1, T2 = (
    _settings(queue, max_jobs=100, poll_delay=0.05) for queue in range(QUEUES)
)


class ArqAdapter(Adapter):
    is_async = True
    about = About(
        documentation=(
            "https://arq-docs.helpmanual.io/#deferring-jobs",
            "https://arq-docs.helpmanual.io/#arq.worker.Worker",
        ),
        bulk="asyncio.gather of 50 (no bulk call)",
        layouts={
            "1": "1 arq process, max_jobs 10, poll_delay 0.5 s (defaults)",
            "2": "2 arq processes, max_jobs 10, poll_delay 0.5 s",
            "1t": "1 arq process, max_jobs 100, poll_delay 0.05 s",
            "2t": "2 arq processes, max_jobs 100, poll_delay 0.05 s",
        },
        crash={
            "default": "job_timeout 300 s (default), so that a dead job runs again after 310 s",
            "tuned": "job_timeout 2 s, so that a dead job runs again after 12 s",
        },
        redelivered_s={"default": 310, "tuned": 12},
        redelivery="job_timeout and 10 s: 310 s",
    )

    def version(self):
        return versions("arq", "redis", "hiredis")

    async def open(self):
        self.pool = await create_pool(SETTINGS)

    def enqueue(self, due, queue, payload):
        until = None if due is None else datetime.fromtimestamp(due, UTC)
        return self.pool.enqueue_job(
            "job", payload, _queue_name=f"arq:q{queue}", _defer_until=until
        )

    def enqueue_bulk(self, items):
        return gathered(self.enqueue, items)

    def workers(self, layout, queues):
        kind = "T" if layout.endswith("t") else "W"
        command = [tool("arq"), "--custom-log-dict", f"{__name__}.LOGGING"]
        return [
            [*command, f"{__name__}.{kind}{i}"]
            for i in range(queues)
            for _ in range(int(layout[0]))
        ]


ADAPTER = ArqAdapter()
