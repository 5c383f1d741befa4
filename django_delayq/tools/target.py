"""Storing the pages and schedules that another server has given, each once."""

from collections.abc import Callable
from typing import Any, TypeVar

from redis.client import Redis

from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings, get_keyring
from django_delayq.core import queue_reads
from django_delayq.core.hand_over import HandOver
from django_delayq.exceptions import DecodeError, InvalidSchedule
from django_delayq.features.schedules.known_schedules import Known, loading
from django_delayq.jobs import envelope as envelopes
from django_delayq.tools import page_calls
from django_delayq.tools.move import (
    CannotMove,
    OtherTarget,
    SameQueue,
    Tally,
    handed_over,
)
from django_delayq.tools.pace import finished_first
from django_delayq.tools.page_calls import Kind, Moved
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from django_delayq.wire.signatures import FORMAT, Keyring, key_id_of

T = TypeVar("T")


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

    def begin(self, source_run: page_calls.Run, elsewhere: str = "") -> None:
        """Note on the target that a run comes.

        ``elsewhere`` is the name of another server that the source says the run goes to.

        Raises:
            SameQueue: this is the queue that the run takes jobs from.
            OtherTarget: the run goes to another server.
            CannotMove: the source has forgotten pages of it, or the queue moves away from here itself.
        """
        name, control = self._queue.name, self._queue.keys.control
        text: Any = self._client.hget(control, "moving")
        known = page_calls.run_of(text)
        if known is not None:
            if known.id == source_run.id:
                raise SameQueue(
                    f"queue {name!r} would move from a server to itself: the source is the server that"
                    " DELAYQ['CONNECTION'] names. Name the other one; or, to move jobs from another PREFIX to that of these"
                    " settings, give --from-prefix."
                )
            raise CannotMove(
                f"queue {name!r} is itself being moved away from the target, {known.way}."
            )
        field = page_calls.stored_field(source_run.id)
        if source_run.kind is Kind.DIRECT and not source_run.pages and not elsewhere:
            # It stays if the run is withdrawn: another command may have continued it.
            self._client.hsetnx(control, field, 0)
        stored: Any = self._client.hget(control, field)
        self.stored = 0 if stored is None else int(stored.split()[0])
        if source_run.kind is Kind.FILE:
            return
        if stored is None:
            to = f", {elsewhere}" if elsewhere else ""
            raise OtherTarget(
                f"queue {name!r} is being moved to another server already{to}. Run that to its end, with that server in"
                " DELAYQ['CONNECTION']; or, if that server is lost, put the jobs that are on their way back with"
                f" delayq_export --release --queue {name} on the source."
            )
        if self.stored > source_run.pages:
            # The source would give their numbers to other jobs, which would count as stored.
            raise CannotMove(
                f"the target has {self.stored} pages of queue {name!r}, and the source knows of {source_run.pages}:"
                f" {page_calls.FORGOTTEN.format(name=name)}"
            )

    def prepare(self, source_format: int) -> None:
        """Make sure that this version reads the queue's format at both ends.

        Raises:
            CannotMove: it does not.
        """
        name = self._queue.name
        found = run(self._client, queue_reads.read_format(self._queue.keys))
        for side, format in ("source", source_format), ("target", found):
            if format > FORMAT:
                raise CannotMove(
                    f"queue {name!r} of the {side} is in format {format}, and this version reads format {FORMAT};"
                    " run this with a version that reads it."
                )

    def store(self, source_run: str, page: int, jobs: list[Moved], mark: str) -> None:
        """Store a page; if it was stored before, its jobs are known here. For ``mark`` see `pages.import_page`.

        Raises:
            CannotMove: see `keep`.
        """
        jobs = [self._looked_at(job) for job in jobs]
        call = page_calls.import_page(
            self._queue.keys,
            jobs,
            run=source_run,
            page=page,
            mark=mark,
            frame_format=self._queue.frame_format,
            insertion_list=self._queue.keeps_list,
        )

        def store() -> page_calls.Imported | None:
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

    def put(self, name: str, schedule: page_calls.MovedSchedule) -> bool:
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
        self, name: str, schedule: page_calls.MovedSchedule, texts: dict[str, bytes]
    ) -> bool:
        version = -1
        while version < 0:
            known = self._known or perform(self._client, loading(self._queue))
            try:
                register = known.register.changed(name, **texts)
            except InvalidSchedule as error:
                raise CannotMove(f"{error}.") from error
            call = page_calls.put_schedule(
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
            CannotMove: see `handed_over`.
        """
        durable = self._queue.durable
        asks = f" asks for {durable}" if durable else ""
        where = f"queue {self._queue.name!r} of the target{asks}"
        return handed_over(self._hand_over, act, where)

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


def check_key(name: str, *texts: bytes) -> None:
    """Make sure that the texts of a schedule can be listed among those in force, which takes their key.

    Raises:
        CannotMove: they are signed with a key that this process does not have.
    """
    if any(map(get_keyring().lacks_key_of, texts)):
        raise CannotMove(
            f"Schedule {name!r} is signed with a key that this process does not have. Add that key to DELAYQ['KEYS'], or"
            " its secret to SECRET_KEY_FALLBACKS, and run this again: jobs that have moved are not moved twice."
        )
