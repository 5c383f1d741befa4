"""Our own keys of one queue, beside Redisson's and in the same hash slot.

They are hashes by token, and sorted sets: a fixed number for each queue, and none for a job. Only a result has a key of
its own, which expires.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from django_delayq.wire.queue_keys import QueueKeys


@dataclass(frozen=True, slots=True)
class DeliveryKeys:
    """All keys of one queue; build it with ``DeliveryKeys.of(name, prefix)``."""

    #: Redisson's keys.
    queue: QueueKeys
    #: HASH token → start time, frame's bytes and tail (unique key, priority) of a job that waits.
    locators: str = field(init=False)
    #: HASH token → attempts, kills, start time, fencing token, owner and tail, from the first claim on.
    headers: str = field(init=False)
    #: HASH token → payload, from the first claim on.
    payloads: str = field(init=False)
    #: HASH token → last error as JSON; and ``history:`` and token → the attempts behind it, a line of JSON each.
    errors: str = field(init=False)
    #: HASH token → what to do with a job that lies in the destination queue: ``cancel``, or a start time.
    notes: str = field(init=False)
    #: HASH unique key → token of its holder.
    unique: str = field(init=False)
    #: HASH owner → its last request, by which a repeated claim is recognised.
    claims: str = field(init=False)
    #: HASH name → number.
    counters: str = field(init=False)
    #: HASH ``service`` → when the queue was last served, its last gap, the leases in force; the queue's formats; what is
    #: paused; ``ranked``: a job that waits has a priority; the limits of the queue and of tasks.
    control: str = field(init=False)
    #: HASH of what defines the queue's periodic schedules, and what is known of each.
    schedules: str = field(init=False)
    #: ZSET name of a schedule → its next moment, epoch ms, whose job waits.
    periods: str = field(init=False)
    #: ZSET token → end of the lease, epoch ms.
    leases: str = field(init=False)
    #: ZSET token → start time of the next attempt, epoch ms, once an attempt has failed or lost its worker.
    retries: str = field(init=False)
    #: ZSET token → start time of the first attempt, epoch ms, of jobs that were given back, snoozed, moved or replayed.
    returned: str = field(init=False)
    #: ZSET token → until when the job is held for a worker that knows its task, epoch ms.
    held: str = field(init=False)
    #: ZSET of held jobs, ordered by name of the task and start time.
    held_tasks: str = field(init=False)
    #: ZSET token → page, of held jobs that are on their way to another server.
    moving: str = field(init=False)
    #: HASH token → where such a job was, its score there and its error.
    moving_from: str = field(init=False)
    #: ZSET token → priority and start time of each job that waits, on a queue with priorities; a HASH where a queue with
    #: shards is closed.
    ranked: str = field(init=False)
    #: ZSET of the leased jobs that have a limit, ordered by limit, its key and token.
    slots: str = field(init=False)
    #: HASH id of a batch → how many of its jobs have not ended; and ``then:`` and the id → when its callback starts.
    batches: str = field(init=False)
    #: ZSET limit and key → the moment, epoch us, by which the next job would start if all came evenly.
    paces: str = field(init=False)
    #: ZSET token → when the job was given up, epoch ms.
    dead: str = field(init=False)
    #: ZSET token → when the payload was put aside, epoch ms.
    quarantine: str = field(init=False)
    #: ZSET token → epoch ms * 8 + how the job ended, for 30 s after its end.
    ended: str = field(init=False)
    #: ZSET of jobs that follow one of this queue into another one, ordered by that and by the end of the one before.
    forwards: str = field(init=False)
    #: ZSET token, or name of a forward → until when it is known, epoch ms, of rows and forwards that were stored here.
    sent: str = field(init=False)
    #: LIST of how the last jobs ended, the newest at its end; see `EndRecord`.
    last_ended: str = field(init=False)
    #: HASH what was measured in the minute that is open, and in the hour; see `statistics`.
    minute: str = field(init=False)
    hour: str = field(init=False)
    #: HASH minute → what was measured in it, of those of 8 hours; and of the hours of 90 days.
    minutes: str = field(init=False)
    hours: str = field(init=False)
    #: HASH task → what was measured of it since the first day.
    totals: str = field(init=False)
    #: HASH token → how far the job that runs is, as JSON.
    progress: str = field(init=False)
    #: Pub/sub channel: a lease or a retry is due earlier than was known. Epoch ms as text.
    channel: str = field(init=False)

    @classmethod
    def of(cls, name: str, prefix: str = "") -> "DeliveryKeys":
        """Name the keys of a queue; the name is checked as in `QueueKeys.of`."""
        return _keys_of(name, prefix)

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name != "queue":
                object.__setattr__(self, name, self.queue.own(name))

    def __hash__(self) -> int:
        return hash(self.queue)

    @property
    def redisson_channel(self) -> str:
        return self.queue.channel

    def key(self, name: str) -> str:
        """Return a key by its name in the headers of scripts."""
        key: str = getattr(self if hasattr(self, name) else self.queue, name)
        return key

    def result(self, token: str) -> str:
        """Return the key of one job's result: a LIST of it and, once the job was acknowledged, payload and history."""
        return f"{self.queue.own('result')}:{token}"


@lru_cache(maxsize=4096)
def _keys_of(name: str, prefix: str) -> DeliveryKeys:
    return DeliveryKeys(QueueKeys.of(name, prefix))
