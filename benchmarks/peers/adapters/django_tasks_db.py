"""django-tasks-db: Django's own tasks framework in a SQLite file, ``using(run_after=)``. No Redis."""

import sqlite3
from datetime import UTC, datetime

import django

django.setup()

from django.db import transaction  # noqa: E402
from django.tasks import task  # noqa: E402

from benchmarks.peers.adapters import django_settings  # noqa: E402
from benchmarks.peers.adapters.adapter import About, Adapter, run, tool, versions  # noqa: E402


@task(queue_name="q0")
def job(payload):
    run(payload)


class DjangoTasksDbAdapter(Adapter):
    about = About(
        documentation=(
            "https://github.com/RealOrangeOne/django-tasks-db#readme",
            "https://docs.djangoproject.com/en/6.0/topics/tasks/",
            "https://docs.djangoproject.com/en/6.0/ref/databases/#sqlite-notes",
        ),
        bulk="500 in one transaction (no bulk call)",
        store="SQLite file",
        layouts={
            "1": "1 db_worker (one task at a time), --interval 1 (default)",
            "2": "2 db_worker, --interval 1",
            "1t": "1 db_worker, --interval 0.05",
            "2t": "2 db_worker, --interval 0.05",
        },
        redelivery="none: a job of a dead worker stays RUNNING",
        notes="SQLite, not Redis; results cannot be switched off (rows stay until they are pruned)",
    )

    def version(self):
        return (
            f"{versions('django-tasks-db', 'django')}, SQLite {sqlite3.sqlite_version}"
        )

    def open(self):
        django_settings.make_database()

    def stored_bytes(self):
        return django_settings.database_bytes()

    def enqueue(self, due, queue, payload):
        after = None if due is None else datetime.fromtimestamp(due, UTC)
        job.using(queue_name=f"q{queue}", run_after=after).enqueue(payload)

    def enqueue_bulk(self, items):
        with transaction.atomic():
            for item in items:
                self.enqueue(*item)

    def workers(self, layout, queues):
        names = ",".join(f"q{i}" for i in range(queues))
        interval = "0.05" if layout.endswith("t") else "1"
        command = [
            tool("django-admin"),
            "db_worker",
            "--queue-name",
            names,
            "--verbosity",
            "0",
            "--interval",
            interval,
        ]
        return [command for _ in range(int(layout[0]))]


ADAPTER = DjangoTasksDbAdapter()
