"""Jobs that are held because this project cannot read them."""

from collections.abc import Iterator

from django_delayq.core.reasons import Kind
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.wire import signatures
from django_delayq.wording import gettext, ngettext


def find_held_of_queue(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report what `find_held` does, with the name of the queue."""
    for problem in find_held(facts):
        message = gettext(
            "Queue {queue!r}: {problem}", queue=facts.name, problem=problem.message
        )
        yield problem._replace(message=message)


def find_held(facts: QueueFacts) -> Iterator[ServerProblem]:
    """Report the jobs of a queue that are held because this project cannot tell whether they are jobs."""
    if facts.held is None or facts.key_ids is None:
        return
    for (kind, which, _), count in facts.held.counts.items():
        if kind == Kind.KEY and which not in facts.key_ids:
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: it is signed with key {key!r}, which this project does not have.",
                    "{number:,} jobs are held: they are signed with key {key!r}, which this project does not have.",
                    count,
                    key=which,
                ),
                gettext(
                    "Add the key's secret to DELAYQ['KEYS'] if that is set, else to SECRET_KEY_FALLBACKS, and restart the workers. Or run manage.py delayq_resign where the settings have the secret. If you do not know this key, another project may use this server with the same queue names."
                ),
            )
        elif kind == Kind.CODEC:
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: another codec wrote it, and {codec} cannot read it.",
                    "{number:,} jobs are held: another codec wrote them, and {codec} cannot read them.",
                    count,
                    codec=which,
                ),
                gettext(
                    "Set CODEC and REDISSON of the queue back to the values with which these jobs were scheduled, and restart the workers. Keep these values until the jobs have run."
                ),
            )
        elif kind == Kind.FORMAT and which == signatures.ENCRYPTED:
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: it is encrypted, and a worker cannot decrypt it.",
                    "{number:,} jobs are held: they are encrypted, and a worker cannot decrypt them.",
                    count,
                ),
                gettext(
                    "Install django-delayq[encryption] where the workers run, in a version that supports encryption. Then restart the workers."
                ),
            )
        elif kind == Kind.FORMAT and which != str(signatures.FORMAT):
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: it has format {format}, but this version of django-delayq reads format {ours}.",
                    "{number:,} jobs are held: they have format {format}, but this version of django-delayq reads format {ours}.",
                    count,
                    format=which,
                    ours=signatures.FORMAT,
                ),
                gettext("Start workers with the version that wrote them."),
            )
