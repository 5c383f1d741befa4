"""Pictures of numbers over time: bars and lines as a template writes them into an SVG, and the same as a table.

Coordinates are texts, which no language writes with a comma. Nothing depends on colour: failures are hatched, and the
second line is dashed; both are named.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.functional import Promise

from django_delayq.display.time_texts import relative_text, short_time_text
from django_delayq.features.statistics.api import Series
from django_delayq.features.statistics.calls import Histogram
from django_delayq.jobs.occurrences import in_zone
from django_delayq.translations import gettext, number_text, seconds_text

#: The picture, and what is left for bars and lines beside the labels.
WIDTH, HEIGHT = 300, 124
LEFT, RIGHT, TOP, BOTTOM = 54, 34, 10, 20
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
_BASE = TOP + _INNER_HEIGHT

Text = str | Promise


@dataclass(frozen=True, slots=True)
class Line:
    """A line, with gaps where nothing was measured."""

    label: Text
    is_dashed: bool
    #: The points of each part, ``x,y x,y``.
    parts: list[str]
    #: Where parts of one point are: x and y.
    dots: list[tuple[str, str]]
    #: Where its label stands, at its end; "": it has no point.
    label_x: str
    label_y: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture."""

    #: Unique on its page.
    key: str
    title: Text
    #: What a screen reader says of it, and everybody reads below its title.
    summary: Text
    heads: Sequence[Text]
    #: The table: only times with something in them.
    rows: list[list[str]]
    #: All bars as one path, and all hatched parts of bars: an element each would take longer than all else on the page.
    bars: str = ""
    hatched: str = ""
    lines: list[Line] = field(default_factory=list)
    #: Where a thin line goes across, and the label beside it.
    grid: list[tuple[str, Text]] = field(default_factory=list)
    #: Labels below: where, how they are anchored, and what.
    ticks: list[tuple[str, str, str]] = field(default_factory=list)

    width = WIDTH
    height = HEIGHT
    left = LEFT
    right = WIDTH - RIGHT
    base = _BASE
    tick_y = HEIGHT - 5

    @property
    def is_empty(self) -> bool:
        return not self.rows


