"""Pauses of a queue and of its tasks."""

from collections.abc import Iterator
from shlex import quote

from django_delayq.health.problem import Level, ServerProblem
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.wording import gettext, sentence


def find_paused(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report the pauses of a queue."""
    for pause in facts.pauses:
        what = quote(pause.queue)
        if pause.task is not None:
            what += f" --task {quote(pause.task)}"
        yield ServerProblem(
            Level.WARNING,
            sentence(pause.words),
            gettext("To resume it, run manage.py delayq_resume {what}.", what=what),
        )
