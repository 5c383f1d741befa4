"""django-delayq, this checkout, as the backend of Django's own tasks framework: ``using(run_after=)``."""

from datetime import UTC, datetime

import django

django.setup()

from django.tasks import task  # noqa: E402

from benchmarks.peers.adapters.adapter import (  # noqa: E402
    About,
    Adapter,
    run,
    tool,
    versions,
)
from django_delayq import __version__  # noqa: E402


@task(queue_name="q0")
def job(payload):
    run(payload)


class DelayqTasksAdapter(Adapter):
    about = About(
        documentation=("docs/howto/django-tasks.md",),
        layouts={
            "1": "delayq_worker --processes 1 --threads 8 (default threads) --verbosity 0",
            "2": "delayq_worker --processes 2 --threads 8 --verbosity 0",
        },
        notes="results cannot be switched off (kept 60 s)",
        redelivery="at once where the supervisor lives; else when the lease of 30 s ends",
    )

    def version(self):
        return f"django-delayq {__version__}, {versions('django', 'redis', 'hiredis')}"

    def enqueue(self, due, queue, payload):
        after = None if due is None else datetime.fromtimestamp(due, UTC)
        job.using(queue_name=f"q{queue}", run_after=after).enqueue(payload)

    def workers(self, layout, queues):
        command = [tool("django-admin"), "delayq_worker", "--processes", layout]
        command += ["--threads", "8", "--verbosity", "0"]
        for i in range(queues):
            command += ["--queue", f"q{i}"]
        return [command]


ADAPTER = DelayqTasksAdapter()
