"""docs/compatibility.md and its detail page, from the results of the matrix of tests."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.codecs import codecs_of, is_supported, python_name
from tests.interop.left_out import LEFT_OUT
from tests.interop.peers import VERSIONS
from tests.interop.values import VALUES

#: What a cell of each column says, by its number.
POINTS = {
    1: "Java offers and transfers, Python takes",
    2: "Java offers and dies, Python transfers; Python takes, and Java",
    3: "Python offers and ends, Java transfers; Java takes, and Python",
    4: "Both transfer and both consume: each element once",
    5: "Each side sees and changes what the other offered",
    6: "A handler runs what Java offered; Java takes what a view scheduled and offered",
}

#: Those of a page: newest first.
_NEWEST_FIRST = tuple(reversed(VERSIONS))

_cells: dict[tuple[str, str, int], str] = {}
#: Codec, what Redisson cannot do, and label → versions.
_refusals: dict[tuple[str, str, str], set[str]] = {}
#: The same, with its version, of this process and in no report yet.
_refused: list[tuple[str, str, str, str]] = []


def cell(point: int) -> Any:
    """Mark a test as one column of the matrix; it has the parameters ``version`` and ``codec``."""

    def mark(function: Any) -> Any:
        function.point = point
        return function

    return mark


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Have the report of a cell's test say which cell that is, and what Redisson refused since the last one."""
    point = getattr(getattr(item, "function", None), "point", None)
    if point is None:
        return
    params = item.callspec.params  # type: ignore[attr-defined]
    cell_of = (params["version"], params["codec"], point)
    report.user_properties += [("cell", cell_of), ("refused", [*_refused])]
    _refused.clear()


def note(report: pytest.TestReport) -> None:
    """Remember the result of a cell's test, whichever process has run it."""
    told = dict(report.user_properties)
    if "cell" not in told:
        return
    for codec, how, label, version in told["refused"]:  # type: ignore[misc]
        _refusals.setdefault((codec, how, label), set()).add(version)
    # CI runs again what fails, and names it.
    is_rerun = report.outcome == "rerun"  # type: ignore[comparison-overlap]
    if is_rerun or (report.when != "call" and report.passed):
        return
    key: tuple[str, str, int] = tuple(told["cell"])  # type: ignore[arg-type,assignment]
    word = "pass" if report.passed and _cells.get(key) in (None, "pass") else "FAIL"
    _cells[key] = word


def has_cells() -> bool:
    """Return whether any cell's test ran."""
    return bool(_cells)


def note_refusal(version: str, codec: str, label: str, how: str) -> None:
    """Remember a value that Redisson itself cannot write, or not read back."""
    if codec != "default":
        _refused.append((codec, how, label, version))


def word_of(version: str, codec: str, point: int) -> str:
    """Return the word of a cell; a cell that did not run is a FAIL."""
    if is_supported(version, codec):
        return _cells.get((version, codec, point), "FAIL")
    # One test proves that it is refused clearly and that nothing is lost.
    return "unsupported" if _cells.get((version, codec, 0)) == "pass" else "FAIL"


def write(target: Path) -> None:
    """Write the page, and the detail beside it as ``NAME-detail.md``."""
    detail = target.with_stem(f"{target.stem}-detail")
    for file, lines in ((target, _summary()), (detail, _detail())):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summary() -> Iterator[str]:
    yield _INTRODUCTION
    yield from _table(
        ["codec", *_NEWEST_FIRST], (_summary_of(codec) for codec in _all_codecs())
    )
    yield _SIX_WAYS
    yield from _ways()
    yield _SIGNED
    yield _UNSUPPORTED


def _detail() -> Iterator[str]:
    yield _DETAIL
    yield from _ways()
    for version in _NEWEST_FIRST:
        yield f"\n## Redisson {version}\n"
        rows = (
            [
                _label(version, codec),
                *(word_of(version, codec, point) for point in POINTS),
            ]
            for codec in codecs_of(version)
        )
        yield from _table(["codec", *map(str, POINTS)], rows)
    yield _VALUES
    yield from (f"* {label}" for label in VALUES)
    yield _REFUSED
    yield from _table(["codec", "cannot", "values"], _refused_rows())
    yield _LEFT_OUT
    yield from _table(
        ["codec", "value", "why"],
        (
            [f"`{each.codec}`{_of(each.versions)}", each.label, each.reason]
            for each in LEFT_OUT
        ),
    )


