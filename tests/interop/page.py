"""docs/compatibility.md, from what the tests of the matrix came to."""

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
    4: "both transfer and both consume: each element once",
    5: "each side sees and changes what the other offered",
    6: "a handler runs what Java offered; Java takes what a view scheduled and offered",
}

_cells: dict[tuple[str, str, int], str] = {}
#: Codec, what Redisson cannot do, and label → versions.
_refusals: dict[tuple[str, str, str], list[str]] = {}


def cell(point: int) -> Any:
    """Mark a test as one column of the matrix; it has the parameters ``version`` and ``codec``."""

    def mark(function: Any) -> Any:
        function.point = point
        return function

    return mark


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Remember what a cell's test came to."""
    point = getattr(getattr(item, "function", None), "point", None)
    if point is None or (report.when != "call" and report.passed):
        return
    key = (item.callspec.params["version"], item.callspec.params["codec"], point)  # type: ignore[attr-defined]
    word = "pass" if report.passed and _cells.get(key) in (None, "pass") else "FAIL"
    _cells[key] = word


def has_cells() -> bool:
    """Whether any cell's test was run."""
    return bool(_cells)


def note_refusal(version: str, codec: str, label: str, how: str) -> None:
    """Remember a value that Redisson itself cannot write, or not read back."""
    if codec != "default":
        _refusals.setdefault((codec, how, label), []).append(version)


def word_of(version: str, codec: str, point: int) -> str:
    """Return the word of a cell; one that did not run is a FAIL."""
    if is_supported(version, codec):
        return _cells.get((version, codec, point), "FAIL")
    # One test says that it is refused clearly and loses nothing.
    return "unsupported" if _cells.get((version, codec, 0)) == "pass" else "FAIL"


def write(target: Path) -> None:
    """Write the page."""
    target.write_text("\n".join(_lines()) + "\n", encoding="utf-8")


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield from _table(
        ["codec", *VERSIONS], (_summary(codec) for codec in _all_codecs())
    )
    yield _SIX_WAYS
    for point, text in POINTS.items():
        yield f"{point}. {text}."
    for version in VERSIONS:
        yield f"\n## Redisson {version}\n"
        rows = (
            [
                _label(version, codec),
                *(word_of(version, codec, point) for point in POINTS),
            ]
            for codec in codecs_of(version)
        )
        yield from _table(["codec", *map(str, POINTS)], rows)
    yield _SIGNED
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
    yield _UNSUPPORTED


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _all_codecs() -> list[str]:
    return [
        *dict.fromkeys(codec for version in VERSIONS for codec in codecs_of(version))
    ]


def _summary(codec: str) -> list[str]:
    return [
        "its default" if codec == "default" else f"`{codec}`",
        *(_word_of_all(version, codec) for version in VERSIONS),
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
        only = () if versions == everywhere else tuple(versions)
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

What a real Redisson and django-delayq do with the same queue, tried.
Each cell is a run of both on one server, the Redisson from its own jars in a Java process of its own.
`make interop` writes this page from what its tests came to; don't edit it.

* `pass`: its tests passed.
* `unsupported`: it is [refused clearly, and nothing is lost](#not-supported), which has a test, too.
* `FAIL`: they did not pass, or did not run.
* `–`: the version has no such codec.

"""

_SIX_WAYS = """
A cell is `pass` here when it is so in each of six ways, which stand below for each version:
"""

#: Of test_signed.py.
_SIGNED = """
## Signed jobs

A job travels as text or as a map, whatever the codec, and what is signed of it is one string.
Tried with Redisson 3.16.6 and 4.7.0, and each codec that can hold text or bytes (`tests/interop/test_signed.py`):

* taken out and offered again by Python, then by Java, and the other way round, from and to both queues: it runs once, with the arguments that it was scheduled with;
* moved by `pollLastAndOfferFirstTo`: it runs in its own queue, and is data in another;
* forged by Java in nine ways, each as text and as a map: data, and the real job runs once;
* copied by Java while it waits, and repeated after it ended: it runs once;
* written by Java with every other codec: it runs once, or is kept in the quarantine."""

_VALUES = """
## What was sent

In ways 1 to 3, each of these that the version writes with the codec and can read again itself.
What arrives has to have the Java type that Redisson itself reads from its own bytes, and the bytes that Python writes have to be those of Redisson, to the last one.
"""

_REFUSED = """
What Redisson itself cannot write with a codec, or not read back, is not sent with it.
The codecs of text, numbers and bytes get their own kind only.
"""

_LEFT_OUT = """
These travel, too, but not as from Redisson to Redisson.
One that is listed and comes out the same fails its test, so the list stays true.
"""

_UNSUPPORTED = """
## Not supported

`FstCodec`, the default of Redisson 3.10 to 3.12, and `SerializationCodec` write the fields of an object in an order that only its class file tells.

* To offer with them is an `EncodeError` that says so.
* What Java offers with them is transferred like anything else, and Java can take it.
* Who takes it here gets a `DecodeError` with the raw bytes in `data`, and they are kept in the quarantine; with `ByteArrayCodec` they are a value like any other."""
