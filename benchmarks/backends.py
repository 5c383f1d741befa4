"""``python -m benchmarks.backends``: three backends of Django's tasks in one run: ours, django-tasks-db, django-tasks-redis.

It measures as ``python -m benchmarks.peers`` does, each in an environment of its own, and shows the medians of the passes.
A worker of ours has threads, those of the others run one task at a time: the rows say how many processes each has.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks import bench
from benchmarks.peers import report, run
from benchmarks.peers.environments import Venv
from benchmarks.peers.measurements import Options
from benchmarks.peers.systems import SYSTEMS, System
from tests.servers import available_kinds

OURS = "delayq-tasks"
NAMES = (OURS, "django-tasks-redis", "django-tasks-db")
#: Each figure: its test, the labels of its rows, its key, and what it says.
FIGURES = (
    ("offers", {}, "rate", "enqueue(), calls/s"),
    ("drain", {"layout": "1"}, "rate", "tasks/s, 1 process"),
    ("drain", {"layout": "2"}, "rate", "tasks/s, 2 processes"),
    *(
        ("lateness", {"layout": layout, "per_s": 50}, key, f"late, ms, {word}{tuned}")
        for layout, tuned in (("1", ""), ("1t", ", tuned"))
        for key, word in (("p50_ms", "half"), ("p99_ms", "99 %"))
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = available_kinds()
    parser.add_argument("--server", choices=kinds, default=kinds[0])
    parser.add_argument("--runs", type=int, default=3, help="passes; medians count")
    parser.add_argument(
        "--n", type=int, default=2_000, help="tasks of offers and drain"
    )
    parser.add_argument("--seconds", type=float, default=10, help="lateness lasts")
    options = parser.parse_args()
    settings = SYSTEMS["delayq"].variables | {"BENCH_DELAYQ": "tasks"}
    SYSTEMS[OURS] = System(
        "django-delayq", "delayq_tasks", Venv("delayq_tasks"), settings
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "results.jsonl")
        run.main(
            NAMES,
            ("offers", "drain", "lateness"),
            Options(n=options.n, seconds=options.seconds, layouts=("1", "1t")),
            kind=options.server,
            passes=options.runs,
            out=out,
            note="",
            makes_only=False,
        )
        results = report.load([out])
    rows = []
    for test, labels, key, title in FIGURES:
        found = [results.of(test, system=name, **labels) for name in NAMES]
        rows.append((title, *(_figure(each, key) for each in found)))
    bench.table(("", *(SYSTEMS[name].title for name in NAMES)), rows)


def _figure(rows: list[report.Row], key: str) -> str:
    if not rows:
        # Nothing of ours has to be tuned.
        return "–"
    return report.trouble(rows) or report.figure(rows, key)


if __name__ == "__main__":
    main()
