"""How many jobs of which kind a queue may be asked for."""

from typing import NamedTuple


class Room(NamedTuple):
    """How many jobs of each kind this process can take on."""

    sync: int
    coroutines: int


NO_ROOM = Room(0, 0)


class Plan(NamedTuple):
    """What to ask a queue for."""

    limit: int
    #: There is room for one kind only: what comes of the other, and what is too much, is given back.
    only: Room | None = None


NOTHING = Plan(0)
