"""Importing what another server exports, line by line: a file, or what comes from that server itself.

It may be interrupted. A file is imported again from the beginning, and a server continues with the page that it holds.
"""

from redis.client import Redis

from django_delayq import conf
from django_delayq.repair import pages
from django_delayq.repair.lines import (
    Begin,
    End,
    Line,
    OfQueue,
    OfSchedule,
    Page,
    mark_of,
)
from django_delayq.repair.moving import CannotMove, Tally, check_home, keep_settings
from django_delayq.repair.pages import Kind, Run
from django_delayq.repair.storing import Storing
from django_delayq.wire.signing import Keyring


class Importing:
    """One import; `take_in` stores a line, and ``tallies`` has what is done, by queue."""

    def __init__(
        self,
        client: Redis,
        keyring: Keyring,
        *,
        is_signing: bool,
        is_copy: bool,
        is_dry: bool,
        waits: bool = True,
    ) -> None:
        """``waits=False``: for no replica."""
        self._client = client
        self._keyring = keyring
        self._is_signing = is_signing
        self._is_copy = is_copy
        self._is_dry = is_dry
        self._waits = waits
        self._queue: conf.QueueSettings | None = None
        #: How far the runs of the file were read, by queue.
        self._runs: dict[str, Run] = {}
        self._storing: Storing | None = None
        #: Pages of these runs that were imported before, by queue.
        self._before: dict[str, int] = {}
        #: Of the pages of this queue so far.
        self._mark = ""
        self.tallies: dict[str, Tally] = {}
        #: Jobs read so far.
        self.seen = 0
        #: What the source has to be told, once everything is here; empty for a copy, or if nothing was stored.
        self.code = ""

    @property
    def took_ms(self) -> float:
        """How long the server took to store the last page."""
        return self._storing.took_ms if self._storing else 0.0

    def take_in(self, line: Line) -> None:
        """Store what a line has.

        Raises:
            QueueNotFound: its queue is not in the settings.
            CannotMove: this server is the source, the workers do not read the format, or the file is a copy; or what
                was stored is not as durable as the queue asks for.
        """
        match line:
            case Begin():
                if line.copy and not self._is_copy:
                    raise CannotMove(
                        "This file is a copy: its jobs are still on the server that it was made of, and run there. If that"
                        " server is gone, give --copy."
                    )
                self._is_copy = line.copy
                for name, there in line.key_shards.items():
                    whole = conf.get_settings().sharded.get(name)
                    if whole is not None:
                        check_home(whole, there)
            case OfQueue():
                self._begin(line)
            case OfSchedule():
                self._put(line.name, line.schedule)
            case Page():
                self.seen += len(line.jobs)
                self._store(line)
            case End():
                self._check_all_known()
                self.code = "" if self._is_copy or self._is_dry else line.code

    def _check_all_known(self) -> None:
        """Make sure that the file has each page that was imported before: else the source has forgotten some."""
        for name, stored in self._before.items():
            if self._runs[name].pages < stored:
                raise CannotMove(
                    f"the target has {stored} pages of queue {name!r}, and the file has {self._runs[name].pages}. Import the"
                    " last file that delayq_export has written: it has everything. If this is the last one,"
                    f" {pages.FORGOTTEN.format(name=name)}"
                )

    def _begin(self, line: OfQueue) -> None:
        settings = conf.get_settings()
        queue = self._queue = settings.queue(line.name)
        if queue.name not in {each.name for each in settings.queues_of()}:
            raise CannotMove(
                f"{line.name!r} is a shard that these settings do not have, so nobody would serve it here. Give"
                f" {queue.whole!r} as many SHARDS as the source has, and import the file again."
            )
        tally = self.tallies.setdefault(line.name, Tally())
        kind = Kind.FILE if line.pages is None else Kind.DIRECT
        self._runs[line.name] = Run(line.run, kind, line.pages or 0)
        self._mark = ""
        self._storing = None
        if self._is_dry:
            return
        storing = self._storing = Storing(
            self._client,
            queue,
            tally,
            self._keyring,
            is_signing=self._is_signing,
            waits=self._waits,
        )
        self._storing.begin(self._runs[line.name])
        self._before[line.name] = self._storing.stored
        self._storing.prepare(line.format)
        if line.settings.pauses or line.settings.limits:
            storing.keep(lambda: keep_settings(self._client, queue, line.settings))
        for name, changed in line.changed.items():
            self._storing.put(name, changed)

    def _put(self, name: str, schedule: pages.MovedSchedule) -> None:
        assert self._queue is not None
        tally = self.tallies[self._queue.name]
        if self._storing is None or self._storing.put(name, schedule):
            tally.schedules += 1

    def _store(self, line: Page) -> None:
        assert self._queue is not None
        its_run = self._runs[self._queue.name]
        self._runs[self._queue.name] = its_run._replace(pages=line.number)
        # A source that deletes each page has none of those before it.
        self._mark = mark_of(self._mark if its_run.kind is Kind.FILE else "", line.jobs)
        if self._is_dry:
            self.tallies[self._queue.name].moved += len(line.jobs)
            return
        assert self._storing is not None
        self._storing.store(its_run.id, line.number, line.jobs, self._mark)
