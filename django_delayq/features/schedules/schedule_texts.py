"""Texts about a schedule for its page and ``delayq_schedules``."""

from django_delayq.exceptions import InvalidSchedule
from django_delayq.features.schedules.api import Schedule
from django_delayq.translations import gettext, moment_text

#: How many occurrences of a schedule are shown.
SHOWN = 5


def occurrences_of(schedule: Schedule) -> list[str]:
    """Write the next occurrences; or why they cannot be reckoned."""
    try:
        return [moment_text(moment) for moment in schedule.occurrences(SHOWN)]
    except InvalidSchedule as error:
        return [str(error)]


def pause_text(schedule: Schedule) -> str:
    """Say since when a schedule is paused, by whom and why; "": it is not paused."""
    since, by = schedule.paused_since, schedule.paused_by
    if since is None:
        return ""
    if not schedule.paused_reason:
        return gettext("paused since {since}, by {by}", since=since, by=by)
    return gettext(
        "paused since {since}, by {by}: {reason}",
        since=since,
        by=by,
        reason=schedule.paused_reason,
    )


def enrolment_text(schedule: Schedule) -> str:
    """Say that the server does not have a schedule yet; "": it has."""
    if schedule.is_enrolled:
        return ""
    return gettext("not on the server yet: the first worker that starts stores it")
