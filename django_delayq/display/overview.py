"""All queues, workers and problems at one moment, for the admin's overview, ``delayq_status`` and machines.

`look` asks the server, in three round trips for up to a hundred worker processes, however much waits. Nothing here knows
HTTP, or in which language people read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from redis.exceptions import RedisError

from django_delayq import __version__, conf
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import Counts
from django_delayq.display.queue_status import (
    MINUTES,
    QueueStatus,
    living,
    look_at_queues,
)
from django_delayq.exceptions import InvalidSettings
from django_delayq.faults import is_forbidden
from django_delayq.health.facts import Facts, ask_nodes, whole
from django_delayq.health.problem import ServerProblem, worst_first
from django_delayq.health.queue_problems import find_missing_queues
from django_delayq.health.server_problems import find_in_facts
from django_delayq.health.shard_problems import find_other_shards
from django_delayq.health.worker_problems import (
    find_missing_workers,
    find_other_versions,
)
from django_delayq.jobs.workers import Worker
from django_delayq.project_connection import connection_url
from django_delayq.redaction import redact_url
from django_delayq.transport.clients import own_clients


class Overview(NamedTuple):
    """All that is shown."""

    #: Where the server is; None: it is the embedded one.
    url: str | None
    facts: Facts
    #: How long the server took to answer, ms.
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
        # Calls that are made once come first: others are repeated, and a server that hangs would cost two time-outs.
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
    key_ids = conf.key_ids()
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
