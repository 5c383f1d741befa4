"""Facts about one queue, from which its problems follow."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django_delayq.core.forward_calls import Forwards
from django_delayq.core.hold import HeldNames
from django_delayq.core.stored_pauses import Pause


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """Facts about one queue. A field keeps its default if nobody asked, or the server did not answer."""

    name: str
    #: Jobs that wait or run, and how many the queue may hold; None: any number.
    jobs: int | None = None
    max_jobs: int | None = None
    #: Frames in the insertion list.
    list_length: int = 0
    #: Format of the queue; see `signing.FORMAT`.
    format: int | None = None
    held: HeldNames | None = None
    #: Ids of the keys of this project.
    key_ids: Collection[str] | None = None
    pauses: Sequence[Pause] = ()
    forwards: Forwards | None = None
