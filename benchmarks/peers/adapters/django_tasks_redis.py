"""django-tasks-redis: Django's own tasks framework on Redis streams, ``using(run_after=)``."""

from datetime import UTC, datetime

import django

django.setup()

from django.tasks import task  # noqa: E402

from benchmarks.peers.adapters.adapter import (  # noqa: E402
    IS_TUNED,
    About,
    Adapter,
    run,
    tool,
    versions,
)


@task(queue_name="q0")
def job(payload):
    run(payload)


class DjangoTasksRedisAdapter(Adapter):
    about = About(
        documentation=(
            "https://github.com/tokibito/django-tasks-redis#readme",
            "https://docs.djangoproject.com/en/6.0/topics/tasks/",
        ),
        layouts={
            "1": "1 run_redis_tasks --continuous (one task at a time), REDIS_BLOCK_TIMEOUT 5 s (defaults)",
            "2": "2 run_redis_tasks --continuous, the same",
            "1t": "1 run_redis_tasks --continuous, REDIS_BLOCK_TIMEOUT 100 ms",
            "2t": "2 run_redis_tasks --continuous, REDIS_BLOCK_TIMEOUT 100 ms",
        },
        crash={
            "default": "REDIS_CLAIM_TIMEOUT 300 s, swept every 60 s (defaults)",
            "tuned": "REDIS_CLAIM_TIMEOUT 5 s, --claim-interval 2",
        },
        redelivered_s={"default": 360, "tuned": 10},
        redelivery="REDIS_CLAIM_TIMEOUT 300 s, swept every 60 s",
        notes=(
            "no bulk call; results cannot be switched off (kept 60 s); due jobs are moved only between two reads, so an "
            "idle worker looks every REDIS_BLOCK_TIMEOUT"
        ),
    )

    def version(self):
        return versions("django-tasks-redis", "django", "redis", "hiredis")

    def enqueue(self, due, queue, payload):
        after = None if due is None else datetime.fromtimestamp(due, UTC)
        job.using(queue_name=f"q{queue}", run_after=after).enqueue(payload)

    def workers(self, layout, queues):
        command = [tool("django-admin"), "run_redis_tasks", "--continuous"]
        if queues == 1:  # without --queue it serves all of QUEUES
            command += ["--queue", "q0"]
        if IS_TUNED:
            command += ["--claim-interval", "2"]
        environment = {"BENCH_BLOCK_MS": "100" if layout.endswith("t") else "5000"}
        return [{"argv": command, "env": environment} for _ in range(int(layout[0]))]


ADAPTER = DjangoTasksRedisAdapter()
