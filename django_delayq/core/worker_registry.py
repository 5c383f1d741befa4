"""The processes of workers that live: what each says of itself every few seconds, and the orders that wait for it.

There is one registry for all queues of a server that have the same prefix, in one hash slot. A process is in it until it leaves, or until it has
been silent for `KEPT_MS`. Its entry is JSON; a reader leaves out names that it does not know, so later versions may
say more. The sender seals an order, and only the process that it names obeys.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from django_delayq.core.bounds import LATEST_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import Count, Decoder, score_of
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command
from django_delayq.transport.script import rows

#: How long a process that has fallen silent stays in the registry.
KEPT_MS = 30_000
#: Processes of one `read_workers` call, and running jobs that each of them tells of.
WORKERS_BATCH = 100
MOST_JOBS = 100
#: The most processes that the registry takes.
MOST_WORKERS = 10_000
#: The message on a queue's channel that says that an order waits for one of its processes.
ORDERED = b"order"


class RegistryKeys(NamedTuple):
    """The keys of a registry."""

    #: HASH id of a process → what it says of itself.
    workers: str
    #: ZSET id of a process → when it last said so, epoch ms.
    workers_seen: str
    #: HASH id of a process → the order that waits for it.
    orders: str

    @classmethod
    def of(cls, prefix: str = "") -> "RegistryKeys":
        """Name the keys of the registry of all queues with a prefix."""
        return cls(*(f"delayq_{field}:{{{prefix}delayq}}" for field in cls._fields))

    def key(self, name: str) -> str:
        """Return a key by its name in the headers of scripts."""
        key: str = getattr(self, name)
        return key


#: A moment, epoch ms, or a time.
Ms = Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]


class RunningJob(msgspec.Struct):
    """A job that a process runs."""

    #: Its queue and its token.
    queue: str
    token: Annotated[str, msgspec.Meta(min_length=1)]
    #: Empty: it is not read yet.
    task: str = ""
    #: When the attempt began, by the server's clock, epoch ms.
    since_ms: Ms = 0


class WorkerInfo(msgspec.Struct, omit_defaults=True):
    """The entry of a process in the registry."""

    host: str
    pid: Count
    #: The version of django-delayq, and the latest format of jobs that it reads.
    version: str = ""
    format: Count = 0
    queues: list[str] = []
    #: How many jobs it can run at a time, and how many it runs.
    threads: Count = 0
    coroutines: Count = 0
    busy_threads: Count = 0
    busy_coroutines: Count = 0
    #: Up to `MOST_JOBS` of those, the longest running first.
    jobs: list[RunningJob] = []
    #: Bytes that only this process uses.
    memory: Count = 0
    #: How long it has been at work.
    uptime_ms: Ms = 0
    #: ``working``, ``quiet`` or ``stopping``.
    state: str = "working"


_encode = msgspec.json.Encoder().encode
_infos = Decoder[WorkerInfo](
    WorkerInfo, "a process in the registry of workers cannot be read"
)


class Registered(NamedTuple):
    """The reply to `register`."""

    #: The server's clock, epoch ms.
    now_ms: int
    #: The order that waits for this process, sealed; empty: none.
    order: bytes
    #: When the process said so before, by the server's clock, epoch ms; -1: the registry did not have it.
    before_ms: int = -1
    #: Whether the registry has it now. A full one takes no more.
    is_kept: int = 1


def register(keys: RegistryKeys, worker_id: str, info: WorkerInfo) -> Call[Registered]:
    """Say that a process lives, and forget those that have been silent."""
    return bind("register", keys)(
        lambda reply: Registered(*reply),
        id=worker_id,
        info=_encode(info),
        kept_ms=KEPT_MS,
        most=MOST_WORKERS,
    )


def unregister(keys: RegistryKeys, worker_id: str) -> Call[None]:
    """Forget a process, which ends."""
    return bind("unregister", keys)(lambda reply: None, id=worker_id)


class SeenWorker(NamedTuple):
    """A process of the registry."""

    id: str
    seen_ms: int
    info: WorkerInfo


class WorkersPage(NamedTuple):
    """Some processes of the registry."""

    #: The server's clock, epoch ms.
    now_ms: int
    #: How many there are.
    total: int
    #: The first that were registered come first. What no version of ours has written is left out.
    workers: list[SeenWorker]


def read_worker(keys: RegistryKeys, worker_id: str) -> Command[WorkerInfo | None]:
    """Read the entry of one process; None: it is missing or cannot be read."""

    def read(reply: list[bytes | None]) -> WorkerInfo | None:
        return _infos.read(reply[0]) if reply[0] else None

    return Command(("HMGET", keys.workers, worker_id), read)


def read_workers(
    keys: RegistryKeys, *, first: int = 0, count: int = WORKERS_BATCH
) -> Call[WorkersPage]:
    """Read up to `WORKERS_BATCH` processes that were seen within `KEPT_MS`, after the ``first`` ones."""

    def read(reply: list[Any]) -> WorkersPage:
        now_ms, total, flat = reply
        return WorkersPage(now_ms, total, _seen(flat))

    return bind("read_workers", keys)(
        read, kept_ms=KEPT_MS, first=first, count=min(count, WORKERS_BATCH)
    )


def _seen(flat: Sequence[bytes]) -> list[SeenWorker]:
    found = []
    for name, score, text in rows(flat, 3):
        info, seen_ms = _infos.read(text), score_of(score)
        if info is not None and seen_ms is not None:
            found.append(SeenWorker(name.decode(errors="replace"), seen_ms, info))
    return found


def give_order(keys: RegistryKeys, worker_id: str, sealed: bytes) -> Call[bool]:
    """Leave an order for a process, in the place of any other; False: the process has left."""
    return bind("give_order", keys)(bool, id=worker_id, order=sealed, kept_ms=KEPT_MS)


def announce_order(queue: DeliveryKeys) -> Command[int]:
    """Have the processes that serve a queue look for orders now, and not with their next write."""
    return Command(("PUBLISH", queue.channel, ORDERED))
