"""django-q2 on its Redis broker.

Delayed jobs are rows of its ``Schedule`` table (``ONCE``). The cluster's guard looks for due rows every 30 s, which is
fixed in its code, and only then puts them on Redis. An immediate job is ``async_task``.
"""

from datetime import UTC, datetime

import django

django.setup()

from django_q.models import Schedule  # noqa: E402
from django_q.tasks import async_task, schedule  # noqa: E402

from benchmarks.peers.adapters import django_settings  # noqa: E402
from benchmarks.peers.adapters.adapter import (  # noqa: E402
    IS_TUNED,
    About,
    Adapter,
    run,
    tool,
    versions,
)

#: django-q2 names a task by its path.
JOB = "benchmarks.peers.adapters.django_q2.job"


def job(payload):
    run(payload)


class DjangoQ2Adapter(Adapter):
    about = About(
        documentation=(
            "https://django-q2.readthedocs.io/en/master/schedules.html",
            "https://django-q2.readthedocs.io/en/master/brokers.html#redis",
            "https://django-q2.readthedocs.io/en/master/configure.html",
        ),
        bulk="Schedule.objects.bulk_create (no bulk call)",
        store="SQLite file",
        layouts={
            "1": "1 qcluster, 1 worker (5 processes), queue_limit 500, recycle off, save_limit -1",
            "2": "1 qcluster, 2 workers (6 processes), the same",
        },
        crash={
            "default": "Redis broker (no receipts), queue_limit 500: popped jobs in the cluster's memory",
            "tuned": "Redis broker (no receipts), queue_limit 1 (its default with one worker)",
        },
        redelivered_s={"default": None, "tuned": None},
        redelivery=(
            "none with the Redis broker: a task is popped before it runs (at most once)"
        ),
        notes="delayed jobs are rows in SQLite, looked at every 30 s; Redis only holds jobs that are due",
    )

    def version(self):
        return versions("django-q2", "django", "redis", "hiredis")

    def open(self):
        django_settings.make_database()

    def stored_bytes(self):
        return django_settings.database_bytes()

    def enqueue(self, due, queue, payload):
        if due is None:
            async_task(JOB, payload, cluster=f"q{queue}")
        else:
            schedule(
                JOB,
                payload,
                cluster=f"q{queue}",
                next_run=datetime.fromtimestamp(due, UTC),
            )

    def enqueue_bulk(self, items):
        if items[0][0] is None:
            for item in items:
                self.enqueue(*item)
            return
        once = {"func": JOB, "schedule_type": Schedule.ONCE, "repeats": -1}
        Schedule.objects.bulk_create(
            Schedule(
                args=repr((payload,)),
                cluster=f"q{queue}",
                next_run=datetime.fromtimestamp(due, UTC),
                **once,
            )
            for due, queue, payload in items
        )

    def workers(self, layout, queues):
        limits = {
            "BENCH_WORKERS": layout,
            "BENCH_QUEUE_LIMIT": "1" if IS_TUNED else "500",
        }
        return [
            {
                "argv": [tool("django-admin"), "qcluster"],
                "env": {"Q_CLUSTER_NAME": f"q{i}", **limits},
            }
            for i in range(queues)
        ]


ADAPTER = DjangoQ2Adapter()
