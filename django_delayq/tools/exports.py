"""One export of some queues into a file, which stays open on the server until it is confirmed or released."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from redis.client import Redis
from redis.exceptions import OutOfMemoryError

from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.jobs import shard_agreement
from django_delayq.tools import page_calls
from django_delayq.tools.lines import (
    VERSION,
    Begin,
    End,
    Line,
    OfSchedule,
    Page,
    code_of,
)
from django_delayq.tools.move import CannotMove, Tally
from django_delayq.tools.page_calls import Kind, Run
from django_delayq.tools.source import Taking, check_kind
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform


class Exporting:
    """One export of some queues; `lines` yields the file, and ``tallies`` has what is done, by queue."""

    def __init__(
        self,
        client: Redis,
        queues: Sequence[QueueSettings],
        *,
        is_copy: bool,
        waits: bool = True,
    ) -> None:
        """``waits=False``: for no replica."""
        self._client = client
        self._queues = queues
        self._is_copy = is_copy
        self._waits = waits
        self.tallies = {queue.name: Tally() for queue in queues}

    def begin(self) -> dict[str, Taking]:
        """Begin the runs of all queues.

        Raises:
            OtherShards: a queue has another number of shards.
            CannotMove: one of them is being moved in another way, or is not yet deleted here after another move.
        """
        perform(self._client, shard_agreement.checking(self._queues))
        taking = {}
        # Before any begins: a run that has begun has to be ended.
        runs = {} if self._is_copy else open_runs(self._client, self._queues)
        for queue in self._queues:
            if (its_run := runs.get(queue.name)) is None:
                # A mark of an end without a run is left of two ends at once.
                continue
            check_kind(queue, its_run, Kind.FILE)
            code = confirmed_with(self._client, queue)
            if code is not None:
                raise CannotMove(
                    f"queue {queue.name!r}: another server has what was exported, and not all of it is deleted here yet. Run"
                    f" delayq_export --confirm {code} again."
                )
        for queue in self._queues:
            each = taking[queue.name] = Taking(
                self._client,
                queue,
                self.tallies[queue.name],
                None if self._is_copy else Kind.FILE,
                waits=self._waits,
            )
            each.begin()
        return taking

    def lines(self) -> Iterator[Line]:
        """Take everything out that can move, and yield the lines of the file."""
        runs: dict[str, Run] = {}
        taking = self.begin()
        yield Begin(VERSION, self._is_copy)
        for queue in self._queues:
            each, tally = taking[queue.name], self.tallies[queue.name]
            for line in chain(each.head(), each.body()):
                if isinstance(line, Page):
                    tally.moved += len(line.jobs)
                elif isinstance(line, OfSchedule):
                    tally.schedules += 1
                yield line
            if not self._is_copy:
                # What was taken out is among what the last walk has seen held.
                tally.stay = max(0, tally.stay - tally.moved)
            # Workers forward it, and that moves with the queue that gets it.
            tally.stay += run(self._client, queue_reads.counts(queue.keys)).forwards
            assert each.run is not None
            runs[queue.name] = each.run
        yield End(code_of(runs))


def open_runs(client: Redis, queues: Iterable[QueueSettings]) -> dict[str, Run]:
    """Return the runs that move these queues now, by queue."""
    found = {}
    for queue in queues:
        text: bytes | None = client.hget(queue.keys.control, "moving")  # type: ignore[assignment]
        its_run = page_calls.run_of(text)
        if its_run is not None:
            found[queue.name] = its_run
    return found


def confirm(client: Redis, queues: Iterable[QueueSettings], code: str) -> None:
    """Note that another server has all of these runs, before the first of them ends: a code is that of all."""
    for queue in queues:
        # A full server takes no mark; an end that is interrupted there needs another export.
        with suppress(OutOfMemoryError):
            client.hset(queue.keys.control, "confirmed", code)


def confirmed_with(client: Redis, queue: QueueSettings) -> str | None:
    """Return the code by which the run of a queue was confirmed, if it was."""
    text: bytes | None = client.hget(queue.keys.control, "confirmed")  # type: ignore[assignment]
    return None if text is None else text.decode(errors="replace")
