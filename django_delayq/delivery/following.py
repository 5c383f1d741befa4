"""Jobs that follow others: stored with the end of those, in the same queue, or as forwards to other queues."""

from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.calls.call import Argument
from django_delayq.delivery.forwarding import text_before, text_behind
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.storing import NewJob
from django_delayq.wire.frame import FrameFormat


class Following(NamedTuple):
    """The jobs that follow some others, for `acknowledge` and `bury`."""

    #: Those in the same queue, each with the index of the job before it among those that end.
    jobs: Sequence[tuple[int, NewJob]]
    frame_format: FrameFormat = FrameFormat.BC0LC0
    insertion_list: bool = False
    #: Those in other queues: likewise the index, then the queue and the job.
    forwards: Sequence[tuple[int, str, NewJob]] = ()

    def keys(self, keys: DeliveryKeys) -> dict[str, str]:
        """Return the keys that a script needs for them, by name."""
        named = {"forwards": keys.forwards} if self.forwards else {}
        if not self.jobs:
            return named
        return named | {
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

    def _args_of_forwards(self) -> list[Argument]:
        args: list[Argument] = []
        for index, queue, new in self.forwards:
            args += (index, text_before(queue), text_behind(new))
        return [*args, len(self.forwards)] if args else []

    def args(self) -> list[Argument]:
        """Return the last arguments of a script that stores them, as `_forward.lua` and `_follow.lua` read them."""
        args = self._args_of_forwards()
        if not self.jobs:
            return args
        for index, new in self.jobs:
            args += (index, *new)
        args += (self.frame_format.number, int(self.insertion_list), len(self.jobs))
        return args
