"""The line about a queue that the commands which move jobs print."""

from django_delayq.tools.move import Tally
from django_delayq.translations import gettext, number_text


def told(name: str, tally: Tally, done: str) -> str:
    """Return one line of a queue; ``done`` says what was done, with ``{count}`` in it."""
    parts = [done.format(count=number_text(tally.moved))]
    more = [
        (gettext("{count} of these signed again"), tally.signed),
        (
            gettext("{count} of these without their unique key, which another job has"),
            tally.shared,
        ),
        (gettext("{count} were already here"), tally.known),
        (gettext("{count} stored schedules"), tally.schedules),
        (gettext("{count} stay and end there"), tally.stay),
    ]
    parts += [
        template.format(count=number_text(count)) for template, count in more if count
    ]
    parts += [
        gettext(
            "{count} need key {key}, which this project does not have",
            count=count,
            key=repr(key),
        )
        for key, count in sorted(tally.unknown.items())
    ]
    return gettext("queue {queue}: {counts}", queue=name, counts=", ".join(parts))
