"""Make a page of results: tables and plots, with the versions, the settings and what to beware of."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.measurements import Row
from benchmarks.peers.plots import THEMES, Plot, number
from benchmarks.peers.plots import Row as PlotRow
from benchmarks.peers.systems import OURS, SYSTEMS

CAVEATS = """\
- Producer, workers and server share the machine's processors: compare within this page, not across machines.
- CPU time per job depends less on the machine than a rate; in `drain` it includes the start of the workers.
- Each system has its defaults, or the settings that its documentation advises; results are off where possible, and only warnings are logged.
- *Due* is what the producer asked for, to the millisecond; a system that keeps whole seconds gets the next one, so that none of its jobs is early.
- *Start* is the first line of a job's code, which only appends 24 bytes to a file.
- The server keeps nothing on disk; SQLite is set up as Django's documentation advises (WAL, `IMMEDIATE`).
- `kill -9` does not wait for a redelivery that the documentation promises for later than the watch.
- A system that pops a job before it runs (at most once) saves calls, and loses the job when its worker is killed.
"""
#: Columns that hold words; all others hold figures.
WORDS = (
    "",
    "in bulk means",
    "settings",
    "documented redelivery after a worker's death",
    "versions",
    "what runs",
    "notes",
    "documentation",
)


class Results:
    """The rows of results files."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        told = {row["system"]: row for row in rows if row["test"] == "system"}
        #: What is known of each system, in the order of `SYSTEMS`.
        self.systems = {name: told[name] for name in [*SYSTEMS, *told] if name in told}

    def of(self, test: str, **labels: Any) -> list[Row]:
        """Return the rows of a test that have these labels."""
        return [
            row
            for row in self._rows
            if row["test"] == test and all(row.get(k) == v for k, v in labels.items())
        ]

    def of_system(self, name: str) -> list[Row]:
        """Return all rows of a system."""
        return [row for row in self._rows if row.get("system") == name]

    def label_values(self, test: str, label: str) -> list[Any]:
        """Return the values that a label takes in a test, each once."""
        return sorted({row[label] for row in self.of(test) if label in row})

    def layouts(self, test: str) -> list[tuple[str, str]]:
        """Return the systems that a test has, with their layouts."""
        return [
            (name, layout)
            for name in self.systems
            for layout in self.label_values(test, "layout")
            if self.of(test, system=name, layout=layout)
        ]


def load(files: Iterable[Path]) -> Results:
    """Read results files."""
    return Results(
        [
            json.loads(line)
            for file in files
            for line in file.read_text("utf-8").splitlines()
            if line
        ]
    )


def median(rows: Sequence[Row], key: str) -> float | None:
    """Return the median of a figure over the rows that have it."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def figure(rows: Sequence[Row], key: str) -> str:
    """Show a figure's median, and between what the passes lay where there are several."""
    values = [row[key] for row in rows if row.get(key) is not None]
    shown = number(median(rows, key))
    if len(values) > 1 and number(min(values)) != number(max(values)):
        shown += f" ({number(min(values))} – {number(max(values))})"
    return shown


def trouble(rows: Sequence[Row]) -> str:
    """Return why there is no figure, or nothing."""
    if not rows:
        return "not measured"
    return "; ".join(
        dict.fromkeys(
            row.get("error") or row["skipped"]
            for row in rows
            if "error" in row or "skipped" in row
        )
    )


def total(rows: Sequence[Row], key: str) -> str:
    """Show a count over all passes; nothing where it was not counted."""
    counted = [row[key] for row in rows if key in row]
    return number(sum(counted)) if counted else "–"


def title_of(name: str, layout: str = "1") -> str:
    title = SYSTEMS[name].title if name in SYSTEMS else name
    if layout == "1":
        return title
    processes = "2 processes" if layout.startswith("2") else ""
    tuned = "tuned" if layout.endswith("t") else ""
    return ", ".join(part for part in (title, processes, tuned) if part)


