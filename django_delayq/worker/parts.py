"""The options of a worker process, and the parts that its claim loop works with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from redis.client import Redis

from django_delayq.conf import QueueSettings, WorkerSettings
from django_delayq.transport.line import Line
from django_delayq.waiting.alarm import Alarm
from django_delayq.worker.dispatch import Dispatch
from django_delayq.worker.forwards import Forwards
from django_delayq.worker.outage import Outage
from django_delayq.worker.queue_state import QueuePart, QueueState
from django_delayq.worker.reports import EndReport
from django_delayq.worker.settle import Ends
from django_delayq.worker.shutdown import Shutdown

#: The alarm's key for wake-ups that concern no single queue.
SELF = ""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a worker, with all its processes."""

    #: Queues and their weights, in order of priority.
    queues: Sequence[tuple[QueueSettings, float]]
    #: Claim by weight instead of by order.
    is_weighted: bool
    worker: WorkerSettings
    #: What features do for each queue.
    parts: Sequence[type[QueuePart]]
    #: What features write down of the ends of jobs.
    reports: Sequence[Callable[[Line], EndReport]]
    #: End when nothing is due.
    is_burst: bool = False
    #: After so many jobs a process ends; unless in burst mode, it is replaced.
    max_jobs: int | None = None
    #: Above so many bytes a process ends after its running jobs, and is replaced.
    max_memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the claim loop of a process. `WorkerProcess` makes them once."""

    options: WorkerOptions
    #: Names this process on the server.
    owner: bytes
    client: Redis
    #: For the commands that the loop sends all the time. The rare ones use the client's other connections.
    line: Line
    queues: Mapping[str, QueueState]
    alarm: Alarm[str]
    dispatch: Dispatch
    outage: Outage
    forwards: Forwards
    ends: Ends
    shutdown: Shutdown
