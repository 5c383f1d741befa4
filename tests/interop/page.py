"""docs/compatibility.md, from what the tests of the matrix came to."""

from pathlib import Path
from typing import Any

import pytest

from tests.interop.codecs import is_supported

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


def word_of(version: str, codec: str, point: int) -> str:
    if not is_supported(version, codec):
        point = 0
        return (
            "unsupported" if _cells.get((version, codec, point)) == "pass" else "FAIL"
        )
    return _cells.get((version, codec, point), "FAIL")


def write(target: Path) -> None:
    """Write the page; a cell that did not run is a FAIL."""
    target.write_text("\n".join(_lines()) + "\n", encoding="utf-8")


def _lines() -> list[str]:
    raise NotImplementedError
