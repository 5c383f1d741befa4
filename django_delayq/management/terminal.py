"""Text for a terminal: in columns that line up, in lines that fit. `wording.printable` takes out what would steer it."""

import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

#: Spaces between two columns, and the fewest if the table would not fit.
GAP, LEAST_GAP = 2, 1
#: Rows whose cells decide together how wide the columns are.
ROWS_AT_ONCE = 100


def width_of_screen(stream: Any) -> int | None:
    """Return how many columns a terminal has; None: the stream is none, and lines may be of any length."""
    if not getattr(stream, "isatty", lambda: False)():
        return None
    return shutil.get_terminal_size((80, 24)).columns


def width_of(text: str) -> int:
    """Return how many columns a text takes: Chinese characters take two each."""
    return len(text) if text.isascii() else sum(map(_width_of_character, text))


def _width_of_character(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):  # accents and joiners
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """Cut a text that is wider, with an ellipsis in the last column."""
    if width_of(text) <= width:
        return text
    kept, taken = [], 0
    for char in text:
        taken += _width_of_character(char)
        if taken > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…" if width > 0 else ""


#: What a line may end after: spaces, words, and single Chinese characters, which keep the punctuation beside them.
_WIDE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60"
_PIECE = re.compile(rf" +|[（《「]*(?:[{_WIDE}]|[^ {_WIDE}]+)[，。；：、！？）》」]*")


def wrapped(text: str, width: int, start: str = "", indent: str = "") -> list[str]:
    """Break a text into lines. No word is torn apart: people copy commands, names and ids."""
    lines, line, taken, is_blank = list[str](), start, width_of(start), True
    for piece in _PIECE.findall(re.sub(r"\s", " ", text)):
        if not is_blank and taken + width_of(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line, taken, is_blank = indent, width_of(indent), True
        if lines and is_blank and piece.isspace():
            continue
        line += piece
        taken += width_of(piece)
        is_blank = is_blank and piece.isspace()
    return lines if is_blank else [*lines, line.rstrip()]


def padded(text: str, width: int, *, to_right: bool = False) -> str:
    """Fill a text up with spaces."""
    padding = " " * (width - width_of(text))
    return padding + text if to_right else text + padding


class Column(NamedTuple):
    """One column of a table."""

    title: str
    is_number: bool = False
    #: Whether its cells are cut where the table would be too wide. One column of a table is.
    is_cut: bool = False


#: So many columns are left of what is cut.
LEAST_WIDTH = 8


def table(
    columns: Sequence[Column],
    rows: Iterator[Sequence[str]],
    width: int | None,
    heading: Callable[[str], str] = str,
) -> Iterator[str]:
    """Yield the lines of a table. Where it would be wider than ``width``, one column is cut.

    The lines come as soon as `ROWS_AT_ONCE` rows are there. ``heading`` styles the first of them.
    """
    widths = [width_of(column.title) for column in columns]
    titles: Sequence[str] | None = [column.title for column in columns]
    while (some := list(islice(rows, ROWS_AT_ONCE))) or titles:
        for row in some:
            widths = [
                max(known, width_of(cell))
                for known, cell in zip(widths, row, strict=True)
            ]
        fits, gap = _fit(columns, widths, width)
        if titles:
            yield heading(_line(columns, titles, fits, gap))
        for row in some:
            yield _line(columns, row, fits, gap)
        titles = None


def _fit(
    columns: Sequence[Column], widths: Sequence[int], width: int | None
) -> tuple[list[int], int]:
    """Return how wide the columns are, and the gap between two."""
    fits, gaps = list(widths), len(widths) - 1
    if width is None or sum(fits) + GAP * gaps <= width:
        return fits, GAP
    over = sum(fits) + LEAST_GAP * gaps - width
    for i, column in enumerate(columns):
        if column.is_cut and over > 0:
            fits[i] = max(fits[i] - over, min(fits[i], LEAST_WIDTH))
    return fits, LEAST_GAP


def _line(
    columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], gap: int
) -> str:
    cells = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        cells.append(padded(fitted(cell, width), width, to_right=column.is_number))
    return (" " * gap).join(cells).rstrip()


class Screen:
    """Shows lines in the place of the ones before; below them if the stream is not a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_terminal = width_of_screen(stream) is not None
        self._is_first = True

    def draw(self, lines: Iterable[str]) -> None:
        if not self._is_terminal:
            start = "" if self._is_first else "\n"
            self._write(start + "".join(f"{line}\n" for line in lines))
        else:
            # Each line is overwritten and its rest erased: to erase all first would flash.
            start = "\x1b[2J\x1b[H" if self._is_first else "\x1b[H"
            shown = "".join(f"{line}\x1b[K\n" for line in lines)
            self._write(f"{start}{shown}\x1b[J")
        self._is_first = False

    def _write(self, text: str) -> None:
        self._stream.write_styled(text, ending="")
        self._stream.flush()
