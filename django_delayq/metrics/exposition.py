"""The metrics in Prometheus's text format: written by hand, as there is nothing to keep between two scrapes.

All numbers are read off the server, where workers have added them. So every process of a site gives the same answer, and
totals stay when processes end. Labels are the names of queues and tasks, of which the settings limit the number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from django_delayq import conf
from django_delayq.core.queue_reads import Counts
from django_delayq.display.overview import Overview, look
from django_delayq.display.queue_status import QueueStatus
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.api import BOUNDS_MS, Totals, totals_by_queue
from django_delayq.features.statistics.calls import Figures, Histogram, Outcome
from django_delayq.health.problem import Level
from django_delayq.jobs.workers import Worker, WorkerState
from django_delayq.transport.clients import own_clients
from django_delayq.transport.several import run_all

#: Outcomes that each task has from its first attempt on, so that an increase from nothing is seen; others come with
#: their first.
_OF_EACH_TASK = (Outcome.SUCCEEDED, Outcome.RETRYING, Outcome.DEAD)


class Sample(NamedTuple):
    """One line."""

    labels: Mapping[str, str]
    value: float
    #: Behind the name of the family.
    suffix: str = ""


class Family(NamedTuple):
    """The samples of one name."""

    name: str
    #: ``gauge``, ``counter``, ``histogram`` or ``summary``.
    kind: str
    help: str
    samples: Iterable[Sample]


def read() -> str:
    """Ask the server, in four round trips, and return the text.

    Raises:
        redis.exceptions.RedisError: the server does not answer, or answers nothing about any queue.
    """
    settings = conf.get_settings()
    queues = settings.queues_of()
    with own_clients.waiting_once() as client:
        seen = look(queues)
        calls = [statistics_calls.read_totals(queue.keys) for queue in queues]
        replies = run_all(client, calls if settings.statistics else [])
    totals: dict[str, Totals] = {}
    if settings.statistics:
        totals = totals_by_queue(
            (queue.whole, reply, {})
            for queue, reply in zip(queues, replies, strict=True)
            if not isinstance(reply, Exception)
        )
    return text_of([_up(1), *_families(seen, totals)])


def without_server(why: str) -> str:
    """Return the text when the server cannot be asked, with the reason as a comment."""
    return f"# {' '.join(why.split())}\n{text_of([_up(0)])}"


def text_of(families: Iterable[Family]) -> str:
    """Write families, leaving out those without samples."""
    return "".join(line for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    samples = list(family.samples)
    if not samples:
        return
    yield f"# HELP {family.name} {_escape(family.help)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for labels, value, suffix in samples:
        named = ",".join(
            f'{name}="{_escape(text, quote=True)}"' for name, text in labels.items()
        )
        braced = f"{{{named}}}" if named else ""
        yield f"{family.name}{suffix}{braced} {value!r}\n"


def _escape(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _up(value: int) -> Family:
    return Family(
        "delayq_up",
        "gauge",
        "Whether the server of DELAYQ['CONNECTION'] answers.",
        [Sample({}, value)],
    )


def _families(seen: Overview, totals: Mapping[str, Totals]) -> Iterator[Family]:
    yield Family(
        "delayq_node_up",
        "gauge",
        "Whether the node of the cluster answers.",
        [Sample({"node": name}, int(is_up)) for name, is_up in seen.nodes.items()],
    )
    yield from _of_queues(seen.queues)
    yield from _of_workers(seen.workers)
    levels = Counter(problem.level for problem in seen.problems)
    yield Family(
        "delayq_problems",
        "gauge",
        "Problems that the overview shows.",
        [Sample({"level": level}, levels[level]) for level in Level],
    )
    yield from _of_totals(totals)


# Now


def _of_queues(queues: Iterable[QueueStatus]) -> Iterator[Family]:
    yield Family(
        "delayq_queue_up",
        "gauge",
        "Whether the queue can be read.",
        [
            Sample({"queue": each.name}, int(isinstance(each.counts, Counts)))
            for each in queues
        ],
    )
    read = [(each, each.counts) for each in queues if isinstance(each.counts, Counts)]
    yield Family(
        "delayq_jobs",
        "gauge",
        "Jobs on the server, by state.",
        [
            Sample({"queue": queue.name, "state": state}, number)
            for queue, counts in read
            for state, number in _by_state(counts).items()
        ],
    )
    yield Family(
        "delayq_oldest_due_seconds",
        "gauge",
        "For how long the first due job has waited for a worker.",
        [
            Sample({"queue": queue.name}, counts.late_ms / 1000)
            for queue, counts in read
        ],
    )
    ages = [
        (Sample({"queue": queue.name, "to": each.queue}, each.number), age_s)
        for queue, _ in read
        if queue.forwards is not None
        for each, age_s in queue.forwards.ages_s()
    ]
    yield Family(
        "delayq_forwards",
        "gauge",
        "Jobs that follow ones of the queue and are on their way to another.",
        [sample for sample, _ in ages],
    )
    yield Family(
        "delayq_oldest_forward_seconds",
        "gauge",
        "For how long the first of them has been on its way.",
        [sample._replace(value=age_s) for sample, age_s in ages],
    )
    yield Family(
        "delayq_queue_paused",
        "gauge",
        "Whether the queue is paused.",
        [Sample({"queue": queue.name}, int(queue.is_paused)) for queue, _ in read],
    )
    yield Family(
        "delayq_queue_paused_tasks",
        "gauge",
        "Tasks that are paused on the queue.",
        [
            Sample({"queue": queue.name}, sum(p.task is not None for p in queue.pauses))
            for queue, _ in read
        ],
    )
    yield Family(
        "delayq_queue_workers",
        "gauge",
        "Worker processes that claim from the queue.",
        [
            Sample({"queue": queue.name}, len(queue.workers))
            for queue, _ in read
            if queue.workers is not None
        ],
    )
    yield Family(
        "delayq_jobs_offered_total",
        "counter",
        "Jobs that were scheduled since the queue began.",
        [
            Sample({"queue": queue.name}, counts.counters["offered"])
            for queue, counts in read
        ],
    )
    yield Family(
        "delayq_jobs_ended_total",
        "counter",
        "Jobs that have ended since the queue began, whether or not a worker ended them.",
        [
            Sample({"queue": queue.name, "outcome": state}, number)
            for queue, counts in read
            for state, number in counts.ended.items()
        ],
    )


def _by_state(counts: Counts) -> dict[str, int]:
    return {
        "scheduled": counts.waiting - counts.due,
        "due": counts.due + counts.destination,
        "running": counts.running,
        "retrying": counts.retrying,
        "held": counts.held,
        "dead": counts.dead,
        "quarantined": counts.quarantined,
    }


def _of_workers(workers: list[Worker] | None) -> Iterator[Family]:
    if workers is None:
        return
    states = Counter(each.state for each in workers)
    yield Family(
        "delayq_workers",
        "gauge",
        "Worker processes, by what they do.",
        [Sample({"state": state}, states[state]) for state in WorkerState],
    )
    yield Family(
        "delayq_worker_slots",
        "gauge",
        "Jobs that all worker processes together can run at a time.",
        _by_kind(
            sum(each.threads for each in workers),
            sum(each.coroutines for each in workers),
        ),
    )
    yield Family(
        "delayq_worker_busy",
        "gauge",
        "Jobs that all worker processes together run.",
        _by_kind(
            sum(each.busy_threads for each in workers),
            sum(each.busy_coroutines for each in workers),
        ),
    )
    yield Family(
        "delayq_worker_memory_bytes",
        "gauge",
        "Memory that the worker processes have for themselves.",
        [Sample({}, sum(each.memory for each in workers))],
    )


def _by_kind(threads: int, coroutines: int) -> list[Sample]:
    return [
        Sample({"kind": "thread"}, threads),
        Sample({"kind": "coroutine"}, coroutines),
    ]


# Since the first day


def _of_totals(totals: Mapping[str, Totals]) -> Iterator[Family]:
    queues = [({"queue": name}, each.queue) for name, each in totals.items()]
    tasks = [
        ({"queue": queue, "task": task}, figures)
        for queue, each in totals.items()
        for task, figures in each.tasks.items()
    ]
    yield Family(
        "delayq_attempts_total",
        "counter",
        "Attempts, by how they ended.",
        [
            sample
            for labels, figures in queues
            for sample in _by_outcome(labels, figures, Outcome)
        ],
    )
    yield Family(
        "delayq_lateness_seconds",
        "histogram",
        "How long after they could run attempts began.",
        [
            sample
            for labels, figures in queues
            for sample in _in_buckets(labels, figures.lateness)
        ],
    )
    yield Family(
        "delayq_duration_seconds",
        "histogram",
        "How long attempts took.",
        [
            sample
            for labels, figures in queues
            for sample in _in_buckets(labels, figures.duration)
        ],
    )
    yield Family(
        "delayq_task_attempts_total",
        "counter",
        "Attempts of a task, by how they ended.",
        [
            sample
            for labels, figures in tasks
            for sample in _by_outcome(labels, figures, _OF_EACH_TASK)
        ],
    )
    yield Family(
        "delayq_task_lateness_seconds",
        "summary",
        "How long after they could run attempts of a task began.",
        [
            sample
            for labels, figures in tasks
            for sample in _sum_and_count(labels, figures.lateness)
        ],
    )
    yield Family(
        "delayq_task_duration_seconds",
        "summary",
        "How long attempts of a task took.",
        [
            sample
            for labels, figures in tasks
            for sample in _sum_and_count(labels, figures.duration)
        ],
    )


def _by_outcome(
    labels: Mapping[str, str], figures: Figures, always: Iterable[Outcome]
) -> Iterator[Sample]:
    for outcome in dict.fromkeys([*always, *figures.outcomes]):
        yield Sample({**labels, "outcome": outcome}, figures.outcomes[outcome])


def _in_buckets(labels: Mapping[str, str], histogram: Histogram) -> Iterator[Sample]:
    for bound_ms, number in zip(BOUNDS_MS, histogram.folded(BOUNDS_MS), strict=True):
        bound = f"{bound_ms / 1000:.9g}"
        yield Sample({**labels, "le": bound}, number, "_bucket")
    yield Sample({**labels, "le": "+Inf"}, histogram.count, "_bucket")
    yield from _sum_and_count(labels, histogram)


def _sum_and_count(labels: Mapping[str, str], histogram: Histogram) -> Iterator[Sample]:
    yield Sample(labels, histogram.sum_us / 1_000_000, "_sum")
    yield Sample(labels, histogram.count, "_count")
