"""Jobs that follow others and have not reached their queue."""

from collections.abc import Iterator

from django_delayq.health.problem import Level, ServerProblem
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.wording import gettext, ngettext

#: A worker forwards at once, and looks every few seconds for what others have left.
NOT_FORWARDED_MS = 15_000


def find_not_forwarded(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report other queues that do not get the jobs that follow ones of this queue."""
    if facts.forwards is None:
        return
    for waiting, age_s in facts.forwards.ages_s():
        if 1000 * age_s >= NOT_FORWARDED_MS:
            yield ServerProblem(
                Level.WARNING,
                ngettext(
                    "{number:,} job that follows a job of queue {queue!r} has not reached queue {other!r} for {seconds:,} s.",
                    "{number:,} jobs that follow jobs of queue {queue!r} have not reached queue {other!r} for {seconds:,} s.",
                    waiting.number,
                    other=waiting.queue,
                    queue=facts.name,
                    seconds=int(age_s),
                ),
                gettext(
                    "The workers of queue {queue!r} forward them as soon as they can. Their log says why they cannot. If no worker runs, start one.",
                    queue=facts.name,
                ),
            )
