"""One task a queue."""

from benchmarks.peers.adapters.adapter import QUEUES, run
from django_delayq import delayed_task


def _task(queue):
    @delayed_task(name=f"job{queue}", queue=f"q{queue}")
    def job(payload):
        run(payload)

    return job


jobs = [_task(queue) for queue in range(QUEUES)]
