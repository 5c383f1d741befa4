"""Problems of one queue, as far as its `QueueFacts` show them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote

from django_delayq.core.frame_heads import FrameHead
from django_delayq.faults import Fault, describe_fault
from django_delayq.health.forward_problems import find_not_forwarded
from django_delayq.health.held_problems import find_held_of_queue
from django_delayq.health.pause_problems import find_paused
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat, is_read_by
from django_delayq.wording import gettext, ngettext

#: An insertion list of more frames than this slows the server: one scan of it takes 3 ms.
LONG_LIST = 100_000
#: From this share of its jobs on, a queue of limited size is nearly full.
NEARLY_FULL = 0.9


def find_newer(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report a queue in a later format than this version reads."""
    if facts.format is not None and facts.format > signatures.FORMAT:
        yield ServerProblem(
            Level.ERROR,
            gettext(
                "Queue {queue!r} has format {format}, but this version of django-delayq reads format {ours}. Its workers claim no jobs there.",
                queue=facts.name,
                format=facts.format,
                ours=signatures.FORMAT,
            ),
            gettext("Update django-delayq in this project."),
        )


def find_nearly_full(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report a queue that has hardly any room left."""
    jobs, max_jobs = facts.jobs, facts.max_jobs
    if jobs is not None and max_jobs is not None and jobs >= NEARLY_FULL * max_jobs:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "Queue {queue!r} holds {count:,} of {max_jobs:,} jobs (MAX_JOBS). When it is full, it takes no new jobs.",
                queue=facts.name,
                count=jobs,
                max_jobs=max_jobs,
            ),
            gettext(
                "Start more workers, or raise DELAYQ['QUEUES'][{queue!r}]['MAX_JOBS'].",
                queue=facts.name,
            ),
        )


def find_long_list(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report an insertion list that has become so long that searching it takes long."""
    if facts.list_length > LONG_LIST:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "The insertion list of queue {queue!r} holds {length:,} frames, more than {limit:,}. The server searches it for each job that starts or is cancelled.",
                queue=facts.name,
                length=facts.list_length,
                limit=LONG_LIST,
            ),
            gettext(
                "If no Java client reads this queue, set DELAYQ['QUEUES'][{queue!r}]['INSERTION_LIST'] to False and run manage.py delayq_frames {quoted} --list off. You can do this while the queue is in use.",
                queue=facts.name,
                quoted=quote(facts.name),
            ),
        )


#: Functions that find the problems of a queue, in the order of pages.
FINDERS: tuple[Callable[[QueueFacts], Iterator[ServerProblem]], ...] = (
    find_newer,
    find_held_of_queue,
    find_paused,
    find_not_forwarded,
    find_nearly_full,
    find_long_list,
)


def find_queue_problems(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report everything that is wrong with a queue, as far as its facts show that."""
    for find in FINDERS:
        yield from find(facts)


def find_other_format(
    queue: str, redisson: str, its_format: FrameFormat, frames: Sequence[FrameHead]
) -> Iterator[ServerProblem]:
    """Report frames at the head of a queue in another format than the Redisson of the queue reads."""
    looked = len(frames)
    strange = sum(
        not is_read_by(its_format, frame.head, frame.size) for frame in frames
    )
    if strange:
        yield ServerProblem(
            Level.ERROR,
            ngettext(
                "Of the next {looked:,} frames of queue {queue!r}, {number:,} has a format that Redisson {redisson} does"
                " not read: Java transfers nothing behind it.",
                "Of the next {looked:,} frames of queue {queue!r}, {number:,} have a format that Redisson {redisson} does"
                " not read: Java transfers nothing behind them.",
                strange,
                looked=looked,
                queue=queue,
                redisson=redisson,
            ),
            gettext(
                "Run manage.py delayq_frames {quoted}: it shows where the queue is stuck, and how to rewrite the frames.",
                quoted=quote(queue),
            ),
        )


def find_missing_queues(missing: Mapping[str, Exception]) -> Iterator[ServerProblem]:
    """Report queues that did not answer, by name, where others did."""
    why: dict[Fault, list[str]] = {}
    for name, error in missing.items():
        why.setdefault(describe_fault(error), []).append(name)
    for fault, names in why.items():
        yield ServerProblem(
            Level.ERROR,
            ngettext(
                "No answer from queue {names}: {what} {message}",
                "No answer from queues {names}: {what} {message}",
                len(names),
                names=", ".join(names),
                what=fault.what,
                message=fault.message,
            ),
            fault.hint,
        )
