"""Jobs that follow others: stored with the end of those, in the same queue, or as forwards to other queues."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_delayq.core.forward_calls import text_before, text_behind
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.store import NewJob
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
            "ended": keys.ended,
            "redisson_channel": keys.redisson_channel,
            "ranked": keys.ranked,
            "control": keys.control,
            # Whether who holds a unique key of theirs is too late for it.
            "retries": keys.retries,
            "returned": keys.returned,
        }

    def args(self) -> Mapping[str, Any]:
        """Return the arguments of a script that stores them, by name."""
        named: dict[str, Any] = {
            "forwards": [
                (index, text_before(queue), text_behind(new))
                for index, queue, new in self.forwards
            ],
            "followers": [(*new, index) for index, new in self.jobs],
        }
        if self.forwards:
            named["forward_count"] = len(self.forwards)
        if self.jobs:
            named["follower_count"] = len(self.jobs)
            named["follower_format"] = self.frame_format.number
            named["follower_listed"] = int(self.insertion_list)
        return named


#: The arguments of such a script for jobs that nothing follows.
NOTHING: Mapping[str, Any] = Following(()).args()
