"""The overview of queues, workers and problems without HTTP, in a bounded number of round trips.

``delayq_status`` prints it, Prometheus and other programs read it. A queue that cannot be read hides no other one.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext
from redis.exceptions import RedisError

from django_delayq import __version__, conf
from django_delayq.calls.call import Call
from django_delayq.calls.several import run_all
from django_delayq.clients.clients import own_clients
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery import looking, pausing, statistics
from django_delayq.delivery.looking import Counts
from django_delayq.delivery.pausing import Pause
from django_delayq.delivery.statistics import Figures, Unit
from django_delayq.faults import describe_fault, is_forbidden
from django_delayq.health.facts import Facts, ask
from django_delayq.health.problems import (
    Level,
    ServerProblem,
    find_nearly_full,
    find_other_versions,
    find_paused,
    find_role,
    find_unserved,
)
from django_delayq.jobs.statistics import series_of
from django_delayq.jobs.workers import Worker, WorkerState, workers
from django_delayq.redaction import redact_url

#: The figures are those of so many minutes, the present one among them.
MINUTES = 5


def overview_data() -> dict[str, Any]:
    """Return the overview of all queues, as JSON has it; docs/howto/monitor.md describes its shape.

    It takes five round trips, and one more for each further hundred processes of workers. It writes nothing.

    Raises:
        redis.exceptions.RedisError: the server does not answer, or answers nothing about any queue.
    """
    return as_json(look(list(conf.get_settings().queues.values())))


class QueueStatus(NamedTuple):
    """One queue now."""

    settings: QueueSettings
    #: Or why the queue cannot be read.
    counts: Counts | Exception
    pauses: list[Pause]
    #: The processes that claim from it; None: the account may not read which.
    workers: list[Worker] | None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_paused(self) -> bool:
        return any(pause.task is None for pause in self.pauses)

    @property
    def problems(self) -> Iterator[ServerProblem]:
        """What `find_unserved` says of it."""
        if isinstance(self.counts, Counts) and self.workers is not None:
            yield from find_unserved(
                self.name,
                self.counts,
                len(self.workers),
                is_shared=self.settings.is_shared,
                is_paused=self.is_paused,
            )


class Status(NamedTuple):
    """All that is shown."""

    url: str
    facts: Facts
    #: How long the server took to answer, ms.
    took_ms: float
    #: By the server's clock, epoch ms.
    now_ms: int
    queues: list[QueueStatus]
    #: What was measured of each queue in the last minutes, by name. A queue that cannot be read is missing.
    figures: dict[str, Figures]
    #: None: the account may not read which.
    workers: list[Worker] | None
    problems: list[ServerProblem]


def look(
    queues: Sequence[QueueSettings],
    of_server: Sequence[ServerProblem] | None = None,
) -> Status:
    """Ask the server about queues, in a few round trips.

    ``of_server`` is what `server_problems` has found. It writes on trial, so it is not for a look every few seconds;
    without it, the problems are those that the answers show.

    Raises:
        redis.exceptions.RedisError: the server does not answer, or answers nothing about any queue.
    """
    client = own_clients.of_thread()
    begun = monotonic_ms()
    client.ping()
    took_ms = monotonic_ms() - begun
    serving = _living()
    found = look_at_queues(queues, serving)
    if found and all(isinstance(each.counts, Exception) for each in found):
        raise found[0].counts  # type: ignore[misc]
    names = {queue.name for queue in queues}
    shown = serving and [each for each in serving if not names.isdisjoint(each.queues)]
    counted = [each.counts for each in found if isinstance(each.counts, Counts)]
    facts = ask(client)
    if of_server is None:
        of_server = [*find_role(facts), *_shown_by(found)]
    problems = [
        *(problem for each in found for problem in each.problems),
        *find_other_versions(
            {each.name: each.version for each in shown or ()}, __version__
        ),
        *of_server,
    ]
    order = list(Level)
    return Status(
        redact_url(conf.connection_url() or gettext("the embedded server")),
        facts,
        took_ms,
        max((counts.now_ms for counts in counted), default=0),
        found,
        _figures(queues),
        shown,
        sorted(problems, key=lambda problem: order.index(problem.level)),
    )


def _living() -> list[Worker] | None:
    """Return the workers that live; None: the account has no right to their registry, which jobs do not need."""
    try:
        return workers()
    except RedisError as error:
        if is_forbidden(error):
            return None
        raise


def look_at_queues(
    queues: Sequence[QueueSettings], serving: Sequence[Worker] | None
) -> list[QueueStatus]:
    """Ask the server about queues, in one round trip; ``serving`` are the workers that live."""
    calls: list[Call[Any]] = [looking.counts(queue.keys) for queue in queues]
    calls += [pausing.pauses(queue.keys) for queue in queues]
    replies = run_all(own_clients.of_thread(), calls)
    return [
        QueueStatus(
            queue,
            # Counts without the pauses would not say whether the queue is at work.
            pauses if isinstance(pauses, Exception) else counts,
            [] if isinstance(pauses, Exception) else pauses,
            serving
            if serving is None
            else [
                each
                for each in serving
                if queue.name in each.queues and each.state is WorkerState.WORKING
            ],
        )
        for queue, counts, pauses in zip(
            queues, replies[: len(queues)], replies[len(queues) :], strict=True
        )
    ]


def _shown_by(queues: Sequence[QueueStatus]) -> Iterator[ServerProblem]:
    """Report what `server_problems` would of the queues' counts and pauses."""
    for each in queues:
        yield from find_paused(each.pauses)
        if isinstance(each.counts, Counts):
            yield from find_nearly_full(
                each.name, each.counts.jobs, each.settings.max_jobs
            )


