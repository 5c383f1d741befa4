"""Workers that are missing, late, or of another version."""

from collections.abc import Iterator, Mapping
from shlex import quote

from django_delayq.core.queue_reads import Counts
from django_delayq.faults import describe_fault
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.wording import gettext, ngettext

#: A due job that has waited for so long shows that no worker takes it; a worker would within 2 s.
UNSERVED_MS = 5_000
#: From this lateness on, a queue that is served is late.
LATE_MS = 60_000


def find_unserved(
    queue: str, counts: Counts, processes: int, *, is_shared: bool, is_paused: bool
) -> Iterator[ServerProblem]:
    """Report a queue whose jobs nobody takes, or whose workers are late; ``processes`` serve it."""
    late_ms = counts.late_ms
    if is_paused or (is_shared and late_ms < LATE_MS):
        # The pause is a problem of its own; and Java may be the one that takes what is due.
        return
    if processes == 0 and late_ms >= UNSERVED_MS:
        yield ServerProblem(
            Level.ERROR,
            ngettext(
                "Queue {queue!r} has {number:,} due job, the first for {late_s:,} s, and no worker serves it.",
                "Queue {queue!r} has {number:,} due jobs, the first for {late_s:,} s, and no worker serves it.",
                counts.due,
                queue=queue,
                late_s=late_ms // 1000,
            ),
            gettext(
                "Start a worker: manage.py delayq_worker --queue {queue}",
                queue=quote(queue),
            ),
        )
    elif processes == 0 and counts.jobs:
        yield ServerProblem(
            Level.WARNING,
            ngettext(
                "No worker serves queue {queue!r}, which holds {number:,} job.",
                "No worker serves queue {queue!r}, which holds {number:,} jobs.",
                counts.jobs,
                queue=queue,
            ),
            gettext(
                "Start a worker: manage.py delayq_worker --queue {queue}",
                queue=quote(queue),
            ),
        )
    elif late_ms >= LATE_MS:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "Queue {queue!r} is late: its first due job has waited for {late_s:,} s, though {processes} worker"
                " processes serve it.",
                queue=queue,
                late_s=late_ms // 1000,
                processes=processes,
            ),
            gettext(
                "If the workers are busy, start more. If a limit holds the queue, wait or raise the limit."
            ),
        )


def find_other_versions(
    versions: Mapping[str, str], version: str
) -> Iterator[ServerProblem]:
    """Report workers, given with their versions by name, that run another version than this process."""
    for name, its in versions.items():
        if its != version:
            yield ServerProblem(
                Level.WARNING,
                gettext(
                    "Worker {name} runs django-delayq {its}, and this project has {version}.",
                    name=name,
                    its=its,
                    version=version,
                ),
                gettext("Restart it with the code of this project."),
            )


def find_missing_workers(error: Exception) -> Iterator[ServerProblem]:
    """Report that the list of workers cannot be read."""
    fault = describe_fault(error)
    yield ServerProblem(
        Level.ERROR,
        gettext(
            "The list of workers cannot be read: {what} {message}",
            what=fault.what,
            message=fault.message,
        ),
        fault.hint,
    )
