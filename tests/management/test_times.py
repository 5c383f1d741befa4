"""Times as people type them."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_delayq.management.times import moment, span, window

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("..now", None, timedelta(0)),
        ("now..", timedelta(0), None),
        ("now..1h", timedelta(0), HOUR),
        ("1d ago..1h ago", -24 * HOUR, -HOUR),
        ("-1h..30m", -HOUR, HOUR / 2),
        (" 1H ago .. NOW ", -HOUR, timedelta(0)),
        ("2026-12-24T18:00Z..", datetime(2026, 12, 24, 18, tzinfo=UTC), None),
    ],
)
def test_window_is_read(text: str, first: Any, end: Any) -> None:
    assert window(text) == (first, end)


def test_moment_without_an_offset_is_in_the_projects_time_zone(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"

    assert moment("2026-12-24 18:00") == datetime(2026, 12, 24, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "now",
        "1h",
        "now-1h",
        "soon..",
        "..9:00",
        "1h ago ago..",
        "--1h..",
        "..1w",
    ],
)
def test_malformed_window_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is n"):
        window(text)


@pytest.mark.parametrize("text", ["999999999d", "1e9", "inf", "-1", "1 h 5", ""])
def test_span_beyond_any_delay_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not a time such as"):
        span(text)
