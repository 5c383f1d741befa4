"""Moving a queue from server to server."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from redis.client import Redis

from django_delayq.calls.running import run
from django_delayq.conf import QueueSettings
from django_delayq.delivery import looking
from django_delayq.delivery.looking import Counts
from django_delayq.repair import pages
from django_delayq.repair.moving import CannotMove, Tally, keep_settings, settings_of
from django_delayq.repair.pacing import finished_first
from django_delayq.repair.pages import Kind, Moved
from django_delayq.repair.storing import Storing, check_key
from django_delayq.repair.taking import (
    WALKS,
    SchedulesThere,
    Taking,
    schedules_of,
    take_schedule,
)
from django_delayq.wire.signing import Keyring


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
    ) -> None:
        """``prefix``: what goes before the queue's name on the source; None: what goes before it here.

        With a prefix given, another project may use the queue too, so only jobs that are signed with ``keyring`` move.
        ``waits=False``: for no replica.
        """
        self._source = source
        self._target = target
        self._queue = queue
        #: The queue as the source has it.
        self.there = queue if prefix is None else replace(queue, prefix=prefix)
        self.tally = Tally()
        self._only = None if prefix is None else keyring
        self._taking = Taking(
            source,
            self.there,
            self.tally,
            is_copy=False,
            key_ids=keyring.ids if self._only else (),
            waits=waits,
        )
        self._storing = Storing(
            target, queue, self.tally, keyring, is_signing=is_signing, waits=waits
        )

    @property
    def counts(self) -> Counts:
        """The contents of the source now."""
        return run(self._source, looking.counts(self.there.keys))

    def begin_on_source(self) -> None:
        """Begin the run, which is the first thing that `begin` does.

        Raises:
            CannotMove: the queue is being moved in another way.
        """
        self._taking.begin(Kind.DIRECT)

    def begin(self) -> None:
        """Begin the run, and have the target keep the pauses and limits of the source.

        Raises:
            CannotMove: both are one queue, the target does not read the format, or the key of a schedule is not here.
        """
        keys = self.there.keys
        begun = self._taking.run or self._taking.begin(Kind.DIRECT)
        schedules = schedules_of(self._source, self.there, self._only)
        try:
            # Those of another project stay.
            for name, entry in (
                schedules.known.entries.items() if not self._only else ()
            ):
                check_key(name, entry.stored, entry.change)
            self._storing.begin(begun)
            self._storing.prepare(run(self._source, looking.read_format(keys)))
        except CannotMove:
            if not begun.pages:
                self.end()
            raise
        settings = settings_of(self._source, self.there)
        if settings.pauses or settings.limits:
            self._storing.keep(
                lambda: keep_settings(self._target, self._queue, settings)
            )
        self._move_schedules(schedules)

    def _move_schedules(self, there: "SchedulesThere") -> None:
        keys = self.there.keys
        for name in there.stored:
            taken = self._taking.take(
                partial(take_schedule, self._source, self.there, name, there)
            )
            if taken is None:
                continue
            if self._storing.put(name, taken):
                self.tally.schedules += 1
            run(self._source, pages.end_schedule(keys, name, is_moved=True))
        for name, changed in there.changed.items():
            self._storing.put(name, changed)

    def steps(self) -> Iterator[None]:
        """Move all that waits or was given up; stop when a walk finds nothing, or after `WALKS`."""
        begun = self._taking.run
        assert begun is not None
        if begun.pages:
            # The page that an interrupted run has left.
            self._pass_on(begun.pages, self._taking.again(begun.pages))
            yield
        for _ in range(WALKS):
            for page, jobs in self._taking.walk():
                self._pass_on(page, jobs)
                yield
            if not self.tally.late:
                return

    def end(self) -> None:
        """End the run, so that jobs of the queue may be moved in another way."""
        assert self._taking.run is not None
        call = pages.end_page(
            self.there.keys, run=self._taking.run.id, page=0, is_moved=True
        )
        run(self._source, call)

    def _pass_on(self, page: int, jobs: list[Moved]) -> None:
        assert self._taking.run is not None
        if not jobs:
            return
        id = self._taking.run.id
        self._storing.store(id, page, jobs)
        self._taking.learn(len(jobs), self._storing.took_ms)
        call = pages.end_page(self.there.keys, run=id, page=page, is_moved=True)
        with finished_first():
            run(self._source, call)
