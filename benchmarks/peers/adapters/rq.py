"""RQ with its own scheduler: ``enqueue_at``, results not kept.

It keeps whole seconds: rounded up here, so that no job is early.

Workers read this module as their ``-c`` configuration, which imports the task before they fork, as RQ's page on
performance advises.
"""

import math
from datetime import UTC, datetime

from redis import Redis
from rq import Queue, Retry

from benchmarks.peers.adapters.adapter import (
    IS_TUNED,
    QUEUES,
    URL,
    About,
    Adapter,
    run,
    tool,
    versions,
)

#: RQ names a task by its path.
JOB = "benchmarks.peers.adapters.rq.job"


def job(payload):
    run(payload)


class RqAdapter(Adapter):
    about = About(
        documentation=(
            "https://python-rq.org/docs/scheduling/",
            "https://python-rq.org/docs/workers/#performance-notes",
            "https://python-rq.org/docs/exceptions/#retrying-failed-jobs",
        ),
        bulk="enqueue_at(…, pipeline=)",
        layouts={
            "1": "rq worker --with-scheduler (default Worker: a fork a job)",
            "2": "rq worker-pool -n 2 (default Worker: a fork a job; with the scheduler)",
            "1t": "rq worker --with-scheduler -w rq.SimpleWorker (no fork)",
            "2t": "rq worker-pool -n 2 -w rq.SimpleWorker (no fork)",
        },
        crash={
            "default": "defaults",
            "tuned": "Retry(max=3) on every job, --maintenance-interval 5",
        },
        redelivered_s={"default": None, "tuned": None},
        redelivery="none by default: maintenance, every 600 s, moves it to the failed jobs; again only with Retry",
        notes="the scheduler looks every second, at whole seconds",
    )

    def version(self):
        return versions("rq", "redis", "hiredis")

    def open(self):
        self.client = Redis.from_url(URL)
        self.queues = [Queue(f"q{i}", connection=self.client) for i in range(QUEUES)]
        self.options = {"result_ttl": 0}
        if IS_TUNED:
            self.options["retry"] = Retry(max=3)

    def enqueue(self, due, queue, payload, **options):
        options |= self.options
        if due is None:
            self.queues[queue].enqueue(JOB, payload, **options)
        else:
            when = datetime.fromtimestamp(math.ceil(due), UTC)
            self.queues[queue].enqueue_at(when, JOB, payload, **options)

    def enqueue_bulk(self, items):
        with self.client.pipeline() as pipeline:
            for due, queue, payload in items:
                self.enqueue(due, queue, payload, pipeline=pipeline)
            pipeline.execute()

    def workers(self, layout, queues):
        if layout[0] == "1":
            command = [
                tool("rq"),
                "worker",
                "--with-scheduler",
                "--quiet",
                "--disable-job-desc-logging",
            ]
            if IS_TUNED:
                command += ["--maintenance-interval", "5"]
        else:
            command = [tool("rq"), "worker-pool", "-n", layout[0], "--quiet"]
        if layout.endswith("t"):
            command += ["-w", "rq.SimpleWorker"]
        return [
            [*command, "-u", URL, "-c", __name__, *(f"q{i}" for i in range(queues))]
        ]


ADAPTER = RqAdapter()
