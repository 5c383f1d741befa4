"""What ``delayq_status`` asks of the server and prints: queues, figures, workers, problems."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext, ngettext
from redis.exceptions import RedisError

from django_delayq import __version__, conf
from django_delayq.calls.call import Call
from django_delayq.calls.several import run_all
from django_delayq.clients.clients import own_clients
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery import looking, pausing
from django_delayq.delivery.looking import Counts
from django_delayq.delivery.pausing import Pause
from django_delayq.delivery.statistics import Figures, Histogram
from django_delayq.faults import describe_fault, is_forbidden
from django_delayq.health.facts import Facts, ask
from django_delayq.health.problems import (
    Level,
    ServerProblem,
    find_other_versions,
    find_unserved,
)
from django_delayq.jobs.statistics import queue_statistics
from django_delayq.jobs.workers import Worker, WorkerState, workers
from django_delayq.management.terminal import (
    Column,
    fitted,
    one_line,
    printable,
    table,
    width_of,
)
from django_delayq.redaction import redact_url
from django_delayq.showing.display import span_text
from django_delayq.translating import number_text, say_fault, say_problems

#: The figures are those of so many minutes, the present one among them.
MINUTES = 5
#: Columns of a paragraph where no terminal says how many it has.
PARAGRAPH = 100
_SECOND = timedelta(seconds=1)

Style = Callable[[str], str]


class QueueStatus(NamedTuple):
    """One queue now."""

    settings: QueueSettings
    #: Or why it cannot be counted.
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
    #: What was measured of each queue in the last minutes, by name.
    figures: dict[str, Figures]
    #: None: the account may not read which.
    workers: list[Worker] | None
    problems: list[ServerProblem]


def look(queues: Sequence[QueueSettings], of_server: Sequence[ServerProblem]) -> Status:
    """Ask the server about queues, in a few round trips; ``of_server`` is what `server_problems` has found.

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
        ask(client),
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
            counts,
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


def _figures(queues: Sequence[QueueSettings]) -> dict[str, Figures]:
    if not conf.get_settings().statistics:
        return {}
    names = [queue.name for queue in queues]
    series = queue_statistics(names, minutes=MINUTES)
    return {name: each.total for name, each in series.items()}


# For people


def lines_of(status: Status, width: int | None, heading: Style) -> Iterator[str]:
    """Describe it in tables, without the problems."""
    line = one_line(_server_line(status))
    yield line if width is None else fitted(line, width)
    yield ""
    yield from table(_queue_columns(), map(_queue_row, status.queues), width, heading)
    if conf.get_settings().statistics:
        yield ""
        yield from table(_figures_columns(), _figures_rows(status), width, heading)
    yield ""
    if status.workers is None:
        yield gettext("The account may not read which workers are there.")
        return
    if not status.workers:
        yield gettext("no worker is there")
        return
    rows = (_worker_row(each, status.now_ms) for each in status.workers)
    yield from table(_worker_columns(), rows, width, heading)


def _server_line(status: Status) -> str:
    facts = status.facts
    version = ".".join(map(str, facts.version))
    parts = [f"{facts.product} {version} {status.url}".replace("  ", " ")]
    if facts.role:
        parts.append(facts.role)
    if facts.used_memory is not None:
        used = _size(facts.used_memory)
        most = facts.maxmemory
        template = gettext("{used} of {most} used") if most else gettext("{used} used")
        parts.append(template.format(used=used, most=_size(most or 0)))
    if facts.is_aof_on is not None:
        parts.append(
            gettext("append-only file on")
            if facts.is_aof_on
            else gettext("append-only file off")
        )
    answers = gettext("answers in {count} ms").format(count=f"{status.took_ms:.1f}")
    return ", ".join([*parts, answers])


def _size(number: int) -> str:
    # Django has a space that does not break, which not every terminal can show.
    return filesizeformat(number).replace("\xa0", " ")


def _queue_columns() -> list[Column]:
    titles = (
        gettext("SCHEDULED"),
        gettext("DUE"),
        gettext("OLDEST"),
        gettext("RUNNING"),
        gettext("RETRYING"),
        gettext("HELD"),
        gettext("DEAD"),
        gettext("QUARANTINED"),
    )
    return [
        Column(gettext("QUEUE"), is_cut=True),
        *(Column(title, is_number=True) for title in titles),
    ]


def _queue_row(queue: QueueStatus) -> list[str]:
    name, counts = one_line(queue.name), queue.counts
    if isinstance(counts, Exception):
        return [name, *["?"] * 8]
    if queue.is_paused:
        name = gettext("{queue} (paused)").format(queue=name)
    late_ms = counts.late_ms
    numbers = (
        counts.running,
        counts.retrying,
        counts.held,
        counts.dead,
        counts.quarantined,
    )
    return [
        name,
        number_text(counts.waiting - counts.due),
        number_text(counts.due + counts.destination),
        span_text(late_ms) if late_ms >= 1000 else "",
        *map(number_text, numbers),
    ]


