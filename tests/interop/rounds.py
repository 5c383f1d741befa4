"""One round of the matrix: a version of Redisson, its queues of every codec, and what was left lying in them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import redis

from django_delayq.codecs import Codec
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.wire.queue_keys import QueueKeys
from tests.interop import page
from tests.interop.codecs import (
    TEXT,
    codecs_of,
    delayq,
    is_supported,
    java_name,
    python_codec,
    python_name,
    queue_name,
)
from tests.interop.left_out import left_out
from tests.interop.peers import Peer, PeerError
from tests.interop.values import (
    HUGE,
    UNTYPED,
    VALUES,
    Description,
    describe,
    normal,
    without_field_types,
)
from tests.polling import wait_until
from tests.worker.records import ENVIRONMENT, Records
from tests.worker.workers import WorkerProgram

#: Between the start times of two elements: they arrive in the order in which they were offered.
STEP_MS = 2
#: Time for one side to offer everything and to go, before the first is due. Where that was too short, twice as much.
AWAY_MS = 8_000
MOST_AWAY_MS = 32_000
#: Processes of Redisson in a row that may jam themselves.
MOST_JAMS = 3
#: What Peer.java does to a destination queue alone; for everything else it holds the delayed one.
OF_DESTINATION = {
    "take",
    "put",
    "poll",
    "length",
    "consume",
    "consumed",
    "stop_consuming",
}


def is_jammed(error: PeerError) -> bool:
    """Return whether Redisson waits for its own lock.

    Seen with 3.21.1 and 3.40.2 as they subscribe to some fifty topics on a busy machine, about once in thirty such
    starts: a subscription never ends, and no other one begins in that process. Only another process helps.
    """
    return "Unable to acquire subscription lock" in str(error)


class Case(NamedTuple):
    """A value that a codec can carry."""

    label: str
    value: object
    description: Description
    #: What Redisson makes of it.
    payload: str
    #: What Redisson itself reads from that: the type that the codec promises.
    promised: Any
    #: What is read here.
    read: Any


class Round:
    """The version's Java process and queues. Other Java processes come and go within it."""

    def __init__(
        self, version: str, url: str, client: redis.Redis, folder: Path
    ) -> None:
        self.version = version
        self.url = url
        self.client = client
        self.prefix = f"v{version}"
        self.codecs = codecs_of(version)
        self.delayq = delayq(version, url, self.prefix)
        self.records = Records(folder / "records")
        self._folder = folder
        self._cases: dict[str, list[Case]] = {}
        self._delayed: list[DelayedQueue] = []
        #: What Java's process transfers, in the order in which it began.
        self._held: dict[tuple[str, str], None] = {}
        self._worker: WorkerProgram | None = None

    @cached_property
    def peer(self) -> Peer:
        return Peer(self.version, self.url).wait_ready()

    def end(self) -> None:
        for delayed in self._delayed:
            delayed.destroy()
        if self._worker is not None:
            self._worker.destroy()
        if "peer" in self.__dict__:
            self.peer.kill()
        if found := [*self.client.scan_iter(f"*{self.prefix}-*", 10_000)]:
            self.client.delete(*found)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add to an error of Redisson's what it wrote, and what the server knows of its connections."""
        try:
            yield
        except PeerError as error:
            for client in self.client.client_list():
                error.add_note(" ".join(f"{key}={client[key]}" for key in client))
            error.add_note(self.peer.log())
            raise

    # Names

    def name(self, codec: str, what: str) -> str:
        return queue_name(self.prefix, codec, what)

    def keys(self, codec: str, what: str) -> QueueKeys:
        return QueueKeys.of(self.name(codec, what))

    def places(self, codec: str, what: str) -> list[str]:
        """Where an element of a queue may be before somebody has it."""
        keys = self.keys(codec, what)
        return [
            keys.timeout_set,
            keys.delay_queue,
            keys.destination,
            keys.own("leases"),
        ]

    def python_codec(self, codec: str) -> Codec:
        return python_codec(self.version, codec)

    def delayed(self, codec: str, what: str) -> DelayedQueue:
        """A DelayedQueue of ours, destroyed with the round at the latest."""
        made = DelayedQueue(self.name(codec, what), connection=self.client)
        self._delayed.append(made)
        return made

    def blocking(self, codec: str, what: str) -> BlockingQueue:
        return BlockingQueue(self.name(codec, what), connection=self.client)

    def call(self, op: str, codec: str, what: str, **arguments: Any) -> Any:
        """Have Java do something to a queue, in another process where this one has jammed itself."""
        if op == "destroy":
            self._held.pop((codec, what), None)
        elif op not in OF_DESTINATION:
            self._hold(codec, what)
        return self._tell(op, codec, what, **arguments)

    def _tell(self, op: str, codec: str, what: str, **arguments: Any) -> Any:
        return self.peer.call(
            op, queue=self.name(codec, what), codec=java_name(codec), **arguments
        )

    def _hold(self, codec: str, what: str) -> None:
        """Have Java transfer a queue and go on with the others: only this makes it subscribe, and may jam it."""
        jams = 0
        wanted = [(codec, what)]
        while wanted:
            if wanted[0] in self._held:
                del wanted[0]
                continue
            try:
                self._tell("hold", *wanted[0])
            except PeerError as error:
                jams += 1
                if not is_jammed(error) or jams > MOST_JAMS:
                    raise
                wanted = [*self._held, *wanted]
                self._held.clear()
                self.peer.kill()
                del self.peer
            else:
                self._held[wanted.pop(0)] = None

    # Values

    def cases(self, codec: str) -> list[Case]:
        """Every value that this Redisson can write with the codec, and read again."""
        if codec not in self._cases:
            self._cases[codec] = [
                case
                for label in VALUES
                if (case := self._case(codec, label)) is not None
            ]
        return self._cases[codec]

    def _case(self, codec: str, label: str) -> Case | None:
        value = VALUES[label]
        description = describe(value)
        if codec in TEXT and description[0] != TEXT[codec]:
            return None
        if codec == "default" and "demo.Order" in str(description):
            # Classes have to be declared, which REDISSON alone does not.
            return None
        java, peer = java_name(codec), self.peer
        # What Redisson refuses stands in the page: a value cannot drop out unseen.
        how = "write"
        try:
            payload = peer.call("encode", codec=java, value=description)
            how = "read back"
            promised = peer.call("decode", codec=java, payload=payload)
        except PeerError:
            page.note_refusal(self.version, codec, label, how)
            return None
        promised = normal(promised)
        if "Jackson" not in python_name(self.version, codec) or label not in UNTYPED:
            return Case(label, value, description, payload, promised, promised)
        return Case(
            label,
            UNTYPED[label],
            description,
            payload,
            promised,
            without_field_types(promised),
        )

    def readable(self, codec: str) -> list[Case]:
        """The cases that are read here as Java reads them."""
        return self._but(codec, "read")

    def writable(self, codec: str) -> list[Case]:
        """The cases that are written here as Java writes them."""
        return self._but(codec, "write")

    def _but(self, codec: str, how: str) -> list[Case]:
        listed = left_out(self.version, python_name(self.version, codec), how)
        return [case for case in self.cases(codec) if case.label not in listed]

    def small(self, cases: list[Case]) -> list[Case]:
        return [case for case in cases if case.label not in HUGE]

    def some(self, codec: str) -> list[Case]:
        """Six small cases, all different, that both sides read and write alike."""
        readable = self.readable(codec)
        both = [case for case in self.small(self.writable(codec)) if case in readable]
        chosen = {
            case.payload: case
            for case in both
            if case.promised == normal(case.description)
        }
        return [*chosen.values()][:6]

    # What was left lying

    def leave_behind(self) -> None:
        """Offer everything from a Java process that is killed, and from Python, which lets go.

        Java's `orphan-` queues are transferred by Python, with no Java process alive that knows them; Python's
        `left-` queues by Java. Done first: what is left falls due while other tests run.
        """
        codecs = [codec for codec in self.codecs if is_supported(self.version, codec)]
        offered = {
            (codec, what): self._left(codec, what)
            for codec in codecs
            for what in ("orphan-python", "orphan-java", "left-python", "left-java")
        }
        away_ms = AWAY_MS
        while not self._offer_and_go(codecs, offered, away_ms):
            away_ms *= 2
            assert away_ms <= MOST_AWAY_MS, "due before all was ready"
            for codec, what in offered:
                self.client.delete(*self.places(codec, what))
        for codec, what in offered:
            if "orphan" in what:
                self.delayed(codec, what)
        for codec, what in offered:
            if "left" in what:
                self.call("hold", codec, what)

    def _offer_and_go(
        self,
        codecs: list[str],
        offered: dict[tuple[str, str], list[Case]],
        away_ms: int,
    ) -> bool:
        """Offer, and have nobody transfer; False: some was due before that, or Redisson jammed itself."""
        try:
            for codec in codecs:
                for what in ("orphan-python", "orphan-java"):
                    items = [
                        [case.description, away_ms + STEP_MS * n]
                        for n, case in enumerate(offered[codec, what])
                    ]
                    self._tell("offer", codec, what, items=items)
        except PeerError as error:
            if not is_jammed(error):
                raise
            return False
        finally:
            # Only Java's elements stay; the next call starts another process.
            self.peer.kill()
            del self.peer
        for codec in codecs:
            for what in ("left-python", "left-java"):
                delayed = self.delayed(codec, what)
                for n, case in enumerate(offered[codec, what]):
                    delayed.offer(case.value, (away_ms + STEP_MS * n) / 1000)
                delayed.destroy()
        for codec, what in offered:
            keys = self.keys(codec, what)
            wait_until(
                lambda keys=keys: self.client.pubsub_numsub(keys.channel)[0][1] == 0,
                description=f"nobody transfers {keys.destination}",
            )
        return all(
            self.client.zcard(self.keys(*key).timeout_set) == len(cases)
            for key, cases in offered.items()
        )

    def _left(self, codec: str, what: str) -> list[Case]:
        cases = self.cases(codec) if "orphan" in what else self.writable(codec)
        # In one of two ways each, the huge ones.
        is_whole = what in ("orphan-python", "left-java")
        return cases if is_whole else self.small(cases)

    # A Django site

    @cached_property
    def worker(self) -> WorkerProgram:
        """``manage.py delayq_worker`` of a site with handlers for its queues."""
        served = [
            self.name(codec, what)
            for codec in self.codecs
            for what in ("handled", "retried", "dead")
        ]
        site = {"version": self.version, "url": self.url, "prefix": self.prefix}
        self._worker = WorkerProgram(
            *(word for name in served for word in ("--queue", name)),
            directory=self._folder,
            environment={
                "WORKER_TEST_SETTINGS": "tests.interop.project.settings",
                "INTEROP_SITE": json.dumps(site),
                ENVIRONMENT: str(self.records.path),
            },
        ).start()
        return self._worker