def _figures(queues: Sequence[QueueSettings]) -> dict[str, Figures]:
    if not conf.get_settings().statistics:
        return {}
    calls = [
        statistics.read_figures(queue.keys, Unit.MINUTE, count=MINUTES)
        for queue in queues
    ]
    replies = run_all(own_clients.of_thread(), calls)
    return {
        queue.name: series_of(Unit.MINUTE, MINUTES, read).total
        for queue, read in zip(queues, replies, strict=True)
        if not isinstance(read, Exception)
    }


def as_json(status: Status) -> dict[str, Any]:
    """Describe it for programs."""
    facts = status.facts
    return {
        "now": datetime.fromtimestamp(status.now_ms / 1000, UTC).isoformat(),
        "server": {
            "url": status.url,
            "product": facts.product,
            "version": ".".join(map(str, facts.version)),
            "role": facts.role or None,
            "used_memory": facts.used_memory,
            "maxmemory": facts.maxmemory,
            "maxmemory_policy": facts.policy or None,
            "appendonly": facts.is_aof_on,
            "took_ms": round(status.took_ms, 3),
        },
        "queues": [
            _queue_json(queue, status.figures.get(queue.name))
            for queue in status.queues
        ],
        "workers": status.workers and [_worker_json(each) for each in status.workers],
        "problems": [
            {"level": each.level, "message": each.message, "hint": each.hint}
            for each in status.problems
        ],
    }


def _queue_json(queue: QueueStatus, figures: Figures | None) -> dict[str, Any]:
    counts = queue.counts
    told: dict[str, Any] = {"name": queue.name}
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
        "paused": queue.is_paused,
        "paused_tasks": [each.task for each in queue.pauses if each.task is not None],
        "workers": None if queue.workers is None else len(queue.workers),
        "minutes": MINUTES,
        **_figures_json(figures),
    }


def _figures_json(figures: Figures | None) -> dict[str, float | None]:
    """Describe what was measured; each value is None if that cannot be read."""
    return {
        "runs": None if figures is None else figures.runs,
        "failures": None if figures is None else figures.failures,
        **{
            f"{name}_p{percent}_ms": None
            if figures is None
            else getattr(figures, field).percentile(percent)
            for name, field in (("late", "lateness"), ("took", "duration"))
            for percent in (50, 99)
        },
    }


def _worker_json(worker: Worker) -> dict[str, Any]:
    return {
        **worker._asdict(),
        "state": str(worker.state),
        "jobs": [
            {**job._asdict(), "since": job.since.isoformat()} for job in worker.jobs
        ],
        "started_at": worker.started_at.isoformat(),
        "seen_at": worker.seen_at.isoformat(),
    }
