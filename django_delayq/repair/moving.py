"""Moving what a queue holds from one server to another: a run of short, atomic steps that may end after any of them.

Workers, producers and Java continue meanwhile, on both servers. Of each page, in this order:

1. The source takes it out of its places and holds it. No worker there runs it from then on.
2. The target stores it, and remembers the number of the page.
3. The source deletes it.

A run that was interrupted continues with the page that the source still holds. If the target had stored it, its number
says so. So no job is lost, and none is stored twice.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from redis.client import Redis
from redis.exceptions import ResponseError

from django_delayq.calls.batch import BatchSizer
from django_delayq.calls.connections import nodes_of
from django_delayq.calls.running import run
from django_delayq.calls.steps import perform
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings, get_keyring
from django_delayq.delivery import limiting, looking, pausing, prefixes
from django_delayq.delivery.handing_over import FRESH_MS, HandOver, NotHandedOver
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.looking import Counts
from django_delayq.delivery.sharding import pin_shards
from django_delayq.exceptions import DecodeError, DelayqError, InvalidSchedule
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.schedules import Known, loading
from django_delayq.logs import get_log
from django_delayq.repair import pages
from django_delayq.repair.pacing import TARGET_MS, finished_first
from django_delayq.repair.pages import Kind, Moved, MovedSchedule, Source
from django_delayq.wire.signing import FORMAT, Keyring, key_id_of

#: Jobs of a page: at first, at least, at most. A page takes some 2 ms of a server; large payloads bound it by their bytes.
FIRST, LEAST, MOST = 64, 32, 150
#: Walks through all places of a queue, at most: a later one finds what came, or went on, meanwhile.
WALKS = 4
#: Keys that one step looks at, to find a server's queues.
SCANNED = 1_000

T = TypeVar("T")
logger = get_log("django_delayq")


class CannotMove(DelayqError):
    """Raised when a queue cannot move to this server; nothing has moved then."""


class SameQueue(CannotMove):
    """Raised when the queue to move is the one to move to."""


@dataclass(slots=True)
class Tally:
    """The result of a run so far."""

    #: Jobs, and elements of others, that the target has stored.
    moved: int = 0
    #: Of these, payloads that were signed anew.
    signed: int = 0
    #: Were on the target already, under the same id.
    known: int = 0
    #: Run without their unique key, because another job has it on the target.
    shared: int = 0
    #: Stay, because they belong to something that goes on there: a batch, or a job that runs.
    stay: int = 0
    #: Taken by the last walk that was made; above 0, jobs keep coming.
    late: int = 0
    #: Stored periodic schedules.
    schedules: int = 0
    #: Jobs that need a key which is not here, by its id.
    unknown: dict[str, int] = field(default_factory=dict)


def new_run() -> str:
    """Make an id for a run."""
    return secrets.token_urlsafe(9)


def total_of(counts: Counts) -> int:
    """Return how many elements a queue holds that can move."""
    kept = counts.dead + counts.quarantined
    return counts.jobs - counts.running + kept


def left_of(counts: Counts) -> int:
    """Return how much of a queue is left: what can move, what runs, and what its workers are to forward."""
    return total_of(counts) + counts.running + counts.forwards


def check_kind(queue: QueueSettings, its_run: pages.Run, kind: Kind) -> None:
    """Make sure that a queue is not being moved in another way.

    Raises:
        CannotMove: it is.
    """
    if its_run.kind is not kind:
        how = (
            "with delayq_import --from: run that again to continue"
            if its_run.kind is Kind.DIRECT
            else "to a file: end that first, with delayq_export --confirm or --release"
        )
        raise CannotMove(
            f"queue {queue.name!r} is being moved in another way already, {how}."
        )


class Taking:
    """Takes page after page out of a queue, or only reads it; `pages` yields them.

    Both commands use it: one sends a page to the other server, one writes it to a file.
    """

    def __init__(
        self,
        client: Redis,
        queue: QueueSettings,
        tally: Tally,
        *,
        is_copy: bool,
        key_ids: Sequence[str] = (),
        waits: bool = True,
    ) -> None:
        """``key_ids``: leave jobs that are signed with another key. ``waits=False``: for no replica."""
        self._client = client
        self._queue = queue
        self.tally = tally
        self._is_copy = is_copy
        self._key_ids = key_ids
        self._sizer = BatchSizer(
            first=FIRST, least=LEAST, most=MOST, target_ms=TARGET_MS, call_share=0.0
        )
        self._hand_over = HandOver(
            client,
            queue.keys,
            waits=waits,
            fresh_ms=FRESH_MS,
            within=finished_first,
        )
        #: The run of the queue; None before it begins.
        self.run: pages.Run | None = None

    def take(self, act: Callable[[], T]) -> T:
        """Take something out, and return it once the source has it no more, whichever of its servers fails.

        Raises:
            CannotMove: that takes too long.
        """
        try:
            return self._hand_over.make(act)
        except NotHandedOver as error:
            raise CannotMove(
                f"queue {self._queue.name!r} of the source: {error}. Jobs that were taken out are held there. Run this again once that"
                " is mended; with --no-wait it waits for no replica."
            ) from error

    def begin(self, kind: Kind) -> pages.Run:
        """Begin a run, or continue the one that has begun.

        Raises:
            CannotMove: the queue is being moved in another way.
        """
        keys = self._queue.keys
        self.run = run(self._client, pages.begin_export(keys, new_run(), kind))
        check_kind(self._queue, self.run, kind)
        return self.run

    def learn(self, count: int, took_ms: float) -> None:
        """Learn from the time that a call with a page of this size took."""
        self._sizer.learn(count, took_ms)

    def again(self, page: int) -> list[Moved]:
        """Return the jobs of a page that was taken before, and are still held."""
        return self._export(Source.FRAMES, page, 0).jobs

    def walk(self) -> Iterator[tuple[int, list[Moved]]]:
        """Yield all pages of one walk through the queue, each with its number, in the order in which jobs go."""
        self.tally.stay = self.tally.late = 0
        for source in Source:
            skip = 0
            while True:
                page = 0 if self._is_copy else self._next
                taken = self._export(source, page, skip)
                # A page whose reply was lost is read again, which looks at nothing else.
                if not taken.looked and not taken.jobs:
                    break
                self.tally.stay += taken.stay
                self.tally.late += len(taken.jobs)
                skip += taken.looked if self._is_copy else taken.stay
                if taken.jobs:
                    self._next += 1
                    yield self._next - 1, taken.jobs

    @property
    def _next(self) -> int:
        return 1 if self.run is None else self.run.pages + 1

    @_next.setter
    def _next(self, number: int) -> None:
        if self.run is not None:
            self.run = self.run._replace(pages=number - 1)

    def _export(self, source: Source, page: int, skip: int) -> pages.Exported:
        call = pages.export_page(
            self._queue.keys,
            source,
            run=self.run.id if page and self.run else "",
            page=page,
            skip=skip,
            limit=self._sizer.size,
            frame_format=self._queue.frame_format,
            key_ids=self._key_ids,
        )

        def export() -> pages.Exported:
            begun_ms = monotonic_ms()
            taken = run(self._client, call)
            self._sizer.learn(taken.looked, monotonic_ms() - begun_ms)
            return taken

        return export() if self._is_copy else self.take(export)


class Storing:
    """Stores pages on the target, signed again if that is wanted."""

    def __init__(
        self,
        client: Redis,
        queue: QueueSettings,
        tally: Tally,
        keyring: Keyring,
        *,
        is_signing: bool = False,
        waits: bool = True,
    ) -> None:
        self._client = client
        self._queue = queue
        self._tally = tally
        self._keyring = keyring
        self._is_signing = is_signing
        self._hand_over = HandOver(
            client,
            queue.keys,
            queue.durable,
            waits=waits and queue.waits,
            within=finished_first,
        )
        #: How long the server took to store the last page, ms.
        self.took_ms = 0.0
        #: Pages of the run that were stored before it went on.
        self.stored = 0
        # What the target knows of schedules, as of the last one that was stored.
        self._known: Known | None = None

    def begin(self, source_run: pages.Run) -> None:
        """Note on the target that a run comes.

        Raises:
            SameQueue: this is the queue that the run takes jobs from.
            CannotMove: the run has begun towards another one, the source
            has forgotten pages of it, or the queue moves away from here itself.
        """
        name, control = self._queue.name, self._queue.keys.control
        text: Any = self._client.hget(control, "moving")
        known = pages.run_of(text)
        if known is not None:
            if known.id == source_run.id:
                raise SameQueue(
                    f"queue {name!r} would move from a server to itself: the source is the server that"
                    " DELAYQ['CONNECTION'] names. Name the other one; or, to move jobs from another PREFIX to that of these"
                    " settings, give --from-prefix."
                )
            how = (
                "with delayq_import --from this server: run that to its end first, on the same target"
                if known.kind is Kind.DIRECT
                else "to a file: import that, and end it with delayq_export --confirm; or with --release, if it was imported"
                " nowhere"
            )
            raise CannotMove(
                f"queue {name!r} is itself being moved away from the target, {how}."
            )
        field = pages.stored_field(source_run.id)
        if source_run.kind is Kind.DIRECT and not source_run.pages:
            self._client.hsetnx(control, field, 0)
        stored: Any = self._client.hget(control, field)
        self.stored = 0 if stored is None else int(stored.split()[0])
        if source_run.kind is Kind.FILE:
            return
        if stored is None:
            raise CannotMove(
                f"queue {name!r} is being moved to another server already, and that run was interrupted. Run it again with"
                " that server in DELAYQ['CONNECTION']; or, if that server is lost, put the jobs that are on their way back"
                f" with delayq_export --release --queue {name} on the source."
            )
        if self.stored > source_run.pages:
            # The source would give their numbers to other jobs, which would count as stored.
            raise CannotMove(
                f"the target has {self.stored} pages of queue {name!r}, and the source knows of {source_run.pages}: it has"
                " forgotten the others, as after a failover to a replica that was behind. Stop the workers of the source, else"
                " jobs run twice; put back what is on its way, with"
                f" delayq_export --release --queue {name} on the source, and run this again: jobs that are here already are"
                " not stored twice."
            )

    def prepare(self, source_format: int) -> None:
        """Make sure that this version reads the queue's format at both ends.

        Raises:
            CannotMove: it does not.
        """
        name = self._queue.name
        found = run(self._client, looking.read_format(self._queue.keys))
        for side, format in ("source", source_format), ("target", found):
            if format > FORMAT:
                raise CannotMove(
                    f"queue {name!r} of the {side} is in format {format}, and this version reads format {FORMAT};"
                    " run this with a version that reads it."
                )

    def store(
        self, source_run: str, page: int, jobs: list[Moved], mark: str = ""
    ) -> None:
        """Store a page; if it was stored before, its jobs are known here. For ``mark`` see `pages.import_page`.

        Raises:
            CannotMove: see `keep`.
        """
        jobs = [self._looked_at(job) for job in jobs]
        call = pages.import_page(
            self._queue.keys,
            jobs,
            run=source_run,
            page=page,
            mark=mark,
            frame_format=self._queue.frame_format,
            insertion_list=self._queue.keeps_list,
        )

        def store() -> pages.Imported | None:
            begun_ms = monotonic_ms()
            stored = run(self._client, call)
            self.took_ms = monotonic_ms() - begun_ms
            return stored

        stored = self.keep(store)
        if stored is None:
            self._tally.known += len(jobs)
        else:
            self._tally.moved += stored.stored
            self._tally.known += stored.known
            self._tally.shared += stored.shared

    def put(self, name: str, schedule: pages.MovedSchedule) -> bool:
        """Store a periodic schedule; return whether it is new here.

        Raises:
            CannotMove: it is signed with a key that this process does not have; or see `keep`.
        """
        stored, change = schedule.stored, schedule.change
        check_key(name, stored, change)
        # In a change of a schedule in code there is no other part.
        texts = {"stored": stored, "change": change} if stored else {"change": change}
        return self.keep(lambda: self._put(name, schedule, texts))

    def _put(
        self, name: str, schedule: pages.MovedSchedule, texts: dict[str, bytes]
    ) -> bool:
        version = -1
        while version < 0:
            known = self._known or perform(self._client, loading(self._queue))
            try:
                register = known.register.changed(name, **texts)
            except InvalidSchedule as error:
                raise CannotMove(f"{error}.") from error
            call = pages.put_schedule(
                self._queue.keys,
                name,
                schedule,
                version=known.version,
                register=register.sealed(self._queue.name),
            )
            version = run(self._client, call)
            # It is not read again for each schedule.
            self._known = None
            if version > 0:
                register = register._replace(
                    number=register.next_number, next_number=register.next_number + 1
                )
                self._known = known._replace(version=version, register=register)
            elif not version:
                self._known = known
        return version > 0

    def keep(self, act: Callable[[], T]) -> T:
        """Store something, and return once the target has it for good. It is stored again if its primary is replaced.

        Raises:
            CannotMove: that takes too long.
        """
        try:
            return self._hand_over.make(act)
        except NotHandedOver as error:
            durable = self._queue.durable
            asks = f" asks for {durable}" if durable else ""
            raise CannotMove(
                f"queue {self._queue.name!r} of the target{asks}: {error}. The source still has what this concerns. Mend that,"
                " and run this again; with --no-wait it waits for no replica."
            ) from error

    def _looked_at(self, job: Moved) -> Moved:
        """Count a job that needs a key which is not here, and sign it again if that is wanted."""
        key = key_id_of(job.payload)
        if key is None:
            return job
        if self._is_signing:
            try:
                new = envelopes.signed_anew(job.payload, self._queue, self._keyring)
            except DecodeError:
                # Not this project's, or signed with a key that is not here: counted below.
                new = None
            if new is not None:
                self._tally.signed += 1
                return job._replace(payload=new)
        if key not in self._keyring.ids:
            self._tally.unknown[key] = self._tally.unknown.get(key, 0) + 1
        return job


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


def check_key(name: str, *texts: bytes) -> None:
    """Make sure that the texts of a schedule can be listed among those in force, which takes their key.

    Raises:
        CannotMove: they are signed with a key that this process does not have.
    """
    if any(map(get_keyring().lacks_key_of, texts)):
        raise CannotMove(
            f"Schedule {name!r} is signed with a key that this process does not have. Add that key to DELAYQ['KEYS'], or"
            " its secret to SECRET_KEY_FALLBACKS, and run this again: what has moved stays, and is not moved twice."
        )


class SchedulesThere(NamedTuple):
    """The periodic schedules of a queue that can move."""

    #: Names of those that are stored, or set aside by a run that was interrupted.
    stored: list[str]
    #: What somebody has changed of those in code.
    changed: dict[str, MovedSchedule]
    known: Known


def schedules_of(
    client: Redis, queue: QueueSettings, only: Keyring | None = None
) -> SchedulesThere:
    """Read which schedules of a queue can move; with ``only``, of those that are signed with one of its keys.

    Schedules that are not in force stay, and the log says so.
    """
    known = perform(client, loading(queue))
    stored, changed = list(known.aside), dict[str, MovedSchedule]()
    for name, entry in known.entries.items():
        moved = MovedSchedule(entry.stored, entry.change, b"", b"")
        if name in known.aside or not (entry.stored or entry.change):
            continue
        if only is not None and any(map(only.lacks_key_of, moved)):
            continue
        if not _holds(known, name, moved):
            logger.error(
                "queue %s: schedule %r does not move: it is not what was written last",
                queue.name,
                name,
            )
        elif entry.stored:
            stored.append(name)
        else:
            changed[name] = moved
    return SchedulesThere(stored, changed, known)


def _holds(known: Known, name: str, moved: MovedSchedule) -> bool:
    fits = known.register.fits
    return fits("stored", name, moved.stored) and fits("change", name, moved.change)


def take_schedule(
    client: Redis,
    queue: QueueSettings,
    name: str,
    there: SchedulesThere,
    *,
    is_copy: bool = False,
) -> MovedSchedule | None:
    """Set a stored schedule aside; None: no such schedule is stored, or it is not what was stored last, and stays.

    ``is_copy``: only read it.
    """
    taken = run(client, pages.take_schedule(queue.keys, name, is_copy=is_copy))
    if taken is None or _holds(there.known, name, taken):
        return taken
    # It may have been stored once more since the others were read.
    if _holds(perform(client, loading(queue)), name, taken):
        return taken
    logger.error(
        "queue %s: schedule %r does not move: it is not what was written last",
        queue.name,
        name,
    )
    if not is_copy:
        run(client, pages.end_schedule(queue.keys, name, is_moved=False))
    return None


def queues_on(client: Redis, prefix: str = "", ours: str = "") -> list[str]:
    """Return the names of the queues that a server has under a prefix, as far as their keys show.

    ``ours`` is the prefix of the settings. Queues under it, and under other prefixes that are noted there, are left out.
    """
    noted = {ours}
    # The key may be another's, or not ours to read.
    with suppress(ResponseError):
        noted |= run(client, prefixes.noted_prefixes()).keys()
    # All names begin with an empty prefix, and prefixes may begin with one another.
    longer = [other for other in noted if other != prefix and other.startswith(prefix)]
    names = set()
    for start in ("delayq_counters:", "redisson_delay_queue_timeout:"):
        for key in _scan(client, f"{start}*"):
            name = key.decode(errors="replace").removeprefix(start)
            if name.startswith("{") and name.endswith("}") and name.count("{") == 1:
                name = name[1:-1]
            if name.startswith(prefix) and not any(map(name.startswith, longer)):
                names.add(name.removeprefix(prefix))
    return sorted(names)


def left_on(client: Redis, names: Iterable[str], prefix: str = "") -> list[str]:
    """Return those queues that hold something that can move, that runs, or that goes to other queues."""
    left = []
    for name in names:
        try:
            keys = DeliveryKeys.of(name, prefix)
            counts = run(client, looking.counts(keys))
            is_left = left_of(counts) or _schedules_in(client, keys)
        except (ResponseError, DelayqError):
            # Its keys are not what they should be, or not ours to read.
            is_left = True
        # A name that is no text cannot be looked at.
        if is_left or "\ufffd" in name:
            left.append(name)
    return left


def _scan(client: Redis, pattern: str) -> Iterator[bytes]:
    for node in nodes_of(client):
        yield from node.scan_iter(match=pattern, count=SCANNED)


def home_of_keys(client: Redis, whole: QueueSettings) -> int | None:
    """Return in how many shards a server keeps unique keys and schedules of a queue, 0: under its bare name; None: it has none."""
    known = run(client, pin_shards(whole.keys))
    parts = [whole.bare(), *map(whole.shard, range(known.most))]
    if not any(_has_keys(client, part) for part in parts):
        return None
    return known.with_keys or 0


def check_home(whole: QueueSettings, there: int | None) -> None:
    """Make sure that a queue's keys are looked for where they will lie: they move with the shard in which they are.

    Raises:
        CannotMove: the source keeps them in another number of shards than these settings.
    """
    here = whole.key_home
    if there is None or there == here:
        return
    name = whole.name
    where = f"in its first {there} shards" if there else "under its bare name"
    raise CannotMove(
        f"queue {name!r} of the source keeps unique keys and schedules {where}, and these settings say {here}. Set"
        f" DELAYQ['QUEUES'][{name!r}]['KEY_SHARDS'] to {there} before anything is scheduled here, or let those jobs"
        " end there first. Nothing has moved."
    )


def _has_keys(client: Redis, queue: QueueSettings) -> bool:
    return bool(client.hlen(queue.keys.unique)) or _schedules_in(client, queue.keys)


def _schedules_in(client: Redis, keys: DeliveryKeys) -> bool:
    names: list[Any] = client.hkeys(keys.schedules)
    return any(name.startswith(b"stored ") for name in names)


class Settings(msgspec.Struct):
    """The pauses and limits of a queue that somebody has set, as arguments of the calls that set them."""

    #: Task, empty for the queue itself; until; by; why.
    pauses: list[tuple[str, str, str, str]] = []
    #: Name, empty for that of the queue itself; changes; by.
    limits: list[tuple[str, dict[str, Any], str]] = []


def settings_of(client: Redis, queue: QueueSettings) -> Settings:
    """Read the pauses and limits that somebody has set."""
    found = Settings()
    for pause in run(client, pausing.pauses(queue.keys)):
        until = "" if pause.until is None else f"={pause.until_ms:.0f}"
        found.pauses.append((pause.task or "", until, pause.by, pause.reason))
    for limit in run(client, limiting.limits(queue.keys)):
        if limit.set:
            found.limits.append((limit.name, limit.set, limit.by))
    return found


def keep_settings(client: Redis, queue: QueueSettings, settings: Settings) -> None:
    """Set pauses and limits, where somebody has not set others."""
    keys, there = queue.keys, settings_of(client, queue)
    known = {each[0] for each in there.pauses}
    for task, until, by, why in settings.pauses:
        if task not in known:
            call = pausing.pause(
                keys, task=task or None, until=until, by=by, reason=why
            )
            run(client, call)
    known = {each[0] for each in there.limits}
    for name, changes, by in settings.limits:
        if name not in known:
            run(client, limiting.set_limit(keys, changes, name=name, by=by))