def bars_ahead(
    key: str, title: Text, counts: Sequence[int], unit_ms: int, last_end_ms: int
) -> Chart:
    """Draw how many jobs become due in each of some times ahead, all as long."""
    total = sum(counts)
    rows = [
        [
            relative_text((n + 1) * unit_ms),
            number_text(count),
        ]
        for n, count in enumerate(counts)
        if count
    ]
    summary = gettext(
        "{count} due, at most {most} at once", count=total, most=max(counts, default=0)
    )
    middle = (last_end_ms // 2, last_end_ms)
    return Chart(
        key,
        title,
        summary if total else gettext("Nothing is due in this time."),
        [gettext("Until"), gettext("Due")],
        rows,
        bars=_bars([(count, 0) for count in counts])[0],
        grid=_counts_grid(max(counts, default=0)),
        ticks=_ticks([gettext("now"), *map(relative_text, middle)]),
    )


def bars_of_runs(key: str, title: Text, series: Series) -> Chart:
    """Draw the attempts that ran in each minute or hour, the failed ones hatched."""
    figures = [span.figures for span in series.spans]
    most = max((each.runs for each in figures), default=0)
    runs, failed = (
        sum(each.runs for each in figures),
        sum(each.failures for each in figures),
    )
    rows = [
        [
            seconds_text(in_zone(span.since)),
            number_text(span.figures.runs),
            number_text(span.figures.failures),
        ]
        for span in reversed(series.spans)
        if span.figures
    ]
    plain, hatched = _bars(
        [
            (max(0, each.runs - each.failures), min(each.runs, each.failures))
            for each in figures
        ]
    )
    summary = gettext("{runs} in all, {failed} failed", runs=runs, failed=failed)
    return Chart(
        key,
        title,
        summary if rows else gettext("Nothing ran in this time."),
        [_since_head(), gettext("Runs"), gettext("Failed")],
        rows,
        bars=plain,
        hatched=hatched,
        grid=_counts_grid(most),
        ticks=_ticks_behind(series),
    )


def lines_of_times(
    key: str, title: Text, series: Series, histograms: Sequence[Histogram]
) -> Chart:
    """Draw the 50th and the 99th percentile of a time, by minute or hour."""
    found = [(each.percentile(50), each.percentile(99)) for each in histograms]
    rows = [
        [
            seconds_text(in_zone(span.since)),
            short_time_text(p50),
            short_time_text(p99),
        ]
        for span, (p50, p99) in reversed(list(zip(series.spans, found, strict=True)))
        if p50 is not None
    ]
    both = Histogram()
    for each in histograms:
        both.add(each)
    summary = gettext(
        "p50 {p50}, p99 {p99}",
        p50=short_time_text(both.percentile(50)),
        p99=short_time_text(both.percentile(99)),
    )
    known = [ms for pair in found for ms in pair if ms is not None]
    low, high = _decades(known)
    return Chart(
        key,
        title,
        summary if rows else gettext("Nothing was measured in this time."),
        [_since_head(), "p50", "p99"],
        rows,
        lines=[
            _line("p50", [p50 for p50, _ in found], low, high),
            _line("p99", [p99 for _, p99 in found], low, high, is_dashed=True),
        ]
        if rows
        else [],
        grid=_times_grid(low, high) if rows else [],
        ticks=_ticks_behind(series),
    )


def _since_head() -> str:
    """Name the column of times, and their zone."""
    since = gettext("From")
    return f"{since} ({timezone.get_current_timezone_name()})"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _bars(stacks: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """Draw stacks of two parts as two paths."""
    top = _nice(max(map(sum, stacks), default=0))
    slot = _INNER_WIDTH / max(1, len(stacks))
    # A little room between bars, unless they would vanish.
    width = max(slot - 1.5, slot * 0.7)
    paths: tuple[list[str], list[str]] = ([], [])
    for n, stack in enumerate(stacks):
        x, base = _number(LEFT + n * slot + (slot - width) / 2), float(_BASE)
        for path, count in zip(paths, stack, strict=True):
            if count:
                # What is there is seen, however little.
                height = max(1.5, count / top * _INNER_HEIGHT)
                path.append(
                    f"M{x} {_number(base)}v{_number(-height)}h{_number(width)}v{_number(height)}z"
                )
                base -= height
    return "".join(paths[0]), "".join(paths[1])


def _nice(most: int) -> int:
    """Return a round number that is as much or a little more."""
    if most <= 5:
        return max(1, most)
    unit: int = 10 ** (len(str(most)) - 1)
    tenths = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
    return next(n * unit // 10 for n in tenths if n * unit >= most * 10)


def _counts_grid(most: int) -> list[tuple[str, Text]]:
    if not most:
        return []
    return [(_number(TOP), _short_number(_nice(most))), (_number(_BASE), "0")]


def _short_number(number: int) -> str:
    for size, template in (
        (10**9, gettext("{count} G")),
        (10**6, gettext("{count} M")),
    ):
        if number >= size:
            return template.format(count=number_format(f"{number / size:.3g}"))
    return number_text(number)


def _ticks(labels: Sequence[str]) -> list[tuple[str, str, str]]:
    places = (
        (LEFT, "start"),
        (LEFT + _INNER_WIDTH / 2, "middle"),
        (WIDTH - RIGHT, "end"),
    )
    return [
        (_number(x), anchor, label)
        for (x, anchor), label in zip(places, labels, strict=True)
    ]


def _ticks_behind(series: Series) -> list[tuple[str, str, str]]:
    whole_ms = len(series.spans) * series.unit.seconds * 1000
    return _ticks(
        [relative_text(-whole_ms), relative_text(-whole_ms // 2), gettext("now")]
    )


def _decades(times_ms: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten between which the times lie."""
    if not times_ms:
        return 0, 1
    low = math.floor(math.log10(max(0.001, min(times_ms))))
    high = math.ceil(math.log10(max(0.001, *times_ms)))
    return low, max(high, low + 1)


def _height_of(ms: float, low: int, high: int) -> float:
    share = (math.log10(max(0.001, ms)) - low) / (high - low)
    return _BASE - share * _INNER_HEIGHT


def _times_grid(low: int, high: int) -> list[tuple[str, Text]]:
    step = -(-(high - low) // 3)
    return [
        (_number(_height_of(10.0**power, low, high)), _decade_text(power))
        for power in range(low, high + 1, step)
    ]


def _decade_text(power: int) -> str:
    """Write a power of ten of milliseconds; in seconds from one on, because minutes are too long and not powers of ten."""
    if power < 3:
        return short_time_text(10.0**power)
    return gettext("{count} s", count=10 ** (power - 3))


def _line(
    label: Text,
    times_ms: Sequence[float | None],
    low: int,
    high: int,
    *,
    is_dashed: bool = False,
) -> Line:
    slot = _INNER_WIDTH / max(1, len(times_ms))
    parts: list[list[tuple[str, str]]] = [[]]
    for n, ms in enumerate(times_ms):
        if ms is None:
            parts.append([])
        else:
            x, y = LEFT + (n + 0.5) * slot, _height_of(ms, low, high)
            parts[-1].append((_number(x), _number(y)))
    last = next((part[-1] for part in reversed(parts) if part), ("", ""))
    # The dashed line is the upper one.
    shift = -2 if is_dashed else 10
    label_y = _number(max(10.0, float(last[1]) + shift)) if last[1] else ""
    return Line(
        label,
        is_dashed,
        [" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1],
        [part[0] for part in parts if len(part) == 1],
        _number(float(last[0]) + 3) if last[0] else "",
        label_y,
    )