def _ways() -> Iterator[str]:
    for point, text in POINTS.items():
        yield f"{point}. {text}."


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _all_codecs() -> list[str]:
    return [
        *dict.fromkeys(
            codec for version in _NEWEST_FIRST for codec in codecs_of(version)
        )
    ]


def _summary_of(codec: str) -> list[str]:
    return [
        "its default" if codec == "default" else f"`{codec}`",
        *(_word_of_all(version, codec) for version in _NEWEST_FIRST),
    ]


def _word_of_all(version: str, codec: str) -> str:
    if codec not in codecs_of(version):
        return "–"
    words = {word_of(version, codec, point) for point in POINTS}
    return words.pop() if len(words) == 1 else "FAIL"


def _refused_rows() -> Iterator[list[str]]:
    rows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (codec, how, label), versions in _refusals.items():
        everywhere = [each for each in VERSIONS if codec in codecs_of(each)]
        only = (
            ()
            if versions == {*everywhere}
            else tuple(sorted(versions, key=everywhere.index))
        )
        rows.setdefault((codec, how, only), []).append(label)
    order = _all_codecs()
    for codec, how, only in sorted(rows, key=lambda row: (order.index(row[0]), row)):
        labels = sorted(rows[codec, how, only], key=[*VALUES].index)
        yield [f"`{codec}`{_of(only)}", how, ", ".join(labels)]


def _label(version: str, codec: str) -> str:
    name = python_name(version, codec)
    return f"its default, `{name}`" if codec == "default" else f"`{name}`"


def _of(versions: tuple[str, ...]) -> str:
    return f" of {', '.join(versions)}" if versions else ""


_INTRODUCTION = """\
# Compatibility with Redisson

Which codecs and versions of Redisson work with django-delayq on the same queue.
Each cell is a run of both on one server; Redisson runs from its own jars in a Java process.
`make interop` writes this page and [its detail](compatibility-detail.md) from the results of its tests; don't edit them.

* `pass`: the tests passed.
* `unsupported`: the codec is [refused clearly, and nothing is lost](#not-supported), which has a test.
* `FAIL`: the tests failed, or did not run.
* `–`: the version has no such codec.
"""

_SIX_WAYS = """
A cell is `pass` when each of six ways passes; the [detail](compatibility-detail.md) has a table for each version:
"""

#: Of test_signed.py.
_SIGNED = """
## Signed jobs

With every codec, a job travels as text or as a map, and its signature covers one string.
`tests/interop/test_signed.py` tries this with Redisson 3.16.6 and 4.7.0, and with each codec that can hold text or bytes:

* A job that Python takes and offers again, and then Java, or the other way round, from and to both queues, runs once, with the arguments that it was scheduled with.
* A job that `pollLastAndOfferFirstTo` moves runs in its own queue, and is data in another.
* A job that Java forges in nine ways, each as text and as a map, is data, and the real job runs once.
* A job that Java copies while it waits, and repeats after it ended, runs once.
* A job that Java writes with any other codec runs once, or is kept in the quarantine."""

_UNSUPPORTED = """
## Not supported

`FstCodec`, the default of Redisson 3.10 to 3.12, and `SerializationCodec` write the fields of an object in an order that only its class file has.

* Offering with them is an `EncodeError` that says so.
* Elements that Java offers with them are transferred like all others, and Java can take them.
* Taking it here raises a `DecodeError` with the raw bytes in `data`; a worker keeps them in the quarantine.
* With `ByteArrayCodec` they are a value like any other."""

_DETAIL = """\
# Compatibility with Redisson, in detail

Every cell of [compatibility.md](compatibility.md), in each of six ways, then what was sent and what was not.
The words are explained there:
"""

_VALUES = """
## What was sent

Ways 1 to 3 send each of these values that the version writes with the codec and reads back itself.
Each value must arrive with the Java type that Redisson reads from its own bytes.
The bytes that Python writes must be Redisson's, to the last one.
"""

_REFUSED = """
A value is not sent with a codec if Redisson itself cannot write it, or cannot read it back.
The codecs of text, numbers and bytes get their own kind only.
"""

_LEFT_OUT = """
These values travel too, but not as from Redisson to Redisson.
A listed value that comes out the same fails its test, so the list stays true.
"""
