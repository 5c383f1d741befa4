"""The queue behind the raw endpoint: one object a process, as Redisson's users have it.

It transfers what is due for as long as it is in use, here in the site. The worker transfers as well.
"""

import time
from uuid import uuid4

from django_delayq import DelayedQueue

delays = DelayedQueue("delays")


def offer(data: str, delay_ms: int) -> dict[str, object]:
    """Put data into the queue after a delay; return the element, its id and its times included."""
    element = {
        "id": str(uuid4()),
        "data": data,
        "asked_ms": delay_ms,
        "offered_at_ms": time.time() * 1000,
    }
    delays.offer(element, delay_ms / 1000)
    return element
