"""Jobs that follow a job into other queues: from the queue in which that job ended to where it belongs.

The end of the job has left it there. A thread for each queue that gets something takes it along, beside everything else:
a queue that is away holds up neither another one nor the claims. Other processes find what one leaves behind.
"""

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.core import forward_calls
from django_delayq.core.forward_calls import Forward, Received
from django_delayq.core.store import key_in
from django_delayq.exceptions import DecodeError, DelayqError, NotSigned
from django_delayq.faults import fault_line
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.follow_ups import LEAST_BYTES, queue_of
from django_delayq.jobs.kept import known_since
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.run import run
from django_delayq.transport.several import run_all
from django_delayq.transport.steps import perform
from django_delayq.worker import job_signals
from django_delayq.worker.forward_removal import (
    MOST,
    MOST_BYTES,
    ForwardRemoval,
    remove,
)

logger = get_log("django_delayq.worker")

#: The wait after a refusal; it doubles with each that follows.
FIRST_MS, LONGEST_MS = 200.0, 5_000.0
#: How often a process looks for what others have left, in seconds.
LOOK_S = 5.0
#: What has waited for less is still in the hand of the process that has ended the job before it.
FRESH_MS = 1_000
#: How long a thread without work goes on, in seconds.
IDLE_S = 10.0
#: So many wait in memory for one queue, at most. The others are read again from where they are.
MOST_IN_HAND = 1_000


def receive(
    client: Redis,
    target: QueueSettings,
    forwards: Sequence[Forward],
    *,
    until_ms: int,
) -> Received:
    """Store forwards in their queue and report them; see `forwarding.receive`.

    Raises:
        OtherShards: the queue has another number of shards.
    """
    perform(client, shard_agreement.agreeing_on(target.name))
    is_known = get_settings().find(target.name) is not None
    received = run(
        client,
        forward_calls.receive(
            target.keys,
            forwards,
            until_ms=until_ms,
            shards=target.shards or 0 if is_known else None,
            frame_format=target.frame_format,
            insertion_list=target.keeps_list,
        ),
    )
    job_signals.send_scheduled(
        target.name,
        [each.job for each in forwards if each.job.token in received.stored],
    )
    return received


def forward_at_once(client: Redis, source: QueueSettings, queue: str) -> None:
    """Forward the jobs of one queue to another. For tests, where no thread does."""
    target = queue_of(queue)
    after = b""
    while members := run(
        client, forward_calls.page(source.keys, queue, after=after, count=MOST)
    ):
        after = members[-1]
        forwards = [
            each for one in members if (each := forward_calls.read_forward(one))
        ]
        received = receive(client, target, forwards, until_ms=1 << 53)
        remove(client, source, target, forwards, now_ms=received.now_ms)


class _InHand(NamedTuple):
    """One forward whose job before it has ended in this process."""

    source: QueueSettings
    forward: Forward
    #: When it was surely there still, by `boottime_ms`.
    there_ms: float


