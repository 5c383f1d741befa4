"""Jobs that follow others: stored with the end of those in their own queue, or sent before it to another one."""

from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.calls.call import Argument
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.storing import NewJob
from django_delayq.wire.frame import FrameFormat


class Following(NamedTuple):
    """The jobs that follow some others in their own queue, for `acknowledge` and `bury`."""

    #: Each with the index of the job before it among those that end.
    jobs: Sequence[tuple[int, NewJob]]
    frame_format: FrameFormat = FrameFormat.BC0LC0
    insertion_list: bool = False

    def keys(self, keys: DeliveryKeys) -> dict[str, str]:
        """Return the keys that a script needs for them, by name."""
        return {
            "timeout_set": keys.queue.timeout_set,
            "delay_queue": keys.queue.delay_queue,
            "locators": keys.locators,
            "redisson_channel": keys.redisson_channel,
            "ranked": keys.ranked,
            "control": keys.control,
            # Whether who holds a unique key of theirs is too late for it.
            "retries": keys.retries,
            "returned": keys.returned,
        }

    def args(self) -> list[Argument]:
        """Return the last arguments of a script that stores them, as `_follow.lua` reads them."""
        args: list[Argument] = []
        for index, new in self.jobs:
            args += (index, *new)
        args += (self.frame_format.number, int(self.insertion_list), len(self.jobs))
        return args
