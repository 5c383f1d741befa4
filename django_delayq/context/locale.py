"""Language and time zone: a task speaks the language of whoever scheduled it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta, tzinfo
from datetime import timezone as fixed
from zoneinfo import ZoneInfo

from django.utils import timezone, translation


class Locale:
    """Has a job run in the language and the time zone that were active where it was scheduled."""

    name = "locale"

    def capture(self) -> dict[str, str]:
        """Return the active language, and the active time zone if its name says all of it."""
        headers = {}
        if (language := translation.get_language()) is not None:
            headers["language"] = language
        if (zone := _written(timezone.get_current_timezone())) is not None:
            headers["zone"] = zone
        return headers

    @contextmanager
    def restore(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Activate them for the attempt."""
        with ExitStack() as stack:
            if language := headers.get("language"):
                stack.enter_context(translation.override(language))
            if zone := headers.get("zone"):
                stack.enter_context(timezone.override(_read(zone)))
            yield


def _written(zone: tzinfo) -> str | None:
    if isinstance(zone, ZoneInfo):
        return zone.key
    offset = zone.utcoffset(None)
    return None if offset is None else f"{offset.total_seconds():+.0f}"


def _read(text: str) -> tzinfo:
    if text[0] in "+-":
        return fixed(timedelta(seconds=int(text)))
    return ZoneInfo(text)