class Forwards:
    """Takes along what is left in the queues of a process.

    ``queues`` are those that it serves; ``wake`` is called when there is nothing left to do.
    """

    def __init__(
        self,
        client: Redis,
        queues: Sequence[QueueSettings],
        wake: Callable[[], object],
    ) -> None:
        self.client = client
        self._queues = queues
        self.wake = wake
        # Guards all that follows, and what the threads share.
        self.changed = threading.Condition()
        self._targets: dict[str, _Target] = {}
        self.is_stopping = False
        self._is_looking = False
        # Something was stored since `has_stored` was asked last.
        self._has_stored = False
        self.removal = ForwardRemoval(
            self.changed,
            read_again=lambda source, queue: self.note(source, queue, [], 0.0),
            wake=wake,
        )

    def start(self) -> None:
        """Look for what others have left, now and every few seconds."""
        self._is_looking = True
        threading.Thread(
            target=self._look_on, name="delayq-forwarding", daemon=True
        ).start()

    def note(
        self,
        source: QueueSettings,
        queue: str,
        forwards: Sequence[Forward],
        there_ms: float,
    ) -> None:
        """Take over what the end of a job has left for another queue. Without forwards, read them."""
        with self.changed:
            target = self._target(queue)
            room = MOST_IN_HAND - len(target.in_hand)
            if target.is_failing or len(forwards) > room or not forwards:
                target.read(source)
            else:
                target.in_hand += [_InHand(source, each, there_ms) for each in forwards]
            target.begin()

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way, or may be: queues that refuse theirs do not count."""
        with self.changed:
            return (
                self._is_looking
                or self.removal.is_busy
                or any(
                    target.has_work and not target.is_failing
                    for target in self._targets.values()
                )
            )

    @property
    def is_failing(self) -> bool:
        """Whether a queue has refused what is still to be forwarded."""
        with self.changed:
            return any(
                target.has_work and target.is_failing
                for target in self._targets.values()
            )

    def has_stored(self) -> bool:
        """Return whether something was stored since this was asked last."""
        with self.changed:
            had, self._has_stored = self._has_stored, False
        return had

    def stop(self, timeout_s: float) -> None:
        """Forward what is in hand, and end; wait ``timeout_s`` at most."""
        until_ms = monotonic_ms() + 1000 * timeout_s
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
            threads = [each.thread for each in self._targets.values()]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, until_ms - monotonic_ms()) / 1000)
        self.removal.stop(max(0.0, until_ms - monotonic_ms()) / 1000)

    def _target(self, queue: str) -> "_Target":
        target = self._targets.get(queue)
        if target is None:
            target = self._targets[queue] = _Target(queue, self)
        return target

    def _look_on(self) -> None:
        is_first = True
        while not self.is_stopping:
            try:
                self._look(0 if is_first else FRESH_MS)
            except Exception:
                logger.exception("what waits to be forwarded cannot be looked for")
            with self.changed:
                self._is_looking = False
            if is_first:
                self.wake()
            is_first = False
            with self.changed:
                self.changed.wait_for(
                    lambda: self.is_stopping, LOOK_S * random.uniform(0.9, 1.1)
                )

    def _look(self, fresh_ms: int) -> None:
        calls = [forward_calls.forwards(queue.keys) for queue in self._queues]
        try:
            replies = run_all(self.client, calls)
        except (RedisError, OSError):
            # The claim loop says so.
            return
        for source, reply in zip(self._queues, replies, strict=True):
            if isinstance(reply, Exception):
                continue
            for waiting in reply.waiting:
                if reply.now_ms - waiting.since_ms >= fresh_ms:
                    self.note(source, waiting.queue, [], 0.0)

    # For the threads.

    def note_stored(
        self,
        source: QueueSettings,
        queue: str,
        forwards: Sequence[Forward],
        offset_ms: float,
    ) -> None:
        with self.changed:
            self._has_stored = True
        self.removal.add(source, queue, forwards, offset_ms)


class _Target:
    """One queue that gets something, and the thread that brings it.

    State that the thread does not own is guarded by ``changed``.
    """

    def __init__(self, name: str, owner: Forwards) -> None:
        self._name = name
        self._owner = owner
        self.thread: threading.Thread | None = None
        self.in_hand: deque[_InHand] = deque()
        self.is_failing = False
        # The queues from which to read, and behind which of their forwards.
        self._sources: dict[str, tuple[QueueSettings, bytes]] = {}
        self._is_at_work = False
        # The thread's own: what to add to `boottime_ms` for the clock of the queue, unknown at first; the next wait.
        self._offset_ms: float | None = None
        self._pause_ms = 0.0
        self._problem = ""
        # From which queue it forwards.
        self._source: QueueSettings | None = None
        # Forwards of one page, by the sizes seen before.
        self._count = 8

    @property
    def has_work(self) -> bool:
        return bool(self.in_hand or self._sources or self._is_at_work)

    def read(self, source: QueueSettings) -> None:
        """Read what a queue has for this one, from the first on."""
        self._sources[source.name] = source, b""

    def begin(self) -> None:
        """Have the thread work."""
        if self.thread is not None:
            self._owner.changed.notify_all()
            return
        thread = threading.Thread(
            target=self._work, name=f"delayq-forwarding {self._name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            # The next look tries again.
            logger.error("queue %s: what goes there waits: %s", self._name, error)
        else:
            self.thread = thread

    def _work(self) -> None:
        while self._waits_for_work():
            try:
                self._step()
            except Exception as error:
                self._note_error(error)
            else:
                self._note_success()
            with self._owner.changed:
                self._is_at_work = False
                is_idle = not self.has_work
            if is_idle or self.is_failing:
                self._owner.wake()

    def _waits_for_work(self) -> bool:
        """Return whether there is work; if not, the thread is to end."""
        owner, changed = self._owner, self._owner.changed
        again_ms = monotonic_ms() + self._pause_ms
        with changed:
            while (left_ms := again_ms - monotonic_ms()) > 0 and not owner.is_stopping:
                changed.wait(left_ms / 1000)
            if not owner.is_stopping:
                changed.wait_for(lambda: self.has_work or owner.is_stopping, IDLE_S)
            if self.has_work and not (owner.is_stopping and self.is_failing):
                self._is_at_work = True
                return True
            self.thread = None
        return False

    def _step(self) -> None:
        owner = self._owner
        with owner.changed:
            taken = self._take()
        if taken:
            self._source = taken[0].source
            there_ms = min(each.there_ms for each in taken)
            self._send(self._source, [each.forward for each in taken], there_ms)
            return
        with owner.changed:
            if owner.is_stopping or not self._sources:
                # Others go on with it.
                self._sources.clear()
                return
            source, after = next(iter(self._sources.values()))
            if owner.removal.is_full(self._name):
                owner.changed.wait(IDLE_S)
                return
        self._source = source
        there_ms = boottime_ms()
        page = run(
            owner.client,
            forward_calls.page(source.keys, self._name, after=after, count=self._count),
        )
        found = [
            each for member in page if (each := forward_calls.read_forward(member))
        ]
        if found:
            self._send(source, [self._signed_anew(each) for each in found], there_ms)
        self._fit(page)
        with self._owner.changed:
            if self._sources.get(source.name) != (source, after):
                # Somebody wants it read from the first on.
                return
            if page:
                self._sources[source.name] = source, page[-1]
            else:
                del self._sources[source.name]

    def _take(self) -> list[_InHand]:
        """Take out of hand what one call may send."""
        taken: list[_InHand] = []
        size = 0
        while self.in_hand and len(taken) < MOST and size < MOST_BYTES:
            if taken and self.in_hand[0].source is not taken[0].source:
                break
            taken.append(self.in_hand.popleft())
            size += max(len(taken[-1].forward.member), LEAST_BYTES)
        return taken

    def _fit(self, page: Sequence[bytes]) -> None:
        size = sum(max(len(member), LEAST_BYTES) for member in page)
        fitting = MOST_BYTES * len(page) // size if size else MOST
        self._count = max(1, min(4 * self._count, MOST, fitting))

    def _signed_anew(self, forward: Forward) -> Forward:
        """Sign with the first key what may have waited for long."""
        try:
            new = envelopes.signed_anew(
                forward.job.payload, queue_of(self._name), get_keyring()
            )
        except (NotSigned, DecodeError):
            # Its queue holds it for somebody who can read it.
            return forward
        return (
            forward
            if new is None
            else forward._replace(job=forward.job._replace(payload=new))
        )

    def _send(
        self, source: QueueSettings, forwards: Sequence[Forward], there_ms: float
    ) -> None:
        target, client = queue_of(self._name), self._owner.client
        if whole := perform(client, shard_agreement.whole_of_former(target)):
            self._hand_on(source, forwards, there_ms, whole)
            return
        # A first try without knowing the clock comes too late, and so does one after the clock was set; its reply has the
        # time.
        for _ in range(2):
            until_ms = 0
            if self._offset_ms is not None:
                until_ms = round(there_ms + self._offset_ms) + forward_calls.GOOD_MS
            try:
                received = receive(client, target, forwards, until_ms=until_ms)
            except RedisError as error:
                if shard_agreement.is_refused(error):
                    perform(client, shard_agreement.asking_why(self._name))
                raise
            self._offset_ms = received.now_ms - boottime_ms()
            if not received.is_late:
                self._owner.note_stored(source, self._name, forwards, self._offset_ms)
                return
        # It was in hand for too long.
        with self._owner.changed:
            self.read(source)

    def _hand_on(
        self,
        source: QueueSettings,
        forwards: Sequence[Forward],
        there_ms: float,
        whole: str,
    ) -> None:
        """Have forwards go where their queue has its jobs by now, unless they came here while this was a part of it."""
        former, client = queue_of(self._name), self._owner.client
        since = known_since(client, former, [each.name for each in forwards])
        had, homes = list[Forward](), defaultdict[str, list[Forward]](list)
        for forward, when in zip(forwards, since, strict=True):
            if when is not None:
                had.append(forward)
                continue
            job = forward.job
            tail = job.tail if isinstance(job.tail, bytes) else job.tail.encode()
            home = queue_of(whole, key_in(tail) or job.token).name
            payload = envelopes.signed_for(job.payload, former.name, home)
            # Without its key it stays, for a process that can sign it for its new place.
            if payload != job.payload:
                homes[home].append(forward._replace(job=job._replace(payload=payload)))
        if had:
            run(client, forward_calls.remove(source.keys, had))
        for home, its in homes.items():
            self._owner.note(source, home, its, there_ms)

    def _note_success(self) -> None:
        if self._problem:
            logger.warning("queue %s gets again what follows into it", self._name)
        self._problem, self._pause_ms = "", 0.0
        with self._owner.changed:
            self.is_failing = False

    def _note_error(self, error: Exception) -> None:
        """Wait, and read again what was in hand: by then others may have stored it."""
        self._pause_ms = min(max(FIRST_MS, 2 * self._pause_ms), LONGEST_MS)
        with self._owner.changed:
            self.is_failing = True
            sources = [each.source for each in self.in_hand]
            sources += [source for source, _ in self._sources.values()]
            self.in_hand.clear()
            for source in sources:
                self.read(source)
            if self._source is not None:
                self.read(self._source)
        if str(error) != self._problem:
            self._problem = str(error)
            logger.error(
                "queue %s does not get what follows into it, trying again: %s",
                self._name,
                fault_line(error) if is_of_node(error) else redact(str(error)),
                exc_info=not isinstance(error, DelayqError | RedisError | OSError),
            )