def label_of(name: str, layout: str = "1") -> str:
    """Return a system's name for a table: ours in bold."""
    title = title_of(name, layout)
    return f"**{title}**" if name in OURS else title


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: figures to the right, words to the left."""
    sides = ["---" if name in WORDS else "--:" for name in head]
    lines = [_line(head), "|" + "|".join(sides) + "|", *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    shown = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return "| " + " | ".join(shown) + " |"


class Page:
    """The page, and the plots that it shows."""

    def __init__(self, results: Results, plots: str) -> None:
        """``plots`` is the folder of the plots as the page names it; empty: it has none."""
        self._results = results
        self._folder = plots
        self._parts: list[str] = []
        #: File names to texts.
        self.files: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "\n".join(self._parts)

    def make(self) -> "Page":
        """Write all of it."""
        self._say("# Comparison with other systems\n")
        self._head()
        self._glance()
        for section in (
            self._offers,
            self._drain,
            self._burst,
            self._lateness,
            self._stress,
            self._memory,
        ):
            section()
        self._growth()
        self._crash()
        self._settings()
        self._say("## Read with care\n", CAVEATS)
        return self

    def _say(self, *parts: str) -> None:
        self._parts += parts

    def _table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self._say(table(head, rows))

    def _head(self) -> None:
        others = sum(name not in OURS for name in self._results.systems)
        lines = [
            f"This page compares django-delayq with {others} other systems, which ran the same jobs on one machine.\n"
            "`python -m benchmarks.peers` measured it; "
            "[benchmarks/peers](../benchmarks/peers/README.md) explains each test.\n"
        ]
        for machine in self._results.of("machine"):
            lines.append(
                f"{machine['processors']} processors ({machine['model']}), {machine['memory_gib']:.0f} GiB, "
                f"{machine['system']}, Python {machine['python']}; server {machine['server']} on loopback, nothing on "
                f"disk; checkout {machine['revision'] or 'unknown'}.\n"
            )
            if machine["note"]:
                lines.append(f"{machine['note']}\n")
        for options in self._results.of("options"):
            lines.append(
                f"Each figure comes from {options['n']:,} jobs, or as many as fit in {options['drain_s']:g} s, and "
                f"lateness from {options['seconds']:g} s; passes: {options['passes']}.\n"
                "Of several passes, the tables show the median, and the least and the greatest in parentheses.\n"
                "If no job was early, ran twice or did not run, a table has no column for that.\n"
            )
        spins = [row["spin_ms"] for row in self._results.of("took")]
        if spins:
            lines.append(
                f"A fixed piece of work, timed after every test to show how quiet the machine was, took "
                f"{number(min(spins))} – {number(max(spins))} ms, median {number(statistics.median(spins))}.\n"
            )
        # Files that were appended to say some of it again.
        self._say(*dict.fromkeys(lines))

    def _plot(self, name: str, plot: Plot, *, more_is_better: bool) -> None:
        """Show a plot, best first: what has no figure comes last."""
        if not self._folder or not plot.rows:
            return
        worst = 0.0 if more_is_better else float("inf")

        def rank(row: PlotRow) -> float:
            value = next((value for value in row.values if value is not None), worst)
            return -value if more_is_better else value

        ordered = Plot(
            title=plot.title,
            unit=plot.unit,
            series=plot.series,
            rows=sorted(plot.rows, key=rank),
            floor=plot.floor,
        )
        for theme, colours in THEMES.items():
            self.files[f"{name}-{theme}.svg"] = ordered.svg(colours)
        self._say(
            "<picture>",
            f'  <source media="(prefers-color-scheme: dark)" srcset="{self._folder}/{name}-dark.svg">',
            f'  <img alt="{plot.title}: the figures are in the table" src="{self._folder}/{name}-light.svg">',
            "</picture>\n",
        )

    def _row(
        self, name: str, rows: Sequence[Row], *keys: str, layout: str = "1"
    ) -> PlotRow:
        return PlotRow(
            title_of(name, layout),
            [median(rows, key) for key in keys],
            name in OURS,
            trouble(rows) or "no figure",
        )

    # The sections.

    def _glance(self) -> None:
        results = self._results
        rows = []
        for name in results.systems:
            of = _of_system(results, name)
            drains = [
                figure(of("drain", layout=layout), "rate") for layout in ("1", "2")
            ]
            late = [
                (trouble(found := of("lateness", layout="1", per_s=per_s)) and "–")
                or f"{number(median(found, 'p50_ms'))} / {number(median(found, 'p99_ms'))}"
                for per_s in (50, 500)
            ]
            rows.append(
                [
                    label_of(name),
                    figure(of("offers"), "rate"),
                    figure(of("bulk"), "rate"),
                    *drains,
                    figure(of("burst", layout="1"), "rate"),
                    *late,
                    figure(of("stress", layout="1"), "farthest_ms"),
                    figure(of("memory"), "bytes"),
                    *(
                        figure(of("growth", pending=pending), "rate")
                        for pending in (100_000, 1_000_000)
                    ),
                    _fate(of("crash", variant="default")),
                ]
            )
        self._say("## At a glance\n")
        self._table(
            [
                "",
                "offers one by one, jobs/s",
                "in bulk, jobs/s",
                "drain, jobs/s",
                "drain with 2 processes, jobs/s",
                "burst, jobs/s",
                "lateness at 50/s, p50 / p99, ms",
                "lateness at 500/s, p50 / p99, ms",
                "3 queues, farthest from due, ms",
                "bytes a pending job",
                "burst behind 100,000, jobs/s",
                "burst behind 1,000,000, jobs/s",
                "jobs in flight at a kill -9, defaults",
            ],
            rows,
        )

    def _offers(self) -> None:
        results = self._results
        if not results.of("offers") and not results.of("bulk"):
            return
        self._say(
            "## Offers\n",
            "One producer schedules jobs that are due in a day; no worker runs.\n",
        )
        plotted, rows = [], []
        for name in results.systems:
            of = _of_system(results, name)
            one, bulk = of("offers"), of("bulk")
            plotted.append(
                PlotRow(
                    title_of(name),
                    [median(one, "rate"), median(bulk, "rate")],
                    name in OURS,
                    trouble(one),
                )
            )
            rows.append(
                [
                    label_of(name),
                    trouble(one) or figure(one, "rate"),
                    figure(one, "commands"),
                    figure(one, "server_us"),
                    figure(bulk, "rate")
                    if results.systems[name].get("bulk")
                    else "none",
                    figure(bulk, "server_us"),
                    results.systems[name].get("bulk") or "",
                ]
            )
        self._plot(
            "offers",
            Plot(
                title="Offering delayed jobs",
                unit="jobs a second, one producer; more is better",
                series=("one by one", "in bulk"),
                rows=plotted,
            ),
            more_is_better=True,
        )
        self._table(
            [
                "",
                "one by one, jobs/s",
                "commands a job, those of scripts included",
                "server, µs a job",
                "in bulk, jobs/s",
                "server, µs a job",
                "in bulk means",
            ],
            rows,
        )

    def _drain(self) -> None:
        if not self._results.of("drain"):
            return
        self._say(
            "## Drain\n",
            "The worker starts when all jobs are due; the rate counts from the first start to the last.\n",
        )
        plotted = [
            PlotRow(
                title_of(name),
                [
                    median(
                        _of_system(self._results, name)("drain", layout=layout), "rate"
                    )
                    for layout in ("1", "2")
                ],
                name in OURS,
                trouble(_of_system(self._results, name)("drain", layout="1"))
                or "no figure",
            )
            for name in self._results.systems
        ]
        self._plot(
            "drain",
            Plot(
                title="Draining due jobs",
                unit="no-op jobs a second; more is better",
                series=("1 process", "2 processes"),
                rows=plotted,
            ),
            more_is_better=True,
        )
        self._layouts_table(
            "drain",
            {
                "jobs/s": ("rate", figure),
                "worker, µs a job": ("worker_us", figure),
                "server, µs a job": ("server_us", figure),
                "commands a job": ("commands", figure),
                "ran": ("seen", figure),
                "run twice": ("twice", total),
            },
        )

    def _layouts_table(
        self,
        test: str,
        columns: dict[str, tuple[str, Callable[[Sequence[Row], str], str]]],
        **labels: Any,
    ) -> None:
        rows = []
        everything = [
            row
            for name, layout in self._results.layouts(test)
            for row in self._results.of(test, system=name, layout=layout, **labels)
        ]
        columns = {
            head: (key, show)
            for head, (key, show) in columns.items()
            if show is not total or any(row.get(key) for row in everything)
        }
        for name, layout in self._results.layouts(test):
            found = self._results.of(test, system=name, layout=layout, **labels)
            cells = [show(found, key) for key, show in columns.values()]
            why = trouble(found)
            rows.append(
                [
                    label_of(name, layout),
                    *([why, *[""] * (len(cells) - 1)] if why else cells),
                ]
            )
        self._table(["", *columns], rows)

    def _burst(self) -> None:
        if not self._results.of("burst"):
            return
        self._say(
            "## Burst\n",
            "All jobs are due at one time; the rate counts from that time to the last start.\n",
        )
        rows = [
            self._row(
                name,
                self._results.of("burst", system=name, layout=layout),
                "rate",
                layout=layout,
            )
            for name, layout in self._results.layouts("burst")
        ]
        self._plot(
            "burst",
            Plot(
                title="A burst: all jobs due at one instant",
                unit="jobs a second from the due time to the last start; more is better",
                series=("jobs/s",),
                rows=rows,
            ),
            more_is_better=True,
        )
        self._layouts_table(
            "burst",
            {
                "jobs": ("n", figure),
                "jobs/s": ("rate", figure),
                "first start, ms": ("least_ms", figure),
                "worker, µs a job": ("worker_us", figure),
                "server, µs a job": ("server_us", figure),
                "early": ("early", total),
                "not run": ("lost", total),
                "run twice": ("twice", total),
            },
        )

    def _lateness(self) -> None:
        if not self._results.of("lateness"):
            return
        self._say(
            "## Lateness\n",
            "Jobs fall due evenly; the figures are milliseconds from the due time to the start.\n",
        )
        for per_s in self._results.label_values("lateness", "per_s"):
            self._say(f"### {per_s} jobs a second\n")
            found = {
                (name, layout): self._results.of(
                    "lateness", system=name, layout=layout, per_s=per_s
                )
                for name, layout in self._results.layouts("lateness")
            }
            for plot, title, unit, series, keys in (
                (
                    f"lateness-{per_s}",
                    f"Lateness at {per_s} jobs a second",
                    "milliseconds after the due time; less is better",
                    ("median", "p99", "most"),
                    ("p50_ms", "p99_ms", "most_ms"),
                ),
                (
                    f"cpu-{per_s}",
                    f"CPU time at {per_s} jobs a second",
                    "microseconds a job; less is better",
                    ("worker", "server"),
                    ("worker_us", "server_us"),
                ),
            ):
                rows = [
                    self._row(name, rows, *keys, layout=layout)
                    for (name, layout), rows in found.items()
                ]
                self._plot(
                    plot,
                    Plot(title=title, unit=unit, series=series, rows=rows),
                    more_is_better=False,
                )
            self._layouts_table(
                "lateness",
                {
                    "p50": ("p50_ms", figure),
                    "p99": ("p99_ms", figure),
                    "most": ("most_ms", figure),
                    "worker, µs a job": ("worker_us", figure),
                    "server, µs a job": ("server_us", figure),
                    "early": ("early", total),
                    "not run": ("lost", total),
                    "run twice": ("twice", total),
                },
                per_s=per_s,
            )

    def _stress(self) -> None:
        if not self._results.of("stress"):
            return
        self._say(
            "## Three queues at once\n",
            "Each queue gets 1,000 jobs, one every 10 ms, due after 1 to 5 s at random; the figures are milliseconds from the due time to the start.\n",
        )
        rows = [
            self._row(
                name,
                self._results.of("stress", system=name, layout=layout),
                "p50_ms",
                "p99_ms",
                "farthest_ms",
                layout=layout,
            )
            for name, layout in self._results.layouts("stress")
        ]
        self._plot(
            "stress",
            Plot(
                title="Three queues at once",
                unit="milliseconds from the due time; less is better",
                series=("median", "p99", "farthest"),
                rows=rows,
            ),
            more_is_better=False,
        )
        self._layouts_table(
            "stress",
            {
                "p50": ("p50_ms", figure),
                "p99": ("p99_ms", figure),
                "farthest, early or late": ("farthest_ms", figure),
                "early": ("early", total),
                "not run": ("lost", total),
                "run twice": ("twice", total),
            },
        )

    def _memory(self) -> None:
        if not self._results.of("memory"):
            return
        self._say(
            "## Memory, and what waiting costs\n",
            "A pending job has one argument of 60 characters, and is not due.\n"
            "So the worker is idle; its memory is the PSS of its processes.\n",
        )
        plotted, rows = [], []
        for name in self._results.systems:
            found = self._results.of("memory", system=name)
            plotted.append(self._row(name, found, "bytes"))
            why = trouble(found)
            store = next(
                (f" ({row['store']})" for row in found if row.get("store")), ""
            )
            cells = [
                figure(found, "n"),
                figure(found, "bytes") + store,
                *(
                    f"{figure(found, f'empty_{key}')} → {figure(found, f'pending_{key}')}"
                    for key in IDLE
                ),
            ]
            rows.append(
                [label_of(name), *([why, *[""] * (len(cells) - 1)] if why else cells)]
            )
        self._plot(
            "memory",
            Plot(
                title="Memory of a pending job",
                unit="bytes of the store; less is better",
                series=("bytes",),
                rows=plotted,
            ),
            more_is_better=False,
        )
        self._table(
            [
                "",
                "pending",
                "bytes a job",
                *(f"{what}, empty → pending" for what in IDLE.values()),
            ],
            rows,
        )

    def _growth(self) -> None:
        pendings = self._results.label_values("growth", "pending")
        if not pendings:
            return
        self._say(
            "## Growth\n",
            "The same burst and offers, while jobs that are due much later are pending.\n",
        )
        plotted, rows = [], []
        for name in self._results.systems:
            of = _of_system(self._results, name)
            grown = [of("growth", pending=pending) for pending in pendings]
            bursts = [of("burst", layout="1"), *grown]
            plotted.append(
                PlotRow(
                    title_of(name),
                    [median(found, "rate") for found in bursts[:3]],
                    name in OURS,
                    trouble(bursts[0]) or "no figure",
                )
            )
            rows.append(
                [
                    label_of(name),
                    *(trouble(found) or _burst_of(found) for found in bursts),
                    figure(of("offers"), "rate"),
                    *(figure(found, "offer_rate") for found in grown),
                    *(figure(found, "ready_s") for found in bursts),
                ]
            )
        steps = [f"{pending:,} pending" for pending in (0, *pendings)]
        self._plot(
            "growth",
            Plot(
                title="A burst behind far-future jobs",
                unit="jobs a second from the due time to the last start; more is better",
                series=steps[:3],
                rows=plotted,
            ),
            more_is_better=True,
        )
        heads = ("burst, jobs/s", "offers, jobs/s", "start to the first job, s")
        self._table(
            ["", *(f"{what}, {step}" for what in heads for step in steps)], rows
        )

    def _crash(self) -> None:
        if not self._results.of("crash"):
            return
        self._say(
            "## kill -9\n",
            "200 jobs of 50 ms are due at once; when half have started, every process of the worker is killed, "
            "including its supervisor, and the worker is started again.\n"
            "Then the test waits for the jobs: that is the *watch*.\n",
        )
        rows = []
        for name, told in self._results.systems.items():
            for variant, settings in (told.get("crash") or {}).items():
                found = self._results.of("crash", system=name, variant=variant)
                why = trouble(found)
                cells = [
                    figure(found, "in_flight"),
                    figure(found, "again"),
                    figure(found, "again_last_s"),
                    figure(found, "lost"),
                    figure(found, "never_started"),
                    figure(found, "watch_s"),
                    figure(found, "ended_and_again"),
                    figure(found, "rest_last_s"),
                ]
                rows.append(
                    [
                        label_of(name),
                        settings,
                        *([why, *[""] * (len(cells) - 1)] if why else cells),
                    ]
                )
        self._table(
            [
                "",
                "settings",
                "in flight at the kill",
                "of these run again",
                "the last of them, s after the restart",
                "of these not ended in the watch",
                "not started in the watch",
                "watch, at most s",
                "had ended, and ran again",
                "the last of the others, s after the restart",
            ],
            rows,
        )
        self._table(
            ["", "documented redelivery after a worker's death"],
            [
                [label_of(name), told.get("redelivery", "")]
                for name, told in self._results.systems.items()
            ],
        )

    def _settings(self) -> None:
        self._say("## Versions and settings\n")
        rows = []
        for name, told in self._results.systems.items():
            used = {
                row["layout"]
                for row in self._results.of_system(name)
                if "layout" in row
            } | {"1"}
            layouts = "; ".join(
                f"{layout}: {what}"
                for layout, what in (told.get("layouts") or {}).items()
                if layout in used
            )
            pages = " ".join(_link(page) for page in told.get("documentation") or ())
            rows.append(
                [
                    label_of(name),
                    told.get("version") or told["error"],
                    layouts,
                    told.get("notes") or "",
                    pages,
                ]
            )
        self._table(["", "versions", "what runs", "notes", "documentation"], rows)


#: What is watched of an idle worker.
IDLE = {
    "pss_mib": "worker's memory, MiB",
    "commands_a_s": "commands/s, those of scripts included",
    "worker_percent": "worker's CPU, %",
    "server_percent": "server's CPU, %",
}


def _of_system(results: Results, name: str) -> Callable[..., list[Row]]:
    return lambda test, **labels: results.of(test, system=name, **labels)


def _burst_of(rows: Sequence[Row]) -> str:
    if median(rows, "rate") is None:
        return f"{total(rows, 'seen')} of {total(rows, 'n')} ran in time"
    return figure(rows, "rate")


def _fate(rows: Sequence[Row]) -> str:
    """Say in a few words what became of the jobs of a killed worker."""
    if trouble(rows):
        return "–"
    lost, late = (sum(row[key] for row in rows) for key in ("lost", "never_started"))
    promised, watched = rows[0]["promised_s"], rows[0]["watch_s"]
    if not lost:
        said = f"all again, after {figure(rows, 'again_last_s')} s"
    elif promised is not None and promised > watched:
        said = f"again after {number(promised)} s (documented)"
    else:
        said = f"{lost} of {total(rows, 'in_flight')} lost"
    return said + (f"; {late} others not within {number(watched)} s" if late else "")


def _link(page: str) -> str:
    return (
        f"[{page.removeprefix('https://').partition('/')[0]}]({page})"
        if page.startswith("https:")
        else f"`{page}`"
    )


def main(files: Sequence[Path], page: Path | None) -> None:
    """Write the page and its plots; without a page print the tables."""
    results = load(files)
    if page is None:
        print(Page(results, "").make().text)
        return
    made = Page(results, page.stem).make()
    page.write_text(made.text, "utf-8")
    folder = page.parent / page.stem
    folder.mkdir(exist_ok=True)
    for name, text in made.files.items():
        (folder / name).write_text(text, "utf-8")
    print(f"{page}, and {len(made.files)} plots in {folder}")
