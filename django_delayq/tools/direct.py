"""Moving a queue from server to server: the lines of an export go straight to an import, one after the other.

The source deletes what a line has as soon as the target has stored it, so it holds one page at most. A run that was
interrupted continues with the page that the source still holds.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from redis.client import Redis

from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.core.queue_reads import Counts
from django_delayq.tools.imports import Importing
from django_delayq.tools.lines import Line, OfQueue, Page
from django_delayq.tools.move import CannotMove, OtherTarget, Tally, total_of
from django_delayq.tools.page_calls import Kind
from django_delayq.tools.source import Taking, schedules_of
from django_delayq.tools.target import check_key
from django_delayq.transport.run import run
from django_delayq.wire.signatures import Keyring


class Moving:
    """One run of one queue from server to server; `steps` yields after each page, and ``tally`` has what is done."""

    def __init__(
        self,
        source: Redis,
        target: Redis,
        queue: QueueSettings,
        keyring: Keyring,
        *,
        is_signing: bool = False,
        prefix: str | None = None,
        waits: bool = True,
        target_name: str = "",
        at_source: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``prefix``: what goes before the queue's name on the source; None: what goes before it here.

        With a prefix given, another project may use the queue too, so only jobs that are signed with ``keyring`` move.
        ``waits=False``: for no replica. ``target_name`` distinguishes the target from others that the queue could move to.
        ``at_source`` surrounds what is asked of the source.
        """
        self._source = source
        #: The queue as the source has it.
        self.there = queue if prefix is None else replace(queue, prefix=prefix)
        self.tally = Tally()
        self._at_source = at_source
        self._only = None if prefix is None else keyring
        self._taking = Taking(
            source,
            self.there,
            self.tally,
            Kind.DIRECT,
            only=self._only,
            waits=waits,
            target=target_name,
        )
        self._importing = Importing(
            target,
            keyring,
            is_signing=is_signing,
            is_copy=False,
            is_dry=False,
            waits=waits,
        )
        self._importing.tallies[queue.name] = self.tally

    @property
    def counts(self) -> Counts:
        """The contents of the source now."""
        return run(self._source, queue_reads.counts(self.there.keys))

    def count(self) -> None:
        """Have the tally say what would move now."""
        self.tally.moved = total_of(self.counts)
        there = schedules_of(self._source, self.there, self._only)
        self.tally.schedules = len(there.stored)

    def begin(self) -> None:
        """Begin the run, or continue it, and move pauses, limits and schedules.

        Raises:
            CannotMove: both are one queue, the target does not read the format, or the key of a schedule is not here; or
                the queue is being moved in another way, or to another server.
        """
        head = self._pass_on(self._taking.head())
        try:
            # The queue itself. What follows are schedules, which only this run can put back.
            next(head)
        except CannotMove as error:
            if self._taking.holds_nothing and not isinstance(error, OtherTarget):
                with self._at_source():
                    self._taking.withdraw()
            raise
        for _ in head:
            pass

    def steps(self) -> Iterator[None]:
        """Move all that waits or was given up; stop when a walk finds nothing, or after some."""
        return self._pass_on(self._taking.body())

    def end(self) -> None:
        """End the run, so that jobs of the queue may be moved in another way."""
        with self._at_source():
            self._taking.end()

    def _pass_on(self, lines: Iterator[Line]) -> Iterator[None]:
        while True:
            with self._at_source():
                line = next(lines, None)
            if line is None:
                return
            there = self._taking.schedules
            if isinstance(line, OfQueue) and there and not self._only:
                # Before anything moves. Those of another project stay.
                for name, entry in there.known.entries.items():
                    check_key(name, entry.stored, entry.change)
            self._importing.take_in(line)
            if isinstance(line, Page):
                self._taking.learn(len(line.jobs), self._importing.took_ms)
            with self._at_source():
                self._taking.delete(line)
            yield
