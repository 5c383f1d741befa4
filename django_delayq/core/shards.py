"""How the shards of a queue are named, which of them a key leads to, and what the server knows of them.

Each shard is a queue of its own: its keys share a slot, and Redisson knows it by its name. Facts on all shards of a
queue are kept in the slot of its bare name. docs/wire-format.md, "Shards".
"""

import secrets
from typing import Any, NamedTuple
from zlib import crc32

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import whole_number
from django_delayq.transport.call import Call
from django_delayq.wording import Wording, gettext, joined

#: The most shards of a queue. Each worker process claims from all of them.
MOST_SHARDS = 64


def shard_name(queue: str, number: int) -> str:
    """Return the name of a shard; ``number`` counts from 0."""
    return f"{queue}:{number}"


def parse_shard(name: str) -> tuple[str, int] | None:
    """Return the queue and the number that a shard's name is made of; None if this is no such name."""
    queue, colon, number = name.rpartition(":")
    if not colon or not queue or not (number.isascii() and number.isdigit()):
        return None
    if len(number) > 2 or str(int(number)) != number or int(number) >= MOST_SHARDS:
        return None
    return queue, int(number)


def shard_of(key: str, shards: int) -> int:
    """Return the number of the shard that a key leads to, the same in every process and version."""
    return crc32(key.encode()) % shards


def share_of(total: int, number: int, shards: int) -> int:
    """Return a shard's share of a number; the first shards take the rest."""
    return total // shards + (number < total % shards)


def shard_keys(keys: DeliveryKeys, number: int) -> DeliveryKeys:
    """Return the keys of a shard of the queue that has these keys."""
    name = keys.queue.name
    prefix = keys.queue.destination.removesuffix(name)
    return DeliveryKeys.of(shard_name(name, number), prefix)


class Pin(NamedTuple):
    """How many shards a queue has, as its control hash says, and the hash of each of its shards."""

    #: 0: the queue has no shards.
    number: int = 0
    #: Random characters, new with every change. So a late step of an earlier change finds another text, and does nothing.
    id: str = ""
    #: Whether nobody can store a job in this part: the bare name of a queue with shards, or a shard while the number changes.
    is_closed: bool = False

    @classmethod
    def new(cls, number: int) -> "Pin":
        """Make one for the bare name of a queue that gets this number."""
        return cls(number, secrets.token_urlsafe(6), True) if number else cls()

    @classmethod
    def of(cls, text: bytes) -> "Pin":
        """Read what a hash says; what cannot be read says nothing."""
        number, _, rest = text.decode(errors="replace").partition(" ")
        id, _, closed = rest.partition(" ")
        if whole_number(number) is None or not id:
            return cls()
        return cls(int(number), id, closed == "closed")

    @property
    def opened(self) -> "Pin":
        """The one of a shard that takes jobs."""
        return self._replace(is_closed=False)

    @property
    def text(self) -> str:
        if not self.id:
            return ""
        return f"{self.number} {self.id}{' closed' if self.is_closed else ''}"


class Held(NamedTuple):
    """Counts of everything that would be lost from sight if a queue got another number of shards."""

    #: Jobs that wait or run, or are to be forwarded to another queue.
    jobs: int = 0
    #: Dead letters, and what is in quarantine.
    kept: int = 0
    #: Schedules that are stored, or were changed by hand.
    schedules: int = 0
    #: Pauses and limits that were set by hand.
    set: int = 0

    def plus(self, other: "Held") -> "Held":
        return Held(*map(sum, zip(self, other, strict=True)))

    @property
    def words(self) -> Wording:
        """Everything that there is, as a part of a sentence; empty if there is nothing."""
        words = Wording("", {})
        for number, part in (
            (self.jobs, gettext("jobs: {number}", number=self.jobs)),
            (self.kept, gettext("dead or quarantined: {number}", number=self.kept)),
            (self.schedules, gettext("schedules: {number}", number=self.schedules)),
            (self.set, gettext("pauses and limits: {number}", number=self.set)),
        ):
            if number:
                words = joined(before=words, comma=", " if words else "", part=part)
        return words


class Part(NamedTuple):
    """A shard, or the queue of the bare name, as the server has it."""

    pin: Pin
    held: Held
    #: Whether it has had jobs.
    was_used: bool

    def differs(self, ours: int) -> bool:
        """Return whether the queue whose bare name this is has another number of shards; 0: none."""
        theirs = self.pin.number
        return theirs != ours and (theirs > 0 or any(self.held))


def read_shards(keys: DeliveryKeys) -> Call[Part]:
    """Read how many shards a queue has, as a part of it says, and what that part holds."""
    return _pinning(keys, 0, Pin(), Pin())


def pin_shards(keys: DeliveryKeys, old: Pin, new: Pin) -> Call[Part]:
    """Have a part say ``new`` if it says ``old``. Only a part that holds nothing is closed. Safe to repeat."""
    return _pinning(keys, 1, old, new)


def _pinning(keys: DeliveryKeys, changes: int, old: Pin, new: Pin) -> Call[Part]:
    return bind("pin_shards", keys)(
        _read_part, changes=changes, old=old.text, new=new.text
    )


def _read_part(reply: list[Any]) -> Part:
    said, jobs, kept, schedules, set, was_used = reply
    return Part(Pin.of(said), Held(jobs, kept, schedules, set), was_used == 1)


def words_of(queue: str, theirs: int, ours: int, held: Held) -> tuple[Wording, Wording]:
    """Say that a queue has another number of shards than the settings say, and what to do; 0: no shards."""
    what = gettext(
        "Queue {queue!r} was created with SHARDS={theirs}, and the settings say SHARDS={ours}. No process with these"
        " settings stores jobs there, or runs them.",
        queue=queue,
        theirs=theirs or "None",
        ours=ours or "None",
    )
    if not any(held):
        return what, gettext(
            "The queue is empty, so the first worker that starts with the new number gives it that number. Restart"
            " every process that has the old one."
        )
    return what, gettext(
        "Set SHARDS to {theirs} again. The number can change only while the queue is empty, and it is not ({held}). To"
        " change it now, let a new queue take the new jobs until the workers have emptied this one; or export this"
        " queue, and import the file on another server with the new number.",
        theirs=theirs or "None",
        held=held.words,
    )
