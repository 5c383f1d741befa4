"""How ``delayq_status`` prints what `display.overview` has seen: queues, figures, workers, problems."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from django.template.defaultfilters import filesizeformat
from django.utils import formats

from django_delayq import conf
from django_delayq.display.overview import Overview
from django_delayq.display.queue_status import MINUTES, QueueStatus
from django_delayq.display.time_texts import short_time_text, span_text
from django_delayq.faults import describe_fault, is_forbidden
from django_delayq.features.statistics.calls import Histogram
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.jobs.workers import Worker, WorkerState
from django_delayq.management.terminal import Column, fitted, table, width_of, wrapped
from django_delayq.translations import (
    gettext,
    ngettext,
    number_text,
    say_fault,
    say_problems,
)
from django_delayq.wording import one_line, printable

#: Columns of a paragraph where no terminal says how many it has.
PARAGRAPH = 100
_SECOND = timedelta(seconds=1)

Style = Callable[[str], str]


def lines_of(status: Overview, width: int | None, heading: Style) -> Iterator[str]:
    """Describe it in tables, without the problems."""
    line = one_line(_server_line(status))
    yield line if width is None else fitted(line, width)
    yield ""
    queues = (part for each in status.queues for part in _rows_of(each))
    yield from table(_queue_columns(), map(_queue_row, queues), width, heading)
    if conf.get_settings().statistics:
        yield ""
        yield from table(_figures_columns(), _figures_rows(status), width, heading)
    yield ""
    if status.workers is None:
        yield (
            gettext("The list of workers is unknown: its node does not answer.")
            if status.workers_fault is not None
            and not is_forbidden(status.workers_fault)
            else gettext("The account may not read the list of workers.")
        )
        return
    if not status.workers:
        yield gettext("no worker runs")
        return
    rows = (_worker_row(each, status.now_ms) for each in status.workers)
    yield from table(_worker_columns(), rows, width, heading)


def _server_line(status: Overview) -> str:
    facts = status.facts
    version = ".".join(map(str, facts.version))
    url = status.url or gettext("the embedded server")
    parts = [f"{facts.product} {version} {url}".replace("  ", " ")]
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
    answers = gettext(
        "answers in {count} ms", count=formats.number_format(status.response_ms, 1)
    )
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


def _rows_of(queue: QueueStatus) -> Sequence[QueueStatus]:
    """Return the queue; or its shards, if only some of them can be read."""
    if isinstance(queue.counts, Exception) and queue.shards:
        return list(queue.shards)
    return [queue]


def _queue_row(queue: QueueStatus) -> list[str]:
    name, counts = one_line(queue.name), queue.counts
    if isinstance(counts, Exception):
        return [name, *["?"] * 8]
    if queue.is_paused:
        name = gettext("{queue} (paused)", queue=name)
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
        gettext("LATENESS P50"),
        gettext("LATENESS P99"),
        gettext("DURATION P50"),
        gettext("DURATION P99"),
    )
    return [
        Column(title.format(number=MINUTES), is_cut=True),
        *(Column(each, is_number=True) for each in titles),
    ]


def _figures_rows(status: Overview) -> Iterator[list[str]]:
    for queue in status.queues:
        figures = queue.recent
        yield [
            one_line(queue.name),
            number_text(figures.runs),
            number_text(figures.failures),
            *_percentiles(figures.lateness),
            *_percentiles(figures.duration),
        ]


def _percentiles(histogram: Histogram) -> Iterator[str]:
    for percent in (50, 99):
        ms = histogram.percentile(percent)
        yield "" if ms is None else short_time_text(ms)


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
        jobs.append(ngettext("and {number} more", "and {number} more", more))
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
    return wrapped(printable(text), width or PARAGRAPH, indent, indent)


def lines_of_fault(error: Exception) -> Iterator[str]:
    """Say why nothing can be shown."""
    fault = say_fault(describe_fault(error))
    yield f"{fault.what} {fault.hint}"
    yield printable(fault.message)
