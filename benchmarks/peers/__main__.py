"""``python -m benchmarks.peers``: other systems for delayed jobs beside ours, on one server, in one run.

Makes the environment of each, measures, and appends to a results file. ``python -m benchmarks.peers report FILE --to
PAGE`` makes a page of it, with plots.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.peers import report, run
from benchmarks.peers.environments import HERE
from benchmarks.peers.measurements import TESTS, Options
from benchmarks.peers.systems import SYSTEMS
from tests.servers import available_kinds


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["report"]:
        _report(arguments[1:])
    else:
        _run(arguments)


def _report(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers report", description=report.__doc__
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="+",
        help="results; of a figure that several hold the median counts",
    )
    parser.add_argument(
        "--to",
        type=Path,
        metavar="PAGE",
        help="a Markdown file; its plots go into a folder beside it",
    )
    options = parser.parse_args(arguments)
    report.main(options.file, options.to)


def _run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__
    )
    kinds = available_kinds()
    default = Options()
    parser.add_argument(
        "--systems",
        type=_some_of(SYSTEMS),
        default=list(SYSTEMS),
        help="default: all; a,b,c",
    )
    parser.add_argument(
        "--tests",
        type=_some_of(TESTS),
        default=list(TESTS),
        help=f"default: all; {','.join(TESTS)}",
    )
    parser.add_argument(
        "--server", choices=kinds, default="redis7" if "redis7" in kinds else kinds[0]
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="passes over all systems; the median counts"
    )
    parser.add_argument(
        "--n", type=int, default=default.n, help="jobs of offers, bulk, drain and burst"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=default.seconds,
        help="for which jobs of lateness fall due",
    )
    parser.add_argument(
        "--layouts",
        type=_split,
        default=default.layouts,
        help="of burst, lateness and stress: 1, 2, and 1t, 2t where a peer has something to tune; drain has 1 and 2",
    )
    parser.add_argument(
        "--pending",
        type=_numbers,
        default=default.pending,
        help="far-future jobs that wait while growth measures; 1000,100000",
    )
    parser.add_argument(
        "--note",
        default="",
        help="goes into the file: what else the machine does, for example",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE / f"results-{datetime.now(UTC).date()}.jsonl",
        help="appended to",
    )
    parser.add_argument(
        "--make-only",
        action="store_true",
        help="make the environments, and measure nothing",
    )
    options = parser.parse_args(arguments)
    run.main(
        options.systems,
        options.tests,
        Options(
            n=options.n,
            seconds=options.seconds,
            layouts=options.layouts,
            pending=options.pending,
        ),
        kind=options.server,
        passes=options.runs,
        out=options.out,
        note=options.note,
        makes_only=options.make_only,
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in _split(text))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: burst and offers measure with none"
        )
    return numbers


def _some_of(known):
    def names(text: str) -> list[str]:
        chosen = _split(text)
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"no {name!r}, there are {', '.join(known)}"
                )
        return [name for name in known if name in chosen]

    return names


if __name__ == "__main__":
    main(sys.argv[1:])
