"""The frames at the head of a queue: one bounded look that shows whether Redisson gets on with them.

The overview, ``check --deploy`` and each worker look. ``survey`` goes through the whole queue, and finds what to do.
"""

from collections.abc import Iterator, Sequence

from django_delayq.calls.call import Call
from django_delayq.conf import QueueSettings
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.health.problem import ServerProblem
from django_delayq.health.queue_problems import find_other_format
from django_delayq.repair.calls import FrameHead, Stretch, survey
from django_delayq.wire.frame import is_read_by

#: Frames that are looked at, and the bytes that the server reads of them.
HEAD_FRAMES = 50
HEAD_BYTES = 1 << 16


def read_heads(keys: DeliveryKeys) -> Call[Stretch]:
    """Read how the next frames of a queue begin."""
    return survey(keys, "zset", batch=HEAD_FRAMES, byte_budget=HEAD_BYTES)


def find_unread(
    queue: QueueSettings, frames: Sequence[FrameHead]
) -> Iterator[ServerProblem]:
    """Report frames in another format than the Redisson of the queue reads."""
    if queue.redisson is None:
        return
    its_format = queue.frame_format
    unread = [
        frame for frame in frames if not is_read_by(its_format, frame.head, frame.size)
    ]
    yield from find_other_format(queue.name, queue.redisson, len(unread), len(frames))
