"""Importing a file of ``exports``, line by line. It may be interrupted, and done again from the beginning."""

from redis.client import Redis

from django_delayq import conf
from django_delayq.exceptions import DecodeError
from django_delayq.repair import pages
from django_delayq.repair.exports import (
    Begin,
    End,
    Line,
    OfQueue,
    OfSchedule,
    Page,
    code_of,
    digest_of,
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

    def take_in(self, line: Line) -> None:
        """Store what a line has.

        Raises:
            QueueNotFound: its queue is not in the settings.
            CannotMove: this server is the source, the workers do not read the format, or the file is a copy; or what
                was stored is not as durable as the queue asks for.
            DecodeError: a part of the file is missing.
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
                if code_of(self._runs) != line.code:
                    raise _missing("a queue, or the last pages of one, are")
                self.code = "" if self._is_copy or self._is_dry else line.code

    def _check_all_known(self) -> None:
        """Make sure that the file has each page that was imported before: else the source has forgotten some."""
        for name, stored in self._before.items():
            if self._runs[name].pages < stored:
                raise CannotMove(
                    f"the file has {self._runs[name].pages} pages of queue {name!r}, and {stored} were imported before. Import"
                    " the last file that delayq_export has written: it has everything. Only if this is the last one, the"
                    " source has forgotten what it had exported, as after a failover to a replica that was behind: stop its"
                    " workers, else jobs run twice; there, run delayq_export --release, and export again. Jobs that are here"
                    " already are not stored twice."
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
        self._runs[line.name] = Run(line.run, Kind.FILE, 0)
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
        if line.number != its_run.pages + 1:
            raise _missing(f"pages of queue {self._queue.name!r} are")
        if digest_of(line.jobs) != line.digest:
            raise _missing(
                f"jobs of page {line.number} of queue {self._queue.name!r} are"
            )
        self._runs[self._queue.name] = its_run._replace(pages=line.number)
        self._mark = mark_of(self._mark, line.jobs)
        if self._is_dry:
            self.tallies[self._queue.name].moved += len(line.jobs)
            return
        assert self._storing is not None
        self._storing.store(its_run.id, line.number, line.jobs, self._mark)


def _missing(what: str) -> DecodeError:
    return DecodeError(
        f"{what} missing in the file: a part of it is lost. Copy it again, or run delayq_export again, into another file."
        " Then import that: what is here already is not stored twice.",
        b"",
    )
