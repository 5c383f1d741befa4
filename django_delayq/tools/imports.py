"""Importing what another server exports, line by line: a file, or what comes from that server itself.

It may be interrupted. A file is imported again from the beginning, and a server continues with the page that it holds.
"""

from collections.abc import Sequence
from functools import partial

from redis.client import Redis

from django_delayq import conf
from django_delayq.core.shards import parse_shard
from django_delayq.core.store import key_in
from django_delayq.features.schedules.periodic import (
    all_schedules,
    read_definition,
    sealed_anew,
)
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.envelope import signed_for
from django_delayq.tools import page_calls
from django_delayq.tools.lines import (
    Begin,
    End,
    Line,
    OfQueue,
    OfSchedule,
    Page,
    mark_of,
)
from django_delayq.tools.move import CannotMove, Settings, Tally, keep_settings
from django_delayq.tools.page_calls import Kind, Moved, Run
from django_delayq.tools.target import Storing, check_key
from django_delayq.transport.steps import perform
from django_delayq.wire.signatures import Keyring, key_id_of

#: Bytes of a job's header before its tail, as `_job.lua` packs it.
HEADER_SIZE = 32


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
        #: The queue of the file that is read; the one of the settings that it is, or is a part of; whether its jobs are
        #: spread over all parts of that.
        self._line: OfQueue | None = None
        self._whole = ""
        self._is_spread = False
        #: How far the runs of the file were read, by queue.
        self._runs: dict[str, Run] = {}
        #: By the name of each queue that gets its jobs.
        self._storing: dict[str, Storing] = {}
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
        return sum(each.took_ms for each in self._storing.values())

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
                    f" {page_calls.FORGOTTEN.format(name=name)}"
                )

    def _begin(self, line: OfQueue) -> None:
        self._line, self._mark, self._storing = line, "", {}
        tally = self.tallies.setdefault(line.name, Tally())
        kind = Kind.FILE if line.pages is None else Kind.DIRECT
        run = self._runs[line.name] = Run(line.run, kind, line.pages or 0)
        parts = self._parts_for(line)
        if self._is_dry:
            return
        perform(self._client, shard_agreement.checking(parts))
        if kind is Kind.FILE:
            self._check_number(line, parts)
        for queue in parts:
            storing = self._storing[queue.name] = Storing(
                self._client,
                queue,
                tally,
                self._keyring,
                is_signing=self._is_signing,
                waits=self._waits,
            )
            storing.prepare(line.format)
            storing.begin(run, line.elsewhere)
            before = max(self._before.get(line.name, 0), storing.stored)
            self._before[line.name] = before
            settings = line.settings
            if self._is_spread:
                # A limit of the queue is a share, which others have by now.
                named = [each for each in settings.limits if each[0]]
                settings = Settings(settings.pauses, named)
            if settings.pauses or settings.limits:
                storing.keep(partial(keep_settings, self._client, queue, settings))
        for name, changed in line.changed.items():
            self._put(name, changed, is_counted=False)

    def _check_number(self, line: OfQueue, parts: Sequence[conf.QueueSettings]) -> None:
        """Make sure that the jobs of a file get the shards that they got before: elsewhere they would be stored once more."""
        control = conf.keys_of(self._whole).control
        field, ours = page_calls.shards_field(line.run), parts[0].shards or 0
        self._client.hsetnx(control, field, ours)
        theirs = int(self._client.hget(control, field) or ours)
        if theirs != ours:
            raise CannotMove(
                f"this file was imported here while queue {self._whole!r} had SHARDS={theirs or None}, and now it has"
                f" SHARDS={ours or None}, so jobs would be stored twice. If that import was interrupted, set"
                f" SHARDS={theirs or None} again and repeat it."
            )

    def _parts_for(self, line: OfQueue) -> list[conf.QueueSettings]:
        """Return where the jobs of a queue of the file go: they are spread, if it is a part of another number of shards.

        Raises:
            QueueNotFound: the queue is not in the settings.
        """
        settings = conf.get_settings()
        shard = parse_shard(line.name) if line.shards else None
        name = line.name if shard is None else shard[0]
        self._whole = settings.queues_of(name)[0].whole
        parts = settings.queues_of(self._whole)
        self._is_spread = (parts[0].shards or 0) != line.shards
        return parts if self._is_spread else [settings.queue(line.name)]

    def _put(
        self, name: str, schedule: page_calls.MovedSchedule, *, is_counted: bool = True
    ) -> None:
        assert self._line is not None
        tally, source = self.tallies[self._line.name], self._line.name
        if self._is_dry:
            tally.schedules += is_counted
            return
        queue = source
        if self._is_spread:
            stored, change = schedule.stored, schedule.change
            check_key(name, stored, change)
            queue = self._home_of_schedule(name, stored)
            schedule = schedule._replace(
                stored=stored
                and sealed_anew(source, "stored", name, stored, target=queue),
                change=change
                and sealed_anew(source, "change", name, change, target=queue),
            )
        if self._storing[queue].put(name, schedule):
            tally.schedules += is_counted

    def _home_of_schedule(self, name: str, stored: bytes) -> str:
        """Return the queue for a schedule, or for the changes to one in code, where that has another number of shards."""
        assert self._line is not None
        if stored:
            found = read_definition(self._line.name, "stored", name, stored)
            return self._home_of(found.limit or name)
        in_code = {each.name: each.queue for each in all_schedules()}
        queue = in_code.get(name, "")
        return queue if queue in self._storing else self._home_of(name)

    def _store(self, line: Page) -> None:
        assert self._line is not None
        name = self._line.name
        its_run = self._runs[name]
        self._runs[name] = its_run._replace(pages=line.number)
        # A source that deletes each page has none of those before it.
        self._mark = mark_of(self._mark if its_run.kind is Kind.FILE else "", line.jobs)
        if self._is_dry:
            self.tallies[name].moved += len(line.jobs)
            return
        for queue, jobs in self._spread(line.jobs).items():
            self._storing[queue].store(its_run.id, line.number, jobs, self._mark)

    def _spread(self, jobs: list[Moved]) -> dict[str, list[Moved]]:
        """Return the jobs of a page by queue: each queue notes each page, if only that nothing of it is for that queue.

        Raises:
            CannotMove: a job has to be signed for another shard, and its key is not here.
        """
        assert self._line is not None
        source = self._line.name
        if not self._is_spread:
            return {source: jobs}
        found: dict[str, list[Moved]] = {name: [] for name in self._storing}
        for job in jobs:
            key = key_in(job.header[HEADER_SIZE:])
            # Without a key, a job keeps its shard if there is one, and with that its id.
            is_kept = not key and source in found
            queue = source if is_kept else self._home_of(key or job.token)
            if queue != source and (key_id := key_id_of(job.payload)) is not None:
                if key_id not in self._keyring.ids:
                    raise CannotMove(
                        f"job {source}:{job.token} is signed with key {key_id}, which this process does not have, and"
                        f" needs a new signature, as it goes to {queue!r}. Add that key to DELAYQ['KEYS'], or its secret"
                        " to SECRET_KEY_FALLBACKS, and import the file again."
                    )
                payload = signed_for(job.payload, source, queue)
                job = job._replace(payload=payload)
            found[queue].append(job)
        return found

    def _home_of(self, key: str) -> str:
        settings = conf.get_settings()
        whole = settings.sharded.get(self._whole)
        return self._whole if whole is None else settings.shard_of_key(whole, key).name
