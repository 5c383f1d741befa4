"""django-delayq, this checkout: ``schedule(task, due, payload)``. BENCH_DELAYQ=redisson: queues that Java shares."""

import json
from datetime import UTC, datetime

import django

django.setup()

from django.conf import settings  # noqa: E402

from benchmarks.peers.adapters.adapter import About, Adapter, tool, versions  # noqa: E402
from benchmarks.peers.adapters.delayq_app.tasks import jobs  # noqa: E402
from django_delayq import __version__, schedule, schedule_many  # noqa: E402


def _at(due):
    return 0 if due is None else datetime.fromtimestamp(due, UTC)


class DelayqAdapter(Adapter):
    about = About(
        documentation=("README.md", "docs/settings.md"),
        bulk="schedule_many",
        layouts={
            "1": "delayq_worker --processes 1 --threads 8 (default threads) --verbosity 0",
            "2": "delayq_worker --processes 2 --threads 8 --verbosity 0",
        },
        crash={"default": "lease 30 s (default)", "tuned": "lease 3 s"},
        redelivered_s={"default": 30, "tuned": 3},
        notes=f"a queue's settings: `{json.dumps(settings.DELAYQ['QUEUES']['q0'])}`",
        redelivery="at once where the supervisor lives; else when the lease of 30 s ends",
    )

    def version(self):
        return f"django-delayq {__version__}, {versions('django', 'redis', 'hiredis')}"

    def enqueue(self, due, queue, payload):
        schedule(jobs[queue], _at(due), payload)

    def enqueue_bulk(self, items):
        schedule_many(
            jobs[queue].prepare(_at(due), payload) for due, queue, payload in items
        )

    def workers(self, layout, queues):
        command = [
            tool("django-admin"),
            "delayq_worker",
            "--processes",
            layout,
            "--threads",
            "8",
            "--verbosity",
            "0",
        ]
        for i in range(queues):
            command += ["--queue", f"q{i}"]
        return [command]


ADAPTER = DelayqAdapter()
