"""How many jobs of a limit run, and how many wait for their turn."""

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.reasons import Kind, Reason
from django_delayq.transport.plain_command import Command


def held_for(limit: str) -> Reason:
    """Return what jobs of a limit are held for; ``limit`` is as `tail_of` takes it."""
    name, _, key = limit.partition("\0")
    return Reason(Kind.LIMIT, name, key)


def count_slots(keys: DeliveryKeys, limit: str) -> Command[int]:
    """Count the jobs of a limit that run; ``limit`` is as `tail_of` takes it."""
    return Command(("ZLEXCOUNT", keys.slots, f"[{limit}\0", f"({limit}\1"))


def count_held(keys: DeliveryKeys, limit: str) -> Command[int]:
    """Count the jobs that are held for a limit."""
    name = held_for(limit).text
    return Command(("ZLEXCOUNT", keys.held_tasks, f"[{name}\0", f"({name}\1"))
