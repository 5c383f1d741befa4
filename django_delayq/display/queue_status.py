"""Queues at one moment: their numbers, pauses, workers and problems, asked for in one round trip."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core import forward_calls, queue_reads, stored_pauses
from django_delayq.core import hold as hold_calls
from django_delayq.core.forward_calls import Forwards
from django_delayq.core.frame_heads import FrameHead, Stretch, read_heads
from django_delayq.core.hold import HeldNames
from django_delayq.core.queue_reads import Counts, sum_of
from django_delayq.core.shards import Part, read_shards
from django_delayq.core.stored_pauses import Pause
from django_delayq.faults import is_forbidden
from django_delayq.features.pauses.api import merged_pauses
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.api import Series, series_of, together_of
from django_delayq.features.statistics.calls import Figures, Unit, total
from django_delayq.health.pause_problems import find_paused
from django_delayq.health.problem import ServerProblem
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.health.queue_problems import find_other_format, find_queue_problems
from django_delayq.health.worker_problems import find_unserved
from django_delayq.jobs.workers import Worker, WorkerState, workers
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.several import run_all

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
    #: Its figures by the minute and by the hour; None: there are none, nobody asked for them, or they cannot be read.
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
            its = part.settings
            if its.redisson is not None:
                yield from find_other_format(
                    its.name, its.redisson, its.frame_format, part.frames
                )

    def facts(self, key_ids: Collection[str] | None = None) -> QueueFacts:
        """Return its facts for `find_queue_problems`; ``key_ids`` are None if nobody knows them."""
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
            queue_reads.counts(queue.keys),
            stored_pauses.pauses(queue.keys),
            queue_reads.read_format(queue.keys),
            hold_calls.held_names(queue.keys),
            forward_calls.forwards(queue.keys),
            read_shards(conf.keys_of(queue.whole)),
        ]
        calls += [
            statistics_calls.read_figures(queue.keys, unit, count=count)
            for unit, count in measured
            if count
        ]
        if ahead_ms:
            calls.append(queue_reads.ahead(queue.keys, ahead_ms))
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
        forwards=forward_calls.sum_of(forwards) if forwards else None,
        shards=shards,
    )
