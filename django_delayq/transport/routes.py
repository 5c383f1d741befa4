"""Which node of a cluster gets which calls of an exchange. What nodes reply about their slots goes to the map.

Nothing is sent here. `recover` says which redirections are followed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import ClusterDownError, MovedError, TryAgainError

from django_delayq.clock import boottime_ms
from django_delayq.transport.errors import LOST
from django_delayq.transport.exchange import WAITS, Address, Exchange, Where, key_of
from django_delayq.transport.recovery import Outcome
from django_delayq.transport.slots import Slots


class Routed:
    """An exchange in parts, one for each node, and the replies to them."""

    def __init__(
        self, slots: Slots, exchange: Exchange, where: Sequence[Where | None]
    ) -> None:
        self._slots = slots
        self._commands = [call.command() for call in exchange.calls]
        self._replies: list[Any] = [None] * len(self._commands)
        self._asked: list[Address | None] = [None] * len(self._commands)
        self._places: dict[Where, list[int]] = {}
        #: Whether a thread's own connection takes the place of one of a pool.
        self.is_own = exchange.repeats and len(self._commands) == 1
        at: Where | None = None
        anywhere: Where | None = None
        failure: Exception | None = None
        for i, command in enumerate(self._commands):
            # What waits does so for what its connection wrote before.
            if not i or not (exchange.is_one or command[0] in WAITS):
                key = key_of(command)
                try:
                    if where and where[i] is not None:
                        at = where[i]
                    elif key is None:
                        # Commands without a key go to one node together.
                        at = anywhere = anywhere or Where(slots.holder(None))
                    else:
                        at = Where(slots.holder(key))
                except (ClusterDownError, *LOST) as error:
                    at, failure = None, error
            if at is None:
                self._replies[i] = failure
            else:
                self._places.setdefault(at, []).append(i)

    def commands(self) -> Iterator[tuple[Where, list[tuple[Any, ...]]]]:
        """Yield what each node gets."""
        for at, places in self._places.items():
            asking = [("ASKING",)] if at.is_asking else []
            yield at, [each for i in places for each in (*asking, self._commands[i])]

    def take(self, at: Where, replies: list[Any]) -> list[Any]:
        """Take in what a node replied, note what that says of its slots, and return the errors of lost replies."""
        own = replies[1::2] if at.is_asking else replies
        for i, reply in zip(self._places[at], own, strict=True):
            self._replies[i], self._asked[i] = reply, at.address
            if isinstance(reply, MovedError):
                self._slots.note_moved(reply, at.address)
            elif isinstance(reply, TryAgainError | ClusterDownError):
                self._slots.doubt()
        lost = [reply for reply in own if isinstance(reply, LOST)]
        for error in lost:
            self._slots.note_lost(error, at.address)
        return lost

    def outcome(self) -> Outcome:
        nodes = len(self._slots.primaries()) if any(self._asked) else 1
        return Outcome(self._replies, boottime_ms(), self._asked, nodes)
