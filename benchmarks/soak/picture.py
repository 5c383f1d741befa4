"""The course of a soak as one SVG: small panels on one axis of time, for light and for dark pages.

Lines differ by their dashes as well, so the picture is legible without colours.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from benchmarks.peers.plots import FONT, Theme, draw_text, number
from benchmarks.soak.sampling import MIB, Sample
from benchmarks.soak.verdict import RESULTS

WIDTH = 920
COLUMNS = 2
#: Of a panel, its place among the others included.
PANEL_WIDTH, PANEL_HEIGHT = WIDTH // COLUMNS, 196
#: Where the lines are within a panel.
LEFT, RIGHT, TOP, BOTTOM = 64, PANEL_WIDTH - 26, 58, PANEL_HEIGHT - 28
HEAD = 62
DASHES = ("", "7 3", "2 3", "9 3 2 3")
#: About so many ticks.
TICKS = 4

Values = Sequence[float | None]


class Panel(NamedTuple):
    """Some lines on one scale."""

    title: str
    #: By name.
    lines: dict[str, Values]
    is_logarithmic: bool = False


def draw(samples: Sequence[Sample], title: str, subtitle: str, theme: Theme) -> str:
    """Return the picture of samples as a file's text."""
    panels = panels_of(samples)
    height = HEAD + PANEL_HEIGHT * math.ceil(len(panels) / COLUMNS)
    times_s = [sample.at_s for sample in samples]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" fill="{theme.background}"/>',
        draw_text(16, 28, title, theme.text, size=16, weight="bold"),
        draw_text(16, 50, subtitle, theme.faint),
    ]
    for place, panel in enumerate(panels):
        x = PANEL_WIDTH * (place % COLUMNS)
        y = HEAD + PANEL_HEIGHT * (place // COLUMNS)
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(panel, times_s, theme)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def panels_of(samples: Sequence[Sample]) -> list[Panel]:
    """Return what is drawn of samples."""

    def line(value: Callable[[Sample], float | None]) -> Values:
        return [value(sample) for sample in samples]

    last = samples[-1]
    workers = sorted(name for name in last.rss if name.startswith("worker"))
    nodes = [name for name in last.rss if name.startswith("node")]
    server = "nodes" if nodes else "server"
    processes = {server: nodes or ["server"], "producer": ["producer"]} | {
        f"worker {place}": [name] for place, name in enumerate(workers, 1)
    }

    def together(figures: Callable[[Sample], dict[str, int]]) -> dict[str, Values]:
        return {
            shown: line(lambda s, names=names: _sum(figures(s), names))  # type: ignore[misc]
            for shown, names in processes.items()
        }

    return [
        Panel(
            "Lateness, ms",
            {
                "half": line(lambda s: s.p50_ms),
                "99 %": line(lambda s: s.p99_ms),
                "99 %, ledger": line(lambda s: s.ledger_p99_ms),
            },
            is_logarithmic=True,
        ),
        Panel(
            "Jobs a second",
            {
                "scheduled": line(lambda s: s.stored_a_second),
                "ended": line(lambda s: s.ended_a_second),
            },
        ),
        Panel("Jobs that wait", {"": line(lambda s: s.waiting)}),
        Panel(
            f"Keys of the {server}",
            {
                "all": line(lambda s: s.dbsize),
                "without results": line(lambda s: s.dbsize - s.keys.get(RESULTS, 0)),
            },
        ),
        Panel(
            f"Memory of the {server}, MiB",
            {
                "all": line(lambda s: s.used_memory / MIB),
                "of that, statistics": line(lambda s: s.statistics_memory / MIB),
            },
        ),
        Panel("Append-only file, MiB", {"": line(lambda s: s.aof_size / MIB)}),
        Panel(
            "Memory of processes, RSS, MiB",
            {
                shown: [None if size is None else size / MIB for size in sizes]
                for shown, sizes in together(lambda s: s.rss).items()
            },
        ),
        Panel("Open files and sockets", together(lambda s: s.handles)),
    ]


def _sum(figures: dict[str, int], names: Sequence[str]) -> int | None:
    found = [figures[name] for name in names if name in figures]
    return sum(found) if found else None


def _panel(panel: Panel, times_s: Sequence[float], theme: Theme) -> list[str]:
    values = [v for line in panel.lines.values() for v in line if v is not None]
    place, ticks = scale(values, is_logarithmic=panel.is_logarithmic)
    end_s = max(times_s)
    colours = (*theme.series, theme.text)
    parts = [draw_text(16, 16, panel.title, theme.text, weight="bold")]
    for tick in ticks:
        y = place(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{theme.grid}"/>')
        parts.append(
            draw_text(LEFT - 8, y + 4, number(tick), theme.faint, anchor="end", size=11)
        )
    for minutes in _minutes(end_s):
        x = _x(minutes * 60, end_s)
        label = f"{number(minutes)} min"
        parts.append(
            draw_text(x, BOTTOM + 17, label, theme.faint, anchor="middle", size=11)
        )
    legend = float(LEFT)
    for shown, (name, line) in enumerate(panel.lines.items()):
        style = f'fill="none" stroke="{colours[shown]}" stroke-width="1.6" stroke-dasharray="{DASHES[shown]}" stroke-linecap="round"'
        if name:
            parts += [
                f'<path d="M{legend:.1f} 35h26" {style}/>',
                draw_text(legend + 32, 39, name, theme.text, size=11),
            ]
            legend += 48 + 6 * len(name)
        points = [
            None if value is None else f"{_x(at_s, end_s):.1f} {place(value):.1f}"
            for at_s, value in zip(times_s, line, strict=True)
        ]
        for is_known, piece in groupby(points, key=lambda point: point is not None):
            if is_known:
                # A point alone is a line without a length, and a round end shows it.
                path = "L".join(filter(None, piece))
                parts.append(f'<path d="M{path}h0" {style}/>')
    return parts


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (RIGHT - LEFT) * at_s / end_s


def _minutes(end_s: float) -> list[float]:
    end = end_s / 60
    step = _step(end)
    return [step * n for n in range(int(end / step + 1e-9) + 1)]


def _step(most: float) -> float:
    """Return a round number of which `TICKS` or a few more reach as far as this."""
    step = 10.0 ** math.floor(math.log10(most))
    return next(
        step * part
        for part in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5)
        if most / (step * part) <= TICKS + 1
    )


def scale(
    values: Sequence[float], *, is_logarithmic: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Return where a value stands in its panel, and the ticks."""
    most = max(values, default=0.0)
    if is_logarithmic:
        least = max(min(values, default=0.1), 0.01)
        first = math.floor(math.log10(least))
        last = max(math.ceil(math.log10(max(most, least))), first + 1)

        def on_log(value: float) -> float:
            share = (math.log10(max(value, 10.0**first)) - first) / (last - first)
            return BOTTOM - (BOTTOM - TOP) * share

        return on_log, [10.0**power for power in range(first, last + 1)]
    step = _step(most or 1.0)
    count = max(1, math.ceil(most / step - 1e-9))

    def on_line(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / (count * step)

    return on_line, [step * n for n in range(count + 1)]
