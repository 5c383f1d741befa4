"""Language and time zone: a task speaks the language of the code that scheduled it."""

from collections.abc import Mapping
from datetime import timedelta, tzinfo
from datetime import timezone as fixed
from zoneinfo import ZoneInfo

from django.utils import timezone, translation


class Locale:
    """Run a job with the language and the time zone that were active where it was scheduled.

    Example::

        DELAYQ = {"CONTEXT": ["django_delayq.context.Locale"]}
    """

    name = "locale"

    def capture(self) -> dict[str, str]:
        """Return the active language, and the active time zone if its name is enough to restore it."""
        headers = {}
        if (language := translation.get_language()) is not None:
            headers["language"] = language
        if (zone := _written(timezone.get_current_timezone())) is not None:
            headers["zone"] = zone
        return headers

    def restore(self, headers: Mapping[str, str]) -> None:
        """Activate both. They end with the attempt, because each attempt has its own context."""
        if language := headers.get("language"):
            translation.activate(language)
        if zone := headers.get("zone"):
            timezone.activate(_read(zone))


def _written(zone: tzinfo) -> str | None:
    if isinstance(zone, ZoneInfo):
        return zone.key
    offset = zone.utcoffset(None)
    return None if offset is None else f"{offset.total_seconds():+.0f}"


def _read(text: str) -> tzinfo:
    if text[0] in "+-":
        return fixed(timedelta(seconds=int(text)))
    return ZoneInfo(text)
