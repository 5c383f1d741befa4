"""The overview as JSON can hold it, for programs; docs/howto/monitor.md has the shape."""

from typing import Any

from django_delayq import conf
from django_delayq.clock import iso_text
from django_delayq.display.overview import Overview, look
from django_delayq.display.queue_status import MINUTES, QueueStatus
from django_delayq.faults import describe_fault
from django_delayq.jobs.workers import Worker


def overview_data(seen: Overview | None = None) -> dict[str, Any]:
    """Return all queues, workers and problems as JSON can hold them; docs/howto/monitor.md has the shape.

    By default it looks itself; texts are English.

    Example::

        for problem in overview_data()["problems"]:
            print(problem["level"], problem["message"])
    """
    if seen is None:
        seen = look(conf.get_settings().queues_of())
    facts = seen.facts
    return {
        "server": {
            "url": seen.url,
            "product": facts.product,
            "version": ".".join(map(str, facts.version)),
            "role": facts.role or None,
            "used_memory": facts.used_memory,
            "maxmemory": facts.maxmemory,
            "maxmemory_policy": facts.policy or None,
            "appendonly": facts.is_aof_on,
            "response_ms": round(seen.response_ms, 3),
        },
        "queues": [_queue_data(queue) for queue in seen.queues],
        "workers": seen.workers and [_worker_data(each) for each in seen.workers],
        "workers_fault": seen.workers_fault
        and describe_fault(seen.workers_fault).message,
        "problems": [
            {"level": each.level, "message": each.message, "hint": each.hint}
            for each in seen.problems
        ],
    }


def _queue_data(queue: QueueStatus) -> dict[str, Any]:
    counts, figures = queue.counts, queue.recent
    told: dict[str, Any] = {"name": queue.name}
    if queue.shards:
        told["shards"] = [_queue_data(each) for each in queue.shards]
    if isinstance(counts, Exception):
        return {**told, "fault": describe_fault(counts).message}
    return {
        **told,
        "scheduled": counts.waiting - counts.due,
        "due": counts.due + counts.destination,
        "oldest_due_s": counts.late_ms / 1000,
        "running": counts.running,
        "retrying": counts.retrying,
        "held": counts.held,
        "dead": counts.dead,
        "quarantined": counts.quarantined,
        "forwards": None
        if queue.forwards is None
        else [
            {"queue": each.queue, "jobs": each.number, "oldest_s": since_s}
            for each, since_s in queue.forwards.ages_s()
        ],
        "paused": queue.is_paused,
        "paused_tasks": [each.task for each in queue.pauses if each.task is not None],
        "workers": None if queue.workers is None else len(queue.workers),
        "minutes": MINUTES,
        "runs": None if queue.minutes is None else figures.runs,
        "failures": None if queue.minutes is None else figures.failures,
        **{
            f"{name}_p{percent}_ms": histogram.percentile(percent)
            for name, histogram in (
                ("lateness", figures.lateness),
                ("duration", figures.duration),
            )
            for percent in (50, 99)
        },
    }


def _worker_data(worker: Worker) -> dict[str, Any]:
    return {
        **worker._asdict(),
        "state": str(worker.state),
        "jobs": [
            {**job._asdict(), "since": iso_text(job.since)} for job in worker.jobs
        ],
        "started_at": iso_text(worker.started_at),
        "seen_at": iso_text(worker.seen_at),
    }
