"""All queues, workers and problems at one moment, for the admin's overview, ``delayq_status`` and machines.

`look` asks the server, in three round trips for up to a hundred worker processes, however much waits. `overview_data` says
the same as JSON can hold it. Nothing here knows HTTP, or in which language people read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from redis.exceptions import RedisError

from django_delayq import __version__, conf
from django_delayq.calls.errors import is_of_node
from django_delayq.calls.several import run_all
from django_delayq.clients.clients import own_clients
from django_delayq.clock import iso_text, monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.connection import connection_url
from django_delayq.delivery import forwarding, holding, looking, pausing, statistics
from django_delayq.delivery.forwarding import Forwards
from django_delayq.delivery.holding import HeldNames
from django_delayq.delivery.looking import Counts, sum_of
from django_delayq.delivery.pausing import Pause
from django_delayq.delivery.sharding import Part, read_shards
from django_delayq.delivery.statistics import Figures, Unit, total
from django_delayq.exceptions import DelayqError, InvalidSettings
from django_delayq.faults import describe_fault, is_forbidden
from django_delayq.health.facts import Facts, ask_nodes, whole
from django_delayq.health.pause_problems import find_paused
from django_delayq.health.problem import ServerProblem, worst_first
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.health.queue_problems import (
    find_missing_queues,
    find_queue_problems,
)
from django_delayq.health.server_problems import find_in_facts
from django_delayq.health.shard_problems import find_other_shards
from django_delayq.health.worker_problems import (
    find_missing_workers,
    find_other_versions,
    find_unserved,
)
from django_delayq.jobs.pausing import merged_pauses
from django_delayq.jobs.statistics import Series, series_of, together_of
from django_delayq.jobs.workers import Worker, WorkerState, workers
from django_delayq.redaction import redact_url
from django_delayq.repair.calls import FrameHead, Stretch
from django_delayq.repair.heads import find_unread, read_heads

#: The figures are those of so many minutes, the present one among them.
MINUTES = 5


class QueueStatus(NamedTuple):
    """One queue now."""

    settings: QueueSettings
    #: Or why the queue cannot be read.
    counts: Counts | Exception
    pauses: list[Pause]
    #: The processes that claim from it; None: the account may not read which.
    workers: list[Worker] | None
    #: What was measured, by the minute and by the hour; None: nothing is measured or asked for, or it cannot be read.
    minutes: Series | None = None
    hours: Series | None = None
    #: How many jobs become due in each of the times that were asked for.
    ahead: Sequence[int] = ()
    #: The format, what is held, the frames at the head: what of it could be read.
    format: int | None = None
    held: HeldNames | None = None
    frames: Sequence[FrameHead] = ()
    #: What it has for other queues; None: that could not be read.
    forwards: Forwards | None = None
    #: What has its bare name on the server; None: that could not be read.
    whole: Part | None = None
    #: Of a queue with shards, each of them; the numbers above are their sums.
    shards: "Sequence[QueueStatus]" = ()

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_paused(self) -> bool:
        if self.shards:
            return all(each.is_paused for each in self.shards)
        return any(pause.task is None for pause in self.pauses)

    @property
    def is_away(self) -> bool:
        """Whether its node of a cluster does not answer, or that of a shard."""
        return isinstance(self.counts, Exception) and is_of_node(self.counts)

    @property
    def late_ms(self) -> int:
        """For how long the first due job has waited; 0: none is due, or nobody knows."""
        return self.counts.late_ms if isinstance(self.counts, Counts) else 0

    @property
    def recent(self) -> Figures:
        """The statistics of the last `MINUTES`."""
        spans = self.minutes.spans[-MINUTES:] if self.minutes is not None else []
        return total(span.figures for span in spans)

    @property
    def problems(self) -> Iterator[ServerProblem]:
        """The problems that `find_unserved` finds in it."""
        if self.shards and any(each.workers != self.workers for each in self.shards):
            for shard in self.shards:
                yield from shard.problems
        elif isinstance(self.counts, Counts) and self.workers is not None:
            yield from find_unserved(
                self.name,
                self.counts,
                len(self.workers),
                is_shared=self.settings.is_shared,
                is_paused=self.is_paused,
            )

    def all_problems(self, key_ids: Collection[str] | None) -> Iterator[ServerProblem]:
        """Everything that is wrong with it, as far as its numbers show that; ``key_ids`` are None if nobody knows them."""
        yield from self.problems
        if self.shards:
            yield from find_paused(self.facts())
        for part in self.shards or [self]:
            facts = part.facts(key_ids)
            yield from find_queue_problems(
                replace(facts, pauses=()) if self.shards else facts
            )
            yield from find_unread(part.settings, part.frames)

    def facts(self, key_ids: Collection[str] | None = None) -> QueueFacts:
        """Return what was read of it, for `find_queue_problems`; ``key_ids`` are None if nobody knows them."""
        counts = self.counts if isinstance(self.counts, Counts) else None
        return QueueFacts(
            name=self.name,
            jobs=None if counts is None else counts.jobs,
            max_jobs=self.settings.max_jobs,
            list_length=0 if counts is None else counts.delay_queue,
            format=self.format,
            held=self.held,
            key_ids=key_ids,
            pauses=self.pauses,
            forwards=self.forwards,
        )


class Overview(NamedTuple):
    """All that is shown."""

    #: Where the server is; None: it is the embedded one.
    url: str | None
    facts: Facts
    #: How long it took the server to tell of itself, ms.
    response_ms: float
    #: By the server's clock, epoch ms.
    now_ms: int
    queues: list[QueueStatus]
    #: None: they cannot be read.
    workers: list[Worker] | None
    #: The worst first.
    problems: list[ServerProblem]
    #: Why the workers cannot be read, if they cannot.
    workers_fault: RedisError | None = None
    #: By the address of each node of a cluster that holds slots, whether it answers.
    nodes: Mapping[str, bool] = {}

    @property
    def parts(self) -> list[QueueStatus]:
        """The queues, or their shards."""
        return [part for each in self.queues for part in each.shards or [each]]

    @property
    def answering(self) -> list[QueueSettings]:
        """The queues whose node answers, if only to refuse something."""
        return [each.settings for each in self.parts if not each.is_away]

    @property
    def is_whole(self) -> bool:
        """Whether only the workers are missing, because the account has no right to read them."""
        return all(isinstance(each.counts, Counts) for each in self.parts) and (
            self.workers_fault is None or is_forbidden(self.workers_fault)
        )

    def with_problems(self, more: Iterable[ServerProblem]) -> Self:
        """Return the same with further problems."""
        return self._replace(problems=worst_first([*self.problems, *more]))


def look(
    queues: Sequence[QueueSettings],
    *,
    minutes: int = MINUTES,
    hours: int = 0,
    ahead_ms: Sequence[int] = (),
) -> Overview:
    """Ask the server about queues.

    ``minutes`` and ``hours`` are the lengths of the series; ``ahead_ms`` are the times that `looking.ahead` counts by.

    Raises:
        redis.exceptions.RedisError: the server does not answer, or answers nothing about any queue.
    """
    with own_clients.waiting_once() as client:
        # First what is asked once: other calls are repeated, and a server that hangs would cost two time-outs.
        began = monotonic_ms()
        nodes = ask_nodes(client)
        response_ms = monotonic_ms() - began
        serving, workers_fault = living()
        found = look_at_queues(
            queues, serving, minutes=minutes, hours=hours, ahead_ms=ahead_ms
        )
        # Of almost every queue nothing more has to be asked.
        shards = conf.shards_of(
            part.settings
            for each in found
            for part in each.shards or [each]
            if part.whole and part.whole.differs(part.settings.shards or 0)
        )
        other_shards = find_other_shards(client, shards, conf.keys_of)
    if found and all(isinstance(each.counts, Exception) for each in found):
        raise found[0].counts  # type: ignore[misc]
    each_facts = [each for each in nodes.values() if isinstance(each, Facts)]
    names = {queue.name for queue in queues}
    shown = serving and [each for each in serving if not names.isdisjoint(each.queues)]
    counted = [each.counts for each in found if isinstance(each.counts, Counts)]
    key_ids = _key_ids()
    told = [
        *other_shards.values(),
        *(problem for each in found for problem in each.all_problems(key_ids)),
        *find_other_versions(
            {each.name: each.version for each in shown or ()}, __version__
        ),
        *(problem for facts in each_facts for problem in find_in_facts(facts)),
    ]
    url = _url()
    seen = Overview(
        redact_url(url) if url else None,
        whole(each_facts),
        response_ms,
        max((counts.now_ms for counts in counted), default=0),
        found,
        shown,
        [],
        workers_fault,
        {name: isinstance(each, Facts) for name, each in nodes.items() if name},
    )
    return seen.with_problems([*_find_missing(seen), *told])


def _find_missing(seen: Overview) -> Iterator[ServerProblem]:
    """Report what does not answer, while something else does."""
    yield from find_missing_queues(
        {
            each.name: each.counts
            for each in seen.parts
            if isinstance(each.counts, Exception)
        }
    )
    error = seen.workers_fault
    if error is not None and not is_forbidden(error):
        yield from find_missing_workers(error)


def _url() -> str | None:
    try:
        return connection_url()
    except InvalidSettings:
        # A server has answered: that of a test, which needs no CONNECTION.
        return None


def _key_ids() -> list[str] | None:
    try:
        return conf.get_keyring().ids
    except DelayqError:
        # `manage.py check` reports what is wrong with the keys.
        return None


def living() -> tuple[list[Worker] | None, RedisError | None]:
    """Return the workers that live; or None, and why: their registry is forbidden, or on a node that is down."""
    try:
        return workers(), None
    except RedisError as error:
        # Jobs do not need it.
        if is_forbidden(error) or is_of_node(error):
            return None, error
        raise


def look_at_queues(
    queues: Sequence[QueueSettings],
    serving: Sequence[Worker] | None,
    *,
    minutes: int = MINUTES,
    hours: int = 0,
    ahead_ms: Sequence[int] = (),
) -> list[QueueStatus]:
    """Ask the server about queues, in one round trip; ``serving`` are the workers that live."""
    measured = [(Unit.MINUTE, minutes), (Unit.HOUR, hours)]
    if not conf.get_settings().statistics:
        measured = []
    calls: list[Any] = []
    for queue in queues:
        calls += [
            looking.counts(queue.keys),
            pausing.pauses(queue.keys),
            looking.read_format(queue.keys),
            holding.held_names(queue.keys),
            forwarding.forwards(queue.keys),
            read_shards(conf.keys_of(queue.whole)),
        ]
        calls += [
            statistics.read_figures(queue.keys, unit, count=count)
            for unit, count in measured
            if count
        ]
        if ahead_ms:
            calls.append(looking.ahead(queue.keys, ahead_ms))
        if queue.is_shared:
            calls.append(read_heads(queue.keys))
    replies = iter(run_all(own_clients.of_thread(), calls))

    def known(otherwise: Any) -> Any:
        reply = next(replies)
        return otherwise if isinstance(reply, Exception) else reply

    found = []
    for queue in queues:
        counts, pauses = next(replies), next(replies)
        if isinstance(pauses, Exception):
            # Counts without the pauses would not say whether the queue is at work.
            counts, pauses = pauses, []
        its_format, held, forwards = known(None), known(None), known(None)
        has_bare_name = known(None)
        series: dict[Unit, Series] = {}
        for unit, count in measured:
            read = known(None) if count else None
            if read is not None:
                series[unit] = series_of(unit, count, read)
        ahead = known(()) if ahead_ms else ()
        stretch: Stretch | None = known(None) if queue.is_shared else None
        found.append(
            QueueStatus(
                queue,
                counts,
                pauses,
                serving
                if serving is None
                else [
                    each
                    for each in serving
                    if queue.name in each.queues and each.state is WorkerState.WORKING
                ],
                series.get(Unit.MINUTE),
                series.get(Unit.HOUR),
                ahead,
                its_format,
                held,
                stretch.frames if stretch is not None else (),
                forwards,
                has_bare_name,
            )
        )
    return list(_by_queue(found))


def _by_queue(found: Sequence[QueueStatus]) -> Iterator[QueueStatus]:
    """Yield each queue, where all that hold the jobs of one with shards are one with their sums."""
    settings = conf.get_settings()
    asked = {each.name: each for each in found}
    for each in found:
        name = each.settings.whole
        parts = [asked.get(part.name) for part in settings.parts_of(name)]
        if not parts or None in parts:
            yield each
        elif each is parts[0]:
            yield _together(settings.sharded[name], list(filter(None, parts)))


def _together(whole: QueueSettings, shards: Sequence[QueueStatus]) -> QueueStatus:
    counts = [each.counts for each in shards]
    fault = next((each for each in counts if isinstance(each, Exception)), None)
    serving = [each.workers for each in shards]
    workers = {each.id: each for its in serving for each in its or ()}
    minutes = [each.minutes for each in shards if each.minutes is not None]
    hours = [each.hours for each in shards if each.hours is not None]
    forwards = [each.forwards for each in shards if each.forwards is not None]
    return QueueStatus(
        whole,
        fault or sum_of([each for each in counts if isinstance(each, Counts)]),
        merged_pauses([pause for each in shards for pause in each.pauses]),
        None if None in serving else list(workers.values()),
        together_of(minutes) if minutes else None,
        together_of(hours) if hours else None,
        [sum(each) for each in zip(*(one.ahead for one in shards if one.ahead))],  # noqa: B905
        forwards=forwarding.sum_of(forwards) if forwards else None,
        shards=shards,
    )


def look_around(served: Collection[str]) -> list[ServerProblem]:
    """Report what a worker that begins to serve some queues shows best: others that nobody serves, and other versions.

    Raises:
        redis.exceptions.RedisError: the server does not answer, or not about its workers.
    """
    serving, _ = living()
    others = [
        queue for queue in conf.get_settings().queues_of() if queue.name not in served
    ]
    found = look_at_queues(others, serving, minutes=0)
    versions = {
        each.name: each.version
        for each in serving or ()
        if not set(served).isdisjoint(each.queues)
    }
    return [
        *(problem for each in found for problem in each.problems),
        *find_other_versions(versions, __version__),
    ]


# For programs


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
