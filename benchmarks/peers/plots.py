"""Plots as SVG, without any library: one row a system, one mark a series, on one scale.

A plot is drawn twice, for light and for dark pages, and is legible where no font of its own is there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

WIDTH = 880
ROW = 26
#: The scale begins and ends here; labels stand to the left of it, figures to the right.
LEFT, RIGHT = 250, 660
TOP, BOTTOM = 84, 40
#: From this ratio of the greatest value to the least on the scale is logarithmic.
LOG_FROM = 20
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Theme(NamedTuple):
    """Colours of a plot."""

    background: str
    text: str
    faint: str
    grid: str
    ours: str
    #: One for each series.
    series: tuple[str, str, str]


THEMES = {
    "light": Theme(
        "#ffffff",
        "#1f2328",
        "#59636e",
        "#d8dee4",
        "#fff1d6",
        ("#0969da", "#bc4c00", "#8250df"),
    ),
    "dark": Theme(
        "#0d1117",
        "#f0f6fc",
        "#9198a1",
        "#30363d",
        "#3a2d12",
        ("#58a6ff", "#f0883e", "#bc8cff"),
    ),
}


class Row(NamedTuple):
    """A system: a value for each series, or None; and what is said where there is none at all."""

    label: str
    values: Sequence[float | None]
    is_ours: bool = False
    missing: str = "not measured"


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What is drawn."""

    title: str
    #: Of the values, and what is better: "jobs/s, more is better".
    unit: str
    series: Sequence[str]
    rows: Sequence[Row]
    #: Values below it are drawn at it, as a logarithm has no zero.
    floor: float = 0.1

    def svg(self, theme: Theme) -> str:
        """Return it as a file's text."""
        values = [
            max(value, self.floor)
            for row in self.rows
            for value in row.values
            if value is not None
        ]
        place, ticks = scale(values)
        bottom = TOP + ROW * len(self.rows)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + BOTTOM}" '
            f'viewBox="0 0 {WIDTH} {bottom + BOTTOM}" font-family="{FONT}" font-size="13" role="img">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="100%" height="100%" fill="{theme.background}"/>',
            draw_text(16, 28, self.title, theme.text, size=16, weight="bold"),
            draw_text(16, 50, self.unit, theme.faint),
            *self._legend(theme),
        ]
        for tick, label in ticks:
            x = place(tick)
            parts.append(
                f'<path d="M{x:.1f} {TOP - 6}V{bottom}" stroke="{theme.grid}"/>'
            )
            parts.append(draw_text(x, bottom + 18, label, theme.faint, anchor="middle"))
        for number, row in enumerate(self.rows):
            parts += self._row(row, TOP + ROW * number, place, theme)
        return "\n".join([*parts, "</svg>", ""])

    def _legend(self, theme: Theme) -> list[str]:
        if len(self.series) == 1:
            return []
        parts = []
        x = float(LEFT)
        for number, name in enumerate(self.series):
            parts += [
                _mark(number, x + 6, 66, theme),
                draw_text(x + 19, 70.5, name, theme.text),
            ]
            x += 48 + 7.2 * len(name)
        return parts

    def _row(
        self, row: Row, y: float, place: Callable[[float], float], theme: Theme
    ) -> list[str]:
        middle = y + ROW / 2
        parts = []
        if row.is_ours:
            parts.append(
                f'<rect x="8" y="{y}" width="{WIDTH - 16}" height="{ROW}" rx="4" fill="{theme.ours}"/>'
            )
        weight = "bold" if row.is_ours else "normal"
        parts.append(draw_text(16, middle + 4.5, row.label, theme.text, weight=weight))
        known = [
            (i, place(max(value, self.floor)))
            for i, value in enumerate(row.values)
            if value is not None
        ]
        if not known:
            return [
                *parts,
                draw_text(LEFT, middle + 4.5, row.missing, theme.faint, style="italic"),
            ]
        xs = [x for _, x in known]
        begin = min(xs) if len(self.series) > 1 else LEFT
        parts.append(
            f'<path d="M{begin:.1f} {middle}H{max(xs):.1f}" stroke="{theme.faint}" stroke-width="2"/>'
        )
        parts += [_mark(i, x, middle, theme) for i, x in reversed(known)]
        figures = " · ".join(
            "–" if value is None else number(value) for value in row.values
        )
        return [
            *parts,
            draw_text(
                WIDTH - 16,
                middle + 4.5,
                figures,
                theme.text,
                anchor="end",
                weight=weight,
            ),
        ]


def draw_text(
    x: float,
    y: float,
    text: str,
    fill: str,
    *,
    anchor: str = "start",
    size: int = 13,
    **style: str,
) -> str:
    """Return a piece of text; ``style`` are attributes of its font."""
    more = "".join(
        f' font-{name}="{value}"' for name, value in style.items() if value != "normal"
    )
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}"{more}>{escape(text)}</text>'


def _mark(series: int, x: float, y: float, theme: Theme) -> str:
    """Draw a series' mark: known by its shape without its colour, and seen where all three lie on one another."""
    colour = theme.series[series]
    if series == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
    if series == 1:
        return (
            f'<path d="M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8-8z" fill="{colour}" '
            f'stroke="{theme.background}"/>'
        )
    return (
        f'<rect x="{x - 7:.1f}" y="{y - 7:.1f}" width="14" height="14" '
        f'fill="none" stroke="{colour}" stroke-width="2"/>'
    )


def scale(
    values: Sequence[float],
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Return where a value stands, and the ticks with their labels; logarithmic where values span decades."""
    most = max(values, default=1.0)
    least = min(values, default=1.0)
    width = RIGHT - LEFT
    if most / least >= LOG_FROM:
        first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))

        def on_log(value: float) -> float:
            return LEFT + width * (math.log10(value) - first) / (last - first)

        return on_log, [
            (10.0**power, number(10.0**power)) for power in range(first, last + 1)
        ]
    step = 10.0 ** math.floor(math.log10(most))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if most / (step * part) <= 6)
    count = math.ceil(most / step)

    def on_line(value: float) -> float:
        return LEFT + width * value / (count * step)

    return on_line, [(step * i, number(step * i)) for i in range(count + 1)]


def number(value: float | None) -> str:
    """Show a figure with three digits or as a whole number."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
