"""Times as people type them after an option: a span, a time, a range."""

import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta

from django.utils import timezone

from django_delayq.wire.delay import MAX_DELAY_MS

_SPAN = re.compile(r"(\d{1,9}(?:\.\d+)?) ?([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
#: No delay is longer.
_LONGEST_S = MAX_DELAY_MS // 1000
#: Ends of a range that lie in the past, or now.
_AGO = re.compile(r"-(?P<before>.+)|(?P<after>.+) ago")


def span(text: str) -> timedelta:
    """Read a time such as 90, 90s, 15m, 2h or 1d."""
    found = _SPAN.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else _LONGEST_S + 1
    if seconds > _LONGEST_S:
        raise ArgumentTypeError(
            f"{text!r} is not a time such as 90, 90s, 15m, 2h or 1d"
        )
    return timedelta(seconds=seconds)


def moment(text: str) -> datetime:
    """Read a time; without an offset, it is in the project's TIME_ZONE."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time such as '2026-12-24 18:00' or '2026-12-24T18:00+01:00'"
        ) from None
    return timezone.make_aware(found) if timezone.is_naive(found) else found


Bound = datetime | timedelta | None


def window(text: str) -> tuple[Bound, Bound]:
    """Read a range of times, ``FROM..TO``: each end is a time, a time from now, a time ago, or open."""
    first, dots, end = text.partition("..")
    if not dots or not (first.strip() or end.strip()):
        raise ArgumentTypeError(
            f"{text!r} is not a range FROM..TO such as ..now, now..2h, '1d ago..5m ago' or"
            " '2026-12-24 18:00..2026-12-25'; leave one end out to have it open"
        )
    return _bound(first.strip()), _bound(end.strip())


def _bound(text: str) -> Bound:
    if not text:
        return None
    if text.lower() == "now":
        return timedelta(0)
    try:
        if found := _AGO.fullmatch(text):
            return -span(found["before"] or found["after"])
        return span(text)
    except ArgumentTypeError:
        pass
    try:
        return moment(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is neither a time from now such as 2h, '5m ago' or now, nor a time such as '2026-12-24 18:00'"
        ) from None