def _figures_columns() -> list[Column]:
    title = ngettext("LAST MINUTE", "LAST {number} MINUTES", MINUTES)
    titles = (
        gettext("RUNS"),
        gettext("FAILED"),
        gettext("LATE P50"),
        gettext("LATE P99"),
        gettext("TOOK P50"),
        gettext("TOOK P99"),
    )
    return [
        Column(title.format(number=MINUTES), is_cut=True),
        *(Column(each, is_number=True) for each in titles),
    ]


def _figures_rows(status: Status) -> Iterator[list[str]]:
    for queue in status.queues:
        figures = status.figures.get(queue.name, Figures())
        yield [
            one_line(queue.name),
            number_text(figures.runs),
            number_text(figures.failures),
            *_percentiles(figures.lateness),
            *_percentiles(figures.duration),
        ]


def _percentiles(histogram: Histogram) -> Iterator[str]:
    for percent in (50, 99):
        yield _milliseconds(histogram.percentile(percent))


def _milliseconds(ms: float | None) -> str:
    """Write a time to two digits or so: they are that exact."""
    if ms is None:
        return ""
    if ms >= 60_000:
        return span_text(int(ms))
    if ms >= 1_000:
        return gettext("{count} s").format(count=f"{ms / 1_000:.2g}")
    return gettext("{count} ms").format(count=f"{ms:.2g}" if ms < 100 else f"{ms:.0f}")


def _worker_columns() -> list[Column]:
    return [
        Column(gettext("WORKER")),
        Column(gettext("VERSION")),
        Column(gettext("STATE")),
        Column(gettext("BUSY"), is_number=True),
        Column(gettext("MEMORY"), is_number=True),
        Column(gettext("UP"), is_number=True),
        Column(gettext("RUNS"), is_cut=True),
    ]


def _worker_row(worker: Worker, now_ms: int) -> list[str]:
    jobs = [
        f"{job.task or job.id} {_since(job.since, now_ms)}".rstrip()
        for job in worker.jobs[:3]
    ]
    more = len(worker.jobs) - len(jobs)
    if more > 0:
        template = ngettext("and {number} more", "and {number} more", more)
        jobs.append(template.format(number=number_text(more)))
    states = {
        WorkerState.WORKING: gettext("working"),
        WorkerState.QUIET: gettext("quiet"),
        WorkerState.STOPPING: gettext("stopping"),
    }
    busy = worker.busy_threads + worker.busy_coroutines
    return [
        one_line(worker.name),
        one_line(worker.version),
        states[worker.state],
        f"{busy}/{worker.threads}",
        _size(worker.memory),
        _since(worker.started_at, now_ms),
        one_line("; ".join(jobs)),
    ]


def _since(moment: datetime, now_ms: int) -> str:
    return span_text(max(0, now_ms - int(moment.timestamp() * 1000)))


def lines_of_problems(
    problems: Sequence[ServerProblem],
    width: int | None,
    styles: Mapping[Level, Style],
) -> Iterator[str]:
    """Describe what is wrong, each with what to do about it."""
    labels = {
        Level.ERROR: gettext("ERROR"),
        Level.WARNING: gettext("WARNING"),
        Level.INFO: gettext("NOTE"),
    }
    indent = " " * (2 + max(map(width_of, labels.values())))
    for problem in say_problems(problems):
        yield ""
        first, *rest = _wrapped(problem.message, width, indent)
        label = styles[problem.level](labels[problem.level])
        padding = " " * (len(indent) - width_of(labels[problem.level]))
        yield label + padding + first.lstrip()
        yield from rest
        yield from _wrapped(problem.hint, width, indent)


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    # Commands are to be copied.
    return textwrap.wrap(
        printable(text),
        width or PARAGRAPH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def lines_of_fault(error: Exception) -> Iterator[str]:
    """Say why nothing can be shown."""
    fault = say_fault(describe_fault(error))
    yield f"{fault.what} {fault.hint}"
    yield printable(fault.message)


# For programs


def as_json(status: Status) -> dict[str, Any]:
    """Describe it for programs."""
    facts = status.facts
    return {
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
            _queue_json(queue, status.figures.get(queue.name, Figures()))
            for queue in status.queues
        ],
        "workers": status.workers and [_worker_json(each) for each in status.workers],
        "problems": [
            {"level": each.level, "message": each.message, "hint": each.hint}
            for each in status.problems
        ],
    }


def _queue_json(queue: QueueStatus, figures: Figures) -> dict[str, Any]:
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
        "runs": figures.runs,
        "failures": figures.failures,
        **{
            f"{name}_p{percent}_ms": histogram.percentile(percent)
            for name, histogram in (
                ("late", figures.lateness),
                ("took", figures.duration),
            )
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
